//! Creates programs whose job times come from the server. Each has one rank, and a node for each job.

use super::error::ServeError;
use chakram_base::ids::Rank;
use chakram_base::units::{Span, Time};
use chakram_engine::{CollectiveCurvesOrAlgorithms, HostLaunchMode, ReplayOptions};
use chakram_trace::format::{NodeView, Op, Sink};
use chakram_trace::graph::{EnforcedDependencyKinds, GraphBuilder};
use chakram_trace::workload::{MissingRankPolicy, Workload, WorkloadBuilder};

/// Returns options for programs whose job times come from the server; the machine adds no times.
pub fn untimed_replay_options() -> ReplayOptions {
    ReplayOptions::default_with_changes(|options| {
        options.launch = HostLaunchMode::None;
        options.collectives = Some(CollectiveCurvesOrAlgorithms::Algorithms);
    })
}

/// Creates a program with one node for each of the `jobs` jobs of `model`, in order.
pub fn create_node_per_job_program(
    model: &str,
    jobs: u32,
    after: &dyn Fn(u32) -> Vec<u32>,
) -> Result<Workload, ServeError> {
    let unfit =
        |error: &dyn std::fmt::Display| ServeError::Unfit(format!("model {model:?}: {error}"));
    let mut graph = GraphBuilder::new(0, EnforcedDependencyKinds::Data, jobs.into());
    let op = || Op::Compute {
        flops: 0,
        bytes: 0,
        dtype: None,
    };
    for job in 0..jobs {
        let mut node = NodeView::new(u64::from(job) + 1, "job", op());
        // The event loop rejects kernels without a duration, so give the kernel a placeholder. The server replaces it.
        node.recorded = Span::from_us(1);
        node.micros = 1;
        let after = after(job).into_iter().map(|other| u64::from(other) + 1);
        let after: Vec<u64> = after.collect();
        graph
            .receive_node(&node, &after)
            .map_err(|error| unfit(&error))?;
    }
    let (graph, binding) = graph.finish_graph().map_err(|error| unfit(&error))?;
    let mut workload = WorkloadBuilder::default();
    let graph = workload.add_or_reuse_equal_graph(graph);
    workload
        .add_rank(Rank(0), graph, binding, Time::ZERO)
        .map_err(|error| unfit(&error))?;
    workload
        .finish_workload(None, MissingRankPolicy::Refuse)
        .map_err(|error| unfit(&error))
}
