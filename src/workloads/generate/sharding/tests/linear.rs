//! Tests `Y[B, M, N] = X[B, M, K] W[N, K]^T` and its gradients on devices that have one shard each.

use super::*;

const SIZES: [u64; 4] = [2, 3, 4, 6];

fn x(b: u64, m: u64, k: u64) -> i64 {
    number(100 + (b * 3 + m) * 6 + k)
}

fn w(n: u64, k: u64) -> i64 {
    number(1000 + n * 6 + k)
}

/// Returns an element of the output's gradient.
fn dy(b: u64, m: u64, n: u64) -> i64 {
    number(2000 + (b * 3 + m) * 4 + n)
}

#[test]
fn every_cut_of_a_product_sums_to_the_whole() {
    let [samples, rows, outputs, inputs] = SIZES;
    let mut cuts = 0;
    for b in divisors(samples) {
        for m in divisors(rows) {
            for n in divisors(outputs) {
                for k in divisors(inputs) {
                    cut(degrees(b, m, n, k), false);
                    cut(degrees(b, m, n, k), true);
                    cuts += 1;
                }
            }
        }
    }
    // The sizes 2, 3, 4 and 6 have 2, 2, 3 and 4 divisors, and each divisor is a degree.
    assert_eq!(cuts, 2 * 2 * 3 * 4);
}

fn cut(degrees: OperatorAxisShardCounts, bias: bool) {
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
                    for b in part(samples, ib, degrees.b) {
                        for m in part(rows, im, degrees.m) {
                            for n in part(outputs, inn, degrees.n) {
                                for k in part(inputs, ik, degrees.k) {
                                    products += 1;
                                    *own[0].entry([b, m, n, 0]).or_default() +=
                                        x(b, m, k) * w(n, k);
                                    *own[1].entry([b, m, k, 0]).or_default() +=
                                        dy(b, m, n) * w(n, k);
                                    *own[2].entry([n, k, 0, 0]).or_default() +=
                                        dy(b, m, n) * x(b, m, k);
                                }
                                if bias {
                                    // Devices that differ only in k have copies of the bias. The index along k tells
                                    // these copies apart.
                                    let copy = [n, u64::from(ik), 1, 0];
                                    *own[2].entry(copy).or_default() += dy(b, m, n);
                                }
                            }
                        }
                    }
                    assert_eq!(sharding.flops, 2 * products, "{case}");
                    for (all, own) in [&mut y, &mut dx, &mut dw].into_iter().zip(own) {
                        note(all, device, own);
                    }
                    device += 1;
                }
            }
        }
    }
    hold(&case, &sharding, &sharding.forward, &y, |e| {
        (0..inputs).map(|k| x(e[0], e[1], k) * w(e[2], k)).sum()
    });
    hold(&case, &sharding, &sharding.backward, &dx, |e| {
        (0..outputs).map(|n| dy(e[0], e[1], n) * w(n, e[2])).sum()
    });
    let every = |f: &dyn Fn(u64, u64) -> i64| -> i64 {
        let pairs = (0..samples).flat_map(|b| (0..rows).map(move |m| (b, m)));
        pairs.map(|(b, m)| f(b, m)).sum()
    };
    hold(&case, &sharding, &sharding.update, &dw, |e| match *e {
        [n, k, 0, 0] => every(&|b, m| dy(b, m, n) * x(b, m, k)),
        [n, ..] => every(&|b, m| dy(b, m, n)),
    });
}
