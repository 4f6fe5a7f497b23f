//! Tests bad input. Errors name the file, the finding, what to try and, if useful, the byte. No
//! file is written, and no code panics.

use super::rig::{JobCaptureFiles, try_convert, write_generated_capture};
use crate::corpus::is_whole_corpus_requested;
use chakram::convert::ConvertOptions as Conversion;
use chakram::trace::MaybeCompressedWriter;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::capture::handwritten::{create_operator_event, create_single_rank};
use testkit::capture::{Device, JobParallelism, Options};

fn write_two_layer_cpu_job_capture(
    style: JobParallelism,
    seed: u64,
    ranks: u32,
) -> JobCaptureFiles {
    write_generated_capture(&Options {
        seed,
        layers: 2,
        ..Options::new(Device::Cpu, style, ranks)
    })
}

fn expect_and_return_conversion_error(paths: &[PathBuf]) -> String {
    expect_conversion_error_with_options(paths, &Conversion::default())
}

fn expect_conversion_error_with_options(paths: &[PathBuf], options: &Conversion) -> String {
    match try_convert(paths, options) {
        Ok(_) => panic!("{paths:?} converts"),
        Err(error) => {
            let text = error.to_string();
            println!("{text}\n");
            text
        }
    }
}

fn check_text_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

fn copy_file(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap();
}

/// Files are cut at points along their whole length, and close to their ends.
#[test]
fn files_that_end_early_are_refused() {
    let job = write_two_layer_cpu_job_capture(JobParallelism::Ddp, 0, 2);
    let folder = job.folder.path();
    for name in ["host.1.json", "kineto.1.json"] {
        let whole = std::fs::read(folder.join(name)).unwrap();
        for ending in ["", "gz", "zst"] {
            let packed = match ending {
                "" => whole.clone(),
                ending => {
                    let mut packer = MaybeCompressedWriter::new(Vec::new(), ending).unwrap();
                    packer.write_all(&whole).unwrap();
                    packer.finish().unwrap()
                }
            };
            let broken = tempfile::tempdir().unwrap();
            for other in [
                "host.0.json",
                "kineto.0.json",
                "host.1.json",
                "kineto.1.json",
            ] {
                if other != name {
                    copy_file(&folder.join(other), &broken.path().join(other));
                }
            }
            let dot = if ending.is_empty() { "" } else { "." };
            let path = broken.path().join(format!("{name}{dot}{ending}"));
            let steps = if ending.is_empty() { 40 } else { 8 };
            let steps = if is_whole_corpus_requested() {
                steps
            } else {
                steps / 4
            };
            let lengths = (0..steps).map(|n| packed.len() * n / steps);
            // Only white space follows the last bracket.
            for length in lengths.chain([packed.len() - 2, packed.len() - 4]) {
                std::fs::write(&path, &packed[..length]).unwrap();
                match try_convert(&[broken.path().to_owned()], &Conversion::default()) {
                    Ok(_) => assert!(
                        length + 4 >= packed.len(),
                        "{name} {ending} {length} of {}",
                        packed.len()
                    ),
                    Err(error) => {
                        check_text_contains(&error.to_string(), &[&name[..name.len() - 7]])
                    }
                }
            }
        }
    }
}

#[test]
fn garbage_in_a_capture_converts_or_is_refused_with_the_file_name() {
    let job = write_two_layer_cpu_job_capture(JobParallelism::Ddp, 0, 2);
    let whole = std::fs::read(job.folder.path().join("kineto.1.json")).unwrap();
    let path = job.folder.path().join("kineto.1.json");
    for at in (5..whole.len()).step_by(whole.len() / 30) {
        let mut broken = whole.clone();
        for (i, byte) in broken[at..].iter_mut().take(40).enumerate() {
            *byte = b"\"}{][,:\\\0\xff"[i % 10];
        }
        std::fs::write(&path, broken).unwrap();
        if let Err(error) = try_convert(&[job.folder.path().to_owned()], &Conversion::default()) {
            check_text_contains(&error.to_string(), &["kineto.1.json"]);
        }
    }
    for garbage in [
        &b""[..],
        b"{}",
        b"[]",
        b"null",
        b"\0\0\0\0",
        b"{\"traceEvents\": 5}",
        b"{\"traceEvents\": []}",
    ] {
        std::fs::write(&path, garbage).unwrap();
        expect_and_return_conversion_error(std::slice::from_ref(&path));
        expect_and_return_conversion_error(&[job.folder.path().to_owned()]);
    }
}

/// The files are from another job, another run or another rank.
#[test]
fn files_that_do_not_belong_together_are_refused() {
    let (one, other) = (
        write_two_layer_cpu_job_capture(JobParallelism::Ddp, 0, 2),
        write_two_layer_cpu_job_capture(JobParallelism::Pipeline, 0, 2),
    );
    let mixed = tempfile::tempdir().unwrap();
    let file = |job: &JobCaptureFiles, name: &str| job.folder.path().join(name);
    let both = |host: &Path, kineto: &Path| {
        copy_file(host, &mixed.path().join("host.0.json"));
        copy_file(kineto, &mixed.path().join("kineto.0.json"));
        expect_and_return_conversion_error(&[mixed.path().to_owned()])
    };
    let text = both(&file(&one, "host.0.json"), &file(&other, "kineto.0.json"));
    check_text_contains(
        &text,
        &["kineto.0.json", "different runs", "byte", "try: pair"],
    );

    // One rank has two files of the same kind.
    let text = expect_and_return_conversion_error(&[
        file(&one, "host.0.json"),
        file(&one, "kineto.0.json"),
        file(&one, "host.1.json"),
    ]);
    check_text_contains(
        &text,
        &[
            "host.1.json",
            "rank 1 has this host trace but no Kineto trace",
        ],
    );
    let again = tempfile::tempdir().unwrap();
    copy_file(
        &file(&one, "host.0.json"),
        &again.path().join("again.0.json"),
    );
    let text = expect_and_return_conversion_error(&[
        file(&one, "host.0.json"),
        file(&one, "kineto.0.json"),
        again.path().join("again.0.json"),
    ]);
    check_text_contains(&text, &["again.0.json", "same kind of file"]);

    // One rank's file occurs twice, under two names.
    let twice = tempfile::tempdir().unwrap();
    for (from, to) in [
        ("host.0.json", "host.0.json"),
        ("kineto.0.json", "kineto.0.json"),
        ("host.0.json", "host.1.json"),
        ("kineto.0.json", "kineto.1.json"),
    ] {
        copy_file(&file(&one, from), &twice.path().join(to));
    }
    let text = expect_and_return_conversion_error(&[twice.path().to_owned()]);
    check_text_contains(&text, &["rank 0", "kineto.1.json", "kineto.0.json"]);

    // One rank is from another run, which calls other collectives.
    let deeper = write_generated_capture(&Options {
        layers: 6,
        bucket: 1 << 18,
        ..Options::new(Device::Cpu, JobParallelism::Ddp, 2)
    });
    let strange = tempfile::tempdir().unwrap();
    for (job, rank) in [(&one, 0), (&deeper, 1)] {
        for what in ["host", "kineto"] {
            let name = format!("{what}.{rank}.json");
            copy_file(&file(job, &name), &strange.path().join(&name));
        }
    }
    let text = expect_and_return_conversion_error(&[strange.path().to_owned()]);
    check_text_contains(&text, &["rank 0", "rank 1", "collective"]);
}

#[test]
fn folders_without_captures_are_refused() {
    let empty = tempfile::tempdir().unwrap();
    let text = expect_and_return_conversion_error(&[empty.path().to_owned()]);
    check_text_contains(&text, &["no captures here", "try:"]);
    let text = expect_and_return_conversion_error(&[empty.path().join("missing")]);
    check_text_contains(&text, &["missing"]);
    std::fs::write(empty.path().join("config.json"), "{\"a\": 1}").unwrap();
    check_text_contains(
        &expect_and_return_conversion_error(&[empty.path().to_owned()]),
        &["no captures here"],
    );
    // Other JSON files in the folder change nothing.
    let job = write_two_layer_cpu_job_capture(JobParallelism::Ddp, 0, 2);
    std::fs::write(job.folder.path().join("config.json"), "{\"a\": 1}").unwrap();
    std::fs::write(job.folder.path().join("notes.0.json"), "[1, 2]").unwrap();
    assert!(try_convert(&[job.folder.path().to_owned()], &Conversion::default()).is_ok());
    let text = expect_and_return_conversion_error(&[job.folder.path().join("config.json")]);
    check_text_contains(&text, &["config.json", "neither a host trace"]);
}

#[test]
fn a_step_that_is_not_there_is_refused() {
    let job = write_two_layer_cpu_job_capture(JobParallelism::Ddp, 0, 2);
    let options = Conversion {
        step: Some(99),
        ..Conversion::default()
    };
    let text = expect_conversion_error_with_options(&[job.folder.path().to_owned()], &options);
    check_text_contains(&text, &["kineto.0.json", "no step 99", "[2]", "try:"]);
    let folder = tempfile::tempdir().unwrap();
    create_single_rank(&[create_operator_event("aten::mm", 0, 10, 1)]).write_files(folder.path());
    check_text_contains(
        &expect_conversion_error_with_options(&[folder.path().to_owned()], &options),
        &["no event is named `ProfilerStep#N`"],
    );
}

fn run_chakram(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_chakram"))
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn the_command_says_what_is_wrong_and_exits_with_2() {
    let job = write_two_layer_cpu_job_capture(JobParallelism::Ddp, 0, 2);
    let folder = job.folder.path().to_str().unwrap();
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    for prefix in [file.join("job"), PathBuf::from("/proc/nowhere/job")] {
        let output = run_chakram(&["convert", "pytorch", folder, "-o", prefix.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("job.0.et"),
            "{output:?}"
        );
    }
    let prefix = out.path().join("sub/job");
    let prefix = prefix.to_str().unwrap();
    let output = run_chakram(&["convert", "pytorch", folder, "-o", prefix]);
    assert!(output.status.success(), "folders are made: {output:?}");
    for rank in 0..2 {
        let path = job.folder.path().join(format!("host.{rank}.json"));
        std::fs::write(path, "garbage").unwrap();
    }
    let output = run_chakram(&[
        "convert",
        "pytorch",
        folder,
        "-o",
        out.path().join("other/job").to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!out.path().join("other/job.0.et").exists());
}
