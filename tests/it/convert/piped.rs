//! Tests captures from standard input, which give the same bytes as a file with the same contents.

use super::rig::write_generated_capture;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use testkit::capture::{Device, JobParallelism, Options};

/// Runs `chakram convert` with `piped` on standard input.
fn run_convert_with_stdin(args: &[&str], piped: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_chakram"))
        .arg("convert")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program was built");
    let mut input = child.stdin.take().expect("it is piped");
    // If the program rejected its arguments, it may have ended already.
    let _ = input.write_all(piped);
    drop(input);
    child.wait_with_output().expect("it ends by itself")
}

fn read_rank0_trace_bytes(folder: &Path, prefix: &str) -> Vec<u8> {
    std::fs::read(folder.join(format!("{prefix}.0.et"))).expect("it was written")
}

fn compress_zstd(contents: &[u8]) -> Vec<u8> {
    zstd::encode_all(contents, 1).expect("there is room")
}

#[test]
fn a_pipe_gives_what_a_file_gives() {
    let options = Options {
        layers: 1,
        ..Options::new(Device::Cuda, JobParallelism::Ddp, 1)
    };
    let captured = write_generated_capture(&options);
    let folder = captured.folder.path();
    let path = |name: &str| folder.join(name).display().to_string();
    let (host, kineto) = (path("host.0.json"), path("kineto.0.json"));
    let read = |name: &str| std::fs::read(name).expect("it was just written");
    for (what, files, piped, pipe_args) in [
        ("kineto", vec![&kineto], read(&kineto), vec!["-"]),
        (
            "packed",
            vec![&kineto],
            compress_zstd(&read(&kineto)),
            vec!["-"],
        ),
        ("host", vec![&host], read(&host), vec!["-"]),
        (
            "both",
            vec![&host, &kineto],
            read(&kineto),
            vec![&host, "-"],
        ),
    ] {
        let (one, other) = (path(&format!("{what}-file")), path(&format!("{what}-pipe")));
        let mut args = vec!["pytorch", "-o", &one];
        args.extend(files.iter().map(|file| file.as_str()));
        let from_file = run_convert_with_stdin(&args, b"");
        assert!(from_file.status.success(), "{what}: {from_file:?}");
        let from_pipe = run_convert_with_stdin(
            &[&["pytorch", "-o", &other][..], &pipe_args].concat(),
            &piped,
        );
        assert!(from_pipe.status.success(), "{what}: {from_pipe:?}");
        let (one, other) = (format!("{what}-file"), format!("{what}-pipe"));
        assert_eq!(
            read_rank0_trace_bytes(folder, &one),
            read_rank0_trace_bytes(folder, &other),
            "{what}"
        );
    }
}

#[test]
fn pipes_without_a_capture_are_refused() {
    let folder = tempfile::tempdir().expect("there is room");
    let out = folder.path().join("job").display().to_string();
    for (args, piped, parts) in [
        (
            ["pytorch", "-", "-o", &out],
            &b"{\"a\": 1}"[..],
            &["standard input: it is neither a host trace"][..],
        ),
        (
            ["pytorch", "-", "-o", &out],
            b"{\"traceEvents\": [{\"ph\"",
            &["standard input", "byte"],
        ),
        (
            ["pytorch", "-", "-o", &out],
            b"",
            &["standard input: it is neither a host trace"],
        ),
        (
            ["auto", "-", "-o", &out],
            b"{}",
            &["must be named", "try: chakram convert pytorch -"],
        ),
    ] {
        let output = run_convert_with_stdin(&args, piped);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        for part in parts {
            assert!(error.contains(part), "no {part:?} in: {error}");
        }
    }
    let left = std::fs::read_dir(folder.path())
        .expect("it is there")
        .count();
    assert_eq!(left, 0, "nothing is written");
}
