//! Infers ranks that have no capture from captured ranks with the same role.
//!
//! Rank `m` behaves like a captured rank `t`, its *model*, but with translated groups and message peers. Let p(x) be
//! the position of rank x in a group:
//!
//! - If `m` belongs to a group that `t` uses, `m` uses the same group. Otherwise it uses a declared group that contains
//!   it and has the same purpose, size and spacing of members. Failing that, it uses the group's members shifted by m −
//!   t.
//! - A message to member q of a group goes to member p(m) + (q − p(t)), modulo the group's size.
//!
//! A captured rank is a valid model only if no observation contradicts it. In each group, all captured members must
//! have equal numbers of collectives of each kind. The messages that captured ranks send to `m` must match those that
//! `m` receives. The messages that captured ranks expect from `m` must match those that `m` sends. For each pair of
//! ranks, both sides must agree on the first and the last message in each direction.
//!
//! Among several valid models, the one with p(m) = p(t) in the most groups is used. An example is a rank with the same
//! tensor shard. Of equally good models, the nearest is used.

use super::call_matching::JobRankWithTimeline;
use super::calls::{CommCall, CommOp, RankCommCallsAndAnomalies};
use super::group_inference::{JobGroup, UNTOLD, unique_group_name};
use super::rank_timeline::JoinedRankCapture;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A rank of the job, captured or inferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedOrInferredRank {
    /// Rank number in the job.
    pub number: u32,
    /// Index of the capture that is used: the rank's own, or, if the rank is inferred, its model's.
    pub capture: usize,
    /// True if the rank has no capture of its own.
    pub inferred: bool,
}

impl CapturedOrInferredRank {
    /// Returns the captured rank with index `capture`.
    pub fn from_capture((capture, rank): (usize, &JoinedRankCapture)) -> Self {
        Self {
            number: rank.rank,
            capture,
            inferred: false,
        }
    }
}

/// Error: no captured rank is a valid model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRankModelError {
    /// Rank that cannot be inferred.
    pub rank: u32,
    /// Captured rank that comes closest to being a valid model.
    pub nearest: u32,
    /// Contradiction that rules out `nearest` as the model.
    pub found: String,
}

impl fmt::Display for NoRankModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {} cannot be inferred, because no captured rank has its role; treated like captured rank {}: {}",
            self.rank, self.nearest, self.found
        )
    }
}

/// Returns all ranks of the job with their calls: the captured `ranks`, and a model for every other rank. Adds
/// the groups that no capture declares.
pub fn infer_ranks(
    ranks: &[JobRankWithTimeline<'_>],
    calls: &[RankCommCallsAndAnomalies],
    groups: &mut Vec<JobGroup>,
    world: u32,
) -> Result<Vec<(CapturedOrInferredRank, RankCommCallsAndAnomalies)>, NoRankModelError> {
    let numbers: Vec<u32> = ranks.iter().map(|rank| rank.number).collect();
    let mut all = Vec::with_capacity(world as usize);
    for number in 0..world {
        if let Ok(capture) = numbers.binary_search(&number) {
            let own = CapturedOrInferredRank {
                number,
                capture,
                inferred: false,
            };
            all.push((own, calls[capture].clone()));
            continue;
        }
        let mut nearest: Vec<usize> = (0..ranks.len()).collect();
        nearest.sort_by_key(|&capture| numbers[capture].abs_diff(number));
        let mut best: Option<InferredRankCalls> = None;
        let mut contradicted: Option<NoRankModelError> = None;
        for capture in nearest {
            let search = StandInRankCheck {
                numbers: &numbers,
                calls,
                groups,
                world,
                number,
                capture,
            };
            match search.infer_calls_if_more_groups_fit(best.as_ref().map(|best| best.alike)) {
                Ok(Some(found)) => best = Some(found),
                Ok(None) => {}
                Err(found) => {
                    contradicted.get_or_insert(NoRankModelError {
                        rank: number,
                        nearest: numbers[capture],
                        found,
                    });
                }
            }
        }
        match (best, contradicted) {
            (Some(found), _) => {
                groups.extend(found.added);
                let model = CapturedOrInferredRank {
                    number,
                    capture: found.capture,
                    inferred: true,
                };
                let list = found.calls;
                let calls = RankCommCallsAndAnomalies {
                    list,
                    ..calls[found.capture].clone()
                };
                all.push((model, calls));
            }
            (None, Some(unknown)) => return Err(unknown),
            (None, None) => unreachable!("a job has a captured rank"),
        }
    }
    Ok(all)
}

/// Calls that a rank makes if the model is valid.
struct InferredRankCalls {
    capture: usize,
    /// Number of groups in which the rank and its model have the same position.
    alike: usize,
    calls: Vec<CommCall>,
    added: Vec<JobGroup>,
}

/// Checks whether the captured rank at `capture` can be the model for the rank `number`.
struct StandInRankCheck<'a> {
    numbers: &'a [u32],
    calls: &'a [RankCommCallsAndAnomalies],
    groups: &'a [JobGroup],
    world: u32,
    number: u32,
    capture: usize,
}

impl StandInRankCheck<'_> {
    /// Returns the calls that the model implies for the rank, or `None` unless the rank and its model have the same
    /// position in more than `least` groups.
    fn infer_calls_if_more_groups_fit(
        &self,
        least: Option<usize>,
    ) -> Result<Option<InferredRankCalls>, String> {
        let model = self.numbers[self.capture];
        let mut added: Vec<JobGroup> = Vec::new();
        let mut moved: BTreeMap<u32, u32> = BTreeMap::new();
        let own = &self.calls[self.capture].list;
        let used: BTreeSet<u32> = own.iter().map(|call| call.group).collect();
        let mut alike = 0;
        // First map groups that contain both ranks, so that no other group is mapped to them.
        let shared = |group: &u32| self.groups[*group as usize].ranks.contains(&self.number);
        let used = used.into_iter().filter(|&group| group != UNTOLD);
        let (stay, go): (Vec<u32>, Vec<u32>) = used.partition(shared);
        moved.extend(stay.iter().map(|&group| (group, group)));
        for group in go {
            let taken: BTreeSet<u32> = moved.values().copied().collect();
            let to = self.find_or_add_counterpart_group(group, &taken, &mut added)?;
            let place = |ranks: &[u32], rank| ranks.iter().position(|other| *other == rank);
            let after = self.groups.iter().chain(&added).nth(to as usize);
            let after = after.and_then(|group| place(&group.ranks, self.number));
            alike += usize::from(after == place(&self.groups[group as usize].ranks, model));
            moved.insert(group, to);
        }
        if least.is_some_and(|least| alike <= least) {
            return Ok(None);
        }
        let members = |group: u32| -> &[u32] {
            let listed = self.groups.get(group as usize);
            let listed = listed.or_else(|| added.get(group as usize - self.groups.len()));
            listed.map_or(&[], |group| &group.ranks)
        };
        let mut calls = own.clone();
        for call in calls.iter_mut().filter(|call| call.group != UNTOLD) {
            let from = &self.groups[call.group as usize].ranks;
            let to = moved[&call.group];
            if call.is_message() {
                let place = |ranks: &[u32], rank| ranks.iter().position(|other| *other == rank);
                let (was, is) = (place(from, model), place(members(to), self.number));
                let (Some(was), Some(is), Some(peer)) = (was, is, call.asked.peer) else {
                    return Err(
                        "a message would go to a member that its group does not have".to_owned(),
                    );
                };
                let peer = (is + from.len() + peer as usize).checked_sub(was);
                call.asked.peer = peer.map(|peer| (peer % from.len()) as u32);
            }
            // The model's split sizes do not apply to this rank, so its sizes per peer are unknown.
            (call.asked.sends, call.asked.receives) = (None, None);
            call.group = to;
        }
        self.check_collective_counts(&calls)?;
        self.check_message_partners(&calls, &members)?;
        Ok(Some(InferredRankCalls {
            capture: self.capture,
            alike,
            calls,
            added,
        }))
    }

    /// Returns the group that this rank uses instead of the model's `group`. Adds the group to the job if no capture
    /// declares it.
    fn find_or_add_counterpart_group(
        &self,
        group: u32,
        taken: &BTreeSet<u32>,
        added: &mut Vec<JobGroup>,
    ) -> Result<u32, String> {
        let from = &self.groups[group as usize];
        let model = self.numbers[self.capture];
        let apart = |ranks: &[u32]| -> Vec<i64> {
            let pairs = ranks.windows(2);
            pairs
                .map(|pair| i64::from(pair[1]) - i64::from(pair[0]))
                .collect()
        };
        let alike = |other: &JobGroup| {
            other.desc == from.desc
                && other.ranks.contains(&self.number)
                && apart(&other.ranks) == apart(&from.ranks)
        };
        let known = (0..).zip(self.groups.iter().chain(&*added));
        let mut known = known.filter(|(index, other)| !taken.contains(index) && alike(other));
        if let Some((index, _)) = known.next() {
            return Ok(index);
        }
        let shift = i64::from(self.number) - i64::from(model);
        let moved = from.ranks.iter().map(|&rank| {
            let rank = u32::try_from(i64::from(rank) + shift).ok();
            rank.filter(|&rank| rank < self.world)
        });
        let Some(ranks) = moved.collect::<Option<Vec<u32>>>() else {
            return Err(format!(
                "group `{}` has ranks {:?}; shifted by the distance of the two ranks, some are outside the job",
                from.name, from.ranks
            ));
        };
        // A captured rank declares all groups that it uses, so a new group must contain no captured
        // rank.
        let captured = |rank: &&u32| self.numbers.binary_search(rank).is_ok();
        if let Some(rank) = ranks.iter().find(captured) {
            return Err(format!(
                "group `{}` has ranks {:?}; shifted by the distance of the two ranks, it would contain rank {rank}, which makes no calls in such a group",
                from.name, from.ranks
            ));
        }
        let known: Vec<JobGroup> = self.groups.iter().chain(&*added).cloned().collect();
        added.push(JobGroup {
            name: unique_group_name(&from.called, ranks[0], &known),
            called: from.called.clone(),
            desc: from.desc.clone(),
            ranks,
        });
        Ok((self.groups.len() + added.len() - 1) as u32)
    }

    /// Checks that all captured members of a group have equal numbers of collectives of each kind.
    fn check_collective_counts(&self, calls: &[CommCall]) -> Result<(), String> {
        let count = |calls: &[CommCall], group: u32| {
            let mut kinds: BTreeMap<usize, u64> = BTreeMap::new();
            for call in calls.iter().filter(|call| call.group == group) {
                if let CommOp::Collective(kind) = call.act {
                    *kinds.entry(kind as usize).or_default() += 1;
                }
            }
            kinds
        };
        let groups: BTreeSet<u32> = calls.iter().map(|call| call.group).collect();
        for group in groups {
            let Some(known) = self.groups.get(group as usize) else {
                continue;
            };
            for rank in &known.ranks {
                let Ok(other) = self.numbers.binary_search(rank) else {
                    continue;
                };
                if count(&self.calls[other].list, group) != count(calls, group) {
                    return Err(format!(
                        "in group `{}` rank {rank} calls different collectives",
                        known.name
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that captured ranks send the messages that the rank receives, and receive the messages that the rank
    /// sends. For each pair of ranks, both sides must also agree on the direction of the first and of the last message.
    /// Comparing only the sets of messages is not enough, because neighbouring stages send each other equal messages.
    fn check_message_partners<'m>(
        &self,
        calls: &[CommCall],
        members: &impl Fn(u32) -> &'m [u32],
    ) -> Result<(), String> {
        let peer = |call: &CommCall| {
            let place = call.asked.peer?;
            members(call.group).get(place as usize).copied()
        };
        let between =
            |calls: &[CommCall], other: u32, turned: bool| -> Vec<MessageDirectionTagBytes> {
                let messages = calls
                    .iter()
                    .filter(|call| call.is_message() && peer(call) == Some(other));
                let messages = messages.map(|call| {
                    let bytes = call.asked.bytes_in.max(call.asked.bytes_out);
                    ((call.act == CommOp::Send) != turned, call.asked.tag, bytes)
                });
                messages.collect()
            };
        for (&rank, captured) in self.numbers.iter().zip(self.calls) {
            let mut own = between(calls, rank, false);
            let mut other = between(&captured.list, self.number, true);
            let ends =
                |list: &[MessageDirectionTagBytes]| (list.first().copied(), list.last().copied());
            let (first, last) = (ends(&own), ends(&other));
            own.sort_unstable();
            other.sort_unstable();
            if own != other {
                let (own, other) = (own.len(), other.len());
                return Err(format!(
                    "the inferred rank would exchange {own} messages with rank {rank}, whose {other} messages with it differ"
                ));
            }
            let way = |(first, last): (
                Option<MessageDirectionTagBytes>,
                Option<MessageDirectionTagBytes>,
            )| {
                (
                    first.map(|message| message.0),
                    last.map(|message| message.0),
                )
            };
            if way(first) != way(last) {
                return Err(format!(
                    "the inferred rank and rank {rank} would both send, or both receive, at the same time"
                ));
            }
        }
        Ok(())
    }
}

/// Direction (true if sent), tag and bytes of a message.
type MessageDirectionTagBytes = (bool, i32, u64);
