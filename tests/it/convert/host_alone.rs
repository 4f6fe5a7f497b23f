//! Tests host traces of every schema, without Kineto: no communication is lost, and operators have
//! times that correspond to their work.

use super::rig::{ConversionResult, find_integer_attribute, read_json_file, try_convert};
use crate::commands::run_chakram;
use crate::corpus::{corpus_path_or_count_skip, sample_every_nth};
use chakram::convert::{ConvertOptions as Conversion, HostKinetoMatchMethod};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Counts a host trace's operators that request communication, with a plain parser.
fn count_communication_requests(path: &Path) -> Option<u64> {
    let file = read_json_file(path)?;
    let nodes = file["nodes"].as_array()?.iter();
    let asks = nodes.filter(|node| {
        let name = node["name"].as_str().unwrap_or("");
        name.starts_with("c10d::")
    });
    Some(asks.count() as u64)
}

/// Returns the number of a rank's calls, including calls that could not be decoded.
fn count_communication_calls_of_rank(job: &ConversionResult, i: usize) -> u64 {
    let rank = &job.summary.ranks[i];
    let (collectives, sends, receives) = rank.calls;
    collectives + sends + receives
}

/// Tests one file of each schema that occurs in public captures.
#[test]
fn host_traces_of_every_schema_convert_alone() {
    let Some(gpu) = corpus_path_or_count_skip("captures/gpu") else {
        return;
    };
    for (file, schema) in [
        ("linear_pair/host.0.json.zst", "1.0.1"),
        (
            "chakra_json/1.0.2-chakra.0.0.4.json.zst",
            "1.0.2-chakra.0.0.4",
        ),
        ("resnet_1gpu_103_host/host.0.json.zst", "1.0.3-chakra.0.0.4"),
        ("hf_gpt2_host/host.0.json.zst", "1.1.0-chakra.0.0.4"),
        ("pt2_host/pt2_et.json.zst", "1.1.1-chakra.0.0.4"),
    ] {
        let path = gpu.join(file);
        let job = try_convert(std::slice::from_ref(&path), &Conversion::default())
            .unwrap_or_else(|e| panic!("{file}: {e}"));
        let rank = &job.summary.ranks[0];
        assert_eq!(
            (rank.method, &*rank.schema),
            (HostKinetoMatchMethod::HostAlone, schema),
            "{file}"
        );
        assert_eq!(
            count_communication_calls_of_rank(&job, 0),
            count_communication_requests(&path).expect("it is JSON"),
            "{file}"
        );
        assert_eq!(rank.never_ran, [""; 0], "{file}");
        let out = tempfile::tempdir().expect("there is room");
        let prefix = out.path().join("job").display().to_string();
        let input = path.display().to_string();
        let converted = run_chakram(&["convert", "pytorch", &input, "-o", &prefix]);
        assert!(converted.status.success(), "{file}: {converted:?}");
        let replayed = run_chakram(&[
            "replay",
            &prefix,
            "--machine",
            "dgx-a100",
            "--compute",
            "roofline",
            "--absent",
            "mirror",
            "--format",
            "json",
        ]);
        let error = String::from_utf8_lossy(&replayed.stderr);
        assert!(replayed.status.success(), "{file}: {error}");
        let report: Value = serde_json::from_slice(&replayed.stdout).expect("it is JSON");
        let makespan = report["makespan_ps"].as_u64().unwrap_or(0);
        println!("{file}: {} nodes, {makespan} ps", rank.written.nodes);
        assert!(makespan > 0, "{file}");
    }
}

/// Without their Kineto traces, captures of whole jobs give the same amount of communication as
/// with them, or an error that states the reason.
#[test]
fn host_traces_of_real_jobs_lose_no_communication() {
    let Some(captures) = corpus_path_or_count_skip("captures") else {
        return;
    };
    let (mut held, mut refused) = (0, Vec::new());
    let jobs = sample_every_nth(
        5,
        [
            "gpu/dlrm_8gpu",
            "pytorch/comm_zoo",
            "pytorch/ddp_gpt",
            "pytorch/ddp_resnet18_3steps",
            "pytorch/fsdp2_llama",
            "pytorch/fsdp_tp_llama",
            "pytorch/pp_1f1b",
            "pytorch/pp_gpipe",
            "pytorch/t231_ddp_gpt",
            "pytorch/t231_moe_a2a",
            "pytorch/tpsp_mlp",
        ],
    );
    let most = jobs.len() * 8 / 11;
    for name in jobs {
        let files = |what: &str| -> Vec<PathBuf> {
            let file = |rank| captures.join(format!("{name}/{what}.{rank}.json.zst"));
            (0..).map(file).take_while(|path| path.is_file()).collect()
        };
        let (hosts, kinetos) = (files("host"), files("kineto"));
        assert!(!hosts.is_empty(), "{name}");
        let alone = match try_convert(&hosts, &Conversion::default()) {
            Ok(alone) => alone,
            Err(error) => {
                assert!(error.to_string().contains("is unknown"), "{name}: {error}");
                refused.push(name);
                continue;
            }
        };
        for (i, path) in hosts.iter().enumerate() {
            if let Some(count) = count_communication_requests(path) {
                assert_eq!(
                    count_communication_calls_of_rank(&alone, i),
                    count,
                    "{name} rank {i}"
                );
            }
        }
        let both: Vec<PathBuf> = hosts.into_iter().chain(kinetos).collect();
        let both =
            try_convert(&both, &Conversion::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(
            alone.summary.collectives, both.summary.collectives,
            "{name}"
        );
        assert_eq!(alone.summary.messages, both.summary.messages, "{name}");
        held += 1;
    }
    println!("{held} held, refused {refused:?}");
    assert!(held >= most, "{refused:?}");
}

/// `PREFIX_eg.json` of the ASTRA-sim 2.0 paper (Snippet 1) was written by the observer when it was
/// called ExecutionGraphObserver. Thread names contain that word, and the file's name contains the
/// benchmark's process and time.
#[test]
fn execution_graphs_are_host_traces() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder
        .path()
        .join("benchmark_result_2244333_1691065899_eg.json");
    let node = |id: u32, parent: u32, name: &str, tensors: &str, shapes: &str, types: &str| {
        format!(
            r#"{{"name": "{name}", "id": {id}, "rf_id": {id}, "parent": {parent}, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1,
            "fw_tid": 0, "op_schema": "", "inputs": [{tensors}], "input_shapes": [{shapes}], "input_types": [{types}],
            "outputs": [], "output_shapes": [], "output_types": []}}"#
        )
    };
    let (a, b) = (r#"[1,2,0,32,4,"cpu"]"#, r#"[3,4,0,64,4,"cpu"]"#);
    let nodes = [
        node(
            1,
            1,
            "[pytorch|profiler|execution_graph|process]",
            "",
            "",
            "",
        ),
        node(
            2,
            1,
            "[pytorch|profiler|execution_graph|thread]",
            "",
            "",
            "",
        ),
        node(
            5,
            2,
            "aten::mm",
            &format!("{a},{b}"),
            "[4,8],[8,8]",
            r#""Tensor(float)","Tensor(float)""#,
        ),
    ];
    let text = format!(
        r#"{{"schema": "1.0.1", "pid": 7, "start_ts": 1, "nodes": [{}], "finish_ts": 2}}"#,
        nodes.join(",")
    );
    std::fs::write(&path, text).expect("there is room");
    let job = try_convert(&[path], &Conversion::default()).unwrap_or_else(|e| panic!("{e}"));
    let [rank] = &job.summary.ranks[..] else {
        panic!("{:?}", job.summary.ranks);
    };
    assert_eq!(
        (rank.rank, rank.method),
        (0, HostKinetoMatchMethod::HostAlone)
    );
    let named = job.traces[0].nodes.iter().filter(|n| n.name == "aten::mm");
    // The matrix product has 2 · 4 · 8 · 8 FLOPs.
    let flops: Vec<_> = named
        .map(|node| find_integer_attribute(node, "num_ops"))
        .collect();
    assert_eq!(flops, [Some(512)]);
}

/// Files merged by Chakra's linker contain kernels as copies of host nodes. They are rejected with an error that names
/// the linker.
#[test]
fn files_of_chakras_linker_are_refused_naming_it() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("linked.json");
    let node = |id: u32, more: &str| {
        format!("{{\"id\": {id}, \"name\": \"aten::mm\", \"ctrl_deps\": 1, \"attrs\": []{more}}}")
    };
    let linked = r#", "cat": "kernel", "ph": "X", "inclusive_dur": 5, "exclusive_dur": 5, "ts": 7.5, "stream": 7"#;
    let text = format!(
        "{{\"schema\": \"1.0.2-chakra.0.0.4\", \"nodes\": [{}, {}]}}",
        node(2, ""),
        node(3, linked)
    );
    std::fs::write(&path, text).expect("there is room");
    let error = try_convert(&[path], &Conversion::default())
        .err()
        .expect("it is refused");
    let error = error.to_string();
    for part in [
        "linked.json, record 1",
        "chakra_trace_link",
        "try: pass the two files",
    ] {
        assert!(error.contains(part), "no {part:?} in: {error}");
    }
}
