//! Tests context parallelism: kernels, exchanges, groups, gradients and memory.

use super::super::super::testing::{EmittedNode, check_and_record_every_rank};
use super::super::*;
use super::{
    ROTARY_BLOCK, build_two_block_model, find_kernel_flops_and_bytes, list_dependency_names,
    rejection_message,
};
use crate::generate::plan::ContextExchange;
use crate::model::{TotalAndChosenExpertCounts, TransformerBlock};
use chakram_trace::format::TensorClass;
use std::collections::BTreeSet;

/// Number of tokens. The next constants are the hidden size, the number of query heads, the number
/// of KV heads, the head size, and the MLP's width.
const T: u64 = 16;
const H: u64 = 16;
const A: u64 = 4;
const V: u64 = 2;
const W: u64 = 4;
const F: u64 = 8;
/// Size of the vocabulary.
const WORDS: u64 = 40;

fn build_model(causal: bool, experts: Option<TotalAndChosenExpertCounts>) -> Model {
    let block = TransformerBlock {
        tokens: T,
        hidden: H,
        heads: A,
        kv_heads: V,
        head_width: W,
        ffn: F,
        causal,
        experts,
        ..ROTARY_BLOCK
    };
    build_two_block_model("context", block, false)
}

/// Returns a plan with two replicas, each with two ranks that share the tokens of their sequences.
fn build_context_plan(exchange: ContextExchange) -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    (plan.data, plan.context, plan.batch) = (2, 2, 4);
    plan.context_exchange = exchange;
    plan
}

fn build_model_and_plan(plan: &ParallelismPlan) -> ModelAndParallelismPlan {
    let (model, plan) = (build_model(true, None), plan.clone());
    ModelAndParallelismPlan { model, plan }
}

fn generate_all_ranks(plan: &ParallelismPlan) -> Vec<Vec<EmittedNode>> {
    check_and_record_every_rank(build_model_and_plan(plan))
}

fn compute_plan_summary(plan: &ParallelismPlan) -> PlanSummary {
    build_model_and_plan(plan).summarize_plan().unwrap()
}

const BOTH: [ContextExchange; 2] = [ContextExchange::AllGather, ContextExchange::AllToAll];

/// Each rank of a context group has half of the tokens and half of the 16 x 17 / 2 = 136 causal pairs, that is, 68
/// pairs.
#[test]
fn kernels_have_the_tokens_of_a_rank() {
    let t = T / 2;
    for exchange in BOTH {
        let nodes = &generate_all_ranks(&build_context_plan(exchange))[3];
        let of = |name: &str| find_kernel_flops_and_bytes(nodes, &format!("mb0/layer1/{name}"));
        let columns = (A + 2 * V) * W;
        let qkv = [2 * t * H * columns, 2 * (t * H + H * columns + t * columns)];
        assert_eq!(of("fwd/attention.qkv"), qkv);
        assert_eq!(of("fwd/norm1"), [0, 2 * 2 * t * H]);
        // A rank rotates only its own queries and keys: all heads for half of the tokens, or half
        // of the heads for all tokens.
        assert_eq!(
            of("fwd/attention.core.rotary"),
            [0, 2 * 2 * t * (A + V) * W]
        );
        let products = 2 * 2 * (T * (T + 1) / 4) * A * W;
        // Attention reads the keys and values of all tokens, either for all heads or only for the rank's heads. It
        // writes an output as large as the queries, and 4 B per row.
        let keys = match exchange {
            ContextExchange::AllGather => T * V,
            ContextExchange::AllToAll => T * V / 2,
            ContextExchange::Ring => unreachable!("it has several kernels"),
        };
        let moved = 2 * (2 * t * A * W + 2 * keys * W) + 4 * t * A;
        assert_eq!(of("fwd/attention.core"), [products, moved], "{exchange}");
        assert_eq!(of("bwd/attention.core")[0], products * 5 / 2, "{exchange}");
        let logits = find_kernel_flops_and_bytes(nodes, "mb0/head/fwd/logits");
        assert_eq!(logits[0], 2 * t * H * WORDS);
    }
}

/// All ranks together execute as many FLOPs as a single rank. Tests both exchanges, with fused and unfused kernels, and
/// with and without a causal mask.
#[test]
fn flops_of_all_ranks_are_those_of_one() {
    for (causal, unfused) in [(true, false), (false, false), (true, true), (false, true)] {
        let all = |context: u32, exchange: ContextExchange| {
            let mut plan = ParallelismPlan::new();
            (plan.context, plan.context_exchange) = (context, exchange);
            if unfused {
                plan.attention = AttentionKernel::Unfused;
            }
            let model = build_model(causal, None);
            ModelAndParallelismPlan { model, plan }
                .summarize_plan()
                .unwrap()
                .flops
        };
        let alone = all(1, ContextExchange::AllGather);
        for exchange in BOTH {
            assert_eq!(all(2, exchange), alone, "{exchange}, causal {causal}");
        }
        if !unfused {
            assert_eq!(all(2, ContextExchange::Ring), alone, "causal {causal}");
            assert_eq!(all(4, ContextExchange::Ring), alone, "causal {causal}");
        }
        assert_eq!(all(4, ContextExchange::AllGather), alone);
    }
}

/// Counts pairs one by one. If each rank has the i-th piece from both ends of a sequence, all ranks have the same
/// number of pairs.
#[test]
fn two_pieces_from_either_end_have_equal_parts_of_causal_scores() {
    for (tokens, ranks) in [(16_u64, 2_u64), (16, 4), (48, 3), (60, 5), (8, 4)] {
        let piece = tokens / (2 * ranks);
        let pairs = |rank: u64| {
            let own = |token: u64| [rank, 2 * ranks - 1 - rank].contains(&(token / piece));
            let queries = (0..tokens).filter(|token| own(*token));
            queries
                .map(|query| (0..tokens).filter(|key| *key <= query).count() as u64)
                .sum::<u64>()
        };
        for rank in 0..ranks {
            assert_eq!(pairs(rank), tokens / ranks * (tokens + 1) / 2);
        }
    }
}

fn list_context_exchanges<'n>(nodes: &'n [EmittedNode], of: &str) -> Vec<(&'n str, u64)> {
    let own = nodes
        .iter()
        .filter(|node| node.lane == Some(CONTEXT_LANE) && node.name.starts_with(of));
    own.map(|node| {
        assert!(node.op.contains("group: Number("), "{}", node.op);
        let bytes = node.op.split("bytes: ").nth(1).unwrap();
        let bytes = bytes.split(',').next().unwrap().parse().unwrap();
        (&node.name[of.len()..], bytes)
    })
    .collect()
}

#[test]
fn keys_and_values_are_gathered_and_their_gradients_scattered() {
    let nodes = &generate_all_ranks(&build_context_plan(ContextExchange::AllGather))[0];
    let keys = 2 * 2 * (T / 2) * V * W;
    let expected = |pass: &str| list_context_exchanges(nodes, &format!("mb0/layer0/{pass}/"));
    assert_eq!(expected("fwd"), [("attention.core.all-gather", keys)]);
    // A reduce-scatter counts the bytes of its whole input.
    assert_eq!(
        expected("bwd"),
        [
            ("attention.core.all-gather", keys),
            ("attention.core.reduce-scatter", 2 * keys)
        ]
    );
    let at = |name: &str| list_dependency_names(nodes, &format!("mb0/layer0/{name}"));
    for (name, after) in [
        ("fwd/attention.core.all-gather", "fwd/attention.qkv"),
        ("fwd/attention.core.rotary", "fwd/attention.core.all-gather"),
        ("bwd/attention.core", "bwd/attention.core.all-gather"),
        (
            "bwd/attention.core.reduce-scatter",
            "bwd/attention.core.rotary",
        ),
        (
            "bwd/attention.qkv.dgrad",
            "bwd/attention.core.reduce-scatter",
        ),
    ] {
        assert_eq!(at(name), [format!("mb0/layer0/{after}")], "{name}");
    }
}

#[test]
fn heads_are_exchanged_for_tokens_and_back() {
    let nodes = &generate_all_ranks(&build_context_plan(ContextExchange::AllToAll))[0];
    let (queries, keys) = (2 * (T / 2) * A * W, 2 * 2 * (T / 2) * V * W);
    let expected = |pass: &str| list_context_exchanges(nodes, &format!("mb0/layer0/{pass}/"));
    assert_eq!(
        expected("fwd"),
        [
            ("attention.core.all-to-all", queries + keys),
            ("attention.core.output.all-to-all", queries)
        ]
    );
    assert_eq!(
        expected("bwd"),
        [
            ("attention.core.output.all-to-all", queries),
            ("attention.core.all-to-all", queries + keys)
        ]
    );
    let at = |name: &str| list_dependency_names(nodes, &format!("mb0/layer0/{name}"));
    for (name, after) in [
        ("fwd/attention.out", "fwd/attention.core.output.all-to-all"),
        ("bwd/attention.core", "bwd/attention.core.output.all-to-all"),
        ("bwd/attention.qkv.dgrad", "bwd/attention.core.all-to-all"),
    ] {
        assert_eq!(at(name), [format!("mb0/layer0/{after}")], "{name}");
    }
}

#[test]
fn context_exchanges_can_be_ablated_and_are_recomputed_with_their_layer() {
    for exchange in BOTH {
        let mut plan = build_context_plan(exchange);
        let count =
            |plan: &ParallelismPlan| list_context_exchanges(&generate_all_ranks(plan)[1], "").len();
        let one_way = if exchange == ContextExchange::AllGather {
            [1, 2]
        } else {
            [2, 2]
        };
        // The model has two layers, and the plan has one micro-batch.
        assert_eq!(count(&plan), 2 * (one_way[0] + one_way[1]) * 2);
        plan.recompute = RecomputePolicy::Full;
        assert_eq!(count(&plan), 2 * (2 * one_way[0] + one_way[1]) * 2);
        plan.without
            .add_effect(AblationEffect::ContextCommunication);
        assert_eq!(count(&plan), 0);
    }
}

/// Ranks 0 and 1 are a tensor group; ranks 2 and 3 have the other tokens of the same sequences.
#[test]
fn neighbouring_replicas_have_a_sequence_between_them() {
    let mut plan = build_context_plan(ContextExchange::AllGather);
    plan.tensor = 2;
    let summary = compute_plan_summary(&plan);
    let of = |family: &str| {
        let found = summary.groups.iter().find(|one| one.family == family);
        found.map(|one| one.all.clone()).unwrap_or_default()
    };
    assert_eq!(summary.ranks, 8);
    assert_eq!(summary.micro_batches, 2);
    assert_eq!(of("context"), [[0, 2], [1, 3], [4, 6], [5, 7]]);
    assert_eq!(of("data"), [[0, 2, 4, 6], [1, 3, 5, 7]]);
    let found = &summary.stages[0].communication;
    let context = found.iter().filter(|one| one.family == "context");
    // In each of two layers and two micro-batches, the forward pass performs one gather, and the backward pass performs
    // one gather and one reduce-scatter.
    assert_eq!(context.map(|one| one.calls).sum::<u64>(), 2 * 2 * 3);
}

/// Every rank has all of the model's weights. All four ranks sum their gradients and, under ZeRO, also shard the state.
#[test]
fn all_replicas_sum_gradients_and_share_state() {
    let weights = build_model_and_plan(&ParallelismPlan::new())
        .model
        .parameter_count();
    for exchange in BOTH {
        let mut plan = build_context_plan(exchange);
        plan.zero = ZeroStage::Optimizer;
        let stage = compute_plan_summary(&plan).stages.swap_remove(0);
        assert_eq!(stage.parameters, weights);
        assert_eq!(
            stage.memory[TensorClass::Optimizer as usize],
            (12 * weights).div_ceil(4)
        );
        let nodes = &generate_all_ranks(&plan)[0];
        let reduced = nodes
            .iter()
            .filter(|node| node.lane == Some(GRADIENT_LANE))
            .map(|node| {
                let bytes = node.op.split("bytes: ").nth(1).unwrap();
                bytes.split(',').next().unwrap().parse::<u64>().unwrap()
            });
        assert_eq!(reduced.sum::<u64>(), 2 * weights);
    }
}

/// Each rank saves only its own tokens' tensors, but attention saves all keys and values.
#[test]
fn memory_is_that_of_a_ranks_tokens() {
    let kept = |plan: &ParallelismPlan| compute_plan_summary(plan).stages[0].stored.1;
    let mut alone = build_context_plan(ContextExchange::AllGather);
    (alone.context, alone.data) = (1, 2);
    for (exchange, _) in ContextExchange::ALL {
        assert_eq!(
            2 * kept(&build_context_plan(*exchange)),
            kept(&alone),
            "{exchange}"
        );
    }
    let nodes = &generate_all_ranks(&build_context_plan(ContextExchange::AllGather))[0];
    let temporary = |name: &str| {
        let node = nodes.iter().find(|node| node.name == name).unwrap();
        let of = |bytes: &[u64]| bytes[TensorClass::Temporary as usize];
        [of(&node.memory.allocates), of(&node.memory.frees)]
    };
    let all = 2 * 2 * T * V * W;
    let core = |pass: &str| format!("mb0/layer1/{pass}/attention.core");
    assert_eq!(temporary(&(core("fwd") + ".all-gather")), [all, 0]);
    assert_eq!(temporary(&core("fwd")), [0, all]);
    assert_eq!(temporary(&(core("bwd") + ".all-gather")), [2 * all, 0]);
    assert_eq!(temporary(&(core("bwd") + ".rotary")), [0, all]);
    assert_eq!(temporary(&(core("bwd") + ".reduce-scatter")), [0, all]);
}

/// Replicas divide the experts, even if they share the tokens of a sequence.
#[test]
fn experts_lie_across_ranks_with_different_tokens() {
    let routing = TotalAndChosenExpertCounts {
        experts: 4,
        chosen: 2,
    };
    let mut plan = build_context_plan(ContextExchange::AllGather);
    plan.expert = 4;
    let model = build_model(true, Some(routing));
    let pattern = ModelAndParallelismPlan { model, plan };
    let nodes = check_and_record_every_rank(pattern).swap_remove(0);
    let sent = nodes
        .iter()
        .find(|node| node.name == "mb0/layer0/fwd/experts.dispatch.all-to-all")
        .unwrap();
    // A rank exchanges two copies of each of its 8 tokens, with H values of 2 B per copy.
    let bytes = 2 * 2 * (T / 2) * H;
    assert!(sent.op.contains(&format!("bytes: {bytes},")), "{}", sent.op);
}

/// A stage sends only its own tokens' activations to the next stage.
#[test]
fn pipeline_sends_carry_only_the_ranks_own_tokens() {
    let mut plan = build_context_plan(ContextExchange::AllToAll);
    plan.pipeline = 2;
    let nodes = &generate_all_ranks(&plan)[0];
    let sent = nodes.iter().find(|node| node.op.contains("Message"));
    let bytes = 2 * (T / 2) * H;
    let op = &sent.unwrap().op;
    assert!(op.contains(&format!("bytes: {bytes},")), "{op}");
}

#[test]
fn degrees_that_do_not_share_out_tokens_are_refused() {
    let refused = |model: Model, change: fn(&mut ParallelismPlan), why: &str| {
        let mut plan = build_context_plan(ContextExchange::AllGather);
        change(&mut plan);
        let found = rejection_message(ModelAndParallelismPlan { model, plan });
        assert!(found.contains(why), "{found}");
    };
    let own = || build_model(true, None);
    refused(own(), |plan| plan.context = 0, "`context` is 0");
    refused(
        own(),
        |plan| plan.context = 3,
        "`context` is 3; expected a divisor of 16 tokens (operator tokens)",
    );
    // 16 ranks need 32 pieces, but the sequence has only 16 tokens.
    refused(
        own(),
        |plan| plan.context = 16,
        "a divisor of half of 16 tokens, two pieces of a sequence for each rank (operator attention.core)",
    );
    refused(
        own(),
        |plan| (plan.context, plan.context_exchange) = (4, ContextExchange::AllToAll),
        "a number that times tensor = 1 divides 2 heads of keys and values, or context-exchange = all-gather",
    );
    refused(
        own(),
        |plan| (plan.context, plan.context_exchange) = (1, ContextExchange::AllToAll),
        "all-gather with context = 1",
    );
    refused(
        own(),
        |plan| {
            plan.context_exchange = ContextExchange::Ring;
            plan.attention = AttentionKernel::Unfused;
        },
        "`context_exchange` is ring; expected attention = flash",
    );
    refused(
        own(),
        |plan| plan.recompute = RecomputePolicy::Operators,
        "where tokens of a sequence are shared out",
    );
    refused(
        Model::load_named("resnet-50").unwrap(),
        |_| (),
        "`context` is 2; expected 1 for resnet-50, in which no token needs another",
    );
    refused(
        Model::load_named("vit-b-16").unwrap(),
        |_| (),
        "`context` is 2",
    );
}

/// Returns the number of query-key pairs, by rank and by ring step, counted one by one. Rank `i`
/// has the pieces `i` and `2 ranks - 1 - i` of a sequence. In step `k`, rank `i` has the keys of
/// rank `i - k`.
fn count_query_key_pairs_by_rank_and_step(tokens: u64, ranks: u64, causal: bool) -> Vec<Vec<u64>> {
    let piece = tokens / (2 * ranks);
    let owner = |token: u64| {
        let piece = token / piece;
        piece.min(2 * ranks - 1 - piece)
    };
    let mut pairs = vec![vec![0; ranks as usize]; ranks as usize];
    for query in 0..tokens {
        for key in 0..tokens {
            if key <= query || !causal {
                let step = (owner(query) + ranks - owner(key)) % ranks;
                pairs[owner(query) as usize][step as usize] += 1;
            }
        }
    }
    pairs
}

/// Every rank has equal work in each step, and the FLOPs of each step's kernel match its pairs.
#[test]
fn steps_of_a_ring_have_equal_work() {
    for ranks in [2_u32, 4] {
        for causal in [true, false] {
            let mut plan = ParallelismPlan::new();
            (plan.context, plan.context_exchange) = (ranks, ContextExchange::Ring);
            let model = build_model(causal, None);
            let pattern = ModelAndParallelismPlan { model, plan };
            let all = check_and_record_every_rank(pattern);
            let pairs = count_query_key_pairs_by_rank_and_step(T, ranks.into(), causal);
            for (nodes, pairs) in all.iter().zip(&pairs) {
                assert_eq!(
                    pairs,
                    &count_query_key_pairs_by_rank_and_step(T, ranks.into(), causal)[0]
                );
                for (step, pairs) in pairs.iter().enumerate() {
                    let suffix = if step == 0 {
                        String::new()
                    } else {
                        format!(".step{step}")
                    };
                    let name = |pass| format!("mb0/layer1/{pass}/attention.core{suffix}");
                    let forward = find_kernel_flops_and_bytes(nodes, &name("fwd"))[0];
                    assert_eq!(forward, 4 * pairs * A * W, "{ranks} ranks, step {step}");
                    assert_eq!(
                        find_kernel_flops_and_bytes(nodes, &name("bwd"))[0],
                        forward * 5 / 2
                    );
                }
            }
        }
    }
}

/// A rank sends its own keys and values to the next rank, and forwards those that it receives. The sends overlap the
/// kernels of the previous step.
#[test]
fn keys_and_values_pass_around_a_ring() {
    let mut plan = ParallelismPlan::new();
    (plan.context, plan.context_exchange) = (4, ContextExchange::Ring);
    let nodes = &generate_all_ranks(&plan)[1];
    // Bytes of keys and values for four tokens (a rank's share of the sequence).
    let keys = 2 * 2 * (T / 4) * V * W;
    let messages = |pass: &str| {
        let prefix = format!("mb0/layer1/{pass}/attention.core.");
        let own = nodes.iter().filter(|node| node.name.starts_with(&prefix));
        let own = own.filter(|node| node.op.contains("Message"));
        own.map(|node| {
            let is_next = node.op.contains("peer: 2");
            assert_eq!(node.name.ends_with(".send"), is_next, "{}", node.op);
            assert!(is_next || node.op.contains("peer: 0"), "{}", node.op);
            assert!(node.op.contains(&format!("bytes: {keys},")), "{}", node.op);
            node.name[prefix.len()..].to_owned()
        })
        .collect::<BTreeSet<_>>()
    };
    let each = |names: &[&str]| -> BTreeSet<String> {
        let both = |name: &&str| [format!("{name}.send"), format!("{name}.receive")];
        names.iter().flat_map(both).collect()
    };
    // With s tokens, P ranks, and kv columns of e bytes, a rank sends 2 (s / P) kv e (P - 1) bytes. In the backward
    // pass, it sends twice as many.
    assert_eq!(messages("fwd"), each(&["step1", "step2", "step3"]));
    assert_eq!(
        messages("bwd"),
        each(&[
            "step1",
            "step1.gradients",
            "step2",
            "step2.gradients",
            "step3",
            "step3.gradients"
        ])
    );
    // When a host waits for a receive, it must already have launched the kernels that run in parallel with it.
    let index = |name: &str| {
        let name = format!("mb0/layer1/{name}");
        nodes.iter().position(|node| node.name == name).unwrap()
    };
    for (kernel, receive) in [
        ("fwd/attention.core", "fwd/attention.core.step1.receive"),
        (
            "fwd/attention.core.step1",
            "fwd/attention.core.step2.receive",
        ),
        (
            "bwd/attention.core.step1",
            "bwd/attention.core.step2.receive",
        ),
        (
            "bwd/attention.core.step2",
            "bwd/attention.core.step1.gradients.receive",
        ),
    ] {
        assert!(index(kernel) < index(receive), "{kernel} {receive}");
    }
    let at = |name: &str| {
        let name = format!("mb0/layer1/{name}");
        let all = list_dependency_names(nodes, &name);
        all.iter()
            .map(|one| one["mb0/layer1/".len()..].to_owned())
            .collect::<Vec<_>>()
    };
    let core = |pass: &str, what: &str| format!("{pass}/attention.core{what}");
    for (name, after) in [
        (core("fwd", ".step1.send"), vec![core("fwd", ".rotary")]),
        (core("fwd", ""), vec![core("fwd", ".rotary")]),
        (
            core("fwd", ".step1"),
            vec![core("fwd", ".step1.receive"), core("fwd", "")],
        ),
        (core("fwd", ".merge.step1"), vec![core("fwd", ".step1")]),
        // A rank forwards received keys immediately.
        (
            core("fwd", ".step2.send"),
            vec![core("fwd", ".step1.receive")],
        ),
        (
            core("fwd", ".step2"),
            vec![core("fwd", ".step2.receive"), core("fwd", ".merge.step1")],
        ),
        (
            "fwd/attention.out".to_owned(),
            vec![core("fwd", ".merge.step3")],
        ),
        // A rank adds received gradients after its next kernel has run.
        (
            core("bwd", ".step1.gradients.send"),
            vec![core("bwd", ".step1")],
        ),
        (
            core("bwd", ".step2"),
            vec![core("bwd", ".step1"), core("bwd", ".step1.receive")],
        ),
        (
            core("bwd", ".merge.step1"),
            vec![
                core("bwd", ".step1.gradients.receive"),
                core("bwd", ".step2"),
            ],
        ),
        (
            core("bwd", ""),
            vec![core("bwd", ".merge.step2"), core("bwd", ".step3.receive")],
        ),
        (core("bwd", ".rotary"), vec![core("bwd", ".merge.step3")]),
    ] {
        let mut found = at(&name);
        found.sort();
        let mut after = after;
        after.sort();
        assert_eq!(found, after, "{name}");
    }
    let summary = build_model_and_plan(&plan).summarize_plan().unwrap();
    let sent = summary.stages[0].communication.iter();
    let sent: Vec<_> = sent
        .filter(|one| one.family == "context")
        .map(|one| (&one.kind[..], one.calls, one.bytes))
        .collect();
    // Each of the two layers sends keys three times in the forward pass, and keys or their gradients six times in the
    // backward pass.
    let keys = u128::from(keys);
    assert_eq!(
        sent,
        [("send", 2 * 3, 6 * keys), ("send", 2 * 6, 12 * keys)]
    );
}

/// Rings support grouped heads, normalized heads and latent attention, but not windows.
#[test]
fn rings_are_refused_for_windows() {
    for (name, accepted) in [
        ("llama3-8b", true),
        ("qwen3-4b", true),
        ("deepseek-v2-lite", true),
        ("gpt-oss-20b", false),
    ] {
        let mut plan = ParallelismPlan::new();
        (plan.context, plan.context_exchange) = (2, ContextExchange::Ring);
        let model = Model::load_named(name).unwrap();
        let found = ModelAndParallelismPlan { model, plan }.summarize_plan();
        assert_eq!(found.is_ok(), accepted, "{name}");
        if let Err(error) = found {
            assert!(
                error.to_string().contains("tokens attend to windows"),
                "{error}"
            );
        }
    }
}
