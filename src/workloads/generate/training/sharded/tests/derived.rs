//! Checks padded heads, and Megatron-LM's split (derived for models without a split), against expected numbers.

use super::{
    IMAGES, build_one_step_tensor_plan, build_operator_degrees, build_training_pattern,
    format_communication_nodes, parse_layers_model,
};
use crate::generate::testing::{check_and_record_every_rank, rejection_message};
use crate::generate::{ModelAndParallelismPlan, ParallelismPlan};
use crate::model::Model;

#[test]
fn derived_convolution_split_alternates_output_and_input_channels() {
    // The batch has two samples with values of 2 bytes, on two members. `first` is split by its 8 output channels, and
    // each member applies the norm and the activation to its own channels. `second` uses these channels without
    // redistribution. The output of `second`, 16 channels of 8 x 8, is summed: 2 x 16 x 64 x 2 = 4096 B. The product
    // after the pool is split by its 10 outputs. The loss therefore sums three values of 4 bytes per sample over
    // classes. In the backward pass, the gradient of the product's 16 x 4 x 4 inputs is summed: 1024 B. The gradient of
    // the input of `second` already has the layout that `first` needs, and the image needs no gradient. No weight
    // gradients are summed.
    let model = parse_layers_model(IMAGES);
    let plan = build_one_step_tensor_plan(2, 2, Vec::new());
    let expected = [
        "a/fwd/second.all-reduce 4096 B in all",
        "b/fwd/loss.maximum 8 B in all",
        "b/fwd/loss.sum 8 B in all",
        "b/fwd/loss.logit 8 B in all",
        "b/bwd/linear.all-reduce 1024 B in all",
    ];
    for nodes in check_and_record_every_rank(build_training_pattern(&model, &plan)) {
        assert_eq!(format_communication_nodes(&nodes), expected);
    }
    // A member holds 4 of the first layer's 8 filters (4 x 4 x 9 weights, and halves of gains and biases), 16 x 4 x 9
    // weights of the second layer, and 5 columns with 256 weights each and their biases.
    let all = 3 * 2 * 2 * u128::from(model.multiplication_count());
    let summary = ModelAndParallelismPlan { model, plan }
        .summarize_plan()
        .unwrap();
    let weights = 4 * 4 * 9 + 2 * 4 + 16 * 4 * 9 + 5 * 256 + 5;
    assert_eq!(summary.stages[0].parameters, weights);
    // All matrix products are split, and the image needs no gradient.
    let image = 2 * 2 * 8 * 64 * 4 * 9;
    assert_eq!(summary.flops, all - image);
    assert_eq!(summary.model_flops, summary.flops);
}

const SKIP: &str = r#"
input = { channels = 4, height = 4, width = 4 }
[[layer]]
name = "a"
role = "input"
operators = [
  { op = "convolution", name = "stem", outputs = 8, kernel = 3, padding = 1, bias = false },
  { op = "activation", function = "relu" },
]
[[layer]]
name = "b"
role = "output"
operators = [
  { op = "convolution", name = "one", outputs = 4, kernel = 1, bias = false },
  { op = "convolution", name = "two", outputs = 4, kernel = 3, padding = 1, bias = false },
  { op = "convolution", name = "three", outputs = 8, kernel = 1, bias = false },
  { op = "residual" },
]
"#;

#[test]
fn skip_paths_are_redistributed_to_the_layout_of_the_sum() {
    // The batch has two samples of 16 pixels with values of 2 bytes. `stem` leaves its 8 channels in two shards, and
    // `one` uses them without redistribution. The 4 output channels of `one` are summed: 2 x 4 x 16 x 2 = 256 B. `two`
    // is split by outputs, and `three` uses its output. The 8 output channels of `three` are summed, which moves 512 B.
    // The second summand is still sharded by channels, so each member sends 256 B in a gather. In the backward pass,
    // every member already has the summand's whole gradient. The gradient of the input of `two` is summed, which moves
    // 256 B.
    let plan = build_one_step_tensor_plan(2, 2, Vec::new());
    let expected = [
        "b/fwd/one.all-reduce 256 B in all",
        "b/fwd/three.all-reduce 512 B in all",
        "b/fwd/residual.all-gather 256 B in all",
        "b/bwd/two.all-reduce 256 B in all",
    ];
    for nodes in
        check_and_record_every_rank(build_training_pattern(&parse_layers_model(SKIP), &plan))
    {
        assert_eq!(format_communication_nodes(&nodes), expected);
    }
}

#[test]
fn tables_are_cut_by_columns_and_perceptrons_in_pairs() {
    // DLRM runs on four members, with 8 samples and values of 2 bytes. In the MLPs 13-512-256-64 and 415-512-512-256-1,
    // products are split alternately by outputs and by inputs. The products split by inputs sum their outputs: 8 x 256
    // x 2, 8 x 512 x 2 and 8 x 1 x 2 B. The interaction needs all 64 columns of all 27 vectors. A member gathers these
    // columns: a quarter of 8 x 64 x 2 B, and a quarter of 26 x 8 x 64 x 2 B. In the backward pass, products split by
    // outputs sum their inputs' gradients: 8 x 512 x 2, 8 x 415 x 2 and 8 x 256 x 2 B.
    let model = Model::load_named("dlrm").unwrap();
    let plan = build_one_step_tensor_plan(4, 8, Vec::new());
    let expected = [
        "features/fwd/bottom1.all-reduce 4096 B in all",
        "features/fwd/interaction.all-gather 256 B in all",
        "features/fwd/interaction.all-gather 6656 B in all",
        "top1/fwd/linear.all-reduce 8192 B in all",
        "top3/fwd/linear.all-reduce 16 B in all",
        "top2/bwd/linear.all-reduce 8192 B in all",
        "top0/bwd/linear.all-reduce 6640 B in all",
        "features/bwd/bottom2.all-reduce 4096 B in all",
    ];
    for nodes in check_and_record_every_rank(build_training_pattern(&model, &plan)) {
        assert_eq!(format_communication_nodes(&nodes), expected);
    }
    // Biases added after a sum are replicated: every member has all of them.
    let quarter = |weights: u64| weights / 4;
    let bottom = quarter(14 * 512) + quarter(512 * 256) + 256 + quarter(257 * 64);
    let top = quarter(416 * 512) + quarter(512 * 512) + 512 + quarter(513 * 256) + 256 / 4 + 1;
    let tables = quarter(model.table_weights());
    let summary = ModelAndParallelismPlan { model, plan }
        .summarize_plan()
        .unwrap();
    assert_eq!(summary.stages[0].parameters, tables + bottom + top);
}

#[test]
fn sizes_that_do_not_divide_are_left_whole() {
    // On three members, `first` is split by its 6 output channels. `second` has 6 inputs and 8
    // outputs, and uses these shards; its sum has 2 x 8 x 64 x 2 B. The last product is replicated,
    // because 3 divides neither 10 classes nor 8 channels.
    let text = IMAGES.replace("outputs = 8", "outputs = 6");
    let model = parse_layers_model(&text.replace("outputs = 16", "outputs = 8"));
    for nodes in check_and_record_every_rank(build_training_pattern(
        &model,
        &build_one_step_tensor_plan(3, 2, Vec::new()),
    )) {
        assert_eq!(
            format_communication_nodes(&nodes),
            ["a/fwd/second.all-reduce 2048 B in all"]
        );
    }
    let model = parse_layers_model(IMAGES);
    assert_eq!(
        rejection_message(build_training_pattern(
            &model,
            &build_one_step_tensor_plan(7, 2, Vec::new())
        )),
        "`tensor` is 7; expected a number that divides sizes of operators of chain"
    );
    let mut scattered = build_one_step_tensor_plan(2, 2, Vec::new());
    scattered.scatter_gather = true;
    assert!(
        rejection_message(build_training_pattern(&model, &scattered))
            .starts_with("`scatter_gather` is true")
    );
}

/// Returns the FLOPs of the first kernel called `name`.
fn flops_of_first_kernel_named(model: &Model, plan: &ParallelismPlan, name: &str) -> u64 {
    let ranks = check_and_record_every_rank(build_training_pattern(model, plan));
    let of = ranks[0].iter().find(|node| node.name == name).unwrap();
    of.kernel.unwrap().0
}

#[test]
fn heads_are_padded_on_request() {
    // On 4 members, 25 heads of 64 columns become 28 heads, 7 per member. The products before
    // attention then have 3 x 7 x 64 outputs, and the product after attention has 7 x 64 inputs.
    // There are 1024 tokens.
    let model = Model::load_named("gpt2-xl").unwrap();
    let mut plan = build_one_step_tensor_plan(4, 1, Vec::new());
    let expected =
        "`tensor` is 4; expected a divisor of the 25 heads of attention.core; or pad_heads = true";
    assert_eq!(
        rejection_message(build_training_pattern(&model, &plan)),
        expected
    );
    plan.pad_heads = true;
    let flops =
        |name: &str| flops_of_first_kernel_named(&model, &plan, &format!("mb0/layer0/{name}"));
    assert_eq!(flops("fwd/attention.qkv"), 2 * 1024 * 1600 * 3 * 7 * 64);
    assert_eq!(flops("fwd/attention.out"), 2 * 1024 * 1600 * 7 * 64);
    // In causal attention, each token is paired with itself and all earlier tokens. Each pair is used in two products.
    let pairs = 1024 * 1025 / 2;
    assert_eq!(flops("fwd/attention.core"), 2 * 2 * pairs * 7 * 64);
    assert_eq!(flops("fwd/mlp.up"), 2 * 1024 * 1600 * 1600);
    // Padding does not change the model itself. Heads that divide evenly are not padded.
    let own = ModelAndParallelismPlan {
        model: model.clone(),
        plan: plan.clone(),
    };
    assert_eq!(
        own.summarize_plan().unwrap().parameters,
        model.parameter_count()
    );
    plan.tensor = 5;
    let padded = check_and_record_every_rank(build_training_pattern(&model, &plan));
    plan.pad_heads = false;
    assert_eq!(
        padded,
        check_and_record_every_rank(build_training_pattern(&model, &plan))
    );
}

#[test]
fn heads_of_keys_and_values_are_padded_too() {
    // Llama-3 8B has 32 query heads and 8 key and value heads with 128 columns each. On 16 members, the 8 heads are
    // padded to 16 and the 32 heads stay 32. Each member therefore has two query heads, one key head and one value
    // head, even if the plan has degrees for individual operators.
    let model = Model::load_with_token_count("llama3-8b", 256).unwrap();
    for operators in [
        Vec::new(),
        vec![build_operator_degrees("attention.core", [1, 1, 16, 1])],
    ] {
        let mut plan = build_one_step_tensor_plan(16, 1, operators);
        plan.pad_heads = true;
        let flops = flops_of_first_kernel_named(&model, &plan, "mb0/layer0/fwd/attention.qkv");
        assert_eq!(flops, 2 * 256 * 4096 * 4 * 128);
    }
    let mut alone = build_one_step_tensor_plan(2, 1, Vec::new());
    alone.pad_heads = true;
    let text = r#"
input = { tokens = 8 }
[[layer]]
name = "a"
role = "block"
operators = [
  { op = "embedding", vocabulary = 10, width = 9 },
  { op = "attention", heads = 3, cut = "between" },
]
"#;
    let refused = rejection_message(build_training_pattern(&parse_layers_model(text), &alone));
    let expected = "`pad_heads` is true; expected false, because attention of a has no linear";
    assert!(refused.starts_with(expected), "{refused}");
}
