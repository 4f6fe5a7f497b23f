//! The replay: one loop over one agenda.
//!
//! # The ordering contract
//!
//! All pending events lie in one queue. The events of an instant are taken together as a *round* and handled in
//! content order (class, rank, node or op), never in the order in which they happened to be scheduled. Handling them
//! frees lanes and makes nodes ready; when the round is over, freed lanes take the nodes that queue for them, and
//! then newly ready nodes are posted, by rank and id. If that schedules events at the same instant, another round
//! follows. When no event is left at the instant, it is *settled*: collectives whose members arrived proceed, by
//! closed form if all members arrived together and one is proved, message by message otherwise; loads and stores that
//! contend on their way to a memory pool share its links anew, after their chunks have come to the network's ports,
//! behind all messages of the instant. An unrelated event, or a closed form in place of messages, therefore reorders
//! nothing.
//!
//! # The life of a node
//!
//! A node whose dependencies are complete is *ready*, or *delayed* if the trace gives it a delay: host time, after
//! which it is ready. The end of a delay is an event like any other, ordered by rank and node; a node without a delay
//! is ready in the round that completes its last dependency. A collective then waits for its place in the launch
//! order of its group; a receive is posted, and nodes that do nothing complete at once. Everything else queues for
//! its lane, first ready, first served. When the lane is free the node is *issued*, and holds the lane until it is
//! *complete*: a kernel or a load after its price, a send when its last byte has left, a collective when this
//! member's part is done.
//!
//! Where communication lasts as recorded ([`CommTiming`]), the network takes no part: a member's part begins when all
//! that it waits for have started and completes its own duration later. Starts are collected and settled like arrivals
//! above, and lanes and launch order are the same; a node that waits for no other rank needs no place in the launch
//! order.
//!
//! # Launches
//!
//! Nodes are of a *launch*, one execution of a program, and launches come from a [`Feed`]; a job is a feed with one launch
//! at 0. With several, "by rank" above is by NPU and then by the number of the launch. When a round is over feeds are
//! told what ended in it, then those are woken that asked for it, and what they launch begins in the next round.
//! [`ProcessorModel`]s settle when no event is left at the instant, before collectives do.
//!
//! # Example
//!
//! Message by message a collective takes as long as in closed form:
//!
//! ```
//! use chakram::engine::ReplayOptions;
//! use chakram::{Job, Machine};
//!
//! let (job, machine) = (Job::open(["traces/data-parallel-8"])?, Machine::load("dgx-h100")?);
//! let closed = job.replay(&machine, &ReplayOptions::default())?;
//! let options = ReplayOptions::with(|options| options.stepwise = true);
//! let stepwise = job.replay(&machine, &options)?;
//! assert_eq!(stepwise.outcome.makespan, closed.outcome.makespan);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::graph::NodeKind;
use crate::ids::{NodeIndex, Npu};
use crate::memory::MemoryAttachment;
use crate::network::{NetworkBackend, NetworkEvent};
use crate::report::Observer;
use crate::topology::Topology;
use crate::units::{Span, Time};
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
mod feed;
mod feeding;
mod frames;
mod host_launches;
mod in_switch;
mod insertion_order;
mod lanes;
mod launch;
mod launching;
mod matching;
mod members;
mod messages;
mod nodes;
mod options;
mod placement;
mod plan;
mod processor;
mod processors;
mod representatives;
mod split_sizes;
mod stuck;
mod tile_checks;
mod tile_groups;
mod unpriced_kernels;

pub use crate::compute::{ComputeModel, HostTiming, RooflineEfficiency};
pub use crate::network::NetworkKind as NetworkModel;
pub use compiled_replay::{CompiledReplay, GroupView, run_launches};
pub use coverage::PricingCoverage;
pub use discipline::{CollectiveModel, Discipline};
pub use error::{NodeRef, ReplayError, ReplayRefusal, Stuck, WaitingNode};
pub use extensions::{Extensions, KernelModel, MemoryDesign};
pub use feed::*;
pub use launch::{Launch, LaunchPrices, LaunchQueue, LaunchRecord, LaunchRelease, LaunchSerial};
pub use options::{CommTiming, LaunchMode, ReplayOptions};
pub use placement::place;
pub use processor::{JobTimes, ProcessorJob, ProcessorModel};
pub use representatives::{RepresentativeCheck, replay_representatives};
pub use tile_groups::{GroupSplit, LoopCounts};

use collectives::Collectives;
use compiled_replay::LaunchSource;
use dataflow::Dataflow;
use effects::Effects;
use event::{Event, EventClass};
use event_loop::LoopComponents;
use fabric::{Fabric, InFlightOp, MessageNotice};
use feeding::Feeds;
use frames::Launches;
use messages::Messages;
use processors::Processors;
use tile_groups::TileGroups;

/// Totals of a completed replay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReplayOutcome {
    /// Completion time of the last node.
    #[serde(rename = "makespan_ps")]
    pub makespan: Span,
    /// Nodes completed, which is all of them.
    pub nodes: u64,
    /// Messages that the network carried, steps of collectives included.
    pub messages: u64,
    /// Collectives answered by closed form.
    #[serde(rename = "collectives_analytical")]
    pub closed: u64,
    /// Of those carried out message by message, collectives that were answered by closed form until other
    /// traffic touched their links.
    #[serde(rename = "collectives_materialized")]
    pub unfolded: u64,
    /// Collectives carried out message by message.
    #[serde(rename = "collectives_simulated")]
    pub stepwise: u64,
    /// Collectives that lasted as recorded or captured.
    #[serde(rename = "collectives_recorded")]
    pub recorded: u64,
}

/// Options of carrying out a run.
#[derive(Clone, Copy, Debug)]
struct RunSettings<'a> {
    topology: &'a Topology,
    stepwise: bool,
    /// True if nothing but collectives of all ranks uses the network, one after another.
    collectives_alone: bool,
    /// Let one of several ranks that do the same run for all.
    aggregate: bool,
    comm: CommTiming,
    host: HostTiming,
    /// True if there may be more than one launch.
    many: bool,
}

/// The loop of one replay: components, each with a state of its own, and what they cause.
pub struct Engine<'a, O: ?Sized, N, M: CollectiveModel> {
    settings: RunSettings<'a>,
    launches: Launches<'a>,
    feeds: Feeds<'a>,
    flow: Dataflow<'a>,
    tile_groups: TileGroups,
    processors: Processors<'a>,
    messages: Messages<'a>,
    collectives: Collectives<'a, M>,
    fabric: Fabric<'a, N>,
    effects: Effects,
    observer: &'a mut O,
    /// Events of a round; kept for its allocation.
    round: Vec<Event>,
}

impl<O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> LoopComponents
    for Engine<'_, O, N, M>
{
    /// Handlers return no errors: a refusal is left among the effects and found before the next round.
    #[inline]
    fn next(&mut self) -> Option<Time> {
        let next = self.effects.agenda.next_time();
        next.filter(|&now| now < Time::END && self.effects.refusal.is_none())
    }

    #[inline]
    fn round(&mut self, now: Time) {
        M::Order::round(self, now);
    }

    #[inline]
    fn end_round(&mut self, now: Time) -> ControlFlow<()> {
        M::Order::end_round(self, now)
    }
}

impl<'a, O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'a, O, N, M> {
    fn new(source: LaunchSource<'a>, observer: &'a mut O, network: N, backend: &'a mut M) -> Self {
        let prepared = &source.programs[0];
        // Of a single launch the number of nodes is known, and many are on huge pages.
        let nodes = if source.many {
            0
        } else {
            prepared.workload().nodes() as usize
        };
        let settings = RunSettings {
            topology: prepared.machine.topology(),
            stepwise: prepared.stepwise || (M::Order::AT_ONCE && shares_memory(prepared)),
            collectives_alone: M::Order::AT_ONCE
                && N::SHARED
                && !source.many
                && collectives_are_alone(prepared),
            aggregate: prepared.aggregate,
            comm: prepared.comm,
            host: prepared.host,
            many: source.many,
        };
        Self {
            settings,
            launches: Launches::new(source.programs, source.feeds.len(), source.many),
            feeds: Feeds::new(source.feeds),
            flow: Dataflow::new(nodes),
            tile_groups: TileGroups::default(),
            processors: Processors::new(source.processors),
            messages: Messages::new(prepared.comm),
            fabric: Fabric::new(prepared, network, backend.rts_bytes()),
            collectives: Collectives::new(backend, settings),
            effects: Effects::default(),
            observer,
            round: Vec::new(),
        }
    }

    /// Runs until nothing is pending.
    fn run(mut self) -> Result<ReplayOutcome, ReplayError> {
        self.run_events()?;
        let outcome = self.outcome();
        self.fabric.report(self.observer);
        let events = self.effects.progress.events;
        self.observer.counted(&self.tile_groups.counts(events));
        Ok(outcome)
    }

    fn outcome(&self) -> ReplayOutcome {
        let (nodes, last) = self.flow.completed();
        let mut outcome = ReplayOutcome {
            makespan: last.since(Time::ZERO),
            nodes,
            closed: 0,
            stepwise: 0,
            unfolded: 0,
            recorded: 0,
            messages: self.fabric.messages(),
        };
        self.collectives.count(&mut outcome);
        outcome
    }

    /// Runs the event loop until nothing is pending.
    fn run_events(&mut self) -> Result<(), ReplayError> {
        self.start_feeds();
        self.tell_feeds(Time::ZERO);
        event_loop::run(self);
        if self.effects.agenda.next_time() == Some(Time::END) {
            return Err(ReplayError::TooLong);
        }
        let disagreement = self.disagreement();
        if let Some(refusal) = self.effects.refusal.take().or(disagreement) {
            return Err(refusal.into());
        }
        if self.flow.completed().0 < self.launches.nodes() {
            let (lanes, effects) = (self.processors.lanes_mut(), &mut self.effects);
            self.tile_groups.dissolve(&mut self.flow, lanes, effects);
            return Err(ReplayError::Stuck(Box::new(self.diagnose())));
        }
        Ok(())
    }

    /// Sorts the events of a round into content order.
    #[inline]
    fn sort(&self, round: &mut [Event]) {
        if round.len() < 2 {
            return;
        }
        self.fabric.sort(round);
        if self.launches.are_many() {
            self.flow.sort_by_launch(round);
        }
    }

    /// Submits the loads and stores of this instant that cross the network, and its messages, once no closed form reserves
    /// links on their way.
    #[inline]
    fn send(&mut self, now: Time) {
        let (fabric, effects) = (&mut self.fabric, &mut self.effects);
        if !effects.accesses.is_empty() {
            self.collectives
                .materialize_on_the_way(fabric, effects, now);
            fabric.submit_accesses(now, effects);
        }
        if !effects.sends.is_empty() {
            self.collectives.materialize_touched(fabric, effects, now);
            fabric.submit_pending(now, effects);
        }
        self.follow_up(now);
    }

    /// Settles collectives with new arrivals, when no event is left at `now`.
    fn settle(&mut self, now: Time) {
        let mut arrivals = std::mem::take(&mut self.effects.arrivals);
        arrivals.sort_unstable_by_key(|&run| self.collectives.content_of(run));
        for &run in &arrivals {
            let effects = &mut self.effects;
            if self.settings.comm == CommTiming::Model {
                let fabric = &mut self.fabric;
                self.collectives.settle_run(fabric, effects, now, run);
            } else {
                self.collectives.begin_parts(&self.flow, effects, now, run);
            }
            self.follow_up(now);
        }
        arrivals.clear();
        self.effects.arrivals = arrivals;
    }

    /// Shares the links of memories anew, if accesses began or ended at this instant and no event of it is left. Returns
    /// whether it did.
    #[inline]
    fn settle_memories(&mut self, now: Time) -> bool {
        let (mut next, mut settled) = (0, false);
        while let Some(memory) = self.fabric.unsettled_memory(next) {
            next = memory + 1;
            // What one of them ended at this instant may concern the next, which is then settled after it.
            if !self.effects.agenda.has(now) {
                self.fabric.settle_memory(now, memory, &mut self.effects);
                self.follow_up(now);
                settled = true;
            }
        }
        settled
    }

    /// Carries out what components left to be told and done.
    #[inline]
    fn follow_up(&mut self, now: Time) {
        if self.effects.leave_something() {
            self.tell_and_do(now);
        }
    }

    #[inline(never)]
    fn tell_and_do(&mut self, now: Time) {
        self.effects.calm();
        for (number, node) in self.effects.began.drain(..) {
            self.observer.began(now, number, node);
        }
        for record in self.effects.records.drain(..) {
            self.observer.collective(&record);
        }
        M::Order::follow_up(self, now);
    }

    /// Handles an event of the network, and what it says about messages.
    #[inline]
    fn network_event(&mut self, now: Time, event: NetworkEvent) {
        self.fabric.handle(now, event, &mut self.effects);
        while let Some(notice) = self.fabric.notice() {
            self.notice(now, notice);
            // Where members answer a step only after their endpoint's work, nothing follows from its arrival.
            let is_step = matches!(notice, MessageNotice::Arrived(InFlightOp::Step { .. }));
            if M::Order::AT_ONCE && !is_step {
                self.follow_up(now);
            }
        }
        if !M::Order::AT_ONCE {
            let (fabric, effects) = (&mut self.fabric, &mut self.effects);
            self.collectives.advance_begun(fabric, effects, now);
            self.follow_up(now);
        }
    }

    /// Handles a notice of the network about a message.
    #[inline]
    fn notice(&mut self, now: Time, notice: MessageNotice) {
        let (fabric, effects) = (&mut self.fabric, &mut self.effects);
        match notice {
            // By far the most messages.
            MessageNotice::Arrived(InFlightOp::Step {
                run,
                from,
                to,
                stage,
                recv_posted,
            }) => {
                let ends = (run, from, to);
                let number = (stage, recv_posted);
                self.collectives
                    .step_arrived(fabric, effects, now, ends, number);
            }
            MessageNotice::Left(InFlightOp::Send { sender, node, .. }) => {
                effects.end::<M::Order>(now, sender, NodeIndex(node));
            }
            MessageNotice::Arrived(InFlightOp::Send {
                pair,
                ports,
                sender,
                node,
            }) => {
                fabric.close(ports);
                let send = (sender, NodeIndex(node));
                self.messages.arrived::<M::Order>(effects, now, pair, send);
            }
            MessageNotice::Arrived(InFlightOp::Mirrored {
                receiver,
                node,
                ports,
            }) => {
                fabric.close(ports);
                effects.end::<M::Order>(now, receiver, NodeIndex(node));
            }
            MessageNotice::Arrived(InFlightOp::Access { instance, node }) => {
                effects.end_said(now, instance, NodeIndex(node));
            }
            MessageNotice::Arrived(InFlightOp::RankRequest {
                pair,
                receiver,
                node,
            }) => {
                let receive = (receiver, NodeIndex(node));
                self.messages.requested(fabric, effects, now, pair, receive);
            }
            MessageNotice::Arrived(InFlightOp::Scripted {
                run, from, part, ..
            }) if M::Order::SENDS_END_ON_ARRIVAL => {
                // The part is over for the sender first.
                self.collectives
                    .part_ended(fabric, effects, now, (run, from), part);
                self.follow_up(now);
                let (fabric, effects) = (&mut self.fabric, &mut self.effects);
                self.collectives.notice(fabric, effects, now, notice);
            }
            _ => self.collectives.notice(fabric, effects, now, notice),
        }
    }

    #[inline]
    fn handle(&mut self, now: Time, event: Event, detail: u32) {
        let (fabric, effects) = (&mut self.fabric, &mut self.effects);
        match event.class() {
            EventClass::Node => {
                self.complete(now, event.rank(), NodeIndex(event.payload()));
                return;
            }
            EventClass::Ready => {
                let (instance, node) = (event.rank(), NodeIndex(event.payload()));
                effects.ready.push(dataflow::key(instance, node));
                self.tell(instance, |observer, number| {
                    observer.ready(now, number, node);
                });
                return;
            }
            EventClass::Release => {
                self.flow.release_roots(effects, event.rank());
                self.delay(now);
                return;
            }
            EventClass::Wake => {
                self.feeds.wake(now, event.rank());
                return;
            }
            EventClass::Injected
            | EventClass::FirstByte
            | EventClass::Delivered
            | EventClass::Hop
            | EventClass::LinkFree => {
                if let Some(event) = event.of_network() {
                    self.network_event(now, event);
                }
                return;
            }
            EventClass::Alarm => unreachable!("it is taken apart before"),
            EventClass::Bus => {
                self.bus_event(now, Npu(event.rank()), event.payload());
                return;
            }
            EventClass::Memory => fabric.handle_memory(now, event.rank(), event.payload(), effects),
            EventClass::Requested => fabric.release(now, event.payload(), effects),
            EventClass::Run if self.settings.comm != CommTiming::Model => {
                let run = event.payload();
                self.collectives.end_recorded(&self.flow, effects, now, run);
            }
            _ => self
                .collectives
                .handle(fabric, effects, now, (event, detail)),
        }
        self.follow_up(now);
    }
}

/// Returns whether NPUs share a channel to memory, so that the order in which members complete a collective may
/// matter to other operations.
fn shares_memory(prepared: &CompiledReplay<'_>) -> bool {
    let remote = prepared.machine.remote();
    remote.is_some_and(|remote| remote.attachment != MemoryAttachment::PerNpu)
        && prepared.workload().graphs().iter().any(|graph| {
            let mut kinds = graph.nodes().map(|node| graph.kind(node));
            kinds.any(|kind| kind == NodeKind::RemoteMemory)
        })
}

/// Returns whether all traffic is that of collectives of all ranks, and a rank has one of them at a time.
fn collectives_are_alone(prepared: &CompiledReplay<'_>) -> bool {
    let plan = &prepared.plan;
    let ranks = plan.instances.len();
    let groups = plan.groups.iter();
    let mut busy = groups.filter(|group| group.present > 0);
    let of_all =
        |group: &plan::GroupPlan| group.members.len() == ranks && group.present as usize == ranks;
    busy.all(of_all)
        && plan.instances.iter().enumerate().all(|(i, instance)| {
            let graph = prepared
                .workload()
                .graph(&prepared.workload().instances()[i]);
            let lanes = &plan.shared[instance.shared as usize].lanes;
            let mut lanes = graph
                .calls()
                .iter()
                .map(|call| lanes[graph.lane(call.node) as usize]);
            let first = lanes.next();
            graph.messages().is_empty()
                && first != Some(plan::NONE)
                && lanes.all(|lane| Some(lane) == first)
        })
}
