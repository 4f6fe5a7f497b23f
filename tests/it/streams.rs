//! Tests standard input and output, pipes, and full devices.

use std::fs::File;
use std::process::{Command, Output, Stdio};

fn run_chakram_with_stdin_and_stdout(args: &[&str], input: Stdio, output: Stdio) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chakram"));
    let command = command.args(args).stdin(input).stdout(output);
    let child = command.stderr(Stdio::piped()).spawn();
    child
        .and_then(|child| child.wait_with_output())
        .expect("it runs")
}

/// Writing to a full device is an error for every command.
#[test]
fn a_full_device_fails_whatever_is_printed() {
    let Ok(full) = File::options().write(true).open("/dev/full") else {
        println!("skipped: there is no /dev/full");
        return;
    };
    for args in [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["replay", "--help"],
        &["machine", "list"],
        &["completions", "bash"],
    ] {
        let full = full.try_clone().expect("it can be shared");
        let output = run_chakram_with_stdin_and_stdout(args, Stdio::null(), full.into());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains("standard output: cannot write"), "{error}");
    }
}

/// A trace from a pipe is rank 0, and gives the same output as the file.
#[test]
fn pipes_are_traces_of_rank_0() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("job");
    let prefix = prefix.to_str().unwrap();
    let made = run_chakram_with_stdin_and_stdout(
        &[
            "generate", "chain", "--ranks", "1", "--nodes", "7", "-o", prefix,
        ],
        Stdio::null(),
        Stdio::null(),
    );
    assert!(made.status.success());
    let file = format!("{prefix}.0.et");
    let text = |input: &str, args: &[&str]| {
        let file = File::open(&file).unwrap();
        let piped = run_chakram_with_stdin_and_stdout(
            &[&[args[0], input], &args[1..]].concat(),
            file.into(),
            Stdio::piped(),
        );
        let error = String::from_utf8_lossy(&piped.stderr).into_owned();
        assert!(piped.status.success(), "{args:?} {input}: {error}");
        // The first line contains the job's name, which differs.
        let text = String::from_utf8(piped.stdout).unwrap();
        text.split_once('\n').unwrap().1.to_owned()
    };
    let replay = ["replay", "--machine", "dgx-h100"];
    let expected = text(&file, &replay);
    assert!(expected.contains("MAKESPAN"));
    for input in ["-", "/dev/stdin"] {
        assert_eq!(text(input, &replay), expected, "{input}");
        let inspected = text(input, &["inspect"]);
        assert_eq!(inspected, text(&file, &["inspect"]), "{input}");
        text(input, &["validate"]);
    }
    let twice = run_chakram_with_stdin_and_stdout(
        &["replay", "-", "-", "-m", "dgx-h100"],
        Stdio::null(),
        Stdio::null(),
    );
    assert_eq!(twice.status.code(), Some(2));
}
