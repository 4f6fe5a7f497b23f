//! A compiled replay: all inputs of a run and its report.

use super::coverage::DurationSourceCounts;
use super::discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
use super::extensions::ReplacementKernelAndMemoryModels;
use super::failures::{self, PlannedFailure};
use super::feed::SingleLaunchFeed;
use super::host_launches::{self, ResolvedReplayDurationSources};
use super::ids::{InstanceId, ReplayGroupId};
use super::options::{CommunicationDurationSource, ReplayOptions};
use super::plan::{NONE, PlanPartsOfOneInstance, ReplayPlan, SharedGraphPlan};
use super::price_changes::DurationChangeEffect;
use super::run_programs::{RunProgramsAndFeeds, create_native_backend, run_over_network};
use super::tile_groups;
use super::{CompletedReplayTotals, Engine, ReplayError, ReplayRefusal};
use crate::Observer;
use chakram_base::ids::{GroupId, NodeIndex, Npu, Rank};
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use chakram_hardware::collective::{
    ChunkCountChoiceCache, CollectiveAlgorithmsFormatter, MeasurementSetupLinkProperties,
    NamedScriptedAlgorithm, find_dimension_measured_on_other_links, find_measured_time_collective,
};
use chakram_hardware::compute::HostDurationSource;
use chakram_hardware::group::GroupPhasesAndMemberPositions;
use chakram_hardware::machine::Machine;
use chakram_hardware::network::{NetworkBackend, NetworkModelKind};
use chakram_hardware::topology::link_graph::MOST_NPUS;
use chakram_trace::format::CollectiveKind;
use chakram_trace::graph::Graph;
use chakram_trace::workload::Workload;

/// A group of the workload, with its placement on the machine.
#[derive(Clone, Debug)]
pub struct PlacedWorkloadGroup<'a> {
    /// Id of this group in the workload.
    pub id: GroupId,
    /// Mask of the machine's dimensions that the group uses, or `None` for all dimensions.
    pub dimensions: Option<u32>,
    /// The group's ranks, in member order.
    pub members: &'a [Rank],
    /// Number of members that have a trace.
    pub present: u32,
    /// Placement of the group's members on the machine.
    pub extent: &'a GroupPhasesAndMemberPositions,
}

/// Everything that is decided before a replay. Runs and reports take this value as input.
#[derive(Debug)]
pub struct CompiledReplay<'a> {
    /// The workload as given, without the host launches that the machine adds.
    given: &'a Workload,
    /// The options. If the options specify no correction, the machine's correction is filled in.
    options: ReplayOptions,
    /// The workload with added launch nodes, or `None` if the host launches no nodes.
    launched: Option<Workload>,
    pub(super) machine: &'a Machine,
    pub(super) plan: ReplayPlan,
    pub(super) stepwise: bool,
    pub(super) ordered_ends: bool,
    pub(super) links: bool,
    pub(super) aggregate: bool,
    pub(super) extensions: ReplacementKernelAndMemoryModels,
    pub(super) comm: CommunicationDurationSource,
    pub(super) host: HostDurationSource,
    network: NetworkModelKind,
    pub(super) custom: Vec<NamedScriptedAlgorithm>,
    pub(super) prices: ResolvedReplayDurationSources,
    pub(super) failures: Vec<PlannedFailure>,
    /// True if collectives and messages are matched in issue order, as [`EventOrderDiscipline::MATCHES_AS_ISSUED`] says
    /// for the backend that the replay was compiled for.
    pub(super) as_issued: bool,
    describer: CollectiveAlgorithmsFormatter,
    /// How many chunks each collective uses; all runs and reports share these choices.
    pub(super) chosen: ChunkCountChoiceCache,
}

impl<'a> CompiledReplay<'a> {
    /// Places ranks on NPUs, works out the nodes' durations, and matches collectives and messages.
    ///
    /// Fails if there are more ranks than NPUs, if the ranks of a group call different collectives, or if messages are
    /// unmatched. Also fails if memories are missing or too small, or if the replay needs recorded communication times
    /// that are missing.
    pub fn new(
        workload: &'a Workload,
        machine: &'a Machine,
        options: &ReplayOptions,
    ) -> Result<Self, ReplayRefusal> {
        let prices =
            host_launches::resolve_launch_and_time_source_defaults(workload, machine, options);
        let chosen = ChunkCountChoiceCache::default();
        let backend = create_native_backend(
            machine,
            &options.custom,
            std::iter::empty(),
            &prices,
            &chosen,
        );
        let compiled =
            Self::compile_with_duration_sources(workload, machine, options, &backend, prices)?;
        // Keep the chunk counts that the backend chose at compilation, so that runs do not choose them again.
        Ok(Self { chosen, ..compiled })
    }

    /// Compiles a replay like [`Self::new`], but with the collectives of `backend`. To run such a replay, call
    /// [`Self::run_with_network_and_backend`] with the same backend.
    pub fn compile_with_collective_backend<M: RequiredCollectiveBackendTraits>(
        workload: &'a Workload,
        machine: &'a Machine,
        options: &ReplayOptions,
        backend: &M,
    ) -> Result<Self, ReplayRefusal> {
        let prices =
            host_launches::resolve_launch_and_time_source_defaults(workload, machine, options);
        Self::compile_with_duration_sources(workload, machine, options, backend, prices)
    }

    /// Compiles a replay like [`Self::compile_with_collective_backend`], but with known sources of durations. Finding
    /// the sources visits every graph, so callers do it only once.
    fn compile_with_duration_sources<M: RequiredCollectiveBackendTraits>(
        workload: &'a Workload,
        machine: &'a Machine,
        options: &ReplayOptions,
        backend: &M,
        prices: ResolvedReplayDurationSources,
    ) -> Result<Self, ReplayRefusal> {
        let launched = host_launches::insert_host_launches(workload, machine, prices);
        let options = &ReplayOptions {
            correction: prices.correction,
            ..options.clone()
        };
        let planned = launched.as_ref().unwrap_or(workload);
        let network = options.network.unwrap_or(machine.network_model());
        check_network_supports_links(machine, network, options)?;
        let measured = prices.measured_collectives && !machine.collective_curves().is_empty();
        let of_backend = (M::Order::MATCHES_AS_ISSUED, measured);
        let failures =
            failures::resolve_failures_to_npus_and_links(machine, (options, network), of_backend)?;
        Ok(Self {
            plan: ReplayPlan::new(planned, machine, options, backend)?,
            given: workload,
            options: options.clone(),
            launched,
            machine,
            stepwise: options.stepwise || options.links,
            ordered_ends: options.ordered_ends,
            links: options.links && options.comm == CommunicationDurationSource::Model,
            aggregate: options.aggregate && options.comm == CommunicationDurationSource::Model,
            extensions: options.extensions.clone(),
            comm: options.comm,
            host: options.host,
            network,
            custom: options.custom.clone(),
            failures,
            prices,
            as_issued: M::Order::MATCHES_AS_ISSUED,
            describer: backend.describer(),
            chosen: ChunkCountChoiceCache::default(),
        })
    }

    /// Compiles a part of the workload with the machine, options and duration sources of `self`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::new`].
    pub(super) fn compile_workload_part<'p>(
        &'p self,
        part: &'p Workload,
    ) -> Result<CompiledReplay<'p>, ReplayRefusal> {
        let (custom, chosen) = (&self.custom, &self.chosen);
        let backend = create_native_backend(
            self.machine,
            custom,
            std::iter::empty(),
            &self.prices,
            chosen,
        );
        let compiled = CompiledReplay::compile_with_duration_sources(
            part,
            self.machine,
            &self.options,
            &backend,
            self.prices,
        )?;
        let chosen = chosen.clone();
        Ok(CompiledReplay { chosen, ..compiled })
    }

    /// Fails if most kernels would take no time because no model gives their durations.
    pub fn check_most_kernels_have_durations(&self) -> Result<(), ReplayRefusal> {
        self.plan.mostly_free.clone().map_or(Ok(()), Err)
    }

    /// Fails if the options request tile groups but no rank can represent another.
    pub fn check_requested_tile_groups_form(&self) -> Result<(), ReplayRefusal> {
        match self.aggregate {
            true => tile_groups::check_any_tile_group_forms(
                self.workload_with_added_launches(),
                &self.plan,
            ),
            false => Ok(()),
        }
    }

    /// Returns how many nodes take their durations from each source.
    pub fn duration_source_counts(&self) -> DurationSourceCounts {
        self.plan.basis
    }

    /// Returns, for each requested change of durations ([`ReplayOptions::changes`]), the number of affected nodes.
    pub fn duration_change_effects(&self) -> &[DurationChangeEffect] {
        &self.plan.changes
    }

    /// Returns true if tile groups are used, in which one rank is simulated for several identical ranks.
    pub fn uses_tile_groups(&self) -> bool {
        self.aggregate
    }

    /// Returns where the durations of collectives and messages come from.
    pub fn comm_duration_source(&self) -> CommunicationDurationSource {
        self.comm
    }

    /// Returns where the durations of host work come from.
    pub fn host_duration_source(&self) -> HostDurationSource {
        self.host
    }

    /// Returns a node's duration if it does not depend on other nodes. The node is a kernel, host work, or a local load
    /// or store.
    pub fn duration_of_independent_node(&self, instance: InstanceId, node: NodeIndex) -> Span {
        let planned = &self.plan.instances[instance.index()];
        self.plan.shared[planned.shared as usize].prices[node.index()]
    }

    /// Returns the network model that [`Self::run`] uses.
    pub fn network_kind(&self) -> NetworkModelKind {
        self.network
    }

    /// Returns the groups, in the numbering of [`CollectiveRecord::group`](crate::CollectiveRecord::group).
    pub fn group_views(&self) -> impl Iterator<Item = PlacedWorkloadGroup<'_>> {
        self.plan.groups.iter().map(|group| PlacedWorkloadGroup {
            id: group.id,
            dimensions: group.dimensions,
            members: &group.members,
            present: group.present,
            extent: &group.extent,
        })
    }

    /// Returns a readable name for the algorithms that a group uses for collectives of `kind` whose buffer has `bytes`
    /// bytes.
    pub fn describe_algorithms_of_collective(
        &self,
        kind: CollectiveKind,
        group: &PlacedWorkloadGroup<'_>,
        bytes: u64,
    ) -> String {
        let topology = self.machine.topology();
        self.describer
            .describe_collective(kind, group.extent, topology, bytes)
    }

    /// Returns true if the machine's host launches nodes, because the trace has no host times.
    pub fn has_machine_host_launches(&self) -> bool {
        self.launched.is_some()
    }

    /// Returns true if the launch mode is the default.
    pub fn has_default_launch_mode(&self) -> bool {
        self.prices.launch == self.prices.default_launch
    }

    /// Returns the relative error that remains after the machine's correction, or `None` if no correction applies.
    pub fn error_remaining_after_correction(&self) -> Option<f64> {
        self.prices.corrected_to
    }

    /// Returns true if collectives of `kind` in `group` take measured times when nothing disturbs them.
    pub fn has_measured_collective_times(
        &self,
        kind: CollectiveKind,
        group: &PlacedWorkloadGroup<'_>,
    ) -> bool {
        let custom =
            |custom: &NamedScriptedAlgorithm| custom.applies_to(kind, group.extent.member_count());
        let curves = self.machine.collective_curves();
        self.prices.measured_collectives
            && !self.custom.iter().any(custom)
            && find_measured_time_collective(
                curves,
                (kind, 1),
                (group.extent, self.machine.topology()),
            )
            .is_some()
    }

    /// Returns the dimension and rates of the links on which `group`'s collectives of `kind` were measured. Returns
    /// `None` unless collectives take these measured times and the machine's links have different rates.
    pub fn differing_links_of_measured_collectives(
        &self,
        kind: CollectiveKind,
        group: &PlacedWorkloadGroup<'_>,
    ) -> Option<(usize, MeasurementSetupLinkProperties)> {
        let curves = self.machine.collective_curves();
        let lie = (group.extent, self.machine.topology());
        let measured = self.has_measured_collective_times(kind, group);
        measured.then(|| find_dimension_measured_on_other_links(curves, kind, lie))?
    }

    /// Returns the NPU on which `rank` is placed.
    pub fn npu_of_rank(&self, rank: Rank) -> Npu {
        self.plan.npu_of[rank.index()]
    }

    /// Returns the group of a collective node.
    pub fn group_of_collective_node(&self, instance: InstanceId, node: NodeIndex) -> ReplayGroupId {
        let of = &self.workload_with_added_launches().instances()[instance.index()];
        let call = self
            .workload_with_added_launches()
            .graph_of(of)
            .collective_of(node);
        self.plan.instances[instance.index()].slots[call.group as usize].group
    }

    /// Returns the group to which each communicator (group slot) in an instance's graph is bound, by slot index.
    pub fn groups_bound_to_instance_communicators(
        &self,
        instance: InstanceId,
    ) -> impl Iterator<Item = ReplayGroupId> + '_ {
        let slots = self.plan.instances[instance.index()].slots.iter();
        slots.map(|slot| slot.group)
    }

    /// Returns the group of a collective node, and the node's index among the group's collectives, counting from 0.
    pub fn group_and_index_of_collective(
        &self,
        instance: InstanceId,
        node: NodeIndex,
    ) -> (ReplayGroupId, u32) {
        let of = &self.workload_with_added_launches().instances()[instance.index()];
        let graph = self.workload_with_added_launches().graph_of(of);
        let (call, planned) = (
            graph.collective_of(node),
            &self.plan.instances[instance.index()],
        );
        let sequence = planned.sequences.as_ref();
        let sequence = sequence.map_or(call.sequence, |all| {
            all[graph.index_of_collective_call(node)]
        });
        (planned.slots[call.group as usize].group, sequence)
    }

    /// Returns the index of the machine's memory that a load or store names, or `None` if the node names no memory.
    pub fn memory_named_by_load_or_store(
        &self,
        instance: InstanceId,
        node: NodeIndex,
    ) -> Option<u32> {
        let of = &self.workload_with_added_launches().instances()[instance.index()];
        let slot = self
            .workload_with_added_launches()
            .graph_of(of)
            .remote_memory(node)?;
        let planned = &self.plan.instances[instance.index()];
        Some(self.plan.shared[planned.shared as usize].memories[slot as usize])
    }

    /// Maps each lane of an instance's graph to the NPU lane that its nodes occupy, or to `None`.
    pub fn npu_lanes_of_graph_lanes(
        &self,
        instance: InstanceId,
    ) -> impl ExactSizeIterator<Item = Option<u32>> + '_ {
        let planned = &self.plan.instances[instance.index()];
        let lanes = &self.plan.shared[planned.shared as usize].lanes;
        lanes.iter().map(|&lane| (lane != NONE).then_some(lane))
    }

    /// Returns the number of collectives of each group, in the order of [`Self::group_views`].
    pub fn collective_counts_by_group(&self) -> impl Iterator<Item = usize> + '_ {
        self.plan.groups.iter().map(|group| group.calls.len())
    }

    /// Returns the total number of sends of all ranks.
    pub fn count_sends(&self) -> u64 {
        let workload = self.workload_with_added_launches();
        let sends = |graph: &Graph| {
            let sends = graph.messages().iter().filter(|message| !message.receive);
            sends.count() as u64
        };
        let sends: Vec<u64> = workload.distinct_graphs().iter().map(sends).collect();
        let instances = workload.instances().iter();
        instances
            .map(|instance| sends[instance.graph.index()])
            .sum()
    }

    /// Returns the match index that a send and its receive share, or `None` if the other end has no trace.
    pub fn match_number_of_message(&self, instance: InstanceId, node: NodeIndex) -> Option<u32> {
        let of = &self.workload_with_added_launches().instances()[instance.index()];
        let message = self
            .workload_with_added_launches()
            .graph_of(of)
            .message_index(node);
        let pair = self.plan.instances[instance.index()].pairs[message];
        (pair != NONE).then_some(pair)
    }

    /// Fails if the program cannot run on `npu`; `None` selects the NPU that it was compiled for.
    pub(super) fn check_can_launch_on_npu(&self, npu: Option<Npu>) -> Result<(), ReplayRefusal> {
        let Some(npu) = npu else { return Ok(()) };
        let (name, npus) = (self.machine.name(), self.machine.topology().npu_count());
        if self.plan.shared_of_class.is_empty() {
            return Err(ReplayRefusal::new(
                format!(
                    "a feed launches a program of several ranks at NPU {npu}, but only programs of one rank can move to another NPU"
                ),
                "a program of one rank, or a program compiled for this placement",
            ));
        }
        if npu.0 >= npus {
            return Err(ReplayRefusal::new(
                format!(
                    "a feed launches a program at NPU {npu}, but machine `{name}` has {npus} NPUs (0 to {})",
                    npus - 1
                ),
                "an NPU of the machine",
            ));
        }
        let class = self.machine.class_of_npu(npu);
        if self.plan.shared_of_class[class] == NONE {
            return Err(ReplayRefusal::new(
                format!(
                    "a feed launches at NPU {npu} a program whose kernels have no known time on NPU class `{}`",
                    self.machine.npu_classes()[class].name
                ),
                "an NPU of another class, or peaks of this class for the formats of the kernels",
            ));
        }
        Ok(())
    }

    /// Returns the plan of an instance on `npu`; `None` selects the NPU that it was compiled for.
    pub(super) fn graph_plan_on_npu(
        &self,
        planned: &PlanPartsOfOneInstance,
        npu: Option<Npu>,
    ) -> &SharedGraphPlan {
        let own = planned.shared;
        let shared = npu.map_or(own, |npu| {
            self.plan.shared_of_class[self.machine.class_of_npu(npu)]
        });
        &self.plan.shared[shared as usize]
    }

    /// Returns the machine on which the replay runs.
    pub fn machine(&self) -> &'a Machine {
        self.machine
    }

    /// Returns the workload, including added launch nodes if the host launches nodes ([`ReplayOptions::launch`]).
    pub fn workload_with_added_launches(&self) -> &Workload {
        self.launched.as_ref().unwrap_or(self.given)
    }

    /// Returns the workload without the launch nodes that the machine adds.
    pub fn workload_without_added_launches(&self) -> &'a Workload {
        self.given
    }

    /// Runs the replay to its end, and notifies `observer`.
    pub fn run<O: Observer>(
        &self,
        mut observer: O,
    ) -> Result<(CompletedReplayTotals, O), ReplayError> {
        let outcome = self.run_with_dyn_observer(&mut observer)?;
        Ok((outcome, observer))
    }

    /// The event loop is compiled once for all observers, which costs one virtual call per notification.
    #[inline(never)]
    fn run_with_dyn_observer(
        &self,
        observer: &mut dyn Observer,
    ) -> Result<CompletedReplayTotals, ReplayError> {
        self.run_specialized_for_observer(observer)
    }

    /// Runs like [`Self::run`], but in a loop compiled for this observer type. Meant for the observers that every
    /// report needs.
    pub fn run_specialized_for_observer<O: Observer + ?Sized>(
        &self,
        observer: &mut O,
    ) -> Result<CompletedReplayTotals, ReplayError> {
        let mut feed = SingleLaunchFeed::of_program(0);
        run_over_network(RunProgramsAndFeeds::of_program(self, &mut feed), observer)
    }

    /// Runs the replay to its end over the caller's network, with the machine's collective algorithms.
    ///
    /// # Errors
    ///
    /// Fails for the same reasons as [`Self::run`].
    pub fn run_on_network<O: Observer + ?Sized, N: NetworkBackend>(
        &self,
        observer: &mut O,
        network: N,
    ) -> Result<CompletedReplayTotals, ReplayError> {
        let backend = &mut create_native_backend(
            self.machine,
            &self.custom,
            self.plan.splits.iter(),
            &self.prices,
            &self.chosen,
        );
        self.run_with_network_and_backend(observer, network, backend)
    }

    /// Runs the replay to its end over `network`, with the collectives of `backend`. The replay must have been compiled
    /// for this backend.
    pub fn run_with_network_and_backend<
        O: Observer + ?Sized,
        N: NetworkBackend,
        M: RequiredCollectiveBackendTraits,
    >(
        &self,
        observer: &mut O,
        network: N,
        backend: &mut M,
    ) -> Result<CompletedReplayTotals, ReplayError> {
        assert_eq!(
            self.as_issued,
            M::Order::MATCHES_AS_ISSUED,
            "another backend than it was prepared for"
        );
        let mut feed = SingleLaunchFeed::of_program(0);
        let source = RunProgramsAndFeeds::of_program(self, &mut feed);
        Engine::new(source, observer, network, backend).run()
    }
}

/// Fails if the network model does not support the machine's links or its number of NPUs.
fn check_network_supports_links(
    machine: &Machine,
    network: NetworkModelKind,
    options: &ReplayOptions,
) -> Result<(), ReplayRefusal> {
    if options.comm != CommunicationDurationSource::Model {
        return Ok(());
    }
    let (name, topology) = (machine.name(), machine.topology());
    let shares = network == NetworkModelKind::FairSharing;
    if topology.explicit_links().is_some() && !shares {
        return Err(ReplayRefusal::new(
            format!(
                "network model {network} supports only dimensions, but machine `{name}` has explicit links"
            ),
            format!(
                "{} fair-sharing, the model of machines with explicit links",
                SettingKey::Network
            ),
        ));
    }
    if (shares || options.links) && topology.npu_count() > MOST_NPUS {
        let npus = topology.npu_count();
        return Err(ReplayRefusal::new(
            format!(
                "machine `{name}` has {npus} NPUs, but models of single links support at most {MOST_NPUS}"
            ),
            format!(
                "{} ports or links, without {}",
                SettingKey::Network,
                SettingKey::Links
            ),
        ));
    }
    Ok(())
}
