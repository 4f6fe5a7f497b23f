//! Tests the output of `chakram astra-sim`: the original's lines, the report, the table, the timeline, and the memory
//! of tensors. The jobs are small enough for comments to derive every number.

use chakram::trace::{
    AttributeValue as Field, MemoryLocation, NamedAttribute, NodeFieldsBeyondView, NodeView, Op,
    TraceWriter,
};
use chakram::units::Span;
use serde_json::{Value, json};
use std::process::{Command, Output};

/// A node with its operation, its recorded µs, its dependencies and its lists of tensors.
struct NodeWithTensorLists {
    op: Op<'static>,
    micros: u64,
    deps: &'static [u64],
    tensors: Option<[&'static [&'static str]; 2]>,
}

fn build_node_without_tensors(
    op: Op<'static>,
    micros: u64,
    deps: &'static [u64],
) -> NodeWithTensorLists {
    NodeWithTensorLists {
        op,
        micros,
        deps,
        tensors: None,
    }
}

fn build_kernel_op(flops: u64, bytes: u64) -> Op<'static> {
    Op::Compute {
        flops,
        bytes,
        dtype: None,
    }
}

/// Returns a message of 1 MiB.
fn build_message_op(receive: bool, peer: u32) -> Op<'static> {
    Op::Message {
        receive,
        peer,
        tag: 7,
        bytes: 1 << 20,
        own: None,
        host: false,
    }
}

/// A folder with the files of a ring of NPUs that have links of 50 GiB/s and 500 ns.
struct RingJobFolder(tempfile::TempDir);

impl RingJobFolder {
    /// Adds `system` to the default system file, and writes each entry of `ranks` as a trace.
    fn new(system: Value, ranks: &[&[NodeWithTensorLists]]) -> Self {
        let folder = tempfile::tempdir().expect("there is room");
        let mut all = json!({
            "scheduling-policy": "LIFO", "collective-optimization": "baseline",
            "endpoint-delay": 10, "preferred-dataset-splits": 1, "local-mem-bw": 100,
            "peak-perf": 1, "all-reduce-implementation": ["ring"],
        });
        for (key, value) in system.as_object().expect("it is an object") {
            all[key] = value.clone();
        }
        let memory = json!({"memory-type": "PER_NPU_MEMORY_EXPANSION",
            "remote-mem-latency": 100, "remote-mem-bw": 10});
        let network = format!(
            "topology: [ Ring ]\nnpus_count: [ {} ]\nbandwidth: [ 50 ]\nlatency: [ 500 ]\n",
            ranks.len()
        );
        let put = |name: &str, bytes: &[u8]| {
            std::fs::write(folder.path().join(name), bytes).expect("there is room");
        };
        put("system.json", all.to_string().as_bytes());
        put("memory.json", memory.to_string().as_bytes());
        put("network.yml", network.as_bytes());
        for (rank, nodes) in ranks.iter().enumerate() {
            put(&format!("wl.{rank}.et"), &encode_trace(nodes));
        }
        Self(folder)
    }

    fn run(&self, more: &[&str]) -> Output {
        let output = Command::new(env!("CARGO_BIN_EXE_chakram"))
            .current_dir(self.0.path())
            .args(["astra-sim", "--workload-configuration=wl"])
            .args([
                "--system-configuration=system.json",
                "--network-configuration=network.yml",
            ])
            .arg("--remote-memory-configuration=memory.json")
            .args(more)
            .output();
        output.expect("the program was built")
    }

    /// Returns the printed lines of a run that must succeed.
    fn run_and_return_printed_lines(&self, more: &[&str]) -> String {
        let output = self.run(more);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}",
            text_from_bytes(&output.stderr)
        );
        text_from_bytes(&output.stdout).to_owned()
    }

    fn read_json_file(&self, path: &str) -> Value {
        let bytes = std::fs::read(self.0.path().join(path)).expect("it was written");
        serde_json::from_slice(&bytes).expect("it is JSON")
    }
}

fn encode_trace(nodes: &[NodeWithTensorLists]) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new()).expect("memory takes all");
    for (id, node) in nodes.iter().enumerate() {
        let mut view = NodeView::new(id as u64, ["f", "b", "x", "y"][id % 4], node.op);
        view.recorded = Span::from_ns(node.micros * 1000);
        let names = ["inputs", "outputs"];
        let lists = node.tensors.iter().flatten().zip(names);
        let lists: Vec<NamedAttribute<'_>> =
            lists.map(|(l, name)| (name, Field::Texts(l))).collect();
        let extra = NodeFieldsBeyondView {
            attributes: &lists,
            ..NodeFieldsBeyondView::default()
        };
        let written = writer.write_node(&view, node.deps, &extra);
        written.expect("memory takes all");
    }
    writer.into_unflushed_sink()
}

fn text_from_bytes(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it is text")
}

/// Returns a case in which rank 0 has one node of each kind, and rank 1 has a kernel after a receive.
///
/// The message takes 2^20 B / (50 · 2^30 B/s) + 500 ns = 19,531.25 + 500, truncated to 20,031 ns.
/// The load after the message takes 100 ns + 1,000 B / 10 GB/s = 200 ns. So rank 0 ends at 20,231
/// ns, and rank 1, with a kernel of 5 µs, ends at 25,031 ns. Rank 0's kernel runs during its send,
/// but rank 1's kernel runs after its receive.
fn build_mixed_job(system: Value) -> RingJobFolder {
    let load = Op::Memory {
        store: false,
        place: MemoryLocation::Remote,
        bytes: 1000,
        in_switch: false,
    };
    RingJobFolder::new(
        system,
        &[
            &[
                build_node_without_tensors(build_kernel_op(0, 0), 10, &[]),
                build_node_without_tensors(build_message_op(false, 1), 0, &[]),
                build_node_without_tensors(Op::Host, 3, &[]),
                build_node_without_tensors(load, 0, &[1]),
                build_node_without_tensors(Op::NoOp, 0, &[0]),
            ],
            &[
                build_node_without_tensors(build_message_op(true, 0), 0, &[]),
                build_node_without_tensors(build_kernel_op(0, 0), 5, &[0]),
            ],
        ],
    )
}

const MIXED: &str = "\
sys[0] finished, 20231 cycles, exposed communication 10231 cycles.
sys[0], Wall time: 20231
sys[0], CPU time: 3000
sys[0], GPU time: 10000
sys[0], Comm time: 20031
sys[0], Remote mem time: 200
sys[0], Invalid time: 0
sys[0], Total compute-communication overlap: 10000
sys[1] finished, 25031 cycles, exposed communication 20031 cycles.
sys[1], Wall time: 25031
sys[1], GPU time: 5000
sys[1], Comm time: 20031
sys[1], Total compute-communication overlap: 0
";

#[test]
fn every_rank_prints_its_statistics_lines() {
    let case = build_mixed_job(json!({}));
    assert_eq!(case.run_and_return_printed_lines(&[]), MIXED);
    assert_eq!(
        case.run_and_return_printed_lines(&["--network-model=aware"]),
        MIXED
    );
}

#[test]
fn with_the_roofline_it_says_how_kernels_use_the_npu() {
    // The roofline is 1 TFLOPS and 100 GB/s. 20,000 FLOPs on 1,000 B take 20 ns at the peak and
    // half of the bandwidth. 1,000 FLOPs on 1,000 B take 10 ns at the bandwidth and a tenth of the
    // peak. The means over 20 + 10 + 1 ns are: 20/31 of the time compute-bound, 21/31 of the peak,
    // 20/31 of the bandwidth, and (20 · 20 + 10 · 1)/31 FLOPs per byte.
    let nodes = [
        build_node_without_tensors(build_kernel_op(20_000, 1_000), 0, &[]),
        build_node_without_tensors(build_kernel_op(1_000, 1_000), 0, &[0]),
    ];
    let case = RingJobFolder::new(json!({"roofline-enabled": 1}), &[&nodes, &[]]);
    let expected = "\
sys[0] finished, 30 cycles, exposed communication 0 cycles.
sys[0], Wall time: 30
sys[0], GPU time: 30
sys[0], Total compute-communication overlap: 0
sys[0], Compute bound percentage: 64.516%
sys[0], Average compute utilization: 67.742%
sys[0], Average memory utilization: 64.516%
sys[0], Average operation intensity: 13.226
sys[1] finished, 0 cycles";
    let said = case.run_and_return_printed_lines(&[]);
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn replay_only_statistics_distinguish_kinds_of_nodes() {
    // The load has no duration, so it takes 1 ns, as do the send and the node that does nothing. Each counts as 1 ns
    // that is not exposed. They run one after another and end 1 ns after the kernel, so the result is 10,001 - 10,003 =
    // -2.
    let said = build_mixed_job(json!({"replay-only": 1})).run_and_return_printed_lines(&[]);
    let rank_0 = "\
sys[0] finished, 10001 cycles, exposed communication -2 cycles.
sys[0], Wall time: 10001
sys[0], CPU time: 3000
sys[0], GPU time: 10000
sys[0], Comm time: 1
sys[0], Remote mem time: 1
sys[0], Invalid time: 1
sys[0], Total compute-communication overlap: 1
";
    assert!(said.starts_with(rank_0), "{said}");
}

#[test]
fn json_report_has_all_results_options_and_inputs() {
    let case = build_mixed_job(json!({"boost-mode": 1}));
    let said = case.run_and_return_printed_lines(&["--format=json", "--injection-scale=2"]);
    let said: Value = serde_json::from_str(&said).expect("it is JSON");
    assert_eq!(said["schema"], "chakram.report.1");
    assert_eq!(said["makespan_ps"], 25_031_000);
    assert_eq!((&said["nodes"], &said["messages"]), (&json!(7), &json!(1)));
    assert_eq!(said["npus"][1]["finish_ps"], 25_031_000);
    assert_eq!(said["npus"][1]["time_ps"]["compute"], 5_000_000);
    assert_eq!(said["options"]["network_model"], "unaware");
    assert_eq!(said["options"]["injection_scale"], 2.0);
    let inputs = said["inputs"].as_array().expect("a list");
    let roles = inputs.iter().map(|input| input["role"].as_str());
    let roles: Vec<_> = roles.map(|role| role.expect("text")).collect();
    assert_eq!(roles, ["system", "network", "memory", "trace", "trace"]);
    for input in inputs {
        let name = input["name"].as_str().expect("text");
        let bytes = std::fs::read(case.0.path().join(name)).expect("it is there");
        assert_eq!(input["blake3"], blake3::hash(&bytes).to_hex().as_str());
    }
    let astra_sim = &said["astra_sim"];
    assert_eq!(astra_sim["network_model"], "unaware");
    let understood = astra_sim["understood"]["chunks"].as_str().expect("text");
    // The delay is twice 10 ns.
    assert!(understood.ends_with("20 ns at each end"), "{understood}");
    let notes = astra_sim["notes"].as_array().expect("a list");
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].as_str().expect("text").contains("`boost-mode`"));
    let rank = json!({
        "rank": 0, "finish_ns": 20_231, "exposed_communication_ns": 10_231,
        "cpu_ns": 3000, "gpu_ns": 10_000, "communication_ns": 20_031, "remote_memory_ns": 200,
        "overlap_ns": 10_000, "roofline": null, "peak_memory_bytes": null,
    });
    assert_eq!(astra_sim["ranks"][0], rank);
    assert_eq!(astra_sim["ranks"].as_array().map(Vec::len), Some(2));
}

#[test]
fn csv_report_has_a_row_for_each_rank() {
    let header = "rank,finish_ns,exposed_communication_ns,cpu_ns,gpu_ns,communication_ns,\
                  remote_memory_ns,overlap_ns,compute_bound,compute_utilization,\
                  memory_utilization,flops_per_byte,peak_memory_bytes\n";
    let rows =
        "0,20231,10231,3000,10000,20031,200,10000,,,,,\n1,25031,20031,0,5000,20031,0,0,,,,,\n";
    let case = build_mixed_job(json!({}));
    assert_eq!(
        case.run_and_return_printed_lines(&["--format=csv"]),
        format!("{header}{rows}")
    );
}

#[test]
fn a_file_takes_what_would_be_printed() {
    let case = build_mixed_job(json!({}));
    assert_eq!(
        case.run_and_return_printed_lines(&["-o", "new/out.txt"]),
        ""
    );
    let written = std::fs::read_to_string(case.0.path().join("new/out.txt"));
    assert_eq!(written.expect("it was written"), MIXED);
}

#[test]
fn trace_enabled_is_noted_and_timeline_draws_picture() {
    let case = build_mixed_job(json!({"trace-enabled": 1}));
    let output = case.run(&["--timeline", "t.json"]);
    assert_eq!(text_from_bytes(&output.stdout), MIXED);
    let notes = text_from_bytes(&output.stderr);
    assert!(
        notes.starts_with("note: system.json:1: `trace-enabled`: "),
        "{notes}"
    );
    assert!(notes.contains("--timeline FILE"), "{notes}");
    assert_eq!(notes.lines().count(), 1, "{notes}");
    let picture = case.read_json_file("t.json");
    let events = picture["traceEvents"].as_array().expect("a list");
    // The timeline shows all nodes: the node that does nothing as an instant, and all other nodes
    // with begin and end.
    let drawn = events.iter().filter(|event| event["args"]["node"].is_u64());
    let drawn = drawn.filter(|event| event["ph"] != "E");
    let phases: Vec<_> = drawn.map(|event| event["ph"].as_str().unwrap()).collect();
    let count = |phase| phases.iter().filter(|found| **found == phase).count();
    assert_eq!((phases.len(), count("i")), (7, 1));
    let silent = build_mixed_job(json!({}));
    assert_eq!(text_from_bytes(&silent.run(&[]).stderr), "");
}

/// Returns the output of the program under the original's name, with the clock at the beginning of
/// 1970.
#[cfg(unix)]
fn run_under_original_name(case: &RingJobFolder, more: &[&str]) -> Output {
    let link = case.0.path().join("AstraSim_Analytical_Congestion_Unaware");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_chakram"), &link).expect("there is room");
    let output = Command::new(&link)
        .current_dir(case.0.path())
        .env("SOURCE_DATE_EPOCH", "0")
        .args([
            "--workload-configuration=wl",
            "--system-configuration=system.json",
        ])
        .args(["--network-configuration=network.yml"])
        .arg("--remote-memory-configuration=memory.json")
        .args(more)
        .output();
    output.expect("the program was built")
}

/// Prefixes each line with the time.
fn prefix_lines_with_epoch_time(lines: &str) -> String {
    let lines = lines.lines();
    let lines = lines.map(|line| format!("[1970-01-01 00:00:00.000] {line}\n"));
    lines.collect()
}

#[cfg(unix)]
#[test]
fn under_its_name_the_lines_are_the_originals() {
    // Rank 0 has host nodes and memory nodes, and the original aborts its statistics at such nodes.
    let printed = "\
[system::topology::RingTopology] [info] ring of node 0, id: 0 dimension: local total nodes in ring: 2 index in ring: 0 offset: 1 total nodes in ring: 2
[workload] [info] sys[0] finished, 20231 cycles, exposed communication 10231 cycles.
[statistics] [info] sys[0]. Post statistics processing start.
[workload] [info] sys[1] finished, 25031 cycles, exposed communication 20031 cycles.
[statistics] [info] sys[1]. Post statistics processing start.
[statistics] [info] sys[1]. Post statistics processing end.
[statistics] [info] sys[1], Wall time: 25031
[statistics] [info] sys[1], GPU time: 5000
[statistics] [info] sys[1], Comm time: 20031
[system] [info] Exiting
";
    let case = build_mixed_job(json!({}));
    let output = run_under_original_name(&case, &[]);
    assert_eq!(
        text_from_bytes(&output.stdout),
        prefix_lines_with_epoch_time(printed)
    );
    assert_eq!(
        (text_from_bytes(&output.stderr), output.status.code()),
        ("", Some(0))
    );
    let log = |case: &RingJobFolder, path: &str| {
        std::fs::read_to_string(case.0.path().join(path)).expect("it was written")
    };
    assert_eq!(
        log(&case, "log/log.log"),
        prefix_lines_with_epoch_time(printed)
    );
    // The node that does nothing prints no lines.
    let case = build_mixed_job(json!({"trace-enabled": 1}));
    let output = run_under_original_name(&case, &["--logging-folder=new/logs"]);
    assert_eq!(
        (
            text_from_bytes(&output.stdout),
            text_from_bytes(&output.stderr)
        ),
        (&prefix_lines_with_epoch_time(printed)[..], "")
    );
    let nodes = |lines: &[&str]| -> String {
        let lines = lines
            .iter()
            .map(|line| format!("[workload] [debug] {line}\n"));
        lines.collect()
    };
    let mut printed: Vec<&str> = printed.split_inclusive('\n').collect();
    let rest = printed.split_off(1);
    let logged = [
        printed[0],
        &nodes(&[
            "issue,sys->id=0, tick=0, node->id=0, node->name=f, node->type=4",
            "issue,sys->id=0, tick=0, node->id=1, node->name=b, node->type=5",
            "issue,sys->id=0, tick=0, node->id=2, node->name=x, node->type=4",
            "issue,sys->id=1, tick=0, node->id=0, node->name=f, node->type=6",
            "callback,sys->id=0, tick=3000, node->id=2, node->name=x, node->type=4",
            "callback,sys->id=0, tick=10000, node->id=0, node->name=f, node->type=4",
            "callback,sys->id=0, tick=20031, node->id=1, node->name=b, node->type=5",
            "issue,sys->id=0, tick=20031, node->id=3, node->name=y, node->type=2",
            "callback,sys->id=1, tick=20031, node->id=0, node->name=f, node->type=6",
            "issue,sys->id=1, tick=20031, node->id=1, node->name=b, node->type=4",
            "callback,sys->id=0, tick=20231, node->id=3, node->name=y, node->type=2",
        ]),
        &rest[..2].concat(),
        &nodes(&["callback,sys->id=1, tick=25031, node->id=1, node->name=b, node->type=4"]),
        &rest[2..].concat(),
    ];
    assert_eq!(
        log(&case, "new/logs/log.log"),
        prefix_lines_with_epoch_time(&logged.concat())
    );
}

/// The overlap of kernels and communication is the part of their sum that exceeds the total time.
/// NPUs are printed in the order in which they finish, and an NPU without nodes finishes
/// immediately.
#[cfg(unix)]
#[test]
fn ranks_are_told_of_as_they_finish() {
    let ranks: [&[NodeWithTensorLists]; 4] = [
        &[
            build_node_without_tensors(build_kernel_op(0, 0), 10, &[]),
            build_node_without_tensors(build_message_op(false, 1), 0, &[]),
        ],
        &[build_node_without_tensors(
            build_message_op(true, 0),
            0,
            &[],
        )],
        &[build_node_without_tensors(build_kernel_op(0, 0), 1, &[])],
        &[],
    ];
    let case = RingJobFolder::new(json!({"all-reduce-implementation": ["oneRing"]}), &ranks);
    let output = run_under_original_name(&case, &[]);
    let said: Vec<&str> = text_from_bytes(&output.stdout).lines().collect();
    let lines = said
        .iter()
        .filter(|line| line.contains("finished") || line.contains("overlap"));
    let lines: Vec<&str> = lines
        .map(|line| line.split_once("[info] ").expect("a level").1)
        .collect();
    assert_eq!(
        lines,
        [
            "sys[3] finished, 0 cycles, exposed communication 0 cycles.",
            "sys[2] finished, 1000 cycles, exposed communication 0 cycles.",
            "sys[0] finished, 20031 cycles, exposed communication 10031 cycles.",
            "sys[0], Total compute-communication overlap: 10000",
            "sys[1] finished, 20031 cycles, exposed communication 20031 cycles.",
        ]
    );
    // Ranks that do not finish are printed before the last line.
    let output = run_under_original_name(&build_deadlocked_job(), &["--lenient"]);
    assert_eq!(output.status.code(), Some(1));
    let said: Vec<&str> = text_from_bytes(&output.stdout).lines().collect();
    assert!(
        said[said.len() - 3]
            .ends_with("] [critical] Hardware Resource sys.id=1 has unreleased nodes")
    );
    assert!(said[said.len() - 1].ends_with("] [system] [info] Exiting"));
}

/// Returns a case in which ranks 1 and 2 each receive before they send, while rank 0 has a kernel.
fn build_deadlocked_job() -> RingJobFolder {
    let other = |peer| {
        [
            build_node_without_tensors(build_message_op(true, peer), 0, &[]),
            build_node_without_tensors(build_message_op(false, peer), 0, &[0]),
        ]
    };
    let first = [build_node_without_tensors(build_kernel_op(0, 0), 10, &[])];
    RingJobFolder::new(json!({}), &[&first, &other(2), &other(1)])
}

#[test]
fn who_finished_is_said_where_others_are_stuck() {
    let case = build_deadlocked_job();
    let output = case.run(&["--lenient"]);
    assert_eq!(output.status.code(), Some(1));
    let expected = "\
sys[0] finished, 10000 cycles, exposed communication 0 cycles.
sys[0], Wall time: 10000
sys[0], GPU time: 10000
sys[0], Total compute-communication overlap: 0
";
    assert_eq!(text_from_bytes(&output.stdout), expected);
    let error = text_from_bytes(&output.stderr);
    assert!(
        error.starts_with("error: ") && error.contains("rank 1"),
        "{error}"
    );
    let table = case.run(&["--lenient", "--format=csv", "--timeline=t.json"]);
    assert_eq!(table.status.code(), Some(1));
    let table = text_from_bytes(&table.stdout);
    assert_eq!(table.lines().nth(1), Some("0,10000,0,0,10000,0,0,0,,,,,"));
    assert_eq!(table.lines().count(), 2, "{table}");
    assert!(!case.0.path().join("t.json").exists(), "half a picture");
    let document = case.run(&["--lenient", "--format=json"]);
    assert_eq!(document.status.code(), Some(1));
    assert_eq!(text_from_bytes(&document.stdout), "", "half a report");
}

const MIB: &str = "1048576";

/// Returns a case with a forward and a backward pass, with 1 MiB of weights, half a MiB of activations, and 1 MiB of
/// gradients.
///
/// The forward pass lasts from 0 to 5 µs, and the backward pass from 5 to 8 µs. Weights and
/// activations exist from 0, and gradients from 5 µs, so the peak is 2.5 MiB.
fn build_tensor_memory_job(system: Value, listed: bool) -> RingJobFolder {
    let forward = NodeWithTensorLists {
        tensors: Some([&["w", MIB], &["a", "524288"]]),
        ..build_node_without_tensors(build_kernel_op(0, 0), 5, &[])
    };
    let back = NodeWithTensorLists {
        tensors: listed.then_some([&["a", "524288", "w", MIB], &["g", MIB]]),
        ..build_node_without_tensors(build_kernel_op(0, 0), 3, &[0])
    };
    RingJobFolder::new(system, &[&[forward, back], &[]])
}

#[test]
fn the_memory_of_tensors_is_tracked() {
    let system = json!({"track-local-mem": 1, "local-mem-trace-filename": "out/mem"});
    let case = build_tensor_memory_job(system, true);
    let said = case.run_and_return_printed_lines(&[]);
    let peak = said
        .lines()
        .filter(|line| line.contains("peak memory usage"));
    let expected = [
        "sys[0] peak memory usage: 2.50 MB",
        "sys[1] peak memory usage: 0.00 B",
    ];
    assert_eq!(peak.collect::<Vec<_>>(), expected);
    let picture = case.read_json_file("out/mem.0.json");
    let events = picture["traceEvents"].as_array().expect("a list");
    let curve = events.iter().filter(|event| event["ph"] == "C");
    let curve: Vec<_> = curve
        .map(|event| (event["ts"].as_f64(), event["args"]["Memory_MB"].as_f64()))
        .collect();
    let expected = [(0.0, 1.5), (5.0, 2.5), (8.0, 1.0)];
    assert_eq!(curve, expected.map(|(at, mib)| (Some(at), Some(mib))));
    let gradients = events.iter().find(|event| event["name"] == "g");
    let by = &gradients.expect("g was written")["args"];
    assert_eq!(
        *by,
        json!({"size": 1 << 20, "node_name": "b", "node_id": 1})
    );
    assert!(case.0.path().join("out/mem.1.json").exists());
    let table = case.run_and_return_printed_lines(&["--format=csv"]);
    let row = table.lines().nth(1).expect("a row");
    assert!(row.ends_with(",2621440"), "{row}");
    let said: Value = serde_json::from_str(&case.run_and_return_printed_lines(&["--format=json"]))
        .expect("it is JSON");
    assert_eq!(
        said["astra_sim"]["ranks"][0]["peak_memory_bytes"],
        2_621_440
    );
}

#[test]
fn nodes_without_tensors_are_refused_where_memory_is_tracked() {
    let case = build_tensor_memory_job(json!({"track-local-mem": 1}), false);
    let output = case.run(&[]);
    assert_eq!(output.status.code(), Some(2));
    let error = text_from_bytes(&output.stderr);
    assert!(error.contains("node 1"), "{error}");
    assert!(error.contains("no attribute `inputs`"), "{error}");
    assert!(!case.0.path().join("local_mem_trace.0.json").exists());
    // Without gradients, the peak is 1.5 MiB.
    let output = case.run(&["--lenient"]);
    assert!(text_from_bytes(&output.stderr).contains("has no lists of tensors"));
    let said = text_from_bytes(&output.stdout);
    assert!(
        said.contains("sys[0] peak memory usage: 1.50 MB\n"),
        "{said}"
    );
    assert!(case.0.path().join("local_mem_trace.0.json").exists());
    // A run without memory tracking needs no lists of tensors.
    let plain = build_tensor_memory_job(json!({}), false).run_and_return_printed_lines(&[]);
    assert!(!plain.contains("memory"), "{plain}");
}
