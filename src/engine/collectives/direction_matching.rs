//! Members that run one stage of a collective in different directions or trees.
//!
//! If NPUs alternate between the queues or the trees of a dimension, members that carried out different numbers of
//! collectives before go opposite ways round a ring, or sit in different trees. A message then has a receiver only if
//! it comes from a source of the receiver's own direction, and counts among the messages from there. So messages and
//! requests are kept until the queue slot of their receiver is known.

use super::executor::ChunkExecutor;
use super::run::OUTSIDE;
use crate::discipline::CollectiveModel;
use crate::ids::{CellIndex, RunCell, RunIndex, SharedStage};
use chakram_base::ids::Position;

/// A message or rendezvous request, as its sender numbers it.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnsortedMessage {
    /// Cell of the sender.
    pub from: CellIndex,
    /// Its stage, as members know it ([`ChunkExecutor::shared_stage`]).
    pub stage: SharedStage,
    /// Of a message, the steps that its receiver has to have taken; of a request, the step that is requested; both as
    /// the sender counts them.
    pub number: u32,
    pub is_request: bool,
}

impl<M: CollectiveModel> ChunkExecutor<'_, M> {
    /// Returns the number of a message or request as its receiver, the cell `to`, counts it; `None` if that never
    /// receives from the sender, or is not enrolled, in which case it is kept.
    pub(super) fn number_for_receiver(
        &mut self,
        id: RunIndex,
        to: CellIndex,
        message: UnsortedMessage,
    ) -> Option<u32> {
        let run = &mut self.runs[id];
        let progress = run.progress.as_mut()?;
        if progress.cells[to.index()].stage == OUTSIDE {
            progress.unsorted.entry(to).or_default().push(message);
            return None;
        }
        self.receiver_number(id, to, message)
    }

    /// Converts the number where both ends are enrolled.
    fn receiver_number(
        &mut self,
        id: RunIndex,
        to: CellIndex,
        message: UnsortedMessage,
    ) -> Option<u32> {
        let UnsortedMessage {
            from,
            stage,
            number,
            is_request,
        } = message;
        let run = &self.runs[id];
        let progress = run.progress.as_ref()?;
        let own = |cell| self.own_stage(run, run.position(cell), stage);
        let queue_slot =
            |cell: CellIndex| progress.queue_slots[cell.index() * run.length + own(cell).index()];
        let backend = &*self.backend;
        // Members in one direction and tree number their messages alike.
        if backend.slot_class(queue_slot(from)) == backend.slot_class(queue_slot(to)) {
            return Some(number);
        }
        let group = self.groups[run.group].plan;
        let schedule = self.schedules.get(run.schedule_at(run.position(to)));
        let of = *schedule.stage(run.chunk_in(schedule, to), own(to))?;
        let ends = (run.position(from), run.position(to));
        let line = backend.line_position(&group.extent, &of, ends.1, run.root)?;
        let index = group.extent.phases[backend.phase(&of)].index(ends.0);
        let found = if is_request {
            backend.requested_step(&of, queue_slot(to), line, index, number)
        } else {
            backend.steps_before_receive(&of, queue_slot(to), line, index, number)
        };
        if found.is_none() {
            let progress = self.runs[id].progress.as_mut()?;
            progress.crossing.get_or_insert(ends);
        }
        found
    }

    /// Processes the messages kept for a member that is enrolled with a chunk, whose queue slots are now known.
    pub(super) fn number_deferred(&mut self, at: RunCell) {
        let run = &mut self.runs[at.run];
        let (position, length) = (run.position(at.cell), run.length);
        let Some(progress) = run.progress.as_mut() else {
            return;
        };
        let first = *progress.first.get_or_insert(position);
        let run = &self.runs[at.run];
        let Some(progress) = &run.progress else {
            return;
        };
        let class = |cell: CellIndex, position: Position, shared: SharedStage| {
            let own = self.own_stage(run, position, shared).index();
            let slots = &progress.queue_slots[cell.index() * length..];
            self.backend.slot_class(slots[own])
        };
        let other = at.cell.moved(position, first);
        let mut stages = (0..length as u16).map(SharedStage);
        let mixed = stages.any(|s| class(at.cell, position, s) != class(other, first, s));
        let Some(progress) = self.runs[at.run].progress.as_mut() else {
            return;
        };
        progress.mixed |= mixed;
        for early in progress.unsorted.remove(&at.cell).unwrap_or_default() {
            let stage = early.stage;
            let Some(number) = self.receiver_number(at.run, at.cell, early) else {
                continue;
            };
            let progress = self.runs[at.run].progress.as_mut();
            let progress = progress.expect("it has begun");
            // A request for step s is due once s + 1 steps are taken, a message once the steps that it names are.
            if early.is_request {
                progress.defer(at.cell, stage, number + 1, true)
            } else if number == 0 {
                progress.waiting[at.cell.index() * length + stage.index()] += 1;
            } else {
                progress.defer(at.cell, stage, number, false)
            }
        }
    }
}
