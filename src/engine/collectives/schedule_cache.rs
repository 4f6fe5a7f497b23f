//! Caches the schedules of collectives. Equal collectives share one schedule.

use super::rehearsal::ScheduleRehearsalProgress;
use crate::ids::ReplayGroupId;
use chakram_base::ids::Position;
use chakram_base::units::Span;
use chakram_hardware::collective::{
    ChunkStageSequences, CollectiveRequest, MemberOrderChangeForMessages,
};
use chakram_trace::format::CollectiveKind;
use std::collections::BTreeMap;

/// Key of a schedule: group, kind, bytes, root, and a key in which the backend puts everything else.
type ScheduleKey = (ReplayGroupId, CollectiveKind, u64, Position, u64);

/// Reference to a stage: the index of its schedule, and its index in the schedule. The reference fits in a register, so
/// it is faster to pass than the stage itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScheduleStageRef {
    pub schedule: u32,
    pub index: u32,
}

/// A schedule, with its closed form once that has been computed.
#[derive(Debug)]
pub(super) struct ScheduleWithClosedForm<S> {
    pub schedule: ChunkStageSequences<S>,
    /// Duration of the collective if all members start together and nothing else is in flight. The outer `None` means
    /// that the duration has not been computed yet; the inner `None`, that no closed form is proven exact.
    pub closed: Option<Option<Span>>,
    /// Reorderings that turn the order in which members begin into the order in which they end. Used if events are
    /// handled in insertion order. `None` if the order of ends is not proven.
    pub end_order: Option<Vec<MemberOrderChangeForMessages>>,
    pub rehearsal: ScheduleRehearsalProgress,
}

/// All schedules that the collectives of a replay have used.
#[derive(Debug)]
pub(super) struct ScheduleCache<S> {
    cached: Vec<ScheduleWithClosedForm<S>>,
    index: BTreeMap<ScheduleKey, u32>,
}

impl<S> Default for ScheduleCache<S> {
    fn default() -> Self {
        Self {
            cached: Vec::new(),
            index: BTreeMap::new(),
        }
    }
}

impl<S: Copy> ScheduleCache<S> {
    /// Returns the index of a request's schedule in the cache. On first use, calls `work_out` to compute the schedule.
    pub fn find_or_create_schedule(
        &mut self,
        group: ReplayGroupId,
        request: &CollectiveRequest,
        root: Position,
        variant: u64,
        work_out: impl FnOnce() -> ChunkStageSequences<S>,
    ) -> u32 {
        let key = (group, request.kind, request.bytes, root, variant);
        *self.index.entry(key).or_insert_with(|| {
            self.cached.push(ScheduleWithClosedForm {
                schedule: work_out(),
                closed: None,
                end_order: None,
                rehearsal: ScheduleRehearsalProgress::default(),
            });
            self.cached.len() as u32 - 1
        })
    }

    #[inline]
    pub fn schedule_by_number(&self, number: u32) -> &ChunkStageSequences<S> {
        &self.cached[number as usize].schedule
    }

    #[inline]
    pub fn stage_at(&self, of: ScheduleStageRef) -> &S {
        &self.schedule_by_number(of.schedule).stages_of_all_routes()[of.index as usize]
    }

    #[inline]
    pub fn rehearsals_of_schedule(&self, number: u32) -> &ScheduleRehearsalProgress {
        &self.cached[number as usize].rehearsal
    }

    pub fn schedule_mut(&mut self, number: u32) -> &mut ScheduleWithClosedForm<S> {
        &mut self.cached[number as usize]
    }
}
