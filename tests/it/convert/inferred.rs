//! Infers ranks without a capture from captured ranks, and compares them with jobs in which all
//! ranks were captured.

use super::rig::{
    self, COLLECTIVE, ConversionResult, convert_folder, find_integer_attribute,
    find_text_attribute, try_convert, write_generated_capture,
};
use super::truth::list_generated_jobs;
use crate::corpus::{corpus_path_or_count_skip, is_whole_corpus_requested, sample_every_nth};
use chakram::convert::ConvertOptions as Conversion;
use chakram::engine::CommunicationDurationSource;
use chakram::trace::CollectiveKind;
use chakram::workload::MissingRankPolicy;
use std::path::Path;
use testkit::capture::{Device, JobParallelism, JobTrueTimes, Options};

fn convert_inferring_ranks(folder: &Path, ranks: u32) -> Result<ConversionResult, String> {
    let options = Conversion {
        infer_ranks: Some(ranks),
        ..Conversion::default()
    };
    try_convert(&[folder.to_owned()], &options).map_err(|error| error.to_string())
}

fn drop_ranks(folder: &Path, ranks: &[u32]) {
    for rank in ranks {
        for file in ["host", "kineto"] {
            std::fs::remove_file(folder.join(format!("{file}.{rank}.json"))).unwrap();
        }
    }
}

/// Returns the end of a job in a replay as recorded, in ns.
fn replay_makespan(job: &ConversionResult) -> u64 {
    let log = rig::replay_traces(
        &job.traces,
        CommunicationDurationSource::Recorded,
        |_| 0,
        MissingRankPolicy::Refuse,
    );
    log.last_node_end_of_each_rank_ns()
        .into_iter()
        .max()
        .unwrap()
}

/// Members, kind and bytes of a rank's collectives, sorted by group.
type RankCollectivesSortedByGroup = Vec<(Vec<u32>, i64, i64)>;

fn list_converted_collectives(job: &ConversionResult, rank: usize) -> RankCollectivesSortedByGroup {
    let nodes = job.traces[rank].nodes.iter();
    let calls = nodes.filter(|node| node.r#type == COLLECTIVE).map(|node| {
        let name = find_text_attribute(node, "pg_name").unwrap_or("0");
        let group = job.summary.groups.iter().find(|group| group.name == name);
        let number = |name| find_integer_attribute(node, name).unwrap();
        (
            group.unwrap().ranks.clone(),
            number("comm_type"),
            number("comm_size"),
        )
    });
    let mut calls: RankCollectivesSortedByGroup = calls.collect();
    // Groups run at the same time, so only the order within each group is kept.
    calls.sort_by(|one, other| one.0.cmp(&other.0));
    calls
}

/// Returns the collectives that the generated program requested on a rank.
fn list_requested_collectives(truth: &JobTrueTimes, rank: u32) -> RankCollectivesSortedByGroup {
    let own = truth
        .collectives
        .iter()
        .filter(|meeting| meeting.kind != "message" && meeting.ranks.contains(&rank));
    let calls = own.map(|meeting| {
        let all = CollectiveKind::ALL.iter();
        let (_, _, kind) = all
            .clone()
            .find(|(_, name, _)| *name == meeting.kind)
            .unwrap();
        let members = meeting.ranks.len() as u64;
        let bytes = match meeting.kind.as_str() {
            "all-gather" => meeting.bytes / members,
            _ => meeting.bytes,
        };
        (meeting.ranks.clone(), *kind as i64, bytes as i64)
    });
    let mut calls: RankCollectivesSortedByGroup = calls.collect();
    calls.sort_by(|one, other| one.0.cmp(&other.0));
    calls
}

/// Whichever half of the ranks is captured, every inferred rank makes its original calls, even in groups that no
/// capture declares. The job ends within 2 % of the original, because the speeds of ranks differ by up to 1 %. The
/// waiting of other ranks shows how late an absent straggler is, but not its work after its last collective.
#[test]
fn half_of_the_ranks_are_inferred() {
    for (what, options) in list_generated_jobs(0) {
        if options.style == JobParallelism::Pipeline {
            continue;
        }
        let whole = write_generated_capture(&options);
        let expected = replay_makespan(&convert_folder(whole.folder.path()));
        for dropped in sample_every_nth(2, [[1, 3], [2, 3], [0, 2], [0, 1]]) {
            let captured = write_generated_capture(&options);
            let folder = captured.folder.path();
            drop_ranks(folder, &dropped);
            let what = format!("{what} without {dropped:?}");
            let job = convert_inferring_ranks(folder, 4)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(job.traces.len(), 4, "{what}");
            for rank in 0..4 {
                let from = job.summary.ranks[rank as usize].inferred_from;
                assert_eq!(from.is_some(), dropped.contains(&rank), "{what}: {from:?}");
                let (own, asked) = (
                    list_converted_collectives(&job, rank as usize),
                    list_requested_collectives(&captured.truth, rank),
                );
                assert_eq!(own, asked, "{what}: rank {rank}");
            }
            let ends = replay_makespan(&job);
            // No rank waits for an absent straggler's work after its last collective, so its extra time is unknown.
            let unseen: u64 = dropped
                .iter()
                .map(|&rank| straggler_excess_after_last_collective(&captured.truth, rank))
                .sum();
            let off = match ends <= expected {
                true => (expected - ends).saturating_sub(unseen),
                false => ends - expected,
            };
            let off = off as f64 / expected as f64;
            println!(
                "{what}: {:+.2} %",
                (ends as f64 / expected as f64 - 1.0) * 100.0
            );
            assert!(off < 0.02, "{what}: {ends}, expected {expected}");
        }
    }
}

/// Returns how much longer a rank works after its last collective than a rank that is not a straggler.
fn straggler_excess_after_last_collective(truth: &JobTrueTimes, rank: u32) -> u64 {
    let own = &truth.ranks[rank as usize];
    let members = truth
        .collectives
        .iter()
        .flat_map(|meeting| &meeting.members);
    let ends = members.filter(|member| member.rank == rank);
    let last = ends.map(|member| member.end_ns).max().unwrap();
    let factor = u64::from(own.straggle_permille);
    (own.last_ns - last) * (factor - 1000) / factor
}

/// A stage in the middle of a pipeline does the same work as another stage, but the last stage's
/// work is unique.
#[test]
fn missing_pipeline_stages_are_inferred_from_stages_of_the_same_role() {
    let options = Options {
        layers: 5,
        ..Options::new(Device::Cpu, JobParallelism::Pipeline, 5)
    };
    let captured = write_generated_capture(&options);
    let folder = captured.folder.path();
    drop_ranks(folder, &[2]);
    let job = convert_inferring_ranks(folder, 5).unwrap_or_else(|error| panic!("{error}"));
    let from = job.summary.ranks[2].inferred_from;
    assert!(from == Some(1) || from == Some(3), "{from:?}");
    let messages = captured.truth.collectives.iter();
    let messages = messages.filter(|meeting| meeting.kind == "message").count();
    assert_eq!(job.summary.messages, messages as u64);
    assert!(job.summary.alone.is_empty(), "{:?}", job.summary.alone);
    drop_ranks(folder, &[4]);
    let error = convert_inferring_ranks(folder, 5)
        .err()
        .expect("nothing is like it");
    for part in [
        "rank 4 cannot be inferred",
        "like captured rank 3",
        "each pipeline stage",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn inferring_more_ranks_than_the_job_has_is_refused() {
    let captured = write_generated_capture(&Options::new(Device::Cpu, JobParallelism::Ddp, 2));
    let error = convert_inferring_ranks(captured.folder.path(), 8)
        .err()
        .expect("it has two");
    for part in [
        "of a job of 2 ranks",
        "8 ranks were requested",
        "chakram scale",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let all = convert_inferring_ranks(captured.folder.path(), 2).unwrap();
    let plain = convert_folder(captured.folder.path());
    assert_eq!(all.traces, plain.traces);
}

/// Halves of real jobs in which an absent rank does unique work before its first collective or after its last: in
/// `tpsp_mlp`, rank 1 ends 33 ms after rank 0; in `dlrm_8gpu`, rank 1 begins 2.8 ms before the even ranks and ranks 4
/// to 7; in `fsdp_tp_llama`, rank 2 ends 38 ms after ranks 1 and 3, which begin 13 ms after rank 0, and 27 ms after
/// ranks 0 and 1; in `fsdp2_llama`, rank 1 ends 127 ms after all others; in `t231_ddp_gpt`, ranks 0 and 2 begin 49 ms
/// before ranks 1 and 3.
const UNLIKE: [(&str, &[u32]); 8] = [
    ("pytorch/tpsp_mlp", &[0]),
    ("gpu/dlrm_8gpu", &[0, 2, 4, 6]),
    ("gpu/dlrm_8gpu", &[4, 5, 6, 7]),
    ("pytorch/fsdp_tp_llama", &[1, 3]),
    ("pytorch/fsdp_tp_llama", &[0, 1]),
    ("pytorch/fsdp2_llama", &[0, 2]),
    ("pytorch/fsdp2_llama", &[2, 3]),
    ("pytorch/t231_ddp_gpt", &[1, 3]),
];

/// Returns the start of the first node of each rank in a replay as recorded, in ns.
fn list_first_start_per_rank(job: &ConversionResult) -> Vec<u64> {
    let first = |trace: &rig::SchemaRankTrace| {
        // The first node only declares groups.
        let nodes = trace.nodes.iter().skip(1);
        let free = nodes.filter(|node| rig::list_node_dependency_ids(node).next().is_none());
        free.map(rig::read_delay_ns).min().unwrap()
    };
    job.traces.iter().map(first).collect()
}

/// In captures of real jobs, every second rank or either half is inferred. The makespan is within 5
/// % of the complete job's makespan. In the listed jobs, absent ranks began earlier or ended later.
/// Their makespan is within 5 % of the span from the first start to the last end of a captured
/// rank.
#[test]
fn inferring_half_of_the_ranks_of_real_jobs_keeps_makespan_within_5_percent() {
    let Some(captures) = corpus_path_or_count_skip("captures") else {
        return;
    };
    let mut errors = Vec::new();
    let jobs = [
        ("pytorch/ddp_gpt", 4),
        ("pytorch/ddp_resnet18", 2),
        ("pytorch/fsdp2_llama", 4),
        ("pytorch/fsdp_tp_llama", 4),
        ("pytorch/tpsp_mlp", 2),
        ("pytorch/t231_ddp_gpt", 4),
        ("pytorch/t231_moe_a2a", 4),
        ("gpu/dlrm_8gpu", 8),
    ];
    for (name, ranks) in sample_every_nth(5, jobs) {
        let folder = captures.join(name);
        let whole = convert_folder(&folder);
        let log = rig::replay_traces(
            &whole.traces,
            CommunicationDurationSource::Recorded,
            |_| 0,
            MissingRankPolicy::Refuse,
        );
        let (begins, ends) = (
            list_first_start_per_rank(&whole),
            log.last_node_end_of_each_rank_ns(),
        );
        let expected = *ends.iter().max().unwrap() as f64;
        let mut halves: Vec<Vec<u32>> = vec![
            (0..ranks).step_by(2).collect(),
            (1..ranks).step_by(2).collect(),
            (0..ranks / 2).collect(),
            (ranks / 2..ranks).collect(),
        ];
        halves.dedup();
        halves.truncate(if ranks == 2 { 2 } else { 4 });
        for kept in sample_every_nth(2, halves) {
            let job = inferred_from(&folder, &kept, ranks)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            let found = replay_makespan(&job) as f64;
            let of = |list: &[u64]| {
                kept.iter()
                    .map(|&rank| list[rank as usize])
                    .collect::<Vec<_>>()
            };
            // Time that absent ranks run before any captured rank begins, and after all captured
            // ranks end.
            let before = *of(&begins).iter().min().unwrap() as f64;
            let behind = expected - *of(&ends).iter().max().unwrap() as f64;
            let seen = expected - before - behind;
            let transfer = |job: &ConversionResult| {
                let ranks = job.summary.ranks.iter();
                ranks.map(|rank| rank.transfer_ns).sum::<u64>()
            };
            let off = |ns: f64| (found - ns) / expected;
            println!(
                "{name} of {kept:?}: {:+.2} %, of what is seen {:+.2} % ({:.1} ms before it, {:.1} ms behind), transfer {:.2} times",
                off(expected) * 100.0,
                off(seen) * 100.0,
                before / 1e6,
                behind / 1e6,
                transfer(&job) as f64 / transfer(&whole) as f64
            );
            assert!(
                off(seen).abs() < 0.025,
                "{name} of {kept:?}: {found}, {seen}"
            );
            let unlike = UNLIKE.contains(&(name, kept.as_slice()));
            assert_eq!(off(expected).abs() > 0.05, unlike, "{name} of {kept:?}");
            errors.push(off(expected).abs());
        }
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    println!("mean {:.2} %", mean * 100.0);
    // `mean` is the mean error over all captures.
    assert!(!is_whole_corpus_requested() || mean < 0.05, "{mean}");
    // Neighbouring stages of a pipeline differ.
    for (name, ranks) in [("pytorch/pp_gpipe", 2), ("pytorch/pp_1f1b", 4)] {
        for kept in [
            (0..ranks / 2).collect(),
            (ranks / 2..ranks).collect::<Vec<u32>>(),
        ] {
            let error = inferred_from(&captures.join(name), &kept, ranks).err();
            let error = error.expect("it is refused");
            assert!(
                error.contains("cannot be inferred"),
                "{name} of {kept:?}: {error}"
            );
        }
    }
}

/// Returns the job that the capture in `folder` gives if only the ranks in `kept` are captured.
fn inferred_from(folder: &Path, kept: &[u32], ranks: u32) -> Result<ConversionResult, String> {
    let files = kept.iter().flat_map(|rank| {
        let file = |kind| folder.join(format!("{kind}.{rank}.json.zst"));
        [file("host"), file("kineto")]
    });
    let options = Conversion {
        infer_ranks: Some(ranks),
        ..Conversion::default()
    };
    try_convert(&files.collect::<Vec<_>>(), &options).map_err(|error| error.to_string())
}
