//! Cache of the schedules of collectives, shared by equal collectives.

use super::rehearsal::RehearsalState;
use crate::ids::ReplayGroupId;
use chakram_base::ids::Position;
use chakram_base::units::Span;
use chakram_hardware::collective::{ChunkSchedule, CollectiveRequest, OrderChange};
use chakram_trace::format::CollectiveKind;
use std::collections::BTreeMap;

/// Key of a schedule: group, kind, bytes, root, and a variant chosen by the backend.
type ScheduleKey = (ReplayGroupId, CollectiveKind, u64, Position, u64);

/// Reference to a stage: the index of its schedule, and of the stage in the schedule. The reference
/// fits in a register, so it is passed faster than a stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageRef {
    pub schedule: u32,
    pub index: u32,
}

/// A schedule, and its closed form once that has been computed.
#[derive(Debug)]
pub(super) struct CachedSchedule<S> {
    pub schedule: ChunkSchedule<S>,
    /// Duration if all members start together and nothing else is in flight. Outer `None`: not computed yet. Inner
    /// `None`: no closed form is proved.
    pub closed: Option<Option<Span>>,
    /// For insertion order, the changes that bring members into the order of their ends, if this order is proved.
    pub end_order: Option<Vec<OrderChange>>,
    pub rehearsal: RehearsalState,
}

/// All schedules that a replay has used.
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
    /// Returns the index of a request's schedule. On first use the schedule is computed by
    /// `work_out`.
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
