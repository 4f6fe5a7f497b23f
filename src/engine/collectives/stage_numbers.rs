//! Numbers stages identically for all members, even if the n-th collective of their group differs between members.

use super::executor::CollectiveMessageSimulator;
use super::run::CollectiveRun;
use crate::discipline::{EventOrderDiscipline, RequiredCollectiveBackendTraits};
use crate::ids::{ChunkAtMember, SharedStage};
use chakram_base::ids::{Position, StageIndex};

impl<M: RequiredCollectiveBackendTraits> CollectiveMessageSimulator<'_, M> {
    /// Returns the index that all members use for a cell's current stage (a cell is a chunk at a member). It is the
    /// index of the corresponding stage in the first member's schedule. Members with different collectives may pass
    /// through phases in different orders. Messages are matched by line, so both ends of a message must use the same
    /// number.
    // Always inlined, because each message calls this three times, and most calls only read the cell.
    #[inline(always)]
    pub(super) fn shared_stage_number(&self, at: ChunkAtMember) -> SharedStage {
        let run = &self.runs[at.run];
        let progress = run.progress.as_ref().expect("it has begun");
        let number = progress.cells[at.cell.index()].stage;
        if !M::Order::MATCHES_AS_ISSUED || run.own_schedules.is_empty() {
            return SharedStage(number.0);
        }
        let own = run.schedule_index_of_member_at(run.position_of_cell(at.cell));
        SharedStage(self.matching_stage_in_other_schedule(run, own, run.schedule, number.0))
    }

    /// Returns the stage whose shared number is `shared`, as an index in the schedule that the member at `position`
    /// follows.
    pub(super) fn own_stage_index(
        &self,
        run: &CollectiveRun,
        position: Position,
        shared: SharedStage,
    ) -> StageIndex {
        let own = run.schedule_index_of_member_at(position);
        StageIndex(self.matching_stage_in_other_schedule(run, run.schedule, own, shared.0))
    }

    /// Returns the stage of schedule `to` that corresponds to stage `number` of schedule `from`. The n-th stage of a
    /// phase corresponds to the n-th stage of the same phase.
    #[cold]
    fn matching_stage_in_other_schedule(
        &self,
        run: &CollectiveRun,
        from: u32,
        to: u32,
        number: u16,
    ) -> u16 {
        if from == to {
            return number;
        }
        let stages = |schedule| {
            self.schedules
                .schedule_by_number(schedule)
                .stages_of_all_routes()
        };
        let (from, to): (&[M::Stage], &[M::Stage]) = (stages(from), stages(to));
        let Some(of) = from.get(number as usize) else {
            return number;
        };
        let phases = &self.groups[run.group].plan.extent.phases;
        let line = |stage: &M::Stage| {
            let phase = &phases[self.backend.phase_index(stage)];
            (phase.size, phase.stride)
        };
        let alike = |stage: &&M::Stage| line(stage) == line(of);
        let before = from[..number as usize].iter().filter(alike).count();
        let mut counterparts = (0..).zip(to).filter(|(_, stage)| alike(stage));
        counterparts.nth(before).map_or(number, |(stage, _)| stage)
    }
}
