//! Tests that extraction returns packed files byte for byte.

use super::{ArchiveTestFolder, read_folder_files};
use crate::corpus::{corpus_path_or_count_skip, sample_every_nth};
use std::io::Read;

const LEVELS: &[&str] = &["plain", "default", "best"];

/// Adds the traces under `prefix` to a file and to a folder, at each of the compression `levels`. Compares the
/// extracted files with `wanted`.
fn check_archive_round_trips(
    corpus: &ArchiveTestFolder,
    prefix: &str,
    levels: &[&str],
    wanted: &[(String, Vec<u8>)],
) {
    for (kind, ending) in [(&[][..], ".etz"), (&["--folder"], "")] {
        for &level in levels {
            let archive = format!("@{level}{ending}");
            corpus.run_successfully(&[&["archive", "create", &archive[..]], kind].concat());
            corpus.run_successfully(&[
                "archive", "add", &archive, prefix, "--name", "x", "--level", level,
            ]);
            let (workload, out) = (format!("{archive}::x"), format!("out{ending}-{level}"));
            corpus.run_successfully(&["archive", "extract", &workload, "-o", &format!("@{out}")]);
            let found = read_folder_files(&corpus.at(&out));
            let names = |files: &[(String, Vec<u8>)]| {
                files
                    .iter()
                    .map(|(name, _)| name.clone())
                    .collect::<Vec<_>>()
            };
            assert_eq!(names(&found), names(wanted));
            for (found, wanted) in found.iter().zip(wanted) {
                assert!(found == wanted, "{} is another", wanted.0);
            }
            corpus.run_successfully(&["archive", "verify", &archive]);
        }
    }
}

#[test]
fn generated_jobs_come_back() {
    for words in [
        &["data-parallel", "--ranks", "9", "--layers", "2"][..],
        &[
            "collective",
            "all-reduce",
            "--ranks",
            "4",
            "--size",
            "1 MB",
            "--count",
            "3",
        ],
        &[
            "llama3-8b",
            "--tensor",
            "2",
            "--pipeline",
            "2",
            "--batch",
            "4",
            "--tokens",
            "64",
        ],
    ] {
        let corpus = ArchiveTestFolder::new();
        let all = [&["generate"], words, &["-o", "@job/job"]].concat();
        corpus.run_successfully(&all);
        check_archive_round_trips(
            &corpus,
            "@job/job",
            LEVELS,
            &read_folder_files(&corpus.at("job")),
        );
    }
}

#[test]
fn captures_come_back() {
    check_captures_round_trip("captures/pytorch", &["default"], 4, 2);
}

#[test]
#[ignore = "takes minutes: cargo test --release --test it archive -- --ignored"]
fn captures_come_back_from_every_level() {
    check_captures_round_trip("captures/pytorch", LEVELS, 1, 8);
    check_captures_round_trip("captures/gpu", LEVELS, 1, 0);
}

/// Archives and extracts one of every `n` captures in a folder of the corpus. At least `at_least`
/// of these captures must be convertible.
fn check_captures_round_trip(folder: &str, levels: &[&str], n: usize, at_least: usize) {
    let Some(captures) = corpus_path_or_count_skip(folder) else {
        return;
    };
    let mut folders: Vec<_> = std::fs::read_dir(captures)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    folders.sort();
    let mut converted = 0;
    for folder in sample_every_nth(n, folders) {
        let corpus = ArchiveTestFolder::new();
        let from = folder.display().to_string();
        let traces = corpus.run_program(&["convert", "pytorch", &from, "-o", "@job/job"]);
        // Some captures cannot be converted, but their files are archived too.
        if traces.status.success() {
            converted += 1;
            check_archive_round_trips(
                &corpus,
                "@job/job",
                levels,
                &read_folder_files(&corpus.at("job")),
            );
        } else {
            corpus.run_successfully(&[
                "generate", "chain", "--ranks", "1", "--nodes", "1", "-o", "@job/job",
            ]);
        }
        corpus.run_successfully(&["archive", "create", "@raw.etz"]);
        corpus.run_successfully(&[
            "archive", "add", "@raw.etz", "@job/job", "--name", "raw", "--with", &from,
        ]);
        corpus.run_successfully(&["archive", "extract", "@raw.etz::raw", "-o", "@raw"]);
        let name = folder.file_name().unwrap().to_str().unwrap();
        assert!(
            read_folder_files(&corpus.at(&format!("raw/{name}"))) == read_folder_files(&folder),
            "{from}"
        );
    }
    assert!(converted >= at_least, "{converted}");
}

#[test]
fn other_files_added_with_a_workload_keep_their_places() {
    let corpus = ArchiveTestFolder::new();
    let case = "traces/data-parallel-8";
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    corpus.run_successfully(&[
        "archive",
        "add",
        "@a.etz",
        case,
        "--with",
        "README.md",
        "--with",
        "docs/tutorials",
    ]);
    corpus.run_successfully(&[
        "archive",
        "extract",
        "@a.etz::data-parallel-8",
        "-o",
        "@out",
    ]);
    let read = |name: &str| std::fs::read(corpus.at("out").join(name)).unwrap();
    assert!(read("README.md") == std::fs::read("README.md").unwrap());
    assert!(read("machine.toml") == std::fs::read(format!("{case}/machine.toml")).unwrap());
    assert!(corpus.at("out/tutorials/first-replay.md").is_file());
    // Ranks have traces, but the job's file, which lists the other ranks, is missing.
    corpus.run_successfully(&[
        "archive",
        "extract",
        "@a.etz::data-parallel-8",
        "-o",
        "@some",
        "--ranks",
        "2-3",
    ]);
    let traces = read_folder_files(&corpus.at("some"));
    let traces = traces
        .iter()
        .filter(|(name, _)| name.contains(".et"))
        .count();
    assert_eq!(traces, 2);
}

#[test]
fn a_file_that_is_named_twice_is_kept_once_and_two_of_a_name_are_refused() {
    let corpus = ArchiveTestFolder::new();
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    let case = "traces/data-parallel-8";
    let machine = "traces/data-parallel-8/machine.toml";
    corpus.run_successfully(&["archive", "add", "@a.etz", case, "--with", machine]);
    std::fs::create_dir(corpus.at("other")).unwrap();
    std::fs::write(corpus.at("other/machine.toml"), "# another\n").unwrap();
    let words = [
        "archive",
        "add",
        "@a.etz",
        case,
        "--name",
        "b",
        "--with",
        "@other/machine.toml",
    ];
    let output = corpus.run_program(&words);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("would both be stored as `machine.toml`"),
        "{error}"
    );
    assert_eq!(
        super::list_workload_names(&corpus.at("a.etz")),
        ["data-parallel-8"]
    );
}

#[test]
fn plain_archives_are_traces_to_any_reader_of_zstd() {
    let corpus = ArchiveTestFolder::new();
    corpus.run_successfully(&[
        "generate",
        "data-parallel",
        "--ranks",
        "3",
        "--layers",
        "1",
        "--no-links",
        "-o",
        "@job/job",
    ]);
    corpus.run_successfully(&[
        "generate",
        "collective",
        "all-gather",
        "--ranks",
        "2",
        "--size",
        "1 kB",
        "-o",
        "@other/job",
    ]);
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    for name in ["job", "other"] {
        let prefix = format!("@{name}/job");
        corpus.run_successfully(&[
            "archive",
            "add",
            "@a.etz",
            &prefix,
            "--name",
            name,
            "--level",
            "plain",
            "--with",
            "README.md",
        ]);
    }
    // Equal traces are stored once. All other data are in skippable frames.
    let trace = |name: &str| std::fs::read(corpus.at(name)).unwrap();
    let mut wanted = trace("job/job.0.et");
    for other in [
        "job/job.1.et",
        "job/job.2.et",
        "other/job.0.et",
        "other/job.1.et",
    ] {
        if ![trace("job/job.0.et"), trace("other/job.0.et")].contains(&trace(other))
            || other == "other/job.0.et"
        {
            wanted.extend(trace(other));
        }
    }
    let packed = std::fs::File::open(corpus.at("a.etz")).unwrap();
    let mut found = Vec::new();
    zstd::Decoder::new(packed)
        .unwrap()
        .read_to_end(&mut found)
        .unwrap();
    assert!(
        found == wanted,
        "{} bytes, and not {}",
        found.len(),
        wanted.len()
    );
}

#[test]
fn commands_take_workloads_where_they_take_traces() {
    let corpus = ArchiveTestFolder::new();
    let case = "traces/data-parallel-8";
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    corpus.run_successfully(&["archive", "add", "@a.etz", case, "--name", "x/dp"]);
    let body = |text: String| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert!(
        corpus
            .run_successfully(&["validate", "@a.etz::x/dp"])
            .contains("verdict: sound")
    );
    for command in [
        &["replay"][..],
        &["inspect"],
        &["replay", "--machine", "dgx-h100"],
    ] {
        let ours = corpus.run_successfully(&[command, &["@a.etz::x/dp"]].concat());
        let files = corpus.run_successfully(&[command, &[case]].concat());
        assert_eq!(body(ours), body(files), "{command:?}");
    }
    let same = corpus.run_successfully(&["diff", "@a.etz::x/dp", case]);
    assert!(same.contains("no differences"), "{same}");
    let json = |from: &str| -> serde_json::Value {
        serde_json::from_str(&corpus.run_successfully(&["replay", from, "--format", "json"]))
            .unwrap()
    };
    // The input hashes in reports equal the hashes of the files.
    let hashes = |report: serde_json::Value| -> Vec<String> {
        let inputs = report["inputs"].as_array().unwrap();
        inputs
            .iter()
            .map(|input| input["blake3"].to_string())
            .collect()
    };
    assert_eq!(hashes(json("@a.etz::x/dp")), hashes(json(case)));
    corpus.run_successfully(&[
        "anonymise",
        "@a.etz::x/dp",
        "--random-key",
        "-o",
        "@other/job",
    ]);
    let error = corpus.run_failing_with_code(2, &["replay", "@a.etz::dp"]);
    assert!(
        error.contains("the archive has no workload `dp`") && error.contains("x/dp"),
        "{error}"
    );
    let error = corpus.run_failing_with_code(2, &["replay", "@b.etz::dp"]);
    assert!(error.contains("b.etz: cannot open"), "{error}");
}
