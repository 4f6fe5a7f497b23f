//! Tests operator graphs of models from `export_graph.py`: their FLOPs and bytes equal the values
//! of a run (`export/make.py`) exactly.

use super::{TemporaryTestFolder, run_for_stdout};
use crate::convert::rig::{find_integer_attribute, on_host, try_convert};
use chakram::convert::{ConvertOptions, HostKinetoMatchMethod};
use std::path::Path;
use std::process::Command;

/// Returns the FLOPs that PyTorch's counter adds for causal attention although they are not
/// executed: two products over the masked pairs of tokens, for this many rows of heads that are 32
/// wide.
const fn count_unexecuted_masked_flops(rows: i64, tokens: i64) -> i64 {
    2 * 2 * rows * 32 * (tokens * (tokens - 1) / 2)
}

/// The bytes of the transformer's embedding table that are not read: the table has 1,024 words of 128 numbers, and only
/// 2 x 32 words are read.
const NOT_READ: i64 = (1024 - 2 * 32) * 128 * 4;

/// The model, its number of operators, and its FLOPs and bytes as `make.py` prints them, less the work that no kernel
/// does.
const MODELS: [(&str, usize, i64, i64); 5] = [
    ("perceptron", 5, 1_212_416, 219_944),
    ("residual", 21, 18_297_344, 1_380_208),
    (
        "transformer",
        41,
        69_206_016 - 2 * count_unexecuted_masked_flops(2 * 4, 32),
        5_523_968 - NOT_READ,
    ),
    (
        "vision",
        27,
        13_388_544 - count_unexecuted_masked_flops(3 * 3, 17),
        1_410_976,
    ),
    ("upward", 10, 618_496, 230_160),
];

#[test]
fn exported_models_cost_what_their_run_did() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/sources/export");
    for (model, operators, flops, bytes) in MODELS {
        let path = folder.join(format!("{model}.json.zst"));
        let job = try_convert(&[path], &ConvertOptions::default())
            .unwrap_or_else(|e| panic!("{model}: {e}"));
        let (rank, nodes) = (&job.summary.ranks[0], &job.traces[0].nodes);
        assert_eq!(rank.method, HostKinetoMatchMethod::HostAlone, "{model}");
        // The first node declares groups.
        assert_eq!(nodes.len(), operators + 1, "{model}");
        let sum = |name| -> i64 {
            nodes
                .iter()
                .filter_map(|node| find_integer_attribute(node, name))
                .sum()
        };
        assert_eq!(
            (sum("num_ops"), sum("tensor_size")),
            (flops, bytes),
            "{model}"
        );
        for node in &nodes[1..] {
            let costs = find_integer_attribute(node, "num_ops").unwrap_or(0)
                + find_integer_attribute(node, "tensor_size").unwrap_or(0);
            assert_eq!(on_host(node), costs == 0, "{model}: {}", node.name);
        }
    }
}

/// A graph is a job of one rank, and a machine gives the times of its kernels.
#[test]
fn an_exported_model_replays() {
    let folder = TemporaryTestFolder::new();
    let job = folder.path("job");
    let graph = format!(
        "{}/tests/it/sources/export/transformer.json.zst",
        env!("CARGO_MANIFEST_DIR")
    );
    run_for_stdout(&["convert", "auto", &graph, "-o", &job]);
    let makespan = |machine: &str| -> u64 {
        let report = run_for_stdout(&[
            "replay",
            &job,
            "-m",
            machine,
            "--compute",
            "roofline",
            "--format",
            "json",
        ]);
        let report: serde_json::Value = serde_json::from_str(&report).expect("it is JSON");
        report["outcome"]["makespan_ps"]
            .as_u64()
            .or_else(|| report["makespan_ps"].as_u64())
            .unwrap_or_else(|| panic!("{report}"))
    };
    let (older, newer) = (makespan("dgx-a100"), makespan("dgx-h100"));
    assert!(newer > 0 && newer < older, "{newer} ps, {older} ps");
}

/// Without PyTorch the script says what to install, and leaves no file.
#[test]
fn the_export_script_says_what_to_install_without_pytorch() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("converters/pytorch/export_graph.py");
    let folder = TemporaryTestFolder::new();
    let model = folder.write_file("model.pt2", "");
    let mut python = Command::new("python3");
    python
        .args(["-S", "-B"])
        .arg(script)
        .args([&model, "-o", &folder.path("graph.json")]);
    // The folder has no package `torch`, and a Python without its packages has none either.
    let Ok(output) = python.env("PYTHONPATH", folder.path("")).output() else {
        println!("SKIPPED: export_graph.py, for there is no python3");
        return;
    };
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("No module named 'torch'\n  try: pip install torch"),
        "{error}"
    );
    assert_eq!(folder.names(), ["model.pt2"]);
}
