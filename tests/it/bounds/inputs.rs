//! Tests compressed files that unpack to millions of times their size, and endlessly nested text.

use super::{SYSTEM, expect_bound_error, run_with_memory_limit};
use crate::corpus::sample_every_nth;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Memory limit in MB that is enough for all of these files.
const ROOM: u64 = 400;

fn write_repeated_zstd(path: &Path, piece: &[u8], times: usize, head: &[u8], tail: &[u8]) {
    let mut out =
        zstd::stream::write::Encoder::new(std::fs::File::create(path).unwrap(), 3).unwrap();
    out.write_all(head).unwrap();
    for _ in 0..times {
        out.write_all(piece).unwrap();
    }
    out.write_all(tail).unwrap();
    out.finish().unwrap();
}

fn write_repeated_gzip(path: &Path, piece: &[u8], times: usize, head: &[u8], tail: &[u8]) {
    let file = std::fs::File::create(path).unwrap();
    let mut out = flate2::write::GzEncoder::new(file, flate2::Compression::best());
    out.write_all(head).unwrap();
    for _ in 0..times {
        out.write_all(piece).unwrap();
    }
    out.write_all(tail).unwrap();
    out.finish().unwrap();
}

/// The record before all nodes.
const HEAD: &[u8] = b"\x07\x0a\x050.0.4";

/// A file's name, and three parts of its unpacked content: the beginning, a repeated part, and the end.
type DecompressionBombFile = (&'static str, Vec<u8>, Vec<u8>, Vec<u8>);

/// Returns files that unpack to 64 MiB of valid contents.
fn list_decompression_bombs() -> Vec<DecompressionBombFile> {
    let mib = |piece: &[u8]| piece.repeat((1 << 20) / piece.len());
    let lines = b"{\"schema\":\"chakram.trace.1\",\"version\":\"0.0.4\"}\n".to_vec();
    vec![
        // Nodes have default values, so each takes one byte.
        ("empty.0.et.zst", HEAD.to_vec(), mib(b"\0"), Vec::new()),
        // Each node has only the id 1.
        (
            "ids.0.et.zst",
            HEAD.to_vec(),
            mib(b"\x02\x08\x01"),
            Vec::new(),
        ),
        // One node has a name of 64 MiB: field 2, with the length of the bytes that follow.
        (
            "name.0.et.zst",
            [HEAD, b"\x85\x80\x80\x20\x12\x80\x80\x80\x20"].concat(),
            mib(b"a"),
            Vec::new(),
        ),
        // One node has 67 million dependencies: field 5, packed.
        (
            "packed.0.et.zst",
            [HEAD, b"\x85\x80\x80\x20\x2a\x80\x80\x80\x20"].concat(),
            mib(b"\x01"),
            Vec::new(),
        ),
        (
            "lines.0.jsonl.zst",
            lines.clone(),
            mib(b"{\"id\":1}\n"),
            Vec::new(),
        ),
        ("line.0.jsonl.zst", lines, mib(b" "), Vec::new()),
        (
            "list.0.json.zst",
            b"{\"nodes\":[{\"id\":1,\"data_deps\":[0".to_vec(),
            mib(b",0"),
            b"]}]}".to_vec(),
        ),
        (
            "open.0.json.zst",
            b"{\"nodes\":[".to_vec(),
            mib(b"{\"id\":1},"),
            b"{\"id\":2}]}".to_vec(),
        ),
        (
            "spaces.0.json.zst",
            b"{\"nodes\"".to_vec(),
            mib(b" "),
            b":[]}".to_vec(),
        ),
    ]
}

/// Returns every command that reads traces, with `file` as its trace.
fn list_trace_commands<'c>(file: &'c str, out: &'c str) -> Vec<Vec<&'c str>> {
    vec![
        vec!["validate", file],
        vec!["inspect", file],
        vec!["replay", file, "--machine", "dgx-h100"],
        vec!["diff", file, file],
        vec!["slice", file, "--from", "1", "-o", out],
        vec!["anonymise", file, "--random-key", "-o", out],
        vec!["audit", "--leaks", file],
        vec!["convert", "trace", file, "-o", out, "--to", "et"],
    ]
}

#[test]
fn compressed_bombs_are_refused_as_they_unpack() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    let out = path("out.et");
    let mut bombs_of_one = list_decompression_bombs();
    let ids = bombs_of_one.remove(1);
    let some = sample_every_nth(6, bombs_of_one);
    for (name, head, piece, tail) in some.into_iter().chain([ids]) {
        write_repeated_zstd(&path(name), &piece, 64, &head, &tail);
        let size = std::fs::metadata(path(name)).unwrap().len();
        assert!(size < 50_000, "{name}: {size}");
        let file = path(name);
        let all = list_trace_commands(file.to_str().unwrap(), out.to_str().unwrap());
        // All commands use the same reader, so one file per command is enough.
        let some = if name.starts_with("ids") { 0 } else { 7 };
        for command in all.into_iter().skip(some) {
            let ran = run_with_memory_limit(ROOM, &command);
            assert_eq!(ran.code, 2, "{command:?}: {ran:?}");
            let told = format!("{}{}", ran.error, ran.out);
            // Content that is unpacked as a stream may prove invalid before it exceeds the bound.
            assert!(
                told.contains("--max-ratio") || command[0] == "convert",
                "{command:?}: {told}"
            );
            assert!(!ran.error.contains(SYSTEM), "{command:?}: {told}");
        }
    }
    // gzip compresses at most by a factor of 1032.
    let (_, head, piece, tail) = list_decompression_bombs().swap_remove(1);
    let file = path("ids.1.et.gz");
    write_repeated_gzip(&file, &piece, 64, &head, &tail);
    expect_bound_error(&["validate", file.to_str().unwrap()], 500, &[]);
}

#[test]
fn a_bomb_that_is_let_in_stays_within_the_bound_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (name, head, piece, tail) = list_decompression_bombs().swap_remove(1);
    let file = folder.path().join(name);
    write_repeated_zstd(&file, &piece, 64, &head, &tail);
    let file = file.to_str().unwrap();
    let bounds = ["--max-ratio", "1000000", "--max-memory", "300MB"];
    for command in [
        &["validate", file][..],
        &["inspect", file],
        &["diff", file, "traces/data-parallel-8/job.0.et"],
    ] {
        let ran = run_with_memory_limit(ROOM, &[command, &bounds].concat());
        assert_eq!(ran.code, 2, "{command:?}: {ran:?}");
        let told = format!("{}{}", ran.error, ran.out);
        assert!(
            told.contains("--max-memory") && !told.contains(SYSTEM),
            "{command:?}: {told}"
        );
    }
}

#[test]
fn trace_with_a_realistic_compression_ratio_is_accepted() {
    // A chain of 250,000 kernels takes 20 MB, more than any input may unpack to, and compresses to a seventeenth of its
    // size.
    let folder = tempfile::tempdir().unwrap();
    let job = folder.path().join("job");
    let (job, packed) = (job.to_str().unwrap(), folder.path().join("packed.0.et.zst"));
    let size = ["--ranks", "1", "--nodes", "250000", "-o", job];
    let ran = run_with_memory_limit(ROOM, &[&["generate", "chain"], &size[..]].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    let plain = std::fs::read(format!("{job}.0.et")).unwrap();
    assert!(plain.len() > 16 << 20);
    std::fs::write(&packed, zstd::encode_all(&plain[..], 3).unwrap()).unwrap();
    let ran = run_with_memory_limit(ROOM, &["validate", packed.to_str().unwrap()]);
    assert_eq!((ran.code, &*ran.error), (0, ""));
}

#[test]
fn brackets_nest_as_deep_as_they_like() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let objects = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    for (i, inner) in [deep, objects].into_iter().enumerate() {
        for (name, text) in [
            (format!("x{i}.0.json"), format!("{{\"nodes\":{inner}}}")),
            (
                format!("y{i}.0.json"),
                format!("{{\"nodes\":[{{\"id\":1,\"x\":{inner}}}]}}"),
            ),
            (
                format!("z{i}.0.jsonl"),
                format!("{{\"schema\":\"chakram.trace.1\"}}\n{{\"id\":1,\"inputs\":{inner}}}"),
            ),
            (
                format!("w{i}.0.json"),
                format!("{{\"x\":{inner}, \"nodes\":[]}}"),
            ),
        ] {
            std::fs::write(path(&name), text).unwrap();
            let file = path(&name);
            let file = file.to_str().unwrap();
            expect_bound_error(&["validate", file], 100, &[]);
            expect_bound_error(&["diff", file, file], 100, &[]);
            expect_bound_error(
                &["convert", "trace", file, "-o", "-", "--to", "et"],
                100,
                &[],
            );
            expect_bound_error(
                &[
                    "convert",
                    "pytorch",
                    file,
                    "-o",
                    folder.path().join("o").to_str().unwrap(),
                ],
                100,
                &[],
            );
        }
        for (name, text) in [
            ("groups.json", inner.clone()),
            (
                "report.json",
                format!("{{\"schema\":\"chakram.report.1\",\"x\":{inner}}}"),
            ),
            ("machine.toml", format!("x = {}", inner.replace(':', "="))),
        ] {
            std::fs::write(path(name), text).unwrap();
        }
        let [groups, report, machine] = ["groups.json", "report.json", "machine.toml"].map(path);
        let [groups, report, machine] =
            [&groups, &report, &machine].map(|path| path.to_str().unwrap());
        let job = "traces/data-parallel-8";
        expect_bound_error(&["validate", job, "--groups", groups], 100, &[]);
        expect_bound_error(&["replay", job, "--machine", machine], 100, &[]);
        expect_bound_error(&["model", "show", machine], 100, &[]);
        expect_bound_error(&["diff", report, report], 100, &[]);
    }
}

#[test]
fn a_million_files_that_are_not_there_are_not_asked_for_one_by_one() {
    // A search for a million missing ranks takes no time.
    let folder = tempfile::tempdir().unwrap();
    let named = chakram::internals::PrefixedTraceFiles::new(&folder.path().join("job"));
    let begun = std::time::Instant::now();
    let there = (0..1_000_000).filter(|&rank| named.has_rank(rank)).count();
    assert_eq!(there, 0);
    assert!(begun.elapsed().as_secs() < 5);
}
