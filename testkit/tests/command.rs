//! Runs the testkit command as a process.

use std::process::Command;

#[test]
fn captures_are_written_with_their_truth() {
    let folder = tempfile::tempdir().expect("there is room");
    let output = folder.path().join("cap");
    let mut command = Command::new(env!("CARGO_BIN_EXE_testkit"));
    command.args(["capture", "--ranks", "2", "--straggler", "1=1.5", "-o"]);
    // In debug builds, clap panics if the definition of the command line is inconsistent, so this run also checks it.
    let ended = command.arg(&output).output().expect("it runs");
    let error = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{error}");
    let read = |name: &str| -> serde_json::Value {
        let text = std::fs::read(output.join(name)).expect("it was written");
        serde_json::from_slice(&text).expect("it is JSON")
    };
    let traces = ["host.1.json", "kineto.1.json"].map(read);
    assert!(traces.iter().all(serde_json::Value::is_object));
    let truth = read("truth.json");
    assert_eq!(truth["version"], 1);
    assert_eq!(truth["ranks"][1]["straggle_permille"], 1500);
}
