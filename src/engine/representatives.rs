//! Representatives: if several identical copies of ranks are certain to do the same work at the same time, the engine
//! replays only one copy.
//!
//! A copy is a set of ranks that exchange messages only among themselves, such as one pipeline of a data-parallel job.
//! On a network without contention, copies affect each other only through collectives. Copies with the same graphs and
//! equivalent placements arrive at collectives together, so all copies end at the same time.
//!
//! One copy always suffices for collectives within a copy, such as the all-reduce of tied weights' gradients. For a
//! collective across copies, one copy suffices only if the collective is answered analytically, because such an answer
//! starts when the last member arrives.

use super::{CompiledReplay, InstanceId, PlacedWorkloadGroup, ReplayOptions};
use crate::{CollectiveRecord, Observer};
use chakram_base::ids::{NodeIndex, Npu, Rank};
use chakram_base::units::Time;
use chakram_hardware::machine::Machine;
use chakram_hardware::network::NetworkModelKind;
use chakram_hardware::topology::Topology;
use chakram_trace::graph::{Graph, NodeKind};
use chakram_trace::workload::{GraphBoundToRank, Workload};

/// Where a rank is: the index of its copy, and its index within the copy.
type JobCopyAndRankIndex = (u32, u32);

/// Replays one copy of a job on behalf of all copies. If one copy cannot represent the job, replays all ranks.
///
/// `copies` must be disjoint, have equal lengths, and together cover every rank. `replay` must replay its argument on
/// `machine` with `options`, and use a [`CopyRepresentsJobChecker`] as an observer. It must return the replay's result
/// and the result of [`CopyRepresentsJobChecker::represents_all`].
///
/// # Errors
///
/// Returns the errors of `replay`.
pub fn replay_one_copy_or_all_ranks<T, E>(
    workload: &Workload,
    machine: &Machine,
    options: &ReplayOptions,
    copies: &[Vec<u32>],
    replay: impl Fn(&Workload) -> Result<(T, bool), E>,
) -> Result<T, E> {
    if let Some(part) = extract_first_copy_of_job(workload, machine, options, copies)
        && let (answer, true) = replay(&part)?
    {
        return Ok(answer);
    }
    Ok(replay(workload)?.0)
}

/// Observer that checks whether the replay of one copy is valid for the whole job.
#[derive(Debug)]
pub struct CopyRepresentsJobChecker {
    /// For each group, true if it has absent members.
    partial: Vec<bool>,
    stands: bool,
}

impl CopyRepresentsJobChecker {
    /// Creates the check for a replay of `compiled`.
    pub fn new(compiled: &CompiledReplay<'_>) -> Self {
        let is_partial =
            |group: PlacedWorkloadGroup<'_>| group.members.len() > group.present as usize;
        Self {
            partial: compiled.group_views().map(is_partial).collect(),
            stands: true,
        }
    }

    /// Returns true if a replay of all ranks would end at the same time. This is so if no collective with absent
    /// members was simulated message by message.
    pub fn represents_all(&self) -> bool {
        self.stands
    }
}

impl Observer for CopyRepresentsJobChecker {
    fn on_issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}

    fn on_completed(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}

    fn on_collective_ended(&mut self, record: &CollectiveRecord) {
        self.stands &= !(record.stepwise && self.partial[record.group.index()]);
    }
}

/// Returns the part of `workload` that belongs to the first of `copies`. Members of other copies are absent from it,
/// and arrive together with the first copy's members. Returns `None` if there is only one copy, or if copies may behave
/// differently on `machine`.
fn extract_first_copy_of_job(
    workload: &Workload,
    machine: &Machine,
    options: &ReplayOptions,
    copies: &[Vec<u32>],
) -> Option<Workload> {
    let [first, others @ ..] = copies else {
        return None;
    };
    let network = options.network.unwrap_or(machine.network_model());
    if others.is_empty() || !ranks_meet_only_in_collectives(workload, network) {
        return None;
    }
    let mut places: Vec<Option<JobCopyAndRankIndex>> =
        vec![None; workload.rank_count_including_untraced() as usize];
    for (copy, ranks) in copies.iter().enumerate() {
        if ranks.len() != first.len() {
            return None;
        }
        for (at, &rank) in ranks.iter().enumerate() {
            *places.get_mut(rank as usize)? = Some((copy as u32, at as u32));
        }
    }
    let places: Vec<JobCopyAndRankIndex> = places.into_iter().collect::<Option<_>>()?;
    let instances = workload.instances();
    if instances.len() != places.len() {
        return None;
    }
    let comparison = JobCopyComparison {
        workload,
        machine,
        places: &places,
    };
    let alike = first.iter().enumerate().all(|(at, &rank)| {
        let own = &instances[rank as usize];
        comparison.group_members_have_first_copy_counterparts(own)
            && others.iter().all(|other| {
                let other = &instances[other[at] as usize];
                comparison.are_equal_instances(own, other)
            })
    });
    alike.then(|| workload.keep_traces_of_ranks(|rank| places[rank.index()].0 == 0))
}

/// Returns true if ranks that exchange no messages affect each other only through collectives. Returns false on a
/// network with contention. Also returns false if a graph accesses remote memory, which ranks may share.
pub(super) fn ranks_meet_only_in_collectives(
    workload: &Workload,
    network: NetworkModelKind,
) -> bool {
    let is_remote = |graph: &Graph| {
        let mut nodes = graph.nodes();
        nodes.any(|node| graph.kind(node) == NodeKind::RemoteMemory)
    };
    network == NetworkModelKind::ContentionFree && !workload.distinct_graphs().iter().any(is_remote)
}

struct JobCopyComparison<'a> {
    workload: &'a Workload,
    machine: &'a Machine,
    places: &'a [JobCopyAndRankIndex],
}

impl JobCopyComparison<'_> {
    /// `instance` must belong to the first copy. Returns true if every member of `instance`'s groups has a counterpart
    /// in the first copy of the job.
    fn group_members_have_first_copy_counterparts(&self, instance: &GraphBoundToRank) -> bool {
        instance.groups.iter().all(|group| {
            let members = &self.workload.groups()[group.index()].members;
            let places = members.iter().map(|member| self.places[member.index()]);
            let mut present: Vec<u32> = places
                .clone()
                .filter(|place| place.0 == 0)
                .map(|place| place.1)
                .collect();
            present.sort_unstable();
            places
                .map(|place| place.1)
                .all(|at| present.binary_search(&at).is_ok())
        })
    }

    /// Returns true if two corresponding ranks of two copies have the same graph and NPU class, and equivalent groups
    /// and peers.
    fn are_equal_instances(&self, a: &GraphBoundToRank, b: &GraphBoundToRank) -> bool {
        let class = |of: &GraphBoundToRank| self.machine.class_of_npu(self.npu_of_rank(of.rank));
        let groups = || {
            let mut pairs = a.groups.iter().zip(&b.groups);
            pairs.all(|(a, b)| {
                let [a, b] = [a, b].map(|group| &self.workload.groups()[group.index()].members);
                a == b || self.are_rank_lists_placed_alike(a, b)
            })
        };
        let peers = || {
            let mut pairs = a.peers.iter().zip(&b.peers);
            pairs.all(|(&to_a, &to_b)| {
                let [of_a, of_b] = [to_a, to_b].map(|peer| self.places[peer.index()]);
                let [own_a, own_b] = [a.rank, b.rank].map(|rank| self.places[rank.index()]);
                // A message must stay within its copy.
                of_a.0 == own_a.0
                    && of_b.0 == own_b.0
                    && of_a.1 == of_b.1
                    && self.are_rank_lists_placed_alike(&[a.rank, to_a], &[b.rank, to_b])
            })
        };
        a.graph == b.graph
            && a.release == b.release
            && class(a) == class(b)
            && (a.groups.len(), a.peers.len()) == (b.groups.len(), b.peers.len())
            && groups()
            && peers()
    }

    fn npu_of_rank(&self, rank: Rank) -> Npu {
        self.machine
            .npu_of_rank(rank.0, self.workload.rank_count_including_untraced())
    }

    /// Returns true if two lists of ranks are placed equivalently in every dimension of the machine.
    fn are_rank_lists_placed_alike(&self, a: &[Rank], b: &[Rank]) -> bool {
        let topology = self.machine.topology();
        let npus =
            |ranks: &[Rank]| Vec::from_iter(ranks.iter().map(|&rank| self.npu_of_rank(rank)));
        let (a, b) = (npus(a), npus(b));
        let along = |d: usize| {
            npu_layout_along_dimension(topology, &a, d)
                == npu_layout_along_dimension(topology, &b, d)
        };
        a.len() == b.len() && (0..topology.dimensions().len()).all(along)
    }
}

/// Returns the coordinates of `npus` along dimension `d`, in a form that is equal for equivalent placements. In
/// switched dimensions, it matters only which coordinates are equal, so distinct coordinates are numbered in the order
/// of first use. In wired dimensions, the result gives each NPU's distance from the first NPU.
pub(super) fn npu_layout_along_dimension(topology: &Topology, npus: &[Npu], d: usize) -> Vec<i64> {
    let coordinates: Vec<u32> = npus
        .iter()
        .map(|&npu| topology.coordinate_of(npu, d))
        .collect();
    let of = &topology.dimensions()[d];
    if !of.shape.has_ports() {
        let start = coordinates.first().copied().unwrap_or(0);
        let offsets = coordinates.iter().map(|&c| i64::from(c) - i64::from(start));
        return offsets.collect();
    }
    let mut seen: Vec<Option<i64>> = vec![None; of.size as usize];
    let labels = coordinates.iter().zip(0_i64..);
    labels
        .map(|(&c, i)| *seen[c as usize].get_or_insert(i))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReplayError;
    use chakram_trace::format::scan::NodeView;
    use chakram_trace::format::write::Sink;
    use chakram_trace::format::{CollectiveKind, Dtype, GroupName, Op};
    use chakram_trace::graph::{EnforcedDependencyKinds, GraphBuilder};
    use chakram_trace::workload::{MissingRankPolicy, WorkloadBuilder};
    use std::cell::RefCell;

    /// Returns a job of four ranks. Odd ranks compute for 10 us and even ranks for `even` us. All ranks then take part
    /// in an all-reduce of 1 MB.
    fn build_four_rank_all_reduce_job(even: u64) -> Workload {
        let mut builder = WorkloadBuilder::default();
        let graphs = [even, 10].map(|us| {
            let mut graph = GraphBuilder::new(0, EnforcedDependencyKinds::Both, 10);
            let kernel = Op::Compute {
                flops: us * 1_000_000,
                bytes: 0,
                dtype: Some(Dtype::Bf16),
            };
            let kernel = NodeView {
                lane: Some(7),
                ..NodeView::new(1, "kernel", kernel)
            };
            let sum = Op::Collective {
                kind: CollectiveKind::AllReduce,
                bytes: 1_000_000,
                group: GroupName::World,
                root: None,
                dimensions: None,
                host: false,
            };
            graph.receive_node(&kernel, &[]).unwrap();
            graph
                .receive_node(&NodeView::new(2, "sum", sum), &[1])
                .unwrap();
            let (graph, binding) = graph.finish_graph().unwrap();
            (builder.add_or_reuse_equal_graph(graph), binding)
        });
        for rank in 0..4 {
            let (graph, binding) = graphs[rank as usize % 2].clone();
            builder
                .add_rank(Rank(rank), graph, binding, Time::ZERO)
                .unwrap();
        }
        builder
            .finish_workload(None, MissingRankPolicy::Refuse)
            .unwrap()
    }

    /// Returns the number of ranks in each replay, and whether its result equals that of a replay of all ranks.
    fn replay_rank_counts_and_equality_to_full(
        even: u64,
        network: NetworkModelKind,
    ) -> (Vec<usize>, bool) {
        let machine = "name = \"four\"\n[npu.one]\npeak = { bf16 = \"1 TFLOP/s\" }\nmemory_bandwidth = \"1 TB/s\"\n\
            memory_latency = \"0\"\nmemory_capacity = \"1 GB\"\nlanes = 2\nhost_lanes = 1\n[[dimension]]\n\
            name = \"all\"\nshape = \"switch\"\nsize = 4\nbandwidth = \"100 GB/s\"\nlatency = \"1 us\"\n\
            algorithm = \"ring\"\n";
        let machine = Machine::parse(machine, "machine").unwrap();
        let options =
            ReplayOptions::default_with_changes(|options| options.network = Some(network));
        let sizes = RefCell::new(Vec::new());
        let replay = |workload: &Workload| {
            sizes.borrow_mut().push(workload.instances().len());
            let compiled = CompiledReplay::new(workload, &machine, &options)?;
            let (outcome, check) = compiled.run(CopyRepresentsJobChecker::new(&compiled))?;
            Ok::<_, ReplayError>((outcome.makespan, check.represents_all()))
        };
        let workload = build_four_rank_all_reduce_job(even);
        let copies = [vec![0, 1], vec![2, 3]];
        let one =
            replay_one_copy_or_all_ranks(&workload, &machine, &options, &copies, replay).unwrap();
        let all = replay(&workload).unwrap().0;
        sizes.borrow_mut().pop();
        (sizes.take(), one == all)
    }

    #[test]
    fn one_copy_represents_all_if_members_reach_collectives_together() {
        let free = NetworkModelKind::ContentionFree;
        assert_eq!(
            replay_rank_counts_and_equality_to_full(10, free),
            (vec![2], true)
        );
        assert_eq!(
            replay_rank_counts_and_equality_to_full(4, free),
            (vec![2, 4], true)
        );
        // On a network with contention, messages of the other copies affect the result, so the engine replays all
        // ranks.
        assert_eq!(
            replay_rank_counts_and_equality_to_full(10, NetworkModelKind::Ports),
            (vec![4], true)
        );
    }
}
