//! Finds the profiler step and the Python calls around host intervals.

use super::{HostInterval, HostIntervalKind, JoinedRankCapture, KeptCaptureWindow, NONE};
use chakram_trace::format::origin::{
    CallStacks, NestedPythonCall, parse_step_from_profiler_range_name,
};
use std::cmp::Reverse;

/// Python calls around the host intervals of a rank.
#[derive(Clone, Debug, Default)]
pub struct IntervalPythonStacks {
    /// All calls that were running at the start of an interval.
    pub calls: CallStacks,
    /// For each interval, the innermost call around it, or [`NONE`]. Empty if no calls were
    /// recorded.
    innermost: Vec<u32>,
}

impl IntervalPythonStacks {
    /// Returns the number of the innermost call around an interval, counted from 1, or 0 if there is none.
    pub fn innermost_python_call_of_item(&self, item: u32) -> u32 {
        let innermost = self.innermost.get(item as usize).copied();
        innermost.map_or(0, |call| call.wrapping_add(1))
    }
}

/// Profiled steps of a rank, sorted by start. Each step has a number and a time window.
#[derive(Clone, Debug, Default)]
pub struct ProfiledStepWindows(Vec<(u64, KeptCaptureWindow)>);

impl ProfiledStepWindows {
    /// Returns the number of the step in which an interval starts, or `None` if the interval starts outside all steps.
    pub fn step_number_of_interval(&self, item: &HostInterval) -> Option<u64> {
        let begun = self.0.partition_point(|(_, of)| of.from <= item.start);
        let (number, of) = self.0.get(begun.checked_sub(1)?)?;
        of.contains_time(item.start).then_some(*number)
    }
}

/// A Python call on a thread.
struct PythonCallInterval {
    start: i64,
    end: i64,
    /// Index of the function's name in the Kineto trace's string table.
    name: u32,
}

impl JoinedRankCapture {
    /// Returns the profiled steps of this rank.
    pub fn step_windows(&self) -> ProfiledStepWindows {
        let ranges = self.items.iter();
        let ranges =
            ranges.filter(|item| self.kind_of_host_interval(item) == HostIntervalKind::Annotation);
        let steps = ranges.filter_map(|item| {
            let window = KeptCaptureWindow {
                from: item.start,
                to: item.end,
            };
            Some((
                parse_step_from_profiler_range_name(self.host_interval_name(item))?,
                window,
            ))
        });
        let mut steps: Vec<(u64, KeptCaptureWindow)> = steps.collect();
        steps.sort_by_key(|(number, of)| (of.from, *number));
        ProfiledStepWindows(steps)
    }

    /// Finds the Python calls around each interval: the calls that were running on the interval's thread when
    /// the interval started. Ranges that are named after modules count as calls.
    pub(super) fn find_python_stacks(&mut self) {
        let texts = &self.kineto.texts;
        let modules =
            (0..texts.len() as u32).map(|name| CallStacks::is_module_call(texts.get(name)));
        let modules: Vec<bool> = modules.collect();
        if self.kineto.python.is_empty() && !modules.contains(&true) {
            return;
        }
        let mut of_track: Vec<Vec<PythonCallInterval>> = Vec::new();
        of_track.resize_with(self.kineto.tracks.len(), Vec::new);
        for call in std::mem::take(&mut self.kineto.python) {
            of_track[call.track as usize].push(PythonCallInterval {
                start: call.start_ns,
                end: call.start_ns.saturating_add_unsigned(call.duration_ns),
                name: call.name,
            });
        }
        let is_range = |item: &HostInterval| {
            let event = &self.kineto.events[item.event as usize];
            HostIntervalKind::from_event_category(event.category) == HostIntervalKind::Annotation
        };
        for item in &self.items {
            let event = &self.kineto.events[item.event as usize];
            if is_range(item) && modules[event.name as usize] {
                of_track[event.track as usize].push(PythonCallInterval {
                    start: item.start,
                    end: item.end,
                    name: event.name,
                });
            }
        }
        let mut found = EnclosingPythonCallTree::default();
        let mut innermost = vec![NONE; self.items.len()];
        for thread in &self.threads {
            let calls = &mut of_track[thread.track as usize];
            // If two calls start at the same time, the longer one encloses the shorter.
            calls.sort_by_key(|call| (call.start, Reverse(call.end)));
            let own = thread.items.start as usize..thread.items.end as usize;
            found.find_innermost_calls(
                calls,
                &self.items[own.clone()],
                &mut innermost[own],
                is_range,
            );
        }
        self.stacks =
            found.keep_used_calls(innermost, |name| self.kineto.texts.get(name).to_owned());
    }
}

/// All Python calls, on any thread, that were running when some interval started.
#[derive(Default)]
struct EnclosingPythonCallTree {
    /// Name and caller of each call, both as indices.
    calls: Vec<(u32, u32)>,
}

impl EnclosingPythonCallTree {
    /// For each of `items`, finds the innermost of `calls` that contains the item's start. `items` and `calls` belong
    /// to one thread and are sorted by start. A call that only opens a range ends before the range does. A call
    /// therefore contains a range only if the call ends later.
    fn find_innermost_calls(
        &mut self,
        calls: &[PythonCallInterval],
        items: &[HostInterval],
        innermost: &mut [u32],
        is_range: impl Fn(&HostInterval) -> bool,
    ) {
        // Index and end of each open call, outermost first.
        let mut open: Vec<(u32, i64)> = Vec::new();
        let mut calls = calls.iter().peekable();
        for (item, innermost) in items.iter().zip(innermost) {
            let around = |call: &&PythonCallInterval| {
                let (start, end) = (call.start, call.end);
                start < item.start || start == item.start && end >= item.end
            };
            while let Some(call) = calls.next_if(around) {
                close_ended_calls(&mut open, call.start);
                let caller = open.last().map_or(NONE, |&(caller, _)| caller);
                open.push((self.calls.len() as u32, call.end));
                self.calls.push((call.name, caller));
            }
            close_ended_calls(&mut open, item.start);
            let least = match is_range(item) {
                true => item.end,
                false => i64::MIN,
            };
            let around = open.iter().rev().find(|&&(_, end)| end >= least);
            *innermost = around.map_or(NONE, |&(call, _)| call);
        }
    }

    /// Keeps only the calls that contain intervals, and renumbers these calls and their names.
    fn keep_used_calls(
        self,
        mut innermost: Vec<u32>,
        name: impl Fn(u32) -> String,
    ) -> IntervalPythonStacks {
        let mut is_used = vec![false; self.calls.len()];
        for &call in innermost.iter().filter(|&&call| call != NONE) {
            is_used[call as usize] = true;
        }
        // Callers come before their callees, so the reverse order handles callees first.
        for (call, &(_, caller)) in self.calls.iter().enumerate().rev() {
            if is_used[call] && caller != NONE {
                is_used[caller as usize] = true;
            }
        }
        let mut kept = CallStacks::default();
        let mut number = vec![NONE; self.calls.len()];
        let mut names = std::collections::BTreeMap::new();
        let used = self.calls.iter().zip(&is_used).enumerate();
        for (call, (&(text, caller), _)) in used.filter(|(_, (_, used))| **used) {
            number[call] = kept.calls.len() as u32;
            let next = names.len() as u32;
            let own = *names.entry(text).or_insert(next);
            if own == next {
                kept.names.push(name(text));
            }
            let caller = number.get(caller as usize).copied();
            kept.calls.push(NestedPythonCall { name: own, caller });
        }
        for call in innermost.iter_mut().filter(|call| **call != NONE) {
            *call = number[*call as usize];
        }
        IntervalPythonStacks {
            calls: kept,
            innermost,
        }
    }
}

/// Closes the calls that had ended by `time`.
fn close_ended_calls(open: &mut Vec<(u32, i64)>, time: i64) {
    while open.last().is_some_and(|&(_, end)| end <= time) {
        open.pop();
    }
}
