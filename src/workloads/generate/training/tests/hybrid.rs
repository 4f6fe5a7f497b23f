//! Tests hybrid sharding: groups of replicas that each shard the whole state.

use super::super::super::WorkloadPattern;
use super::super::super::testing::{EmittedNode, check_and_record_every_rank};
use super::super::*;
use super::{list_dependency_names, rejection_message};
use chakram_trace::format::TensorClass;

fn build_hybrid_shard_training(zero: ZeroStage) -> ModelAndParallelismPlan {
    let model = Model::load_named("gpt2-small").unwrap();
    let mut plan = ParallelismPlan::new();
    (plan.data, plan.batch, plan.zero, plan.shard) = (8, 8, zero, Some(2));
    ModelAndParallelismPlan { model, plan }
}

fn training_rejection_message(training: ModelAndParallelismPlan) -> String {
    rejection_message(training)
}

/// Returns the kind, the bytes and the group of a collective.
fn find_kind_bytes_and_group_of_collective<'n>(
    nodes: &'n [EmittedNode],
    name: &str,
) -> (&'n str, u64, &'n str) {
    let node = nodes.iter().find(|node| node.name == name);
    let op = &node.unwrap_or_else(|| panic!("{name} is not there")).op;
    let field = |key: &str| op.split(key).nth(1).unwrap();
    let until = |text: &'n str| text.split([',', ')']).next().unwrap();
    (
        until(field("kind: ")),
        until(field("bytes: ")).parse().unwrap(),
        until(field("group: Number(")),
    )
}

/// Number of parameters in a block of GPT-2: 12 h^2 + 13 h, with h = 768.
const BLOCK: u64 = 12 * 768 * 768 + 13 * 768;

#[test]
fn neighbours_shard_and_the_others_have_copies() {
    let groups = build_hybrid_shard_training(ZeroStage::Parameters)
        .summarize_plan()
        .unwrap()
        .groups;
    let of = |family: &str| {
        let found = groups.iter().find(|one| one.family == family);
        found.map(|one| one.all.clone()).unwrap_or_default()
    };
    assert_eq!(of("shard"), [[0, 1], [2, 3], [4, 5], [6, 7]]);
    assert_eq!(of("shard-copies"), [[0, 2, 4, 6], [1, 3, 5, 7]]);
}

/// Parameters are gathered from two ranks. Gradients are reduced to two shards, and each shard is then summed over the
/// four ranks that hold it.
#[test]
fn a_shard_is_summed_over_its_copies() {
    let pattern = WorkloadPattern::from(build_hybrid_shard_training(ZeroStage::Parameters));
    let ranks = check_and_record_every_rank(pattern);
    let own = &ranks[3];
    let gathered = find_kind_bytes_and_group_of_collective(own, "mb0/layer3/fwd/gather");
    assert_eq!((gathered.0, gathered.1), ("AllGather", BLOCK));
    let reductions = own
        .iter()
        .filter(|node| node.name.ends_with("/gradients/reduce-scatter"));
    let mut count = 0;
    for reduction in reductions {
        let sum = reduction.name.replace("reduce-scatter", "all-reduce");
        let (kind, bytes, group) = find_kind_bytes_and_group_of_collective(own, &reduction.name);
        assert_eq!(kind, "ReduceScatter");
        assert_eq!(group, gathered.2);
        let (kind, shard, copies) = find_kind_bytes_and_group_of_collective(own, &sum);
        assert_eq!((kind, shard), ("AllReduce", bytes / 2));
        assert_eq!(
            copies,
            find_kind_bytes_and_group_of_collective(&ranks[1], &sum).2
        );
        assert_ne!(
            copies,
            find_kind_bytes_and_group_of_collective(&ranks[2], &sum).2
        );
        assert_eq!(list_dependency_names(own, &sum), [reduction.name.as_str()]);
        count += 1;
    }
    assert!(count > 1);
}

/// A rank holds half of the state, although eight replicas have copies of it.
#[test]
fn each_rank_holds_half_of_the_state_with_shard_groups_of_two() {
    let parameters = Model::load_named("gpt2-small").unwrap().parameter_count();
    for (zero, shards) in [
        (ZeroStage::Optimizer, [1, 1, 2]),
        (ZeroStage::Gradients, [1, 2, 2]),
        (ZeroStage::Parameters, [2, 2, 2]),
    ] {
        let summary = build_hybrid_shard_training(zero).summarize_plan().unwrap();
        let classes = [
            (TensorClass::Weights, 2),
            (TensorClass::Gradients, 2),
            (TensorClass::Optimizer, 12),
        ];
        for ((class, each), shards) in classes.into_iter().zip(shards) {
            let found = summary.stages[0].memory[class as usize];
            assert_eq!(
                found,
                (each * parameters).div_ceil(shards),
                "{zero} {class:?}"
            );
        }
    }
}

/// If all replicas are in one group, the plan is the same as without groups.
#[test]
fn one_group_of_all_replicas_has_no_copies() {
    let nodes = |shard| {
        let mut training = build_hybrid_shard_training(ZeroStage::Parameters);
        training.plan.shard = shard;
        check_and_record_every_rank(training)
    };
    assert_eq!(nodes(Some(8)), nodes(None));
}

#[test]
fn shard_without_zero_or_not_dividing_data_x_context_is_refused() {
    let mut none = build_hybrid_shard_training(ZeroStage::None);
    assert!(
        training_rejection_message(none.clone())
            .contains("`shard` is 2; expected zero = 1, 2 or 3 beside it")
    );
    none.plan.zero = ZeroStage::Parameters;
    none.plan.shard = Some(3);
    assert!(
        training_rejection_message(none)
            .contains("`shard` is 3; expected a divisor of data x context above 1")
    );
}
