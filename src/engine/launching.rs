//! Handles launches in the loop: notifies feeds of ended launches, begins requested launches, and submits and ends the
//! jobs that processor models run.

use super::collectives::GroupsOfAllLaunchesInFlight;
use super::dataflow::{
    Dataflow, HELD, LaunchPlanAndFirstIndices, REPRICED, SERVED, SLOWED, TURNS,
    pack_instance_and_node, unpack_instance_and_node,
};
use super::discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
use super::effects::Effects;
use super::event::{EventClass, PackedEvent};
use super::failures::WATCHED;
use super::feed::LaunchFeed;
use super::frames::AllProgramLaunches;
use super::ids::{InstanceIndex, InstanceNode};
use super::launch::{
    FeedLaunchAndRankStartRequests, LaunchKernelDurationSource, LaunchOrRankStartRequest,
    LaunchRankReleaseMode, LaunchRequest, ProgramLaunchRecord,
};
use super::messages::Messages;
use super::processor::ProcessorKernelJob;
use super::processors::Processors;
use super::tile_groups::InstanceGroupsSimulatedAsOne;
use super::{CompiledReplay, Engine};
use crate::Observer;
use chakram_base::ids::NodeIndex;
use chakram_base::units::Time;
use chakram_hardware::network::NetworkBackend;

impl<'a, O: Observer + ?Sized, N: NetworkBackend, M: RequiredCollectiveBackendTraits>
    Engine<'a, O, N, M>
{
    /// Schedules failures, wakes feeds that want to be woken at time 0, and schedules the wakes of the other feeds.
    pub(super) fn schedule_failures_and_first_feed_wakes(&mut self) {
        self.failures.schedule_failures(&mut self.effects);
        for feed in 0..self.feeds.feed_count() {
            if self.feeds.must_wake_at_start(feed) {
                self.notify_feed_and_carry_out_requests(Time::ZERO, feed, |feed, queue| {
                    feed.on_wake(Time::ZERO, queue)
                });
            } else {
                let effects = &mut self.effects;
                self.feeds.schedule_wake(effects, Time::ZERO, feed);
            }
        }
    }

    /// Notifies feeds of the launches and ranks that ended in this round, and wakes feeds whose wake time has come.
    pub(super) fn notify_feeds_of_ends_and_wakes(&mut self, now: Time) {
        // The list may grow during the loop, because launches without nodes end immediately.
        while !self.effects.ended.is_empty() {
            self.notify_of_ended_ranks_and_launches(now);
        }
        let mut woken = self.feeds.take_woken_feeds();
        for feed in woken.drain(..) {
            self.notify_feed_and_carry_out_requests(now, feed, |feed, queue| {
                feed.on_wake(now, queue)
            });
        }
        self.feeds.give_back_woken_list(woken);
    }

    fn notify_of_ended_ranks_and_launches(&mut self, now: Time) {
        let mut ended = std::mem::take(&mut self.effects.ended);
        if ended.len() > 1 {
            ended.sort_unstable_by_key(|&instance| {
                let record = self
                    .launches
                    .launch_record_of_run_state(self.flow.instance(instance).frame);
                (record.feed, record.serial, instance)
            });
        }
        for &instance in &ended {
            let running = self.flow.instance(instance);
            let (frame, rank) = (
                running.frame,
                self.flow.rank_binding_of_instance(instance).rank,
            );
            let (record, over) = self.launches.end_rank(frame);
            if over {
                self.observer.on_all_launch_nodes_complete(now, &record);
            }
            self.notify_feed_and_carry_out_requests(now, record.feed, |feed, queue| {
                feed.on_rank_ended(now, &record, rank, queue);
                if over {
                    feed.on_launch_ended(now, &record, queue);
                }
            });
        }
        if self.effects.ended.is_empty() {
            ended.clear();
            self.effects.ended = ended;
        }
    }

    /// Notifies a feed and carries out its requests.
    fn notify_feed_and_carry_out_requests(
        &mut self,
        now: Time,
        feed: u32,
        tell: impl FnOnce(&mut dyn LaunchFeed, &mut FeedLaunchAndRankStartRequests),
    ) {
        let mut queue = self.feeds.notify_feed_and_take_its_requests(
            feed,
            self.launches.next_launch_index(),
            tell,
        );
        for order in queue.orders.drain(..) {
            match order {
                LaunchOrRankStartRequest::LaunchRequest(launch) => {
                    self.begin_job_launch(now, feed, launch)
                }
                LaunchOrRankStartRequest::Release(serial, rank) => {
                    let (flow, effects) = (&mut self.flow, &mut self.effects);
                    self.launches
                        .start_rank_released_by_feed(flow, effects, now, serial, rank);
                }
            }
        }
        self.feeds
            .give_back_requests_and_schedule_wake(&mut self.effects, now, feed, queue);
    }

    /// Begins a launch.
    fn begin_job_launch(&mut self, now: Time, feed: u32, launch: LaunchRequest) {
        let mut parts = LaunchStateComponents {
            launches: &mut self.launches,
            flow: &mut self.flow,
            tile_groups: &mut self.tile_groups,
            processors: &mut self.processors,
            messages: &mut self.messages,
            groups: &mut self.collectives.message_simulator_mut().groups,
            effects: &mut self.effects,
            aggregate: self.settings.aggregate,
            watched: self.failures.have_stopped_npus(),
            as_issued: M::Order::MATCHES_AS_ISSUED,
        };
        if let Some(record) = parts.begin_program_launch_unless_rejected(now, feed, launch) {
            self.observer.on_launch_began(now, &record);
        }
    }

    fn build_kernel_job_for_npu_processor(
        &self,
        instance: InstanceIndex,
        node: NodeIndex,
    ) -> ProcessorKernelJob {
        let running = self.flow.instance(instance);
        let record = self.launches.launch_record_of_run_state(running.frame);
        ProcessorKernelJob {
            npu: running.npu,
            launch: record.serial,
            feed: record.feed,
            program: record.program,
            tag: record.tag,
            node,
            price: self.launches.duration_of_node_in_launch(running, node),
            token: pack_instance_and_node(instance, node),
        }
    }

    /// Submits a kernel to its NPU's processor model.
    pub(super) fn submit_kernel_to_processor_model(
        &mut self,
        now: Time,
        instance: InstanceIndex,
        node: NodeIndex,
    ) {
        let job = self.build_kernel_job_for_npu_processor(instance, node);
        self.processors.submit_job(now, &job);
        self.schedule_ends_of_jobs_with_known_times(now);
    }

    /// Notifies the NPU's processor model that a kernel is complete.
    pub(super) fn notify_processor_model_of_job_end(
        &mut self,
        now: Time,
        instance: InstanceIndex,
        node: NodeIndex,
    ) {
        let job = self.build_kernel_job_for_npu_processor(instance, node);
        self.processors.notify_model_of_job_end(now, &job);
        self.schedule_ends_of_jobs_with_known_times(now);
    }

    /// Notifies processor models that no more jobs will end or be submitted at this instant.
    pub(super) fn notify_processors_that_instant_is_over(&mut self, now: Time) {
        self.processors.settle_instant(now);
        self.schedule_ends_of_jobs_with_known_times(now);
        // Processors may now have free capacity, so feeds may ask to be woken earlier.
        for feed in 0..self.feeds.feed_count() {
            self.feeds.schedule_wake(&mut self.effects, now, feed);
        }
    }

    /// Schedules the ends of the jobs whose times are now known.
    fn schedule_ends_of_jobs_with_known_times(&mut self, now: Time) {
        let mut started = std::mem::take(self.processors.decided_job_times_to_drain_mut());
        for times in started.drain(..) {
            let InstanceNode { instance, node } = unpack_instance_and_node(times.token);
            let job = self.build_kernel_job_for_npu_processor(instance, node);
            self.observer.on_kernel_scheduled(now, &job, &times);
            self.effects.end_node_at(times.end.max(now), instance, node);
        }
        *self.processors.decided_job_times_to_drain_mut() = started;
    }
}

/// The loop's components that store the state of launches.
///
/// The struct does not depend on the loop's generic types, so its methods are compiled only once.
struct LaunchStateComponents<'x, 'a> {
    launches: &'x mut AllProgramLaunches<'a>,
    flow: &'x mut Dataflow<'a>,
    tile_groups: &'x mut InstanceGroupsSimulatedAsOne,
    processors: &'x mut Processors<'a>,
    messages: &'x mut Messages<'a>,
    groups: &'x mut GroupsOfAllLaunchesInFlight<'a>,
    effects: &'x mut Effects,
    aggregate: bool,
    /// True if an NPU has failed.
    watched: bool,
    as_issued: bool,
}

impl<'a> LaunchStateComponents<'_, 'a> {
    /// Begins a launch and returns its record for observers. Returns `None` if the launch was rejected.
    fn begin_program_launch_unless_rejected(
        &mut self,
        now: Time,
        feed: u32,
        launch: LaunchRequest,
    ) -> Option<ProgramLaunchRecord> {
        let (program, record) = match self.launches.register_launch(now, feed, &launch) {
            Ok(numbered) => numbered,
            Err(refusal) => {
                self.effects.refusal = Some(refusal);
                return None;
            }
        };
        let repriced = !matches!(launch.prices, LaunchKernelDurationSource::AsCompiled);
        let (frame, used) = self
            .launches
            .assign_run_state_to_launch(record, launch.prices);
        let (plan, many) = (&program.plan, self.launches.may_have_several_launches());
        if !used {
            self.add_run_state_for_program(program, record.program);
        }
        self.flow
            .set_launch_index_of_run_state(frame, record.serial.0);
        let place = *self.flow.launch_plan_of_run_state(frame);
        let (first, count) = (place.first_instance, plan.instances.len() as u32);
        for (index, planned) in (0..).zip(&plan.instances) {
            let instance = first.nth_after(index);
            let npu = launch.npu.unwrap_or(planned.npu);
            let shared = program.graph_plan_on_npu(planned, launch.npu);
            let lanes = self.processors.kernel_lanes_mut();
            let first_lane =
                self.launches
                    .assign_first_lane(lanes, record.feed, npu, shared.lane_count);
            let served = self.processors.serves_program(npu, record.program);
            let flags = [
                (served, SERVED),
                (repriced, REPRICED),
                (many, TURNS),
                (shared.beside_collectives > 1.0, SLOWED),
                (self.watched, WATCHED),
            ];
            let flags = flags.into_iter().filter(|(is, _)| *is);
            let running = self.flow.instance_mut(instance);
            let graph = running.graph;
            (running.npu, running.shared) = (npu, shared);
            (running.first_lane, running.left) = (first_lane, graph.len() as u32);
            running.flags = flags.fold(0, |all, (_, flag)| all | flag);
            running.collectives = 0;
            self.flow.initialise_open_dependencies(instance, used);
            if many {
                for (lane, nodes) in (first_lane..).zip(shared.count_nodes_per_npu_lane(graph)) {
                    let kernels = if served { 0 } else { nodes.kernels };
                    let left = nodes.others + kernels;
                    if left > 0 {
                        self.processors
                            .kernel_lanes_mut()
                            .append_turn(lane, instance, left);
                    }
                }
            }
        }
        self.groups
            .number_and_reset_groups_of_launch(place.first_group, plan.groups.len(), used);
        if used {
            self.messages.reset_matches(place.first_pair, plan.pairs);
        }
        let held = launch.release == LaunchRankReleaseMode::ByRank;
        if held {
            self.launches.hold_launch_ranks_until_release(frame);
        }
        if self.aggregate && !many {
            self.tile_groups.form_groups(self.flow, first, count);
        }
        for instance in (0..count).map(|index| first.nth_after(index)) {
            let running = self.flow.instance_mut(instance);
            if running.left == 0 {
                self.effects.ended.push(instance);
            } else if held {
                running.flags |= HELD;
            } else if !self.tile_groups.is_follower(self.flow, instance) {
                let release = self.flow.rank_binding_of_instance(instance).release;
                let at = now + release.since(Time::ZERO);
                let event = PackedEvent::of_node(EventClass::Release, instance, NodeIndex(0));
                self.effects.agenda.push(at, event);
            }
        }
        Some(record)
    }

    /// Adds a new run state for launches of a program to all components.
    fn add_run_state_for_program(&mut self, program: &'a CompiledReplay<'a>, index: u32) {
        let (plan, workload) = (&program.plan, program.workload_with_added_launches());
        let numbers = self.launches.first_instance_and_group_indices(index);
        let only = !self.launches.may_have_several_launches();
        let first_instance = InstanceIndex(self.flow.running_rank_instances().len() as u32);
        if only {
            // With only one run state, reserve exactly its size. With several run states, lists grow by doubling
            // instead, because exact reservations would cause more copies.
            let lanes = plan.instances.iter();
            let lanes = lanes.map(|i| plan.shared[i.shared as usize].lane_count as usize);
            self.processors
                .kernel_lanes_mut()
                .reserve_lanes(lanes.sum());
            self.flow.reserve_instances(plan.instances.len());
        }
        let place = LaunchPlanAndFirstIndices {
            plan,
            ranks: workload.instances(),
            serial: 0,
            first_instance,
            first_group: self.groups.add_groups_of_program_launch(
                plan,
                first_instance,
                numbers,
                only,
            ),
            first_pair: self.messages.add_matches(plan, self.as_issued),
        };
        let graphs = workload.instances().iter().map(|of| workload.graph_of(of));
        self.flow
            .add_instances(place, numbers.first_instance, graphs);
    }
}
