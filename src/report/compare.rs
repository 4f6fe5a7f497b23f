//! One job on several machines: what each machine makes of it, and what moved between them.
//!
//! The parts of an NPU's time sum to the makespan, and so do their means. The changes of the parts from
//! one machine to another are therefore the whole change of the makespan, and [`Why`] puts them in
//! order. Each communication is followed from one machine to the other by the name of its group and its
//! kind.

use super::breakdown::{Charged, Part};
use super::operators::{Operator, table::families};
use super::summary::{CollectiveRow, LatestRank, MESSAGES, Report, groups_of, mean, percent_more};
use crate::engine::ReplayError;
use crate::graph::Kind;
use crate::ids::Rank;
use crate::machine::Machine;
use crate::trace::{CollectiveKind, Dtype};
use crate::units::Span;
use crate::workload::Workload;
use std::cmp::Reverse;
use std::collections::BTreeMap;

mod csv;
mod json;
mod text;
mod words;

pub use csv::render as csv;
pub use json::{ComparisonDocument, MachineResult, document as json};
pub use text::render as text;

/// A machine, and what the replay on it found.
#[derive(Debug)]
pub struct Column<'a> {
    /// What the comparison calls it.
    pub name: String,
    /// The machine.
    pub machine: &'a Machine,
    /// The report, or why there is none.
    pub result: Result<Report, ReplayError>,
}

/// One job on several machines.
#[derive(Debug)]
pub struct Comparison<'a> {
    /// The job.
    pub workload: &'a Workload,
    /// What people call it.
    pub title: &'a str,
    /// The machines, in the order they were named.
    pub columns: Vec<Column<'a>>,
}

/// A duration on one machine and on another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// On the machine that is compared against.
    pub before: Span,
    /// On the other.
    pub after: Span,
}

/// A communication on one machine: the collectives of one kind in groups that are alike.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    /// The means over NPUs of what they were charged with.
    pub mean: Charged,
    /// The transfers of all calls, the mean of the groups; no time for messages.
    pub transfer: Span,
    /// Bus bandwidth in bytes per second, over all groups.
    pub bus: Option<f64>,
    /// How it is carried out; empty for messages.
    pub algorithm: String,
    /// The mean over members of how long they waited, hidden or exposed.
    pub waited: Span,
    /// The rank that most was waited for, and its share of all waiting.
    pub latest: Option<(Rank, f64)>,
}

/// A communication on two machines. A side that is not there did not happen on that machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// What people call it: `all-reduce, all 8 ranks`.
    pub what: String,
    /// Which collective; `None` for messages between ranks.
    pub kind: Option<CollectiveKind>,
    /// How many groups do it.
    pub groups: u32,
    /// On the machine that is compared against.
    pub before: Option<Side>,
    /// On the other.
    pub after: Option<Side>,
}

/// Why a job takes longer or shorter on one machine than on another; of each list, what moved most
/// comes first.
#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    /// The makespans.
    pub makespan: Change,
    /// The means over NPUs of each part.
    pub parts: Vec<(Part, Change)>,
    /// Exposed communication, by group and kind.
    pub communication: Vec<Moved>,
    /// Kernels and memory accesses by name, the mean over NPUs of their time, overlap counted in full.
    pub operators: Vec<(Part, String, Change)>,
    /// How long the nodes of the host last, the mean over NPUs, overlap counted in full.
    pub host: Change,
    /// The mean over ranks of the time from the last node of the rank to the makespan.
    pub after_last: Change,
}

impl Change {
    /// By how many picoseconds it is longer.
    pub fn more(&self) -> i128 {
        i128::from(self.after.0) - i128::from(self.before.0)
    }

    /// How many times as fast the other machine is.
    pub fn speed(&self) -> Option<f64> {
        (self.after > Span::ZERO).then(|| self.before.0 as f64 / self.after.0 as f64)
    }

    /// By how many percent of `before` it is longer.
    pub fn percent(&self) -> Option<f64> {
        percent_more(self.after, self.before)
    }

    fn size(&self) -> u128 {
        self.more().unsigned_abs()
    }
}

impl Moved {
    /// Exposed communication, the mean over NPUs.
    pub fn exposed(&self) -> Change {
        self.of(|side| side.mean.exposed())
    }

    /// Some duration on both sides.
    pub fn of(&self, time: impl Fn(&Side) -> Span) -> Change {
        let time = |side: &Option<Side>| side.as_ref().map_or(Span::ZERO, &time);
        Change {
            before: time(&self.before),
            after: time(&self.after),
        }
    }
}

impl Side {
    /// The share of the transfer that compute hides.
    pub fn hidden(&self) -> Option<f64> {
        let all = self.mean.transferring;
        let exposed = self.mean.exposed_transferring;
        (all > Span::ZERO).then(|| (all - exposed).0 as f64 / all.0 as f64)
    }
}

impl<'a> Comparison<'a> {
    /// The column that the others are compared against: the first that has a report.
    pub fn reference(&self) -> Option<(&Column<'a>, &Report)> {
        self.reports().next()
    }

    /// The columns that have a report.
    pub fn reports(&self) -> impl Iterator<Item = (&Column<'a>, &Report)> {
        let columns = self.columns.iter();
        columns.filter_map(|column| Some((column, column.result.as_ref().ok()?)))
    }

    /// The makespans of the reference and of `report`.
    pub fn against(&self, report: &Report) -> Change {
        let (_, first) = self.reference().expect("there is a report");
        makespans(first, report)
    }

    /// Whether any node loads or stores beyond its NPU.
    fn reaches_out(&self) -> bool {
        self.workload.graphs().iter().any(|graph| {
            let mut kinds = graph.nodes().map(|node| graph.kind(node));
            kinds.any(|kind| kind == Kind::RemoteMemory)
        })
    }

    /// Whether anything is known of the memory of NPUs.
    fn remembers(&self) -> bool {
        self.reports().any(|(_, report)| !report.memory.is_empty())
    }

    /// The number formats of the kernels of the job.
    fn dtypes(&self) -> Vec<Dtype> {
        let graphs = self.workload.graphs().iter();
        let found = graphs.flat_map(|graph| {
            let kernels = graph.nodes().filter(|&n| graph.kind(n) == Kind::Compute);
            let kernels = kernels.filter(|&node| graph.flops(node) > 0);
            kernels.filter_map(|node| graph.dtype(node))
        });
        let mut used = [false; Dtype::COUNT];
        found.for_each(|dtype| used[dtype as usize] = true);
        let all = Dtype::ALL.iter().map(|(dtype, _)| *dtype);
        all.filter(|&dtype| used[dtype as usize]).collect()
    }
}

fn makespans(first: &Report, other: &Report) -> Change {
    Change {
        before: first.outcome.makespan,
        after: other.outcome.makespan,
    }
}

impl Why {
    /// Compares `other` against `first`, two replays of one job.
    pub fn new(first: &Report, other: &Report) -> Self {
        let part = |report: &Report, part: Part| report.mean_parts[part as usize];
        let mut parts: Vec<_> = Part::ALL
            .map(|(p, _)| {
                let change = Change {
                    before: part(first, p),
                    after: part(other, p),
                };
                (p, change)
            })
            .to_vec();
        parts.sort_by_key(|(_, change)| Reverse(change.size()));
        let after_last = |report: &Report| {
            let makespan = report.outcome.makespan;
            report.mean(|time| makespan - time.finish)
        };
        let host = |report: &Report| {
            let host = report.operators.iter().filter(|o| o.kind == Kind::Host);
            mean(host.map(|o| o.total).sum(), report.rows.len())
        };
        Self {
            makespan: makespans(first, other),
            parts,
            communication: communication(first, other),
            operators: operators(first, other),
            host: Change {
                before: host(first),
                after: host(other),
            },
            after_last: Change {
                before: after_last(first),
                after: after_last(other),
            },
        }
    }

    /// A part on both machines.
    pub fn part(&self, part: Part) -> Change {
        let found = self.parts.iter().find(|(p, _)| *p == part);
        found.map(|(_, change)| *change).unwrap_or_default()
    }
}

/// Kernels and memory accesses whose time changed.
fn operators(first: &Report, other: &Report) -> Vec<(Part, String, Change)> {
    let mut changes: BTreeMap<(u8, String), (Part, Change)> = BTreeMap::new();
    let mut take = |report: &Report, set: fn(&mut Change, Span)| {
        for Operator {
            name, kind, total, ..
        } in families(&report.operators)
        {
            let part = match kind {
                Kind::Compute => Part::Compute,
                Kind::LocalMemory | Kind::RemoteMemory => Part::Memory,
                _ => continue,
            };
            let change = changes.entry((kind as u8, name));
            let (_, change) = change.or_insert((part, Change::default()));
            set(change, mean(total, report.rows.len()));
        }
    };
    take(first, |change, time| change.before = time);
    take(other, |change, time| change.after = time);
    let changes = changes.into_iter();
    let mut changes: Vec<_> = changes
        .map(|((_, name), (part, change))| (part, name, change))
        .filter(|(.., change)| change.more() != 0)
        .collect();
    changes.sort_by_key(|(.., change)| Reverse(change.size()));
    changes
}

/// What tells the collectives of a replay apart on every machine: the name of the group, the kind, and
/// the how-manieth it is of those.
type Key = (String, CollectiveKind, u32);

fn keyed(report: &Report) -> BTreeMap<Key, &CollectiveRow> {
    let mut rows = BTreeMap::new();
    for row in &report.collectives {
        let mut key = (row.group.clone(), row.kind, 0);
        while rows.contains_key(&key) {
            key.2 += 1;
        }
        rows.insert(key, row);
    }
    rows
}

/// Groups that are alike: of one size, doing one thing equally often, carried out alike.
type Alike<'r> = (
    CollectiveKind,
    Option<&'r str>,
    u32,
    u64,
    [Option<&'r str>; 2],
);
type Pair<'r> = [Option<&'r CollectiveRow>; 2];

fn communication(first: &Report, other: &Report) -> Vec<Moved> {
    let (before, after) = (keyed(first), keyed(other));
    let mut keys: Vec<&Key> = before.keys().chain(after.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut alike: BTreeMap<Alike<'_>, Vec<Pair<'_>>> = BTreeMap::new();
    for key in keys {
        let pair = [before.get(key).copied(), after.get(key).copied()];
        let row = pair[0].or(pair[1]).expect("a key comes from one of them");
        let carried = pair.map(|row| row.map(|row| row.algorithm.as_str()));
        let role = row.role.as_deref();
        let key = (row.kind, role, row.members, row.tally.calls, carried);
        alike.entry(key).or_default().push(pair);
    }
    let reports = [first, other];
    let folded = alike.into_iter().map(|((kind, role, members, ..), pairs)| {
        let [before, after] = [0, 1].map(|i| {
            let rows: Vec<_> = pairs.iter().filter_map(|pair| pair[i]).collect();
            side(&rows, reports[i])
        });
        let row = pairs[0][0].or(pairs[0][1]).expect("one of them is there");
        let what = match (pairs.len(), role) {
            (n, Some(role)) => format!("{kind}, {role}, {}", groups_of(n, members)),
            (1, None) => format!("{kind}, {}", row.group),
            (n, None) => format!("{kind}, {n} groups of {members} such as {}", row.group),
        };
        Moved {
            what,
            kind: Some(kind),
            groups: pairs.len() as u32,
            before,
            after,
        }
    });
    let messages = reports.map(|report| {
        let mean = mean_of(report.messages_charged, report.rows.len());
        (mean != Charged::default()).then(|| Side {
            mean,
            ..Side::default()
        })
    });
    let [before, after] = messages;
    let messages = (before.is_some() || after.is_some()).then(|| Moved {
        what: MESSAGES.to_owned(),
        kind: None,
        groups: 0,
        before,
        after,
    });
    let mut moved: Vec<_> = folded.chain(messages).collect();
    moved.sort_by_key(|moved| Reverse(moved.exposed().size()));
    moved
}

fn mean_of(sum: Charged, npus: usize) -> Charged {
    Charged {
        waiting: mean(sum.waiting, npus),
        exposed_waiting: mean(sum.exposed_waiting, npus),
        transferring: mean(sum.transferring, npus),
        exposed_transferring: mean(sum.exposed_transferring, npus),
    }
}

/// What groups that are alike did on one machine.
fn side(rows: &[&CollectiveRow], report: &Report) -> Option<Side> {
    let first = rows.first()?;
    let mut charged = Charged::default();
    let (mut transfer, mut waited, mut bytes, mut present) = (Span::ZERO, Span::ZERO, 0u64, 0);
    let mut late: BTreeMap<Rank, Span> = BTreeMap::new();
    for row in rows {
        charged.waiting += row.charged.waiting;
        charged.exposed_waiting += row.charged.exposed_waiting;
        charged.transferring += row.charged.transferring;
        charged.exposed_transferring += row.charged.exposed_transferring;
        transfer += row.tally.transfer;
        waited += row.tally.waited;
        bytes = bytes.saturating_add(row.tally.buffers.sum);
        present += row.present as usize;
        if let Some(LatestRank { rank, waited }) = row.latest {
            *late.entry(rank).or_default() += waited;
        }
    }
    let mut together = first.tally;
    (together.buffers.sum, together.transfer) = (bytes, transfer);
    let latest = late
        .into_iter()
        .max_by_key(|(rank, time)| (*time, Reverse(*rank)));
    Some(Side {
        mean: mean_of(charged, report.rows.len()),
        transfer: mean(transfer, rows.len()),
        bus: together.bus_bandwidth(first.kind, first.members),
        algorithm: first.algorithm.clone(),
        waited: mean(waited, present),
        latest: latest
            .filter(|_| waited > Span::ZERO)
            .map(|(rank, time)| (rank, time.0 as f64 / waited.0 as f64)),
    })
}
