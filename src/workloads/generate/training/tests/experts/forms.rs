//! Tests variants of experts: forms of token exchange, kernels for products, and uneven loads.

use super::*;
use crate::model::ActivationFunction;

/// Returns the collectives of `nodes` whose names end in `name`.
fn list_collectives_by_suffix(nodes: &[EmittedNode], name: &str) -> Vec<String> {
    let own = nodes.iter().filter(|node| node.name.ends_with(name));
    own.map(|node| node.op.clone()).collect()
}

fn generate_expert_nodes_on_two_ranks(
    change: impl Fn(&mut ParallelismPlan),
) -> Vec<Vec<EmittedNode>> {
    let mut plan = ParallelismPlan::new();
    (plan.data, plan.expert, plan.batch) = (2, 2, 2);
    change(&mut plan);
    generate_all_ranks(plan)
}

/// Each rank has T tokens with H values of 2 B. There are three forms of exchange. A rank sends C copies of each token;
/// or it sends one copy to each rank with a chosen expert, on average 2 (1 - C(X - X / 2, C) / C(X, C)) copies; or
/// every rank gathers the T tokens of each rank.
#[test]
fn expert_tokens_are_exchanged_in_the_form_that_the_plan_chooses() {
    use crate::generate::plan::ExpertExchangeForm as Form;
    let bytes = |nodes: &[EmittedNode], name: &str| {
        let found = list_collectives_by_suffix(nodes, name);
        assert!(!found.is_empty(), "{name}");
        assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
        let digits: String = found[0].chars().filter(char::is_ascii_digit).collect();
        (found[0].clone(), digits.parse::<u64>().unwrap_or(0))
    };
    let form = |form| generate_expert_nodes_on_two_ranks(move |plan| plan.expert_exchange = form);
    let copies = form(Form::Copies);
    let (op, _) = bytes(&copies[0], "fwd/experts.dispatch.all-to-all");
    assert!(op.contains(&(2 * C * T * H).to_string()), "{op}");
    // A token chooses 2 of 4 experts, so there are 6 possible choices. In one of them, both experts are on the other
    // rank. A token is therefore sent to 2 (1 - 1/6) = 5/3 ranks on average.
    let ranks = form(Form::Ranks);
    for name in [
        "fwd/experts.dispatch",
        "fwd/experts.combine",
        "bwd/experts.dispatch",
        "bwd/experts.combine",
    ] {
        let (op, _) = bytes(&ranks[0], &format!("{name}.all-to-all"));
        assert!(op.contains(&(2 * (T * H * 5 / 3)).to_string()), "{op}");
    }
    let gathered = form(Form::AllGather);
    for (name, expected) in [
        ("fwd/experts.dispatch.all-gather", 2 * T * H),
        ("fwd/experts.combine.reduce-scatter", 2 * 2 * T * H),
        ("bwd/experts.combine.all-gather", 2 * T * H),
        ("bwd/experts.dispatch.reduce-scatter", 2 * 2 * T * H),
    ] {
        let (op, _) = bytes(&gathered[0], name);
        assert!(op.contains(&expected.to_string()), "{name}: {op}");
    }
    // Tokens are sent in 8 bits, with one byte of scale per 32 values, and results return in 16
    // bits.
    let short =
        generate_expert_nodes_on_two_ranks(|plan| plan.expert_exchange_dtype = Some(Dtype::Fp8));
    let numbers = C * T * H;
    for (name, expected) in [
        ("fwd/experts.dispatch", numbers + numbers.div_ceil(32)),
        ("fwd/experts.combine", 2 * numbers),
        ("bwd/experts.combine", numbers + numbers.div_ceil(32)),
        ("bwd/experts.dispatch", 2 * numbers),
    ] {
        let (op, _) = bytes(&short[0], &format!("{name}.all-to-all"));
        assert!(op.contains(&expected.to_string()), "{name}: {op}");
    }
}

/// A token chooses 2 of 4 experts on 4 ranks in 2 nodes. On average, it is sent to 2 (1 - 1/6) = 5/3 nodes, and within
/// these to 4 (1 - 3/6) = 2 ranks.
#[test]
fn tokens_are_sent_over_nodes_and_then_within_them() {
    let mut plan = ParallelismPlan::new();
    (plan.data, plan.expert, plan.batch) = (4, 4, 4);
    plan.expert_exchange = ExpertExchangeForm::Nodes;
    plan.expert_node = Some(2);
    let groups = compute_plan_summary(&plan).groups;
    let of = |family: &str| {
        let found = groups.iter().find(|one| one.family == family);
        found.map(|one| one.all.clone()).unwrap_or_default()
    };
    assert_eq!(of("expert-node"), [[0, 1], [2, 3]]);
    assert_eq!(of("expert-across"), [[0, 2], [1, 3]]);
    let nodes = &generate_all_ranks(plan)[2];
    let own = nodes
        .iter()
        .filter(|node| node.name.contains("/layer1/") && node.op.contains("AllToAll"));
    let own: Vec<_> = own
        .map(|node| {
            let bytes = node.op.split("bytes: ").nth(1).unwrap();
            let bytes: u64 = bytes.split(',').next().unwrap().parse().unwrap();
            (&node.name["mb0/layer1/".len()..], bytes)
        })
        .collect();
    let [across, within] = [2 * T * H * 5 / 3, 2 * T * H * 2];
    assert_eq!(
        own,
        [
            ("fwd/experts.dispatch.nodes.all-to-all", across),
            ("fwd/experts.dispatch.all-to-all", within),
            ("fwd/experts.combine.all-to-all", within),
            ("fwd/experts.combine.nodes.all-to-all", across),
            ("bwd/experts.combine.nodes.all-to-all", across),
            ("bwd/experts.combine.all-to-all", within),
            ("bwd/experts.dispatch.all-to-all", within),
            ("bwd/experts.dispatch.nodes.all-to-all", across),
        ]
    );
}

#[test]
fn expert_products_use_one_kernel_many_kernels_or_a_fused_kernel() {
    use crate::generate::plan::ExpertProducts as Products;
    let with =
        |products| generate_expert_nodes_on_two_ranks(move |plan| plan.expert_products = products);
    let count = |nodes: &[EmittedNode], name: &str| {
        let own = nodes
            .iter()
            .filter(|node| node.name == format!("mb0/layer0/{name}"));
        let kernels: Vec<u64> = own
            .filter_map(|node| node.kernel)
            .map(|one| one.0)
            .collect();
        (kernels.len(), kernels.iter().sum::<u64>())
    };
    let grouped = with(Products::Grouped);
    let each = with(Products::OneByOne);
    for name in [
        "fwd/experts.up",
        "fwd/experts.down",
        "bwd/experts.up.dgrad",
        "bwd/experts.down.wgrad",
    ] {
        let (one, flops) = count(&grouped[0], name);
        assert_eq!(one, 1, "{name}");
        // Each of the two ranks has half of the experts.
        assert_eq!(count(&each[0], name), (X as usize / 2, flops), "{name}");
    }
    let fused = with(Products::Fused);
    for name in [
        "fwd/experts.dispatch.permute",
        "fwd/experts.activation",
        "fwd/experts.combine",
        "bwd/experts.activation",
    ] {
        assert_eq!(count(&grouped[0], name).0, 1, "{name}");
        assert_eq!(count(&fused[0], name).0, 0, "{name}");
    }
    for name in [
        "fwd/experts.up",
        "fwd/experts.dispatch.score",
        "fwd/experts.dispatch.choose",
        "bwd/experts.combine.scores",
    ] {
        assert_eq!(count(&fused[0], name), count(&grouped[0], name), "{name}");
    }
    // The exchange form does not change how many bytes are allocated and freed.
    let activations = TensorClass::Activations as usize;
    let kept = |nodes: &[EmittedNode]| {
        nodes
            .iter()
            .map(|node| node.memory.allocates[activations])
            .sum::<u64>()
    };
    assert_eq!(kept(&fused[0]), kept(&grouped[0]));
    assert_eq!(kept(&each[0]), kept(&grouped[0]));
}

/// Tests that all ranks process as many rows as the fullest rank. With 30, 10, 0 and 0 tokens for the experts, the
/// first of two ranks has all 40 copies, twice the mean. A capacity factor of 1.5 pads every rank to 1.5 times the mean
/// instead.
#[test]
fn all_expert_ranks_process_as_many_rows_as_the_fullest_rank() {
    let flops = |nodes: &[Vec<EmittedNode>], name: &str| {
        find_kernel_flops_and_bytes(&nodes[0], &format!("mb0/layer1/{name}"))[0]
    };
    let even = generate_expert_nodes_on_two_ranks(|_| ());
    let counted =
        generate_expert_nodes_on_two_ranks(|plan| plan.expert_counts = vec![30, 10, 0, 0]);
    let padded = generate_expert_nodes_on_two_ranks(|plan| {
        plan.capacity_factor = Some("1.5".parse().unwrap())
    });
    for name in ["fwd/experts.up", "fwd/experts.down", "bwd/experts.up.wgrad"] {
        assert_eq!(flops(&counted, name), 2 * flops(&even, name), "{name}");
        assert_eq!(2 * flops(&padded, name), 3 * flops(&even, name), "{name}");
    }
    assert_eq!(
        flops(&counted, "fwd/attention.qkv"),
        flops(&even, "fwd/attention.qkv")
    );
    let op = &list_collectives_by_suffix(&counted[0], "layer1/fwd/experts.dispatch.all-to-all")[0];
    assert!(op.contains(&(2 * 2 * C * T * H).to_string()), "{op}");
    let skewed = |seed| {
        generate_expert_nodes_on_two_ranks(move |plan| {
            plan.routing = crate::generate::plan::ExpertRoutingBalance::Skewed { power: 1.2, seed };
        })
    };
    assert!(flops(&skewed(1), "fwd/experts.up") > flops(&even, "fwd/experts.up"));
    let refusal = |change: &dyn Fn(&mut ParallelismPlan)| {
        let mut plan = ParallelismPlan::new();
        change(&mut plan);
        let model = build_expert_model();
        rejection_message(ModelAndParallelismPlan { model, plan })
    };
    let why = refusal(&|plan| plan.expert_counts = vec![1, 2]);
    assert!(
        why.contains("one number of tokens for each of the 4 experts"),
        "{why}"
    );
    let why = refusal(&|plan| plan.expert_counts = vec![0; 4]);
    assert!(why.contains("tokens of some experts"), "{why}");
    let why = refusal(&|plan| plan.expert_exchange = ExpertExchangeForm::Ranks);
    assert!(why.contains("copies with expert = 1"), "{why}");
    let gpt = |change: &dyn Fn(&mut ParallelismPlan)| {
        let mut plan = ParallelismPlan::new();
        change(&mut plan);
        let model = Model::load_named("gpt2-small").unwrap();
        rejection_message(ModelAndParallelismPlan { model, plan })
    };
    let why = gpt(&|plan| plan.capacity_factor = Some("1.5".parse().unwrap()));
    assert!(
        why.contains("`capacity_factor` is 1.5; expected no such option for gpt2-small"),
        "{why}"
    );
}

/// Each of two ranks has two experts, which receive C T copies with H values of 2 B. The copies are read and written
/// once each time they are sorted.
#[test]
fn ranks_with_several_experts_order_their_copies() {
    use crate::generate::plan::ExpertProducts as Products;
    let own = |nodes: &[EmittedNode], end: &str| -> Vec<(String, u64)> {
        let own = nodes.iter().filter(|node| node.name.ends_with(end));
        let own = own.filter_map(|node| Some((node, node.kernel?)));
        own.filter_map(|(node, (_, bytes, _))| {
            let name = node.name.strip_prefix("mb0/layer1/")?;
            Some((name.to_owned(), bytes))
        })
        .collect()
    };
    let each = 2 * 2 * C * T * H;
    let names = |suffix: &str, phases: [&str; 4]| -> Vec<(String, u64)> {
        let name = |at: &str| (format!("{at}{suffix}"), each);
        phases.into_iter().map(name).collect()
    };
    let ends = [
        "fwd/experts.dispatch",
        "fwd/experts.combine",
        "bwd/experts.combine",
        "bwd/experts.dispatch",
    ];
    let copies = &generate_expert_nodes_on_two_ranks(|_| ())[0];
    assert_eq!(own(copies, ".sort"), names(".sort", ends));
    assert!(own(copies, "pad").is_empty());
    // Copies are sorted after they arrive, and results are sorted before they return.
    for (name, after) in [
        (
            "fwd/experts.dispatch.sort",
            "fwd/experts.dispatch.all-to-all",
        ),
        ("fwd/experts.combine.all-to-all", "fwd/experts.combine.sort"),
        ("bwd/experts.combine.sort", "bwd/experts.combine.all-to-all"),
        (
            "bwd/experts.dispatch.all-to-all",
            "bwd/experts.dispatch.sort",
        ),
    ] {
        let found = super::super::list_dependency_names(copies, &format!("mb0/layer1/{name}"));
        assert_eq!(found, [format!("mb0/layer1/{after}")]);
    }
    // The host must read 8 B per expert before it launches the exchange.
    let counts = [("fwd/experts.dispatch.counts".to_owned(), 8 * X)];
    assert_eq!(own(copies, ".counts"), counts);
    let padded = &generate_expert_nodes_on_two_ranks(|plan| {
        plan.expert_products = Products::OneByOne;
        plan.linears = Some(Dtype::Fp8);
    })[0];
    let [first, last] = [[ends[0], ends[2]], [ends[1], ends[3]]];
    let mut all = own(padded, "pad");
    all.sort_unstable();
    let mut expected: Vec<_> = first
        .iter()
        .map(|at| (format!("{at}.pad"), each))
        .chain(last.iter().map(|at| (format!("{at}.unpad"), each)))
        .collect();
    expected.sort_unstable();
    assert_eq!(all, expected);
    // No kernel sorts copies for a single expert, for fused kernels, or if the router sorts them after the exchange.
    let alone = &generate_expert_nodes_on_two_ranks(|plan| {
        (plan.data, plan.expert, plan.batch) = (4, 4, 4)
    })[0];
    let fused =
        &generate_expert_nodes_on_two_ranks(|plan| plan.expert_products = Products::Fused)[0];
    let by_rank = &generate_expert_nodes_on_two_ranks(|plan| {
        plan.expert_exchange = ExpertExchangeForm::Ranks
    })[0];
    for nodes in [alone, fused, by_rank] {
        assert!(own(nodes, ".sort").is_empty());
    }
    assert_eq!(own(by_rank, ".counts"), counts);
    assert!(own(fused, ".counts").is_empty());
    // A capacity factor fixes the number of slots per expert, so the host need not wait.
    let slots = generate_expert_nodes_on_two_ranks(|plan| {
        plan.capacity_factor = Some("1.5".parse().unwrap())
    });
    assert!(own(&slots[0], ".counts").is_empty());
    assert_eq!(own(&slots[0], ".sort")[0].1, each * 3 / 2);
}

/// If each expert has its own kernels, separate kernels add the biases of the last product and limit the gate's inputs.
/// Each of the X experts has C T / X copies with H values of 2 B. The gate has C T copies with F values.
#[test]
fn biases_and_limits_of_single_experts_have_their_own_kernels() {
    use crate::generate::plan::ExpertProducts as Products;
    let with = |products: Products| {
        let mut plan = ParallelismPlan::new();
        plan.expert_products = products;
        let mut model = build_expert_model();
        for layer in &mut model.layers {
            for operator in &mut layer.operators {
                match &mut operator.work {
                    OperatorKind::ExpertLinear { bias, .. } => *bias = true,
                    OperatorKind::Activation { function, .. } => {
                        *function = ActivationFunction::ClampedSilu;
                    }
                    _ => {}
                }
            }
        }
        check_and_record_every_rank(ModelAndParallelismPlan { model, plan }).remove(0)
    };
    let bytes = |nodes: &[EmittedNode], name: &str| -> Vec<u64> {
        let own = nodes
            .iter()
            .filter(|node| node.name == format!("mb0/layer0/{name}"));
        own.filter_map(|node| Some(node.kernel?.1)).collect()
    };
    let nodes = with(Products::OneByOne);
    let each = 2 * (C * T / X) * H;
    let half = 2 * C * T * F;
    for (name, expected) in [
        ("fwd/experts.activation.clamp.gate", vec![2 * half]),
        ("fwd/experts.activation.clamp.up", vec![2 * half]),
        ("fwd/experts.activation.clamp.join", vec![4 * half]),
        ("bwd/experts.activation.clamp.gate", vec![3 * half]),
        ("bwd/experts.activation.clamp.up", vec![3 * half]),
        ("bwd/experts.activation.clamp.join", vec![4 * half]),
        ("fwd/experts.down.bias.scale", vec![each; X as usize]),
        ("fwd/experts.down.bias.add", vec![3 * each; X as usize]),
        ("fwd/experts.down.bias.join", vec![2 * X * each]),
        ("bwd/experts.down.bias.scale", vec![2 * each; X as usize]),
        ("bwd/experts.down.bias.sum", vec![each; X as usize]),
        ("bwd/experts.down.bias.scores", vec![2 * each; X as usize]),
        ("bwd/experts.down.bias.scores.sum", vec![each; X as usize]),
        ("fwd/experts.up.bias.scale", vec![]),
    ] {
        assert_eq!(bytes(&nodes, name), expected, "{name}");
    }
    let grouped = with(Products::Grouped);
    assert!(bytes(&grouped, "fwd/experts.down.bias.add").is_empty());
    assert!(bytes(&grouped, "fwd/experts.activation.clamp.gate").is_empty());
}

/// Four experts on two ranks have 30, 10, 5 and 5 tokens. The first rank has 40 of these 50 tokens, 1.6 times the mean.
/// With two redundant experts, the six copies of experts have 10, 10, 10, 10, 5 and 5 tokens. Each rank has three of
/// these copies, and thus the mean load.
#[test]
fn redundant_experts_take_memory_and_even_out_ranks() {
    let inference = |redundant: u32| {
        generate_expert_nodes_on_two_ranks(move |plan| {
            plan.schedule = PipelineSchedule::Inference;
            plan.expert_counts = vec![30, 10, 5, 5];
            plan.redundant_experts = redundant;
        })
    };
    let [alone, copied] = [0, 2].map(inference);
    let name = "mb0/layer0/fwd/experts.up";
    let [flops, more] =
        [&alone, &copied].map(|ranks| find_kernel_flops_and_bytes(&ranks[0], name)[0]);
    // The mean is 24 copies, and 1.6 times the mean is 38.4.
    assert_eq!(flops * 24, more * 38);
    let weights = |ranks: &[Vec<EmittedNode>]| {
        let all = ranks[0].iter();
        let bytes = all.map(|node| node.memory.allocates[TensorClass::Weights as usize]);
        bytes.sum::<u64>()
    };
    // Each rank has one more expert in both layers.
    assert_eq!(weights(&copied) - weights(&alone), 2 * 2 * OF_EXPERTS / X);
    let refused = |change: &dyn Fn(&mut ParallelismPlan)| {
        let mut plan = ParallelismPlan::new();
        (plan.data, plan.expert, plan.batch) = (2, 2, 2);
        plan.redundant_experts = 2;
        change(&mut plan);
        let model = build_expert_model();
        rejection_message(ModelAndParallelismPlan { model, plan })
    };
    let why = refused(&|_| ());
    assert!(
        why.contains("`redundant_experts` is 2; expected 0 in training"),
        "{why}"
    );
    let why = refused(&|plan| {
        plan.schedule = PipelineSchedule::Inference;
        plan.redundant_experts = 1;
    });
    assert!(
        why.contains("4 experts of experts.up and 1 redundant experts"),
        "{why}"
    );
}
