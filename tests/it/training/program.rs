//! Tests `chakram generate MODEL` from a shell.

use crate::commands::run_chakram;
use serde_json::Value;

pub fn run_for_exit_and_text(args: &[&str]) -> (i32, String, String) {
    let output = run_chakram(args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().expect("it ends by itself");
    (code, text(&output.stdout), text(&output.stderr))
}

#[test]
fn command_line_options_override_the_plan_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.toml");
    std::fs::write(&path, "data = 4\ntensor = 2\nbatch = 8\n").unwrap();
    let path = path.to_str().unwrap();
    let plan = [
        "generate",
        "gpt2-small",
        "--dry-run",
        "--format",
        "json",
        "--plan",
        path,
    ];
    let ranks = |more: &[&str]| {
        let (code, out, error) = run_for_exit_and_text(&[&plan[..], more].concat());
        assert_eq!((code, &error[..]), (0, ""));
        serde_json::from_str::<Value>(&out).unwrap()["ranks"].clone()
    };
    assert_eq!(ranks(&[]), 8);
    assert_eq!(ranks(&["--data", "2"]), 4);
    std::fs::write(path, "data = 4\ntensr = 2\n").unwrap();
    let (code, _, error) = run_for_exit_and_text(&plan);
    assert_eq!(code, 2);
    assert!(
        error.contains("plan.toml:2: key `tensr`: found an unknown key"),
        "{error}"
    );
}

/// Options can express all bucket settings of files, and override them.
#[test]
fn all_bucket_settings_of_plan_files_are_also_options() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.toml");
    let shown = |text: &str, more: &[&str]| {
        std::fs::write(&path, format!("data = 2\nbatch = 2\n{text}")).unwrap();
        let plan = [
            "--dry-run",
            "--format",
            "json",
            "--plan",
            path.to_str().unwrap(),
        ];
        let (code, out, error) =
            run_for_exit_and_text(&[&["generate", "gpt2-small"], &plan[..], more].concat());
        assert_eq!((code, &error[..]), (0, ""));
        out
    };
    let keys = "buckets = \"parameters\"\nbucket = \"5 MiB\"\nfirst_bucket = \"1 MiB\"\n";
    let options = [
        "--buckets",
        "parameters",
        "--bucket",
        "5MiB",
        "--first-bucket",
        "1MiB",
    ];
    let said = shown(keys, &[]);
    assert_eq!(said, shown("", &options));
    for i in [0, 2, 4] {
        let other = [
            "--buckets",
            "layers",
            "--bucket",
            "40MB",
            "--first-bucket",
            "25MiB",
        ];
        assert_ne!(said, shown(keys, &other[i..i + 2]), "{}", other[i]);
    }
}

#[test]
fn unknown_names_are_answered_with_the_nearest_model_or_pattern() {
    for (name, expected) in [
        ("gpt2-smal", "did you mean `gpt2-small`"),
        ("chian", "or the pattern `chain`"),
    ] {
        let (code, _, error) = run_for_exit_and_text(&["generate", name, "--machine", "dgx-a100"]);
        assert_eq!(code, 2);
        assert!(error.contains(expected), "{error}");
    }
    // Options of patterns are rejected for models.
    let (code, _, error) = run_for_exit_and_text(&["generate", "gpt2-small"]);
    assert_eq!(code, 2);
    assert!(error.contains("-o PREFIX"), "{error}");
}

/// 124,439,808 parameters with 16 B each of weights, gradients and Adam take 1.99 GB. Two replicas that share Adam's 12
/// B need 4 + 6 B each.
#[test]
fn a_dry_run_says_what_is_resident() {
    let dry = [
        "generate",
        "gpt2-small",
        "--dry-run",
        "--format",
        "json",
        "--data",
        "2",
        "--batch",
        "2",
    ];
    let resident = |zero: &str| {
        let (code, out, error) = run_for_exit_and_text(&[&dry[..], &["--zero", zero]].concat());
        assert_eq!((code, &error[..]), (0, ""));
        let value: Value = serde_json::from_str(&out).unwrap();
        let memory = value["stages"][0]["bytes_at_peak"].clone();
        ["weights", "gradients", "optimizer"].map(|class| memory[class].as_u64().unwrap())
    };
    let p = 124_439_808;
    assert_eq!(resident("0"), [2 * p, 2 * p, 12 * p]);
    assert_eq!(resident("1"), [2 * p, 2 * p, 6 * p]);
    assert_eq!(resident("3"), [p, p, 6 * p]);
    let (code, out, _) = run_for_exit_and_text(&[&dry[..3], &dry[5..]].concat());
    assert_eq!(code, 0);
    for heading in ["FLOPS", "BUBBLE", "GROUPS", "STAGES", "COMMUNICATION"] {
        assert!(out.contains(heading), "{out}");
    }
}

/// Files contain everything that a replay needs: a written job takes as long as one replayed directly.
#[test]
fn written_files_replay_as_the_job_does() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("job");
    let prefix = prefix.to_str().unwrap();
    let groups = format!("{prefix}.groups.json");
    let plan = [
        "generate",
        "gpt2-small",
        "--data",
        "2",
        "--tensor",
        "2",
        "--pipeline",
        "2",
        "--batch",
        "8",
        "--sequence",
        "64",
    ];
    let makespan = |args: &[&str]| {
        let args = [args, &["--machine", "dgx-a100", "--format", "json"]].concat();
        let (code, out, error) = run_for_exit_and_text(&args);
        assert_eq!((code, &error[..]), (0, ""));
        let report = serde_json::from_str::<Value>(&out).unwrap();
        report["makespan_ps"].as_u64().unwrap()
    };
    let at_once = makespan(&plan);
    let (code, out, error) = run_for_exit_and_text(&[&plan[..], &["--output", prefix]].concat());
    assert_eq!((code, &error[..]), (0, ""));
    assert!(out.starts_with("wrote 8 ranks"), "{out}");
    let (code, out, _) = run_for_exit_and_text(&["validate", prefix, "--groups", &groups]);
    assert_eq!(code, 0, "{out}");
    let replay = ["replay", prefix, "--groups", &groups];
    assert_eq!(makespan(&replay), at_once);
}
