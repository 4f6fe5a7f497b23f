//! Tests that a capture gives the same traces from any source, and that a step's trace is a part of the whole trace.

use super::rig::{
    ConversionResult, RECEIVE, SEND, convert_folder, read_duration_ns, try_convert,
    write_generated_capture,
};
use super::truth::list_generated_jobs;
use chakram::convert::ConvertOptions as Conversion;
use chakram::internals::proto::Node;
use chakram::trace::MaybeCompressedWriter;
use std::io::Write;
use std::path::{Path, PathBuf};
use testkit::capture::{Device, JobParallelism, Options};

fn build_job_options(style: JobParallelism) -> Options {
    Options {
        steps: 3,
        ..Options::new(Device::Cpu, style, 4)
    }
}

fn compress_file(from: &Path, to: &Path, ending: &str) {
    let bytes = std::fs::read(from).unwrap();
    let mut packer =
        MaybeCompressedWriter::new(std::fs::File::create(to).unwrap(), ending).unwrap();
    packer.write_all(&bytes).unwrap();
    packer.finish().unwrap();
}

#[test]
fn threads_order_and_compression_change_nothing() {
    let captured = write_generated_capture(&build_job_options(JobParallelism::Ddp));
    let folder = captured.folder.path();
    let first = convert_folder(folder);
    for threads in [1, 2, 7] {
        let options = Conversion {
            threads,
            ..Conversion::default()
        };
        let again = try_convert(&[folder.to_owned()], &options).ok().unwrap();
        assert_eq!(again.traces, first.traces, "{threads} threads");
    }
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("truth.json"))
        .collect();
    files.sort();
    for by in [3, 6] {
        files.rotate_left(by);
        let again = try_convert(&files, &Conversion::default()).ok().unwrap();
        assert_eq!(again.traces, first.traces);
    }
    for ending in ["gz", "zst"] {
        let packed = tempfile::tempdir().unwrap();
        for file in &files {
            let name = file.file_name().unwrap().to_str().unwrap();
            compress_file(
                file,
                &packed.path().join(format!("{name}.{ending}")),
                ending,
            );
        }
        assert_eq!(
            convert_folder(packed.path()).traces,
            first.traces,
            "{ending}"
        );
    }
}

fn convert_only_given_step(folder: &Path, number: u64) -> ConversionResult {
    let options = Conversion {
        step: Some(number),
        ..Conversion::default()
    };
    try_convert(&[folder.to_owned()], &options).unwrap_or_else(|e| panic!("{e}"))
}

/// The second of three steps has the nodes of the whole trace that run in this step, and takes the
/// time of its recorded range.
#[test]
fn a_step_is_that_part_of_the_whole() {
    for (what, options) in list_generated_jobs(0)
        .into_iter()
        .filter(|(_, o)| o.steps == 3)
    {
        let captured = write_generated_capture(&options);
        let whole = convert_folder(captured.folder.path());
        let part = convert_only_given_step(captured.folder.path(), 3);
        let bounds: Vec<[u64; 2]> = captured.truth.ranks.iter().map(|r| r.steps[1]).collect();
        let first = bounds.iter().map(|[start, _]| *start).min().unwrap();
        for (i, trace) in part.traces.iter().enumerate() {
            let [start, end] = bounds[i];
            let range = part.summary.ranks[i].own_ns;
            println!(
                "{what}: {} of {}, {range} ns",
                trace.nodes.len(),
                whole.traces[i].nodes.len()
            );
            assert!(range as u64 >= end - start, "{what}");
            assert!(
                range as u64 <= (end - start) + (end - start) / 10,
                "{what}: work in flight ends soon"
            );
            if options.device == Device::Cpu {
                assert_eq!(range as u64, end - start, "{what}");
                assert_eq!(trace.captured_ns(), end - first, "{what}");
            }
            // Each node of the step is a node of the whole trace with the same duration. If no host
            // call waited for a message, its transfer time comes from other messages, which differ
            // in the step.
            let others =
                |n: &&Node| n.name != "end of the thread" && !matches!(n.r#type, SEND | RECEIVE);
            for node in trace.nodes.iter().filter(others) {
                let same = |n: &&Node| {
                    n.name == node.name && read_duration_ns(n) == read_duration_ns(node)
                };
                assert!(
                    whole.traces[i].nodes.iter().any(|n| same(&n)),
                    "{what}: `{}` of {}",
                    node.name,
                    read_duration_ns(node)
                );
            }
            let third = whole.traces[i].nodes.len() as f64 / 3.0;
            assert!(
                (trace.nodes.len() as f64 - third).abs() < third * 0.05,
                "{what}"
            );
        }
        let log = super::rig::replay_traces(
            &part.traces,
            chakram::engine::CommunicationDurationSource::Recorded,
            |_| 0,
            chakram::workload::MissingRankPolicy::Refuse,
        );
        for (end, trace) in log.last_node_end_of_each_rank_ns().iter().zip(&part.traces) {
            assert_eq!(*end, trace.captured_ns(), "{what}");
        }
    }
}
