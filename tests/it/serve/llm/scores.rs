//! Tests `chakram score --scenarios`: predictions for served language models against measurements.

use crate::commands::run_chakram;
use serde_json::Value;
use std::path::Path;

const SCENARIOS: &str = "machine = \"{machine}\"\ngroups = [\"gpu\"]\nfolds = [\"gpu\"]\nscenario = '''\nname = \"{gpu}\"\n\
     [engine]\nmodel = \"llama3-8b\"\n[requests]\narrivals = \"users\"\nusers = {users}\ncount = {users * 3}\n\
     [[class]]\nname = \"all\"\ninput = \"{isl * 0.5 | whole}..{isl}\"\noutput = 32\n'''\n\
     [measured]\ntpot_mean = \"tpot_ms\"\nttft_p50 = \"ttft_ms\"\n[only]\nmode = [\"agg\"]\n\
     [when.gpu]\nh = { machine = \"dgx-h100\" }\nx = { machine = \"no-such-machine\" }\n";

fn run_for_stdout(args: &[&str]) -> String {
    let output = run_chakram(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn write_runs_and_scenarios(folder: &Path, rows: &str) -> [String; 2] {
    let path = |name: &str| folder.join(name).display().to_string();
    std::fs::write(path("runs.csv"), rows).unwrap();
    std::fs::write(path("runs.toml"), SCENARIOS).unwrap();
    [path("runs.csv"), path("runs.toml")]
}

/// A prediction of twice the measured value is an error of 100 %. Rows that cannot be served are listed with the
/// reason.
#[test]
fn scored_rows_are_served_and_compared_with_measurements() {
    let folder = tempfile::tempdir().unwrap();
    let table = |tpot: f64| {
        format!(
            "mode,gpu,users,isl,tpot_ms,ttft_ms\nagg,h,1,64,{tpot},30\nagg,h,4,64,8,\ndisagg,h,1,64,1,1\nagg,x,1,64,1,1\n\
             agg,h,,64,1,1\n"
        )
    };
    let scores = |tpot: f64| -> Value {
        let [runs, scenarios] = write_runs_and_scenarios(folder.path(), &table(tpot));
        let args = [
            "score",
            &runs,
            "--scenarios",
            &scenarios,
            "--format",
            "json",
        ];
        serde_json::from_str(&run_for_stdout(&args)).unwrap()
    };
    let first = scores(7.0);
    let rows = first["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{first}");
    let predicted = rows[0]["times"][0]["predicted_s"].as_f64().unwrap();
    assert!(rows[0]["times"][0]["null_s"].as_f64().unwrap() > 0.0);
    assert!(rows[1]["times"][1]["measured_s"].is_null());
    let refused = first["refused"].as_array().unwrap();
    let whys: Vec<&str> = refused
        .iter()
        .map(|row| row["why"].as_str().unwrap())
        .collect();
    assert!(
        whys.len() == 2
            && whys.iter().any(|why| why.contains("no-such-machine"))
            && whys.iter().any(|why| why.contains("users")),
        "{whys:?}"
    );
    // The same row, measured as half of the prediction.
    let half = predicted * 1e3 / 2.0;
    let [runs, scenarios] = write_runs_and_scenarios(folder.path(), &table(half));
    let args = ["score", &runs, "--scenarios", &scenarios, "--format", "csv"];
    let rows = run_for_stdout(&args);
    let row = rows.lines().nth(1).unwrap();
    let error: f64 = row.split(',').nth(5).unwrap().parse().unwrap();
    assert!((error - 100.0).abs() < 1e-6, "{row}");
    let text = run_for_stdout(&["score", &runs, "--scenarios", &scenarios, "--by", "users"]);
    assert!(
        text.contains("2 rows served, 2 refused") && text.contains("null model"),
        "{text}"
    );
}

#[test]
fn tables_without_rows_are_refused_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let head = "mode,gpu,users,isl,tpot_ms,ttft_ms\n";
    let [runs, scenarios] = write_runs_and_scenarios(folder.path(), head);
    let output = run_chakram(&["score", &runs, "--scenarios", &scenarios]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("found no rows, expected at least one"),
        "{error}"
    );
}

/// Files that scenarios name are next to the table, wherever the command runs and the scenarios are.
#[test]
fn scenarios_find_files_beside_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let [table, scenarios] = ["table", "scenarios"].map(|name| folder.path().join(name));
    for of in [&table, &scenarios] {
        std::fs::create_dir(of).unwrap();
    }
    std::fs::write(
        table.join("requests.csv"),
        "arrival_ns,input_toks,output_toks\n0,10,3\n1000,10,3\n",
    )
    .unwrap();
    std::fs::write(table.join("runs.csv"), "run,tpot_ms\na,2\n").unwrap();
    let text = "scenario = '''\nname = \"{run}\"\n[engine]\nblocks = 9\n[step]\nbase = \"2 ms\"\n[requests]\n\
                arrivals = \"file\"\nfile = \"{folder}/requests.csv\"\n'''\n[measured]\ntpot_mean = \"tpot_ms\"\n";
    std::fs::write(scenarios.join("runs.toml"), text).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_chakram"))
        .current_dir(&table)
        .args(["score", "runs.csv", "--scenarios", "../scenarios/runs.toml"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("1 rows served, 0 refused"), "{text}");
}

/// A row's client time comes from rows of other folds that agree with it in `client_groups`, if there are at least
/// three.
#[test]
fn time_of_a_client_comes_from_similar_rows() {
    let folder = tempfile::tempdir().unwrap();
    let rows = [
        "a,fast,10",
        "b,fast,12",
        "c,fast,14",
        "d,fast,16",
        "a,slow,101",
        "b,slow,103",
    ];
    let table = format!("fold,engine,ttft_ms\n{}\n", rows.join("\n"));
    let [runs, scenarios] =
        ["runs.csv", "runs.toml"].map(|name| folder.path().join(name).display().to_string());
    std::fs::write(&runs, table).unwrap();
    let text = "folds = [\"fold\"]\nclient = \"other-folds\"\nclient_groups = [\"engine\"]\nscenario = '''\n\
                name = \"{fold}\"\n[engine]\nblocks = 9\n[step]\nbase = \"1 ms\"\n[requests]\narrivals = \"at-once\"\n\
                count = 1\n[[class]]\nname = \"all\"\ninput = 10\noutput = 2\n'''\n[measured]\nttft_mean = \"ttft_ms\"\n";
    std::fs::write(&scenarios, text).unwrap();
    let args = [
        "score",
        &runs,
        "--scenarios",
        &scenarios,
        "--format",
        "json",
    ];
    let scores: Value = serde_json::from_str(&run_for_stdout(&args)).unwrap();
    let rows = scores["rows"].as_array().unwrap();
    let clients = rows
        .iter()
        .map(|row| (row["client_s"].as_f64().unwrap() * 1e3).round() as u64);
    // The engine takes 1 ms. A fast row finds three others. A slow row finds only one other, so it uses all rows of
    // other folds.
    let expected = [13, 13, 11, 11, (13 + 15) / 2, (13 + 15) / 2];
    assert_eq!(clients.collect::<Vec<_>>(), expected);
    std::fs::write(&scenarios, text.replace("client = \"other-folds\"\n", "")).unwrap();
    let output = run_chakram(&["score", &runs, "--scenarios", &scenarios]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("client_groups") && error.contains("without `client`"),
        "{error}"
    );
}

#[test]
fn wrong_files_of_scenarios_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let [runs, scenarios] = write_runs_and_scenarios(
        folder.path(),
        "mode,gpu,users,isl,tpot_ms,ttft_ms\nagg,h,1,64,8,9\n",
    );
    for (found, instead, why) in [
        ("tpot_mean", "tpot_men", "tpot_mean"),
        ("\"tpot_ms\"", "\"tpot\"", "_us, _ms or _s"),
        ("\"ttft_ms\"", "\"tft_ms\"", "ttft_ms"),
        ("[only]", "[omly]", "only"),
        ("{users * 3}", "{users - 3}", "expected +, * or /"),
    ] {
        std::fs::write(&scenarios, SCENARIOS.replace(found, instead)).unwrap();
        let output = run_chakram(&["score", &runs, "--scenarios", &scenarios]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && error.contains(why),
            "{instead}: {error}"
        );
    }
    std::fs::write(&scenarios, SCENARIOS).unwrap();
    let output = run_chakram(&[
        "score",
        &runs,
        "--scenarios",
        &scenarios,
        "--compute",
        "roofline",
    ]);
    assert!(!output.status.success());
}
