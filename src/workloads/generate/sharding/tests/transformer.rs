//! Builds a transformer layer with Megatron's sharding from its operators, and compares it with
//! PALM (Table III, last row, and Eq. 6).
//!
//! If the samples have Nd shards, and heads and columns have Nm shards, a device has `(24 B S H^2 + 4 B S^2 H) / (Nd
//! Nm)` FLOPs. In each pass, Nm devices sum `2 B S H / Nd` elements (once after attention and once after the
//! feed-forward part). In the update, Nd devices sum `12 H^2 / Nm` elements. PALM's published code sums half as many
//! elements in each pass, and `4 H^2 + 8 H^2 / Nm` elements in the update. Both contradict PALM's Eq. 6, which follows
//! from the table.

use super::*;
use crate::model::{ActivationFunction, OperatorTensorParallelSplit, TransformerBlock};

/// Number of tokens, columns and heads in the model T-145B of PALM's Table IV.
const TOKENS: u64 = 2048;
const HIDDEN: u64 = 12288;
const HEADS: u64 = 96;

/// Returns the matrix products in a layer of T-145B, without biases.
fn list_matrix_products() -> Vec<(OperatorKind, OperatorTensorParallelSplit)> {
    let block = TransformerBlock {
        tokens: TOKENS,
        hidden: HIDDEN,
        heads: HEADS,
        kv_heads: HEADS,
        head_width: HIDDEN / HEADS,
        ffn: 4 * HIDDEN,
        function: ActivationFunction::Gelu,
        gated: false,
        norm_bias: true,
        norm_after: false,
        biases: false,
        causal: true,
        dropout: false,
        rotary: false,
        qk_norm: false,
        experts: None,
    };
    let operators = block.block_operators().into_iter();
    let products = operators.filter(|one| one.work.multiplication_count() > 0);
    products.map(|one| (one.work, one.cut)).collect()
}

/// Returns how many bytes a device sums per layer by PALM's Eq. 6, in the forward pass, the backward pass and the
/// update together. Each element has two bytes. `8 B S H Nm / N + 24 H^2 / Nm`. As in PALM, a sum over one member
/// counts too, and shards may have fractional sizes.
fn predict_summed_bytes(batch: f64, devices: f64, model: f64) -> f64 {
    let [tokens, hidden] = [TOKENS, HIDDEN].map(|size| size as f64);
    8.0 * batch * tokens * hidden * model / devices + 24.0 * hidden * hidden / model
}

#[test]
fn palm_eq_6_summed_bytes_are_least_between_one_and_four_members() {
    // Here, 8 B S H Nm / N = 8 x 115 x 2048 x 12288 / 16 Nm = 1.447034e9 Nm, and 24 H^2 / Nm =
    // 3.623879e9 / Nm.
    let published = [5.0709e9, 4.7060e9, 6.6941e9, 1.2029e10, 2.3379e10];
    for (power, expected) in published.into_iter().enumerate() {
        let volume = predict_summed_bytes(115.0, 16.0, f64::from(1 << power));
        // PALM publishes five digits, so the relative error must be below 5e-5.
        assert!((volume / expected - 1.0).abs() < 5e-5, "{power}: {volume}");
    }
    // The derivative 8 B S H / N - 24 H^2 / Nm^2 is 0 at sqrt(3 H N / (B S)) = sqrt(3 x 12288 x 16 / (115 x 2048)) =
    // sqrt(589824 / 235520) = 1.58252.
    let best = 1.58252;
    for near in [0.9, 0.99, 1.01, 1.1] {
        assert!(
            predict_summed_bytes(115.0, 16.0, best * near)
                > predict_summed_bytes(115.0, 16.0, best),
            "{near}"
        );
    }
}

#[test]
fn a_transformers_sums_are_eq_6() {
    // With 128 samples, all shards have whole sizes. Each element in the three sums has two bytes.
    for model in [1, 2, 4, 8, 16] {
        let data = 16 / model;
        let (mut flops, mut sums) = (0_u128, [0_u64; 3]);
        for (work, cut) in list_matrix_products() {
            let [n, k] = match cut {
                OperatorTensorParallelSplit::RowParallel => [1, model],
                _ => [model, 1],
            };
            let found = OperatorShardWorkAndSums::new(
                &work,
                128,
                build_axis_shard_counts(data, 1, n, k),
                16,
            )
            .unwrap();
            flops += u128::from(found.flops);
            // Each kind of product (row-parallel or column-parallel) needs a sum in only one pass. In the other pass,
            // devices have no partial sums.
            let row = cut == OperatorTensorParallelSplit::RowParallel;
            let linear = work.parameter_count() > 0;
            sums[0] += if row { found.forward.elements } else { 0 };
            sums[1] += if linear && !row {
                found.backward.elements
            } else {
                0
            };
            sums[2] += found.update.elements;
            if linear {
                let sizes = [found.forward, found.backward, found.update].map(|one| one.size);
                let expected = if row {
                    [model, 1, data]
                } else {
                    [1, model, data]
                };
                assert_eq!(sizes, expected);
            }
        }
        let inner = 128 * TOKENS * HIDDEN / u64::from(data);
        let weights = 12 * HIDDEN * HIDDEN / u64::from(model);
        assert_eq!(sums, [2 * inner, 2 * inner, weights]);
        let bytes = 2 * sums.iter().sum::<u64>();
        assert_eq!(
            bytes as f64,
            predict_summed_bytes(128.0, 16.0, f64::from(model)),
            "{model}"
        );
        // All devices together take 24 B S H^2 + 4 B S^2 H = 24 x 128 x 2048 x 12288^2 + 4 x 128 x
        // 2048^2 x 12288 FLOPs.
        let all = 24_u128 * 128 * 2048 * 12288 * 12288 + 4 * 128 * 2048 * 2048 * 12288;
        assert_eq!(flops * 16, all);
    }
}
