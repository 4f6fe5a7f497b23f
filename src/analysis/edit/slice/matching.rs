//! Finds communication whose partner was cut.

use super::checked_trace::ReplayableTrace;
use chakram_trace::format::TraceError;
use chakram_trace::format::groups::{DeclaredGroups, parse_group_metadata};
use chakram_trace::matching::{CommChannel, CommMatches, RankComms};
use std::collections::BTreeMap;
use std::fmt::{self, Display};

/// The communication of one rank.
#[derive(Debug)]
struct RankCommunication {
    rank: u32,
    comms: RankComms,
    /// For each communication in `comms`: the id of its node, and true if the node is kept.
    nodes: Vec<(u64, bool)>,
}

/// The job's communication, in ascending order of ranks.
#[derive(Debug, Default)]
pub struct JobCommunication(Vec<RankCommunication>);

impl JobCommunication {
    pub(super) fn add_rank(
        &mut self,
        trace: &ReplayableTrace<'_>,
        rank: u32,
        kept: &[bool],
        groups: &DeclaredGroups,
    ) -> Result<(), TraceError> {
        let nodes = &trace.raw.nodes;
        let mut declared = DeclaredGroups::new();
        for item in nodes {
            if let Some(values) = item.view.groups {
                declared.extend(parse_group_metadata(item.view.id, values)?);
            }
        }
        let order = trace.order.iter().copied();
        let comms = RankComms::new(&trace.raw, rank, order, |name| {
            groups.get(name).or_else(|| declared.get(name))
        });
        let steps = comms.steps.iter().map(|step| step.node as usize);
        let nodes = steps.map(|node| (nodes[node].view.id, kept[node]));
        let nodes = nodes.collect();
        self.0.push(RankCommunication { rank, comms, nodes });
        Ok(())
    }

    /// Finds collectives and messages that are kept on one rank and cut on another.
    pub fn find_kept_with_cut_partners(&self) -> CommunicationsWithCutPartners {
        let mut found = CommunicationsWithCutPartners::default();
        let matches = CommMatches::new(self.0.iter().map(|rank| &rank.comms));
        for (channel, k, met) in matches.iter_matches_with_channel_and_steps() {
            let nodes = met.map(|(rank, step)| {
                let (of, step) = (&self.0[rank as usize], step as usize);
                (of.rank, of.comms.steps[step].node, of.nodes[step])
            });
            let mut kept = nodes.clone().filter(|(.., (_, kept))| *kept).peekable();
            let mut cut = nodes.filter(|(.., (_, kept))| !kept);
            let (Some(cut), Some(one)) = (cut.next(), kept.peek()) else {
                continue;
            };
            found.count += 1;
            if found.first.len() < CommunicationsWithCutPartners::LISTED {
                let what = match channel {
                    CommChannel::Group(None, _) => format!("collective {k} of all ranks"),
                    CommChannel::Group(Some(name), _) => {
                        format!("collective {k} of group `{name}`")
                    }
                    CommChannel::Messages(of) => format!(
                        "message {k} from rank {} to rank {} with tag {}",
                        of.source, of.target, of.tag
                    ),
                };
                found.first.push(format!(
                    "{what} is kept on rank {} (node {}) and removed on rank {} (node {})",
                    one.0, one.2.0, cut.0, cut.2.0
                ));
            }
            for (rank, node, _) in kept {
                found.kept.entry(rank).or_default().push(node);
            }
        }
        found
    }
}

/// Communication whose partner was cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommunicationsWithCutPartners {
    /// Number of collectives and messages whose partner was cut.
    pub count: u64,
    /// Descriptions of the first such collectives and messages, at most [`CommunicationsWithCutPartners::LISTED`].
    pub first: Vec<String>,
    /// The kept nodes whose communication partner was cut, by rank.
    kept: BTreeMap<u32, Vec<u32>>,
}

impl CommunicationsWithCutPartners {
    /// Maximum number of descriptions.
    pub const LISTED: usize = 4;

    pub(super) fn unmatched_nodes_kept_by(&self, rank: u32) -> &[u32] {
        self.kept.get(&rank).map_or(&[], Vec::as_slice)
    }
}

impl Display for CommunicationsWithCutPartners {
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
