//! Tests variants of experts: forms of token exchange, kernels of products, and uneven loads.

use super::*;

/// Returns the collectives of `nodes` whose names end in `name`.
fn sent(nodes: &[EmittedNode], name: &str) -> Vec<String> {
    let own = nodes.iter().filter(|node| node.name.ends_with(name));
    own.map(|node| node.op.clone()).collect()
}

fn on_two(change: impl Fn(&mut ParallelismPlan)) -> Vec<Vec<EmittedNode>> {
    let mut plan = ParallelismPlan::new();
    (plan.data, plan.expert, plan.batch) = (2, 2, 2);
    change(&mut plan);
    ranks(plan)
}

/// Each rank has T tokens of H numbers of 2 B. A rank sends C copies of each token, or one copy to
/// each rank with a chosen expert, which is 2 (1 - C(X - X / 2, C) / C(X, C)) copies on average; or
/// every rank gathers the T tokens of each rank.
#[test]
fn tokens_are_sent_in_the_chosen_form() {
    use crate::generate::plan::ExpertExchangeForm as Form;
    let bytes = |nodes: &[EmittedNode], name: &str| {
        let found = sent(nodes, name);
        assert!(!found.is_empty(), "{name}");
        assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
        let digits: String = found[0].chars().filter(char::is_ascii_digit).collect();
        (found[0].clone(), digits.parse::<u64>().unwrap_or(0))
    };
    let form = |form| on_two(move |plan| plan.expert_exchange = form);
    let copies = form(Form::Copies);
    let (op, _) = bytes(&copies[0], "fwd/experts.dispatch.all-to-all");
    assert!(op.contains(&(2 * C * T * H).to_string()), "{op}");
    // A token chooses 2 of 4 experts, so there are 6 possible choices. In one of the 6 choices,
    // both experts are on the other rank, so a token visits 2 (1 - 1/6) = 5/3 ranks on average.
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
    // Tokens are sent in 8 bits, with one byte of scales per 32 numbers, and results return in 16
    // bits.
    let short = on_two(|plan| plan.expert_exchange_dtype = Some(Dtype::Fp8));
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

#[test]
fn products_of_experts_are_one_many_or_fused() {
    use crate::generate::plan::ExpertProducts as Products;
    let with = |products| on_two(move |plan| plan.expert_products = products);
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
        // Each rank has half of the experts.
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
    // The numbers of allocated and freed bytes stay the same.
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

/// Tests that all ranks process the same number of rows as the fullest rank. With expert counts 30,
/// 10, 0 and 0, the first of two ranks has all 40 copies, twice the mean. A capacity factor of 1.5
/// pads every rank to 1.5 times the mean.
#[test]
fn all_ranks_have_the_rows_of_the_fullest() {
    let flops = |nodes: &[Vec<EmittedNode>], name: &str| {
        kernel(&nodes[0], &format!("mb0/layer1/{name}"))[0]
    };
    let even = on_two(|_| ());
    let counted = on_two(|plan| plan.expert_counts = vec![30, 10, 0, 0]);
    let padded = on_two(|plan| plan.capacity_factor = Some("1.5".parse().unwrap()));
    for name in ["fwd/experts.up", "fwd/experts.down", "bwd/experts.up.wgrad"] {
        assert_eq!(flops(&counted, name), 2 * flops(&even, name), "{name}");
        assert_eq!(2 * flops(&padded, name), 3 * flops(&even, name), "{name}");
    }
    assert_eq!(
        flops(&counted, "fwd/attention.qkv"),
        flops(&even, "fwd/attention.qkv")
    );
    let op = &sent(&counted[0], "layer1/fwd/experts.dispatch.all-to-all")[0];
    assert!(op.contains(&(2 * 2 * C * T * H).to_string()), "{op}");
    let skewed = |seed| {
        on_two(move |plan| {
            plan.routing = crate::generate::plan::RoutingBalance::Skewed { power: 1.2, seed };
        })
    };
    assert!(flops(&skewed(1), "fwd/experts.up") > flops(&even, "fwd/experts.up"));
    let refusal = |change: &dyn Fn(&mut ParallelismPlan)| {
        let mut plan = ParallelismPlan::new();
        change(&mut plan);
        let model = model();
        refusal_of(WorkloadPattern::Training(Box::new(TrainingPattern {
            model,
            plan,
        })))
    };
    let why = refusal(&|plan| plan.expert_counts = vec![1, 2]);
    assert!(
        why.contains("one number of tokens for each of the 4 experts"),
        "{why}"
    );
    let why = refusal(&|plan| plan.expert_counts = vec![0; 4]);
    assert!(why.contains("tokens of some experts"), "{why}");
    let why =
        refusal(&|plan| plan.expert_exchange = crate::generate::plan::ExpertExchangeForm::Ranks);
    assert!(why.contains("copies with expert = 1"), "{why}");
    let gpt = |change: &dyn Fn(&mut ParallelismPlan)| {
        let mut plan = ParallelismPlan::new();
        change(&mut plan);
        let model = Model::load_named("gpt2-small").unwrap();
        refusal_of(WorkloadPattern::Training(Box::new(TrainingPattern {
            model,
            plan,
        })))
    };
    let why = gpt(&|plan| plan.capacity_factor = Some("1.5".parse().unwrap()));
    assert!(
        why.contains("`capacity_factor` is 1.5; expected no such option for gpt2-small"),
        "{why}"
    );
}
