//! Tests measured collectives and kernels on links and NPUs whose rates differ from those measured.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn run_chakram_in_folder(folder: &Path, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chakram"));
    let output = command.current_dir(folder).args(words).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the report of an all-reduce of 512 MiB among eight NPUs that uses curves, on the machine file `text`.
fn report_all_reduce(folder: &Path, text: &str) -> Value {
    std::fs::write(folder.join("m.toml"), text).unwrap();
    let words = [
        "generate",
        "collective",
        "all-reduce",
        "--size",
        "536870912B",
        "--ranks",
        "8",
        "--machine",
        "m.toml",
        "--collectives",
        "curves",
        "--format",
        "json",
    ];
    serde_json::from_str(&run_chakram_in_folder(folder, &words)).unwrap()
}

/// The measured times are 2111 us for 512 MiB and 578.7 us for 128 MiB. A byte takes 1532.3 us / 384 MiB, so 512 MiB
/// take 1532.3 x 4/3 = 2043.0667 us, after 67.9333 us of start-up. The start-up consists of 2 x 7 steps over two links.
const TRANSFER: f64 = 1532.3 * 4.0 / 3.0;
const START: f64 = 2111.0 - TRANSFER;

#[test]
fn measured_collective_times_change_with_bandwidth_and_latency_of_links() {
    let dir = tempfile::tempdir().unwrap();
    let preset = run_chakram_in_folder(dir.path(), &["machine", "show", "dgx-h100"]);
    let micros = |text: &str| {
        report_all_reduce(dir.path(), text)["makespan_ps"]
            .as_f64()
            .unwrap()
            / 1e6
    };
    assert_eq!(micros(&preset), 2111.0);
    let nvlink = "latency = \"400 ns\" ";
    assert!(preset.contains(nvlink));
    for (from, to, expected) in [
        (
            "bandwidth = \"450 GB/s\" ",
            "bandwidth = \"225 GB/s\" ",
            START + 2.0 * TRANSFER,
        ),
        (
            "bandwidth = \"450 GB/s\" ",
            "bandwidth = \"45 GB/s\" ",
            START + 10.0 * TRANSFER,
        ),
        (
            "bandwidth = \"450 GB/s\" ",
            "bandwidth = \"900 GB/s\" ",
            START + TRANSFER / 2.0,
        ),
        // The time is 28 times 3.6 us more, or 28 times 400 ns less.
        (nvlink, "latency = \"4 us\" ", 2111.0 + 28.0 * 3.6),
        (nvlink, "latency = \"0 ns\" ", 2111.0 - 28.0 * 0.4),
    ] {
        let found = micros(&preset.replacen(from, to, 1));
        assert!(
            (found - expected).abs() < 1e-3,
            "{to}: {found} and not {expected}"
        );
    }
}

#[test]
fn collective_times_derived_from_other_links_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let preset = run_chakram_in_folder(dir.path(), &["machine", "show", "dgx-h100"]);
    let measured = report_all_reduce(dir.path(), &preset);
    assert_eq!(measured["collectives"][0]["derived_from"], Value::Null);
    let half = preset.replacen("bandwidth = \"450 GB/s\" ", "bandwidth = \"225 GB/s\" ", 1);
    let derived = report_all_reduce(dir.path(), &half);
    let links = &derived["collectives"][0]["derived_from"];
    assert_eq!(links["bandwidth_bytes_per_s"], 450e9);
    assert_eq!(links["machine_bandwidth_bytes_per_s"], 225e9);
    let warnings = derived["warnings"].to_string();
    let said = "times of collectives along `nvlink` are derived: they were measured at a bandwidth of 450 \
                GB/s, and scaled to 225 GB/s";
    assert!(warnings.contains(said), "{warnings}");
    // A file that does not state its measured links was measured on its own links.
    let own = half.lines().filter(|line| !line.starts_with("measured_at"));
    let own = report_all_reduce(dir.path(), &own.collect::<Vec<_>>().join("\n"));
    assert_eq!(own["makespan_ps"], 2_111_000_000u64);
    assert_eq!(own["collectives"][0]["derived_from"], Value::Null);
}

/// If a file does not state its measured links, a study's axis edits the measured file.
#[test]
fn sweeps_of_links_move_measured_collectives() {
    let dir = tempfile::tempdir().unwrap();
    let preset = run_chakram_in_folder(dir.path(), &["machine", "show", "dgx-h100"]);
    let silent = preset
        .lines()
        .filter(|line| !line.starts_with("measured_at"));
    std::fs::write(
        dir.path().join("m.toml"),
        silent.collect::<Vec<_>>().join("\n"),
    )
    .unwrap();
    let generate = [
        "generate",
        "collective",
        "all-reduce",
        "--size",
        "536870912B",
        "--ranks",
        "8",
        "-o",
        "ar/job",
    ];
    run_chakram_in_folder(dir.path(), &generate);
    let study = "name = \"links\"\n[base]\ntrace = \"ar\"\ncollectives = \"curves\"\n[[axis]]\nkey = \"machine\"\n\
                 values = [\"dgx-h100\", \"m.toml\"]\n[[axis]]\nkey = \"machine.dimension.nvlink.bandwidth\"\n\
                 values = [\"225 GB/s\", \"450 GB/s\", \"900 GB/s\"]\n";
    std::fs::write(dir.path().join("s.toml"), study).unwrap();
    run_chakram_in_folder(dir.path(), &["sweep", "s.toml", "-o", "out"]);
    let rows = std::fs::read_to_string(dir.path().join("out/rows.jsonl")).unwrap();
    let times: Vec<f64> = (rows.lines())
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["time_ps"]
                .as_f64()
                .unwrap()
                / 1e6
        })
        .collect();
    let one = [START + 2.0 * TRANSFER, 2111.0, START + TRANSFER / 2.0];
    for (found, expected) in times.iter().zip(one.iter().chain(&one)) {
        assert!((found - expected).abs() < 1e-3, "{times:?}");
    }
    assert_eq!(times.len(), 6);
}
