//! Tests Tables IV and VII: how many samples per second transformers reach in training.

use super::{StudiedModelAndPlan, read_makespan_seconds};
use crate::corpus::sample_every_nth;
use crate::files::Folder;
use serde_json::Value;

/// The rates that Table IV calls published follow from Megatron-LM's TFLOP/s per GPU and the FLOPs of a sample with all
/// activations recomputed, 96 s L h² (1 + s / 6h + V / 16 L h). The paper uses the leading term alone. The model's
/// count excludes recomputation, so it is a third less for everything except the logits' 6 s h V.
#[test]
fn published_rates_of_table_iv_are_tflops_over_flops() {
    let folder = Folder::new();
    let words = 51_200.0;
    let rows = [
        (
            "18.4b",
            135.0,
            32,
            1,
            1024,
            [40.0, 6144.0_f64],
            116.415,
            108.944,
        ),
        (
            "39.1b",
            138.0,
            32,
            2,
            1536,
            [48.0, 8192.0],
            111.565,
            106.272,
        ),
        (
            "76.1b",
            140.0,
            32,
            4,
            1792,
            [60.0, 10_240.0],
            115.898,
            111.597,
        ),
        (
            "145.6b",
            148.0,
            24,
            8,
            2304,
            [80.0, 12_288.0],
            95.720,
            92.838,
        ),
        (
            "310.1b",
            155.0,
            15,
            16,
            2160,
            [96.0, 16_384.0],
            58.738,
            57.425,
        ),
        (
            "529.6b",
            163.0,
            9,
            35,
            2520,
            [105.0, 20_480.0],
            47.440,
            46.593,
        ),
    ];
    for (model, tflops, replicas, pipeline, batch, [layers, hidden], lead, whole) in
        sample_every_nth(3, rows)
    {
        let model = format!("megatron-{model}");
        let plan = StudiedModelAndPlan {
            model: &model,
            tensor: 8,
            data: replicas,
            pipeline,
            micro_batch: 1,
            batch,
            // These kernels compute the full square of tokens, as the equation assumes.
            more: &["--dry-run", "--attention", "unfused"],
        };
        let counted = plan.report(&folder)["model_flops"].as_f64().unwrap() / f64::from(batch);
        let logits = 6.0 * 2048.0 * hidden * words;
        let recomputed = (counted - logits) * 4.0 / 3.0 + logits;
        let cluster = f64::from(8 * replicas * pipeline) * tflops * 1e12;
        let leading = 96.0 * 2048.0 * layers * hidden * hidden;
        for (flops, published) in [(leading, lead), (recomputed, whole)] {
            let rate: f64 = cluster / flops;
            assert!(
                (rate - published).abs() < 1.1e-3,
                "{model}: {rate} {published}"
            );
        }
    }
}

/// Compares Table VII: samples per second of three models on the wafer, in 20 stages of two replicas of eight, with
/// everything recomputed. PALM reports 7.3457, 2.0652 and 1.1238, with DRAM rules and micro-batches that it does not
/// state. The micro-batches here are those of its public code, a 20th of the batch, rounded to whole samples for each
/// replica. With kernels at their arithmetic peak and all data in SRAM, chakram is within 7 % of each of these.
#[test]
#[ignore = "long: three models on 320 cores"]
fn the_wafer_trains_the_models_of_table_vii() {
    let folder = Folder::new();
    for (model, samples, batch, ours, palm) in [
        ("megatron-18.4b", 26, 1040, 7.544, 7.3457),
        ("megatron-76.1b", 44, 1848, 2.0176, 2.0652),
        ("megatron-145.6b", 58, 2320, 1.0512, 1.1238),
    ] {
        let plan = StudiedModelAndPlan {
            model,
            tensor: 8,
            data: 2,
            pipeline: 20,
            micro_batch: samples,
            batch,
            more: &[
                "--recompute",
                "full",
                "--machine",
                "wafer-5x4",
                "--place",
                "s_shape",
            ],
        };
        let rate = plan.samples_per_second(&folder);
        assert!((rate / ours - 1.0).abs() < 1e-3, "{model}: {rate}");
        assert!((rate / palm - 1.0_f64).abs() < 0.07, "{model}: {rate}");
    }
}

/// Returns the samples per second of a model of Table VII by the rules of PALM's public code,
/// summed over all replicas and micro-batches.
fn sample_rate_by_published_rules(folder: &Folder, model: &str, tensor: u32, samples: u64) -> f64 {
    let degree = tensor.to_string();
    let machine = "wafer-5x4-published";
    let run = [
        "generate",
        "palm",
        model,
        "--tensor",
        &degree,
        "--machine",
        machine,
        "--format",
        "json",
    ];
    let report: Value =
        serde_json::from_str(&folder.run_successfully_for_stdout(&run)).expect("it is JSON");
    samples as f64 / read_makespan_seconds(&report)
}

/// Compares Table VII by the rules of PALM's public code. The code gives 2.0652 samples per second for T-76B, with 21
/// micro-batches of 89 samples, and 8.4373 and 1.0213 for T-18B and T-145B (the paper prints 7.3457 and 1.1238). The
/// code simulates 6 micro-batches, extrapolates from them, and uses a die's links between dies along y. With all
/// micro-batches and with slow links along y, the digits here are chakram's own, as a regression test, and deviate by
/// at most 0.3 %.
#[test]
fn published_rules_give_published_sample_rates() {
    let folder = Folder::new();
    let rates = [
        ("t-76b", 8, 1869, 2.0635, 2.0652_f64),
        ("t-18b", 8, 1071, 8.4203, 8.4373),
        ("t-145b", 8, 2415, 1.0208, 1.0213),
        ("t-76b", 16, 1869, 1.4479, 1.450),
    ];
    for (model, tensor, samples, held, code) in sample_every_nth(3, rates) {
        let found = sample_rate_by_published_rules(&folder, model, tensor, samples);
        assert!((found - held).abs() < 5.1e-5, "{model} {tensor}: {found}");
        assert!(
            (found / code - 1.0).abs() < if code == 2.0652 { 1e-3 } else { 3e-3 },
            "{model} {tensor}: {found}"
        );
    }
}

/// For 16 cores, all tensor degrees give results within 4 parts in a thousand of the public code's three or four
/// digits.
#[test]
#[ignore = "long: fifteen replays on 320 cores"]
fn published_rules_give_published_sample_rates_for_all_tensor_degrees() {
    let folder = Folder::new();
    for (model, samples, rates) in [
        ("t-18b", 1071, [7.399, 8.4373, 8.513, 8.538, 8.538]),
        ("t-76b", 1869, [1.450, 2.0652, 2.086, 2.094, 2.095]),
        ("t-145b", 2415, [0.670, 1.0213, 1.093, 1.097, 1.098]),
    ] {
        for (tensor, published) in [16, 8, 4, 2, 1].into_iter().zip(rates) {
            let found = sample_rate_by_published_rules(&folder, model, tensor, samples);
            let off: f64 = found / published - 1.0;
            assert!(off.abs() < 4e-3, "{model} {tensor}: {found} {published}");
        }
    }
}

/// Compares Table IV: sequences per second of six models on A100s. The only constant is the efficiency of kernels,
/// which the first model fixes. The paper's published rates come from the leading term of Megatron-LM's FLOP formula
/// and its TFLOP/s. The rates here use the whole formula, and relative to them PALM's own predictions deviate by -4.9,
/// 5.7, 13.4, 9.6, 10.9 and 14.1 %. A flat efficiency underrates wide models, whose matrix products are larger, so
/// errors grow with the size of the model.
#[test]
#[ignore = "long: six models on 256 to 2520 GPUs"]
fn table_iv_follows_from_its_first_row() {
    let folder = Folder::new();
    let mut off = Vec::new();
    for (model, data, pipeline, batch, published) in [
        ("megatron-18.4b", 32, 1, 1024, 108.944),
        ("megatron-39.1b", 32, 2, 1536, 106.272),
        ("megatron-76.1b", 32, 4, 1792, 111.597),
        ("megatron-145.6b", 24, 8, 2304, 92.838),
        ("megatron-310.1b", 15, 16, 2160, 57.425),
        ("megatron-529.6b", 9, 35, 2520, 46.593),
    ] {
        let machine = format!("palm-gpux{}", data * pipeline);
        let plan = StudiedModelAndPlan {
            model,
            tensor: 8,
            data,
            pipeline,
            micro_batch: 1,
            batch,
            more: &[
                "--recompute",
                "full",
                "--machine",
                &machine,
                "--compute",
                "roofline",
                "--efficiency",
                "0.5552",
            ],
        };
        off.push(plan.samples_per_second(&folder) / published - 1.0);
    }
    assert!(
        off[0].abs() < 2e-3,
        "the constant is of another row: {off:?}"
    );
    assert!(off.iter().all(|off| off.abs() < 0.17), "{off:?}");
    let mean = off.iter().map(|off| off.abs()).sum::<f64>() / off.len() as f64;
    assert!(
        mean < 0.0623,
        "PALM's own mean is 9.8 %, that of its rules with one constant 6.2: {off:?}"
    );
}
