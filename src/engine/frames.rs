//! Keeps the state of launches in flight, and begins and ends launches.
//!
//! The run state of a launch (`JobLaunchRunState`) consists of consecutive instances, nodes, groups and matches, which
//! are kept by other components. All run states of a program have the same layout, so the program's next launch can
//! reuse the state of an ended one. The memory is therefore bounded by the launches in flight.

use super::compiled_replay::CompiledReplay;
use super::dataflow::{
    Dataflow, HELD, ProgramFirstInstanceAndGroup, REPRICED, RunningRankInstance, SLOWED,
};
use super::effects::Effects;
use super::error::ReplayRefusal;
use super::event::{EventClass, PackedEvent};
use super::ids::{InstanceId, ReplayGroupId};
use super::lanes::LanesOfAllNpus;
use super::launch::{LaunchKernelDurationSource, LaunchRequest, LaunchSerial, ProgramLaunchRecord};
use super::plan::NONE;
use chakram_base::ids::{NodeIndex, Npu, Rank};
use chakram_base::units::{Span, Time};
use chakram_trace::graph::NodeKind;
use std::collections::BTreeMap;

/// Run state that a launch in flight uses, or that is free for a later launch.
#[derive(Debug)]
struct JobLaunchRunState {
    record: ProgramLaunchRecord,
    prices: LaunchKernelDurationSource,
    /// Number of ranks that have not ended yet.
    ranks_left: u32,
}

/// The programs of a run, and the state of their launches.
#[derive(Debug)]
pub(super) struct AllProgramLaunches<'a> {
    programs: &'a [CompiledReplay<'a>],
    /// True if there may be more than one launch.
    many: bool,
    frames: Vec<JobLaunchRunState>,
    /// Indices of free run states, for each program.
    free: Vec<Vec<u32>>,
    /// For each program, the index of its first instance, group and table, in the numbering over all programs.
    numbers: Vec<ProgramFirstInstanceAndGroup>,
    /// For each feed, its first lane on each NPU, or [`NONE`] before its first launch on that NPU. Used only if there
    /// may be several launches.
    lanes_of: Vec<Vec<u32>>,
    /// Largest number of lanes that any program needs on an NPU.
    most_lanes: u32,
    /// Run state of each launch whose ranks start only when the feed releases them.
    held: BTreeMap<LaunchSerial, u32>,
    /// Index of the next launch.
    next: u64,
    /// Total number of nodes of all launches so far.
    nodes: u64,
}

impl<'a> AllProgramLaunches<'a> {
    pub fn new(programs: &'a [CompiledReplay<'a>], feeds: usize, many: bool) -> Self {
        let mut first = ProgramFirstInstanceAndGroup {
            first_instance: InstanceId(0),
            first_group: ReplayGroupId(0),
            first_splits: 0,
        };
        let numbers = programs.iter().map(|program| {
            let before = first;
            first.first_instance.0 += program.plan.instances.len() as u32;
            first.first_group.0 += program.plan.groups.len() as u32;
            first.first_splits += program.plan.splits.len() as u32;
            before
        });
        let shared = programs.iter().flat_map(|program| &program.plan.shared);
        Self {
            numbers: numbers.collect(),
            many,
            frames: Vec::new(),
            free: vec![Vec::new(); programs.len()],
            lanes_of: vec![Vec::new(); feeds],
            most_lanes: shared.map(|shared| shared.lane_count).max().unwrap_or(0),
            programs,
            held: BTreeMap::new(),
            next: 0,
            nodes: 0,
        }
    }

    /// Returns the first lane of an instance. In a run with a single launch, the instance gets its own lanes.
    /// Otherwise, all launches from this feed share an NPU's lanes.
    pub fn assign_first_lane(
        &mut self,
        lanes: &mut LanesOfAllNpus,
        feed: u32,
        npu: Npu,
        own: u32,
    ) -> u32 {
        if !self.many {
            return lanes.add_lanes(own);
        }
        let of = &mut self.lanes_of[feed as usize];
        if npu.index() >= of.len() {
            of.resize(npu.index() + 1, NONE);
        }
        let first = &mut of[npu.index()];
        if *first == NONE {
            // All launches of the feed share these lanes, so there must be enough of them for every program.
            *first = lanes.add_lanes(self.most_lanes);
        }
        *first
    }

    /// Returns true if there may be more than one launch.
    #[inline]
    pub fn may_have_several_launches(&self) -> bool {
        self.many
    }

    /// Returns the index that the next launch will get.
    pub fn next_launch_index(&self) -> u64 {
        self.next
    }

    /// Returns the total number of nodes of all launches so far.
    pub fn node_count(&self) -> u64 {
        self.nodes
    }

    /// Returns the indices of a program's first instance, group and table, in the numbering over all programs.
    pub fn first_instance_and_group_indices(&self, program: u32) -> ProgramFirstInstanceAndGroup {
        self.numbers[program as usize]
    }

    /// Assigns an index to a requested launch, and returns its program. Fails if the program does not exist.
    pub fn register_launch(
        &mut self,
        now: Time,
        feed: u32,
        launch: &LaunchRequest,
    ) -> Result<(&'a CompiledReplay<'a>, ProgramLaunchRecord), ReplayRefusal> {
        let serial = LaunchSerial(self.next);
        self.next += 1;
        let programs = self.programs;
        let program = programs.get(launch.program as usize).ok_or_else(|| {
            ReplayRefusal::new(
                format!(
                    "a feed launches program {}, but the run has {}",
                    launch.program,
                    programs.len()
                ),
                "programs are numbered from 0, in the order in which they were given",
            )
        })?;
        program.check_can_launch_on_npu(launch.npu)?;
        let record = ProgramLaunchRecord {
            serial,
            feed,
            program: launch.program,
            tag: launch.tag,
            npu: launch.npu,
            began: now,
        };
        Ok((program, record))
    }

    /// Returns the index of a run state for a launch, and true if an earlier launch used this state. If it is new
    /// (false), the caller must add it to all components.
    pub fn assign_run_state_to_launch(
        &mut self,
        record: ProgramLaunchRecord,
        prices: LaunchKernelDurationSource,
    ) -> (u32, bool) {
        let program = &self.programs[record.program as usize];
        let frame = JobLaunchRunState {
            record,
            prices,
            ranks_left: program.plan.instances.len() as u32,
        };
        self.nodes += program.workload_with_added_launches().node_count();
        match self.free[record.program as usize].pop() {
            Some(number) => {
                self.frames[number as usize] = frame;
                (number, true)
            }
            None => {
                self.frames.push(frame);
                (self.frames.len() as u32 - 1, false)
            }
        }
    }

    /// Makes a launch's ranks wait until their feed releases them.
    pub fn hold_launch_ranks_until_release(&mut self, frame: u32) {
        let serial = self.frames[frame as usize].record.serial;
        self.held.insert(serial, frame);
    }

    /// Returns the launch that uses a run state.
    #[inline]
    pub fn launch_record_of_run_state(&self, frame: u32) -> &ProgramLaunchRecord {
        &self.frames[frame as usize].record
    }

    /// Starts a rank of a launch after the feed has released the rank.
    pub fn start_rank_released_by_feed(
        &self,
        flow: &mut Dataflow<'a>,
        effects: &mut Effects,
        now: Time,
        serial: LaunchSerial,
        rank: Rank,
    ) {
        let Some(&frame) = self.held.get(&serial) else {
            return;
        };
        let place = flow.launch_plan_of_run_state(frame);
        let index = place.plan.instance_of.get(rank.index());
        let Some(&index) = index.filter(|&&index| index != NONE) else {
            return;
        };
        let instance = place.first_instance.nth_after(index);
        let running = flow.instance_mut(instance);
        if running.has_flag(HELD) {
            running.flags &= !HELD;
            let event = PackedEvent::of_node(EventClass::Release, instance, NodeIndex(0));
            effects.agenda.push(now, event);
        }
    }

    /// Records that a rank of a launch has ended. Returns the launch, and true if this was the launch's last rank; the
    /// run state is then free.
    pub fn end_rank(&mut self, frame: u32) -> (ProgramLaunchRecord, bool) {
        let of = &mut self.frames[frame as usize];
        of.ranks_left -= 1;
        let record = of.record;
        let over = of.ranks_left == 0;
        if over {
            self.held.remove(&record.serial);
            self.free[record.program as usize].push(frame);
        }
        (record, over)
    }

    /// Returns how long a node takes in the launch of the instance `running`. A launch may override the compiled
    /// durations.
    #[inline]
    pub fn duration_of_node_in_launch(
        &self,
        running: &RunningRankInstance<'_>,
        node: NodeIndex,
    ) -> Span {
        let price = running.duration_of_node(node);
        if running.has_flag(REPRICED | SLOWED) {
            return self.duration_with_launch_changes_and_slowdown(running, node, price);
        }
        price
    }

    /// Returns how long a node takes, including the launch's changes and the slowdown from concurrent collectives.
    #[inline(never)]
    fn duration_with_launch_changes_and_slowdown(
        &self,
        running: &RunningRankInstance<'_>,
        node: NodeIndex,
        price: Span,
    ) -> Span {
        let graph = running.graph;
        if graph.kind(node) != NodeKind::Compute {
            return price;
        }
        let price = if running.has_flag(SLOWED) && running.collectives > 0 {
            price.scale_by(running.shared.beside_collectives)
        } else {
            price
        };
        match &self.frames[running.frame as usize].prices {
            LaunchKernelDurationSource::AsCompiled => price,
            LaunchKernelDurationSource::Scaled(factor) => price.scale_by(*factor),
            LaunchKernelDurationSource::ByClass(prices) => {
                let own = prices.get(graph.name_index(node) as usize);
                own.copied().flatten().unwrap_or(price)
            }
        }
    }
}

#[cfg(test)]
mod tests;
