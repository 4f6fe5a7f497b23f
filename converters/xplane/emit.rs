//! Writes the nodes of a device's trace: host calls, kernels, copies and collectives.

use super::calls::MatchedAndUnmatchedCollectives;
use super::space::XplaneStatValue;
use super::timeline::{DeviceTimeline, InnermostEventSlice};
use super::{DeviceConversionSummary, ns_since};
use chakram_base::units::Span;
use chakram_trace::format::groups::metadata_text;
use chakram_trace::format::scan::{self, NodeView};
use chakram_trace::format::write::{
    AttributeValue, NamedAttribute, NodeFieldsBeyondView, TraceWriter,
};
use chakram_trace::format::{GroupName, Op, TraceError};
use std::borrow::Cow;
use std::io::Write;

/// Returns the attributes of a trace's metadata record. `end_ns` is the time at which the device's
/// last event ends.
pub(super) fn metadata_attributes<'a>(
    rank: u32,
    ranks: u32,
    end_ns: u64,
    lanes: &'a [(String, String)],
) -> Vec<NamedAttribute<'a>> {
    let mut metadata = vec![
        ("captured_ns", AttributeValue::Uint(end_ns)),
        ("source", AttributeValue::Text("xplane")),
        ("rank", AttributeValue::Int(rank.into())),
        ("world_size", AttributeValue::Int(ranks.into())),
        (scan::KERNELS_ON, AttributeValue::Text(scan::DEVICE)),
    ];
    let lanes = lanes.iter();
    metadata.extend(lanes.map(|(lane, name)| (&lane[..], AttributeValue::Text(name))));
    metadata
}

/// A node of a device's trace: a host call or a stream's slice, given by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LaunchOrSliceNode {
    Launch(u32),
    Piece(u32),
}

/// Id of the first node after the node that declares the groups.
const FIRST: u64 = 2;

/// Writes the nodes of `device`, whose rank is `rank`. The job starts at `base`, in ps.
pub(super) fn write_device_nodes<W: Write>(
    device: &DeviceTimeline<'_>,
    rank: u32,
    calls: &MatchedAndUnmatchedCollectives,
    base: i128,
    writer: &mut TraceWriter<W>,
) -> Result<DeviceConversionSummary, TraceError> {
    let (collectives, unmatched) = calls.matched_and_unmatched_counts(rank);
    let mut done = DeviceConversionSummary {
        rank,
        device: device.plane.name.to_string(),
        events: device.events,
        launches: device.launches.len() as u64,
        linked: device.linked,
        collectives,
        unmatched,
        ..DeviceConversionSummary::default()
    };
    let text = metadata_text(&calls.groups);
    writer.write_node(
        &NodeView::declare_groups(1, &text),
        &[],
        &NodeFieldsBeyondView::default(),
    )?;
    done.nodes += 1;
    let emitter = DeviceNodesInIdOrder::new(device, base);
    for (id, node) in (FIRST..).zip(&emitter.order) {
        match *node {
            LaunchOrSliceNode::Launch(index) => emitter.write_launch(id, index, writer)?,
            LaunchOrSliceNode::Piece(index) => {
                emitter.write_slice_node(id, index, rank, calls, &mut done, writer)?;
            }
        }
        done.nodes += 1;
    }
    Ok(done)
}

/// A device's nodes in id order, with their dependencies.
struct DeviceNodesInIdOrder<'d, 'a> {
    device: &'d DeviceTimeline<'a>,
    base: i128,
    order: Vec<LaunchOrSliceNode>,
    launch_ids: Vec<u64>,
    piece_ids: Vec<u64>,
    /// For each call, the previous call on its thread.
    launch_before: Vec<Option<u32>>,
    /// For each slice, the previous slice on its stream.
    piece_before: Vec<Option<u32>>,
}

impl<'d, 'a> DeviceNodesInIdOrder<'d, 'a> {
    fn new(device: &'d DeviceTimeline<'a>, base: i128) -> Self {
        let launches = (0..).zip(&device.launches);
        let launches = launches.map(|(i, launch)| (launch.start, LaunchOrSliceNode::Launch(i)));
        let pieces = (0..).zip(&device.pieces);
        let pieces = pieces.map(|(i, piece)| (piece.start, LaunchOrSliceNode::Piece(i)));
        let mut order: Vec<(i128, LaunchOrSliceNode)> = launches.chain(pieces).collect();
        order.sort_unstable();
        let mut this = Self {
            device,
            base,
            order: order.into_iter().map(|(_, node)| node).collect(),
            launch_ids: vec![0; device.launches.len()],
            piece_ids: vec![0; device.pieces.len()],
            launch_before: list_previous_index_of_same_kind(
                device.launches.iter().map(|l| l.thread),
            ),
            piece_before: list_previous_index_of_same_kind(device.pieces.iter().map(|p| p.stream)),
        };
        for (id, node) in (FIRST..).zip(&this.order) {
            match *node {
                LaunchOrSliceNode::Launch(index) => this.launch_ids[index as usize] = id,
                LaunchOrSliceNode::Piece(index) => this.piece_ids[index as usize] = id,
            }
        }
        this
    }

    fn ns_since_base(&self, instant: i128) -> u64 {
        ns_since(instant, self.base)
    }

    fn write_launch<W: Write>(
        &self,
        id: u64,
        index: u32,
        writer: &mut TraceWriter<W>,
    ) -> Result<(), TraceError> {
        let launch = &self.device.launches[index as usize];
        let before = self.launch_before[index as usize];
        let ended = before.map_or(0, |b| {
            self.ns_since_base(self.device.launches[b as usize].end)
        });
        let mut view = NodeView::new(id, &launch.name, Op::Host);
        view.lane = Some(i64::from(launch.thread) + 1);
        let start = self.ns_since_base(launch.start);
        view.delay = Span::from_ns(start.saturating_sub(ended));
        view.recorded = Span::from_ns(self.ns_since_base(launch.end) - start);
        let data = before.map(|b| self.launch_ids[b as usize]);
        writer.write_node(&view, data.as_slice(), &NodeFieldsBeyondView::default())
    }

    /// Returns the call on which a slice depends: the launching call if it ended before the slice began, otherwise the
    /// previous call on the launching thread. Returns `None` if the slice begins before its launching call.
    fn causing_call(&self, piece: &InnermostEventSlice<'_>) -> Option<u32> {
        let index = piece.launch?;
        let launch = &self.device.launches[index as usize];
        if launch.end <= piece.start {
            Some(index)
        } else if launch.start <= piece.start {
            self.launch_before[index as usize]
        } else {
            None
        }
    }

    fn write_slice_node<W: Write>(
        &self,
        id: u64,
        index: u32,
        rank: u32,
        calls: &MatchedAndUnmatchedCollectives,
        done: &mut DeviceConversionSummary,
        writer: &mut TraceWriter<W>,
    ) -> Result<(), TraceError> {
        let piece = &self.device.pieces[index as usize];
        let (start, end) = (
            self.ns_since_base(piece.start),
            self.ns_since_base(piece.end),
        );
        let mut data = Vec::with_capacity(2);
        let mut ended = 0;
        if let Some(before) = self.piece_before[index as usize] {
            data.push(self.piece_ids[before as usize]);
            ended = self.ns_since_base(self.device.pieces[before as usize].end);
        }
        if let Some(cause) = self.causing_call(piece) {
            data.push(self.launch_ids[cause as usize]);
            ended = ended.max(self.ns_since_base(self.device.launches[cause as usize].end));
        }
        let launch = piece
            .launch
            .map(|launch| &self.device.launches[launch as usize]);
        done.early += u64::from(launch.is_some_and(|launch| launch.start > piece.start));
        let described = KeptStatsOfOneEvent::read_stats_of_slice_event(self.device, piece)?;
        let mut view = NodeView::new(
            id,
            self.device.plane.name_of_event(&piece.event),
            described.to_op(),
        );
        view.lane = Some(self.device.streams[piece.stream as usize].0);
        view.delay = Span::from_ns(start.saturating_sub(ended));
        view.recorded = Span::from_ns(end - start);
        if let Some(call) = calls.collective_of_event(rank, index) {
            let wait = self.ns_since_base(piece.start + call.wait) - start;
            view.op = Op::Collective {
                kind: call.kind,
                bytes: call.bytes,
                group: GroupName::from_number(call.group),
                root: None,
                dimensions: None,
                host: false,
            };
            view.wait = Span::from_ns(wait);
            view.recorded = Span::from_ns(end - start - wait);
        } else if let Some(bytes) = calls.bytes_of_slice_if_unmatched(rank, index) {
            // Limit the bytes to the maximum value that a trace can store.
            let bytes = bytes.min(i64::MAX as u64);
            view.op = Op::Communication { bytes };
        }
        done.busy_ns += end - start;
        done.kept_ns += (view.wait.0 + view.recorded.0) / 1000;
        let mut attributes = described.node_attributes();
        if let Some(launch) = piece.launch {
            let id = self.launch_ids[launch as usize];
            attributes.push(("launch", AttributeValue::Int(id as i64)));
        }
        let extra = NodeFieldsBeyondView {
            attributes: &attributes,
            ..NodeFieldsBeyondView::default()
        };
        writer.write_node(&view, &data, &extra)
    }
}

/// For each entry of `kinds`, returns the index of the last earlier entry of the same kind.
fn list_previous_index_of_same_kind(kinds: impl Iterator<Item = u32>) -> Vec<Option<u32>> {
    let mut last = std::collections::BTreeMap::new();
    (0..)
        .zip(kinds)
        .map(|(index, kind)| last.insert(kind, index))
        .collect()
}

/// Names of the event stats that a node keeps as text attributes.
const KEPT: [&str; 5] = [
    "hlo_op",
    "hlo_module",
    "name",
    "kernel_details",
    "memcpy_details",
];

/// Stats of an event that a node keeps, by name.
#[derive(Debug, Default)]
struct KeptStatsOfOneEvent<'a> {
    texts: [Option<Cow<'a, str>>; KEPT.len()],
    program: Option<u64>,
    correlation: Option<u64>,
}

impl<'a> KeptStatsOfOneEvent<'a> {
    fn read_stats_of_slice_event(
        device: &DeviceTimeline<'a>,
        piece: &InnermostEventSlice<'a>,
    ) -> Result<Self, TraceError> {
        let mut this = Self::default();
        device
            .plane
            .for_each_stat_of_event(&piece.event, |name, value| match value {
                XplaneStatValue::Number(number) if name == "program_id" => {
                    this.program = Some(number)
                }
                XplaneStatValue::Number(number) if name == "correlation_id" => {
                    this.correlation = Some(number);
                }
                XplaneStatValue::Text(text) => {
                    if let Some(at) = KEPT.iter().position(|kept| *kept == name) {
                        this.texts[at] = Some(text);
                    }
                }
                _ => {}
            })?;
        Ok(this)
    }

    /// Returns the operation of an event's node: a copy with the recorded bytes, or a kernel that
    /// has only a duration.
    fn to_op(&self) -> Op<'static> {
        let details = self.texts[4].as_deref().unwrap_or_default();
        let size = details
            .split_whitespace()
            .find_map(|w| w.strip_prefix("size:"));
        let bytes = size.and_then(|size| size.parse().ok());
        Op::Compute {
            flops: 0,
            bytes: bytes.filter(|b| *b <= i64::MAX as u64).unwrap_or(0),
            dtype: None,
        }
    }

    fn node_attributes(&self) -> Vec<NamedAttribute<'_>> {
        // JAX's stat `name` is the operation's path in the program. It is stored under another key, because a node
        // already has a name.
        let names = [
            "hlo_op",
            "hlo_module",
            "op_name",
            "kernel_details",
            "memcpy_details",
        ];
        let texts = names.iter().zip(&self.texts);
        let texts = texts.filter_map(|(name, text)| Some((*name, text.as_deref()?)));
        let mut all: Vec<_> = texts
            .map(|(name, text)| (name, AttributeValue::Text(text)))
            .collect();
        for (name, number) in [
            ("program_id", self.program),
            ("correlation_id", self.correlation),
        ] {
            all.extend(number.map(|number| (name, AttributeValue::Uint(number))));
        }
        all
    }
}
