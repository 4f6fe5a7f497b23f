//! Tests text workloads of ASTRA-sim 1.0.

use super::{
    TemporaryTestFolder, expect_cli_error, list_file_names, run_for_exit_and_text, run_for_stdout,
};
use crate::corpus::corpus_path_or_count_skip;
use crate::custom::TWO_NPU_RING;

const TEXT: &str = "\
HYBRID_DATA_MODEL
2
a -1 10 ALLGATHER 64 20 NONE 0 30 ALLREDUCE 256 1
b -1 11 ALLGATHER 64 21 ALLTOALL 128 31 NONE 0 1
";

/// The number of passes with which the corpus was converted: micro.txt has one layer, and
/// micro.0.et two nodes, one for each pass.
const PASSES: &str = "2";

#[test]
fn traces_are_those_of_chakras_converter_byte_for_byte() {
    let Some(corpus) = corpus_path_or_count_skip("captures/text") else {
        return;
    };
    let folder = TemporaryTestFolder::new();
    let mut compared = 0;
    for name in list_file_names(&corpus) {
        let Some(stem) = name.strip_suffix(".txt") else {
            continue;
        };
        let workload = corpus.join(&name).display().to_string();
        let output = folder.path(stem);
        let converted = run_for_exit_and_text(&[
            "convert", "text", &workload, "--npus", "8", "--passes", PASSES, "-o", &output,
        ]);
        // Some workloads state collectives that their kind of parallelism leaves out.
        let mut said = converted.error.lines();
        assert!(
            said.all(|line| line.starts_with("note: ")),
            "{}",
            converted.error
        );
        assert_eq!(converted.code, 0);
        for rank in 0..8 {
            let file = format!("{stem}.{rank}.et");
            let theirs = std::fs::read(corpus.join(&file)).expect("the corpus is whole");
            assert_eq!(folder.read(&file), theirs, "{file}");
            compared += 1;
        }
    }
    assert_eq!(compared, 48);
}

#[test]
fn collectives_that_traces_lack_are_noted() {
    let folder = TemporaryTestFolder::new();
    let workload = folder.write_file("w.txt", TEXT.replace("HYBRID_DATA_MODEL", "DATA"));
    let output = folder.path("job");
    let converted =
        run_for_exit_and_text(&["convert", "text", &workload, "--npus", "2", "-o", &output]);
    assert_eq!(converted.code, 0);
    let note = "DATA leaves out ALLGATHER 64 of the forward pass of layer `a` and 1 more of forward passes";
    assert!(converted.error.contains(note), "{}", converted.error);
}

#[test]
fn summaries_say_what_was_converted() {
    let folder = TemporaryTestFolder::new();
    let workload = folder.write_file("w.txt", TEXT);
    let output = folder.path("job");
    // Two layers of a hybrid workload have 6 x 2 - 1 nodes per pass.
    let said = run_for_stdout(&[
        "convert", "text", &workload, "--npus", "3", "--passes", "2", "-o", &output,
    ]);
    let expected = format!(
        "{workload}: HYBRID_DATA_MODEL, 2 layers in 2 passes: 22 nodes for each of 3 NPUs: {output}.0.et to {output}.2.et\n"
    );
    assert_eq!(said, expected);
    let names = folder.names();
    assert_eq!(
        names,
        ["job.0.et", "job.1.et", "job.2.et", "job.job.json", "w.txt"]
    );
    let json = run_for_stdout(&[
        "convert",
        "text",
        &workload,
        "--npus",
        "1",
        "-o",
        &folder.path("one"),
        "--format",
        "json",
    ]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["schema"], "chakram.text_conversion.1");
    assert_eq!(json["nodes_per_rank"], 11);
}

/// One data-parallel layer runs on a ring of two at 50 GB/s with 500 ns. The layer takes 100 us forward, 150 us for the
/// gradients, and an all-reduce of 1 MB. The all-reduce is a reduce-scatter and an all-gather, each one step of 500,000
/// B, half in each direction at 25 GB/s or all at 50 GB/s: 10 us and 500 ns. 250 + 2 x 10.5 = 271 us.
#[test]
fn a_data_parallel_step_takes_its_compute_and_all_reduce_time() {
    let folder = TemporaryTestFolder::new();
    let workload = folder.write_file(
        "w.txt",
        "DATA\n1\nl -1 100 NONE 0 9 NONE 0 150 ALLREDUCE 1000000 1\n",
    );
    let machine = folder.write_file("machine.toml", TWO_NPU_RING);
    let job = folder.path("job");
    run_for_stdout(&["convert", "text", &workload, "--npus", "2", "-o", &job]);
    let report = run_for_stdout(&["replay", &job, "-m", &machine, "--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["makespan_ps"], 271_000_000);
}

#[test]
fn refused_workloads_write_no_files() {
    let folder = TemporaryTestFolder::new();
    let output = folder.path("job");
    let cut = folder.write_file("cut.txt", TEXT.replace("\n2\n", "\n3\n"));
    let error = expect_cli_error(&["convert", "text", &cut, "--npus", "2", "-o", &output]);
    assert!(
        error.contains("cut.txt, line 4") && error.contains("line 2 states 3"),
        "{error}"
    );
    let simai = folder.write_file("simai.txt", "HYBRID_TRANSFORMER_FWD_IN_BCKWD ep: 1\n1\n");
    let error = expect_cli_error(&["convert", "text", &simai, "--npus", "2", "-o", &output]);
    assert!(error.contains("chakram convert simai"), "{error}");
    let binary = folder.write_file("binary", [0xff, 0xfe, 0]);
    let error = expect_cli_error(&["convert", "text", &binary, "--npus", "2", "-o", &output]);
    assert!(error.contains("binary"), "{error}");
    let whole = folder.write_file("w.txt", TEXT);
    let many = u32::MAX.to_string();
    let error = expect_cli_error(&["convert", "text", &whole, "--npus", "0", "-o", &output]);
    assert!(error.contains("--npus"), "{error}");
    let error = expect_cli_error(&["convert", "text", &whole, "--npus", &many, "-o", &output]);
    assert!(error.contains("1..=4194304"), "{error}");
    assert_eq!(folder.names(), ["binary", "cut.txt", "simai.txt", "w.txt"]);
}
