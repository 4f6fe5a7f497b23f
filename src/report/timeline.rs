//! The replay as a picture: JSON in the Chrome trace format, which Perfetto opens.
//!
//! A process for each rank, a track for each of its lanes, a slice for each node, and an arrow from
//! each send to its receive. Receives hold no lane, so they get tracks of their own, as many as
//! overlap. What is drawn is the time from issue to completion; a node's delay lies before that and is
//! left blank. Events are written as nodes complete, so nothing is kept but the instants of their issue.
//! Where nodes say what they allocate and free, each rank has counters of the bytes that are held, by class.

use super::issue_times::IssueTimes;
use super::memory::{EndedInstant, MemoryTracker};
use super::replay::{algorithm_label, group_label};
use super::summary::kind_label;
use super::{CollectiveRecord, Observer};
use crate::engine::{CommTiming, CompiledReplay, GroupView};
use crate::graph::{Lane, NodeKind};
use crate::ids::NodeIndex;
use crate::trace::TensorClass;
use crate::units::{Bytes, Time};
use serde::Serialize;
use serde_json::{Map, Value};
use std::io::{self, Write};

/// Tracks of receives are numbered from here, above all lanes.
const RECEIVE_TRACKS: u32 = 1 << 20;

/// A node that holds a track of receives, or nothing.
type ReceiveTrack = Option<NodeIndex>;

/// An event of the Chrome trace format.
#[derive(Debug, Default, Serialize)]
struct TraceEvent<'e> {
    ph: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    name: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<EventArgs<'e>>,
}

/// Facts beside an event.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum EventArgs<'e> {
    Name {
        name: &'e str,
    },
    Order {
        sort_index: u32,
    },
    Held(Map<String, Value>),
    Node {
        node: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<&'e str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        group: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        algorithm: Option<String>,
    },
}

/// Writes the timeline into `out` while the replay runs.
#[derive(Debug)]
pub struct TimelineWriter<'a, W> {
    prepared: &'a CompiledReplay<'a>,
    started: IssueTimes<'a>,
    /// Name of each group, and the group.
    groups: Vec<(String, GroupView<'a>)>,
    /// The receives that are posted, by instance and track.
    receives: Vec<Vec<ReceiveTrack>>,
    memory: MemoryTracker<'a>,
    out: W,
    first: bool,
    /// The first error of `out`; nothing is written after it.
    failed: Option<io::Error>,
}

impl<'a, W: Write> TimelineWriter<'a, W> {
    /// Starts a timeline of `prepared`.
    pub fn new(prepared: &'a CompiledReplay<'a>, out: W) -> Self {
        let groups = prepared.groups();
        let groups = groups.map(|group| (group_label(prepared, &group), group));
        let mut this = Self {
            groups: groups.collect(),
            started: IssueTimes::new(prepared),
            receives: vec![Vec::new(); prepared.workload().instances().len()],
            memory: MemoryTracker::new(prepared),
            prepared,
            out,
            first: true,
            failed: None,
        };
        this.raw(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
        this.tracks();
        this
    }

    /// Ends the timeline and gives back `out`, or the first error it had.
    pub fn finish(mut self) -> io::Result<W> {
        for (instance, tracks) in std::mem::take(&mut self.receives).iter().enumerate() {
            for track in 0..tracks.len() as u32 {
                self.name_track(instance, RECEIVE_TRACKS + track, "receives", 1000);
            }
        }
        for (instance, over) in self.memory.end() {
            self.held(instance, over);
        }
        self.raw(b"\n]}\n");
        match self.failed {
            Some(error) => Err(error),
            None => Ok(self.out),
        }
    }

    fn raw(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.out.write_all(bytes).err();
        }
    }

    fn event(&mut self, event: &TraceEvent<'_>) {
        let separator: &[u8] = if self.first { b"\n" } else { b",\n" };
        self.first = false;
        self.raw(separator);
        let text = serde_json::to_vec(event).expect("its keys are texts");
        self.raw(&text);
    }

    /// Names a process, or one of its tracks, and says where it stands among others.
    fn label(&mut self, pid: u32, tid: Option<u32>, label: &str, order: u32) {
        let names = match tid {
            None => ["process_name", "process_sort_index"],
            Some(_) => ["thread_name", "thread_sort_index"],
        };
        let args = [
            EventArgs::Name { name: label },
            EventArgs::Order { sort_index: order },
        ];
        for (name, args) in names.into_iter().zip(args) {
            self.event(&TraceEvent {
                ph: "M",
                name,
                pid,
                tid,
                args: Some(args),
                ..TraceEvent::default()
            });
        }
    }

    /// Names processes and tracks, in the order in which they should stand.
    fn tracks(&mut self) {
        let prepared = self.prepared;
        let (workload, machine) = (prepared.workload(), prepared.machine());
        for (i, instance) in workload.instances().iter().enumerate() {
            let npu = prepared.npu(instance.rank);
            let class = &machine.classes()[machine.class(npu)].name;
            let name = format!("rank {} on NPU {npu} ({class})", instance.rank);
            let rank = instance.rank.0;
            self.label(rank, None, &name, rank);
            let graph = workload.graph(instance);
            for (lane, key) in graph.lanes().iter().enumerate() {
                let (name, order) = match *key {
                    Lane::None => continue,
                    Lane::Host(None) => ("host".to_owned(), 0),
                    Lane::Host(Some(thread)) => (format!("host thread {thread}"), 0),
                    Lane::Compute => ("compute".to_owned(), 1),
                    Lane::Stream(stream) => (format!("stream {stream}"), 2),
                    Lane::Memory => ("memory".to_owned(), 3),
                    Lane::Group(slot) => {
                        let name = &instance.group_names[slot as usize];
                        let group = name.as_deref().unwrap_or("all ranks");
                        (format!("collectives of {group}"), 4)
                    }
                    Lane::Peer(slot) => {
                        let peer = instance.peers[slot as usize];
                        (format!("sends to rank {peer}"), 5)
                    }
                };
                let name = graph.lane_name(*key).map_or(name, str::to_owned);
                self.name_track(i, lane as u32, &name, order);
            }
        }
    }

    fn name_track(&mut self, instance: usize, track: u32, name: &str, order: u32) {
        let rank = self.prepared.workload().instances()[instance].rank.0;
        self.label(rank, Some(track), name, order);
    }

    /// Draws what an instance holds after an instant that is over.
    #[inline(never)]
    fn held(&mut self, instance: u32, (at, held): EndedInstant) {
        let rank = self.prepared.workload().instances()[instance as usize]
            .rank
            .0;
        let classes = self.memory.classes(instance);
        let held = TensorClass::ALL.iter().zip(held);
        let held = held.zip(classes).filter(|(_, used)| *used);
        let held = held.map(|(((_, name), bytes), _)| ((*name).to_owned(), bytes.into()));
        self.event(&TraceEvent {
            ph: "C",
            name: "memory",
            pid: rank,
            ts: Some(micros(at.0)),
            args: Some(EventArgs::Held(held.collect())),
            ..TraceEvent::default()
        });
    }

    /// The lowest free track of receives for `node`.
    fn take_receive_track(&mut self, instance: u32, node: NodeIndex) {
        let tracks = &mut self.receives[instance as usize];
        match tracks.iter_mut().find(|track| track.is_none()) {
            Some(free) => *free = Some(node),
            None => tracks.push(Some(node)),
        }
    }

    /// Frees the track of `node` and returns its number.
    fn free_receive_track(&mut self, instance: u32, node: NodeIndex) -> u32 {
        let tracks = &mut self.receives[instance as usize];
        let found = tracks.iter().position(|track| *track == Some(node));
        let found = found.expect("a receive is issued before it completes");
        tracks[found] = None;
        RECEIVE_TRACKS + found as u32
    }

    /// Returns a node's name, and what is said of it beside.
    fn describe(&self, instance: u32, node: NodeIndex, kind: NodeKind) -> (String, EventArgs<'a>) {
        let workload = self.prepared.workload();
        let of = &workload.instances()[instance as usize];
        let graph = workload.graph(of);
        let (id, name, bytes) = (graph.id(node), graph.name(node), graph.bytes(node));
        let said = |group: Option<String>, algorithm| EventArgs::Node {
            node: id,
            name: Some(name),
            bytes: Some(bytes),
            group,
            algorithm,
        };
        let peer = || of.peers[graph.messages()[graph.message_index(node)].peer as usize];
        match kind {
            NodeKind::Collective => {
                let (group, view) = &self.groups[self.prepared.group_of(instance, node) as usize];
                let call = graph.call(node).kind;
                let buffer = call.buffer(bytes, view.members.len() as u32);
                let buffer = buffer.unwrap_or(u64::MAX);
                let algorithm = algorithm_label(self.prepared, call, view, buffer);
                (
                    format!("{call} of {}, {group}, {algorithm}", Bytes(bytes)),
                    said(Some(group.clone()), Some(algorithm)),
                )
            }
            NodeKind::Send => (
                format!("send {} to rank {}", Bytes(bytes), peer()),
                said(None, None),
            ),
            NodeKind::Receive => (
                format!("receive {} from rank {}", Bytes(bytes), peer()),
                said(None, None),
            ),
            _ => {
                let args = EventArgs::Node {
                    node: id,
                    name: None,
                    bytes: None,
                    group: None,
                    algorithm: None,
                };
                (name.to_owned(), args)
            }
        }
    }
}

/// Microseconds to the picosecond, as JSON: the format's unit.
fn micros(ps: u64) -> f64 {
    // A double has 53 bits, so instants above two and a half hours lose picoseconds in the picture.
    ps as f64 / 1e6
}

impl<W: Write> Observer for TimelineWriter<'_, W> {
    fn issued(&mut self, now: Time, instance: u32, node: NodeIndex, kind: NodeKind) {
        self.started.set(now, instance, node, kind);
        if let Some(over) = self.memory.issued(now, instance, node) {
            self.held(instance, over);
        }
        if kind == NodeKind::Receive {
            self.take_receive_track(instance, node);
        }
    }

    fn completed(&mut self, now: Time, instance: u32, node: NodeIndex, kind: NodeKind) {
        if let Some(over) = self.memory.completed(now, instance, node) {
            self.held(instance, over);
        }
        if kind == NodeKind::Nothing {
            return;
        }
        let of = &self.prepared.workload().instances()[instance as usize];
        let track = match kind {
            NodeKind::Receive => self.free_receive_track(instance, node),
            _ => self.prepared.workload().graph(of).lane(node),
        };
        let start = self.started.get(instance, node, kind);
        let rank = of.rank.0;
        let (name, args) = self.describe(instance, node, kind);
        self.event(&TraceEvent {
            ph: "X",
            name: &name,
            cat: Some(kind_label(kind)),
            pid: rank,
            tid: Some(track),
            ts: Some(micros(start.0)),
            dur: Some(micros(now.since(start).0)),
            args: Some(args),
            ..TraceEvent::default()
        });
        // In a replay as captured ranks do not wait for each other, and an arrow could lead back in time.
        if self.prepared.comm() == CommTiming::Captured {
            return;
        }
        let phase = match kind {
            NodeKind::Send => "s",
            NodeKind::Receive => "f",
            _ => return,
        };
        if let Some(pair) = self.prepared.pair_of(instance, node) {
            // An arrow leaves the send where it begins and enters the receive a nanosecond before it
            // ends, because the end itself belongs to the next slice.
            let at = match kind {
                NodeKind::Send => start,
                _ => Time(now.0.saturating_sub(1000)).max(start),
            };
            self.event(&TraceEvent {
                ph: phase,
                bp: Some("e"),
                name: "message",
                cat: Some("message"),
                id: Some(pair.into()),
                pid: rank,
                tid: Some(track),
                ts: Some(micros(at.0)),
                ..TraceEvent::default()
            });
        }
    }

    fn collective(&mut self, _: &CollectiveRecord) {}
}
