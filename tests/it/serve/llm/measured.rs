//! Compares results with runs of vLLM, based on operations measured on the same GPU.

use super::{LlmReport, StepAndRequestLog, parse_llm_scenario};
use chakram::serve::llm::{RequestTimeMeanAndPercentiles, serve_llm};
use testkit::corpus::corpus_path_or_count_skip;

/// Serves the 300 requests on a GPU with its measured operations and this many blocks.
fn serve_measured_requests(gpu: &str, blocks: u32, seqs: u32) -> Option<LlmReport> {
    let folder = corpus_path_or_count_skip("validation")?;
    let file = |name: &str| folder.join(name).display().to_string();
    let text = format!(
        "name = \"{gpu}\"\n[engine]\nblocks = {blocks}\nmax_num_batched_tokens = 2048\nmax_num_seqs = {seqs}\n\
         [step]\nprofile = {:?}\nrows = {{ gpu = \"{gpu}\", model = \"Llama-3.1-8B\" }}\nlayers = 32\n\
         [requests]\narrivals = \"file\"\nfile = {:?}\n",
        file("serving_vllm_op_profiles.csv.gz"),
        file("requests_sharegpt300.csv") + ":tokenizer=llama-3.1-8b",
    );
    let report = serve_llm(
        &parse_llm_scenario(&text),
        None,
        &mut StepAndRequestLog::default(),
    );
    Some(report.unwrap_or_else(|error| panic!("{error}\n{text}")))
}

fn percent_deviation_of_mean(times: &RequestTimeMeanAndPercentiles, measured_ms: f64) -> f64 {
    let mean = times.mean.unwrap().value.as_seconds() * 1e3;
    100.0 * (mean / measured_ms - 1.0)
}

/// The means are from vLLM 0.19 on an RTX 4090 with 2,588 blocks, where it preempts requests (TTFT 65,457, TPOT 32.447,
/// E2E 86,578 ms), and on an RTX PRO 6000, where all fit (7,097, 32.458, 28,201 ms).
#[test]
fn measured_operations_give_the_times_of_measured_runs() {
    let Some(report) = serve_measured_requests("RTX4090", 2588, 256) else {
        return;
    };
    let all = report.row_of_all_classes().unwrap();
    let off = [
        percent_deviation_of_mean(&all.ttft, 65_456.574),
        percent_deviation_of_mean(&all.tpot, 32.447),
        percent_deviation_of_mean(&all.e2e, 86_578.254),
    ];
    println!(
        "RTX 4090: TTFT, TPOT, E2E off by {off:.1?} %, {} put back",
        report.preemptions
    );
    assert!(
        off[0].abs() < 3.0 && off[1].abs() < 1.0 && off[2].abs() < 1.5,
        "{off:?}"
    );
    assert!(report.preemptions > 100);
    let Some(report) = serve_measured_requests("RTXPRO6000", 30_000, 128) else {
        return;
    };
    let all = report.row_of_all_classes().unwrap();
    let off = [
        percent_deviation_of_mean(&all.ttft, 7_097.157),
        percent_deviation_of_mean(&all.tpot, 32.458),
        percent_deviation_of_mean(&all.e2e, 28_200.747),
    ];
    println!("RTX PRO 6000: TTFT, TPOT, E2E off by {off:.1?} %");
    assert!(
        off[0].abs() < 12.0 && off[1].abs() < 4.0 && off[2].abs() < 6.0,
        "{off:?}"
    );
    assert_eq!(report.preemptions, 0);
}
