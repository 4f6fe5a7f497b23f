//! Launches in flight: the state of one, and how it begins and ends.
//!
//! The state of a launch lies in a frame: instances, nodes, groups and pairs one behind another, in the parts that know of them.
//! A program's frames are all alike, and one that ended is used again, so what is in flight bounds memory.

use super::compiled_replay::CompiledReplay;
use super::dataflow::{Dataflow, HELD, LaunchNumbers, REPRICED, RunningInstance, SLOWED};
use super::effects::Effects;
use super::error::ReplayRefusal;
use super::event::{Event, EventClass};
use super::ids::{InstanceId, ReplayGroupId};
use super::lanes::Lanes;
use super::launch::{Launch, LaunchPrices, LaunchRecord, LaunchSerial};
use super::plan::NONE;
use chakram_base::ids::{NodeIndex, Npu, Rank};
use chakram_base::units::{Span, Time};
use chakram_trace::graph::NodeKind;
use std::collections::BTreeMap;

/// A launch in flight, or the room of one that ended.
#[derive(Debug)]
struct LaunchFrame {
    record: LaunchRecord,
    prices: LaunchPrices,
    /// Ranks that have yet to end.
    ranks_left: u32,
}

/// The programs of a run, and their launches.
#[derive(Debug)]
pub(super) struct Launches<'a> {
    programs: &'a [CompiledReplay<'a>],
    /// True if there may be more than one launch.
    many: bool,
    frames: Vec<LaunchFrame>,
    /// Frames of launches that ended, by program.
    free: Vec<Vec<u32>>,
    /// By program.
    numbers: Vec<LaunchNumbers>,
    /// First lane of each NPU, by feed, where there may be several launches; [`NONE`] before the first.
    lanes_of: Vec<Vec<u32>>,
    /// Lanes of an NPU, at most.
    most_lanes: u32,
    /// Frames of launches whose ranks are released by their feed.
    held: BTreeMap<LaunchSerial, u32>,
    /// Number of the next launch.
    next: u64,
    /// Nodes of all launches so far.
    nodes: u64,
}

impl<'a> Launches<'a> {
    pub fn new(programs: &'a [CompiledReplay<'a>], feeds: usize, many: bool) -> Self {
        let mut first = LaunchNumbers {
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

    /// Returns the first lane of an instance: its own where there is one launch, the NPU's where there are several.
    pub fn lanes(&mut self, lanes: &mut Lanes, feed: u32, npu: Npu, own: u32) -> u32 {
        if !self.many {
            return lanes.add(own);
        }
        let of = &mut self.lanes_of[feed as usize];
        if npu.index() >= of.len() {
            of.resize(npu.index() + 1, NONE);
        }
        let first = &mut of[npu.index()];
        if *first == NONE {
            *first = lanes.add(self.most_lanes);
        }
        *first
    }

    /// Returns whether there may be more than one launch.
    #[inline]
    pub fn are_many(&self) -> bool {
        self.many
    }

    /// Number of the next launch.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Nodes of all launches so far.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Returns the numbers of a program.
    pub fn numbers(&self, program: u32) -> LaunchNumbers {
        self.numbers[program as usize]
    }

    /// Numbers a launch that a feed asks for, and returns its program; a refusal if there is none.
    pub fn number(
        &mut self,
        now: Time,
        feed: u32,
        launch: &Launch,
    ) -> Result<(&'a CompiledReplay<'a>, LaunchRecord), ReplayRefusal> {
        let serial = LaunchSerial(self.next);
        self.next += 1;
        let programs = self.programs;
        let program = programs.get(launch.program as usize).ok_or_else(|| {
            ReplayRefusal::new(
                format!(
                    "a feed launches program {}, but there are {}",
                    launch.program,
                    programs.len()
                ),
                "programs are numbered from 0, in the order in which they were given",
            )
        })?;
        program.may_launch_at(launch.npu)?;
        let record = LaunchRecord {
            serial,
            feed,
            program: launch.program,
            tag: launch.tag,
            npu: launch.npu,
            began: now,
        };
        Ok((program, record))
    }

    /// Takes a frame for a launch: one that was used, or a new one, for which the parts make room. Returns whether it was used.
    pub fn take(&mut self, record: LaunchRecord, prices: LaunchPrices) -> (u32, bool) {
        let program = &self.programs[record.program as usize];
        let frame = LaunchFrame {
            record,
            prices,
            ranks_left: program.plan.instances.len() as u32,
        };
        self.nodes += program.workload().nodes();
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

    /// Has the ranks of a launch wait until their feed releases them.
    pub fn hold(&mut self, frame: u32) {
        let serial = self.frames[frame as usize].record.serial;
        self.held.insert(serial, frame);
    }

    /// Returns the launch of a frame.
    #[inline]
    pub fn record(&self, frame: u32) -> &LaunchRecord {
        &self.frames[frame as usize].record
    }

    /// Lets a rank begin that waits for its feed to release it.
    pub fn release(
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
        let place = flow.place(frame);
        let index = place.plan.instance_of.get(rank.index());
        let Some(&index) = index.filter(|&&index| index != NONE) else {
            return;
        };
        let instance = place.first_instance.after(index);
        let running = flow.instance_mut(instance);
        if running.has(HELD) {
            running.flags &= !HELD;
            let event = Event::of_node(EventClass::Release, instance, NodeIndex(0));
            effects.agenda.push(now, event);
        }
    }

    /// Counts a rank of a launch as ended. Returns the launch, and whether that was its last rank; its frame is then free.
    pub fn end_rank(&mut self, frame: u32) -> (LaunchRecord, bool) {
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

    /// Returns the duration of a node in its launch.
    #[inline]
    pub fn price(&self, running: &RunningInstance<'_>, node: NodeIndex) -> Span {
        let price = running.duration(node);
        if running.has(REPRICED | SLOWED) {
            return self.own_price(running, node, price);
        }
        price
    }

    /// Returns the duration that a launch with prices of its own gives a node, or that it has beside collectives.
    #[inline(never)]
    fn own_price(&self, running: &RunningInstance<'_>, node: NodeIndex, price: Span) -> Span {
        let graph = running.graph;
        if graph.kind(node) != NodeKind::Compute {
            return price;
        }
        let price = if running.has(SLOWED) && running.collectives > 0 {
            price.scaled(running.shared.beside_collectives)
        } else {
            price
        };
        match &self.frames[running.frame as usize].prices {
            LaunchPrices::AsCompiled => price,
            LaunchPrices::Scaled(factor) => price.scaled(*factor),
            LaunchPrices::ByClass(prices) => {
                let own = prices.get(graph.name_index(node) as usize);
                own.copied().flatten().unwrap_or(price)
            }
        }
    }
}

#[cfg(test)]
mod tests;
