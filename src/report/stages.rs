//! Pipeline stages, derived from a job's groups.
//!
//! If there are pipeline groups, a message is between two stages if both ranks are in one of them. If there are none, a
//! message is within a stage if both ranks are in one group that has a known role (tensor, data, context, expert) and
//! does not contain all ranks. Members of such a group are in one stage, or in replicas of one stage. All other
//! messages are between stages. If no group has a known role, every rank that sends messages counts as a separate
//! stage. A collective is between stages in two cases: its group is a pipeline, or it sums the embedding that the first
//! and last stage share.

use chakram_base::ids::{NodeIndex, Rank};
use chakram_engine::{CompiledReplay, InstanceId};
use chakram_trace::graph::NodeKind;

/// Words in role names that mark groups as whole pipelines.
const PIPELINES: [&str; 2] = ["pipeline", "pp"];
const ACROSS: [&str; 2] = ["embedding", "embd"];

/// Determines whether communication crosses pipeline stages.
#[derive(Debug)]
pub struct CrossStageCommunicationDetector<'a> {
    prepared: &'a CompiledReplay<'a>,
    /// Groups with known roles; each group's members are sorted. Groups that contain every rank are omitted, except
    /// pipelines.
    groups: Vec<(GroupStageRelation, Vec<Rank>)>,
    /// For each rank, the indices in `groups` of the groups that contain it.
    of_rank: Vec<Vec<u32>>,
    /// For each group of the replay, true if the group's collectives cross stages.
    across: Vec<bool>,
    /// True if the job has a pipeline group.
    stated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupStageRelation {
    Pipeline,
    Across,
    Within,
}

impl GroupStageRelation {
    fn from_role(role: &str) -> Self {
        let role = role.to_ascii_lowercase();
        let has = |words: [&str; 2]| {
            let mut parts = role.split(|c: char| !c.is_ascii_alphanumeric());
            parts.any(|part| words.contains(&part))
        };
        match (has(PIPELINES), has(ACROSS)) {
            (true, _) => Self::Pipeline,
            (_, true) => Self::Across,
            _ => Self::Within,
        }
    }
}

impl<'a> CrossStageCommunicationDetector<'a> {
    /// Reads the group roles of `prepared`.
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Self {
        let workload = prepared.workload_with_added_launches();
        let is_across =
            |role: &String| GroupStageRelation::from_role(role) != GroupStageRelation::Within;
        let across = prepared.group_views().map(|group| {
            let role = &workload.groups()[group.id.index()].role;
            role.as_ref().is_some_and(is_across)
        });
        let mut stages = Self {
            across: across.collect(),
            prepared,
            groups: Vec::new(),
            of_rank: vec![Vec::new(); workload.rank_count_including_untraced() as usize],
            stated: false,
        };
        for group in workload.groups() {
            let role = group.role.as_deref().map(GroupStageRelation::from_role);
            stages.stated |= role == Some(GroupStageRelation::Pipeline);
            let whole = group.members.len() >= workload.rank_count_including_untraced() as usize;
            let Some(role) = role.filter(|&role| !whole || role == GroupStageRelation::Pipeline)
            else {
                continue;
            };
            let mut members = group.members.clone();
            members.sort_unstable();
            for member in &members {
                stages.of_rank[member.index()].push(stages.groups.len() as u32);
            }
            stages.groups.push((role, members));
        }
        stages
    }

    /// Returns true if a send, receive or collective has partners in another stage.
    #[inline]
    pub fn has_partners_in_other_stage(
        &self,
        instance: InstanceId,
        node: NodeIndex,
        kind: NodeKind,
    ) -> bool {
        if kind == NodeKind::Collective {
            return self.across[self
                .prepared
                .group_of_collective_node(instance, node)
                .index()];
        }
        if kind == NodeKind::Communication {
            return false;
        }
        let workload = self.prepared.workload_with_added_launches();
        let of = &workload.instances()[instance.index()];
        let graph = workload.graph_of(of);
        let peer = graph.messages()[graph.message_index(node)].peer;
        self.are_in_different_stages(of.rank, of.peers[peer as usize])
    }

    /// Returns true if a message between these ranks goes from one stage to another.
    fn are_in_different_stages(&self, one: Rank, other: Rank) -> bool {
        let shared = |role: GroupStageRelation| {
            let groups = self.of_rank[one.index()].iter();
            let mut groups = groups.map(|&group| &self.groups[group as usize]);
            groups.any(|(of, members)| *of == role && members.binary_search(&other).is_ok())
        };
        match self.stated {
            true => shared(GroupStageRelation::Pipeline),
            false => one != other && !shared(GroupStageRelation::Within),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_say_whether_members_are_stages() {
        for (role, expected) in [
            ("pp", GroupStageRelation::Pipeline),
            ("Pipeline parallel", GroupStageRelation::Pipeline),
            ("embedding", GroupStageRelation::Across),
            ("tensor", GroupStageRelation::Within),
            ("dp_cp", GroupStageRelation::Within),
            ("shipping", GroupStageRelation::Within),
        ] {
            assert_eq!(GroupStageRelation::from_role(role), expected, "{role}");
        }
    }
}
