//! Places ranks along the axes of parallelism, and defines the groups of ranks.

use super::{ParallelAxis, ParallelismPlan};
use crate::generate::sharding::EqualSizedMemberGroups;
use chakram_trace::format::GroupName;
use chakram_trace::format::groups::DeclaredGroups;

/// Coordinates of a rank: its index along each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorDataStageCoordinates {
    /// Index of the rank in its tensor group.
    pub tensor: u32,
    /// Index of the rank's replica. With context parallelism, neighbouring replicas share a
    /// sequence's tokens.
    pub data: u32,
    /// Index of the rank's pipeline stage.
    pub stage: u32,
}

/// Kind of a group of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ParallelGroupKind {
    /// Ranks that shard the same stage of the same replica: a tensor group.
    Tensor,
    /// Ranks of all replicas with the same shard of the same stage.
    Data,
    /// Ranks of a replica with the same shard of the embedding table, on the first and the last stage.
    Embedding,
    /// All ranks of a replica.
    Model,
    /// Neighbouring ranks of a stage that divide a layer's experts. All have the same shard index within their experts.
    Expert,
    /// Ranks with the same shard of the same experts on the same stage.
    ExpertData,
    /// Ranks of neighbouring replicas that share a sequence's tokens. All have the same shard of the same stage.
    Context,
    /// The ranks of an expert group on one node.
    ExpertNode,
    /// The ranks of an expert group that have the same index on their nodes.
    ExpertAcross,
    /// Neighbouring replicas that shard their state, if other replicas have copies of it.
    Shard,
    /// Ranks with the same shard of the state, one in each group of replicas that shard it.
    ShardCopies,
    /// Members of a tensor group that share the work of an operator with its own degrees. The value is the index of the
    /// partition that defines them.
    Operator(u16),
}

impl ParallelGroupKind {
    /// The kinds that every plan can have, in the order in which their groups are numbered.
    pub const COMMON: [Self; 11] = [
        Self::Tensor,
        Self::Data,
        Self::Embedding,
        Self::Model,
        Self::Expert,
        Self::ExpertData,
        Self::Context,
        Self::ExpertNode,
        Self::ExpertAcross,
        Self::Shard,
        Self::ShardCopies,
    ];

    /// Name of the kind in messages and reports.
    pub fn kind_name(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::Data => "data",
            Self::Embedding => "embedding",
            Self::Model => "model",
            Self::Expert => "expert",
            Self::ExpertData => "expert-data",
            Self::Context => "context",
            Self::ExpertNode => "expert-node",
            Self::ExpertAcross => "expert-across",
            Self::Shard => "shard",
            Self::ShardCopies => "shard-copies",
            Self::Operator(_) => "operator",
        }
    }
}

/// The coordinates of all ranks, and their groups.
#[derive(Clone, Debug)]
pub struct AllRankCoordinatesAndGroups {
    degrees: [u32; 3],
    /// Expert-parallel degree: number of ranks that divide a layer's experts.
    expert: u32,
    expert_tensor: Option<u32>,
    /// Number of ranks of an expert group on one node; 1 if the plan does not distinguish nodes.
    expert_node: u32,
    /// Context-parallel degree: number of replicas that share a sequence's tokens.
    context: u32,
    /// Number of neighbouring replicas that shard their state.
    shard: u32,
    /// The stage with the model's first part and the stage with its last part.
    ends: [u32; 2],
    /// True if every stage has the same weights as its mirror image, which is the stage at the same distance from the
    /// other end of the pipeline.
    mirrored: bool,
    /// For each stage, the number of tensor-group members in all earlier stages. The last entry is the total. Empty if
    /// all stages have equally large groups.
    members_before: Vec<u32>,
    order: [ParallelAxis; 3],
    /// The rank at each position; empty if rank r is at position r.
    rank_at: Vec<u32>,
    position_of: Vec<u32>,
    /// For each common kind, true if the plan uses such groups.
    used: [bool; ParallelGroupKind::COMMON.len()],
    /// Partitions of tensor groups, for operators with degrees of their own.
    partitions: Vec<EqualSizedMemberGroups>,
}

impl AllRankCoordinatesAndGroups {
    /// Creates the placement of `plan`. The plan's `order` and `ranks` must be permutations.
    pub fn new(plan: &ParallelismPlan) -> Self {
        let mut position_of = vec![0; plan.ranks.len()];
        for (position, rank) in plan.ranks.iter().enumerate() {
            position_of[*rank as usize] = position as u32;
        }
        let degrees = [plan.tensor, plan.weight_replicas_per_stage(), plan.pipeline];
        let mut members_before = Vec::new();
        if plan.has_uneven_tensor_degrees() {
            members_before.push(0);
            members_before.extend(plan.stage_tensor.iter().scan(0, |sum, own| {
                *sum += own;
                Some(*sum)
            }));
        }
        Self {
            degrees,
            expert: plan.expert,
            expert_tensor: plan
                .tensor_groups_split_experts_or_their_tokens()
                .then_some(plan.tensor_degree_of_experts()),
            expert_node: plan.expert_node.unwrap_or(1).max(1),
            context: plan.context,
            shard: plan.state_shards(),
            ends: plan.stages_of_model_ends(),
            mirrored: plan.schedule.copy_count_of_each_part() > 1,
            members_before,
            order: plan.order,
            rank_at: plan.ranks.clone(),
            position_of,
            // The entries are in the order of `COMMON`. Embedding and model groups are declared
            // later, if a collective uses them.
            used: [
                plan.tensor > 1,
                plan.weight_copy_count() > 1,
                false,
                false,
                plan.expert > 1,
                (plan.expert > 1 || plan.tensor_groups_split_experts_or_their_tokens())
                    && plan.expert_copies() > 1,
                plan.context > 1,
                plan.expert_node.is_some(),
                plan.expert_node.is_some(),
                plan.has_several_ranks_per_state_shard(),
                plan.has_several_ranks_per_state_shard(),
            ],
            partitions: Vec::new(),
        }
    }

    /// Declares the groups that sum the gradients of weights that the first and the last stage
    /// share.
    pub fn declare_embedding_groups(&mut self) {
        self.used[2] = self.member_count(ParallelGroupKind::Embedding) > 1;
    }

    /// Declares one group per replica, with all of its ranks.
    pub fn declare_whole_replica_groups(&mut self) {
        self.used[3] = self.member_count(ParallelGroupKind::Model) > 1;
    }

    /// Declares the partitions of tensor groups for operators; the number in [`ParallelGroupKind::Operator`] is an
    /// index into `partitions`.
    pub fn declare_operator_partitions(&mut self, partitions: Vec<EqualSizedMemberGroups>) {
        self.partitions = partitions;
    }

    /// All kinds of groups, in the order in which their groups are numbered.
    pub fn iter_group_kinds(&self) -> impl Iterator<Item = ParallelGroupKind> + '_ {
        let operators =
            (0..self.partitions.len()).map(|number| ParallelGroupKind::Operator(number as u16));
        ParallelGroupKind::COMMON.into_iter().chain(operators)
    }

    /// Name of `family` in messages and reports. The partition for members that share an expert has its own name.
    pub fn kind_name(&self, family: ParallelGroupKind) -> &'static str {
        match family {
            ParallelGroupKind::Operator(number)
                if self.expert_tensor
                    == Some(self.operator_partition_by_number(number).group_size()) =>
            {
                "expert-tensor"
            }
            _ => family.kind_name(),
        }
    }

    fn operator_partition_by_number(&self, number: u16) -> &EqualSizedMemberGroups {
        &self.partitions[usize::from(number)]
    }

    /// Number of ranks of the job.
    pub fn rank_count(&self) -> u32 {
        self.degrees[1] * self.replica_ranks_before_stage(self.degrees[2])
    }

    /// Number of ranks of one replica in the stages before `stage`.
    pub fn replica_ranks_before_stage(&self, stage: u32) -> u32 {
        match self.members_before.get(stage as usize) {
            Some(before) => *before,
            None => self.degrees[0] * stage,
        }
    }

    /// Returns the tensor-parallel degree of `stage`.
    pub fn tensor_degree_of_stage(&self, stage: u32) -> u32 {
        self.replica_ranks_before_stage(stage + 1) - self.replica_ranks_before_stage(stage)
    }

    /// Returns the rank with these coordinates.
    pub fn rank_at(&self, place: TensorDataStageCoordinates) -> u32 {
        if !self.members_before.is_empty() {
            // Ranks are ordered by stage, then by replica.
            let own = place.data * self.tensor_degree_of_stage(place.stage) + place.tensor;
            return self.degrees[1] * self.replica_ranks_before_stage(place.stage) + own;
        }
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

    /// Returns the coordinates of `rank`.
    pub fn coordinates_of_rank(&self, rank: u32) -> TensorDataStageCoordinates {
        if !self.members_before.is_empty() {
            let member = rank / self.degrees[1].max(1);
            let after = self
                .members_before
                .partition_point(|before| *before <= member);
            let stage = after as u32 - 1;
            let own = rank - self.degrees[1] * self.replica_ranks_before_stage(stage);
            let tensor = self.tensor_degree_of_stage(stage);
            return TensorDataStageCoordinates {
                tensor: own % tensor,
                data: own / tensor,
                stage,
            };
        }
        let mut rest = self.position_of.get(rank as usize).copied().unwrap_or(rank);
        let mut at = [0; 3];
        for &axis in &self.order {
            at[axis as usize] = rest % self.degrees[axis as usize];
            rest /= self.degrees[axis as usize];
        }
        let [tensor, data, stage] = at;
        TensorDataStageCoordinates {
            tensor,
            data,
            stage,
        }
    }

    /// Size of a group of `family`. If stages have different degrees, returns the size of the largest group.
    pub fn member_count(&self, family: ParallelGroupKind) -> u32 {
        let [tensor, data, pipeline] = self.degrees;
        match family {
            ParallelGroupKind::Tensor => tensor,
            ParallelGroupKind::Data => data * self.equal_weight_stage_count(),
            ParallelGroupKind::Embedding if self.ends[0] == self.ends[1] => 1,
            ParallelGroupKind::Embedding => 2,
            ParallelGroupKind::Model => self.replica_ranks_before_stage(pipeline),
            ParallelGroupKind::Expert => self.expert,
            ParallelGroupKind::ExpertData => {
                self.expert_replicas() * self.equal_weight_stage_count()
            }
            ParallelGroupKind::Context => self.context,
            ParallelGroupKind::ExpertNode => self.expert_node,
            ParallelGroupKind::ExpertAcross => self.expert / self.expert_node,
            ParallelGroupKind::Shard => self.shard,
            ParallelGroupKind::ShardCopies => data / self.shard,
            ParallelGroupKind::Operator(number) => {
                self.operator_partition_by_number(number).group_size()
            }
        }
    }

    /// Size of the group of kind `family` that contains the rank at `place`.
    pub fn group_size_at(
        &self,
        family: ParallelGroupKind,
        place: TensorDataStageCoordinates,
    ) -> u32 {
        match family {
            ParallelGroupKind::Tensor => self.tensor_degree_of_stage(place.stage),
            _ => self.member_count(family),
        }
    }

    /// Number of ranks of a stage with the same shard of the same experts.
    fn expert_replicas(&self) -> u32 {
        let [tensor, data, _] = self.degrees;
        data * (tensor / self.expert_tensor.unwrap_or(tensor)) / self.expert
    }

    /// Number of stages that have the same weights: 1, or 2 if stages are mirrored.
    fn equal_weight_stage_count(&self) -> u32 {
        if self.mirrored { 2 } else { 1 }
    }

    /// Returns the stages that have the same weights as `stage`, including `stage` itself, in
    /// ascending order.
    fn stages_with_equal_weights(&self, stage: u32) -> impl Iterator<Item = u32> + use<> {
        let other = match self.mirrored {
            true => self.degrees[2] - 1 - stage,
            false => stage,
        };
        let first = stage.min(other);
        [
            Some(first),
            Some(stage.max(other)).filter(|last| *last != first),
        ]
        .into_iter()
        .flatten()
    }

    /// The lowest stage with the same weights as `stage`.
    fn first_stage_with_equal_weights(&self, stage: u32) -> u32 {
        self.stages_with_equal_weights(stage)
            .next()
            .unwrap_or(stage)
    }

    /// Number of members of a tensor group of `stage` that shard one expert.
    fn expert_shard_count(&self, stage: u32) -> u32 {
        self.expert_tensor
            .unwrap_or_else(|| self.tensor_degree_of_stage(stage))
    }

    /// Number of members that shard one expert, summed over all stages before `stage`.
    fn expert_shards_before_stage(&self, stage: u32) -> u32 {
        match self.expert_tensor {
            Some(shards) => shards * stage,
            None => self.replica_ranks_before_stage(stage),
        }
    }

    /// Returns three indices: the shard within the expert, the set of experts, and the replica of
    /// this set. The replica changes most slowly in the order of ranks, as in Megatron-LM.
    fn expert_shard_set_and_replica(&self, place: TensorDataStageCoordinates) -> [u32; 3] {
        let shards = self.expert_shard_count(place.stage);
        let rank = place.data * self.tensor_degree_of_stage(place.stage) + place.tensor;
        let blocks = rank / shards;
        [rank % shards, blocks % self.expert, blocks / self.expert]
    }

    /// Returns the coordinates of the rank with these indices. This is the inverse of
    /// [`expert_shard_set_and_replica`](Self::expert_shard_set_and_replica).
    fn coordinates_from_expert_shard_set_and_replica(
        &self,
        stage: u32,
        [shard, expert, replica]: [u32; 3],
    ) -> TensorDataStageCoordinates {
        let tensor = self.tensor_degree_of_stage(stage);
        let rank = (replica * self.expert + expert) * self.expert_shard_count(stage) + shard;
        TensorDataStageCoordinates {
            tensor: rank % tensor,
            data: rank / tensor,
            stage,
        }
    }

    /// Returns true if the rank at `place` can belong to a group of `family`. An operator's
    /// partition applies only to stages whose tensor degree equals the partition's number of
    /// members. If stages have different tensor degrees, only the first and last stages have
    /// embedding groups.
    pub fn has_group_at(
        &self,
        family: ParallelGroupKind,
        place: TensorDataStageCoordinates,
    ) -> bool {
        match family {
            ParallelGroupKind::Operator(number) => {
                self.operator_partition_by_number(number)
                    .total_member_count()
                    == self.tensor_degree_of_stage(place.stage)
            }
            ParallelGroupKind::Embedding if !self.members_before.is_empty() => {
                self.ends.contains(&place.stage)
            }
            _ => true,
        }
    }

    /// Number of group numbers that are reserved for `family`, which is at least its number of groups.
    pub fn reserved_group_number_count(&self, family: ParallelGroupKind) -> u32 {
        let [_, data, pipeline] = self.degrees;
        match family {
            ParallelGroupKind::Tensor => data * pipeline,
            ParallelGroupKind::Data => self.replica_ranks_before_stage(pipeline),
            ParallelGroupKind::Embedding => self.tensor_degree_of_stage(self.ends[0]) * data,
            ParallelGroupKind::Model => data,
            ParallelGroupKind::Expert => {
                self.replica_ranks_before_stage(pipeline) * data / self.expert
            }
            ParallelGroupKind::ExpertData => {
                self.expert_shards_before_stage(pipeline) * self.expert
            }
            ParallelGroupKind::Context => {
                self.replica_ranks_before_stage(pipeline) * (data / self.context)
            }
            ParallelGroupKind::ExpertNode => {
                self.replica_ranks_before_stage(pipeline) * data / self.expert_node
            }
            ParallelGroupKind::ExpertAcross => {
                self.replica_ranks_before_stage(pipeline) * data / (self.expert / self.expert_node)
            }
            ParallelGroupKind::Shard => {
                self.replica_ranks_before_stage(pipeline) * (data / self.shard)
            }
            ParallelGroupKind::ShardCopies => {
                self.replica_ranks_before_stage(pipeline) * self.shard
            }
            ParallelGroupKind::Operator(number) => {
                data * pipeline * self.operator_partition_by_number(number).group_count()
            }
        }
    }

    /// Index, among the groups of `family`, of the group that contains the rank at `place`.
    fn group_index_at(&self, family: ParallelGroupKind, place: TensorDataStageCoordinates) -> u32 {
        let data = self.degrees[1];
        let block = |size: u32| {
            let before = self.replica_ranks_before_stage(place.stage) + place.tensor;
            before * (data / size) + place.data / size
        };
        match family {
            ParallelGroupKind::Tensor => place.stage * data + place.data,
            ParallelGroupKind::Data => {
                self.replica_ranks_before_stage(self.first_stage_with_equal_weights(place.stage))
                    + place.tensor
            }
            ParallelGroupKind::Embedding => {
                place.data * self.tensor_degree_of_stage(self.ends[0]) + place.tensor
            }
            ParallelGroupKind::Model => place.data,
            ParallelGroupKind::Expert => {
                let [shard, _, replica] = self.expert_shard_set_and_replica(place);
                let replicas = self.expert_replicas();
                (self.expert_shards_before_stage(place.stage) + shard) * replicas + replica
            }
            ParallelGroupKind::Context => block(self.context),
            ParallelGroupKind::Shard => block(self.shard),
            ParallelGroupKind::ShardCopies => {
                let before = self.replica_ranks_before_stage(place.stage) + place.tensor;
                before * self.shard + place.data % self.shard
            }
            ParallelGroupKind::ExpertNode | ParallelGroupKind::ExpertAcross => {
                let [_, expert, _] = self.expert_shard_set_and_replica(place);
                let [groups, own] = match family {
                    ParallelGroupKind::ExpertNode => {
                        [self.expert / self.expert_node, expert / self.expert_node]
                    }
                    _ => [self.expert_node, expert % self.expert_node],
                };
                self.group_index_at(ParallelGroupKind::Expert, place) * groups + own
            }
            ParallelGroupKind::ExpertData => {
                let [shard, expert, _] = self.expert_shard_set_and_replica(place);
                let before = self
                    .expert_shards_before_stage(self.first_stage_with_equal_weights(place.stage));
                (before + shard) * self.expert + expert
            }
            ParallelGroupKind::Operator(number) => {
                let partition = self.operator_partition_by_number(number);
                let before = (place.stage * data + place.data) * partition.group_count();
                before + partition.group_of(place.tensor)
            }
        }
    }

    /// Returns the number of the first group of `family`. Numbers start at 1, because 0 is the group of all ranks.
    fn number_of_first_group(&self, family: ParallelGroupKind) -> u32 {
        let before = self.iter_group_kinds().take_while(|other| *other < family);
        let used = before.filter(|other| self.is_group_kind_declared(*other));
        1 + used
            .map(|other| self.reserved_group_number_count(other))
            .sum::<u32>()
    }

    /// Returns true if groups of `family` are used.
    pub fn is_group_kind_used(&self, family: ParallelGroupKind) -> bool {
        match family {
            ParallelGroupKind::Tensor => self.used[0],
            ParallelGroupKind::Data => self.used[1],
            ParallelGroupKind::Embedding => self.used[2],
            ParallelGroupKind::Model => self.used[3],
            ParallelGroupKind::Expert => self.used[4],
            ParallelGroupKind::ExpertData => self.used[5],
            ParallelGroupKind::Context => self.used[6],
            ParallelGroupKind::ExpertNode => self.used[7],
            ParallelGroupKind::ExpertAcross => self.used[8],
            ParallelGroupKind::Shard => self.used[9],
            ParallelGroupKind::ShardCopies => self.used[10],
            ParallelGroupKind::Operator(_) => true,
        }
    }

    /// Returns true if nodes refer to groups of `family` by name: the groups are used, and they are smaller than the
    /// world.
    pub fn is_group_kind_declared(&self, family: ParallelGroupKind) -> bool {
        self.is_group_kind_used(family) && self.member_count(family) < self.rank_count()
    }

    /// Name by which the nodes of the rank at `place` refer to its group of `family`.
    pub fn group_name(
        &self,
        family: ParallelGroupKind,
        place: TensorDataStageCoordinates,
    ) -> GroupName<'static> {
        if self.is_group_kind_declared(family) && self.has_group_at(family, place) {
            GroupName::from_number(
                (self.number_of_first_group(family) + self.group_index_at(family, place)).into(),
            )
        } else {
            GroupName::World
        }
    }

    /// Returns the members of the group of `family` that contains the rank at `place`.
    pub fn members_of_group(
        &self,
        family: ParallelGroupKind,
        place: TensorDataStageCoordinates,
    ) -> Vec<u32> {
        let [_, data, pipeline] = self.degrees;
        let at = |place| self.rank_at(place);
        let block = |size: u32| {
            let first = place.data - place.data % size;
            let members = first..first + size;
            members
                .map(|data| at(TensorDataStageCoordinates { data, ..place }))
                .collect()
        };
        match family {
            ParallelGroupKind::Tensor => (0..self.tensor_degree_of_stage(place.stage))
                .map(|tensor| at(TensorDataStageCoordinates { tensor, ..place }))
                .collect(),
            ParallelGroupKind::Data => self
                .stages_with_equal_weights(place.stage)
                .flat_map(|stage| (0..data).map(move |data| (stage, data)))
                .map(|(stage, data)| {
                    at(TensorDataStageCoordinates {
                        data,
                        stage,
                        ..place
                    })
                })
                .collect(),
            ParallelGroupKind::Embedding => self
                .ends
                .into_iter()
                .take(self.member_count(family) as usize)
                .map(|stage| at(TensorDataStageCoordinates { stage, ..place }))
                .collect(),
            ParallelGroupKind::Model => (0..pipeline)
                .flat_map(|stage| {
                    (0..self.tensor_degree_of_stage(stage)).map(move |tensor| (stage, tensor))
                })
                .map(|(stage, tensor)| {
                    at(TensorDataStageCoordinates {
                        tensor,
                        stage,
                        ..place
                    })
                })
                .collect(),
            ParallelGroupKind::Expert => {
                let [shard, _, replica] = self.expert_shard_set_and_replica(place);
                let members = 0..self.expert;
                members
                    .map(|expert| {
                        at(self.coordinates_from_expert_shard_set_and_replica(
                            place.stage,
                            [shard, expert, replica],
                        ))
                    })
                    .collect()
            }
            ParallelGroupKind::Context => block(self.context),
            ParallelGroupKind::Shard => block(self.shard),
            ParallelGroupKind::ShardCopies => {
                let members = (place.data % self.shard..data).step_by(self.shard as usize);
                members
                    .map(|data| at(TensorDataStageCoordinates { data, ..place }))
                    .collect()
            }
            ParallelGroupKind::ExpertNode | ParallelGroupKind::ExpertAcross => {
                let [_, expert, _] = self.expert_shard_set_and_replica(place);
                let all = self
                    .members_of_group(ParallelGroupKind::Expert, place)
                    .into_iter();
                let size = self.expert_node;
                let own = all.zip(0..).filter(|(_, other)| match family {
                    ParallelGroupKind::ExpertNode => other / size == expert / size,
                    _ => other % size == expert % size,
                });
                own.map(|(rank, _)| rank).collect()
            }
            ParallelGroupKind::ExpertData => {
                let [shard, expert, _] = self.expert_shard_set_and_replica(place);
                let replicas = self.expert_replicas();
                self.stages_with_equal_weights(place.stage)
                    .flat_map(|stage| (0..replicas).map(move |replica| (stage, replica)))
                    .map(|(stage, replica)| {
                        at(self.coordinates_from_expert_shard_set_and_replica(
                            stage,
                            [shard, expert, replica],
                        ))
                    })
                    .collect()
            }
            ParallelGroupKind::Operator(number) => {
                let partition = self.operator_partition_by_number(number);
                let members = partition.members_of(partition.group_of(place.tensor));
                members
                    .into_iter()
                    .map(|tensor| at(TensorDataStageCoordinates { tensor, ..place }))
                    .collect()
            }
        }
    }

    /// All groups to which nodes refer by name.
    pub fn all_declared_groups(&self) -> DeclaredGroups {
        let mut groups = DeclaredGroups::new();
        for family in self
            .iter_group_kinds()
            .filter(|one| self.is_group_kind_declared(*one))
        {
            let first = self.number_of_first_group(family);
            for rank in 0..self.rank_count() {
                let place = self.coordinates_of_rank(rank);
                let in_embedding = self.ends.contains(&place.stage);
                if family == ParallelGroupKind::Embedding && !in_embedding
                    || !self.has_group_at(family, place)
                {
                    continue;
                }
                let name = first + self.group_index_at(family, place);
                groups
                    .entry(name.to_string())
                    .or_insert_with(|| self.members_of_group(family, place));
            }
        }
        groups
    }
}
