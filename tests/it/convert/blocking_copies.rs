//! Tests blocking copies: while the host waits in the call, the device works, even on kernels queued before the copy.

use super::rig::{ConversionResult, convert_folder, replay_traces, set_duration_ns};
use chakram::engine::CommunicationDurationSource;
use chakram::workload::MissingRankPolicy;

/// Returns a job with a kernel of 1,000 us that is launched at 0, and a copy queued after it. The copy's call lasts
/// from 40 to 1,025 us. The copy itself takes 4 us, from 1,014 us, on `stream`.
fn convert_blocking_copy_job(stream: u32) -> ConversionResult {
    let event = |cat: &str, name: &str, (tid, ts, dur): (u32, u32, u32), args: String| {
        format!(
            r#"{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": 1, "tid": {tid}, "ts": {ts}, "dur": {dur}, "args": {{{args}}}}}"#
        )
    };
    let on = |stream: u32, correlation: u32| {
        format!(r#""device": 0, "stream": {stream}, "correlation": {correlation}"#)
    };
    let by = |correlation: u32| format!(r#""correlation": {correlation}"#);
    let events = [
        event("cpu_op", "aten::mm", (1, 0, 20), String::new()),
        event("cuda_runtime", "cudaLaunchKernel", (1, 0, 5), by(1)),
        event("kernel", "gemm", (7, 12, 1000), on(7, 1)),
        event("cpu_op", "aten::to", (1, 30, 1000), String::new()),
        event("cuda_runtime", "cudaMemcpyAsync", (1, 40, 985), by(2)),
        event(
            "gpu_memcpy",
            "Memcpy DtoH",
            (stream, 1014, 4),
            on(stream, 2),
        ),
        event("cpu_op", "aten::relu", (1, 1040, 10), String::new()),
    ];
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{{\"traceEvents\": [{}]}}", events.join(",\n"));
    std::fs::write(folder.path().join("kineto.0.json"), text).unwrap();
    convert_folder(folder.path())
}

/// Returns the end of the job in us, if the kernel takes `kernel` us.
fn replay_end_with_kernel_us(mut job: ConversionResult, kernel: u64) -> u64 {
    let nodes = job.traces[0].nodes.iter_mut();
    for node in nodes.filter(|node| node.name == "gemm") {
        set_duration_ns(node, kernel * 1000);
    }
    let log = replay_traces(
        &job.traces,
        CommunicationDurationSource::Recorded,
        |_| 0,
        MissingRankPolicy::Refuse,
    );
    log.last_node_end_of_each_rank_ns()[0] / 1000
}

#[test]
fn a_copy_behind_a_kernel_waits_for_it_on_any_device() {
    assert_eq!(
        replay_end_with_kernel_us(convert_blocking_copy_job(7), 1000),
        1050
    );
    // The kernel ends at 22 and the call begins at 40. The copy starts 2 us later, which is the recorded time after the
    // event that it waits for, and ends at 46. The host continues 22 us later, and ends after another 10 us.
    assert_eq!(
        replay_end_with_kernel_us(convert_blocking_copy_job(7), 10),
        78
    );
    // If the kernel is 100 us longer, the whole job is 100 us longer.
    assert_eq!(
        replay_end_with_kernel_us(convert_blocking_copy_job(7), 1100),
        1150
    );
}

/// The copy has its own stream, so it waited for no kernel in the capture, and the call's time is host time.
#[test]
fn a_copy_on_an_idle_stream_waits_for_nothing() {
    assert_eq!(
        replay_end_with_kernel_us(convert_blocking_copy_job(8), 1000),
        1050
    );
    assert_eq!(
        replay_end_with_kernel_us(convert_blocking_copy_job(8), 10),
        1050
    );
}
