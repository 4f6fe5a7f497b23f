//! Tests experts' parameters, gradients and optimizer state: which ranks keep, gather, sum and update them.

use super::*;

#[test]
fn neighbouring_replicas_divide_the_experts_among_themselves() {
    let mut plan = build_expert_parallel_plan();
    (plan.tensor, plan.clip) = (2, true);
    let groups = compute_plan_summary(&plan).groups;
    let of = |family: &str| {
        let found = groups.iter().find(|one| one.family == family);
        found.map(|one| one.all.clone()).unwrap_or_default()
    };
    // Ranks 0 and 1 are one tensor group, and ranks 2 and 3 are the next replica.
    let pairs = [[0, 2], [1, 3], [4, 6], [5, 7]];
    assert_eq!(of("expert"), pairs);
    assert_eq!(of("expert-data"), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    assert_eq!(of("data"), [[0, 2, 4, 6], [1, 3, 5, 7]]);
    // Each of the four replicas has different experts.
    plan.expert = 4;
    let groups = compute_plan_summary(&plan).groups;
    assert!(groups.iter().all(|one| one.family != "expert-data"));
}

/// With ZeRO 3, fewer ranks gather experts' weights than other weights.
#[test]
fn parameters_of_experts_are_gathered_among_their_replicas() {
    let mut plan = build_expert_parallel_plan();
    plan.zero = ZeroStage::Parameters;
    let nodes = &generate_all_ranks(plan.clone())[1];
    let gathered = |name: &str| {
        let node = nodes.iter().find(|node| node.name == name);
        let node = node.unwrap_or_else(|| panic!("{name} is not there"));
        let bytes = node.op.split("bytes: ").nth(1).unwrap();
        let bytes: u64 = bytes.split(',').next().unwrap().parse().unwrap();
        (
            bytes,
            node.memory.allocates[TensorClass::Temporary as usize],
        )
    };
    let own = OF_EXPERTS / 2;
    for pass in ["fwd", "bwd"] {
        // Four replicas share a block, and two replicas share two experts of a layer.
        let name = format!("mb0/layer1/{pass}/gather");
        assert_eq!(gathered(&name), (2 * OF_BLOCK / 4, 2 * OF_BLOCK));
        let name = format!("mb0/layer1/{pass}/experts/gather");
        assert_eq!(gathered(&name), (2 * own / 2, 2 * own));
    }
    let after = super::super::list_dependency_names(nodes, "mb0/layer1/fwd/norm1");
    assert!(
        after.contains(&"mb0/layer1/fwd/experts/gather"),
        "{after:?}"
    );
    let stage = &compute_plan_summary(&plan).stages[0];
    let [common, experts] = [2 * OF_BLOCK + OF_ENDS, 2 * own];
    for (class, bytes) in [
        (TensorClass::Weights, 2),
        (TensorClass::Gradients, 2),
        (TensorClass::Optimizer, 12),
    ] {
        let expected = bytes * common / 4 + bytes * experts / 2;
        assert_eq!(stage.memory[class as usize], expected, "{class:?}");
    }
    let scattered = stage.communication.iter();
    let mut scattered: Vec<_> = scattered
        .filter(|one| one.kind == "reduce-scatter")
        .map(|one| (one.family, one.bytes))
        .collect();
    scattered.sort_unstable();
    // There are two micro-batches.
    let twice = |weights: u64| u128::from(2 * 2 * weights);
    assert_eq!(
        scattered,
        [("data", twice(common)), ("expert-data", twice(experts))]
    );
    // If no other rank has the same experts, their weights are not gathered.
    plan.expert = 4;
    let nodes = &generate_all_ranks(plan)[0];
    assert!(
        nodes
            .iter()
            .all(|node| !node.name.contains("experts/gather"))
    );
    let changes = |class: usize| {
        let of = |node: &EmittedNode| {
            i128::from(node.memory.allocates[class]) - i128::from(node.memory.frees[class])
        };
        nodes.iter().map(of).sum::<i128>()
    };
    assert_eq!(changes(TensorClass::Temporary as usize), 0);
}

#[test]
fn members_of_tensor_groups_divide_the_experts_among_themselves() {
    let of = |plan: &ParallelismPlan, family: &str| {
        let groups = compute_plan_summary(plan).groups;
        let found = groups.into_iter().find(|one| one.family == family);
        found.map(|one| one.all).unwrap_or_default()
    };
    // Rank `2 replica + member` has whole experts, and four neighbouring ranks together have all of them. Ranks at a
    // distance of 4 from each other therefore have the same experts.
    let plan = build_sharded_expert_plan(2, 4, 4, 1);
    assert_eq!(of(&plan, "expert"), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    assert_eq!(of(&plan, "expert-data"), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    assert_eq!(of(&plan, "data"), [[0, 2, 4, 6], [1, 3, 5, 7]]);
    assert_eq!(of(&plan, "tensor"), [[0, 1], [2, 3], [4, 5], [6, 7]]);
    assert!(of(&plan, "expert-tensor").is_empty());
    // Two of the four members shard an expert: rank `4 replica + member` has shard `rank % 2` of
    // the experts in block `rank / 2`. Two neighbouring blocks together have all experts.
    let plan = build_sharded_expert_plan(4, 2, 2, 2);
    assert_eq!(of(&plan, "expert"), [[0, 2], [1, 3], [4, 6], [5, 7]]);
    assert_eq!(of(&plan, "expert-data"), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    let pairs = [[0, 1], [2, 3], [4, 5], [6, 7]];
    assert_eq!(of(&plan, "expert-tensor"), pairs);
    // For any rank order, the world size is the product expert_tensor x expert x expert-data x pipeline. The second
    // stage has its own groups.
    let mut plan = build_sharded_expert_plan(4, 2, 4, 1);
    (plan.pipeline, plan.order) = (
        2,
        [
            ParallelAxis::Pipeline,
            ParallelAxis::Tensor,
            ParallelAxis::Data,
        ],
    );
    // The groups contain the ranks `8 replica + 2 member + stage`.
    let groups = [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]];
    assert_eq!(of(&plan, "expert"), groups);
    let pairs: Vec<[u32; 2]> = (0..8).map(|rank| [rank, rank + 8]).collect();
    assert_eq!(of(&plan, "expert-data"), pairs);
    // By default, experts have the same tensor degree as all other weights.
    let mut usual = build_expert_parallel_plan();
    usual.tensor = 2;
    let mut same = usual.clone();
    same.expert_tensor = Some(2);
    assert_eq!(compute_plan_summary(&usual), compute_plan_summary(&same));
}

#[test]
fn whole_experts_are_kept_stepped_and_summed_by_ranks_that_have_the_same() {
    // A member holds half of the weights of attention, embedding and logits, but all weights of norms and router.
    let halves = H * 3 * H / 2 + H * H / 2;
    let common = 40 * H + H + 2 * (halves + H * X + 2 * H);
    // Four replicas with two members each run on eight ranks. Four ranks together hold all experts, so two of the eight
    // ranks hold each expert.
    let own = 2 * OF_EXPERTS / 4;
    let mut plan = build_sharded_expert_plan(2, 4, 4, 1);
    for (zero, [by, of_experts]) in [(ZeroStage::None, [1, 1]), (ZeroStage::Optimizer, [4, 2])] {
        plan.zero = zero;
        let stage = &compute_plan_summary(&plan).stages[0];
        assert_eq!(stage.parameters, common + own);
        assert_eq!(
            stage.memory[TensorClass::Weights as usize],
            2 * (common + own)
        );
        let kept = 12 * common.div_ceil(by) + 12 * own / of_experts;
        assert_eq!(
            stage.memory[TensorClass::Optimizer as usize],
            kept,
            "{zero}"
        );
    }
    plan.zero = ZeroStage::None;
    let sums = |plan: &ParallelismPlan| -> Vec<(&'static str, u128)> {
        let all = &compute_plan_summary(plan).stages[0].communication;
        let sums = all
            .iter()
            .filter(|one| one.phase == Some(TrainingPhase::Synchronize));
        sums.map(|one| (one.family, one.bytes)).collect()
    };
    let bytes = |weights: u64| u128::from(2 * weights);
    // Each member computes the gradients of norms and router only from its own tokens, so these gradients must be
    // summed; the gradients of its experts are complete.
    let of_tokens = H + 2 * (H * X + 2 * H);
    assert_eq!(
        sums(&plan),
        [
            ("data", bytes(common)),
            ("expert-data", bytes(own)),
            ("tensor", bytes(of_tokens))
        ]
    );
    // Both members have all experts, so they sum their gradients, although no other replica has a copy of the other
    // weights.
    let alone = build_sharded_expert_plan(2, 1, 1, 1);
    assert_eq!(
        sums(&alone),
        [
            ("expert-data", bytes(2 * OF_EXPERTS)),
            ("tensor", bytes(of_tokens))
        ]
    );
    // Each member has one half of the experts, so experts' gradients need no sum.
    let parted = build_sharded_expert_plan(2, 1, 2, 1);
    assert_eq!(sums(&parted), [("tensor", bytes(of_tokens))]);
}

#[test]
fn ranks_keep_and_step_their_own_experts() {
    let own = OF_EXPERTS / 2;
    let all = OF_ENDS + 2 * (OF_BLOCK + OF_EXPERTS);
    assert_eq!(build_expert_model().parameter_count(), all);
    let common = OF_ENDS + 2 * OF_BLOCK;
    for (zero, replicas) in [(ZeroStage::None, [1, 1]), (ZeroStage::Optimizer, [4, 2])] {
        let mut plan = build_expert_parallel_plan();
        plan.zero = zero;
        let summary = compute_plan_summary(&plan);
        let stage = &summary.stages[0];
        assert_eq!(summary.parameters, all);
        assert_eq!(stage.parameters, common + 2 * own);
        // The optimizer has 12 B of state per parameter. Each of four replicas holds a quarter of it for common
        // parameters, and each of two replicas holds half of it for experts.
        let [by, of_experts] = replicas;
        let kept = 12 * common / by + 12 * 2 * own / of_experts;
        assert_eq!(stage.memory[TensorClass::Optimizer as usize], kept);
        assert_eq!(
            stage.memory[TensorClass::Weights as usize],
            2 * (common + 2 * own)
        );
        // Adam moves 28 B per parameter.
        let nodes = &generate_all_ranks(plan)[0];
        let moved = 28 * (common / by + 2 * own / of_experts);
        assert_eq!(
            find_kernel_flops_and_bytes(nodes, "optimizer")[1],
            moved,
            "{zero}"
        );
    }
    // However the experts are distributed, the FLOPs of all ranks add up to the model's FLOPs.
    let mut alone = build_expert_parallel_plan();
    alone.expert = 1;
    assert_eq!(
        compute_plan_summary(&alone).flops,
        compute_plan_summary(&build_expert_parallel_plan()).flops
    );
}

/// Returns a rank's reductions, each with its group, its bytes, and one flag per node id, which is true if the
/// reduction waits for that node.
fn list_gradient_reductions_with_awaited_nodes(
    nodes: &[EmittedNode],
) -> Vec<(String, u64, Vec<bool>)> {
    let mut found = Vec::new();
    for node in nodes
        .iter()
        .filter(|node| node.name.contains("/gradients/"))
    {
        let word = |key: &str| {
            let rest = node.op.split(&format!("{key}: ")).nth(1).unwrap();
            rest.split([',', ' ']).next().unwrap().to_owned()
        };
        let mut before = vec![false; nodes.len() + 1];
        let mut open = node.data.clone();
        while let Some(id) = open.pop() {
            if !std::mem::replace(&mut before[id as usize], true) {
                open.extend(&nodes[id as usize - 1].data);
            }
        }
        found.push((word("group"), word("bytes").parse().unwrap(), before));
    }
    found
}

#[test]
fn gradients_of_experts_are_summed_by_those_that_have_them() {
    for by in [BucketPolicy::Layers, BucketPolicy::Parameters] {
        for bucket in [1, 1_500, 1 << 30] {
            let mut plan = build_expert_parallel_plan();
            (plan.buckets, plan.bucket) = (by, bucket);
            let nodes = &generate_all_ranks(plan)[0];
            let all = list_gradient_reductions_with_awaited_nodes(nodes);
            let bytes = |of_all: bool| {
                let own = all
                    .iter()
                    .filter(|(group, _, _)| (group == "World") == of_all);
                own.map(|one| one.1).sum::<u64>()
            };
            assert_eq!(bytes(true), 2 * (OF_ENDS + 2 * OF_BLOCK), "{by} {bucket}");
            assert_eq!(bytes(false), 2 * 2 * OF_EXPERTS / 2, "{by} {bucket}");
            // In the last micro-batch, the last sum of each kind of gradients waits for all gradients of that kind.
            for (of_all, names) in [
                (
                    true,
                    &["attention.qkv.wgrad", "experts.dispatch.score.wgrad"][..],
                ),
                (false, &["experts.up.wgrad", "experts.down.wgrad"]),
            ] {
                let mut reached = vec![false; nodes.len() + 1];
                for (group, _, before) in &all {
                    if (group == "World") == of_all {
                        for (one, other) in reached.iter_mut().zip(before) {
                            *one |= other;
                        }
                    }
                }
                for (layer, name) in [0, 1]
                    .iter()
                    .flat_map(|l| names.iter().map(move |n| (l, n)))
                {
                    let name = format!("mb1/layer{layer}/bwd/{name}");
                    let id = nodes.iter().position(|node| node.name == name).unwrap() + 1;
                    assert!(reached[id], "{by} {bucket} {name}");
                }
            }
        }
    }
    // If each expert is on only one rank, experts' gradients need no sum.
    let mut plan = build_expert_parallel_plan();
    plan.expert = 4;
    let nodes = &generate_all_ranks(plan.clone())[0];
    assert!(
        list_gradient_reductions_with_awaited_nodes(nodes)
            .iter()
            .all(|(group, _, _)| group == "World")
    );
    // The norm over all gradients includes all experts' gradients.
    plan.clip = true;
    let nodes = &generate_all_ranks(plan)[0];
    assert_eq!(
        nodes
            .iter()
            .filter(|node| node.name == "norm/experts/all-reduce")
            .count(),
        1
    );
}

#[test]
fn updated_experts_are_gathered_from_those_that_have_them() {
    for zero in [ZeroStage::Optimizer, ZeroStage::Gradients] {
        let mut plan = build_expert_parallel_plan();
        plan.zero = zero;
        let nodes = &generate_all_ranks(plan)[0];
        let gathered = |group: &str| {
            let own = nodes
                .iter()
                .filter(|node| node.name.ends_with("parameters/all-gather"));
            let own = own.filter(|node| node.op.contains(&format!("group: {group}")));
            let bytes = |node: &EmittedNode| {
                let rest = node.op.split("bytes: ").nth(1).unwrap();
                rest.split(',').next().unwrap().parse::<u64>().unwrap()
            };
            own.map(bytes).sum::<u64>()
        };
        // One bucket holds a quarter of the common parameters, and another holds half of the rank's experts.
        assert_eq!(
            gathered("World"),
            (2 * (OF_ENDS + 2 * OF_BLOCK)).div_ceil(4)
        );
        assert_eq!(gathered("Number"), 2 * OF_EXPERTS / 2);
    }
}
