//! Adapters between stages: members of a tensor group that exchange messages with other stages for their share of the group
//! (PALM, Fig. 11).
//!
//! The last product of a stage leaves each member a part of a sum. With [`AdapterSums::Source`] the whole group has it
//! summed before adapters send it, and each of the destination's broadcasts to its share (Eq. 7). With
//! [`AdapterSums::Destination`] each share of the source reduces to its adapter; adapters send parts of the sum, which those
//! of the destination all-reduce before they broadcast (Eq. 8).

use super::TrainingGenerator;
use super::program::{LayerProgram, ProgramTask};
use crate::generate::plan::{AdapterSums, ParallelGroupKind, ParallelismPlan, RankCoordinates};
use crate::generate::schedule::PassKind;
use crate::generate::sharding::MemberPartition;
use chakram_trace::format::CollectiveKind;
use std::collections::BTreeMap;

/// Groups that exchange what is handed over between stages, if not every member does for itself.
#[derive(Clone, Debug)]
pub(super) struct AdapterGroups {
    /// By tensor degree.
    of: BTreeMap<u32, AdapterShares>,
    sums: AdapterSums,
}

/// Shares of the tensor groups of one degree.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdapterShares {
    /// Number of members of a share, the first of which is its adapter.
    pub size: u32,
    /// Shares of a tensor group; `None` where each has one member.
    pub shares: Option<ParallelGroupKind>,
    /// Adapters of a tensor group, if they sum what they receive and are more than one.
    pub summing: Option<ParallelGroupKind>,
}

impl AdapterGroups {
    /// The groups of `plan`, whose partitions are added to `partitions`; `None` if all members exchange for themselves.
    pub fn new(plan: &ParallelismPlan, partitions: &mut Vec<MemberPartition>) -> Option<Self> {
        let adapters = plan.adapters?;
        let own_sums = plan.adapter_sums == AdapterSums::Destination;
        let alone = plan.tensor_degrees().all(|tensor| tensor == adapters);
        if plan.pipeline == 1 || plan.tensor == 1 || (alone && !own_sums) {
            return None;
        }
        let mut family = |partition: MemberPartition| {
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
                _ => Some(family(MemberPartition::runs(tensor, size))),
            };
            let summing = match (own_sums, adapters) {
                (false, _) | (true, 1) => None,
                (true, _) if size == 1 => Some(ParallelGroupKind::Tensor),
                (true, _) => Some(family(MemberPartition::strided(tensor, size))),
            };
            let own = AdapterShares {
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

/// The number of the all-reduce over the tensor group that leaves the result of `program`: no other collective and no matrix
/// product comes behind it but for gradients of weights.
fn last_sum(program: &LayerProgram) -> Option<usize> {
    let is_sum = |task: &ProgramTask| {
        matches!(
            task,
            ProgramTask::Collective {
                kind: CollectiveKind::AllReduce,
                family: ParallelGroupKind::Tensor,
                ..
            }
        )
    };
    let sum = program.items.iter().rposition(|item| is_sum(&item.task))?;
    // Gradients of weights take what the sum is formed of, whenever they run.
    let finds_gradients = |item: usize| {
        let mut found = program.found.iter().flat_map(|found| &found.nodes);
        found.any(|&node| node as usize == item)
    };
    let mut behind = sum + 1..program.items.len();
    let is_last = behind.all(|item| {
        let task = &program.items[item].task;
        finds_gradients(item) || matches!(task, ProgramTask::Kernel { flops: 0, .. })
    });
    is_last.then_some(sum)
}

impl TrainingGenerator {
    /// The adapters of `stage`, if not every member exchanges for itself.
    pub(super) fn adapters_of(&self, stage: u32) -> Option<AdapterShares> {
        let groups = self.adapters.as_ref()?;
        groups.of.get(&self.plan.tensor_of(stage)).copied()
    }

    /// Members of `stage` for which one exchanges with other stages.
    pub(super) fn share(&self, stage: u32) -> u32 {
        self.adapters_of(stage).map_or(1, |own| own.size)
    }

    /// True if the member at `place` exchanges messages with other stages.
    pub(super) fn is_adapter(&self, place: RankCoordinates) -> bool {
        place.tensor.is_multiple_of(self.share(place.stage))
    }

    /// The layer of part `at` and the item of its program of `kind` that adapters sum in its place, if they do.
    pub(super) fn handed_sum(&self, at: u32, kind: PassKind) -> Option<(usize, usize)> {
        let sums = self.adapters.as_ref()?.sums;
        let layers = self.layers(at);
        let (layer, is_edge) = match kind {
            PassKind::Forward => (layers.end - 1, at + 1 == self.parts()),
            PassKind::Backward => (layers.start, at == 0),
            // The plan refuses adapters beside backward passes in two.
            PassKind::InputGradient | PassKind::WeightGradient => return None,
        };
        if is_edge || sums == AdapterSums::Source {
            return None;
        }
        last_sum(self.lowered(layer).program(kind, 0)).map(|sum| (layer, sum))
    }
}
