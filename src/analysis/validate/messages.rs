//! Checks messages: each send must have a receive of equal size.

use super::NONE;
use super::communication::{CommunicationDigest, OneSendOrReceiveRecord};
use super::defects::{Defect, DefectLocationInFile, DefectLog};
use super::kind::DefectKind;
use super::trace::TraceDefectsAndDigest;
use chakram_trace::matching::{
    MessageDisagreement, MessageHalf, RankAndCommIndex, match_messages_by_channel,
};

/// Finds messages by trace index, and by message index within the trace.
struct MessagesByTraceAndIndex<'a>(&'a [(u32, &'a TraceDefectsAndDigest)]);

impl<'a> MessagesByTraceAndIndex<'a> {
    fn find_message(
        &self,
        half: &MessageHalf,
    ) -> (&'a CommunicationDigest, &'a OneSendOrReceiveRecord) {
        let facts = &self.0[half.at.0 as usize].1.facts;
        (facts, &facts.messages[half.at.1 as usize])
    }

    fn location_of_message(&self, half: &MessageHalf) -> DefectLocationInFile {
        let (facts, message) = self.find_message(half);
        facts.location_of_node(&message.node)
    }

    fn bytes_of_message(&self, (trace, message): RankAndCommIndex) -> u64 {
        let facts = &self.0[trace as usize].1.facts;
        facts.messages[message as usize].node.bytes
    }

    /// Describes the first collective or message of `rank`.
    fn describe_first_communication_of_rank(&self, rank: u32) -> String {
        let found = self.0.binary_search_by_key(&rank, |(rank, _)| *rank);
        found.map_or_else(
            |_| String::new(),
            |index| self.0[index].1.facts.describe_next_communication(None),
        )
    }

    /// Describes the collective or message that follows one end of a message on the same rank.
    fn describe_next_communication(&self, half: &MessageHalf) -> String {
        let (facts, message) = self.find_message(half);
        let next = facts.describe_next_communication(Some(message.node.place));
        format!("rank {} {next}", half.own_and_other_rank().0)
    }

    fn build_disagreement_defect(&self, disagreement: &MessageDisagreement) -> Defect {
        let (kind, half, against, more) = match disagreement {
            MessageDisagreement::Size { send, receive, .. } => {
                let next = format!(
                    "next: {}; {}",
                    self.describe_next_communication(send),
                    self.describe_next_communication(receive)
                );
                (DefectKind::MessageSize, send, Some(receive), next)
            }
            MessageDisagreement::Count { half, last, .. } => {
                let far = half.own_and_other_rank().1;
                let there = match last {
                    Some(last) => format!(
                        "the last of them is {}; next: {}",
                        self.location_of_message(last),
                        self.describe_next_communication(last)
                    ),
                    None => format!(
                        "rank {far} begins with {}",
                        self.describe_first_communication_of_rank(far)
                    ),
                };
                let next = format!("{there}; {}", self.describe_next_communication(half));
                (DefectKind::Unmatched, half, last.as_ref(), next)
            }
        };
        let named = |other: &MessageHalf| {
            if other == half {
                "it".to_owned()
            } else {
                format!(
                    "{} of rank {}",
                    self.location_of_message(other),
                    other.own_and_other_rank().0
                )
            }
        };
        let found = disagreement.describe_disagreement(named, |half| self.bytes_of_message(half));
        let defect = Defect::new(
            kind,
            self.location_of_message(half),
            format!("{found}; {more}"),
        );
        Defect {
            against: against.map(|other| {
                (
                    other.own_and_other_rank().0,
                    self.location_of_message(other),
                )
            }),
            ..defect.set_defect_rank(half.own_and_other_rank().0)
        }
    }
}

/// Matches the k-th send with the k-th receive that has the same sender, receiver and tag. Returns the matched
/// messages, each as its send and receive.
pub(super) fn match_messages_and_report_defects(
    members: &[(u32, &TraceDefectsAndDigest)],
    findings: &mut DefectLog,
) -> Vec<(RankAndCommIndex, RankAndCommIndex)> {
    let mut halves = Vec::new();
    for (index, &(rank, trace)) in (0..).zip(members) {
        for (number, message) in (0..).zip(&trace.facts.messages) {
            let own = message.own != NONE && message.own != rank;
            if own || message.peer == rank {
                let found = if own {
                    format!(
                        "the message's own end is rank {}, but this is the trace of rank {rank}",
                        message.own
                    )
                } else {
                    format!("rank {rank} sends to itself")
                };
                let site = trace.facts.location_of_node(&message.node);
                findings.push_and_count_for_rank(
                    Defect::new(DefectKind::WrongRank, site, found).set_defect_rank(rank),
                );
                continue;
            }
            let peer = members.binary_search_by_key(&message.peer, |(rank, _)| *rank);
            let there = peer.is_ok_and(|peer| members[peer].1.facts.whole);
            if there && trace.facts.whole {
                let (receive, tag, at) = (message.receive, message.tag, (index, number));
                halves.push(MessageHalf::new(rank, message.peer, receive, tag, (), at));
            }
        }
    }
    let all = MessagesByTraceAndIndex(members);
    let mut pairs = Vec::with_capacity(halves.len() / 2);
    for found in match_messages_by_channel(&mut halves) {
        match found.find_disagreement(|half| all.bytes_of_message(half)) {
            Some(disagreement) => {
                findings.push_and_count_for_rank(all.build_disagreement_defect(&disagreement))
            }
            None => pairs.extend(found.matched_pairs()),
        }
    }
    pairs
}
