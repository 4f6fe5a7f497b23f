//! Tests that traces rejected by a replay are unsound, and that a replay rejects or does not finish unsound traces.

use super::chance::{Dice, UnwrittenJob, find_integer_attribute_mut, has_attribute};
use super::format_defects;
use super::inject::{self, group_of};
use crate::corpus::{build_switch_machine, is_whole_corpus_requested, sample_every_nth};
use crate::harness::replay::NodeEventCounter;
use chakram::engine::{CompiledReplay, ReplayError, ReplayOptions};
use chakram::ids::Rank;
use chakram::internals::proto::Node;
use chakram::units::Time;
use chakram::validate::{DefectKind, TraceDefectsAndDigest, validate_job};
use chakram::workload::{EnforcedDependencyKinds, Graph, MissingRankPolicy, WorkloadBuilder};
use std::collections::{BTreeMap, VecDeque};

/// The sizes of the machine's dimensions, which are large enough for the ranks of any job.
const SIZES: [u32; 2] = [2, 4];

/// The outcome of a replay.
#[derive(Debug, PartialEq)]
enum TestReplayOutcome {
    Done,
    Stuck(String),
    Refused(String),
}

fn read_and_replay_files(
    files: &[(u32, Vec<u8>)],
    options: &chakram::validate::ValidateOptions,
) -> TestReplayOutcome {
    let refused = |why: &dyn ToString| TestReplayOutcome::Refused(why.to_string());
    let mut builder = WorkloadBuilder::default();
    builder.declare_groups(options.declared.clone());
    for (rank, contents) in files {
        let (graph, binding) = match Graph::read_graph(contents, *rank, options.dependencies) {
            Ok(read) => read,
            Err(error) => return refused(&error),
        };
        let graph = builder.add_or_reuse_equal_graph(graph);
        if let Err(error) = builder.add_rank(Rank(*rank), graph, binding, Time::ZERO) {
            return refused(&error);
        }
    }
    let (ranks, absent) = match (options.ranks, options.mirror) {
        (None, true) => (
            Some(builder.min_rank_count().max(SIZES.iter().product())),
            MissingRankPolicy::Mirror,
        ),
        (ranks, true) => (ranks, MissingRankPolicy::Mirror),
        (ranks, false) => (ranks, MissingRankPolicy::Refuse),
    };
    let workload = match builder.finish_workload(ranks, absent) {
        Ok(workload) => workload,
        Err(error) => return refused(&error),
    };
    let machine = build_switch_machine(&SIZES);
    let options = ReplayOptions::default_with_changes(|o| {
        o.missing_ranks = absent;
    });
    let prepared = match CompiledReplay::new(&workload, &machine, &options) {
        Ok(prepared) => prepared,
        Err(error) => return refused(&error),
    };
    match prepared.run(NodeEventCounter::default()) {
        Ok(_) => TestReplayOutcome::Done,
        Err(ReplayError::Stuck(stuck)) => TestReplayOutcome::Stuck(stuck.to_string()),
        Err(error) => refused(&error),
    }
}

/// Changes some bytes of a file.
fn damage_file_bytes(bytes: &mut Vec<u8>, dice: &mut Dice) {
    match dice.roll(3) {
        0 => bytes.truncate(dice.roll(bytes.len())),
        1 => {
            let from = dice.roll(bytes.len());
            let to = (from + 1 + dice.roll(20)).min(bytes.len());
            bytes[from..to].fill(0);
        }
        _ => {
            let at = dice.roll(bytes.len());
            bytes[at] ^= 1 << dice.roll(8);
        }
    }
}

#[test]
fn validation_finds_what_replays_refuse_and_unsound_jobs_never_finish() {
    let (mut refused, mut stuck, mut done) = (0, 0, 0);
    let seeds = sample_every_nth(4, 0..4000);
    let few = seeds.len() / 8;
    for seed in seeds {
        let dice = &mut Dice(1 << 40 | seed);
        let mut broken = UnwrittenJob::random_sound_job(dice, false);
        let policies = [
            EnforcedDependencyKinds::Auto,
            EnforcedDependencyKinds::Both,
            EnforcedDependencyKinds::Data,
        ];
        broken.options.dependencies = dice.pick(&policies);
        broken.options.dimensions = Some(SIZES.to_vec());
        broken.options.mirror = dice.roll(4) == 0;
        for _ in 0..dice.roll(3) {
            let (kind, inject) = dice.pick(inject::ALL);
            // Sound jobs here have no in-switch accesses, and a cycle needs complete messages.
            if kind != DefectKind::InSwitch
                && kind != DefectKind::Deadlock
                && kind != DefectKind::Unreachable
            {
                inject(&mut broken, dice);
            }
        }
        let mut files = broken.files();
        if dice.roll(3) == 0 {
            let file = dice.roll(files.len());
            damage_file_bytes(&mut files[file].1, dice);
        }
        let options = &broken.options;
        let check = |contents: &[u8]| {
            TraceDefectsAndDigest::check_trace(contents, options.dependencies, 1000)
        };
        let traces: Vec<_> = files.iter().map(|(rank, c)| (*rank, check(c))).collect();
        let members: Vec<_> = traces.iter().map(|(rank, trace)| (*rank, trace)).collect();
        let findings = validate_job(&members, options);
        let sound = findings.count_by_severity().errors == 0;
        match read_and_replay_files(&files, options) {
            TestReplayOutcome::Refused(why) => {
                refused += 1;
                assert!(!sound, "seed {seed}: refused, but sound: {why}");
            }
            TestReplayOutcome::Stuck(why) => {
                stuck += 1;
                assert!(!sound, "seed {seed}: stuck, but sound: {why}");
            }
            TestReplayOutcome::Done => {
                done += 1;
                assert!(
                    sound,
                    "seed {seed}: finished, but {}",
                    format_defects(&findings)
                );
            }
        }
    }
    println!("{refused} refused, {stuck} stuck, {done} done");
    assert!(
        refused > few && done > few,
        "{refused} refused, {done} done"
    );
}

#[test]
fn circles_across_ranks_get_replays_stuck() {
    let circle = inject::ALL
        .iter()
        .find(|(kind, _)| *kind == DefectKind::Deadlock);
    let (_, inject) = circle.expect("all kinds are there");
    for seed in 0..200 {
        let dice = &mut Dice(seed);
        let mut broken = UnwrittenJob::random_sound_job(dice, false);
        broken.options.dimensions = Some(SIZES.to_vec());
        inject(&mut broken, dice);
        assert_eq!(broken.findings().count_of_kind(DefectKind::Deadlock), 1);
        let outcome = read_and_replay_files(&broken.files(), &broken.options);
        assert!(
            matches!(outcome, TestReplayOutcome::Stuck(_)),
            "seed {seed}: {outcome:?}"
        );
    }
}

/// Makes each rank run its nodes in sequence, in an order of its own that keeps the order only within groups and
/// channels.
fn shuffle_ranks_into_own_sequences(job: &mut UnwrittenJob, dice: &mut Dice, rooted: bool) {
    for nodes in &mut job.ranks {
        let mut rest = nodes.split_off(1);
        rest.retain(|node| rooted || !has_attribute(node, "comm_root"));
        rest.sort_by_key(|node| node.id);
        let mut queues: BTreeMap<String, VecDeque<Node>> = BTreeMap::new();
        for node in rest {
            let number = |name| find_integer_attribute_mut(&mut node.clone(), name).copied();
            let key = match node.r#type {
                5 | 6 => format!(
                    "{:?} {:?}",
                    node.r#type,
                    [number("comm_src"), number("comm_dst"), number("comm_tag"),]
                ),
                7 => group_of(&node).unwrap_or("world").to_owned(),
                _ => node.id.to_string(),
            };
            queues.entry(key).or_default().push_back(node);
        }
        let mut last = None;
        while !queues.is_empty() {
            let keys: Vec<String> = queues.keys().cloned().collect();
            let key = dice.pick(&keys);
            let queue = queues.get_mut(&key).expect("it is there");
            let mut node = queue.pop_front().expect("it is not empty");
            if queue.is_empty() {
                queues.remove(&key);
            }
            node.id = 100 + nodes.len() as u64;
            node.data_deps = last.into_iter().collect();
            node.ctrl_deps.clear();
            last = Some(node.id);
            nodes.push(node);
        }
    }
}

#[test]
fn sequential_ranks_get_stuck_exactly_if_validation_finds_a_cycle() {
    let (mut stuck, mut done) = (0, 0);
    let seeds = sample_every_nth(4, 0..3000);
    let few = if is_whole_corpus_requested() { 200 } else { 40 };
    for seed in seeds {
        let dice = &mut Dice(1 << 41 | seed);
        let mut twisted = UnwrittenJob::random_sound_job(dice, false);
        twisted.options.dimensions = Some(SIZES.to_vec());
        // Members of a group that shares its lane with other work start together, so members of a
        // collective with a root wait for more members than they need.
        let rooted = dice.roll(2) == 0;
        shuffle_ranks_into_own_sequences(&mut twisted, dice, rooted);
        let findings = twisted.findings();
        let circle = findings.count_of_kind(DefectKind::Deadlock) == 1;
        assert_eq!(
            circle,
            findings.count_by_severity().errors > 0,
            "seed {seed}: {}",
            format_defects(&findings)
        );
        match read_and_replay_files(&twisted.files(), &twisted.options) {
            TestReplayOutcome::Done => {
                assert!(
                    !circle,
                    "seed {seed}: finished, but {}",
                    format_defects(&findings)
                );
                done += 1;
            }
            TestReplayOutcome::Stuck(why) => {
                assert!(circle || rooted, "seed {seed}: no circle, but {why}");
                stuck += 1;
            }
            TestReplayOutcome::Refused(why) => panic!("seed {seed}: {why}"),
        }
    }
    println!("{stuck} stuck, {done} done");
    assert!(stuck > few && done > few, "{stuck} stuck, {done} done");
}
