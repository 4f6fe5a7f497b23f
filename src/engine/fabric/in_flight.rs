//! Contexts of messages in flight, indexed by op.

use crate::ids::{CellIndex, InstanceIndex, RunIndex, SharedStage};
use chakram_base::ids::{NodeIndex, OpIndex};
use chakram_hardware::network::ConsecutivePortsOpenedByOperation;

/// Context of a message in flight, which the loop needs when the network delivers the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlightMessageContext {
    /// A step of a collective: a message of one chunk between two members.
    Step {
        run: RunIndex,
        from: CellIndex,
        to: CellIndex,
        /// Stage index in the numbering that all members share.
        stage: SharedStage,
        /// Number of steps that the receiver must have taken before it receives the message.
        recv_posted: u32,
    },
    /// Rendezvous request from one member to another, asking for the message that the other member sends in step
    /// `step`.
    ChunkRequest {
        run: RunIndex,
        from: CellIndex,
        to: CellIndex,
        stage: SharedStage,
        step: u32,
    },
    /// Message of a scripted collective.
    Scripted {
        run: RunIndex,
        from: CellIndex,
        to: CellIndex,
        part: u32,
        /// Label by which the receiver's script matches the message.
        label: u32,
    },
    /// Message between two ranks.
    Send {
        pair: u32,
        sender: InstanceIndex,
        node: NodeIndex,
        ports: ConsecutivePortsOpenedByOperation,
    },
    /// Message from a sender without a trace to a posted receive, which the receive's instance and node identify.
    Mirrored {
        receiver: InstanceIndex,
        node: NodeIndex,
        ports: ConsecutivePortsOpenedByOperation,
    },
    /// Load or store that the network serves; its instance and node identify it.
    Access {
        instance: InstanceIndex,
        node: NodeIndex,
    },
    /// Rendezvous request of a receive between two ranks; the receive's instance and node identify it.
    RankRequest {
        pair: u32,
        receiver: InstanceIndex,
        node: NodeIndex,
    },
}

/// Slab of the ops of messages in flight. Slots are reused.
#[derive(Debug, Default)]
pub struct InFlightOpSlab {
    slots: Vec<InFlightMessageContext>,
    /// Submission number of each entry's message. Filled only if the network models contention.
    handed: Vec<u64>,
    count: u64,
    free: Vec<OpIndex>,
    inserted: u64,
}

impl InFlightOpSlab {
    #[inline]
    pub fn insert(&mut self, op: InFlightMessageContext) -> OpIndex {
        self.inserted += 1;
        self.insert_uncounted_op(op)
    }

    /// Like [`Self::insert`], for an op that only identifies an event and does not count as a message.
    #[inline]
    pub fn insert_uncounted_op(&mut self, op: InFlightMessageContext) -> OpIndex {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot.index()] = op;
                slot
            }
            None => {
                self.slots.push(op);
                OpIndex(self.slots.len() as u32 - 1)
            }
        }
    }

    /// Gives the message of `op` the next submission number.
    #[inline]
    pub fn assign_submission_number(&mut self, op: OpIndex) {
        if self.handed.len() < self.slots.len() {
            self.handed.resize(self.slots.len(), 0);
        }
        self.count += 1;
        self.handed[op.index()] = self.count;
    }

    /// Returns the submission number of the message of `op`.
    #[inline]
    pub fn submission_number(&self, op: OpIndex) -> u64 {
        self.handed[op.index()]
    }

    /// Subtracts a rehearsal's messages from the count of messages.
    pub fn subtract_rehearsal_messages(&mut self, messages: u64) {
        self.inserted -= messages;
    }

    /// Returns the number of messages inserted so far.
    pub fn inserted_count(&self) -> u64 {
        self.inserted
    }

    #[inline]
    pub fn get(&self, op: OpIndex) -> InFlightMessageContext {
        self.slots[op.index()]
    }

    #[inline]
    pub fn remove(&mut self, op: OpIndex) -> InFlightMessageContext {
        self.free.push(op);
        self.slots[op.index()]
    }
}
