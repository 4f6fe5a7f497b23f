//! Numbers in options.

use super::{SYSTEM, refused, within};

#[test]
fn sizes_that_no_memory_holds_are_refused_before_it_is_asked_for() {
    let machine = ["--machine", "dgx-h100", "--max-memory", "2GiB"];
    let generate = |pattern: &[&'static str]| [&["generate"], pattern, &machine[..]].concat();
    // 100 million collectives on 8 ranks that share one graph: 6.1 GB for it, 3.2 GB for what each rank does.
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
        // 61 + 4 bytes each.
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
        refused(&generate(pattern), 300, &[least, "2.1 GB", "--max-memory"]);
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
        refused(args, 100, &[ranks, "4194304"]);
    }
}

#[test]
fn what_no_check_foresees_ends_with_an_error_as_well() {
    // A hundred thousand kernels take some 10 MB, and the program itself a few.
    let job = [
        "generate", "chain", "--ranks", "1", "--nodes", "100000", "-m", "dgx-h100",
    ];
    let with = |bound| within(3_000, &[&job[..], &["--max-memory", bound]].concat());
    let enough = with("1GB");
    assert_eq!((enough.code, &*enough.error), (0, ""));
    let short = with("9MB");
    assert_eq!(short.code, 2, "{short:?}");
    assert!(
        short.error.contains("out of memory") && short.error.contains("9.0 MB"),
        "{short:?}"
    );
    // The same where the system has no more, whatever the bound.
    let large = [
        "generate", "chain", "--ranks", "1", "--nodes", "1000000", "-m", "dgx-h100",
    ];
    let none = within(40, &[&large[..], &["--max-memory", "1TB"]].concat());
    assert_eq!(none.code, 2, "{none:?}");
    assert!(none.error.contains(SYSTEM), "{none:?}");
}
