//! Tests that invalid degrees are rejected with the right messages.

use super::*;

fn shard_refused_operator_for_error(
    work: &OperatorKind,
    degrees: OperatorAxisShardCounts,
    devices: u32,
) -> String {
    let error = OperatorShardWorkAndSums::new(work, 4, degrees, devices).unwrap_err();
    error.to_string()
}

#[test]
fn what_does_not_divide_is_refused_with_what_would() {
    assert_eq!(
        shard_refused_operator_for_error(&LINEAR, build_axis_shard_counts(1, 1, 6, 1), 6),
        "`n` is 6; expected a divisor of the 64 outputs, for parts are equal, such as 4 or 8"
    );
    assert_eq!(
        shard_refused_operator_for_error(&LINEAR, build_axis_shard_counts(8, 1, 1, 1), 8),
        "`b` is 8; expected a divisor of the 4 samples, for parts are equal, such as 4"
    );
    assert_eq!(
        shard_refused_operator_for_error(&LINEAR, build_axis_shard_counts(2, 2, 1, 1), 6),
        "`devices` is 6; expected 4, the product of the degrees b 2, m 2, n 1, k 1"
    );
    assert_eq!(
        shard_refused_operator_for_error(&LINEAR, build_axis_shard_counts(0, 1, 1, 1), 0),
        "`b` is 0; expected 1 or more"
    );
    assert_eq!(
        shard_refused_operator_for_error(
            &build_attention_operator(),
            build_axis_shard_counts(1, 1, 1, 2),
            2
        ),
        "`k` is 2; expected 1, for a head cannot be split; `n` shards by heads"
    );
    assert_eq!(
        shard_refused_operator_for_error(
            &build_attention_operator(),
            build_axis_shard_counts(1, 1, 8, 1),
            8
        ),
        "`n` is 8; expected a divisor of the 8 heads and the 4 heads of keys and values, for parts are equal, \
         such as 4"
    );
    let huge = OperatorKind::Linear {
        rows: u64::MAX,
        inputs: u64::MAX,
        outputs: u64::MAX,
        bias: true,
        tied: false,
    };
    let refused = shard_refused_operator_for_error(&huge, build_axis_shard_counts(1, 1, 1, 1), 1);
    assert!(
        refused.starts_with("FLOPs of a device would be"),
        "{refused}"
    );
}

#[test]
fn image_sharding_errors_use_the_axis_letters_of_plans() {
    // The output has 4 rows and the input has 8, so the number of output rows is not divisible by 8 shards.
    let work = image::build_3x3_convolution([8, 8], 2, 1);
    assert_eq!(
        shard_refused_operator_for_error(
            &work,
            OperatorAxisShardCounts::of_convolution(1, 1, 8, 1),
            8
        ),
        "`m` is 8; expected a divisor of the 4 rows of the output and the 8 rows of the input, for parts are \
         equal, such as 4"
    );
    assert_eq!(
        shard_refused_operator_for_error(
            &work,
            OperatorAxisShardCounts::of_convolution(1, 3, 1, 2),
            5
        ),
        "`devices` is 5; expected 6, the product of the degrees b 1, k 3, m 1, n 2"
    );
    let OperatorKind::Convolution {
        inputs,
        outputs,
        size,
        kernel,
        stride,
        padding,
        bias,
        ..
    } = work
    else {
        unreachable!()
    };
    let grouped = OperatorKind::Convolution {
        inputs,
        outputs,
        size,
        kernel,
        stride,
        padding,
        groups: 2,
        bias,
    };
    assert_eq!(
        shard_refused_operator_for_error(
            &grouped,
            OperatorAxisShardCounts::of_convolution(1, 2, 1, 1),
            2
        ),
        "`k` is 2; expected 1, for the channels of a grouped convolution cannot be split"
    );
    // A window larger than the image gives an empty output, so no degree is valid.
    let small = OperatorKind::Pool {
        channels: 4,
        size: [2, 2],
        kernel: [3, 3],
        stride: 1,
        padding: 0,
    };
    assert_eq!(
        shard_refused_operator_for_error(&small, OperatorAxisShardCounts::of_pooling(1, 1, 1), 1),
        "`m` is 1; expected a divisor of the 0 rows of the output and the 2 rows of the input, for parts are equal"
    );
}
