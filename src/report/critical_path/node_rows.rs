//! Builds the rows of the node table: each node's start and end, and the node that it waited for.

use super::recorder::{NodeStartAndEnd, RunRecorder};
use super::relations::node_index_unless_none;
use crate::lane_names::lane_name;
use crate::node_table::{DistinctTextIndices, NodeRankAndId, NodeTable, NodeTableRow, StartCause};
use crate::summary::node_kind_label;
use chakram_trace::graph::NodeKind;

impl RunRecorder<'_> {
    /// Returns a table with one row per node.
    pub fn node_table(&self) -> NodeTable {
        let workload = self.relations.prepared.workload_with_added_launches();
        let mut table = NodeTable::with_capacity(self.relations.nodes);
        let (mut names, mut lanes) = (
            DistinctTextIndices::default(),
            DistinctTextIndices::default(),
        );
        // For each graph, the indices of its nodes' names in the table of strings. They are computed once per graph,
        // because many ranks share one.
        let mut of_graph = vec![Vec::<i32>::new(); workload.distinct_graphs().len()];
        for instance in workload.instances() {
            let graph = workload.graph_of(instance);
            let known_names = &mut of_graph[instance.graph.index()];
            let lane_numbers = graph.lanes_in_order_of_first_use().iter().map(|lane| {
                lane_name(graph, instance, *lane).map_or(-1, |name| lanes.intern_text(&name))
            });
            let lane_numbers: Vec<i32> = lane_numbers.collect();
            for node in graph.nodes() {
                let name = graph.name_index(node) as usize;
                if known_names.len() <= name {
                    known_names.resize(name + 1, -1);
                }
                if known_names[name] < 0 {
                    known_names[name] = names.intern_text(graph.name(node));
                }
                let number = table.len();
                let NodeStartAndEnd { start, end } = self.times[number];
                table.push(NodeTableRow {
                    node: (instance.rank.0, graph.id(node)),
                    name: known_names[name],
                    class: graph.kind(node) as i32,
                    span: [start, end],
                    lane: lane_numbers[graph.lane(node) as usize],
                    cause: self.find_start_cause_and_releasing_node(number),
                    partner: Some(self.find_node_that_determined_end(number))
                        .filter(|origin| *origin != number)
                        .map(|origin| self.rank_and_id_of_node(origin)),
                });
            }
        }
        let classes = NodeKind::ALL.map(|kind| node_kind_label(kind).to_owned());
        table.set_texts_of_indexed_columns(names, &classes, lanes);
        table
    }

    fn rank_and_id_of_node(&self, number: usize) -> NodeRankAndId {
        let of = self.relations.node_at_number(number);
        let instances = self
            .relations
            .prepared
            .workload_with_added_launches()
            .instances();
        let rank = instances[of.instance.index()].rank.0;
        (rank, self.relations.graph_of(of.instance).id(of.node))
    }

    /// Returns the reason for a node's start time, and the node that released it, by the rules of the critical
    /// path.
    fn find_start_cause_and_releasing_node(
        &self,
        number: usize,
    ) -> (StartCause, Option<NodeRankAndId>) {
        let start = self.times[number].start;
        if self.ready_time_after_launch_delay(number) == start {
            return match node_index_unless_none(self.freed_by[number].cause) {
                Some(cause) => (
                    StartCause::Dependency,
                    Some(self.rank_and_id_of_node(cause)),
                ),
                None => (StartCause::Release, None),
            };
        }
        let before = self.previous_on_lane(number);
        if let Some(lane) = before.filter(|&lane| self.times[lane].end == start) {
            return (StartCause::Lane, Some(self.rank_and_id_of_node(lane)));
        }
        match self.member_ready_at_start(number, start) {
            Some(member) => (StartCause::Member, Some(self.rank_and_id_of_node(member))),
            None => (StartCause::Order, None),
        }
    }
}
