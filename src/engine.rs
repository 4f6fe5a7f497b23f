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
//! Where communication lasts as recorded ([`Comm`]), the network takes no part: a member's part begins when all that
//! it waits for have started and completes its own duration later. Starts are collected and settled like arrivals
//! above, and lanes and launch order are the same; a node that waits for no other rank needs no place in the launch
//! order.

use crate::collective::{Cue, Manner};
use crate::graph::{Graph, Kind, large};
use crate::ids::NodeIndex;
use crate::memory::{Attachment, End, RemoteAccess, Through};
use crate::network::{Message, Network, NetworkEvent, Notice, Place, Schedule};
use crate::report::Observer;
use crate::topology::Topology;
use crate::units::{Span, Time};
use crate::workload::Workload;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

mod agenda;
mod as_recorded;
mod asking;
mod chunks;
mod collective_run;
mod collectives;
mod courses;
mod endpoints;
mod error;
mod event;
mod folded;
mod in_order;
mod in_switch;
mod matching;
mod messages;
mod nodes;
mod plan;
mod prepared;
mod queues;
mod remote;
mod rendezvous;
mod scripts;
mod stuck;
mod unpriced;
mod ways;

pub use error::{NodeRef, Refusal, ReplayError, Stuck, Waiting};
pub use plan::{Basis, Comm, Options, place};
pub use prepared::{GroupView, Prepared};

use agenda::Agenda;
use collective_run::{Ops, Run};
use courses::Courses;
use event::{Class, Event};
use folded::Reached;
use in_order::Disagreement;
use messages::{Channel, Leaving};
use plan::{Plan, Shared};
use queues::Queues;
use rendezvous::Turns;

/// Sentinel dependency count: the node is complete.
const COMPLETE: u32 = u32::MAX;
/// Flag in a dependency count: the node has a delay. Nodes without one cost the loop no look at their graph's delays.
/// Counts are below, and with this below [`COMPLETE`].
const DELAYED: u32 = 1 << 31;

/// Totals of a completed replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Completion time of the last node.
    pub makespan: Span,
    /// Nodes completed, which is all of them.
    pub nodes: u64,
    /// Collectives answered by closed form.
    pub closed: u64,
    /// Collectives carried out message by message.
    pub stepwise: u64,
    /// Of those, collectives that were answered by closed form until other traffic touched their links.
    pub unfolded: u64,
    /// Collectives that lasted as recorded or captured.
    pub recorded: u64,
    /// Messages that the network carried, steps of collectives included.
    pub messages: u64,
}

/// A lane of an NPU.
#[derive(Debug, Default)]
struct LaneState {
    /// Node that holds the lane, plus one; zero when the lane is free.
    holder: u32,
    /// Nodes that wait for the lane, first ready, first served.
    queue: VecDeque<u32>,
    /// Nodes that wait for the lane in insertion order ([`Manner::IN_ORDER`]), lowest first.
    by_id: BinaryHeap<Reverse<u32>>,
}

/// An instance of the workload during the run. References replace look-ups in the loop.
#[derive(Debug)]
struct Running<'a> {
    graph: &'a Graph,
    shared: &'a Shared,
    /// Index of its first node in [`Engine::waiting`].
    first_node: usize,
    /// Index of its first lane in [`Engine::lanes`].
    first_lane: u32,
}

/// Progress of a message between two ranks, and the half that waits for the other.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    /// Set when the last byte has arrived; where messages last as recorded, when the send has started.
    delivered: bool,
    /// Node of the waiting half, plus one; zero before. Always the receive, except where messages last as recorded:
    /// there a send may wait for its receive.
    posted: u32,
    /// Instance of that half.
    waiter: u32,
}

/// State of the event loop during one replay.
pub struct Engine<'a, O: ?Sized, N, M: Manner> {
    workload: &'a Workload,
    topology: &'a Topology,
    plan: &'a Plan,
    stepwise: bool,
    comm: Comm,
    observer: &'a mut O,
    agenda: Agenda,
    network: N,
    manner: &'a mut M,
    /// Bytes of a rendezvous request, where messages have to be requested by their receiver.
    asking: Option<u64>,
    /// Whether members of a collective may run one stage in different directions or trees.
    varies: bool,
    remote: Option<RemoteAccess>,
    /// Dimension of the network whose ports loads and stores share with messages, if any.
    through: Option<usize>,
    /// Ports that loads and stores which began in this round will use.
    reaching: Vec<Place>,
    /// Loads and stores that ended, until their completions are scheduled.
    ends: Vec<End>,
    instances: Vec<Running<'a>>,
    /// Per node of each instance: dependencies left, possibly with [`DELAYED`], or [`COMPLETE`].
    waiting: Vec<u32>,
    lanes: Vec<LaneState>,
    turns: Vec<Turns>,
    pairs: Vec<Pair>,
    channels: Vec<Channel>,
    queues: Queues,
    ops: Ops,
    /// Messages that wait for their rendezvous request, by op.
    held: BTreeMap<u32, Message>,
    /// Ops of those that are steps of collectives, by run, cell, stage and step.
    expected: BTreeMap<(u32, u32, u16, u32), u32>,
    /// Reason for which the replay cannot go on.
    refusal: Option<Refusal>,
    /// First collective that a member issued with another kind or size than the member before it.
    disagreement: Option<Disagreement>,
    courses: Courses<M::Stage>,
    /// Number of collectives requested so far.
    requests: u32,
    runs: Vec<Run>,
    free_runs: Vec<u32>,
    /// Runs with members that arrived at this instant.
    arrivals: Vec<u32>,
    /// Nodes that became ready in this round, as (instance, node) in one word.
    ready: Vec<u64>,
    /// In insertion order, nodes that became ready through a node that completed at once: they are looked at when
    /// another node of their instance completes.
    dormant: Vec<u64>,
    /// Lanes freed in this round, as (instance, lane).
    freed: Vec<(u32, u32)>,
    notices: Vec<Notice>,
    /// Events of a round; kept for its allocation.
    round: Vec<Event>,
    /// Chunks that began a stage and have not advanced in it yet: run and cell.
    moved: Vec<(u32, u32)>,
    /// Messages submitted at this instant.
    leaving: Vec<Leaving>,
    /// Runs answered by closed form that can still be materialized, and how many there have been.
    folded: u32,
    foldings: u32,
    /// Progress of the present instant.
    reached: Reached,
    completed: u64,
    outcome: Outcome,
}

impl Schedule for Agenda {
    #[inline]
    fn schedule(&mut self, at: Time, event: NetworkEvent) {
        // Ops of one instant commute, because they touch ports and counters of their own; except for first bytes at
        // one port and messages at one link, which are ordered by content before their number.
        let event = match event {
            NetworkEvent::Injected(op) => Event::new(Class::Injected, 0, op),
            NetworkEvent::FirstByte { order, op } => Event::new(Class::FirstByte, order, op),
            NetworkEvent::Delivered(op) => Event::new(Class::Delivered, 0, op),
            NetworkEvent::Hop { order, op } => Event::new(Class::Hop, order, op),
            NetworkEvent::LinkFree(link) => Event::new(Class::LinkFree, 0, link),
        };
        self.push(at, event);
    }
}

impl<'a, O: Observer + ?Sized, N: Network, M: Manner> Engine<'a, O, N, M> {
    fn new(
        prepared: &'a Prepared<'a>,
        observer: &'a mut O,
        mut network: N,
        manner: &'a mut M,
    ) -> Self {
        let (workload, plan) = (prepared.workload, &prepared.plan);
        let mut waiting = large::list(workload.nodes() as usize);
        let mut instances = Vec::with_capacity(plan.instances.len());
        let mut lane_count = 0;
        for (instance, planned) in workload.instances().iter().zip(&plan.instances) {
            let graph = workload.graph(instance);
            let shared = &plan.shared[planned.shared as usize];
            instances.push(Running {
                graph,
                shared,
                first_node: waiting.len(),
                first_lane: lane_count,
            });
            let first = waiting.len();
            waiting.extend_from_slice(graph.in_degrees());
            if graph.has_delays() {
                for node in graph.nodes().filter(|&n| graph.delay(n) > Span::ZERO) {
                    // Roots are delayed from the release of their instance on, so their count stays 0 here.
                    let left: &mut u32 = &mut waiting[first + node.index()];
                    *left |= if *left > 0 { DELAYED } else { 0 };
                }
            }
            lane_count += shared.lane_count;
        }
        let machine = prepared.machine;
        let remote = machine.remote();
        // Ports are shared only where the network models contention and carries the messages.
        let met = prepared.comm == Comm::Model && network.attachments().is_some();
        let through = remote.and_then(|memory| memory.through.as_ref());
        let through = through.filter(|_| met).map(Through::dimension);
        let npus = machine.topology().npus();
        Self {
            workload,
            topology: machine.topology(),
            plan,
            stepwise: prepared.stepwise || (M::IN_ORDER && shares_memory(prepared)),
            comm: prepared.comm,
            observer,
            agenda: Agenda::default(),
            network,
            asking: manner.asking(),
            varies: M::IN_ORDER && manner.varies(),
            manner,
            remote: remote.map(|memory| RemoteAccess::new(memory, npus, met)),
            through,
            reaching: Vec::new(),
            ends: Vec::new(),
            instances,
            waiting,
            lanes: std::iter::repeat_with(LaneState::default)
                .take(lane_count as usize)
                .collect(),
            turns: plan.groups.iter().map(Turns::new).collect(),
            pairs: match M::IN_ORDER {
                true => Vec::new(),
                false => vec![Pair::default(); plan.pairs as usize],
            },
            channels: std::iter::repeat_with(Channel::default)
                .take(if M::IN_ORDER { plan.pairs as usize } else { 0 })
                .collect(),
            queues: Queues::default(),
            ops: Ops::default(),
            held: BTreeMap::new(),
            expected: BTreeMap::new(),
            refusal: None,
            disagreement: None,
            courses: Courses::default(),
            requests: 0,
            runs: Vec::new(),
            free_runs: Vec::new(),
            arrivals: Vec::new(),
            ready: Vec::new(),
            dormant: Vec::new(),
            freed: Vec::new(),
            notices: Vec::new(),
            round: Vec::new(),
            moved: Vec::new(),
            leaving: Vec::new(),
            folded: 0,
            foldings: 0,
            reached: Reached::default(),
            completed: 0,
            outcome: Outcome {
                makespan: Span::ZERO,
                nodes: 0,
                closed: 0,
                stepwise: 0,
                unfolded: 0,
                recorded: 0,
                messages: 0,
            },
        }
    }

    /// Runs the event loop until nothing is pending.
    fn run(mut self) -> Result<Outcome, ReplayError> {
        for (i, instance) in self.workload.instances().iter().enumerate() {
            let event = Event::new(Class::Release, i as u32, 0);
            self.agenda.push(instance.release, event);
        }
        let mut instant = Time::ZERO;
        while let Some(now) = self.agenda.next_time() {
            if now == Time::END {
                return Err(ReplayError::TooLong);
            }
            // Handlers return no errors: a refusal is left here and found before the next round.
            if let Some(refusal) = self.refusal {
                return Err(refusal.into());
            }
            self.round(now);
            // Insertion order has issued everything within the event, so no arrivals are left to settle.
            if M::IN_ORDER {
                if self.disagreement.is_some() {
                    break;
                }
                self.settle_memory(now);
                continue;
            }
            self.hand_out(now);
            if now > instant {
                (instant, self.reached) = (now, Reached::default());
            }
            self.reached.rounds += 1;
            // Submission comes before settling, so that reservations of closed forms see the traffic of this round.
            self.send(now);
            if !self.arrivals.is_empty() && !self.agenda.has(now) {
                self.reached.settle();
                self.settle(now);
                self.send(now);
            }
            if self.settle_memory(now) {
                self.reached.settle();
            }
        }
        let disagreement = self.disagreement();
        if let Some(refusal) = self.refusal.take().or(disagreement) {
            return Err(refusal.into());
        }
        if self.completed < self.waiting.len() as u64 {
            return Err(ReplayError::Stuck(Box::new(self.diagnose())));
        }
        self.outcome.nodes = self.completed;
        self.outcome.messages = self.ops.inserted();
        Ok(self.outcome)
    }

    /// Takes the events of the next instant, `now`, and handles them.
    #[inline]
    fn round(&mut self, now: Time) {
        let mut round = std::mem::take(&mut self.round);
        self.agenda.take(&mut round);
        if M::IN_ORDER {
            for &event in &round {
                self.happen(now, event);
            }
        } else {
            self.arrange(&mut round);
            for &event in &round {
                self.handle(now, event, 0);
            }
        }
        self.round = round;
    }

    /// Submits the messages of this instant, and reserves ports for loads and stores that began.
    #[inline]
    fn send(&mut self, now: Time) {
        if !self.reaching.is_empty() {
            self.reach_ports(now);
        }
        if !self.leaving.is_empty() {
            self.unfold_touched(now);
            self.hand_over(now);
        }
    }

    #[inline]
    fn handle(&mut self, now: Time, event: Event, detail: u32) {
        match event.class() {
            Class::Alarm => unreachable!("it is taken apart before"),
            Class::Opened => self.credit(now, event.rank(), event.payload(), detail),
            Class::Attended => self.attended(now, event.rank(), event.payload(), detail),
            Class::Reduced => self.credit(now, event.rank(), event.payload(), 1),
            Class::Found => self.hear(now, event.rank(), event.payload()),
            Class::Asked => self.release(now, event.payload()),
            Class::Cue => {
                let cue = Cue::Over { part: detail };
                self.play(now, event.rank(), event.payload(), cue);
            }
            Class::Taken => self.taken(now, event.payload()),
            Class::Settle => self.settle_in_order(now, event.payload()),
            Class::Vacant => self.end_member(now, event.rank(), event.payload()),
            Class::Bus => self.bus_event(now, event.rank(), event.payload()),
            Class::Hop => {
                let (order, op) = (event.rank(), event.payload());
                self.network_event(now, NetworkEvent::Hop { order, op });
            }
            Class::LinkFree => self.network_event(now, NetworkEvent::LinkFree(event.payload())),
            Class::Memory => self.memory_event(now, event.payload()),
            Class::Node => self.complete(now, event.rank(), NodeIndex(event.payload())),
            Class::Run => self.end_run(now, event.payload(), event.rank()),
            Class::Injected => {
                self.network_event(now, NetworkEvent::Injected(event.payload()));
            }
            Class::FirstByte => {
                let (order, op) = (event.rank(), event.payload());
                self.network_event(now, NetworkEvent::FirstByte { order, op });
            }
            Class::Delivered => {
                self.network_event(now, NetworkEvent::Delivered(event.payload()));
            }
            Class::Ready => {
                let node = NodeIndex(event.payload());
                self.observer.ready(now, event.rank(), node);
                self.ready.push(key(event.rank(), node));
            }
            Class::Release => {
                let graph = self.instances[event.rank() as usize].graph;
                let roots = graph.nodes().filter(|n| graph.in_degrees()[n.index()] == 0);
                for node in roots {
                    match graph.delay(node) {
                        Span::ZERO => self.ready.push(key(event.rank(), node)),
                        delay => self.delay(now, event.rank(), node, delay),
                    }
                }
            }
        }
    }
}

/// Packs a ready node into one word that sorts by instance, then id.
#[inline]
fn key(instance: u32, node: NodeIndex) -> u64 {
    u64::from(instance) << 32 | u64::from(node.0)
}

/// Returns whether NPUs share a channel to memory, so that the order in which members complete a collective may
/// matter to other operations.
fn shares_memory(prepared: &Prepared<'_>) -> bool {
    let remote = prepared.machine.remote();
    remote.is_some_and(|remote| remote.attachment != Attachment::PerNpu)
        && prepared.workload.graphs().iter().any(|graph| {
            let mut kinds = graph.nodes().map(|node| graph.kind(node));
            kinds.any(|kind| kind == Kind::RemoteMemory)
        })
}
