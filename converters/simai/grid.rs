//! Computes the groups of a rank from a workload's degrees of parallelism.

use super::SimaiWorkload;
use chakram_base::ids::MAX_NPUS;
use chakram_trace::format::groups::DeclaredGroups;
use chakram_trace::format::roles::GroupRoles;

/// Purpose of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankGroupParallelism {
    /// Tensor-parallel group, `TP`.
    Tensor,
    /// Data-parallel group, `DP`.
    Data,
    /// Expert-parallel group, `EP`.
    Expert,
    /// Group of the ranks that have replicas of the same expert, `DP_EP`.
    ExpertData,
}

impl RankGroupParallelism {
    /// Every role, with its name in the job file.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Tensor, "tensor"),
        (Self::Data, "data"),
        (Self::Expert, "expert"),
        (Self::ExpertData, "expert-data"),
    ];
}

/// Assigns ranks to groups. Rank `t + T (p + P (e + E x))` belongs to stage `p`. The rank has position `t` in its
/// tensor-parallel group, and position `e + E x` in its data-parallel group. Within a data-parallel group, each run of
/// `E` consecutive members is an expert-parallel group. With one stage, the groups are identical to SimAI's groups.
/// With several stages, they differ, because SimAI's expert-parallel groups mix ranks of different stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankGroupGrid {
    /// Number of NPUs.
    pub npus: u32,
    /// Size of a tensor-parallel group.
    pub tensor: u32,
    /// Number of pipeline stages.
    pub pipeline: u32,
    /// Size of an expert-parallel group.
    pub expert: u32,
    /// Number of replicas of each expert.
    pub replicas: u32,
}

/// Members of a group: the `count` ranks that start at `first` and are `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StridedRankGroup {
    /// Number of the group, which is also its name.
    pub number: u64,
    /// Rank of the first member.
    pub first: u32,
    /// Distance between consecutive members.
    pub stride: u32,
    /// Number of members.
    pub count: u32,
}

impl StridedRankGroup {
    /// Returns the group's name, and its members in ascending order.
    fn name_and_member_ranks(self) -> (String, Vec<u32>) {
        let ranks = (0..self.count).map(|i| self.first + i * self.stride);
        (self.number.to_string(), ranks.collect())
    }
}

impl RankGroupGrid {
    /// Assigns the ranks of `workload` to `npus` NPUs.
    ///
    /// # Errors
    ///
    /// Fails if `npus` is not a multiple of the number of NPUs that the degrees require; the error
    /// describes the problem.
    pub fn new(workload: &SimaiWorkload, npus: u32) -> Result<Self, String> {
        let SimaiWorkload {
            tensor,
            pipeline,
            expert,
            ..
        } = *workload;
        if npus > MAX_NPUS {
            return Err(format!("{npus} NPUs, expected {MAX_NPUS} or fewer"));
        }
        let asked = (u64::from(tensor) * u64::from(pipeline)).saturating_mul(expert.into());
        if npus == 0 || !u64::from(npus).is_multiple_of(asked) {
            return Err(format!(
                "{npus} NPUs, expected a multiple of {asked}, the product of tensor degree {tensor}, \
                 pipeline degree {pipeline} and expert degree {expert}"
            ));
        }
        Ok(Self {
            npus,
            tensor,
            pipeline,
            expert,
            replicas: (u64::from(npus) / asked) as u32,
        })
    }

    /// Returns the size of a data-parallel group.
    pub fn data_parallel_size(&self) -> u32 {
        self.expert * self.replicas
    }

    /// Returns the size of the groups that have a role, and how many there are.
    pub fn group_size_and_count(&self, role: RankGroupParallelism) -> (u32, u32) {
        let size = match role {
            RankGroupParallelism::Tensor => self.tensor,
            RankGroupParallelism::Data => self.data_parallel_size(),
            RankGroupParallelism::Expert => self.expert,
            RankGroupParallelism::ExpertData => self.replicas,
        };
        (size, self.npus / size)
    }

    /// Returns the number of the first group with a role. Groups are numbered from 1, role by role.
    fn number_of_first_group(&self, role: RankGroupParallelism) -> u64 {
        let before = RankGroupParallelism::ALL.iter().take(role as usize);
        1 + before
            .map(|(role, _)| u64::from(self.group_size_and_count(*role).1))
            .sum::<u64>()
    }

    /// Returns the group of `role` that contains `rank`.
    pub fn group_of_rank(&self, role: RankGroupParallelism, rank: u32) -> StridedRankGroup {
        let (count, _) = self.group_size_and_count(role);
        // The index of the rank's data-parallel group, and the rank's position in it.
        let plane = self.tensor * self.pipeline;
        let (outside, place) = (rank % plane, rank / plane);
        let (expert, replica) = (place % self.expert, place / self.expert);
        let (index, first, stride) = match role {
            RankGroupParallelism::Tensor => (rank / self.tensor, rank - rank % self.tensor, 1),
            RankGroupParallelism::Data => (outside, outside, plane),
            RankGroupParallelism::Expert => {
                let first = outside + plane * self.expert * replica;
                (outside + plane * replica, first, plane)
            }
            RankGroupParallelism::ExpertData => {
                let first = outside + plane * expert;
                (first, first, plane * self.expert)
            }
        };
        StridedRankGroup {
            number: self.number_of_first_group(role) + u64::from(index),
            first,
            stride,
            count,
        }
    }

    /// Returns the groups that contain `rank` and at least one other rank, in the form in which a trace declares
    /// groups.
    pub fn declared_groups_of_rank(&self, rank: u32) -> DeclaredGroups {
        let groups = RankGroupParallelism::ALL.map(|(role, _)| self.group_of_rank(role, rank));
        let several = groups.into_iter().filter(|group| group.count > 1);
        several
            .map(StridedRankGroup::name_and_member_ranks)
            .collect()
    }

    /// Returns all groups with several members, by name.
    pub fn groups_with_several_members(&self) -> DeclaredGroups {
        let of_ranks = (0..self.npus).flat_map(|rank| {
            let groups = RankGroupParallelism::ALL.map(|(role, _)| self.group_of_rank(role, rank));
            // The first member of each group adds the group.
            let led = groups.into_iter().filter(move |group| group.first == rank);
            led.filter(|group| group.count > 1)
        });
        of_ranks
            .map(StridedRankGroup::name_and_member_ranks)
            .collect()
    }

    /// Returns the role of the group `name`, which contains `rank`.
    pub fn role_of_group(&self, rank: u32, name: &str) -> RankGroupParallelism {
        let mut roles = RankGroupParallelism::ALL.iter().map(|(role, _)| *role);
        let role = roles.find(|role| self.group_of_rank(*role, rank).number.to_string() == name);
        role.expect("a rank uses only its own groups")
    }

    /// Returns the roles of all groups with several members.
    pub fn group_roles(&self) -> GroupRoles {
        let mut roles = GroupRoles::default();
        for (role, word) in RankGroupParallelism::ALL {
            let (size, groups) = self.group_size_and_count(role);
            for index in (0..u64::from(groups)).filter(|_| size > 1) {
                roles.add_role(self.number_of_first_group(role) + index, word);
            }
        }
        roles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_groups_follow_from_the_parallel_degrees() {
        // With T = 2, P = 1 and E = 2 on 16 NPUs, a data-parallel group has 8 members, and an
        // expert has 4 replicas. Rank 5 has t = 1, and its position in the data-parallel group is 2
        // = 0 + 2 x 1.
        let grid = RankGroupGrid {
            npus: 16,
            tensor: 2,
            pipeline: 1,
            expert: 2,
            replicas: 4,
        };
        let group = |role, rank| {
            let StridedRankGroup {
                number,
                first,
                stride,
                count,
            } = grid.group_of_rank(role, rank);
            let ranks = (0..count).map(|i| first + i * stride);
            (number, ranks.collect::<Vec<_>>())
        };
        // The 8 tensor-parallel groups have the numbers 1 to 8, the data-parallel groups 9 and 10,
        // the 8 expert-parallel groups 11 to 18, and the 4 groups of replicas 19 to 22.
        assert_eq!(group(RankGroupParallelism::Tensor, 5), (3, vec![4, 5]));
        let odd = vec![1, 3, 5, 7, 9, 11, 13, 15];
        assert_eq!(group(RankGroupParallelism::Data, 5), (10, odd));
        assert_eq!(group(RankGroupParallelism::Expert, 5), (14, vec![5, 7]));
        assert_eq!(
            group(RankGroupParallelism::ExpertData, 5),
            (20, vec![1, 5, 9, 13])
        );
        assert_eq!(
            group(RankGroupParallelism::ExpertData, 7),
            (22, vec![3, 7, 11, 15])
        );
        let roles = "tensor 1-8, data 9-10, expert 11-18, expert-data 19-22";
        assert_eq!(grid.group_roles().to_string(), roles);
    }

    #[test]
    fn degrees_beyond_any_machine_are_refused() {
        let most = u32::MAX;
        let text = format!(
            "HYBRID_TRANSFORMER model_parallel_NPU_group: {most} ep: {most} pp: {most}\n1\nl -1 1 NONE 0 1 NONE 0 1 NONE 0 1"
        );
        let workload = SimaiWorkload::parse(&text).unwrap();
        assert!(RankGroupGrid::new(&workload, most).is_err());
        assert!(RankGroupGrid::new(&workload, 0).is_err());
    }

    #[test]
    fn members_of_a_group_agree_and_groups_of_a_role_cover_all_ranks_once() {
        for (tensor, pipeline, expert, replicas) in
            [(1, 1, 1, 5), (2, 3, 4, 1), (4, 2, 1, 3), (3, 2, 2, 2)]
        {
            let npus = tensor * pipeline * expert * replicas;
            let grid = RankGroupGrid {
                npus,
                tensor,
                pipeline,
                expert,
                replicas,
            };
            for (role, _) in RankGroupParallelism::ALL {
                for rank in 0..npus {
                    let group = grid.group_of_rank(role, rank);
                    let members: Vec<u32> = (0..group.count)
                        .map(|i| group.first + i * group.stride)
                        .collect();
                    assert!(members.contains(&rank));
                    assert!(
                        members
                            .iter()
                            .all(|member| grid.group_of_rank(role, *member) == group)
                    );
                    // A group with this number exists for only one role.
                    let same = |(other, _): &(RankGroupParallelism, _)| {
                        (0..npus)
                            .any(|rank| grid.group_of_rank(*other, rank).number == group.number)
                    };
                    assert_eq!(
                        RankGroupParallelism::ALL
                            .iter()
                            .filter(|role| same(role))
                            .count(),
                        1
                    );
                }
            }
        }
    }
}
