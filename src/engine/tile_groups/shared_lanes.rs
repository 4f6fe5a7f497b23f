//! Lanes that gathering collectives share with other nodes. (A collective *gathers* if it is launched only when every
//! member is ready.)
//!
//! When the last member is ready, a collective on a shared lane queues for the lane on all members at once. By then,
//! lower ranks have posted this round's nodes, and higher ranks have not. The simulated instance (the leader) posts a
//! node for all members together; the order stays the same only if no other node is posted to this lane in the round.
//! If several nodes are posted to the lane, or if a node is posted while another collective waits for its members, the
//! group is first split into single ranks.

use super::InstanceGroupsSimulatedAsOne;
use crate::dataflow::{
    Dataflow, RunningRankInstance, pack_instance_and_node, unpack_instance_and_node,
};
use crate::effects::Effects;
use crate::ids::{InstanceIndex, InstanceNode};
use crate::lanes::LanesOfAllNpus;
use crate::plan::NONE;
use chakram_base::ids::NodeIndex;
use chakram_trace::graph::NodeKind;

impl RunningRankInstance<'_> {
    /// Returns one flag per NPU lane: true if other nodes share the lane with one of the instance's collectives that
    /// wait for every member. The list is empty if no lane is shared.
    pub(super) fn shared_lane_flags(&self) -> Vec<bool> {
        let Self { graph, shared, .. } = self;
        let mut lanes = Vec::new();
        for call in graph.collective_calls() {
            if shared.mixed[call.group as usize] {
                lanes.resize(shared.lane_count as usize, false);
                lanes[shared.lanes[graph.lane(call.node) as usize] as usize] = true;
            }
        }
        lanes
    }

    /// Returns true if a node is a gathering collective on a shared lane.
    pub(super) fn is_gathering_collective_on_shared_lane(&self, node: NodeIndex) -> bool {
        let Self { graph, shared, .. } = self;
        graph.kind(node) == NodeKind::Collective
            && shared.mixed[graph.collective_of(node).group as usize]
    }
}

/// Returns how many of an instance's gathering collectives are ready but not yet queued for their lanes. Excludes
/// collectives that became ready in this round, because they are not posted yet.
pub(super) fn count_parked_collectives(
    flow: &Dataflow<'_>,
    lanes: &LanesOfAllNpus,
    effects: &Effects,
    instance: InstanceIndex,
) -> u32 {
    let running = flow.instance(instance);
    let graph = running.graph;
    let is_parked = |node: NodeIndex| {
        let lane = running.first_lane + running.shared.lanes[graph.lane(node) as usize];
        let word = pack_instance_and_node(instance, node);
        flow.is_ready_or_issued(instance, node)
            && !lanes.is_node_holding_or_waiting_for_lane(lane, word)
            && !effects.ready.contains(&word)
    };
    let calls = graph.collective_calls().iter();
    let gathering = calls.filter(|call| running.shared.mixed[call.group as usize]);
    gathering.filter(|call| is_parked(call.node)).count() as u32
}

impl InstanceGroupsSimulatedAsOne {
    /// Returns true if the order on a shared lane would change if the leader posted the first node of `left` for all
    /// members at once.
    #[inline]
    pub fn would_change_shared_lane_order(&self, flow: &Dataflow<'_>, left: &[u64]) -> bool {
        let InstanceNode { instance, node } = unpack_instance_and_node(left[0]);
        let number = self.of.get(instance.index());
        let Some(&number) = number.filter(|&&number| number != NONE) else {
            return false;
        };
        let group = &self.groups[number as usize];
        let lanes = &self.origins[group.origin as usize].shared_lanes;
        if lanes.is_empty() {
            return false;
        }
        let RunningRankInstance { graph, shared, .. } = flow.instance(instance);
        let lane = |node: NodeIndex| shared.lanes[graph.lane(node) as usize];
        let is_shared = |node: NodeIndex| {
            let lane = lane(node);
            lane != NONE && lanes[lane as usize]
        };
        if !is_shared(node) {
            return false;
        }
        let own = left.iter().map(|&word| unpack_instance_and_node(word));
        let own = own.take_while(|own| own.instance == instance);
        let coming = own.filter(|own| is_shared(own.node)).count();
        coming as u32 + group.parked > 1
    }
}
