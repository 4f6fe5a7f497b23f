//! Tests that unknown values of a capture stay unknown.

use super::rig::{convert_files, replay_files, run_program};
use crate::commands::run_chakram;
use crate::corpus::corpus_path_or_count_skip;
use crate::page::check_page_contains_report_text;
use serde_json::{Value, json};

/// Removes the arguments that the profiler writes only if shapes are recorded.
fn remove_shape_arguments(trace: &mut Value) {
    for event in trace["traceEvents"]
        .as_array_mut()
        .expect("there are events")
    {
        let Some(args) = event["args"].as_object_mut() else {
            continue;
        };
        for key in [
            "Input Dims",
            "Input type",
            "Input Strides",
            "Concrete Inputs",
        ] {
            args.remove(key);
        }
    }
}

/// In a capture without shapes, collectives take their recorded time on every network.
#[test]
fn collectives_of_unknown_size_keep_their_time() {
    let Some(captures) = corpus_path_or_count_skip("captures/interventions/ddp_accum_2/A") else {
        return;
    };
    let folder = tempfile::tempdir().expect("there is room");
    let capture = folder.path().join("capture");
    std::fs::create_dir(&capture).expect("it is new");
    for rank in 0..2 {
        let file = captures.join(format!("kineto_only.{rank}.json.zst"));
        let file = std::fs::File::open(file).expect("it is there");
        let mut trace: Value =
            serde_json::from_reader(zstd::Decoder::new(file).expect("it is zstd"))
                .expect("it is JSON");
        remove_shape_arguments(&mut trace);
        let to = capture.join(format!("kineto.{rank}.json"));
        std::fs::write(to, trace.to_string()).expect("there is room");
    }
    let job = convert_files(&capture);
    let slow = folder.path().join("slow.toml");
    let machine = run_program(&["machine", "show", "dgx-h100"]);
    let slower = machine.replace("450 GB/s", "0.1 GB/s");
    assert_ne!(slower, machine);
    std::fs::write(&slow, slower).expect("there is room");
    let machines = ["dgx-h100", &slow.display().to_string()];
    let [fast, slow] = machines.map(|machine| replay_files(job.path(), &["-m", machine]));
    assert_eq!(fast["makespan_ps"], slow["makespan_ps"]);
    let row = &fast["unknown"][0];
    assert_eq!(row["what"], "communication_size");
    // Two ranks have eight all-reduces each. The barrier has no size.
    assert_eq!(row["nodes"], 16);
    assert_eq!(row["without_time"], 0);
    let makespan = fast["makespan_ps"].as_u64().expect("it is a time") as f64;
    let captured = fast["captured_ps"].as_u64().expect("it is a time") as f64;
    assert!(
        (makespan / captured - 1.0).abs() < 0.01,
        "{makespan} {captured}"
    );
}

/// All 35 kernels and copies of the two ranks communicate, for 100 us each. The names of 28 kernels give their kind,
/// but no sizes. The other 7 are completely unknown. They all keep their recorded time, on any network and with any
/// compute model.
#[test]
fn kernels_of_communication_without_records_keep_their_time() {
    let Some(folder) = corpus_path_or_count_skip("faults/unsized-collectives") else {
        return;
    };
    let job = convert_files(&folder);
    let models = [["--compute", "recorded"], ["--compute", "roofline"]];
    for compute in models {
        let options = [&["-m", "dgx-h100"], &compute[..]].concat();
        let report = replay_files(job.path(), &options);
        let row = |what: &str| {
            let rows = report["unknown"].as_array().expect("it is a list");
            let row = rows.iter().find(|row| row["what"] == what);
            let row = row.unwrap_or_else(|| panic!("nothing about {what}: {rows:?}"));
            ["nodes", "without_time", "recorded_ps"].map(|key| row[key].as_u64().expect(key))
        };
        // The row has sums over two ranks, in ps.
        assert_eq!(row("communication"), [14, 0, 14 * 100_000_000]);
        assert_eq!(row("communication_size"), [56, 0, 56 * 100_000_000]);
        for npu in report["npus"].as_array().expect("it is a list") {
            assert_eq!(npu["time_ps"]["compute"], 0);
            assert_eq!(npu["communicating_ps"], 35 * 100_000_000_u64);
        }
        assert_eq!(report["makespan_ps"], report["captured_ps"]);
    }
}

/// Returns a capture of one rank with one stream. Operators run one after another, each with one
/// kernel. An operator consists of its name, its shapes, types and scalar values as JSON, and its
/// kernel's name. Each kernel takes `us` microseconds.
fn build_capture_of_operators(operators: &[[&str; 5]], us: u32) -> Value {
    let mut events = Vec::new();
    for (i, [name, dims, types, values, kernel]) in operators.iter().enumerate() {
        let (id, start) = (i + 1, 1000 * i as u32);
        let host = |cat: &str, name: &str, offset: u32, dur: u32, args: Value| json!({"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": 9, "ts": start + offset, "dur": dur, "args": args});
        let parse = |text: &str| serde_json::from_str::<Value>(text).expect("it is JSON");
        let inputs = json!({"External id": id, "Input Dims": parse(dims), "Input type": parse(types),
            "Concrete Inputs": parse(values)});
        let launch = json!({"External id": id, "correlation": id});
        events.push(host("cpu_op", name, 0, 20, inputs));
        events.push(host("cuda_runtime", "cudaLaunchKernel", 5, 5, launch));
        let args = json!({"External id": id, "correlation": id, "device": 0, "stream": 7});
        events.push(json!({"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": start + 30, "dur": us,
            "args": args}));
    }
    json!({"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], "traceEvents": events})
}

/// Converts a capture of one rank, and returns the folder with its traces.
fn convert_single_rank_capture(capture: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("there is room");
    let file = folder.path().join("kineto.0.json");
    std::fs::write(&file, capture.to_string()).expect("there is room");
    convert_files(folder.path())
}

/// Returns an operator's time in a report, in ps.
fn total_operator_time_in_report(report: &Value, name: &str) -> u64 {
    let operators = report["operators"].as_array().expect("there are some");
    let found = operators.iter().find(|row| row["name"] == name);
    let row = found.unwrap_or_else(|| panic!("there is no {name} in {operators:?}"));
    row["total_ps"].as_u64().expect("it is a time")
}

const BF16: &str =
    r#"["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "int", "int", "Scalar", "Scalar"]"#;

/// One sequence of 8,192 tokens with 32 heads of 128 has 4 · 8192² · 32 · 128 = 1.0995e12 FLOPs,
/// which take 1.112 ms at 989 TFLOP/s. Its bytes take 50 us. The experts' weights are unknown, so
/// their kernels take their recorded time.
#[test]
fn attention_is_priced_by_flops_and_unknown_experts_keep_recorded_time() {
    let attention = "[[8192, 32, 128], [8192, 8, 128], [8192, 8, 128], [2], [2], [], []]";
    let lengths = r#"["", "", "", "", "", "8192", "8192"]"#;
    let varlen = "flash_attn::_flash_attn_varlen_forward";
    let capture = build_capture_of_operators(
        &[
            [varlen, attention, BF16, lengths, "flash_fwd_kernel"],
            [
                "vllm::moe_forward",
                "[[4096, 7168], [4096, 256]]",
                r#"["c10::BFloat16", "float"]"#,
                r#"["", ""]"#,
                "fused_moe_kernel",
            ],
            [
                "vllm::unified_attention_with_output",
                "[[888, 8, 64], [888, 1, 64], [888, 1, 64], [888, 8, 64]]",
                r#"["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "c10::BFloat16"]"#,
                r#"["", "", "", ""]"#,
                "kernel_unified_attention_2d",
            ],
            [
                "vllm::inplace_fused_experts",
                "[[8192, 512], [8, 2048, 512], [8, 512, 1024], [8192, 2], [8192, 2]]",
                r#"["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "float", "int"]"#,
                r#"["", "", "", "", ""]"#,
                "experts",
            ],
            [
                "aten::add",
                "[[1000, 335], [1000, 335]]",
                r#"["float", "float"]"#,
                r#"["", ""]"#,
                "add",
            ],
        ],
        400,
    );
    let job = convert_single_rank_capture(&capture);
    let report = replay_files(job.path(), &["-m", "dgx-h100", "--compute", "roofline"]);
    // 1.0995e12 / 989e12 is 1,111.7 us. 2·8192·2·(2048·512 + 512·1024) = 5.15e10 FLOPs take 52.1
    // us. 3 · 1.34 MB take 1.2 us at 3.35 TB/s.
    for (name, least, most) in [
        ("flash_fwd_kernel", 1_110_000_000, 1_113_000_000),
        ("fused_moe_kernel", 400_000_000, 400_000_000),
        ("kernel_unified_attention_2d", 400_000_000, 400_000_000),
        ("experts", 52_000_000, 52_300_000),
        ("add", 1_200_000, 1_200_000),
    ] {
        let time = total_operator_time_in_report(&report, name);
        assert!((least..=most).contains(&time), "{name}: {time}");
    }
    let unknown = report["unknown"].as_array().expect("there is a row");
    assert_eq!(unknown.len(), 1, "{unknown:?}");
    assert_eq!(unknown[0]["what"], "kernel_flops");
    assert_eq!(
        (&unknown[0]["nodes"], &unknown[0]["recorded_ps"]),
        (&json!(2), &json!(800_000_000))
    );
    // The same table exists as CSV, and kernels that keep their recorded time have no unknown values.
    let folder = job.path().display().to_string();
    let csv = [
        "replay", &folder, "-m", "dgx-h100", "--format", "csv", "--table", "unknown",
    ];
    let table = run_program(&[&csv[..], &["--compute", "roofline"]].concat());
    assert!(table.contains("kernel_flops,2,0,0,800000000,"), "{table}");
    let recorded = replay_files(job.path(), &["-m", "dgx-h100"]);
    assert_eq!(recorded["unknown"], Value::Null);
}

/// Lookups read 888 rows of 64 floats from a table of 5 GB, or from slots of a cache. A lookup's time does not depend
/// on the table's size.
#[test]
fn lookups_move_the_rows_of_their_indices() {
    let table = r#"["float", "Scalar", "long int"]"#;
    let dims = "[[20000000, 64], [], [888]]";
    let cache = "[[888, 8, 64], [888, 8, 64], [100000, 16, 8, 64], [100000, 16, 8, 64], [888]]";
    let bf16 =
        r#"["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "long int"]"#;
    let capture = build_capture_of_operators(
        &[
            [
                "aten::index_select",
                dims,
                table,
                r#"["", "0", ""]"#,
                "select",
            ],
            ["aten::gather", dims, table, r#"["", "0", ""]"#, "gather"],
            [
                "_C_cache_ops::reshape_and_cache_flash",
                cache,
                bf16,
                r#"["", "", "", "", ""]"#,
                "reshape_and_cache",
            ],
            [
                "aten::index",
                "[[20000000, 64], []]",
                r#"["float", ""]"#,
                r#"["", ""]"#,
                "index",
            ],
        ],
        9,
    );
    let job = convert_single_rank_capture(&capture);
    let report = replay_files(job.path(), &["-m", "dgx-h100", "--compute", "roofline"]);
    // The lookups have 888·(2·64·4 + 8) = 461,760 B, 888·16 B, and 888·(4·8·64·2 + 8) = 3.6 MB, at
    // 3.35 TB/s. The number of rows per index is unknown.
    for (name, bytes) in [
        ("select", 461_760.0),
        ("gather", 14_208.0),
        ("reshape_and_cache", 3_644_352.0),
    ] {
        let time = total_operator_time_in_report(&report, name) as f64;
        let expected: f64 = bytes / 3.35;
        assert!((time - expected).abs() <= 1.0, "{name}: {time} {expected}");
    }
    assert_eq!(total_operator_time_in_report(&report, "index"), 9_000_000);
    assert_eq!(report["unknown"][0]["what"], "kernel_work");
}

/// In a public capture of eight ranks, embedding lookups of 8 MB take at most 9 us on V100. They take less time on
/// H100.
#[test]
fn dlrm_does_not_get_slower_on_a_faster_device() {
    let Some(capture) = corpus_path_or_count_skip("captures/gpu/dlrm_8gpu") else {
        return;
    };
    let job = convert_files(&capture);
    let report = replay_files(job.path(), &["-m", "dgx-h100", "--compute", "roofline"]);
    let operators = report["operators"].as_array().expect("there are some");
    let name = |row: &&Value| {
        let name = row["name"].as_str().unwrap_or("");
        name.contains("split_embedding_codegen_forward_unweighted")
    };
    let row = operators.iter().find(name).expect("it looks rows up");
    let mean = row["total_ps"].as_u64().zip(row["calls"].as_u64());
    let mean = mean.map_or(0, |(total, calls)| total / calls.max(1));
    assert!(mean > 0 && mean < 9_000_000, "{mean}");
    let (makespan, captured) = (&report["makespan_ps"], &report["captured_ps"]);
    assert!(
        makespan.as_u64() < captured.as_u64(),
        "{makespan} {captured}"
    );
}

/// Returns a host trace of one rank. `groups` is the JSON of its groups, and the all-reduces run in groups with the
/// given names and sizes. If `sized` is true, each all-reduce has 1 Mi floats.
fn build_host_trace_of_all_reduces(groups: &str, records: &[(&str, u64)], sized: bool) -> Value {
    let node = |id: u64,
                parent: u64,
                name: &str,
                values: Value,
                types: Value,
                mut more: Vec<Value>| {
        let number =
            |name: &str, value: u64| json!({"name": name, "type": "uint64", "value": value});
        let rf_id = if id < 3 { 0 } else { id };
        more.extend([
            number("rf_id", rf_id),
            number("scope", 0),
            number("tid", 1),
            number("fw_parent", 0),
        ]);
        json!({"id": id, "name": name, "ctrl_deps": parent, "inputs": {"values": values, "shapes": [], "types": types},
            "outputs": {"values": [], "shapes": [], "types": []}, "attrs": more})
    };
    let empty = || json!([]);
    let mut nodes = vec![
        node(
            2,
            1,
            "[pytorch|profiler|execution_trace|thread]",
            empty(),
            empty(),
            vec![],
        ),
        node(
            3,
            2,
            "## process_group:init ##",
            json!([groups]),
            json!(["String"]),
            vec![],
        ),
    ];
    for (i, (group, size)) in records.iter().enumerate() {
        let id = 10 * (i as u64 + 1);
        let text =
            |name: &str, value: &str| json!({"name": name, "type": "string", "value": value});
        let number =
            |name: &str, value: u64| json!({"name": name, "type": "uint64", "value": value});
        let mut attrs = vec![
            text("collective_name", "allreduce"),
            text("dtype", "Float"),
            text("pg_name", group),
            number("pg_size", *size),
        ];
        let (mut values, mut types) = (empty(), empty());
        if sized {
            attrs.extend([
                number("in_msg_nelems", 1 << 20),
                number("out_msg_nelems", 1 << 20),
            ]);
            values = json!([[[5, 6, 0, 1 << 20, 4, "cuda:0"]]]);
            types = json!(["GenericList[Tensor(float)]"]);
        }
        nodes.push(node(id, 2, "c10d::allreduce_", values, types, vec![]));
        nodes.push(node(
            id + 1,
            id,
            "record_param_comms",
            empty(),
            empty(),
            attrs,
        ));
        nodes.push(node(
            id + 2,
            id + 1,
            "nccl:all_reduce",
            empty(),
            empty(),
            vec![],
        ));
    }
    nodes.push(node(
        1,
        1,
        "[pytorch|profiler|execution_trace|process]",
        empty(),
        empty(),
        vec![],
    ));
    json!({"schema": "1.1.0-chakra.0.0.4", "pid": 7, "time": "", "start_ts": 1, "nodes": nodes, "finish_ts": 2})
}

/// Returns the report of a replay of a host trace. Absent ranks arrive at the same time as the
/// captured rank.
fn replay_host_trace(trace: &Value) -> Value {
    let folder = tempfile::tempdir().expect("there is room");
    std::fs::write(folder.path().join("host.0.json"), trace.to_string()).expect("there is room");
    let job = convert_files(folder.path());
    replay_files(job.path(), &["-m", "dgx-h100x2", "--absent", "mirror"])
}

/// The default group lists no ranks and contains all ranks. The list of another group is truncated.
#[test]
fn groups_have_the_members_that_follow_from_their_sizes() {
    let groups = r#"[{"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 16},
        {"pg_name": "tp", "pg_desc": "", "ranks": [0, 1, ..., 7], "group_size": 8},
        {"pg_name": "dp", "pg_desc": "", "ranks": "[0, ..., 8]", "group_size": 2}]"#;
    let report = replay_host_trace(&build_host_trace_of_all_reduces(
        groups,
        &[("0", 16), ("tp", 8), ("dp", 2)],
        true,
    ));
    assert_eq!(report["ranks"], 16);
    assert_eq!(report["captured_ps"], Value::Null, "nothing has a time");
    let rows = report["collectives"].as_array().expect("there are three");
    let mut members: Vec<_> = rows.iter().map(|row| row["members"].as_u64()).collect();
    members.sort_unstable();
    assert_eq!(members, [Some(2), Some(8), Some(16)]);
    // Without a declaration, the number of ranks comes from the records.
    let report = replay_host_trace(&build_host_trace_of_all_reduces("[]", &[("0", 16)], true));
    assert_eq!(report["ranks"], 16);
    assert_eq!(report["collectives"][0]["members"], 16);
}

/// A collective without size and duration is rejected by name. If the option allows it, the collective takes no time,
/// and the headline says so.
#[test]
fn replay_refuses_communication_without_size_and_time() {
    let trace = build_host_trace_of_all_reduces("[]", &[("0", 2), ("0", 2)], false);
    let folder = tempfile::tempdir().expect("there is room");
    std::fs::write(folder.path().join("host.0.json"), trace.to_string()).expect("there is room");
    let job = convert_files(folder.path());
    let name = job.path().display().to_string();
    let replay = ["replay", &name, "-m", "dgx-h100", "--absent", "mirror"];
    let refused = run_chakram(&replay);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(
        error.contains("2 communication nodes have neither a size nor a recorded duration"),
        "{error}"
    );
    assert!(
        error.contains("rank 0 node") && error.contains("--lower-bound"),
        "{error}"
    );
    let with = |more: &[&str]| run_program(&[&replay[..], &["--lower-bound"], more].concat());
    let text = with(&[]);
    assert!(
        text.contains("a lower bound: some nodes have neither a price nor a duration"),
        "{text}"
    );
    assert!(
        text.contains("size of 2 communication nodes: 2 without time"),
        "{text}"
    );
    let report: Value = serde_json::from_str(&with(&["--format", "json"])).expect("it is JSON");
    assert_eq!(report["lower_bound"], true);
    let csv = with(&["--format", "csv"]);
    let mut rows = csv.lines().map(|row| row.rsplit(',').next().unwrap_or(""));
    assert_eq!(
        (rows.next(), rows.next()),
        (Some("lower_bound"), Some("1")),
        "{csv}"
    );
    let page = folder.path().join("page.html");
    with(&["--html", &page.display().to_string()]);
    let page = std::fs::read_to_string(page).expect("it was written");
    assert!(page.contains("a lower bound"));
    assert!(check_page_contains_report_text(&text, &page) > 10);
    // If all sizes are known, a note says that the option has no effect.
    let sized = convert_single_rank_capture(&build_capture_of_operators(
        &[["aten::add", "[[8]]", r#"["float"]"#, "[]", "add"]],
        9,
    ));
    let sized = sized.path().display().to_string();
    let text = run_program(&["replay", &sized, "-m", "dgx-h100", "--lower-bound"]);
    assert!(
        text.contains("has no effect: all communication has a size or a recorded duration"),
        "{text}"
    );
}
