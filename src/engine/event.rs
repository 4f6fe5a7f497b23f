//! Events of the agenda, packed into one word each.

use super::ids::{CellIndex, ChunkAtMember, InstanceIndex, InstanceNode, RunIndex};
use chakram_base::ids::{NodeIndex, OpIndex};
use chakram_hardware::network::NetworkEvent;

/// Number of bits of an event's payload.
const PAYLOAD_BITS: u32 = 32;
/// Number of bits of an event's rank field.
const RANK_BITS: u32 = 27;
/// An event: class, rank and payload in one word. At an instant, the loop handles events in ascending order of these
/// words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PackedEvent(u64);

/// Classes of events. At an instant, the loop handles the classes in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum EventClass {
    /// A part of the machine fails; the payload is the index of the failure.
    Failure,
    /// A node of the rank is complete; the payload is the node.
    Node,
    /// An analytically answered collective is complete; the payload is the index of the collective's run (its state).
    Run,
    /// The network has injected the message of an op.
    Injected,
    /// The first byte of an op's message is at the receiver's port.
    FirstByte,
    /// The network has delivered the message of an op.
    Delivered,
    /// The delay of a node of the rank is over; the payload is the node.
    Ready,
    /// The rank's instance reaches its release time.
    Release,
    /// Several delays of the NPU end together; the payload is their batch.
    Alarm,
    /// A member's endpoint is ready to send in a phase. The rank field is the index of the run, and the payload is the
    /// cell.
    Opened,
    /// A member's endpoint has processed a received message. The rank field is the index of the run, and the payload
    /// is the cell.
    EndpointDone,
    /// The reduction of a received message is complete. The rank field is the index of the run, and the payload is
    /// the cell.
    Reduced,
    /// A member receives a message that had arrived before the member was ready. The rank field is the index of the
    /// run, and the payload is the cell.
    Found,
    /// A message leaves at once, because its rendezvous request had already arrived. The payload is the
    /// message's op.
    Requested,
    /// A wait of a script is over. Used only if events are handled in insertion order. The rank field is the
    /// index of the run, and the payload is the cell.
    ScriptMemberEvent,
    /// A script receives a message that had already arrived. If events are handled in content order, this event also
    /// ends a script's wait. The payload is an op.
    ScriptReceived,
    /// Members of a collective arrived at this instant; the payload is the index of the collective's run (its state).
    Settle,
    /// A member does not take part in its collective. The rank field is the index of the run, and the payload is the
    /// member's position.
    Vacant,
    /// An event of the NPU's bus, which gives the payload its meaning.
    Bus,
    /// Network event: a message has reached the next device of its route.
    Hop,
    /// Network event: a link has sent its current message.
    LinkFree,
    /// Accesses to remote memory have transferred their bytes; the memory gives the payload its meaning.
    Memory,
    /// A feed is woken; the rank field is the index of the feed.
    Wake,
}

impl EventClass {
    const ALL: [Self; 23] = [
        Self::Failure,
        Self::Node,
        Self::Run,
        Self::Injected,
        Self::FirstByte,
        Self::Delivered,
        Self::Ready,
        Self::Release,
        Self::Alarm,
        Self::Opened,
        Self::EndpointDone,
        Self::Reduced,
        Self::Found,
        Self::Requested,
        Self::ScriptMemberEvent,
        Self::ScriptReceived,
        Self::Settle,
        Self::Vacant,
        Self::Bus,
        Self::Hop,
        Self::LinkFree,
        Self::Memory,
        Self::Wake,
    ];
}

impl PackedEvent {
    /// Returns true if the event is the end of a node or of a node's delay.
    pub fn is_node_or_delay_end(self) -> bool {
        matches!(self.event_class(), EventClass::Node | EventClass::Ready)
    }

    #[inline]
    pub fn new(class: EventClass, rank: u32, payload: u32) -> Self {
        debug_assert!(
            rank < 1 << RANK_BITS,
            "ranks are bounded by the machine's size"
        );
        let class = (class as u64) << (PAYLOAD_BITS + RANK_BITS);
        Self(class | u64::from(rank) << PAYLOAD_BITS | u64::from(payload))
    }

    /// Creates an event for a node of an instance, or for the instance itself if the class is `Release`.
    #[inline]
    pub fn of_node(class: EventClass, instance: InstanceIndex, node: NodeIndex) -> Self {
        Self::new(class, instance.0, node.0)
    }

    /// Creates an event for a collective in flight. The meaning of `number` depends on the class.
    #[inline]
    pub fn of_collective_in_flight(class: EventClass, run: RunIndex, number: u32) -> Self {
        Self::new(class, number, run.0)
    }

    /// Creates an event for an op. Events of the same class at the same instant are handled in ascending `order`.
    #[inline]
    pub fn of_op(class: EventClass, order: u32, op: OpIndex) -> Self {
        Self::new(class, order, op.0)
    }

    /// Creates an event for one chunk at one member (a cell) of a collective.
    #[inline]
    pub fn of_chunk_at_member(class: EventClass, at: ChunkAtMember) -> Self {
        Self::new(class, at.run.0, at.cell.0)
    }

    /// Returns the instance and node of an event that [`Self::of_node`] created.
    #[inline]
    pub fn instance_node(self) -> InstanceNode {
        InstanceNode {
            instance: InstanceIndex(self.rank_bits()),
            node: NodeIndex(self.payload_bits()),
        }
    }

    /// Returns the collective of an event that [`Self::of_collective_in_flight`] created.
    #[inline]
    pub fn collective_run_index(self) -> RunIndex {
        RunIndex(self.payload_bits())
    }

    /// Returns the op of an event that [`Self::of_op`] created.
    #[inline]
    pub fn op_index(self) -> OpIndex {
        OpIndex(self.payload_bits())
    }

    /// Returns the collective and the cell (a chunk at a member) of an event that [`Self::of_chunk_at_member`] created.
    #[inline]
    pub fn unpack_chunk_at_member(self) -> ChunkAtMember {
        ChunkAtMember {
            run: RunIndex(self.rank_bits()),
            cell: CellIndex(self.payload_bits()),
        }
    }

    /// Returns the network event that the word contains, or `None` for other classes.
    #[inline]
    pub fn as_network_event(self) -> Option<NetworkEvent> {
        let (order, op) = (self.rank_bits(), self.op_index());
        Some(match self.event_class() {
            EventClass::Injected => NetworkEvent::Injected(op),
            EventClass::FirstByte => NetworkEvent::FirstByte { order, op },
            EventClass::Delivered => NetworkEvent::Delivered(op),
            EventClass::Hop => NetworkEvent::Hop { order, op },
            EventClass::LinkFree => NetworkEvent::LinkFree(self.payload_bits()),
            _ => return None,
        })
    }

    /// Returns the packed word by which an instant's events are sorted.
    pub fn packed_content(self) -> u64 {
        self.0
    }

    /// Unpacks an event from a word that [`Self::packed_content`] returned.
    pub fn from_word(word: u64) -> Self {
        Self(word)
    }

    #[inline]
    pub fn event_class(self) -> EventClass {
        EventClass::ALL[(self.0 >> (PAYLOAD_BITS + RANK_BITS)) as usize]
    }

    #[inline]
    pub fn rank_bits(self) -> u32 {
        (self.0 >> PAYLOAD_BITS) as u32 & ((1 << RANK_BITS) - 1)
    }

    #[inline]
    pub fn payload_bits(self) -> u32 {
        self.0 as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_class_rank_and_payload() {
        for class in EventClass::ALL {
            let event = PackedEvent::new(class, (1 << RANK_BITS) - 1, u32::MAX);
            assert_eq!(event.event_class(), class);
            assert_eq!(event.rank_bits(), (1 << RANK_BITS) - 1);
            assert_eq!(event.payload_bits(), u32::MAX);
        }
        let earlier = PackedEvent::new(EventClass::Node, 9, 9);
        assert!(earlier < PackedEvent::new(EventClass::Run, 0, 0));
    }
}
