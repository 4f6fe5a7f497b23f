//! Finds device work, and the host calls that launched it.

use super::super::event_links::KeptCaptureWindow;
use super::super::kineto::{EventCategory, KinetoEvent, KinetoTrace};
use super::super::kineto::{is_graph_launch, is_launch};
use super::{DeviceInterval, HostInterval, JoinedRankCapture, NONE, event_end_ns};

/// Difference between the first lane numbers of successive devices of a process. The lanes of the first device start at
/// 0.
const DEVICE_LANES: i64 = 1_000_000;

impl JoinedRankCapture {
    /// Adds device work that starts in `window` or was launched in it.
    pub(super) fn add_device_intervals(&mut self, window: KeptCaptureWindow) {
        let work = self.kineto.events.iter();
        let work = work.filter(|event| event.category.is_device_work()).count();
        self.find_dropped_launches();
        if work == 0 {
            return;
        }
        self.devices.reserve_exact(work);
        let mut launches = HostIntervalsByEventId::new(&self.items, &self.kineto.events, window);
        let devices = numbers_of_devices_that_ran_work(&self.kineto);
        for (index, event) in self.kineto.events.iter().enumerate() {
            if !event.category.is_device_work() {
                continue;
            }
            let launch =
                match launches.origin_of_device_event(event, &self.items, &self.kineto.events) {
                    DeviceEventOrigin::Call(item) => item,
                    DeviceEventOrigin::Operator(item) => {
                        self.by_operator += 1;
                        item
                    }
                    // The event was launched in another step, or before the capture began.
                    DeviceEventOrigin::Beyond => {
                        self.beyond += 1;
                        continue;
                    }
                    DeviceEventOrigin::Before if window.contains_time(event.start_ns) => {
                        self.unlaunched += 1;
                        NONE
                    }
                    DeviceEventOrigin::Before => {
                        self.beyond += 1;
                        continue;
                    }
                };
            let details = self.kineto.details_of_event(event);
            let device = devices.binary_search(&details.device).unwrap_or(0) as i64;
            self.devices.push(DeviceInterval {
                event: index as u32,
                launch,
                stream: details
                    .stream
                    .saturating_add(device.saturating_mul(DEVICE_LANES)),
                start: event.start_ns,
                end: event_end_ns(event),
            });
        }
        // Among events with the same start, the longest comes last, because cutting at the next start leaves no time
        // for the others.
        self.devices
            .sort_unstable_by_key(|device| (device.stream, device.start, device.end, device.event));
        self.cut_stream_events_at_next_start();
    }

    /// Finds launches whose kernels are missing from the file. Launches that only capture work into a graph run nothing
    /// and do not count. If the kernels have no correlation ids, it is impossible to detect missing ones.
    fn find_dropped_launches(&mut self) {
        let events = &self.kineto.events;
        let mut ran: Option<Vec<u64>> = None;
        let ran = &mut ran;
        let roles = self.kineto.texts.len() as u32;
        let roles = (0..roles).map(|name| {
            RuntimeCallLaunchOrCaptureRole::classify_runtime_call(self.kineto.texts.get(name))
        });
        let roles: Vec<RuntimeCallLaunchOrCaptureRole> = roles.collect();
        for thread in &self.threads {
            let mut captures = false;
            for index in thread.items.clone() {
                let item = &self.items[index as usize];
                let event = &events[item.event as usize];
                if event.category != EventCategory::Runtime {
                    continue;
                }
                match roles[event.name as usize] {
                    RuntimeCallLaunchOrCaptureRole::BeginsCapture => captures = true,
                    RuntimeCallLaunchOrCaptureRole::EndsCapture => captures = false,
                    RuntimeCallLaunchOrCaptureRole::Launches
                        if !captures && event.correlation != 0 =>
                    {
                        let ran = ran.get_or_insert_with(|| sorted_device_correlation_ids(events));
                        let known = ran.binary_search(&event.correlation).is_ok();
                        if !known {
                            self.dropped.push(index);
                        }
                    }
                    _ => {}
                }
            }
        }
        let mut kernels = events.iter();
        if kernels.any(|event| event.category == EventCategory::Kernel && event.correlation == 0) {
            self.dropped.clear();
        }
    }

    /// Cuts off each device event where the next event on its stream starts, because a stream runs one event at a time.
    /// An event that ends before an earlier one is extended to the earlier one's end, so that the union of the
    /// intervals does not change.
    fn cut_stream_events_at_next_start(&mut self) {
        let mut until = i64::MIN;
        let mut overlaps = self.overlaps;
        for index in 0..self.devices.len() {
            let own = self.devices[index];
            let next = self.devices.get(index + 1);
            let next = next.filter(|next| next.stream == own.stream).copied();
            until = until.max(own.end);
            let end = next.map_or(until, |next| until.min(next.start));
            let (lasted, lasts) = (
                own.end.saturating_sub(own.start),
                end.saturating_sub(own.start),
            );
            overlaps.ns = overlaps
                .ns
                .saturating_add_signed(lasted.saturating_sub(lasts));
            if let Some(next) = next.filter(|next| own.end > next.start) {
                overlaps.events += 1;
                match (self.launch_name(own), self.launch_name(next)) {
                    (_, name) if may_launch_kernel_before_previous_ends(name) => {
                        overlaps.programmatic += 1
                    }
                    (_, name) if own.launch == next.launch && is_graph_launch(name) => {
                        overlaps.in_graphs += 1;
                    }
                    _ => {}
                }
            }
            if next.is_none() {
                until = i64::MIN;
            }
            self.devices[index].end = end;
        }
        self.overlaps = overlaps;
    }

    fn launch_name(&self, device: DeviceInterval) -> &str {
        let item = self.items.get(device.launch as usize);
        item.map_or("", |item| {
            let event = &self.kineto.events[item.event as usize];
            self.kineto.texts.get(event.name)
        })
    }
}

/// Returns true if a call with this name can launch a kernel that starts before the previous kernel
/// on its stream ends.
fn may_launch_kernel_before_previous_ends(name: &str) -> bool {
    name.contains("LaunchKernelEx")
}

/// Role of a runtime call, determined by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RuntimeCallLaunchOrCaptureRole {
    Other,
    Launches,
    BeginsCapture,
    EndsCapture,
}

impl RuntimeCallLaunchOrCaptureRole {
    fn classify_runtime_call(name: &str) -> Self {
        match name {
            name if is_launch(name) => Self::Launches,
            name if name.contains("StreamBeginCapture") => Self::BeginsCapture,
            name if name.contains("StreamEndCapture") => Self::EndsCapture,
            _ => Self::Other,
        }
    }
}

/// Returns the correlation ids of device work, sorted.
fn sorted_device_correlation_ids(events: &[KinetoEvent]) -> Vec<u64> {
    let work = events
        .iter()
        .filter(|event| event.category.is_device_work());
    let mut ran: Vec<u64> = work.map(|event| event.correlation).collect();
    ran.sort_unstable();
    ran
}

/// Origin of a device event.
enum DeviceEventOrigin {
    /// The call of this host interval launched the event.
    Call(u32),
    /// The event belongs to the operator of this host interval.
    Operator(u32),
    /// A call outside the kept window launched the event.
    Beyond,
    /// A call before the capture began launched the event, so the call is not in the file.
    Before,
}

/// Finds host intervals by the ids that they share with device events.
struct HostIntervalsByEventId {
    /// Correlation id and host interval of each runtime call, sorted by id.
    calls: Vec<(u64, u32)>,
    /// External id and host interval of each operator, sorted by id; built on first use.
    operators: Option<Vec<(u64, u32)>>,
    /// Correlation ids of calls outside the kept window.
    beyond: Vec<u64>,
}

impl HostIntervalsByEventId {
    fn new(items: &[HostInterval], events: &[KinetoEvent], window: KeptCaptureWindow) -> Self {
        // Calls that launch nothing have the correlation id 0, so ignore this id.
        let calls =
            category_intervals_sorted_by_number(items, events, EventCategory::Runtime, |event| {
                event.correlation
            });
        let outside = events.iter().filter(|event| {
            event.category == EventCategory::Runtime && !window.contains_time(event.start_ns)
        });
        let mut beyond: Vec<u64> = outside.map(|event| event.correlation).collect();
        beyond.sort_unstable();
        Self {
            calls,
            operators: None,
            beyond,
        }
    }

    fn origin_of_device_event(
        &mut self,
        event: &KinetoEvent,
        items: &[HostInterval],
        events: &[KinetoEvent],
    ) -> DeviceEventOrigin {
        if event.correlation != 0
            && let Some(call) = last_interval_with_number_by_time(
                &self.calls,
                event.correlation,
                event.start_ns,
                items,
            )
        {
            return DeviceEventOrigin::Call(call);
        }
        if self.beyond.binary_search(&event.correlation).is_ok() {
            return DeviceEventOrigin::Beyond;
        }
        // In traces up to 2024, the external id only repeats the correlation id, so it does not identify the operator.
        let told = event.external_id != 0 && event.external_id != event.correlation;
        if !told {
            return DeviceEventOrigin::Before;
        }
        let operators = self.operators.get_or_insert_with(|| {
            category_intervals_sorted_by_number(items, events, EventCategory::CpuOp, |event| {
                event.external_id
            })
        });
        match last_interval_with_number_by_time(operators, event.external_id, event.start_ns, items)
        {
            Some(operator) => DeviceEventOrigin::Operator(operator),
            None => DeviceEventOrigin::Before,
        }
    }
}

/// Returns the last host interval that has `number` and starts at or before `time`. If all such intervals start later,
/// returns the first one. Several intervals may have the same number, because numbers wrap around.
fn last_interval_with_number_by_time(
    list: &[(u64, u32)],
    number: u64,
    time: i64,
    items: &[HostInterval],
) -> Option<u32> {
    let started = |&(key, item): &(u64, u32)| {
        key < number || key == number && items[item as usize].start <= time
    };
    let after = list.partition_point(started);
    let of = |at: usize| list.get(at).filter(|(key, _)| *key == number);
    let found = after.checked_sub(1).and_then(of).or_else(|| of(after))?;
    Some(found.1)
}

/// Returns a category's host intervals with their `number`, sorted by number and start. Intervals without a number are
/// omitted.
fn category_intervals_sorted_by_number(
    items: &[HostInterval],
    events: &[KinetoEvent],
    category: EventCategory,
    number: impl Fn(&KinetoEvent) -> u64,
) -> Vec<(u64, u32)> {
    let of = |(i, item): (usize, &HostInterval)| {
        let event = &events[item.event as usize];
        (event.category == category).then(|| (number(event), i as u32))
    };
    let all = items.iter().enumerate().filter_map(of);
    let all = all.filter(|&(number, _)| number != 0);
    let mut list: Vec<(u64, u32)> = Vec::with_capacity(all.clone().count());
    list.extend(all);
    // The numbers of each thread ascend, so the list is almost sorted.
    list.sort_by_key(|&(number, item)| (number, items[item as usize].start, item));
    list
}

/// Returns the devices that ran work, sorted.
fn numbers_of_devices_that_ran_work(kineto: &KinetoTrace) -> Vec<i32> {
    let events = kineto.events.iter();
    let work = events.filter(|event| event.category.is_device_work());
    let mut numbers: Vec<i32> = work
        .map(|event| kineto.details_of_event(event).device)
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}
