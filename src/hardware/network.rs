//! Cost of transfers: network models behind one contract.
//!
//! A model owns state and no queue. [`NetworkBackend::submit`] accepts a message and schedules its events in the one
//! agenda; [`NetworkBackend::handle`] is called when such an event is due and returns [`DeliveryNotice`]s. Messages of
//! one operation leave and enter through [`PortHandle`]s that the operation opened.
//!
//! The network connects [endpoints](EndpointId): NPUs, which send one another messages, and memories, of which an NPU loads or
//! stores ([`MemoryTransfer`]).

use crate::topology::link_graph::LinkGraph;
use crate::topology::{LinePattern, NetworkPath};
use chakram_base::ids::{EndpointId, Npu, OpIndex};
use chakram_base::setting::SettingChoice;
use chakram_base::units::{BufferShare, Span, Time};
use std::fmt;
use std::sync::Arc;

mod contended;
mod contention_free;
mod exclusive;
mod fair_sharing;
mod links;
mod occupancy;
mod ports;
mod rehearsed_links;
mod send_completion;
mod servers;
#[cfg(test)]
mod test_harness;
mod traffic;

pub use contended::ContendedNetwork;
pub use contention_free::ContentionFreeNetwork;
pub use exclusive::ExclusiveNetwork;
pub use fair_sharing::FairSharingNetwork;
pub use links::LinkNetwork;
pub use occupancy::{LinkOccupancy, NetworkOccupancy};
pub use ports::PortNetwork;
pub use rehearsed_links::{RehearsedLink, RehearsedLinks};
pub use send_completion::SendCompletion;
pub use servers::{ServerId, ServerTable};
pub use traffic::{LinkLoad, LinkPlace, LinkTraffic};

/// The models that machine files can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkKind {
    /// Messages of different operations do not contend.
    #[default]
    ContentionFree,
    /// All that an NPU sends into a dimension shares a port, and all that it receives; where it is wired to
    /// neighbours, all that it sends to one side, and receives from it.
    Ports,
    /// Every link of every route is shared.
    Links,
    /// Messages in flight share every link of their routes at once, max-min fairly.
    FairSharing,
    /// A transfer holds all links of its route from its start to its end.
    Exclusive,
}

impl NetworkKind {
    /// Whether it knows links of two rates along a dimension, as tiles have them.
    pub fn knows_tiles(self) -> bool {
        !matches!(self, Self::Ports | Self::FairSharing)
    }
}

impl SettingChoice for NetworkKind {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (
            Self::ContentionFree,
            "contention_free",
            "No contention between operations",
        ),
        (
            Self::Ports,
            "ports",
            "Operations share each NPU's port into a dimension",
        ),
        (
            Self::Links,
            "links",
            "Operations share every link of their routes",
        ),
        (
            Self::FairSharing,
            "fair_sharing",
            "Messages in flight share every link of their routes at once, max-min fairly",
        ),
        (
            Self::Exclusive,
            "exclusive",
            "A transfer holds all links of its route from start to end",
        ),
    ];
}

impl fmt::Display for NetworkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// The two ends of an NPU's attachment, as one operation sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortHandle(pub u32);

/// Consecutive ports opened by one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    first: u32,
    count: u32,
}

impl PortRange {
    /// `count` ports from `first` on.
    pub fn new(first: u32, count: u32) -> Self {
        Self { first, count }
    }

    /// Stands for a port where the model has none.
    #[inline]
    pub fn any(self) -> PortHandle {
        PortHandle(self.first)
    }

    /// The `i`-th port.
    #[inline]
    pub fn port(self, i: u32) -> PortHandle {
        debug_assert!(i < self.count, "an operation uses the ports it opened");
        PortHandle(self.first + i)
    }
}

/// A message submitted to the network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkMessage {
    /// The caller's name for it, which notices carry back.
    pub op: OpIndex,
    /// The NPUs that send and receive it.
    pub ends: (Npu, Npu),
    /// Port of the sender.
    pub from: PortHandle,
    /// Port of the receiver.
    pub to: PortHandle,
    /// Path between the ends, if the caller has it at hand; else it is looked up in the topology.
    pub path: Option<NetworkPath>,
    /// Size of the message.
    pub amount: BufferShare,
    /// True if the caller wants a notice when the last byte has left.
    pub tell_injected: bool,
    /// True if all messages that enter through `to` come from one sender, over one path.
    pub sole_sender: bool,
    /// Priority among messages whose first bytes reach a port at one instant, lowest first. It derives from the
    /// message's content, unlike `op`, which is reused. Below 2^27.
    pub order: u32,
    /// Place in the program of its receiver: messages of one `strand` that enter one port are taken in ascending order of
    /// `step`, so one that comes before its turn delays none before it.
    pub turn: MessageTurn,
}

/// See [`NetworkMessage::turn`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageTurn {
    /// The chunk and member that receive it.
    pub strand: u32,
    /// Its place among their messages.
    pub step: u64,
}

impl NetworkMessage {
    /// A message that no port paces, for models that have none.
    pub fn plain(op: OpIndex, ends: (Npu, Npu), amount: BufferShare) -> Self {
        Self {
            op,
            ends,
            from: PortHandle(0),
            to: PortHandle(0),
            path: None,
            amount,
            tell_injected: false,
            sole_sender: true,
            order: 0,
            turn: MessageTurn::default(),
        }
    }
}

/// Bytes of a load or store on their way between an NPU and a memory at the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryTransfer {
    /// The caller's name for it, which the notice of its end carries back where the model gives one.
    pub op: OpIndex,
    /// Their ends: an NPU and a memory.
    pub ends: (EndpointId, EndpointId),
    /// Way between the ends, the memory's link included.
    pub path: NetworkPath,
    /// Bytes moved.
    pub amount: BufferShare,
}

/// Progress of a message that the caller is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryNotice {
    /// Its last byte has left the sender.
    Injected(OpIndex),
    /// Its last byte has arrived. Its op may be used again.
    Delivered(OpIndex),
}

/// Scheduler of network events, which hides the rest of the agenda from models.
pub trait EventScheduler {
    /// Has [`NetworkBackend::handle`] called with `event` at `at`.
    fn schedule(&mut self, at: Time, event: NetworkEvent);
}

/// An event of a network model. Its meaning belongs to the model; events of one instant are handled
/// in ascending order, but for [`Self::Hop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkEvent {
    /// The last byte of the op's message has left.
    Injected(OpIndex),
    /// The first byte of the op's message is at the receiver's port.
    FirstByte {
        /// The message's [`NetworkMessage::order`].
        order: u32,
        /// The op.
        op: OpIndex,
    },
    /// The last byte of the op's message has arrived.
    Delivered(OpIndex),
    /// The op's message is at the next device of its route.
    Hop {
        /// Priority among messages that reach a device at one instant, lowest first, ties by order of submission.
        /// Below 2^27.
        order: u32,
        /// The op.
        op: OpIndex,
    },
    /// The link has sent its message.
    LinkFree(u32),
}

/// Links or ports that collectives answered by closed form reserve.
pub trait LinkReservations {
    /// Returns true if the links or ports of `npu` along `dimension` are idle: nothing passes them, no message in
    /// flight will, and they are not reserved.
    fn is_idle(&self, now: Time, npu: Npu, dimension: usize) -> bool;

    /// Reserves the links or ports of `npu` along `dimension` for the owner `claim`, or releases them (`None`).
    fn reserve(&mut self, npu: Npu, dimension: usize, claim: Option<u32>);

    /// Returns the lowest reservation that bytes between `ends` would touch `now`, if any.
    fn reservation(&self, now: Time, ends: (EndpointId, EndpointId)) -> Option<u32>;
}

/// Bytes of a message that take another way, because a link on theirs failed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MovedBytes {
    /// Its ends.
    pub ends: (EndpointId, EndpointId),
    /// Bytes that had not left.
    pub unsent: f64,
    /// Bytes that were on the link, and are sent again.
    pub again: f64,
}

/// What the failure of links did to messages in flight.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkFailureEffect {
    /// Messages that were on the links, or had to pass them.
    pub moved: Vec<MovedBytes>,
    /// Those of them to which no way is left.
    pub cut_off: u64,
    /// Bytes that are sent again.
    pub resent: f64,
}

/// Links that may fail.
pub trait FailingLinks {
    /// Takes links out of service at `now`, before all else that happens then.
    fn fail(
        &mut self,
        now: Time,
        failed: &[u32],
        agenda: &mut dyn EventScheduler,
    ) -> LinkFailureEffect;

    /// Returns the links of the network as they are now.
    fn graph(&self) -> &Arc<LinkGraph>;

    /// Ends of messages between which failed links leave no way, ascending.
    fn cut_off(&self) -> Vec<(EndpointId, EndpointId)>;
}

/// A model of the network.
pub trait NetworkBackend {
    /// Name in machine files and reports.
    const NAME: &'static str;

    /// True if messages of different operations contend.
    const SHARED: bool;

    /// Opens `count` idle ports. Networks that keep no state per port number them from 0.
    fn open(&mut self, count: u32) -> PortRange {
        PortRange::new(0, count)
    }

    /// Gives ports back.
    fn close(&mut self, _ports: PortRange) {}

    /// Accepts a message from its sender at `now`.
    fn submit(&mut self, now: Time, message: &NetworkMessage, agenda: &mut impl EventScheduler);

    /// Serves a load or store from `now` on, over all links of its way and in its memory. Returns its end, or `None` if what
    /// follows may still move it: the model then says [`DeliveryNotice::Delivered`]. Unless the model says otherwise, no access
    /// meets another or a message.
    fn access(
        &mut self,
        now: Time,
        transfer: &MemoryTransfer,
        _agenda: &mut impl EventScheduler,
    ) -> Option<Time> {
        Some(now + transfer.path.time(transfer.amount))
    }

    /// Busy time of links and memory ports, where the model keeps it: on tiles, with contention.
    fn occupancy(&self) -> Option<NetworkOccupancy> {
        None
    }

    /// Uncontended time of a message; `None` if the model does not say. Unless [`Self::SHARED`], other messages of
    /// the same operation never delay it either.
    fn uncontended(&self, _ends: (Npu, Npu), _amount: BufferShare) -> Option<Span> {
        None
    }

    /// Time for which a message takes the one link over which all that an NPU sends leaves it, where there is such a link:
    /// messages of one sender then begin that far apart.
    fn link_time(&self, _amount: BufferShare) -> Option<Span> {
        None
    }

    /// Returns true if messages among `members` members of one line along `dimension`, sent in this pattern, never delay one
    /// another but for [`Self::link_time`]. Each member sends at most one and receives at most one at a time, unless they are
    /// staggered.
    fn is_conflict_free(&self, dimension: usize, members: u32, pattern: LinePattern) -> bool;

    /// Its links or ports, if they can be reserved. Where messages contend and links cannot, every collective goes message by
    /// message.
    fn reservations(&mut self) -> Option<&mut dyn LinkReservations> {
        None
    }

    /// Its links, if operations can be tried out on them alone.
    fn rehearsed_links(&mut self) -> Option<&mut dyn RehearsedLinks> {
        None
    }

    /// Its links, if they may fail.
    fn failing_links(&mut self) -> Option<&mut dyn FailingLinks> {
        None
    }

    /// Servers of NPUs along dimensions in which they have ports of their own, for traffic at an NPU that is not a
    /// message of another NPU. `None` if operations do not contend.
    fn attachments(&mut self) -> Option<&mut ServerTable> {
        None
    }

    /// An event that the model scheduled is due.
    fn handle(
        &mut self,
        now: Time,
        event: NetworkEvent,
        agenda: &mut impl EventScheduler,
        notices: &mut Vec<DeliveryNotice>,
    );
}
