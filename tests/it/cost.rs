//! Tests the cost of runs in dollars, computed from the makespan, the price, and the tokens in reports.

use crate::commands::run_chakram;
use serde_json::Value;
use std::path::Path;

const JOB: [&str; 9] = [
    "generate",
    "gpt2-small",
    "--tensor",
    "2",
    "--data",
    "2",
    "--batch",
    "8",
    "--machine",
];

fn run_chakram_ok(words: &[&str]) -> String {
    let output = run_chakram(words);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    String::from_utf8(output.stdout).expect("it is text")
}

fn cost_report_json(machine: &str, more: &[&str]) -> Value {
    let words = [&JOB[..], &[machine, "--format", "json"], more].concat();
    serde_json::from_str(&run_chakram_ok(&words)).expect("it is JSON")
}

fn assert_number_near(found: &Value, expected: f64) {
    let found = found
        .as_f64()
        .unwrap_or_else(|| panic!("{found} is no number"));
    assert!(
        (found / expected - 1.0).abs() < 1e-9,
        "{found} for {expected}"
    );
}

/// Four NPUs cost 2.5 dollars an hour each, and a step has 8 sequences of 1,024 tokens.
#[test]
fn money_and_days_follow_from_the_makespan() {
    let report = cost_report_json("dgx-h100", &["--price", "2.5", "--total-tokens", "300B"]);
    let at = |path: &str| report.pointer(path).unwrap_or_else(|| panic!("no {path}"));
    let seconds = |path: &str| at(path).as_f64().expect("a number") / 1e12;
    let step = seconds("/makespan_ps");
    let tokens = at("/throughput/tokens").as_f64().expect("a number");
    assert_eq!(tokens, 8.0 * 1024.0);
    assert_number_near(at("/cost/npu_hours"), 4.0 * step / 3600.0);
    assert_number_near(at("/cost/dollars"), 2.5 * 4.0 * step / 3600.0);
    let per_million = 2.5 * 4.0 * step / 3600.0 / tokens * 1e6;
    assert_number_near(at("/cost/dollars_per_million_tokens"), per_million);
    let days = 300e9 / tokens * step / 86_400.0;
    assert_number_near(at("/run/days"), days);
    assert_number_near(at("/run/npu_hours"), days * 24.0 * 4.0);
    assert_number_near(at("/run/dollars"), days * 24.0 * 4.0 * 2.5);
    // The interval of the step's cost comes from the interval of the makespan.
    for (end, path) in [(0, "/interval/low_ps"), (1, "/interval/high_ps")] {
        let over = seconds(path) / step;
        assert_number_near(at(&format!("/run/days_90/{end}")), days * over);
        assert_number_near(at(&format!("/run/dollars_90/{end}")), days * 240.0 * over);
        assert_number_near(
            at(&format!("/cost/dollars_per_million_tokens_90/{end}")),
            per_million * over,
        );
    }
    // No kernel here has a known energy.
    assert_eq!(report.pointer("/run/kernel_energy_j"), None);
    let options = at("/options");
    assert_eq!(
        (&options["price"], &options["total_tokens"]),
        (&2.5.into(), &300_000_000_000_u64.into())
    );
}

#[test]
fn costs_without_a_price_or_token_total_are_left_out() {
    let silent = cost_report_json("dgx-h100", &[]);
    assert_eq!((silent.get("cost"), silent.get("run")), (None, None));
    let timed = cost_report_json("dgx-h100", &["--total-tokens", "1T"]);
    assert_eq!(
        (timed.get("cost"), timed.pointer("/run/dollars")),
        (None, None)
    );
    assert!(timed["run"]["days"].is_number());
    let priced = run_chakram_ok(&[&JOB[..], &["dgx-h100", "--price", "2.5"]].concat());
    assert!(
        priced.contains("per million tokens (90 %: $")
            && priced.contains("at $2.50 for an NPU hour"),
        "{priced}"
    );
    assert!(!priced.contains("days"), "{priced}");
    let plain = run_chakram_ok(&[&JOB[..], &["dgx-h100"]].concat());
    assert!(!plain.contains('$'), "{plain}");
    // A captured job has no tokens, so the step's cost is known, but the run's cost is reported as unknown.
    let captured = run_chakram_ok(&[
        "replay",
        "traces/ddp-resnet18",
        "--price",
        "2",
        "--total-tokens",
        "1T",
    ]);
    assert!(
        captured.contains("for the makespan, at $2.00"),
        "{captured}"
    );
    assert!(
        captured.contains("total_tokens = 1000000000000` has no effect"),
        "{captured}"
    );
    for (option, value) in [
        ("--price", "-1"),
        ("--price", "nan"),
        ("--price", "free"),
        ("--total-tokens", "0"),
        ("--total-tokens", "15X"),
    ] {
        let output = run_chakram(&[&JOB[..], &["dgx-h100", option, value]].concat());
        assert_eq!(output.status.code(), Some(2), "{option} {value}");
    }
}

/// The machine file gives the price, and an option overrides it.
#[test]
fn machine_file_gives_the_price_and_an_option_overrides_it() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("priced.toml");
    let preset = run_chakram_ok(&["machine", "show", "dgx-h100"]);
    let priced = preset.replacen("\ndescription", "\nprice_per_npu_hour = 3\ndescription", 1);
    std::fs::write(&path, priced).expect("there is room");
    let path = path.to_str().expect("UTF-8");
    let own = cost_report_json(path, &[]);
    assert_eq!(own["cost"]["dollars_per_npu_hour"], 3.0);
    // A price does not change times, but it must have an effect.
    assert_eq!(
        own["makespan_ps"],
        cost_report_json("dgx-h100", &[])["makespan_ps"]
    );
    assert_eq!(own.pointer("/settings/without_effect"), None);
    let given = cost_report_json(path, &["--price", "6"]);
    assert_number_near(
        &given["cost"]["dollars"],
        2.0 * own["cost"]["dollars"].as_f64().expect("a number"),
    );
    let job = folder.path().join("job");
    let prefix = job.to_str().expect("UTF-8");
    run_chakram_ok(&[&JOB[..], &["dgx-h100", "-o", prefix]].concat());
    let compared = [
        "replay",
        prefix,
        "-m",
        path,
        "-m",
        "dgx-h100",
        "--total-tokens",
        "1B",
    ];
    let side_by_side = run_chakram_ok(&compared);
    for row in [
        "money per million tokens",
        "1B tokens",
        "  days",
        "  NPU hours",
        "  money",
    ] {
        assert!(side_by_side.contains(row), "{row}: {side_by_side}");
    }
    let csv = run_chakram_ok(&[&compared[..], &["--format", "csv"]].concat());
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let [head, first, second] = [0; 3].map(|_| lines.next().expect("a line"));
    let column = |name: &str| head.iter().position(|one| *one == name).expect(name);
    assert_eq!(first[column("dollars_per_npu_hour")], "3.000000000");
    assert_eq!(second[column("dollars_per_npu_hour")], "");
    assert!(!first[column("run_dollars")].is_empty() && second[column("run_dollars")].is_empty());
    let wrong = folder.path().join("wrong.toml");
    std::fs::write(
        &wrong,
        preset.replacen("\ndescription", "\nprice_per_npu_hour = -3\ndescription", 1),
    )
    .expect("there is room");
    let output = run_chakram(&["machine", "check", wrong.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(2));
}

/// Each row of a study states the costs that are not its objectives, with the machine's own price.
#[test]
fn sweeps_state_money_and_days() {
    let folder = tempfile::tempdir().expect("there is room");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("there is room");
        path.to_str().expect("UTF-8").to_owned()
    };
    let preset = run_chakram_ok(&["machine", "show", "dgx-h100"]);
    let machine = write(
        "priced.toml",
        &preset.replacen("\ndescription", "\nprice_per_npu_hour = 3\ndescription", 1),
    );
    let study = write(
        "study.toml",
        &format!(
            "name = \"money\"\nobjective = [\"time\", \"run_dollars\"]\n[base]\nmachine = {machine:?}\nmodel = \"gpt2-small\"\n\
             tokens = 256\ntotal_tokens = 1e9\nplan.batch = 8\ncompute = \"roofline\"\n[[axis]]\nkey = \"plan.data\"\nvalues = [1, 2]\n"
        ),
    );
    let out = folder.path().join("out");
    let shown = run_chakram_ok(&["sweep", &study, "-o", out.to_str().expect("UTF-8")]);
    assert!(shown.contains("run_dollars"), "{shown}");
    let rows = std::fs::read_to_string(out.join("rows.jsonl")).expect("it was written");
    let mut count = 0;
    for row in rows.lines() {
        let row: Value = serde_json::from_str(row).expect("it is JSON");
        let number = |key: &str| {
            row[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{key} of {row}"))
        };
        let (seconds, npus) = (number("time_ps") / 1e12, number("npus"));
        // A step has 8 sequences of 256 tokens.
        assert_number_near(&row["tokens_per_s"], 2048.0 / seconds);
        assert_number_near(
            &row["dollars_per_million_tokens"],
            3.0 * npus * seconds / 3600.0 / 2048.0 * 1e6,
        );
        assert_number_near(&row["run_days"], 1e9 / 2048.0 * seconds / 86_400.0);
        assert_number_near(
            &row["run_npu_hours"],
            1e9 / 2048.0 * seconds / 3600.0 * npus,
        );
        assert_number_near(
            &row["run_dollars"],
            3.0 * 1e9 / 2048.0 * seconds / 3600.0 * npus,
        );
        count += 1;
    }
    assert_eq!(count, 2);
    let csv = std::fs::read_to_string(out.join("rows.csv")).expect("it was written");
    let head = csv.lines().next().expect("a line");
    assert!(
        head.contains("tokens_per_s,dollars_per_million_tokens,run_days,run_npu_hours,limited_by"),
        "{head}"
    );
    let page = std::fs::read_to_string(out.join("index.html")).expect("it was written");
    assert!(page.contains("dollars_per_million_tokens"));
    // Without a price, the objective has no value.
    let plain = std::fs::read_to_string(&study)
        .expect("it was written")
        .replace(&format!("{machine:?}"), "\"dgx-h100\"");
    let plain = write("plain.toml", &plain);
    let output = run_chakram(&["sweep", &plain]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("run_dollars without price.npu"), "{error}");
    assert!(Path::new(&study).exists());
}
