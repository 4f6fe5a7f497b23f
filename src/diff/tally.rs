//! Differences added up, over the nodes of a rank and over ranks; owned, so that files can be let go.
//!
//! Of a change that many nodes have, or many ranks, the tally keeps one line, with where it is first and in
//! which ranks. Times and sizes are added up by operator, type and group, of all nodes of both traces, and
//! the largest changes of single nodes are kept.

mod amounts;

pub use amounts::{Amounts, By};

use super::differences::Differences;
use super::fields::{Aspect, Field, type_name};
use super::value::Value;
use crate::graph::Outline;
use crate::units::Span;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What changes of times are too small to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Tolerance {
    /// None are.
    #[default]
    Exact,
    /// Those of at most this.
    Absolute(Span),
    /// Those of at most so many percent of the time before.
    Percent(f64),
}

impl Tolerance {
    fn hides(self, before: Span, after: Span) -> bool {
        let by = before.0.abs_diff(after.0);
        match self {
            Self::Exact => by == 0,
            Self::Absolute(most) => by <= most.0,
            Self::Percent(most) => by as f64 * 100.0 <= most * before.0 as f64,
        }
    }
}

/// What happened to a node or a dependency.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A node that only the first trace has.
    Removed,
    /// A node that only the second has.
    Added,
    /// A field that says something else.
    Field(Field),
    /// A dependency that only the first has.
    EdgeRemoved,
    /// A dependency that only the second has.
    EdgeAdded,
}

/// One line: all nodes to which the same happened.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct What {
    /// What happened.
    pub change: Change,
    /// The node's name, in the trace that has it; the first, if both have.
    pub name: String,
    /// What the node does.
    pub kind: String,
    /// What the field said; of a dependency, on what it was.
    pub before: Value,
    /// What the field says; of a dependency, on what it is.
    pub after: Value,
}

/// Where a line's change is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// How many nodes or dependencies, over all ranks.
    pub count: u64,
    /// The ranks, ascending.
    pub ranks: Vec<u32>,
    /// The first node's ids, in the first of the ranks.
    pub ids: [Option<u64>; 2],
}

/// A change of the time or size of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Single {
    /// Which field.
    pub field: Field,
    /// The node's name.
    pub name: String,
    /// What the node does.
    pub kind: String,
    /// Its ids.
    pub ids: [u64; 2],
    /// Before.
    pub before: u64,
    /// After.
    pub after: u64,
    /// The ranks in which it is the same, ascending.
    pub ranks: Vec<u32>,
}

type Order<'s> = (Aspect, Reverse<u64>, &'s Field, &'s str, [u64; 2], u64, u64);

impl Single {
    fn order(&self) -> Order<'_> {
        let by = Reverse(self.before.abs_diff(self.after));
        let (before, after) = (self.before, self.after);
        (
            self.field.aspect(),
            by,
            &self.field,
            &self.name,
            self.ids,
            before,
            after,
        )
    }
}

/// Something wrong with one of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRow {
    /// The rank.
    pub rank: u32,
    /// Whether it is the second file.
    pub second: bool,
    /// How many things are wrong with the file.
    pub count: usize,
    /// The first of them.
    pub text: String,
}

/// How much of what to keep, and what to pass over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// Largest changes of single nodes, of times and of sizes each; all if not said.
    pub singles: Option<usize>,
    /// What changes of times are too small.
    pub tolerance: Tolerance,
}

/// Differences added up.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Ranks that were compared node by node.
    pub compared: Vec<u32>,
    /// Ranks whose files are the same, byte for byte.
    pub identical: Vec<u32>,
    /// Ranks that only one of the jobs has.
    pub only: [Vec<u32>; 2],
    /// What is wrong with the files.
    pub faults: Vec<FaultRow>,
    /// Dependencies of the ranks that were compared.
    pub edges: [u64; 2],
    /// Nodes with a field that changed.
    pub changed: u64,
    /// Nodes and dependencies, by what happened to them.
    pub counts: BTreeMap<Change, u64>,
    /// What happened, besides times and sizes.
    pub lines: BTreeMap<What, Seen>,
    /// Times and sizes of all nodes of the ranks that were compared.
    pub total: Amounts,
    /// The same by operator, type and group.
    pub by: BTreeMap<(By, String), Amounts>,
    /// The largest changes of single nodes, times first.
    pub singles: Vec<Single>,
}

impl Tally {
    /// A rank that only one job has.
    pub fn of_only(rank: u32, second: bool) -> Self {
        let mut tally = Self::default();
        tally.only[usize::from(second)].push(rank);
        tally
    }

    /// A rank whose files are the same.
    pub fn of_identical(rank: u32) -> Self {
        Self {
            identical: vec![rank],
            ..Self::default()
        }
    }

    /// The differences between the traces of one rank.
    pub fn new(rank: u32, traces: [&Outline<'_>; 2], found: &Differences, keep: Keep) -> Self {
        let mut this = Self {
            compared: vec![rank],
            edges: traces.map(|trace| trace.edges() as u64),
            ..Self::default()
        };
        for (second, trace) in [(false, traces[0]), (true, traces[1])] {
            if let Some(fault) = trace.faults.first() {
                this.faults.push(FaultRow {
                    rank,
                    second,
                    count: trace.faults.len(),
                    text: fault.error.to_string(),
                });
            }
        }
        (this.total, this.by) = amounts::of(traces);
        let view = |which: usize, node: u32| &traces[which].nodes[node as usize].view;
        let whole = |which: usize, node: u32, change| {
            let mut ids = [None; 2];
            ids[which] = Some(view(which, node).id);
            let view = view(which, node);
            let what = What {
                change,
                name: view.name.to_owned(),
                kind: type_name(&view.op),
                before: Value::Absent,
                after: Value::Absent,
            };
            (what, ids)
        };
        for &node in &found.removed {
            let (what, ids) = whole(0, node, Change::Removed);
            this.line(rank, what, ids);
        }
        for &node in &found.added {
            let (what, ids) = whole(1, node, Change::Added);
            this.line(rank, what, ids);
        }
        for changed in &found.changed {
            this.node(rank, traces, changed, keep);
        }
        for edge in &found.edges {
            let kind = if edge.control { "control" } else { "data" };
            let on = match edge.on {
                Some(on) => format!("{kind}, on {}", crate::trace::shown(view(0, on[0]).name)),
                None => format!("{kind}, on a node that does not exist"),
            };
            let on = Value::Text(on);
            let (change, before, after) = match edge.added {
                false => (Change::EdgeRemoved, on, Value::Absent),
                true => (Change::EdgeAdded, Value::Absent, on),
            };
            let (what, _) = whole(0, edge.node[0], change);
            let ids = [0, 1].map(|which| Some(view(which, edge.node[which]).id));
            this.line(
                rank,
                What {
                    before,
                    after,
                    ..what
                },
                ids,
            );
        }
        this.trim(keep);
        this
    }

    fn node(&mut self, rank: u32, traces: [&Outline<'_>; 2], changed: &super::Changed, keep: Keep) {
        let nodes = [0, 1].map(|i: usize| &traces[i].nodes[changed.nodes[i] as usize].view);
        let (name, kind) = (nodes[0].name, type_name(&nodes[0].op));
        let ids = nodes.map(|view| view.id);
        let mut any = false;
        for field in &changed.fields {
            if let (Value::Time(before), Value::Time(after)) = (&field.before, &field.after)
                && keep.tolerance.hides(*before, *after)
            {
                continue;
            }
            any = true;
            let amounts = (field.before.amount(), field.after.amount());
            match (field.field.aspect(), amounts) {
                (Aspect::Time | Aspect::Bytes, (Some(before), Some(after))) => {
                    *self
                        .counts
                        .entry(Change::Field(field.field.clone()))
                        .or_default() += 1;
                    self.singles.push(Single {
                        field: field.field.clone(),
                        name: name.to_owned(),
                        kind: kind.clone(),
                        ids,
                        before,
                        after,
                        ranks: vec![rank],
                    });
                    if keep
                        .singles
                        .is_some_and(|most| self.singles.len() > 8 * most + 4096)
                    {
                        self.trim(keep);
                    }
                }
                _ => {
                    let what = What {
                        change: Change::Field(field.field.clone()),
                        name: name.to_owned(),
                        kind: kind.clone(),
                        before: field.before.clone(),
                        after: field.after.clone(),
                    };
                    self.line(rank, what, ids.map(Some));
                }
            }
        }
        self.changed += u64::from(any);
    }

    fn line(&mut self, rank: u32, what: What, ids: [Option<u64>; 2]) {
        *self.counts.entry(what.change.clone()).or_default() += 1;
        let seen = self.lines.entry(what).or_insert(Seen {
            count: 0,
            ranks: vec![rank],
            ids,
        });
        seen.count += 1;
    }

    /// Keeps the largest changes only.
    fn trim(&mut self, keep: Keep) {
        self.singles.sort_by(|a, b| a.order().cmp(&b.order()));
        let Some(most) = keep.singles else { return };
        let times = self
            .singles
            .partition_point(|s| s.field.aspect() == Aspect::Time);
        let mut sizes = self.singles.split_off(times);
        self.singles.truncate(most);
        sizes.truncate(most);
        self.singles.append(&mut sizes);
    }

    /// Adds the tally of later ranks.
    pub fn add(&mut self, other: Self, keep: Keep) {
        self.compared.extend(other.compared);
        self.identical.extend(other.identical);
        for (list, more) in self.only.iter_mut().zip(other.only) {
            list.extend(more);
        }
        self.faults.extend(other.faults);
        for (sum, more) in self.edges.iter_mut().zip(other.edges) {
            *sum += more;
        }
        self.changed += other.changed;
        for (change, count) in other.counts {
            *self.counts.entry(change).or_default() += count;
        }
        for (what, seen) in other.lines {
            match self.lines.get_mut(&what) {
                None => drop(self.lines.insert(what, seen)),
                Some(known) => {
                    known.count += seen.count;
                    known.ranks.extend(seen.ranks);
                }
            }
        }
        self.total.add(&other.total);
        for (key, amounts) in other.by {
            self.by.entry(key).or_default().add(&amounts);
        }
        self.singles.extend(other.singles);
        self.singles.sort_by(|a, b| a.order().cmp(&b.order()));
        self.singles.dedup_by(|later, first| {
            let same = later.order() == first.order();
            if same {
                first.ranks.append(&mut later.ranks);
            }
            same
        });
        self.trim(keep);
    }

    /// How many nodes or dependencies something happened to.
    pub fn count(&self, change: &Change) -> u64 {
        self.counts.get(change).copied().unwrap_or(0)
    }

    /// Whether anything differs in this respect.
    pub fn differs(&self, aspect: Aspect) -> bool {
        let of = |change: &Change| match change {
            Change::Field(field) => field.aspect(),
            _ => Aspect::Structure,
        };
        let ranks = aspect == Aspect::Structure && self.only.iter().any(|list| !list.is_empty());
        ranks || self.counts.keys().any(|change| of(change) == aspect)
    }
}
