//! Finds cycles of waits between ranks. A cycle of waits is a deadlock on every machine, regardless of the
//! order of events.
//!
//! A receive waits for its send. A member of a collective waits for all work on which the other members' calls depend.
//! A collective with a root causes fewer waits: a member that only sends waits for no other, and a member that only
//! receives waits only for the root. Other cycles of waits depend on the machine; for example, collectives of several
//! groups may share a lane. Only a replay finds these cycles.

use super::NONE;
use super::defects::{Defect, DefectLog};
use super::groups::ResolvedGroupAndCallers;
use super::kind::DefectKind;
use super::trace::TraceDefectsAndDigest;
use chakram_trace::format::CollectiveKind;
use chakram_trace::graph::Csr;
use chakram_trace::graph::cycle::find_short_cycle;
use chakram_trace::matching::{MemberCalls, RankAndCommIndex};

/// The graph of waits, over all ranks. The vertices of each trace come first, then one vertex for each collective of
/// each party (group). Such a vertex represents the moment when all required members have arrived.
struct CrossRankNodeWaitGraph<'a> {
    members: &'a [(u32, &'a TraceDefectsAndDigest)],
    /// For each trace, the index of its first vertex.
    first: Vec<u32>,
    parties: &'a [ResolvedGroupAndCallers],
    sequences: &'a [Vec<MemberCalls<'a>>],
    /// For each party, the index of its first vertex.
    rendezvous: Vec<u32>,
    pairs: &'a [(RankAndCommIndex, RankAndCommIndex)],
}

/// Searches for a cycle in the graph of waits. `sequences` contains the calls of each party's members, and `pairs` the
/// matched messages.
pub(super) fn check_deadlock(
    members: &[(u32, &TraceDefectsAndDigest)],
    parties: &[ResolvedGroupAndCallers],
    sequences: &[Vec<MemberCalls<'_>>],
    pairs: &[(RankAndCommIndex, RankAndCommIndex)],
    findings: &mut DefectLog,
) {
    let mut count = 0_usize;
    let mut take = |more: usize| {
        count += more;
        (count - more) as u32
    };
    let first = members
        .iter()
        .map(|(_, trace)| take(trace.facts.waits.len()))
        .collect();
    // Only parties whose members agree have sequences, so the first member has all of its party's collectives.
    let rendezvous = sequences.iter().map(|all| {
        let calls = all.first().map_or(0, |first| first.calls.len());
        take(calls)
    });
    let rendezvous = rendezvous.collect();
    if count == 0 || count >= NONE as usize {
        return;
    }
    let world = CrossRankNodeWaitGraph {
        members,
        first,
        parties,
        sequences,
        rendezvous,
        pairs,
    };
    let rows = Csr::new(count, |each| world.for_each_wait_edge(each));
    let order = rows.topological_order();
    // All vertices can be ordered, so there is no cycle.
    if order.len() == count {
        return;
    }
    let stuck = rows.flag_nodes_on_or_behind_cycles(&order);
    let cycle = find_short_cycle(&rows, |vertex| stuck[vertex as usize]);
    world.report_cycle(&cycle, findings);
}

impl CrossRankNodeWaitGraph<'_> {
    /// Returns the vertex of a call or message in the trace with index `index`; `own` is that vertex within its own
    /// trace.
    fn global_vertex_of_trace_vertex(&self, index: usize, own: u32) -> u32 {
        self.first[index] + own
    }

    fn for_each_wait_edge(&self, each: &mut dyn FnMut(u32, u32)) {
        for (index, (_, trace)) in self.members.iter().enumerate() {
            let waits = &trace.facts.waits;
            for vertex in 0..waits.len() as u32 {
                for &before in waits.predecessors_of(vertex) {
                    each(
                        self.global_vertex_of_trace_vertex(index, before),
                        self.global_vertex_of_trace_vertex(index, vertex),
                    );
                }
            }
        }
        for &((source, send), (target, receive)) in self.pairs {
            let end = |(index, message): (u32, u32)| {
                let own = self.members[index as usize].1.facts.waits.messages[message as usize];
                self.global_vertex_of_trace_vertex(index as usize, own)
            };
            each(end((source, send)), end((target, receive)));
        }
        for ((party, all), &rendezvous) in self
            .parties
            .iter()
            .zip(self.sequences)
            .zip(&self.rendezvous)
        {
            for sequence in all {
                self.for_each_edge_of_member_calls(party, sequence, rendezvous, each);
            }
        }
    }

    /// Calls `each` for the edges between a member's calls and its party's vertices. `rendezvous` is the first vertex
    /// of the party.
    fn for_each_edge_of_member_calls(
        &self,
        party: &ResolvedGroupAndCallers,
        sequence: &MemberCalls<'_>,
        rendezvous: u32,
        each: &mut dyn FnMut(u32, u32),
    ) {
        let index = sequence.rank as usize;
        let (rank, trace) = self.members[index];
        let waits = &trace.facts.waits;
        for (k, &number) in (0..).zip(sequence.calls.iter()) {
            let own = waits.calls[number as usize];
            let call = &trace.facts.calls[number as usize];
            let root = match call.root {
                NONE => party.members.first().copied(),
                root => Some(root),
            };
            let is_root = root == Some(rank);
            // In a collective with a root, a member either sends or receives, so either others wait for it or it waits
            // itself.
            let (gives, takes) = match call.kind {
                CollectiveKind::Broadcast | CollectiveKind::Scatter => (is_root, !is_root),
                CollectiveKind::Reduce | CollectiveKind::Gather => (!is_root, is_root),
                _ => (true, true),
            };
            if gives {
                for &before in waits.predecessors_of(own) {
                    each(
                        self.global_vertex_of_trace_vertex(index, before),
                        rendezvous + k,
                    );
                }
            }
            if takes {
                each(
                    rendezvous + k,
                    self.global_vertex_of_trace_vertex(index, own),
                );
            }
        }
    }

    /// Reports a cycle of waits, with the names of its nodes.
    fn report_cycle(&self, cycle: &[u32], findings: &mut DefectLog) {
        const SHOWN: usize = 12;
        let named = cycle.iter().filter_map(|&vertex| {
            let index = self.first.partition_point(|&first| first <= vertex);
            let index = index.checked_sub(1)?;
            let (rank, trace) = self.members[index];
            let own = vertex - self.first[index];
            let facts = &trace.facts;
            let call = facts.waits.calls.binary_search(&own).ok();
            let message = facts.waits.messages.binary_search(&own).ok();
            // The parties' vertices come after those of all traces, and have no node to name.
            if own as usize >= facts.waits.len() {
                return None;
            }
            let (site, said) = match (call, message) {
                (Some(call), _) => (
                    facts.location_of_node(&facts.calls[call].node),
                    facts.call_text(&facts.calls[call]),
                ),
                (None, Some(message)) => (
                    facts.location_of_node(&facts.messages[message].node),
                    facts.describe_send_or_receive(&facts.messages[message]),
                ),
                (None, None) => return None,
            };
            Some((rank, site, said))
        });
        let named: Vec<_> = named.collect();
        let mut text = String::from(
            "each of these nodes waits for the previous one, and the first for the last: ",
        );
        for (i, (rank, _, said)) in named.iter().take(SHOWN).enumerate() {
            let separator = if i > 0 { " → " } else { "" };
            text += &format!("{separator}rank {rank} {said}");
        }
        if named.len() > SHOWN {
            text += &format!(" → … {} more", named.len() - SHOWN);
        }
        let Some((rank, site, _)) = named.first() else {
            return;
        };
        findings.push_and_count_for_rank(
            Defect::new(DefectKind::Deadlock, site.clone(), text).set_defect_rank(*rank),
        );
    }
}
