//! An observer that records data for a page's pictures.

use super::intervals::{ContiguousIntervals, KeyedInterval};
use super::traffic::RankPairTrafficCounter;
use super::{MemoryCurve, PictureSpan, ReplayPictures, SingleRankActivityPicture, rooflines};
use crate::memory::{self, BytesAtInstantEnd, MemoryTracker};
use crate::open_comms::{ChargedCommunicationProgress, NpuCommunicationsInProgress};
use crate::section::group_adjacent_rows;
use crate::stages::CrossStageCommunicationDetector;
use crate::{CollectiveRecord, CriticalPathSegment, NpuRow, NpuTimeCategory, Observer, Report};
use chakram_base::ids::{NodeIndex, Rank};
use chakram_base::units::{Bytes, Span, Time};
use chakram_engine::CompiledReplay;
use chakram_engine::InstanceId;
use chakram_trace::format::replace_micro_batch_number_by_star;
use chakram_trace::graph::NodeKind;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Maximum number of ranks in the picture of activity.
const RANKS: usize = 64;
/// Maximum number of ranks in a job whose ranks are all recorded.
const ALL_WATCHED: usize = 128;
/// Maximum number of recorded ranks per graph and NPU class in larger jobs. Ranks with the same graph and NPU class
/// differ only in their routes, so a few of them are sufficient.
const WATCHED_OF_EACH: usize = 8;
/// Maximum number of recorded ranks.
const WATCHED: usize = 4096;
/// Maximum number of intervals that a replay stores for all ranks together. The same limit applies to memory changes.
const KEPT: usize = 1 << 21;
/// Maximum number of memory curves in the picture of memory.
const CURVES: usize = 7;
/// Maximum number of intervals in the table of the critical path's longest intervals.
const LONGEST: usize = 24;

/// Marks a name that has no label in `labels` yet.
const UNNAMED: u32 = u32::MAX;

/// Key of an interval: the category, and the index of the interval's name.
type PictureCategoryAndNameKey = (u8, u32);

/// State of a recorded rank.
#[derive(Debug)]
struct RecordedRankActivity {
    /// Number of nodes in progress, by category.
    active: [u32; NpuTimeCategory::COUNT - 1],
    /// Communications in progress.
    open: NpuCommunicationsInProgress,
    /// Name index of the kernel that started last.
    kernel: u32,
    intervals: ContiguousIntervals<PictureCategoryAndNameKey>,
    /// Allocated bytes, with the time from which each value applies.
    memory: Vec<(Time, u64)>,
}

/// Records the data of a page's pictures.
#[derive(Debug)]
pub struct PictureRecorder<'a> {
    prepared: &'a CompiledReplay<'a>,
    /// State of each instance; `None` if the instance is not recorded.
    drawn: Vec<Option<RecordedRankActivity>>,
    names: Vec<String>,
    numbers: BTreeMap<String, u32>,
    /// For each graph, the index of each name's label; `UNNAMED` before the name's first use.
    labels: Vec<Vec<u32>>,
    /// Maximum number of intervals per rank, and half the maximum number of memory changes per rank.
    limit: usize,
    memory: MemoryTracker<'a>,
    traffic: RankPairTrafficCounter,
    stages: CrossStageCommunicationDetector<'a>,
    path: ContiguousIntervals<(u32, PictureCategoryAndNameKey)>,
}

impl<'a> PictureRecorder<'a> {
    /// Creates a recorder for a replay of `prepared`.
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Self {
        let workload = prepared.workload_with_added_launches();
        let watched = choose_recorded_instances(prepared);
        let limit = (KEPT / watched.len().max(1)).clamp(1 << 9, 1 << 15);
        let mut drawn: Vec<Option<RecordedRankActivity>> = Vec::new();
        drawn.resize_with(workload.instances().len(), || None);
        for at in watched {
            drawn[at] = Some(RecordedRankActivity {
                active: Default::default(),
                open: NpuCommunicationsInProgress::new(
                    workload.graph_of(&workload.instances()[at]),
                ),
                kernel: 0,
                intervals: ContiguousIntervals::new(limit),
                memory: Vec::new(),
            });
        }
        let graphs = workload.distinct_graphs().iter();
        let mut this = Self {
            prepared,
            drawn,
            names: Vec::new(),
            numbers: BTreeMap::new(),
            labels: graphs
                .map(|graph| vec![UNNAMED; graph.names().len()])
                .collect(),
            limit,
            memory: MemoryTracker::new(prepared),
            traffic: RankPairTrafficCounter::new(workload.rank_count_including_untraced()),
            stages: CrossStageCommunicationDetector::new(prepared),
            path: ContiguousIntervals::new(1 << 15),
        };
        // Index 0 must be the empty name, which means no kernel.
        this.intern_name(String::new());
        this
    }

    fn intern_name(&mut self, name: String) -> u32 {
        let next = self.names.len() as u32;
        let number = *self.numbers.entry(name.clone()).or_insert(next);
        if number == next {
            self.names.push(name);
        }
        number
    }

    /// Extends the current interval of a recorded instance to `now`; returns the instance's state.
    fn extend_current_interval(
        &mut self,
        now: Time,
        instance: InstanceId,
    ) -> Option<&mut RecordedRankActivity> {
        let of = self.drawn[instance.index()].as_mut()?;
        let category = of.active.iter().position(|&count| count > 0);
        let category = match category.unwrap_or(NpuTimeCategory::Idle as usize) {
            found if found == NpuTimeCategory::Communication as usize => {
                match of.open.charged_comm() {
                    Some((_, ChargedCommunicationProgress::WaitsForStage)) => {
                        NpuTimeCategory::Bubble as usize
                    }
                    _ => found,
                }
            }
            found => found,
        };
        let name = if category == NpuTimeCategory::Compute as usize {
            of.kernel
        } else {
            0
        };
        of.intervals
            .append_interval_until(now, (category as u8, name));
        Some(of)
    }

    fn begin_or_end_activity(
        &mut self,
        now: Time,
        instance: InstanceId,
        category: NpuTimeCategory,
        begins: bool,
    ) {
        if let Some(of) = self.extend_current_interval(now, instance) {
            let count = &mut of.active[category as usize];
            *count = if begins { *count + 1 } else { *count - 1 };
        }
    }

    /// If the rank is recorded, calls `change` with the open communications of the node's rank and the node's
    /// communication index.
    fn change_open_communications(
        &mut self,
        instance: InstanceId,
        node: NodeIndex,
        change: fn(&mut NpuCommunicationsInProgress, usize),
    ) {
        if let Some(of) = &mut self.drawn[instance.index()] {
            let workload = self.prepared.workload_with_added_launches();
            let graph = workload.graph_of(&workload.instances()[instance.index()]);
            change(&mut of.open, graph.communication_index(node));
        }
    }

    fn record_memory(&mut self, instance: InstanceId, over: Option<BytesAtInstantEnd>) {
        if let (Some((at, held)), Some(of)) = (over, &mut self.drawn[instance.index()]) {
            of.memory.push((
                at,
                held.iter().fold(0, |all, bytes| all.saturating_add(*bytes)),
            ));
            if of.memory.len() > 2 * self.limit {
                of.memory = merge_close_points(&of.memory, Span(at.0 / (self.limit as u64 / 2)));
            }
        }
    }

    /// Returns the pictures of the replay that `report` describes.
    pub fn into_pictures(mut self, report: &Report) -> ReplayPictures {
        let makespan = report.outcome.makespan;
        let end = Time::ZERO + makespan;
        for (instance, over) in self.memory.end_last_instant_of_all_instances() {
            self.record_memory(instance, Some(over));
        }
        for instance in (0..self.drawn.len() as u32).map(InstanceId) {
            self.extend_current_interval(end, instance);
        }
        let instances = self.prepared.workload_with_added_launches().instances();
        let resolution = super::choose_resolution(makespan, instances.len());
        let path = self
            .path
            .merge_intervals_up_to_resolution(super::choose_resolution(makespan, 1));
        let longest = self.path.longest_intervals(LONGEST);
        let on_path = |path: Vec<KeyedInterval<(u32, PictureCategoryAndNameKey)>>| {
            let spans = path.into_iter().map(|one| {
                self.build_picture_span(one.from, one.to, one.key.1, Some(Rank(one.key.0)))
            });
            spans.collect()
        };
        let mut pictures = ReplayPictures {
            critical_path: on_path(path),
            longest_on_path: on_path(longest),
            watched: Some(self.drawn.iter().flatten().count() as u32),
            ranks: self.build_rank_pictures(report, resolution),
            memory: self.build_memory_curves(report, resolution),
            rooflines: rooflines::collect_npu_class_peak_rates(self.prepared),
            ..ReplayPictures::default()
        };
        pictures.traffic = self.traffic.into_matrix(self.prepared);
        pictures
    }

    fn build_picture_span(
        &self,
        from: Time,
        to: Time,
        (category, name): PictureCategoryAndNameKey,
        rank: Option<Rank>,
    ) -> PictureSpan {
        PictureSpan {
            from,
            to,
            rank,
            category: NpuTimeCategory::KEYS[category as usize].to_owned(),
            name: self.names[name as usize].clone(),
        }
    }

    /// Returns the activity of the most informative ranks. Ranks with identical activity share one entry. An unrecorded
    /// rank is represented by the first recorded rank with the same graph, NPU class and times per category. If there
    /// is no such rank, the unrecorded rank is omitted.
    fn build_rank_pictures(
        &self,
        report: &Report,
        resolution: Span,
    ) -> Vec<SingleRankActivityPicture> {
        let instances = self.prepared.workload_with_added_launches().instances();
        let sort_of = |at: usize| {
            let NpuRow { class, time, .. } = &report.rows[at];
            (instances[at].graph, class, time.parts, time.finish)
        };
        let watched = (0..self.drawn.len()).filter(|&at| self.drawn[at].is_some());
        let mut stand_ins = BTreeMap::new();
        for at in watched {
            stand_ins.entry(sort_of(at)).or_insert(at);
        }
        let mut places: BTreeMap<Vec<(Time, PictureCategoryAndNameKey)>, usize> = BTreeMap::new();
        let mut chosen: Vec<(Rank, u32, Vec<KeyedInterval<PictureCategoryAndNameKey>>)> =
            Vec::new();
        let mut place_of: BTreeMap<usize, Option<usize>> = BTreeMap::new();
        for at in order_ranks_by_interest(report) {
            let stand_in = match &self.drawn[at] {
                Some(_) => Some(&at),
                None => stand_ins.get(&sort_of(at)),
            };
            let Some((&stand_in, of)) =
                stand_in.and_then(|at| Some((at, self.drawn[*at].as_ref()?)))
            else {
                continue;
            };
            let place = *place_of.entry(stand_in).or_insert_with(|| {
                let intervals = of.intervals.merge_intervals_up_to_resolution(resolution);
                let key = intervals.iter().map(|one| (one.to, one.key)).collect();
                let next = chosen.len();
                match places.entry(key) {
                    Entry::Occupied(place) => {
                        chosen[*place.get()].1 += 1;
                        Some(*place.get())
                    }
                    Entry::Vacant(place) if next < RANKS => {
                        place.insert(next);
                        chosen.push((report.rows[stand_in].rank, 0, intervals));
                        Some(next)
                    }
                    Entry::Vacant(_) => None,
                }
            });
            if let (Some(place), true) = (place, stand_in != at) {
                chosen[place].1 += 1;
            }
        }
        chosen.sort_by_key(|(rank, ..)| *rank);
        let pictures = chosen.into_iter().map(|(rank, alike, intervals)| {
            let busy = intervals.into_iter();
            let busy = busy.filter(|one| one.key.0 != NpuTimeCategory::Idle as u8);
            SingleRankActivityPicture {
                rank,
                alike,
                spans: busy
                    .map(|one| self.build_picture_span(one.from, one.to, one.key, None))
                    .collect(),
            }
        });
        pictures.collect()
    }

    /// Returns memory curves, fullest memory first. Each group of ranks with identical memory rows has one curve, that
    /// of the group's first recorded rank.
    fn build_memory_curves(&self, report: &Report, resolution: Span) -> Vec<MemoryCurve> {
        let instances = self.prepared.workload_with_added_launches().instances();
        let mut curves: Vec<MemoryCurve> = Vec::new();
        for (_, run) in memory::group_equal_memory_rows(&report.memory) {
            let mut watched = run.iter().filter_map(|row| {
                let at = instances.partition_point(|instance| instance.rank < row.rank);
                Some((row.rank, self.drawn.get(at)?.as_ref()?))
            });
            let Some((rank, of)) = watched.next() else {
                continue;
            };
            let points = merge_close_points(&of.memory, resolution).into_iter();
            let points: Vec<_> = points.map(|(at, bytes)| (at, Bytes(bytes))).collect();
            let is_known = |known: &MemoryCurve| known.points == points;
            if curves.len() < CURVES && !curves.iter().any(is_known) {
                curves.push(MemoryCurve {
                    rank,
                    capacity: run[0].capacity,
                    points,
                });
            }
        }
        curves
    }
}

/// Returns the indices of the instances to record.
fn choose_recorded_instances(prepared: &CompiledReplay<'_>) -> Vec<usize> {
    let instances = prepared.workload_with_added_launches().instances();
    if instances.len() <= ALL_WATCHED {
        return (0..instances.len()).collect();
    }
    let mut sorts: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (at, instance) in instances.iter().enumerate() {
        let class = prepared
            .machine()
            .class_of_npu(prepared.npu_of_rank(instance.rank));
        // Instances with the same graph but different release times also differ in activity.
        let sort = (instance.graph, class, instance.release);
        sorts.entry(sort).or_default().push(at);
    }
    let mut watched: Vec<usize> = sorts
        .values()
        .flat_map(|all| pick_evenly_spaced(all, WATCHED_OF_EACH))
        .collect();
    watched.sort_unstable();
    pick_evenly_spaced(&watched, WATCHED).collect()
}

/// Returns at most `most` elements of `all`, evenly spaced and beginning with the first.
fn pick_evenly_spaced(all: &[usize], most: usize) -> impl Iterator<Item = usize> {
    let count = all.len().min(most);
    (0..count).map(move |i| all[i * all.len() / count])
}

/// Returns the row indices of all ranks, most informative rank first. The order is: ranks out of memory; ranks with the
/// longest or shortest time in a category; the rank that finishes last; the ranks that others waited for longest; and
/// one rank of each class of ranks with equal times. All other ranks follow.
fn order_ranks_by_interest(report: &Report) -> Vec<usize> {
    let rows = &report.rows;
    let mut order: Vec<usize> = Vec::new();
    let place = |rank: Rank| rows.binary_search_by_key(&rank, |row| row.rank).ok();
    let runs = memory::group_equal_memory_rows(&report.memory);
    let full = runs.iter().filter(|(_, run)| run[0].fits == Some(false));
    order.extend(full.filter_map(|(_, run)| place(run[0].rank)));
    for (part, _) in NpuTimeCategory::ALL {
        let ends = report.rows_with_extreme_time(part).into_iter();
        let ends = ends.flat_map(|(least, most)| [most.rank, least.rank]);
        order.extend(ends.filter_map(place));
    }
    let last = rows
        .iter()
        .max_by_key(|row| (row.time.finish, Reverse(row.rank)));
    order.extend(last.and_then(|row| place(row.rank)));
    let latest = report
        .collectives
        .iter()
        .filter_map(|row| row.latest.as_ref());
    let mut latest: Vec<_> = latest
        .map(|late| (Reverse(late.waited), late.rank))
        .collect();
    latest.sort_unstable();
    latest.dedup_by_key(|(_, rank)| *rank);
    order.extend(
        latest
            .iter()
            .take(RANKS / 4)
            .filter_map(|(_, rank)| place(*rank)),
    );
    let classes = group_adjacent_rows(rows, |a, b| {
        (&a.class, a.time.parts, a.time.finish) == (&b.class, b.time.parts, b.time.finish)
    });
    order.extend(classes.iter().map(|(at, _)| *at));
    order.extend(0..rows.len());
    let mut seen = vec![false; rows.len()];
    order.retain(|&at| !std::mem::replace(&mut seen[at], true));
    order
}

/// Reduces the points in each interval of length `resolution` to two: the interval's highest value, at the time of its
/// first point, and its last point.
fn merge_close_points(points: &[(Time, u64)], resolution: Span) -> Vec<(Time, u64)> {
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

/// Returns the micro-batch and direction in a node's name, as in `mb3 bwd`; otherwise, the first part of the name.
fn short_label_of_batch_and_pass(name: &str) -> String {
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
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        if self.drawn[instance.index()].is_some() {
            let over = self.memory.on_issued(now, instance, node);
            self.record_memory(instance, over);
        }
        let Some(category) = NpuTimeCategory::from_node_kind(kind) else {
            return;
        };
        self.begin_or_end_activity(now, instance, category, true);
        let workload = self.prepared.workload_with_added_launches();
        let of = &workload.instances()[instance.index()];
        let graph = workload.graph_of(of);
        if category == NpuTimeCategory::Communication
            && let Some(drawn) = &mut self.drawn[instance.index()]
        {
            let for_stage = self
                .stages
                .has_partners_in_other_stage(instance, node, kind);
            let place = graph.communication_index(node);
            drawn.open.start_comm(place, 0, for_stage);
            if kind == NodeKind::Communication {
                drawn.open.begin_transfer(place);
            }
        }
        if kind == NodeKind::Send {
            let peer = graph.messages()[graph.message_index(node)].peer;
            let bytes = graph.stated_bytes_of_node(node);
            self.traffic
                .count_message(of.rank, of.peers[peer as usize], bytes);
        }
        if kind == NodeKind::Compute && self.drawn[instance.index()].is_some() {
            let (of_graph, name) = (of.graph.index(), graph.name_index(node) as usize);
            let mut kernel = self.labels[of_graph][name];
            if kernel == UNNAMED {
                kernel = self.intern_name(short_label_of_batch_and_pass(graph.name(node)));
                self.labels[of_graph][name] = kernel;
            }
            if let Some(of) = &mut self.drawn[instance.index()] {
                of.kernel = kernel;
            }
        }
    }

    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        if self.drawn[instance.index()].is_none() {
            return;
        }
        let over = self.memory.on_completed(now, instance, node);
        self.record_memory(instance, over);
        if let Some(category) = NpuTimeCategory::from_node_kind(kind) {
            self.begin_or_end_activity(now, instance, category, false);
            if category == NpuTimeCategory::Communication {
                self.change_open_communications(
                    instance,
                    node,
                    NpuCommunicationsInProgress::end_comm,
                );
            }
        }
    }

    fn on_transfer_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        self.extend_current_interval(now, instance);
        self.change_open_communications(
            instance,
            node,
            NpuCommunicationsInProgress::begin_transfer,
        );
    }

    fn on_delay_began(&mut self, now: Time, instance: InstanceId, _: NodeIndex) {
        self.begin_or_end_activity(now, instance, NpuTimeCategory::Host, true);
    }

    fn on_ready(&mut self, now: Time, instance: InstanceId, _: NodeIndex) {
        self.begin_or_end_activity(now, instance, NpuTimeCategory::Host, false);
    }

    fn on_collective_ended(&mut self, record: &CollectiveRecord) {
        self.traffic.count_collective(record);
    }

    fn critical_path(&mut self, path: &[CriticalPathSegment]) {
        let workload = self.prepared.workload_with_added_launches();
        for segment in path {
            let of = &workload.instances()[segment.instance.index()];
            let name = replace_micro_batch_number_by_star(workload.graph_of(of).name(segment.node));
            let name = self.intern_name(name.into_owned());
            let key = (segment.category as u8, name);
            self.path
                .append_interval_until(segment.to, (of.rank.0, key));
        }
    }
}
