//! Uses random bytes as MSCCL algorithms, which are rejected, or converted to scripts that the
//! script reader accepts.

use chakram::astra_sim::custom_algorithm::{self, AstraOrRecordedScriptDurations};
use chakram::internals::{MscclAlgorithm, MscclTraceWriter};

/// An algorithm that is not rejected has both ends of each of its messages.
pub fn check_msccl_bytes_give_matched_messages(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(algorithm) = MscclAlgorithm::parse(text) else {
        return;
    };
    assert!(MscclAlgorithm::begins_as_msccl(data));
    let scripts = MscclTraceWriter::new(&algorithm, 1_000_003).expect("it was parsed");
    let gpus = 0..algorithm.gpus.len() as u32;
    let traces = gpus.map(|gpu| scripts.write_gpu_trace(gpu, Vec::new()));
    let traces = traces.map(|trace| trace.expect("memory takes everything").0);
    let traces: Vec<Vec<u8>> = traces.collect();
    // Steps may wait for one another in a cycle, so such an algorithm cannot run.
    let Ok(read) = custom_algorithm::build_algorithm_from_traces(
        &traces,
        AstraOrRecordedScriptDurations::Recorded,
    ) else {
        return;
    };
    if let Err(fault) = read.with_matched_labels() {
        assert!(format!("{fault:?}").starts_with("Cycle"), "{fault:?}");
    }
}
