//! Infers groups from device streams.
//!
//! The records of PyTorch 2.1 and 2.2 state how many members a group has, but not which ranks they are. Each NCCL
//! process group has its own stream on every rank, so collectives on one stream with equal group sizes belong to one
//! communicator. Members of a communicator request the same collectives in the same order, and complete them at the
//! same time. So the other members are the ranks whose collectives end at the nearest times. If groups are declared,
//! the declared group whose end times are nearest is used.

use super::super::calls::{CommCall, CommOp, RankCommCallsAndAnomalies};
use super::super::rank_timeline::JoinedRankCapture;
use super::{JobGroup, unique_group_name};
use chakram_trace::format::CollectiveKind;
use std::collections::BTreeMap;

/// Identifies a communicator on a rank by its stream and by the number of members in its records.
type CommunicatorStreamAndSize = (i64, u32);

/// For each rank, the group of each communicator.
pub(super) type GroupsByRankAndCommunicator = Vec<BTreeMap<CommunicatorStreamAndSize, u32>>;

/// Returns the communicator of a device call, or `None` unless the call's record states a number of members but no
/// group name.
pub(super) fn stream_and_size_of_unnamed_communicator(
    call: &CommCall,
) -> Option<CommunicatorStreamAndSize> {
    let unnamed = call.on_device() && !call.is_message() && call.asked.group.is_none();
    let members = call.asked.members.filter(|_| unnamed)?;
    Some((call.stream?, members))
}

/// Minimum difference in time, in ns, that makes one candidate clearly nearer than another.
const CLEAR: i64 = 1_000;

/// A communicator, as seen by one rank.
struct CommunicatorOnRank {
    /// Index of the rank.
    rank: usize,
    key: CommunicatorStreamAndSize,
    /// For each collective, its operation, its bytes and its end time.
    calls: Vec<(CollectiveKind, u64, i64)>,
}

/// Returns the group of each communicator. `own` contains the declared groups of each rank; undeclared groups are
/// added to `groups`.
pub(super) fn assign_communicator_groups(
    ranks: &[JoinedRankCapture],
    calls: &[RankCommCallsAndAnomalies],
    groups: &mut Vec<JobGroup>,
    own: &[Vec<u32>],
    world: u32,
) -> GroupsByRankAndCommunicator {
    let seen: Vec<Vec<CommunicatorOnRank>> = (0..)
        .zip(calls)
        .map(|(r, calls)| collect_communicators(r, calls))
        .collect();
    let mut given = vec![BTreeMap::new(); ranks.len()];
    for (r, communicators) in seen.iter().enumerate() {
        for communicator in communicators {
            if given[r].contains_key(&communicator.key) {
                continue;
            }
            let size = communicator.key.1 as usize;
            let fitting = own[r].iter().copied();
            let fitting: Vec<u32> = fitting
                .filter(|&g| groups[g as usize].ranks.len() == size)
                .collect();
            let found = match &fitting[..] {
                // Only one declared group has this size, so there is nothing to infer.
                [_] => continue,
                // Some ranks have no capture. The true member may be one of them instead of the captured rank with the
                // nearest times.
                [] if ranks.len() < world as usize => None,
                [] => find_undeclared_members(communicator, &seen, ranks).map(|members| {
                    let numbers: Vec<u32> = members.iter().map(|&(r, _)| ranks[r].rank).collect();
                    let group = groups.len() as u32;
                    groups.push(JobGroup {
                        name: unique_group_name(UNNAMED, numbers[0], groups),
                        called: UNNAMED.to_owned(),
                        desc: String::new(),
                        ranks: numbers,
                    });
                    for (member, key) in members {
                        given[member].insert(key, group);
                    }
                    group
                }),
                _ => find_nearest_declared_group(communicator, &fitting, groups, &seen, ranks),
            };
            if let Some(group) = found {
                given[r].insert(communicator.key, group);
            }
        }
    }
    given
}

/// Name of groups that no capture names.
const UNNAMED: &str = "unnamed";

fn collect_communicators(
    rank: usize,
    calls: &RankCommCallsAndAnomalies,
) -> Vec<CommunicatorOnRank> {
    let mut found: BTreeMap<CommunicatorStreamAndSize, Vec<(CollectiveKind, u64, i64)>> =
        BTreeMap::new();
    for call in &calls.list {
        if let (Some(key), CommOp::Collective(kind)) =
            (stream_and_size_of_unnamed_communicator(call), call.act)
        {
            let own = found.entry(key).or_default();
            own.push((
                kind,
                call.asked.bytes_in.max(call.asked.bytes_out),
                call.end,
            ));
        }
    }
    let of = found.into_iter().map(|(key, mut calls)| {
        calls.sort_by_key(|call| call.2);
        CommunicatorOnRank { rank, key, calls }
    });
    of.collect()
}

impl CommunicatorOnRank {
    /// Compares the end times of this communicator's collectives with `other`'s. Returns the mean deviation of the
    /// differences, in ns, or `None` if the collectives differ. If the clocks are `apart` (not shared), the constant
    /// offset between them is removed first.
    fn end_time_distance_to(&self, other: &Self, apart: bool) -> Option<i64> {
        let alike = self.key.1 == other.key.1
            && self.calls.len() == other.calls.len()
            && self
                .calls
                .iter()
                .zip(&other.calls)
                .all(|(a, b)| (a.0, a.1) == (b.0, b.1));
        if !alike {
            return None;
        }
        let ends = self.calls.iter().zip(&other.calls);
        let mut ends: Vec<i64> = ends.map(|(a, b)| a.2.saturating_sub(b.2)).collect();
        ends.sort_unstable();
        let middle = if apart { ends[ends.len() / 2] } else { 0 };
        let sum = ends
            .iter()
            .map(|end| i128::from(end.saturating_sub(middle).unsigned_abs()))
            .sum::<i128>();
        i64::try_from(sum / ends.len() as i128).ok()
    }

    /// Returns the distance and key of the nearest communicator in `of`, which lists one rank's communicators.
    fn nearest_communicator_of_given_rank(
        &self,
        of: &[Self],
        apart: bool,
    ) -> Option<(i64, CommunicatorStreamAndSize)> {
        let all = of.iter();
        let all =
            all.filter_map(|other| Some((self.end_time_distance_to(other, apart)?, other.key)));
        all.min()
    }

    /// Returns the rank, distance and key of the nearest communicator on each other rank, nearest first.
    fn nearest_communicator_per_other_rank(
        &self,
        seen: &[Vec<Self>],
        apart: bool,
    ) -> Vec<(i64, usize, CommunicatorStreamAndSize)> {
        let others = seen.iter().enumerate().filter(|(r, _)| *r != self.rank);
        let near = others.filter_map(|(r, of)| {
            let (distance, key) = self.nearest_communicator_of_given_rank(of, apart)?;
            Some((distance, r, key))
        });
        let mut near: Vec<_> = near.collect();
        near.sort_unstable();
        near
    }

    /// Returns this communicator's members, including this rank, in ascending order. The records state only their
    /// number. Returns `None` unless the members are clearly nearer than all other ranks.
    fn find_members(
        &self,
        seen: &[Vec<Self>],
        apart: bool,
    ) -> Option<Vec<(usize, CommunicatorStreamAndSize)>> {
        let near = self.nearest_communicator_per_other_rank(seen, apart);
        let others = (self.key.1 as usize).checked_sub(1)?;
        let last = match others {
            0 => 0,
            others => near.get(others - 1)?.0,
        };
        if near
            .get(others)
            .is_some_and(|next| !is_clearly_farther(last, next.0))
        {
            return None;
        }
        let mut members: Vec<_> = near[..others].iter().map(|&(_, r, key)| (r, key)).collect();
        members.push((self.rank, self.key));
        members.sort_unstable();
        Some(members)
    }
}

/// Returns true if the distance `other` is clearly larger than `own`.
fn is_clearly_farther(own: i64, other: i64) -> bool {
    other > own.saturating_mul(3).saturating_add(CLEAR)
}

/// Returns the members of a communicator without a declared group, or `None` unless every member finds the same set of
/// nearest ranks.
fn find_undeclared_members(
    communicator: &CommunicatorOnRank,
    seen: &[Vec<CommunicatorOnRank>],
    ranks: &[JoinedRankCapture],
) -> Option<Vec<(usize, CommunicatorStreamAndSize)>> {
    clock_difference_assumptions_to_try(ranks).find_map(|apart| {
        let members = communicator.find_members(seen, apart)?;
        let mutual = members.iter().all(|&(r, key)| {
            let own = seen[r].iter().find(|other| other.key == key);
            own.and_then(|own| own.find_members(seen, apart)).as_ref() == Some(&members)
        });
        mutual.then_some(members)
    })
}

/// Returns the declared group of a communicator: the group among `fitting` whose end times are
/// clearly nearest. Returns `None` if no group is clearly nearest.
fn find_nearest_declared_group(
    communicator: &CommunicatorOnRank,
    fitting: &[u32],
    groups: &[JobGroup],
    seen: &[Vec<CommunicatorOnRank>],
    ranks: &[JoinedRankCapture],
) -> Option<u32> {
    clock_difference_assumptions_to_try(ranks).find_map(|apart| {
        let far = |group: u32| -> Option<(i64, u32)> {
            let members = groups[group as usize].ranks.iter();
            let present = members.filter_map(|rank| ranks.iter().position(|r| r.rank == *rank));
            let others = present.filter(|&r| r != communicator.rank);
            let distances =
                others.map(|r| communicator.nearest_communicator_of_given_rank(&seen[r], apart));
            // The distance to a group is the distance to its farthest member with a capture. If no
            // other member has a capture, the distance is unknown, and no group is chosen.
            let farthest = distances
                .map(|near| near.map(|(distance, _)| distance))
                .max()?;
            Some((farthest.unwrap_or(i64::MAX), group))
        };
        let mut near: Vec<_> = fitting
            .iter()
            .map(|&group| far(group))
            .collect::<Option<_>>()?;
        near.sort_unstable();
        match near[..] {
            [(best, group), (next, _), ..] if is_clearly_farther(best, next) => Some(group),
            _ => None,
        }
    })
}

/// Returns the assumptions to try, most likely first; true means that the ranks have different
/// clocks. Ranks whose hosts are unknown may share a host, so both assumptions are tried.
fn clock_difference_assumptions_to_try(
    ranks: &[JoinedRankCapture],
) -> impl Iterator<Item = bool> + use<> {
    let mut names = ranks.iter().map(|rank| &rank.kineto.host_name);
    let first = names.next();
    let several = names.any(|name| Some(name) != first);
    [several, true]
        .into_iter()
        .take(if several { 1 } else { 2 })
}
