//! Adds the host's launches to graphs when a replay is prepared. The traces themselves remain unchanged.

use super::{
    CollectiveCurvesOrAlgorithms, CommunicationDurationSource, HostLaunchMode,
    KernelDurationSource, ReplayOptions,
};
use chakram_base::ids::NodeIndex;
use chakram_base::units::Span;
use chakram_hardware::machine::{Host, HostBlockingOperations, Machine, PassKernelTimeCorrection};
use chakram_trace::format::{KernelShape, MemoryBoundKernelClass};
use chakram_trace::graph::launches::HostLaunchDurationAndBlocking;
use chakram_trace::graph::{Graph, NodeKind};
use chakram_trace::workload::Workload;

/// Fills in the defaults for the launch mode, for measured collective times and for the machine's correction. All three
/// defaults depend on whether kernel times come from measured curves. Measured curves apply with
/// [`KernelDurationSource::Curves`], and also to generated models on a machine with curves.
pub(super) fn resolve_launch_and_time_source_defaults(
    workload: &Workload,
    machine: &Machine,
    options: &ReplayOptions,
) -> ResolvedReplayDurationSources {
    let by_curves = match options.compute {
        KernelDurationSource::Curves => true,
        compute => {
            let generated = |graph: &Graph| graph.has_kernel_shapes_but_no_durations();
            compute.prefers_curves()
                && machine.has_kernel_curves()
                && workload.distinct_graphs().iter().any(generated)
        }
    };
    let default_launch = match by_curves {
        true => HostLaunchMode::Eager,
        false => HostLaunchMode::None,
    };
    let found = by_curves
        .then(|| find_kernel_time_correction_of_model(workload, machine))
        .flatten();
    ResolvedReplayDurationSources {
        launch: match options.launch {
            HostLaunchMode::Auto => default_launch,
            given => given,
        },
        default_launch,
        measured_collectives: options.comm == CommunicationDurationSource::Model
            && (options.collectives)
                .map_or(by_curves, |how| how == CollectiveCurvesOrAlgorithms::Curves),
        correction: options.correction.or(found.map(|found| found.factor)),
        corrected_to: match options.correction {
            Some(_) => None,
            // The correction for all other models (without `gemms`) leaves at least the error of the kernel times, so
            // report no remaining error.
            None => found
                .filter(|found| found.gemms.is_some())
                .map(|found| found.error),
        },
    }
}

/// Returns the machine's correction for models with the same most frequent matrix multiplications as `workload`. If
/// there is no such correction, returns the machine's correction for all other models.
fn find_kernel_time_correction_of_model(
    workload: &Workload,
    machine: &Machine,
) -> Option<PassKernelTimeCorrection> {
    let corrections = machine.kernel_time_corrections();
    if corrections.is_empty() {
        return None;
    }
    let products = workload.two_most_frequent_matmul_sizes()?;
    let of = |gemms| corrections.iter().find(|known| known.gemms == gemms);
    of(Some(products)).or_else(|| of(None)).copied()
}

/// Sources of a replay's durations and launches, with defaults filled in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ResolvedReplayDurationSources {
    pub launch: HostLaunchMode,
    /// Launch mode that applies if the options do not set one.
    pub default_launch: HostLaunchMode,
    pub measured_collectives: bool,
    /// Factor by which launch times, times of measured collectives, and kernel times from curves are multiplied.
    pub correction: Option<f64>,
    /// Relative error that remains after the machine's correction.
    pub corrected_to: Option<f64>,
}

/// Adds the launches that the host of `machine` makes to `workload`. Returns `None` if the machine has no host, or if
/// the host's launches take no time.
pub(super) fn insert_host_launches(
    workload: &Workload,
    machine: &Machine,
    prices: ResolvedReplayDurationSources,
) -> Option<Workload> {
    let mut host = *machine.host()?;
    if let Some(factor) = prices.correction {
        let costs = [
            &mut host.launch,
            &mut host.backward,
            &mut host.collective,
            &mut host.message,
            &mut host.step,
        ];
        for cost in costs {
            *cost = Span::from_seconds_saturating(cost.as_seconds() * factor);
        }
    }
    match prices.launch {
        HostLaunchMode::Auto | HostLaunchMode::None => None,
        HostLaunchMode::Eager => insert_launches_in_graphs_without_host(workload, &host),
        HostLaunchMode::Graph => {
            let free = Span::ZERO;
            let graph = Host {
                launch: free,
                backward: free,
                collective: free,
                message: free,
                step: host.launch,
                waits: HostBlockingOperations::Never,
                ..host
            };
            insert_launches_in_graphs_without_host(workload, &graph)
        }
    }
}

/// Adds launches by `host` to every graph without host work. Returns `None` if every graph has host work.
fn insert_launches_in_graphs_without_host(workload: &Workload, host: &Host) -> Option<Workload> {
    let bare = |graph: &Graph| !graph.has_host_nodes_or_delays();
    workload.distinct_graphs().iter().any(bare).then(|| {
        workload.map_graphs(|graph| {
            if bare(graph) {
                graph.with_launch_nodes(
                    |node| host_launch_duration_and_blocking(graph, node, host),
                    host.queue as usize,
                )
            } else {
                graph.clone()
            }
        })
    })
}

/// Returns the host launch that `node` needs, or `None` if the host need not launch it.
fn host_launch_duration_and_blocking(
    graph: &Graph,
    node: NodeIndex,
    host: &Host,
) -> Option<HostLaunchDurationAndBlocking> {
    let kind = graph.kind(node);
    // The host waits for received data that it passes on. If no node uses them, it does not wait.
    let receive = kind == NodeKind::Receive && graph.successors(node).len() > 0;
    let message = receive || kind == NodeKind::Send;
    let kernel = graph.kernel(node);
    // The host uses the bytes of such a copy to launch later kernels, so a host that waits at all also waits for the
    // copy.
    let is_host_copy = kernel == Some(KernelShape::Moving(MemoryBoundKernelClass::HostCopy));
    let waits = match host.waits {
        HostBlockingOperations::Never => false,
        HostBlockingOperations::Receives => is_host_copy || receive,
        HostBlockingOperations::Messages => is_host_copy || message,
        HostBlockingOperations::Passes => {
            is_host_copy || message || may_begin_or_end_pass(graph, node)
        }
    };
    let cost = match kind {
        NodeKind::Nothing | NodeKind::Host => return None,
        NodeKind::Compute => match kernel {
            Some(KernelShape::Moving(MemoryBoundKernelClass::Optimizer)) => host.step,
            _ if graph.is_backward_kernel(node) => host.backward,
            _ => host.launch,
        },
        NodeKind::LocalMemory | NodeKind::RemoteMemory | NodeKind::Communication => host.launch,
        NodeKind::Collective => host.collective,
        NodeKind::Send | NodeKind::Receive => host.message,
    };
    Some(HostLaunchDurationAndBlocking { cost, waits })
}

/// Returns true if `node` may be the first or the last node of a pass. Some hosts wait at these
/// nodes.
fn may_begin_or_end_pass(graph: &Graph, node: NodeIndex) -> bool {
    let class = graph.kernel(node);
    let ends = [
        MemoryBoundKernelClass::Embedding,
        MemoryBoundKernelClass::CrossEntropy,
    ];
    ends.iter()
        .any(|end| class == Some(KernelShape::Moving(*end)))
}
