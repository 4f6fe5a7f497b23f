//! A trace that can be replayed, with its program order and its times.

use crate::graph::cycle::short_cycle;
use crate::graph::outline::{Dependency, Outline};
use crate::trace::put::Put;
use crate::trace::rewrite::{Edit, Set};
use crate::trace::wire::Frames;
use crate::trace::{Op, TraceError};
use crate::units::Span;

/// An outline without faults.
#[derive(Debug)]
pub struct Sound<'a> {
    pub outline: Outline<'a>,
    /// Whether control dependencies close a cycle, so that none of them holds.
    pub cyclic: bool,
    /// All nodes in program order.
    pub order: Vec<u32>,
    /// When each node starts if the rank runs by itself.
    pub starts: Vec<Span>,
}

impl<'a> Sound<'a> {
    /// Reads a trace. Fails on what a replay would refuse.
    pub fn read(contents: &'a [u8]) -> Result<Self, TraceError> {
        let mut outline = Outline::read(contents);
        if !outline.faults.is_empty() {
            return Err(outline.faults.swap_remove(0).error);
        }
        if outline.metadata.captured.is_some()
            && let Some(first) = Frames::new(contents).next_record()?
        {
            // The record is to say something else, so it must come apart.
            let attributes = [("captured_ns", Set::Gone)];
            let edit = Edit {
                attributes: &attributes,
                ..Edit::default()
            };
            edit.apply(first, &mut Put::default())?;
        }
        check(&outline)?;
        let (order, cyclic) = match in_order(&outline, false) {
            Ok(order) => (order, false),
            Err(_) => match in_order(&outline, true) {
                Ok(order) => (order, true),
                Err(cycle) => return Err(refuse_cycle(&outline, &cycle)),
            },
        };
        let mut this = Self {
            starts: vec![Span::ZERO; outline.nodes.len()],
            outline,
            cyclic,
            order,
        };
        this.run();
        Ok(this)
    }

    /// The dependencies of node `i` that hold.
    pub fn deps(&self, i: u32) -> impl Iterator<Item = Dependency> + '_ {
        let cyclic = self.cyclic;
        let deps = self.outline.deps(i).iter().copied();
        deps.filter(move |dep| holds(i, dep, cyclic))
    }

    /// How long node `i` takes, waiting included, where it was recorded.
    pub fn lasts(&self, i: u32) -> Span {
        let view = &self.outline.nodes[i as usize].view;
        match view.op {
            Op::Nothing => Span::ZERO,
            Op::Message { .. } | Op::Collective { .. } => {
                Span(view.recorded.0.saturating_add(view.wait.0))
            }
            _ => view.recorded,
        }
    }

    /// Lets the rank run by itself.
    fn run(&mut self) {
        for place in 0..self.order.len() {
            let i = self.order[place];
            let ends = self.deps(i).map(|on| {
                let start = self.starts[on.node as usize].0;
                start.saturating_add(self.lasts(on.node).0)
            });
            let ready = ends.max().unwrap_or(0);
            let delay = self.outline.nodes[i as usize].view.delay;
            self.starts[i as usize] = Span(ready.saturating_add(delay.0));
        }
    }
}

/// Whether a dependency makes its node wait.
fn holds(node: u32, dep: &Dependency, cyclic: bool) -> bool {
    let control = dep.control && (cyclic || dep.node == node);
    dep.node != Dependency::NOWHERE && !control
}

fn check(outline: &Outline<'_>) -> Result<(), TraceError> {
    let twice = outline
        .nodes
        .windows(2)
        .find(|pair| pair[0].view.id == pair[1].view.id);
    if let Some([_, second]) = twice {
        return Err(TraceError::refused(
            second.view.id,
            "a second node with this id",
            "ids are unique within one file; the producer is at fault",
        )
        .in_record(second.record.number, second.record.offset));
    }
    for i in outline.all() {
        let lost = |dep: &&Dependency| !dep.control && dep.node == Dependency::NOWHERE;
        if let Some(dep) = outline.deps(i).iter().find(lost) {
            let item = &outline.nodes[i as usize];
            return Err(TraceError::refused(
                item.view.id,
                format!(
                    "it waits for the data of node {}, which does not exist",
                    dep.id
                ),
                "the trace is incomplete; capture or convert it anew",
            )
            .in_record(item.record.number, item.record.offset));
        }
    }
    Ok(())
}

/// Program order, or the nodes of a cycle.
fn in_order(outline: &Outline<'_>, data_only: bool) -> Result<Vec<u32>, Vec<u32>> {
    let rows = outline.successors(|node, dep| holds(node, dep, data_only));
    let order = rows.order();
    match order.len() == outline.nodes.len() {
        true => Ok(order),
        false => {
            let stuck = rows.stuck(&order);
            Err(short_cycle(&rows, |node| stuck[node as usize]))
        }
    }
}

fn refuse_cycle(outline: &Outline<'_>, cycle: &[u32]) -> TraceError {
    const SHOWN: usize = 6;
    let id = |&i: &u32| outline.nodes[i as usize].view.id;
    let ids: Vec<String> = cycle
        .iter()
        .take(SHOWN)
        .map(|i| id(i).to_string())
        .collect();
    let more = if cycle.len() > SHOWN { ", …" } else { "" };
    TraceError::refused(
        cycle.first().map_or(0, id),
        format!(
            "data dependencies close a cycle of {} nodes: {}{more}",
            cycle.len(),
            ids.join(", ")
        ),
        "capture or convert the trace anew",
    )
}
