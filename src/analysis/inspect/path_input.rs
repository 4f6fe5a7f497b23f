//! A rank's data for computing the critical path of a job, in flat arrays of about 50 bytes per node.

use super::class::InspectedNodeType;
use super::times::NodeStartTimesSource;
use super::trace::InspectedRankTrace;
use chakram_base::units::{Span, Time};
use chakram_trace::format::groups::{DeclaredGroups, parse_group_metadata};
use chakram_trace::format::{Op, TraceError};
use chakram_trace::graph::captured_timeline::NONE;
use chakram_trace::graph::{NodeStartEndTimesAndCauses, StringArenaInterner};
use chakram_trace::matching::{RankCommNode, RankComms};

/// A rank's data for computing a job's critical path.
#[derive(Debug)]
pub struct RankTimesForCriticalPath {
    /// Rank of the trace.
    pub rank: u32,
    /// Where this rank's times come from.
    pub basis: NodeStartTimesSource,
    /// True if every duration is a whole number of microseconds.
    pub whole_micros: bool,
    /// End of the rank's last event in the capture, if the file records it.
    pub captured: Option<Span>,
    /// Number of nodes that run.
    pub ran: usize,
    /// Number of nodes that do not run, because they are on a cycle or depend on one.
    pub stuck: usize,
    pub(super) last: Option<u32>,
    pub(super) start: Vec<Time>,
    pub(super) end: Vec<Time>,
    pub(super) cause: Vec<u32>,
    pub(super) ids: Vec<u64>,
    pub(super) classes: Vec<InspectedNodeType>,
    pub(super) names: StringArenaInterner,
    pub(super) name_of: Vec<u32>,
    /// The collectives and messages of the rank, sorted by node.
    pub(super) comms: RankComms,
    /// For each collective or message, how long the rank waited for others.
    waits: Vec<Span>,
}

impl RankTimesForCriticalPath {
    /// Extracts the data from an inspected trace.
    ///
    /// Fails if the names of nodes take more than 4 GiB.
    pub fn new(trace: InspectedRankTrace<'_>) -> Result<Self, TraceError> {
        let nodes = &trace.raw.nodes;
        let mut names = StringArenaInterner::default();
        let mut name_of = Vec::with_capacity(nodes.len());
        for item in nodes {
            let number = names.intern_name(item.view.name);
            name_of.push(number.ok_or_else(|| {
                TraceError::invalid_node(item.view.id, "more than 4 GiB of names", "shorten them")
            })?);
        }
        names.free_hash_table();
        let comms = list_rank_collectives_and_messages(&trace);
        let waits = comms
            .steps
            .iter()
            .map(|step| trace.node_wait_for_other_ranks(step.node));
        let waits = waits.collect();
        let last = trace.times.run.last_ending_node();
        let ids = nodes.iter().map(|item| item.view.id).collect();
        let (rank, classes, basis) = (trace.rank, trace.classes, trace.times.basis);
        let captured = trace.raw.metadata.captured;
        let whole_micros = trace.times.whole_micros;
        let NodeStartEndTimesAndCauses {
            start,
            end,
            cause,
            ran,
            ..
        } = trace.times.run;
        Ok(Self {
            rank,
            basis,
            whole_micros,
            captured,
            ran,
            stuck: start.len() - ran,
            last,
            start,
            end,
            cause,
            ids,
            classes,
            names,
            name_of,
            comms,
            waits,
        })
    }

    /// Returns a node's collective or message, and how long it waited; `None` if the node does not communicate.
    pub(super) fn communication_and_wait_of_node(
        &self,
        node: u32,
    ) -> Option<(&RankCommNode, Span)> {
        let found = self
            .comms
            .steps
            .binary_search_by_key(&node, |step| step.node);
        found.ok().map(|i| (&self.comms.steps[i], self.waits[i]))
    }

    /// Returns the node whose end released `node`, if there is one.
    pub(super) fn find_releasing_node(&self, node: u32) -> Option<u32> {
        Some(self.cause[node as usize]).filter(|&cause| cause != NONE)
    }

    /// Returns the name of a node.
    pub fn name_of_node(&self, node: u32) -> &str {
        self.names.get(self.name_of[node as usize])
    }

    /// Returns the end time of the last node; `None` if no node runs.
    pub fn end_of_last_node(&self) -> Option<Time> {
        Some(self.end[self.last? as usize])
    }
}

/// Lists the collectives and messages of a rank, numbered in program order and sorted by node.
fn list_rank_collectives_and_messages(trace: &InspectedRankTrace<'_>) -> RankComms {
    let raw = &trace.raw;
    let mut declared = DeclaredGroups::new();
    for item in &raw.nodes {
        if let Some(text) = item.view.groups
            && let Ok(groups) = parse_group_metadata(item.view.id, text)
        {
            declared.extend(groups);
        }
    }
    // Skip collectives over only some dimensions, because without a machine nobody knows which ranks take part.
    let whole = |node: &u32| {
        let op = raw.nodes[*node as usize].view.op;
        !matches!(
            op,
            Op::Collective {
                dimensions: Some(_),
                ..
            }
        )
    };
    let order = trace.program_order().into_iter().filter(whole);
    let mut comms = RankComms::new(raw, trace.rank, order, |name| declared.get(name));
    comms.steps.sort_unstable_by_key(|step| step.node);
    comms
}
