//! The replay: one loop over one agenda.
//!
//! # The ordering contract
//!
//! All pending events lie in one queue. The events of an instant are taken together as a *round* and
//! handled in the order of their content (class, rank, node or op), never in the order in which they
//! happened to be scheduled. Handling them frees lanes and makes nodes ready; when the round is over,
//! freed lanes take the nodes that queue for them, and then the nodes that became ready are posted,
//! by rank and id. If that schedules events at the same instant, another round follows. When no event
//! is left at the instant, it is *settled*: collectives whose members arrived go on, by closed form
//! if all members arrived together and one is proved, and message by message if not; and loads and stores
//! that meet on their way to a pool of memory share its links anew, after their chunks have come to the
//! network's ports, behind all messages of the instant. So an unrelated
//! event, or a closed form in place of messages, reorders nothing.
//!
//! # The life of a node
//!
//! A node whose dependencies are complete is *ready*, or *delayed* if the trace gives it a delay: time
//! of the host, after which it is ready. The end of a delay is an event like any other, ordered by rank
//! and node, and a node that has none is ready in the round that completes what it waits for. A collective then waits for its turn in its
//! group; a receive is posted, and nodes that do nothing complete at once. Everything else waits for
//! its lane, first ready, first served. When the lane is free the node is *issued*, and holds the
//! lane until it is *complete*: a kernel or a load after its price, a send when its last byte has
//! left, a collective when this member's part is done.
//!
//! Where communication lasts as recorded ([`Comm`]), nothing is asked of the network: a part begins
//! when those it waits for have started and completes its own duration later. Starts are gathered and
//! settled like arrivals above, and lanes and turns are the same; but whoever waits for nobody needs
//! no turn.
//!
//! # Example
//!
//! Message by message a collective takes as long as in closed form:
//!
//! ```
//! use chakram::engine::Options;
//! use chakram::{Job, Machine};
//!
//! let (job, machine) = (Job::open(["traces/data-parallel-8"])?, Machine::load("dgx-h100")?);
//! let closed = job.replay(&machine, &Options::default())?;
//! let options = Options::with(|options| options.stepwise = true);
//! let stepwise = job.replay(&machine, &options)?;
//! assert_eq!(stepwise.outcome.makespan, closed.outcome.makespan);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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

pub use crate::compute::ComputeModel;
pub use crate::network::Model as NetworkModel;
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

/// In place of a count of dependencies: the node is complete.
const COMPLETE: u32 = u32::MAX;
/// Set in a count of dependencies: the node has a delay. So nodes without one cost the loop no look
/// at their graph's delays. Counts are below, and with this below [`COMPLETE`].
const DELAYED: u32 = 1 << 31;

/// How a replay ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// When the last node completed.
    pub makespan: Span,
    /// Nodes completed, which is all of them.
    pub nodes: u64,
    /// Collectives answered by closed form.
    pub closed: u64,
    /// Collectives carried out message by message.
    pub stepwise: u64,
    /// Of those, collectives that were answered by closed form until something else touched their links.
    pub unfolded: u64,
    /// Collectives that lasted as recorded or captured.
    pub recorded: u64,
    /// Messages that the network carried, steps of collectives included.
    pub messages: u64,
}

/// A lane of an NPU.
#[derive(Debug, Default)]
struct LaneState {
    /// The node that holds the lane, plus one; zero when the lane is free.
    holder: u32,
    /// Nodes that wait for it, first ready, first served.
    queue: VecDeque<u32>,
    /// Where everything happens in order, nodes that wait for it, lowest first.
    by_id: BinaryHeap<Reverse<u32>>,
}

/// One instance while it runs. References replace look-ups in the loop.
#[derive(Debug)]
struct Running<'a> {
    graph: &'a Graph,
    shared: &'a Shared,
    /// Where its nodes start in `waiting`.
    first_node: usize,
    /// Where its lanes start in `lanes`.
    first_lane: u32,
}

/// A message: how far it is, and which half waits for the other.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    /// Its last byte has arrived; where messages last as recorded, its send has started.
    delivered: bool,
    /// The half that waits, plus one: its node; zero before. Always the receive, but for a send that
    /// waits for its receive where messages last as recorded.
    posted: u32,
    /// The instance of that half.
    waiter: u32,
}

/// A prepared replay.
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
    /// The size of a message that asks for another one, where messages must be asked for.
    asking: Option<u64>,
    /// Whether members may come to one stage different ways.
    varies: bool,
    remote: Option<RemoteAccess>,
    /// The dimension of the network whose ports loads and stores share with messages, if they do.
    through: Option<usize>,
    /// Ports that loads and stores which began in this round will come to.
    reaching: Vec<Place>,
    /// Loads and stores that end, while they are told.
    ends: Vec<End>,
    instances: Vec<Running<'a>>,
    /// For each node of each instance: dependencies left, perhaps [`DELAYED`], or [`COMPLETE`].
    waiting: Vec<u32>,
    lanes: Vec<LaneState>,
    turns: Vec<Turns>,
    pairs: Vec<Pair>,
    channels: Vec<Channel>,
    queues: Queues,
    ops: Ops,
    /// Messages that must be asked for before they leave, by op.
    held: BTreeMap<u32, Message>,
    /// The ops of those that are steps of collectives: by run, cell, stage and step.
    expected: BTreeMap<(u32, u32, u16, u32), u32>,
    /// Why the replay cannot go on.
    refusal: Option<Refusal>,
    /// The first collective that a member issued as another one than the member before it.
    disagreement: Option<Disagreement>,
    courses: Courses<M::Stage>,
    /// Collectives that were asked for.
    requests: u32,
    runs: Vec<Run>,
    free_runs: Vec<u32>,
    /// Runs with members that arrived at this instant.
    arrivals: Vec<u32>,
    /// Nodes that became ready in this round, as (instance, node) in one word.
    ready: Vec<u64>,
    /// Where everything happens in order, nodes that were set free by one that ended at once: they are
    /// ready when another node of their instance ends.
    dormant: Vec<u64>,
    /// Lanes freed in this round, as (instance, lane).
    freed: Vec<(u32, u32)>,
    notices: Vec<Notice>,
    /// The events of a round; kept for its allocation.
    round: Vec<Event>,
    /// Chunks that began a stage and have yet to go on in it: run and cell.
    moved: Vec<(u32, u32)>,
    /// Messages that leave at this instant.
    leaving: Vec<Leaving>,
    /// Runs answered by closed form that could be unfolded, and how many there have been.
    folded: u32,
    foldings: u32,
    /// How far the present instant has been carried out.
    reached: Reached,
    completed: u64,
    outcome: Outcome,
}

impl Schedule for Agenda {
    #[inline]
    fn schedule(&mut self, at: Time, event: NetworkEvent) {
        // Ops of one instant commute, because they touch ports and counters of their own; except for
        // first bytes at one port and messages at one link, which go by what they are before their number.
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
                    // What waits for nothing is delayed from its release on.
                    let left: &mut u32 = &mut waiting[first + node.index()];
                    *left |= if *left > 0 { DELAYED } else { 0 };
                }
            }
            lane_count += shared.lane_count;
        }
        let machine = prepared.machine;
        let remote = machine.remote();
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

    /// The loop.
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
            if let Some(refusal) = self.refusal {
                return Err(refusal.into());
            }
            self.round(now);
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

    /// Takes the events that are due next, `now`, and handles them.
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

    /// Messages that leave at this instant do, and loads and stores take their ports from who claims them.
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

/// One word that orders ready nodes by instance and id.
#[inline]
fn key(instance: u32, node: NodeIndex) -> u64 {
    u64::from(instance) << 32 | u64::from(node.0)
}

/// Whether who ends a collective first may matter to others: where NPUs share a channel to memory.
fn shares_memory(prepared: &Prepared<'_>) -> bool {
    let remote = prepared.machine.remote();
    remote.is_some_and(|remote| remote.attachment != Attachment::PerNpu)
        && prepared.workload.graphs().iter().any(|graph| {
            let mut kinds = graph.nodes().map(|node| graph.kind(node));
            kinds.any(|kind| kind == Kind::RemoteMemory)
        })
}
