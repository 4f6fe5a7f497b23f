//! Lists the members of groups, and the meetings (collectives and messages) of a step.

use super::cost::CollectiveKind;
use super::cost::CommunicationOperation;
use super::program::{
    CommunicationMemberOperatorAndKernel, GroupAxis, GroupCommunication, StepProgram,
};
use super::{JobParallelism, Options};

/// A process group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedProcessGroup {
    /// Name of the group in PyTorch.
    pub name: String,
    pub description: &'static str,
    pub ranks: Vec<u32>,
}

/// Groups and meetings (collectives and messages), which are the same for all ranks.
#[derive(Debug)]
pub(super) struct JobGroupsAndCommunications {
    /// The group of all ranks, then the tensor-parallel groups, then the data-parallel groups.
    pub groups: Vec<NamedProcessGroup>,
    pub meetings: Vec<GroupCommunication>,
    /// Number of tensor-parallel groups, and number of ranks per group.
    tensor: (u32, u32),
}

impl JobGroupsAndCommunications {
    /// Computes the groups. The list of meetings is still empty.
    pub(super) fn new(options: &Options) -> Self {
        let (ranks, tp) = (options.ranks, options.tensor_parallel);
        let mut lists = vec![("default_pg", (0..ranks).collect::<Vec<_>>())];
        if tp > 1 {
            for first in (0..ranks).step_by(tp as usize) {
                lists.push(("mesh_tp", (first..first + tp).collect()));
            }
            for first in 0..tp {
                lists.push(("mesh_dp", (first..ranks).step_by(tp as usize).collect()));
            }
        }
        let groups = lists
            .into_iter()
            .enumerate()
            .map(|(i, (description, ranks))| NamedProcessGroup {
                name: i.to_string(),
                description,
                ranks,
            });
        Self {
            groups: groups.collect(),
            meetings: Vec::new(),
            tensor: (ranks / tp, tp),
        }
    }

    /// Returns the index of the first group along an axis, the number of groups, and the index of
    /// the group that contains `rank`.
    fn first_count_and_own_group_along_axis(&self, axis: GroupAxis, rank: u32) -> (u32, u32, u32) {
        let (groups, tp) = self.tensor;
        match axis {
            GroupAxis::Data | GroupAxis::Pair if tp == 1 => (0, 1, 0),
            GroupAxis::Data | GroupAxis::Pair => (1 + groups, tp, rank % tp),
            GroupAxis::Tensor => (1, groups, rank / tp),
        }
    }

    /// Returns the group of `rank` along `axis`.
    pub(super) fn group_of_rank(&self, axis: GroupAxis, rank: u32) -> &NamedProcessGroup {
        let (first, _, nth) = self.first_count_and_own_group_along_axis(axis, rank);
        &self.groups[(first + nth) as usize]
    }

    /// Returns all groups that contain `rank`.
    pub(super) fn groups_of(&self, rank: u32) -> impl Iterator<Item = &NamedProcessGroup> {
        self.groups
            .iter()
            .filter(move |group| group.ranks.binary_search(&rank).is_ok())
    }

    /// Converts the index of a meeting (collective or message) in the program of `rank` to the meeting's index in the
    /// list for all ranks.
    pub(super) fn global_communication_index(
        &self,
        meet: &CommunicationMemberOperatorAndKernel,
        rank: u32,
    ) -> u32 {
        match meet.axis {
            GroupAxis::Pair => meet.global,
            axis => meet.global + self.first_count_and_own_group_along_axis(axis, rank).2,
        }
    }

    /// Lists the meetings (collectives and messages) of a step, and stores their indices in this list in each program.
    pub(super) fn list_communications_of_step(
        &mut self,
        options: &Options,
        program: &mut StepProgram,
        asked: &[(CommunicationOperation, u64, u32)],
    ) {
        if options.style == JobParallelism::Pipeline {
            let bytes = u64::from(options.tokens) * u64::from(options.hidden) * 4;
            let stages = options.ranks - 1;
            for nth in 0..stages * options.microbatches * 2 {
                self.meetings.push(GroupCommunication {
                    exchange: CommunicationOperation::Message,
                    group: 0,
                    nth: nth / 2 % options.microbatches,
                    bytes,
                });
            }
            return;
        }
        for (meet, (exchange, bytes, nth)) in program.meets.iter_mut().zip(asked) {
            meet.global = self.meetings.len() as u32;
            let (first, count, _) = self.first_count_and_own_group_along_axis(meet.axis, 0);
            self.meetings
                .extend((0..count).map(|group| GroupCommunication {
                    exchange: *exchange,
                    group: first + group,
                    nth: *nth,
                    bytes: *bytes,
                }));
        }
    }
}

/// Returns the name that NCCL and PyTorch's records use for a collective.
pub(super) fn nccl_record_name_of_collective(kind: CollectiveKind) -> &'static str {
    match kind {
        CollectiveKind::AllReduce => "allreduce",
        CollectiveKind::AllGather => "_allgather_base",
        CollectiveKind::ReduceScatter => "_reduce_scatter_base",
        _ => "broadcast",
    }
}
