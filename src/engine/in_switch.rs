//! In-switch collectives of the memory pool: loads that switches gather and stores that they reduce, by all NPUs of
//! the machine.
//!
//! No member waits for the others: an access carries its part of what the links bear when all do the same, which is
//! right when they do. So it is refused where they do not: the k-th of them, in the order of ids, has to be the same
//! on all ranks, and every NPU has to have a rank.

use super::error::Refusal;
use super::matching::describe;
use crate::graph::Graph;
use crate::ids::{NodeIndex, Rank};
use crate::machine::Machine;
use crate::units::Bytes;
use crate::workload::Workload;
use std::collections::BTreeSet;

/// Refuses in-switch accesses that are not made by all NPUs, reach no switch, or move more bytes than there are.
pub(super) fn check(workload: &Workload, machine: &Machine) -> Result<(), Refusal> {
    let Some(instance) = workload.instances().iter().find(|instance| {
        let graph = workload.graph(instance);
        of(graph).next().is_some()
    }) else {
        return Ok(());
    };
    let graph = workload.graph(instance);
    let refusal = |rank: Rank, graph: &Graph, node: NodeIndex, found: &str, hint: &str| {
        Refusal::new(format!("{}: {found}", describe(rank, graph, node)), hint)
    };
    let first = of(graph).next().expect("it was found by that");
    let (name, npus) = (machine.name(), machine.topology().npus());
    if let Some(remote) = machine.remote() {
        if !remote.attachment.has_switches() {
            return Err(refusal(
                instance.rank,
                graph,
                first,
                &format!(
                    "switches are to gather or reduce what it moves, and the remote memory of machine \
                     `{name}`, which is attached as `{}`, has none",
                    remote.attachment.name()
                ),
                "take a machine with `attachment` hierarchical or switch, or drop `in_switch`",
            ));
        }
        let whole = |node| graph.bytes(node).saturating_mul(u64::from(npus));
        if let Some(node) = of(graph).find(|&node| whole(node) > remote.capacity.0) {
            let (bytes, room) = (Bytes(whole(node)), remote.capacity);
            return Err(refusal(
                instance.rank,
                graph,
                node,
                &format!(
                    "all NPUs together move {bytes} at once, but the remote memory holds {room}"
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
                "switches gather and reduce for all {npus} NPUs of machine `{name}`, and the job has \
                 traces of {present} ranks"
            ),
            "replay on a machine as large as the job",
        ));
    }
    let mut seen = BTreeSet::from([instance.graph]);
    for other in workload.instances() {
        // Ranks that share a graph agree by construction.
        if !seen.insert(other.graph) {
            continue;
        }
        let theirs = workload.graph(other);
        let [mut own, mut their] = [of(graph), of(theirs)];
        loop {
            let (a, b) = (own.next(), their.next());
            let what = |graph: &Graph, node: Option<NodeIndex>| {
                node.map(|node| (graph.bytes(node), graph.in_switch(node)))
            };
            if what(graph, a) != what(theirs, b) {
                let hint =
                    "in-switch loads and stores are the same on all ranks, in the order of ids";
                return Err(Refusal::new(
                    format!(
                        "ranks disagree on what switches gather and reduce: {} against {}",
                        said(instance.rank, graph, a),
                        said(other.rank, theirs, b)
                    ),
                    hint,
                ));
            }
            // Both are exhausted, because they were equal.
            if a.is_none() {
                break;
            }
        }
    }
    Ok(())
}

/// Returns the in-switch accesses of `graph`.
fn of(graph: &Graph) -> impl Iterator<Item = NodeIndex> + '_ {
    let nodes = graph.nodes();
    nodes.filter(|&node| graph.in_switch(node).is_some())
}

/// Formats a node with its bytes, or its absence.
fn said(rank: Rank, graph: &Graph, node: Option<NodeIndex>) -> String {
    match node {
        Some(node) => {
            let bytes = Bytes(graph.bytes(node));
            format!("{} of {bytes}", describe(rank, graph, node))
        }
        None => format!("no more of rank {}", rank.0),
    }
}
