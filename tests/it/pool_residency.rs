//! Tests plans that move data to remote memory if NPUs cannot hold it, and the capacity against which each kind of data
//! counts.

use super::commands::run_chakram;
use chakram::machine::PRESETS;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;
use tempfile::TempDir;

/// GPT-2 small has 124,439,808 parameters: 38,597,376 for 50,257 words and 786,432 for 1,024
/// positions with 768 numbers each, 12 layers of 7,087,872 (matrices of 12 x 768^2, and 13 x 768
/// numbers of biases and norms), and a norm of 1,536. In bf16 with Adam each parameter has 2 B of
/// weight, 2 B of gradient, and 12 B of state.
const STATE: u64 = 16 * 124_439_808;

/// Returns the preset `hiermem` with these capacities of an NPU and of the pool, in bytes.
fn write_hiermem_machine(folder: &Path, own: u64, pool: u64) -> PathBuf {
    let preset = PRESETS.iter().find(|preset| preset.name == "hiermem");
    let mut text = preset.unwrap().text.to_owned();
    for (old, new) in [
        (
            "memory_capacity = \"80 GB\"",
            format!("memory_capacity = \"{own} B\""),
        ),
        ("capacity = \"256 TB\"", format!("capacity = \"{pool} B\"")),
    ] {
        assert_eq!(text.matches(old).count(), 1, "{old}");
        text = text.replace(old, &new);
    }
    let path = folder.join("pool.toml");
    std::fs::write(&path, text).unwrap();
    path
}

const PLAN: &str = "generate gpt2-small --tokens 64 --data 2 --batch 2 --fit require --machine";

fn run_generate(machine: &Path, more: &[&str]) -> Output {
    let machine = [machine.to_str().unwrap()];
    let words: Vec<&str> = PLAN
        .split(' ')
        .chain(machine)
        .chain(more.iter().copied())
        .collect();
    run_chakram(&words)
}

fn join_output_text(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{error}")
}

const CORRECTED: [&str; 2] = ["--residency", "corrected"];

#[test]
fn the_pool_holds_state_that_does_not_fit_in_npu_memory() {
    let folder = TempDir::new().unwrap();
    let own = 1_000_000_000;
    let json = |machine: &Path| -> (Value, Option<i32>) {
        let output = run_generate(machine, &[&CORRECTED[..], &["--format", "json"]].concat());
        (
            serde_json::from_slice(&output.stdout).unwrap(),
            output.status.code(),
        )
    };
    let (report, code) = json(&write_hiermem_machine(folder.path(), own, 1 << 40));
    assert_eq!(code, Some(0));
    let bytes = |of: &Value| of.as_u64().unwrap_or_else(|| panic!("{of}"));
    let npus = report["memory"]["npus"].as_array().unwrap();
    assert_eq!((npus.len(), &report["memory"]["fits"]), (2, &true.into()));
    let mut beyond = 0;
    for npu in npus {
        let classes = &npu["peak_bytes_by_class"];
        let state = ["weights", "gradients", "optimizer"].map(|class| bytes(&classes[class]));
        assert_eq!(state.iter().sum::<u64>(), STATE);
        let peak = bytes(&npu["peak_bytes"]);
        assert!(peak > STATE);
        assert_eq!(bytes(&npu["peak_bytes_in_remote_memory"]), peak - own);
        // The two ranks share the whole pool of a machine of 256 NPUs.
        assert_eq!(bytes(&npu["capacity_bytes"]), own + (1 << 40) / 2);
        beyond += peak - own;
    }
    let pools = |report: &Value, capacity: u64| {
        let expected = format!(
            r#"[{{"first_npu": 0, "ranks": 2, "capacity_bytes": {capacity}, "peak_bytes": {beyond}}}]"#
        );
        assert_eq!(
            report["memory_pools"],
            serde_json::from_str::<Value>(&expected).unwrap()
        );
    };
    pools(&report, 1 << 40);
    // The pool has exactly the needed size, and then one byte less.
    let (report, code) = json(&write_hiermem_machine(folder.path(), own, beyond));
    assert_eq!(code, Some(0));
    pools(&report, beyond);
    let less = write_hiermem_machine(folder.path(), own, beyond - 1);
    let (report, code) = json(&less);
    assert_eq!((code, &report["memory"]["fits"]), (Some(3), &false.into()));
    assert_eq!(
        run_generate(&less, &[&CORRECTED[..], &["--dry-run"]].concat())
            .status
            .code(),
        Some(3)
    );
    let said = join_output_text(&run_generate(&less, &CORRECTED));
    assert!(said.contains("in remote memory"), "{said}");
    // Plans that never use the pool have only their NPUs' memory.
    let machine = write_hiermem_machine(folder.path(), own, 1 << 40);
    let output = run_generate(&machine, &[]);
    assert_eq!(output.status.code(), Some(3));
    // Notes may mention remote memory, but the report does not.
    let said = join_output_text(&output);
    let report = said.split("\n  !").next().unwrap_or_default();
    assert!(
        !report.contains("remote memory"),
        "{}",
        join_output_text(&output)
    );
    // A dry run gives the same numbers without a replay.
    let dry = |more: &[&str]| run_generate(&machine, &[more, &["--dry-run"]].concat());
    assert_eq!(dry(&CORRECTED).status.code(), Some(0));
    assert_eq!(dry(&[]).status.code(), Some(3));
}

/// With ZeRO 3 on two NPUs, a rank offloads half of the state, which then counts for the pool and not for the NPU's
/// memory. The peak has to fit into the NPU even if the pool has room.
#[test]
fn offloaded_state_is_in_the_pool() {
    let folder = TempDir::new().unwrap();
    let zero = ["--zero", "3", "--format", "json"];
    let json = |machine: &Path, more: &[&str]| -> (Value, Option<i32>) {
        let output = run_generate(machine, &[&zero[..], more].concat());
        let report = serde_json::from_slice(&output.stdout);
        (
            report.unwrap_or_else(|_| panic!("{}", join_output_text(&output))),
            output.status.code(),
        )
    };
    let large = write_hiermem_machine(folder.path(), 8_000_000_000, 1 << 40);
    let peak = |report: &Value| report["memory"]["npus"][0]["peak_bytes"].as_u64().unwrap();
    let (resident, _) = json(&large, &[]);
    let (report, code) = json(&large, &["--offload", "all"]);
    assert_eq!((code, &report["memory"]["fits"]), (Some(0), &true.into()));
    let own = STATE / 2;
    for npu in report["memory"]["npus"].as_array().unwrap() {
        assert_eq!(npu["offloaded_bytes"], own);
        assert_eq!(npu["capacity_bytes"], 8_000_000_000_u64);
        for class in ["weights", "gradients", "optimizer"] {
            assert_eq!(npu["peak_bytes_by_class"][class], 0);
        }
    }
    assert!(peak(&report) + own < peak(&resident) + (1 << 28));
    let pool = &report["memory_pools"][0];
    assert_eq!(
        (&pool["ranks"], &pool["peak_bytes"]),
        (&2.into(), &(2 * own).into())
    );
    let needed = peak(&report);
    let (_, code) = json(
        &write_hiermem_machine(folder.path(), needed, 2 * own),
        &["--offload", "all"],
    );
    assert_eq!(code, Some(0));
    for (npu, pool) in [(needed - 1, 1 << 40), (needed, 2 * own - 1)] {
        let small = write_hiermem_machine(folder.path(), npu, pool);
        let (report, code) = json(&small, &["--offload", "all"]);
        assert_eq!((code, &report["memory"]["fits"]), (Some(3), &false.into()));
        let dry = run_generate(&small, &["--zero", "3", "--offload", "all", "--dry-run"]);
        assert_eq!(dry.status.code(), Some(3), "{}", join_output_text(&dry));
    }
}

/// Nothing is recomputed if the pool can hold the activations. Without the pool, everything is recomputed, but the
/// activations still do not fit.
#[test]
fn recomputation_counts_the_pool() {
    let folder = TempDir::new().unwrap();
    let machine = write_hiermem_machine(folder.path(), 1_000_000_000, 1 << 40);
    let needed = ["--recompute", "as-needed", "--dry-run"];
    let output = run_generate(&machine, &[&CORRECTED[..], &needed].concat());
    assert!(
        join_output_text(&output).contains("RECOMPUTE none"),
        "{}",
        join_output_text(&output)
    );
    let output = run_generate(&machine, &needed);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        join_output_text(&output).contains("as-needed"),
        "{}",
        join_output_text(&output)
    );
}

/// Studies limited to points that fit keep those that fit with the pool, both before and after the replay.
#[test]
fn study_limits_keep_points_that_fit_with_the_remote_memory_pool() {
    let folder = TempDir::new().unwrap();
    let rows = |pool: u64| -> Vec<Value> {
        write_hiermem_machine(folder.path(), 1_000_000_000, pool);
        let study = "name = \"pool\"\nobjective = \"time\"\n[base]\nmachine = \"./pool.toml\"\nmodel = \"gpt2-small\"\n\
            tokens = 64\nplan.data = 2\nplan.batch = 2\ncompute = \"roofline\"\n[limits]\nfits = true\n[[axis]]\n\
            key = \"plan.residency\"\nvalues = [\"none\", \"corrected\"]\n";
        std::fs::write(folder.path().join("s.toml"), study).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_chakram"));
        let command = command.current_dir(folder.path());
        let into = format!("rows-{pool}");
        let output = command
            .args(["sweep", "s.toml", "-o", &into])
            .output()
            .unwrap();
        let rows = std::fs::read_to_string(folder.path().join(into).join("rows.jsonl"));
        let rows = rows.unwrap_or_else(|error| panic!("{error}: {}", join_output_text(&output)));
        rows.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let fits = |row: &Value| row["time_ps"].is_u64();
    let large = rows(1 << 40);
    assert_eq!(
        large.iter().map(fits).collect::<Vec<_>>(),
        [false, true],
        "{large:?}"
    );
    // Both points need more than half a gigabyte outside their NPU for the optimizer state alone.
    let small = rows(STATE / 2);
    assert_eq!(
        small.iter().map(fits).collect::<Vec<_>>(),
        [false, false],
        "{small:?}"
    );
}

/// A mixture of experts has the size of the one in the ASTRA-sim 2.0 paper. Each rank needs 180.3 GB: 80 GB are in its
/// NPU, and the rest, 256 x 100.3 GB = 25.7 TB for 256 ranks, is in the pool of 256 TB.
#[test]
#[ignore = "long: a step of 256 ranks"]
fn a_large_mixture_of_experts_runs_in_a_hierarchical_pool() {
    let said = generate_large_mixture_of_experts(&["--details"]);
    let line = "  beyond NPUs: at most 100.3 GB of a rank; 25.7 TB of 256.0 TB in remote memory, of 256 ranks";
    assert!(said.lines().any(|own| own == line), "{said}");
}

/// In the plan, a rank has the 80 GB of its NPU and a 256th of 256 TB: 1.08 TB.
#[test]
fn a_large_mixture_of_experts_fits_a_hierarchical_pool() {
    let said = generate_large_mixture_of_experts(&["--dry-run"]);
    assert!(said.contains("fits: 180.3 GB of 1.1 TB on "), "{said}");
}

/// Returns the output for that job, which must fit.
fn generate_large_mixture_of_experts(more: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/pool_residency/moe-1t.toml");
    let words = "--data 256 --expert 64 --zero 1 --batch 256 --machine hiermem --residency corrected --fit require";
    let model = ["generate", root.to_str().unwrap()];
    let words: Vec<&str> = model.into_iter().chain(words.split(' ')).collect();
    let output = run_chakram(&[&words, more].concat());
    let said = join_output_text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("OUT OF MEMORY"), "{said}");
    said
}
