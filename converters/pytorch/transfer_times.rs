//! Splits the time of each call into waiting and transfer.
//!
//! A member of a collective first waits until the last member whose data it needs has started. The rest of its time is
//! transfer. In a collective without a root, every member needs all other members. In a collective with a root, the
//! root needs all other members, and every other member needs only the root. The send and the receive of a message need
//! each other. The clocks are aligned, and `last` is the latest time at which a needed member starts:
//!
//! ```text
//! wait     = last − start
//! transfer = end − last
//! ```
//!
//! In rooted collectives and in messages, a member may end before the last needed member has started. Such a member did
//! not wait, and is called *eager*. In a collective without a root, no member can end early. If the times show an early
//! end, the clocks are inaccurate or a thread was scheduled late. The member's transfer is then zero, and its whole
//! time is waiting.
//!
//! One kernel executes all messages of a batch, and ends with the last message. A batched message
//! ends as soon as either its sender's or its receiver's kernel ends.
//!
//! If members have no capture, `absent_ranks` bounds the transfers.
//!
//! The recorded interval of a host message ends when the program's wait for the message ends. The message may have
//! arrived long before. If the program did not block on a message, the transfer time is estimated from messages of the
//! same size on which the program blocked. The estimate is their median transfer time, limited by the message's own
//! recorded times.

mod absent_ranks;

use super::activities::RankActivitiesAndDependencies;
use super::call_matching::MatchedAndUnmatchedCallsOfJob;
use super::calls::RankCommCallsAndAnomalies;
use super::clock::ClockCorrection;
use super::group_inference::JobGroup;
use super::inferred_ranks::CapturedOrInferredRank;
use super::rank_timeline::JoinedRankCapture;
use chakram_trace::matching::RankAndCommIndex;
use std::collections::BTreeMap;

/// Waiting and transfer time of a call, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallWaitAndTransfer {
    /// Time that the call waited for other ranks, in ns.
    pub wait: u64,
    /// Time from when the last of the needed members started to the end of the call, in ns.
    pub transfer: u64,
    /// Delay of an inferred rank, in ns: the call's start on this rank minus its start on the model, the captured rank
    /// whose calls are copied.
    pub late: u64,
    /// True if the call ended without waiting for the other members.
    pub eager: bool,
    /// True if the call was matched with calls of other ranks. The whole time of an unmatched call
    /// is transfer.
    pub met: bool,
}

/// Counts of implausible times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TimeAnomalyCounts {
    /// Number of members of rootless collectives that ended before the last member started.
    pub early: u64,
    /// Longest time, in ns, by which a member counted in `early` ended before the last member started.
    #[serde(rename = "most_ns")]
    pub most: u64,
    /// Number of messages whose transfer time was estimated from other messages of the same size.
    pub estimated: u64,
    /// Number of calls with absent partners. Their transfer times come from calls of the same size class, or from
    /// NCCL's formula.
    pub bounded: u64,
    /// Number of collectives that an inferred rank starts later than its model, the captured rank
    /// that it copies.
    pub late: u64,
}

/// A job's calls, with the captures that contain their times.
pub struct JobCallsWithCaptures<'a> {
    /// Calls of each rank, in the order of `models`.
    pub calls: &'a [RankCommCallsAndAnomalies],
    /// For each rank, the capture that it uses.
    pub models: &'a [CapturedOrInferredRank],
    /// Timeline of each capture.
    pub timelines: &'a [JoinedRankCapture],
    /// Activities of each capture, which show the calls on which the program blocked.
    pub captures: &'a [RankActivitiesAndDependencies],
    /// Clock offset of each capture.
    pub offsets: &'a [ClockCorrection],
}

/// Splits the time of every call into waiting and transfer. The result is indexed by rank, then by call.
pub fn split_all_calls_into_wait_and_transfer(
    job: &JobCallsWithCaptures<'_>,
    matches: &MatchedAndUnmatchedCallsOfJob,
    groups: &[JobGroup],
) -> (Vec<Vec<CallWaitAndTransfer>>, TimeAnomalyCounts) {
    let (calls, models) = (job.calls, job.models);
    let mut odd = TimeAnomalyCounts::default();
    let mut times: Vec<Vec<CallWaitAndTransfer>> = calls
        .iter()
        .map(|calls| {
            let alone = |call: &super::calls::CommCall| CallWaitAndTransfer {
                transfer: clamp_negative_ns_to_zero(call.end - call.start),
                ..CallWaitAndTransfer::default()
            };
            calls.list.iter().map(alone).collect()
        })
        .collect();
    let span = |at: RankAndCommIndex| {
        let call = &calls[at.0 as usize].list[at.1 as usize];
        let offset = &job.offsets[models[at.0 as usize].capture];
        (
            offset.to_reference_time(call.start),
            offset.to_reference_time(call.end),
        )
    };
    for matched in &matches.collectives {
        let starts = matched.members.iter().map(|&at| span(at).0);
        let last = starts.max().unwrap_or(0);
        let root = matched.root.map(|root| matched.members[root as usize]);
        for &at in &matched.members {
            let (start, end) = span(at);
            let needed = match root {
                Some(root) if root != at => start.max(span(root).0),
                _ => last,
            };
            let time = &mut times[at.0 as usize][at.1 as usize];
            *time = split_call_into_wait_and_move(start, end, needed);
            if time.eager && !matched.kind.has_root() {
                odd.early += 1;
                odd.most = odd
                    .most
                    .max(clamp_negative_ns_to_zero(needed.saturating_sub(end)));
                // A member of a rootless collective cannot end early, so the clocks are inaccurate
                // or a thread was scheduled late.
                *time = CallWaitAndTransfer {
                    wait: clamp_negative_ns_to_zero(end.saturating_sub(start)),
                    met: true,
                    ..CallWaitAndTransfer::default()
                };
            }
        }
    }
    odd.bounded =
        absent_ranks::bound_transfers_with_uncaptured_members(&mut times, job, matches, groups);
    odd.late = absent_ranks::delay_inferred_member_if_captured_wait(&mut times, matches, models);
    let mut known: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let size = |at: RankAndCommIndex| {
        let asked = &calls[at.0 as usize].list[at.1 as usize].asked;
        asked.bytes_in.saturating_add(asked.bytes_out)
    };
    let sure = |at: RankAndCommIndex| {
        let call = &calls[at.0 as usize].list[at.1 as usize];
        call.on_device() || job.captures[models[at.0 as usize].capture].blocked[at.1 as usize]
    };
    for message in &matches.messages {
        let needed = span(message.send).0.max(span(message.receive).0);
        for at in [message.send, message.receive] {
            let (start, end) = span(at);
            let time = split_call_into_wait_and_move(start, end, needed);
            times[at.0 as usize][at.1 as usize] = time;
            if sure(at) && !time.eager {
                known.entry(size(at)).or_default().push(time.transfer);
            }
        }
    }
    bound_message_batch_ends(&mut times, job, matches, &span);
    for list in known.values_mut() {
        list.sort_unstable();
    }
    for message in &matches.messages {
        for at in [message.send, message.receive]
            .into_iter()
            .filter(|&at| !sure(at))
        {
            let time = &mut times[at.0 as usize][at.1 as usize];
            if let Some(list) = known.get(&size(at))
                // The median can only lower the estimate, because the transfer cannot take longer than
                // the recorded times allow.
                && list[list.len() / 2] < time.transfer
            {
                time.transfer = list[list.len() / 2];
                odd.estimated += 1;
            }
        }
    }
    (times, odd)
}

/// Bounds the end of each batched message by the ends of the kernels on both sides. The capture records only when the
/// whole kernel ended. Without this bound, a message would seem to be in transfer while its kernel waits for the
/// partner of another message. A kernel's last message ends with the kernel.
fn bound_message_batch_ends(
    times: &mut [Vec<CallWaitAndTransfer>],
    job: &JobCallsWithCaptures<'_>,
    matches: &MatchedAndUnmatchedCallsOfJob,
    span: &impl Fn(RankAndCommIndex) -> (i64, i64),
) {
    let mut batches: BTreeMap<(u32, u32), Vec<(RankAndCommIndex, i64)>> = BTreeMap::new();
    for message in &matches.messages {
        let ends = [message.send, message.receive];
        let both = ends.map(|at| span(at).1).into_iter().min().unwrap_or(0);
        for at in ends {
            let call = &job.calls[at.0 as usize].list[at.1 as usize];
            if call.on_device() {
                let batch = batches.entry((at.0, call.device)).or_default();
                batch.push((at, both));
            }
        }
    }
    for batch in batches.values().filter(|batch| batch.len() > 1) {
        let last = batch.iter().map(|&(_, end)| end).max();
        for &(at, both) in batch.iter().filter(|&&(_, end)| Some(end) != last) {
            let (start, _) = span(at);
            let time = &mut times[at.0 as usize][at.1 as usize];
            let needed = start.saturating_add_unsigned(time.wait);
            if both >= needed {
                time.transfer = clamp_negative_ns_to_zero(both - needed);
            }
        }
    }
}

fn split_call_into_wait_and_move(start: i64, end: i64, needed: i64) -> CallWaitAndTransfer {
    if end < needed {
        CallWaitAndTransfer {
            transfer: clamp_negative_ns_to_zero(end.saturating_sub(start)),
            eager: true,
            met: true,
            ..CallWaitAndTransfer::default()
        }
    } else {
        CallWaitAndTransfer {
            wait: clamp_negative_ns_to_zero(needed.saturating_sub(start)),
            transfer: clamp_negative_ns_to_zero(end.saturating_sub(needed)),
            met: true,
            ..CallWaitAndTransfer::default()
        }
    }
}

fn clamp_negative_ns_to_zero(ns: i64) -> u64 {
    u64::try_from(ns).unwrap_or(0)
}
