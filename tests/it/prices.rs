//! Compares the times of kernels, collectives and hosts with measurements, and tests how predictions are scored.
//!
//! Measurements are in the subfolder `validation` of the folder that `CHAKRAM_CORPUS` names. Without it, tests that
//! need them report that they are skipped.

mod curves;
mod fits;
mod generated;
mod kernels;
mod measured_links;
mod scores;
mod tables;

use crate::corpus::corpus_path_or_count_skip;
use std::collections::BTreeMap;

/// Returns the rows of a CSV file without quotes.
fn read_validation_rows(name: &str) -> Option<Vec<BTreeMap<String, String>>> {
    let text = std::fs::read_to_string(corpus_path_or_count_skip("validation")?.join(name))
        .expect("it can be read");
    Some(parse_csv_rows(&text))
}

fn parse_csv_rows(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned));
    let heads: Vec<String> = lines.next().expect("there are headings").collect();
    lines
        .map(|cells| heads.iter().cloned().zip(cells).collect())
        .collect()
}

/// Returns the rows of a compressed CSV file.
fn read_compressed_csv_rows(name: &str) -> Option<Vec<BTreeMap<String, String>>> {
    let file = std::fs::File::open(corpus_path_or_count_skip("validation")?.join(name))
        .expect("it can be read");
    let mut text = String::new();
    let mut unpacked = flate2::read::GzDecoder::new(file);
    std::io::Read::read_to_string(&mut unpacked, &mut text).expect("it is sound");
    Some(parse_csv_rows(&text))
}
