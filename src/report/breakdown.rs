//! Where the time of each NPU goes.
//!
//! Each instant belongs to the first that applies of compute, communication, memory, host and idle,
//! so the parts sum to the makespan to the picosecond. The delay of a node is time of the host. What is attributed to communication is
//! *exposed*: nothing was computed meanwhile. Of several communications at once, the one that started
//! first is charged, hidden or exposed, by group and kind; whether it waits for other members or
//! transfers is told apart. Messages are charged as one.

use super::{CollectiveRecord, Observer};
use crate::engine::Prepared;
use crate::graph::Kind;
use crate::ids::NodeIndex;
use crate::trace::CollectiveKind;
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

/// How many kinds of collectives there are.
const KINDS: usize = CollectiveKind::ALL.len();

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
    /// Communications under way in the order they started.
    open: BTreeMap<u64, Open>,
    /// The place of each of them in that order.
    place: BTreeMap<NodeIndex, u64>,
    /// How many communications have started.
    started: u64,
    /// When the last node completed.
    finish: Time,
}

/// A communication under way.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// What is charged.
    label: u32,
    /// Whether it waits for nobody any more.
    began: bool,
}

/// The time that communications of one sort were charged with, summed over NPUs.
///
/// Over all sorts, `waiting` and `transferring` sum to the time with a communication under way, and what
/// is exposed to the part [`Part::Communication`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charged {
    /// While another member had not arrived.
    pub waiting: Span,
    /// So much of `waiting` was exposed.
    pub exposed_waiting: Span,
    /// After the last member had arrived; all the time of messages.
    pub transferring: Span,
    /// So much of `transferring` was exposed.
    pub exposed_transferring: Span,
}

impl Charged {
    /// Exposed communication, waiting and transfer.
    pub fn exposed(&self) -> Span {
        self.exposed_waiting + self.exposed_transferring
    }
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
    /// What was charged by group and kind; messages between ranks come last.
    charged: Vec<Charged>,
}

impl<'a> Breakdown<'a> {
    /// Watches all instances of `prepared`.
    pub fn new(prepared: &'a Prepared<'a>) -> Self {
        Self {
            npus: vec![Npu::default(); prepared.workload().instances().len()],
            charged: vec![Charged::default(); prepared.groups().count() * KINDS + 1],
            prepared,
        }
    }

    /// The time of each instance's NPU up to `makespan`, and what was charged by group and kind in the
    /// order of [`CollectiveKind::ALL`], messages between ranks last.
    pub fn finish(mut self, makespan: Span) -> (Vec<NpuTime>, Vec<Charged>) {
        let end = Time::ZERO + makespan;
        for npu in &mut self.npus {
            npu.attribute(end, &mut self.charged);
        }
        let times = self.npus.iter().map(|npu| NpuTime {
            parts: npu.parts,
            communicating: npu.communicating,
            finish: npu.finish.since(Time::ZERO),
        });
        (times.collect(), self.charged)
    }
}

impl Npu {
    #[inline]
    fn attribute(&mut self, now: Time, charged: &mut [Charged]) {
        let elapsed = now.since(self.until);
        if elapsed == Span::ZERO {
            return;
        }
        self.until = now;
        let first = self.active.iter().position(|&count| count > 0);
        let part = first.unwrap_or(Part::Idle as usize);
        self.parts[part] += elapsed;
        if let Some((_, open)) = self.open.first_key_value() {
            self.communicating += elapsed;
            let charged = &mut charged[open.label as usize];
            let (all, exposed) = match open.began {
                false => (&mut charged.waiting, &mut charged.exposed_waiting),
                true => (&mut charged.transferring, &mut charged.exposed_transferring),
            };
            *all += elapsed;
            if part == Part::Communication as usize {
                *exposed += elapsed;
            }
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
        npu.attribute(now, &mut self.charged);
        npu.active[part as usize] += 1;
        if part == Part::Communication {
            let collective = kind == Kind::Collective;
            let label = match collective {
                true => {
                    let workload = self.prepared.workload();
                    let graph = workload.graph(&workload.instances()[instance as usize]);
                    let group = self.prepared.group_of(instance, node) as usize;
                    group * KINDS + graph.call(node).kind as usize
                }
                false => self.charged.len() - 1,
            };
            let open = Open {
                label: label as u32,
                began: !collective,
            };
            npu.open.insert(npu.started, open);
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
        npu.attribute(now, &mut self.charged);
        npu.active[part as usize] -= 1;
        if part == Part::Communication
            && let Some(place) = npu.place.remove(&node)
        {
            npu.open.remove(&place);
        }
    }

    #[inline]
    fn began(&mut self, now: Time, instance: u32, node: NodeIndex) {
        let npu = &mut self.npus[instance as usize];
        npu.attribute(now, &mut self.charged);
        let place = npu.place.get(&node);
        if let Some(open) = place.and_then(|place| npu.open.get_mut(place)) {
            open.began = true;
        }
    }

    fn collective(&mut self, _: &CollectiveRecord) {}

    #[inline]
    fn delayed(&mut self, now: Time, instance: u32, _: NodeIndex) {
        let npu = &mut self.npus[instance as usize];
        npu.attribute(now, &mut self.charged);
        npu.active[Part::Host as usize] += 1;
    }

    #[inline]
    fn ready(&mut self, now: Time, instance: u32, _: NodeIndex) {
        let npu = &mut self.npus[instance as usize];
        npu.attribute(now, &mut self.charged);
        npu.active[Part::Host as usize] -= 1;
    }
}
