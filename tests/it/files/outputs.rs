//! Tests outputs that are devices, pipes, links, inputs, or the same file twice, and full disks.

use super::{Folder, text_from_bytes};
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

const LIST: [&str; 4] = ["model", "list", "-o", "out"];

fn make_fifo(folder: &Folder, name: &str) {
    let made = Command::new("mkfifo")
        .arg(folder.path_of_file(name))
        .status();
    assert!(made.expect("there is mkfifo").success());
}

/// Writes a job of two ranks that share one file with two names.
fn generate_shared_file_job(folder: &Folder) {
    let pattern = ["generate", "collective", "all-reduce", "--size", "1MB"];
    folder.run_successfully_for_stdout(&[&pattern[..], &["--ranks", "2", "-o", "job"]].concat());
}

#[test]
fn a_file_is_replaced_and_keeps_its_permissions() {
    let folder = Folder::new();
    let expected = folder.run_successfully_for_stdout(&["model", "list"]);
    folder.run_successfully_for_stdout(&LIST);
    assert_eq!(text_from_bytes(&folder.read("out")), expected);
    let umask = fs::metadata(folder.path_of_file("out")).unwrap().mode() & 0o777;
    assert_eq!(umask & 0o600, 0o600, "{umask:o}");
    for mode in [0o600, 0o640, 0o755] {
        folder.write("out", b"old");
        let before = fs::metadata(folder.path_of_file("out")).unwrap();
        fs::set_permissions(folder.path_of_file("out"), Permissions::from_mode(mode)).unwrap();
        folder.run_successfully_for_stdout(&LIST);
        let after = fs::metadata(folder.path_of_file("out")).unwrap();
        assert_eq!(after.mode() & 0o7777, mode, "{:o}", after.mode());
        assert_ne!(after.ino(), before.ino(), "it is another file, renamed");
        assert_eq!(text_from_bytes(&folder.read("out")), expected);
    }
    assert_eq!(folder.names(), ["out"]);
}

#[test]
fn output_is_written_through_symbolic_links() {
    let folder = Folder::new();
    let expected = folder.run_successfully_for_stdout(&["model", "list"]);
    fs::create_dir(folder.path_of_file("far")).unwrap();
    folder.write("far/real", b"old");
    symlink("far/real", folder.path_of_file("first")).unwrap();
    symlink("first", folder.path_of_file("out")).unwrap();
    symlink("far/new", folder.path_of_file("dangling")).unwrap();
    folder.run_successfully_for_stdout(&LIST);
    folder.run_successfully_for_stdout(&["model", "list", "-o", "dangling"]);
    for link in ["first", "out", "dangling"] {
        assert!(folder.path_of_file(link).is_symlink(), "{link}");
    }
    for real in ["far/real", "far/new"] {
        assert!(
            folder
                .path_of_file(real)
                .symlink_metadata()
                .unwrap()
                .is_file()
        );
        assert_eq!(text_from_bytes(&folder.read(real)), expected);
    }
    // Symbolic links form a cycle.
    symlink("b", folder.path_of_file("a")).unwrap();
    symlink("a", folder.path_of_file("b")).unwrap();
    folder.run_refused_for_stderr(&["model", "list", "-o", "a"]);
}

/// The test's own link leads to the device, so a program that replaces the path destroys only the link.
#[test]
fn devices_and_pipes_are_written_to() {
    let folder = Folder::new();
    let expected = folder.run_successfully_for_stdout(&["model", "list"]);
    symlink("/dev/null", folder.path_of_file("out")).unwrap();
    folder.run_successfully_for_stdout(&LIST);
    assert!(folder.path_of_file("out").is_symlink());
    let null = fs::metadata("/dev/null").unwrap();
    assert!(null.file_type().is_char_device());

    make_fifo(&folder, "pipe");
    let mut child = folder
        .command(&["model", "list", "-o", "pipe"])
        .spawn()
        .unwrap();
    let mut read = String::new();
    File::open(folder.path_of_file("pipe"))
        .unwrap()
        .read_to_string(&mut read)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(read, expected);
    let pipe = folder.path_of_file("pipe").symlink_metadata().unwrap();
    assert!(pipe.file_type().is_fifo());

    let listener = UnixListener::bind(folder.path_of_file("socket")).unwrap();
    let mut child = folder
        .command(&["model", "list", "-o", "socket"])
        .spawn()
        .unwrap();
    let mut read = String::new();
    let (mut stream, _) = listener.accept().unwrap();
    stream.read_to_string(&mut read).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(read, expected);

    // A descriptor that the parent process opened still belongs to the parent.
    let both = File::create(folder.path_of_file("both")).unwrap();
    let mut first = folder.command(&["model", "list", "-o", "/dev/stdout"]);
    assert!(first.stdout(both).status().unwrap().success());
    assert_eq!(text_from_bytes(&folder.read("both")), expected);
    assert_eq!(folder.names(), ["both", "out", "pipe", "socket"]);
}

#[test]
fn a_command_refuses_to_replace_its_own_input_files() {
    let folder = Folder::new();
    generate_shared_file_job(&folder);
    folder.run_successfully_for_stdout(&[
        "generate", "chain", "--ranks", "1", "--nodes", "3", "-o", "other",
    ]);
    folder.write("groups.json", b"{}");
    folder.write("key", b"secret");
    let machine = folder.run_successfully_for_stdout(&["machine", "show", "dgx-h100"]);
    folder.write("mine.toml", machine.as_bytes());
    symlink("job.1.et", folder.path_of_file("link")).unwrap();
    let before: Vec<_> = folder
        .names()
        .iter()
        .map(|name| folder.read(name))
        .collect();
    let replay = [
        "replay",
        "job",
        "-m",
        "mine.toml",
        "--groups",
        "groups.json",
    ];
    for (args, out) in [
        (&replay[..], "job.0.et"),
        (&replay, "./job.1.et"),
        (&replay, "link"),
        (&replay, "mine.toml"),
        (&replay, "groups.json"),
        (&replay, "job.job.json"),
        (&["validate", "job"], "job.0.et"),
        (&["inspect", "job", "--list"], "job.0.et"),
        (&["inspect", "job"], "job.0.et"),
        (&["diff", "job", "other"], "other.0.et"),
        (&["slice", "job", "--from", "0"], "job"),
        (&["scale", "job", "--grid", "dp=2", "--to", "dp=4"], "job"),
        (&["anonymise", "job", "--key-file", "key"], "job"),
        (&["convert", "trace", "job.0.et"], "job.0.et"),
        (
            &[
                "generate",
                "collective",
                "all-reduce",
                "--size",
                "1MB",
                "--ranks",
                "2",
                "--custom",
                "all-reduce=job",
                "-m",
                "mine.toml",
            ],
            "job",
        ),
    ] {
        let error = folder.run_refused_for_stderr(&[args, &["-o", out]].concat());
        assert!(error.contains("this command reads"), "{args:?}: {error}");
    }
    let timeline = [&replay[..], &["--timeline", "job.0.et"]].concat();
    folder.run_refused_for_stderr(&timeline);
    let after: Vec<_> = folder
        .names()
        .iter()
        .map(|name| folder.read(name))
        .collect();
    assert!(before == after);
}

#[test]
fn two_outputs_to_one_file_are_refused() {
    let folder = Folder::new();
    generate_shared_file_job(&folder);
    symlink("a", folder.path_of_file("b")).unwrap();
    let replay = ["replay", "job", "-m", "dgx-h100", "-o", "a", "--timeline"];
    for other in ["a", "./a", "b"] {
        let error = folder.run_refused_for_stderr(&[&replay[..], &[other]].concat());
        assert!(error.contains("two outputs"), "{error}");
        assert!(!folder.path_of_file("a").exists());
    }
    folder.run_successfully_for_stdout(&[&replay[..], &["c"]].concat());
    // A folder is not a valid output file.
    fs::create_dir(folder.path_of_file("d")).unwrap();
    let error = folder.run_refused_for_stderr(&["model", "list", "-o", "d"]);
    assert!(error.contains("this is a folder"), "{error}");
}

/// Returns all commands that write a report, each with the arguments before the option for the report's file.
fn list_report_commands() -> Vec<Vec<&'static str>> {
    let all: [&[&str]; 13] = [
        &["replay", "job", "-m", "dgx-h100", "-o"],
        &["replay", "job", "-m", "dgx-h100", "--format", "json", "-o"],
        &["replay", "job", "-m", "dgx-h100", "-m", "mi300x", "-o"],
        &["replay", "job", "-m", "dgx-h100", "--timeline"],
        &[
            "generate",
            "chain",
            "--ranks",
            "1",
            "--nodes",
            "9",
            "-m",
            "dgx-h100",
            "--timeline",
        ],
        &["validate", "job", "-o"],
        &["inspect", "job", "-o"],
        &["inspect", "job", "--list", "-o"],
        &["inspect", "job", "--critical-path", "-o"],
        &["diff", "job", "job", "-o"],
        &["model", "list", "-o"],
        &["model", "show", "gpt2-xl", "-o"],
        &["convert", "trace", "job.0.et", "--to", "jsonl", "-o"],
    ];
    all.iter().map(|args| args.to_vec()).collect()
}

#[test]
fn full_disks_exit_2_and_name_the_file() {
    let folder = Folder::new();
    generate_shared_file_job(&folder);
    folder.write_two_rank_cpu_capture("cap");
    symlink("/dev/full", folder.path_of_file("full")).unwrap();
    symlink("/dev/full", folder.path_of_file("out.0.et")).unwrap();
    symlink("/dev/full", folder.path_of_file("out.0.jsonl")).unwrap();
    let mut all = list_report_commands();
    all.iter_mut().for_each(|args| args.push("full"));
    let jobs: [&[&str]; 7] = [
        &["slice", "job", "--from", "0", "-o", "out"],
        &[
            "scale", "job", "--grid", "dp=2", "--to", "dp=4", "-o", "out",
        ],
        &["anonymise", "job", "--random-key", "-o", "out"],
        &[
            "generate", "chain", "--ranks", "2", "--nodes", "9", "-o", "out",
        ],
        &[
            "generate", "chain", "--ranks", "2", "--nodes", "90000", "-o", "out",
        ],
        &["convert", "trace", "job", "-o", "out.jsonl"],
        &["convert", "pytorch", "cap", "-o", "out"],
    ];
    all.extend(jobs.iter().map(|args| args.to_vec()));
    for args in &all {
        let error = folder.run_refused_for_stderr(args);
        let named = error.contains("full: cannot write") || error.contains("out.0.");
        assert!(
            named && error.contains("No space left"),
            "{args:?}: {error}"
        );
        assert_eq!(error.matches("cannot write").count(), 1, "{error}");
    }
    let left = folder.names();
    assert!(
        left.iter()
            .all(|name| !name.contains("tmp") && name != "out.1.et"),
        "{left:?}"
    );
    let printed: [&[&str]; 13] = [
        &["completions", "bash"],
        &["replay", "job", "-m", "dgx-h100"],
        &["replay", "job", "-m", "dgx-h100", "--format", "json"],
        &[
            "generate", "chain", "--ranks", "1", "--nodes", "9", "-m", "dgx-h100",
        ],
        &["validate", "job"],
        &["inspect", "job", "--list"],
        &["diff", "job", "job"],
        &[
            "slice", "job", "--from", "0", "-o", "sliced", "--format", "json",
        ],
        &["slice", "job.0.et", "--from", "0", "-o", "-"],
        &["convert", "trace", "job.0.et", "--to", "jsonl", "-o", "-"],
        &["machine", "list"],
        &["machine", "list", "--format", "json"],
        &["audit", "--leaks", "job", "--format", "json"],
    ];
    for args in printed {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = folder.command(args);
        let output = command
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let error = text_from_bytes(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        let expected = "error: standard output: cannot write\n  because: No space left";
        assert!(error.starts_with(expected), "{args:?}: {error}");
    }
}

#[test]
fn timelines_and_pages_go_to_standard_output_where_the_report_does_not() {
    let folder = Folder::new();
    generate_shared_file_job(&folder);
    for option in ["--timeline", "--html"] {
        let replay = ["replay", "job", "-m", "dgx-h100", option];
        let report = ["-o", "report.txt"];
        let named = [&replay[..], &["file.json"], &report].concat();
        assert!(folder.command(&named).status().unwrap().success());
        let piped = folder
            .command(&[&replay[..], &["-"], &report].concat())
            .output()
            .unwrap();
        assert!(piped.status.success(), "{}", text_from_bytes(&piped.stderr));
        let file = fs::read(folder.path().join("file.json")).unwrap();
        assert!(!file.is_empty() && piped.stdout == file, "{option}");
        let mixed = folder
            .command(&[&replay[..], &["-"]].concat())
            .output()
            .unwrap();
        assert_eq!(mixed.status.code(), Some(2));
        assert!(mixed.stdout.is_empty());
        let error = text_from_bytes(&mixed.stderr);
        assert!(error.contains("with the lines of the report"), "{error}");
    }
}

#[test]
fn closed_pipes_are_no_failures() {
    let folder = Folder::new();
    generate_shared_file_job(&folder);
    let printed: [&[&str]; 7] = [
        &["replay", "job", "-m", "dgx-h100", "--format", "json"],
        &[
            "slice", "job", "--from", "0", "-o", "sliced", "--format", "json",
        ],
        &["audit", "--leaks", "job", "--format", "json"],
        &["machine", "list", "--format", "json"],
        &["inspect", "job", "--list"],
        &["convert", "trace", "job.0.et", "--to", "jsonl", "-o", "-"],
        &["completions", "bash"],
    ];
    for args in printed {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = folder.command(args);
        let output = command
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(text_from_bytes(&output.stderr), "", "{args:?}");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
    }
}

/// Files may not grow beyond 100 kB, and the second rank's file exceeds this limit.
#[test]
fn a_job_too_large_for_the_disk_leaves_the_old_files() {
    let folder = Folder::new();
    let chain = [
        "generate",
        "chain",
        "--ranks",
        "2",
        "--no-links",
        "-o",
        "job",
        "--nodes",
    ];
    folder.run_successfully_for_stdout(&[&chain[..], &["9"]].concat());
    let before: Vec<_> = folder
        .names()
        .iter()
        .map(|name| folder.read(name))
        .collect();
    let program = env!("CARGO_BIN_EXE_chakram");
    let limited = format!("ulimit -f 100; exec {program} {} 90000", chain.join(" "));
    let mut shell = Command::new("bash");
    shell.current_dir(folder.path()).args(["-c", &limited]);
    let output = shell.output().unwrap();
    let error = text_from_bytes(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(error.contains("job.0.et: cannot write"), "{error}");
    let after: Vec<_> = folder
        .names()
        .iter()
        .map(|name| folder.read(name))
        .collect();
    assert!(before == after, "{:?}", folder.names());

    // Rank 0's file is complete, although rank 1's file is not.
    fs::remove_file(folder.path_of_file("job.1.et")).unwrap();
    symlink("/dev/full", folder.path_of_file("job.1.et")).unwrap();
    let old = folder.read("job.0.et");
    let error = folder.run_refused_for_stderr(&[&chain[..], &["8"]].concat());
    assert!(error.contains("job.1.et"), "{error}");
    assert!(old == folder.read("job.0.et"));
}
