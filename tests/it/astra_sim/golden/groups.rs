//! Tests collectives of groups, collectives on only some dimensions, collectives one after another, and algorithms
//! given as traces.

use super::*;

/// Splits the collective between two groups, the first and the second half of the NPUs.
pub fn split_collective_between_npu_halves(config: &mut WholeSimulationInput) {
    let npus = config.npu_count();
    for (group, first) in [(1, 0), (2, npus / 2)] {
        let members: Vec<usize> = (first..first + npus / 2).collect();
        for &npu in &members {
            if let NodeWork::Collective { group: of, .. } = &mut config.ranks[npu][0].work {
                *of = group;
            }
        }
        config.groups.insert(group, members);
    }
}

/// A group ignores the dimensions: even with one algorithm per dimension, the group uses a ring. A
/// chunk of 2^18 B takes 7·10 + 6·(500 + 1220) + 3·3930 = 22180, and there are four chunks.
#[test]
fn groups_use_a_ring_whatever_the_dimension_algorithms() {
    let dims = [(Ring, 4, 50.0, 500.0), (Switch, 2, 50.0, 500.0)];
    let names = ["direct", "halvingDoubling"];
    let mut config = build_config_of_one_collective(Unaware, &dims, AllReduce, &names, MIB);
    split_collective_between_npu_halves(&mut config);
    assert_eq!(
        find_first_and_last_finish(&simulate_and_check_program_agrees(&config)),
        (88_720, 88_720)
    );
}

/// If the same NPUs form a dimension, they take 3·10 + 2·1720 + 3930, and messages to the farthest peer take 500 more:
/// 7900 for each of four chunks.
#[test]
fn a_dimension_without_a_group_keeps_its_algorithm() {
    let dims = [(Ring, 4, 50.0, 500.0), (Switch, 2, 50.0, 500.0)];
    let names = ["direct", "halvingDoubling"];
    let mut config = build_config_of_one_collective(Unaware, &dims, AllReduce, &names, MIB);
    for rank in &mut config.ranks {
        if let NodeWork::Collective { dims, .. } = &mut rank[0].work {
            *dims = Some(vec![true, false]);
        }
    }
    assert_eq!(
        find_first_and_last_finish(&simulate_and_check_program_agrees(&config)),
        (31_600, 31_600)
    );
}

/// In a group, a direct all-reduce also reduces the second half: 3·10 + 2·1720 + 2·3930 = 11330
/// instead of 7400, for each of four chunks. The file's endpoint delay is not used.
#[test]
fn a_group_direct_all_reduce_reduces_both_halves() {
    let dims = [(FullyConnected, 8, 50.0, 500.0)];
    let mut config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["direct"], MIB);
    config.system.endpoint_delay = Some(123);
    split_collective_between_npu_halves(&mut config);
    assert_eq!(
        find_first_and_last_finish(&simulate_and_check_program_agrees(&config)),
        (45_320, 45_320)
    );
    let dims = [(FullyConnected, 4, 50.0, 500.0)];
    let config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["direct"], MIB);
    assert_eq!(
        find_first_and_last_finish(&simulate_and_check_program_agrees(&config)),
        (29_600, 29_600)
    );
}

/// Six members form pairs at distances of 3 and 1. They send 2^20 B in 19,531 + 500 ns, and twice
/// this size in 39,062 + 500 ns, with 3·10 ns at endpoints. Five members cannot form pairs at
/// distance 2.
#[test]
fn six_members_all_gather_by_halving_and_doubling() {
    let name = &["halvingDoubling"];
    for network in [Unaware, Aware] {
        let dims = [(FullyConnected, 6, 50.0, 500.0)];
        let mut config = build_config_of_one_collective(network, &dims, AllGather, name, MIB);
        config.system.splits = 1;
        assert_eq!(
            find_first_and_last_finish(&simulate_and_check_program_agrees(&config)),
            (59_623, 59_623)
        );
        let dims = [(FullyConnected, 12, 50.0, 500.0)];
        let mut config = build_config_of_one_collective(network, &dims, AllGather, name, MIB);
        config.system.splits = 1;
        split_collective_between_npu_halves(&mut config);
        assert_eq!(
            find_first_and_last_finish(&simulate_and_check_program_agrees(&config)),
            (59_623, 59_623)
        );
    }
    let dims = [(FullyConnected, 5, 50.0, 500.0)];
    let ran = product::run_config_with_closed_forms(&build_config_of_one_collective(
        Unaware, &dims, AllGather, name, MIB,
    ));
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.error.contains("cannot form pairs at every distance"),
        "{ran:?}"
    );
}

/// A single ring of all NPUs has one entry in the list of algorithms, for the first dimension. The
/// ring uses all NPUs even if other dimensions take no part. The original never ends if the first
/// dimension does not take part.
#[test]
fn one_ring_includes_all_npus_even_with_masked_dimensions() {
    let dims = [(Ring, 4, 50.0, 500.0), (Ring, 2, 50.0, 500.0)];
    let mut config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["oneRing"], MIB);
    let mut masked = |mask: &[bool]| {
        for rank in &mut config.ranks {
            if let NodeWork::Collective { dims, .. } = &mut rank[0].work {
                *dims = Some(mask.to_vec());
            }
        }
        product::run_config_with_closed_forms(&config)
    };
    // A ring of 8 in one dimension takes just as long.
    let everybody = masked(&[true, true]);
    assert!(
        everybody.finish.values().all(|end| end.0 == 117_780),
        "{everybody:?}"
    );
    assert_eq!(masked(&[true, false]), everybody);
    let nowhere = masked(&[false, true]);
    assert_eq!(nowhere.finish, everybody.finish);
    let note = "`involved_dim` omits the first dimension, like 1 nodes in total";
    assert!(nowhere.error.contains(note), "{nowhere:?}");
}

#[test]
fn independent_collectives_take_turns() {
    let dims = [(Ring, 4, 50.0, 500.0)];
    let mut config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["ring"], MIB);
    for rank in &mut config.ranks {
        let second = TraceNode {
            id: 2,
            ..rank[0].clone()
        };
        rank.push(second);
    }
    assert_eq!(
        find_first_and_last_finish(&simulate_and_check_program_agrees(&config)),
        (177_440, 177_440)
    );
}

/// A node that ends immediately releases other nodes, which only the program issues, never the original.
#[test]
fn nodes_after_an_empty_node_are_issued_only_by_chakram() {
    let dims = [(Ring, 4, 50.0, 500.0)];
    let mut config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["ring"], MIB);
    let rank = &mut config.ranks[0];
    let work = NodeWork::Compute { ops: 1, bytes: 1 };
    rank[0].work = NodeWork::Nothing;
    rank.push(TraceNode {
        id: 2,
        deps: vec![1],
        work,
        ..rank[0].clone()
    });
    for rank in &mut config.ranks[1..] {
        rank[0].work = NodeWork::Nothing;
    }
    let answer = oracle::simulate_as_astra_sim(&config);
    assert_eq!(answer.finish, [None, Some(0), Some(0), Some(0)]);
    // Without the roofline model, a kernel without a duration takes 1 ns, all of it compute time.
    let ends = (0..4).map(|npu| (npu, (u64::from(npu == 0), 0)));
    let ran = product::run_config_with_closed_forms(&config);
    assert_eq!((ran.code, ran.finish), (Some(0), ends.collect()));
}

/// A collective that uses no dimension never ends in the original, but ends immediately in the program.
#[test]
fn a_collective_without_dimensions_ends_at_once_only_in_chakram() {
    let dims = [(Ring, 4, 50.0, 500.0)];
    let mut config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["ring"], MIB);
    for rank in &mut config.ranks {
        if let NodeWork::Collective { dims, .. } = &mut rank[0].work {
            *dims = Some(vec![false]);
        }
    }
    assert_eq!(oracle::simulate_as_astra_sim(&config).finish, [None; 4]);
    let ran = product::run_config_with_closed_forms(&config);
    let at_once = (0..4).map(|npu| (npu, (0, 0))).collect();
    assert_eq!((ran.code, ran.finish), (Some(0), at_once));
}

/// A ring all-reduce is given as traces. Its 14 messages of 2^17 B take 500 + 2441 ns each, and its
/// seven reductions take 7 µs each.
#[test]
fn an_all_reduce_given_as_traces_takes_the_derived_time() {
    let dims = [(Ring, 8, 50.0, 500.0)];
    let mut config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["ring"], MIB);
    config.system.splits = 1;
    let bytes = MIB / 8;
    let trace = |npu: usize| -> Vec<TraceNode> {
        let mut nodes = Vec::new();
        let mut add = |id, deps: &[u64], work| {
            let deps = deps.to_vec();
            nodes.push(TraceNode {
                id,
                deps,
                cpu: false,
                micros: 7,
                work,
            });
        };
        let (dst, src) = ((npu + 1) % 8, (npu + 7) % 8);
        let mut before = Vec::new();
        for step in 0..14 {
            let (id, tag) = (3 * step + 1, 0);
            add(id, &before, NodeWork::Send { dst, bytes, tag });
            add(id + 1, &before, NodeWork::Receive { src, bytes, tag });
            before = vec![id + 1];
            if step < 7 {
                add(id + 2, &before, NodeWork::Compute { ops: 0, bytes: 0 });
                before = vec![id + 2];
            }
        }
        nodes
    };
    let traces = (0..8).map(trace).collect();
    config.system.custom.insert(AllReduce, traces);
    let all = 14 * (500 + 2441) + 7 * 7000;
    assert_eq!(
        find_first_and_last_finish(&simulate_and_check_program_agrees(&config)),
        (all, all)
    );
}
