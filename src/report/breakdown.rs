//! Breakdown of the time of each NPU.
//!
//! Each instant belongs to the first that applies of compute, communication, memory, host and idle,
//! so the parts sum to the makespan to the picosecond. The delay of a node is time of the host. What is attributed to communication is
//! *exposed*: nothing was computed meanwhile. Of several communications at once, the one that started
//! first is charged, hidden or exposed, by group and kind; whether it waits for other members or
//! transfers is told apart. Messages are charged as one.

use super::keyed::by_part;
use super::{CollectiveRecord, Observer, TimeCategory};
use chakram_base::ids::NodeIndex;
use chakram_base::units::{Span, Time};
use chakram_engine::CompiledReplay;
use chakram_engine::InstanceId;
use chakram_trace::format::CollectiveKind;
use chakram_trace::graph::{Graph, NodeKind};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Number of kinds of collectives.
const KINDS: usize = CollectiveKind::ALL.len();

/// One NPU's bookkeeping, on two lines of a cache.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct NpuTracker {
    /// Until when time has been attributed.
    until: Time,
    /// Nodes under way, by part.
    active: [u32; 4],
    /// Time by part; what is left is idle.
    parts: [Span; 4],
    /// Time with a communication under way, whatever else ran.
    communicating: Span,
    /// Communications in the order they started; the first is under way.
    open: VecDeque<OpenComm>,
    /// Number of communications that were over before the first of `open` started.
    over: u32,
    /// Of each call, and then each message, of the graph: which communication to start it was, [`OVER`]
    /// before it started.
    place: Box<[u32]>,
    /// Completion of the last node.
    finish: Time,
}

/// A communication that has started.
#[derive(Clone, Copy, Debug)]
struct OpenComm {
    /// Index of what is charged, [`OVER`] when it is no more under way.
    label: u32,
    /// Whether it waits for nobody any more.
    began: bool,
}

/// In place of what is charged: nothing is, for the communication is over. In place of which it was: it has not
/// started.
const OVER: u32 = u32::MAX;

/// The time that communications of one sort were charged with, summed over NPUs.
///
/// Over all sorts, waiting and transfer sum to the time with a communication under way, and what is exposed to
/// the part that is communication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ChargedTime {
    /// While another member had not arrived.
    #[serde(rename = "waiting_ps")]
    pub waiting: Span,
    /// So much of `waiting` was exposed.
    #[serde(rename = "exposed_waiting_ps")]
    pub exposed_waiting: Span,
    /// After the last member had arrived; all the time of messages.
    #[serde(rename = "transferring_ps")]
    pub transferring: Span,
    /// So much of `transferring` was exposed.
    #[serde(rename = "exposed_transferring_ps")]
    pub exposed_transferring: Span,
}

impl ChargedTime {
    /// Exposed communication, waiting and transfer.
    pub fn exposed(&self) -> Span {
        self.exposed_waiting + self.exposed_transferring
    }
}

/// Time of one NPU by category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct NpuTime {
    /// Time by part, in their order of precedence; the sum is the makespan.
    #[serde(rename = "time_ps", with = "by_part")]
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "by_part::Parts<Span>"))]
    pub parts: [Span; 5],
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
    /// Time charged by group and kind; messages between ranks come last.
    charged: Vec<ChargedTime>,
}

impl<'a> BreakdownObserver<'a> {
    /// Watches all instances of `prepared`.
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Self {
        let workload = prepared.workload();
        let npus = workload.instances().iter().map(|instance| {
            let graph = workload.graph(instance);
            NpuTracker {
                place: vec![OVER; graph.calls().len() + graph.messages().len()].into(),
                ..NpuTracker::default()
            }
        });
        Self {
            npus: npus.collect(),
            charged: vec![ChargedTime::default(); prepared.groups().count() * KINDS + 1],
            prepared,
        }
    }

    /// The time of each instance's NPU up to `makespan`, and what was charged by group and kind in the
    /// order of [`CollectiveKind::ALL`], messages between ranks last.
    pub fn finish(mut self, makespan: Span) -> (Vec<NpuTime>, Vec<ChargedTime>) {
        let end = Time::ZERO + makespan;
        for npu in &mut self.npus {
            npu.attribute(end, &mut self.charged);
        }
        let times = self.npus.iter().map(|npu| {
            let [compute, communication, memory, host] = npu.parts;
            let idle = makespan - npu.parts.iter().copied().sum();
            NpuTime {
                parts: [compute, communication, memory, host, idle],
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
        let part = self.active.iter().position(|&count| count > 0);
        if let Some(part) = part {
            self.parts[part] += elapsed;
        }
        if let Some(open) = self.open.front() {
            self.communicating += elapsed;
            let charged = &mut charged[open.label as usize];
            let (all, exposed) = if open.began {
                (&mut charged.transferring, &mut charged.exposed_transferring)
            } else {
                (&mut charged.waiting, &mut charged.exposed_waiting)
            };
            *all += elapsed;
            if part == Some(TimeCategory::Communication as usize) {
                *exposed += elapsed;
            }
        }
    }

    /// The communication that is called or sent at `place` starts.
    #[inline]
    fn start(&mut self, place: usize, open: OpenComm) {
        self.place[place] = self.over + self.open.len() as u32;
        self.open.push_back(open);
    }

    /// The communication that is called or sent at `place`, which has started.
    #[inline]
    fn open(&mut self, place: usize) -> Option<&mut OpenComm> {
        let number = self.place[place].checked_sub(self.over)?;
        self.open.get_mut(number as usize)
    }

    /// The communication that is called or sent at `place` is over.
    #[inline]
    fn end(&mut self, place: usize) {
        if let Some(open) = self.open(place) {
            open.label = OVER;
        }
        while self.open.front().is_some_and(|open| open.label == OVER) {
            self.open.pop_front();
            self.over += 1;
        }
    }
}

/// The place of a communication among the calls and messages of its graph, calls first.
#[inline]
fn place(graph: &Graph, node: NodeIndex, kind: NodeKind) -> usize {
    match kind {
        NodeKind::Collective => graph.call_index(node),
        _ => graph.calls().len() + graph.message_index(node),
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
            let collective = kind == NodeKind::Collective;
            let label = if collective {
                let group = self.prepared.group_of(instance, node).index();
                group * KINDS + graph.call(node).kind as usize
            } else {
                self.charged.len() - 1
            };
            let open = OpenComm {
                label: label as u32,
                began: !collective,
            };
            let place = place(graph, node, kind);
            self.npus[instance.index()].start(place, open);
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
            let place = place(self.graph(instance), node, kind);
            self.npus[instance.index()].end(place);
        }
    }

    #[inline]
    fn began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        let graph = self.graph(instance);
        let place = place(graph, node, graph.kind(node));
        let npu = &mut self.npus[instance.index()];
        npu.attribute(now, &mut self.charged);
        if let Some(open) = npu.open(place) {
            open.began = true;
        }
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
