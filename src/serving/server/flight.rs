//! Stores batches in flight, in slabs with stable indices.

use crate::cores::JobTimeRange;
use crate::policy::QueuedRequest;
use chakram_base::units::{Span, Time};
use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

/// A slab: items with stable indices. Later items reuse the indices of removed ones.
#[derive(Debug)]
pub(super) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    /// Adds an item and returns its index.
    pub fn add_item(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.items[place as usize] = Some(item);
                place
            }
            None => {
                self.items.push(Some(item));
                self.items.len() as u32 - 1
            }
        }
    }

    /// Removes and returns the item at `place`, which must exist.
    pub fn remove(&mut self, place: u32) -> T {
        self.free.push(place);
        self.items[place as usize].take().expect("it is there")
    }

    /// Iterates over all items in the order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().flatten()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, place: u32) -> &T {
        self.items[place as usize].as_ref().expect("it is there")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, place: u32) -> &mut T {
        self.items[place as usize].as_mut().expect("it is there")
    }
}

/// A batch: requests for one model, served together.
#[derive(Debug, Default)]
pub(super) struct BatchInFlight {
    /// The batch's earliest request, as it was queued.
    pub first: QueuedRequest,
    /// State indices of the batch's requests.
    pub requests: Vec<u32>,
    pub processor: u32,
    /// Number of incomplete jobs.
    pub left: u32,
    /// Number of incomplete jobs whose times are known.
    pub running: u32,
    /// Number of jobs whose times are known, complete or not.
    pub dealt: u64,
    /// Core time of all jobs whose times are known, in picoseconds.
    pub core_ps: u128,
    /// Time that the incomplete jobs would take on an unloaded processor, if the jobs form a chain.
    pub work_left: Span,
    /// For each job, true if it is complete. Used only if the jobs do not form a chain; empty until the first job is
    /// complete.
    pub ended: Vec<bool>,
    /// Durations of the batch's jobs, unless they are vector products.
    pub lengths: [Span; 2],
    /// Time at which the batch was preempted; `None` if it was not.
    pub put_back: Option<Time>,
    /// Ready jobs that were held back, each with its token in the event loop.
    pub kept: Vec<(u32, u64)>,
    /// Total time that the batch spent preempted, from each preemption until it continued.
    pub preempted: Span,
    /// Time at which a processor took the batch.
    pub began: Time,
    pub run: AnyJobRunningTime,
}

impl BatchInFlight {
    /// Reuses an ended batch for a new batch, which begins at `now` with `jobs` jobs and no requests. It keeps the
    /// allocations.
    pub fn reuse_for_new_batch(
        &mut self,
        now: Time,
        first: QueuedRequest,
        processor: u32,
        jobs: u32,
    ) {
        let mut room = std::mem::take(self);
        room.requests.clear();
        room.kept.clear();
        room.ended.clear();
        room.run.clear();
        *self = Self {
            first,
            processor,
            left: jobs,
            began: now,
            requests: room.requests,
            kept: room.kept,
            ended: room.ended,
            run: room.run,
            ..Self::default()
        };
    }
}

/// Computes the total time during which at least one job runs.
#[derive(Clone, Debug, Default)]
pub(super) struct AnyJobRunningTime {
    done: Span,
    /// Disjoint intervals in which jobs run, in time order. None of these intervals had ended when the last one was
    /// added.
    open: VecDeque<(Time, Time)>,
    /// Start of the first job.
    pub first: Option<Time>,
}

impl AnyJobRunningTime {
    /// Adds a job whose times became known at `now`; it must not start before `now`.
    pub fn add_job(&mut self, now: Time, job: JobTimeRange) {
        self.first = Some(self.first.map_or(job.start, |first| first.min(job.start)));
        while let Some(&(start, end)) = self.open.front() {
            if end > now {
                break;
            }
            self.done += end.since(start);
            self.open.pop_front();
        }
        let from = self.open.partition_point(|(_, end)| *end < job.start);
        let mut to = from;
        let (mut start, mut end) = (job.start, job.end);
        while let Some(&(other_start, other_end)) = self.open.get(to) {
            if other_start > end {
                break;
            }
            (start, end) = (start.min(other_start), end.max(other_end));
            to += 1;
        }
        self.open.drain(from..to);
        self.open.insert(from, (start, end));
    }

    /// Clears all fields, but keeps allocations.
    fn clear(&mut self) {
        self.open.clear();
        (self.done, self.first) = (Span::ZERO, None);
    }

    /// Returns the total time during which at least one job ran.
    pub fn time_while_any_job_ran(&mut self) -> Span {
        let open = self.open.drain(..);
        self.done += open.map(|(start, end)| end.since(start)).sum();
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_jobs_count_once() {
        let job = |start, end| JobTimeRange {
            start: Time(start),
            end: Time(end),
        };
        let mut time = AnyJobRunningTime::default();
        time.add_job(Time(0), job(5, 10));
        time.add_job(Time(0), job(20, 30));
        // This job merges both intervals into one from 5 to 30.
        time.add_job(Time(2), job(8, 22));
        // This job runs from 3 to 4, before the open interval begins.
        time.add_job(Time(3), job(3, 4));
        // All intervals that ended by 40 are closed already. This job runs from 50 to 60, so it
        // starts a new interval.
        time.add_job(Time(40), job(50, 60));
        assert_eq!(time.first, Some(Time(3)));
        assert_eq!(time.time_while_any_job_ran(), Span(25 + 1 + 10));
    }
}
