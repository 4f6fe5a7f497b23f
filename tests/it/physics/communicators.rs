//! Tests that names distinguish groups with the same members, in replays and in `validate`.

use super::lines::{TestTraceNode, build_collective, build_kernel};
use super::rig::{
    build_job_from_rank_nodes, build_machine_from_dims, encode_trace_file,
    make_dim_with_fixed_link_speed, make_proptest_config, make_stepwise_network_options,
    make_stepwise_options, replay_and_log, replay_with,
};
use chakram::engine::{CompiledReplay, NetworkModel, ReplayError, ReplayOptions};
use chakram::machine::CollectiveAlgorithm;
use chakram::machine::CollectiveAlgorithm::{Direct, Ring};
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind as K;
use chakram::validate::{DefectKind, DefectLog, TraceDefectsAndDigest};
use chakram::workload::{DeclaredGroups, EnforcedDependencyKinds};
use proptest::prelude::*;

const PAIR: [(&str, &[u32]); 2] = [("1", &[0, 1]), ("2", &[0, 1])];

/// Returns the result of `validate` on the same traces.
fn validate_ranks(ranks: &[Vec<TestTraceNode>], groups: &[(&str, &[u32])]) -> DefectLog {
    let traces = ranks.iter().map(|lines| {
        TraceDefectsAndDigest::check_trace(
            &encode_trace_file(lines),
            EnforcedDependencyKinds::Both,
            9,
        )
    });
    let traces: Vec<TraceDefectsAndDigest> = traces.collect();
    let members: Vec<_> = (0..).zip(&traces).collect();
    let declared = groups.iter().map(|(n, m)| ((*n).to_owned(), m.to_vec()));
    let options = chakram::validate::ValidateOptions::default_options_changed_by(|o| {
        o.ranks = Some(ranks.len() as u32);
        o.declared = declared.collect::<DeclaredGroups>();
        o.show = 9;
    });
    chakram::validate::validate_job(&members, &options)
}

/// Returns all network models, each once with closed forms and once with messages.
fn list_networks_closed_and_stepwise() -> Vec<ReplayOptions> {
    let networks = [
        NetworkModel::ContentionFree,
        NetworkModel::Ports,
        NetworkModel::Links,
    ];
    let mut ways = networks.map(make_stepwise_network_options).to_vec();
    ways.extend([ReplayOptions::default(), make_stepwise_options()]);
    ways
}

/// On a fabric, two NPUs broadcast 475,000 B at 20 ps/B over one link of 500 ns, which takes 9.5 + 0.5 = 10 us. Rank 1
/// is the root, and joins the first group's broadcast after 80 us. Rank 0 joins immediately, so the broadcast ends at
/// 90 us. The second group's broadcast, from rank 0, is independent. It ends at 10 us, and the following 100 us of
/// compute end at 110 us. If both were one group, the second broadcast would be its second operation. Rank 1 would then
/// run it after the first broadcast, although its bytes have arrived: 80 + 100 = 180 us.
#[test]
fn one_group_does_not_wait_for_another_of_the_same_ranks() {
    let broadcast = |group: Option<&'static str>, root| {
        let line = build_collective(K::Broadcast, 475_000).with_collective_root(root);
        group.map_or(line.clone(), |name| line.group(name))
    };
    let ranks = |first: Option<&'static str>, second| {
        vec![
            vec![broadcast(first, 1), broadcast(second, 0)],
            vec![
                build_kernel(80_000).on_lane(1),
                broadcast(first, 1).after(&[1]),
                broadcast(second, 0),
                build_kernel(100_000).on_lane(2).after(&[3]),
            ],
        ]
    };
    let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(
        DimensionShape::FullyConnected,
        2,
        Direct,
    )]);
    // The two groups have different names, or only the first or only the second has a name; the group without a name
    // has all ranks.
    for (first, second) in [(Some("1"), Some("2")), (None, Some("2")), (Some("1"), None)] {
        let ranks = ranks(first, second);
        for options in list_networks_closed_and_stepwise() {
            let replay = replay_with(
                &build_job_from_rank_nodes(&ranks, &PAIR),
                &machine,
                &options,
            );
            assert_eq!(
                replay.makespan_ps(),
                110_000_000,
                "{first:?} {second:?} {options:?}"
            );
            assert_eq!(replay.node_end_ps(0, 1), 90_000_000);
        }
        assert_eq!(validate_ranks(&ranks, &PAIR).count_by_severity().errors, 0);
    }
    // The same name twice is one group on one lane, so the time is 90 + 10 + 100 us.
    let one = replay_and_log(
        &build_job_from_rank_nodes(&ranks(Some("1"), Some("1")), &PAIR),
        &machine,
    );
    assert_eq!(one.makespan_ps(), 200_000_000);
}

/// Returns two groups of the same ranks with one collective each. Rank 0 calls the first group
/// first, and rank 1 calls the second group first.
fn build_opposite_group_order_ranks(dependent: bool) -> Vec<Vec<TestTraceNode>> {
    let after: &[u64] = if dependent { &[1] } else { &[] };
    let (one, two) = (
        || build_collective(K::AllReduce, 1000).group("1"),
        || build_collective(K::AllGather, 64).group("2"),
    );
    vec![
        vec![one(), two().after(after)],
        vec![two(), one().after(after)],
    ]
}

#[test]
fn orders_of_group_collectives_may_differ_between_ranks() {
    let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(
        DimensionShape::FullyConnected,
        2,
        Direct,
    )]);
    let independent = build_opposite_group_order_ranks(false);
    for options in list_networks_closed_and_stepwise() {
        replay_with(
            &build_job_from_rank_nodes(&independent, &PAIR),
            &machine,
            &options,
        );
    }
    assert_eq!(
        validate_ranks(&independent, &PAIR)
            .count_by_severity()
            .errors,
        0
    );
    // The same collectives run on one stream, and members of such groups start together.
    let mut streamed = independent;
    for line in streamed.iter_mut().flatten() {
        line.lane = Some(7);
    }
    for options in list_networks_closed_and_stepwise() {
        replay_with(
            &build_job_from_rank_nodes(&streamed, &PAIR),
            &machine,
            &options,
        );
    }
    // If each collective waits for the previous one, there is a cycle, which the error reports.
    let dependent = build_opposite_group_order_ranks(true);
    let workload = build_job_from_rank_nodes(&dependent, &PAIR);
    let prepared = CompiledReplay::new(&workload, &machine, &ReplayOptions::default()).unwrap();
    let stuck = prepared.run(()).unwrap_err();
    assert!(matches!(stuck, ReplayError::Stuck(_)), "{stuck}");
    let findings = validate_ranks(&dependent, &PAIR);
    assert_eq!(
        (
            findings.count_by_severity().errors,
            findings.count_of_kind(DefectKind::Deadlock)
        ),
        (1, 1)
    );
}

/// An error about disagreeing ranks names the group, because its members do not identify it.
#[test]
fn disagreements_name_the_group() {
    let mut ranks = build_opposite_group_order_ranks(false);
    ranks[1][0] = build_collective(K::AllGather, 65).group("2");
    let workload = build_job_from_rank_nodes(&ranks, &PAIR);
    let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(
        DimensionShape::FullyConnected,
        2,
        Direct,
    )]);
    let refusal = CompiledReplay::new(&workload, &machine, &ReplayOptions::default()).unwrap_err();
    let said = "of the group `2` of ranks 0, 1: ";
    assert!(refusal.to_string().contains(said), "{refusal}");
    let findings = validate_ranks(&ranks, &PAIR);
    let found = &findings.first_defects_of_kind(DefectKind::Collectives)[0].found;
    assert!(found.contains("of the group `2` of ranks 0-1: "), "{found}");
}

/// Each rank's program: calls of three groups, each after its own kernel, with or without streams. The calls of a group
/// are of the same kinds on all ranks, but each rank interleaves the groups in its own order.
#[derive(Clone, Debug)]
struct PerRankInterleavedGroupCalls {
    ranks: u32,
    /// Kinds of collectives for each group.
    calls: [Vec<K>; 3],
    /// For each rank: delays of its calls, and random numbers that shuffle them.
    late: Vec<Vec<(u64, usize)>>,
    streams: bool,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn any_interleaved_group_calls() -> impl Strategy<Value = PerRankInterleavedGroupCalls> {
    let kinds = || {
        prop::collection::vec(
            prop::sample::select(vec![
                K::AllReduce,
                K::AllGather,
                K::Broadcast,
                K::AllToAll,
                K::Reduce,
            ]),
            1..4,
        )
    };
    let times = prop_oneof![Just(0_u64), Just(500), 0_u64..9000];
    let late = prop::collection::vec(prop::collection::vec((times, any::<usize>()), 9), 5);
    (2_u32..=5, [kinds(), kinds(), kinds()], late, any::<bool>()).prop_map(
        |(ranks, calls, late, streams)| PerRankInterleavedGroupCalls {
            ranks,
            calls,
            late,
            streams,
        },
    )
}

impl PerRankInterleavedGroupCalls {
    /// Returns the makespan with these members of groups `a` and `b`, in a job of `all` ranks.
    /// Group `c` has all ranks except the last, or only the first rank.
    fn replay_makespan_with_group_members(
        &self,
        [a, b]: [&[u32]; 2],
        all: u32,
        algorithm: CollectiveAlgorithm,
        options: &ReplayOptions,
    ) -> u64 {
        let some: Vec<u32> = (0..(self.ranks - 1).max(1)).collect();
        let groups = [("a", a), ("b", b), ("c", &some[..])];
        let lines = |rank: u32| -> Vec<TestTraceNode> {
            if rank >= self.ranks {
                return vec![build_kernel(1)];
            }
            let mut left: Vec<(usize, usize)> = (0..3)
                .filter(|&group| groups[group].1.contains(&rank))
                .map(|group| (group, 0))
                .collect();
            let mut lines = Vec::new();
            for &(ns, pick) in &self.late[rank as usize] {
                left.retain(|&(group, next)| next < self.calls[group].len());
                if left.is_empty() {
                    break;
                }
                let at = pick % left.len();
                let (group, next) = left[at];
                left[at].1 += 1;
                let id = lines.len() as u64 + 1;
                lines.push(build_kernel(ns).on_lane(100 + id as i64));
                let line = build_collective(self.calls[group][next], 6000)
                    .group(NAMES[group])
                    .after(&[id]);
                lines.push(if self.streams {
                    line.on_lane(group as i64 / 2)
                } else {
                    line
                });
            }
            lines
        };
        let ranks: Vec<_> = (0..all).map(lines).collect();
        let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(
            DimensionShape::Switch,
            6,
            algorithm,
        )]);
        replay_with(
            &build_job_from_rank_nodes(&ranks, &groups),
            &machine,
            options,
        )
        .makespan_ps()
    }
}

proptest! {
    #![proptest_config(make_proptest_config(150))]

    /// The law: results depend neither on the declared order of members in one of two equal groups,
    /// nor on idle ranks outside both groups.
    #[test]
    fn makespan_ignores_member_order_of_equal_groups_and_idle_ranks(
        plan in any_interleaved_group_calls(),
        algorithm in prop::sample::select(vec![Ring, Direct]),
        model in prop::sample::select(vec![NetworkModel::ContentionFree, NetworkModel::Ports, NetworkModel::Links]),
    ) {
        let ascending: Vec<u32> = (0..plan.ranks).collect();
        let mut turned = ascending.clone();
        turned.rotate_left(1);
        let options = ReplayOptions::default_with_changes(|o| {
o.network = Some(model);
});
        let time = |members, all| plan.replay_makespan_with_group_members(members, all, algorithm, &options);
        let equal = time([&ascending, &ascending], plan.ranks);
        prop_assert_eq!(time([&ascending, &turned], plan.ranks), equal);
        prop_assert_eq!(time([&turned, &ascending], plan.ranks), equal);
        prop_assert_eq!(time([&ascending, &ascending], plan.ranks + 1), equal);
    }
}
