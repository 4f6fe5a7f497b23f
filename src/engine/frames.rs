//! Launches in flight: the state of one, and how it begins and ends.
//!
//! The state of a launch lies in a frame: instances, nodes, groups and pairs one behind another. A program's frames are
//! all alike, and one that ended is used again, so what is in flight bounds memory.

use super::compiled_replay::CompiledReplay;
use super::discipline::{CollectiveModel, Discipline};
use super::event::{Event, EventClass};
use super::lanes::Lanes;
use super::launch::{Launch, LaunchPrices, LaunchRecord, LaunchRelease, LaunchSerial};
use super::launch_order::LaunchOrder;
use super::messages::MessageChannel;
use super::plan::{GroupPlan, InstancePlan, NONE, ReplayPlan, SharedGraphPlan};
use super::{DELAYED, Engine, MessageState, ReplayRefusal};
use crate::graph::{Graph, NodeKind};
use crate::ids::{NodeIndex, Npu, Rank};
use crate::network::NetworkBackend;
use crate::report::Observer;
use crate::units::{Span, Time};
use crate::workload::RankInstance;
use std::collections::BTreeMap;

/// Packs a node of an instance into one word that sorts by instance, then id.
#[inline]
pub(super) fn key(instance: u32, node: NodeIndex) -> u64 {
    u64::from(instance) << 32 | u64::from(node.0)
}

/// Returns the instance and node of a word.
#[inline]
pub(super) fn node_of(word: u64) -> (u32, NodeIndex) {
    ((word >> 32) as u32, NodeIndex(word as u32))
}

/// Flag of an instance: its kernels are submitted to a processor.
pub(super) const SERVED: u8 = 1;
/// Flag: its launch has prices of its own.
pub(super) const REPRICED: u8 = 2;
/// Flag: its kernels take longer while collectives run.
pub(super) const SLOWED: u8 = 16;
/// Flag: it waits for its feed to release it.
pub(super) const HELD: u8 = 4;
/// Flag: its lanes serve several launches in turn.
pub(super) const TURNS: u8 = 8;

/// An instance of a launch in flight. References replace look-ups in the loop.
#[derive(Debug)]
pub(super) struct RunningInstance<'a> {
    pub graph: &'a Graph,
    pub shared: &'a SharedGraphPlan,
    pub planned: &'a InstancePlan,
    pub of: &'a RankInstance,
    /// Index of its first node in [`Dataflow::dependencies_left`].
    pub first_node: usize,
    /// Number of its launch.
    pub serial: u64,
    /// Index of its first lane.
    pub first_lane: u32,
    /// Nodes that have yet to complete.
    pub left: u32,
    /// Collectives that hold a lane.
    pub collectives: u32,
    /// Index among the instances of all programs, by which observers know it.
    pub number: u32,
    pub npu: Npu,
    /// Frame of its launch.
    pub frame: u32,
    /// [`SERVED`], [`REPRICED`], [`SLOWED`], [`HELD`], [`TURNS`].
    pub flags: u8,
}

/// A group of a launch in flight.
#[derive(Debug)]
pub(super) struct RunningGroup<'a> {
    pub plan: &'a GroupPlan,
    pub order: LaunchOrder,
    /// Instance of each rank of its program, [`NONE`] for those without a trace.
    instance_of: &'a [u32],
    /// First instance of its launch.
    first_instance: u32,
    /// Index among the groups of all programs, by which observers and schedules know it.
    pub identity: u32,
    /// First of its program's tables of what pairs exchange, among those of all programs.
    pub first_splits: u32,
    /// Number among the groups of all launches, by which its messages are ordered.
    pub number: u32,
}

impl RunningGroup<'_> {
    /// Returns the instance of a rank, [`NONE`] if it has no trace.
    #[inline]
    pub fn instance(&self, rank: Rank) -> u32 {
        match self.instance_of[rank.index()] {
            NONE => NONE,
            index => self.first_instance + index,
        }
    }
}

/// A launch in flight, or the room of one that ended.
#[derive(Debug)]
pub(super) struct LaunchFrame<'a> {
    pub record: LaunchRecord,
    pub plan: &'a ReplayPlan,
    pub prices: LaunchPrices,
    pub first_instance: u32,
    pub first_group: u32,
    pub first_pair: u32,
    /// Ranks that have yet to end.
    pub ranks_left: u32,
}

/// The programs of a run, and their launches.
#[derive(Debug)]
pub(super) struct Launches<'a> {
    pub programs: &'a [CompiledReplay<'a>],
    /// Whether there may be more than one launch.
    pub many: bool,
    pub frames: Vec<LaunchFrame<'a>>,
    /// Frames of launches that ended, by program.
    free: Vec<Vec<u32>>,
    /// Numbers of each program's first instance and group, and of the first table of what pairs exchange.
    first_numbers: Vec<(u32, u32, u32)>,
    /// First lane of each NPU, by feed, where there may be several launches; [`NONE`] before the first.
    lanes_of: Vec<Vec<u32>>,
    /// Lanes of an NPU, at most.
    most_lanes: u32,
    /// Frames of launches whose ranks are released by their feed.
    held: BTreeMap<LaunchSerial, u32>,
    /// Number of the next launch.
    pub next: u64,
    /// Groups of all launches so far.
    groups: u32,
    /// Nodes of all launches so far.
    pub nodes: u64,
}

impl<'a> Launches<'a> {
    pub fn new(programs: &'a [CompiledReplay<'a>], feeds: usize, many: bool) -> Self {
        let mut first = (0, 0, 0);
        let first_numbers = programs.iter().map(|program| {
            let before = first;
            first.0 += program.plan.instances.len() as u32;
            first.1 += program.plan.groups.len() as u32;
            first.2 += program.plan.splits.len() as u32;
            before
        });
        let shared = programs.iter().flat_map(|program| &program.plan.shared);
        Self {
            first_numbers: first_numbers.collect(),
            many,
            frames: Vec::new(),
            free: vec![Vec::new(); programs.len()],
            lanes_of: vec![Vec::new(); feeds],
            most_lanes: shared.map(|shared| shared.lane_count).max().unwrap_or(0),
            programs,
            held: BTreeMap::new(),
            next: 0,
            groups: 0,
            nodes: 0,
        }
    }

    /// Returns the first lane of an instance: its own where there is one launch, the NPU's where there are several.
    fn lanes(&mut self, lanes: &mut Lanes, feed: u32, npu: Npu, own: u32) -> u32 {
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
}

impl<'a, O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'a, O, N, M> {
    /// Returns the launch of an instance.
    #[inline]
    pub(super) fn frame_of(&self, instance: u32) -> &LaunchFrame<'a> {
        &self.launches.frames[self.flow.instances[instance as usize].frame as usize]
    }

    /// Returns the instance of another rank in the launch of `instance`, [`NONE`] if it has no trace.
    pub(super) fn instance_beside(&self, instance: u32, rank: Rank) -> u32 {
        let frame = self.frame_of(instance);
        match frame.plan.instance_of[rank.index()] {
            NONE => NONE,
            index => frame.first_instance + index,
        }
    }

    /// Begins a launch.
    pub(super) fn begin(&mut self, now: Time, feed: u32, launch: Launch) {
        let serial = self.launches.next;
        self.launches.next += 1;
        let programs = self.launches.programs;
        let Some(program) = programs.get(launch.program as usize) else {
            self.instant.refusal = Some(ReplayRefusal::new(
                format!(
                    "a feed launches program {}, but there are {}",
                    launch.program,
                    programs.len()
                ),
                "programs are numbered from 0, in the order in which they were given",
            ));
            return;
        };
        if let Err(refusal) = program.may_launch_at(launch.npu) {
            self.instant.refusal = Some(refusal);
            return;
        }
        let record = LaunchRecord {
            serial: LaunchSerial(serial),
            feed,
            program: launch.program,
            tag: launch.tag,
            npu: launch.npu,
            began: now,
        };
        let number = match self.launches.free[launch.program as usize].pop() {
            Some(number) => number,
            None => self.add_frame(program, record),
        };
        self.prepare(number, program, record, &launch);
        self.observer.launched(now, &record);
        let held = launch.release == LaunchRelease::ByRank;
        if held {
            self.launches.held.insert(record.serial, number);
        }
        let frame = &self.launches.frames[number as usize];
        let (first, count) = (frame.first_instance, frame.plan.instances.len() as u32);
        if self.settings.aggregate && !self.launches.many {
            self.form_tile_groups(first, count);
        }
        for instance in first..first + count {
            let running = &mut self.flow.instances[instance as usize];
            if running.left == 0 {
                self.effects.ended.push(instance);
            } else if held {
                running.flags |= HELD;
            } else if !self.follows(instance) {
                let running = &self.flow.instances[instance as usize];
                let at = now + running.of.release.since(Time::ZERO);
                let event = Event::new(EventClass::Release, instance, 0);
                self.agenda.push(at, event);
            }
        }
    }

    /// Adds a frame for a launch of `program`, and returns its index.
    fn add_frame(&mut self, program: &'a CompiledReplay<'a>, record: LaunchRecord) -> u32 {
        let (plan, workload) = (&program.plan, program.workload());
        let first_instance = self.flow.instances.len() as u32;
        let first_group = self.collectives.groups.len() as u32;
        let numbers = self.launches.first_numbers[record.program as usize];
        let frame = self.launches.frames.len() as u32;
        if !self.launches.many {
            // There is no other frame, so no room is left over. Several grow by doubling.
            let lanes = plan.instances.iter();
            let lanes = lanes.map(|i| plan.shared[i.shared as usize].lane_count as usize);
            self.processors.lanes.reserve(lanes.sum());
            self.flow.instances.reserve_exact(plan.instances.len());
            self.collectives.groups.reserve_exact(plan.groups.len());
        }
        let pairs = if M::Order::MATCHES_AS_ISSUED {
            let first = self.messages.channels.len();
            self.messages
                .channels
                .resize_with(first + plan.pairs as usize, MessageChannel::default);
            first
        } else {
            let first = self.messages.pairs.len();
            self.messages
                .pairs
                .resize(first + plan.pairs as usize, MessageState::default());
            first
        };
        for (number, (of, planned)) in
            (numbers.0..).zip(workload.instances().iter().zip(&plan.instances))
        {
            let graph = workload.graph(of);
            let first_node = self.flow.dependencies_left.len();
            self.flow
                .dependencies_left
                .extend_from_slice(graph.in_degrees());
            self.flow.instances.push(RunningInstance {
                graph,
                shared: &plan.shared[planned.shared as usize],
                planned,
                of,
                first_node,
                serial: 0,
                first_lane: 0,
                left: 0,
                collectives: 0,
                number,
                npu: planned.npu,
                frame,
                flags: 0,
            });
        }
        for (identity, group) in (numbers.1..).zip(&plan.groups) {
            self.collectives.groups.push(RunningGroup {
                plan: group,
                order: LaunchOrder::new(group),
                instance_of: &plan.instance_of,
                first_instance,
                identity,
                first_splits: numbers.2,
                number: 0,
            });
        }
        self.launches.frames.push(LaunchFrame {
            record,
            plan,
            prices: LaunchPrices::AsCompiled,
            first_instance,
            first_group,
            first_pair: pairs as u32,
            ranks_left: 0,
        });
        frame
    }

    /// Sets a frame up for a launch.
    fn prepare(
        &mut self,
        number: u32,
        program: &'a CompiledReplay<'a>,
        record: LaunchRecord,
        launch: &Launch,
    ) {
        let plan = &program.plan;
        let frame = &mut self.launches.frames[number as usize];
        // A frame that was never used is as new.
        let used = record.serial != frame.record.serial;
        (frame.record, frame.ranks_left) = (record, plan.instances.len() as u32);
        frame.prices = launch.prices.clone();
        let repriced = !matches!(launch.prices, LaunchPrices::AsCompiled);
        let (first, first_group, first_pair) =
            (frame.first_instance, frame.first_group, frame.first_pair);
        for index in 0..plan.instances.len() {
            let instance = first + index as u32;
            let planned = &plan.instances[index];
            let npu = launch.npu.unwrap_or(planned.npu);
            let shared = program.shared_at(planned, launch.npu);
            let many = self.launches.many;
            let lane_count = shared.lane_count;
            let first_lane =
                self.launches
                    .lanes(&mut self.processors.lanes, record.feed, npu, lane_count);
            let served = self
                .processors
                .model
                .as_ref()
                .is_some_and(|p| p.serves(npu, record.program));
            let running = &mut self.flow.instances[instance as usize];
            let graph = running.graph;
            (running.npu, running.shared, running.serial) = (npu, shared, record.serial.0);
            (running.first_lane, running.left) = (first_lane, graph.len() as u32);
            running.flags = if served { SERVED } else { 0 };
            running.flags |= if repriced { REPRICED } else { 0 };
            running.flags |= if many { TURNS } else { 0 };
            running.flags |= if shared.beside_collectives > 1.0 {
                SLOWED
            } else {
                0
            };
            running.collectives = 0;
            let nodes = running.first_node..running.first_node + graph.len();
            let left = &mut self.flow.dependencies_left[nodes];
            if used {
                left.copy_from_slice(graph.in_degrees());
            }
            if graph.has_delays() {
                for node in graph.nodes().filter(|&n| graph.delay(n) > Span::ZERO) {
                    // Roots are delayed from the release of their instance on, so their count stays 0 here.
                    let left = &mut left[node.index()];
                    *left |= if *left > 0 { DELAYED } else { 0 };
                }
            }
            if many {
                for (lane, nodes) in (0..).zip(shared.lane_nodes(graph)) {
                    let left = if served {
                        nodes.others
                    } else {
                        nodes.others + nodes.kernels
                    };
                    if left > 0 {
                        self.processors
                            .lanes
                            .enter(first_lane + lane, instance, left);
                    }
                }
            }
            self.launches.nodes += graph.len() as u64;
        }
        for group in &mut self.collectives.groups[first_group as usize..][..plan.groups.len()] {
            group.number = self.launches.groups;
            self.launches.groups = self.launches.groups.wrapping_add(1);
            if used {
                group.order.reset(group.plan);
            }
        }
        if used {
            self.messages.pairs[first_pair as usize..][..plan.pairs as usize]
                .fill(MessageState::default());
        }
    }

    /// Lets a rank begin that waits for its feed to release it.
    pub(super) fn release_rank(&mut self, now: Time, serial: LaunchSerial, rank: Rank) {
        let Some(&frame) = self.launches.held.get(&serial) else {
            return;
        };
        let frame = &self.launches.frames[frame as usize];
        let index = frame.plan.instance_of.get(rank.index());
        let Some(&index) = index.filter(|&&index| index != NONE) else {
            return;
        };
        let instance = frame.first_instance + index;
        let running = &mut self.flow.instances[instance as usize];
        if running.flags & HELD != 0 {
            running.flags &= !HELD;
            let event = Event::new(EventClass::Release, instance, 0);
            self.agenda.push(now, event);
        }
    }

    /// Counts a rank of a launch as ended. Returns whether it was the last; its frame is then free.
    pub(super) fn end_rank(&mut self, now: Time, frame: u32) -> bool {
        let of = &mut self.launches.frames[frame as usize];
        of.ranks_left -= 1;
        if of.ranks_left > 0 {
            return false;
        }
        let record = of.record;
        self.launches.held.remove(&record.serial);
        self.launches.free[record.program as usize].push(frame);
        self.observer.launch_ended(now, &record);
        true
    }

    /// Returns the duration of a kernel in its launch.
    #[inline]
    pub(super) fn price(&self, instance: u32, node: NodeIndex) -> Span {
        let running = &self.flow.instances[instance as usize];
        let price = running.shared.prices[node.index()];
        if running.flags & (REPRICED | SLOWED) == 0 {
            return price;
        }
        self.own_price(instance, node, price)
    }

    /// Returns the duration that a launch with prices of its own gives a node, or that it has beside collectives.
    #[inline(never)]
    fn own_price(&self, instance: u32, node: NodeIndex, price: Span) -> Span {
        let running = &self.flow.instances[instance as usize];
        let graph = running.graph;
        if graph.kind(node) != NodeKind::Compute {
            return price;
        }
        let price = if running.flags & SLOWED != 0 && running.collectives > 0 {
            price.scaled(running.shared.beside_collectives)
        } else {
            price
        };
        match &self.frame_of(instance).prices {
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
