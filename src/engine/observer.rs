//! What a replay tells those who watch it.
//!
//! Observers are chosen by the caller and compiled into the loop. Nothing is kept per node unless an observer asks for it.

use super::{InstanceId, JobTimes, LaunchRecord, LoopCounts, ProcessorJob, ReplayGroupId};
use chakram_base::ids::{NodeIndex, Rank};
use chakram_base::units::{Span, Time};
use chakram_hardware::network::{LinkLoad, NetworkOccupancy};
use chakram_trace::format::CollectiveKind;
use chakram_trace::graph::NodeKind;

/// Category of an instant, in order of precedence; idle is what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TimeCategory {
    /// A kernel runs.
    Compute,
    /// A message or collective is under way or waited for, and no kernel runs.
    Communication,
    /// Nothing is transferred, and the communication that started first waits for another stage of a pipeline.
    Bubble,
    /// A load or store, and none of the above.
    Memory,
    /// The host works, or a node's delay passes, and none of the above.
    Host,
    /// Nothing is issued.
    Idle,
}

impl TimeCategory {
    /// Number of categories.
    pub const COUNT: usize = 6;

    /// What is exposed of communication, and what a bubble is, for legends.
    pub const EXPOSED: &'static str =
        "exposed: communication, and waiting for it, while no kernel runs";
    /// As [`Self::EXPOSED`].
    pub const BUBBLE: &'static str = "bubble: waiting for another stage";

    /// Every part with its name, in order of precedence.
    pub const ALL: [(Self, &'static str); Self::COUNT] = [
        (Self::Compute, "compute"),
        (Self::Communication, "exposed communication"),
        (Self::Bubble, "pipeline bubble"),
        (Self::Memory, "memory"),
        (Self::Host, "host"),
        (Self::Idle, "idle"),
    ];

    /// The keys of [`Self::ALL`] in JSON.
    pub const KEYS: [&'static str; Self::COUNT] = [
        "compute",
        "communication",
        "bubble",
        "memory",
        "host",
        "idle",
    ];

    /// Returns the part that nodes of `kind` belong to, if they take time. Nodes of communication may wait, and their
    /// time is then a bubble where it is another stage that they wait for.
    pub fn of(kind: NodeKind) -> Option<Self> {
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

/// A part of the critical path; each begins where the one before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSegment {
    /// The instance that it is on.
    pub instance: InstanceId,
    /// The node that runs, or that is about to.
    pub node: NodeIndex,
    /// Its beginning.
    pub from: Time,
    /// Its end.
    pub to: Time,
    /// Category of the time: the node's own category, host for its delay, idle for what no node accounts for.
    pub category: TimeCategory,
}

/// A collective that all members have completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveRecord {
    /// The group.
    pub group: ReplayGroupId,
    /// The kind of collective.
    pub kind: CollectiveKind,
    /// The whole buffer.
    pub buffer: u64,
    /// Arrival of the last member.
    pub last_start: Time,
    /// Completion of the last member.
    pub end: Time,
    /// From `last_start` to `end`; where communication lasts as recorded or captured, the longest
    /// recorded duration of a member.
    pub transfer: Span,
    /// The rank that the others waited for longest, and how much of `waited` was for it: the one with a
    /// trace that arrived last, of several the lowest; where communication lasts as recorded, perhaps
    /// the root. `None` when nobody waited, and in a replay as captured, where nobody waits for anyone.
    pub waited_for: Option<(Rank, Span)>,
    /// The sum over present members of the time from arriving to `last_start`; where communication
    /// lasts as recorded, to the last arrival of those that the member waits for; in a replay as
    /// captured, of the captured waits.
    pub waited: Span,
    /// Whether it went message by message, and not by closed form.
    pub stepwise: bool,
    /// Whether it was answered by closed form before, until other traffic touched its links.
    pub materialized: bool,
    /// Messages that the network carried for it.
    pub messages: u64,
}

/// Watches a replay.
pub trait Observer {
    /// `node` of `instance` is given to hardware.
    fn issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind);
    /// `node` is complete.
    fn completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind);
    /// All partners that the collective, send or receive `node` waits for have begun, and its transfer begins; of an
    /// issued one. A receive waits for its send, a send for its receive where it needs the receiver's request or lasts as
    /// recorded.
    fn began(&mut self, _now: Time, _instance: InstanceId, _node: NodeIndex) {}
    /// All members of a collective have completed it.
    fn collective(&mut self, record: &CollectiveRecord);
    /// All that `node` waits for is complete, and its delay begins; nodes without one are not told of.
    fn delayed(&mut self, _now: Time, _instance: InstanceId, _node: NodeIndex) {}
    /// The delay of `node` is over: it is ready.
    fn ready(&mut self, _now: Time, _instance: InstanceId, _node: NodeIndex) {}
    /// `node` is ready, and waits for its lane, which another node holds.
    fn waits(&mut self, _now: Time, _instance: InstanceId, _node: NodeIndex) {}
    /// A launch begins; a job is one.
    fn launched(&mut self, _now: Time, _launch: &LaunchRecord) {}
    /// All nodes of a launch are complete.
    fn launch_ended(&mut self, _now: Time, _launch: &LaunchRecord) {}
    /// A processor has said when a kernel that was issued to it runs.
    fn occupied(&mut self, _now: Time, _job: &ProcessorJob, _times: &JobTimes) {}
    /// The replay is over, and this is its critical path, where that was followed; first segment first.
    fn critical_path(&mut self, _path: &[RunSegment]) {}
    /// The replay is over, and this is what passed each link, where that was counted.
    fn links(&mut self, _loads: &[LinkLoad]) {}

    /// The replay is over, and links and memory ports of tiles were busy so long.
    fn network(&mut self, _occupancy: &NetworkOccupancy) {}

    /// The replay is over, and this is how many events it took.
    fn counted(&mut self, _counts: &LoopCounts) {}
    /// Whether it need not be told anything.
    fn is_nobody(&self) -> bool {
        false
    }
}

/// Nobody.
impl Observer for () {
    fn is_nobody(&self) -> bool {
        true
    }
    fn issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn completed(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn collective(&mut self, _: &CollectiveRecord) {}
}

/// One that its owner keeps, whatever becomes of the replay.
impl<O: Observer + ?Sized> Observer for &mut O {
    #[inline]
    fn issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        (**self).issued(now, instance, node, kind);
    }
    #[inline]
    fn completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        (**self).completed(now, instance, node, kind);
    }
    #[inline]
    fn began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        (**self).began(now, instance, node);
    }
    #[inline]
    fn collective(&mut self, record: &CollectiveRecord) {
        (**self).collective(record);
    }
    #[inline]
    fn delayed(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        (**self).delayed(now, instance, node);
    }
    #[inline]
    fn ready(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        (**self).ready(now, instance, node);
    }
    #[inline]
    fn waits(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        (**self).waits(now, instance, node);
    }
    fn launched(&mut self, now: Time, launch: &LaunchRecord) {
        (**self).launched(now, launch);
    }
    fn launch_ended(&mut self, now: Time, launch: &LaunchRecord) {
        (**self).launch_ended(now, launch);
    }
    fn occupied(&mut self, now: Time, job: &ProcessorJob, times: &JobTimes) {
        (**self).occupied(now, job, times);
    }
    fn critical_path(&mut self, path: &[RunSegment]) {
        (**self).critical_path(path);
    }
    fn links(&mut self, loads: &[LinkLoad]) {
        (**self).links(loads);
    }

    fn network(&mut self, occupancy: &NetworkOccupancy) {
        (**self).network(occupancy);
    }
    fn counted(&mut self, counts: &LoopCounts) {
        (**self).counted(counts);
    }
    fn is_nobody(&self) -> bool {
        (**self).is_nobody()
    }
}

/// An observer that is there only if it was asked for.
impl<O: Observer> Observer for Option<O> {
    fn is_nobody(&self) -> bool {
        self.as_ref().is_none_or(O::is_nobody)
    }
    #[inline]
    fn issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        if let Some(observer) = self {
            observer.issued(now, instance, node, kind);
        }
    }
    #[inline]
    fn completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        if let Some(observer) = self {
            observer.completed(now, instance, node, kind);
        }
    }
    #[inline]
    fn began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        if let Some(observer) = self {
            observer.began(now, instance, node);
        }
    }
    #[inline]
    fn collective(&mut self, record: &CollectiveRecord) {
        if let Some(observer) = self {
            observer.collective(record);
        }
    }
    #[inline]
    fn delayed(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        if let Some(observer) = self {
            observer.delayed(now, instance, node);
        }
    }
    #[inline]
    fn ready(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        if let Some(observer) = self {
            observer.ready(now, instance, node);
        }
    }
    #[inline]
    fn waits(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        if let Some(observer) = self {
            observer.waits(now, instance, node);
        }
    }
    fn launched(&mut self, now: Time, launch: &LaunchRecord) {
        if let Some(observer) = self {
            observer.launched(now, launch);
        }
    }
    fn launch_ended(&mut self, now: Time, launch: &LaunchRecord) {
        if let Some(observer) = self {
            observer.launch_ended(now, launch);
        }
    }
    fn occupied(&mut self, now: Time, job: &ProcessorJob, times: &JobTimes) {
        if let Some(observer) = self {
            observer.occupied(now, job, times);
        }
    }
    fn critical_path(&mut self, path: &[RunSegment]) {
        if let Some(observer) = self {
            observer.critical_path(path);
        }
    }
    fn links(&mut self, loads: &[LinkLoad]) {
        if let Some(observer) = self {
            observer.links(loads);
        }
    }

    fn network(&mut self, occupancy: &NetworkOccupancy) {
        if let Some(observer) = self {
            observer.network(occupancy);
        }
    }
    fn counted(&mut self, counts: &LoopCounts) {
        if let Some(observer) = self {
            observer.counted(counts);
        }
    }
}

impl<A: Observer, B: Observer> Observer for (A, B) {
    fn is_nobody(&self) -> bool {
        self.0.is_nobody() && self.1.is_nobody()
    }
    #[inline]
    fn issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        self.0.issued(now, instance, node, kind);
        self.1.issued(now, instance, node, kind);
    }
    #[inline]
    fn completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        self.0.completed(now, instance, node, kind);
        self.1.completed(now, instance, node, kind);
    }
    #[inline]
    fn began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        self.0.began(now, instance, node);
        self.1.began(now, instance, node);
    }
    #[inline]
    fn collective(&mut self, record: &CollectiveRecord) {
        self.0.collective(record);
        self.1.collective(record);
    }
    #[inline]
    fn delayed(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        self.0.delayed(now, instance, node);
        self.1.delayed(now, instance, node);
    }
    #[inline]
    fn ready(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        self.0.ready(now, instance, node);
        self.1.ready(now, instance, node);
    }
    #[inline]
    fn waits(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        self.0.waits(now, instance, node);
        self.1.waits(now, instance, node);
    }
    fn launched(&mut self, now: Time, launch: &LaunchRecord) {
        self.0.launched(now, launch);
        self.1.launched(now, launch);
    }
    fn launch_ended(&mut self, now: Time, launch: &LaunchRecord) {
        self.0.launch_ended(now, launch);
        self.1.launch_ended(now, launch);
    }
    fn occupied(&mut self, now: Time, job: &ProcessorJob, times: &JobTimes) {
        self.0.occupied(now, job, times);
        self.1.occupied(now, job, times);
    }
    fn critical_path(&mut self, path: &[RunSegment]) {
        self.0.critical_path(path);
        self.1.critical_path(path);
    }
    fn links(&mut self, loads: &[LinkLoad]) {
        self.0.links(loads);
        self.1.links(loads);
    }

    fn network(&mut self, occupancy: &NetworkOccupancy) {
        self.0.network(occupancy);
        self.1.network(occupancy);
    }
    fn counted(&mut self, counts: &LoopCounts) {
        self.0.counted(counts);
        self.1.counted(counts);
    }
}
