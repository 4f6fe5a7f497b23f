//! Tests that a replay as captured ends when the capture ended. A replay as recorded also ends when
//! the capture ended, because it reproduces every wait.

use super::rig::{
    convert_folder, read_json_file, replay_traces, try_convert, write_generated_capture,
};
use super::truth::list_generated_jobs;
use crate::corpus::{corpus_path_or_count_skip, find_expected_refusal, sample_every_nth};
use chakram::convert::ConvertOptions as Conversion;
use chakram::engine::CommunicationDurationSource;
use chakram::trace::DecompressedTraceFile;
use chakram::workload::MissingRankPolicy;
use std::path::{Path, PathBuf};

/// The replay may differ from the captured time by at most 1 / `CAPTURED` of this time.
const CAPTURED: u64 = 1000;
const RECORDED: u64 = 1000;

/// Converts a job and compares its replays with its Kineto files.
fn check_faithful_replay(what: &str, paths: &[PathBuf], kineto: &[PathBuf]) {
    let job = try_convert(paths, &Conversion::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let spans: Vec<_> = kineto.iter().map(|path| read_kineto_span(path)).collect();
    let first = |i: usize| spans[i].0 + job.summary.ranks[i].offset.applied;
    let origin = (0..spans.len()).map(first).min().unwrap();
    for (i, trace) in job.traces.iter().enumerate() {
        let expected = spans[i].1 + job.summary.ranks[i].offset.applied - origin;
        assert_eq!(
            trace.captured_ns() as i64,
            expected,
            "{what} rank {}",
            trace.rank
        );
        assert_eq!(
            job.summary.ranks[i].own_ns,
            spans[i].1 - spans[i].0,
            "{what}"
        );
    }
    for (comm, part) in [
        (CommunicationDurationSource::Captured, CAPTURED),
        (CommunicationDurationSource::Recorded, RECORDED),
    ] {
        let ends = replay_traces(&job.traces, comm, |_| 0, MissingRankPolicy::Refuse)
            .last_node_end_of_each_rank_ns();
        for (end, trace) in ends.iter().zip(&job.traces) {
            let captured = trace.captured_ns();
            let off = end.abs_diff(captured);
            assert!(
                off * part <= captured,
                "{what} rank {} {comm:?}: {end}, captured {captured}",
                trace.rank
            );
        }
    }
    println!(
        "{what}: {} ranks, {} nodes",
        job.traces.len(),
        job.traces.iter().map(|t| t.nodes.len()).sum::<usize>()
    );
}

/// Returns the first start and the last end among the events of all threads and streams in a Kineto file, in ns since
/// the epoch, as a plain parser reads them.
fn read_kineto_span(path: &Path) -> (i64, i64) {
    let (mut first, mut last) = (i64::MAX, i64::MIN);
    for (category, start, end) in complete_events(path) {
        let host = matches!(
            &*category,
            "cpu_op" | "user_annotation" | "cuda_runtime" | "cuda_driver"
        );
        let device = matches!(&*category, "kernel" | "gpu_memcpy" | "gpu_memset");
        if host {
            first = first.min(start);
        }
        if host || device {
            last = last.max(end);
        }
    }
    (first, last)
}

/// Parses decimal microseconds to whole nanoseconds. A double would lose digits.
fn parse_us_as_ns(text: &str) -> i64 {
    let (us, rest) = text.split_once('.').unwrap_or((text, ""));
    let rest: i64 = format!("{rest:0<3}")[..3].parse().unwrap();
    us.parse::<i64>().unwrap() * 1000 + rest
}

/// Returns the category, and the start and end in ns, of each event with a duration.
fn complete_events(path: &Path) -> Vec<(String, i64, i64)> {
    let Some(file) = read_json_file(path) else {
        return parse_events_of_unescaped_json_by_line(path);
    };
    let base = file["baseTimeNanoseconds"].as_i64().unwrap_or(0);
    let events = file["traceEvents"].as_array().unwrap().iter();
    let events = events.filter(|event| event["ph"] == "X").map(|event| {
        let category = event["cat"].as_str().unwrap_or("").to_owned();
        let start = base + parse_us_as_ns(&event["ts"].to_string());
        (
            category,
            start,
            start + parse_us_as_ns(&event["dur"].to_string()),
        )
    });
    events.collect()
}

/// Returns the same events of a file that is invalid JSON because its profiler did not escape names. Each event has a
/// line that begins with phase and category, and is readable up to the name. Another of its lines has only times.
fn parse_events_of_unescaped_json_by_line(path: &Path) -> Vec<(String, i64, i64)> {
    let contents = DecompressedTraceFile::decompress_file_without_converting(path).unwrap();
    let text = String::from_utf8_lossy(contents.as_slice());
    let value = |line: &str, key: &str| -> Option<String> {
        let rest = line.split_once(&format!("\"{key}\": "))?.1;
        let end = rest.find([',', ' ']).unwrap_or(rest.len());
        Some(rest[..end].trim_matches('"').to_owned())
    };
    let (mut category, mut events) = (None, Vec::new());
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("\"ph\": ") {
            let complete = line.starts_with("\"ph\": \"X\"");
            category = value(line, "cat").filter(|_| complete);
        } else if line.starts_with("\"ts\": ")
            && let Some(category) = category.take()
        {
            let start = parse_us_as_ns(&value(line, "ts").unwrap());
            events.push((
                category,
                start,
                start + parse_us_as_ns(&value(line, "dur").unwrap()),
            ));
        }
    }
    assert!(!events.is_empty(), "{}", path.display());
    events
}

fn list_kineto_paths(folder: &Path, ranks: u32, ending: &str) -> Vec<PathBuf> {
    (0..ranks)
        .map(|rank| folder.join(format!("kineto.{rank}.json{ending}")))
        .collect()
}

#[test]
fn replays_of_generated_captures_end_when_these_did() {
    for (what, options) in list_generated_jobs(0) {
        let captured = write_generated_capture(&options);
        let folder = captured.folder.path();
        check_faithful_replay(
            &what,
            &[folder.to_owned()],
            &list_kineto_paths(folder, options.ranks, ""),
        );
    }
}

#[test]
fn replays_of_real_captures_end_when_these_did() {
    let Some(corpus) = corpus_path_or_count_skip("captures") else {
        return;
    };
    let mut folders = Vec::new();
    for part in ["pytorch", "interventions"] {
        for entry in std::fs::read_dir(corpus.join(part)).expect("the corpus is there") {
            let path = entry.expect("it can be listed").path();
            for folder in [path.clone(), path.join("A"), path.join("B")] {
                if folder.join("host.0.json.zst").is_file() {
                    folders.push(folder);
                }
            }
        }
    }
    folders.sort();
    assert!(folders.len() > 20, "{folders:?}");
    for folder in sample_every_nth(7, folders) {
        let name = folder.strip_prefix(&corpus).unwrap().display().to_string();
        let ranks = (0..)
            .take_while(|r| folder.join(format!("host.{r}.json.zst")).is_file())
            .count() as u32;
        let devices = list_kineto_paths(&folder, ranks, ".zst");
        let hosts = (0..ranks).map(|rank| folder.join(format!("host.{rank}.json.zst")));
        let paths: Vec<_> = hosts.chain(devices.clone()).collect();
        if let Some(reason) = find_expected_refusal(&name) {
            let error = try_convert(&paths, &Conversion::default())
                .err()
                .unwrap()
                .to_string();
            assert!(error.contains(reason), "{name}: {error}");
            continue;
        }
        check_faithful_replay(&name, &paths, &devices);
    }
}

/// Three of four ranks were captured and are converted, and the missing member arrives with them.
#[test]
fn a_missing_rank_arrives_at_collectives_with_the_captured_ranks() {
    for (what, options) in list_generated_jobs(1) {
        // A message to an absent rank has no matching node.
        if options.style == testkit::capture::JobParallelism::Pipeline {
            continue;
        }
        let captured = write_generated_capture(&options);
        let folder = captured.folder.path();
        for name in ["host.3.json", "kineto.3.json"] {
            std::fs::remove_file(folder.join(name)).unwrap();
        }
        let job = convert_folder(folder);
        assert_eq!((job.summary.world, job.traces.len()), (4, 3), "{what}");
        let ends = replay_traces(
            &job.traces,
            CommunicationDurationSource::Recorded,
            |_| 0,
            MissingRankPolicy::Mirror,
        )
        .last_node_end_of_each_rank_ns();
        for (end, trace) in ends.iter().zip(&job.traces) {
            let captured = trace.captured_ns();
            let off = end.abs_diff(captured);
            // Ranks that waited for the absent rank no longer wait.
            assert!(
                off * 5 <= captured,
                "{what} rank {}: {end}, captured {captured}",
                trace.rank
            );
        }
    }
}
