//! Computes small products shard by shard, and compares the sums with the announced reductions. Also tests error
//! messages.

use super::*;
use crate::model::{Model, PRESETS};
use std::collections::BTreeMap;

mod image;
mod linear;
mod refusals;
mod transformer;

/// Index of an element in its tensor; 0 for axes that the tensor does not have.
type TensorElementIndex = [u64; 4];

/// Values of a tensor, or of one device's part of it.
type Values = BTreeMap<TensorElementIndex, i64>;

/// For each element of a result, its partial sums with their devices.
type PartialSumsByElementAndDevice = BTreeMap<TensorElementIndex, Vec<(u32, i64)>>;

/// Records `values` as partial sums that `device` has.
fn record_partial_sums_of_device(
    parts: &mut PartialSumsByElementAndDevice,
    device: u32,
    values: Values,
) {
    for (element, value) in values {
        parts.entry(element).or_default().push((device, value));
    }
}

/// Returns a pseudo-random value from -512 to 511. These values are small enough that sums do not overflow, and varied
/// enough that a wrong sum rarely equals the correct one.
fn generate_small_value(seed: u64) -> i64 {
    let mixed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 54) as i64 - 512
}

/// Returns ranks that differ from their positions, so that a test fails if the code confuses ranks with positions.
fn make_ranks_unlike_positions(count: u32) -> Vec<Rank> {
    (0..count)
        .map(|position| Rank(3000 - 7 * position))
        .collect()
}

/// Checks `parts` against `reduction`. Every device must have the announced number of elements. The devices with
/// partial sums of an element must form one group, and their sums must add up to the value in `whole`.
fn check_partial_sums(
    case: &str,
    sharding: &OperatorShardWorkAndSums,
    reduction: &ShardReduction,
    parts: &PartialSumsByElementAndDevice,
    whole: impl Fn(&TensorElementIndex) -> i64,
) {
    let count = sharding.degrees.device_count() as u32;
    let devices = make_ranks_unlike_positions(count);
    let mut has = vec![0_u64; count as usize];
    let groups = sharding.reduction_groups(reduction, &devices);
    assert_eq!(groups.len() as u32 * reduction.size, count, "{case}");
    let mut group_of = BTreeMap::new();
    for (index, group) in groups.iter().enumerate() {
        group_of.extend(group.iter().map(|&rank| (rank, index)));
    }
    for (element, who) in parts {
        let rank = |&(device, _): &(u32, i64)| devices[device as usize];
        let group = &groups[group_of[&rank(&who[0])]];
        assert!(
            group.iter().copied().eq(who.iter().map(rank)),
            "{case}: {element:?} {who:?} {group:?}"
        );
        let sum: i64 = who.iter().map(|&(_, value)| value).sum();
        assert_eq!(sum, whole(element), "{case}: {element:?}");
        for &(device, _) in who {
            has[device as usize] += 1;
        }
    }
    assert!(
        has.iter().all(|&count| count == reduction.elements),
        "{case}: {has:?} {reduction:?}"
    );
}

fn list_divisors(size: u64) -> Vec<u32> {
    (1..=size)
        .filter(|&by| size.is_multiple_of(by))
        .map(|by| by as u32)
        .collect()
}

/// Returns the range with index `index` among the `parts` equal ranges that divide `0..size`.
fn compute_part_range(size: u64, index: u32, parts: u32) -> Range<u64> {
    let each = size / u64::from(parts);
    u64::from(index) * each..u64::from(index + 1) * each
}

const LINEAR: OperatorKind = OperatorKind::Linear {
    rows: 8,
    inputs: 12,
    outputs: 64,
    bias: false,
    tied: false,
};

fn build_axis_shard_counts(b: u32, m: u32, n: u32, k: u32) -> OperatorAxisShardCounts {
    OperatorAxisShardCounts { b, m, n, k }
}

#[test]
fn table_iii_of_a_linear_operator() {
    // The sizes B = 4, M = 8, N = 64 and K = 12 are sharded by (2, 2, 2, 3) on 24 devices.
    let found =
        OperatorShardWorkAndSums::new(&LINEAR, 4, build_axis_shard_counts(2, 2, 2, 3), 24).unwrap();
    assert_eq!(found.flops, 2 * 4 * 8 * 64 * 12 / 24);
    let expected = |elements, size, over| ShardReduction {
        elements,
        size,
        over,
    };
    assert_eq!(
        found.forward,
        expected(4 * 8 * 64 / 8, 3, &[OperatorShardAxis::K])
    );
    assert_eq!(
        found.backward,
        expected(4 * 8 * 12 / 12, 2, &[OperatorShardAxis::N])
    );
    assert_eq!(
        found.update,
        expected(
            64 * 12 / 6,
            4,
            &[OperatorShardAxis::B, OperatorShardAxis::M]
        )
    );
    // A position is 12 b + 6 m + 3 n + k.
    let devices: Vec<Rank> = (0..24).map(Rank).collect();
    let groups = found.reduction_groups(&found.update, &devices);
    assert_eq!(groups[0], [0, 6, 12, 18].map(Rank));
    assert_eq!(groups[5], [5, 11, 17, 23].map(Rank));
    assert_eq!(
        found.reduction_groups(&found.forward, &devices)[1],
        [3, 4, 5].map(Rank)
    );
}

#[test]
fn unsharded_operator_work_matches_model_operator_counts() {
    let mut products = 0;
    for preset in PRESETS {
        let model = Model::load_named(preset.name).unwrap();
        for operator in model.layers.iter().flat_map(|layer| &layer.operators) {
            let work = &operator.work;
            let case = format!("{} {}", preset.name, operator.name);
            let found =
                OperatorShardWorkAndSums::new(work, 3, build_axis_shard_counts(1, 1, 1, 1), 1)
                    .expect(&case);
            // A spec counts two FLOPs per multiplication, but a pooling does not multiply.
            if !matches!(work, OperatorKind::Pool { .. }) {
                assert_eq!(found.flops, 2 * 3 * work.multiplication_count(), "{case}");
            }
            // A tied matrix does not count as a weight, but it has a gradient.
            if !matches!(work, OperatorKind::Linear { tied: true, .. }) {
                assert_eq!(found.update.elements, work.parameter_count(), "{case}");
            }
            if matches!(
                work,
                OperatorKind::Linear { .. } | OperatorKind::Convolution { .. }
            ) {
                assert_eq!(found.forward.elements, 3 * work.output_elements(), "{case}");
                assert_eq!(found.backward.elements, 3 * work.input_elements(), "{case}");
                products += 1;
            }
        }
    }
    assert!(products > 1000, "{products}");
}

#[test]
fn convolution_reduction_groups_follow_palm_table_device_order() {
    // With (b, c, i, k) = (1, 2, 2, 2), a position is 4 c + 2 i + k. The forward pass sums over
    // input channels c, the input's gradient is summed over output channels k, and the weights'
    // gradient is summed over rows i.
    let found = OperatorShardWorkAndSums::new(
        &image::build_3x3_convolution([4, 4], 1, 1),
        2,
        OperatorAxisShardCounts::of_convolution(1, 2, 2, 2),
        8,
    )
    .unwrap();
    let devices: Vec<Rank> = (0..8).map(Rank).collect();
    assert_eq!(
        found.reduction_groups(&found.forward, &devices)[0],
        [0, 4].map(Rank)
    );
    assert_eq!(
        found.reduction_groups(&found.backward, &devices)[0],
        [0, 1].map(Rank)
    );
    assert_eq!(
        found.reduction_groups(&found.update, &devices)[0],
        [0, 2].map(Rank)
    );
}

#[test]
fn operators_beyond_the_table_have_expected_flops_and_sums() {
    // Look-ups are products with one-hot vectors. The input has 4 samples with 8 tokens each. The input and a table of
    // 16 x 32 are sharded by (2, 2, 2, 2).
    let embedding = OperatorKind::Embedding {
        vocabulary: 16,
        width: 32,
        tokens: 8,
    };
    let found =
        OperatorShardWorkAndSums::new(&embedding, 4, build_axis_shard_counts(2, 2, 2, 2), 16)
            .unwrap();
    assert_eq!([found.flops, found.backward.elements], [0, 0]);
    assert_eq!(
        [found.forward.elements, found.forward.size.into()],
        [4 * 8 * 32 / 8, 2]
    );
    assert_eq!(
        [found.update.elements, found.update.size.into()],
        [16 * 32 / 4, 4]
    );
    let bag = OperatorKind::EmbeddingBag {
        rows: 16,
        width: 32,
        lookups: 5,
    };
    let found =
        OperatorShardWorkAndSums::new(&bag, 4, build_axis_shard_counts(2, 1, 2, 2), 8).unwrap();
    assert_eq!(
        [found.forward.elements, found.forward.size.into()],
        [4 * 32 / 4, 2]
    );
    assert_eq!(
        [found.update.elements, found.update.size.into()],
        [16 * 32 / 4, 2]
    );
    // The 8 query heads and the 4 key and value heads are sharded by 4. Each device takes 4 B S^2 (8 x 16) / 8 FLOPs,
    // and nothing is summed.
    let found = OperatorShardWorkAndSums::new(
        &build_attention_operator(),
        4,
        build_axis_shard_counts(2, 1, 4, 1),
        8,
    )
    .unwrap();
    assert_eq!(found.flops, 4 * 4 * 32 * 32 * 128 / 8);
    let sums = [found.forward, found.backward, found.update];
    assert_eq!(sums.map(|one| (one.elements, one.size)), [(0, 1); 3]);
    // Every device has the gain and the bias of 6 columns.
    let norm = OperatorKind::Norm {
        rows: 8,
        width: 6,
        bias: true,
    };
    let found =
        OperatorShardWorkAndSums::new(&norm, 4, build_axis_shard_counts(2, 4, 1, 1), 8).unwrap();
    assert_eq!([found.update.elements, found.update.size.into()], [12, 8]);
    // The bias (4 elements) is split in 2 parts, and the weights (3 x 3 x 6 x 4) are split in 6
    // parts.
    let OperatorKind::Convolution {
        inputs,
        outputs,
        size,
        kernel,
        stride,
        padding,
        ..
    } = image::build_3x3_convolution([4, 4], 1, 1)
    else {
        unreachable!()
    };
    let convolution = |inputs, groups| OperatorKind::Convolution {
        inputs,
        outputs,
        size,
        kernel,
        stride,
        padding,
        groups,
        bias: true,
    };
    let cut = OperatorAxisShardCounts::of_convolution(1, 3, 1, 2);
    let found = OperatorShardWorkAndSums::new(&convolution(inputs, 1), 1, cut, 6).unwrap();
    assert_eq!(found.update.elements, 3 * 3 * 6 * 4 / 6 + 4 / 2);
    // In a depthwise convolution, each of the 4 channels has its own filter.
    let found = OperatorShardWorkAndSums::new(
        &convolution(4, 4),
        2,
        build_axis_shard_counts(2, 1, 1, 1),
        2,
    )
    .unwrap();
    assert_eq!(found.flops, 2 * 4 * 4 * 9 * 4);
    assert_eq!(
        [found.update.elements, found.update.size.into()],
        [9 * 4 + 4, 2]
    );
    // For each of its 2 samples (4 samples on 2 devices), a device computes 5 x 4 / 2 products of
    // vectors with 16 elements.
    let interaction = OperatorKind::Interaction {
        vectors: 5,
        width: 16,
    };
    let found =
        OperatorShardWorkAndSums::new(&interaction, 4, build_axis_shard_counts(2, 1, 1, 1), 2)
            .unwrap();
    assert_eq!(found.flops, 2 * 2 * 10 * 16);
}

fn build_attention_operator() -> OperatorKind {
    OperatorKind::Attention {
        tokens: 32,
        queries: 32,
        heads: 8,
        kv_heads: 4,
        width: 16,
        causal: true,
        dropout: false,
        rotary: false,
        qk_norm: false,
    }
}

#[test]
fn known_layers_sharded_by_rows_have_expected_halo_rows() {
    // If 8 rows are divided into 4 parts, windows of 3 x 3 with stride 1 and padding 1 need one row from each
    // neighbour.
    let work = image::build_3x3_convolution([8, 8], 1, 1);
    let found = OperatorShardWorkAndSums::new(
        &work,
        2,
        OperatorAxisShardCounts::of_convolution(2, 1, 4, 1),
        8,
    )
    .unwrap();
    let rows: Vec<_> = (0..4)
        .filter_map(|position| found.stored_and_covered_image_rows(position))
        .collect();
    let expected = [[0..2, 0..3], [2..4, 1..5], [4..6, 3..7], [6..8, 5..8]];
    assert_eq!(rows, expected);
    // ResNet's stem has 7 x 7 windows with stride 2 and padding 3, and its image has 224 rows, divided into 2 parts.
    // Outputs 0..56 need rows up to 2 x 55 - 3 + 7 = 114, and outputs 56..112 need rows from 2 x 56 - 3 = 109 onwards.
    let stem = OperatorKind::Convolution {
        inputs: 3,
        outputs: 64,
        size: [224, 224],
        kernel: [7, 7],
        stride: 2,
        padding: 3,
        groups: 1,
        bias: false,
    };
    let found = OperatorShardWorkAndSums::new(
        &stem,
        1,
        OperatorAxisShardCounts::of_convolution(1, 1, 2, 1),
        2,
    )
    .unwrap();
    assert_eq!(
        found.stored_and_covered_image_rows(0),
        Some([0..112, 0..114])
    );
    assert_eq!(
        found.stored_and_covered_image_rows(1),
        Some([112..224, 109..224])
    );
    let linear =
        OperatorShardWorkAndSums::new(&LINEAR, 4, build_axis_shard_counts(1, 1, 1, 1), 1).unwrap();
    assert_eq!(linear.stored_and_covered_image_rows(0), None);
}
