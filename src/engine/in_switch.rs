//! In-switch collectives of the memory pool: switches gather the loads of all the machine's NPUs, and reduce their
//! stores.
//!
//! Members do not wait for each other. The time of each access assumes that all NPUs make the same access, so it
//! already includes the load on the links. The k-th in-switch access, in the order of ids, must therefore be the same
//! on all ranks, and every NPU must have a rank. The engine rejects other jobs.

use super::error::ReplayRefusal;
use super::matching::describe_node;
use chakram_base::ids::{NodeIndex, Rank};
use chakram_base::units::Bytes;
use chakram_hardware::machine::Machine;
use chakram_hardware::memory::RemoteMemory;
use chakram_trace::graph::Graph;
use chakram_trace::matching::find_first_differing_entries;
use chakram_trace::workload::Workload;
use std::collections::BTreeSet;

/// Fails if an in-switch access is not made by all NPUs, passes through no switch, or exceeds the memory's capacity.
pub(super) fn check_switch_accesses(
    workload: &Workload,
    machine: &Machine,
) -> Result<(), ReplayRefusal> {
    let Some(instance) = workload.instances().iter().find(|instance| {
        let graph = workload.graph_of(instance);
        find_in_switch_access_nodes(graph).next().is_some()
    }) else {
        return Ok(());
    };
    let graph = workload.graph_of(instance);
    let refusal = |rank: Rank, graph: &Graph, node: NodeIndex, found: &str, hint: &str| {
        ReplayRefusal::new(
            format!("{}: {found}", describe_node(rank, graph, node)),
            hint,
        )
    };
    let first = find_in_switch_access_nodes(graph)
        .next()
        .expect("it was found by that");
    let (name, npus) = (machine.name(), machine.topology().npu_count());
    for node in find_in_switch_access_nodes(graph) {
        let Some(remote) = memory_of_access(machine, graph, node) else {
            continue;
        };
        if !remote.attachment.has_switches() {
            return Err(refusal(
                instance.rank,
                graph,
                node,
                &format!(
                    "the node needs switches that gather or reduce its data, but the remote memory \
                     of machine `{name}` with attachment `{}` has no switches",
                    remote.attachment.name_in_file()
                ),
                "take a machine with `attachment` hierarchical or switch, or remove `in_switch`",
            ));
        }
        let (bytes, room) = (
            Bytes(
                graph
                    .stated_bytes_of_node(node)
                    .saturating_mul(u64::from(npus)),
            ),
            remote.capacity,
        );
        if let Some(room) = room.filter(|room| bytes > *room) {
            return Err(refusal(
                instance.rank,
                graph,
                node,
                &format!(
                    "all NPUs together move {bytes} at once, but the remote memory has a capacity of {room}"
                ),
                "give the remote memory more capacity, or split the tensor",
            ));
        }
    }
    let present = workload.instances().len();
    if present != npus as usize {
        return Err(refusal(
            instance.rank,
            graph,
            first,
            &format!(
                "switches gather and reduce for all {npus} NPUs of machine `{name}`, but only \
                 {present} ranks of the job have traces"
            ),
            "replay on a machine with as many NPUs as the job has ranks",
        ));
    }
    let mut seen = BTreeSet::from([instance.graph]);
    for other in workload.instances() {
        // Ranks with the same graph have the same accesses, so compare each graph only once.
        if !seen.insert(other.graph) {
            continue;
        }
        let theirs = workload.graph_of(other);
        if let Some((k, ..)) = find_first_differing_entries(
            list_in_switch_accesses_of_graph(graph),
            list_in_switch_accesses_of_graph(theirs),
        ) {
            return Err(ReplayRefusal::new(
                format!(
                    "ranks disagree on the loads and stores that switches gather and reduce: {}, but {}",
                    describe_access(
                        instance.rank,
                        graph,
                        find_in_switch_access_nodes(graph).nth(k)
                    ),
                    describe_access(
                        other.rank,
                        theirs,
                        find_in_switch_access_nodes(theirs).nth(k)
                    )
                ),
                "the same in-switch loads and stores on all ranks, in the order of ids",
            ));
        }
    }
    Ok(())
}

/// Returns the in-switch accesses of `graph`.
fn find_in_switch_access_nodes(graph: &Graph) -> impl Iterator<Item = NodeIndex> + '_ {
    let nodes = graph.nodes();
    nodes.filter(|&node| graph.in_switch(node).is_some())
}

/// Returns the memory that `node` accesses, or `None` if the machine has no such memory.
fn memory_of_access<'a>(
    machine: &'a Machine,
    graph: &Graph,
    node: NodeIndex,
) -> Option<&'a RemoteMemory> {
    match remote_memory_name_of_node(graph, node) {
        None => machine.unnamed_remote_memory(),
        Some(name) => Some(&machine.named_memories()[machine.index_of_named_memory(name)?].memory),
    }
}

/// Returns the name of the memory that `node` accesses, or `None` if the trace does not name one.
fn remote_memory_name_of_node(graph: &Graph, node: NodeIndex) -> Option<&str> {
    let slot = graph.remote_memory(node)?;
    Some(&graph.remote_memories()[slot as usize])
}

/// An in-switch access: its bytes, true for a store (if known), and the memory's name.
type InSwitchAccessSizeAndMemory<'a> = (u64, Option<bool>, Option<&'a str>);

/// Iterates over the in-switch accesses of `graph`.
fn list_in_switch_accesses_of_graph(
    graph: &Graph,
) -> impl Iterator<Item = InSwitchAccessSizeAndMemory<'_>> {
    find_in_switch_access_nodes(graph).map(|node| {
        (
            graph.stated_bytes_of_node(node),
            graph.in_switch(node),
            remote_memory_name_of_node(graph, node),
        )
    })
}

/// Formats a node with its bytes, or says that the rank has no further in-switch access.
fn describe_access(rank: Rank, graph: &Graph, node: Option<NodeIndex>) -> String {
    match node {
        Some(node) => {
            let bytes = Bytes(graph.stated_bytes_of_node(node));
            format!("{} of {bytes}", describe_node(rank, graph, node))
        }
        None => format!("no further one on rank {}", rank.0),
    }
}
