//! An observer that collects what pictures show.

use super::intervals::Intervals;
use super::traffic::TrafficCounter;
use super::{MemoryCurve, PictureSpan, RankPicture, ReplayPictures, resolution};
use crate::TimeCategory;
use crate::memory::pool_memory::RankCapacities;
use crate::memory::{EndedInstant, MemoryTracker};
use crate::open_comms::{CommProgress, OpenComms};
use crate::stages::PipelineStages;
use crate::{CollectiveRecord, Observer, RunSegment};
use chakram_base::ids::{NodeIndex, Rank};
use chakram_base::units::{Bytes, Span, Time};
use chakram_engine::CompiledReplay;
use chakram_engine::InstanceId;
use chakram_trace::format::of_any_micro_batch;
use chakram_trace::graph::NodeKind;
use std::collections::BTreeMap;

/// The most ranks that are drawn.
const RANKS: usize = 32;
/// The most curves of memory.
const CURVES: usize = 8;

/// Sort of an interval: category, and number of its name.
type SpanKey = (u8, u32);

/// A rank that is drawn.
#[derive(Debug, Default)]
struct DrawnRank {
    /// Nodes under way, by category.
    active: [u32; TimeCategory::COUNT - 1],
    /// Communications under way.
    open: OpenComms,
    /// Name of the kernel that began last.
    kernel: u32,
    intervals: Intervals<SpanKey>,
    /// Bytes over time; the key is what is held.
    memory: Vec<(Time, u64)>,
}

/// Collects the data of pictures.
#[derive(Debug)]
pub struct PictureRecorder<'a> {
    prepared: &'a CompiledReplay<'a>,
    /// By instance, if it is drawn.
    drawn: Vec<Option<DrawnRank>>,
    names: Vec<String>,
    numbers: BTreeMap<String, u32>,
    memory: MemoryTracker<'a>,
    traffic: TrafficCounter,
    stages: PipelineStages<'a>,
    path: Intervals<(u32, SpanKey)>,
}

impl<'a> PictureRecorder<'a> {
    /// Watches `prepared`.
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Self {
        let workload = prepared.workload();
        let count = workload.instances().len();
        let mut drawn: Vec<Option<DrawnRank>> = Vec::new();
        drawn.resize_with(count, || None);
        for i in 0..count.min(RANKS) {
            let at = i * count / count.min(RANKS);
            drawn[at] = Some(DrawnRank {
                open: OpenComms::new(workload.graph(&workload.instances()[at])),
                ..DrawnRank::default()
            });
        }
        let mut this = Self {
            prepared,
            drawn,
            names: Vec::new(),
            numbers: BTreeMap::new(),
            memory: MemoryTracker::new(prepared),
            traffic: TrafficCounter::new(workload.ranks()),
            stages: PipelineStages::new(prepared),
            path: Intervals::default(),
        };
        // The name of what needs none.
        this.name(String::new());
        this
    }

    fn name(&mut self, name: String) -> u32 {
        let next = self.names.len() as u32;
        let number = *self.numbers.entry(name.clone()).or_insert(next);
        if number == next {
            self.names.push(name);
        }
        number
    }

    /// The rank goes on as it was until `now`.
    fn advance(&mut self, now: Time, instance: InstanceId) -> Option<&mut DrawnRank> {
        let of = self.drawn[instance.index()].as_mut()?;
        let category = of.active.iter().position(|&count| count > 0);
        let category = match category.unwrap_or(TimeCategory::Idle as usize) {
            found if found == TimeCategory::Communication as usize => match of.open.charged() {
                Some((_, CommProgress::WaitsForStage)) => TimeCategory::Bubble as usize,
                _ => found,
            },
            found => found,
        };
        let name = if category == TimeCategory::Compute as usize {
            of.kernel
        } else {
            0
        };
        of.intervals.extend(now, (category as u8, name));
        Some(of)
    }

    fn change(&mut self, now: Time, instance: InstanceId, category: TimeCategory, begins: bool) {
        if let Some(of) = self.advance(now, instance) {
            let count = &mut of.active[category as usize];
            *count = if begins { *count + 1 } else { *count - 1 };
        }
    }

    /// Changes the communication of a drawn rank that `node` is.
    fn with_place(
        &mut self,
        instance: InstanceId,
        node: NodeIndex,
        change: fn(&mut OpenComms, usize),
    ) {
        if let Some(of) = &mut self.drawn[instance.index()] {
            let workload = self.prepared.workload();
            let graph = workload.graph(&workload.instances()[instance.index()]);
            change(&mut of.open, graph.communication_index(node));
        }
    }

    fn held(&mut self, instance: InstanceId, over: Option<EndedInstant>) {
        if let (Some((at, held)), Some(of)) = (over, &mut self.drawn[instance.index()]) {
            of.memory.push((
                at,
                held.iter().fold(0, |all, bytes| all.saturating_add(*bytes)),
            ));
            if of.memory.len() > 1 << 16 {
                of.memory = highest(&of.memory, Span(at.0 >> 13));
            }
        }
    }

    /// The data, of a replay that took `makespan`.
    pub fn finish(mut self, makespan: Span) -> ReplayPictures {
        let end = Time::ZERO + makespan;
        for (instance, over) in self.memory.end() {
            self.held(instance, Some(over));
        }
        for instance in (0..self.drawn.len() as u32).map(InstanceId) {
            self.advance(end, instance);
        }
        let resolution = resolution(makespan);
        let span = |from, to, (category, name): SpanKey, rank| PictureSpan {
            from,
            to,
            rank,
            category: TimeCategory::KEYS[category as usize].to_owned(),
            name: self.names[name as usize].clone(),
        };
        let (workload, machine) = (self.prepared.workload(), self.prepared.machine());
        let mut pictures = ReplayPictures::default();
        let path = self.path.finish(resolution).into_iter();
        let path = path.map(|one| span(one.from, one.to, one.key.1, Some(Rank(one.key.0))));
        pictures.critical_path = path.collect();
        let drawn = workload.instances().iter().zip(self.drawn);
        let mut curves = Vec::new();
        let capacities = RankCapacities::new(workload, machine);
        for (instance, of) in drawn.filter_map(|(instance, of)| Some((instance, of?))) {
            let spans = of.intervals.finish(resolution).into_iter();
            let spans = spans.filter(|one| one.key.0 != TimeCategory::Idle as u8);
            pictures.ranks.push(RankPicture {
                rank: instance.rank,
                spans: spans
                    .map(|one| span(one.from, one.to, one.key, None))
                    .collect(),
            });
            if !of.memory.is_empty() {
                let npu = self.prepared.npu(instance.rank);
                let points = highest(&of.memory, resolution).into_iter();
                curves.push(MemoryCurve {
                    rank: instance.rank,
                    capacity: capacities.of(instance, npu),
                    points: points.map(|(at, bytes)| (at, Bytes(bytes))).collect(),
                });
            }
        }
        // Neighbours that are alike share a curve.
        curves.dedup_by(|a, b| (a.capacity, &a.points) == (b.capacity, &b.points));
        let every = curves.len().div_ceil(CURVES).max(1);
        pictures.memory = curves.into_iter().step_by(every).collect();
        pictures.traffic = self.traffic.finish(self.prepared);
        pictures
    }
}

/// Of the points within a `resolution` the highest, at the first of their instants, and the last.
fn highest(points: &[(Time, u64)], resolution: Span) -> Vec<(Time, u64)> {
    let mut out: Vec<(Time, u64)> = Vec::new();
    let near = |a: &(Time, u64), b: &(Time, u64)| b.0.since(a.0) < resolution;
    let mut rest = points;
    while let Some(first) = rest.first() {
        let close = rest
            .iter()
            .take_while(|one| near(first, one))
            .count()
            .max(1);
        let (group, others) = rest.split_at(close);
        rest = others;
        let most = group.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        out.push((first.0, most));
        let last = group[group.len() - 1];
        if last.0 > first.0 {
            out.push(last);
        }
    }
    out
}

/// Micro-batch and direction of a node, `mb3 bwd`, where its name says them; its first part otherwise.
fn label(name: &str) -> String {
    let parts = || name.split('/');
    let batch = parts().find(|part| {
        let digits = part.strip_prefix("mb").unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    });
    let pass = parts().find(|part| matches!(*part, "fwd" | "bwd" | "recompute"));
    match (batch, pass) {
        (Some(batch), Some(pass)) => format!("{batch} {pass}"),
        (None, Some(pass)) => pass.to_owned(),
        _ => parts().next().unwrap_or_default().to_owned(),
    }
}

impl Observer for PictureRecorder<'_> {
    fn issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        let over = self.memory.issued(now, instance, node);
        self.held(instance, over);
        let Some(category) = TimeCategory::of(kind) else {
            return;
        };
        self.change(now, instance, category, true);
        let workload = self.prepared.workload();
        let of = &workload.instances()[instance.index()];
        let graph = workload.graph(of);
        if category == TimeCategory::Communication
            && let Some(drawn) = &mut self.drawn[instance.index()]
        {
            let for_stage = self.stages.is_between(instance, node, kind);
            let place = graph.communication_index(node);
            drawn.open.start(place, 0, for_stage);
            if kind == NodeKind::Communication {
                drawn.open.begin(place);
            }
        }
        if kind == NodeKind::Send {
            let peer = graph.messages()[graph.message_index(node)].peer;
            let bytes = graph.bytes(node);
            self.traffic
                .message(of.rank, of.peers[peer as usize], bytes);
        }
        if kind == NodeKind::Compute && self.drawn[instance.index()].is_some() {
            let kernel = self.name(label(graph.name(node)));
            if let Some(of) = &mut self.drawn[instance.index()] {
                of.kernel = kernel;
            }
        }
    }

    fn completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        let over = self.memory.completed(now, instance, node);
        self.held(instance, over);
        if let Some(category) = TimeCategory::of(kind) {
            self.change(now, instance, category, false);
            if category == TimeCategory::Communication {
                self.with_place(instance, node, OpenComms::end);
            }
        }
    }

    fn began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        self.advance(now, instance);
        self.with_place(instance, node, OpenComms::begin);
    }

    fn delayed(&mut self, now: Time, instance: InstanceId, _: NodeIndex) {
        self.change(now, instance, TimeCategory::Host, true);
    }

    fn ready(&mut self, now: Time, instance: InstanceId, _: NodeIndex) {
        self.change(now, instance, TimeCategory::Host, false);
    }

    fn collective(&mut self, record: &CollectiveRecord) {
        self.traffic.collective(record);
    }

    fn critical_path(&mut self, path: &[RunSegment]) {
        let workload = self.prepared.workload();
        for segment in path {
            let of = &workload.instances()[segment.instance.index()];
            let name = of_any_micro_batch(workload.graph(of).name(segment.node));
            let name = self.name(name.into_owned());
            let key = (segment.category as u8, name);
            self.path.extend(segment.to, (of.rank.0, key));
        }
    }
}
