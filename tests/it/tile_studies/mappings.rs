//! Tests Fig. 10 and Sec. V-B3: mapping, neighbours and tensor degree.

use super::StudiedModelAndPlan;
use crate::files::Folder;

/// Returns how many samples per second the wafer processes for a model in 20 stages of 16 cores, where a micro-batch
/// has `samples` over all replicas.
fn predict_training_rate(
    folder: &Folder,
    model: &str,
    samples: u32,
    tensor: u32,
    laid: [&str; 2],
) -> f64 {
    let data = 16 / tensor;
    // Each replica has a whole number of samples, and 20 micro-batches.
    let micro_batch = (samples + data / 2) / data;
    let [place, neighbours] = laid;
    let plan = StudiedModelAndPlan {
        model,
        tensor,
        data,
        pipeline: 20,
        micro_batch,
        batch: micro_batch * data * 20,
        more: &[
            "--recompute",
            "full",
            "--adapters",
            "1",
            "--machine",
            "wafer-5x4",
            "--place",
            place,
            "--tensor-neighbours",
            neighbours,
        ],
    };
    plan.samples_per_second(folder)
}

/// Compares Fig. 10 and Sec. V-B3: mapping, neighbours and tensor degree. In the paper, the best
/// tensor degree is 2 for T-18B and T-76B and 4 for T-145B. S-shape is faster than line, near
/// neighbours are faster than opposite neighbours, and the best plan is twice as fast as the worst.
/// By bytes and rates, kernels take far longer than links here, so our results differ. A degree of
/// 1 is the best, and 2 is within a part in a thousand. S-shape is never slower than line, and at
/// most 2 % faster. Opposite neighbours are at most 0.5 % slower and at most one part in ten
/// thousand faster. The whole range is 3 %. PALM's public code, with a line mapping added, does not
/// confirm the claim either: line equals S-shape up to a degree of 4 and is faster above it.
#[test]
#[ignore = "long: sixty replays on 320 cores"]
fn mappings_decide_little_where_kernels_take_the_time() {
    let folder = Folder::new();
    for (model, samples) in [
        ("megatron-18.4b", 51),
        ("megatron-76.1b", 89),
        ("megatron-145.6b", 115),
    ] {
        let (mut all, mut best) = (Vec::new(), Vec::new());
        for tensor in [1, 2, 4, 8, 16] {
            let of = |laid| predict_training_rate(&folder, model, samples, tensor, laid);
            let [line, snake] =
                ["line", "s_shape"].map(|place| [of([place, "near"]), of([place, "opposite"])]);
            let row = format!("{model} {tensor}: {line:?} {snake:?}");
            for [near, opposite] in [line, snake] {
                assert!((-5e-3..2e-4).contains(&(opposite / near - 1.0)), "{row}");
            }
            for (line, snake) in line.into_iter().zip(snake) {
                assert!((0.0..0.025).contains(&(snake / line - 1.0)), "{row}");
            }
            all.extend([line, snake].concat());
            best.push(snake[0]);
        }
        assert!(best.is_sorted_by(|a, b| a > b), "{model}: {best:?}");
        assert!(best[1] > best[0] * 0.999, "{model}: {best:?}");
        let [low, high] = [f64::min, f64::max].map(|of| all.iter().copied().reduce(of).unwrap());
        assert!((1.0..1.03).contains(&(high / low)), "{model}: {low} {high}");
    }
}
