//! Tests large numbers in options.

use super::{SYSTEM, expect_bound_error, run_with_memory_limit};

#[test]
fn sizes_that_no_memory_holds_are_refused_before_it_is_asked_for() {
    let machine = ["--machine", "dgx-h100", "--max-memory", "2GiB"];
    let generate = |pattern: &[&'static str]| [&["generate"], pattern, &machine[..]].concat();
    // 100 million collectives on 8 ranks that share one graph need 6.1 GB for the graph and 3.2 GB for the ranks'
    // state.
    for (pattern, least) in [
        (
            &[
                "collective",
                "all-reduce",
                "--size",
                "1MB",
                "--ranks",
                "8",
                "--count",
                "100000000",
            ][..],
            "9.3 GB",
        ),
        (
            &[
                "p2p",
                "ring",
                "--size",
                "1MB",
                "--ranks",
                "8",
                "--count",
                "100000000",
            ][..],
            "GB",
        ),
        // Each node takes 61 + 4 bytes.
        (
            &["chain", "--ranks", "1", "--nodes", "400000000"][..],
            "26.0 GB",
        ),
        (
            &[
                "memory",
                "--ranks",
                "8",
                "--bytes",
                "1MB",
                "--loads",
                "400000000",
            ][..],
            "GB",
        ),
        (
            &["data-parallel", "--ranks", "8", "--steps", "4000000"][..],
            "GB",
        ),
        (
            &["data-parallel", "--ranks", "8", "--layers", "40000000"][..],
            "GB",
        ),
    ] {
        expect_bound_error(&generate(pattern), 300, &[least, "2.1 GB", "--max-memory"]);
    }
}

#[test]
fn no_job_has_a_billion_ranks() {
    let ranks = "1000000000";
    for args in [
        &["replay", "traces/data-parallel-8", "--ranks", ranks][..],
        &["validate", "traces/data-parallel-8", "--ranks", ranks][..],
        &[
            "generate",
            "collective",
            "barrier",
            "--ranks",
            ranks,
            "-m",
            "dgx-h100",
        ][..],
        &[
            "generate",
            "collective",
            "barrier",
            "--ranks",
            ranks,
            "-o",
            "/nowhere/job",
        ][..],
        &[
            "generate", "p2p", "random", "--size", "1MB", "--ranks", ranks, "-m", "dgx-h100",
        ][..],
        &[
            "generate", "chain", "--ranks", ranks, "--nodes", "1", "-m", "dgx-h100",
        ][..],
    ] {
        expect_bound_error(args, 100, &[ranks, "4194304"]);
    }
}

#[test]
fn unforeseen_memory_use_ends_with_an_out_of_memory_error() {
    // A hundred thousand kernels take about 10 MB, and the program itself needs a few MB.
    let job = [
        "generate", "chain", "--ranks", "1", "--nodes", "100000", "-m", "dgx-h100",
    ];
    let with = |bound| run_with_memory_limit(3_000, &[&job[..], &["--max-memory", bound]].concat());
    let enough = with("1GB");
    assert_eq!((enough.code, &*enough.error), (0, ""));
    let short = with("9MB");
    assert_eq!(short.code, 2, "{short:?}");
    assert!(
        short.error.contains("out of memory") && short.error.contains("9.0 MB"),
        "{short:?}"
    );
    // Whatever the bound, the error is the same if the system runs out of memory.
    let large = [
        "generate", "chain", "--ranks", "1", "--nodes", "1000000", "-m", "dgx-h100",
    ];
    let none = run_with_memory_limit(40, &[&large[..], &["--max-memory", "1TB"]].concat());
    assert_eq!(none.code, 2, "{none:?}");
    assert!(none.error.contains(SYSTEM), "{none:?}");
}

/// A node takes at least 61 B when a trace is read back, so a billion nodes take 61 GB.
#[test]
fn counts_that_no_trace_holds_are_refused_before_files_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let text = file(
        "data.txt",
        "DATA\n1\nfc -1 40 NONE 0 45 NONE 0 50 ALLREDUCE 8196000 10\n",
    );
    let simai = file(
        "moe.txt",
        include_str!("../../../fuzz/seeds/simai/checkpoints.txt"),
    );
    let out = folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let job = out.join("job").display().to_string();
    let billion = "1000000000";
    let size = ["--size", "1MB", "--ranks", "2", "--count", billion];
    for (words, hint) in [
        (
            [&["generate", "collective", "all-reduce"][..], &size].concat(),
            "a lower count",
        ),
        (
            [&["generate", "p2p", "ring"][..], &size].concat(),
            "a lower count",
        ),
        (
            vec!["generate", "chain", "--ranks", "2", "--nodes", billion],
            "fewer nodes",
        ),
        (
            vec![
                "generate", "memory", "--ranks", "2", "--bytes", "1MB", "--loads", billion,
            ],
            "fewer loads",
        ),
        (
            vec!["convert", "text", &text, "--npus", "2", "--passes", billion],
            "--passes",
        ),
        (
            vec![
                "convert", "simai", &simai, "--npus", "8", "--passes", billion,
            ],
            "--passes",
        ),
    ] {
        let words = [&words[..], &["-o", &job, "--max-memory", "2GiB"]].concat();
        expect_bound_error(&words, 300, &[hint, "2.1 GB", "--max-memory"]);
    }
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
    expect_bound_error(
        &["topology", "random", "--draws", billion],
        300,
        &["--draws", "1000000"],
    );
    for (key, value) in [
        ("--tensor", "tensor"),
        ("--micro-batches", "micro_batches"),
        ("--embedding", "embedding"),
        ("--decoders", "decoders"),
    ] {
        let words = ["schedule", "--topology", "interfaces:4", "--encoders", "1"];
        expect_bound_error(&[&words[..], &[key, billion]].concat(), 300, &[value]);
    }
}
