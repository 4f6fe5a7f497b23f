//! Messages between pipeline stages.

use super::{RankEmitter, TENSOR_LANE, WholeStepNode, fwd_bwd_or_grad_label};
use crate::generate::plan::{AblationEffect, ParallelGroupKind, TensorDataStageCoordinates};
use crate::generate::schedule::{PassKind, PipelinePass};
use chakram_trace::format::{CollectiveKind, NodeMemoryChanges, Op, TraceError, TrainingPhase};

impl RankEmitter<'_, '_> {
    /// Returns the rank on `stage` that exchanges messages with this rank. If stages have adapters, returns the adapter
    /// of the share with the same index.
    fn peer_rank_on_stage(&self, stage: u32) -> u32 {
        let share = self.place.tensor / self.plan.count_members_sharing_adapter(self.place.stage);
        self.plan.placement.rank_at(TensorDataStageCoordinates {
            tensor: share * self.plan.count_members_sharing_adapter(stage),
            stage,
            ..self.place
        })
    }

    /// Returns the message (send or receive) between part `below` and the next part: an activation, or its gradient in
    /// the opposite direction.
    fn message_op_between_parts(
        &self,
        pass: PipelinePass,
        below: u32,
        receive: bool,
        peer: u32,
    ) -> Op<'static> {
        let plan = self.plan;
        let backward = u32::from(pass.kind != PassKind::Forward);
        let number = (self.step * 2 + backward) * plan.part_count() + below;
        Op::Message {
            receive,
            peer,
            // The tag is unique per step, direction, boundary and micro-batch. `check` ensures that
            // the tag fits into an i32.
            tag: (number * plan.micro_batches + pass.micro_batch) as i32,
            bytes: plan.stage_boundary_bytes_per_member(below),
            own: Some(self.rank),
            host: false,
        }
    }

    /// Emits the receive for the input of part `at` from stage `from`, and makes the chain wait for
    /// it.
    pub(super) fn emit_input_receive(
        &mut self,
        pass: PipelinePass,
        at: u32,
        from: u32,
    ) -> Result<(), TraceError> {
        let plan = self.plan;
        let forward = pass.kind == PassKind::Forward;
        let below = if forward { at - 1 } else { at };
        let phase = if forward {
            TrainingPhase::Forward
        } else {
            TrainingPhase::Backward
        };
        self.data.clear();
        self.data.extend_from_slice(&self.chain_tail);
        let mb = pass.micro_batch;
        let mut id = None;
        if self.plan.exchanges_messages_with_other_stages(self.place) {
            id = Some(self.emit_node(WholeStepNode {
                name: format_args!(
                    "mb{mb}/chunk{}/{}/receive",
                    pass.chunk,
                    fwd_bwd_or_grad_label(pass)
                ),
                op: self.message_op_between_parts(pass, below, true, self.peer_rank_on_stage(from)),
                lane: None,
                phase,
                pass: Some(pass),
                layer: None,
                memory: NodeMemoryChanges::default(),
            })?);
        }
        let sender = if forward { at - 1 } else { at + 1 };
        let sums = plan
            .find_sum_computed_by_adapters(sender, pass.kind)
            .is_some();
        let groups = plan.tensor_group_shares_of_stage(self.place.stage);
        let summing = groups
            .and_then(|groups| groups.summing)
            .filter(|_| sums && id.is_some());
        let shares = groups.and_then(|groups| groups.shares);
        let exchanges = [
            (summing, CollectiveKind::AllReduce, "all-reduce"),
            // A collective without an explicit root is rooted at its first member. This member has received the
            // message.
            (shares, CollectiveKind::Broadcast, "broadcast"),
        ];
        for (family, kind, label) in exchanges {
            let Some(family) = family else { continue };
            self.data.clear();
            self.data.extend_from_slice(&self.chain_tail);
            self.data.extend(id);
            id = Some(self.emit_node(WholeStepNode {
                name: format_args!(
                    "mb{mb}/chunk{}/{}/{label}",
                    pass.chunk,
                    fwd_bwd_or_grad_label(pass)
                ),
                op: self.create_collective_op(
                    kind,
                    plan.stage_boundary_bytes_per_member(below),
                    family,
                ),
                lane: Some(TENSOR_LANE),
                phase,
                pass: Some(pass),
                layer: None,
                memory: NodeMemoryChanges::default(),
            })?);
        }
        let mut id = id.expect("members that receive nothing are of a share");
        // If the plan removes the pipeline bubble, no node waits for the message. Scattered parts must still be
        // gathered, however, so the gather waits for the message.
        let waits = !plan.plan.without.has_effect(AblationEffect::Bubble);
        let silent = plan
            .plan
            .without
            .has_effect(AblationEffect::TensorCommunication);
        let gathers = plan.plan.scatter_gather && plan.plan.tensor > 1 && !silent;
        if gathers {
            self.data.clear();
            if waits {
                self.data.push(id)
            } else {
                self.data.extend_from_slice(&self.chain_tail)
            }
            let shard = plan.stage_boundary_bytes_per_member(below);
            id = self.emit_node(WholeStepNode {
                name: format_args!(
                    "mb{mb}/chunk{}/{}/gather",
                    pass.chunk,
                    fwd_bwd_or_grad_label(pass)
                ),
                op: self.create_collective_op(
                    CollectiveKind::AllGather,
                    shard,
                    ParallelGroupKind::Tensor,
                ),
                lane: Some(TENSOR_LANE),
                phase,
                pass: Some(pass),
                layer: None,
                memory: NodeMemoryChanges::default(),
            })?;
        }
        if waits || gathers {
            self.chain_tail.push(id);
        }
        Ok(())
    }

    /// Emits the send of part `at`'s output to stage `to`. Returns the id of the send, or `None` if this member sends
    /// nothing.
    pub(super) fn emit_output_send(
        &mut self,
        pass: PipelinePass,
        at: u32,
        to: u32,
    ) -> Result<Option<u64>, TraceError> {
        if !self.plan.exchanges_messages_with_other_stages(self.place) {
            return Ok(None);
        }
        let forward = pass.kind == PassKind::Forward;
        let below = if forward { at } else { at - 1 };
        self.data.clear();
        self.data.extend_from_slice(&self.chain_tail);
        let mb = pass.micro_batch;
        let sent = self.emit_node(WholeStepNode {
            name: format_args!(
                "mb{mb}/chunk{}/{}/send",
                pass.chunk,
                fwd_bwd_or_grad_label(pass)
            ),
            op: self.message_op_between_parts(pass, below, false, self.peer_rank_on_stage(to)),
            lane: None,
            phase: if forward {
                TrainingPhase::Forward
            } else {
                TrainingPhase::Backward
            },
            pass: Some(pass),
            layer: None,
            memory: NodeMemoryChanges::default(),
        })?;
        Ok(Some(sent))
    }
}
