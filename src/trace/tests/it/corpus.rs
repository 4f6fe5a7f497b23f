//! Converts every trace of the corpus to text and back.

use crate::forms::lines::convert_to_lines_and_back;
use chakram_trace::format::DecompressedTraceFile;
use std::collections::BTreeMap;
use testkit::corpus::{
    assert_results_match_expected_parts, corpus_path_or_count_skip, unpack_cases_in_memory,
};

/// Files that a round trip changes or rejects, each with a part of the reason that the test expects.
const NOT_CANONICAL: &[(&str, &str)] = &[
    ("u_x_truncated/wl/wl.0.et", "record 2, byte 74"),
    ("u_x_truncated/wl/wl.1.et", "record 2, byte 74"),
];

/// Returns the rank stated in the name of a case's trace file.
fn rank_of(file: &str) -> Option<u32> {
    file.strip_prefix("wl/wl.")?
        .strip_suffix(".et")?
        .parse()
        .ok()
}

#[test]
fn every_trace_round_trips_through_lines_byte_for_byte() {
    let Some(cases) = unpack_cases_in_memory() else {
        return;
    };
    let mut changed = BTreeMap::new();
    let mut files = 0;
    for (name, case) in &cases {
        for (file, contents) in case.iter().filter(|(file, _)| rank_of(file).is_some()) {
            files += 1;
            let why = match convert_to_lines_and_back(contents) {
                Ok(back) if back == contents[..] => continue,
                Ok(_) => "other bytes".to_owned(),
                Err(error) => error,
            };
            changed.insert(format!("{name}/{file}"), why);
        }
    }
    println!("{files} files, {} changed", changed.len());
    assert!(files > 1000, "{files} files");
    assert_results_match_expected_parts(&changed, NOT_CANONICAL);
}

#[test]
fn a_captured_trace_round_trips_through_lines_byte_for_byte() {
    let Some(path) = corpus_path_or_count_skip("captures/gpu/chakra_json/chakra.0.et.zst") else {
        return;
    };
    let contents =
        DecompressedTraceFile::open_as_current_schema(&path).expect("the corpus is there");
    let contents = contents.as_slice();
    assert_eq!(convert_to_lines_and_back(contents).unwrap(), contents);
}
