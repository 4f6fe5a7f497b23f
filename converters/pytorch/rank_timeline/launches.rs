//! Work of devices, and the call of the host that launched it.

use super::super::event_links::TimeWindow;
use super::super::kineto::{EventCategory, KinetoEvent, KinetoTrace};
use super::{DeviceInterval, HostInterval, NONE, RankTimeline, end_of, is_work};

/// Lanes of the second device of a process, and of those behind it, begin at multiples of this.
const DEVICE_LANES: i64 = 1_000_000;

impl RankTimeline {
    /// Places the work of devices whose launch, or itself, lies in `window`.
    pub(super) fn place_devices(&mut self, window: TimeWindow) {
        let work = self.kineto.events.iter();
        let work = work.filter(|event| is_work(event.category)).count();
        if work == 0 {
            return;
        }
        self.devices.reserve_exact(work);
        let mut launches = LaunchKeys::new(&self.items, &self.kineto.events, window);
        let devices = device_numbers(&self.kineto);
        for (index, event) in self.kineto.events.iter().enumerate() {
            if !is_work(event.category) {
                continue;
            }
            let launch = match launches.of(event, &self.items, &self.kineto.events) {
                LaunchKey::Call(item) => item,
                LaunchKey::Operator(item) => {
                    self.by_operator += 1;
                    item
                }
                // Work of another step, or launched before the capture began.
                LaunchKey::Beyond => {
                    self.beyond += 1;
                    continue;
                }
                LaunchKey::Before if window.holds(event.start_ns) => {
                    self.unlaunched += 1;
                    NONE
                }
                LaunchKey::Before => {
                    self.beyond += 1;
                    continue;
                }
            };
            let details = self.kineto.details(event);
            let device = devices.binary_search(&details.device).unwrap_or(0) as i64;
            self.devices.push(DeviceInterval {
                event: index as u32,
                launch,
                stream: details
                    .stream
                    .saturating_add(device.saturating_mul(DEVICE_LANES)),
                start: event.start_ns,
                end: end_of(event),
            });
        }
        self.devices
            .sort_unstable_by_key(|device| (device.stream, device.start, device.event));
    }
}

/// Origin of a device event.
enum LaunchKey {
    /// The item of the call that launched it.
    Call(u32),
    /// The item of the operator that it belongs to.
    Operator(u32),
    /// A call outside the window that is kept.
    Beyond,
    /// No call in the file.
    Before,
}

/// Items by the ids that device events share with them.
struct LaunchKeys {
    /// Correlation and item of calls of the runtime.
    calls: Vec<(u64, u32)>,
    /// External id and item of operators, once they are asked for.
    operators: Option<Vec<(u64, u32)>>,
    /// Correlations of calls outside the window.
    beyond: Vec<u64>,
}

impl LaunchKeys {
    fn new(items: &[HostInterval], events: &[KinetoEvent], window: TimeWindow) -> Self {
        // Correlation 0 is used for calls that launch nothing.
        let calls = numbered(items, events, EventCategory::Runtime, |event| {
            event.correlation
        });
        let outside = events.iter().filter(|event| {
            event.category == EventCategory::Runtime && !window.holds(event.start_ns)
        });
        let mut beyond: Vec<u64> = outside.map(|event| event.correlation).collect();
        beyond.sort_unstable();
        Self {
            calls,
            operators: None,
            beyond,
        }
    }

    fn of(
        &mut self,
        event: &KinetoEvent,
        items: &[HostInterval],
        events: &[KinetoEvent],
    ) -> LaunchKey {
        if event.correlation != 0
            && let Some(call) = latest(&self.calls, event.correlation, event.start_ns, items)
        {
            return LaunchKey::Call(call);
        }
        if self.beyond.binary_search(&event.correlation).is_ok() {
            return LaunchKey::Beyond;
        }
        // Until 2024 the external id repeats the correlation and says nothing.
        let told = event.external_id != 0 && event.external_id != event.correlation;
        if !told {
            return LaunchKey::Before;
        }
        let operators = self.operators.get_or_insert_with(|| {
            numbered(items, events, EventCategory::CpuOp, |event| {
                event.external_id
            })
        });
        match latest(operators, event.external_id, event.start_ns, items) {
            Some(operator) => LaunchKey::Operator(operator),
            None => LaunchKey::Before,
        }
    }
}

/// Returns, of the items of one number, the last to start by `time`, or else the first: numbers wrap around and are given
/// out again.
fn latest(list: &[(u64, u32)], number: u64, time: i64, items: &[HostInterval]) -> Option<u32> {
    let started = |&(key, item): &(u64, u32)| {
        key < number || key == number && items[item as usize].start <= time
    };
    let after = list.partition_point(started);
    let of = |at: usize| list.get(at).filter(|(key, _)| *key == number);
    let found = after.checked_sub(1).and_then(of).or_else(|| of(after))?;
    Some(found.1)
}

/// Returns the items of a category by their `number` and start; those without one are left out.
fn numbered(
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
    // Threads count up, so that there is little to sort.
    list.sort_by_key(|&(number, item)| (number, items[item as usize].start, item));
    list
}

/// Returns the devices that work ran on, in order.
fn device_numbers(kineto: &KinetoTrace) -> Vec<i32> {
    let events = kineto.events.iter();
    let work = events.filter(|event| is_work(event.category));
    let mut numbers: Vec<i32> = work.map(|event| kineto.details(event).device).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}
