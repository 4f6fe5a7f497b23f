//! What is said of a single node.

use super::class::Class;
use super::lanes::{LaneKey, group_label};
use super::trace::Trace;
use crate::trace::Op;
use crate::units::{Span, Time};

/// What is said of a single node in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow<'a> {
    /// Its rank.
    pub rank: u32,
    /// Its id in the file.
    pub id: u64,
    /// When it started and ended; `None` on a cycle of dependencies, or behind one.
    pub ran: Option<(Time, Time)>,
    /// How long it took, waiting for other ranks included.
    pub length: Span,
    /// How long of that it waited for other ranks.
    pub wait: Span,
    /// From the end of all that it waits for until it was ready.
    pub delay: Span,
    /// What kind of thing it does.
    pub class: Class,
    /// Its lane.
    pub lane: LaneKey,
    /// Its name.
    pub name: &'a str,
    /// The group of a collective.
    pub group: Option<String>,
    /// The other end of a message, and its tag.
    pub peer: Option<(u32, i32)>,
    /// FLOPs.
    pub flops: u64,
    /// Bytes.
    pub bytes: u64,
}

impl<'a> Trace<'a> {
    /// What is said of `node` in a list.
    pub fn row(&self, node: u32) -> NodeRow<'a> {
        let view = &self.outline.nodes[node as usize].view;
        let run = &self.times.run;
        let (flops, bytes) = self.effort(node);
        NodeRow {
            rank: self.rank,
            id: view.id,
            ran: run
                .runs(node)
                .then(|| (run.start[node as usize], run.end[node as usize])),
            length: self.length(node),
            wait: self.wait(node),
            delay: view.delay,
            class: self.classes[node as usize],
            lane: self.lanes.key(self.lanes.of(node)),
            name: view.name,
            group: match view.op {
                Op::Collective { group, .. } => Some(group_label(group)),
                _ => None,
            },
            peer: match view.op {
                Op::Message { peer, tag, .. } => Some((peer, tag)),
                _ => None,
            },
            flops,
            bytes,
        }
    }

    /// The nodes for which `selected` holds, by when they started, those at one instant by their ids; those
    /// without times last.
    pub fn by_start(&self, selected: Option<&[bool]>) -> Vec<u32> {
        let chosen = |node: &u32| selected.is_none_or(|chosen| chosen[*node as usize]);
        let mut nodes: Vec<u32> = self.outline.all().filter(chosen).collect();
        nodes.sort_by_key(|&node| (self.times.run.start[node as usize], node));
        nodes
    }
}
