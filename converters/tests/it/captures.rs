//! Compares the readers' results with a plain parse of the whole file, for every PyTorch file of
//! the corpus. The tests run only if the variable `CHAKRAM_CORPUS` names a folder that contains
//! `captures/`.

mod plain;

use chakram_converters::pytorch::{CaptureFileKind, HostTrace, KinetoTrace, sniff_file};
use chakram_trace::format::DecompressedTraceFile;
use serde_json::Value;
use std::path::{Path, PathBuf};
use testkit::corpus::{corpus_path_or_count_skip, sample_every_nth};

/// Corpus files that are not valid JSON, each named after the defect that makes it invalid (see
/// `captures/scripts/capture_edge.py`). Kineto replaced the backslash by a slash.
const NOT_JSON: &[(&str, &str)] = &[
    (
        "edge_names/host.0.json.zst",
        "quote \" backslash \\ tab \t newline \n end",
    ),
    (
        "t231_edge_names/host.0.json.zst",
        "quote \" backslash \\ tab \t newline \n end",
    ),
    (
        "t231_edge_names/kineto.0.json.zst",
        "quote \" backslash / tab \t newline \n end",
    ),
];

fn collect_capture_files(folder: &Path, into: &mut Vec<PathBuf>) {
    let listing = std::fs::read_dir(folder).expect("the corpus is there");
    for entry in listing {
        let path = entry.expect("it can be listed").path();
        let name = path.to_string_lossy();
        if path.is_dir() {
            collect_capture_files(&path, into);
        } else if name.ends_with(".json.zst") || name.ends_with(".json.gz") {
            into.push(path);
        }
    }
}

/// Parses the whole file as JSON. Returns `None` if the file is not valid JSON.
fn parse_json_file_or_none(path: &Path) -> Option<Value> {
    let contents = DecompressedTraceFile::decompress_file_without_converting(path)
        .expect("the corpus is there");
    serde_json::from_slice(contents.as_slice()).ok()
}

#[test]
fn captures_are_read_as_a_plain_parse_reads_them() {
    let Some(folder) = corpus_path_or_count_skip("captures") else {
        return;
    };
    let mut paths = Vec::new();
    collect_capture_files(&folder, &mut paths);
    paths.sort();
    assert!(paths.len() > 170, "{paths:?}");
    let (mut hosts, mut devices, mut others) = (0, 0, 0);
    for path in sample_every_nth(4, paths) {
        let name = path.to_string_lossy().replace('\\', "/");
        let broken = NOT_JSON
            .iter()
            .find(|(file, _)| name.contains(&format!("/{file}")));
        let repairs = match sniff_file(&path).unwrap() {
            CaptureFileKind::Host => {
                hosts += 1;
                let trace = HostTrace::read_file(&path).unwrap();
                match (parse_json_file_or_none(&path), broken) {
                    (Some(json), None) => plain::assert_host_trace_equals_json(&trace, &json),
                    (None, Some((_, name))) => {
                        assert!(trace.nodes.iter().any(|n| trace.texts.get(n.name) == *name));
                    }
                    _ => panic!("{name}: legal or not?"),
                }
                trace.repairs
            }
            CaptureFileKind::Kineto => {
                devices += 1;
                let trace = KinetoTrace::read_file(&path).unwrap();
                match (parse_json_file_or_none(&path), broken) {
                    (Some(json), None) => plain::assert_device_trace_equals_json(&trace, &json),
                    (None, Some((_, name))) => {
                        assert!(
                            trace
                                .events
                                .iter()
                                .any(|e| trace.texts.get(e.name) == *name)
                        );
                    }
                    _ => panic!("{name}: legal or not?"),
                }
                trace.repairs
            }
            CaptureFileKind::Steps | CaptureFileKind::Other => {
                others += 1;
                continue;
            }
        };
        let texts: Vec<_> = repairs.listed.iter().map(|r| r.text.as_str()).collect();
        assert_eq!(
            texts,
            Vec::from_iter(broken.map(|(_, text)| *text)),
            "{name}"
        );
    }
    println!("{hosts} host traces, {devices} device traces, {others} others");
    assert!(hosts >= 15 && devices >= 25, "{hosts} {devices}");
}
