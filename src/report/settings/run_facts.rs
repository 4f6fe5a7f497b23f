//! Facts about a run that explain why settings have no effect.

use crate::Report;
use chakram_base::ids::Npu;
use chakram_base::units::format_thousands;
use chakram_engine::{CommunicationDurationSource, CompiledReplay};
use chakram_trace::format::Dtype;
use chakram_trace::graph::{Graph, NodeKind};

/// A run: its compiled replay and its report.
#[derive(Clone, Copy, Debug)]
pub struct CompiledReplayWithReport<'a> {
    /// Compiled replay of the run.
    pub prepared: &'a CompiledReplay<'a>,
    /// Report of the run.
    pub report: &'a Report,
}

/// How much communication crosses a dimension of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DimensionCollectiveAndMessageCounts {
    /// Number of (group, kind) pairs whose collectives are timed by algorithms.
    pub by_algorithms: u64,
    /// Number of (group, kind) pairs whose collectives are timed by measured curves.
    pub by_curves: u64,
    /// Number of messages between ranks, plus loads and stores over the network.
    pub messages: u64,
}

impl CompiledReplayWithReport<'_> {
    /// Returns why nothing crosses the machine's network; `None` if the network carries traffic.
    pub(super) fn reason_without_network_traffic(&self) -> Option<String> {
        let comm = self.prepared.comm_duration_source();
        if self.report.collectives.is_empty()
            && !self.has_messages()
            && !self.has_network_memory_accesses()
        {
            return Some("the job has no collective and no message".to_owned());
        }
        (comm != CommunicationDurationSource::Model && !self.has_network_memory_accesses())
            .then(|| format!("collectives and messages last as {comm}"))
    }

    /// Returns why no collective depends on the machine; `None` if one does.
    pub(super) fn reason_collectives_are_constant(&self) -> Option<String> {
        if self.report.collectives.is_empty() {
            return Some("the job has no collective".to_owned());
        }
        let comm = self.prepared.comm_duration_source();
        (comm != CommunicationDurationSource::Model).then(|| format!("collectives last as {comm}"))
    }

    /// Returns true if ranks send messages to each other.
    pub(super) fn has_messages(&self) -> bool {
        self.graphs_of_job()
            .any(|graph| !graph.messages().is_empty())
    }

    /// Returns true if loads or stores cross the network.
    fn has_network_memory_accesses(&self) -> bool {
        let machine = self.prepared.machine();
        let mut memories = machine.remote_memories_with_first_endpoints();
        let at_network = memories.any(|(memory, _)| {
            memory.is_some_and(|memory| !memory.list_memory_endpoints_in_network().is_empty())
        });
        at_network && self.has_nodes(NodeKind::RemoteMemory)
    }

    /// Returns true if any graph has a node of this kind.
    pub(super) fn has_nodes(&self, kind: NodeKind) -> bool {
        self.graphs_of_job()
            .any(|graph| graph.nodes().any(|node| graph.kind(node) == kind))
    }

    fn graphs_of_job(&self) -> impl Iterator<Item = &Graph> {
        self.prepared
            .workload_with_added_launches()
            .distinct_graphs()
            .iter()
    }

    /// Returns the name of a dimension, in backquotes.
    pub(super) fn dimension_name(&self, index: usize) -> String {
        let dimensions = self.prepared.machine().topology().dimensions();
        format!("`{}`", dimensions[index].name)
    }

    /// Returns how much communication crosses the dimension with this index.
    pub(super) fn count_communication_crossing_dimension(
        &self,
        index: usize,
    ) -> DimensionCollectiveAndMessageCounts {
        let topology = self.prepared.machine().topology();
        let mut found = DimensionCollectiveAndMessageCounts::default();
        let groups: Vec<_> = self.prepared.group_views().collect();
        for row in &self.report.collectives {
            let npus = &groups[row.group_index as usize].extent.npus;
            let at = |npu: &Npu| topology.coordinate_of(*npu, index);
            if npus.iter().any(|npu| at(npu) != at(&npus[0])) {
                match row.measured {
                    true => found.by_curves += 1,
                    false => found.by_algorithms += 1,
                }
            }
        }
        let workload = self.prepared.workload_with_added_launches();
        for instance in workload.instances() {
            let own = topology.coordinate_of(self.prepared.npu_of_rank(instance.rank), index);
            let crosses =
                |rank| topology.coordinate_of(self.prepared.npu_of_rank(rank), index) != own;
            let messages = workload.graph_of(instance).messages().iter();
            let peers = messages.map(|message| instance.peers[message.peer as usize]);
            found.messages += peers.filter(|&peer| crosses(peer)).count() as u64;
        }
        if self.has_network_memory_accesses() {
            found.messages += 1;
        }
        found
    }

    /// Returns why no kernel's time depends on the NPU's rates; `None` if one does.
    pub(super) fn reason_kernels_ignore_npu_rates(&self) -> Option<String> {
        let kernels = &self.report.kernels;
        let basis = self.prepared.duration_source_counts();
        match kernels.kernel_count() {
            0 => Some("the job has no kernel".to_owned()),
            all if basis.by_curves == 0 && basis.roofline_time == 0 => Some(match all {
                1 => "its kernel lasts as recorded".to_owned(),
                all => format!("all {} kernels last as recorded", format_thousands(all)),
            }),
            _ => None,
        }
    }

    /// Returns why no kernel is timed by curves; `None` if one is.
    pub(super) fn reason_no_kernel_uses_curves(&self) -> Option<String> {
        self.reason_kernels_ignore_npu_rates().or_else(|| {
            let by_curves = self.report.kernels.by_curves;
            (by_curves == 0).then(|| "no kernel is priced by curves".to_owned())
        })
    }

    /// Returns true if any kernel computes in the number format `dtype`.
    pub(super) fn has_kernel_in_number_format(&self, dtype: Dtype) -> bool {
        self.graphs_of_job().any(|graph| {
            let mut kernels = graph
                .nodes()
                .filter(|&n| graph.kind(n) == NodeKind::Compute);
            kernels.any(|node| graph.dtype(node) == Some(dtype))
        })
    }

    /// Returns true if any rank runs on an NPU of the class with this index.
    pub(super) fn uses_npu_class(&self, class: usize) -> bool {
        let mut ranks = self
            .prepared
            .workload_with_added_launches()
            .instances()
            .iter();
        ranks.any(|rank| {
            self.prepared
                .machine()
                .class_of_npu(self.prepared.npu_of_rank(rank.rank))
                == class
        })
    }

    /// Returns the largest number of lanes that any rank uses.
    pub(super) fn max_lane_count(&self) -> usize {
        let instances = 0..self
            .prepared
            .workload_with_added_launches()
            .instances()
            .len();
        let lanes = instances.map(|instance| {
            let lanes = self
                .prepared
                .npu_lanes_of_graph_lanes(chakram_engine::InstanceId(instance as u32));
            lanes.flatten().count()
        });
        lanes.max().unwrap_or(0)
    }
}
