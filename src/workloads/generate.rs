//! Generates microbenchmarks and training steps. Nodes can be written to a file, or added to a graph directly.
//!
//! A [`WorkloadPattern`] describes the work that the user requests. A [`CheckedWorkloadPattern`] is a pattern with
//! checked options. A job passes any rank's nodes one by one to a [`Sink`], so only one node is in memory at a time.
//! All values are computed from the options alone, so equal options produce identical files.

use chakram_base::bounds::{self, MemoryLimitError};
use chakram_base::ids::{GraphId, MAX_NPUS, Rank};
use chakram_base::parallel;
use chakram_base::setting::SettingKey;
use chakram_base::units::{Span, Time, format_thousands};
use chakram_trace::format::groups::DeclaredGroups;
use chakram_trace::format::roles::GroupRoles;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::work_amounts::JobSamplesAndModelFlops;
use chakram_trace::format::write::Sink;
use chakram_trace::format::{
    KernelShape, NodeMemoryChanges, NodePhaseStageLayerAndShapes, Op, TraceError,
};
use chakram_trace::graph::{
    EnforcedDependencyKinds, Graph, GraphBuilder, RankBindingsOfGraphSlots,
};
use chakram_trace::workload::{MissingRankPolicy, Workload, WorkloadBuilder};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug, Display, Write};

pub mod chain;
pub mod collective;
pub mod data_parallel;
mod members;
pub mod memory;
pub mod p2p;
pub mod palm;
pub mod plan;
pub mod schedule;
pub mod sharding;
#[cfg(test)]
mod testing;
pub mod training;

pub use chain::ParallelKernelChainsPattern;
pub use collective::CollectivePattern;
pub use data_parallel::DataParallelTrainingJobParameters;
pub use memory::LoadKernelStorePattern;
pub use p2p::{P2pPattern, TrafficPattern};
pub use palm::PalmPattern;
pub use plan::ParallelismPlan;
pub use training::ModelAndParallelismPlan;

/// A pattern of work for which traces are generated.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadPattern {
    /// One collective, run once or several times.
    Collective(CollectivePattern),
    /// Messages between pairs of ranks.
    P2p(P2pPattern),
    /// Kernels that depend only on other kernels.
    Chain(ParallelKernelChainsPattern),
    /// Memory loads, and kernels that wait for them.
    Memory(LoadKernelStorePattern),
    /// Data-parallel training steps of a transformer that is replicated on every rank.
    DataParallel(DataParallelTrainingJobParameters),
    /// Training of a transformer on a wafer, as PALM's public code models it.
    Palm(PalmPattern),
    /// Training or inference of a model, distributed as a parallelism plan states.
    Training(Box<ModelAndParallelismPlan>),
}

impl From<ModelAndParallelismPlan> for WorkloadPattern {
    fn from(training: ModelAndParallelismPlan) -> Self {
        Self::Training(Box::new(training))
    }
}

impl WorkloadPattern {
    /// Checks the options without generating any node.
    pub fn validate_options(&self) -> Result<(), PatternOptionError> {
        CheckedWorkloadPattern::new(self.clone()).map(drop)
    }
}

/// A pattern with checked options, and the data that all its ranks share.
#[derive(Debug)]
pub struct CheckedWorkloadPattern(Box<dyn TraceGenerator>);

impl CheckedWorkloadPattern {
    /// Checks `pattern`, and prepares its generation.
    pub fn new(pattern: impl Into<WorkloadPattern>) -> Result<Self, PatternOptionError> {
        Ok(Self(match pattern.into() {
            WorkloadPattern::Collective(options) => Box::new(options.prepare_generator()?),
            WorkloadPattern::P2p(options) => Box::new(options.prepare_generator()?),
            WorkloadPattern::Chain(options) => Box::new(options.prepare_generator()?),
            WorkloadPattern::Memory(options) => Box::new(options.prepare_generator()?),
            WorkloadPattern::DataParallel(options) => Box::new(options.prepare_generator()?),
            WorkloadPattern::Palm(options) => Box::new(options.prepare_generator()?),
            WorkloadPattern::Training(options) => Box::new(options.prepare_generator()?),
        }))
    }

    /// Number of ranks of the generated job.
    pub fn rank_count(&self) -> u32 {
        self.0.rank_count()
    }

    /// The groups to which nodes refer. The list is empty if nodes use only the world group.
    pub fn declared_groups(&self) -> DeclaredGroups {
        self.0.declared_groups()
    }

    /// Purposes of the declared groups; empty if all have the same purpose.
    pub fn group_roles(&self) -> GroupRoles {
        self.0.group_roles()
    }

    /// Samples and model FLOPs of the job; `None` if the job neither trains nor runs a model.
    pub fn job_samples_and_model_flops(&self) -> Option<JobSamplesAndModelFlops> {
        self.0.work_amounts()
    }

    /// Returns the rank that represents all ranks with the same nodes as `rank`. Callers generate the nodes of this
    /// rank once and share them. It may be `rank` itself.
    ///
    /// # Panics
    /// Panics if `rank` is not below [`CheckedWorkloadPattern::rank_count`].
    pub fn representative_of_identical_ranks(&self, rank: u32) -> u32 {
        assert!(rank < self.rank_count(), "rank {rank} does not exist");
        self.0.shape_class_of_rank(rank)
    }

    /// Number of nodes of `rank`, at least 1.
    ///
    /// # Panics
    /// Panics if `rank` is not below [`CheckedWorkloadPattern::rank_count`].
    pub fn node_count(&self, rank: u32) -> u64 {
        assert!(rank < self.rank_count(), "rank {rank} does not exist");
        self.0.node_count_of_rank(rank)
    }

    /// Passes the nodes of `rank` to `sink`. Ids count from 1 without gaps, and every node comes after its
    /// dependencies. Fails only if `sink` fails.
    ///
    /// # Panics
    /// Panics if `rank` is not below [`CheckedWorkloadPattern::rank_count`].
    pub fn emit_nodes(&self, rank: u32, sink: &mut dyn Sink) -> Result<(), TraceError> {
        assert!(rank < self.rank_count(), "rank {rank} does not exist");
        self.0.emit_nodes(rank, &mut TraceEmitter::new(sink))
    }

    /// Returns the rank that represents all ranks whose nodes differ from those of `rank` only in peers and groups. It
    /// also represents all ranks with the same [`Self::representative_of_identical_ranks`]. It may be `rank` itself.
    ///
    /// # Panics
    /// Panics if `rank` is not below [`CheckedWorkloadPattern::rank_count`].
    pub fn representative_of_same_shape_ranks(&self, rank: u32) -> u32 {
        assert!(rank < self.rank_count(), "rank {rank} does not exist");
        self.0.graph_class_of_rank(rank)
    }

    /// Returns sets of ranks that exchange messages only within their set, such as one pipeline per replica. All sets
    /// have the same length, and ranks at the same index in different sets do the same work. If a job has no such sets,
    /// the result is one set of all ranks.
    pub fn find_independent_copies(&self) -> Vec<Vec<u32>> {
        self.0.find_independent_copies()
    }

    /// Returns the coordinates of the core that runs `rank` on a machine of tiles; `None` if the pattern assigns no
    /// cores.
    pub fn core_coordinates_of_rank(&self, rank: u32) -> Option<[u32; 2]> {
        assert!(rank < self.rank_count(), "rank {rank} does not exist");
        self.0.core_of(rank)
    }

    /// Checks that the job's largest trace fits into memory. Otherwise, `generate` could write files that no replay can
    /// read.
    ///
    /// # Errors
    ///
    /// Fails if the largest trace does not fit.
    pub fn check_largest_trace_fits_memory(&self) -> Result<(), MemoryLimitError> {
        let nodes = (0..self.rank_count())
            .map(|rank| self.0.min_node_count(rank))
            .max();
        check_trace_fits_memory(nodes.unwrap_or(0), self.0.suggest_smaller())
    }

    /// Checks that the [`workload`](Self::build_workload) fits into memory.
    ///
    /// # Errors
    ///
    /// Fails if a lower bound on the size of the workload's nodes does not fit.
    pub fn check_workload_fits_memory(&self) -> Result<(), MemoryLimitError> {
        // Ranks of one shape share a graph, but each rank stores its own state for every node.
        let graphs = self.lower_bound_of_shared_graph_nodes();
        let states = (0..self.rank_count()).map(|rank| self.0.min_node_count(rank));
        let states = states.fold(0, u64::saturating_add);
        // Node counts are lower bounds, so no job that fits is rejected. A job that passes may still run out of memory.
        let bytes = graphs
            .saturating_mul(NODE_BYTES)
            .saturating_add(states.saturating_mul(STATE_BYTES));
        let what = format!("a replay of at least {states} nodes in graphs of {graphs}");
        bounds::check_items_fit_memory(
            what,
            bytes,
            1,
            format_args!(
                "{}, or files from {} without {}",
                self.0.suggest_smaller(),
                SettingKey::Output,
                SettingKey::Machine
            ),
        )
    }

    /// Returns a close lower bound on the number of nodes in all shared graphs (one per shape), without generating
    /// them.
    pub fn lower_bound_of_shared_graph_nodes(&self) -> u64 {
        let shapes: BTreeSet<u32> = (0..self.rank_count())
            .map(|rank| self.representative_of_same_shape_ranks(rank))
            .collect();
        let nodes = shapes.into_iter().map(|rank| self.0.min_node_count(rank));
        nodes.fold(0, u64::saturating_add)
    }

    /// Generates all ranks as a workload, without files. Ranks of one shape share one graph.
    pub fn build_workload(&self) -> Result<Workload, TraceError> {
        self.build_workload_with_progress(&|_| ())
    }

    /// Generates the workload like [`workload`](Self::build_workload). From time to time, calls `made` with the number
    /// of nodes added since the last call.
    pub fn build_workload_with_progress(
        &self,
        made: &(dyn Fn(u64) + Sync),
    ) -> Result<Workload, TraceError> {
        let mut builder = WorkloadBuilder::default();
        builder.declare_groups(self.declared_groups());
        builder.declare_group_roles(&self.group_roles());
        builder.override_trace_work_with_job_total(self.job_samples_and_model_flops());
        // Number graphs in the order in which ranks first use them. The rank that represents a shape may not be the
        // first one to use it, so sorting the shapes would give another order.
        let mut shapes: Vec<u32> = (0..self.rank_count())
            .map(|rank| self.representative_of_same_shape_ranks(rank))
            .collect();
        let mut seen = BTreeSet::new();
        shapes.retain(|shape| seen.insert(*shape));
        // With fewer nodes, a second thread costs more time than it saves.
        const LEAST_NODES: u64 = 10_000;
        let threads = match self.lower_bound_of_shared_graph_nodes() < LEAST_NODES {
            true => 1,
            false => parallel::processor_count(),
        };
        let graphs = parallel::map_in_order(threads, &shapes, |&shape| {
            self.build_graph_and_slot_bindings(shape, made)
        })?;
        let mut built: BTreeMap<u32, (GraphId, RankBindingsOfGraphSlots)> = BTreeMap::new();
        for (shape, (graph, binding)) in shapes.into_iter().zip(graphs) {
            built.insert(shape, (builder.add_or_reuse_equal_graph(graph), binding));
        }
        for rank in 0..self.rank_count() {
            let (graph, first) = &built[&self.representative_of_same_shape_ranks(rank)];
            let binding = RankBindingsOfGraphSlots {
                core: self.core_coordinates_of_rank(rank),
                ..self.0.bind_peers_and_groups_to_slots(rank, first)
            };
            let added = builder.add_rank(Rank(rank), *graph, binding, Time::ZERO);
            added.expect("each rank is added once");
        }
        let workload = builder.finish_workload(Some(self.rank_count()), MissingRankPolicy::Refuse);
        Ok(workload.expect("a job has every rank, and its groups have their members"))
    }

    /// Returns the graph of `rank`, and the peers and group names that fill the graph's slots.
    fn build_graph_and_slot_bindings(
        &self,
        rank: u32,
        made: &(dyn Fn(u64) + Sync),
    ) -> Result<(Graph, RankBindingsOfGraphSlots), TraceError> {
        // Ids count from 1 without gaps.
        let mut graph = GraphBuilder::new(rank, EnforcedDependencyKinds::Both, MOST_NODES);
        graph.reserve_nodes(self.0.min_node_count(rank));
        let mut watched = ProgressReportingSink {
            sink: graph,
            untold: 0,
            made,
        };
        self.emit_nodes(rank, &mut watched)?;
        made(watched.untold);
        watched.sink.finish_graph()
    }
}

/// A sink that passes nodes to another sink, and reports how many nodes it has passed.
struct ProgressReportingSink<'m, S> {
    sink: S,
    untold: u64,
    made: &'m dyn Fn(u64),
}

/// Number of nodes between two reports. Threads share the counter, and an update for every node would take longer than
/// all other work for the node.
const TOLD: u64 = 1024;

impl<S: Sink> Sink for ProgressReportingSink<'_, S> {
    fn receive_node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError> {
        self.untold += 1;
        if self.untold == TOLD {
            (self.made)(std::mem::take(&mut self.untold));
        }
        self.sink.receive_node(node, data)
    }
}

/// A pattern that is checked and ready to generate nodes. [`CheckedWorkloadPattern`] documents the methods,
/// and calls them only with ranks that exist.
trait TraceGenerator: Debug + Send + Sync {
    fn rank_count(&self) -> u32;
    fn declared_groups(&self) -> DeclaredGroups {
        DeclaredGroups::new()
    }
    fn group_roles(&self) -> GroupRoles {
        GroupRoles::default()
    }
    fn work_amounts(&self) -> Option<JobSamplesAndModelFlops> {
        None
    }
    /// Advice for error messages: which options to change to get a smaller job.
    fn suggest_smaller(&self) -> &'static str {
        "a smaller job"
    }
    fn shape_class_of_rank(&self, rank: u32) -> u32;
    /// Coordinates of the rank's core on a machine of tiles.
    fn core_of(&self, _rank: u32) -> Option<[u32; 2]> {
        None
    }
    fn graph_class_of_rank(&self, rank: u32) -> u32 {
        self.shape_class_of_rank(rank)
    }
    /// Returns sets of ranks that exchange messages only within their set
    /// ([`CheckedWorkloadPattern::find_independent_copies`]).
    fn find_independent_copies(&self) -> Vec<Vec<u32>> {
        vec![(0..self.rank_count()).collect()]
    }
    /// Returns the peers and the group names that fill the slots of `rank`, each list in order of first use. `first` is
    /// the binding of the rank that represents all ranks with the same graph as `rank`.
    fn bind_peers_and_groups_to_slots(
        &self,
        _rank: u32,
        first: &RankBindingsOfGraphSlots,
    ) -> RankBindingsOfGraphSlots {
        first.clone()
    }
    fn node_count_of_rank(&self, rank: u32) -> u64;
    /// Lower bound for [`Self::node_count`], for patterns whose exact count takes long to compute.
    fn min_node_count(&self, rank: u32) -> u64 {
        self.node_count_of_rank(rank)
    }
    fn emit_nodes(&self, rank: u32, out: &mut TraceEmitter<'_>) -> Result<(), TraceError>;
}

/// Reasons why options are rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternOptionError {
    /// One option is invalid, alone or in combination with others.
    #[error("`{option}` is {found}; expected {expected}")]
    Refused {
        /// Name of the option's field.
        option: &'static str,
        /// The rejected value, as text.
        found: String,
        /// Allowed values.
        expected: String,
    },
    /// Each option is valid by itself, but the job exceeds a limit of traces.
    #[error("{what} would be {found}, but a trace can have at most {limit}; try {hint}")]
    TooLarge {
        /// Name of the quantity that is too large, with its unit.
        what: &'static str,
        /// The computed value, which exceeds the limit.
        found: u128,
        /// Maximum valid value.
        limit: u64,
        /// Advice on which options to reduce.
        hint: &'static str,
    },
}

fn refused_option_value_error(
    option: &'static str,
    found: impl Display,
    expected: impl Into<String>,
) -> PatternOptionError {
    PatternOptionError::Refused {
        option,
        found: found.to_string(),
        expected: expected.into(),
    }
}

/// Maximum number of nodes in a trace: files store counts as signed numbers, and graphs use 32-bit
/// node indices.
const MOST_NODES: u64 = u32::MAX as u64;
const MOST_WORK: u64 = i64::MAX as u64;

/// Checks that a trace with `nodes` nodes fits into memory. `fewer` is the advice for the error
/// message.
///
/// # Errors
///
/// Fails if the trace does not fit.
pub fn check_trace_fits_memory(nodes: u64, fewer: impl Display) -> Result<(), MemoryLimitError> {
    let what = format!("to read a trace of {} nodes again", format_thousands(nodes));
    bounds::check_items_fit_memory(what, nodes, NODE_BYTES, fewer)
}

/// Minimum size of a node in memory, in bytes: the node in its graph, its duration on one machine
/// (`graph.rs`), and its state in a run.
const NODE_BYTES: u64 = 61;
const STATE_BYTES: u64 = 4;

fn check_at_least(option: &'static str, value: u32, least: u32) -> Result<(), PatternOptionError> {
    if value < least {
        return Err(refused_option_value_error(
            option,
            value,
            format!("{least} or more"),
        ));
    }
    Ok(())
}

fn check_rank_count(ranks: u32, least: u32) -> Result<(), PatternOptionError> {
    check_at_least("ranks", ranks, least)?;
    if ranks > MAX_NPUS {
        let expected = format!("{MAX_NPUS} or fewer, as machines have NPUs");
        return Err(refused_option_value_error("ranks", ranks, expected));
    }
    Ok(())
}

/// Returns `found`, or an error if it exceeds `limit`.
fn check_limit(
    what: &'static str,
    found: u128,
    limit: u64,
    hint: &'static str,
) -> Result<u64, PatternOptionError> {
    match u64::try_from(found) {
        Ok(amount) if amount <= limit => Ok(amount),
        _ => Err(PatternOptionError::TooLarge {
            what,
            found,
            limit,
            hint,
        }),
    }
}

/// Checks that a duration is a whole number of nanoseconds. Files store nanoseconds, so they would
/// round other durations.
fn check_whole_ns(option: &'static str, span: Span) -> Result<(), PatternOptionError> {
    if !span.0.is_multiple_of(1000) {
        return Err(refused_option_value_error(
            option,
            format!("{} ps", span.0),
            "whole nanoseconds, as files carry them",
        ));
    }
    Ok(())
}

/// Assigns consecutive ids to nodes, and passes them to a sink. All nodes share one buffer for their names, so that
/// none needs an allocation.
struct TraceEmitter<'s> {
    sink: &'s mut dyn Sink,
    last: u64,
    name: String,
    /// False if the sink ignores names. Names are then not formatted, because formatting takes longer than all other
    /// work for a node.
    named: bool,
}

impl<'s> TraceEmitter<'s> {
    fn new(sink: &'s mut dyn Sink) -> Self {
        Self {
            sink,
            last: 0,
            name: String::new(),
            named: true,
        }
    }

    /// Creates an emitter for a sink that ignores names, so that nodes get no names.
    fn without_names(sink: &'s mut dyn Sink) -> Self {
        Self {
            named: false,
            ..Self::new(sink)
        }
    }

    /// Sets the name of the next node.
    fn set_name(&mut self, name: fmt::Arguments<'_>) {
        if self.named {
            self.name.clear();
            self.name.write_fmt(name).expect("a string grows as needed");
        }
    }

    /// Sets the next node's name from two parts. A part that many names share is thus formatted only once.
    fn set_name_from_parts(&mut self, common: &str, own: &str) {
        if self.named {
            self.name.clear();
            self.name.push_str(common);
            self.name.push_str(own);
        }
    }

    /// Emits a node and returns its id, which is the previous id plus one.
    fn emit_node(
        &mut self,
        op: Op<'_>,
        lane: Option<i64>,
        recorded: Span,
        data: &[u64],
    ) -> Result<u64, TraceError> {
        self.last += 1;
        let node = NodeView {
            lane,
            recorded,
            ..NodeView::new(self.last, &self.name, op)
        };
        self.sink.receive_node(&node, data)?;
        Ok(self.last)
    }

    /// Emits a node with memory changes, labels, a kernel class and a shape, but without a recorded
    /// duration.
    fn emit_node_with_memory_and_labels(
        &mut self,
        (op, kernel): (Op<'_>, Option<KernelShape>),
        lane: Option<i64>,
        memory: NodeMemoryChanges,
        labels: NodePhaseStageLayerAndShapes<'_>,
        data: &[u64],
    ) -> Result<u64, TraceError> {
        self.last += 1;
        let node = NodeView {
            kernel,
            lane,
            memory,
            labels,
            ..NodeView::new(self.last, &self.name, op)
        };
        self.sink.receive_node(&node, data)?;
        Ok(self.last)
    }

    /// Emits one node of host work with zero duration for an idle rank, which would otherwise have no trace.
    fn emit_placeholder_for_idle_rank(&mut self) -> Result<(), TraceError> {
        self.set_name(format_args!("idle"));
        self.emit_node(Op::Host, None, Span::ZERO, &[]).map(drop)
    }
}

/// Returns a kernel with a recorded duration, but without FLOPs or bytes.
fn build_workless_kernel_op() -> Op<'static> {
    Op::Compute {
        flops: 0,
        bytes: 0,
        dtype: None,
    }
}
