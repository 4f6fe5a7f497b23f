//! Rendezvous: a message is sent only after its receiver has requested it.
//!
//! A receiver that posts a receive sends a small request to the sender. The data leaves when the request has arrived
//! and the sender is ready. Requests do not state a size. If two ranks exchange messages of several sizes under one
//! tag, a request can therefore release a message before its receive is posted.

use super::executor::CollectiveMessageSimulator;
use super::run::ChunkStageQueueSlotAndLinePosition;
use crate::discipline::RequiredCollectiveBackendTraits;
use crate::effects::Effects;
use crate::fabric::{Fabric, InFlightMessageContext};
use crate::ids::{ChunkAtMember, CollectiveStageStep};
use chakram_base::ids::OpIndex;
use chakram_base::units::Time;
use chakram_hardware::network::NetworkBackend;
use std::collections::BTreeMap;

/// Messages that wait for a rendezvous request. The key is the cell (a chunk at a member), the stage and the step.
#[derive(Debug, Default)]
pub(super) struct RendezvousWithheldMessages(
    BTreeMap<(ChunkAtMember, CollectiveStageStep), OpIndex>,
);

impl RendezvousWithheldMessages {
    /// Stores the op of a step until the receiver requests it.
    pub fn store_withheld_op(&mut self, at: ChunkAtMember, step: CollectiveStageStep, op: OpIndex) {
        self.0.insert((at, step), op);
    }

    /// Removes and returns the op of a requested step, or `None` if the step has not been taken yet.
    pub fn take_withheld_op(
        &mut self,
        at: ChunkAtMember,
        step: CollectiveStageStep,
    ) -> Option<OpIndex> {
        self.0.remove(&(at, step))
    }
}

impl<M: RequiredCollectiveBackendTraits> CollectiveMessageSimulator<'_, M> {
    /// Sends a rendezvous request to every member from which a member now expects messages.
    pub(super) fn request_expected_messages_from_senders<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
    ) {
        let shared = self.shared_stage_number(at);
        for k in 0.. {
            let run = &self.runs[at.run];
            let group = self.groups[run.group].plan;
            let place = run.stage_of_cell(at.cell, &self.schedules, group, &*self.backend);
            let Some(ChunkStageQueueSlotAndLinePosition {
                stage,
                queue_slot,
                line: Some(line),
            }) = place
            else {
                return;
            };
            let stage = self.schedules.stage_at(stage);
            let progress = run.progress.as_ref().expect("it has begun");
            let state = progress.cells[at.cell.index()];
            let source = self.backend.kth_source_to_post_receive_for(
                stage,
                queue_slot,
                line,
                state.taken,
                k,
            );
            let Some(source) = source else {
                return;
            };
            let position = run.position_of_cell(at.cell);
            let phase = &group.extent.phases[self.backend.phase_index(stage)];
            let from = phase.position_with_index_in_line(position, source.from);
            let op = InFlightMessageContext::ChunkRequest {
                run: at.run,
                from: at.cell,
                to: at.cell.same_chunk_at_other_position(position, from),
                stage: shared,
                step: source.step,
            };
            let npus = &group.extent.npus;
            let ends = (npus[position.index()], npus[from.index()]);
            fabric.send_rendezvous_request(now, op, ends, effects);
        }
    }

    /// Handles a rendezvous request that has arrived at a member. Releases the message if it is ready, otherwise stores
    /// the request.
    pub(super) fn release_or_store_requested_message<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        at: ChunkAtMember,
        step: CollectiveStageStep,
    ) {
        if let Some(op) = self.withheld.take_withheld_op(at, step) {
            fabric.submit_withheld_message(now, op, effects);
            return;
        }
        let progress = self.runs[at.run]
            .progress
            .as_mut()
            .expect("a member waits for it");
        progress.defer_message(at.cell, step.stage, step.number + 1, true);
    }
}
