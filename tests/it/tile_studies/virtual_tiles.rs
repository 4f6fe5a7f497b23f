//! Tests virtual tiles: the number of events in a step in which one core is simulated for all equal
//! cores of its stage.

use crate::files::Folder;
use chakram::engine::NetworkModel::{ContentionFree, Exclusive};
use chakram::engine::{
    CompiledReplay, CompletedReplayTotals, EventAndTileGroupCounts, InstanceId, NetworkModel,
    ReplayOptions,
};
use chakram::ids::NodeIndex;
use chakram::job::Job;
use chakram::machine::Machine;
use chakram::report::{CollectiveRecord, Observer};
use chakram::units::Time;
use chakram::workload::NodeKind;

/// Keeps only the loop's counters.
#[derive(Default)]
struct EventLoopCountsKeeper(EventAndTileGroupCounts);

impl Observer for EventLoopCountsKeeper {
    fn on_issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_completed(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
    fn on_event_loop_statistics(&mut self, counts: &EventAndTileGroupCounts) {
        self.0 = counts.clone();
    }
}

/// Replays traces with each rank simulated and with equal ranks merged, checks that the ends are equal, and returns the
/// loop's counters.
fn check_aggregated_replay(
    job: &Job,
    machine: &Machine,
    network: NetworkModel,
) -> [(EventAndTileGroupCounts, CompletedReplayTotals); 2] {
    let run = |aggregate: bool| -> (CompletedReplayTotals, EventAndTileGroupCounts) {
        let options = ReplayOptions::default_with_changes(|o| {
            (o.network, o.aggregate) = (Some(network), aggregate);
        });
        let replay = CompiledReplay::new(job.workload(), machine, &options).unwrap();
        let (outcome, counted) = replay.run(EventLoopCountsKeeper::default()).unwrap();
        (outcome, counted.0)
    };
    let [(alone, a), (together, b)] = [false, true].map(run);
    assert_eq!(alone, together, "{network}");
    [(a, alone), (b, together)]
}

/// A step of T-76B as in Table VII, in 20 stages of 16 cores.
const T_76B: &str = "generate megatron-76.1b --tensor 8 --data 2 --pipeline 20 --micro-batch 44 --batch 1848 \
                     --recompute full --dtype fp16 --machine wafer-5x4 --place s_shape -o job";

/// Counts the events of T-76B with each core simulated, and with one core for its stage while all
/// cores are equal.
///
/// Without contention, a stage's cores never differ. The remaining events are a sixteenth of the nodes' ends, the ends
/// of sums, and both ends of messages between stages, which differ for every core. With exclusive links the 16 messages
/// from the previous stage share the four links of a border, so they arrive one after another. The cores therefore stay
/// separate until the first sum of the pass merges each tensor group again. Every method of merging needs at least the
/// events of messages, of sums and of a sixteenth of the nodes.
#[test]
#[ignore = "long: T-76B on 320 cores"]
fn one_simulated_core_stands_for_the_equal_cores_of_its_stage() {
    let folder = Folder::new();
    let machine = Machine::load_preset("wafer-5x4").unwrap();
    folder.run_successfully_for_stdout(&T_76B.split_whitespace().collect::<Vec<_>>());
    let job = Job::open_job([folder.path_of_file("job")]).expect("it was written");
    for (network, least) in [(ContentionFree, 9.0), (Exclusive, 3.0)] {
        let [(alone, outcome), (together, _)] = check_aggregated_replay(&job, &machine, network);
        let fewer = alone.events as f64 / together.events as f64;
        let bound = outcome.messages + outcome.closed + outcome.nodes / 16;
        println!(
            "{network}: {} events, {} together, {fewer:.2} times fewer, at least {bound}, {together:?}",
            alone.events, together.events
        );
        assert!(
            fewer >= least && together.events >= bound,
            "{network}: {alone:?} {together:?}"
        );
        assert_eq!((together.groups, together.ranks), (20, 320));
        let apart = network == Exclusive;
        assert_eq!(together.together, if apart { 0 } else { 20 });
        assert_eq!(together.rejoined > 0, apart);
    }
}
