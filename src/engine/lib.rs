//! The replay engine: one event loop that takes all pending events from one queue (the agenda).
//!
//! # The ordering contract
//!
//! The loop takes all events of an instant together as a *round*. It handles them in content order (by class, rank,
//! node or op), whatever the order in which they were scheduled. Events free lanes and make nodes ready. After the
//! round, freed lanes take nodes from their queues. The loop then posts newly ready nodes, by rank and id. If a round
//! schedules further events at the same instant, another round follows.
//!
//! When no event is left at the instant, the loop *settles* the instant: collectives with newly arrived members
//! proceed. If all members arrived together and a closed form is proven exact, the closed form gives the collective's
//! time. Otherwise the collective is simulated message by message. Finally, the loop distributes the bandwidth of a
//! memory pool's links over the current loads and stores. By then, the chunks of loads and stores have reached the
//! network's ports, and all messages of the instant are submitted. Consequently, the order of two events never depends
//! on unrelated events, or on whether a collective is simulated or answered analytically.
//!
//! # The life of a node
//!
//! When the dependencies of a node are complete, the node is *ready*. If the trace gives it a delay (host time before
//! the node is ready), it is first *delayed*. The delay's end is a normal event, ordered by rank and node. A node
//! without a delay becomes ready in the round that completes its last dependency. A ready collective then waits for its
//! place in its group's launch order. A receive is posted, and a node without an operation completes immediately. All
//! other ready nodes queue for their lane, which serves them in the order in which they became ready. When the lane is
//! free, the node is *issued*, and it occupies the lane until it is *complete*. A kernel or a load completes after its
//! duration, and a send when its last byte has left. A collective node completes when its member's part is done. If the
//! machine requires it, a send completes only once its last byte has arrived.
//!
//! If communication takes its recorded duration ([`CommunicationDurationSource`]), the engine does not simulate the
//! network. A member's part then begins when all ranks that it waits for have started, and completes after its own
//! recorded duration. The loop collects and settles these starts in the same way as arrivals on a simulated network.
//! Lanes and launch orders work as with a simulated network. A node that does not wait for other ranks needs no place
//! in the launch order.
//!
//! # Launches
//!
//! Every node belongs to a *launch*, which is one execution of a program. Launches come from a [`LaunchFeed`]; a job is
//! a feed with one launch at time 0. With several launches, "by rank" above means by NPU and then by launch number.
//! After a round, the loop notifies feeds of ended launches, and then wakes those whose requested time has come. New
//! launches begin in the next round. [`SelfSchedulingProcessorModel`]s settle when no event is left at the instant,
//! before collectives.
//!
//! # Example
//!
//! A collective takes the same time, whether it is simulated message by message or answered analytically:

use chakram_base::interrupt::{self, StopOrMemoryInterruption};
use chakram_base::units::{Span, Time};
use chakram_hardware::network::NetworkBackend;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;

mod agenda;
mod collectives;
mod compiled_replay;
mod content_order;
mod coverage;
mod dataflow;
mod discipline;
mod effects;
mod error;
mod event;
mod event_loop;
mod extensions;
mod fabric;
mod failures;
mod feed;
mod feeding;
mod folding;
mod frames;
mod handling;
mod host_launches;
mod ids;
mod in_switch;
mod insertion_order;
mod lanes;
mod launch;
mod launching;
mod matching;
mod members;
mod messages;
mod nodes;
mod observer;
mod options;
mod placement;
mod plan;
mod price_changes;
mod processor;
mod processors;
mod representatives;
mod run_programs;
mod run_settings;
mod split_sizes;
mod stuck;
mod tile_checks;
mod tile_groups;
mod unpriced_kernels;
mod untimed_communication;

pub use chakram_hardware::compute::{
    HostDurationSource, KernelDurationSource, RooflinePeakFraction,
};
pub use chakram_hardware::network::NetworkModelKind as NetworkModel;
pub use compiled_replay::{CompiledReplay, PlacedWorkloadGroup};
pub use coverage::DurationSourceCounts;
pub use discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
pub use error::{NeverCompletedNode, NodeRef, ReplayError, ReplayRefusal, Stuck};
pub use extensions::{
    KernelDurationModel, ReplacementKernelAndMemoryModels, ReplacementMemoryModel,
};
pub use failures::EffectsOfOneFailure;
pub use feed::*;
pub use folding::FoldedReplay;
pub use ids::{InstanceId, ReplayGroupId};
pub use launch::{
    FeedLaunchAndRankStartRequests, LaunchKernelDurationSource, LaunchRankReleaseMode,
    LaunchRequest, LaunchSerial, ProgramLaunchRecord,
};
pub use observer::{CollectiveRecord, CriticalPathSegment, NpuTimeCategory, Observer};
pub use options::{
    CollectiveCurvesOrAlgorithms, CommunicationDurationSource, HostLaunchMode, ReplayOptions,
    UnusableOptionReason,
};
pub use placement::place_ranks;
pub use price_changes::{
    CollectiveDurationChange, DurationAdjustment, DurationChangeEffect, KernelDurationChange,
    KernelJitter, RequestedDurationChanges,
};
pub use processor::{ProcessorJobStartAndEnd, ProcessorKernelJob, SelfSchedulingProcessorModel};
pub use representatives::{CopyRepresentsJobChecker, replay_one_copy_or_all_ranks};
pub use run_programs::run_launches;
pub use tile_groups::{EventAndTileGroupCounts, FirstTileGroupDivergence};

use collectives::Collectives;
use dataflow::Dataflow;
use effects::Effects;
use event::PackedEvent;
use event_loop::EventRoundHandler;
use fabric::Fabric;
use failures::PlannedAndOccurredFailures;
use feeding::RunningFeeds;
use frames::AllProgramLaunches;
use messages::Messages;
use processors::Processors;
use run_programs::RunProgramsAndFeeds;
use run_settings::RunSettings;
use stuck::StuckDiagnosisInputs;
use tile_groups::InstanceGroupsSimulatedAsOne;

/// Totals of a completed replay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct CompletedReplayTotals {
    /// Completion time of the last node, counted from the start of the replay.
    #[serde(rename = "makespan_ps")]
    pub makespan: Span,
    /// Number of completed nodes. A successful replay completes all nodes.
    pub nodes: u64,
    /// Number of messages that the network carried, including steps of collectives.
    pub messages: u64,
    /// Number of collectives that were answered analytically, without simulated messages.
    #[serde(rename = "collectives_analytical")]
    pub closed: u64,
    /// Number of simulated collectives whose analytical answer was withdrawn because other traffic used their links.
    #[serde(rename = "collectives_materialized")]
    pub unfolded: u64,
    /// Number of collectives simulated message by message.
    #[serde(rename = "collectives_simulated")]
    pub stepwise: u64,
    /// Number of collectives that took their recorded or captured duration.
    #[serde(rename = "collectives_recorded")]
    pub recorded: u64,
    /// Effects of each failure of a machine part. Failures in the machine's file come first, followed by failures in
    /// the replay's options; each list keeps its order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<EffectsOfOneFailure>,
}

/// The loop of one replay. Each component owns its state; if its effects concern other components, it passes them to
/// the loop.
pub struct Engine<'a, O: ?Sized, N, M: RequiredCollectiveBackendTraits> {
    settings: RunSettings<'a>,
    launches: AllProgramLaunches<'a>,
    feeds: RunningFeeds<'a>,
    flow: Dataflow<'a>,
    tile_groups: InstanceGroupsSimulatedAsOne,
    processors: Processors<'a>,
    messages: Messages<'a>,
    collectives: Collectives<'a, M>,
    fabric: Fabric<'a, N>,
    failures: PlannedAndOccurredFailures<'a>,
    effects: Effects,
    observer: &'a mut O,
    /// Events of the current round; reused to keep the allocation.
    round: Vec<PackedEvent>,
}

impl<O: Observer + ?Sized, N: NetworkBackend, M: RequiredCollectiveBackendTraits> EventRoundHandler
    for Engine<'_, O, N, M>
{
    /// Handlers of events return no errors. Instead, a handler stores an error in the effects, and the loop checks for
    /// it before the next round.
    #[inline]
    fn next_round_time(&mut self) -> Option<Time> {
        let next = self.effects.agenda.advance_to_next_time();
        next.filter(|&now| now < Time::END && self.effects.refusal.is_none())
    }

    #[inline]
    fn handle_round(&mut self, now: Time) {
        M::Order::handle_events_of_next_instant(self, now);
    }

    #[inline]
    fn finish_round_or_stop(&mut self, now: Time) -> ControlFlow<()> {
        M::Order::finish_round_after_events(self, now)
    }

    #[cold]
    fn check_interruption(&self) -> Result<(), StopOrMemoryInterruption> {
        interrupt::fail_if_stopped_or_out_of_memory()
    }
}

impl<'a, O: Observer + ?Sized, N: NetworkBackend, M: RequiredCollectiveBackendTraits>
    Engine<'a, O, N, M>
{
    fn new(
        source: RunProgramsAndFeeds<'a>,
        observer: &'a mut O,
        network: N,
        backend: &'a mut M,
    ) -> Self {
        let prepared = &source.programs[0];
        // The number of nodes of a single launch is known, so allocate its state in advance (on huge pages if it is
        // large).
        let nodes = if source.many {
            0
        } else {
            prepared.workload_with_added_launches().node_count() as usize
        };
        let settings = RunSettings::for_program::<N, M>(prepared, source.many);
        Self {
            settings,
            launches: AllProgramLaunches::new(source.programs, source.feeds.len(), source.many),
            feeds: RunningFeeds::new(source.feeds),
            flow: Dataflow::new(nodes),
            tile_groups: InstanceGroupsSimulatedAsOne::default(),
            processors: Processors::new(source.processors),
            messages: Messages::new(&settings),
            fabric: Fabric::new(prepared, network, backend.rts_bytes()),
            collectives: Collectives::new(backend, settings),
            failures: PlannedAndOccurredFailures::new(&prepared.failures),
            effects: Effects::default(),
            observer,
            round: Vec::new(),
        }
    }

    /// Runs the loop until no event is pending, and returns the totals.
    fn run(mut self) -> Result<CompletedReplayTotals, ReplayError> {
        self.run_events()?;
        let outcome = self.build_outcome();
        self.fabric.report_link_loads(self.observer);
        let events = self.effects.progress.events;
        self.observer
            .on_event_loop_statistics(&self.tile_groups.event_and_tile_group_counts(events));
        Ok(outcome)
    }

    fn build_outcome(&self) -> CompletedReplayTotals {
        let (nodes, last) = self.flow.completed_node_count_and_last_end();
        let mut outcome = CompletedReplayTotals {
            makespan: last.since(Time::ZERO),
            nodes,
            closed: 0,
            stepwise: 0,
            unfolded: 0,
            recorded: 0,
            failures: self.failures.failure_outcomes(),
            messages: self.fabric.message_count(),
        };
        self.collectives
            .write_answer_counts_to_outcome(&mut outcome);
        outcome
    }

    /// Runs the event loop until no event is pending.
    fn run_events(&mut self) -> Result<(), ReplayError> {
        self.schedule_failures_and_first_feed_wakes();
        self.notify_feeds_of_ends_and_wakes(Time::ZERO);
        event_loop::run(self)?;
        if self.effects.agenda.advance_to_next_time() == Some(Time::END) {
            return Err(ReplayError::TooLong);
        }
        let mismatch = self.collectives.first_mismatch();
        let disagreement = mismatch.and_then(|mismatch| {
            self.call_with_stuck_diagnosis_inputs(|diagnosis| {
                diagnosis.error_for_mismatched_collectives(mismatch)
            })
        });
        if let Some(refusal) = self.effects.refusal.take().or(disagreement) {
            return Err(refusal.into());
        }
        if self.flow.completed_node_count_and_last_end().0 < self.launches.node_count() {
            let (lanes, effects) = (self.processors.kernel_lanes_mut(), &mut self.effects);
            self.tile_groups
                .dissolve_all(&mut self.flow, lanes, effects);
            let failures =
                failures::describe_failures(&self.failures, &self.flow, &mut self.fabric);
            let stuck = self.call_with_stuck_diagnosis_inputs(|diagnosis| {
                diagnosis.diagnose_deadlock(failures)
            });
            return Err(ReplayError::Stuck(Box::new(stuck)));
        }
        Ok(())
    }

    /// Calls `say` with the loop state that a diagnosis of a deadlock needs.
    fn call_with_stuck_diagnosis_inputs<T>(
        &self,
        say: impl FnOnce(&StuckDiagnosisInputs<'_, '_>) -> T,
    ) -> T {
        let chunks = self.collectives.message_simulator();
        say(&StuckDiagnosisInputs {
            flow: &self.flow,
            launches: &self.launches,
            lanes: self.processors.kernel_lanes(),
            groups: &chunks.groups,
            failures: &self.failures,
            runs: &chunks.runs,
            comm: self.settings.comm,
            as_issued: M::Order::MATCHES_AS_ISSUED,
            is_scripted: &|run| chunks.is_scripted(run),
        })
    }

    /// Submits this instant's messages, and the loads and stores that cross the network. First withdraws analytical
    /// answers that reserve links of this traffic.
    #[inline]
    fn submit_messages_and_memory_accesses(&mut self, now: Time) {
        let (fabric, effects) = (&mut self.fabric, &mut self.effects);
        if !effects.accesses.is_empty() {
            self.collectives
                .materialize_runs_for_accesses(fabric, effects, now);
            fabric.submit_accesses_over_network(now, effects);
        }
        if !effects.sends.is_empty() {
            self.collectives
                .materialize_runs_for_messages(fabric, effects, now);
            fabric.submit_pending_messages(now, effects);
        }
        self.run_follow_ups(now);
    }

    /// Settles collectives in which members have newly arrived. Must be called when no event is left at `now`.
    fn settle_collectives_with_new_arrivals(&mut self, now: Time) {
        let mut arrivals = std::mem::take(&mut self.effects.arrivals);
        arrivals
            .sort_unstable_by_key(|&run| self.collectives.arrival_independent_sort_key_of_run(run));
        for &run in &arrivals {
            let effects = &mut self.effects;
            if self.settings.comm == CommunicationDurationSource::Model {
                let fabric = &mut self.fabric;
                self.collectives
                    .process_new_arrivals(fabric, effects, now, run);
            } else {
                self.collectives
                    .begin_parts_of_members_no_longer_waiting(&self.flow, effects, now, run);
            }
            self.run_follow_ups(now);
        }
        arrivals.clear();
        self.effects.arrivals = arrivals;
    }

    /// Redistributes the bandwidth of memories' links if accesses began or ended at this instant and no event of the
    /// instant is left. Returns true if any bandwidth was redistributed.
    #[inline]
    fn redistribute_memory_bandwidth(&mut self, now: Time) -> bool {
        let (mut next, mut settled) = (0, false);
        while let Some(memory) = self.fabric.find_next_unsettled_memory(next) {
            next = memory + 1;
            // When an access to one memory ends, accesses to another may start at the same instant, so compute rates
            // only after all events of the instant.
            if !self.effects.agenda.has_event_at(now) {
                self.fabric
                    .redistribute_memory_bandwidth(now, memory, &mut self.effects);
                self.run_follow_ups(now);
                settled = true;
            }
        }
        settled
    }

    /// Delivers the notifications in the effects, and does the follow-up work that they list.
    #[inline]
    fn run_follow_ups(&mut self, now: Time) {
        if self.effects.has_follow_up() {
            self.notify_observer_and_do_follow_up_work(now);
        }
    }

    #[inline(never)]
    fn notify_observer_and_do_follow_up_work(&mut self, now: Time) {
        self.effects.clear_follow_up_flag();
        for (instance, node) in self.effects.began.drain(..) {
            self.observer.on_transfer_began(now, instance, node);
        }
        for record in self.effects.records.drain(..) {
            self.observer.on_collective_ended(&record);
        }
        M::Order::do_follow_up_work(self, now);
    }
}
