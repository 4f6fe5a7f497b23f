//! Observers receive notifications about the progress of a replay.
//!
//! The caller chooses the observers; the compiler specializes the loop for their types. The loop itself stores no
//! per-node data for reports, but observers may.

use super::{
    EventAndTileGroupCounts, InstanceId, ProcessorJobStartAndEnd, ProcessorKernelJob,
    ProgramLaunchRecord, ReplayGroupId,
};
use chakram_base::ids::{NodeIndex, Rank};
use chakram_base::units::{Span, Time};
use chakram_hardware::network::{BytesOverOneLink, LinkAndPortBusyTimes};
use chakram_trace::format::CollectiveKind;
use chakram_trace::graph::NodeKind;

/// Category to which an NPU's time at an instant belongs. If several categories apply, the first in this order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NpuTimeCategory {
    /// The NPU runs a kernel.
    Compute,
    /// Communication is in progress or waits for partners, and no kernel runs.
    Communication,
    /// Nothing is transferred, and the communication that started first waits for another pipeline stage.
    Bubble,
    /// A load or store is in progress, and no earlier category applies.
    Memory,
    /// The host works or a node is delayed, and no earlier category applies.
    Host,
    /// No node is issued.
    Idle,
}

impl NpuTimeCategory {
    /// Number of time categories.
    pub const COUNT: usize = 6;

    /// Definition of exposed communication, for legends.
    pub const EXPOSED: &'static str =
        "exposed: communication, and waiting for it, while no kernel runs";
    /// Definition of a bubble, for legends.
    pub const BUBBLE: &'static str = "bubble: waiting for another stage";

    /// All categories and their names, in order of precedence.
    pub const ALL: [(Self, &'static str); Self::COUNT] = [
        (Self::Compute, "compute"),
        (Self::Communication, "exposed communication"),
        (Self::Bubble, "pipeline bubble"),
        (Self::Memory, "memory"),
        (Self::Host, "host"),
        (Self::Idle, "idle"),
    ];

    /// Keys of the categories in JSON, in the order of [`Self::ALL`].
    pub const KEYS: [&'static str; Self::COUNT] = [
        "compute",
        "communication",
        "bubble",
        "memory",
        "host",
        "idle",
    ];

    /// Returns the category to which nodes of `kind` belong, or `None` if such nodes take no time. Time that
    /// communication spends waiting for another pipeline stage counts as a bubble instead.
    pub fn from_node_kind(kind: NodeKind) -> Option<Self> {
        Some(match kind {
            NodeKind::Nothing => return None,
            NodeKind::Host => Self::Host,
            NodeKind::Compute => Self::Compute,
            NodeKind::LocalMemory | NodeKind::RemoteMemory => Self::Memory,
            NodeKind::Send | NodeKind::Receive | NodeKind::Collective | NodeKind::Communication => {
                Self::Communication
            }
        })
    }
}

/// A segment of the critical path. Each segment begins where the previous segment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CriticalPathSegment {
    /// Instance that contains the segment's `node`.
    pub instance: InstanceId,
    /// The node that runs in the segment, or that runs next.
    pub node: NodeIndex,
    /// Start time of the segment.
    pub from: Time,
    /// End time of the segment.
    pub to: Time,
    /// Category of the segment: the node's category, host if the node is delayed, or idle if no node runs.
    pub category: NpuTimeCategory,
}

/// Record of a collective that all members have completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveRecord {
    /// Group whose members carried out the collective.
    pub group: ReplayGroupId,
    /// The kind of collective.
    pub kind: CollectiveKind,
    /// Size of the whole buffer, in bytes.
    pub buffer: u64,
    /// Time at which the last member arrived.
    pub last_start: Time,
    /// Time at which the last member completed.
    pub end: Time,
    /// Time from `last_start` to `end`. If communication takes recorded or captured durations, the longest duration
    /// that a member recorded.
    pub transfer: Span,
    /// The rank that caused the longest wait, and its share of `waited`. This is the rank with a trace that arrived
    /// last; with ties, the lowest such rank. With recorded durations, it may be the root instead. `None` if no member
    /// waited, or if the replay takes captured times.
    pub waited_for: Option<(Rank, Span)>,
    /// Time from a member's arrival to `last_start`, summed over the present members. With recorded durations, a member
    /// waits until the last of the ranks that it waits for has arrived. In a replay that takes captured times, `waited`
    /// is the sum of the captured waits.
    pub waited: Span,
    /// True if the collective was simulated message by message, and false if it was answered analytically.
    pub stepwise: bool,
    /// True if an analytical answer was withdrawn because other traffic used its links.
    pub materialized: bool,
    /// Number of messages that the network carried for this collective.
    pub messages: u64,
}

/// Receiver of notifications from a replay, in the order of simulated time.
pub trait Observer {
    /// Called when `node` of `instance` is issued.
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind);
    /// Called when `node` is complete.
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind);
    /// Called when the transfer of an issued collective, send or receive `node` begins, because all partners that it
    /// waits for have begun. A receive waits for its send. A send waits for its receive only if it needs the receiver's
    /// request, or if communication takes its recorded duration.
    fn on_transfer_began(&mut self, _now: Time, _instance: InstanceId, _node: NodeIndex) {}
    /// Called when all members of a collective have completed it.
    fn on_collective_ended(&mut self, record: &CollectiveRecord);
    /// Called when the dependencies of `node` are complete and its delay begins. Not called for nodes without a delay.
    fn on_delay_began(&mut self, _now: Time, _instance: InstanceId, _node: NodeIndex) {}
    /// Called when the delay of `node` is over and the node is ready.
    fn on_ready(&mut self, _now: Time, _instance: InstanceId, _node: NodeIndex) {}
    /// Called when `node` is ready but another node occupies its lane.
    fn on_lane_wait(&mut self, _now: Time, _instance: InstanceId, _node: NodeIndex) {}
    /// Called when collective `node` is ready but is not issued yet, because its group issues the collective only when
    /// every member is ready for it.
    fn on_member_wait(&mut self, _now: Time, _instance: InstanceId, _node: NodeIndex) {}
    /// Called when a launch begins. A job is one launch.
    fn on_launch_began(&mut self, _now: Time, _launch: &ProgramLaunchRecord) {}
    /// Called when all nodes of a launch are complete.
    fn on_all_launch_nodes_complete(&mut self, _now: Time, _launch: &ProgramLaunchRecord) {}
    /// Called when a processor has decided at which times an issued kernel runs.
    fn on_kernel_scheduled(
        &mut self,
        _now: Time,
        _job: &ProcessorKernelJob,
        _times: &ProcessorJobStartAndEnd,
    ) {
    }
    /// Called at the end of a replay whose critical path was recorded. The path is in time order.
    fn critical_path(&mut self, _path: &[CriticalPathSegment]) {}
    /// Called at the end of a replay that counted the load of links.
    fn on_link_loads_measured(&mut self, _loads: &[BytesOverOneLink]) {}

    /// Called at the end of the replay with the busy times of links and of the tiles' memory ports.
    fn on_link_and_memory_port_busy_times(&mut self, _occupancy: &LinkAndPortBusyTimes) {}

    /// Called at the end of the replay with the statistics of its loop.
    fn on_event_loop_statistics(&mut self, _counts: &EventAndTileGroupCounts) {}
    /// Returns true if the observer ignores all notifications, so the loop can skip them.
    fn is_nobody(&self) -> bool {
        false
    }
}

/// An observer that ignores everything.
impl Observer for () {
    fn is_nobody(&self) -> bool {
        true
    }
    fn on_issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_completed(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
}

/// Forwards notifications to an observer that the caller keeps even if the replay fails.
impl<O: Observer + ?Sized> Observer for &mut O {
    #[inline]
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        (**self).on_issued(now, instance, node, kind);
    }
    #[inline]
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        (**self).on_completed(now, instance, node, kind);
    }
    #[inline]
    fn on_transfer_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        (**self).on_transfer_began(now, instance, node);
    }
    #[inline]
    fn on_collective_ended(&mut self, record: &CollectiveRecord) {
        (**self).on_collective_ended(record);
    }
    #[inline]
    fn on_delay_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        (**self).on_delay_began(now, instance, node);
    }
    #[inline]
    fn on_ready(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        (**self).on_ready(now, instance, node);
    }
    #[inline]
    fn on_lane_wait(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        (**self).on_lane_wait(now, instance, node);
    }
    #[inline]
    fn on_member_wait(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        (**self).on_member_wait(now, instance, node);
    }
    fn on_launch_began(&mut self, now: Time, launch: &ProgramLaunchRecord) {
        (**self).on_launch_began(now, launch);
    }
    fn on_all_launch_nodes_complete(&mut self, now: Time, launch: &ProgramLaunchRecord) {
        (**self).on_all_launch_nodes_complete(now, launch);
    }
    fn on_kernel_scheduled(
        &mut self,
        now: Time,
        job: &ProcessorKernelJob,
        times: &ProcessorJobStartAndEnd,
    ) {
        (**self).on_kernel_scheduled(now, job, times);
    }
    fn critical_path(&mut self, path: &[CriticalPathSegment]) {
        (**self).critical_path(path);
    }
    fn on_link_loads_measured(&mut self, loads: &[BytesOverOneLink]) {
        (**self).on_link_loads_measured(loads);
    }

    fn on_link_and_memory_port_busy_times(&mut self, occupancy: &LinkAndPortBusyTimes) {
        (**self).on_link_and_memory_port_busy_times(occupancy);
    }
    fn on_event_loop_statistics(&mut self, counts: &EventAndTileGroupCounts) {
        (**self).on_event_loop_statistics(counts);
    }
    fn is_nobody(&self) -> bool {
        (**self).is_nobody()
    }
}

/// An observer that may be absent; `None` ignores everything.
impl<O: Observer> Observer for Option<O> {
    fn is_nobody(&self) -> bool {
        self.as_ref().is_none_or(O::is_nobody)
    }
    #[inline]
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        if let Some(observer) = self {
            observer.on_issued(now, instance, node, kind);
        }
    }
    #[inline]
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        if let Some(observer) = self {
            observer.on_completed(now, instance, node, kind);
        }
    }
    #[inline]
    fn on_transfer_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        if let Some(observer) = self {
            observer.on_transfer_began(now, instance, node);
        }
    }
    #[inline]
    fn on_collective_ended(&mut self, record: &CollectiveRecord) {
        if let Some(observer) = self {
            observer.on_collective_ended(record);
        }
    }
    #[inline]
    fn on_delay_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        if let Some(observer) = self {
            observer.on_delay_began(now, instance, node);
        }
    }
    #[inline]
    fn on_ready(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        if let Some(observer) = self {
            observer.on_ready(now, instance, node);
        }
    }
    #[inline]
    fn on_lane_wait(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        if let Some(observer) = self {
            observer.on_lane_wait(now, instance, node);
        }
    }
    #[inline]
    fn on_member_wait(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        if let Some(observer) = self {
            observer.on_member_wait(now, instance, node);
        }
    }
    fn on_launch_began(&mut self, now: Time, launch: &ProgramLaunchRecord) {
        if let Some(observer) = self {
            observer.on_launch_began(now, launch);
        }
    }
    fn on_all_launch_nodes_complete(&mut self, now: Time, launch: &ProgramLaunchRecord) {
        if let Some(observer) = self {
            observer.on_all_launch_nodes_complete(now, launch);
        }
    }
    fn on_kernel_scheduled(
        &mut self,
        now: Time,
        job: &ProcessorKernelJob,
        times: &ProcessorJobStartAndEnd,
    ) {
        if let Some(observer) = self {
            observer.on_kernel_scheduled(now, job, times);
        }
    }
    fn critical_path(&mut self, path: &[CriticalPathSegment]) {
        if let Some(observer) = self {
            observer.critical_path(path);
        }
    }
    fn on_link_loads_measured(&mut self, loads: &[BytesOverOneLink]) {
        if let Some(observer) = self {
            observer.on_link_loads_measured(loads);
        }
    }

    fn on_link_and_memory_port_busy_times(&mut self, occupancy: &LinkAndPortBusyTimes) {
        if let Some(observer) = self {
            observer.on_link_and_memory_port_busy_times(occupancy);
        }
    }
    fn on_event_loop_statistics(&mut self, counts: &EventAndTileGroupCounts) {
        if let Some(observer) = self {
            observer.on_event_loop_statistics(counts);
        }
    }
}

impl<A: Observer, B: Observer> Observer for (A, B) {
    fn is_nobody(&self) -> bool {
        self.0.is_nobody() && self.1.is_nobody()
    }
    #[inline]
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        self.0.on_issued(now, instance, node, kind);
        self.1.on_issued(now, instance, node, kind);
    }
    #[inline]
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        self.0.on_completed(now, instance, node, kind);
        self.1.on_completed(now, instance, node, kind);
    }
    #[inline]
    fn on_transfer_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        self.0.on_transfer_began(now, instance, node);
        self.1.on_transfer_began(now, instance, node);
    }
    #[inline]
    fn on_collective_ended(&mut self, record: &CollectiveRecord) {
        self.0.on_collective_ended(record);
        self.1.on_collective_ended(record);
    }
    #[inline]
    fn on_delay_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        self.0.on_delay_began(now, instance, node);
        self.1.on_delay_began(now, instance, node);
    }
    #[inline]
    fn on_ready(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        self.0.on_ready(now, instance, node);
        self.1.on_ready(now, instance, node);
    }
    #[inline]
    fn on_lane_wait(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        self.0.on_lane_wait(now, instance, node);
        self.1.on_lane_wait(now, instance, node);
    }
    #[inline]
    fn on_member_wait(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        self.0.on_member_wait(now, instance, node);
        self.1.on_member_wait(now, instance, node);
    }
    fn on_launch_began(&mut self, now: Time, launch: &ProgramLaunchRecord) {
        self.0.on_launch_began(now, launch);
        self.1.on_launch_began(now, launch);
    }
    fn on_all_launch_nodes_complete(&mut self, now: Time, launch: &ProgramLaunchRecord) {
        self.0.on_all_launch_nodes_complete(now, launch);
        self.1.on_all_launch_nodes_complete(now, launch);
    }
    fn on_kernel_scheduled(
        &mut self,
        now: Time,
        job: &ProcessorKernelJob,
        times: &ProcessorJobStartAndEnd,
    ) {
        self.0.on_kernel_scheduled(now, job, times);
        self.1.on_kernel_scheduled(now, job, times);
    }
    fn critical_path(&mut self, path: &[CriticalPathSegment]) {
        self.0.critical_path(path);
        self.1.critical_path(path);
    }
    fn on_link_loads_measured(&mut self, loads: &[BytesOverOneLink]) {
        self.0.on_link_loads_measured(loads);
        self.1.on_link_loads_measured(loads);
    }

    fn on_link_and_memory_port_busy_times(&mut self, occupancy: &LinkAndPortBusyTimes) {
        self.0.on_link_and_memory_port_busy_times(occupancy);
        self.1.on_link_and_memory_port_busy_times(occupancy);
    }
    fn on_event_loop_statistics(&mut self, counts: &EventAndTileGroupCounts) {
        self.0.on_event_loop_statistics(counts);
        self.1.on_event_loop_statistics(counts);
    }
}
