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

use crate::collective::ScriptEvent;
use crate::graph::{NodeKind, huge_pages};
use crate::ids::NodeIndex;
use crate::memory::{AccessEnd, MemoryAttachment};
use crate::network::{
    DeliveryNotice, EventScheduler, LinkTraffic, NetworkBackend, NetworkEvent, NetworkMessage,
};
use crate::report::Observer;
use crate::topology::Topology;
use crate::units::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

mod agenda;
mod chunk_queues;
mod chunks;
mod collective_run;
mod collectives;
mod compiled_replay;
mod content_order;
mod coverage;
mod direction_matching;
mod discipline;
mod effects;
mod endpoints;
mod error;
mod event;
mod extensions;
mod fast_forward;
mod feed;
mod feeding;
mod frames;
mod host_launches;
mod in_switch;
mod insertion_order;
mod lanes;
mod launch;
mod launch_order;
mod matching;
mod messages;
mod nodes;
mod options;
mod placement;
mod plan;
mod processor;
mod recorded_comm;
mod rehearsal;
mod remote_memory;
mod rendezvous_requests;
mod representatives;
mod schedule_cache;
mod scripts;
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

use agenda::Agenda;
use chunk_queues::ChunkQueues;
use collective_run::{CollectiveRun, OpSlab};
use compiled_replay::LaunchSource;
use effects::Effects;
use event::{Event, EventClass};
use fast_forward::InstantProgress;
use feeding::Feeds;
use frames::{Launches, RunningGroup, RunningInstance, key};
use insertion_order::IssueMismatch;
use lanes::Lanes;
use messages::MessageChannel;
use remote_memory::RemoteState;
use schedule_cache::ScheduleCache;
use tile_groups::{GROUPED, TileGroups};

/// Sentinel dependency count: the node is complete.
const COMPLETE: u32 = u32::MAX;
/// Flag in a dependency count: the node has a delay. Nodes without one cost the loop no look at their graph's delays.
/// Counts are below, and with this below [`COMPLETE`].
const DELAYED: u32 = 1 << 31;

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

/// Progress of a message between two ranks, and the half that waits for the other.
#[derive(Clone, Copy, Debug, Default)]
struct MessageState {
    /// Set when the last byte has arrived; where messages last as recorded, when the send has started.
    delivered: bool,
    /// Node of the waiting half, plus one; zero before. Always the receive, except where messages last as recorded:
    /// there a send may wait for its receive.
    posted: u32,
    /// Instance of that half.
    waiter: u32,
}

/// Options of carrying out a run.
#[derive(Clone, Copy, Debug)]
struct RunSettings<'a> {
    topology: &'a Topology,
    stepwise: bool,
    /// Whether nothing but collectives of all ranks uses the network, one after another.
    collectives_alone: bool,
    /// Let one of several ranks that do the same run for all.
    aggregate: bool,
    comm: CommTiming,
    host: HostTiming,
}

/// Nodes of launches in flight: dependencies that are open, and what is ready.
#[derive(Debug)]
struct Dataflow<'a> {
    instances: Vec<RunningInstance<'a>>,
    /// Per node of each instance: dependencies left, possibly with [`DELAYED`], or [`COMPLETE`].
    dependencies_left: Vec<u32>,
    /// In insertion order, nodes that became ready through a node that completed at once: they are looked at when
    /// another node of their instance completes.
    dormant: Vec<u64>,
    /// Nodes that have completed, of all launches.
    completed: u64,
}

/// Processors that nodes run on: lanes, or a model in their place.
#[derive(Default)]
struct Processors<'a> {
    lanes: Lanes,
    model: Option<&'a mut dyn ProcessorModel>,
}

/// Messages between ranks, and the ops of all messages in flight.
#[derive(Debug, Default)]
struct Messages<'a> {
    /// Matches in content order.
    pairs: Vec<MessageState>,
    /// Matches in insertion order.
    channels: Vec<MessageChannel>,
    ops: OpSlab,
    notices: Vec<DeliveryNotice>,
    /// Messages that wait for their rendezvous request, by op.
    withheld_sends: BTreeMap<u32, NetworkMessage>,
    /// Ops of those that are steps of collectives, by run, cell, stage and step.
    expected: BTreeMap<(u32, u32, u16, u32), u32>,
    /// Bytes of a rendezvous request, where messages have to be requested by their receiver.
    rts_bytes: Option<u64>,
    /// Bytes over links, where they are counted.
    traffic: Option<Box<LinkTraffic<'a>>>,
}

/// Collectives in flight.
#[derive(Debug)]
struct Collectives<'a, S> {
    groups: Vec<RunningGroup<'a>>,
    runs: Vec<CollectiveRun>,
    free_runs: Vec<u32>,
    schedules: ScheduleCache<S>,
    /// Number of collectives requested so far.
    requests: u32,
    queues: ChunkQueues,
    /// Chunks that began a stage and have not advanced in it yet: run and cell.
    begun_chunks: Vec<(u32, u32)>,
    /// Whether members of a collective may run one stage in different directions or trees.
    mixed_directions: bool,
    /// First collective that a member issued with another kind or size than the member before it.
    disagreement: Option<IssueMismatch>,
    /// Runs answered by closed form that can still be materialized, and how many there have been.
    fast_forwarded: u32,
    fast_forward_count: u32,
    /// While a collective is rehearsed, the ends of its members with their positions.
    rehearsed_ends: Option<Vec<(Time, u32)>>,
}

/// Resources beyond an NPU that its nodes reach: the network, and memories.
#[derive(Debug)]
struct Fabric<'a, N> {
    network: N,
    /// The memory without a name, if there is one, and those that have names.
    memories: Vec<Option<RemoteState<'a>>>,
    /// Loads and stores that ended, until their completions are scheduled.
    ends: Vec<AccessEnd>,
}

/// The present instant.
#[derive(Debug, Default)]
struct PresentInstant {
    at: Time,
    progress: InstantProgress,
    /// Events of a round; kept for its allocation.
    round: Vec<Event>,
    /// Events handled so far, of all instants.
    events: u64,
    /// Reason for which the replay cannot go on after it.
    refusal: Option<ReplayRefusal>,
}

/// State of the event loop during one replay.
pub struct Engine<'a, O: ?Sized, N, M: CollectiveModel> {
    settings: RunSettings<'a>,
    tile_groups: TileGroups,
    launches: Launches<'a>,
    feeds: Feeds<'a>,
    processors: Processors<'a>,
    flow: Dataflow<'a>,
    messages: Messages<'a>,
    collectives: Collectives<'a, M::Stage>,
    fabric: Fabric<'a, N>,
    effects: Effects,
    backend: &'a mut M,
    observer: &'a mut O,
    agenda: Agenda,
    instant: PresentInstant,
    outcome: ReplayOutcome,
}

impl EventScheduler for Agenda {
    #[inline]
    fn schedule(&mut self, at: Time, event: NetworkEvent) {
        // Ops of one instant commute, because they touch ports and counters of their own; except for first bytes at
        // one port and messages at one link, which are ordered by content before their number.
        let event = match event {
            NetworkEvent::Injected(op) => Event::new(EventClass::Injected, 0, op),
            NetworkEvent::FirstByte { order, op } => Event::new(EventClass::FirstByte, order, op),
            NetworkEvent::Delivered(op) => Event::new(EventClass::Delivered, 0, op),
            NetworkEvent::Hop { order, op } => Event::new(EventClass::Hop, order, op),
            NetworkEvent::LinkFree(link) => Event::new(EventClass::LinkFree, 0, link),
        };
        self.push(at, event);
    }
}

impl<'a, O: Observer + ?Sized, N: NetworkBackend, M: CollectiveModel> Engine<'a, O, N, M> {
    fn new(
        source: LaunchSource<'a>,
        observer: &'a mut O,
        mut network: N,
        backend: &'a mut M,
    ) -> Self {
        let prepared = &source.programs[0];
        // Of a single launch the number of nodes is known, and many are on huge pages.
        let nodes = if source.many {
            0
        } else {
            prepared.workload().nodes() as usize
        };
        let machine = prepared.machine;
        Self {
            settings: RunSettings {
                topology: machine.topology(),
                stepwise: prepared.stepwise || (M::Order::AT_ONCE && shares_memory(prepared)),
                collectives_alone: M::Order::AT_ONCE
                    && N::SHARED
                    && !source.many
                    && collectives_are_alone(prepared),
                aggregate: prepared.aggregate,
                comm: prepared.comm,
                host: prepared.host,
            },
            tile_groups: TileGroups::default(),
            launches: Launches::new(source.programs, source.feeds.len(), source.many),
            feeds: Feeds::new(source.feeds),
            processors: Processors {
                lanes: Lanes::default(),
                model: source.processors,
            },
            flow: Dataflow {
                instances: Vec::new(),
                dependencies_left: huge_pages::huge_page_vec(nodes),
                dormant: Vec::new(),
                completed: 0,
            },
            messages: Messages {
                rts_bytes: backend.rts_bytes(),
                traffic: if prepared.links {
                    LinkTraffic::new(machine.topology()).map(Box::new)
                } else {
                    None
                },
                ..Messages::default()
            },
            collectives: Collectives {
                groups: Vec::new(),
                runs: Vec::new(),
                free_runs: Vec::new(),
                schedules: ScheduleCache::default(),
                requests: 0,
                queues: ChunkQueues::default(),
                begun_chunks: Vec::new(),
                mixed_directions: backend.matches_by_sender(),
                disagreement: None,
                fast_forwarded: 0,
                fast_forward_count: 0,
                rehearsed_ends: None,
            },
            fabric: Fabric {
                memories: RemoteState::all(prepared, &mut network),
                network,
                ends: Vec::new(),
            },
            effects: Effects::default(),
            backend,
            observer,
            agenda: Agenda::default(),
            instant: PresentInstant::default(),
            outcome: ReplayOutcome {
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

    /// Runs until nothing is pending.
    fn run(mut self) -> Result<ReplayOutcome, ReplayError> {
        self.run_events()?;
        if let Some(traffic) = &self.messages.traffic {
            self.observer.links(&traffic.loads());
        }
        self.outcome.nodes = self.flow.completed;
        self.outcome.messages = self.messages.ops.inserted();
        if let Some(occupancy) = self.fabric.network.occupancy() {
            self.observer.network(&occupancy);
        }
        self.tile_groups.counts.events = self.instant.events;
        self.observer.counted(&self.tile_groups.counts);
        Ok(self.outcome)
    }

    /// Runs the event loop until nothing is pending.
    fn run_events(&mut self) -> Result<(), ReplayError> {
        self.start_feeds();
        self.tell_feeds(Time::ZERO);
        while let Some(now) = self.agenda.next_time() {
            if now == Time::END {
                return Err(ReplayError::TooLong);
            }
            // Handlers return no errors: a refusal is left here and found before the next round.
            if let Some(refusal) = self.instant.refusal.take() {
                return Err(refusal.into());
            }
            M::Order::round(self, now);
            if M::Order::end_round(self, now).is_break() {
                break;
            }
        }
        let disagreement = self.disagreement();
        if let Some(refusal) = self.instant.refusal.take().or(disagreement) {
            return Err(refusal.into());
        }
        if self.flow.completed < self.launches.nodes {
            self.dissolve_tile_groups();
            return Err(ReplayError::Stuck(Box::new(self.diagnose())));
        }
        Ok(())
    }

    /// Submits the loads and stores of this instant that cross the network, and its messages.
    #[inline]
    fn send(&mut self, now: Time) {
        if !self.effects.accesses.is_empty() {
            self.submit_accesses(now);
        }
        if !self.effects.sends.is_empty() {
            self.materialize_touched(now);
            self.submit_pending(now);
        }
    }

    #[inline]
    fn handle(&mut self, now: Time, event: Event, detail: u32) {
        match event.class() {
            EventClass::Alarm => unreachable!("it is taken apart before"),
            EventClass::Opened => self.credit(now, event.rank(), event.payload(), detail),
            EventClass::EndpointDone => {
                self.on_endpoint_done(now, event.rank(), event.payload(), detail)
            }
            EventClass::Reduced => self.credit(now, event.rank(), event.payload(), 1),
            EventClass::Found => self.on_receive(now, event.rank(), event.payload()),
            EventClass::Requested => self.release_send(now, event.payload()),
            EventClass::ScriptEvent => {
                let cue = ScriptEvent::OpCompleted { part: detail };
                self.play(now, event.rank(), event.payload(), cue);
            }
            EventClass::ScriptReceived => self.taken(now, event.payload()),
            EventClass::Settle => self.settle_in_order(now, event.payload()),
            EventClass::Vacant => self.end_member(now, event.rank(), event.payload()),
            EventClass::Bus => self.bus_event(now, event.rank(), event.payload()),
            EventClass::Hop => {
                let (order, op) = (event.rank(), event.payload());
                self.network_event(now, NetworkEvent::Hop { order, op });
            }
            EventClass::LinkFree => {
                self.network_event(now, NetworkEvent::LinkFree(event.payload()))
            }
            EventClass::Memory => self.memory_event(now, event.rank(), event.payload()),
            EventClass::Node => self.complete(now, event.rank(), NodeIndex(event.payload())),
            EventClass::Run => self.end_run(now, event.payload(), event.rank()),
            EventClass::Injected => {
                self.network_event(now, NetworkEvent::Injected(event.payload()));
            }
            EventClass::FirstByte => {
                let (order, op) = (event.rank(), event.payload());
                self.network_event(now, NetworkEvent::FirstByte { order, op });
            }
            EventClass::Delivered => {
                self.network_event(now, NetworkEvent::Delivered(event.payload()));
            }
            EventClass::Ready => {
                let node = NodeIndex(event.payload());
                let running = &self.flow.instances[event.rank() as usize];
                let (number, flags) = (running.number, running.flags);
                self.observer.ready(now, number, node);
                if flags & GROUPED != 0 {
                    self.tell_of_followers(event.rank(), |observer, number| {
                        observer.ready(now, number, node);
                    });
                }
                self.effects.ready.push(key(event.rank(), node));
            }
            EventClass::Wake => self.feeds.wake(now, event.rank()),
            EventClass::Release => {
                let graph = self.flow.instances[event.rank() as usize].graph;
                let roots = graph.nodes().filter(|n| graph.in_degrees()[n.index()] == 0);
                for node in roots {
                    match graph.delay(node) {
                        Span::ZERO => self.effects.ready.push(key(event.rank(), node)),
                        delay => self.delay(now, event.rank(), node, delay),
                    }
                }
            }
        }
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
