//! Where the time of each NPU goes.
//!
//! Each instant belongs to the first that applies of compute, communication, memory, host and idle,
//! so the parts sum to the makespan to the picosecond. The delay of a node is time of the host. What is attributed to communication is
//! *exposed*: nothing was computed meanwhile. Of several communications at once, the one that started
//! first is charged.

use super::{CollectiveRecord, Observer};
use crate::engine::Prepared;
use crate::graph::Kind;
use crate::ids::NodeIndex;
use crate::units::{Span, Time};
use std::collections::BTreeMap;

/// What an instant can belong to, in order of precedence; idle is what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Part {
    /// A kernel runs.
    Compute,
    /// A message or collective is under way or waited for, and no kernel runs.
    Communication,
    /// A load or store, and none of the above.
    Memory,
    /// The host works, or a node's delay passes, and none of the above.
    Host,
    /// Nothing is issued.
    Idle,
}

impl Part {
    /// Every part with its name, in order of precedence.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Compute, "compute"),
        (Self::Communication, "exposed communication"),
        (Self::Memory, "memory"),
        (Self::Host, "host"),
        (Self::Idle, "idle"),
    ];

    fn of(kind: Kind) -> Option<Self> {
        Some(match kind {
            Kind::Nothing => return None,
            Kind::Host => Self::Host,
            Kind::Compute => Self::Compute,
            Kind::LocalMemory | Kind::RemoteMemory => Self::Memory,
            Kind::Send | Kind::Receive | Kind::Collective => Self::Communication,
        })
    }
}

/// One NPU's bookkeeping.
#[derive(Clone, Debug, Default)]
struct Npu {
    /// Until when time has been attributed.
    until: Time,
    /// Nodes under way, by part.
    active: [u32; 4],
    parts: [Span; 5],
    /// Time with a communication under way, whatever else ran.
    communicating: Span,
    /// Communications under way in the order they started, with their labels.
    open: BTreeMap<u64, u32>,
    /// The place of each of them in that order.
    place: BTreeMap<NodeIndex, u64>,
    /// How many communications have started.
    started: u64,
    /// When the last node completed.
    finish: Time,
}

/// What was found about one NPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NpuTime {
    /// Time by part, in the order of [`Part::ALL`]; the sum is the makespan.
    pub parts: [Span; 5],
    /// Time with a communication under way, exposed or hidden behind compute.
    pub communicating: Span,
    /// When its last node completed, from the start of the replay.
    pub finish: Span,
}

/// Attributes the time of every NPU.
#[derive(Debug)]
pub struct Breakdown<'a> {
    prepared: &'a Prepared<'a>,
    npus: Vec<Npu>,
    /// Exposed time by group; messages between ranks come last.
    exposed: Vec<Span>,
}

impl<'a> Breakdown<'a> {
    /// Watches all instances of `prepared`.
    pub fn new(prepared: &'a Prepared<'a>) -> Self {
        Self {
            npus: vec![Npu::default(); prepared.workload().instances().len()],
            exposed: vec![Span::ZERO; prepared.groups().count() + 1],
            prepared,
        }
    }

    /// The time of each instance's NPU up to `makespan`, and the exposed time of each group, that of
    /// messages between ranks last, summed over NPUs.
    pub fn finish(mut self, makespan: Span) -> (Vec<NpuTime>, Vec<Span>) {
        let end = Time::ZERO + makespan;
        for npu in &mut self.npus {
            npu.attribute(end, &mut self.exposed);
        }
        let times = self.npus.iter().map(|npu| NpuTime {
            parts: npu.parts,
            communicating: npu.communicating,
            finish: npu.finish.since(Time::ZERO),
        });
        (times.collect(), self.exposed)
    }
}

impl Npu {
    #[inline]
    fn attribute(&mut self, now: Time, exposed: &mut [Span]) {
        let elapsed = now.since(self.until);
        if elapsed == Span::ZERO {
            return;
        }
        self.until = now;
        let first = self.active.iter().position(|&count| count > 0);
        let part = first.unwrap_or(Part::Idle as usize);
        self.parts[part] += elapsed;
        if self.active[Part::Communication as usize] > 0 {
            self.communicating += elapsed;
        }
        if part == Part::Communication as usize
            && let Some((_, label)) = self.open.first_key_value()
        {
            exposed[*label as usize] += elapsed;
        }
    }
}

impl Observer for Breakdown<'_> {
    #[inline]
    fn issued(&mut self, now: Time, instance: u32, node: NodeIndex, kind: Kind) {
        let Some(part) = Part::of(kind) else {
            return;
        };
        let npu = &mut self.npus[instance as usize];
        npu.attribute(now, &mut self.exposed);
        npu.active[part as usize] += 1;
        if part == Part::Communication {
            let label = match kind {
                Kind::Collective => self.prepared.group_of(instance, node),
                _ => self.exposed.len() as u32 - 1,
            };
            npu.open.insert(npu.started, label);
            npu.place.insert(node, npu.started);
            npu.started += 1;
        }
    }

    #[inline]
    fn completed(&mut self, now: Time, instance: u32, node: NodeIndex, kind: Kind) {
        let npu = &mut self.npus[instance as usize];
        npu.finish = now;
        let Some(part) = Part::of(kind) else {
            return;
        };
        npu.attribute(now, &mut self.exposed);
        npu.active[part as usize] -= 1;
        if part == Part::Communication
            && let Some(place) = npu.place.remove(&node)
        {
            npu.open.remove(&place);
        }
    }

    fn collective(&mut self, _: &CollectiveRecord) {}

    #[inline]
    fn delayed(&mut self, now: Time, instance: u32, _: NodeIndex) {
        let npu = &mut self.npus[instance as usize];
        npu.attribute(now, &mut self.exposed);
        npu.active[Part::Host as usize] += 1;
    }

    #[inline]
    fn ready(&mut self, now: Time, instance: u32, _: NodeIndex) {
        let npu = &mut self.npus[instance as usize];
        npu.attribute(now, &mut self.exposed);
        npu.active[Part::Host as usize] -= 1;
    }
}
