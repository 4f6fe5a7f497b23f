//! Breakdown of the time of each NPU.
//!
//! Each instant belongs to the first that applies of compute, transfer, waiting, memory, host and idle, so the parts sum to
//! the makespan to the picosecond. The delay of a node is time of the host. A communication waits until all of its partners
//! have begun and transfers from then on, collectives and messages alike. Transfer and waiting are *exposed communication*:
//! nothing was computed meanwhile; waiting for another stage of a pipeline ([`PipelineStages`]) is a *bubble* instead. Of
//! several communications at once, the transfer that started first is charged, and while nothing transfers the wait that
//! started first, hidden or exposed, by group and kind. Messages are charged
//! as one, and so is communication of which nobody knows the partners: it transfers from its start.

use super::keyed::by_part;
use super::open_comms::{CommProgress, OpenComms};
use super::stages::PipelineStages;
use super::{CollectiveRecord, Observer, TimeCategory};
use chakram_base::ids::NodeIndex;
use chakram_base::units::{Span, Time};
use chakram_engine::CompiledReplay;
use chakram_engine::InstanceId;
use chakram_trace::format::CollectiveKind;
use chakram_trace::graph::{Graph, NodeKind};
use serde::{Deserialize, Serialize};

/// Number of kinds of collectives.
const KINDS: usize = CollectiveKind::ALL.len();

/// One NPU's bookkeeping, on two lines of a cache.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct NpuTracker {
    /// Until when time has been attributed.
    until: Time,
    /// Nodes under way, by part; no node is a bubble.
    active: [u32; TimeCategory::COUNT - 1],
    /// Time by part; what is left is idle.
    parts: [Span; TimeCategory::COUNT - 1],
    /// Time with a communication under way, whatever else ran.
    communicating: Span,
    /// Communications under way.
    open: OpenComms,
    /// Completion of the last node.
    finish: Time,
}

/// The time that communications of one sort were charged with, summed over NPUs.
///
/// Over all sorts, waiting and transfer sum to the time with a communication under way, and what is exposed to
/// the parts that are communication and bubble.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ChargedTime {
    /// While a partner had not begun: a member of a collective, the sender of a receive, or the receiver of a send that
    /// needs it.
    #[serde(rename = "waiting_ps")]
    pub waiting: Span,
    /// So much of `waiting` was exposed.
    #[serde(rename = "exposed_waiting_ps")]
    pub exposed_waiting: Span,
    /// After the last partner had begun.
    #[serde(rename = "transferring_ps")]
    pub transferring: Span,
    /// So much of `transferring` was exposed.
    #[serde(rename = "exposed_transferring_ps")]
    pub exposed_transferring: Span,
    /// So much of `exposed_waiting` was for another stage of a pipeline; reports of older versions do not tell it apart.
    #[serde(rename = "bubble_ps", default)]
    pub bubble: Span,
}

impl ChargedTime {
    /// Exposed communication, waiting and transfer, without the bubble.
    pub fn exposed(&self) -> Span {
        self.exposed_waiting - self.bubble + self.exposed_transferring
    }
}

/// Time of one NPU by category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct NpuTime {
    /// Time by part, in their order of precedence; the sum is the makespan.
    #[serde(rename = "time_ps", with = "by_part")]
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "by_part::Parts<Span>"))]
    pub parts: [Span; TimeCategory::COUNT],
    /// Time with a communication under way, exposed or hidden behind compute.
    #[serde(rename = "communicating_ps")]
    pub communicating: Span,
    /// Completion of its last node, from the start of the replay.
    #[serde(rename = "finish_ps")]
    pub finish: Span,
}

/// Attributes the time of every NPU.
#[derive(Debug)]
pub struct BreakdownObserver<'a> {
    prepared: &'a CompiledReplay<'a>,
    npus: Vec<NpuTracker>,
    /// Time charged by group and kind; messages between ranks and unknown communication come last.
    charged: Vec<ChargedTime>,
    stages: PipelineStages<'a>,
}

impl<'a> BreakdownObserver<'a> {
    /// Watches all instances of `prepared`.
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Self {
        let workload = prepared.workload();
        let npus = workload.instances().iter().map(|instance| NpuTracker {
            open: OpenComms::new(workload.graph(instance)),
            ..NpuTracker::default()
        });
        Self {
            npus: npus.collect(),
            charged: vec![ChargedTime::default(); prepared.groups().count() * KINDS + 2],
            stages: PipelineStages::new(prepared),
            prepared,
        }
    }

    /// The time of each instance's NPU up to `makespan`, and what was charged by group and kind in the
    /// order of [`CollectiveKind::ALL`], messages between ranks and unknown communication last.
    pub fn finish(mut self, makespan: Span) -> (Vec<NpuTime>, Vec<ChargedTime>) {
        let end = Time::ZERO + makespan;
        for npu in &mut self.npus {
            npu.attribute(end, &mut self.charged);
        }
        let times = self.npus.iter().map(|npu| {
            let [compute, communication, bubble, memory, host] = npu.parts;
            let idle = makespan - npu.parts.iter().copied().sum();
            NpuTime {
                parts: [compute, communication, bubble, memory, host, idle],
                communicating: npu.communicating,
                finish: npu.finish.since(Time::ZERO),
            }
        });
        (times.collect(), self.charged)
    }
}

impl NpuTracker {
    #[inline]
    fn attribute(&mut self, now: Time, charged: &mut [ChargedTime]) {
        let elapsed = now.since(self.until);
        if elapsed == Span::ZERO {
            return;
        }
        self.until = now;
        let mut part = self.active.iter().position(|&count| count > 0);
        let exposed = part == Some(TimeCategory::Communication as usize);
        if let Some((label, progress)) = self.open.charged() {
            self.communicating += elapsed;
            let charged = &mut charged[label];
            let (all, not_hidden) = match progress {
                CommProgress::Transfers => {
                    (&mut charged.transferring, &mut charged.exposed_transferring)
                }
                _ => (&mut charged.waiting, &mut charged.exposed_waiting),
            };
            *all += elapsed;
            if exposed {
                *not_hidden += elapsed;
            }
            if exposed && progress == CommProgress::WaitsForStage {
                charged.bubble += elapsed;
                part = Some(TimeCategory::Bubble as usize);
            }
        }
        if let Some(part) = part {
            self.parts[part] += elapsed;
        }
    }
}

impl BreakdownObserver<'_> {
    #[inline]
    fn graph(&self, instance: InstanceId) -> &Graph {
        let workload = self.prepared.workload();
        workload.graph(&workload.instances()[instance.index()])
    }
}

impl Observer for BreakdownObserver<'_> {
    #[inline]
    fn issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        let Some(part) = TimeCategory::of(kind) else {
            return;
        };
        let npu = &mut self.npus[instance.index()];
        npu.attribute(now, &mut self.charged);
        npu.active[part as usize] += 1;
        if part == TimeCategory::Communication {
            let graph = self.graph(instance);
            let label = match kind {
                NodeKind::Collective => {
                    let group = self.prepared.group_of(instance, node).index();
                    group * KINDS + graph.call(node).kind as usize
                }
                NodeKind::Communication => self.charged.len() - 1,
                _ => self.charged.len() - 2,
            };
            let for_stage = self.stages.is_between(instance, node, kind);
            let place = graph.communication_index(node);
            let npu = &mut self.npus[instance.index()];
            npu.open.start(place, label as u32, for_stage);
            if kind == NodeKind::Communication {
                // Its partners are unknown, so nothing says that it waited.
                npu.open.begin(place);
            }
        }
    }

    #[inline]
    fn completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        let npu = &mut self.npus[instance.index()];
        npu.finish = now;
        let Some(part) = TimeCategory::of(kind) else {
            return;
        };
        npu.attribute(now, &mut self.charged);
        npu.active[part as usize] -= 1;
        if part == TimeCategory::Communication {
            let place = self.graph(instance).communication_index(node);
            self.npus[instance.index()].open.end(place);
        }
    }

    #[inline]
    fn began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        let place = self.graph(instance).communication_index(node);
        let npu = &mut self.npus[instance.index()];
        npu.attribute(now, &mut self.charged);
        npu.open.begin(place);
    }

    fn collective(&mut self, _: &CollectiveRecord) {}

    #[inline]
    fn delayed(&mut self, now: Time, instance: InstanceId, _: NodeIndex) {
        let npu = &mut self.npus[instance.index()];
        npu.attribute(now, &mut self.charged);
        npu.active[TimeCategory::Host as usize] += 1;
    }

    #[inline]
    fn ready(&mut self, now: Time, instance: InstanceId, _: NodeIndex) {
        let npu = &mut self.npus[instance.index()];
        npu.attribute(now, &mut self.charged);
        npu.active[TimeCategory::Host as usize] -= 1;
    }
}
