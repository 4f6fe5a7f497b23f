//! Parameters that replicas share, over several micro-batches: how often they move, how many bytes, and for how long they are there.

use super::{Sums, job, products};
use chakram::generate::{Optimizer, ParallelismPlan, PipelineSchedule, ZeroStage};
use chakram::model::LayerRole;
use chakram::trace::{CollectiveKind, TensorClass};

/// Two replicas, four micro-batches, a bucket for each of ten layers: eight products of 10 x 10 weights and a norm of
/// 10 at each end, 820 in all.
fn plan(zero: ZeroStage) -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    plan.data = 2;
    plan.batch = 8;
    plan.bucket = 1;
    plan.zero = zero;
    plan
}

const WEIGHTS: u64 = 820;
const LAYERS: usize = 10;

fn sums(plan: &ParallelismPlan) -> Sums {
    Sums::of(&job(&products(8, 10), plan).unwrap(), 1)
}

/// Number of collectives of a kind, and the sum of their sizes.
fn moved(sums: &Sums, wanted: CollectiveKind) -> (usize, u64) {
    let found = sums
        .collectives
        .iter()
        .filter(|(_, kind, _)| *kind == wanted);
    found.fold((0, 0), |(count, bytes), (.., size)| {
        (count + 1, bytes + size)
    })
}

/// Gradients of 2 B are reduced after each of four micro-batches, and each replica keeps its half; or once, and each
/// keeps all of them until then. What is kept for a while is a layer's, 200 B: ids have the reduction of each behind
/// its gradient.
#[test]
fn gradients_are_reduced_in_each_micro_batch_or_kept_whole() {
    let reduced = |accumulate, overlap| {
        let mut plan = plan(ZeroStage::Gradients);
        (plan.accumulate, plan.overlap) = (accumulate, overlap);
        let sums = sums(&plan);
        let kept = [TensorClass::Gradients, TensorClass::Temporary].map(|class| sums.peak(class));
        assert_eq!(moved(&sums, CollectiveKind::AllReduce), (0, 0));
        // Each replica steps a half of the parameters, of 2 B, and gathers the other's.
        assert_eq!(moved(&sums, CollectiveKind::AllGather), (LAYERS, WEIGHTS));
        assert_eq!(sums.used[3..], [0, 0]);
        (moved(&sums, CollectiveKind::ReduceScatter), kept)
    };
    let each = (4 * LAYERS, 4 * 2 * WEIGHTS);
    let once = (LAYERS, 2 * WEIGHTS);
    assert_eq!(reduced(false, true), (each, [WEIGHTS, 200]));
    assert_eq!(reduced(true, true), (once, [2 * WEIGHTS, 0]));
    // After a whole pass, all of its gradients are there.
    assert_eq!(reduced(false, false), (each, [WEIGHTS, 2 * WEIGHTS]));
    assert_eq!(reduced(true, false), (once, [2 * WEIGHTS, 0]));
    // ZeRO 1 shares what the optimizer keeps alone, so nothing hangs on it.
    for accumulate in [false, true] {
        let mut plan = plan(ZeroStage::Optimizer);
        plan.accumulate = accumulate;
        let sums = sums(&plan);
        assert_eq!(moved(&sums, CollectiveKind::ReduceScatter), once);
        assert_eq!(sums.peak(TensorClass::Gradients), 2 * WEIGHTS);
    }
}

/// Four micro-batches go both ways, and each pass gathers every layer: a shard of half of 2 B for a weight, eight
/// times. Where parameters stay, the first pass alone does. How far ahead they are gathered changes neither.
#[test]
fn parameters_are_gathered_in_each_pass_or_once() {
    for prefetch in [0, 1, 5, u32::MAX] {
        for (reshard, passes) in [(true, 8), (false, 1)] {
            let mut plan = plan(ZeroStage::Parameters);
            (plan.prefetch, plan.reshard) = (prefetch, reshard);
            let sums = sums(&plan);
            let gathered = moved(&sums, CollectiveKind::AllGather);
            assert_eq!(gathered, (passes * LAYERS, passes as u64 * WEIGHTS));
            let reduced = moved(&sums, CollectiveKind::ReduceScatter);
            assert_eq!(reduced, (4 * LAYERS, 4 * 2 * WEIGHTS));
            assert_eq!(sums.peak(TensorClass::Weights), WEIGHTS);
            assert_eq!(sums.used[3..], [0, 0]);
        }
    }
}

/// The plan has no backward pass to free parameters that stayed: the last micro-batch does. Of several steps,
/// each gathers them once and lets them go.
#[test]
fn parameters_that_stay_go_with_the_last_question() {
    let mut plan = plan(ZeroStage::Parameters);
    plan.schedule = PipelineSchedule::Inference;
    plan.reshard = false;
    plan.steps = 3;
    let sums = sums(&plan);
    let gathered = moved(&sums, CollectiveKind::AllGather);
    assert_eq!(gathered, (3 * LAYERS, 3 * WEIGHTS));
    assert_eq!(sums.peak(TensorClass::Temporary), 2 * WEIGHTS);
    assert_eq!(sums.used[3..], [0, 0]);
}

/// Where kernels of the layers at the ends are left out, and the optimizer too, what the last of them would free is
/// freed all the same: the input of 10 numbers that a norm kept, or the 20 B of its parameters.
#[test]
fn what_no_kernel_is_left_to_free_is_freed() {
    for (schedule, zero) in [
        (PipelineSchedule::GPipe, ZeroStage::None),
        (PipelineSchedule::Inference, ZeroStage::Parameters),
    ] {
        let mut plan = plan(zero);
        plan.schedule = schedule.clone();
        plan.optimizer = Optimizer::None;
        plan.without
            .add(chakram::generate::AblationEffect::MemoryBound);
        if zero == ZeroStage::None {
            (plan.data, plan.batch) = (1, 4);
        }
        let mut model = products(2, 10);
        let job = job(&model, &plan).unwrap();
        let sums = Sums::of(&job, 0);
        assert_eq!(sums.used[3..], [0, 0], "{schedule:?}");
        // Nothing but such layers: all passes are one node.
        model.layers.retain(|layer| layer.role != LayerRole::Block);
        let job = super::job(&model, &plan).unwrap();
        assert_eq!(Sums::of(&job, 0).used[3..], [0, 0], "{schedule:?}");
    }
}
