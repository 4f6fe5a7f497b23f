//! Folding: when several ranks do the same work at the same time, the engine replays only one of them, which represents
//! the others.
//!
//! Ranks that exchange messages, directly or through other ranks, form a *copy*. The stages of a pipeline, for example,
//! are a copy. Repeated refinement sorts the copies into classes. Within a class, corresponding ranks of any two copies
//! have the same durations. They also exchange the same messages along the same dimensions of the machine. Groups of
//! corresponding ranks have members of the same classes. On a network without contention, copies of a class affect each
//! other only through collectives. An analytically answered collective ends at the same time for all its members. By
//! induction over time, ranks with the same index in copies of one class therefore do the same work at the same time.
//! The first copy of each class represents the class.
//!
//! The engine replays only the ranks of these first copies. If a group has a member that is not replayed (an absent
//! member), the engine assumes that the member arrives together with its representative. This proof fails if a
//! collective with absent members is simulated message by message, because the members then end at different times. The
//! replay stops at such a collective. The engine folds the job again with the collective's group as *positional*:
//! copies are in one class only if their ranks have the same positions in it. For example, in a job with one slow rank,
//! the engine replays every member of the slow rank's data-parallel group, but only two ranks of each tensor-parallel
//! group.
//!
//! The method is the partition refinement of Hopcroft (1971), applied to hypergraphs. It is used in its simple form,
//! which recomputes all classes until their number no longer grows.

use super::ids::{InstanceId, ReplayGroupId};
use super::options::CommunicationDurationSource;
use super::plan::{NONE, PlacedCommunicationGroup};
use super::representatives::{npu_layout_along_dimension, ranks_meet_only_in_collectives};
use super::{CompiledReplay, ReplayError, ReplayRefusal};
use chakram_base::ids::{Npu, Rank};
use chakram_base::units::Span;
use chakram_trace::workload::Workload;
use std::collections::{BTreeMap, BTreeSet};

/// Assigns numbers to distinct keys, in the order of first appearance.
#[derive(Debug, Default)]
struct DistinctKeyNumbers(BTreeMap<Vec<u64>, u32>);

impl DistinctKeyNumbers {
    fn number_of_key(&mut self, key: Vec<u64>) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(key).or_insert(next)
    }
}

/// The ranks that represent all ranks of a job.
#[derive(Debug)]
struct RankRepresentatives {
    /// The part of the job that consists of the representatives alone.
    part: Workload,
    /// For each instance of the job, its representative in the part.
    of: Vec<InstanceId>,
}

/// A compiled part of a job; the part represents the whole job.
#[derive(Debug)]
pub struct FoldedReplay<'a> {
    /// The compiled part of the job, which consists of the representatives alone.
    pub part: CompiledReplay<'a>,
    /// For each instance of the job, its representative in the part.
    pub instances: &'a [InstanceId],
    /// For each instance of the part, the number of ranks that it represents, including its own rank.
    pub counts: Vec<u64>,
    /// For each group of the job, its representative in the part. Both groups have the same number of members, and
    /// members at the same position do the same work.
    pub groups: Vec<ReplayGroupId>,
}

impl FoldedReplay<'_> {
    /// Returns the groups of the job that one group represents: the group in whose collective the replay stopped. A
    /// folded replay stops at a collective whose members would end at different times although some are absent. Returns
    /// an empty list if the replay did not stop at such a collective.
    fn find_groups_ending_at_unequal_times(&self) -> Vec<ReplayGroupId> {
        let numbers = (0..).map(ReplayGroupId);
        let represented = numbers.zip(&self.groups);
        let is_unequal = |by: ReplayGroupId| {
            let plan = self.part.plan.groups.get(by.index());
            plan.is_some_and(|plan| plan.unequal.get().is_some())
        };
        represented
            .filter(|(_, by)| is_unequal(**by))
            .map(|(group, _)| group)
            .collect()
    }
}

/// Maximum number of attempts to fold a job; each distinguishes the members of one more group.
const MOST_FOLDINGS: usize = 8;

/// Maximum number of nodes for which [`CompiledReplay::find_makespan_folding_large_jobs`] replays all ranks, because
/// folding such a small job saves no time.
const FEW_NODES: u64 = 1 << 20;

impl CompiledReplay<'_> {
    /// Returns the makespan. Folds large jobs, so that only representative ranks are replayed.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::run`].
    pub fn find_makespan_folding_large_jobs(&self) -> Result<Span, ReplayError> {
        let makespan_of = |folded: &FoldedReplay<'_>| Ok(folded.part.run(())?.0.makespan);
        if self.workload_with_added_launches().node_count() > FEW_NODES
            && let Some(makespan) = self.fold_and_replay_with_retries(makespan_of)?
        {
            return Ok(makespan);
        }
        Ok(self.run(())?.0.makespan)
    }

    /// Folds the job, and returns what `replay` returns for the folded job. If `replay` stops because members of a
    /// group end at different times, distinguishes them and tries again. Returns `None` if folding would omit too few
    /// ranks.
    ///
    /// # Errors
    ///
    /// Returns the errors of `replay`, except for a rejection, which a replay of all ranks explains better.
    pub fn fold_and_replay_with_retries<T>(
        &self,
        mut replay: impl FnMut(&FoldedReplay<'_>) -> Result<T, ReplayError>,
    ) -> Result<Option<T>, ReplayError> {
        self.check_most_kernels_have_durations()?;
        let mut positional = BTreeSet::new();
        for _ in 0..MOST_FOLDINGS {
            let Some(representatives) = self.find_representatives(&positional) else {
                return Ok(None);
            };
            let folded = self.compile_folded(&representatives)?;
            match replay(&folded) {
                Err(ReplayError::Refused(_)) => {
                    let unequal = folded.find_groups_ending_at_unequal_times();
                    if unequal.is_empty() {
                        return Ok(None);
                    }
                    positional.extend(unequal);
                }
                result => return result.map(Some),
            }
        }
        Ok(None)
    }

    /// Returns ranks that represent all ranks of the job; `positional` lists the groups whose members end at different
    /// times. Returns `None` if folding would omit fewer than half of the ranks. Also returns `None` if results may
    /// depend on each rank. They do if the network models contention, communication keeps recorded times, or every
    /// collective must be simulated, and also if machine parts fail or ranks share remote memory.
    fn find_representatives(
        &self,
        positional: &BTreeSet<ReplayGroupId>,
    ) -> Option<RankRepresentatives> {
        // The graphs already contain the added launches, so no launches are added to the part.
        let workload = self.workload_with_added_launches();
        if self.comm != CommunicationDurationSource::Model
            || (self.stepwise || self.aggregate || self.links || self.as_issued)
            || !self.failures.is_empty()
            || self.extensions.memory.is_some()
            || workload.instances().len() != workload.rank_count_including_untraced() as usize
            || !ranks_meet_only_in_collectives(workload, self.network_kind())
        {
            return None;
        }
        let copies = IndependentJobCopies::find_copies(self)?;
        let classes = copies.classify_copies(self, positional);
        let firsts = copies.first_copy_of_each_class(&classes);
        if 2 * firsts.len() > copies.members.len() {
            return None;
        }
        let mut number_of = vec![NONE; workload.instances().len()];
        let mut is_kept = vec![false; number_of.len()];
        for &copy in &firsts {
            for &member in &copies.members[copy as usize] {
                is_kept[member as usize] = true;
            }
        }
        let kept = (0..number_of.len()).filter(|&instance| is_kept[instance]);
        kept.zip(0..)
            .for_each(|(instance, number)| number_of[instance] = number);
        let represents = |instance: usize| {
            let place = copies.places[instance];
            let first = firsts[classes[place.copy as usize] as usize];
            copies.members[first as usize][place.at as usize]
        };
        self.do_groups_contain_all_representatives(&is_kept, represents)
            .then(|| RankRepresentatives {
                part: workload.keep_traces_of_ranks(|rank| is_kept[rank.index()]),
                of: (0..number_of.len())
                    .map(|instance| InstanceId(number_of[represents(instance) as usize]))
                    .collect(),
            })
    }

    /// Returns true if, in every group with a kept rank, each member's representative is also a member and has no
    /// higher rank. Otherwise no replayed rank would arrive in the member's place, or the replay would break a tie
    /// differently.
    fn do_groups_contain_all_representatives(
        &self,
        is_kept: &[bool],
        represents: impl Fn(usize) -> u32,
    ) -> bool {
        let instances = &self.plan.instances;
        let kept = (instances.iter().zip(is_kept)).filter(|(_, kept)| **kept);
        let mut checked = vec![false; self.plan.groups.len()];
        for slot in kept.flat_map(|(instance, _)| &instance.slots) {
            if std::mem::replace(&mut checked[slot.group.index()], true) {
                continue;
            }
            let members = self.plan.groups[slot.group.index()].members.iter();
            let is_there = |representative: u32| {
                let mut slots = instances[representative as usize].slots.iter();
                slots.any(|own| own.group == slot.group)
            };
            for member in members {
                let instance = self.plan.instance_of[member.index()];
                let representative = represents(instance as usize);
                if representative > instance || !is_there(representative) {
                    return false;
                }
            }
        }
        true
    }

    /// Compiles the part of the job that consists of `representatives`, with the options and duration sources of the
    /// whole job.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::new`]. If a job is valid, so are its parts.
    fn compile_folded<'p>(
        &'p self,
        representatives: &'p RankRepresentatives,
    ) -> Result<FoldedReplay<'p>, ReplayRefusal> {
        let RankRepresentatives { part, of } = representatives;
        let mut part = self.compile_workload_part(part)?;
        let mut counts = vec![0; part.plan.instances.len()];
        of.iter().for_each(|instance| counts[instance.index()] += 1);
        let mut groups = vec![ReplayGroupId(NONE); self.plan.groups.len()];
        for (instance, &by) in self.plan.instances.iter().zip(of) {
            let slots = instance
                .slots
                .iter()
                .zip(&part.plan.instances[by.index()].slots);
            for (whole, folded) in slots {
                groups[whole.group.index()] = folded.group;
            }
        }
        for group in &mut part.plan.groups {
            group.represents = self.count_members_represented_by_each(group, of);
        }
        Ok(FoldedReplay {
            part,
            instances: of,
            counts,
            groups,
        })
    }

    /// Returns how many members each replayed member of a group represents.
    fn count_members_represented_by_each(
        &self,
        group: &PlacedCommunicationGroup,
        of: &[InstanceId],
    ) -> Vec<u32> {
        let instance = |rank: &Rank| self.plan.instance_of[rank.index()];
        let mut counts: BTreeMap<InstanceId, u32> = BTreeMap::new();
        for rank in &group.members {
            *counts.entry(of[instance(rank) as usize]).or_default() += 1;
        }
        // A member that is in the part represents itself.
        let mut left = counts.clone();
        let members = group.members.iter();
        members
            .map(|rank| left.remove(&of[instance(rank) as usize]).unwrap_or(0))
            .collect()
    }
}

/// Where a rank is: the index of its copy, and its index within the copy.
#[derive(Clone, Copy, Debug, Default)]
struct RankPlaceInJobCopy {
    copy: u32,
    at: u32,
}

/// The ranks of a job, divided into copies. Ranks of different copies exchange no messages.
#[derive(Debug)]
struct IndependentJobCopies {
    /// Instances of each copy, in ascending order; copies are sorted by their first instances.
    members: Vec<Vec<u32>>,
    places: Vec<RankPlaceInJobCopy>,
}

impl IndependentJobCopies {
    /// Finds the copies of a job in which every rank has a trace. Returns `None` if all ranks form one copy.
    fn find_copies(replay: &CompiledReplay<'_>) -> Option<Self> {
        let instances = replay.workload_without_added_launches().instances();
        let mut parent: Vec<u32> = (0..instances.len() as u32).collect();
        for (one, instance) in (0..).zip(instances) {
            for peer in &instance.peers {
                let other = find_root(&mut parent, replay.plan.instance_of[peer.index()]);
                let own = find_root(&mut parent, one);
                // The lowest instance is the root, so that copies are sorted by their first instances.
                parent[own.max(other) as usize] = own.min(other);
            }
        }
        let mut copy_of = vec![NONE; instances.len()];
        let mut members: Vec<Vec<u32>> = Vec::new();
        let mut places = Vec::with_capacity(instances.len());
        for instance in 0..instances.len() as u32 {
            let root = find_root(&mut parent, instance) as usize;
            if copy_of[root] == NONE {
                copy_of[root] = members.len() as u32;
                members.push(Vec::new());
            }
            let copy = copy_of[root];
            let of = &mut members[copy as usize];
            let at = of.len() as u32;
            places.push(RankPlaceInJobCopy { copy, at });
            of.push(instance);
        }
        (members.len() > 1).then_some(Self { members, places })
    }

    /// Returns the class of each copy. Classes are numbered in the order of their first copies.
    fn classify_copies(
        &self,
        replay: &CompiledReplay<'_>,
        positional: &BTreeSet<ReplayGroupId>,
    ) -> Vec<u32> {
        let mut layouts = DistinctKeyNumbers::default();
        let mut classes = self.number_copies_by_key(|instance, key| {
            self.append_instance_key(replay, instance, &mut layouts, key);
        });
        let placements: Vec<u32> = (replay.plan.groups.iter())
            .map(|group| layouts.number_of_key(group_placement_key(replay, group)))
            .collect();
        loop {
            let before = count_classes(&classes);
            let mut groups = DistinctKeyNumbers::default();
            let numbers = replay.plan.groups.iter().zip(&placements);
            let numbers: Vec<u32> = numbers
                .map(|(group, &placement)| {
                    let mut key = vec![u64::from(placement)];
                    key.extend(group.members.iter().map(|rank| {
                        let instance = replay.plan.instance_of[rank.index()];
                        let RankPlaceInJobCopy { copy, at } = self.places[instance as usize];
                        u64::from(classes[copy as usize]) << 32 | u64::from(at)
                    }));
                    groups.number_of_key(key)
                })
                .collect();
            let next = self.number_copies_by_key(|instance, key| {
                let RankPlaceInJobCopy { copy, .. } = self.places[instance as usize];
                key.push(classes[copy as usize].into());
                for slot in &replay.plan.instances[instance as usize].slots {
                    key.push(u64::from(numbers[slot.group.index()]));
                    if positional.contains(&slot.group) {
                        key.push(u64::from(slot.member.0));
                    }
                }
            });
            classes = next;
            if count_classes(&classes) == before {
                return classes;
            }
        }
    }

    /// Gives equal numbers to copies whose instances have equal keys.
    fn number_copies_by_key(&self, mut describe: impl FnMut(u32, &mut Vec<u64>)) -> Vec<u32> {
        let mut numbers = DistinctKeyNumbers::default();
        let copies = self.members.iter();
        copies
            .map(|members| {
                let mut key = Vec::new();
                for &instance in members {
                    describe(instance, &mut key);
                    // This value marks the end of an instance's key, because keys have different
                    // lengths.
                    key.push(u64::MAX);
                }
                numbers.number_of_key(key)
            })
            .collect()
    }

    /// Appends a description of an instance's own work: durations, release time, which communicators are bound to the
    /// same group, and message partners. The description omits the other members of the instance's groups.
    fn append_instance_key(
        &self,
        replay: &CompiledReplay<'_>,
        instance: u32,
        layouts: &mut DistinctKeyNumbers,
        key: &mut Vec<u64>,
    ) {
        let planned = &replay.plan.instances[instance as usize];
        let of = &replay.workload_without_added_launches().instances()[instance as usize];
        key.extend([u64::from(planned.shared), of.release.0]);
        for slot in &planned.slots {
            let mut slots = planned.slots.iter();
            let first = slots.position(|other| other.group == slot.group);
            key.push(first.map_or(u64::MAX, |first| first as u64));
        }
        for peer in &of.peers {
            let other = replay.plan.instance_of[peer.index()];
            let npus = [planned.npu, replay.plan.npu_of[peer.index()]];
            let layout = layouts.number_of_key(describe_npu_placement(replay, &npus));
            key.extend([u64::from(self.places[other as usize].at), u64::from(layout)]);
        }
    }

    /// Returns the first copy of each class.
    fn first_copy_of_each_class(&self, classes: &[u32]) -> Vec<u32> {
        let mut firsts = Vec::new();
        for (copy, &class) in (0..).zip(classes) {
            if class as usize == firsts.len() {
                firsts.push(copy);
            }
        }
        firsts
    }
}

/// Returns the number of classes, which are numbered from 0 without gaps.
fn count_classes(classes: &[u32]) -> u32 {
    classes.iter().max().map_or(0, |&last| last + 1)
}

/// Returns the representative of an instance's set, and shortens the path to it.
fn find_root(parent: &mut [u32], mut instance: u32) -> u32 {
    while parent[instance as usize] != instance {
        parent[instance as usize] = parent[parent[instance as usize] as usize];
        instance = parent[instance as usize];
    }
    instance
}

/// Describes a group without its members' work: where the members are placed, in which order their ranks are, and
/// whether the group has a name. The name matters because backends may treat named groups differently.
fn group_placement_key(replay: &CompiledReplay<'_>, group: &PlacedCommunicationGroup) -> Vec<u64> {
    let npus = group.members.iter();
    let npus: Vec<Npu> = npus.map(|rank| replay.plan.npu_of[rank.index()]).collect();
    let mut key = describe_npu_placement(replay, &npus);
    key.extend([
        u64::from(group.name.is_some()),
        group.dimensions.map_or(u64::MAX, u64::from),
        u64::from(group.launches_together),
    ]);
    if !group.members.is_sorted() {
        let mut order: Vec<u64> = (0..group.members.len() as u64).collect();
        order.sort_by_key(|&at| group.members[at as usize]);
        key.extend(order);
    }
    key
}

/// Describes how NPUs are placed along every dimension of the machine.
fn describe_npu_placement(replay: &CompiledReplay<'_>, npus: &[Npu]) -> Vec<u64> {
    let topology = replay.machine().topology();
    let along = 0..topology.dimensions().len();
    let layouts = along.flat_map(|d| npu_layout_along_dimension(topology, npus, d));
    layouts.map(|at| at as u64).collect()
}
