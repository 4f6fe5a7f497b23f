//! Hosts that launch work: added when a replay is prepared, so that traces stay as they are.

use super::LaunchMode;
use crate::graph::launches::HostLaunch;
use crate::graph::{Graph, NodeKind};
use crate::ids::NodeIndex;
use crate::machine::{Host, HostWait, Machine};
use crate::trace::{KernelShape, MovingKernel};
use crate::units::Span;
use crate::workload::Workload;

/// Returns `workload` with launches by the host of `machine`, if it has one that takes time.
pub(super) fn launched(
    workload: &Workload,
    machine: &Machine,
    mode: LaunchMode,
) -> Option<Workload> {
    let host = *machine.host()?;
    match mode {
        LaunchMode::None => None,
        LaunchMode::Eager => with_host(workload, &host),
        LaunchMode::Graph => {
            let free = Span::ZERO;
            let graph = Host {
                launch: free,
                collective: free,
                message: free,
                step: host.launch,
                waits: HostWait::Never,
                ..host
            };
            with_host(workload, &graph)
        }
    }
}

/// Returns `workload` with launches by `host` in every graph in which the host has no work of its own; `None` if there
/// is no such graph.
fn with_host(workload: &Workload, host: &Host) -> Option<Workload> {
    let bare = |graph: &Graph| !graph.has_host_work();
    workload.graphs().iter().any(bare).then(|| {
        workload.with_graphs(|graph| {
            if bare(graph) {
                graph.with_launches(|node| launch(graph, node, host), host.queue as usize)
            } else {
                graph.clone()
            }
        })
    })
}

/// The launch of `node`, if it takes one.
fn launch(graph: &Graph, node: NodeIndex, host: &Host) -> Option<HostLaunch> {
    let kind = graph.kind(node);
    let message = matches!(kind, NodeKind::Receive | NodeKind::Send);
    let waits = match host.waits {
        HostWait::Never => false,
        HostWait::Receives => kind == NodeKind::Receive,
        HostWait::Messages => message,
        HostWait::Passes => message || ends_pass(graph, node),
    };
    let cost = match kind {
        NodeKind::Nothing | NodeKind::Host => return None,
        NodeKind::Compute => match graph.kernel(node) {
            Some(KernelShape::Moving(MovingKernel::Optimizer)) => host.step,
            _ => host.launch,
        },
        NodeKind::LocalMemory | NodeKind::RemoteMemory => host.launch,
        NodeKind::Collective => host.collective,
        NodeKind::Send | NodeKind::Receive => host.message,
    };
    Some(HostLaunch { cost, waits })
}

/// Whether a pass may begin or end with `node`.
fn ends_pass(graph: &Graph, node: NodeIndex) -> bool {
    let class = graph.kernel(node);
    let ends = [MovingKernel::Embedding, MovingKernel::CrossEntropy];
    ends.iter()
        .any(|end| class == Some(KernelShape::Moving(*end)))
}
