//! Compares volumes of communication with published formulas.

use super::{
    GPT, RankNodeSums, build_gpt_model, build_pattern_of_model_and_plan, build_transformer,
};
use chakram::generate::{ParallelismPlan, ZeroStage};
use chakram::model::{OperatorKind, PositionEncoding, TransformerBlock};
use chakram::trace::CollectiveKind;

/// PALM's Eq. 6 gives the bytes of a layer with tensor degree Nm on N ranks: 8 B S H Nm / N + 24 H^2 / Nm. These come
/// from four all-reduces of activations, with B S H Nm / N numbers each, and one of 12 H^2 / Nm gradients, with 2 B per
/// number. With S = 2048, H = 12288, B = 115 and N = 16 this is 4.7060e9, 6.6941e9, 1.2029e10 and 2.3379e10 for 2, 4, 8
/// and 16. Replicas have 115 Nm / 16 samples, so the test uses 16 times as many and divides by 16. A single member has
/// no all-reduces of activations, so 24 H^2 of 5.0709e9 remain.
#[test]
fn a_layer_moves_what_eq_6_says() {
    let (s, h) = (2048_u64, 12288_u64);
    let block = TransformerBlock {
        tokens: s,
        hidden: h,
        heads: 96,
        kv_heads: 96,
        head_width: 128,
        ffn: 4 * h,
        norm_bias: false,
        biases: false,
        ..GPT
    };
    let mut model = build_transformer("t-145b", block, PositionEncoding::None, false);
    // The formula omits norms, so they have no parameters here.
    for layer in &mut model.layers {
        layer
            .operators
            .retain(|operator| !matches!(operator.work, OperatorKind::Norm { .. }));
    }
    let formula = |t: u64| (8.0 * 115.0 * (s * h * t) as f64 / 16.0) + (24 * h * h / t) as f64;
    let published = [5.0709e9, 4.7060e9, 6.6941e9, 1.2029e10, 2.3379e10];
    for (t, published) in [1, 2, 4, 8, 16].into_iter().zip(published) {
        assert!((formula(t) / published - 1.0).abs() < 1e-4);
        let mut plan = ParallelismPlan::new();
        plan.tensor = t as u32;
        plan.data = 16 / t as u32;
        plan.batch = 115 * 16;
        plan.micro_batch = 115 * t;
        // There is a bucket for each layer.
        plan.bucket = 1;
        let job = build_pattern_of_model_and_plan(&model, &plan).unwrap();
        let sums = RankNodeSums::sum_nodes_of_rank(&job, 0);
        let of_layer = sums
            .collectives
            .iter()
            .filter(|(name, ..)| name.contains("/layer2/"));
        let mut bytes = 0.0;
        for (name, kind, size) in of_layer {
            assert_eq!(*kind, CollectiveKind::AllReduce);
            let share = if name.contains("gradients") {
                1.0
            } else {
                16.0
            };
            bytes += *size as f64 / share;
        }
        let expected = match t {
            1 => (24 * h * h) as f64,
            // A single replica reduces no gradients.
            16 => formula(16) - (24 * h * h / 16) as f64,
            _ => formula(t),
        };
        assert_eq!(bytes, expected, "tensor {t}");
    }
}

/// For a collective among n members, a rank sends (n - 1) / n of the buffer for an all-gather or a reduce-scatter, and
/// twice as much for an all-reduce. ZeRO 1 and 2 move as many bytes as plain data parallelism, and ZeRO 3 moves 1.5
/// times as many (Rajbhandari et al., 2020, section 7).
#[test]
fn zero_moves_what_its_paper_says() {
    let volume = |zero, reshard| {
        let mut plan = ParallelismPlan::new();
        plan.data = 2;
        plan.batch = 2;
        plan.zero = zero;
        plan.reshard = reshard;
        let job = build_pattern_of_model_and_plan(&build_gpt_model(), &plan).unwrap();
        let bytes = |(_, kind, size): &(String, CollectiveKind, u64)| match kind {
            // Between two members, an all-reduce sends half of the buffer in each of two phases, an all-gather sends a
            // shard, and a reduce-scatter sends half of the buffer.
            CollectiveKind::AllReduce => *size,
            CollectiveKind::AllGather => *size,
            CollectiveKind::ReduceScatter => size / 2,
            _ => panic!("{kind}"),
        };
        RankNodeSums::sum_nodes_of_rank(&job, 0)
            .collectives
            .iter()
            .map(bytes)
            .sum::<u64>()
    };
    let plain = volume(ZeroStage::None, true);
    // There are two phases, each of which moves half of 2 B per parameter.
    assert_eq!(plain, 2 * build_gpt_model().parameter_count());
    assert_eq!(volume(ZeroStage::Optimizer, true), plain);
    assert_eq!(volume(ZeroStage::Gradients, true), plain);
    assert_eq!(2 * volume(ZeroStage::Parameters, true), 3 * plain);
    // If parameters stay for the step, they are gathered once.
    assert_eq!(volume(ZeroStage::Parameters, false), plain);
}
