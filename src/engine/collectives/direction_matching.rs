//! Matches messages among members that run the same stage of a collective in different directions or trees.
//!
//! NPUs may alternate between the queues or trees of a dimension. Two members that have executed different numbers of
//! collectives may therefore use opposite directions of a ring, or different trees. A member receives a message only if
//! its own direction expects messages from the sender. The member counts it together with other messages from this
//! sender. The engine stores messages and requests until it knows the receiver's direction or tree (its queue slot).

use super::executor::CollectiveMessageSimulator;
use super::run::OUTSIDE;
use crate::discipline::RequiredCollectiveBackendTraits;
use crate::ids::{CellIndex, ChunkAtMember, RunIndex, SharedStage};
use chakram_base::ids::Position;

/// A message or rendezvous request whose step number still follows the sender's numbering, not the receiver's.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageOrRequestWithSenderStepNumber {
    /// The chunk at the sending member.
    pub from: CellIndex,
    /// Stage index of the message, in the numbering that all members use
    /// ([`CollectiveMessageSimulator::shared_stage_number`]).
    pub stage: SharedStage,
    /// For a message, the number of steps that the receiver must have taken before it accepts the message. For a
    /// request, the index of the requested step. Both numbers follow the sender's numbering.
    pub number: u32,
    pub is_request: bool,
}

impl<M: RequiredCollectiveBackendTraits> CollectiveMessageSimulator<'_, M> {
    /// Converts the step number of a message or request to the numbering of the receiver `to` (a chunk at a member).
    /// Returns `None` if the receiver never receives from the sender. Also returns `None` if the receiver is not
    /// enrolled yet; the caller then stores the message.
    pub(super) fn renumber_step_or_defer_message(
        &mut self,
        id: RunIndex,
        to: CellIndex,
        message: MessageOrRequestWithSenderStepNumber,
    ) -> Option<u32> {
        let run = &mut self.runs[id];
        let progress = run.progress.as_mut()?;
        if progress.cells[to.index()].stage == OUTSIDE {
            progress.unsorted.entry(to).or_default().push(message);
            return None;
        }
        self.convert_to_receiver_step_number(id, to, message)
    }

    /// Converts a message's step number to the receiver's numbering. Sender and receiver must be enrolled.
    fn convert_to_receiver_step_number(
        &mut self,
        id: RunIndex,
        to: CellIndex,
        message: MessageOrRequestWithSenderStepNumber,
    ) -> Option<u32> {
        let MessageOrRequestWithSenderStepNumber {
            from,
            stage,
            number,
            is_request,
        } = message;
        let run = &self.runs[id];
        let progress = run.progress.as_ref()?;
        let own = |cell| self.own_stage_index(run, run.position_of_cell(cell), stage);
        let queue_slot =
            |cell: CellIndex| progress.queue_slots[cell.index() * run.length + own(cell).index()];
        let backend = &*self.backend;
        // Members with the same direction and tree use the same numbering.
        if backend.direction_or_tree_of_slot(queue_slot(from))
            == backend.direction_or_tree_of_slot(queue_slot(to))
        {
            return Some(number);
        }
        let group = self.groups[run.group].plan;
        let schedule = self
            .schedules
            .schedule_by_number(run.schedule_index_of_member_at(run.position_of_cell(to)));
        let of = *schedule
            .stage_of_chunk(run.chunk_of_cell_or_zero_if_uniform(schedule, to), own(to))?;
        let ends = (run.position_of_cell(from), run.position_of_cell(to));
        let line = backend.line_position(&group.extent, &of, ends.1, run.root)?;
        let index = group.extent.phases[backend.phase_index(&of)].member_index_in_dimension(ends.0);
        let found = if is_request {
            backend.translate_requested_step_to_sender(&of, queue_slot(to), line, index, number)
        } else {
            backend.steps_before_posting_receive(&of, queue_slot(to), line, index, number)
        };
        if found.is_none() {
            let progress = self.runs[id].progress.as_mut()?;
            progress.crossing.get_or_insert(ends);
        }
        found
    }

    /// Processes the messages that arrived for a chunk before the member started. The chunk's directions or trees (its
    /// queue slots) are now known.
    pub(super) fn renumber_deferred_messages(&mut self, at: ChunkAtMember) {
        let run = &mut self.runs[at.run];
        let (position, length) = (run.position_of_cell(at.cell), run.length);
        let Some(progress) = run.progress.as_mut() else {
            return;
        };
        let first = *progress.first.get_or_insert(position);
        let run = &self.runs[at.run];
        let Some(progress) = &run.progress else {
            return;
        };
        let class = |cell: CellIndex, position: Position, shared: SharedStage| {
            let own = self.own_stage_index(run, position, shared).index();
            let slots = &progress.queue_slots[cell.index() * length..];
            self.backend.direction_or_tree_of_slot(slots[own])
        };
        let other = at.cell.same_chunk_at_other_position(position, first);
        let mut stages = (0..length as u16).map(SharedStage);
        let mixed = stages.any(|s| class(at.cell, position, s) != class(other, first, s));
        let Some(progress) = self.runs[at.run].progress.as_mut() else {
            return;
        };
        progress.mixed |= mixed;
        for early in progress.unsorted.remove(&at.cell).unwrap_or_default() {
            let stage = early.stage;
            let Some(number) = self.convert_to_receiver_step_number(at.run, at.cell, early) else {
                continue;
            };
            let progress = self.runs[at.run].progress.as_mut();
            let progress = progress.expect("it has begun");
            // A request for step s is due after the sender has taken s + 1 steps. A message carries the number of steps
            // after which it is due.
            if early.is_request {
                progress.defer_message(at.cell, stage, number + 1, true)
            } else if number == 0 {
                progress.waiting[at.cell.index() * length + stage.index()] += 1;
            } else {
                progress.defer_message(at.cell, stage, number, false)
            }
        }
    }
}
