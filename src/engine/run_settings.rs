//! Settings that apply to one run.

use super::discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
use super::plan::{NONE, PlacedCommunicationGroup};
use super::{CommunicationDurationSource, CompiledReplay, HostDurationSource};
use chakram_hardware::memory::MemoryAttachment;
use chakram_hardware::network::{NetworkBackend, SendCompletionRule};
use chakram_hardware::topology::Topology;
use chakram_trace::graph::NodeKind;

/// Settings that apply to one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunSettings<'a> {
    pub topology: &'a Topology,
    pub stepwise: bool,
    /// True if a collective may be answered analytically only if it is also proven in which order its members end.
    pub ordered_ends: bool,
    /// True if all traffic on the network belongs to collectives of all ranks, which run one at a time.
    pub collectives_alone: bool,
    /// True if tile groups are used.
    pub aggregate: bool,
    pub comm: CommunicationDurationSource,
    /// True if a send between ranks or in a script completes when its message has arrived. False if it completes when
    /// its last byte has left.
    pub sends_end_on_arrival: bool,
    pub host: HostDurationSource,
    /// True if there may be more than one launch.
    pub many: bool,
}

impl<'a> RunSettings<'a> {
    /// Creates the settings of a run of `prepared`.
    pub fn for_program<N: NetworkBackend, M: RequiredCollectiveBackendTraits>(
        prepared: &'a CompiledReplay<'a>,
        many: bool,
    ) -> Self {
        Self {
            topology: prepared.machine.topology(),
            stepwise: prepared.stepwise
                || (M::Order::AT_ONCE && npus_share_remote_memory(prepared)),
            ordered_ends: prepared.ordered_ends,
            collectives_alone: M::Order::AT_ONCE
                && N::SHARED
                && !many
                && has_only_sequential_all_rank_collectives(prepared),
            aggregate: prepared.aggregate,
            comm: prepared.comm,
            sends_end_on_arrival: M::Order::SENDS_END_ON_ARRIVAL
                || prepared.machine.send_completion() == SendCompletionRule::Delivered,
            host: prepared.host,
            many,
        }
    }
}

/// Returns true if NPUs share a memory channel. The order in which members complete a collective may then affect other
/// operations.
fn npus_share_remote_memory(prepared: &CompiledReplay<'_>) -> bool {
    let remote = prepared.machine.unnamed_remote_memory();
    remote.is_some_and(|remote| remote.attachment != MemoryAttachment::PerNpu)
        && prepared
            .workload_with_added_launches()
            .distinct_graphs()
            .iter()
            .any(|graph| {
                let mut kinds = graph.nodes().map(|node| graph.kind(node));
                kinds.any(|kind| kind == NodeKind::RemoteMemory)
            })
}

/// Returns true if all traffic belongs to collectives of all ranks, and each rank runs them one at a time.
fn has_only_sequential_all_rank_collectives(prepared: &CompiledReplay<'_>) -> bool {
    let plan = &prepared.plan;
    let ranks = plan.instances.len();
    let groups = plan.groups.iter();
    let mut busy = groups.filter(|group| group.present > 0);
    let of_all = |group: &PlacedCommunicationGroup| {
        group.members.len() == ranks && group.present as usize == ranks
    };
    busy.all(of_all)
        && plan.instances.iter().enumerate().all(|(i, instance)| {
            let graph = prepared
                .workload_with_added_launches()
                .graph_of(&prepared.workload_with_added_launches().instances()[i]);
            let lanes = &plan.shared[instance.shared as usize].lanes;
            let mut lanes = graph
                .collective_calls()
                .iter()
                .map(|call| lanes[graph.lane(call.node) as usize]);
            let first = lanes.next();
            graph.messages().is_empty()
                && first != Some(NONE)
                && lanes.all(|lane| Some(lane) == first)
        })
}
