//! Plans a replay before the run: placement, durations, lanes, groups and matches.

use super::coverage::DurationSourceCounts;
use super::discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
use super::error::ReplayRefusal;
use super::ids::{InstanceId, ReplayGroupId};
use super::options::ReplayOptions;
use super::placement::place_ranks;
use super::price_changes::{DurationAdjustment, DurationChangeEffect};
use super::unpriced_kernels::UntimedKernels;
use super::{in_switch, matching, tile_checks, untimed_communication};
use chakram_base::ids::{GroupId, MemberIndex, Npu, Position, Rank};
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use chakram_hardware::collective::PairBytesByPhase;
use chakram_hardware::group::{GroupPhasesAndMemberPositions, PathsToNextAndAnyMember};
use chakram_hardware::machine::Machine;
use chakram_hardware::topology::Topology;
use chakram_trace::format::{CollectiveKind, escape_and_shorten_name};
use chakram_trace::graph::{Graph, NodeKind};
use chakram_trace::matching::RankAndCommIndex;
use chakram_trace::workload::{Workload, format_shortened_list};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

mod groups;
mod prices;

use prices::compute_graph_durations;

/// Sentinel in arrays of indices that means "none".
pub(super) const NONE: u32 = u32::MAX;

/// A collective that all members of a group carry out together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PlannedCollective {
    pub kind: CollectiveKind,
    /// Size of the whole buffer in bytes ([`CollectiveKind::buffer_bytes`]).
    pub buffer: u64,
    /// Position of the collective's root in the extent.
    pub root: Position,
    /// Longest transfer that a member recorded. A collective of unknown size takes this time.
    pub recorded: Option<Span>,
    /// Duration that an option gives, which replaces the simulated duration.
    pub changed: Option<DurationAdjustment>,
}

/// A group of ranks that is placed on the machine.
#[derive(Debug)]
pub(super) struct PlacedCommunicationGroup {
    pub id: GroupId,
    /// Name of the group in the traces, or `None` if it has none.
    pub name: Option<String>,
    /// Mask of the dimensions that the group uses, or `None` for all dimensions.
    pub dimensions: Option<u32>,
    pub members: Vec<Rank>,
    /// Number of members with a trace.
    pub present: u32,
    pub extent: GroupPhasesAndMemberPositions,
    /// Paths between members in each phase, if they are equal for all members.
    pub paths: Vec<PathsToNextAndAnyMember>,
    /// Number of ports that a member has in a phase: two if the member may be wired to neighbours on both sides. If the
    /// group is not a sub-grid, a member has two ports for every dimension.
    pub sides: u32,
    /// Collectives of the group, in order. Groups with equal collectives share one list.
    pub calls: Arc<[PlannedCollective]>,
    /// For each collective with unequal parts, the index in [`ReplayPlan::splits`] of the table that gives the bytes
    /// between pairs of members.
    pub splits: BTreeMap<u32, u32>,
    /// True if a member's lane for this group's collectives also serves other nodes. Each collective is then launched
    /// only when every member is ready for it.
    pub launches_together: bool,
    /// Number of members that each member represents in a folded replay; empty if every member represents only
    /// itself.
    pub represents: Vec<u32>,
    /// Set if a folded replay stopped at a collective of this group: some members are absent, but members would end at
    /// different times.
    pub unequal: OnceLock<()>,
}

impl PlacedCommunicationGroup {
    /// Returns the number of ports that a collective of the group opens: one for each member, phase and side.
    pub fn count_ports_opened_by_collective(&self) -> u32 {
        self.extent.member_count() * self.extent.phases.len() as u32 * self.sides
    }

    /// Returns the index of a member's port in a phase.
    #[inline]
    pub fn port_index(&self, phase: usize, position: Position, side: u32) -> u32 {
        (phase as u32 * self.extent.member_count() + position.0) * self.sides + side
    }

    /// Returns the side on which a message leaves one member, and the side on which it enters the other.
    #[inline]
    pub fn sides_message_leaves_and_enters(
        &self,
        topology: &Topology,
        from: Position,
        to: Position,
    ) -> [u32; 2] {
        let npu = |position: Position| self.extent.npus[position.index()];
        match (self.extent.regular, self.sides) {
            (true, 1) => [0; 2],
            (true, _) => topology.sides_at_route_ends(npu(from), npu(to)),
            (false, _) => {
                let ports = topology.first_and_last_port(npu(from), npu(to));
                ports.map(|(dimension, side)| 2 * dimension as u32 + side)
            }
        }
    }
}

/// A communicator (group slot) in an instance's graph, bound to a group of ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoundGroupSlot {
    /// The communicator's group.
    pub group: ReplayGroupId,
    /// The instance's index among the group's members.
    pub member: MemberIndex,
}

/// The parts of a plan that one instance has for itself.
#[derive(Debug)]
pub(super) struct PlanPartsOfOneInstance {
    pub npu: Npu,
    /// Index in [`ReplayPlan::shared`] of the instance's durations and lane maps.
    pub shared: u32,
    pub slots: Vec<BoundGroupSlot>,
    /// Index of each call among its group's calls. `None` if the graph's own indices can be used, because each
    /// communicator (group slot) of the graph is bound to a different group.
    pub sequences: Option<Vec<u32>>,
    /// Match index of each message of the graph, or [`NONE`] if the other end has no trace.
    pub pairs: Vec<u32>,
}

/// The parts of a plan that all instances of one graph on one NPU class share.
#[derive(Debug)]
pub(super) struct SharedGraphPlan {
    /// Duration of each node that depends on no other node. For communication with recorded durations, the duration
    /// excludes the waiting time.
    pub prices: Vec<Span>,
    /// NPU lane of each lane in the graph, or [`NONE`] if the lane's nodes occupy no NPU lane.
    pub lanes: Vec<u32>,
    /// For each remote memory that the graph names, the index of that memory in the machine.
    pub memories: Vec<u32>,
    /// Number of NPU lanes that the graph uses.
    pub lane_count: u32,
    /// For each communicator (group slot) of the graph, true if its collectives share a lane with other nodes.
    pub mixed: Vec<bool>,
    /// Number of nodes on each NPU lane; computed on first use.
    lane_nodes: OnceLock<Vec<KernelAndOtherCountsOnLane>>,
    /// For each source of durations, the number of nodes whose durations come from it.
    pub basis: DurationSourceCounts,
    /// Kernels without a known duration.
    unpriced: UntimedKernels,
    /// Factor that multiplies the duration of kernels beginning while a collective runs on their NPU. The factor is 1
    /// for recorded durations, which already include the slowdown.
    pub beside_collectives: f64,
}

/// Numbers of kernels and of other nodes on one lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KernelAndOtherCountsOnLane {
    pub kernels: u32,
    pub others: u32,
}

impl SharedGraphPlan {
    /// Returns the number of nodes on each NPU lane; `graph` must be the graph of this plan.
    pub fn count_nodes_per_npu_lane(&self, graph: &Graph) -> &[KernelAndOtherCountsOnLane] {
        self.lane_nodes.get_or_init(|| {
            let mut nodes = vec![KernelAndOtherCountsOnLane::default(); self.lane_count as usize];
            for node in graph.nodes() {
                let lane = self.lanes[graph.lane(node) as usize];
                let Some(on) = nodes.get_mut(lane as usize) else {
                    continue;
                };
                match graph.kind(node) {
                    NodeKind::Compute => on.kernels += 1,
                    _ => on.others += 1,
                }
            }
            nodes
        })
    }

    /// Returns true if every kernel has a known duration.
    fn has_durations_of_all_kernels(&self) -> bool {
        self.unpriced.is_empty()
    }
}

/// Coordinates of an NPU in some dimensions, as (dimension, coordinate).
type CoordinatesInSomeDimensions = Vec<(usize, u32)>;

/// The plan of a replay: all decisions that runs share.
#[derive(Debug)]
pub(super) struct ReplayPlan {
    pub npu_of: Vec<Npu>,
    pub instance_of: Vec<u32>,
    pub instances: Vec<PlanPartsOfOneInstance>,
    pub shared: Vec<SharedGraphPlan>,
    /// For each NPU class, the index in `shared`, or [`NONE`] if the duration of some kernel is unknown on that class.
    /// The index depends on the class, because a feed may launch a single-rank job on any NPU. Empty for jobs with
    /// several ranks.
    pub shared_of_class: Vec<u32>,
    pub groups: Vec<PlacedCommunicationGroup>,
    /// For each all-to-all with unequal parts, the bytes between pairs of members.
    pub splits: Vec<PairBytesByPhase>,
    pub pairs: u32,
    /// For each channel, the index of the channel that counts its rendezvous requests. This is the first channel with
    /// the same ends and tag, whatever its message size. Used only if messages are matched in issue order.
    pub request_channels: Vec<u32>,
    pub basis: DurationSourceCounts,
    /// Error that reports show if most kernels have no known duration. `None` if most kernels have a known duration, or
    /// if the user chose a model that allows unknown durations.
    pub mostly_free: Option<ReplayRefusal>,
    /// Effect of each requested change of durations.
    pub changes: Vec<DurationChangeEffect>,
}

impl ReplayPlan {
    pub fn new<M: RequiredCollectiveBackendTraits>(
        workload: &Workload,
        machine: &Machine,
        options: &ReplayOptions,
        backend: &M,
    ) -> Result<Self, ReplayRefusal> {
        // An explicit map overrides the cores that the traces name.
        let cores = match options.map {
            Some(_) => None,
            None => tile_checks::place_ranks_on_cores(workload, machine)?,
        };
        let map = options.map.as_deref().or(cores.as_deref());
        let npu_of = place_ranks(workload.rank_count_including_untraced(), machine, map)?;
        let mut instance_of = vec![NONE; workload.rank_count_including_untraced() as usize];
        for (i, instance) in workload.instances().iter().enumerate() {
            instance_of[instance.rank.index()] = i as u32;
        }
        let mut basis = DurationSourceCounts::default();
        let mut shared = Vec::new();
        let changes = &options.changes;
        let mut counts = changes.create_zero_counts();
        let mut known: BTreeMap<(u32, usize, Option<Rank>), u32> = BTreeMap::new();
        let mut counted: Vec<Vec<DurationChangeEffect>> = Vec::new();
        let mut unpriced = UntimedKernels::default();
        let mut instances = Vec::with_capacity(workload.instances().len());
        for instance in workload.instances() {
            let npu = npu_of[instance.rank.index()];
            let class = machine.class_of_npu(npu);
            // Durations depend only on the graph and the NPU class. Ranks with equal graphs and classes therefore share
            // them, unless an option gives a rank its own.
            let own = changes.rank_if_it_may_have_own_durations(instance.rank);
            let key = (instance.graph.0, class, own);
            let index = match known.get(&key) {
                Some(&index) => index,
                None => {
                    let graph = workload.graph_of(instance);
                    let class = &machine.npu_classes()[class];
                    let mut priced =
                        compute_graph_durations(graph, class, machine, instance, options)?;
                    counted.push(changes.change_graph_durations(
                        graph,
                        instance.rank,
                        options.comm,
                        &mut priced.prices,
                    ));
                    shared.push(priced);
                    known.insert(key, shared.len() as u32 - 1);
                    shared.len() as u32 - 1
                }
            };
            let done = &counted[index as usize];
            counts
                .iter_mut()
                .zip(done)
                .for_each(|(sum, done)| sum.merge_count(done));
            basis.add_source_counts(shared[index as usize].basis);
            unpriced.add_kernels_of_rank_graph(
                &shared[index as usize].unpriced,
                instance.rank,
                class,
            );
            instances.push(PlanPartsOfOneInstance {
                npu,
                shared: index,
                slots: Vec::new(),
                sequences: None,
                pairs: Vec::new(),
            });
        }
        let mut shared_of_class = Vec::new();
        // A feed may launch a one-rank program on any NPU, so compute durations for every class.
        if let [instance] = workload.instances() {
            let own = machine.class_of_npu(npu_of[instance.rank.index()]);
            let graph = workload.graph_of(instance);
            for (number, class) in machine.npu_classes().iter().enumerate() {
                if number == own {
                    shared_of_class.push(0);
                    continue;
                }
                let priced = compute_graph_durations(graph, class, machine, instance, options);
                let mut priced = priced
                    .ok()
                    .filter(SharedGraphPlan::has_durations_of_all_kernels);
                if let Some(priced) = &mut priced {
                    changes.change_graph_durations(
                        graph,
                        instance.rank,
                        options.comm,
                        &mut priced.prices,
                    );
                }
                shared_of_class.push(priced.map_or(NONE, |priced| {
                    shared.push(priced);
                    shared.len() as u32 - 1
                }));
            }
        }
        let (free, mostly_free) =
            unpriced.count_or_refuse_untimed_kernels(workload, machine, options.compute, &basis)?;
        basis.unknown += free;
        // A replay needs only a few recorded durations, because the report counts the nodes without one.
        if basis.unrecorded > 0 && basis.as_recorded == 0 {
            return Err(ReplayRefusal::new(
                format!(
                    "communication should last as {}, but none of the {} communication nodes has a \
                     duration or `wait_ns`",
                    options.comm, basis.unrecorded
                ),
                format!(
                    "{} model, which simulates communication on the machine's network; or convert \
                     the capture again, with the durations of its communication kernels",
                    SettingKey::Comm
                ),
            ));
        }
        let mut plan = Self {
            npu_of,
            instance_of,
            instances,
            shared,
            shared_of_class,
            groups: Vec::new(),
            splits: Vec::new(),
            pairs: 0,
            request_channels: Vec::new(),
            basis,
            mostly_free,
            changes: counts,
        };
        in_switch::check_switch_accesses(workload, machine)?;
        plan.bind_groups(workload, machine, backend);
        if M::Order::MATCHES_AS_ISSUED {
            matching::renumber_calls_in_shared_groups(&mut plan, workload);
            matching::number_message_channels(&mut plan, workload, options.allow_unmatched)?;
        } else {
            matching::match_collectives(&mut plan, workload, options)?;
            matching::assign_message_matches(&mut plan, workload)?;
            plan.refuse_communication_without_size_or_time(workload, options)?;
        }
        tile_checks::check_job_fits_tile_machine(&plan, workload, machine, options)?;
        changes.check_changes_match_nodes(&plan.changes, workload)?;
        Ok(plan)
    }

    /// Counts communication that takes no time because neither its size nor its duration is known. Fails if there is
    /// such communication, unless the options request a lower bound.
    fn refuse_communication_without_size_or_time(
        &mut self,
        workload: &Workload,
        options: &ReplayOptions,
    ) -> Result<(), ReplayRefusal> {
        if self.basis.size_unknown_free == 0 {
            return Ok(());
        }
        let untimed = untimed_communication::find_untimed_nodes(self, workload);
        self.basis.size_unknown_free = untimed.len() as u64;
        match untimed.is_empty() || options.lower_bound {
            true => Ok(()),
            false => Err(untimed_communication::untimed_communication_error(
                workload, &untimed,
            )),
        }
    }

    /// Returns the instance of a rank, if it has a trace.
    pub fn instance_of_rank(&self, rank: Rank) -> Option<InstanceId> {
        let index = self.instance_of[rank.index()];
        (index != NONE).then_some(InstanceId(index))
    }

    /// Assigns the next match index to one half of a message.
    pub(super) fn assign_next_match_index_to_message_half(
        &mut self,
        (instance, message): RankAndCommIndex,
    ) {
        self.instances[instance as usize].pairs[message as usize] = self.pairs;
    }
}

/// Formats a group for error messages: `group of ranks 0, 1`, ``group `tp` of ranks 0, 1``.
pub(super) fn group_text(group: &PlacedCommunicationGroup) -> String {
    let members = format_shortened_list(group.members.iter().map(|m| m.0));
    match &group.name {
        None => format!("group of ranks {members}"),
        Some(name) => format!(
            "group `{}` of ranks {members}",
            escape_and_shorten_name(name)
        ),
    }
}
