//! Transfer times: the network models and the interface that they share.
//!
//! A model owns its state but no event queue. [`NetworkBackend::submit_message`] accepts a message and schedules its
//! events in the engine's one agenda. [`NetworkBackend::handle_event`] is called when such an event is due, and returns
//! [`MessageProgressNotice`]s. An operation opens [`OperationPortHandle`]s, and its messages leave and enter through
//! these ports.
//!
//! The network connects [endpoints](EndpointId): NPUs, which send messages to one another, and
//! memories, which NPUs access by loads and stores ([`MemoryLoadStoreTransfer`]).

use crate::topology::link_graph::LinkGraph;
use crate::topology::{LineSendPattern, PathLatencyAndRates, Topology};
use chakram_base::ids::{EndpointId, Npu, OpIndex};
use chakram_base::setting::EnumeratedSetting;
use chakram_base::units::{Span, Time, UnroundedBufferShare};
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
pub use contention_free::ContentionFreePortBusyTimes;
pub use exclusive::OneTransferPerLinkNetwork;
pub use fair_sharing::FairSharingNetwork;
pub use links::LinkContentionNetwork;
pub use occupancy::{CoreToCoreLinkBusyTime, LinkAndPortBusyTimes};
pub use ports::PortContentionNetwork;
pub use rehearsed_links::{RehearsableLinks, RehearsedCollectiveUseOfLink};
pub use send_completion::SendCompletionRule;
pub use servers::{QueueingServerId, QueueingServerTable};
pub use traffic::{BytesOverOneLink, DimensionOrMemoryOfLink, LinkTrafficBytes};

/// Network models that machine files can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkModelKind {
    /// Messages of different operations do not delay one another.
    #[default]
    ContentionFree,
    /// All messages that an NPU sends into a dimension share one port, and all messages that it receives from the
    /// dimension share a second port. An NPU that is wired to neighbours has one pair of ports for each side.
    Ports,
    /// Messages contend on every link of their routes.
    Links,
    /// Messages in flight share the bandwidth of each link on their routes by max-min fairness.
    FairSharing,
    /// A transfer occupies all links of its route from its start to its end.
    Exclusive,
}

impl NetworkModelKind {
    /// Returns true if the model allows the links along one dimension to have different rates, as on tiles.
    pub fn knows_tiles(self) -> bool {
        !matches!(self, Self::Ports | Self::FairSharing)
    }
}

impl EnumeratedSetting for NetworkModelKind {
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
            "Messages in flight share all links of their routes, max-min fairly",
        ),
        (
            Self::Exclusive,
            "exclusive",
            "A transfer occupies all links of its route from start to end",
        ),
    ];
}

impl fmt::Display for NetworkModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.choice_name())
    }
}

/// A port: the sending and the receiving side of an NPU's connection to the network, as one operation uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationPortHandle(pub u32);

/// Consecutive ports opened by one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsecutivePortsOpenedByOperation {
    first: u32,
    count: u32,
}

impl ConsecutivePortsOpenedByOperation {
    /// Creates a range of `count` ports from index `first`.
    pub fn new(first: u32, count: u32) -> Self {
        Self { first, count }
    }

    /// Returns a placeholder for models without ports.
    #[inline]
    pub fn placeholder_port_for_portless_models(self) -> OperationPortHandle {
        OperationPortHandle(self.first)
    }

    /// Returns the `i`-th port of the range.
    #[inline]
    pub fn nth_port(self, i: u32) -> OperationPortHandle {
        debug_assert!(i < self.count, "an operation uses the ports it opened");
        OperationPortHandle(self.first + i)
    }
}

/// A message submitted to the network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkMessage {
    /// Identifies the message to the caller in notices.
    pub op: OpIndex,
    /// Sender and receiver.
    pub ends: (Npu, Npu),
    /// The sender's port.
    pub from: OperationPortHandle,
    /// The receiver's port.
    pub to: OperationPortHandle,
    /// Path between the ends, if the caller knows it. If `None`, the model finds it in the topology.
    pub path: Option<PathLatencyAndRates>,
    /// Size of the message.
    pub amount: UnroundedBufferShare,
    /// True if the caller requests a notice when the last byte has left the sender.
    pub tell_injected: bool,
    /// True if all messages that enter through `to` come from one sender, over one path.
    pub sole_sender: bool,
    /// Priority among messages whose first bytes reach a port at the same instant, lowest first. It is derived from the
    /// message's content, because op indices are reused and therefore have no stable order. Below 2^27.
    pub order: u32,
    /// Place of the message in the receiver's program. A port receives messages with the same `strand` in ascending
    /// order of `step`. A message that arrives early therefore never delays an earlier step.
    pub turn: MessagePlaceInReceiverProgram,
}

/// Place of a message in its receiver's program ([`NetworkMessage::turn`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessagePlaceInReceiverProgram {
    /// Identifies the message's chunk and its receiver.
    pub strand: u32,
    /// Position of the message among its chunk's messages to the same receiver.
    pub step: u64,
}

impl NetworkMessage {
    /// Creates a message without a port, for models without ports.
    pub fn create_message_without_port(
        op: OpIndex,
        ends: (Npu, Npu),
        amount: UnroundedBufferShare,
    ) -> Self {
        Self {
            op,
            ends,
            from: OperationPortHandle(0),
            to: OperationPortHandle(0),
            path: None,
            amount,
            tell_injected: false,
            sole_sender: true,
            order: 0,
            turn: MessagePlaceInReceiverProgram::default(),
        }
    }

    /// Returns the path between the ends: the caller's, or the one that `topology` has.
    #[inline]
    fn path_in(&self, topology: &Topology) -> PathLatencyAndRates {
        let (a, b) = self.ends;
        self.path
            .or_else(|| topology.path_between_npus(a, b))
            .expect("a message goes from one NPU to another")
    }
}

/// A load or store in flight between an NPU and a memory attached to the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryLoadStoreTransfer {
    /// Identifies the transfer to the caller in the notice of its end; unused if the model sends none.
    pub op: OpIndex,
    /// The two ends: an NPU and a memory.
    pub ends: (EndpointId, EndpointId),
    /// Path between the ends, including the memory's link.
    pub path: PathLatencyAndRates,
    /// Number of bytes to move.
    pub amount: UnroundedBufferShare,
}

/// Progress of a message, as reported to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageProgressNotice {
    /// The message's last byte has left the sender.
    Injected(OpIndex),
    /// The message's last byte has arrived. The op index may be reused.
    Delivered(OpIndex),
}

/// Schedules the events of a network model. Models see only this part of the engine's agenda.
pub trait EventScheduler {
    /// Schedules a call of [`NetworkBackend::handle_event`] with `event` at `at`.
    fn schedule_event(&mut self, at: Time, event: NetworkEvent);
}

/// An event of a network model, which only the model interprets. Events at the same instant are handled in ascending
/// order, except [`Self::Hop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkEvent {
    /// The last byte of this op's message has left the sender.
    Injected(OpIndex),
    /// The first byte of the op's message is at the receiver's port.
    FirstByte {
        /// Priority of the message ([`NetworkMessage::order`]).
        order: u32,
        /// The op whose message arrives.
        op: OpIndex,
    },
    /// The last byte of the op's message has arrived.
    Delivered(OpIndex),
    /// The op's message has reached the next device of its route.
    Hop {
        /// Priority among messages that reach a device at the same instant, lowest first. Messages with equal
        /// priorities keep the order of submission. Below 2^27.
        order: u32,
        /// The op of the message.
        op: OpIndex,
    },
    /// The link has finished sending its message.
    LinkFree(u32),
}

/// Links or ports that a collective can reserve if a closed form computes its time.
pub trait CollectiveLinkReservations {
    /// Returns true if the links or ports of `npu` along `dimension` are idle: they are not reserved, and no message in
    /// flight uses or will use them.
    fn are_npu_links_idle(&self, now: Time, npu: Npu, dimension: usize) -> bool;

    /// Reserves the links or ports of `npu` along `dimension` for the owner `claim`, or releases them (`None`).
    fn reserve_or_release_npu_links(&mut self, npu: Npu, dimension: usize, claim: Option<u32>);

    /// Returns the lowest owner number among the reservations that bytes sent at `now` between `ends` may disturb, or
    /// `None` if there are none.
    fn lowest_owner_of_disturbed_reservations(
        &self,
        now: Time,
        ends: (EndpointId, EndpointId),
    ) -> Option<u32>;
}

/// Bytes of a message that move to a different route because a link failed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReroutedUnsentAndResentBytes {
    /// Sender and receiver of the bytes.
    pub ends: (EndpointId, EndpointId),
    /// Bytes that had not left the sender.
    pub unsent: f64,
    /// Bytes that were lost on the link and are sent again.
    pub again: f64,
}

/// How newly failed links affect messages in flight.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkFailureEffectOnMessages {
    /// Messages that were on the failed links, or that still had to cross them.
    pub moved: Vec<ReroutedUnsentAndResentBytes>,
    /// Number of these messages that have no route left.
    pub cut_off: u64,
    /// Number of bytes sent again, summed over all messages.
    pub resent: f64,
}

/// Access to the links of a model whose links may fail.
pub trait LinkFailureHandler {
    /// Takes links out of service at `now`, before all other events of that instant.
    fn fail_links(
        &mut self,
        now: Time,
        failed: &[u32],
        agenda: &mut dyn EventScheduler,
    ) -> LinkFailureEffectOnMessages;

    /// Returns the graph of the links in service.
    fn graph_of_links_in_service(&self) -> &Arc<LinkGraph>;

    /// Returns, in ascending order, the pairs of endpoints between which failed links have left no route.
    fn unreachable_pairs(&self) -> Vec<(EndpointId, EndpointId)>;
}

/// A model of the network.
pub trait NetworkBackend {
    /// Name in machine files and reports.
    const NAME: &'static str;

    /// True if messages of different operations contend.
    const SHARED: bool;

    /// Opens `count` idle ports. If a network keeps no state per port, the ports are numbered from 0 in each call.
    fn open_ports(&mut self, count: u32) -> ConsecutivePortsOpenedByOperation {
        ConsecutivePortsOpenedByOperation::new(0, count)
    }

    /// Closes ports, so that they can be opened again.
    fn close_ports(&mut self, _ports: ConsecutivePortsOpenedByOperation) {}

    /// Accepts a message from its sender at `now`.
    fn submit_message(
        &mut self,
        now: Time,
        message: &NetworkMessage,
        agenda: &mut impl EventScheduler,
    );

    /// Serves a load or store that begins at `now`, over all links of its path and in its memory. Returns the end of
    /// the access, or `None` if later events may still change it; the model then sends
    /// [`MessageProgressNotice::Delivered`] later. By default, accesses contend neither with one another nor with
    /// messages.
    fn serve_access(
        &mut self,
        now: Time,
        transfer: &MemoryLoadStoreTransfer,
        _agenda: &mut impl EventScheduler,
    ) -> Option<Time> {
        Some(now + transfer.path.time_message(transfer.amount))
    }

    /// Returns the busy times of links and memory ports, or `None` if the model does not record them. Models with
    /// contention do so on machines of tiles.
    fn link_and_memory_port_busy_times(&self) -> Option<LinkAndPortBusyTimes> {
        None
    }

    /// Returns the uncontended time of a message, or `None` if the model does not know it. If [`Self::SHARED`] is
    /// false, the time also excludes delays by other messages of the same operation.
    fn uncontended_time(&self, _ends: (Npu, Npu), _amount: UnroundedBufferShare) -> Option<Span> {
        None
    }

    /// Returns the time for which a message occupies its link, if each sender sends all its messages over one link;
    /// otherwise returns `None`. Successive messages of one sender begin at least this time apart.
    fn message_link_occupancy_time(&self, _amount: UnroundedBufferShare) -> Option<Span> {
        None
    }

    /// Returns true if messages in this pattern delay one another only by [`Self::message_link_occupancy_time`]. The
    /// pattern is among `members` members in one line of `dimension`. Each member then sends and receives at most one
    /// message at a time, except with [`LineSendPattern::Staggered`].
    fn is_send_pattern_conflict_free(
        &self,
        dimension: usize,
        members: u32,
        pattern: LineSendPattern,
    ) -> bool;

    /// Returns the model's links or ports, or `None` if collectives cannot reserve them. If messages contend, every
    /// collective is then simulated message by message.
    fn reservable_links_mut(&mut self) -> Option<&mut dyn CollectiveLinkReservations> {
        None
    }

    /// Returns the model's links if an operation can be simulated alone on them in advance, that is, rehearsed.
    fn links_if_rehearsable(&mut self) -> Option<&mut dyn RehearsableLinks> {
        None
    }

    /// Returns the model's links if they may fail.
    fn links_if_they_may_fail(&mut self) -> Option<&mut dyn LinkFailureHandler> {
        None
    }

    /// Returns the servers of NPUs in dimensions where each NPU has its own ports. Traffic other than messages between
    /// NPUs, such as accesses to remote memory, uses these servers. Returns `None` if operations do not contend.
    fn npu_port_servers_for_other_traffic(&mut self) -> Option<&mut QueueingServerTable> {
        None
    }

    /// Handles an event that the model scheduled and that is now due.
    fn handle_event(
        &mut self,
        now: Time,
        event: NetworkEvent,
        agenda: &mut impl EventScheduler,
        notices: &mut Vec<MessageProgressNotice>,
    );
}
