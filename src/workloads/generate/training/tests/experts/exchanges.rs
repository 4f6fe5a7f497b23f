//! Tests the exchanges of token copies between the members that have the experts.

use super::*;

#[test]
fn a_tensor_group_gathers_copies_and_scatters_their_results() {
    let mut plan = ParallelismPlan::new();
    (plan.tensor, plan.sequence_parallel) = (2, true);
    let nodes = &generate_all_ranks(plan)[0];
    let data =
        |name: &str| super::super::list_dependency_names(nodes, &format!("mb0/layer1/{name}"));
    // Each member of the group routes its own tokens. Each member holds some columns of every expert. For these
    // columns, it gathers the copies of all members. Afterwards, it receives only the results of its own copies.
    assert_eq!(
        find_kernel_flops_and_bytes(nodes, "mb0/layer1/fwd/experts.dispatch.score")[0],
        T * H * X
    );
    assert_eq!(
        find_kernel_flops_and_bytes(nodes, "mb0/layer1/fwd/experts.up")[0],
        2 * C * T * H * F
    );
    assert_eq!(
        data("fwd/experts.up"),
        ["mb0/layer1/fwd/experts.up.all-gather"]
    );
    assert_eq!(
        data("fwd/experts.up.all-gather"),
        ["mb0/layer1/fwd/experts.dispatch.permute"]
    );
    assert_eq!(
        data("fwd/experts.combine"),
        ["mb0/layer1/fwd/experts.down.reduce-scatter"]
    );
    // The gathered copies are saved, so the backward pass gathers only the gradient of the result.
    let gathers = nodes
        .iter()
        .filter(|node| node.name.contains("layer1/bwd/experts"));
    let gathers = gathers.filter(|node| node.name.ends_with("all-gather"));
    let gathers: Vec<_> = gathers.map(|node| &node.name[..]).collect();
    assert_eq!(gathers, ["mb0/layer1/bwd/experts.down.all-gather"]);
}

#[test]
fn members_send_copies_of_their_own_tokens_to_whole_experts() {
    // Each of the two members has 6 tokens (12 copies), and one whole expert out of four.
    let nodes = &generate_all_ranks(build_sharded_expert_plan(2, 2, 4, 1))[1];
    let data =
        |name: &str| super::super::list_dependency_names(nodes, &format!("mb0/layer1/{name}"));
    let (copies, up) = (C * T / 2, 2 * F);
    for (name, expected) in [
        (
            "fwd/experts.up",
            [2 * copies * H * up, 2 * (copies * H + H * up + copies * up)],
        ),
        (
            "fwd/experts.down",
            [2 * copies * F * H, 2 * (copies * F + F * H + copies * H)],
        ),
        ("fwd/experts.combine", [0, 2 * (copies * H + T / 2 * H)]),
    ] {
        assert_eq!(
            find_kernel_flops_and_bytes(nodes, &format!("mb0/layer1/{name}")),
            expected,
            "{name}"
        );
    }
    for (name, after) in [
        ("fwd/experts.up", "fwd/experts.dispatch.all-to-all"),
        ("fwd/experts.combine.all-to-all", "fwd/experts.down"),
        ("bwd/experts.down.dgrad", "bwd/experts.combine.all-to-all"),
    ] {
        assert_eq!(data(name), [format!("mb0/layer1/{after}")], "{name}");
    }
    let exchanges = nodes.iter().filter(|node| node.op.contains("AllToAll"));
    let exchanges: Vec<_> = exchanges.collect();
    // In each of the two layers, the forward pass and the backward pass each perform two exchanges among all four
    // ranks, with 2 B per value.
    assert_eq!(exchanges.len(), 2 * 4);
    for node in exchanges {
        assert!(
            node.op.contains(&format!("bytes: {},", copies * H * 2)),
            "{}",
            node.op
        );
        assert!(node.op.contains("group: World"), "{}", node.op);
    }
    // However the experts are distributed, the FLOPs of all ranks add up to the model's FLOPs.
    let mut cut = build_sharded_expert_plan(2, 2, 2, 2);
    assert_eq!(
        compute_plan_summary(&cut).flops,
        compute_plan_summary(&build_sharded_expert_plan(2, 2, 4, 1)).flops
    );
    cut.expert_tensor = None;
    assert_eq!(
        compute_plan_summary(&cut).flops,
        compute_plan_summary(&build_sharded_expert_plan(2, 2, 1, 1)).flops
    );
}

#[test]
fn members_that_cut_an_expert_gather_their_copies() {
    // Each of the four members has 3 tokens, and therefore 6 copies. A pair of members multiplies its 12 copies by its
    // halves of two experts (out of four).
    let nodes = &generate_all_ranks(build_sharded_expert_plan(4, 1, 2, 2))[0];
    let data =
        |name: &str| super::super::list_dependency_names(nodes, &format!("mb0/layer1/{name}"));
    let (copies, up) = (C * T / 2, F);
    assert_eq!(
        find_kernel_flops_and_bytes(nodes, "mb0/layer1/fwd/experts.up"),
        [
            2 * copies * H * up,
            2 * (copies * H + 2 * H * up + copies * up)
        ]
    );
    for (name, after) in [
        ("fwd/experts.up.all-gather", "fwd/experts.dispatch.sort"),
        ("fwd/experts.up", "fwd/experts.up.all-gather"),
        (
            "fwd/experts.combine.sort",
            "fwd/experts.down.reduce-scatter",
        ),
    ] {
        assert_eq!(data(name), [format!("mb0/layer1/{after}")], "{name}");
    }
    let gather = nodes
        .iter()
        .find(|node| node.name == "mb0/layer1/fwd/experts.up.all-gather");
    let gather = &gather.unwrap().op;
    assert!(
        gather.contains(&format!("bytes: {},", copies / 2 * H * 2)),
        "{gather}"
    );
}

#[test]
fn copies_of_tokens_go_to_their_experts_and_back() {
    let nodes = &generate_all_ranks(build_expert_parallel_plan())[2];
    let data =
        |name: &str| super::super::list_dependency_names(nodes, &format!("mb0/layer1/{name}"));
    let at = |name: &str| vec![format!("mb0/layer1/{name}")];
    for (name, after) in [
        (
            "fwd/experts.dispatch.all-to-all",
            "fwd/experts.dispatch.counts",
        ),
        (
            "fwd/experts.dispatch.counts",
            "fwd/experts.dispatch.permute",
        ),
        (
            "fwd/experts.dispatch.sort",
            "fwd/experts.dispatch.all-to-all",
        ),
        ("fwd/experts.up", "fwd/experts.dispatch.sort"),
        ("fwd/experts.combine.sort", "fwd/experts.down"),
        ("fwd/experts.combine.all-to-all", "fwd/experts.combine.sort"),
        ("fwd/experts.combine", "fwd/experts.combine.all-to-all"),
        (
            "bwd/experts.combine.all-to-all",
            "bwd/experts.combine.copies",
        ),
        ("bwd/experts.combine.sort", "bwd/experts.combine.all-to-all"),
        ("bwd/experts.down.dgrad", "bwd/experts.combine.sort"),
        ("bwd/experts.dispatch.sort", "bwd/experts.up.wgrad"),
        (
            "bwd/experts.dispatch.all-to-all",
            "bwd/experts.dispatch.sort",
        ),
        (
            "bwd/experts.dispatch.permute",
            "bwd/experts.dispatch.all-to-all",
        ),
    ] {
        assert_eq!(data(name), at(after), "{name}");
    }
    // Two copies of 12 tokens, with 2 B per value, are exchanged in the group of two, not among all
    // four ranks.
    let exchanges = nodes.iter().filter(|node| node.op.contains("AllToAll"));
    let exchanges: Vec<_> = exchanges.collect();
    // In each of two layers and two micro-batches, the forward pass and the backward pass each perform two exchanges.
    assert_eq!(exchanges.len(), 2 * 2 * 4);
    for node in exchanges {
        assert!(
            node.op.contains(&format!("bytes: {},", C * T * H * 2)),
            "{}",
            node.op
        );
        assert!(node.op.contains("group: Number("), "{}", node.op);
        assert_eq!(node.lane, Some(EXPERT_LANE));
    }
    // The kernel has as many rows as without expert parallelism, but reads only half of the experts' weights.
    let up = 2 * F;
    let expected = [
        2 * C * T * H * up,
        2 * (C * T * H + X / 2 * H * up + C * T * up),
    ];
    assert_eq!(
        find_kernel_flops_and_bytes(nodes, "mb0/layer1/fwd/experts.up"),
        expected
    );
    let mut silent = build_expert_parallel_plan();
    silent
        .without
        .add_effect(AblationEffect::ExpertCommunication);
    assert!(
        generate_all_ranks(silent)[0]
            .iter()
            .all(|node| !node.op.contains("AllToAll"))
    );
}

#[test]
fn full_recomputation_exchanges_tokens_again() {
    let mut plan = build_expert_parallel_plan();
    plan.recompute = RecomputePolicy::Full;
    let nodes = &generate_all_ranks(plan)[0];
    let exchanges = nodes.iter().filter(|node| node.op.contains("AllToAll"));
    assert_eq!(exchanges.count(), 2 * 2 * 6);
    let again = super::super::list_dependency_names(nodes, "mb1/layer0/again/experts.up");
    assert_eq!(again, ["mb1/layer0/again/experts.dispatch.sort"]);
}
