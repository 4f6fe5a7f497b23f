//! One rank's trace, read for looking at it.

use super::class::Class;
use super::fault::Faults;
use super::lanes::Lanes;
use super::metadata::Header;
use super::times::Times;
use crate::graph::{Outline, Rows};
use crate::trace::{Op, TraceError};
use crate::units::Span;
use std::{panic, thread};

/// One rank's trace.
#[derive(Debug)]
pub struct Trace<'a> {
    /// The rank.
    pub rank: u32,
    /// What its file says; what cannot be read has moved to `faults`.
    pub outline: Outline<'a>,
    /// What the record at the start says.
    pub header: Header,
    /// For each node what kind of thing it does.
    pub classes: Vec<Class>,
    /// The lanes.
    pub lanes: Lanes<'a>,
    /// For each node those that wait for it, by the dependencies that hold.
    pub next: Rows,
    /// Whether control dependencies hold; they do not where they close a cycle.
    pub control_holds: bool,
    /// When nodes ran.
    pub times: Times,
    /// What is wrong.
    pub faults: Faults,
}

/// What follows from an outline.
struct Analysis<'a> {
    lanes: Lanes<'a>,
    next: Rows,
    control_holds: bool,
    times: Times,
}

impl<'a> Analysis<'a> {
    fn new(outline: &Outline<'a>, classes: &[Class], faults: &mut Faults) -> Self {
        let lanes = Lanes::new(outline);
        let mut next = outline.successors(|node, dep| dep.node != node);
        let mut times = Times::new(outline, classes, &lanes, &next);
        let mut control_holds = true;
        if times.run.ran < outline.nodes.len() {
            let all = outline.all().flat_map(|node| outline.deps(node));
            let control = all.filter(|dep| dep.control).count() as u64;
            if control > 0 {
                let data = outline.successors(|node, dep| dep.node != node && !dep.control);
                let again = Times::new(outline, classes, &lanes, &data);
                faults.without_control(control);
                (next, times, control_holds) = (data, again, false);
            }
            faults.cycle(outline, &next, &times.run);
        }
        Self {
            lanes,
            next,
            control_holds,
            times,
        }
    }
}

impl<'a> Trace<'a> {
    /// Reads the (decompressed) contents of the trace of `rank`; `told` makes of an error one that says which
    /// file it is in.
    ///
    /// Fails only if not one node and not even the record at the start can be read.
    pub fn read(
        rank: u32,
        contents: &'a [u8],
        told: impl Fn(TraceError) -> TraceError,
    ) -> Result<Self, TraceError> {
        Self::read_beside(rank, contents, told, |_| ()).map(|(trace, ())| trace)
    }

    /// The same, and what `beside` makes of the outline, on a thread of its own meanwhile.
    pub(super) fn read_beside<R: Send>(
        rank: u32,
        contents: &'a [u8],
        told: impl Fn(TraceError) -> TraceError,
        beside: impl FnOnce(&Outline<'a>) -> R + Send,
    ) -> Result<(Self, R), TraceError> {
        let mut outline = Outline::read(contents);
        outline.blame(told);
        let header = Header::read(contents);
        if outline.nodes.is_empty()
            && header == Header::default()
            && let Some(first) = outline.faults.pop()
        {
            return Err(first.error);
        }
        let mut classes: Vec<Class> = outline
            .nodes
            .iter()
            .map(|item| Class::of(&item.view.op))
            .collect();
        for node in outline.faults.iter().filter_map(|fault| fault.node) {
            classes[node as usize] = Class::Unreadable;
        }
        let mut faults = Faults::default();
        faults.unreadable(&mut outline);
        faults.structure(&outline);
        let (analysis, beside) = thread::scope(|scope| {
            let beside = scope.spawn(|| beside(&outline));
            let analysis = Analysis::new(&outline, &classes, &mut faults);
            (analysis, beside.join())
        });
        let beside = beside.unwrap_or_else(|panic| panic::resume_unwind(panic));
        let trace = Self {
            rank,
            header,
            classes,
            lanes: analysis.lanes,
            next: analysis.next,
            control_holds: analysis.control_holds,
            times: analysis.times,
            faults,
            outline,
        };
        Ok((trace, beside))
    }

    /// How long a node took, what it waited for other ranks included.
    pub fn length(&self, node: u32) -> Span {
        self.outline.nodes[node as usize].view.lasted()
    }

    /// How long of that it waited for other ranks.
    pub fn wait(&self, node: u32) -> Span {
        match self.classes[node as usize].communicates() {
            true => self.outline.nodes[node as usize].view.wait,
            false => Span::ZERO,
        }
    }

    /// FLOPs and bytes of a node, as the file says them.
    pub fn effort(&self, node: u32) -> (u64, u64) {
        match self.outline.nodes[node as usize].view.op {
            Op::Nothing | Op::Host => (0, 0),
            Op::Compute { flops, bytes, .. } => (flops, bytes),
            Op::Memory { bytes, .. } | Op::Message { bytes, .. } | Op::Collective { bytes, .. } => {
                (0, bytes)
            }
        }
    }

    /// The indices of nodes in the order of their program: that of their ids, unless dependencies lead back.
    pub fn program_order(&self) -> Vec<u32> {
        if self.next.edges().all(|(from, to)| from < to) {
            return self.outline.all().collect();
        }
        self.next.order()
    }
}
