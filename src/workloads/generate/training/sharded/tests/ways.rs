//! Tests skip connections, omitted effects, and weights that two operators share.

use super::{
    build_one_step_tensor_plan, build_operator_degrees, build_training_pattern,
    format_communication_nodes, parse_layers_model,
};
use crate::generate::plan::AblationEffect;
use crate::generate::schedule::PipelineSchedule;
use crate::generate::testing::{check_and_record_every_rank, rejection_message};
use crate::model::Model;

const BEHIND: &str = r#"
input = { columns = 8 }
[[layer]]
name = "a"
role = "input"
operators = [{ op = "linear", outputs = 8, bias = false }]
[[layer]]
name = "b"
role = "output"
operators = [
  { op = "linear", name = "up", outputs = 8, bias = false },
  { op = "residual", name = "sum1" },
  { op = "norm", name = "norm1" },
  { op = "linear", name = "down", outputs = 8, bias = false },
  { op = "residual", name = "sum2" },
]
"#;

#[test]
fn skip_path_carries_result_of_norm_after_sum() {
    // The norm is sharded by samples, and so are all operators after it. The skip path around `down` carries the norm's
    // result, so both inputs of `sum2` arrive in the needed layout. In the backward pass, only the gradient of `sum1`
    // is gathered: 4 samples of 8 values with 2 B each. Each member sends half of this gradient. The weight gradients
    // of the norm (16 B) and of `down` (64 B) are summed.
    let model = parse_layers_model(BEHIND);
    let plan =
        build_one_step_tensor_plan(2, 4, vec![build_operator_degrees("norm1", [2, 1, 1, 1])]);
    for nodes in check_and_record_every_rank(build_training_pattern(&model, &plan)) {
        let expected = [
            "b/bwd/sum1.all-gather 32 B in all".to_owned(),
            format!("operators/all-reduce {} B in all", 2 * (16 + 64)),
        ];
        assert_eq!(format_communication_nodes(&nodes), expected);
    }
}

#[test]
fn kernels_that_are_left_out_leave_sums_and_others_do_not() {
    let model = Model::load_named("gpt2-small").unwrap();
    let mut plan =
        build_one_step_tensor_plan(4, 1, vec![build_operator_degrees("mlp.down", [1, 1, 1, 4])]);
    let told = |plan: &_| {
        let nodes =
            check_and_record_every_rank(build_training_pattern(&model, plan)).swap_remove(0);
        let mut all = format_communication_nodes(&nodes);
        all.sort();
        all
    };
    let whole = told(&plan);
    assert!(
        whole
            .iter()
            .any(|line| line.contains("fwd/mlp.down.all-reduce"))
    );
    plan.without.add_effect(AblationEffect::MemoryBound);
    assert_eq!(told(&plan), whole);
    plan.without.add_effect(AblationEffect::TensorCommunication);
    assert_eq!(told(&plan), Vec::<String>::new());
}

#[test]
fn logits_are_summed_though_no_loss_takes_them() {
    // The logits have 2 samples of 1024 tokens, 50,257 vocabulary entries per token, and 2 B per
    // value.
    let model = Model::load_named("gpt2-small").unwrap();
    let operators = vec![
        build_operator_degrees("tokens", [1, 1, 4, 1]),
        build_operator_degrees("logits", [1, 1, 1, 4]),
    ];
    let mut plan = build_one_step_tensor_plan(4, 2, operators);
    plan.schedule = PipelineSchedule::Inference;
    let sum = format!(
        "head/fwd/logits.all-reduce {} B in all",
        2 * 1024 * 50257 * 2_u64
    );
    let nodes = check_and_record_every_rank(build_training_pattern(&model, &plan));
    assert!(
        nodes
            .iter()
            .all(|rank| format_communication_nodes(rank).last() == Some(&sum))
    );
}

#[test]
fn tied_weights_of_two_operators_must_be_sharded_alike() {
    let model = Model::load_named("gpt2-small").unwrap();
    let found = rejection_message(build_training_pattern(
        &model,
        &build_one_step_tensor_plan(2, 2, vec![build_operator_degrees("logits", [2, 1, 1, 1])]),
    ));
    let expected = "`operator` is n = 1, k = 1; expected equal shards of head/logits and of \
                    embedding/tokens, whose weights it shares: the degree of n of one is the degree of k \
                    of the other, here n = 1 and k = 2";
    assert!(found.starts_with(expected), "{found}");
    // On one stage, the two operators share a gradient, which is summed once. On two stages, each operator sums its own
    // gradient.
    let operators = vec![
        build_operator_degrees("tokens", [2, 1, 1, 1]),
        build_operator_degrees("logits", [2, 1, 1, 1]),
        build_operator_degrees("loss", [2, 1, 1, 1]),
    ];
    let mut plan = build_one_step_tensor_plan(2, 2, operators);
    let summed = |plan: &_, rank: usize| {
        let nodes =
            check_and_record_every_rank(build_training_pattern(&model, plan)).swap_remove(rank);
        let mut lines = format_communication_nodes(&nodes).into_iter();
        let line = lines.find(|line| line.starts_with("operators/"))?;
        let bytes = line.split(' ').nth(1)?;
        bytes.parse::<u64>().ok()
    };
    let table = 2 * 50257 * 768;
    // The sum also includes the gradients of positions and norms, which are sharded by samples,
    // like the operators before them.
    let whole = summed(&plan, 0).unwrap();
    assert!((table..2 * table).contains(&whole), "{whole}");
    plan.pipeline = 2;
    assert!(summed(&plan, 0).unwrap() >= table);
    assert!(summed(&plan, 2).unwrap() >= table);
}

#[test]
fn tensor_group_with_a_million_members_is_refused() {
    let mut plan = build_one_step_tensor_plan(
        1 << 20,
        1 << 20,
        vec![build_operator_degrees("*", [1 << 20, 1, 1, 1])],
    );
    plan.micro_batch = plan.batch;
    let found = rejection_message(build_training_pattern(&parse_layers_model(BEHIND), &plan));
    assert!(found.contains("members of a tensor group"), "{found}");
}
