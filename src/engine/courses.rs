//! The courses of collectives, worked out once for all that are alike.

use crate::collective::{Course, Request};
use crate::trace::CollectiveKind;
use crate::units::Span;
use std::collections::BTreeMap;

/// What tells courses apart: the group, the kind, the bytes, the root, and the manner's own.
type Key = (u32, CollectiveKind, u64, u32, u64);

/// A course, and what is known of it.
#[derive(Debug)]
pub(super) struct Filed<S> {
    pub course: Course<S>,
    /// How long it takes if all members start together and nothing else is under way, once somebody asked:
    /// nothing where that is not proved.
    pub closed: Option<Option<Span>>,
}

/// All of them.
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
    /// The number of a request's course, which `work_out` finds if it is the first of its kind.
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
