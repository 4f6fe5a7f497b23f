//! Tests operators with their own sharding degrees: conservation laws for all splits.

use super::super::RankNodeSums;
use super::{
    GPT, build_pattern_of_model_and_plan, check_all_sent_is_received_and_freed,
    check_traces_are_sound_and_replay_ends, format_refusals, operator_flops_computed_once,
};
use crate::corpus::is_whole_corpus_requested;
use chakram::generate::{
    AttentionKernel, CheckedWorkloadPattern, OperatorAxisShardCounts, OperatorPatternDegrees,
    ParallelismPlan, PipelineSchedule, RecomputePolicy, ZeroStage,
};
use chakram::machine::Machine;
use chakram::model::{
    ActivationFunction, LayerOperator, Model, OperatorKind, OperatorTensorParallelSplit,
    OutputHead, PositionEncoding, TransformerBlock, TransformerModel,
};
use chakram::trace::{NodeView, Op, Sink, TraceError};
use std::collections::{BTreeMap, BTreeSet};
use told::{OTHERS, TRANSFORMERS};

mod told;

/// Returns a model of two blocks whose sizes are divisible by 2, 4, 6 and 8.
fn build_transformer(
    name: &str,
    block: TransformerBlock,
    head: OutputHead,
    segments: u64,
) -> Model {
    let transformer = TransformerModel {
        layers: 2,
        block,
        vocabulary: 48,
        positions: match block.norm_bias {
            true => PositionEncoding::Learned(24),
            false => PositionEncoding::Rotary,
        },
        segments,
        embedding_norm: block.norm_after,
        final_norm: !block.norm_after,
        head,
    };
    Model {
        name: name.to_owned(),
        source: String::new(),
        sequence: block.tokens,
        layers: transformer.expand_layers(),
    }
}

fn build_grid_models() -> Vec<Model> {
    let gpt = TransformerBlock {
        tokens: 24,
        hidden: 48,
        heads: 24,
        kv_heads: 24,
        head_width: 2,
        ffn: 96,
        ..GPT
    };
    let llama = TransformerBlock {
        heads: 48,
        head_width: 1,
        function: ActivationFunction::Silu,
        gated: true,
        norm_bias: false,
        biases: false,
        dropout: false,
        rotary: true,
        ..gpt
    };
    let bert = TransformerBlock {
        norm_after: true,
        causal: false,
        ..gpt
    };
    let mut models = vec![
        build_transformer("gpt", gpt, OutputHead::Logits { tied: true }, 0),
        build_transformer("llama", llama, OutputHead::Logits { tied: false }, 0),
        build_transformer("bert", bert, OutputHead::Masked, 2),
    ];
    for name in ["vgg-11", "resnet-18", "vit-b-16", "dlrm"] {
        models.push(Model::load_named(name).unwrap());
    }
    models
}

/// Returns the names of operators that get degrees. Each name occurs once, and tables are one
/// entry.
fn list_distinct_operator_names_of_model(model: &Model) -> Vec<String> {
    let operators = model.layers.iter().flat_map(|layer| &layer.operators);
    let mut names = BTreeSet::new();
    for operator in operators {
        let name = match operator.work {
            OperatorKind::EmbeddingBag { .. } => "table*",
            _ => &operator.name,
        };
        names.insert(name.to_owned());
    }
    names.into_iter().collect()
}

/// Returns all combinations of degrees whose product is `members`.
fn list_degree_combinations(members: u32) -> Vec<OperatorAxisShardCounts> {
    let divisors = |n: u32| (1..=n).filter(move |by| n.is_multiple_of(*by));
    let mut all = Vec::new();
    for b in divisors(members) {
        for m in divisors(members / b) {
            for n in divisors(members / b / m) {
                let k = members / b / m / n;
                all.push(OperatorAxisShardCounts { b, m, n, k });
            }
        }
    }
    all
}

fn make_operator_plan(members: u32, operators: Vec<OperatorPatternDegrees>) -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    plan.tensor = members;
    (plan.batch, plan.micro_batch) = (24, 24);
    plan.operators = operators;
    plan
}

/// Sums FLOPs by layer and operator, in addition to the totals.
struct FlopsPerOperatorSink<'m> {
    model: &'m Model,
    sums: RankNodeSums,
    flops: BTreeMap<(u32, String), u128>,
}

impl Sink for FlopsPerOperatorSink<'_> {
    fn receive_node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError> {
        if let (Op::Compute { flops, .. }, Some(layer)) = (node.op, node.labels.layer) {
            let rest = node.name.rsplit_once('/').unwrap().1;
            let operators = &self.model.layers[layer as usize].operators;
            let whose = |name: &str| {
                let behind = rest.strip_prefix(name);
                behind.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            let of = operators.iter().map(|operator| &operator.name);
            let name = of.filter(|name| whose(name)).max_by_key(|name| name.len());
            let key = (layer, name.unwrap().clone());
            *self.flops.entry(key).or_default() += u128::from(flops);
        }
        self.sums.receive_node(node, data)
    }
}

/// Returns `true` if the plan or the model gives the split of `operator`, rather than the previous operator passing it
/// on.
fn is_split_stated_by_plan_or_model(plan: &ParallelismPlan, operator: &LayerOperator) -> bool {
    let names = |one: &OperatorPatternDegrees| {
        one.name == operator.name
            || one.name == "table*" && matches!(operator.work, OperatorKind::EmbeddingBag { .. })
    };
    plan.operators.iter().any(names)
        || matches!(
            operator.cut,
            OperatorTensorParallelSplit::ColumnParallel | OperatorTensorParallelSplit::RowParallel
        )
}

/// Compares these sums with the model's own. Members may repeat work only by a factor that divides their number.
fn check_operator_flops_are_conserved(
    model: &Model,
    plan: &ParallelismPlan,
    job: &CheckedWorkloadPattern,
) {
    let about = format!("{}: {plan:?}", model.name);
    let mut ranks = Vec::new();
    let mut flops: BTreeMap<(u32, String), u128> = BTreeMap::new();
    for rank in 0..job.rank_count() {
        let sums = RankNodeSums {
            rank,
            ..RankNodeSums::default()
        };
        let mut by = FlopsPerOperatorSink {
            model,
            sums,
            flops: BTreeMap::new(),
        };
        job.emit_nodes(rank, &mut by).unwrap();
        for (key, more) in by.flops {
            *flops.entry(key).or_default() += more;
        }
        ranks.push(by.sums);
    }
    for (i, layer) in model.layers.iter().enumerate() {
        for (k, operator) in layer.operators.iter().enumerate() {
            let once = operator_flops_computed_once(plan, layer.role, operator, i == 0 && k == 0);
            let key = (i as u32, operator.name.clone());
            let found = flops.get(&key).copied().unwrap_or(0);
            let about = format!("{}/{} of {about}", layer.name, operator.name);
            if once == 0 || is_split_stated_by_plan_or_model(plan, operator) {
                assert_eq!(found, once, "{about}");
            } else {
                let times = found / once;
                assert_eq!(found, once * times, "{about}");
                let members = u128::from(plan.tensor);
                assert!(times > 0 && members.is_multiple_of(times), "{about}");
            }
        }
    }
    check_all_sent_is_received_and_freed(&ranks, &about);
}

/// Returns the error without numbers and names, so that errors of one kind are equal.
fn generalize_error(why: &str) -> String {
    let why = why.split(", such as").next().unwrap();
    let why = why.split(" (operator").next().unwrap();
    let mut plain = String::new();
    for c in why.chars().filter(|c| *c != '.') {
        match c {
            '0'..='9' if plain.ends_with('#') => {}
            '0'..='9' => plain.push('#'),
            _ => plain.push(c),
        }
    }
    plain
}

/// Pseudo-random numbers, equal in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn pick_one_of<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

/// Draws all other settings of a plan.
fn draw_plan_settings(dice: &mut Dice, plan: &mut ParallelismPlan, deep: bool) {
    let room = 16 / plan.tensor;
    let shapes: &[(u32, u32)] = match (room, deep) {
        (4.., true) => &[(1, 1), (2, 1), (1, 2), (2, 2)],
        (4.., false) => &[(1, 1), (2, 1)],
        (2.., true) => &[(1, 1), (2, 1), (1, 2)],
        (2.., false) => &[(1, 1), (2, 1)],
        _ => &[(1, 1)],
    };
    (plan.data, plan.pipeline) = dice.pick_one_of(shapes);
    plan.schedule = match plan.pipeline {
        1 => dice.pick_one_of(&[
            PipelineSchedule::OneForwardOneBackward,
            PipelineSchedule::LayerWise { layers: 1 },
            PipelineSchedule::Inference,
        ]),
        _ => dice.pick_one_of(&[
            PipelineSchedule::GPipe,
            PipelineSchedule::OneForwardOneBackward,
            PipelineSchedule::Inference,
        ]),
    };
    if plan.schedule != PipelineSchedule::Inference {
        plan.recompute = dice.pick_one_of(&[
            RecomputePolicy::None,
            RecomputePolicy::Full,
            RecomputePolicy::Selective,
        ]);
    }
    if plan.recompute == RecomputePolicy::Selective {
        plan.attention = AttentionKernel::Unfused;
    }
    if plan.data > 1 {
        plan.zero = dice.pick_one_of(&[ZeroStage::None, ZeroStage::Parameters]);
    }
    plan.tensor_overlap = dice.pick_one_of(&[true, false]);
    plan.sequence_parallel = dice.pick_one_of(&[true, false]);
    plan.bucket = 3000;
    plan.batch = 24 * u64::from(plan.data) * dice.pick_one_of(&[1, 2]);
}

/// Splits one operator at a time in every way, while the model or inheritance splits the rest; then
/// splits all operators at once, each in a random valid way. By default one in four of these
/// combined splits is checked.
fn check_plans_with_every_operator_split(model: &Model, degrees: &[u32], throws: usize) -> String {
    let machine = Machine::load_preset("dgx-a100x2").unwrap();
    let mut told = String::new();
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let deep = model.name != "dlrm";
    let (mut refused, mut together) = (BTreeMap::new(), BTreeMap::new());
    let (mut done, mut thrown) = (0, 0);
    for &members in degrees {
        let mut ways: Vec<(String, Vec<OperatorAxisShardCounts>)> = Vec::new();
        for name in list_distinct_operator_names_of_model(model) {
            let mut legal = Vec::new();
            for degrees in list_degree_combinations(members) {
                let name = name.clone();
                let plan =
                    make_operator_plan(members, vec![OperatorPatternDegrees { name, degrees }]);
                match build_pattern_of_model_and_plan(model, &plan) {
                    Ok(job) => {
                        // The combined plans below cover other numbers of members, too, so every third plan is enough
                        // here.
                        let some = matches!(members, 4 | 6) || done % 3 == 0;
                        if some && (is_whole_corpus_requested() || done % 4 == 0) {
                            check_operator_flops_are_conserved(model, &plan, &job);
                        }
                        legal.push(degrees);
                        done += 1;
                    }
                    Err(why) => *refused.entry(generalize_error(&why)).or_default() += 1,
                }
            }
            ways.push((name, legal));
        }
        for _ in 0..throws {
            let all = ways.iter().filter(|(_, legal)| !legal.is_empty());
            let operators = all.map(|(name, legal)| OperatorPatternDegrees {
                name: name.clone(),
                degrees: dice.pick_one_of(legal),
            });
            let mut plan = make_operator_plan(members, operators.collect());
            draw_plan_settings(&mut dice, &mut plan, deep);
            match build_pattern_of_model_and_plan(model, &plan) {
                Ok(job) => {
                    if is_whole_corpus_requested() || thrown % 4 == 0 {
                        check_operator_flops_are_conserved(model, &plan, &job);
                        check_traces_are_sound_and_replay_ends(
                            &job,
                            &machine,
                            &format!("{}: {plan:?}", model.name),
                        );
                    }
                    thrown += 1;
                }
                Err(why) => *together.entry(generalize_error(&why)).or_default() += 1,
            }
        }
    }
    told += &format!(
        "{}: {done} one by one\n{}",
        model.name,
        format_refusals(&refused)
    );
    told += &format!("{thrown} together\n{}", format_refusals(&together));
    told
}

#[test]
fn transformers_do_the_same_work_however_operators_are_split() {
    let models = build_grid_models();
    let told: String = models[..3]
        .iter()
        .map(|model| check_plans_with_every_operator_split(model, &[2, 4, 6, 8], 20))
        .collect();
    assert_eq!(told.trim(), TRANSFORMERS.trim());
}

#[test]
fn other_models_do_the_same_work_however_operators_are_split() {
    let models = build_grid_models();
    let told: String = models[3..]
        .iter()
        .map(|model| check_plans_with_every_operator_split(model, &[4, 6], 10))
        .collect();
    assert_eq!(told.trim(), OTHERS.trim());
}
