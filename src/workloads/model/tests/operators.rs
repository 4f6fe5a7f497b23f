//! Compares the counts of operators with simple loops that do the same work.

use crate::model::{ActivationFunction, LayerOperator, OperatorKind, OperatorTensorParallelSplit};

fn build_convolution(
    [height, width]: [u64; 2],
    kernel: [u64; 2],
    stride: u64,
    padding: u64,
) -> OperatorKind {
    OperatorKind::Convolution {
        inputs: 6,
        outputs: 4,
        size: [height, width],
        kernel,
        stride,
        padding,
        groups: 2,
        bias: true,
    }
}

/// Counts the positions of a window along a side, by moving it one stride at a time through a padded image.
fn count_convolution_window_positions(side: u64, kernel: u64, stride: u64, padding: u64) -> u64 {
    let mut count = 0;
    let mut at = 0;
    while at + kernel <= side + 2 * padding {
        count += 1;
        at += stride;
    }
    count
}

#[test]
fn convolution_counts_match_stepped_window_positions() {
    for side in 1..12 {
        for kernel in 1..5 {
            for (stride, padding) in [(1, 0), (1, 1), (2, 0), (2, 1), (3, 2), (5, 0)] {
                let work = build_convolution([side, 7], [kernel, 3], stride, padding);
                let [rows, columns] = [(side, kernel), (7, 3)]
                    .map(|(side, k)| count_convolution_window_positions(side, k, stride, padding));
                assert_eq!(work.output_elements(), 4 * rows * columns);
                // Each of the 4 outputs uses 3 of the 6 channels, because there are two groups.
                let each = rows * columns * 4 * 3 * kernel * 3;
                assert_eq!(
                    work.multiplication_count(),
                    each,
                    "{side} {kernel} {stride} {padding}"
                );
                assert_eq!(work.parameter_count(), 4 * 3 * kernel * 3 + 4);
                let pool = OperatorKind::Pool {
                    channels: 4,
                    size: [side, 7],
                    kernel: [kernel, 3],
                    stride,
                    padding,
                };
                assert_eq!(pool.output_elements(), 4 * rows * columns);
            }
        }
    }
}

#[test]
fn attention_multiplies_what_the_loops_do() {
    let (tokens, heads, kv_heads, width) = (5, 4, 2, 3);
    let (mut all, mut later) = (0, 0);
    for _head in 0..heads {
        for query in 0..tokens {
            for key in 0..tokens {
                // A pair takes a dot product of `width` elements, and then scales a row of `width` values. Each of
                // these steps takes `width` multiplications.
                all += 2 * width;
                later += if key > query { 2 * width } else { 0 };
            }
        }
    }
    let work = |causal| OperatorKind::Attention {
        tokens,
        queries: tokens,
        heads,
        kv_heads,
        width,
        causal,
        dropout: false,
        rotary: false,
        qk_norm: false,
    };
    for causal in [false, true] {
        assert_eq!(work(causal).multiplication_count(), all);
        assert_eq!(
            work(causal).causally_skipped_multiplications(),
            if causal { later } else { 0 }
        );
    }
    assert_eq!(work(true).input_elements(), 5 * (4 + 2 + 2) * 3);
    assert_eq!(work(true).output_elements(), 5 * 4 * 3);
}

#[test]
fn tied_weights_multiply_and_are_not_counted() {
    let work = |bias, tied| OperatorKind::Linear {
        rows: 3,
        inputs: 5,
        outputs: 7,
        bias,
        tied,
    };
    for (bias, tied, parameters) in [
        (false, false, 35),
        (true, false, 42),
        (false, true, 0),
        (true, true, 7),
    ] {
        assert_eq!(work(bias, tied).parameter_count(), parameters);
        assert_eq!(work(bias, tied).multiplication_count(), 105);
    }
}

#[test]
fn counts_stop_at_the_largest_number() {
    let most = u64::MAX;
    let works = [
        OperatorKind::Linear {
            rows: most,
            inputs: most,
            outputs: most,
            bias: true,
            tied: false,
        },
        OperatorKind::Attention {
            tokens: most,
            queries: most,
            heads: most,
            kv_heads: most,
            width: most,
            causal: true,
            dropout: true,
            rotary: true,
            qk_norm: false,
        },
        OperatorKind::Activation {
            function: ActivationFunction::Silu,
            rows: most,
            width: most,
            gated: true,
        },
        OperatorKind::Interaction {
            vectors: most,
            width: most,
        },
        OperatorKind::Convolution {
            inputs: most,
            outputs: most,
            size: [most; 2],
            kernel: [most; 2],
            stride: 0,
            padding: most,
            groups: 0,
            bias: true,
        },
    ];
    for work in works {
        assert_eq!(work.input_elements(), most);
        assert_eq!(work.saved_bytes(2, false), most);
        let operator = LayerOperator::new("all", work, OperatorTensorParallelSplit::Replicated);
        assert!([0, most].contains(&operator.parameter_count()));
        assert!(
            operator.work.causally_skipped_multiplications() <= operator.multiplication_count()
        );
    }
    // A product with a size of zero has no multiplications.
    let nothing = build_convolution([0, 0], [1, 1], 1, 0);
    assert_eq!(nothing.multiplication_count(), 0);
}
