//! Tests Table V: inference in 8 bits on Grayskull.

use super::{StudiedModelAndPlan, read_makespan_seconds};
use crate::files::Folder;

/// Returns the samples per second twice: first in steady state, from the extra time of a third micro-batch per pipeline
/// stage, and then with filling and draining included.
fn steady_and_whole_sample_rates(
    folder: &Folder,
    model: &str,
    degrees: [u32; 3],
    more: &[&str],
) -> [f64; 2] {
    let [tensor, data, pipeline] = degrees;
    let more = [
        &[
            "--dtype",
            "int8",
            "--schedule",
            "inference",
            "--optimizer",
            "none",
            "--machine",
            "grayskull",
            "--place",
            "s_shape",
        ],
        more,
    ]
    .concat();
    let run = |depths: u32| {
        let batch = depths * pipeline * data;
        let plan = StudiedModelAndPlan {
            model,
            tensor,
            data,
            pipeline,
            micro_batch: 1,
            batch,
            more: &more,
        };
        (
            f64::from(batch),
            read_makespan_seconds(&plan.report(folder)),
        )
    };
    let [(few, short), (many, long)] = [2, 3].map(run);
    [(many - few) / (long - short), many / long]
}

/// PALM predicts 23033.46 images of ResNet-50 and 3190.12 sequences of BERT-base per second. These rates are 2.68 and
/// 12.72 % above the 22431 and 2830 that Tenstorrent published. PALM does not state number formats, sequence lengths,
/// batches, placement, or the data loaded from DRAM. At 368 TOP/s the arithmetic allows 368e12 / (2 x 4.089e9) = 44,997
/// images and, with 512 tokens, 368e12 / (2 x 48.319e9) = 3808 sequences. Other lengths and formats allow 4117 (128
/// tokens in 16 bits), 5208 (384 tokens in 8 bits) and 16467 (128 tokens in 8 bits).
///
/// If all data is in SRAM, every plan that uses the whole chip is between the published rate and its bound. A chip full
/// of replicas reaches 97.8 and 99.7 % of the bound, and pipelines fall short of it because their stages are uneven. So
/// the published rates, 50 and 74 % of the peak, measure how well kernels and mappings use the chip. A constant could
/// be fitted to them, but we fit none. If the eight DRAM channels, 101 GB/s, serve all data that Algorithm 1 does not
/// keep in 1 MB of SRAM, no plan reaches a twentieth of ResNet-50's rate or an eighth of BERT's. On the real chip
/// operators pass their results through SRAM, layer by layer, which neither the algorithm nor its corrected form
/// models.
///
/// This test covers the chip full of replicas for each model, and one pipeline.
#[test]
fn grayskull_lies_within_what_its_arithmetic_allows() {
    check_plan_rates_against_published(|degrees| matches!(degrees, [1, 120, 1] | [1, 10, 12]));
}

#[test]
#[ignore = "long: pipelines of up to 16 stages"]
fn grayskull_lies_within_what_its_arithmetic_allows_under_all_plans() {
    check_plan_rates_against_published(|_| true);
}

/// Compares the rates of plans, chosen by tensor, data and pipeline degree, with the published
/// rates and with the bounds of the arithmetic.
fn check_plan_rates_against_published(is_held: impl Fn([u32; 3]) -> bool) {
    let folder = Folder::new();
    for (model, multiplications, published, palm, plans) in [
        (
            "resnet-50",
            4_089_184_256_u64,
            22_431.0,
            23_033.46,
            &[
                ([1, 120, 1], 44_010.0, 995.7),
                ([1, 30, 4], 38_040.8, 763.7),
                ([1, 15, 8], 37_670.2, 786.6),
                ([1, 7, 16], 28_162.6, 686.1),
            ][..],
        ),
        (
            "bert-base",
            48_318_971_904,
            2830.0,
            3190.12,
            &[
                ([1, 120, 1], 3797.3, 351.1),
                ([12, 10, 1], 3597.1, 108.3),
                ([6, 5, 4], 3656.6, 176.9),
                ([4, 5, 6], 3685.1, 216.6),
                ([2, 5, 12], 3741.0, 307.1),
                ([1, 10, 12], 3791.7, 341.0),
            ],
        ),
    ] {
        let bound = 368e12 / (2.0 * multiplications as f64);
        let held = plans.iter().filter(|plan| is_held(plan.0));
        for &(degrees, in_reach, from_dram) in held {
            let what = format!("{model} {degrees:?}");
            let [rate, whole] = steady_and_whole_sample_rates(&folder, model, degrees, &[]);
            let near = |found: f64, held: f64| {
                assert!((found / held - 1.0).abs() < 5e-4, "{what}: {found} {held}");
            };
            near(rate, in_reach);
            assert!(
                rate <= bound && rate > palm && rate > published,
                "{what}: {rate}"
            );
            // Continuous input leaves out filling and draining, and a plan without these has the
            // same rate.
            assert!(whole <= rate * 1.000_001, "{what}: {whole} {rate}");
            let [rate, _] = steady_and_whole_sample_rates(
                &folder,
                model,
                degrees,
                &["--residency", "corrected"],
            );
            near(rate, from_dram);
            assert!(rate < published / 8.0, "{what}: {rate}");
        }
        let best = plans.iter().map(|plan| plan.1).fold(0.0, f64::max);
        assert!(best > 0.975 * bound, "{model}: {best} {bound}");
    }
}

/// The unstated sequence lengths change BERT's rate by more than the error that the paper reports.
#[test]
#[ignore = "long: four replays on 120 cores"]
fn lengths_of_sequences_move_the_rate_of_bert() {
    let folder = Folder::new();
    let rate =
        |more: &[&str]| steady_and_whole_sample_rates(&folder, "bert-base", [1, 120, 1], more)[0];
    for (tokens, bound) in [("128", 16_467.0), ("384", 5208.0)] {
        let found = rate(&["--tokens", tokens]);
        assert!(
            (0.97 * bound..bound).contains(&found),
            "{tokens}: {found} {bound}"
        );
    }
}
