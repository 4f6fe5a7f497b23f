//! Tests, on captures of real jobs, links that use no record function ids, conclusions drawn from clocks, and
//! conclusions about absent ranks.

use super::rig::{ConversionResult, convert_folder, try_convert, write_generated_capture};
use crate::corpus::corpus_path_or_count_skip;
use chakram::convert::{ConvertOptions as Conversion, HostKinetoMatchMethod};
use std::path::{Path, PathBuf};
use testkit::capture::{Device, JobParallelism, Options};

/// Removes every record function id of a Kineto file.
fn remove_record_function_ids(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    let key = "\"Record function id\": ";
    let mut parts = text.split(key);
    let mut out = parts.next().unwrap().to_owned();
    for part in parts {
        out += "\"Forgotten\": ";
        out += part;
    }
    assert!(out.len() < text.len(), "it had ids");
    std::fs::write(path, out).unwrap();
}

/// Links found by order equal the links found by ids, so the traces differ only in the ids.
#[test]
fn links_by_order_are_those_by_id() {
    for style in [
        JobParallelism::Ddp,
        JobParallelism::Functional,
        JobParallelism::Pipeline,
    ] {
        let options = Options {
            layers: 4,
            ..Options::new(Device::Cpu, style, 2)
        };
        let captured = write_generated_capture(&options);
        let folder = captured.folder.path();
        let by_id = convert_folder(folder);
        for rank in 0..2 {
            remove_record_function_ids(&folder.join(format!("kineto.{rank}.json")));
        }
        let by_order = convert_folder(folder);
        assert_eq!(by_order.summary.collectives, by_id.summary.collectives);
        assert_eq!(by_order.summary.messages, by_id.summary.messages);
        for (one, other) in by_order.traces.iter().zip(&by_id.traces) {
            let ids = |trace: &super::rig::SchemaRankTrace| -> Vec<_> {
                let nodes = trace.nodes.iter();
                nodes
                    .map(|n| {
                        (
                            n.name.clone(),
                            super::rig::find_integer_attribute(n, "et_id"),
                        )
                    })
                    .collect()
            };
            assert_eq!(ids(one), ids(other), "{style:?}");
        }
        for rank in &by_order.summary.ranks {
            assert_eq!(rank.method, HostKinetoMatchMethod::Order);
            assert!(rank.confidence > 0.99, "{:?}", rank.threads);
        }
    }
}

/// A host trace with other operators is rejected, and the error states the confidence of the match.
#[test]
fn links_that_are_not_sure_are_refused() {
    let options = |layers, style| Options {
        layers,
        ..Options::new(Device::Cpu, style, 2)
    };
    let (one, other) = (
        write_generated_capture(&options(2, JobParallelism::Ddp)),
        write_generated_capture(&options(8, JobParallelism::Pipeline)),
    );
    let folder = one.folder.path();
    for rank in 0..2 {
        remove_record_function_ids(&folder.join(format!("kineto.{rank}.json")));
        let name = format!("host.{rank}.json");
        std::fs::copy(other.folder.path().join(&name), folder.join(&name)).unwrap();
    }
    let text = try_convert(&[folder.to_owned()], &Conversion::default())
        .err()
        .unwrap()
        .to_string();
    for part in ["kineto.0.json", "confidence", "nodes linked", "try:"] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

fn convert_dlrm_ranks(ranks: &[u32]) -> Option<ConversionResult> {
    let folder = corpus_path_or_count_skip("captures/gpu/dlrm_8gpu")?;
    let names = ["host", "kineto"];
    let paths = ranks.iter().flat_map(|rank| {
        let folder = folder.clone();
        names.map(move |name| folder.join(format!("{name}.{rank}.json.zst")))
    });
    let paths: Vec<PathBuf> = paths.collect();
    Some(try_convert(&paths, &Conversion::default()).unwrap_or_else(|e| panic!("{e}")))
}

/// DLRM on eight V100s has eight collectives whose members mostly wait. Without half of the ranks, the transfer times
/// stay the same.
#[test]
fn dlrm_mostly_waits_and_without_half_its_ranks_transfers_as_long() {
    let Some(whole) = convert_dlrm_ranks(&[0, 1, 2, 3, 4, 5, 6, 7]) else {
        return;
    };
    assert_eq!(whole.summary.collectives.values().sum::<u64>(), 8);
    for rank in &whole.summary.ranks {
        assert!(rank.confidence > 0.99, "{:?}", rank.threads);
    }
    let first = &whole.summary.ranks[0];
    let share = first.wait_ns as f64 / (first.wait_ns + first.transfer_ns) as f64;
    println!(
        "rank 0 waits {share:.3} of {} ns",
        first.wait_ns + first.transfer_ns
    );
    assert!((0.94..0.98).contains(&share), "{share}");
    // Ranks 0 to 3 are never the last to arrive, so none of their recorded times is a pure
    // transfer.
    let whole = &whole.summary.ranks;
    for kept in [[0, 1, 2, 3], [4, 5, 6, 7], [0, 2, 4, 6], [1, 3, 5, 7]] {
        let Some(part) = convert_dlrm_ranks(&kept) else {
            return;
        };
        for part in &part.summary.ranks {
            let whole = &whole[part.rank as usize];
            let ratio = part.transfer_ns as f64 / whole.transfer_ns as f64;
            println!(
                "rank {} of {kept:?}: {} of {} ns, {ratio:.2}",
                part.rank, part.transfer_ns, whole.transfer_ns
            );
            assert!(
                (1.0 / 1.5..1.5).contains(&ratio),
                "rank {}: {ratio}",
                part.rank
            );
        }
    }
}

/// Ranks on one host share a clock, and messages alone do not shift this clock.
#[test]
fn clocks_of_pipelines_on_one_host_stay() {
    let Some(captures) = corpus_path_or_count_skip("captures") else {
        return;
    };
    for name in [
        "pytorch/pp_1f1b",
        "pytorch/pp_gpipe",
        "interventions/pp_microbatches_4_8/A",
    ] {
        let folder = captures.join(name);
        let mut paths = Vec::new();
        for rank in 0..4 {
            for what in ["host", "kineto"] {
                let path = folder.join(format!("{what}.{rank}.json.zst"));
                paths.extend(path.is_file().then_some(path));
            }
        }
        let job =
            try_convert(&paths, &Conversion::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        for rank in &job.summary.ranks {
            let offset = rank.offset;
            let (low, high) = offset.bounds;
            let demanded = rank.rank > 0 && !(low <= 0 && 0 <= high);
            assert_eq!(
                offset.applied != 0,
                demanded,
                "{name} rank {}: {offset:?}",
                rank.rank
            );
        }
    }
}
