//! What differs between two reports of replays: the makespan, and by what it moved.
//!
//! The parts of an NPU's time sum to the makespan, so the changes of their means are the whole change. What
//! is behind a part, operators or groups, is told below it; what these do not explain, because work
//! overlaps, is told as the rest.

mod json;
mod read;
mod replay;
mod text;

pub use json::render as json;
pub use read::{Document, Machine, ReportError, read};
pub use text::render as text;

use super::render::{Limits, Verdict};
use super::{Aspect, Shift};
use std::collections::BTreeMap;

/// Something that moved, with what it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// What it is called.
    pub what: String,
    /// On both sides.
    pub shift: Shift,
}

/// A part of an NPU's time, the mean over NPUs, and what is behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Compute, communication, memory, host or idle.
    pub name: &'static str,
    /// The mean over NPUs, so rounded that the parts sum to the makespan.
    pub mean: Shift,
    /// The sum over NPUs.
    pub sum: Shift,
    /// Operators or groups, their means over NPUs; what moved most is first.
    pub behind: Vec<Moved>,
    /// What `behind` does not explain of the change of the mean.
    pub rest: i128,
}

/// Collectives of one kind in one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// The group and the kind.
    pub what: String,
    /// How often.
    pub calls: Shift,
    /// The sum of buffers.
    pub bytes: Shift,
    /// The transfers of all calls.
    pub transfer: Shift,
    /// What members waited, all together.
    pub waited: Shift,
}

/// A replay in both reports.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The machines' names.
    pub machines: [String; 2],
    /// What makes the two different questions.
    pub notes: Vec<String>,
    /// The makespans.
    pub makespan: Shift,
    /// Of how many NPUs.
    pub npus: [usize; 2],
    /// Where time goes; what moved most is first.
    pub parts: Vec<Part>,
    /// Collectives that moved, by the change of their transfers.
    pub collectives: Vec<Collective>,
    /// When each rank finished; what moved most is first.
    pub ranks: Vec<(u32, Shift)>,
    /// Whether counts of ranks, nodes, calls or messages differ.
    pub structure: bool,
}

/// Two documents.
#[derive(Clone, Debug)]
pub struct Reports {
    /// What is to be known before numbers are compared.
    pub notes: Vec<String>,
    /// Machines that only one of the documents has a report of.
    pub only: [Vec<String>; 2],
    /// The replays in both, in the order of the first.
    pub replays: Vec<Replay>,
}

impl Reports {
    /// Compares two documents.
    pub fn new(first: &Document, second: &Document) -> Self {
        let mut notes = Vec::new();
        if first.tool_version != second.tool_version {
            let versions = (&first.tool_version, &second.tool_version);
            notes.push(format!(
                "written by version {} and by version {}",
                versions.0, versions.1
            ));
        }
        notes.extend(inputs(first, second));
        let mut told: Vec<&String> = Vec::new();
        for name in first.options.keys().chain(second.options.keys()) {
            let value = |d: &Document| d.option(name);
            if !told.contains(&name) && value(first) != value(second) {
                notes.push(format!(
                    "option {name}: {} → {}",
                    value(first),
                    value(second)
                ));
                told.push(name);
            }
        }
        let single = first.machines.len() == 1 && second.machines.len() == 1;
        let mut only = [Vec::new(), Vec::new()];
        let mut replays = Vec::new();
        let find = |list: &'_ [Machine], name: &str| list.iter().position(|m| m.name() == name);
        for machine in &first.machines {
            let other = match single {
                true => Some(0),
                false => find(&second.machines, machine.name()),
            };
            match other.map(|i| &second.machines[i]) {
                None => only[0].push(machine.name().to_owned()),
                Some(other) => match (machine.report(), other.report()) {
                    (Some(a), Some(b)) => replays.push(replay::compare(a, b)),
                    (a, b) => {
                        for (report, document) in [(a, "first"), (b, "second")] {
                            if report.is_none() {
                                let name = machine.name();
                                notes.push(format!("{name}: the {document} did not complete"));
                            }
                        }
                        if a.is_some() != b.is_some() {
                            only[usize::from(a.is_none())].push(machine.name().to_owned());
                        }
                    }
                },
            }
        }
        for machine in second.machines.iter().filter(|_| !single) {
            if find(&first.machines, machine.name()).is_none() {
                only[1].push(machine.name().to_owned());
            }
        }
        Self {
            notes,
            only,
            replays,
        }
    }

    /// Whether anything differs in this respect.
    pub fn differs(&self, aspect: Aspect) -> bool {
        let alone = self.only.iter().any(|list| !list.is_empty());
        let mut replays = self.replays.iter();
        match aspect {
            Aspect::Structure => alone || replays.any(|replay| replay.structure),
            Aspect::Time => replays.any(|replay| {
                let parts = replay.parts.iter().any(|part| part.sum.more() != 0);
                let transfers = replay.collectives.iter().any(|c| c.transfer.more() != 0);
                let ranks = replay.ranks.iter().any(|(_, shift)| shift.more() != 0);
                replay.makespan.more() != 0 || parts || transfers || ranks
            }),
            Aspect::Bytes => {
                replays.any(|replay| replay.collectives.iter().any(|c| c.bytes.more() != 0))
            }
        }
    }

    /// Holds the differences against `limits`.
    pub fn hold(&self, limits: &Limits) -> Verdict {
        let name = |replay: &Replay| match self.replays.len() {
            1 => "the makespan".to_owned(),
            _ => format!("the makespan on {}", replay.machines[0]),
        };
        let names: Vec<_> = self.replays.iter().map(name).collect();
        let names = names.iter().map(String::as_str);
        let totals: Vec<_> = names.zip(self.replays.iter().map(|r| r.makespan)).collect();
        limits.judge(&totals, |aspect| self.differs(aspect))
    }
}

/// What differs between the inputs of two documents.
fn inputs(first: &Document, second: &Document) -> Vec<String> {
    let roles = |document: &Document| {
        let mut roles: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for input in &document.inputs {
            roles
                .entry(input.role.clone())
                .or_default()
                .push(input.blake3.clone());
        }
        roles
    };
    let (a, b) = (roles(first), roles(second));
    let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let none = Vec::new();
    let of = |roles: &'_ BTreeMap<String, Vec<String>>, name| -> Vec<String> {
        roles.get(name).unwrap_or(&none).clone()
    };
    let notes = names.into_iter().filter_map(|name| {
        let (a, b) = (of(&a, name), of(&b, name));
        let same = a.iter().zip(&b).filter(|(x, y)| x == y).count();
        (a != b).then(|| match (a.len(), b.len()) {
            (1, 1) => format!("the input {name} is another"),
            (x, y) if x == y => format!("of {x} inputs {name}, {} are others", x - same),
            (x, y) => format!("inputs {name}: {x} → {y}"),
        })
    });
    notes.collect()
}
