//! A training job on GPUs as Kineto records it: operators, launches, kernels, collectives on a
//! separate stream, and the wait for the device. This job does not come from the generator of other
//! tests, so the generator was not tuned for the code under test.

use super::super::rig::{ConversionResult, replay_traces, try_convert};
use chakram::convert::ConvertOptions as Conversion;
use chakram::engine::CommunicationDurationSource;
use chakram::trace::TraceError;
use chakram::workload::MissingRankPolicy;
use serde_json::{Value, json};

/// Stream of compute kernels; the next constant is the stream of communication kernels.
pub const COMPUTE: u64 = 7;
pub const COMMUNICATION: u64 = 20;
/// Time between the collectives of successive layers.
const LAYER_NS: u64 = 200_000;

/// A rank's file under construction, with its events.
struct RankFileBuilder {
    rank: u64,
    events: Vec<Value>,
    /// Id of the next operator; the next field is the id of the next launch.
    operator: u64,
    correlation: u64,
    /// Times at which the compute stream and the communication stream become free, in ns.
    free: [u64; 2],
}

fn us_from_ns(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl RankFileBuilder {
    fn process_id(&self) -> u64 {
        4000 + self.rank
    }

    fn add_host_event(&mut self, cat: &str, name: &str, from: u64, lasts: u64, args: Value) -> u64 {
        let id = self.operator;
        self.operator += 1;
        let mut event = json!({
            "ph": "X", "cat": cat, "name": name, "pid": self.process_id(), "tid": self.process_id(),
            "ts": us_from_ns(from), "dur": us_from_ns(lasts),
            "args": {"External id": id, "Record function id": id, "Ev Idx": id},
        });
        for (key, value) in args.as_object().into_iter().flatten() {
            event["args"][key] = value.clone();
        }
        self.events.push(event);
        id
    }

    /// Launches a kernel at `at` for the operator `id`. It ends at `end`, if given, or takes 20 µs.
    fn add_launch_and_kernel(
        &mut self,
        id: u64,
        at: u64,
        stream: u64,
        name: &str,
        end: Option<u64>,
        args: Value,
    ) {
        let correlation = self.correlation;
        self.correlation += 1;
        self.events.push(json!({
            "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": self.process_id(),
            "tid": self.process_id(), "ts": us_from_ns(at), "dur": 3.0,
            "args": {"External id": id, "correlation": correlation, "cbid": 211},
        }));
        let own = usize::from(stream != COMPUTE);
        // Communication kernels wait for all kernels that were launched earlier.
        let before = self.free[..=own].iter().copied().max().unwrap_or(0);
        let from = (at + 5_000).max(before);
        let end = end.map_or(from + 20_000, |end| end.max(from + 1_000));
        self.free[own] = end;
        let mut event = json!({
            "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": us_from_ns(from), "dur": us_from_ns(end - from),
            "args": {"External id": id, "correlation": correlation, "stream": stream, "device": 0,
                     "grid": [64, 1, 1], "block": [256, 1, 1]},
        });
        for (key, value) in args.as_object().into_iter().flatten() {
            event["args"][key] = value.clone();
        }
        self.events.push(event);
    }
}

/// Returns a file for each rank. Each layer has a matrix product of 20 µs, and an all-reduce that
/// ends on all ranks at the same time, 200 µs after the previous layer's.
pub fn generate_rank_files(ranks: u64, layers: u64) -> Vec<Value> {
    (0..ranks)
        .map(|rank| generate_rank_file(rank, ranks, layers))
        .collect()
}

fn generate_rank_file(rank: u64, ranks: u64, layers: u64) -> Value {
    let begin = 1_000_000 + 2_000 * rank;
    let mut file = RankFileBuilder {
        rank,
        events: Vec::new(),
        operator: 1,
        correlation: 1000,
        free: [0; 2],
    };
    let members: Vec<u64> = (0..ranks).collect();
    let step = LAYER_NS * (layers + 1);
    file.add_host_event(
        "user_annotation",
        "ProfilerStep#3",
        begin,
        step,
        Value::Null,
    );
    for layer in 0..layers {
        let at = begin + 10_000 + layer * LAYER_NS;
        let shapes =
            json!({"Input Dims": [[32, 256], [256, 256]], "Input type": ["float", "float"]});
        let id = file.add_host_event("cpu_op", "aten::mm", at, 40_000, shapes);
        file.add_launch_and_kernel(
            id,
            at + 10_000,
            COMPUTE,
            "ampere_sgemm_128x64_tn",
            None,
            Value::Null,
        );
        file.add_host_event(
            "user_annotation",
            "nccl:all_reduce",
            at + 50_000,
            60_000,
            Value::Null,
        );
        let said = json!({
            "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 65536, "Out msg nelems": 65536,
            "Group size": ranks, "Process Group Name": "0", "Process Group Description": "default_pg",
            "Process Group Ranks": format!("{members:?}"),
        });
        let id = file.add_host_event(
            "cpu_op",
            "record_param_comms",
            at + 55_000,
            50_000,
            said.clone(),
        );
        let end = 1_000_000 + (layer + 1) * LAYER_NS;
        let name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
        file.add_launch_and_kernel(id, at + 60_000, COMMUNICATION, name, Some(end), said);
    }
    let (at, end) = (
        begin + layers * LAYER_NS - 30_000,
        begin + layers * LAYER_NS + 20_000,
    );
    let process = file.process_id();
    file.events.push(json!({
        "ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": process, "tid": process, "ts": us_from_ns(at),
        "dur": us_from_ns(end - at), "args": {"cbid": 165, "correlation": file.correlation},
    }));
    file.events.push(json!({
        "ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler",
        "ts": us_from_ns(begin - 100_000), "dur": us_from_ns(step + 300_000), "args": {"Op count": 0},
    }));
    json!({
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}],
        "distributedInfo": {
            "backend": "nccl", "rank": rank, "world_size": ranks, "pg_config": [
                {"pg_name": "0", "pg_desc": "default_pg", "pg_size": ranks, "ranks": members},
            ],
        },
        "baseTimeNanoseconds": 1_711_964_646_000_000_000_u64,
        "traceEvents": file.events,
    })
}

pub fn trace_events_mut(file: &mut Value) -> &mut Vec<Value> {
    file["traceEvents"].as_array_mut().expect("they are a list")
}

/// Returns `true` if an event has the category.
pub fn has_category(event: &Value, category: &str) -> bool {
    event["cat"] == category
}

/// Returns the total time of kernels in the files, in ns.
pub fn sum_kernel_ns(files: &[Value]) -> u64 {
    let all = files
        .iter()
        .flat_map(|file| file["traceEvents"].as_array().expect("they are a list"));
    let kernels = all.filter(|event| {
        ["kernel", "Kernel", "mtia_ccp_events"]
            .iter()
            .any(|cat| has_category(event, cat))
    });
    let lasts = |event: &Value| {
        let text = event["dur"].as_str().map(|text| text.parse().ok());
        let us = text.unwrap_or_else(|| event["dur"].as_f64());
        (us.expect("it is a number") * 1e3).round() as u64
    };
    kernels.map(lasts).sum()
}

pub fn try_convert_files<B: AsRef<[u8]>>(
    files: &[(&str, B)],
) -> Result<ConversionResult, TraceError> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    try_convert(&[folder.path().to_owned()], &Conversion::default())
}

/// Converts the files, one per rank.
pub fn convert_rank_files<B: AsRef<[u8]>>(texts: &[B]) -> Result<ConversionResult, TraceError> {
    let names: Vec<String> = (0..texts.len())
        .map(|rank| format!("kineto.{rank}.json"))
        .collect();
    let files: Vec<(&str, &B)> = names.iter().map(String::as_str).zip(texts).collect();
    try_convert_files(&files)
}

pub fn assert_conversion_refused(converted: Result<ConversionResult, TraceError>, parts: &[&str]) {
    let text = converted.err().expect("it is refused").to_string();
    for part in parts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

/// Asserts that these files convert to a job with `device` ns of device work and `collectives`
/// collectives. Asserts that the job's replay as captured ends when the capture ended.
pub fn assert_job_converts_with_device_time<B: AsRef<[u8]>>(
    what: &str,
    texts: &[B],
    device: u64,
    collectives: u64,
) -> ConversionResult {
    let job = convert_rank_files(texts).unwrap_or_else(|error| panic!("{what}: {error}"));
    let kept: u64 = job.summary.ranks.iter().map(|rank| rank.device_ns.1).sum();
    // Times may have been converted to floating-point numbers with a precision of a quarter
    // microsecond.
    assert!(
        kept.abs_diff(device) <= device / 1000,
        "{what}: {kept} of {device} ns kept"
    );
    let found: u64 = job.summary.collectives.values().sum();
    assert_eq!(found, collectives, "{what}: {:?}", job.summary.collectives);
    for comm in [
        CommunicationDurationSource::Captured,
        CommunicationDurationSource::Recorded,
    ] {
        let ends = replay_traces(&job.traces, comm, |_| 0, MissingRankPolicy::Mirror)
            .last_node_end_of_each_rank_ns();
        for (end, trace) in ends.iter().zip(&job.traces) {
            let captured = trace.captured_ns();
            let off = end.abs_diff(captured);
            assert!(
                off * 1000 <= captured,
                "{what}, {comm:?}: {end}, captured {captured}"
            );
        }
    }
    job
}
