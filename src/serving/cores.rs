//! Models a processor with identical cores. A closed form gives the start and the end of a job whose tasks are
//! identical.
//!
//! Cores receive tasks in turn. The next job's first task goes to the core after the previous job's last one, even if
//! the jobs belong to different requests. Each core runs its tasks in the order of assignment. A task starts when its
//! core has finished the previous task, the jobs on which it depends have ended, and the task has been generated. Jobs
//! are generated only when their dependencies are complete, so dependencies do not delay a task further.
//!
//! If n tasks are assigned to C cores, starting at pointer p, every core gets floor(n / C) tasks, and n mod C cores,
//! starting at p, get one more. If a core is free from time b and gets m tasks of length d at time t, it is free again
//! at max(b, t) + m d. Neighbouring cores that become free at the same instant are stored as one run. A job's cost is
//! therefore proportional to the number of runs, not to the number of tasks or cores.

use chakram_base::units::{Span, Time};

/// Consecutive cores that become free at the same instant: from `first` to the beginning of the next run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ConsecutiveCoresSharingFreeTime {
    first: u64,
    free: Time,
}

/// A processor's cores, and when each is free.
#[derive(Clone, Debug)]
pub struct CoreFreeTimes {
    cores: u64,
    /// Core that gets the next task.
    pointer: u64,
    runs: Vec<ConsecutiveCoresSharingFreeTime>,
    /// Runs under construction; reused to keep the allocation.
    next: Vec<ConsecutiveCoresSharingFreeTime>,
    /// Core time of all tasks assigned so far, summed over cores, in picoseconds.
    busy_ps: u128,
}

/// Start of a job's first task, and end of its last task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobTimeRange {
    pub start: Time,
    pub end: Time,
}

impl CoreFreeTimes {
    /// Creates `cores` free cores; at least one is created.
    pub fn new(cores: u64) -> Self {
        let all = ConsecutiveCoresSharingFreeTime {
            first: 0,
            free: Time::ZERO,
        };
        Self {
            cores: cores.max(1),
            pointer: 0,
            runs: vec![all],
            next: Vec::new(),
            busy_ps: 0,
        }
    }

    /// Returns the core time of all tasks assigned so far, in picoseconds.
    pub fn busy_ps(&self) -> u128 {
        self.busy_ps
    }

    /// Prevents all cores from starting a task before `until`.
    pub fn block_all_cores_until(&mut self, until: Time) {
        for run in &mut self.runs {
            run.free = run.free.max(until);
        }
        self.runs.dedup_by_key(|run| run.free);
    }

    /// Returns the core time that tasks occupy after `end`, in picoseconds, summed over cores. All tasks up to `end`
    /// must have been assigned, and no cores may be blocked.
    pub fn busy_core_time_after(&self, end: Time) -> u128 {
        let ends = self.runs.iter().skip(1).map(|run| run.first);
        let ends = ends.chain([self.cores]);
        let after = self.runs.iter().zip(ends).map(|(run, next)| {
            let over = run.free.0.saturating_sub(end.0);
            u128::from(over) * u128::from(next - run.first)
        });
        after.sum()
    }

    /// Assigns `tasks` tasks of length `each` at `now`. From call to call, `now` must not decrease. A job without tasks
    /// starts and ends at `now`.
    pub fn assign_tasks(&mut self, now: Time, tasks: u64, each: Span) -> JobTimeRange {
        if tasks == 0 {
            return JobTimeRange {
                start: now,
                end: now,
            };
        }
        self.busy_ps += u128::from(tasks) * u128::from(each.0);
        let (all, more) = (tasks / self.cores, tasks % self.cores);
        let from = self.pointer;
        let until = (from + more) % self.cores;
        self.pointer = until;
        let (mut start, mut end) = (Time::END, now);
        let mut next = std::mem::take(&mut self.next);
        next.clear();
        for (i, run) in self.runs.iter().enumerate() {
            let run_end = self.runs.get(i + 1).map_or(self.cores, |run| run.first);
            let mut first = run.first;
            while first < run_end {
                // The number of tasks per core changes at the pointer before the job and at the pointer after it, so
                // split runs there.
                let cuts = [from, until].into_iter().filter(|cut| *cut > first);
                let piece_end = cuts.min().unwrap_or(run_end).min(run_end);
                let has_more = more > 0
                    && if from < until {
                        (from..until).contains(&first)
                    } else {
                        first >= from || first < until
                    };
                let count = all + u64::from(has_more);
                // An idle core is equivalent to one that becomes free now, so runs of idle cores are merged.
                let ready = run.free.max(now);
                let free = ready + each.times(count);
                if count > 0 {
                    start = start.min(ready);
                    end = end.max(free);
                }
                if next.last().is_none_or(|last| last.free != free) {
                    next.push(ConsecutiveCoresSharingFreeTime { first, free });
                }
                first = piece_end;
            }
        }
        self.next = std::mem::replace(&mut self.runs, next);
        JobTimeRange { start, end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_start_at_the_latest_of_three_instants() {
        // Three cores get 4 tasks of 5 ps each at 10 ps: all cores are busy until 15 ps, and core 0 until 20 ps.
        let mut cores = CoreFreeTimes::new(3);
        let deal = |cores: &mut CoreFreeTimes, now, tasks, each| {
            let dealt = cores.assign_tasks(Time(now), tasks, Span(each));
            (dealt.start.0, dealt.end.0)
        };
        assert_eq!(deal(&mut cores, 10, 4, 5), (10, 20));
        // This job is generated while the cores still run their previous tasks. The three tasks
        // start on cores 1, 2 and 0, at 15, 15 and 20 ps.
        assert_eq!(deal(&mut cores, 12, 3, 4), (15, 24));
        // The core is idle, so the job starts when it is generated (22 ps): core 1 has been free since 19 ps.
        assert_eq!(deal(&mut cores, 22, 1, 1), (22, 23));
        assert_eq!(cores.busy_ps(), 4 * 5 + 3 * 4 + 1);
        // A job without tasks takes no time.
        assert_eq!(deal(&mut cores, 30, 0, 9), (30, 30));
    }

    #[test]
    fn runs_of_cores_merge_when_cores_become_idle() {
        let mut cores = CoreFreeTimes::new(1000);
        for job in 0..10_000_u64 {
            // Jobs are 100 ps apart, so cores become idle between them, and there are at most three runs of cores.
            cores.assign_tasks(Time(job * 100), 1 + job * 7 % 1500, Span(10));
            assert!(cores.runs.len() <= 3, "{}", cores.runs.len());
        }
    }
}
