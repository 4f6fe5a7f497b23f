//! Tests the extraction of single ranks and of node ranges.

use super::{ArchiveTestFolder, read_folder_files};
use std::path::Path;

/// Splits a trace into records; each record keeps its length prefix. This reader is independent of
/// the product's reader.
fn split_trace_records(trace: &[u8]) -> Vec<&[u8]> {
    let mut all = Vec::new();
    let mut rest = trace;
    while !rest.is_empty() {
        let bytes = rest.iter().take_while(|byte| **byte >= 0x80).count() + 1;
        let length = (0..bytes).fold(0, |length, at| {
            length | usize::from(rest[at] & 0x7f) << (7 * at)
        });
        let (record, after) = rest.split_at(bytes + length);
        all.push(record);
        rest = after;
    }
    all
}

/// Returns the offsets in an archive file where the frames of objects begin.
fn find_object_frame_offsets(archive: &[u8]) -> Vec<usize> {
    let places = archive.windows(4).enumerate();
    let places = places.filter(|(_, letters)| letters == b"CKOB");
    places.map(|(at, _)| at + 4).collect()
}

/// Extracts `nodes` of rank 0 into `to` and returns the trace.
fn extract_rank0_nodes(corpus: &ArchiveTestFolder, nodes: &str, to: &str) -> Vec<u8> {
    let out = format!("@{to}");
    let words = ["archive", "extract", "@a.etz::long", "-o", &out];
    corpus.run_successfully(&[&words[..], &["--ranks", "0", "--nodes", nodes]].concat());
    let found = read_folder_files(&corpus.at(to));
    assert_eq!(found.len(), 1, "the trace, and no file of the job");
    found.into_iter().next().unwrap().1
}

#[test]
fn node_ranges_of_one_rank_are_extracted_alone() {
    let corpus = ArchiveTestFolder::new();
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    let nodes = "90000";
    corpus.run_successfully(&[
        "generate", "chain", "--ranks", "2", "--nodes", nodes, "-o", "@job/job",
    ]);
    corpus.run_successfully(&["archive", "add", "@a.etz", "@job/job", "--name", "long"]);
    let shown = corpus.run_successfully(&["archive", "show", "@a.etz::long"]);
    assert!(shown.contains(&format!("  {nodes}\n")), "{shown}");
    let trace = std::fs::read(corpus.at("job/job.0.et")).unwrap();
    let all = split_trace_records(&trace);
    let expected =
        |first: usize, last: usize| [&all[..1], &all[first + 1..=last + 1]].concat().concat();
    for (range, first, last) in [
        ("0-9", 0, 9),
        ("7", 7, 7),
        ("100-89000", 100, 89_000),
        ("89990-1000000", 89_990, 89_999),
    ] {
        assert!(
            extract_rank0_nodes(&corpus, range, range) == expected(first, last),
            "{range}"
        );
    }
    let text = corpus.run_successfully(&["inspect", "@7/job.0.et"]);
    assert!(text.contains("1 node"), "{text}");
    // The second chunk is damaged, and only commands that read this chunk fail. This shows that a part is read without
    // the data after it.
    let path = corpus.at("a.etz");
    let mut bytes = std::fs::read(&path).unwrap();
    let frames = find_object_frame_offsets(&bytes);
    assert!(trace.len() > 4 << 20 && frames.len() >= 3, "{frames:?}");
    bytes[(frames[1] + frames[2]) / 2] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(extract_rank0_nodes(&corpus, "0-9", "again") == expected(0, 9));
    let whole = ["archive", "extract", "@a.etz::long", "-o", "@whole"];
    let error = corpus.run_failing_with_code(2, &whole);
    assert!(error.contains("a frame cannot be unpacked"), "{error}");
    corpus.run_failing_with_code(2, &[&whole[..], &["--nodes", "89990-89999"]].concat());
    assert!(!Path::new(&corpus.at("whole/job.0.et")).exists());
}

#[test]
fn absent_ranks_and_node_ranges_are_refused() {
    let corpus = ArchiveTestFolder::new();
    corpus.run_successfully(&["archive", "create", "@a.etz"]);
    corpus.add_small_job("@a.etz", "x", "1");
    let extract = |archive: &str, words: &[&str]| {
        let all = ["archive", "extract", archive, "-o", "@out"];
        corpus.run_failing_with_code(2, &[&all[..], words].concat())
    };
    let error = extract("@a.etz::x", &["--nodes", "1000"]);
    assert!(
        error.contains("job.0.et: the trace has ")
            && error.contains(" nodes, but none in this range"),
        "{error}"
    );
    let error = extract("@a.etz::x", &["--ranks", "5-9"]);
    assert!(error.contains("ranks 0 to 1"), "{error}");
    for wrong in ["3-1", "a", "-", "1-2-3"] {
        let option = format!("--nodes={wrong}");
        assert!(
            extract("@a.etz::x", &[&option]).contains("is not a range"),
            "{wrong}"
        );
    }
    // If a trace is archived as opaque bytes, its nodes are unknown.
    std::fs::create_dir(corpus.at("odd")).unwrap();
    std::fs::write(corpus.at("odd/job.0.et"), b"no trace").unwrap();
    corpus.run_successfully(&["archive", "add", "@a.etz", "@odd/job.0.et", "--name", "odd"]);
    let error = extract("@a.etz::odd", &["--nodes", "0"]);
    assert!(error.contains("records are unknown"), "{error}");
    assert!(!corpus.at("out").exists() || read_folder_files(&corpus.at("out")).is_empty());
}
