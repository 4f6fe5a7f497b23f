//! Placement of ranks along the axes of parallelism, and the groups that they form.

use super::{ParallelAxis, ParallelismPlan};
use crate::generate::sharding::MemberPartition;
use crate::trace::GroupName;
use crate::trace::groups::DeclaredGroups;

/// Coordinates of a rank: its place along each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankCoordinates {
    /// Along the tensor group.
    pub tensor: u32,
    /// Among the replicas.
    pub data: u32,
    /// In the pipeline.
    pub stage: u32,
}

/// A group of ranks by what its members share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ParallelGroupKind {
    /// Those that share a replica's stage.
    Tensor,
    /// Those that have the same part of the same stage.
    Data,
    /// The first and the last stage of a replica, the same part: they have the word embedding.
    Embedding,
    /// All of a replica.
    Model,
    /// Neighbouring replicas that have the experts of a layer between them, the same part of the same stage.
    Expert,
    /// Those that have the same experts, the same part of the same stage.
    ExpertData,
    /// Members of a tensor group that share operators with degrees of their own: the placement's partition
    /// of this number.
    Operator(u16),
}

impl ParallelGroupKind {
    /// Those that every plan may have, in the order in which groups are numbered.
    pub const COMMON: [Self; 6] = [
        Self::Tensor,
        Self::Data,
        Self::Embedding,
        Self::Model,
        Self::Expert,
        Self::ExpertData,
    ];

    /// Name for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::Data => "data",
            Self::Embedding => "embedding",
            Self::Model => "model",
            Self::Expert => "expert",
            Self::ExpertData => "expert-data",
            Self::Operator(_) => "operator",
        }
    }
}

/// The coordinates of all ranks, and their groups.
#[derive(Clone, Debug)]
pub struct RankPlacement {
    degrees: [u32; 3],
    /// Replicas that have the experts of a layer between them.
    expert: u32,
    order: [ParallelAxis; 3],
    /// The rank at each position, and the position of each rank; empty where they are the same.
    rank_at: Vec<u32>,
    position_of: Vec<u32>,
    /// True for each common family that is used.
    used: [bool; ParallelGroupKind::COMMON.len()],
    /// Partitions of tensor groups for operators with degrees of their own.
    partitions: Vec<MemberPartition>,
}

impl RankPlacement {
    /// The placement of a plan whose order and ranks were found to be permutations.
    pub fn new(plan: &ParallelismPlan) -> Self {
        let mut position_of = vec![0; plan.ranks.len()];
        for (position, rank) in plan.ranks.iter().enumerate() {
            position_of[*rank as usize] = position as u32;
        }
        let degrees = [plan.tensor, plan.data, plan.pipeline];
        Self {
            degrees,
            expert: plan.expert,
            order: plan.order,
            rank_at: plan.ranks.clone(),
            position_of,
            used: [
                plan.tensor > 1,
                plan.data > 1,
                false,
                false,
                plan.expert > 1,
                plan.expert > 1 && plan.data > plan.expert,
            ],
            partitions: Vec::new(),
        }
    }

    /// Declares the groups of first and last stages, which sum gradients of the weights that both have.
    pub fn use_embedding(&mut self) {
        self.used[2] = self.members(ParallelGroupKind::Embedding) > 1;
    }

    /// Declares the groups of all ranks of a replica.
    pub fn use_model(&mut self) {
        self.used[3] = self.members(ParallelGroupKind::Model) > 1;
    }

    /// Declares the partitions of tensor groups for operators, [`ParallelGroupKind::Operator`] in this order.
    pub fn use_partitions(&mut self, partitions: Vec<MemberPartition>) {
        self.partitions = partitions;
    }

    /// All families, in the order in which groups are numbered.
    pub fn families(&self) -> impl Iterator<Item = ParallelGroupKind> + '_ {
        let operators =
            (0..self.partitions.len()).map(|number| ParallelGroupKind::Operator(number as u16));
        ParallelGroupKind::COMMON.into_iter().chain(operators)
    }

    fn partition(&self, number: u16) -> &MemberPartition {
        &self.partitions[usize::from(number)]
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.degrees.iter().product()
    }

    /// The rank at `place`.
    pub fn rank(&self, place: RankCoordinates) -> u32 {
        let at = [place.tensor, place.data, place.stage];
        let outer_first = self.order.iter().rev();
        let position = outer_first.fold(0, |sum, &axis| {
            sum * self.degrees[axis as usize] + at[axis as usize]
        });
        match self.rank_at.get(position as usize) {
            Some(rank) => *rank,
            None => position,
        }
    }

    /// Coordinates of `rank`.
    pub fn place(&self, rank: u32) -> RankCoordinates {
        let mut rest = self.position_of.get(rank as usize).copied().unwrap_or(rank);
        let mut at = [0; 3];
        for &axis in &self.order {
            at[axis as usize] = rest % self.degrees[axis as usize];
            rest /= self.degrees[axis as usize];
        }
        let [tensor, data, stage] = at;
        RankCoordinates {
            tensor,
            data,
            stage,
        }
    }

    /// Number of members of a group of `family`.
    pub fn members(&self, family: ParallelGroupKind) -> u32 {
        let [tensor, data, pipeline] = self.degrees;
        match family {
            ParallelGroupKind::Tensor => tensor,
            ParallelGroupKind::Data => data,
            ParallelGroupKind::Embedding => pipeline.min(2),
            ParallelGroupKind::Model => tensor * pipeline,
            ParallelGroupKind::Expert => self.expert,
            ParallelGroupKind::ExpertData => data / self.expert,
            ParallelGroupKind::Operator(number) => self.partition(number).size(),
        }
    }

    /// Number of groups of `family`.
    pub fn count(&self, family: ParallelGroupKind) -> u32 {
        let [tensor, data, pipeline] = self.degrees;
        match family {
            ParallelGroupKind::Tensor => data * pipeline,
            ParallelGroupKind::Data => tensor * pipeline,
            ParallelGroupKind::Embedding => tensor * data,
            ParallelGroupKind::Model => data,
            ParallelGroupKind::Expert => tensor * pipeline * (data / self.expert),
            ParallelGroupKind::ExpertData => tensor * pipeline * self.expert,
            ParallelGroupKind::Operator(number) => data * pipeline * self.partition(number).count(),
        }
    }

    /// Index of the group of `family` that `place` is in.
    fn index(&self, family: ParallelGroupKind, place: RankCoordinates) -> u32 {
        let [tensor, data, _] = self.degrees;
        match family {
            ParallelGroupKind::Tensor => place.stage * data + place.data,
            ParallelGroupKind::Data => place.stage * tensor + place.tensor,
            ParallelGroupKind::Embedding => place.data * tensor + place.tensor,
            ParallelGroupKind::Model => place.data,
            ParallelGroupKind::Expert => {
                let before = place.stage * tensor + place.tensor;
                before * (data / self.expert) + place.data / self.expert
            }
            ParallelGroupKind::ExpertData => {
                let before = place.stage * tensor + place.tensor;
                before * self.expert + place.data % self.expert
            }
            ParallelGroupKind::Operator(number) => {
                let partition = self.partition(number);
                let before = (place.stage * data + place.data) * partition.count();
                before + partition.group_of(place.tensor)
            }
        }
    }

    /// The number of the first group of `family`: 1 for the first that is used. 0 stands for all ranks.
    fn first(&self, family: ParallelGroupKind) -> u32 {
        let before = self.families().take_while(|other| *other < family);
        let used = before.filter(|other| self.is_declared(*other));
        1 + used.map(|other| self.count(other)).sum::<u32>()
    }

    /// Returns true if groups of `family` are used.
    pub fn is_used(&self, family: ParallelGroupKind) -> bool {
        match family {
            ParallelGroupKind::Tensor => self.used[0],
            ParallelGroupKind::Data => self.used[1],
            ParallelGroupKind::Embedding => self.used[2],
            ParallelGroupKind::Model => self.used[3],
            ParallelGroupKind::Expert => self.used[4],
            ParallelGroupKind::ExpertData => self.used[5],
            ParallelGroupKind::Operator(_) => true,
        }
    }

    /// Returns true if groups of `family` have names of their own.
    pub fn is_declared(&self, family: ParallelGroupKind) -> bool {
        self.is_used(family) && self.members(family) < self.ranks()
    }

    /// Name by which nodes at `place` refer to their group of `family`.
    pub fn name(&self, family: ParallelGroupKind, place: RankCoordinates) -> GroupName<'static> {
        if self.is_declared(family) {
            GroupName::from_number((self.first(family) + self.index(family, place)).into())
        } else {
            GroupName::World
        }
    }

    /// The members of the group of `family` that `place` is in.
    pub fn group(&self, family: ParallelGroupKind, place: RankCoordinates) -> Vec<u32> {
        let [tensor, data, pipeline] = self.degrees;
        let at = |place| self.rank(place);
        match family {
            ParallelGroupKind::Tensor => (0..tensor)
                .map(|tensor| at(RankCoordinates { tensor, ..place }))
                .collect(),
            ParallelGroupKind::Data => (0..data)
                .map(|data| at(RankCoordinates { data, ..place }))
                .collect(),
            ParallelGroupKind::Embedding => [0, pipeline - 1]
                .into_iter()
                .take(self.members(family) as usize)
                .map(|stage| at(RankCoordinates { stage, ..place }))
                .collect(),
            ParallelGroupKind::Model => (0..pipeline)
                .flat_map(|stage| (0..tensor).map(move |tensor| (stage, tensor)))
                .map(|(stage, tensor)| {
                    at(RankCoordinates {
                        tensor,
                        stage,
                        ..place
                    })
                })
                .collect(),
            ParallelGroupKind::Expert => (0..self.expert)
                .map(|member| place.data - place.data % self.expert + member)
                .map(|data| at(RankCoordinates { data, ..place }))
                .collect(),
            ParallelGroupKind::ExpertData => (0..data / self.expert)
                .map(|block| block * self.expert + place.data % self.expert)
                .map(|data| at(RankCoordinates { data, ..place }))
                .collect(),
            ParallelGroupKind::Operator(number) => {
                let partition = self.partition(number);
                let members = partition.members_of(partition.group_of(place.tensor));
                members
                    .into_iter()
                    .map(|tensor| at(RankCoordinates { tensor, ..place }))
                    .collect()
            }
        }
    }

    /// All groups that nodes name.
    pub fn declared(&self) -> DeclaredGroups {
        let mut groups = DeclaredGroups::new();
        for family in self.families().filter(|one| self.is_declared(*one)) {
            let first = self.first(family);
            for rank in 0..self.ranks() {
                let place = self.place(rank);
                let in_embedding = [0, self.degrees[2] - 1].contains(&place.stage);
                if family == ParallelGroupKind::Embedding && !in_embedding {
                    continue;
                }
                let name = first + self.index(family, place);
                groups
                    .entry(name.to_string())
                    .or_insert_with(|| self.group(family, place));
            }
        }
        groups
    }
}
