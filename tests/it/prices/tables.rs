//! Tests machines whose times come from tables of GEMMs and from logs of nccl-tests.

use super::read_compressed_csv_rows;
use crate::commands::run_chakram;
use crate::corpus::sample_every_nth;
use chakram::machine::Machine;
use chakram::trace::Dtype;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Returns the output of `chakram calibrate` with these arguments, and writes the machine file to
/// `ours`.
fn run_calibrate(arguments: &[&str], machine: &str, ours: &Path) -> String {
    let ours = ours.to_str().expect("a plain name");
    let rest = ["--machine", machine, "-o", ours];
    let output = run_chakram(&[&["calibrate"], arguments, &rest].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn makespan_us(arguments: &[&str]) -> f64 {
    let output = run_chakram(&[arguments, &["--format", "json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    report["makespan_ps"].as_f64().expect("a number") / 1e6
}

/// Returns GEMMs in bf16: the rows, the columns, the size of the contracted dimension, and the
/// seconds.
fn measured_gemms(gpu: &str) -> Option<Vec<([u64; 3], f64)>> {
    let rows = read_compressed_csv_rows(&format!("aic_gemm_{gpu}.csv.gz"))?;
    let gemms = rows.iter().filter(|row| row["gemm_dtype"] == "bfloat16");
    let gemm = |row: &BTreeMap<String, String>| {
        let size = |name| row[name].parse().expect("a size");
        let milliseconds: f64 = row["latency"].parse().expect("a time");
        (["m", "n", "k"].map(size), milliseconds / 1e3)
    };
    Some(gemms.map(gemm).collect())
}

/// One shape in 36, about a thousand, reduces the error for the others: from 6.5 to 5.1 % on H100,
/// and from 7.8 to 5.7 % on A100. The default run covers A100.
#[test]
fn a_table_of_a_thousand_gemms_is_nearer_than_the_curve() {
    let folder = tempfile::tempdir().expect("a folder");
    let gpus = [
        ("a100", "dgx-a100", 1.0, 0.058),
        ("h100", "dgx-h100", 0.87, 0.052),
    ];
    for (gpu, preset, sustained, most) in sample_every_nth(2, gpus) {
        let Some(gemms) = measured_gemms(gpu) else {
            return;
        };
        let mut csv = "format,m,n,k,us\n".to_owned();
        let mut held_out = Vec::new();
        for (i, ([m, n, k], seconds)) in gemms.into_iter().enumerate() {
            if i % 36 == 0 {
                writeln!(csv, "bf16,{m},{n},{k},{}", seconds * 1e6).expect("memory");
            } else {
                held_out.push(([m, n, k], seconds));
            }
        }
        let table = folder.path().join(format!("{gpu}.csv"));
        std::fs::write(&table, csv).expect("it can be written");
        let ours = folder.path().join(format!("{gpu}.toml"));
        let printed = run_calibrate(
            &["--gemm", table.to_str().expect("a plain name")],
            preset,
            &ours,
        );
        print!("{printed}");
        let text = std::fs::read_to_string(&ours).expect("it is there");
        let machine = Machine::parse(&text, "ours.toml").expect("it can be read");
        let class = &machine.npu_classes()[0];
        let curves = &class.curves;
        let measured = curves.products[Dtype::Bf16 as usize]
            .as_ref()
            .expect("it is there");
        let mut curve = curves.gemm[Dtype::Bf16 as usize].expect("it has a curve");
        // The table comes from short runs, which show no slowdown under continuous load.
        curve.efficiency /= sustained;
        let peak = class
            .peaks
            .peak_rate_if_supported(Dtype::Bf16)
            .expect("it has a peak")
            .per_second();
        let memory = class.memory_bandwidth().unwrap();
        let (mut alone, mut with) = (0.0, 0.0);
        let held_out = sample_every_nth(5, held_out);
        for ([m, n, k], seconds) in &held_out {
            let time =
                curve.estimate_gemm_with_intermediate_values([1, *m, *n, *k], 2.0, peak, memory);
            alone += (time.seconds / seconds - 1.0).abs();
            let factor = measured
                .interpolate_factor([*m, *n, *k], &time)
                .unwrap_or(1.0);
            with += (factor * time.seconds / seconds - 1.0).abs();
        }
        let [alone, with] = [alone, with].map(|sum| sum / held_out.len() as f64);
        println!(
            "{gpu}: {:.2} % by the curve, {:.2} % with the table",
            100.0 * alone,
            100.0 * with
        );
        assert!(with < most && with < 0.9 * alone, "{gpu}: {alone} {with}");
        // The stated error equals the error over the other shapes.
        assert!(
            (measured.error / with - 1.0).abs() < 0.15,
            "{} {with}",
            measured.error
        );
    }
}

/// GEMMs and logs are times of single kernels and collectives, which no replay option changes.
#[test]
fn replay_options_without_measured_steps_are_refused() {
    let words = [
        "calibrate",
        "--gemm",
        "gemms.csv",
        "--machine",
        "dgx-h100",
        "-o",
        "never.toml",
    ];
    let output = run_chakram(&[&words[..], &["--compute", "roofline"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("--compute has no effect without measured steps\n  try: STEPS.csv"),
        "{error}"
    );
}

/// A matrix product takes its measured time multiplied by the slowdown under continuous load, even after a second
/// calibration.
#[test]
fn a_calibrated_gemm_takes_its_measured_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let table = at("gemms.csv");
    // One shape is that of `mlp.up` in the forward pass of the small GPT, and also that of the gradient of the input of
    // `mlp.down`. A100's curve has no slowdown under continuous load.
    std::fs::write(&table, "format,m,n,k,us\nbf16,1024,3072,768,500\n").expect("it can be written");
    let model = ["generate", "gpt2-small", "--launch", "none"];
    let of = |machine: &str| makespan_us(&[&model[..], &["--machine", machine]].concat());
    let (ours, again) = (at("ours.toml"), at("again.toml"));
    let [ours_name, again_name] = [&ours, &again].map(|path| path.to_str().expect("a plain name"));
    let inputs = ["--gemm", table.to_str().expect("a plain name")];
    let printed = run_calibrate(&inputs, "dgx-a100", &ours);
    assert!(printed.contains("1 GEMM\n"), "{printed}");
    let class = |machine: &str| {
        let machine = match machine.strip_suffix(".toml") {
            Some(_) => {
                let text = std::fs::read_to_string(machine).expect("it is there");
                Machine::parse(&text, machine)
            }
            None => Machine::load_preset(machine),
        };
        machine.expect("it is a machine").npu_classes()[0].clone()
    };
    let before = class("dgx-a100");
    let curve = before.curves.gemm[Dtype::Bf16 as usize].expect("it has a curve");
    let peak = before
        .peaks
        .peak_rate_if_supported(Dtype::Bf16)
        .expect("it has a peak")
        .per_second();
    let time = curve.predict_seconds(
        [1, 1024, 3072, 768],
        2.0,
        peak,
        before.memory_bandwidth().unwrap(),
    ) * 1e6;
    // Each of twelve blocks runs that matrix product twice, on a chain of kernels.
    let longer = of(ours_name) - of("dgx-a100");
    assert!(
        (longer - 24.0 * (500.0 - time)).abs() < 0.01,
        "{longer} {time}"
    );
    run_calibrate(&inputs, ours_name, &again);
    let [once, twice] =
        [&ours, &again].map(|path| std::fs::read_to_string(path).expect("it is there"));
    assert_eq!(once, twice, "{again_name}");
}

const LOG: &str = "\
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid   3379 on     host device  0 [0x10] NVIDIA A100
#  Rank  1 Group  0 Pid   3379 on     host device  1 [0x16] NVIDIA A100
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    70.00    0.10    0.05      0     9.00    0.10    0.05      0
        3072           768     float     sum      -1    90.00    0.10    0.05      0     9.00    0.10    0.05      0
";

/// A collective takes the time in a log instead of the preset's curve; other numbers of members
/// keep the preset's curve.
#[test]
fn a_log_of_nccl_tests_takes_the_place_of_a_curve() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let log = at("log.txt");
    std::fs::write(&log, LOG).expect("it can be written");
    let (ours, again) = (at("ours.toml"), at("again.toml"));
    let log = log.to_str().expect("a plain name");
    let printed = run_calibrate(&["--nccl", log], "dgx-a100", &ours);
    assert!(printed.contains("1 collective\n"), "{printed}");
    let of = |machine: &str, ranks: &str| {
        makespan_us(&[
            "generate",
            "collective",
            "all-reduce",
            "--size",
            "2048B",
            "--ranks",
            ranks,
            "--collectives",
            "curves",
            "--launch",
            "none",
            "--machine",
            machine,
        ])
    };
    let ours_name = ours.to_str().expect("a plain name");
    // The expected time is the linear interpolation between 1,024 and 3,072 B.
    assert!(
        (of(ours_name, "2") - 80.0).abs() < 1e-6,
        "{}",
        of(ours_name, "2")
    );
    assert_eq!(of(ours_name, "4"), of("dgx-a100", "4"));
    run_calibrate(&["--nccl", log], ours_name, &again);
    let [once, twice] =
        [&ours, &again].map(|path| std::fs::read_to_string(path).expect("it is there"));
    assert_eq!(once, twice);
    // A machine with fewer NPUs than the log has is an error.
    let wide = LOG.replace("#  Rank  1", &"#  Rank  1\n".repeat(80));
    let many = at("many.txt");
    std::fs::write(&many, wide).expect("it can be written");
    let many = many.to_str().expect("a plain name");
    let output = run_chakram(&[
        "calibrate",
        "--nccl",
        many,
        "--machine",
        "dgx-a100",
        "-o",
        ours_name,
    ]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && error.contains("81 members"),
        "{error}"
    );
}
