//! Rendezvous: messages that their receiver has to request.
//!
//! A receiver that posts a receive sends the sender a small request; the data leaves when the request has arrived and
//! the sender is ready. So data arrives before its receive is posted only where two ranks exchange several sizes
//! under one tag, because requests do not carry a size.

use super::Collectives;
use super::run::CellPlace;
use crate::discipline::CollectiveModel;
use crate::effects::Effects;
use crate::fabric::{Fabric, InFlightOp};
use chakram_base::units::Time;
use chakram_hardware::network::NetworkBackend;

impl<M: CollectiveModel> Collectives<'_, M> {
    /// Sends a rendezvous request to every source from which a member now receives.
    pub(super) fn request_messages<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        (id, cell): (u32, u32),
    ) {
        let shared = self.shared_stage(id, cell);
        for k in 0.. {
            let run = &self.runs[id as usize];
            let group = self.groups[run.group as usize].plan;
            let place = run.place(cell, &self.schedules, group, &*self.backend);
            let Some(CellPlace {
                stage,
                queue_slot,
                line: Some(line),
            }) = place
            else {
                return;
            };
            let stage = self.schedules.stage(stage);
            let progress = run.progress.as_ref().expect("it has begun");
            let state = progress.cells[cell as usize];
            let source = self.backend.source(stage, queue_slot, line, state.taken, k);
            let Some(source) = source else {
                return;
            };
            let position = run.position(cell);
            let phase = &group.extent.phases[self.backend.phase(stage)];
            let from = phase.position(position, source.from);
            let op = InFlightOp::ChunkRequest {
                run: id,
                from: cell,
                to: cell - position + from,
                stage: shared,
                step: source.step,
            };
            let npus = &group.extent.npus;
            let ends = (npus[position as usize], npus[from as usize]);
            fabric.request(now, op, ends, effects);
        }
    }

    /// Handles the arrival of a member's request: releases the message if it is ready, and remembers the request
    /// otherwise.
    pub(super) fn on_request<N: NetworkBackend>(
        &mut self,
        fabric: &mut Fabric<'_, N>,
        effects: &mut Effects,
        now: Time,
        (id, to): (u32, u32),
        (stage, step): (u16, u32),
    ) {
        if let Some(op) = self.expected.remove(&(id, to, stage, step)) {
            fabric.release(now, op, effects);
            return;
        }
        let progress = self.runs[id as usize]
            .progress
            .as_mut()
            .expect("a member waits for it");
        progress.defer(to, stage, step + 1, true);
    }
}
