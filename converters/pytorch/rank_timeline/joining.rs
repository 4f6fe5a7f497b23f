//! Collects host events by thread and nests them.

use super::super::event_links::{HostKinetoMatchMethod, KeptCaptureWindow, KinetoEventHostNodeMap};
use super::super::host::HostTrace;
use super::super::is_host_communication_interval_name;
use super::super::kineto::{EventCategory, KinetoEvent, KinetoTrace};
use super::super::timeline_events::TimelineEventWithoutTimes;
use super::{
    CutOffOverlappingDeviceEventCounts, HostInterval, HostThread, InFlightGlooInterval,
    IntervalPythonStacks, JoinedRankCapture, NONE, event_end_ns, is_device_work_or_sync,
};
use std::cmp::Reverse;

impl JoinedRankCapture {
    /// Joins the two files of a rank, and keeps only events that start in `window`.
    pub fn new(
        rank: u32,
        host: HostTrace,
        kineto: KinetoTrace,
        ordered: bool,
        link: &KinetoEventHostNodeMap,
        window: KeptCaptureWindow,
    ) -> Self {
        let mut this = Self {
            rank,
            host,
            process: kineto.process_with_most_operators(),
            kineto,
            events: Vec::new(),
            untimed: link.method == HostKinetoMatchMethod::HostAlone,
            ordered,
            items: Vec::new(),
            threads: Vec::new(),
            flights: Vec::new(),
            devices: Vec::new(),
            unlaunched: 0,
            beyond: 0,
            by_operator: 0,
            dropped: Vec::new(),
            overlaps: CutOffOverlappingDeviceEventCounts::default(),
            stacks: IntervalPythonStacks::default(),
        };
        let texts = &this.kineto.texts;
        let flies = (0..texts.len() as u32)
            .map(|name| is_host_communication_interval_name(texts.get(name)));
        let flies: Vec<bool> = flies.collect();
        let kept = host_events_kept_in_window(&this.kineto.events, &flies, window);
        let on_track = this.number_threads_by_start(&kept);
        this.move_host_events_to_intervals(kept, &on_track, &flies, link);
        this.find_interval_parents();
        this.find_python_stacks();
        this.add_device_intervals(window);
        this.events =
            TimelineEventWithoutTimes::convert_all(std::mem::take(&mut this.kineto.events));
        this
    }

    /// Numbers the threads in the order of their first events' starts, and returns the thread number of each event.
    fn number_threads_by_start(&mut self, kept: &[u32]) -> Vec<u32> {
        let mut on_track = vec![NONE; self.kineto.tracks.len()];
        let mut firsts: Vec<(i64, u32)> = Vec::new();
        for &index in kept {
            let event = &self.kineto.events[index as usize];
            match &mut on_track[event.track as usize] {
                slot @ &mut NONE => {
                    *slot = firsts.len() as u32;
                    firsts.push((event.start_ns, event.track));
                }
                slot => firsts[*slot as usize].0 = firsts[*slot as usize].0.min(event.start_ns),
            }
        }
        // Sort the threads, so that their numbers do not depend on the order in the file.
        firsts.sort_unstable();
        for (thread, &(_, track)) in firsts.iter().enumerate() {
            on_track[track as usize] = thread as u32;
            self.threads.push(HostThread { track, items: 0..0 });
        }
        on_track
    }

    /// Moves events into sorted lists of host intervals, thread by thread. Communication in flight
    /// goes into a separate list.
    fn move_host_events_to_intervals(
        &mut self,
        kept: Vec<u32>,
        on_track: &[u32],
        flies: &[bool],
        link: &KinetoEventHostNodeMap,
    ) {
        let events = &self.kineto.events;
        let thread_of = |event: &KinetoEvent| on_track[event.track as usize];
        let mut held = vec![0_u32; self.threads.len()];
        for event in kept.iter().map(|&index| &events[index as usize]) {
            held[thread_of(event) as usize] += u32::from(!flies[event.name as usize]);
        }
        let mut place = 0;
        for (thread, held) in self.threads.iter_mut().zip(held) {
            thread.items = place..place;
            place += held;
        }
        let mut order = vec![NONE; place as usize];
        for index in kept {
            let event = &events[index as usize];
            let thread = thread_of(event);
            if flies[event.name as usize] {
                self.flights.push(InFlightGlooInterval {
                    event: index,
                    thread,
                    start: event.start_ns,
                    end: event_end_ns(event),
                    rf_id: event.rf_id,
                });
                continue;
            }
            let own = &mut self.threads[thread as usize].items;
            order[own.end as usize] = index;
            own.end += 1;
        }
        self.flights
            .sort_by_key(|flight| (flight.start, flight.rf_id));
        // If two intervals start at the same time, the longer one encloses the shorter. If they also end at the same
        // time, the one that opened first, and so has the lower id, encloses the other.
        let key = |&index: &u32| {
            let event = &events[index as usize];
            (
                event.start_ns,
                Reverse(event_end_ns(event)),
                event.rf_id,
                index,
            )
        };
        self.items.reserve_exact(order.len());
        for (number, thread) in (0..).zip(&self.threads) {
            let own = &mut order[thread.items.start as usize..thread.items.end as usize];
            // The file is mostly in this order already, so the sort is cheap.
            own.sort_by_key(key);
            self.items.extend(own.iter().map(|&index| {
                let event = &events[index as usize];
                HostInterval {
                    event: index,
                    host: link.host_of[index as usize],
                    thread: number,
                    parent: NONE,
                    start: event.start_ns,
                    end: event_end_ns(event),
                }
            }));
        }
    }

    /// Finds the parent of each host interval.
    fn find_interval_parents(&mut self) {
        let mut open: Vec<u32> = Vec::new();
        let mut thread = NONE;
        for i in 0..self.items.len() {
            let (start, own) = (self.items[i].start, self.items[i].thread);
            if own != thread {
                open.clear();
                thread = own;
            }
            let ended = |&top: &u32| self.items[top as usize].end <= start;
            // Close a host interval that ends when the next interval starts, because such intervals are adjacent and
            // not nested.
            while open.last().is_some_and(ended) {
                open.pop();
            }
            self.items[i].parent = open.last().copied().unwrap_or(NONE);
            open.push(i as u32);
        }
    }
}

/// Returns the host events that start in `window`, and the communication intervals that operators requested within
/// `window`.
fn host_events_kept_in_window(
    events: &[KinetoEvent],
    flies: &[bool],
    window: KeptCaptureWindow,
) -> Vec<u32> {
    let ids = events.iter().filter(|event| {
        window.contains_time(event.start_ns)
            && event.rf_id != 0
            && event.category == EventCategory::CpuOp
    });
    let asked = ids.fold((u64::MAX, 0), |(low, high), event| {
        (low.min(event.rf_id), high.max(event.rf_id))
    });
    let on_host = || {
        events
            .iter()
            .filter(|event| !is_device_work_or_sync(event.category))
    };
    let mut kept: Vec<u32> = Vec::with_capacity(on_host().count());
    for (index, event) in events.iter().enumerate() {
        // Include the id after the last operator's, because it may belong to the operator's interval in flight.
        let inside = if flies[event.name as usize] {
            window.covers_whole_capture() || asked.0 <= event.rf_id && event.rf_id <= asked.1 + 1
        } else {
            window.contains_time(event.start_ns)
        };
        if inside && !is_device_work_or_sync(event.category) {
            kept.push(index as u32);
        }
    }
    kept
}
