//! Effects: what events cause, in typed lists that the loop drains in the order of the contract.
//!
//! Components append, and carry nothing out that depends on what other events of the instant do. Later events go to the
//! agenda. Under [`InsertionOrder`](chakram_hardware::collective::InsertionOrder) what follows from an event is carried out before
//! anything else: components leave it as a stack of work, the last to be done first.

use super::agenda::Agenda;
use super::discipline::Discipline;
use super::error::ReplayRefusal;
use super::event::{Event, EventClass};
use super::fabric::ApproachingAccess;
use super::ids::{InstanceId, InstanceIndex, InstanceNode, RunIndex};
use crate::CollectiveRecord;
use chakram_base::ids::{NodeIndex, Npu};
use chakram_base::units::Time;
use chakram_hardware::collective::ChunkQueueSpec;
use chakram_hardware::network::NetworkMessage;

/// See the module. Lists are in the order in which they are drained: the first five after each event, the others when a
/// round is over, arrivals only once no event is left at the instant. To the first four things are added by methods.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Later events.
    pub agenda: Agenda,
    /// Parts of collectives that began. Observers are told.
    pub began: Vec<(InstanceId, NodeIndex)>,
    /// Collectives that ended. Observers are told.
    pub records: Vec<CollectiveRecord>,
    /// Nodes of instances of which the network, a memory or a collective says when they end.
    pub ends: Vec<(Time, InstanceNode)>,
    /// In insertion order, ends of this instant and all else that is to be done before anything else.
    pub work: Vec<FollowUp>,
    /// Nodes whose delay begins, as instance and node in one word.
    pub delayed: Vec<u64>,
    /// Lanes that were freed, as instance and lane. They take the nodes that queue for them, by rank and lane.
    pub freed: Vec<(InstanceIndex, u32)>,
    /// Nodes that became ready, as instance and node in one word. They are posted by rank and id.
    pub ready: Vec<u64>,
    /// Instances that ended. Their feeds are told, and may launch.
    pub ended: Vec<InstanceIndex>,
    /// Loads and stores over the network. They are submitted in the order of their lanes.
    pub accesses: Vec<ApproachingAccess>,
    /// Messages. They are submitted by content.
    pub sends: Vec<PendingSend>,
    /// Runs of collectives with members that arrived. They are settled.
    pub arrivals: Vec<RunIndex>,
    /// Reason for which the replay cannot go on after this instant.
    pub refusal: Option<ReplayRefusal>,
    /// Progress of the loop.
    pub progress: LoopProgress,
    /// True if one of the first four lists may hold something: one look after each event in place of four.
    is_stirred: bool,
}

/// A message submitted at this instant.
#[derive(Debug)]
pub(super) struct PendingSend {
    /// Content key: NPU of the sender, then its launch and node, or, for a step of a collective, group and sequence,
    /// chunk, stage and step. Messages are submitted in this order, which no other message and no op number changes.
    pub key: SendOrderKey,
    /// The message.
    pub message: NetworkMessage,
}

/// Content key of a message.
pub(super) type SendOrderKey = (u32, u32, u32, u32, u64);

/// Progress of the loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LoopProgress {
    /// Events handled so far.
    pub events: u64,
    /// The present instant.
    at: Time,
    /// Settlements of the instant so far.
    settled: u32,
    /// Rounds of events handled since.
    rounds: u32,
}

impl LoopProgress {
    /// Settlements of the instant so far.
    pub fn settled(&self) -> u32 {
        self.settled
    }

    /// Rounds of events handled since the last of them.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Counts a round of an instant.
    #[inline]
    pub fn end_round(&mut self, now: Time) {
        if now > self.at {
            (self.at, self.settled, self.rounds) = (now, 0, 0);
        }
        self.rounds += 1;
    }

    /// Counts a settlement.
    pub fn settle(&mut self) {
        self.settled += 1;
        self.rounds = 0;
    }
}

/// Work that is to be done, in insertion order, before anything else.
#[derive(Clone, Copy, Debug)]
pub(super) enum FollowUp {
    /// A node of an instance ends.
    End(InstanceIndex, NodeIndex),
    /// A chunk leaves its queue, which admits others.
    Leave(Npu, ChunkQueueSpec),
    /// A queue admits chunks.
    Admit(Npu, ChunkQueueSpec),
    /// The message of a channel is there for its receive.
    Deliver(u32),
    /// All members of a run have been told that it ended.
    Record(RunIndex),
}

impl Effects {
    /// Returns whether observers have to be told of something, or ends to be scheduled or carried out.
    #[inline]
    pub fn leave_something(&self) -> bool {
        let held = self.ends.len() | self.work.len() | self.began.len() | self.records.len();
        debug_assert!(
            self.is_stirred || held == 0,
            "lists are added to by methods"
        );
        self.is_stirred
    }

    /// Notes that the first four lists are about to be drained.
    #[inline]
    pub fn calm(&mut self) {
        self.is_stirred = false;
    }

    /// Has observers told that a node's part of a collective begins.
    #[inline]
    pub fn begin(&mut self, instance: InstanceId, node: NodeIndex) {
        self.is_stirred = true;
        self.began.push((instance, node));
    }

    /// Has observers told that a collective ended.
    #[inline]
    pub fn record(&mut self, record: CollectiveRecord) {
        self.is_stirred = true;
        self.records.push(record);
    }

    /// Notes when a node of an instance ends, of which the network, a memory or a collective says so.
    #[inline]
    pub fn end_said(&mut self, at: Time, instance: InstanceIndex, node: NodeIndex) {
        self.is_stirred = true;
        self.ends.push((at, InstanceNode { instance, node }));
    }

    /// Has something done, in insertion order, after what was left before.
    #[inline]
    pub fn leave(&mut self, work: FollowUp) {
        self.is_stirred = true;
        self.work.push(work);
    }

    /// Has a node of an instance end now.
    #[inline]
    pub fn end<D: Discipline>(&mut self, now: Time, instance: InstanceIndex, node: NodeIndex) {
        if D::AT_ONCE {
            self.leave(FollowUp::End(instance, node));
        } else {
            self.end_said(now, instance, node);
        }
    }

    /// Schedules the end of a node.
    #[inline]
    pub fn end_at(&mut self, at: Time, instance: InstanceIndex, node: NodeIndex) {
        let event = Event::of_node(EventClass::Node, instance, node);
        self.agenda.push(at, event);
    }

    /// Schedules the end of a node that holds its lane. In insertion order, ends of one NPU at one instant come together.
    #[inline]
    pub fn end_held<D: Discipline>(
        &mut self,
        npu: Npu,
        at: Time,
        InstanceNode { instance, node }: InstanceNode,
    ) {
        if D::AT_ONCE {
            let event = Event::of_node(EventClass::Node, instance, node);
            self.agenda.delay(npu, at, event, 0);
        } else {
            self.end_at(at, instance, node);
        }
    }

    /// Takes the events of the next instant, in the order in which they were scheduled.
    #[inline]
    pub fn take_round(&mut self, round: &mut Vec<Event>) {
        self.agenda.take(round);
        self.progress.events += round.len() as u64;
    }

    /// Adds what was caused beside this, at instants of its own.
    pub fn append(&mut self, mut other: Self) {
        debug_assert!(
            other.work.is_empty() && other.ready.is_empty() && other.arrivals.is_empty(),
            "what is beside the loop ends no node"
        );
        // Order within an instant is by content, so events may be appended.
        let mut round = Vec::new();
        while let Some(due) = other.agenda.next_time() {
            other.agenda.take(&mut round);
            for &event in &round {
                self.agenda.push(due, event);
            }
        }
        self.progress.events += other.progress.events;
        self.is_stirred |= other.is_stirred;
        self.began.append(&mut other.began);
        self.records.append(&mut other.records);
        self.ends.append(&mut other.ends);
        self.sends.append(&mut other.sends);
        self.refusal = self.refusal.take().or(other.refusal);
    }
}
