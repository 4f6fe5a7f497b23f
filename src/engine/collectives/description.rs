//! Describes why collectives in flight still wait when no event is pending.

use super::run::{CollectiveRun, MemberChunkProgressTable, OUTSIDE};
use crate::plan::PlacedCommunicationGroup;
use chakram_base::ids::{MemberIndex, Position};

impl CollectiveRun {
    /// Describes why a member's chunks wait after all members have arrived.
    pub fn describe_waiting_chunks(
        &self,
        group: &PlacedCommunicationGroup,
        member: MemberIndex,
        is_scripted: bool,
    ) -> String {
        if is_scripted {
            return "its custom algorithm, which waits for one of its own messages at this rank"
                .to_owned();
        }
        let position = group.extent.position_of[member.index()];
        let progress = self.progress.as_ref();
        if let Some((from, to)) = progress.and_then(|progress| progress.crossing) {
            let rank = |at: Position| group.members[group.extent.member_at[at.index()].index()];
            return format!(
                "messages on a different route: rank {} sends to rank {}, which expects messages from \
                 other ranks. Collectives take the queues and trees of a dimension in turn, the second \
                 half of several queues goes backward round a ring, and the members have issued different \
                 numbers of collectives before",
                rank(from),
                rank(to)
            );
        }
        let done = progress.map_or(0, |progress| progress.done[position.index()]);
        let behind = describe_queued_chunks_of_member(progress, position, group.members.len());
        let cause = match self.own_schedules.is_empty() {
            true => "NPUs have taken chunks from their queues in different orders",
            false => "collectives take the dimensions in different orders",
        };
        format!(
            "its chunks, of which {done} of {} are done at this rank{behind}; all members have arrived, but their {cause}",
            self.chunks
        )
    }
}

/// Formats how many of a member's chunks wait in queues.
fn describe_queued_chunks_of_member(
    progress: Option<&MemberChunkProgressTable>,
    position: Position,
    members: usize,
) -> String {
    let cells = progress.map_or(&[][..], |progress| &progress.cells);
    // A member has one cell per chunk. The member's cells are `members` entries apart.
    let own = cells
        .iter()
        .skip(position.index())
        .step_by(members.max(1))
        .filter(|cell| cell.stage != OUTSIDE);
    let (begun, waiting) = own.fold((0, 0), |(begun, waiting), cell| {
        if cell.begun {
            (begun + 1, waiting)
        } else {
            (begun, waiting + 1)
        }
    });
    format!(", {begun} are in a stage or done, and {waiting} wait in a queue")
}
