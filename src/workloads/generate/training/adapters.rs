//! Adapters, through which stages exchange data with one another (PALM, Fig. 11). An adapter is a member of a tensor
//! group that exchanges messages with other stages. It acts for its share of the group: itself and some other members.
//!
//! After a stage's last matrix product, each member has a partial sum. With [`AdapterSums::Source`], the whole group
//! adds up the partial sums before its adapters send the result. Each adapter of the destination then broadcasts the
//! result to its share of the group (PALM's Eq. 7). With [`AdapterSums::Destination`], each share of the source group
//! sums its partial results on its adapter. The adapters then send these sums. The destination's adapters all-reduce
//! the received sums, and then broadcast the result (PALM's Eq. 8).

use super::TrainingGenerator;
use super::program::{LayerProgram, ProgramNodeOperation};
use crate::generate::plan::{
    AdapterSums, ParallelGroupKind, ParallelismPlan, TensorDataStageCoordinates,
};
use crate::generate::schedule::PassKind;
use crate::generate::sharding::EqualSizedMemberGroups;
use chakram_trace::format::CollectiveKind;
use std::collections::BTreeMap;

/// Groups for stages that exchange data through adapters.
#[derive(Clone, Debug)]
pub(super) struct InterStageAdapterGroups {
    /// Shares of tensor groups, by tensor-parallel degree.
    of: BTreeMap<u32, TensorGroupAdapterShares>,
    sums: AdapterSums,
}

/// How the tensor groups with one tensor-parallel degree are divided into shares.
#[derive(Clone, Copy, Debug)]
pub(super) struct TensorGroupAdapterShares {
    /// Number of members per share. The first member of a share is its adapter.
    pub size: u32,
    /// Groups whose members form one share of a tensor group; `None` if each share is a single
    /// member.
    pub shares: Option<ParallelGroupKind>,
    /// Group of the adapters in a tensor group. It is `None` if there is only one adapter, or if adapters do not sum
    /// received data.
    pub summing: Option<ParallelGroupKind>,
}

impl InterStageAdapterGroups {
    /// Creates the groups of `plan`, and adds their partitions to `partitions`. Returns `None` if
    /// every member exchanges its own data with other stages.
    pub fn new(
        plan: &ParallelismPlan,
        partitions: &mut Vec<EqualSizedMemberGroups>,
    ) -> Option<Self> {
        let adapters = plan.adapters?;
        let own_sums = plan.adapter_sums == AdapterSums::Destination;
        let alone = plan.tensor_degrees().all(|tensor| tensor == adapters);
        if plan.pipeline == 1 || plan.tensor == 1 || (alone && !own_sums) {
            return None;
        }
        let mut family = |partition: EqualSizedMemberGroups| {
            partitions.push(partition);
            ParallelGroupKind::Operator(partitions.len() as u16 - 1)
        };
        let mut of = BTreeMap::new();
        for tensor in plan.tensor_degrees() {
            if of.contains_key(&tensor) {
                continue;
            }
            let size = tensor / adapters;
            let shares = match adapters {
                _ if size == 1 => None,
                1 => Some(ParallelGroupKind::Tensor),
                _ => Some(family(EqualSizedMemberGroups::from_consecutive_members(
                    tensor, size,
                ))),
            };
            let summing = match (own_sums, adapters) {
                (false, _) | (true, 1) => None,
                (true, _) if size == 1 => Some(ParallelGroupKind::Tensor),
                (true, _) => Some(family(EqualSizedMemberGroups::from_strided_members(
                    tensor, size,
                ))),
            };
            let own = TensorGroupAdapterShares {
                size,
                shares,
                summing,
            };
            of.insert(tensor, own);
        }
        Some(Self {
            of,
            sums: plan.adapter_sums,
        })
    }
}

/// Returns the index in `program` of the tensor group's all-reduce that produces the program's result. Returns `None`
/// if it is followed by another collective, or by a matrix product that does not compute weight gradients.
fn find_final_tensor_all_reduce(program: &LayerProgram) -> Option<usize> {
    let is_sum = |task: &ProgramNodeOperation| {
        matches!(
            task,
            ProgramNodeOperation::Collective {
                kind: CollectiveKind::AllReduce,
                family: ParallelGroupKind::Tensor,
                ..
            }
        )
    };
    let sum = program.items.iter().rposition(|item| is_sum(&item.task))?;
    // Weight gradients do not depend on the all-reduce, so they may follow it.
    let finds_gradients = |item: usize| {
        let mut found = program.found.iter().flat_map(|found| &found.nodes);
        found.any(|&node| node as usize == item)
    };
    let mut behind = sum + 1..program.items.len();
    let is_last = behind.all(|item| {
        let task = &program.items[item].task;
        finds_gradients(item) || matches!(task, ProgramNodeOperation::Kernel { flops: 0, .. })
    });
    is_last.then_some(sum)
}

impl TrainingGenerator {
    /// Returns the shares of `stage`; `None` if every member exchanges its own data with other stages.
    pub(super) fn tensor_group_shares_of_stage(
        &self,
        stage: u32,
    ) -> Option<TensorGroupAdapterShares> {
        let groups = self.adapters.as_ref()?;
        groups
            .of
            .get(&self.plan.tensor_degree_of_stage(stage))
            .copied()
    }

    /// Number of members that share an adapter on `stage`.
    pub(super) fn count_members_sharing_adapter(&self, stage: u32) -> u32 {
        self.tensor_group_shares_of_stage(stage)
            .map_or(1, |own| own.size)
    }

    /// Returns true if the member at `place` exchanges messages with other stages.
    pub(super) fn exchanges_messages_with_other_stages(
        &self,
        place: TensorDataStageCoordinates,
    ) -> bool {
        place
            .tensor
            .is_multiple_of(self.count_members_sharing_adapter(place.stage))
    }

    /// Returns the sum in part `at` that adapters compute instead of the whole group. The result is the layer of the
    /// sum, and the sum's index in the layer's program for `kind`. Returns `None` if there is no such sum.
    pub(super) fn find_sum_computed_by_adapters(
        &self,
        at: u32,
        kind: PassKind,
    ) -> Option<(usize, usize)> {
        let sums = self.adapters.as_ref()?.sums;
        let layers = self.layers_of_part(at);
        let (layer, is_edge) = match kind {
            PassKind::Forward => (layers.end - 1, at + 1 == self.part_count()),
            PassKind::Backward => (layers.start, at == 0),
            // Plans with both adapters and split backward passes are rejected.
            PassKind::InputGradient | PassKind::WeightGradient => return None,
        };
        if is_edge || sums == AdapterSums::Source {
            return None;
        }
        find_final_tensor_all_reduce(self.lowered_layer(layer).program_for_member(kind, 0))
            .map(|sum| (layer, sum))
    }
}
