//! Determines how long the transfers of collectives take if some members have no capture.
//!
//! The last member to start may have no capture, so the time after the last known start is only an upper bound on the
//! transfer time. A *size class* consists of all collectives of one kind and group size whose byte counts round down to
//! the same power of two. If a member is absent, a collective gets the smallest transfer time found in its class and in
//! all classes with more bytes. The reason is that a transfer of more bytes cannot be faster. The rest of the
//! collective's time is waiting.
//!
//! If an absent member is always the last to start, even the smallest time contains waiting. If that time exceeds the
//! 95th percentile of NCCL's kernel times without contention ([`ExpectedNcclKernelTimesWithoutWaits`]), it is assumed
//! to contain waiting, and NCCL's typical time replaces it. NCCL's distribution is known for groups within one host
//! that use NVLink. For other groups, the smallest time is used, although it may be too long.
//!
//! If host threads execute a collective, they usually start late, so the smallest time is an outlier. Assume that `k`
//! of `n` members are captured, and that each member is equally likely to start last. Then a fraction `k / n` of a
//! class's times contains no waiting, and these times are the lowest. The estimate is their median, which is the
//! quantile `k / 2n` of all times. If all members are captured, this is the median of the whole class; if only few are,
//! it is the smallest time.
//!
//! If absent ranks are inferred, waiting that no captured rank explains is attributed to the first inferred member of
//! the group. It starts later than its model by the length of the wait.

use super::{CallWaitAndTransfer, JobCallsWithCaptures};
use crate::pytorch::call_matching::{MatchedAndUnmatchedCallsOfJob, MatchedCollective};
use crate::pytorch::group_inference::JobGroup;
use crate::pytorch::inferred_ranks::CapturedOrInferredRank;
use crate::pytorch::nccl_times::{ExpectedNcclKernelTimesWithoutWaits, NvlinkRate};
use chakram_trace::format::CollectiveKind;
use chakram_trace::matching::RankAndCommIndex;
use std::collections::{BTreeMap, BTreeSet};

/// Returns NCCL's expected times for a collective among the ranks `members`, or `None` if unknown.
fn expected_nccl_times_of_collective(
    job: &JobCallsWithCaptures<'_>,
    matched: &MatchedCollective,
    members: &[u32],
) -> Option<ExpectedNcclKernelTimesWithoutWaits> {
    let &(rank, call) = matched.members.first()?;
    let timeline = &job.timelines[job.models[rank as usize].capture];
    let call = &job.calls[rank as usize].list[call as usize];
    let device = common_device_name_on_one_host(&timeline.kineto.device_names, members)?;
    let rate = NvlinkRate::from_device_name(device)?;
    if !call.on_device() || call.parts > 1 {
        return None;
    }
    let count = members.len() as u64;
    let whole = match matched.kind {
        CollectiveKind::AllGather => matched.bytes.saturating_mul(count),
        _ => matched.bytes,
    };
    let name = timeline.event_name(call.event);
    rate.expected_typical_and_longest_kernel_times(name, matched.kind, count as u32, whole)
}

/// Returns the device name if all of a host's `devices` have the same name and all `members` are on one host. Devices
/// with consecutive ranks count as one host's devices, because launchers number ranks host by host.
fn common_device_name_on_one_host<'a>(devices: &'a [String], members: &[u32]) -> Option<&'a str> {
    let first = devices.first()?;
    let host = |rank: &u32| *rank as usize / devices.len();
    let alike = devices.iter().all(|device| device == first);
    let together = members.iter().all(|rank| host(rank) == host(&members[0]));
    (alike && together).then_some(first)
}

/// Key of a size class: the collective kind's index, the group size, and the base-2 logarithm of the bytes.
type CollectiveSizeClassKey = (usize, usize, Option<u32>);

/// Times of a size class. For each collective, this is the smallest time of any member.
#[derive(Default)]
struct CollectiveSizeClassTimes {
    transfers: Vec<u64>,
    /// Number of captured members, summed over all collectives. Divided by [`Self::members`], it is the fraction of
    /// captured members.
    seen: usize,
    members: usize,
    on_device: bool,
}

impl CollectiveSizeClassTimes {
    /// Returns the transfer time of the class. On devices, this is the smallest time; on hosts, it is the median of the
    /// times without waiting.
    fn transfer_time(mut self) -> u64 {
        self.transfers.sort_unstable();
        let place = match self.on_device {
            true => 0,
            false => self.transfers.len() * self.seen / (2 * self.members.max(1)),
        };
        self.transfers.get(place).copied().unwrap_or(0)
    }
}

/// Bounds the transfers of collectives in which some members have no capture. Returns the number of changed calls.
pub(super) fn bound_transfers_with_uncaptured_members(
    times: &mut [Vec<CallWaitAndTransfer>],
    job: &JobCallsWithCaptures<'_>,
    matches: &MatchedAndUnmatchedCallsOfJob,
    groups: &[JobGroup],
) -> u64 {
    let models = job.models;
    let size = |matched: &MatchedCollective| groups[matched.group as usize].ranks.len();
    let class = |matched: &MatchedCollective| {
        let power = matched.bytes.checked_ilog2();
        (matched.kind as usize, size(matched), power)
    };
    let on_device =
        |&(rank, call): &RankAndCommIndex| job.calls[rank as usize].list[call as usize].on_device();
    let mut classes: BTreeMap<CollectiveSizeClassKey, CollectiveSizeClassTimes> = BTreeMap::new();
    for matched in &matches.collectives {
        // A transfer of zero can only result from inaccurate clocks, so ignore it.
        let own = matched
            .members
            .iter()
            .map(|at| times[at.0 as usize][at.1 as usize].transfer);
        if let Some(own) = own.filter(|&transfer| transfer > 0).min() {
            let class = classes.entry(class(matched)).or_default();
            class.transfers.push(own);
            class.seen += count_members_with_observed_start(matched, models);
            class.members += size(matched);
            class.on_device |= matched.members.iter().any(on_device);
        }
    }
    let least = classes.into_iter();
    let mut smallest: BTreeMap<CollectiveSizeClassKey, u64> = least
        .map(|(class, times)| (class, times.transfer_time()))
        .collect();
    // Visit the classes from the largest size to the smallest, because a smaller collective cannot
    // take longer than a larger one.
    let mut larger: Option<(CollectiveSizeClassKey, u64)> = None;
    for (class, least) in smallest.iter_mut().rev() {
        if let Some((above, bound)) = larger
            && (above.0, above.1) == (class.0, class.1)
        {
            *least = (*least).min(bound);
        }
        larger = Some((*class, *least));
    }
    let mut changed = 0;
    let partial = |matched: &&MatchedCollective| {
        count_members_with_observed_start(matched, models) < size(matched)
    };
    for matched in matches.collectives.iter().filter(partial) {
        let Some(&least) = smallest.get(&class(matched)) else {
            continue;
        };
        let least = match expected_nccl_times_of_collective(
            job,
            matched,
            &groups[matched.group as usize].ranks,
        ) {
            Some(time) if least > time.most => time.typical,
            _ => least,
        };
        for &(rank, call) in &matched.members {
            let time = &mut times[rank as usize][call as usize];
            if time.transfer > least {
                time.wait = time.wait.saturating_add(time.transfer - least);
                time.transfer = least;
                changed += 1;
            }
        }
    }
    changed
}

/// Returns how many members of a collective have an observed start. An inferred rank counts if the start of its model
/// was observed, in this collective or in a parallel one.
fn count_members_with_observed_start(
    matched: &MatchedCollective,
    models: &[CapturedOrInferredRank],
) -> usize {
    let captures = matched
        .members
        .iter()
        .map(|at| models[at.0 as usize].capture);
    let captures: BTreeSet<usize> = captures.collect();
    captures.len()
}

/// If every captured member of a collective waits, delays the first inferred member. Returns the number of changed
/// calls.
pub(super) fn delay_inferred_member_if_captured_wait(
    times: &mut [Vec<CallWaitAndTransfer>],
    matches: &MatchedAndUnmatchedCallsOfJob,
    models: &[CapturedOrInferredRank],
) -> u64 {
    let mut changed = 0;
    for matched in &matches.collectives {
        let inferred = |at: &&RankAndCommIndex| models[at.0 as usize].inferred;
        // In a rooted collective, the other members wait only for the root.
        let root = matched.root.map(|root| &matched.members[root as usize]);
        let first = root.filter(inferred);
        let Some(&first) = first.or_else(|| matched.members.iter().find(inferred)) else {
            continue;
        };
        let waits = matched.members.iter();
        let waits = waits.map(|at| times[at.0 as usize][at.1 as usize].wait);
        if waits.min().is_none_or(|least| least == 0) {
            continue;
        }
        let time = &mut times[first.0 as usize][first.1 as usize];
        (time.late, time.wait) = (time.wait, 0);
        changed += 1;
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In eight collectives, half of the members are captured. So four of the times (1 to 4) are transfers, and their
    /// median is the third time. With all members captured, the result is the median of all times; on a device, the
    /// smallest time.
    #[test]
    fn class_transfer_is_smallest_time_on_devices_and_unwaited_median_on_hosts() {
        for (seen, on_device, expected) in
            [(2, false, 3), (4, false, 5), (1, false, 2), (2, true, 1)]
        {
            let times = CollectiveSizeClassTimes {
                transfers: vec![3, 8, 1, 4, 7, 2, 6, 5],
                seen: 8 * seen,
                members: 8 * 4,
                on_device,
            };
            assert_eq!(times.transfer_time(), expected, "{seen} of 4");
        }
        assert_eq!(CollectiveSizeClassTimes::default().transfer_time(), 0);
    }

    #[test]
    fn device_name_is_known_only_if_members_share_a_host_with_equal_devices() {
        let devices = vec!["V100".to_owned(); 4];
        assert_eq!(
            common_device_name_on_one_host(&devices, &[4, 5, 6, 7]),
            Some("V100")
        );
        assert_eq!(
            common_device_name_on_one_host(&devices, &[4, 6]),
            Some("V100")
        );
        assert_eq!(common_device_name_on_one_host(&devices, &[3, 4]), None);
        assert_eq!(common_device_name_on_one_host(&[], &[0, 1]), None);
        let mixed = ["V100".to_owned(), "T4".to_owned()];
        assert_eq!(common_device_name_on_one_host(&mixed, &[0, 1]), None);
    }
}
