//! Tests `Y[B, M, N] = X[B, M, K] W[N, K]^T` and its gradients on devices that have one shard each.

use super::*;

const SIZES: [u64; 4] = [2, 3, 4, 6];

fn generate_input_value(b: u64, m: u64, k: u64) -> i64 {
    generate_small_value(100 + (b * 3 + m) * 6 + k)
}

fn generate_weight_value(n: u64, k: u64) -> i64 {
    generate_small_value(1000 + n * 6 + k)
}

/// Returns an element of the output's gradient.
fn generate_output_gradient_element(b: u64, m: u64, n: u64) -> i64 {
    generate_small_value(2000 + (b * 3 + m) * 4 + n)
}

#[test]
fn every_cut_of_a_product_sums_to_the_whole() {
    let [samples, rows, outputs, inputs] = SIZES;
    let mut cuts = 0;
    for b in list_divisors(samples) {
        for m in list_divisors(rows) {
            for n in list_divisors(outputs) {
                for k in list_divisors(inputs) {
                    check_sharded_linear(build_axis_shard_counts(b, m, n, k), false);
                    check_sharded_linear(build_axis_shard_counts(b, m, n, k), true);
                    cuts += 1;
                }
            }
        }
    }
    // The sizes 2, 3, 4 and 6 have 2, 2, 3 and 4 divisors, and each divisor is a degree.
    assert_eq!(cuts, 2 * 2 * 3 * 4);
}

fn check_sharded_linear(degrees: OperatorAxisShardCounts, bias: bool) {
    let [samples, rows, outputs, inputs] = SIZES;
    let work = OperatorKind::Linear {
        rows,
        inputs,
        outputs,
        bias,
        tied: false,
    };
    let case = format!("{degrees:?}");
    let count = degrees.b * degrees.m * degrees.n * degrees.k;
    let sharding = OperatorShardWorkAndSums::new(&work, samples, degrees, count).unwrap();
    let [mut y, mut dx, mut dw] = [
        PartialSumsByElementAndDevice::new(),
        PartialSumsByElementAndDevice::new(),
        PartialSumsByElementAndDevice::new(),
    ];
    let mut device = 0;
    for ib in 0..degrees.b {
        for im in 0..degrees.m {
            for inn in 0..degrees.n {
                for ik in 0..degrees.k {
                    let mut products = 0;
                    // The device's partial sums for each element of the output, the input gradient and the weight
                    // gradient.
                    let mut own: [Values; 3] = Default::default();
                    for b in compute_part_range(samples, ib, degrees.b) {
                        for m in compute_part_range(rows, im, degrees.m) {
                            for n in compute_part_range(outputs, inn, degrees.n) {
                                for k in compute_part_range(inputs, ik, degrees.k) {
                                    products += 1;
                                    *own[0].entry([b, m, n, 0]).or_default() +=
                                        generate_input_value(b, m, k) * generate_weight_value(n, k);
                                    *own[1].entry([b, m, k, 0]).or_default() +=
                                        generate_output_gradient_element(b, m, n)
                                            * generate_weight_value(n, k);
                                    *own[2].entry([n, k, 0, 0]).or_default() +=
                                        generate_output_gradient_element(b, m, n)
                                            * generate_input_value(b, m, k);
                                }
                                if bias {
                                    // Devices that differ only in k have copies of the bias. The index along k tells
                                    // these copies apart.
                                    let copy = [n, u64::from(ik), 1, 0];
                                    *own[2].entry(copy).or_default() +=
                                        generate_output_gradient_element(b, m, n);
                                }
                            }
                        }
                    }
                    assert_eq!(sharding.flops, 2 * products, "{case}");
                    for (all, own) in [&mut y, &mut dx, &mut dw].into_iter().zip(own) {
                        record_partial_sums_of_device(all, device, own);
                    }
                    device += 1;
                }
            }
        }
    }
    check_partial_sums(&case, &sharding, &sharding.forward, &y, |e| {
        (0..inputs)
            .map(|k| generate_input_value(e[0], e[1], k) * generate_weight_value(e[2], k))
            .sum()
    });
    check_partial_sums(&case, &sharding, &sharding.backward, &dx, |e| {
        (0..outputs)
            .map(|n| {
                generate_output_gradient_element(e[0], e[1], n) * generate_weight_value(n, e[2])
            })
            .sum()
    });
    let every = |f: &dyn Fn(u64, u64) -> i64| -> i64 {
        let pairs = (0..samples).flat_map(|b| (0..rows).map(move |m| (b, m)));
        pairs.map(|(b, m)| f(b, m)).sum()
    };
    check_partial_sums(&case, &sharding, &sharding.update, &dw, |e| match *e {
        [n, k, 0, 0] => {
            every(&|b, m| generate_output_gradient_element(b, m, n) * generate_input_value(b, m, k))
        }
        [n, ..] => every(&|b, m| generate_output_gradient_element(b, m, n)),
    });
}
