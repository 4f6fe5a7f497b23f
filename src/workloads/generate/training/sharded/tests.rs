//! Tests the sums, redistributions and messages of operators with their own degrees against
//! expected numbers.

use crate::generate::plan::{OperatorPatternDegrees, Optimizer, ParallelismPlan, RecomputePolicy};
use crate::generate::sharding::OperatorAxisShardCounts;
use crate::generate::testing::{EmittedNode, check_and_record_every_rank, rejection_message};
use crate::generate::{ModelAndParallelismPlan, WorkloadPattern};
use crate::model::{Model, ModelWithDefinitionProperties};
use chakram_trace::format::Dtype;

mod derived;
mod ways;

fn build_training_pattern(model: &Model, plan: &ParallelismPlan) -> WorkloadPattern {
    WorkloadPattern::from(ModelAndParallelismPlan {
        model: model.clone(),
        plan: plan.clone(),
    })
}

fn parse_layers_model(text: &str) -> Model {
    let text = format!("name = \"chain\"\nsource = \"none\"\nkind = \"layers\"\n{text}");
    ModelWithDefinitionProperties::parse(&text, "chain.toml", None)
        .unwrap()
        .model
}

fn build_operator_degrees(name: &str, [b, m, n, k]: [u32; 4]) -> OperatorPatternDegrees {
    OperatorPatternDegrees {
        name: name.to_owned(),
        degrees: OperatorAxisShardCounts { b, m, n, k },
    }
}

/// Returns a plan for one step with `samples` samples on a tensor group of `members` members.
/// Values have 2 bytes, and there is no optimizer.
fn build_one_step_tensor_plan(
    members: u32,
    samples: u64,
    operators: Vec<OperatorPatternDegrees>,
) -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    plan.tensor = members;
    plan.batch = samples;
    plan.micro_batch = samples;
    plan.optimizer = Optimizer::None;
    plan.dtype = Dtype::Bf16;
    plan.operators = operators;
    plan
}

/// Returns a rank's collectives and messages as strings: the name without the prefix `mb0/`, the
/// bytes, and the group.
fn format_communication_nodes(nodes: &[EmittedNode]) -> Vec<String> {
    let bytes = |op: &str, key: &str| {
        let at = op.find(key).unwrap() + key.len();
        let digits = op[at..].split(|c: char| !c.is_ascii_digit()).next();
        digits.unwrap().to_owned()
    };
    let line = |node: &EmittedNode| {
        let name = node.name.strip_prefix("mb0/").unwrap_or(&node.name);
        match &node.op {
            op if op.starts_with("Collective") => {
                let group = if op.contains("World") {
                    "all".to_owned()
                } else {
                    bytes(op, "Number(")
                };
                Some(format!("{name} {} B in {group}", bytes(op, "bytes: ")))
            }
            op if op.starts_with("Message") => Some(format!("{name} {} B", bytes(op, "bytes: "))),
            _ => None,
        }
    };
    nodes.iter().filter_map(line).collect()
}

#[test]
fn explicit_megatron_degrees_communicate_like_the_default_split() {
    let model = Model::load_named("gpt2-small").unwrap();
    let mut spelled = build_one_step_tensor_plan(
        4,
        2,
        vec![
            build_operator_degrees("attention.qkv", [1, 1, 4, 1]),
            build_operator_degrees("attention.core", [1, 1, 4, 1]),
            build_operator_degrees("attention.out", [1, 1, 1, 4]),
            build_operator_degrees("mlp.up", [1, 1, 4, 1]),
            build_operator_degrees("mlp.activation", [1, 1, 4, 1]),
            build_operator_degrees("mlp.down", [1, 1, 1, 4]),
        ],
    );
    for recompute in [RecomputePolicy::None, RecomputePolicy::Full] {
        for [overlap, sequence] in [[true, false], [false, false], [true, true], [false, true]] {
            for pipeline in [1, 2] {
                spelled.recompute = recompute;
                spelled.tensor_overlap = overlap;
                spelled.sequence_parallel = sequence;
                spelled.pipeline = pipeline;
                let mut megatrons = spelled.clone();
                megatrons.operators.clear();
                let told = |plan| {
                    let mut ranks =
                        check_and_record_every_rank(build_training_pattern(&model, plan));
                    let nodes = ranks.iter_mut().flatten();
                    // Each final gradient sum covers several operators, so its name differs from that under Megatron's
                    // sharding.
                    nodes.for_each(|node| node.name = node.name.replace("operators/", "norms/"));
                    ranks
                };
                assert_eq!(told(&spelled), told(&megatrons));
            }
        }
    }
}

#[test]
fn sequence_parallel_tokens_are_gathered_again_in_the_backward_pass() {
    // Four members share a sample's 1,024 tokens with 768 columns of 2 B, so each holds 393,216 B. In the forward pass,
    // the products before the heads and before the MLP gather these tokens. In the backward pass, they gather the
    // tokens again for the weight gradients, because members keep only a quarter of the tokens. Reduce-scatters sum the
    // gradients of the products' inputs. After the heads and after the MLP, reduce-scatters compute the sums in the
    // forward pass, and all-gathers collect their gradients in the backward pass. The logits communicate like the
    // products before the heads, and the embedding table's sums communicate like the sums after the heads.
    let model = Model::load_named("gpt2-small").unwrap();
    let mut plan = build_one_step_tensor_plan(4, 1, Vec::new());
    plan.sequence_parallel = true;
    let nodes = check_and_record_every_rank(build_training_pattern(&model, &plan)).swap_remove(0);
    let of = |part: &str| -> Vec<String> {
        let all = format_communication_nodes(&nodes).into_iter();
        all.filter(|line| line.starts_with(part)).collect()
    };
    let (share, whole) = (1024 * 768 * 2 / 4, 1024 * 768 * 2);
    let line = |what: &str, bytes: u64| format!("layer3/{what} {bytes} B in all");
    let block = [
        line("fwd/attention.qkv.all-gather", share),
        line("fwd/attention.out.reduce-scatter", whole),
        line("fwd/mlp.up.all-gather", share),
        line("fwd/mlp.down.reduce-scatter", whole),
        line("bwd/mlp.down.all-gather", share),
        line("bwd/mlp.up.all-gather", share),
        line("bwd/mlp.up.reduce-scatter", whole),
        line("bwd/attention.out.all-gather", share),
        line("bwd/attention.qkv.all-gather", share),
        line("bwd/attention.qkv.reduce-scatter", whole),
    ];
    assert_eq!(of("layer3/"), block);
    let ends = [
        format!("embedding/fwd/tokens.reduce-scatter {whole} B in all"),
        format!("embedding/bwd/tokens.all-gather {share} B in all"),
    ];
    assert_eq!(of("embedding/"), ends);
    // In the forward pass, word embeddings are summed before positions are looked up. In the
    // backward pass, the gradients of word embeddings are gathered after the gradients of
    // positions.
    let at = |name: &str| nodes.iter().position(|node| node.name == name).unwrap();
    let behind = |[one, other]: [&str; 2]| {
        at(&format!("mb0/embedding/{other}")) - at(&format!("mb0/embedding/{one}"))
    };
    assert_eq!(behind(["fwd/tokens", "fwd/tokens.reduce-scatter"]), 1);
    assert_eq!(behind(["bwd/positions", "bwd/tokens.all-gather"]), 1);
    // BERT's pooler uses only the first token, so only one member holds its result.
    let model = Model::load_named("bert-base").unwrap();
    let nodes = check_and_record_every_rank(build_training_pattern(&model, &plan)).swap_remove(0);
    let pooled: Vec<String> = format_communication_nodes(&nodes)
        .into_iter()
        .filter(|line| line.contains("pooler"))
        .collect();
    let expected = format!("head/fwd/pooler.all-gather {} B in all", 512 * 768 * 2 / 4);
    assert_eq!(pooled, [expected]);
}

#[test]
fn a_table_in_front_of_the_blocks_scatters_its_sum() {
    // Llama-3 8B has no position table. 256 tokens with 4,096 columns of 2 B therefore reach the first block sharded by
    // tokens. In the backward pass, the gradients of the tokens are exchanged in the same way.
    let model = Model::load_with_token_count("llama3-8b", 256).unwrap();
    let mut plan = build_one_step_tensor_plan(4, 1, Vec::new());
    plan.sequence_parallel = true;
    let nodes = check_and_record_every_rank(build_training_pattern(&model, &plan)).swap_remove(0);
    let all = format_communication_nodes(&nodes).into_iter();
    let table: Vec<String> = all.filter(|line| line.contains("/tokens.")).collect();
    let whole = 256 * 4096 * 2;
    let expected = [
        format!("embedding/fwd/tokens.reduce-scatter {whole} B in all"),
        format!("embedding/bwd/tokens.all-gather {} B in all", whole / 4),
    ];
    assert_eq!(table, expected);
    // A block keeps the inputs of its four products, as shards of tokens for the first two and of columns for the other
    // two. A member therefore keeps a quarter of each input, even if the plan gives operators their own degrees.
    let kept = |operators| {
        let mut plan = plan.clone();
        plan.operators = operators;
        let model = model.clone();
        ModelAndParallelismPlan { model, plan }
            .summarize_plan()
            .unwrap()
            .stages[0]
            .stored
            .1
    };
    assert_eq!(
        kept(Vec::new()),
        kept(vec![build_operator_degrees("mlp.up", [1, 1, 4, 1])])
    );
    // A block also keeps these values of 2 B: 4,096 for each of two norms and two products; 6,144 for queries, keys and
    // values; 4,096 for attention's output; and 3 x 14,336 for the gate and its product. Attention keeps 4 B for each
    // of 32 heads. Outside the blocks, each of the 128,256 logits keeps 4 B, and the final norm and the logits keep
    // their inputs.
    let block = 4 * 4096 * 2 + 6144 * 2 + 32 * 4 + 4096 * 2 + 3 * 14336 * 2;
    let head = 2 * 4096 * 2 + 4 * 128_256;
    assert_eq!(kept(Vec::new()), 256 * (32 * block + head) / 4);
}

const IMAGES: &str = r#"
input = { channels = 4, height = 8, width = 8 }
[[layer]]
name = "a"
role = "input"
operators = [
  { op = "convolution", name = "first", outputs = 8, kernel = 3, padding = 1, bias = false },
  { op = "norm" },
  { op = "activation", function = "relu" },
  { op = "convolution", name = "second", outputs = 16, kernel = 3, padding = 1, bias = false },
]
[[layer]]
name = "b"
role = "output"
operators = [
  { op = "pool", kernel = 2 },
  { op = "linear", outputs = 10 },
  { op = "loss" },
]
"#;

#[test]
fn rows_of_images_come_from_neighbours() {
    // The batch has two samples with values of 2 bytes. Both convolutions are sharded into two parts of 4 rows each.
    // The windows of `second` extend one row into the other half. The row beyond the border has 8 pixels with 8
    // channels in 2 samples, which is 256 B. In the backward pass, its gradients have the same size. `first` receives
    // rows of the input samples (8 x 4 x 2 x 2 = 128 B), but these need no gradients. The pool's windows do not extend
    // into other shards. The pool's output has 16 channels of 4 x 4 (1,024 B). Each member sends half of the output,
    // because the next product needs all of it. In the backward pass, every member already has the whole gradient of
    // the pool's output. Each member computes weight gradients for half of the rows, with values of 2 B: `first` has 8
    // x 4 x 9 = 288 weights, the norm has 16, and `second` has 16 x 8 x 9 = 1152.
    let model = parse_layers_model(IMAGES);
    let plan = build_one_step_tensor_plan(
        2,
        2,
        vec![
            build_operator_degrees("first", [1, 2, 1, 1]),
            build_operator_degrees("second", [1, 2, 1, 1]),
        ],
    );
    let ranks = check_and_record_every_rank(build_training_pattern(&model, &plan));
    let expected = |other: u32| {
        let mut expected = vec![
            format!("a/fwd/first.send{other} 128 B"),
            format!("a/fwd/first.receive{other} 128 B"),
            format!("a/fwd/second.send{other} 256 B"),
            format!("a/fwd/second.receive{other} 256 B"),
            "b/fwd/linear.all-gather 512 B in all".to_owned(),
            format!("a/bwd/second.send{other} 256 B"),
            format!("a/bwd/second.receive{other} 256 B"),
            format!("operators/all-reduce {} B in all", 2 * (288 + 16 + 1152)),
        ];
        if other == 0 {
            // Messages are sorted by sender.
            for at in [0, 2, 5] {
                expected.swap(at, at + 1);
            }
        }
        expected
    };
    assert_eq!(format_communication_nodes(&ranks[0]), expected(1));
    assert_eq!(format_communication_nodes(&ranks[1]), expected(0));
}

#[test]
fn partial_channel_sums_are_over_members_that_share_the_channels() {
    // On four members, `first` has 4 shards along its output channels. `second` has 2 shards along its input channels
    // and 2 along its output channels. Members are numbered in the order (b, c, i, k), so the digit for input channels
    // has the stride 2. The batch has two samples with values of 2 bytes. For `second`, a member needs half of the 8
    // channels but holds only a quarter of them. Each of the pairs {0, 1} and {2, 3} therefore gathers 2 x 8 x 64 x 2 /
    // 2 = 1024 B, 512 B from each member. The output of `second` has 16 channels. Members 0 and 2 hold the partial sums
    // of one half, and members 1 and 3 hold those of the other half: 2 x 16 x 64 x 2 / 2 = 2048 B. In the backward
    // pass, the pairs {0, 1} and {2, 3} hold partial sums of the gradient of half of the input channels of `second`.
    // Each member needs a quarter of all channels, so a reduce-scatter of 1024 B computes the sum. The pool and the
    // loss are replicated, so the pool's gradient can be sharded without a message.
    let model = parse_layers_model(IMAGES);
    let operators = vec![
        build_operator_degrees("first", [1, 1, 4, 1]),
        build_operator_degrees("second", [1, 1, 2, 2]),
    ];
    let plan = build_one_step_tensor_plan(4, 2, operators);
    let ranks = check_and_record_every_rank(build_training_pattern(&model, &plan));
    // Name of each rank's group. Partitions are numbered in order of first use.
    let pair = |rank: usize| ["1", "1", "2", "2"][rank];
    let apart = |rank: usize| ["3", "4", "3", "4"][rank];
    for (rank, nodes) in ranks.iter().enumerate() {
        let expected = [
            format!("a/fwd/second.all-gather 512 B in {}", pair(rank)),
            format!("a/fwd/second.all-reduce 2048 B in {}", apart(rank)),
            // The pairs {0, 1} and {2, 3} gather the pool's channels; each member keeps half of them: 8 x 16
            // x 2 x 2 = 512 B.
            format!("b/fwd/linear.all-gather 512 B in {}", pair(rank)),
            format!("a/bwd/second.reduce-scatter 1024 B in {}", pair(rank)),
        ];
        assert_eq!(format_communication_nodes(nodes), expected, "rank {rank}");
    }
}

#[test]
fn dlrm_table_outputs_become_samples_by_one_all_to_all() {
    // DLRM runs on four members with 8 samples: the MLPs are sharded by samples, and the tables by columns. The outputs
    // of 26 tables with 64 columns each take 26 x 64 x 8 x 2 B = 26,624 B for all samples. A member holds a quarter of
    // the columns. The members exchange these columns for a quarter of the samples, with one all-to-all of 6,656 B in
    // each direction.
    let model = Model::load_named("dlrm").unwrap();
    let operators = vec![
        build_operator_degrees("*", [4, 1, 1, 1]),
        build_operator_degrees("table*", [1, 1, 4, 1]),
    ];
    let plan = build_one_step_tensor_plan(4, 8, operators);
    let ranks = check_and_record_every_rank(build_training_pattern(&model, &plan));
    for nodes in &ranks {
        let all = format_communication_nodes(nodes);
        // The weights and biases of the MLPs 13-512-256-64 and 415-512-512-256-1 have gradients of
        // 2 B each.
        let bottom = 13 * 512 + 512 + 512 * 256 + 256 + 256 * 64 + 64;
        let wide = 27 * 26 / 2 + 64;
        let top = wide * 512 + 512 + 512 * 512 + 512 + 512 * 256 + 256 + 256 + 1;
        let expected = [
            "features/fwd/interaction.all-to-all 6656 B in all".to_owned(),
            "features/bwd/table0.all-to-all 6656 B in all".to_owned(),
            format!("operators/all-reduce {} B in all", 2 * (bottom + top)),
        ];
        assert_eq!(all, expected);
    }
    // Each member of the tensor group holds a quarter of every table.
    let summary = ModelAndParallelismPlan {
        model: model.clone(),
        plan,
    }
    .summarize_plan()
    .unwrap();
    let tables: u64 = model.table_weights();
    let others = model.parameter_count() - tables;
    assert_eq!(summary.stages[0].parameters, tables / 4 + others);
    // The 13 input features need no gradients.
    let all = 3 * 2 * 8 * u128::from(model.multiplication_count());
    assert_eq!(summary.flops, all - 2 * 8 * 13 * 512);
    assert_eq!(summary.model_flops, summary.flops);
}

#[test]
fn refusals_name_the_operator() {
    let model = parse_layers_model(IMAGES);
    let why = |members, operators| {
        rejection_message(build_training_pattern(
            &model,
            &build_one_step_tensor_plan(members, 2, operators),
        ))
    };
    for (members, name, four, expected) in [
        (
            2,
            "thrid",
            [1, 2, 1, 1],
            "`operator` is \"thrid\"; expected an operator of chain, such as first",
        ),
        (
            2,
            "first",
            [1, 1, 1, 1],
            "`operator` is 1; expected 2, the plan's tensor degree",
        ),
        (
            3,
            "first",
            [1, 1, 3, 1],
            "`n` is 3; expected a divisor of the 8 output channels, for parts are equal, such as 2 or 4 (operator first \
             of a)",
        ),
        (
            32,
            "linear",
            [1, 1, 1, 32],
            "`k` is 32; expected a divisor of the 16 channels before operator linear of b",
        ),
    ] {
        let found = why(members, vec![build_operator_degrees(name, four)]);
        assert!(found.contains(expected), "{found}\n{expected}");
    }
    let mut scattered =
        build_one_step_tensor_plan(2, 2, vec![build_operator_degrees("first", [1, 2, 1, 1])]);
    scattered.scatter_gather = true;
    assert!(
        rejection_message(build_training_pattern(&model, &scattered))
            .starts_with("`scatter_gather` is true")
    );
}
