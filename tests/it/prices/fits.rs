//! Tests constants and corrections fitted to measured runs.

use super::scores::{COLUMNS, run_score};
use crate::commands::run_chakram;
use serde_json::Value;

/// Returns the machine file of A100s with a host that takes 1.5 times the time to launch an
/// operator.
fn build_machine_text_with_slower_launches() -> String {
    let preset =
        std::fs::read_to_string("src/hardware/machine/presets/dgx-a100.toml").expect("it is there");
    let slower = |line: &str| match line.strip_prefix("launch = \"") {
        Some(rest) => {
            let duration = rest.split('"').next().expect("a quoted duration");
            let micros = duration.strip_suffix(" us").expect("in microseconds");
            let micros: f64 = micros.parse().expect("a number");
            format!("launch = \"{} us\"\n", 1.5 * micros)
        }
        None => format!("{line}\n"),
    };
    let machine: String = preset.lines().map(slower).collect();
    assert_ne!(machine, preset, "the preset has launches of a host");
    machine
}

/// Runs are measured on a machine whose host is 1.5 times slower. Constants fitted to all runs except one predict that
/// run.
#[test]
fn constants_are_fitted_to_the_runs_of_other_folds() {
    let folder = tempfile::tempdir().expect("there is room");
    let machine = folder.path().join("slower.toml");
    std::fs::write(&machine, build_machine_text_with_slower_launches()).expect("there is room");
    let machine = machine.to_str().expect("a plain name");
    let table = |seconds: [f64; 4]| {
        let [a, b, c, d] = seconds;
        format!("width,tp,seconds\n256,1,{a}\n256,2,{b}\n512,1,{c}\n512,2,{d}\n")
    };
    let json = |csv: &str, more: &[&str]| -> Value {
        let columns = COLUMNS.replace("groups", "folds = [\"hidden\"]\ngroups");
        let (good, text) = run_score(csv, &columns, &[&["--format", "json"], more].concat());
        assert!(good, "{text}");
        serde_json::from_str(&text).expect("it is JSON")
    };
    let measured = json(&table([1.0; 4]), &["--machine", machine]);
    let seconds = [0, 1, 2, 3].map(|i| {
        measured["runs"][i]["predicted_s"]
            .as_f64()
            .expect("a number")
    });
    let csv = table(seconds);
    let mean = |scores: &Value| {
        scores["scores"]["chakram"]["mean"]
            .as_f64()
            .expect("a number")
    };
    let unfitted = json(&csv, &["--machine", "dgx-a100"]);
    let fitted = json(
        &csv,
        &["--machine", "dgx-a100", "--fit", "launch", "--folds", "2"],
    );
    assert!(
        mean(&unfitted) > 0.15 && mean(&fitted) < 0.01,
        "{unfitted} {fitted}"
    );
    for fold in [0, 1] {
        let factor = fitted["folds"][fold]["factors"]["launch"]
            .as_f64()
            .expect("a number");
        assert!((factor - 1.5).abs() < 0.02, "{fitted}");
    }
    assert_eq!(fitted["intervals"]["coverage"], 1.0);
}

/// Measured steps on a machine whose host is 1.5 times slower correct a machine file. The file then predicts deeper
/// models of the same width. Predictions do not change for models without that matrix product.
#[test]
fn measured_steps_correct_the_prices_of_a_machine() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = |name: &str| {
        let path = folder.path().join(name);
        path.to_str().expect("a plain name").to_owned()
    };
    let write = |name: &str, text: &str| {
        std::fs::write(path(name), text).expect("there is room");
        path(name)
    };
    let slower = write("slower.toml", &build_machine_text_with_slower_launches());
    let columns = COLUMNS.replace("layers = \"2\"\n", "");
    let columns = columns.replace("tensor = \"tp\"", "tensor = \"tp\"\nlayers = \"depth\"");
    let columns = write("columns.toml", &columns);
    let run = |arguments: &[&str]| {
        let output = run_chakram(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        output.stdout
    };
    let scored = |csv: &str, machine: &str| -> Value {
        let csv = write("runs.csv", csv);
        let more = [
            "--columns",
            &columns,
            "--machine",
            machine,
            "--format",
            "json",
        ];
        let text = run(&[&["score", &csv][..], &more].concat());
        serde_json::from_slice(&text).expect("it is JSON")
    };
    let sizes = [
        (256, 1, 2),
        (512, 2, 2),
        (256, 1, 8),
        (512, 2, 6),
        (128, 1, 2),
    ];
    let table = |seconds: &dyn Fn(usize) -> f64, picked: &[usize]| {
        let row = |&i: &usize| {
            let (width, tensor, layers) = sizes[i];
            format!("{width},{tensor},{layers},{}\n", seconds(i))
        };
        "width,tp,depth,seconds\n".to_owned() + &picked.iter().map(row).collect::<String>()
    };
    let predicted =
        |scores: &Value, i: usize| scores["runs"][i]["predicted_s"].as_f64().expect("a number");
    let all = table(&|_| 1.0, &[0, 1, 2, 3, 4]);
    let truth = scored(&all, &slower);
    let before = scored(&all, "dgx-a100");
    let measured = |i: usize| predicted(&truth, i);
    let steps = write("steps.csv", &table(&measured, &[0, 1]));
    let ours = path("ours.toml");
    let text = run(&[
        "calibrate",
        &steps,
        "--columns",
        &columns,
        "--machine",
        "dgx-a100",
        "-o",
        &ours,
    ]);
    assert!(
        String::from_utf8_lossy(&text).contains("2 steps"),
        "{}",
        String::from_utf8_lossy(&text)
    );
    let after = scored(&all, &ours);
    let error = |scores: &Value, i: usize| predicted(scores, i) / measured(i) - 1.0;
    for i in 0..4 {
        assert!(error(&before, i) < -0.15, "{i}: {}", error(&before, i));
        assert!(error(&after, i).abs() < 0.03, "{i}: {}", error(&after, i));
    }
    assert_eq!(predicted(&after, 4), predicted(&before, 4));
    // A second fit that starts from the first result replaces the corrections instead of compounding them.
    let again = path("again.toml");
    run(&[
        "calibrate",
        &steps,
        "--columns",
        &columns,
        "--machine",
        &ours,
        "-o",
        &again,
    ]);
    let [once, twice] =
        [&ours, &again].map(|path| std::fs::read_to_string(path).expect("it is there"));
    assert_eq!(once, twice);
}
