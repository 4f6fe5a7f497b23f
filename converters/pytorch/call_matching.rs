//! Matches calls across ranks. The k-th calls of all members of a group belong to the same collective. Each send is
//! paired with a receive.

use super::call_windows::{self, CommCallFingerprint};
use super::calls::{CommCall, CommOp, RankCommCallsAndAnomalies};
use super::group_inference::{JobGroup, UNTOLD};
use super::rank_timeline::JoinedRankCapture;
use chakram_trace::format::CollectiveKind;
use chakram_trace::matching::{
    CollectiveSignature, MemberCalls, MessageHalf, RankAndCommIndex, TraceCallsByGroupSlot,
    find_disagreement, match_messages_by_channel,
};

/// A collective, with the calls of all captured members.
#[derive(Clone, Debug)]
pub struct MatchedCollective {
    /// Kind of the collective, which is the same on all members.
    pub kind: CollectiveKind,
    /// Index of the group.
    pub group: u32,
    /// The call of each captured member, in the group's order.
    pub members: Vec<RankAndCommIndex>,
    /// Index of the root among the group's members. `None` if there is no root or it has no capture.
    pub root: Option<u32>,
    /// The collective's `comm_size`: the largest value that any member states.
    pub bytes: u64,
    /// True if the members' records state different sizes.
    pub uneven: bool,
}

/// A message with its send and its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchedMessage {
    /// Call that sends the message.
    pub send: RankAndCommIndex,
    /// Call that receives the message.
    pub receive: RankAndCommIndex,
}

/// All matched collectives and messages of a job.
#[derive(Debug, Default)]
pub struct MatchedAndUnmatchedCallsOfJob {
    /// Collectives, sorted by group and sequence.
    pub collectives: Vec<MatchedCollective>,
    /// Messages whose send and receive were both found.
    pub messages: Vec<MatchedMessage>,
    /// Calls without a matching call, each with the reason.
    pub unmatched: Vec<(RankAndCommIndex, &'static str)>,
}

/// Error: two ranks disagree about a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommCallMismatchError(pub String);

/// A rank of the job.
#[derive(Clone, Copy, Debug)]
pub struct JobRankWithTimeline<'a> {
    /// Rank number in the job.
    pub number: u32,
    /// Capture that contains the rank's calls: the rank's own capture, or the capture of a rank with the same role.
    pub timeline: &'a JoinedRankCapture,
}

/// Matches the calls of all ranks. `ranks` must be sorted, and the group of every call must be set.
pub fn match_calls_across_ranks(
    ranks: &[JobRankWithTimeline<'_>],
    calls: &[RankCommCallsAndAnomalies],
    groups: &[JobGroup],
) -> Result<MatchedAndUnmatchedCallsOfJob, CommCallMismatchError> {
    let job = CapturedCommCallsOfJob {
        ranks,
        calls,
        groups,
    };
    let mut matches = MatchedAndUnmatchedCallsOfJob::default();
    let calls_of = calls.iter().map(|calls| {
        let all = sort_calls_in_program_order(calls);
        let collectives = all.filter(|(_, call)| !call.is_message() && call.group != UNTOLD);
        TraceCallsByGroupSlot::new(groups.len(), collectives.map(|(i, call)| (call.group, i)))
    });
    let calls_of: Vec<TraceCallsByGroupSlot> = calls_of.collect();
    for (index, group) in (0..).zip(groups) {
        let found = group
            .ranks
            .iter()
            .map(|rank| ranks.binary_search_by_key(rank, |r| r.number));
        let members = found
            .flatten()
            .map(|rank| calls_of[rank].calls_of_member(rank as u32, [index]));
        let members = job.keep_common_calls(members.collect(), &mut matches.unmatched);
        let Some((first, others)) = members.split_first() else {
            continue;
        };
        if let Some(found) = find_disagreement(first, others, |at| job.signature_of_collective(at))
            && let [Some(one), Some(other)] = found.calls
        {
            let text = format!(
                "collective {} of group `{}`: {}, but {}",
                found.k,
                group.name,
                job.describe_call(one),
                job.describe_call(other)
            );
            return Err(CommCallMismatchError(text));
        }
        for sequence in 0..first.calls.len() {
            let calls = members.iter().flat_map(|member| member.call_at(sequence));
            let calls: Vec<RankAndCommIndex> = calls.collect();
            if calls.iter().any(|&at| job.has_dropped_kernel(at)) {
                let others = calls.into_iter().map(|at| (at, PARTNER_DROPPED));
                matches.unmatched.extend(others);
                continue;
            }
            matches
                .collectives
                .push(job.build_matched_collective(index, calls));
        }
    }
    for (rank, calls) in (0..).zip(calls) {
        let untold = (0..)
            .zip(&calls.list)
            .filter(|(_, call)| call.group == UNTOLD);
        let reason = "of a group that cannot be told";
        matches
            .unmatched
            .extend(untold.map(|(i, _)| ((rank, i), reason)));
    }
    job.match_messages(&mut matches);
    // Dropped calls have no node, so they are not reported as unmatched.
    matches
        .unmatched
        .retain(|&(at, _)| !job.has_dropped_kernel(at));
    Ok(matches)
}

/// Reason why a call is unmatched: its partner's kernel is missing.
const PARTNER_DROPPED: &str = "with partners whose kernels the profiler dropped";

/// Returns a rank's calls in program order, with their indices. Dropped calls have the highest indices.
fn sort_calls_in_program_order(
    calls: &RankCommCallsAndAnomalies,
) -> impl Iterator<Item = (u32, &CommCall)> + Clone {
    let mut all: Vec<(u32, &CommCall)> =
        (0..).zip(calls.list.iter().chain(&calls.dropped)).collect();
    if !calls.dropped.is_empty() {
        all.sort_by_key(|(_, call)| (call.rf_id, call.item));
    }
    all.into_iter()
}

/// The calls of a job's captures.
struct CapturedCommCallsOfJob<'a> {
    ranks: &'a [JobRankWithTimeline<'a>],
    calls: &'a [RankCommCallsAndAnomalies],
    groups: &'a [JobGroup],
}

impl<'a> CapturedCommCallsOfJob<'a> {
    fn call_at(&self, at: RankAndCommIndex) -> &'a CommCall {
        let calls = &self.calls[at.0 as usize];
        match calls.list.get(at.1 as usize) {
            Some(call) => call,
            None => &calls.dropped[at.1 as usize - calls.list.len()],
        }
    }

    /// Returns true if a call's kernel was dropped.
    fn has_dropped_kernel(&self, at: RankAndCommIndex) -> bool {
        at.1 as usize >= self.calls[at.0 as usize].list.len()
    }

    fn collective_kind_of_call(&self, at: RankAndCommIndex) -> CollectiveKind {
        match self.call_at(at).act {
            CommOp::Collective(kind) => kind,
            _ => unreachable!("messages are not among them"),
        }
    }

    /// If no shift makes the members agree, cuts all lists to the length of the shortest, so that the mismatch is
    /// reported.
    fn keep_common_calls<'c>(
        &self,
        mut members: Vec<MemberCalls<'c>>,
        alone: &mut Vec<(RankAndCommIndex, &'static str)>,
    ) -> Vec<MemberCalls<'c>> {
        let outlines = |member: &MemberCalls<'_>| -> Vec<CommCallFingerprint> {
            member
                .iter_calls_of_this_member()
                .map(|at| self.build_call_fingerprint(at))
                .collect()
        };
        let Some((first, others)) = members.split_first() else {
            return members;
        };
        let base = outlines(first);
        let host = |member: &MemberCalls<'_>| {
            let kineto = &self.ranks[member.rank as usize].timeline.kineto;
            kineto.host_name.as_deref()
        };
        let shifts = others.iter().map(|other| {
            let one_clock = host(first).is_some() && host(first) == host(other);
            call_windows::find_call_window_shift(&base, &outlines(other), one_clock)
        });
        let shifts: Option<Vec<i64>> = std::iter::once(Some(0)).chain(shifts).collect();
        let shifts = shifts.unwrap_or_else(|| vec![0; members.len()]);
        // Positions are relative to the start of the first member's calls.
        let ends = members.iter().zip(&shifts);
        let ends = ends.map(|(member, shift)| member.calls.len() as i64 + shift);
        let from = shifts.iter().copied().max().unwrap_or(0);
        let to = ends.min().unwrap_or(0).max(from);
        for (member, shift) in members.iter_mut().zip(&shifts) {
            let place = |place: i64| usize::try_from(place - shift).unwrap_or(0);
            let within = place(from)..place(to);
            let outside = member
                .iter_calls_of_this_member()
                .enumerate()
                .filter(|(i, _)| !within.contains(i));
            alone.extend(outside.map(|(_, at)| (at, "outside the profiled window of other ranks")));
            let within = member.calls.get(within).unwrap_or_default();
            member.calls = within.to_vec().into();
        }
        members
    }

    fn build_call_fingerprint(&self, at: RankAndCommIndex) -> CommCallFingerprint {
        let call = self.call_at(at);
        // The root may end before the others begin, so its times are of no use for aligning calls.
        let timed = !self.ranks[at.0 as usize].timeline.untimed
            && !self.collective_kind_of_call(at).has_root()
            && !self.has_dropped_kernel(at);
        CommCallFingerprint {
            signature: self.signature_of_collective(at),
            sequence: call.asked.sequence,
            span: timed.then_some((call.start, call.end)),
        }
    }

    fn signature_of_collective(&self, at: RankAndCommIndex) -> CollectiveSignature {
        let kind = self.collective_kind_of_call(at);
        // In a scatter, only the root knows the total size. In all-to-all and gather, each member may have its own
        // size. In these collectives, different sizes are therefore not an error.
        let one_size = !matches!(
            kind,
            CollectiveKind::AllToAll
                | CollectiveKind::AllGather
                | CollectiveKind::Gather
                | CollectiveKind::Scatter
                | CollectiveKind::ReduceScatter
        );
        CollectiveSignature {
            kind,
            bytes: if one_size {
                self.communicated_bytes_of_call(at)
            } else {
                0
            },
            root: self.root_member_index_of_call(at),
        }
    }

    /// Returns the index of the root among the members.
    fn root_member_index_of_call(&self, at: RankAndCommIndex) -> Option<u32> {
        self.call_at(at)
            .asked
            .peer
            .filter(|_| self.collective_kind_of_call(at).has_root())
    }

    fn communicated_bytes_of_call(&self, at: RankAndCommIndex) -> u64 {
        let call = self.call_at(at);
        let count = self.groups[call.group as usize].ranks.len() as u64;
        comm_size(
            self.collective_kind_of_call(at),
            call.asked.bytes_in,
            call.asked.bytes_out,
            count,
        )
    }

    fn build_matched_collective(
        &self,
        group: u32,
        members: Vec<RankAndCommIndex>,
    ) -> MatchedCollective {
        let sizes = members
            .iter()
            .map(|&at| self.communicated_bytes_of_call(at));
        let bytes = sizes.clone().max().unwrap_or(0);
        let asked = members.iter().any(|&at| self.call_at(at).asked.uneven);
        let uneven = asked || sizes.clone().any(|size| size != bytes);
        let root = self.root_member_index_of_call(members[0]);
        let root = root.and_then(|root| self.groups[group as usize].ranks.get(root as usize));
        let rank = |at: &RankAndCommIndex| self.ranks[at.0 as usize].number;
        let root = root.and_then(|root| members.iter().position(|at| rank(at) == *root));
        MatchedCollective {
            kind: self.collective_kind_of_call(members[0]),
            group,
            root: root.map(|at| at as u32),
            bytes,
            uneven,
            members,
        }
    }

    fn match_messages(&self, matches: &mut MatchedAndUnmatchedCallsOfJob) {
        let mut halves = Vec::new();
        for (index, (rank, calls)) in (0..).zip(self.ranks.iter().zip(self.calls)) {
            let all = sort_calls_in_program_order(calls);
            for (number, call) in all.filter(|(_, call)| call.is_message() && call.group != UNTOLD)
            {
                let at = (index, number);
                let members = &self.groups[call.group as usize].ranks;
                let peer = call.asked.peer.and_then(|peer| members.get(peer as usize));
                match peer {
                    None => {
                        let reason = "to a member that the group does not have";
                        matches.unmatched.push((at, reason));
                    }
                    Some(&peer) if peer == rank.number => {
                        matches.unmatched.push((at, "from a rank to itself"));
                    }
                    Some(&peer) => {
                        let receive = call.act != CommOp::Send;
                        let (tag, group) = (call.asked.tag, call.group);
                        let half = MessageHalf::new(rank.number, peer, receive, tag, group, at);
                        halves.push(half);
                    }
                }
            }
        }
        for found in match_messages_by_channel(&mut halves) {
            for (send, receive) in found.matched_pairs() {
                match self.has_dropped_kernel(send) || self.has_dropped_kernel(receive) {
                    true => {
                        let both = [send, receive].map(|at| (at, PARTNER_DROPPED));
                        matches.unmatched.extend(both);
                    }
                    false => matches.messages.push(MatchedMessage { send, receive }),
                }
            }
            let alone = found.unmatched_and_all_opposite_halves().0.iter();
            matches
                .unmatched
                .extend(alone.map(|half| (half.at, "without a matching send or receive")));
        }
    }

    fn describe_call(&self, at: RankAndCommIndex) -> String {
        let (JobRankWithTimeline { number, timeline }, call) =
            (self.ranks[at.0 as usize], self.call_at(at));
        let item = &timeline.items[call.item as usize];
        let root = call.asked.peer.map(|peer| format!(", root {peer}"));
        format!(
            "rank {} calls {} (node {}, record function id {}) with {} bytes in, {} out{}",
            number,
            timeline.host_interval_name(item),
            timeline.host.node_id(item.host),
            call.rf_id,
            call.asked.bytes_in,
            call.asked.bytes_out,
            root.unwrap_or_default(),
        )
    }
}

/// Returns a collective's `comm_size`. The arguments are the input and output bytes of one member, and the number
/// `count` of members.
fn comm_size(kind: CollectiveKind, bytes_in: u64, bytes_out: u64, count: u64) -> u64 {
    match kind {
        CollectiveKind::AllToAll => bytes_in.max(bytes_out),
        CollectiveKind::AllGather if bytes_in == 0 => bytes_out / count.max(1),
        // Kineto omits nested lists of tensors, so the input bytes may be missing.
        CollectiveKind::ReduceScatter if bytes_in == 0 => bytes_out.saturating_mul(count),
        CollectiveKind::Scatter => bytes_out.saturating_mul(count),
        CollectiveKind::Barrier => 0,
        _ => bytes_in,
    }
}
