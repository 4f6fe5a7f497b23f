//! One of the two traces, with what matching needs of it.

use super::labels;
use crate::graph::{Outline, Rows};
use std::sync::OnceLock;

/// One of the two traces.
pub(super) struct Side<'o> {
    pub outline: &'o Outline<'o>,
    /// Every node after those that it waits for. Nodes on cycles and behind them are `loose`.
    pub order: Vec<u32>,
    /// Nodes that have no place in `order`, ascending.
    pub loose: Vec<u32>,
    /// Who waits for each node: twice the index, and one more over a control dependency.
    waiting: Rows,
    key: OnceLock<Vec<u64>>,
    kind: OnceLock<Vec<u64>>,
    content: OnceLock<Vec<u64>>,
}

/// A way from a node to its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To those that it waits for.
    Before,
    /// To those that wait for it.
    After,
}

impl Way {
    pub const BOTH: [Self; 2] = [Self::Before, Self::After];
}

impl<'o> Side<'o> {
    pub fn new(outline: &'o Outline<'o>) -> Self {
        let waiting = Rows::new(outline.nodes.len(), |each| {
            for node in outline.all() {
                for dep in outline.deps(node) {
                    if let Some(target) = dep.target() {
                        each(target, node << 1 | u32::from(dep.control));
                    }
                }
            }
        });
        let ascending = outline.all().all(|node| {
            let mut targets = outline.deps(node).iter().filter_map(|dep| dep.target());
            targets.all(|target| target < node)
        });
        let order = match ascending {
            true => outline.all().collect(),
            false => outline.successors(|_, _| true).order(),
        };
        let mut placed = vec![order.len() == outline.nodes.len(); outline.nodes.len()];
        order.iter().for_each(|&node| placed[node as usize] = true);
        Self {
            outline,
            loose: outline.all().filter(|&n| !placed[n as usize]).collect(),
            order,
            waiting,
            key: OnceLock::new(),
            kind: OnceLock::new(),
            content: OnceLock::new(),
        }
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.outline.nodes.len()
    }

    /// Name, type, lane, partners: all but times, sizes and what else a node says.
    pub fn key(&self) -> &[u64] {
        self.key
            .get_or_init(|| labels::of_all(self.outline, labels::key))
    }

    /// Name and type.
    pub fn kind(&self) -> &[u64] {
        self.kind
            .get_or_init(|| labels::of_all(self.outline, labels::kind))
    }

    /// All that a node says but its id and dependencies.
    pub fn content(&self) -> &[u64] {
        self.content.get_or_init(|| {
            let nodes = self.outline.nodes.iter();
            nodes.map(labels::content).collect()
        })
    }

    /// The neighbours of `node`, each with whether a control dependency leads there.
    #[inline]
    pub fn neighbours(&self, node: u32, way: Way) -> impl Iterator<Item = (u32, bool)> + '_ {
        let (deps, row) = match way {
            Way::Before => (self.outline.deps(node), &[][..]),
            Way::After => (&[][..], self.waiting.row(node)),
        };
        let deps = deps
            .iter()
            .filter_map(|dep| Some((dep.target()?, dep.control)));
        deps.chain(row.iter().map(|&entry| (entry >> 1, entry & 1 == 1)))
    }

    /// How many neighbours `node` has.
    pub fn degree(&self, node: u32, way: Way) -> usize {
        match way {
            Way::Before => self.outline.deps(node).len(),
            Way::After => self.waiting.row(node).len(),
        }
    }
}
