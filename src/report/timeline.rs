//! Writes timelines of a replay for trace viewers: JSON in the Chrome trace format, or Perfetto's own protobuf.
//!
//! A timeline has one process per rank, one track per lane, and one slice (drawn interval) per node. Arrows lead from
//! each send to its receive, and from each call of a captured program to the work that it launched. Receives occupy no
//! lane, so they are drawn on extra tracks. The number of extra tracks is the largest number of overlapping receives.
//! Nodes of a captured thread are nested in the ranges, operators and Python calls that enclose them. Nodes whose names
//! are paths (`step0/mb1/layer2/norm`) are nested too. Consecutive nodes of a lane with the same path are drawn below
//! one slice for the path. A slice lasts from issue to completion; the delay before the issue is blank. Each node is
//! written when it completes, so only issue times are stored. Each rank has up to three counters: allocated bytes by
//! class (if its nodes allocate or free memory); bytes sent per second (if it communicates); and the number of nodes
//! that wait for a lane (if any node waits).

use super::NpuTimeCategory;
use super::collectives::bus_factor;
use super::issue_times::InProgressNodeIssueTimes;
use super::memory::{BytesAtInstantEnd, MemoryTracker};
use super::replay::group_label;
use super::summary::node_kind_label;
use super::{CollectiveRecord, CriticalPathSegment, Observer};
use chakram_base::ids::{NodeIndex, Rank};
use chakram_base::units::Time;
use chakram_engine::InstanceId;
use chakram_engine::{CommunicationDurationSource, CompiledReplay, PlacedWorkloadGroup};
use chakram_trace::format::TensorClass;
use chakram_trace::graph::NodeKind;
use std::collections::BTreeMap;
use std::io::{self, Write};

mod chrome;
mod counters;
mod describe;
mod events;
mod nesting;
mod origins;
mod perfetto;
mod selection;
mod tracks;

pub use selection::TimelineSelection;

use chrome::ChromeEncoder;
use counters::WaitingAndSendingCounters;
use events::{ArrowEnd, RankTrackId, TimelineEncoder, TimelineSlice};
use nesting::{NodeEnclosingSlice, OpenRangesOfLane};
use origins::TimelineNodeCallers;
use perfetto::PerfettoEncoder;
use tracks::ReceiveTrack;

/// File formats of timelines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimelineFormat {
    /// JSON in the Chrome trace format.
    #[default]
    Chrome,
    /// Perfetto's protobuf.
    Perfetto,
}

/// The encoder of the chosen format.
#[derive(Debug)]
enum ChromeOrPerfettoEncoder<W> {
    Chrome(ChromeEncoder<W>),
    Perfetto(Box<PerfettoEncoder<W>>),
}

impl<W: Write> ChromeOrPerfettoEncoder<W> {
    fn as_encoder_mut(&mut self) -> &mut dyn TimelineEncoder {
        match self {
            Self::Chrome(encoder) => encoder,
            Self::Perfetto(encoder) => &mut **encoder,
        }
    }
}

/// An observer that writes the timeline to `out` during the replay.
#[derive(Debug)]
pub struct TimelineWriter<'a, W> {
    prepared: &'a CompiledReplay<'a>,
    started: InProgressNodeIssueTimes<'a>,
    /// Each group with the name shown for it.
    groups: Vec<(String, PlacedWorkloadGroup<'a>)>,
    /// The tracks for receives, by instance.
    receives: Vec<Vec<ReceiveTrack>>,
    /// The open slices of paths, by instance and lane.
    nesting: Vec<Vec<OpenRangesOfLane>>,
    /// For each instance, the latest step that has begun, if node names contain steps.
    steps: Vec<Option<u64>>,
    memory: MemoryTracker<'a>,
    /// For each instance, the memory at the start of the drawn time range; `None` if the memory did not change before
    /// that time, or is already drawn.
    held_before: Vec<Option<BytesAtInstantEnd>>,
    counters: WaitingAndSendingCounters,
    /// For each instance, when the transfers of its sends in progress started.
    sends: Vec<BTreeMap<NodeIndex, Time>>,
    selection: TimelineSelection,
    origins: TimelineNodeCallers<'a>,
    /// Ranges around the current node; stored here to reuse the allocation.
    path: Vec<NodeEnclosingSlice<'a>>,
    /// True if a node is drawn.
    has_nodes: bool,
    /// When the last node completed.
    end: Time,
    encoder: ChromeOrPerfettoEncoder<W>,
}

impl<'a, W: Write> TimelineWriter<'a, W> {
    /// Starts a timeline of the parts of `prepared` that `selection` selects.
    pub fn new(
        prepared: &'a CompiledReplay<'a>,
        out: W,
        format: TimelineFormat,
        selection: TimelineSelection,
    ) -> Self {
        let workload = prepared.workload_with_added_launches();
        let groups = prepared.group_views();
        let groups = groups.map(|group| (group_label(prepared, &group), group));
        let lanes = workload.instances().iter().map(|instance| {
            let lanes = workload
                .graph_of(instance)
                .lanes_in_order_of_first_use()
                .len();
            vec![OpenRangesOfLane::default(); lanes]
        });
        let mut this = Self {
            groups: groups.collect(),
            started: InProgressNodeIssueTimes::new(prepared),
            receives: vec![Vec::new(); workload.instances().len()],
            nesting: lanes.collect(),
            steps: vec![None; workload.instances().len()],
            memory: MemoryTracker::new(prepared),
            held_before: vec![None; workload.instances().len()],
            counters: WaitingAndSendingCounters::new(workload.instances().len()),
            sends: vec![BTreeMap::new(); workload.instances().len()],
            selection,
            origins: TimelineNodeCallers::new(prepared),
            path: Vec::new(),
            has_nodes: false,
            end: Time::ZERO,
            prepared,
            encoder: match format {
                TimelineFormat::Chrome => ChromeOrPerfettoEncoder::Chrome(ChromeEncoder::new(out)),
                TimelineFormat::Perfetto => {
                    let title = format!("replay on {}", prepared.machine().name());
                    ChromeOrPerfettoEncoder::Perfetto(Box::new(PerfettoEncoder::new(out, &title)))
                }
            },
        };
        this.name_tracks();
        this
    }

    fn encoder_mut(&mut self) -> &mut dyn TimelineEncoder {
        self.encoder.as_encoder_mut()
    }

    /// Returns a sentence if no node is drawn so far.
    pub fn describe_if_empty(&self) -> Option<String> {
        let ranks = if self.selection.ranks.is_empty() {
            ""
        } else {
            " of its ranks"
        };
        let end = self.end.since(Time::ZERO);
        let sentence = format!(
            "the timeline is empty, because no node{ranks} runs in its range of times; the replay ends after {end}"
        );
        (!self.has_nodes).then_some(sentence)
    }

    /// Finishes the timeline; returns `out`, or the first write error.
    pub fn finish_timeline(mut self) -> io::Result<W> {
        for (instance, mut lanes) in std::mem::take(&mut self.nesting).into_iter().enumerate() {
            for (lane, nesting) in lanes.iter_mut().enumerate() {
                let track = self.track_of(instance, lane as u32);
                nesting.end_ranges_below_level(self.encoder_mut(), track, 0);
            }
        }
        for (instance, over) in self.memory.end_last_instant_of_all_instances() {
            self.draw_memory_at_instant_end(instance, over);
        }
        for instance in (0..self.held_before.len() as u32).map(InstanceId) {
            self.draw_memory_at_start_of_drawn_range(instance);
        }
        let instances = self
            .prepared
            .workload_with_added_launches()
            .instances()
            .iter();
        let ranks: Vec<u32> = instances.map(|instance| instance.rank.0).collect();
        self.counters.draw_remaining_counters(
            &ranks,
            self.encoder.as_encoder_mut(),
            &self.selection,
        );
        match self.encoder {
            ChromeOrPerfettoEncoder::Chrome(encoder) => encoder.finish_file(),
            ChromeOrPerfettoEncoder::Perfetto(encoder) => encoder.finish_file(),
        }
    }

    fn rank_of_instance(&self, instance: usize) -> u32 {
        self.prepared.workload_with_added_launches().instances()[instance]
            .rank
            .0
    }

    fn track_of(&self, instance: usize, lane: u32) -> RankTrackId {
        let rank = self.rank_of_instance(instance);
        RankTrackId { rank, lane }
    }

    /// Draws the memory of an instance at the end of an instant.
    #[inline(never)]
    fn draw_memory_at_instant_end(&mut self, instance: InstanceId, over: BytesAtInstantEnd) {
        let (at, selection) = (over.0, &self.selection);
        if !selection.has_rank(Rank(self.rank_of_instance(instance.index()))) || at > selection.to {
            return;
        }
        if at < selection.from {
            self.held_before[instance.index()] = Some(over);
            return;
        }
        self.draw_memory_at_start_of_drawn_range(instance);
        self.draw_memory_by_tensor_class(instance, over);
    }

    /// Draws the memory of an instance at the start of the drawn time range, unless it is already drawn.
    fn draw_memory_at_start_of_drawn_range(&mut self, instance: InstanceId) {
        if let Some((_, held)) = self.held_before[instance.index()].take() {
            let from = self.selection.from;
            self.draw_memory_by_tensor_class(instance, (from, held));
        }
    }

    fn draw_memory_by_tensor_class(&mut self, instance: InstanceId, (at, held): BytesAtInstantEnd) {
        let classes = self.memory.flag_changing_tensor_classes(instance);
        let held = TensorClass::ALL.iter().zip(held);
        let held = held.zip(classes).filter(|(_, used)| *used);
        let held: Vec<_> = held.map(|(((_, name), bytes), _)| (*name, bytes)).collect();
        let rank = self.rank_of_instance(instance.index());
        self.encoder_mut().draw_memory(rank, at, &held);
    }

    /// Draws a segment of the critical path on the path's own track.
    fn draw_path_segment(&mut self, track: RankTrackId, segment: &CriticalPathSegment) {
        let CriticalPathSegment { instance, node, .. } = *segment;
        let rank = self.rank_of_instance(instance.index());
        let kind = self.started.graph_of(instance).kind(node);
        let (name, mut facts) =
            describe::describe_node(self.prepared, &self.groups, instance, node, kind);
        let name = if NpuTimeCategory::from_node_kind(kind) == Some(segment.category) {
            format!("rank {rank}: {name}")
        } else {
            format!("rank {rank}: before {name}")
        };
        facts.name = None;
        let slice = TimelineSlice {
            name: &name,
            category: NpuTimeCategory::KEYS[segment.category as usize],
            start: segment.from,
            end: segment.to,
            facts,
            arrow: None,
            launch: None,
            launched: Vec::new(),
        };
        self.encoder
            .as_encoder_mut()
            .draw_slice_or_instant(track, &slice);
    }

    /// Returns the end of the arrow at a send or receive; `None` if no arrow is drawn.
    fn find_arrow_end_at_send_or_receive(
        &self,
        instance: InstanceId,
        node: NodeIndex,
        kind: NodeKind,
    ) -> Option<ArrowEnd> {
        // With captured times, ranks do not wait for each other, so an arrow could point back in time.
        if self.prepared.comm_duration_source() == CommunicationDurationSource::Captured {
            return None;
        }
        let pair = || self.prepared.match_number_of_message(instance, node);
        match kind {
            NodeKind::Send => pair().map(ArrowEnd::From),
            NodeKind::Receive => pair().map(ArrowEnd::To),
            _ => None,
        }
    }
}

impl<W: Write> Observer for TimelineWriter<'_, W> {
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        self.started.store_issue_time(now, instance, node, kind);
        let of = (instance.index(), self.rank_of_instance(instance.index()));
        let to = (self.encoder.as_encoder_mut(), &self.selection);
        self.counters.remove_issued_node(of, now, node, to);
        if let Some(over) = self.memory.on_issued(now, instance, node) {
            self.draw_memory_at_instant_end(instance, over);
        }
        if kind == NodeKind::Receive {
            self.assign_receive_track(instance, node);
        }
    }

    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        if let Some(over) = self.memory.on_completed(now, instance, node) {
            self.draw_memory_at_instant_end(instance, over);
        }
        self.end = self.end.max(now);
        if kind == NodeKind::Nothing {
            return;
        }
        if kind == NodeKind::Send {
            let began = self.sends[instance.index()].remove(&node);
            let began = began.unwrap_or_else(|| self.started.get(instance, node, kind));
            let bytes = self.started.graph_of(instance).stated_bytes_of_node(node);
            self.counters
                .add_sending_rate_interval(instance.index(), bytes as f64, (began, now));
        }
        let lane = match kind {
            NodeKind::Receive => self.free_receive_track(instance, node),
            _ => self.started.graph_of(instance).lane(node),
        };
        let track = self.track_of(instance.index(), lane);
        let start = self.started.get(instance, node, kind);
        if !self.selection.has_rank(Rank(track.rank))
            || !self.selection.overlaps_interval(start, now)
        {
            return;
        }
        self.has_nodes = true;
        self.name_receive_track(instance, track);
        let arrow = self.find_arrow_end_at_send_or_receive(instance, node, kind);
        let (name, facts) =
            describe::describe_node(self.prepared, &self.groups, instance, node, kind);
        let encoder = self.encoder.as_encoder_mut();
        let step = nesting::step_number_in_name(self.started.graph_of(instance).name(node));
        if step > self.steps[instance.index()] {
            self.steps[instance.index()] = step;
            let name = format!("step {}", step.unwrap_or_default());
            encoder.draw_marker(track.rank, &name, start);
        }
        let nests = &mut self.nesting[instance.index()];
        let is_visible = encoder.is_long_enough_for_slice(start, now);
        self.path.clear();
        self.origins
            .append_enclosing_ranges(instance, node, &mut self.path);
        let name = match nests.get_mut(lane as usize) {
            Some(nesting) if is_visible => {
                nesting.switch_to_ranges_of_node(encoder, track, &self.path, &name, (start, now))
            }
            _ => &name,
        };
        let (launch, launched) = match is_visible {
            true => self.origins.launch_arrow_ids_to_and_from(instance, node),
            false => (None, Vec::new()),
        };
        let slice = TimelineSlice {
            name,
            category: node_kind_label(kind),
            start,
            end: now,
            facts,
            arrow,
            launch,
            launched,
        };
        encoder.draw_slice_or_instant(track, &slice);
    }

    fn on_transfer_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        if self.started.graph_of(instance).kind(node) == NodeKind::Send {
            self.sends[instance.index()].insert(node, now);
        }
    }

    fn on_lane_wait(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        let of = (instance.index(), self.rank_of_instance(instance.index()));
        let to = (self.encoder.as_encoder_mut(), &self.selection);
        self.counters.add_waiting_node(of, now, node, to);
    }

    fn on_collective_ended(&mut self, record: &CollectiveRecord) {
        let (_, group) = &self.groups[record.group.index()];
        let bytes = bus_factor(record.kind, group.members.len() as u32) * record.buffer as f64;
        let from = Time(record.end.0.saturating_sub(record.transfer.0));
        for member in group.members {
            let instances = self.prepared.workload_with_added_launches().instances();
            if let Ok(instance) = instances.binary_search_by_key(member, |one| one.rank) {
                self.counters
                    .add_sending_rate_interval(instance, bytes, (from, record.end));
            }
        }
    }

    fn critical_path(&mut self, path: &[CriticalPathSegment]) {
        // The critical path's process needs a number that no rank has. Ranks are numbered from 0, so use the number of
        // ranks.
        let rank = self
            .prepared
            .workload_with_added_launches()
            .rank_count_including_untraced();
        let track = RankTrackId { rank, lane: 0 };
        self.encoder_mut()
            .name_rank(rank, "critical path of the replay");
        self.encoder_mut().name_track(track, "critical path", 0);
        for segment in path {
            if self.selection.overlaps_interval(segment.from, segment.to) {
                self.draw_path_segment(track, segment);
            }
        }
    }
}
