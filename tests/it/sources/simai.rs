//! Tests text workloads of SimAI: the nodes of a pass, its volumes by group and its time, derived
//! by hand.

use super::{TemporaryTestFolder, expect_cli_error, run_for_exit_and_text, run_for_stdout};
use serde_json::Value;

/// The layers as AICB writes them. With 8 NPUs, T = 2 and E = 2, D is 4 and each expert has 2
/// replicas.
const TEXT: &str = "\
HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 1 ga: 1 all_gpus: 8 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0
3
grad_gather\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLGATHER\t8000\t100
attention\t-1\t3000\tALLGATHER\t6000\t4000\tREDUCESCATTER\t6000\t5000\tNONE\t0\t100
moe\t-1\t7000\tALLTOALL_EP\t10000\t0\tALLTOALL_EP\t10000\t9000\tALLREDUCE_DP_EP\t12000\t100
";

/// A node: its id, its dependencies, and either its nanoseconds or its kind, group and bytes.
type TraceNodeFromSimai = (u64, Vec<u64>, Result<u64, (u64, String, u64)>);

/// Returns the nodes of a rank's trace after the declaration of groups.
fn read_rank_nodes(
    folder: &TemporaryTestFolder,
    prefix: &str,
    rank: u32,
) -> Vec<TraceNodeFromSimai> {
    let lines = folder.path("lines.jsonl");
    let trace = folder.path(&format!("{prefix}.{rank}.et"));
    run_for_stdout(&["convert", "trace", &trace, "-o", &lines]);
    let text = String::from_utf8(folder.read("lines.jsonl")).unwrap();
    let number = |value: &Value| match value.as_u64() {
        Some(number) => number,
        None => value.as_str().map_or(0, |text| text.parse().unwrap()),
    };
    let mut told = Vec::new();
    for line in text.lines() {
        let node: Value = serde_json::from_str(line).unwrap();
        let id = number(&node["id"]);
        if id < 2 {
            continue;
        }
        let deps = node["data_deps"].as_array().cloned().unwrap_or_default();
        let attributes = node["attr"].as_array().cloned().unwrap_or_default();
        let value = |name: &str| {
            let attribute = attributes.iter().find(|a| a["name"] == name)?;
            let mut values = attribute.as_object()?.iter();
            let (_, value) = values.find(|(key, _)| key.ends_with("_val"))?;
            Some(value.clone())
        };
        let what = match value("comm_size") {
            Some(bytes) => Err((
                value("comm_type").map_or(0, |kind| number(&kind)),
                value("pg_name").unwrap().as_str().unwrap().to_owned(),
                number(&bytes),
            )),
            None => Ok(value("duration_ns")
                .map_or_else(|| number(&node["duration_micros"]) * 1000, |ns| number(&ns))),
        };
        told.push((id, deps.iter().map(number).collect(), what));
    }
    told
}

#[test]
fn a_pass_follows_the_training_loop_and_sends_bytes_to_its_groups() {
    let folder = TemporaryTestFolder::new();
    let file = folder.write_file("moe.txt", TEXT);
    let said = run_for_stdout(&[
        "convert",
        &file,
        "-o",
        &folder.path("job"),
        "--",
        "--passes",
        "2",
    ]);
    assert!(
        said.contains("tensor 2 x pipeline 1 x data 4, expert 2"),
        "{said}"
    );
    // Rank 5 has t = 1 and position 2 in its data-parallel group, so e = 0 and x = 1. Groups 1-4 are tensor parallel,
    // with rank 5 in the third. Groups 5-6 are data parallel, with rank 5 in the second. Groups 7-10 are expert groups,
    // with rank 5 in the fourth, {5, 7}. Groups 11-14 are replica groups, with rank 5 in the second, {1, 5}. An
    // all-gather's size is that of one member's part: 6000 / 2 and 8000 / 4.
    let comm = |kind, group: &str, bytes| Err((kind, group.to_owned(), bytes));
    let (reduce, gather, exchange, scatter) = (0, 2, 6, 7);
    let pass: [TraceNodeFromSimai; 14] = [
        (2, vec![], Ok(1)),
        (3, vec![2], Ok(3000)),
        (4, vec![3], comm(gather, "3", 3000)),
        (5, vec![4], Ok(7000)),
        (6, vec![5], comm(exchange, "10", 10000)),
        // In the backward pass there is no compute before the all-to-all, and no node of this pass
        // waits for the reduction.
        (7, vec![6], comm(exchange, "10", 10000)),
        (8, vec![7], Ok(9000)),
        (9, vec![8], comm(reduce, "12", 12000)),
        (10, vec![8], Ok(4000)),
        (11, vec![10], comm(scatter, "3", 6000)),
        (12, vec![11], Ok(5000)),
        (13, vec![12], Ok(1)),
        (14, vec![13], Ok(1)),
        (15, vec![14], comm(gather, "6", 2000)),
    ];
    let told = read_rank_nodes(&folder, "job", 5);
    assert_eq!(told[..14], pass);
    // In the next pass, each layer waits for its own collective: node 15 or node 9.
    assert_eq!(told[14], (16, vec![14, 15], Ok(1)));
    assert_eq!(told[17], (19, vec![18, 9], Ok(7000)));
    assert_eq!(told.len(), 28);
    let job = String::from_utf8(folder.read("job.job.json")).unwrap();
    let roles = "tensor 1-4, data 5-6, expert 7-10, expert-data 11-14";
    assert!(job.contains(roles), "{job}");
}

#[test]
fn one_npu_takes_the_sum_of_all_times() {
    let folder = TemporaryTestFolder::new();
    let text = TEXT.replace("group: 2 ep: 2", "group: 1 ep: 1");
    let file = folder.write_file("alone.txt", text);
    let job = folder.path("job");
    run_for_stdout(&["convert", "simai", &file, "--npus", "1", "-o", &job]);
    let report = run_for_stdout(&["replay", &job, "-m", "dgx-h100", "--format", "json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    // The makespan is (1 + 1 + 1) + (3000 + 4000 + 5000) + (7000 + 0 + 9000) ns.
    assert_eq!(report["makespan_ps"], 28_003_000);
}

#[test]
fn layers_behind_a_checkpoint_are_computed_again() {
    let folder = TemporaryTestFolder::new();
    // With a checkpoint at layer 0, layers 0 and 1 run again before the backward pass of layer 2.
    let text = "HYBRID_TRANSFORMER_FWD_IN_BCKWD checkpoints: 1 0 checkpoint_initiates: 1 2\n3\n\
                a -1 1 NONE 0 10 NONE 0 0 NONE 0 1\n\
                b -1 2 NONE 0 20 NONE 0 0 NONE 0 1\n\
                c -1 3 NONE 0 30 NONE 0 0 NONE 0 1\n";
    let file = folder.write_file("again.txt", text);
    run_for_stdout(&[
        "convert",
        "simai",
        &file,
        "--npus",
        "1",
        "-o",
        &folder.path("job"),
    ]);
    let times: Vec<u64> = read_rank_nodes(&folder, "job", 0)
        .into_iter()
        .map(|node| node.2.unwrap())
        .collect();
    assert_eq!(times, [1, 2, 3, 1, 2, 30, 20, 10]);
}

#[test]
fn parallelism_degrees_that_do_not_fit_the_npus_are_refused() {
    let folder = TemporaryTestFolder::new();
    let file = folder.write_file("moe.txt", TEXT);
    let output = folder.path("job");
    let error = expect_cli_error(&["convert", "simai", &file, "--npus", "6", "-o", &output]);
    for part in ["6 NPUs", "a multiple of 4", "try: --npus"] {
        assert!(error.contains(part), "{error}");
    }
    let open = folder.write_file("open.txt", TEXT.replace("all_gpus: 8 ", ""));
    let error = expect_cli_error(&["convert", &open, "-o", &output]);
    assert!(error.contains("no all_gpus"), "{error}");
    assert_eq!(folder.names(), ["moe.txt", "open.txt"]);
}

/// Layers with collectives of every role, a broadcast, and a checkpoint.
const MIXED: &str = "\
HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 3 pp: 2 vpp: 1 ga: 1 all_gpus: 24 checkpoints: 1 0 checkpoint_initiates: 1 2
3
first -1 3000 ALLGATHER 6000 4000 REDUCESCATTER 6000 5000 BROADCAST 4000 100
moe -1 7000 ALLTOALL_EP 10000 1000 ALLTOALL_EP 10000 9000 ALLREDUCE_DP_EP 12000 100
last -1 2000 BROADCAST 3000 500 NONE 0 800 BROADCAST_DP_EP 640 100
";

#[test]
fn a_workload_in_memory_has_the_report_of_its_traces() {
    let folder = TemporaryTestFolder::new();
    for (number, text) in [TEXT, MIXED].into_iter().enumerate() {
        let file = folder.write_file(&format!("{number}.txt"), text);
        for npus in ["24", "48"] {
            let job = folder.path(&format!("job{number}.{npus}"));
            let given = ["convert", "simai", &file, "--npus", npus, "--passes", "2"];
            run_for_stdout(&[&given[..], &["-o", &job]].concat());
            for table in ["nodes", "npus", "collectives"] {
                let how = ["-m", "dgx-h100x6", "--format", "csv", "--table", table];
                let direct = run_for_exit_and_text(&[&given[..], &how].concat());
                let of_traces = run_for_exit_and_text(&[&["replay", &job], &how[..]].concat());
                assert_eq!((direct.code, direct.error), (0, of_traces.error));
                assert_eq!(direct.out, of_traces.out, "{text}");
            }
        }
    }
}

#[test]
fn options_of_a_replay_need_a_machine() {
    let folder = TemporaryTestFolder::new();
    let file = folder.write_file("moe.txt", TEXT);
    let job = folder.path("job");
    let error = expect_cli_error(&["convert", "simai", &file, "-o", &job, "--details"]);
    assert!(
        error.contains("--details is for a replay; add --machine"),
        "{error}"
    );
    let error = expect_cli_error(&["convert", "simai", &file, "-o", &job, "--format", "csv"]);
    assert!(error.contains("--format is for a replay"), "{error}");
    let error = expect_cli_error(&["convert", "simai", &file, "-z", "zst", "-m", "dgx-h100"]);
    assert!(error.contains("--output"), "{error}");
    assert_eq!(folder.names(), ["moe.txt"]);
}

/// SimAI skips unknown words, but a misspelt degree would silently become 1.
#[test]
fn misspelt_keys_are_refused_and_other_words_noted() {
    let folder = TemporaryTestFolder::new();
    let output = folder.path("job");
    let misspelt = folder.write_file("misspelt.txt", TEXT.replace("NPU_group", "NPU_grup"));
    let error = expect_cli_error(&["convert", "simai", &misspelt, "-o", &output]);
    assert!(
        error.contains("did you mean `model_parallel_NPU_group:`?"),
        "{error}"
    );
    let other = folder.write_file("other.txt", TEXT.replace("ga: 1", "ga: 2"));
    let converted = run_for_exit_and_text(&["convert", "simai", &other, "-o", &output]);
    assert_eq!(converted.code, 0);
    assert!(
        converted.error.starts_with("note: ") && converted.error.contains("`ga: 2` has no effect"),
        "{}",
        converted.error
    );
}
