//! Process groups by kind, and the ranks of each pipeline.

use super::TrainingGenerator;
use super::summary::ParallelGroupsOfOneKind;
use crate::generate::plan::{ParallelGroupKind, TensorDataStageCoordinates};
use chakram_trace::format::GroupName;
use chakram_trace::format::roles::GroupRoles;
use std::collections::BTreeSet;

impl TrainingGenerator {
    fn used_group_kinds(&self) -> impl Iterator<Item = (ParallelGroupKind, &'static str)> {
        let used = |family: &ParallelGroupKind| self.placement.is_group_kind_used(*family);
        let families = self.placement.iter_group_kinds().filter(used);
        families.map(|family| (family, self.placement.kind_name(family)))
    }

    /// Returns the groups of each kind that the plan uses.
    pub(super) fn groups_by_kind(&self) -> Vec<ParallelGroupsOfOneKind> {
        let placement = &self.placement;
        let groups = self.used_group_kinds().map(|(family, name)| {
            let mut seen = BTreeSet::new();
            let places =
                (0..placement.rank_count()).map(|rank| placement.coordinates_of_rank(rank));
            let places = places.filter(|place| placement.has_group_at(family, *place));
            let first =
                |place: &TensorDataStageCoordinates| match placement.group_name(family, *place) {
                    GroupName::Number(number) => seen.insert(number),
                    // The group of all ranks has no number, so 0 represents it.
                    _ => seen.insert(0),
                };
            let firsts = places.filter(first);
            ParallelGroupsOfOneKind {
                family: name,
                all: firsts
                    .map(|place| placement.members_of_group(family, place))
                    .collect(),
            }
        });
        groups.collect()
    }

    /// Returns the kind of each numbered group.
    pub(super) fn map_group_numbers_to_kinds(&self) -> GroupRoles {
        let mut roles = GroupRoles::default();
        for (family, name) in self.used_group_kinds() {
            let places = (0..self.placement.rank_count())
                .map(|rank| self.placement.coordinates_of_rank(rank));
            let mut numbers: Vec<u64> = places
                .filter(|place| self.placement.has_group_at(family, *place))
                .filter_map(|place| match self.placement.group_name(family, place) {
                    GroupName::Number(number) => Some(number),
                    _ => None,
                })
                .collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers
                .into_iter()
                .for_each(|number| roles.add_role(number, name));
        }
        roles
    }

    /// Returns, for each pipeline, the ranks through which a micro-batch passes, in order of stages.
    pub(super) fn ranks_by_pipeline(&self) -> Vec<Vec<u32>> {
        let places =
            (0..self.placement.rank_count()).map(|rank| self.placement.coordinates_of_rank(rank));
        let uneven = self.plan.has_uneven_tensor_degrees();
        let firsts = places.filter(|place| {
            place.stage == 0
                && (!uneven
                    || place
                        .tensor
                        .is_multiple_of(self.count_members_sharing_adapter(0)))
        });
        let of = |first: TensorDataStageCoordinates| {
            let stages = 0..self.plan.pipeline;
            let ranks = stages.map(|stage| {
                let tensor = match uneven {
                    true => {
                        first.tensor / self.count_members_sharing_adapter(0)
                            * self.count_members_sharing_adapter(stage)
                    }
                    false => first.tensor,
                };
                let place = TensorDataStageCoordinates {
                    tensor,
                    stage,
                    ..first
                };
                self.placement.rank_at(place)
            });
            ranks.collect()
        };
        firsts.map(of).collect()
    }
}
