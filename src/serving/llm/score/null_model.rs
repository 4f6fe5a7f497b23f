//! The null model of serving: a formula with five constants for the time per token. It ignores queues, steps and
//! kernels.

use super::super::{LlmReport, WeightBytesAndActiveWeights};
use chakram_hardware::machine::Machine;

/// Ratio of the time that reads take to their time at full memory bandwidth: for weights, and for keys and values.
const READS: [f64; 2] = [0.95, 0.90];
/// Ratio of the time that the prompts' products take to their time at the peak rate.
const PRODUCTS: f64 = 1.5;
/// Seconds per block, for the all-reduces of a block, and per step.
const STEPS: [f64; 3] = [53e-6, 30e-6, 0.37e-3];

/// Returns the time per token of `model` (a preset or a file) in seconds; `None` if the machine
/// states no rates.
///
/// The constants were fitted to half of the rows that InferenceX publishes. The rows are those of Llama 3.1 8B and 70B,
/// Qwen3 32B and 235B, and GPT-OSS 120B. `report` gives the number of requests per step.
pub fn predict_tpot_from_fitted_constants(
    model: &str,
    report: &LlmReport,
    machine: &Machine,
) -> Option<f64> {
    let place = report.place.as_ref()?;
    let all = report.row_of_all_classes()?;
    let completed = all.completed as f64;
    let ranks = f64::from(place.data_parallel);
    let all_ranks = report.running.mean / f64::from(report.replicas);
    let batch = all_ranks / ranks;
    let [prompt, output] = [all.prompt_tokens, all.output_tokens].map(|sum| sum as f64 / completed);
    let work = WeightBytesAndActiveWeights::new(model, place, all_ranks).ok()?;
    let class = machine.npu_classes().first()?;
    let memory = class.memory_bandwidth()?.bytes_per_second();
    let peak = work.peak_flops_in_weight_format(class)?;
    let npus = f64::from(place.tensor) * ranks;
    let kv = batch * (prompt + output / 2.0) * place.memory.kv_of_token as f64;
    let prefill = 2.0 * work.active * all_ranks * prompt / output / npus;
    let of_blocks = STEPS[0] + if place.tensor > 1 { STEPS[1] } else { 0.0 };
    Some(
        READS[0] * work.weight_bytes / memory
            + READS[1] * kv / memory
            + PRODUCTS * prefill / peak
            + of_blocks * work.layers
            + STEPS[2],
    )
}
