//! Interprets a rank's trace as ASTRA-sim does, which gives each node its lane and its duration.
//!
//! An NPU runs at most one host operation and one kernel at a time. Collectives, sends, loads and stores also run one
//! at a time. Receives are not limited. Streams are ignored. A host node takes its recorded duration in whole
//! microseconds. A kernel also takes its recorded duration if the system file disables the roofline. In a pure replay,
//! every node takes its recorded duration. A node without a recorded duration takes 1 ns. If the roofline model is
//! enabled, a kernel of f FLOPs on b bytes takes ⌊f / min(peak, bandwidth · f/b)⌋ ns. A kernel of 0 bytes is skipped. A
//! kernel of 0 FLOPs takes ⌊b / bandwidth⌋ ns, although ASTRA-sim never finishes it. A broadcast takes its recorded
//! duration and does not count as communication.
//!
//! If [`Quirk::OneAtATime`] is corrected, loads and stores run one at a time, and each collective and send has its own
//! lane. If [`Quirk::WholeNs`] is corrected, kernel durations are rounded to picoseconds.

use super::collectives::AstraCollectiveBackend;
use super::lenient;
use super::{AstraInputs, MisleadingValidInputNote, Quirk, QuirkSet};
use chakram_base::ids::NodeIndex;
use chakram_base::units::Span;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::{CollectiveKind, GroupName, MemoryLocation, Op, TraceError};
use chakram_trace::graph::{
    EnforcedDependencyKinds, Graph, Lane, NodeKind, RankBindingsOfGraphSlots,
};

/// Lanes: one for kernels, one for all other work that leaves the NPU, and one for loads and stores if they are
/// separate. Lanes for single nodes have higher numbers. They are for receives in a pure replay, and for communication
/// that waits for no other.
const KERNELS: i64 = 0;
const OTHERS: i64 = 1;
const LOADS: i64 = 2;
/// Kinds of nodes that the replay models by their duration alone, and whose FLOPs field stores the kind.
const COMMUNICATION: u64 = 0;
const MEMORY: u64 = 1;
const NOTHING: u64 = 2;
/// Returns the number of an NPU's lanes, not counting the lanes for single nodes.
fn shared_lane_count_of_npu(quirks: QuirkSet) -> u32 {
    if quirks.has_quirk(Quirk::OneAtATime) {
        2
    } else {
        3
    }
}

/// A rank's trace, converted to a graph.
#[derive(Debug)]
pub struct AstraRankGraphAndBinding {
    /// The rank's nodes, as ASTRA-sim interprets them.
    pub graph: Graph,
    /// Binds the graph's slots (placeholders) to this rank's peers and groups.
    pub binding: RankBindingsOfGraphSlots,
    /// Number of NPU lanes that the graph needs.
    pub lanes: u32,
    /// Notes about the trace.
    pub notes: Vec<MisleadingValidInputNote>,
}

/// Returns ASTRA-sim's kind for a [`NodeKind::Compute`] node; an [`AstraTraceGraphReader`] must have built the graph.
/// The kind is a kernel, a node that does nothing, or communication or a memory access that has only a recorded
/// duration.
#[inline]
pub fn astra_kind_of_compute_node(graph: &Graph, node: NodeIndex) -> NodeKind {
    if graph.lanes_in_order_of_first_use()[graph.lane(node) as usize] == Lane::Stream(KERNELS) {
        return NodeKind::Compute;
    }
    match graph.flops(node) {
        MEMORY => NodeKind::RemoteMemory,
        NOTHING => NodeKind::Nothing,
        _ => NodeKind::Collective,
    }
}

/// Reads traces as ASTRA-sim interprets them.
#[derive(Clone, Copy, Debug)]
pub struct AstraTraceGraphReader<'a> {
    inputs: &'a AstraInputs,
    collectives: &'a AstraCollectiveBackend,
    lenient: bool,
}

impl<'a> AstraTraceGraphReader<'a> {
    /// Creates a reader for `inputs`. If `lenient` is true, the reader omits truncated records, duplicate records and
    /// records that never run, and adds a note.
    pub fn new(
        inputs: &'a AstraInputs,
        collectives: &'a AstraCollectiveBackend,
        lenient: bool,
    ) -> Self {
        Self {
            inputs,
            collectives,
            lenient,
        }
    }

    /// Reads `contents`, the trace file of rank `rank`. Errors and notes call the file `file`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Graph::read_graph`]; also fails if the trace has a node that ASTRA-sim cannot run.
    pub fn read_graph(
        &self,
        contents: &[u8],
        rank: u32,
        file: &str,
    ) -> Result<AstraRankGraphAndBinding, TraceError> {
        let mut notes = Vec::new();
        let kept;
        let contents = if self.lenient {
            kept = lenient::keep_runnable_records(contents, file, &mut notes)?;
            &kept[..]
        } else {
            contents
        };
        let mut state = AstraReaderStateBetweenNodes {
            reader: self,
            own: 0,
            last: None,
            nowhere: None,
        };
        let policy = EnforcedDependencyKinds::Both;
        let (graph, binding) = Graph::read_edited(contents, rank, policy, |n| {
            state.convert_node_to_astra_form(n)
        })?;
        let mut note = |key: String, why: String| {
            notes.push(MisleadingValidInputNote::about_item_without_line(
                file, key, why,
            ))
        };
        let repairs = graph.repair_counts();
        for (count, of, original) in [
            (
                repairs.dangling_control,
                "on nodes that do not exist",
                "stops on them",
            ),
            (
                repairs.self_control,
                "of nodes on themselves",
                "never runs such nodes",
            ),
        ] {
            if count > 0 {
                let why = format!(
                    "{count} dependencies {of} are left out, where the original {original}"
                );
                note("ctrl_deps".to_owned(), why);
            }
        }
        if let Some((node, count)) = state.nowhere {
            let why = format!(
                "`involved_dim` omits the first dimension, like {count} nodes in total: these \
                 collectives use all NPUs as their implementation states, where the original never \
                 finishes"
            );
            note(format!("node {node}"), why);
        }
        Ok(AstraRankGraphAndBinding {
            graph,
            binding,
            lanes: shared_lane_count_of_npu(self.inputs.quirks) + state.own,
            notes,
        })
    }
}

/// State that the reader keeps from node to node.
struct AstraReaderStateBetweenNodes<'a> {
    reader: &'a AstraTraceGraphReader<'a>,
    /// Number of nodes that have their own lane.
    own: u32,
    /// The most recently checked collective.
    last: Option<(CollectiveKind, u64, u64, Option<u32>)>,
    /// The first collective that ASTRA-sim skips, and the number of collectives that it skips.
    nowhere: Option<(u64, u64)>,
}

impl AstraReaderStateBetweenNodes<'_> {
    /// Converts a node to its form in ASTRA-sim.
    fn convert_node_to_astra_form(&mut self, node: &mut NodeView<'_>) -> Result<(), TraceError> {
        node.delay = Span::ZERO;
        node.wait = Span::ZERO;
        node.recorded = Span::from_ns(match node.micros {
            0 => 1,
            micros => micros.saturating_mul(1000),
        });
        node.lane = Some(OTHERS);
        let replay_only = self.reader.inputs.system.replay_only;
        match &mut node.op {
            Op::Host => node.lane = None,
            Op::Compute { flops, bytes, .. } => {
                node.lane = Some(KERNELS);
                if self.reader.inputs.system.roofline && !replay_only {
                    node.recorded = self.roofline_time(node.id, *flops, *bytes)?;
                }
            }
            // ASTRA-sim ignores the attribute that distinguishes this node from a kernel.
            &mut Op::Communication { bytes } => {
                node.op = Op::Compute {
                    flops: 0,
                    bytes,
                    dtype: None,
                };
                return self.convert_node_to_astra_form(node);
            }
            Op::Message { host: true, .. } | Op::Collective { host: true, .. } if replay_only => {
                node.op = Op::Host;
                node.lane = None;
            }
            _ if replay_only => {
                if let Op::Message { receive: true, .. } = node.op {
                    node.lane = Some(self.next_free_lane_for_single_node());
                }
                self.assign_lanes_if_one_at_a_time_corrected(node);
                node.op = build_recorded_duration_op(match node.op {
                    Op::Memory { .. } => MEMORY,
                    Op::NoOp => NOTHING,
                    _ => COMMUNICATION,
                });
            }
            // The node occupies the communication lane, and ends immediately.
            Op::NoOp => {
                node.op = build_recorded_duration_op(NOTHING);
                node.recorded = Span::ZERO;
            }
            Op::Memory { place, .. } => {
                *place = MemoryLocation::Remote;
                self.assign_lanes_if_one_at_a_time_corrected(node);
            }
            Op::Message { bytes, .. } if *bytes == 0 => {
                return Err(TraceError::invalid_node(
                    node.id,
                    "a message of 0 bytes, which the original aborts on",
                    "remove the node, or give it the size that was sent",
                ));
            }
            Op::Message { .. } => self.assign_lanes_if_one_at_a_time_corrected(node),
            Op::Collective {
                kind: CollectiveKind::Broadcast,
                ..
            } => {
                self.assign_lanes_if_one_at_a_time_corrected(node);
                node.op = build_recorded_duration_op(COMMUNICATION);
            }
            Op::Collective {
                kind,
                bytes,
                group,
                dimensions,
                ..
            } => {
                let id = match *group {
                    GroupName::World => 0,
                    GroupName::Number(id) => id,
                    GroupName::Text(name) => return Err(group_not_a_number_error(node.id, name)),
                };
                // Dimensions matter only for collectives without a named group, because a named group uses all
                // dimensions.
                if let Some(mask) = dimensions.take().filter(|_| id == 0) {
                    let (parts, goes) = self
                        .reader
                        .collectives
                        .masked_dimensions_and_whether_to_run(*kind, mask, node.id);
                    *dimensions = parts;
                    if !goes {
                        self.nowhere.get_or_insert((node.id, 0)).1 += 1;
                    }
                }
                let seen = (*kind, *bytes, id, *dimensions);
                // Successive collectives are often equal, so check each run of equal ones only once. With per-node
                // algorithms, the result of the check also depends on the node.
                if self.last != Some(seen) || !self.reader.inputs.per_node.is_empty() {
                    let groups = &self.reader.inputs.groups;
                    let members = u32::try_from(id).ok().and_then(|id| groups.get(id));
                    let members = members.map(|members| members.len() as u32);
                    let collectives = self.reader.collectives;
                    let checked =
                        collectives.check_collective(*kind, *bytes, members, *dimensions, node.id);
                    checked.map_err(|(why, hint)| TraceError::invalid_node(node.id, why, hint))?;
                    self.last = Some(seen);
                }
                self.assign_lanes_if_one_at_a_time_corrected(node);
            }
        }
        Ok(())
    }

    /// Returns the next free lane for a single node.
    fn next_free_lane_for_single_node(&mut self) -> i64 {
        self.own += 1;
        i64::from(shared_lane_count_of_npu(self.reader.inputs.quirks) + self.own - 1)
    }

    /// If [`Quirk::OneAtATime`] is corrected, gives each collective and each send its own lane, and puts all loads and
    /// stores on one common lane.
    fn assign_lanes_if_one_at_a_time_corrected(&mut self, node: &mut NodeView<'_>) {
        if self.reader.inputs.quirks.has_quirk(Quirk::OneAtATime) {
            return;
        }
        match node.op {
            Op::Memory { .. } => node.lane = Some(LOADS),
            Op::Collective { .. } | Op::Message { receive: false, .. } => {
                node.lane = Some(self.next_free_lane_for_single_node());
            }
            _ => {}
        }
    }

    fn roofline_time(&self, id: u64, flops: u64, bytes: u64) -> Result<Span, TraceError> {
        let system = &self.reader.inputs.system;
        let bandwidth = system.local_memory_bandwidth.unwrap_or(0.0) * 1e9;
        let peak = system.peak * 1e12;
        let (flops, bytes) = (flops as f64, bytes as f64);
        if bytes == 0.0 {
            return Ok(Span::ZERO);
        }
        if bandwidth == 0.0 || peak == 0.0 {
            return Err(TraceError::invalid_node(
                id,
                "the system file has no `local-mem-bw` or no `peak-perf` above 0 for the roofline, so this kernel never ends",
                "set both in the system file, or set roofline-enabled to 0",
            ));
        }
        // Keep ASTRA-sim's order of operations, because each operation rounds.
        let seconds = match flops {
            0.0 => bytes / bandwidth,
            _ => flops / (bandwidth * (flops / bytes)).min(peak),
        };
        Ok(self.reader.inputs.quirks.convert_ns_to_span(seconds * 1e9))
    }
}

/// Returns an operation that occupies its lane for its recorded duration, and whose FLOPs field stores the kind of node
/// that it stands for.
fn build_recorded_duration_op(stands_for: u64) -> Op<'static> {
    Op::Compute {
        flops: stands_for,
        bytes: 0,
        dtype: None,
    }
}

fn group_not_a_number_error(node: u64, name: &str) -> TraceError {
    TraceError::invalid_node(
        node,
        format!(
            "the node's group is `{}`, expected a number",
            chakram_trace::format::escape_and_shorten_name(name)
        ),
        "as `pg_name` the number of a group in the file of groups",
    )
}
