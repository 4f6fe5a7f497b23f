//! Tests scores of predictions, and tables without usable runs.

use crate::commands::run_chakram;
use crate::corpus::corpus_path_or_count_skip;
use serde_json::Value;

pub const COLUMNS: &str = "\
measured = \"seconds\"
unit = \"s\"
machine = \"dgx-a100\"
groups = [\"hidden\"]

[columns]
hidden = \"width\"
tensor = \"tp\"

[fixed]
layers = \"2\"
heads = \"8\"
sequence = \"128\"
vocabulary = \"1024\"
batch = \"2\"
";

pub fn run_score(csv: &str, columns: &str, more: &[&str]) -> (bool, String) {
    let folder = tempfile::tempdir().expect("there is room");
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("there is room");
        path.to_str().expect("a plain name").to_owned()
    };
    let (csv, columns) = (path("runs.csv", csv), path("columns.toml", columns));
    let output = run_chakram(&[&["score", &csv, "--columns", &columns][..], more].concat());
    let text = if output.status.success() {
        &output.stdout
    } else {
        &output.stderr
    };
    (
        output.status.success(),
        String::from_utf8_lossy(text).into_owned(),
    )
}

/// A machine file that a columns file names is found in the same folder, from any working directory.
#[test]
fn machines_are_found_beside_the_columns() {
    let folder = tempfile::tempdir().expect("there is room");
    let preset = include_str!("../../../src/hardware/machine/presets/dgx-a100.toml");
    let slow = preset.replace("launch = \"117 us\"", "launch = \"1170 us\"");
    assert_ne!(slow, preset);
    std::fs::write(folder.path().join("slow.toml"), slow).expect("there is room");
    let seconds = |columns: &str| {
        let at = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("there is room");
            path.to_str().expect("a plain name").to_owned()
        };
        let runs = at("runs.csv", "width,tp,seconds\n256,1,1\n");
        let columns = at("columns.toml", columns);
        let output = run_chakram(&["score", &runs, "--columns", &columns, "--format", "json"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let scores: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        scores["runs"][0]["predicted_s"].as_f64().expect("a number")
    };
    let of = |machine: &str| COLUMNS.replace("\"dgx-a100\"", machine);
    let when = format!("{COLUMNS}[when.width]\n256 = {{ machine = \"slow.toml\" }}\n");
    let (preset, slow) = (seconds(COLUMNS), seconds(&of("\"slow.toml\"")));
    assert!(slow > 3.0 * preset, "{slow} {preset}");
    assert_eq!(seconds(&when), slow);
    let fixed = COLUMNS.replace("[fixed]", "[fixed]\nmachine = \"slow.toml\"");
    assert_eq!(seconds(&fixed), slow);
}

/// A run measured exactly as predicted has no error, whatever other columns the table has.
#[test]
fn scores_are_errors_of_predictions() {
    let first = run_score(
        "width,tp,seconds\n256,1,1\n256,2,2\n",
        COLUMNS,
        &["--format", "json"],
    );
    assert!(first.0, "{}", first.1);
    let first: Value = serde_json::from_str(&first.1).expect("it is JSON");
    let seconds = |i: usize| {
        first["runs"][i]["predicted_s"]
            .as_f64()
            .expect("it is a number")
    };
    // The measured values are the prediction and half of the prediction.
    let csv = format!(
        "width,tp,seconds\n256,1,{}\n256,2,{}\n",
        seconds(0),
        seconds(1) / 2.0
    );
    let (good, text) = run_score(&csv, COLUMNS, &["--format", "json"]);
    assert!(good, "{text}");
    let scores: Value = serde_json::from_str(&text).expect("it is JSON");
    let ours = &scores["scores"]["chakram"];
    let near = |key: &str, expected: f64| {
        let found = ours[key].as_f64().expect("it is a number");
        assert!((found - expected).abs() < 1e-9, "{key}: {found}");
    };
    // The errors are 0 and 1: the mean and the bias are 0.5, and the largest is 1.
    near("mean", 0.5);
    near("bias", 0.5);
    near("max", 1.0);
    assert_eq!(ours["runs"], 2);
}

/// One table is in tokens per second with half of its rows selected, one is in FLOPs, and one is in
/// seconds.
#[test]
fn tables_state_rates_pick_rows_and_set_options() {
    let (good, text) = run_score(
        "width,tp,seconds\n256,1,1\n256,2,2\n",
        COLUMNS,
        &["--format", "json"],
    );
    assert!(good, "{text}");
    let runs: Value = serde_json::from_str(&text).expect("it is JSON");
    let of = |i: usize| {
        runs["runs"][i]["predicted_s"]
            .as_f64()
            .expect("it is a number")
    };
    // The runs have 2 samples of 128 tokens on 1 and 2 NPUs, measured at half of the predicted
    // rate.
    let csv = format!(
        "width,cut,rate,phase\n256,one,{},train\n256,two,{},train\n256,two,nothing,tune\n",
        2.0 * 128.0 / of(0) / 2.0,
        2.0 * 128.0 / of(1) / 2.0 / 2.0
    );
    let columns = COLUMNS
        .replace("measured = \"seconds\"", "measured = \"rate\"")
        .replace("unit = \"s\"", "unit = \"tokens/s/npu\"")
        .replace("tensor = \"tp\"\n", "")
        + "[only]\nphase = [\"train\"]\n[when.cut]\none = { npus = \"1\" }\ntwo = { npus = \"2\", tensor = \"2\" }\n";
    let (good, text) = run_score(&csv, &columns, &["--format", "json"]);
    assert!(good, "{text}");
    let scores: Value = serde_json::from_str(&text).expect("it is JSON");
    let ours = &scores["scores"]["chakram"];
    assert_eq!(ours["runs"], 2, "the third row is of another phase");
    let bias = ours["bias"].as_f64().expect("it is a number");
    assert!((bias + 0.5).abs() < 1e-9, "{bias}");
    // Equation 3 of SC'21 gives, without recomputation, 72 B s l h^2 (1 + s / 6h + V / 12lh).
    let (s, h, l, v) = (128.0, 256.0, 2.0, 1024.0);
    let flops = 2.0 * 72.0 * s * l * h * h * (1.0 + s / (6.0 * h) + v / (12.0 * l * h));
    let csv = format!("width,tp,seconds\n256,1,{}\n", flops / 1e12 / of(0));
    let columns = COLUMNS.replace("unit = \"s\"", "unit = \"model TFLOP/s/npu\"");
    let (good, text) = run_score(&csv, &columns, &["--format", "json"]);
    assert!(good, "{text}");
    let scores: Value = serde_json::from_str(&text).expect("it is JSON");
    let most = scores["scores"]["chakram"]["max"]
        .as_f64()
        .expect("it is a number");
    assert!(most < 1e-6, "{most}");
}

#[test]
fn tables_that_make_no_runs_are_refused() {
    for (csv, columns, expected) in [
        (
            "width,tp\n256,1\n",
            COLUMNS.to_owned(),
            "there is no column \"seconds\"",
        ),
        (
            "width,tp,seconds\n256,1,0\n",
            COLUMNS.to_owned(),
            "runs.csv:2: \"seconds\" is \"0\"",
        ),
        (
            "width,tp,seconds\n256,x,1\n",
            COLUMNS.to_owned(),
            "runs.csv:2: `tensor` is \"x\"",
        ),
        (
            "width,tp,seconds\n",
            COLUMNS.to_owned(),
            "the table has no run",
        ),
        (
            "width,tp,seconds\n256,1,1\n",
            COLUMNS.replace("batch =", "bach ="),
            "did you mean `batch`?",
        ),
        (
            "width,tp,seconds\n256,1,1\n",
            COLUMNS.replace("[\"hidden\"]", "[\"width\"]"),
            "an unknown option",
        ),
    ] {
        let (good, text) = run_score(csv, &columns, &[]);
        assert!(!good, "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

/// Returns the seconds predicted for each row, by line.
fn predict_seconds_of_all_rows(csv: &str, columns: &str) -> Vec<(u64, f64)> {
    let (good, text) = run_score(csv, columns, &["--format", "json"]);
    assert!(good, "{text}");
    let scores: Value = serde_json::from_str(&text).expect("it is JSON");
    let runs = scores["runs"].as_array().expect("runs");
    let row = |run: &Value| {
        (
            run["line"].as_u64().unwrap(),
            run["predicted_s"].as_f64().unwrap(),
        )
    };
    runs.iter().map(row).collect()
}

const OF_MODEL: &str = "measured = \"s\"\nunit = \"s\"\nmachine = \"dgx-h100\"\n[columns]\nmodel = \"m\"\nlayers = \"l\"\n\
    hidden = \"h\"\nnpus = \"n\"\ntensor = \"tp\"\npipeline = \"pp\"\nzero = \"z\"\n[fixed]\nbatch = \"8\"\n";

#[test]
fn a_model_has_as_many_layers_as_its_row_says() {
    let rows = predict_seconds_of_all_rows(
        "m,l,h,n,tp,pp,z,s\nllama3-8b,32,,8,,,,1\nllama3-8b,,4096,8,,,,1\nllama3-8b,4,,8,,,,1\nllama3-8b,8,,8,,,,1\n\
         llama3-8b,,2048,8,,,,1\nresnet-18,4,,8,,,,1\n",
        OF_MODEL,
    );
    // Row 6 contradicts its model, and row 7's model has no number of layers.
    let lines: Vec<u64> = rows.iter().map(|row| row.0).collect();
    assert_eq!(lines, [2, 3, 4, 5]);
    let [all, own, four, eight] = [0, 1, 2, 3].map(|i| rows[i].1);
    // 32 layers are the model's own number.
    assert_eq!(all, own);
    // All blocks take equally long, so adding 28 costs seven times as much as adding four.
    let ratio = (all - four) / (eight - four);
    assert!((ratio - 7.0).abs() < 0.1, "{ratio}");
}

#[test]
fn a_refused_row_is_named_and_the_others_are_scored() {
    let csv = "m,l,h,n,tp,pp,z,s\ngpt2-small,,,8,1,1,,1\ngpt2-small,,,8,3,1,,1\ngpt2-small,,,8,2,1,,1\ngpt2-small,,,8,1,1,,x\ngpt2-small,,,8,3,1,,1\n";
    let (good, text) = run_score(csv, OF_MODEL, &[]);
    assert!(good, "{text}");
    assert!(text.contains("3 of 5 rows cannot be predicted"), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let why =
        "runs.csv, lines 3, 6: `npus` is 8, expected a multiple of tensor x context x pipeline = 3";
    assert!(
        words.contains(why) && words.contains("runs.csv:5: \"s\" is \"x\""),
        "{text}"
    );
    let (good, text) = run_score(csv, OF_MODEL, &["--format", "csv"]);
    assert!(good && text.lines().count() == 3, "{text}");
}

#[test]
fn published_plans_with_ineffective_zero_or_uneven_stages_are_predicted() {
    // A single replica cannot shard its optimizer, and 12 blocks in 5 stages are uneven.
    let csv = "m,l,h,n,tp,pp,z,s\ngpt2-small,,,1,1,1,,1\ngpt2-small,,,1,1,1,1,1\ngpt2-small,,,5,1,5,,1\ngpt2-small,,,4,1,4,,1\n";
    let rows = predict_seconds_of_all_rows(csv, OF_MODEL);
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[0].1, rows[1].1);
    // The largest of five stages has at most three blocks, as each of four stages has.
    assert!(rows[2].1 < rows[0].1, "{rows:?}");
    let (_, text) = run_score(csv, OF_MODEL, &[]);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("`zero` is \"1\", which has no effect with one replica (lines 3)"),
        "{text}"
    );
    assert!(
        words.contains("12 blocks in 5 parts of a pipeline"),
        "{text}"
    );
}

/// Compares iterations measured by vTrain's authors with predictions by curves.
#[test]
#[ignore = "minutes: 771 runs"]
fn measured_iterations_are_predicted() {
    let Some(folder) = corpus_path_or_count_skip("validation") else {
        return;
    };
    for (table, mean, tau) in [("single", 0.058, 0.84), ("multi", 0.08, 0.5)] {
        let runs = folder.join(format!("vtrain_a100_{table}.part.csv"));
        let columns = format!("docs/columns/vtrain-{table}.toml");
        let runs = runs.to_str().expect("a plain name");
        let output = run_chakram(&["score", runs, "--columns", &columns, "--format", "json"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let scores: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        let ours = &scores["scores"]["chakram"];
        let held = scores["intervals"]["coverage"].as_f64().expect("a number");
        println!("{table}: {ours}, intervals hold {held}");
        // Some plans on many NPUs have runs that kernel times cannot explain.
        assert!((if table == "single" { 0.88 } else { 0.8 }..0.95).contains(&held));
        assert!(
            ours["mean"].as_f64().expect("it is a number") < mean,
            "{ours}"
        );
        assert!(
            ours["tau"].as_f64().expect("it is a number") > tau,
            "{ours}"
        );
    }
}

/// Runs with a setting are compared with runs without it. The output says that it has no effect exactly if no
/// prediction changes.
#[test]
fn settings_that_move_no_prediction_are_named() {
    let of = |more: &[&str]| {
        let more = [more, &["--format", "json"]].concat();
        let (good, text) = run_score("width,tp,seconds\n256,1,1\n256,2,2\n", COLUMNS, &more);
        assert!(good, "{text}");
        let scores: Value = serde_json::from_str(&text).expect("it is JSON");
        scores
    };
    let default = "all runs are the same without the option";
    let as_long = "all runs take the same time without the option";
    for (option, reason) in [
        // The values are the one in the columns file, the default, and a preset of the size that the runs need.
        (["--set", "layers=2"], Some(default)),
        (["--set", "recompute=none"], Some(default)),
        (["--machine", "dgx-a100"], Some(default)),
        // With one stage, the order of micro-batches does not matter, and kernels timed by curves are launched one by
        // one in any case.
        (["--set", "schedule=gpipe"], Some(as_long)),
        (
            ["--launch", "eager"],
            Some("the run is the same without the setting"),
        ),
        (["--set", "layers=3"], None),
        (["--set", "recompute=full"], None),
        (["--machine", "dgx-h100"], None),
        (["--launch", "none"], None),
    ] {
        let scores = of(&option);
        let named = &scores["without_effect"][0]["reason"];
        assert_eq!(named.as_str(), reason, "{option:?}: {scores}");
        let seconds = |scores: &Value| scores["runs"][1]["predicted_s"].clone();
        let moved = seconds(&scores) != seconds(&of(&[]));
        assert_eq!(moved, reason.is_none(), "{option:?}");
    }
    // If two values are given, the second applies, so the first has no effect.
    let twice = of(&["--set", "layers=3", "--set", "layers=4"]);
    let named = twice["without_effect"].as_array().expect("a list");
    assert_eq!(named.len(), 1, "{named:?}");
    assert_eq!(named[0]["value"], "3");
    let (_, text) = run_score(
        "width,tp,seconds\n256,1,1\n",
        COLUMNS,
        &["--set", "layers=2"],
    );
    assert!(
        text.contains("  ! `layers = 2` has no effect: all runs"),
        "{text}"
    );
    // If a row is no usable run without a setting, this setting has an effect, whatever the prediction.
    let (good, text) = run_score(
        "width,tp,seconds\n256,1,1\n256,16,1\n",
        COLUMNS,
        &["--set", "heads=16"],
    );
    assert!(good && !text.contains("no effect"), "{text}");
}

/// Both axes of the chart are logarithmic with the same scale, so runs predicted exactly are on the
/// diagonal.
#[test]
fn the_scatter_chart_places_runs_by_measured_and_predicted_time() {
    let folder = tempfile::tempdir().expect("there is room");
    let picture = folder.path().join("runs.svg");
    let picture = picture.to_str().expect("a plain name");
    let table = [
        "docs/columns/example.csv",
        "--columns",
        "docs/columns/example.toml",
    ];
    let rows = run_chakram(
        &[
            &["score"][..],
            &table,
            &["--format", "csv", "--scatter", picture],
        ]
        .concat(),
    );
    let rows = super::parse_csv_rows(&String::from_utf8_lossy(&rows.stdout));
    let picture = std::fs::read_to_string(picture).expect("it was written");
    let number = |text: &str, key: &str| -> f64 {
        let (_, rest) = text.split_once(&format!("{key}=\"")).expect("it has it");
        rest.split('"')
            .next()
            .and_then(|number| number.parse().ok())
            .expect("a number")
    };
    let circles: Vec<[f64; 2]> = (picture.split("<circle ").skip(1))
        .map(|circle| [number(circle, "cx"), number(circle, "cy")])
        .collect();
    assert_eq!(circles.len(), 4);
    let logarithms = rows.iter().map(|row| {
        ["measured_s", "predicted_s"].map(|key| row[key].parse::<f64>().expect("seconds").ln())
    });
    let logarithms: Vec<[f64; 2]> = logarithms.collect();
    // Any pair of runs gives the same scale along an axis, and the picture's y decreases upwards.
    for (axis, sign) in [(0, 1.0), (1, -1.0)] {
        let scale = |a: usize, b: usize| {
            sign * (circles[a][axis] - circles[b][axis])
                / (logarithms[a][axis] - logarithms[b][axis])
        };
        let all = [scale(0, 2), scale(1, 2), scale(3, 2)];
        assert!(
            all[0] > 0.0 && all.iter().all(|one| (one / all[0] - 1.0).abs() < 0.01),
            "{all:?}"
        );
    }
}
