//! Tests of the list of sources, and of `convert auto`.

use super::{TemporaryTestFolder, expect_cli_error, run_for_stdout};

const TEXT: &str = "DATA\n1\nl -1 1 NONE 0 2 NONE 0 3 ALLREDUCE 8 4\n";

#[test]
fn every_source_is_listed_and_is_a_command() {
    let list = run_for_stdout(&["convert", "--list"]);
    let words: Vec<&str> = list
        .lines()
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(words[0], "SOURCE");
    assert!(words.len() > 3, "{list}");
    for word in &words[1..] {
        let help = run_for_stdout(&["convert", word, "--help"]);
        assert!(help.contains("--output"), "{word}: {help}");
    }
    assert!(
        list.lines().all(|line| line.chars().count() <= 100),
        "{list}"
    );
}

#[test]
fn contents_choose_the_converter() {
    let folder = TemporaryTestFolder::new();
    let workload = folder.write_file("any.name", TEXT);
    let [text, auto] = ["text", "auto"].map(|name| folder.path(name));
    run_for_stdout(&["convert", "text", &workload, "--npus", "2", "-o", &text]);
    run_for_stdout(&[
        "convert", "auto", &workload, "-o", &auto, "--", "--npus", "2",
    ]);
    for rank in 0..2 {
        let [text, auto] = ["text", "auto"].map(|name| folder.read(&format!("{name}.{rank}.et")));
        assert_eq!(text, auto);
    }
    // The result is the same as when no name is given.
    let unnamed = folder.path("unnamed");
    run_for_stdout(&["convert", &workload, "-o", &unnamed, "--", "--npus", "2"]);
    assert_eq!(folder.read("unnamed.1.et"), folder.read("auto.1.et"));
    // The inputs are a trace, a prefix, and a folder of captures.
    let trace = folder.path("text.0.et");
    run_for_stdout(&["convert", "auto", &trace, "-o", &folder.path("one.jsonl")]);
    assert!(
        folder
            .read("one.jsonl")
            .starts_with(b"{\"schema\":\"chakram.trace.")
    );
    run_for_stdout(&["convert", "auto", &text, "-o", &folder.path("both.et")]);
    assert_eq!(folder.read("both.1.et"), folder.read("text.1.et"));
    let capture = "traces/ddp-resnet18/capture";
    let said = run_for_stdout(&["convert", "auto", capture, "-o", &folder.path("resnet")]);
    let named = run_for_stdout(&["convert", "pytorch", capture, "-o", &folder.path("named")]);
    assert_eq!(said, named.replace("named.", "resnet."));
    assert_eq!(folder.read("resnet.1.et"), folder.read("named.1.et"));
}

#[test]
fn inputs_that_fit_no_converter_or_two_are_refused() {
    let folder = TemporaryTestFolder::new();
    let output = folder.path("out");
    let wrong = folder.write_file("wrong", "hello, world\n");
    let error = expect_cli_error(&["convert", "auto", &wrong, "-o", &output]);
    for part in [
        "wrong",
        "text that begins with `hello, world`",
        "pytorch, text",
        "--list",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let text = folder.write_file("text", TEXT);
    let error = expect_cli_error(&[
        "convert",
        "auto",
        "traces/ddp-resnet18/capture",
        &text,
        "-o",
        &output,
    ]);
    assert!(
        error.contains("of source text") && error.contains("of source pytorch"),
        "{error}"
    );
    let empty = folder.path("empty");
    std::fs::create_dir(&empty).unwrap();
    let error = expect_cli_error(&["convert", "auto", &empty, "-o", &output]);
    assert!(error.contains("a folder with 0 files"), "{error}");
    let error = expect_cli_error(&["convert", "auto", &folder.path("nothing"), "-o", &output]);
    assert!(error.contains("cannot open"), "{error}");
    let error = expect_cli_error(&["convert", &text]);
    assert!(error.contains("--output"), "{error}");
    let error = expect_cli_error(&["convert", "--list", &text]);
    assert!(error.contains("--list"), "{error}");
    // The error is the one that the source's own command gives.
    let error = expect_cli_error(&["convert", "auto", &text, "-o", &output]);
    assert!(error.contains("--npus"), "{error}");
    assert_eq!(folder.names(), ["empty", "text", "wrong"]);
}
