//! Collects the effects of events in typed lists, which the loop drains in a fixed order.
//!
//! Components only append to the lists, because consequences may depend on other events of the instant. Events of later
//! instants go to the agenda. Under
//! [`SortEventsByInsertionMarker`](chakram_hardware::collective::SortEventsByInsertionMarker), the loop must process an
//! event's consequences before all other events. Components therefore append them to a work list. The loop processes
//! the list's entries in order, and finishes all consequences of an entry before it starts the next (depth first).

use super::agenda::Agenda;
use super::discipline::EventOrderDiscipline;
use super::error::ReplayRefusal;
use super::event::{EventClass, PackedEvent};
use super::fabric::NetworkMemoryAccess;
use super::ids::{InstanceId, InstanceIndex, InstanceNode, RunIndex};
use crate::CollectiveRecord;
use chakram_base::ids::{NodeIndex, Npu};
use chakram_base::units::Time;
use chakram_hardware::collective::ChunkQueueIndexAndCapacity;
use chakram_hardware::network::NetworkMessage;

/// The effects that components produce while they handle events. The loop drains the fields in the order below: the
/// first five after each event, the next ones after each round, and `arrivals` only when no event is left at the
/// instant. Entries are added to `began`, `records`, `ends` and `work` only through methods.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Events at later instants.
    pub agenda: Agenda,
    /// Nodes whose part of a collective began, for observers.
    pub began: Vec<(InstanceId, NodeIndex)>,
    /// Records of collectives that ended, for observers.
    pub records: Vec<CollectiveRecord>,
    /// Nodes whose end time came from the network, a memory or a collective.
    pub ends: Vec<(Time, InstanceNode)>,
    /// Ends at this instant, and all other work that must be done before the next event. Filled only if events are
    /// handled in insertion order.
    pub work: Vec<LoopFollowUpWork>,
    /// Nodes whose delay begins at this instant. Each word packs an instance and a node.
    pub delayed: Vec<u64>,
    /// Freed lanes, as instance and lane. Each freed lane takes the next node from its queue, in the order of rank and
    /// lane.
    pub freed: Vec<(InstanceIndex, u32)>,
    /// Nodes that became ready. Each word packs an instance and a node. The loop posts these nodes in the order of
    /// rank and id.
    pub ready: Vec<u64>,
    /// Instances that ended. The loop notifies their feeds, which may launch programs.
    pub ended: Vec<InstanceIndex>,
    /// Loads and stores over the network. The loop submits them in the order of the lanes that issued them.
    pub accesses: Vec<NetworkMemoryAccess>,
    /// Messages to submit, sorted by key.
    pub sends: Vec<MessageToSubmitThisInstant>,
    /// Collectives in flight whose members have newly arrived; they proceed when no event of the instant is left.
    pub arrivals: Vec<RunIndex>,
    /// Why the replay cannot continue after this instant.
    pub refusal: Option<ReplayRefusal>,
    /// Progress of the loop.
    pub progress: LoopEventAndRoundCounts,
    /// True if `ends`, `work`, `began` or `records` may have entries. The flag saves the loop three of four checks
    /// after each event.
    is_stirred: bool,
}

/// A message that will be submitted at this instant.
#[derive(Debug)]
pub(super) struct MessageToSubmitThisInstant {
    /// Sort key, derived from the message's content; begins with the sender's NPU. For a message between ranks, the
    /// sender's launch and node follow. For a step of a collective, the group, sequence, chunk, stage and step follow.
    /// Messages are submitted in ascending order of keys, so the order depends neither on op indices nor on other
    /// messages.
    pub key: MessageContentOrderKey,
    /// The message to pass to the network.
    pub message: NetworkMessage,
}

/// Key by which messages are sorted; derived from their content.
pub(super) type MessageContentOrderKey = (u32, u32, u32, u32, u64);

/// Counts of the loop's events and rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LoopEventAndRoundCounts {
    /// Number of events handled so far.
    pub events: u64,
    /// The instant of the latest round.
    at: Time,
    /// How often the loop has settled the latest instant, that is, found no event left and let collectives and memories
    /// proceed.
    settled: u32,
    /// Number of rounds at the latest instant since the loop last settled it.
    rounds: u32,
}

impl LoopEventAndRoundCounts {
    /// Returns how often the loop has settled the latest round's instant, that is, found no event left and let
    /// collectives and memories proceed.
    pub fn settlements_at_latest_instant(&self) -> u32 {
        self.settled
    }

    /// Returns the number of rounds at the latest instant since the loop last settled it.
    pub fn rounds_since_last_settlement(&self) -> u32 {
        self.rounds
    }

    /// Counts a round at `now`; a later instant restarts the counts.
    #[inline]
    pub fn count_ended_round(&mut self, now: Time) {
        if now > self.at {
            (self.at, self.settled, self.rounds) = (now, 0, 0);
        }
        self.rounds += 1;
    }

    /// Records that the loop has settled the latest instant.
    pub fn record_settled_instant(&mut self) {
        self.settled += 1;
        self.rounds = 0;
    }
}

/// Work that the loop must do before the next event in insertion order.
#[derive(Clone, Copy, Debug)]
pub(super) enum LoopFollowUpWork {
    /// A node of an instance ends.
    End(InstanceIndex, NodeIndex),
    /// A chunk leaves its queue, so the queue admits other chunks.
    Leave(Npu, ChunkQueueIndexAndCapacity),
    /// One of an NPU's queues can admit chunks that wait.
    Admit(Npu, ChunkQueueIndexAndCapacity),
    /// A message of a channel has arrived.
    Deliver(u32),
    /// All members of a collective have been notified of its end.
    Record(RunIndex),
}

impl Effects {
    /// Returns true if notifications for observers, ends of nodes or other work are pending.
    #[inline]
    pub fn has_follow_up(&self) -> bool {
        let held = self.ends.len() | self.work.len() | self.began.len() | self.records.len();
        debug_assert!(
            self.is_stirred || held == 0,
            "lists are added to by methods"
        );
        self.is_stirred
    }

    /// Clears the flag that [`Self::has_follow_up`] reads, because the caller will drain all lists.
    #[inline]
    pub fn clear_follow_up_flag(&mut self) {
        self.is_stirred = false;
    }

    /// Adds a notification for observers that a node's part of a collective begins.
    #[inline]
    pub fn queue_collective_begin_notification(&mut self, instance: InstanceId, node: NodeIndex) {
        self.is_stirred = true;
        self.began.push((instance, node));
    }

    /// Adds a notification for observers that a collective ended.
    #[inline]
    pub fn queue_collective_end_notification(&mut self, record: CollectiveRecord) {
        self.is_stirred = true;
        self.records.push(record);
    }

    /// Records a node's end time that came from the network, a memory or a collective.
    #[inline]
    pub fn schedule_announced_end(&mut self, at: Time, instance: InstanceIndex, node: NodeIndex) {
        self.is_stirred = true;
        self.ends.push((at, InstanceNode { instance, node }));
    }

    /// Appends work. If events are handled in insertion order, the loop does it after the event's earlier work.
    #[inline]
    pub fn push_follow_up(&mut self, work: LoopFollowUpWork) {
        self.is_stirred = true;
        self.work.push(work);
    }

    /// Completes a node at `now`.
    #[inline]
    pub fn end_node<D: EventOrderDiscipline>(
        &mut self,
        now: Time,
        instance: InstanceIndex,
        node: NodeIndex,
    ) {
        if D::AT_ONCE {
            self.push_follow_up(LoopFollowUpWork::End(instance, node));
        } else {
            self.schedule_announced_end(now, instance, node);
        }
    }

    /// Schedules the end of a node at `at`, without adding it to a batch.
    #[inline]
    pub fn end_node_at(&mut self, at: Time, instance: InstanceIndex, node: NodeIndex) {
        let event = PackedEvent::of_node(EventClass::Node, instance, node);
        self.agenda.push(at, event);
    }

    /// Schedules the end of a node that occupies its lane. If events are handled in insertion order, all such ends on
    /// the same NPU at the same instant form a batch.
    #[inline]
    pub fn schedule_lane_holder_end<D: EventOrderDiscipline>(
        &mut self,
        npu: Npu,
        at: Time,
        InstanceNode { instance, node }: InstanceNode,
    ) {
        if D::AT_ONCE {
            let event = PackedEvent::of_node(EventClass::Node, instance, node);
            self.agenda.add_delay_end(npu, at, event, 0);
        } else {
            self.end_node_at(at, instance, node);
        }
    }

    /// Takes the events of the next instant, in the order in which they were scheduled.
    #[inline]
    pub fn take_events_of_next_instant(&mut self, round: &mut Vec<PackedEvent>) {
        self.agenda.take_due_events(round);
        self.progress.events += round.len() as u64;
    }

    /// Appends the effects of a separate simulation, whose events may span several instants.
    pub fn append_effects(&mut self, mut other: Self) {
        debug_assert!(
            other.work.is_empty() && other.ready.is_empty() && other.arrivals.is_empty(),
            "what is beside the loop ends no node"
        );
        // The loop sorts the events of an instant by content (class, rank, node or op), so it does not matter where
        // events are appended.
        let mut round = Vec::new();
        while let Some(due) = other.agenda.advance_to_next_time() {
            other.agenda.take_due_events(&mut round);
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
