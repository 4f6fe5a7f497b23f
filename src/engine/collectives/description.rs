//! Description of what collectives in flight wait for, when nothing is pending.

use super::Collectives;
use super::run::{CollectiveRun, OUTSIDE, StepwiseProgress};
use crate::discipline::CollectiveModel;
use crate::plan::{BoundSlot, NONE};
use chakram_base::ids::NodeIndex;

impl<M: CollectiveModel> Collectives<'_, M> {
    /// Returns whether a member of a collective has arrived; `None` if no member has.
    pub fn has_arrived(&self, group: u32, sequence: u32, member: usize) -> Option<bool> {
        let run = self.groups[group as usize].order.run_of[sequence as usize];
        let run = self.runs.get(run as usize)?;
        Some(run.arrivals.nodes[member] != NONE)
    }

    /// Returns the run, message by message, in which a member takes part with `node`.
    pub fn begun_run(&self, slot: BoundSlot, node: NodeIndex) -> Option<&CollectiveRun> {
        self.runs.iter().find(|run| {
            run.group == slot.group
                && run.progress.is_some()
                && run.arrivals.nodes.get(slot.member as usize) == Some(&node.0)
        })
    }

    /// Says what the chunks of a member wait for, in a collective of which all members are there.
    pub fn waiting_chunks(&self, run: &CollectiveRun, member: u32) -> String {
        let group = self.groups[run.group as usize].plan;
        let mut stages = self.schedules.get(run.schedule).stages().iter();
        if stages.any(|stage| self.backend.is_scripted(stage)) {
            return "its algorithm, which waits for a message of its own at this rank".to_owned();
        }
        let position = group.extent.position_of[member as usize];
        let progress = run.progress.as_ref();
        if let Some((from, to)) = progress.and_then(|progress| progress.crossing) {
            let rank = |at: u32| group.members[group.extent.member_at[at as usize] as usize];
            return format!(
                "messages that go another way: rank {} sends to rank {}, which listens to others. The \
                 queues and trees of a dimension are taken in turn, the second half of several queues goes \
                 backward round a ring, and the members have issued different numbers of collectives before",
                rank(from),
                rank(to)
            );
        }
        let done = progress.map_or(0, |progress| progress.done[position as usize]);
        let behind = behind_in_queue(progress, position, group.members.len());
        let cause = match run.own_schedules.is_empty() {
            true => "NPUs have taken chunks from their queues in different orders",
            false => "collectives differ, and take the dimensions in different orders",
        };
        format!(
            "its chunks, of which {done} of {} are done here{behind}; all members are there, but their {cause}",
            run.chunks
        )
    }
}

/// Formats the number of a member's chunks that wait in queues.
fn behind_in_queue(progress: Option<&StepwiseProgress>, position: u32, members: usize) -> String {
    let cells = progress.map_or(&[][..], |progress| &progress.cells);
    // Cells of a member are `members` apart, chunk by chunk.
    let own = cells
        .iter()
        .skip(position as usize)
        .step_by(members.max(1))
        .filter(|cell| cell.stage != OUTSIDE);
    let (begun, waiting) = own.fold((0, 0), |(begun, waiting), cell| {
        if cell.begun {
            (begun + 1, waiting)
        } else {
            (begun, waiting + 1)
        }
    });
    format!(", {begun} are in a stage or done and {waiting} wait in a queue")
}
