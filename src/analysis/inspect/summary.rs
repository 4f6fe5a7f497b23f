//! Summarizes the nodes of a rank and of a job.

use super::attributes;
use super::class::InspectedNodeType;
use super::fault::{CountedFault, RejectedAndRepairedFaults};
use super::filter::NodeFilter;
use super::lanes::{LaneKey, group_label};
use super::metadata::TraceMetadataRecord;
use super::table::{NodeSums, RankSumsAndExtremesByKey};
use super::times::NodeStartTimesSource;
use super::trace::InspectedRankTrace;
use chakram_base::units::{Span, Time};
use chakram_trace::format::file::DecompressedTraceFile;
use chakram_trace::format::groups::parse_group_metadata;
use chakram_trace::format::{CollectiveKind, Op, TraceError, append_name_family};
use chakram_trace::graph::{DeclaredGroups, DistinctKeyInterner, RawTrace, StringArenaInterner};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Facts about a whole rank; except for `selected`, they do not depend on the filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfilteredRankTraceTotals {
    /// Rank of the trace.
    pub rank: u32,
    /// Path of the rank's file.
    pub path: PathBuf,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Size of the contents after decompression, in bytes.
    pub contents_bytes: u64,
    /// Number of nodes in the file.
    pub nodes: u64,
    /// Number of nodes that match the filter.
    pub selected: u64,
    /// Number of data dependencies in the file.
    pub data: u64,
    /// Number of control dependencies in the file.
    pub control: u64,
    /// Number of nodes on the longest chain of dependencies.
    pub depth: u32,
    /// Largest number of nodes with equal depth. A node's depth is its position in the longest dependency
    /// chain that ends with the node.
    pub width: u32,
    /// Start of the rank's first node.
    pub start: Time,
    /// End of the rank's last node.
    pub end: Time,
    /// Where `start` and `end` come from.
    pub basis: NodeStartTimesSource,
    /// True if every duration is a whole number of microseconds.
    pub whole_micros: bool,
    /// End of the rank's last event in the capture, if the file records it.
    pub captured: Option<Span>,
    /// Number of nodes for which the file records a start time.
    pub given_starts: u64,
    /// Faults of the file.
    pub faults: RejectedAndRepairedFaults,
}

/// The summary of one rank.
#[derive(Clone, Debug)]
pub struct RankInspectionSummary {
    facts: UnfilteredRankTraceTotals,
    header: TraceMetadataRecord,
    groups: DeclaredGroups,
    types: BTreeMap<InspectedNodeType, NodeSums>,
    lanes: BTreeMap<LaneKey, (Option<String>, NodeSums)>,
    collectives: BTreeMap<(String, CollectiveKind), NodeSums>,
    messages: BTreeMap<(u32, u32), [NodeSums; 2]>,
    operators: BTreeMap<(String, InspectedNodeType), NodeSums>,
    attributes: BTreeMap<(String, &'static str), u64>,
}

/// Where the total sent stands in the message totals of two ranks.
pub const SENT: usize = 0;
/// Where the total received stands in the message totals of two ranks.
pub const RECEIVED: usize = 1;

impl RankInspectionSummary {
    /// Sums the nodes of `trace` that match `filter`. `path` is the trace's file; `sizes` are the sizes, in bytes, of
    /// the file and of its decompressed contents.
    pub fn new(
        trace: &InspectedRankTrace<'_>,
        filter: &NodeFilter,
        path: &Path,
        sizes: (u64, u64),
    ) -> Self {
        let chosen = filter.flag_selected_nodes(trace);
        let selected = |node: u32| chosen.as_ref().is_none_or(|chosen| chosen[node as usize]);
        let attributes = attributes::count_nodes_by_attribute(&trace.raw, selected);
        Self::sum_selected_nodes(trace, selected, attributes, path, sizes)
    }

    /// Reads a trace from `contents`, and sums all its nodes.
    pub(super) fn inspect_contents(
        rank: u32,
        path: &Path,
        file_bytes: u64,
        contents: &DecompressedTraceFile,
    ) -> Result<Self, TraceError> {
        // Attribute counts need only records, so compute them in parallel to the sums, which need decoded nodes.
        let count = |raw: &RawTrace<'_>| attributes::count_nodes_by_attribute(raw, |_| true);
        let bytes = contents.as_slice();
        let told = |e| contents.locate_error_in_original_file(e);
        let (trace, attributes) =
            InspectedRankTrace::read_trace_while_running(rank, bytes, told, count)?;
        let sizes = (file_bytes, bytes.len() as u64);
        Ok(Self::sum_selected_nodes(
            &trace,
            |_| true,
            attributes,
            path,
            sizes,
        ))
    }

    fn sum_selected_nodes(
        trace: &InspectedRankTrace<'_>,
        selected: impl Fn(u32) -> bool,
        attributes: BTreeMap<(String, &'static str), u64>,
        path: &Path,
        (file_bytes, contents_bytes): (u64, u64),
    ) -> Self {
        let sums = OneRankNodeSumTables::new(trace, selected);
        let raw = &trace.raw;
        let control = raw
            .range_of_all_node_indices()
            .flat_map(|node| raw.dependencies_of(node));
        let control = control.filter(|dep| dep.control).count() as u64;
        let (depth, width) = trace.times.run.dependency_depth_and_largest_level_size();
        let (start, end) = trace.times.first_start_and_last_end();
        let mut faults = trace.faults.clone();
        let groups = collect_declared_groups(trace, &mut faults);
        let given = raw.nodes.iter().filter(|item| item.view.start_micros > 0);
        let facts = UnfilteredRankTraceTotals {
            rank: trace.rank,
            path: path.to_owned(),
            file_bytes,
            contents_bytes,
            nodes: raw.nodes.len() as u64,
            selected: sums.selected,
            data: raw.total_dependency_count() as u64 - control,
            control,
            depth,
            width,
            start,
            end,
            basis: trace.times.basis,
            whole_micros: trace.times.whole_micros,
            captured: raw.metadata.captured,
            given_starts: given.count() as u64,
            faults,
        };
        Self {
            facts,
            header: trace.header.clone(),
            groups,
            types: sums.types,
            lanes: sums.lanes,
            collectives: sums.collectives,
            messages: sums.messages,
            operators: sums.operators,
            attributes,
        }
    }
}

/// Returns the groups that metadata nodes declare. Declarations that cannot be decoded are added to `faults`.
fn collect_declared_groups(
    trace: &InspectedRankTrace<'_>,
    faults: &mut RejectedAndRepairedFaults,
) -> DeclaredGroups {
    let mut groups = DeclaredGroups::new();
    for item in &trace.raw.nodes {
        let Some(text) = item.view.groups else {
            continue;
        };
        match parse_group_metadata(item.view.id, text) {
            Ok(declared) => groups.extend(declared),
            Err(error) => {
                let text = error.to_string();
                // Show only the first line of the error, because the other lines describe a remedy for replays.
                let text = text.lines().next().unwrap_or_default().to_owned();
                faults.faults.push(CountedFault { count: 1, text });
            }
        }
    }
    groups
}

struct OneRankNodeSumTables {
    selected: u64,
    types: BTreeMap<InspectedNodeType, NodeSums>,
    lanes: BTreeMap<LaneKey, (Option<String>, NodeSums)>,
    collectives: BTreeMap<(String, CollectiveKind), NodeSums>,
    messages: BTreeMap<(u32, u32), [NodeSums; 2]>,
    operators: BTreeMap<(String, InspectedNodeType), NodeSums>,
}

/// Sums by a key with few distinct values. Keys are in order of first occurrence.
struct NodeSumsByKey<K> {
    keys: DistinctKeyInterner<K>,
    sums: Vec<NodeSums>,
}

impl<K: std::hash::Hash + Eq + Clone> NodeSumsByKey<K> {
    fn new() -> Self {
        Self {
            keys: DistinctKeyInterner::default(),
            sums: Vec::new(),
        }
    }

    fn add_sums_for_key(&mut self, key: K, tally: &NodeSums) {
        let index = self.keys.intern_key(key) as usize;
        if index == self.sums.len() {
            self.sums.push(NodeSums::default());
        }
        self.sums[index].add_sums(tally);
    }

    /// Returns the sums by name. Keys with equal names share a sum.
    fn merge_by_name<N: Ord>(self, name: impl Fn(K) -> N) -> BTreeMap<N, NodeSums> {
        let mut named: BTreeMap<N, NodeSums> = BTreeMap::new();
        for (key, sum) in self.keys.into_keys().into_iter().zip(self.sums) {
            named.entry(name(key)).or_default().add_sums(&sum);
        }
        named
    }
}

impl OneRankNodeSumTables {
    fn new(trace: &InspectedRankTrace<'_>, selected: impl Fn(u32) -> bool) -> Self {
        let mut types = NodeSumsByKey::new();
        let mut lanes = NodeSumsByKey::new();
        let mut collectives = NodeSumsByKey::new();
        let mut messages: [NodeSumsByKey<(u32, u32)>; 2] =
            [NodeSumsByKey::new(), NodeSumsByKey::new()];
        let mut operators = NodeSumsByKey::new();
        let mut families = StringArenaInterner::default();
        let mut family_name = String::new();
        let mut count = 0;
        for node in trace
            .raw
            .range_of_all_node_indices()
            .filter(|&node| selected(node))
        {
            let view = &trace.raw.nodes[node as usize].view;
            let class = trace.classes[node as usize];
            let (flops, bytes) = trace.flops_and_bytes_of_node(node);
            let time = trace.duration_of_node(node);
            let tally = NodeSums {
                nodes: 1,
                time,
                wait: trace.node_wait_for_other_ranks(node),
                flops,
                bytes,
                untimed: u64::from(class.takes_time() && time == Span::ZERO),
            };
            count += 1;
            types.add_sums_for_key(class, &tally);
            lanes.add_sums_for_key(trace.lanes.lane_of_node(node), &tally);
            match view.op {
                Op::Collective { kind, group, .. } => {
                    collectives.add_sums_for_key((group, kind), &tally)
                }
                Op::Message {
                    receive: false,
                    peer,
                    ..
                } => {
                    messages[SENT].add_sums_for_key((trace.rank, peer), &tally);
                }
                Op::Message { peer, .. } => {
                    messages[RECEIVED].add_sums_for_key((peer, trace.rank), &tally)
                }
                _ => {}
            }
            family_name.clear();
            append_name_family(view.name, &mut family_name);
            // The name table cannot overflow: its text is shorter than the file, and the nodes of a raw trace take at
            // most 4 GiB.
            let name = families.intern_name(&family_name).unwrap_or(u32::MAX);
            operators.add_sums_for_key((name, class), &tally);
        }
        let mut pairs: BTreeMap<(u32, u32), [NodeSums; 2]> = BTreeMap::new();
        for (end, sum) in messages.into_iter().enumerate() {
            for (pair, tally) in sum.merge_by_name(|pair| pair) {
                pairs.entry(pair).or_default()[end].add_sums(&tally);
            }
        }
        let mut by_lane: BTreeMap<LaneKey, (Option<String>, NodeSums)> = BTreeMap::new();
        for (lane, tally) in lanes.merge_by_name(|lane: u32| lane) {
            let name = trace.lanes.lane_name(lane).map(str::to_owned);
            // Groups over different dimensions have separate lanes, which share a row here because they have the same
            // name.
            let entry = by_lane.entry(trace.lanes.lane_key_of_index(lane));
            entry
                .or_insert((name, NodeSums::default()))
                .1
                .add_sums(&tally);
        }
        let family_of = |name: u32| match name {
            u32::MAX => String::new(),
            name => families.get(name).to_owned(),
        };
        Self {
            selected: count,
            types: types.merge_by_name(|class| class),
            lanes: by_lane,
            collectives: collectives.merge_by_name(|(group, kind)| (group_label(group), kind)),
            messages: pairs,
            operators: operators.merge_by_name(|(name, class)| (family_of(name), class)),
        }
    }
}

/// The summary of a job.
#[derive(Clone, Debug, Default)]
pub struct JobInspectionSummary {
    /// One overview per rank, in ascending order.
    pub ranks: Vec<UnfilteredRankTraceTotals>,
    /// Files that could not be read, each with its rank and the reason.
    pub unreadable: Vec<(u32, PathBuf, String)>,
    /// Number of ranks with each schema version.
    pub versions: BTreeMap<String, u32>,
    /// Attributes of metadata records, by name and type. For each attribute: the value on the first rank that has it,
    /// how many ranks have it, and a flag that is true if these ranks agree on the value.
    pub metadata: BTreeMap<(String, &'static str), (String, u32, bool)>,
    /// Groups that the files declare. A group with an empty list of members contains all ranks.
    pub groups: DeclaredGroups,
    /// Names of groups whose members differ between the ranks that declare them.
    pub conflicting_groups: Vec<String>,
    /// Sums by node type.
    pub types: RankSumsAndExtremesByKey<InspectedNodeType>,
    /// Sums by lane.
    pub lanes: RankSumsAndExtremesByKey<LaneKey>,
    /// For each named lane: the name on the first rank that names it, and a flag that is true if another rank uses a
    /// different name.
    pub lane_names: BTreeMap<LaneKey, (String, bool)>,
    /// Sums of collectives by group and kind.
    pub collectives: RankSumsAndExtremesByKey<(String, CollectiveKind)>,
    /// Sums of messages by sender and receiver: sends at index [`SENT`], receives at index [`RECEIVED`].
    pub messages: BTreeMap<(u32, u32), [NodeSums; 2]>,
    /// Sums by operator and type. An operator is identified by its name without the numbers of
    /// steps and layers.
    pub operators: RankSumsAndExtremesByKey<(String, InspectedNodeType)>,
    /// Number of nodes with each attribute or field, by name and type.
    pub attributes: BTreeMap<(String, &'static str), u64>,
}

impl JobInspectionSummary {
    /// Adds a rank. The rank must be higher than all earlier ones.
    pub fn add_rank(&mut self, summary: RankInspectionSummary) {
        let rank = summary.facts.rank;
        *self.versions.entry(summary.header.version).or_default() += 1;
        for (name, kind, value) in summary.header.attributes {
            let entry = self.metadata.entry((name, kind));
            let known = entry.or_insert_with(|| (value.clone(), 0, true));
            known.1 += 1;
            known.2 &= known.0 == value;
        }
        for (name, members) in summary.groups {
            match self.groups.get(&name) {
                Some(known) if *known != members => {
                    if !self.conflicting_groups.contains(&name) {
                        self.conflicting_groups.push(name);
                    }
                }
                Some(_) => {}
                None => {
                    self.groups.insert(name, members);
                }
            }
        }
        self.types.add_rank(rank, summary.types);
        for (lane, (name, tally)) in summary.lanes {
            if let Some(name) = name {
                let entry = self.lane_names.entry(lane.clone());
                let known = entry.or_insert_with(|| (name.clone(), false));
                known.1 |= known.0 != name;
            }
            self.lanes.add_rank(rank, [(lane, tally)]);
        }
        self.collectives.add_rank(rank, summary.collectives);
        for (pair, tallies) in summary.messages {
            let known = self.messages.entry(pair).or_default();
            known[SENT].add_sums(&tallies[SENT]);
            known[RECEIVED].add_sums(&tallies[RECEIVED]);
        }
        self.operators.add_rank(rank, summary.operators);
        for (key, count) in summary.attributes {
            *self.attributes.entry(key).or_insert(0) += count;
        }
        self.ranks.push(summary.facts);
    }

    /// Returns the number of faults, summed over all files.
    pub fn fault_count(&self) -> u64 {
        let counts = self
            .ranks
            .iter()
            .map(|rank| rank.faults.count_replay_rejecting_faults());
        counts.sum::<u64>() + self.unreadable.len() as u64 + self.conflicting_groups.len() as u64
    }

    /// Returns true if the times of all ranks count from the start of the job.
    pub fn has_common_time_origin(&self) -> bool {
        self.ranks
            .iter()
            .all(|rank| rank.captured.is_some() && rank.basis == NodeStartTimesSource::Kept)
    }
}
