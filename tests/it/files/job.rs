//! Tests jobs as one unit on disk: the files that commands read, and the files that they ignore.

use super::{Folder, replay_makespan, text_from_bytes};
use chakram::trace::{TraceFinder, TraceHashVerificationLevel};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const MACHINE: [&str; 2] = ["-m", "dgx-h100"];

fn generate_data_parallel_job(folder: &Folder, ranks: &str, prefix: &str) {
    let pattern = ["generate", "data-parallel", "--ranks", ranks, "-o", prefix];
    folder.run_successfully_for_stdout(&pattern);
}

fn read_json_file(folder: &Folder, name: &str) -> Value {
    serde_json::from_slice(&folder.read(name)).expect("it is JSON")
}

/// Ranks 1, 2 and 4 of 6 share a group, which a trace names but does not declare.
#[test]
fn a_job_folder_replays_with_its_stored_groups_and_machine() {
    let folder = Folder::new();
    let pattern = [
        "generate",
        "collective",
        "all-gather",
        "--size",
        "1MB",
        "--ranks",
        "6",
    ];
    let pattern = [&pattern[..], &["--group", "4,1,2", "-m", "w-2d"]].concat();
    let direct = replay_makespan(&folder, &pattern);
    folder.run_successfully_for_stdout(&[&pattern[..], &["-o", "s/job"]].concat());
    assert!(direct > 0);
    for job in ["s", "s/job", "s/job.job.json"] {
        assert_eq!(
            replay_makespan(&folder, &["replay", job, "-m", "w-2d"]),
            direct,
            "{job}"
        );
        // By default, a replay uses the machine for which the job was generated.
        assert_eq!(replay_makespan(&folder, &["replay", job]), direct, "{job}");
        folder.run_successfully_for_stdout(&["validate", job]);
    }
    let files: Vec<String> = (0..6).map(|rank| format!("s/job.{rank}.et")).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert_eq!(
        replay_makespan(&folder, &[&["replay"], &files[..]].concat()),
        direct
    );
    let job = read_json_file(&folder, "s/job.job.json");
    assert_eq!(job["schema"], "chakram.job.1");
    assert_eq!(job["machine"], "w-2d");
    assert_eq!(job["groups"], read_json_file(&folder, "s/job.groups.json"));
    for (rank, row) in job["ranks"].as_array().unwrap().iter().enumerate() {
        assert_eq!(row["rank"], rank);
        let file = folder.read(&format!("s/{}", row["file"].as_str().unwrap()));
        assert_eq!(row["bytes"], file.len());
        assert_eq!(row["blake3"], blake3::hash(&file).to_hex().as_str());
    }
    let report = folder.run_successfully_for_stdout(&["replay", "s", "--format", "json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    let inputs = report["inputs"].as_array().unwrap();
    let roles = inputs.iter().map(|input| input["role"].as_str().unwrap());
    let mut roles: Vec<_> = roles.collect();
    roles.dedup();
    assert_eq!(roles, ["trace", "job", "machine"]);
    // Groups of `--groups` replace the job's groups.
    folder.write("none.json", b"{}");
    let error = folder.run_refused_for_stderr(&["replay", "s", "--groups", "none.json"]);
    assert!(error.contains("is not declared"), "{error}");
    // Without the job's file, the group is undeclared again.
    std::fs::remove_file(folder.path_of_file("s/job.job.json")).unwrap();
    folder.run_refused_for_stderr(&["replay", "s", "-m", "w-2d"]);
    let groups = ["replay", "s", "-m", "w-2d", "--groups", "s/job.groups.json"];
    assert_eq!(replay_makespan(&folder, &groups), direct);
}

/// A job of four ranks is written over a job of eight ranks.
#[test]
fn ranks_of_an_earlier_job_are_not_read() {
    let folder = Folder::new();
    generate_data_parallel_job(&folder, "4", "four");
    let four = replay_makespan(&folder, &[&["replay", "four"], &MACHINE[..]].concat());
    generate_data_parallel_job(&folder, "8", "s/job");
    let eight = replay_makespan(&folder, &[&["replay", "s"], &MACHINE[..]].concat());
    assert_ne!(four, eight);
    let output = folder.run(&["generate", "data-parallel", "--ranks", "4", "-o", "s/job"]);
    let note = text_from_bytes(&output.stderr);
    let expected = "note: s/job.4.et to s/job.7.et (4 files) of earlier jobs stay in the folder";
    assert!(note.starts_with(expected), "{note}");
    assert!(folder.path_of_file("s/job.7.et").exists());
    for job in ["s", "s/job"] {
        assert_eq!(
            replay_makespan(&folder, &[&["replay", job], &MACHINE[..]].concat()),
            four
        );
    }
    // This is how a shell expands s/job.*.et.
    let all: Vec<String> = (0..8).map(|rank| format!("s/job.{rank}.et")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let replay = [&["replay"], &all[..], &MACHINE].concat();
    let error = folder.run_refused_for_stderr(&replay);
    assert!(
        error.contains("s/job.4.et: the file is not part of the job"),
        "{error}"
    );
    folder.run_refused_for_stderr(&["inspect", "s/job.5.et"]);
    folder.run_successfully_for_stdout(&["inspect", "s/job.5.et", "--no-verify"]);
}

#[test]
fn traces_that_were_changed_are_refused_by_name() {
    let folder = Folder::new();
    let generate = [
        "generate",
        "data-parallel",
        "--ranks",
        "4",
        "--no-links",
        "-o",
        "job",
    ];
    folder.run_successfully_for_stdout(&generate);
    let replay = [&["replay", "job"], &MACHINE[..]].concat();
    let sound = replay_makespan(&folder, &replay);
    let trace = folder.read("job.2.et");
    // One trace is a byte shorter, and one has a changed letter in a name.
    let mut other = trace.clone();
    let at = trace
        .windows(4)
        .position(|four| four == b"grad")
        .unwrap_or(trace.len() / 2);
    other[at] = b'x';
    for (contents, part) in [
        (&trace[..trace.len() - 1], "but the job's file states"),
        (&other, "the contents do not match the hash"),
    ] {
        folder.write("job.2.et", contents);
        for command in [
            &replay[..],
            &["inspect", "job"],
            &["audit", "--leaks", "job"],
        ] {
            let output = folder.run(command);
            let all = text_from_bytes(&output.stdout) + &text_from_bytes(&output.stderr);
            assert!(
                all.contains("job.2.et") && all.contains(part),
                "{command:?}: {all}"
            );
        }
        let error = folder.run_refused_for_stderr(&replay);
        assert!(error.contains("--no-verify"), "{error}");
        let output = folder.run(&["validate", "job"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text_from_bytes(&output.stdout).contains(part), "{output:?}");
    }
    folder.run_successfully_for_stdout(&[&replay[..], &["--no-verify"]].concat());
    std::fs::remove_file(folder.path_of_file("job.2.et")).unwrap();
    let error = folder.run_refused_for_stderr(&replay);
    assert!(
        error.contains("job.2.et: the file does not exist"),
        "{error}"
    );
    folder.write("job.2.et", &trace);
    assert_eq!(replay_makespan(&folder, &replay), sound);
    // An unreadable job file is an error, unless it is not needed.
    let job = folder.read("job.job.json");
    folder.write("job.job.json", &job[..job.len() / 2]);
    let error = folder.run_refused_for_stderr(&replay);
    assert!(error.contains("job.job.json, line"), "{error}");
    folder.run_successfully_for_stdout(&[&replay[..], &["--no-verify"]].concat());
    folder.run_successfully_for_stdout(&["replay", ".", "-m", "dgx-h100", "--no-verify"]);
    folder.write("job.job.json", &job);
    // The job's file lists only the original form of a trace, and not a converted form.
    folder.run_successfully_for_stdout(&["convert", "trace", "job.0.et", "-o", "job.0.jsonl"]);
    folder.run_successfully_for_stdout(&["inspect", "job.0.jsonl"]);
    // The program itself may rewrite a trace, and then records the new trace in the job's file.
    folder.run_successfully_for_stdout(&["convert", "trace", "job.0.jsonl", "-o", "job.2.et"]);
    assert_eq!(folder.read("job.2.et"), folder.read("job.0.et"));
    folder.run_successfully_for_stdout(&replay);
}

/// Above 64 MiB, only lengths are compared, unless there is time for hashes.
#[test]
fn large_jobs_are_not_hashed_on_the_way_into_a_replay() {
    let folder = Folder::new();
    for (bytes, hashed) in [(64 << 20, true), ((64 << 20) + 1, false)] {
        let hash = blake3::hash(b"").to_hex();
        let row =
            format!("{{\"rank\":0,\"file\":\"a.0.et\",\"bytes\":{bytes},\"blake3\":\"{hash}\"}}");
        let job = format!("{{\"schema\":\"chakram.job.1\",\"ranks\":[{row}]}}");
        folder.write("a.job.json", job.as_bytes());
        for (verify, expected) in [
            (TraceHashVerificationLevel::Lengths, Some(hashed)),
            (TraceHashVerificationLevel::Hashes, Some(true)),
            (TraceHashVerificationLevel::Nothing, None),
        ] {
            let mut finder = TraceFinder::new(verify);
            finder.add_path(&folder.path_of_file("a")).unwrap();
            let seal = finder.finish_search().files[0].seal;
            assert_eq!(seal.map(|seal| seal.blake3.is_some()), expected);
        }
    }
}

#[test]
fn a_folder_with_several_jobs_says_which() {
    let folder = Folder::new();
    generate_data_parallel_job(&folder, "2", "s/first");
    generate_data_parallel_job(&folder, "2", "s/second");
    let error = folder.run_refused_for_stderr(&[&["replay", "s"], &MACHINE[..]].concat());
    assert!(
        error.contains("several jobs; name one: s/first, s/second\n"),
        "{error}"
    );
    // A job's file is used even if some traces are elsewhere.
    std::fs::remove_file(folder.path_of_file("s/second.0.et")).unwrap();
    std::fs::remove_file(folder.path_of_file("s/second.1.et")).unwrap();
    folder.run_refused_for_stderr(&[&["replay", "s"], &MACHINE[..]].concat());
}

#[test]
fn a_job_written_to_a_folder_is_named_job() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path_of_file("there")).unwrap();
    for (output, said) in [
        ("new/", "new/job.0.et to new/job.1.et"),
        ("there", "there/job.0.et to there/job.1.et"),
        ("new/.", "new/./job.0.et"),
        ("a/b", "a/b.0.et to a/b.1.et"),
    ] {
        let args = ["generate", "data-parallel", "--ranks", "2", "-o", output];
        let text = folder.run_successfully_for_stdout(&args);
        assert!(text.contains(said), "{text}");
    }
    for name in ["new", "there"] {
        let listing = std::fs::read_dir(folder.path_of_file(name)).unwrap();
        let mut names: Vec<_> = listing.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["job.0.et", "job.1.et", "job.job.json"]);
    }
    folder.run_refused_for_stderr(&["generate", "data-parallel", "--ranks", "2", "-o", ""]);
}

/// Identical ranks are one file with several names, unless an option prevents this.
#[test]
fn identical_traces_are_linked_unless_an_option_prevents_it() {
    let folder = Folder::new();
    let links = |name: &str| {
        std::fs::metadata(folder.path_of_file(name))
            .unwrap()
            .nlink()
    };
    generate_data_parallel_job(&folder, "4", "linked");
    let generate = [
        "generate",
        "data-parallel",
        "--ranks",
        "4",
        "--no-links",
        "-o",
        "copied",
    ];
    folder.run_successfully_for_stdout(&generate);
    assert_eq!([links("linked.0.et"), links("copied.0.et")], [4, 1]);
    assert_eq!(folder.read("linked.3.et"), folder.read("copied.3.et"));
    let scale = ["scale", "linked", "--grid", "dp=4", "--to", "dp=6", "-o"];
    folder.run_successfully_for_stdout(&[&scale[..], &["more"]].concat());
    folder.run_successfully_for_stdout(&[&scale[..], &["apart", "--no-links"]].concat());
    assert_eq!([links("more.5.et"), links("apart.5.et")], [6, 1]);
    assert_eq!(folder.read("more.5.et"), folder.read("apart.5.et"));
    let first = read_json_file(&folder, "more.job.json")["ranks"].clone();
    assert_eq!(first.as_array().unwrap().len(), 6);
    assert!(Path::new(&folder.path_of_file("apart.job.json")).exists());
}
