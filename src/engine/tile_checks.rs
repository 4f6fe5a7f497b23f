//! Checks whether a job can run on a machine of tiles. Faulty cores must not run ranks, and faulty links must not cut
//! any route. The network model must not be the port model, because cores have no ports.

use super::error::ReplayRefusal;
use super::matching::describe_node;
use super::options::{CommunicationDurationSource, ReplayOptions};
use super::plan::{ReplayPlan, group_text};
use chakram_base::ids::{Npu, Rank};
use chakram_base::setting::SettingKey;
use chakram_hardware::machine::Machine;
use chakram_hardware::memory::{MemoryAttachment, RemoteMemory};
use chakram_hardware::topology::tile_grid::format_coordinates;
use chakram_trace::graph::NodeKind;
use chakram_trace::workload::{GraphBoundToRank, Workload};

/// Returns the NPU of each rank if the traces name cores and the machine has tiles, otherwise `None`.
pub(super) fn place_ranks_on_cores(
    workload: &Workload,
    machine: &Machine,
) -> Result<Option<Vec<Npu>>, ReplayRefusal> {
    let Some(tiles) = machine.topology().tile_grid() else {
        return Ok(None);
    };
    let named = |instance: &GraphBoundToRank| instance.core.is_some();
    if !workload.instances().iter().any(named) {
        return Ok(None);
    }
    let hint = || {
        format!(
            "{}, which places each rank and overrides the traces",
            SettingKey::Map
        )
    };
    if workload.instances().len() != workload.rank_count_including_untraced() as usize {
        let found = "traces state the cores of their ranks, but some ranks have no trace";
        return Err(ReplayRefusal::new(found, hint()));
    }
    let core = |instance: &GraphBoundToRank| {
        let rank = instance.rank;
        let refuse = |found: String| Err(ReplayRefusal::new(found, hint()));
        match instance.core {
            None => refuse(format!(
                "the trace of rank {rank} names no core, but other traces do"
            )),
            Some(at) if (0..2).any(|d| at[d] >= tiles.cores_along_dimension(d)) => refuse(format!(
                "the trace of rank {rank} names core {}, but machine `{}` has cores from (0, 0) to {}",
                format_coordinates(at),
                machine.name(),
                format_coordinates([0, 1].map(|d| tiles.cores_along_dimension(d) - 1))
            )),
            Some(at) => Ok(Npu(tiles.core_at(at))),
        }
    };
    let cores = workload.instances().iter().map(core);
    cores.collect::<Result<_, _>>().map(Some)
}

/// Fails if a job cannot run on a machine of tiles. Accepts all jobs on other machines.
pub(super) fn check_job_fits_tile_machine(
    plan: &ReplayPlan,
    workload: &Workload,
    machine: &Machine,
    options: &ReplayOptions,
) -> Result<(), ReplayRefusal> {
    let topology = machine.topology();
    let Some(tiles) = topology.tile_grid() else {
        return Ok(());
    };
    let name = machine.name();
    for (instance, planned) in workload.instances().iter().zip(&plan.instances) {
        if tiles.faulty_cores.contains(&planned.npu.0) {
            let (rank, at) = (
                instance.rank,
                format_coordinates(tiles.coordinates_of_core(planned.npu.0)),
            );
            return Err(ReplayRefusal::new(
                format!("rank {rank} is placed on core {at} of machine `{name}`, which is faulty"),
                format!(
                    "place the job on other cores, with {} or with the plan's placement",
                    SettingKey::Map
                ),
            ));
        }
    }
    if options.comm != CommunicationDurationSource::Model {
        return Ok(());
    }
    let network = options.network.unwrap_or(machine.network_model());
    if !network.knows_tiles() {
        return Err(ReplayRefusal::new(
            format!(
                "machine `{name}` consists of tiles, which the network model {network} does not support"
            ),
            format!(
                "take {} exclusive, links or contention-free",
                SettingKey::Network
            ),
        ));
    }
    if tiles.faulty_links.is_empty() {
        return Ok(());
    }
    let closed = |a: Npu, b: Npu| {
        let fault = topology.first_dimension_crossed_between(a, b).err()?;
        let [from, to] = [a, b].map(|npu| format_coordinates(tiles.coordinates_of_core(npu.0)));
        Some(format!(
            "no route from core {from} to core {to} of machine `{name}`, neither along x first nor \
             along y first: the link {} is faulty",
            tiles.link_name(fault)
        ))
    };
    let hint = "place communicating ranks on one side of the fault, or repair the link";
    for group in &plan.groups {
        // Any pair may exchange messages, depending on the algorithm, so every pair must have a route.
        let pairs = group.extent.npus.iter();
        let mut pairs = pairs.flat_map(|&a| group.extent.npus.iter().map(move |&b| (a, b)));
        if let Some(why) = pairs.find_map(|(a, b)| closed(a, b)) {
            return Err(ReplayRefusal::new(
                format!("{}: {why}", group_text(group)),
                hint,
            ));
        }
    }
    for (instance, planned) in workload.instances().iter().zip(&plan.instances) {
        let graph = workload.graph_of(instance);
        for message in graph.messages() {
            let peer: Rank = instance.peers[message.peer as usize];
            let other = plan.npu_of.get(peer.index()).copied();
            let ends = other.map(|other| [(planned.npu, other), (other, planned.npu)]);
            let why = ends.into_iter().flatten().find_map(|(a, b)| closed(a, b));
            if let Some(why) = why {
                let node = describe_node(instance.rank, graph, message.node);
                return Err(ReplayRefusal::new(format!("{node}: {why}"), hint));
            }
        }
        let mut loads = graph.nodes();
        let unnamed = loads.any(|node| {
            graph.kind(node) == NodeKind::RemoteMemory && graph.remote_memory(node).is_none()
        });
        let named = graph.remote_memories().iter();
        let named = named.filter_map(|name| machine.index_of_named_memory(name));
        let named = named.map(|index| &machine.named_memories()[index].memory);
        let mut reached = machine
            .unnamed_remote_memory()
            .filter(|_| unnamed)
            .into_iter()
            .chain(named);
        let is_closed = |memory: &RemoteMemory| match &memory.attachment {
            MemoryAttachment::Ports(ports) => ports.nearest_port(planned.npu, topology).is_none(),
            _ => false,
        };
        if reached.any(is_closed) {
            let at = format_coordinates(tiles.coordinates_of_core(planned.npu.0));
            return Err(ReplayRefusal::new(
                format!(
                    "rank {} on core {at} of machine `{name}` cannot reach a memory port without crossing a faulty link",
                    instance.rank
                ),
                hint,
            ));
        }
    }
    Ok(())
}
