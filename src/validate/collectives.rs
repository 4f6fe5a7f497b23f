//! The collectives of a group: the same on all members, in the same order.

use super::facts::{Call, Facts, NONE};
use super::findings::{Defect, Findings, Site};
use super::groups::Party;
use super::kind::Kind;
use super::trace::Trace;
use crate::trace::CollectiveKind;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The calls that a member makes of its group's collectives, in program order.
#[derive(Debug)]
pub(super) struct Sequence<'a> {
    /// The member's place among the traces.
    pub index: usize,
    pub calls: Cow<'a, [u32]>,
    rank: u32,
    trace: &'a Trace,
    /// The slots by which the member names the group.
    slots: &'a [u32],
}

impl<'a> Sequence<'a> {
    fn new(members: &[(u32, &'a Trace)], index: usize, slots: &'a [u32]) -> Self {
        let (rank, trace) = members[index];
        let calls_of = &trace.facts.calls_of;
        let calls = match slots {
            [] => Cow::Borrowed(&[][..]),
            [slot] => Cow::Borrowed(calls_of.row(*slot)),
            several => {
                let calls = several.iter().flat_map(|&slot| calls_of.row(slot));
                let mut calls: Vec<u32> = calls.copied().collect();
                calls.sort_unstable();
                Cow::Owned(calls)
            }
        };
        Self {
            index,
            calls,
            rank,
            trace,
            slots,
        }
    }

    fn facts(&self) -> &'a Facts {
        &self.trace.facts
    }

    /// The `k`-th call.
    pub fn call(&self, k: usize) -> Option<&'a Call> {
        let call = self.calls.get(k)?;
        self.facts().calls.get(*call as usize)
    }

    /// Whether two members obviously make the same calls.
    fn is_like(&self, other: &Self) -> bool {
        std::ptr::eq(self.trace, other.trace) && self.slots == other.slots
    }

    fn site(&self, k: usize) -> Site {
        let call = self.call(k);
        call.map_or_else(Site::default, |call| self.facts().site(&call.node))
    }

    /// What the member does at its `k`-th call.
    fn said(&self, k: usize) -> String {
        match self.call(k) {
            Some(call) => format!("rank {} does {}", self.rank, self.facts().said(call)),
            None => format!("rank {} has no further collective of the group", self.rank),
        }
    }

    /// What the member does after its `k`-th call, or after its last.
    fn next(&self, k: usize) -> String {
        let last = self.calls.len().checked_sub(1);
        let place = last.and_then(|last| self.call(k.min(last)));
        let next = self.facts().next(place.map(|call| call.node.place));
        format!("rank {} {next}", self.rank)
    }
}

/// What members have to agree on: the kind, the bytes, and the root, if it matters and is a member.
type Agreed = (CollectiveKind, u64, Option<Option<u32>>);

fn agreed(call: &Call, party: &Party) -> Agreed {
    let root = call.kind.has_root().then(|| match call.root {
        NONE => party.members.first().copied(),
        root => Some(root).filter(|&root| party.has(root)),
    });
    (call.kind, call.node.bytes, root)
}

/// Holds the collectives of each party against one another. The calls of its members, where they agree and it is
/// known who they are.
pub(super) fn check<'a>(
    members: &[(u32, &'a Trace)],
    parties: &'a [Party],
    findings: &mut Findings,
) -> Vec<Vec<Sequence<'a>>> {
    let mut all = Vec::with_capacity(parties.len());
    for party in parties {
        let mut callers = party.callers.iter().peekable();
        let mut sequences = Vec::with_capacity(party.callers.len());
        let mut ranks: Cow<'_, [u32]> = Cow::Borrowed(&party.members);
        if !ranks.is_sorted_by(|a, b| a < b) {
            ranks.to_mut().sort_unstable();
            ranks.to_mut().dedup();
        }
        // Both are in ascending order of ranks.
        for rank in ranks.iter() {
            let Ok(index) = members.binary_search_by_key(rank, |(rank, _)| *rank) else {
                continue;
            };
            match callers.next_if(|(caller, _)| *caller == index) {
                Some((_, slots)) => sequences.push(Sequence::new(members, index, slots)),
                None if party.partial.is_some() || !members[index].1.facts.whole => {}
                None => sequences.push(Sequence::new(members, index, &[])),
            }
        }
        for sequence in &sequences {
            each(sequence, party, findings);
        }
        let same = compare(party, &sequences, findings);
        all.push(match same && party.partial.is_none() {
            true => sequences,
            false => Vec::new(),
        });
    }
    all
}

/// Checks what a member's calls say by themselves.
fn each(sequence: &Sequence<'_>, party: &Party, findings: &mut Findings) {
    let size = party.members.len() as u32;
    for k in 0..sequence.calls.len() {
        let Some(call) = sequence.call(k) else {
            continue;
        };
        let wrong =
            |kind, found: String| Defect::new(kind, sequence.site(k), found).of(sequence.rank);
        if call.kind.has_root() && call.root != NONE && !party.has(call.root) {
            let found = format!(
                "its root is rank {}, which is not in its {}",
                call.root,
                party.text()
            );
            findings.push(wrong(Kind::Root, found));
        }
        if party.partial.is_none() && call.kind.buffer(call.node.bytes, size).is_none() {
            let found = format!(
                "{size} shards of {} bytes are more than 2^63 bytes",
                call.node.bytes
            );
            findings.push(wrong(Kind::Oversized, found));
        }
    }
}

/// Looks for the first collective on which the members disagree. Whether there is none.
fn compare(party: &Party, sequences: &[Sequence<'_>], findings: &mut Findings) -> bool {
    let Some((first, others)) = sequences.split_first() else {
        return true;
    };
    let said = |sequence: &Sequence<'_>, k| sequence.call(k).map(|call| agreed(call, party));
    let differs = |other: &Sequence<'_>| {
        let most = first.calls.len().max(other.calls.len());
        (0..most).find(|&k| said(first, k) != said(other, k))
    };
    let others = others.iter().filter(|other| !other.is_like(first));
    let Some(k) = others.filter_map(differs).min() else {
        return true;
    };
    let mut sides: BTreeMap<Option<Agreed>, Vec<&Sequence<'_>>> = BTreeMap::new();
    for sequence in sequences {
        sides.entry(said(sequence, k)).or_default().push(sequence);
    }
    // The larger side is right, or else that of the lowest rank.
    let mut sides: Vec<_> = sides.into_values().collect();
    sides.sort_by_key(|side| (std::cmp::Reverse(side.len()), side[0].rank));
    let [right, wrong, ..] = &sides[..] else {
        return true;
    };
    let (here, there) = (wrong[0], right[0]);
    let as_on = |side: &[&Sequence<'_>]| match side.len() {
        1 => String::new(),
        n => format!(", as {} others do", n - 1),
    };
    let dimensions = party.partial.map_or_else(String::new, |mask| {
        format!(", over dimensions {mask:#b} of the machine")
    });
    let more = match sides.len() {
        2 => String::new(),
        n => format!("; {} more ranks do something else", {
            sides[2..n].iter().map(Vec::len).sum::<usize>()
        }),
    };
    let found = format!(
        "collective {k} (counted from 0) of the {}{dimensions}: {}{}, but {}{}{more}; next: {}; {}",
        party.text(),
        there.said(k),
        as_on(right),
        here.said(k),
        as_on(wrong),
        there.next(k),
        here.next(k),
    );
    let kind = match party.partial {
        None => Kind::Collectives,
        Some(_) => Kind::Parts,
    };
    let against = Some((there.rank, there.site(k)));
    let defect = Defect::new(kind, here.site(k), found).of(here.rank);
    findings.push(Defect { against, ..defect });
    false
}
