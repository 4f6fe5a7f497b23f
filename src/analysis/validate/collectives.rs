//! Checks the collectives of groups: all members must run the same collectives in the same order.

use super::NONE;
use super::communication::{CommunicationDigest, OneMemberCollectiveCallRecord};
use super::defects::{Defect, DefectLocationInFile, DefectLog};
use super::groups::ResolvedGroupAndCallers;
use super::kind::DefectKind;
use super::trace::TraceDefectsAndDigest;
use chakram_trace::matching::{
    CollectiveSignature, MemberCalls, RankAndCommIndex, find_disagreement,
};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Gives access to the calls of one party, which is the members of one group.
struct CallsOfAllGroupMembers<'a> {
    members: &'a [(u32, &'a TraceDefectsAndDigest)],
    party: &'a ResolvedGroupAndCallers,
}

impl<'a> CallsOfAllGroupMembers<'a> {
    fn look_up_call_by_rank_and_index(
        &self,
        (rank, call): RankAndCommIndex,
    ) -> (
        u32,
        &'a CommunicationDigest,
        &'a OneMemberCollectiveCallRecord,
    ) {
        let (rank, trace) = self.members[rank as usize];
        (rank, &trace.facts, &trace.facts.calls[call as usize])
    }

    fn signature_of_call(&self, at: RankAndCommIndex) -> CollectiveSignature {
        let (_, _, call) = self.look_up_call_by_rank_and_index(at);
        let root = match call.root {
            NONE => self.party.members.first().copied(),
            root => Some(root).filter(|&root| self.party.has_rank(root)),
        };
        CollectiveSignature {
            kind: call.kind,
            bytes: call.node.bytes,
            root: root.filter(|_| call.kind.has_root()),
        }
    }

    fn rank_of_member(&self, member: &MemberCalls<'_>) -> u32 {
        self.members[member.rank as usize].0
    }

    fn location_of_call(&self, at: Option<RankAndCommIndex>) -> DefectLocationInFile {
        let site =
            |(_, facts, call): (u32, &CommunicationDigest, &OneMemberCollectiveCallRecord)| {
                facts.location_of_node(&call.node)
            };
        at.map_or_else(DefectLocationInFile::default, |at| {
            site(self.look_up_call_by_rank_and_index(at))
        })
    }

    /// Describes the `k`-th call of a member.
    fn describe_call(&self, member: &MemberCalls<'_>, k: usize) -> String {
        match member
            .call_at(k)
            .map(|at| self.look_up_call_by_rank_and_index(at))
        {
            Some((rank, facts, call)) => format!("rank {rank} does {}", facts.call_text(call)),
            None => {
                let rank = self.rank_of_member(member);
                format!("rank {rank} has no further collective in the group")
            }
        }
    }

    /// Describes the communication after a member's `k`-th call or, if the member has fewer calls, after its last call.
    fn describe_next_communication(&self, member: &MemberCalls<'_>, k: usize) -> String {
        let last = member.calls.len().checked_sub(1);
        let place = last.and_then(|last| member.call_at(k.min(last)));
        let place = place.map(|at| self.look_up_call_by_rank_and_index(at).2.node.place);
        let next = self.members[member.rank as usize]
            .1
            .facts
            .describe_next_communication(place);
        format!("rank {} {next}", self.rank_of_member(member))
    }

    /// Checks one member's call, without comparing it with the other members' calls.
    fn check_call_of_one_member(&self, at: RankAndCommIndex, findings: &mut DefectLog) {
        let (rank, facts, call) = self.look_up_call_by_rank_and_index(at);
        let (party, bytes) = (self.party, call.node.bytes);
        let size = party.members.len() as u32;
        let wrong = |kind, found: String| {
            Defect::new(kind, facts.location_of_node(&call.node), found).set_defect_rank(rank)
        };
        if call.kind.has_root() && call.root != NONE && !party.has_rank(call.root) {
            let found = format!(
                "the root is rank {}, which is not in the {}",
                call.root,
                party.describe_group()
            );
            findings.push_and_count_for_rank(wrong(DefectKind::Root, found));
        }
        if party.partial.is_none() && call.kind.buffer_bytes(bytes, size).is_none() {
            let found = format!("{size} shards of {bytes} bytes are more than 2^63 bytes");
            findings.push_and_count_for_rank(wrong(DefectKind::Oversized, found));
        }
    }

    /// Reports the first collective that differs between members. Returns true if there is none.
    fn report_first_differing_collective(
        &self,
        sequences: &[MemberCalls<'_>],
        findings: &mut DefectLog,
    ) -> bool {
        let Some((first, others)) = sequences.split_first() else {
            return true;
        };
        let Some(found) = find_disagreement(first, others, |at| self.signature_of_call(at)) else {
            return true;
        };
        let k = found.k;
        let mut sides: BTreeMap<Option<CollectiveSignature>, Vec<&MemberCalls<'_>>> =
            BTreeMap::new();
        for sequence in sequences {
            let said = sequence.call_at(k).map(|at| self.signature_of_call(at));
            sides.entry(said).or_default().push(sequence);
        }
        // Assume that the majority of members is right; if both sides are equal, assume that the side of the lowest
        // rank is right.
        let mut sides: Vec<_> = sides.into_values().collect();
        sides.sort_by_key(|side| (std::cmp::Reverse(side.len()), side[0].rank));
        let [right, wrong, ..] = &sides[..] else {
            return true;
        };
        let (here, there) = (wrong[0], right[0]);
        let as_on = |side: &[&MemberCalls<'_>]| match side.len() {
            1 => String::new(),
            n => format!(", like {} other ranks", n - 1),
        };
        let (kind, dimensions) = match self.party.partial {
            None => (DefectKind::Collectives, String::new()),
            Some(mask) => (
                DefectKind::DivergentDimensions,
                format!(", over dimensions {mask:#b} of the machine"),
            ),
        };
        let more = match sides[2..].iter().map(Vec::len).sum::<usize>() {
            0 => String::new(),
            n => format!("; {n} further ranks call other collectives"),
        };
        let found = format!(
            "collective {k} (counted from 0) of the {}{dimensions}: {}{}, but {}{}{more}; next: {}; {}",
            self.party.describe_group(),
            self.describe_call(there, k),
            as_on(right),
            self.describe_call(here, k),
            as_on(wrong),
            self.describe_next_communication(there, k),
            self.describe_next_communication(here, k),
        );
        let defect = Defect::new(kind, self.location_of_call(here.call_at(k)), found);
        findings.push_and_count_for_rank(Defect {
            against: Some((
                self.rank_of_member(there),
                self.location_of_call(there.call_at(k)),
            )),
            ..defect.set_defect_rank(self.rank_of_member(here))
        });
        false
    }
}

/// For each party, compares the collectives of its members and returns their calls. The list of a party is empty if its
/// members differ.
pub(super) fn check_collectives<'a>(
    members: &[(u32, &'a TraceDefectsAndDigest)],
    parties: &[ResolvedGroupAndCallers],
    findings: &mut DefectLog,
) -> Vec<Vec<MemberCalls<'a>>> {
    let mut all = Vec::with_capacity(parties.len());
    for party in parties {
        let mut callers = party.callers.iter().peekable();
        let mut sequences = Vec::with_capacity(party.callers.len());
        let mut ranks: Cow<'_, [u32]> = Cow::Borrowed(&party.members);
        if !ranks.is_sorted_by(|a, b| a < b) {
            ranks.to_mut().sort_unstable();
            ranks.to_mut().dedup();
        }
        // Both members and callers are in ascending order of ranks, so one pass over both is sufficient.
        for rank in ranks.iter() {
            let Ok(index) = members.binary_search_by_key(rank, |(rank, _)| *rank) else {
                continue;
            };
            let facts = &members[index].1.facts;
            let slots = match callers.next_if(|(caller, _)| *caller == index) {
                Some((_, slots)) => &slots[..],
                None if party.partial.is_some() || !facts.whole => continue,
                None => &[],
            };
            let slots = slots.iter().copied();
            sequences.push(facts.calls_of.calls_of_member(index as u32, slots));
        }
        let calls = CallsOfAllGroupMembers { members, party };
        for at in sequences
            .iter()
            .flat_map(MemberCalls::iter_calls_of_this_member)
        {
            calls.check_call_of_one_member(at, findings);
        }
        let same = calls.report_first_differing_collective(&sequences, findings);
        all.push(if same && party.partial.is_none() {
            sequences
        } else {
            Vec::new()
        });
    }
    all
}
