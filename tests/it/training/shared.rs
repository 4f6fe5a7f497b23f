//! Tests sharded parameters over several micro-batches: how many transfers they need, how many bytes these move, and
//! how long parameters stay allocated.

use super::{RankNodeSums, build_pattern_of_model_and_plan, build_product_chain_model};
use chakram::generate::{Optimizer, ParallelismPlan, PipelineSchedule, ZeroStage};
use chakram::model::LayerRole;
use chakram::trace::{CollectiveKind, TensorClass};

/// Returns a plan with two replicas, four micro-batches and a bucket for each of ten layers: eight
/// products of 10 x 10 weights and a norm of 10 at each end, 820 weights together.
fn make_zero_plan(zero: ZeroStage) -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    plan.data = 2;
    plan.batch = 8;
    plan.bucket = 1;
    plan.zero = zero;
    plan
}

const WEIGHTS: u64 = 820;
const LAYERS: usize = 10;

fn sum_generated_rank_one_nodes(plan: &ParallelismPlan) -> RankNodeSums {
    RankNodeSums::sum_nodes_of_rank(
        &build_pattern_of_model_and_plan(&build_product_chain_model(8, 10), plan).unwrap(),
        1,
    )
}

/// Returns how many collectives of a kind there are, and their total size.
fn count_and_sum_collectives_of_kind(sums: &RankNodeSums, wanted: CollectiveKind) -> (usize, u64) {
    let found = sums
        .collectives
        .iter()
        .filter(|(_, kind, _)| *kind == wanted);
    found.fold((0, 0), |(count, bytes), (.., size)| {
        (count + 1, bytes + size)
    })
}

/// Gradients of 2 B are reduced after each of four micro-batches, and each replica keeps its half. In the other case,
/// gradients are reduced once, and until then each replica keeps all of them. Temporary memory covers only one layer,
/// 200 B, because each layer's reduction follows its gradient in id order.
#[test]
fn gradients_are_reduced_in_each_micro_batch_or_kept_whole() {
    let reduced = |accumulate, overlap| {
        let mut plan = make_zero_plan(ZeroStage::Gradients);
        (plan.accumulate, plan.overlap) = (accumulate, overlap);
        let sums = sum_generated_rank_one_nodes(&plan);
        let kept = [TensorClass::Gradients, TensorClass::Temporary]
            .map(|class| sums.peak_bytes_of_tensor_class(class));
        assert_eq!(
            count_and_sum_collectives_of_kind(&sums, CollectiveKind::AllReduce),
            (0, 0)
        );
        // Each replica updates half of the parameters, of 2 B each, and gathers the other half.
        assert_eq!(
            count_and_sum_collectives_of_kind(&sums, CollectiveKind::AllGather),
            (LAYERS, WEIGHTS)
        );
        assert_eq!(sums.used[3..], [0, 0]);
        (
            count_and_sum_collectives_of_kind(&sums, CollectiveKind::ReduceScatter),
            kept,
        )
    };
    let each = (4 * LAYERS, 4 * 2 * WEIGHTS);
    let once = (LAYERS, 2 * WEIGHTS);
    assert_eq!(reduced(false, true), (each, [WEIGHTS, 200]));
    assert_eq!(reduced(true, true), (once, [2 * WEIGHTS, 0]));
    // At the end of a whole pass all its gradients are allocated.
    assert_eq!(reduced(false, false), (each, [WEIGHTS, 2 * WEIGHTS]));
    assert_eq!(reduced(true, false), (once, [2 * WEIGHTS, 0]));
    // ZeRO 1 shards only the optimizer's state, so accumulation changes nothing.
    for accumulate in [false, true] {
        let mut plan = make_zero_plan(ZeroStage::Optimizer);
        plan.accumulate = accumulate;
        let sums = sum_generated_rank_one_nodes(&plan);
        assert_eq!(
            count_and_sum_collectives_of_kind(&sums, CollectiveKind::ReduceScatter),
            once
        );
        assert_eq!(
            sums.peak_bytes_of_tensor_class(TensorClass::Gradients),
            2 * WEIGHTS
        );
    }
}

/// Each of four micro-batches has a forward and a backward pass, and each pass gathers every layer: a shard of half of
/// 2 B per weight, eight times. If parameters stay, only the first pass gathers. The number of layers gathered ahead
/// changes neither result.
#[test]
fn parameters_are_gathered_in_each_pass_or_once() {
    for prefetch in [0, 1, 5, u32::MAX] {
        for (reshard, passes) in [(true, 8), (false, 1)] {
            let mut plan = make_zero_plan(ZeroStage::Parameters);
            (plan.prefetch, plan.reshard) = (prefetch, reshard);
            let sums = sum_generated_rank_one_nodes(&plan);
            let gathered = count_and_sum_collectives_of_kind(&sums, CollectiveKind::AllGather);
            assert_eq!(gathered, (passes * LAYERS, passes as u64 * WEIGHTS));
            let reduced = count_and_sum_collectives_of_kind(&sums, CollectiveKind::ReduceScatter);
            assert_eq!(reduced, (4 * LAYERS, 4 * 2 * WEIGHTS));
            assert_eq!(
                sums.peak_bytes_of_tensor_class(TensorClass::Weights),
                WEIGHTS
            );
            assert_eq!(sums.used[3..], [0, 0]);
        }
    }
}

/// Without a backward pass to free the parameters that stayed, the last micro-batch does. With several steps, each
/// gathers and frees them once.
#[test]
fn kept_parameters_are_freed_by_the_last_inference_micro_batch() {
    let mut plan = make_zero_plan(ZeroStage::Parameters);
    plan.schedule = PipelineSchedule::Inference;
    plan.reshard = false;
    plan.steps = 3;
    let sums = sum_generated_rank_one_nodes(&plan);
    let gathered = count_and_sum_collectives_of_kind(&sums, CollectiveKind::AllGather);
    assert_eq!(gathered, (3 * LAYERS, 3 * WEIGHTS));
    assert_eq!(
        sums.peak_bytes_of_tensor_class(TensorClass::Temporary),
        2 * WEIGHTS
    );
    assert_eq!(sums.used[3..], [0, 0]);
}

/// Even if the kernels of the optimizer and of the layers at both ends are left out, the memory that they would free is
/// freed: the input of 10 numbers that a norm kept, or the 20 B of its parameters.
#[test]
fn memory_that_left_out_kernels_would_free_is_still_freed() {
    for (schedule, zero) in [
        (PipelineSchedule::GPipe, ZeroStage::None),
        (PipelineSchedule::Inference, ZeroStage::Parameters),
    ] {
        let mut plan = make_zero_plan(zero);
        plan.schedule = schedule.clone();
        plan.optimizer = Optimizer::None;
        plan.without
            .add_effect(chakram::generate::AblationEffect::MemoryBound);
        if zero == ZeroStage::None {
            (plan.data, plan.batch) = (1, 4);
        }
        let mut model = build_product_chain_model(2, 10);
        let job = build_pattern_of_model_and_plan(&model, &plan).unwrap();
        let sums = RankNodeSums::sum_nodes_of_rank(&job, 0);
        assert_eq!(sums.used[3..], [0, 0], "{schedule:?}");
        // The model has only such layers: every pass is a single node.
        model.layers.retain(|layer| layer.role != LayerRole::Block);
        let job = build_pattern_of_model_and_plan(&model, &plan).unwrap();
        assert_eq!(
            RankNodeSums::sum_nodes_of_rank(&job, 0).used[3..],
            [0, 0],
            "{schedule:?}"
        );
    }
}
