//! Who meets whom, and whose partner is cut.
//!
//! As in a replay, the k-th collectives of a group on its members are one, and the k-th send and receive
//! between two ranks with a tag, in program order.

use super::sound::Sound;
use crate::trace::groups::{Declared, parse_metadata};
use crate::trace::{GroupName, Op, TraceError};
use std::collections::BTreeMap;
use std::fmt::{self, Display};

/// What meets: a group's collectives, or the messages one way between two ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Group(String, Vec<u32>),
    Messages(u32, u32, i32),
}

/// One side of a meeting: the rank, and whether it receives.
type Side = (u32, bool);

/// A node, by its index and id, and whether it is kept.
type Call = (u32, u64, bool);

/// The communication of a job, rank by rank.
#[derive(Debug, Default)]
pub struct Meetings(BTreeMap<Key, BTreeMap<Side, Vec<Call>>>);

impl Meetings {
    pub(super) fn add(
        &mut self,
        trace: &Sound<'_>,
        rank: u32,
        kept: &[bool],
        groups: &Declared,
    ) -> Result<(), TraceError> {
        let mut own = Declared::new();
        for item in &trace.outline.nodes {
            if let Some(values) = item.view.groups {
                own.extend(parse_metadata(item.view.id, values)?);
            }
        }
        for &i in &trace.order {
            let view = &trace.outline.nodes[i as usize].view;
            let (key, side) = match view.op {
                Op::Collective { group, .. } => {
                    let name = match group {
                        GroupName::World => String::new(),
                        GroupName::Number(number) => number.to_string(),
                        GroupName::Text(text) => text.to_owned(),
                    };
                    let declared = groups.get(&name).or_else(|| own.get(&name));
                    let members = declared.cloned().unwrap_or_default();
                    (Key::Group(name, members), (rank, false))
                }
                Op::Message {
                    receive, peer, tag, ..
                } => {
                    let (from, to) = match receive {
                        true => (peer, rank),
                        false => (rank, peer),
                    };
                    (Key::Messages(from, to, tag), (rank, receive))
                }
                _ => continue,
            };
            let calls = self.0.entry(key).or_default().entry(side).or_default();
            calls.push((i, view.id, kept[i as usize]));
        }
        Ok(())
    }

    /// What is kept on one rank and cut on another.
    pub fn unmatched(&self) -> Unmatched {
        let mut found = Unmatched::default();
        for (key, sides) in &self.0 {
            let most = sides.values().map(Vec::len).max().unwrap_or(0);
            for k in 0..most {
                let of = |wanted: bool| {
                    let calls = sides.iter().filter_map(move |(side, calls)| {
                        calls
                            .get(k)
                            .map(|&(index, id, kept)| (side.0, index, id, kept))
                    });
                    calls.filter(move |&(.., kept)| kept == wanted)
                };
                let (Some(cut), Some(kept)) = (of(false).next(), of(true).next()) else {
                    continue;
                };
                found.count += 1;
                if found.first.len() < Unmatched::LISTED {
                    let what = match key {
                        Key::Group(name, _) if name.is_empty() => {
                            format!("collective {k} of all ranks")
                        }
                        Key::Group(name, _) => format!("collective {k} of group `{name}`"),
                        Key::Messages(from, to, tag) => {
                            format!("message {k} from rank {from} to rank {to} with tag {tag}")
                        }
                    };
                    found.first.push(format!(
                        "{what} is kept on rank {} (node {}) and cut on rank {} (node {})",
                        kept.0, kept.2, cut.0, cut.2
                    ));
                }
                for (rank, index, ..) in of(true) {
                    found.kept.entry(rank).or_default().push(index);
                }
            }
        }
        found
    }
}

/// Communication whose partner is cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmatched {
    /// How many collectives and messages.
    pub count: u64,
    /// The first of them, [`Unmatched::LISTED`] at most.
    pub first: Vec<String>,
    /// The nodes that are kept, by rank.
    kept: BTreeMap<u32, Vec<u32>>,
}

impl Unmatched {
    /// How many are listed.
    pub const LISTED: usize = 4;

    pub(super) fn kept_by(&self, rank: u32) -> &[u32] {
        self.kept.get(&rank).map_or(&[], Vec::as_slice)
    }
}

impl Display for Unmatched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, one) in self.first.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "  {one}")?;
        }
        match self.count.saturating_sub(self.first.len() as u64) {
            0 => Ok(()),
            more => write!(f, "\n  … {more} more"),
        }
    }
}
