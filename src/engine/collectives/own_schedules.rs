//! Provides schedules for members that execute different collectives as the n-th collective of their group. This can
//! happen only if the replay matches collectives in issue order.

use super::{CollectiveIssueMismatch, Collectives, LaneHoldingMemberCollectiveNode};
use crate::discipline::RequiredCollectiveBackendTraits;
use crate::ids::{InstanceNode, LaunchGroupAndMemberIndex, RunIndex};
use crate::plan::NONE;
use chakram_base::ids::NodeIndex;
use chakram_hardware::collective::CollectiveRequest;

impl<M: RequiredCollectiveBackendTraits> Collectives<'_, M> {
    /// Returns the schedule of a member whose collective differs from the other members'. If this member and another
    /// one on a common line would exchange different messages, returns the other member as the error.
    fn schedule_of_differing_member(
        &mut self,
        call: LaneHoldingMemberCollectiveNode<'_, '_>,
        slot: LaunchGroupAndMemberIndex,
        run: RunIndex,
    ) -> Result<u32, usize> {
        let (graph, node) = (call.running.graph, call.node);
        let (kind, bytes) = (
            graph.collective_of(node).kind,
            graph.stated_bytes_of_node(node),
        );
        let group = self.chunks.groups[slot.group].plan;
        let of = &self.chunks.runs[run];
        let mut come = of
            .arrivals
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| **node != NONE)
            .map(|(member, _)| member);
        let first = come.clone().next().unwrap_or(0);
        let Some(shared) = of
            .request
            .filter(|_| self.chunks.backend.matches_collectives_in_issue_order())
        else {
            return Err(first);
        };
        let buffer = kind.buffer_bytes(bytes, group.members.len() as u32);
        let request = CollectiveRequest {
            node: graph.id(node),
            kind,
            bytes,
            buffer: buffer.unwrap_or(u64::MAX),
            splits: None,
            number: shared.number,
        };
        let backend = &*self.chunks.backend;
        let identity = self.chunks.groups[slot.group].id;
        let variant = backend.cache_key_apart_from_group_kind_bytes(&request);
        let work_out = || backend.chunk_schedule(&request, &group.extent, &group.paths);
        let schedules = &mut self.chunks.schedules;
        let number =
            schedules.find_or_create_schedule(identity, &request, of.root, variant, work_out);
        let own = self.chunks.schedules.schedule_by_number(number);
        if (own.chunk_count(), own.stages_per_chunk()) != (of.chunks, of.length) {
            return Err(first);
        }
        let stages = |number| {
            self.chunks
                .schedules
                .schedule_by_number(number)
                .stages_of_all_routes()
        };
        // Identify lines by size and stride, because a phase over all members may have the same line as a phase along
        // one dimension.
        let line = |phase: usize| {
            let phase = &group.extent.phases[phase];
            (phase.size, phase.stride)
        };
        let along = |number, phase| {
            let stages: &[M::Stage] = stages(number);
            let passes = move |stage: &&M::Stage| line(backend.phase_index(stage)) == line(phase);
            stages.iter().filter(passes)
        };
        let phases = 0..group.extent.phases.len();
        // Every stage needs a counterpart in the first member's schedule, but phases may come in another order.
        let passes = |phase| along(number, phase).count() == along(of.schedule, phase).count();
        if !phases.clone().all(passes) {
            return Err(first);
        }
        // Members exchange messages only along common lines of a phase, so only members on one line must agree.
        let positions = &group.extent.position_of;
        let position = positions[slot.member.index()];
        let disagrees = |&member: &usize| {
            let (other, at) = (
                of.schedule_index_of_member_at(positions[member]),
                positions[member],
            );
            let differs = |phase: usize| {
                let line = &group.extent.phases[phase];
                let mut both = along(number, phase).zip(along(other, phase));
                line.position_with_index_in_line(position, 0)
                    == line.position_with_index_in_line(at, 0)
                    && !both.all(|(own, theirs)| backend.stages_exchange_same_messages(own, theirs))
            };
            other != number && phases.clone().any(differs)
        };
        come.find(disagrees).map_or(Ok(number), Err)
    }

    /// Checks whether a member's collective is the same as the first member's. If the collectives differ, gives the
    /// member its own schedule. If the member's messages also differ from a partner's messages, records the two members
    /// as the mismatch.
    pub(super) fn give_own_schedule_if_call_differs(
        &mut self,
        call: LaneHoldingMemberCollectiveNode<'_, '_>,
        slot: LaunchGroupAndMemberIndex,
        run: RunIndex,
    ) {
        let (graph, node) = (call.running.graph, call.node);
        let of = &self.chunks.runs[run];
        let same = of.request.is_some_and(|request| {
            request.kind == graph.collective_of(node).kind
                && request.bytes == graph.stated_bytes_of_node(node)
        });
        if same && of.own_schedules.is_empty() || self.mismatch.is_some() {
            return;
        }
        let own = self.schedule_of_differing_member(call, slot, run);
        let of = &mut self.chunks.runs[run];
        let group = self.chunks.groups[slot.group].plan;
        match own {
            Ok(own) => {
                if of.own_schedules.is_empty() {
                    of.own_schedules = vec![of.schedule; group.members.len()];
                }
                let position = group.extent.position_of[slot.member.index()];
                of.own_schedules[position.index()] = own;
            }
            Err(other) => {
                // The loop stops with this mismatch as an error after the current round.
                self.mismatch = Some(CollectiveIssueMismatch {
                    group: slot.group,
                    sequence: of.sequence,
                    own: InstanceNode {
                        instance: call.instance,
                        node,
                    },
                    other: (group.members[other], NodeIndex(of.arrivals.nodes[other])),
                });
            }
        }
    }
}
