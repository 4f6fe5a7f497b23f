//! Finds neighbouring ranks that one trace can represent, because they differ only in peers, groups and cores.

use super::CheckedWorkloadPattern;
use chakram_trace::format::members::SharedTraceRankSubstitutions;
use chakram_trace::format::{NodeView, Op, Sink, TraceError};
use std::collections::BTreeMap;

/// A rank's peers and groups, in order of first use in its trace.
#[derive(Debug, Default, PartialEq, Eq)]
struct PeersAndGroupsOfOneRank {
    peers: Vec<u32>,
    groups: Vec<String>,
}

impl Sink for PeersAndGroupsOfOneRank {
    fn receive_node(&mut self, node: &NodeView<'_>, _: &[u64]) -> Result<(), TraceError> {
        match node.op {
            Op::Message { peer, .. } if !self.peers.contains(&peer) => self.peers.push(peer),
            Op::Collective { group, .. } => {
                let Some(name) = group.to_text() else {
                    return Ok(());
                };
                if !self.groups.contains(&name) {
                    self.groups.push(name);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl CheckedWorkloadPattern {
    /// Returns ranges of neighbouring ranks that one trace can represent, such as the ranks of a stage. The ranks of a
    /// range have the same graph and exchange no messages with one another. A rank that needs a trace of its own is in
    /// no range.
    ///
    /// # Errors
    ///
    /// Fails only if emitting a node fails, which does not happen for a generated job.
    pub fn find_equal_rank_ranges(&self) -> Result<Vec<SharedTraceRankSubstitutions>, TraceError> {
        let partners = |rank: u32| -> Result<PeersAndGroupsOfOneRank, TraceError> {
            let mut partners = PeersAndGroupsOfOneRank::default();
            self.emit_nodes(rank, &mut partners)?;
            Ok(partners)
        };
        let mut all = Vec::new();
        let mut run: Vec<PeersAndGroupsOfOneRank> = Vec::new();
        let mut first = 0;
        for rank in 0..=self.rank_count() {
            let own = (rank < self.rank_count())
                .then(|| partners(rank))
                .transpose()?;
            let joins = |own: &PeersAndGroupsOfOneRank| {
                let among = first..rank;
                run.first().is_some_and(|of| {
                    (of.peers.len(), of.groups.len()) == (own.peers.len(), own.groups.len())
                }) && self.representative_of_same_shape_ranks(rank)
                    == self.representative_of_same_shape_ranks(first)
                    && !own.peers.iter().any(|peer| among.contains(peer))
            };
            if !own.as_ref().is_some_and(joins) {
                all.extend(self.shared_trace_members_of_rank_run(first, &run));
                (first, run) = (rank, Vec::new());
            }
            run.extend(own);
        }
        Ok(all)
    }

    /// Returns the trace members for consecutive ranks that begin at `first`; `None` for a single rank.
    fn shared_trace_members_of_rank_run(
        &self,
        first: u32,
        run: &[PeersAndGroupsOfOneRank],
    ) -> Option<SharedTraceRankSubstitutions> {
        if run.len() < 2 {
            return None;
        }
        let ranks: Vec<u32> = (first..).take(run.len()).collect();
        let cores: Option<Vec<[u32; 2]>> = ranks
            .iter()
            .map(|&rank| self.core_coordinates_of_rank(rank))
            .collect();
        let by_place = |count: usize| 0..count;
        let peers = by_place(run[0].peers.len()).map(|place| {
            let all: Vec<u32> = run.iter().map(|of| of.peers[place]).collect();
            (all[0], all)
        });
        let groups = by_place(run[0].groups.len()).map(|place| {
            let all: Vec<String> = run.iter().map(|of| of.groups[place].clone()).collect();
            (all[0].clone(), all)
        });
        let members = SharedTraceRankSubstitutions {
            peers: drop_entries_equal_for_all_members(peers),
            groups: drop_entries_equal_for_all_members(groups),
            cores: cores.unwrap_or_default(),
            ranks,
        };
        let differ =
            !(members.peers.is_empty() && members.groups.is_empty() && members.cores.is_empty());
        differ.then_some(members)
    }
}

/// Drops the entries that have the same value for all members.
fn drop_entries_equal_for_all_members<T: Ord>(
    all: impl Iterator<Item = (T, Vec<T>)>,
) -> BTreeMap<T, Vec<T>> {
    all.filter(|(first, of)| of.iter().any(|one| one != first))
        .collect()
}
