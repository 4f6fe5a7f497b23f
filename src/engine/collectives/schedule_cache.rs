//! Cache of the schedules of collectives, computed once for all that are alike.

use super::rehearsal::RehearsalState;
use crate::ids::ReplayGroupId;
use chakram_base::ids::Position;
use chakram_base::units::Span;
use chakram_hardware::collective::{ChunkSchedule, CollectiveRequest, OrderChange};
use chakram_trace::format::CollectiveKind;
use std::collections::BTreeMap;

/// Identity of a schedule: group, kind, bytes, root, and a variant of the backend's own.
type ScheduleKey = (ReplayGroupId, CollectiveKind, u64, Position, u64);

/// A stage, by the numbers of its schedule and of itself in there. What is in a register is passed on faster than a stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageRef {
    pub schedule: u32,
    pub index: u32,
}

/// A schedule, and its closed form once computed.
#[derive(Debug)]
pub(super) struct CachedSchedule<S> {
    pub schedule: ChunkSchedule<S>,
    /// Duration if all members start together and nothing else is in flight: outer `None` before it was asked for,
    /// inner `None` where no closed form is proved.
    pub closed: Option<Option<Span>>,
    /// Changes that bring members into the order of their ends, where that is proved, too, in insertion order.
    pub end_order: Option<Vec<OrderChange>>,
    pub rehearsal: RehearsalState,
}

/// All schedules of a replay.
#[derive(Debug)]
pub(super) struct ScheduleCache<S> {
    cached: Vec<CachedSchedule<S>>,
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
    /// Returns the number of a request's schedule, computed by `work_out` if it is the first of its kind.
    pub fn find(
        &mut self,
        group: ReplayGroupId,
        request: &CollectiveRequest,
        root: Position,
        variant: u64,
        work_out: impl FnOnce() -> ChunkSchedule<S>,
    ) -> u32 {
        let key = (group, request.kind, request.bytes, root, variant);
        *self.index.entry(key).or_insert_with(|| {
            self.cached.push(CachedSchedule {
                schedule: work_out(),
                closed: None,
                end_order: None,
                rehearsal: RehearsalState::default(),
            });
            self.cached.len() as u32 - 1
        })
    }

    #[inline]
    pub fn get(&self, number: u32) -> &ChunkSchedule<S> {
        &self.cached[number as usize].schedule
    }

    #[inline]
    pub fn stage(&self, of: StageRef) -> &S {
        &self.get(of.schedule).stages()[of.index as usize]
    }

    #[inline]
    pub fn rehearsals(&self, number: u32) -> &RehearsalState {
        &self.cached[number as usize].rehearsal
    }

    pub fn cached(&mut self, number: u32) -> &mut CachedSchedule<S> {
        &mut self.cached[number as usize]
    }
}
