//! Tests that impossible replays are rejected before they start, with an error that names the nodes.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::rig::{
    build_job_from_rank_nodes, build_machine_from_dims, make_dim_with_fixed_link_speed,
    try_build_rank_job,
};
use chakram::engine::{CompiledReplay, ReplayOptions};
use chakram::machine::CollectiveAlgorithm::Ring;
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind as K;

/// Returns the error of a replay of `ranks` on four NPUs in a ring.
#[track_caller]
fn expect_compile_error(ranks: &[Vec<TestTraceNode>], groups: &[(&str, &[u32])]) -> String {
    let workload = build_job_from_rank_nodes(ranks, groups);
    let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(
        DimensionShape::Ring,
        4,
        Ring,
    )]);
    let refusal = CompiledReplay::new(&workload, &machine, &ReplayOptions::default());
    refusal.expect_err("it cannot run").to_string()
}

#[track_caller]
fn assert_contains_all(text: &str, pieces: &[&str]) {
    for piece in pieces {
        assert!(text.contains(piece), "expected {piece:?} in:\n{text}");
    }
}

#[test]
fn messages_without_a_partner_are_refused() {
    let text = expect_compile_error(&[vec![build_send(1, 8)], vec![build_kernel(1)]], &[]);
    assert_contains_all(
        &text,
        &[
            "rank 0 node 1 `n1`",
            "send 0",
            "to rank 1 with tag 0 and 8 bytes",
            "only 0",
        ],
    );
    let text = expect_compile_error(
        &[
            vec![build_kernel(1)],
            vec![build_kernel(1), build_receive(0, 8)],
        ],
        &[],
    );
    assert_contains_all(
        &text,
        &[
            "rank 1 node 2 `n2`",
            "receive 0",
            "from rank 0",
            "only 0 such sends",
        ],
    );
    // There is one receive more than there are sends.
    let twice = vec![build_receive(0, 8), build_receive(0, 8)];
    let text = expect_compile_error(&[vec![build_send(1, 8)], twice], &[]);
    assert_contains_all(
        &text,
        &["rank 1 node 2 `n2`", "receive 1", "only 1 such sends"],
    );
    // Different tags do not match.
    let text = expect_compile_error(
        &[
            vec![build_send(1, 8).tag(1)],
            vec![build_receive(0, 8).tag(2)],
        ],
        &[],
    );
    assert_contains_all(&text, &["rank 0 node 1", "tag 1", "only 0 such receives"]);
}

#[test]
fn a_send_and_a_receive_of_different_sizes_are_refused() {
    let ranks = [
        vec![build_send(1, 8)],
        vec![build_kernel(1), build_receive(0, 9)],
    ];
    let text = expect_compile_error(&ranks, &[]);
    assert_contains_all(
        &text,
        &[
            "rank 0 node 1 `n1` sends 8 bytes",
            "rank 1 node 2 `n2` expects 9",
        ],
    );
}

/// Rank 0 calls an all-reduce of 8 bytes and then a barrier; rank 1 makes other calls.
#[test]
fn ranks_that_disagree_about_collectives_are_refused() {
    let first = vec![
        build_collective(K::AllReduce, 8),
        build_collective(K::Barrier, 0),
    ];
    let against = |other: Vec<TestTraceNode>| expect_compile_error(&[first.clone(), other], &[]);
    let text = against(vec![
        build_collective(K::Barrier, 0),
        build_collective(K::AllReduce, 8),
    ]);
    assert_contains_all(
        &text,
        &[
            "collective 0",
            "rank 0 node 1 `n1` is all-reduce of 8 bytes",
        ],
    );
    assert_contains_all(&text, &["rank 1 node 1 `n1` is barrier", "ranks 0, 1"]);
    let text = against(vec![
        build_collective(K::AllToAll, 8),
        build_collective(K::Barrier, 0),
    ]);
    assert_contains_all(
        &text,
        &["is all-reduce of 8 bytes", "is all-to-all of 8 bytes"],
    );
    let text = against(vec![
        build_collective(K::AllReduce, 9),
        build_collective(K::Barrier, 0),
    ]);
    assert_contains_all(
        &text,
        &["is all-reduce of 8 bytes", "is all-reduce of 9 bytes"],
    );
    let text = against(vec![build_collective(K::AllReduce, 8)]);
    assert_contains_all(
        &text,
        &[
            "collective 1",
            "rank 0 node 2 `n2` is barrier",
            "rank 1 has no further",
        ],
    );
    let rooted = |root| vec![build_collective(K::Broadcast, 8).with_collective_root(root)];
    let text = expect_compile_error(&[rooted(0), rooted(1)], &[]);
    assert_contains_all(&text, &["rooted at rank 0", "rooted at rank 1"]);
    // Rank 1 has no collective, so it names no group.
    let text = against(vec![build_kernel(1)]);
    assert_contains_all(&text, &["rank 1 has no further collective"]);
}

#[test]
fn roots_outside_their_group_are_refused() {
    let node = build_collective(K::Broadcast, 8)
        .group("g")
        .with_collective_root(2);
    let mut ranks = vec![vec![build_kernel(1)]; 4];
    (ranks[0], ranks[1]) = (vec![node.clone()], vec![node]);
    let text = expect_compile_error(&ranks, &[("g", &[0, 1])]);
    assert_contains_all(
        &text,
        &["rank 0 node 1 `n1`", "the root is rank 2", "ranks 0, 1"],
    );
}

#[test]
fn groups_that_do_not_fit_the_job_are_refused() {
    let member = |rank: usize, of: usize| {
        let mut ranks = vec![vec![build_kernel(1)]; of];
        ranks[rank] = vec![
            build_kernel(1),
            build_collective(K::AllReduce, 8).group("g"),
        ];
        ranks
    };
    let why = |ranks: &[Vec<TestTraceNode>], groups: &[(&str, &[u32])]| {
        try_build_rank_job(ranks, groups).unwrap_err().to_string()
    };
    let text = why(&member(0, 2), &[("g", &[0, 5])]);
    assert_contains_all(&text, &["rank 5 takes part, but the job has 2 ranks"]);
    let text = why(&member(1, 2), &[]);
    assert_contains_all(
        &text,
        &["rank 1, node 2", "`g` is not declared", "with `groups`"],
    );
    let text = why(&member(1, 4), &[("g", &[0, 2])]);
    assert_contains_all(
        &text,
        &[
            "rank 1, node 2",
            "not a member of the node's group `g`",
            "ranks 0, 2",
        ],
    );
    let text = why(&member(0, 4), &[("g", &[0, 2, 0])]);
    assert_contains_all(&text, &["group `g` names rank 0 twice"]);
}

#[test]
fn more_ranks_than_npus_are_refused() {
    let text = expect_compile_error(&vec![vec![build_kernel(1)]; 5], &[]);
    assert_contains_all(
        &text,
        &["the job has 5 ranks", "machine `rig` has 4 NPUs (0 to 3)"],
    );
}

/// One member has a trace that lacks the group's collectives.
#[test]
fn members_that_never_call_their_collective_are_refused() {
    let mut ranks = vec![vec![build_kernel(1)]; 3];
    ranks[0] = vec![build_collective(K::AllReduce, 8).group("g")];
    let text = expect_compile_error(&ranks, &[("g", &[0, 2])]);
    assert_contains_all(
        &text,
        &[
            "rank 0 node 1 `n1` is all-reduce",
            "rank 2 has no further collective",
        ],
    );
}
