//! Converts well-formed captures with arbitrary content. The bytes determine operators, intervals,
//! kernels and collectives of two ranks. A capture that converts must load, and its replay as
//! captured must end when the capture ended.

use chakram::convert::{ConvertOptions, convert_in_memory_captures};
use chakram::engine::{
    CommunicationDurationSource, CompiledReplay, InstanceId, ReplayOptions as Replay,
};
use chakram::ids::Rank;
use chakram::machine::Machine;
use chakram::report::{CollectiveRecord, Observer};
use chakram::units::Time;
use chakram::workload::{EnforcedDependencyKinds, Graph, MissingRankPolicy, WorkloadBuilder};
use std::fmt::Write;

/// Returns numbers from the bytes, and 0 after the last byte.
struct NumbersFromBytes<'a>(std::slice::Iter<'a, u8>);

impl NumbersFromBytes<'_> {
    fn next(&mut self) -> u64 {
        self.0.next().map_or(0, |&byte| u64::from(byte))
    }

    fn next_below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

const NAMES: [&str; 16] = [
    "aten::mm",
    "aten::empty",
    "aten::copy_",
    "ProfilerStep#1",
    "c10d::allreduce_",
    "c10d::_reduce_scatter_base_",
    "c10d::broadcast_",
    "c10d::send",
    "c10d::recv_",
    "c10d::barrier",
    "gloo:all_reduce",
    "gloo:send",
    "_c10d_functional::all_reduce",
    "_c10d_functional::wait_tensor",
    "record_param_comms",
    "nccl:coalesced",
];

/// Returns the arguments of an operator with their types, which may or may not fit.
fn draw_operator_arguments_and_types(
    name: &str,
    bytes: &mut NumbersFromBytes<'_>,
) -> (String, &'static str) {
    let storage = 10 + bytes.next_below(4);
    let tensor = format!(
        "[{}, {storage}, 0, 8, 4, \"cpu\"]",
        20 + bytes.next_below(4)
    );
    let (peer, wait) = (bytes.next_below(3), bytes.next_below(2) == 0);
    let object = "\"<Object>\"";
    match name {
        "c10d::send" | "c10d::recv_" => (
            format!("[[{tensor}], {object}, {peer}, 0]"),
            r#"["GenericList[Tensor(float)]", "Object", "Int", "Int"]"#,
        ),
        "c10d::broadcast_" => (
            format!("[[{tensor}], {object}, {peer}, 0, {wait}, -1]"),
            r#"["GenericList[Tensor(float)]", "Object", "Int", "Int", "Bool", "Int"]"#,
        ),
        "c10d::barrier" => (
            format!("[{tensor}, {object}, [], {wait}, -1]"),
            r#"["Tensor(float)", "Object", "GenericList[]", "Bool", "Int"]"#,
        ),
        "c10d::_reduce_scatter_base_" => (
            format!("[{tensor}, {tensor}, {object}, {object}, {wait}, -1]"),
            r#"["Tensor(float)", "Tensor(float)", "Object", "Object", "Bool", "Int"]"#,
        ),
        "_c10d_functional::all_reduce" => (
            format!("[{tensor}, \"sum\", \"{}\"]", peer / 2),
            r#"["Tensor(float)", "String", "String"]"#,
        ),
        _ => (
            format!("[[{tensor}], {object}, {object}, \"<None>\", {wait}, -1]"),
            r#"["GenericList[Tensor(float)]", "Object", "Object", "None", "Bool", "Int"]"#,
        ),
    }
}

/// Returns the two files of a rank.
fn generate_rank_capture(rank: u32, bytes: &mut NumbersFromBytes<'_>) -> (String, String) {
    let mut host = String::from("{\"schema\": \"1.1.1-chakra.0.0.4\", \"nodes\": [");
    let mut kineto = format!(
        "{{\"distributedInfo\": {{\"rank\": {rank}, \"world_size\": 2, \"pg_config\": [\
         {{\"pg_name\": \"0\", \"ranks\": [0, 1]}}]}}, \"traceEvents\": ["
    );
    let count = 2 + bytes.next_below(24);
    let mut at = 0;
    for rf in 1..=count {
        let comma = if rf == 1 { "" } else { "," };
        let name = NAMES[bytes.next_below(16) as usize];
        let (inputs, types) = draw_operator_arguments_and_types(name, bytes);
        let _ = write!(
            host,
            "{comma}{{\"id\": {rf}, \"name\": \"{name}\", \"ctrl_deps\": 1, \"inputs\": {{\"values\": {inputs}, \
             \"shapes\": [], \"types\": {types}}}, \"outputs\": {{\"values\": [], \
             \"shapes\": [], \"types\": []}}, \"attrs\": [{{\"name\": \"rf_id\", \"type\": \"uint64\", \
             \"value\": {rf}}}]}}"
        );
        // Times mostly go forward, with steps and lengths that nest, touch, overlap and leave gaps.
        at += bytes.next_below(64);
        let back = bytes.next_below(3) * bytes.next_below(40);
        let thread = bytes.next_below(3);
        let kind = match name.contains(':') && !name.starts_with("gloo") {
            true => "cpu_op",
            false => "user_annotation",
        };
        let mut event = |kind: &str, name: &str, tid: u64, from: u64, length: u64, args: &str| {
            let _ = write!(
                kineto,
                "{comma}{{\"ph\": \"X\", \"cat\": \"{kind}\", \"name\": \"{name}\", \"pid\": 1, \
                 \"tid\": {tid}, \"ts\": {from}.5, \"dur\": {length}.25, \"args\": {{{args}}}}}"
            );
        };
        let from = at.saturating_sub(back);
        let id = format!("\"Record function id\": {rf}");
        event(kind, name, thread, from, bytes.next_below(200), &id);
        if bytes.next_below(4) == 0 {
            kineto.push(',');
            let _ = write!(
                kineto,
                "{{\"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"{}\", \"pid\": 1, \"tid\": {thread}, \
                 \"ts\": {}, \"dur\": {}, \"args\": {{\"correlation\": {rf}}}}},\
                 {{\"ph\": \"X\", \"cat\": \"{}\", \"name\": \"{}\", \"pid\": 0, \"tid\": 7, \"ts\": {}, \
                 \"dur\": {}, \"args\": {{\"stream\": {}, \"correlation\": {}}}}}",
                ["cudaLaunchKernel", "cudaStreamSynchronize"][bytes.next_below(2) as usize],
                at + bytes.next_below(9),
                bytes.next_below(20),
                ["kernel", "gpu_memcpy"][bytes.next_below(2) as usize],
                ["gemm", "ncclDevKernel_AllReduce"][bytes.next_below(2) as usize],
                at + bytes.next_below(60),
                bytes.next_below(60),
                bytes.next_below(2),
                rf - bytes.next_below(2),
            );
        }
    }
    host.push_str("]}");
    kineto.push_str("]}");
    (host, kineto)
}

struct RankLastCompletionObserver(Vec<Time>);

impl Observer for RankLastCompletionObserver {
    fn on_issued(
        &mut self,
        _: Time,
        _: InstanceId,
        _: chakram::ids::NodeIndex,
        _: chakram::workload::NodeKind,
    ) {
    }
    fn on_completed(
        &mut self,
        now: Time,
        instance: InstanceId,
        _: chakram::ids::NodeIndex,
        _: chakram::workload::NodeKind,
    ) {
        self.0[instance.index()] = self.0[instance.index()].max(now);
    }
    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
}

/// Runs the target on `data`.
pub fn check_conversion_of_bytes(data: &[u8]) {
    let mut bytes = NumbersFromBytes(data.iter());
    let same = bytes.next_below(2) == 0;
    let first = generate_rank_capture(0, &mut bytes);
    let second = match same {
        true => (
            first.0.clone(),
            first.1.replace("\"rank\": 0", "\"rank\": 1"),
        ),
        false => generate_rank_capture(1, &mut bytes),
    };
    let captures = [
        (0, Some(first.0.as_bytes()), Some(first.1.as_bytes())),
        (1, Some(second.0.as_bytes()), Some(second.1.as_bytes())),
    ];
    let Ok((traces, _)) = convert_in_memory_captures(&captures, &ConvertOptions::default()) else {
        return;
    };
    let mut builder = WorkloadBuilder::default();
    let mut ends = Vec::new();
    for (rank, trace) in &traces {
        let (graph, binding) = Graph::read_graph(trace, *rank, EnforcedDependencyKinds::Both)
            .expect("what was written can be read");
        ends.push(graph.captured_end().expect("it says when it ended"));
        let graph = builder.add_or_reuse_equal_graph(graph);
        let placed = builder.add_rank(Rank(*rank), graph, binding, Time::ZERO);
        placed.expect("each rank comes once");
    }
    let workload = builder
        .finish_workload(None, MissingRankPolicy::Refuse)
        .expect("both ranks are there");
    let machine = Machine::load_preset("dgx-h100").expect("it is a preset");
    let options = Replay::default_with_changes(|o| {
        o.comm = CommunicationDurationSource::Captured;
    });
    // A job without communication or with unmatched messages may be rejected, but a replay never
    // gets stuck.
    let Ok(prepared) = CompiledReplay::new(&workload, &machine, &options) else {
        return;
    };
    let last = RankLastCompletionObserver(vec![Time::ZERO; ends.len()]);
    let (_, last) = prepared.run(last).expect("nobody waits for anybody");
    for (found, end) in last.0.iter().zip(&ends) {
        let found = found.since(Time::ZERO);
        assert!(found >= *end, "{found:?} is before the captured {end:?}");
    }
}
