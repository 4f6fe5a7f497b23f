//! Tests recorded or captured delays and communication times, without an event loop. Each node's start and end follow
//! from other nodes' times, and applying the rules repeatedly converges.
//!
//! Jobs are random, but every collective depends on its group's previous one, and every node has its own lane. So
//! neither the order of collectives nor lanes have an effect.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::rig::{
    build_machine_from_dims, load_released_traces, make_dim_with_fixed_link_speed,
    make_options_with_comm_duration_source, make_proptest_config, replay_with,
};
use chakram::engine::CommunicationDurationSource;
use chakram::machine::CollectiveAlgorithm::Ring;
use chakram::topology::DimensionShape;
use chakram::trace::{CollectiveKind as K, GroupName, Op};
use chakram::workload::MissingRankPolicy;
use proptest::prelude::*;

/// Maximum number of ranks.
const RANKS: usize = 4;

/// Describes the next operation of all ranks. Most jobs use only a part of its numbers.
#[derive(Clone, Debug)]
struct OperationOfAllRanks {
    what: u32,
    kind: K,
    root: usize,
    /// For each rank: the duration, the delay, the wait, whether it is eager, and which recent nodes to depend on.
    parts: Vec<(u64, u64, u64, bool, u32)>,
}

fn operation_strategy() -> impl Strategy<Value = OperationOfAllRanks> {
    // There are few distinct values, so that many events are at the same instant.
    let ns = || prop::sample::select(vec![0_u64, 0, 10, 20, 30, 500, 777]);
    let part = (ns(), ns(), ns(), prop::bool::weighted(0.3), 0_u32..8);
    let parts = prop::collection::vec(part, RANKS);
    let kinds = prop::sample::select(K::ALL.map(|(kind, ..)| kind).to_vec());
    (0_u32..10, kinds, 0..RANKS, parts).prop_map(|(what, kind, root, parts)| OperationOfAllRanks {
        what,
        kind,
        root,
        parts,
    })
}

/// The group of the first and the last rank.
const PAIR: &str = "pair";

/// Returns the lines of `n` ranks.
fn build_rank_traces_from_operations(
    n: usize,
    items: &[OperationOfAllRanks],
) -> Vec<Vec<TestTraceNode>> {
    let mut ranks: Vec<Vec<TestTraceNode>> = vec![vec![build_kernel(0).on_lane(-1)]; n];
    // For each rank, the last collective in the group of all and in the pair.
    let mut last = vec![[None; 2]; n];
    for (tag, item) in (0..).zip(items) {
        let mut add = |rank: usize, line: TestTraceNode, group: Option<usize>| {
            let (ns, delay, wait, eager, mask) = item.parts[rank];
            let own = &mut ranks[rank];
            let id = own.len() as u64 + 1;
            let recent = (id.saturating_sub(3).max(1)..id).enumerate();
            let mut after: Vec<u64> = recent
                .filter(|(i, _)| mask >> i & 1 == 1)
                .map(|(_, id)| id)
                .collect();
            if let Some(group) = group {
                after.extend(last[rank][group]);
                last[rank][group] = Some(id);
            }
            let line = line.after(&after).lasts(ns).delayed(delay).waited(wait);
            // Receives occupy no lane.
            let line = match line.op {
                Op::Message { receive: true, .. } => line,
                _ => line.on_lane(id as i64),
            };
            own.push(if eager { line.with_eager_flag() } else { line });
        };
        let peer = (item.root + 1) % n;
        let root = item.root % n;
        match item.what {
            0..=2 => (0..n).for_each(|rank| add(rank, build_kernel(0), None)),
            3..=5 => {
                let bytes = if item.kind == K::Barrier { 0 } else { 64 };
                let node = build_collective(item.kind, bytes);
                let node = if item.kind.has_root() {
                    node.with_collective_root(root as u32)
                } else {
                    node
                };
                (0..n).for_each(|rank| add(rank, node.clone(), Some(0)));
            }
            6 => {
                let node = build_collective(item.kind, 0).group(PAIR);
                let ends = [0, n - 1];
                // In a job of two ranks, the pair is the group of all ranks.
                let chain = usize::from(n > 2);
                let root = ends[item.root % 2] as u32;
                let node = if item.kind.has_root() {
                    node.with_collective_root(root)
                } else {
                    node
                };
                ends.iter()
                    .for_each(|&rank| add(rank, node.clone(), Some(chain)));
            }
            _ if peer != root => {
                add(root, build_send(peer as u32, 8).tag(tag), None);
                add(peer, build_receive(root as u32, 8).tag(tag), None);
            }
            _ => {}
        }
    }
    ranks
}

/// A node: its rank and its index in the rank's lines.
type RankNodePosition = (usize, usize);

/// Returns the nodes of the collective or message that `at` belongs to, including `at` itself.
fn list_nodes_of_same_collective_or_message(
    ranks: &[Vec<TestTraceNode>],
    at: RankNodePosition,
) -> Vec<RankNodePosition> {
    let nodes = || {
        let ranks = ranks.iter().enumerate();
        ranks.flat_map(|(r, lines)| (0..lines.len()).map(move |i| (r, i)))
    };
    let line = |(r, i): RankNodePosition| &ranks[r][i];
    match line(at).op {
        Op::Collective { group, .. } => {
            let same = |&other: &RankNodePosition| matches!(line(other).op, Op::Collective { group: g, .. } if g == group);
            // Returns the group's k-th call on each rank.
            let nth = |other: RankNodePosition| {
                nodes()
                    .filter(same)
                    .filter(|o| o.0 == other.0 && o.1 < other.1)
                    .count()
            };
            let k = nth(at);
            nodes()
                .filter(same)
                .filter(|&other| nth(other) == k)
                .collect()
        }
        Op::Message { tag, .. } => {
            let same = |&other: &RankNodePosition| matches!(line(other).op, Op::Message { tag: t, .. } if t == tag);
            nodes().filter(same).collect()
        }
        _ => vec![at],
    }
}

/// Returns the end of every node, in ns.
fn compute_node_ends(
    ranks: &[Vec<TestTraceNode>],
    release: &[u64],
    comm: CommunicationDurationSource,
) -> Vec<Vec<u64>> {
    let shape = || ranks.iter().map(|lines| vec![0_u64; lines.len()]).collect();
    let (mut starts, mut ends): (Vec<Vec<u64>>, Vec<Vec<u64>>) = (shape(), shape());
    let nodes: Vec<RankNodePosition> = ranks
        .iter()
        .enumerate()
        .flat_map(|(r, lines)| (0..lines.len()).map(move |i| (r, i)))
        .collect();
    let parties: Vec<_> = nodes
        .iter()
        .map(|&at| list_nodes_of_same_collective_or_message(ranks, at))
        .collect();
    loop {
        let before = ends.clone();
        for (&(r, i), party) in nodes.iter().zip(&parties) {
            let line = &ranks[r][i];
            let done = line.after.iter().map(|&id| ends[r][id as usize - 1]).max();
            starts[r][i] = done.unwrap_or(release[r]) + line.delay_ns;
            let own = starts[r][i];
            let of = |rank: Option<usize>| {
                let part = party
                    .iter()
                    .filter(|at| rank.is_none_or(|rank| at.0 == rank));
                part.map(|&(r, i)| starts[r][i]).max().unwrap_or(0)
            };
            let begin = match line.op {
                _ if comm == CommunicationDurationSource::Captured => own + line.wait_ns,
                Op::Collective { kind, root, .. } if !line.eager => match kind {
                    K::Broadcast | K::Scatter | K::Reduce | K::Gather => {
                        let root = root.unwrap() as usize;
                        if root == r {
                            of(None)
                        } else {
                            own.max(of(Some(root)))
                        }
                    }
                    _ => of(None),
                },
                Op::Message { receive, .. } if receive || !line.eager => of(None),
                _ => own,
            };
            let kernel = matches!(line.op, Op::Compute { .. });
            ends[r][i] = if kernel { own } else { begin } + line.ns;
        }
        if ends == before {
            return ends;
        }
    }
}

proptest! {
    #![proptest_config(make_proptest_config(500))]

    #[test]
    fn replayed_nodes_end_as_computed_by_fixpoint(
        n in 2..=RANKS,
        items in prop::collection::vec(operation_strategy(), 1..16),
        release in prop::collection::vec(prop::sample::select(vec![0_u64, 0, 10, 900]), RANKS),
    ) {
        let ranks = build_rank_traces_from_operations(n, &items);
        let traces = (0..).zip(ranks.iter().map(Vec::as_slice));
        let mut builder = load_released_traces(traces, |rank| release[rank as usize]);
        builder.declare_groups([(PAIR.to_owned(), vec![0, n as u32 - 1])].into());
        let workload = builder.finish_workload(Some(n as u32), MissingRankPolicy::Refuse).unwrap();
        let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(DimensionShape::Ring, n as u32, Ring)]);
        let communicates = |line: &TestTraceNode| !matches!(line.op, Op::Compute { .. });
        let all = ranks.iter().flatten().filter(|line| communicates(line));
        // Without any recorded time the replay is an error; another test checks this.
        prop_assume!(all.clone().count() == 0 || all.clone().any(|line| line.ns + line.wait_ns > 0));
        let world = |line: &&TestTraceNode| matches!(line.op, Op::Collective { group: GroupName::World, .. });
        let pair = |line: &&TestTraceNode| matches!(line.op, Op::Collective { group: GroupName::Text(_), .. });
        let calls = |of: &dyn Fn(&&TestTraceNode) -> bool| ranks[0].iter().filter(|line| of(line)).count();
        for comm in [CommunicationDurationSource::Recorded, CommunicationDurationSource::Captured] {
            let replay = replay_with(&workload, &machine, &make_options_with_comm_duration_source(comm));
            for (r, want) in compute_node_ends(&ranks, &release, comm).iter().enumerate() {
                let found: Vec<_> =
                    (1..=want.len()).map(|id| replay.node_end_ps(r as u32, id as u32) / 1000).collect();
                prop_assert_eq!(&found, want, "rank {}, {:?}", r, comm);
            }
            let outcome = &replay.outcome;
            prop_assert_eq!((outcome.messages, outcome.closed, outcome.stepwise), (0, 0, 0));
            prop_assert_eq!(outcome.recorded as usize, calls(&world) + calls(&pair));
            prop_assert_eq!(replay.log.records.len() as u64, outcome.recorded);
            prop_assert_eq!(&replay, &replay_with(&workload, &machine, &make_options_with_comm_duration_source(comm)));
        }
    }
}
