//! Cache of the schedules of collectives, computed once for all that are alike.

use crate::collective::{Course, Request};
use crate::trace::CollectiveKind;
use crate::units::Span;
use std::collections::BTreeMap;

/// Identity of a schedule: group, kind, bytes, root, and a variant of the backend's own.
type Key = (u32, CollectiveKind, u64, u32, u64);

/// A schedule, and its closed form once computed.
#[derive(Debug)]
pub(super) struct Filed<S> {
    pub course: Course<S>,
    /// Duration if all members start together and nothing else is in flight: outer `None` before it was asked for,
    /// inner `None` where no closed form is proved.
    pub closed: Option<Option<Span>>,
}

/// All schedules of a replay.
#[derive(Debug)]
pub(super) struct Courses<S> {
    filed: Vec<Filed<S>>,
    index: BTreeMap<Key, u32>,
}

impl<S> Default for Courses<S> {
    fn default() -> Self {
        Self {
            filed: Vec::new(),
            index: BTreeMap::new(),
        }
    }
}

impl<S> Courses<S> {
    /// Returns the number of a request's schedule, computed by `work_out` if it is the first of its kind.
    pub fn find(
        &mut self,
        (group, request, root, variant): (u32, &Request, u32, u64),
        work_out: impl FnOnce() -> Course<S>,
    ) -> u32 {
        let key = (group, request.kind, request.bytes, root, variant);
        *self.index.entry(key).or_insert_with(|| {
            self.filed.push(Filed {
                course: work_out(),
                closed: None,
            });
            self.filed.len() as u32 - 1
        })
    }

    #[inline]
    pub fn get(&self, number: u32) -> &Course<S> {
        &self.filed[number as usize].course
    }

    pub fn filed(&mut self, number: u32) -> &mut Filed<S> {
        &mut self.filed[number as usize]
    }
}
