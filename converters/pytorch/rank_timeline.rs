//! One rank's capture, joined: host nodes with their Kineto events, nested per thread.
//!
//! Nesting comes from Kineto's intervals. The parent links of the host trace are partly wrong where work runs on
//! threads of gloo, because that work is pushed on its caller's stack.

use super::event_links::{HostNodeLinks, LinkMethod};
use super::host::HostTrace;
use super::kineto::{EventCategory, KinetoEvent, KinetoTrace};
use super::timeline_events::TimelineEvent;

/// Sentinel index: none.
pub const NONE: u32 = u32::MAX;

/// Role of an interval on a host thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostIntervalKind {
    /// Operator: its own time is work.
    Operator,
    /// Range that Python opened: its own time is the host's, between operators.
    Annotation,
    /// Call into the driver of the device.
    Runtime,
}

/// An interval on a host thread; [`RankTimeline::role`] says of which role.
#[derive(Clone, Copy, Debug)]
pub struct HostInterval {
    /// Kineto event.
    pub event: u32,
    /// Host node, or [`NONE`].
    pub host: u32,
    /// Index in [`RankTimeline::threads`].
    pub thread: u32,
    /// Item that encloses it, or [`NONE`].
    pub parent: u32,
    /// Start, ns since the epoch by this rank's clock.
    pub start: i64,
    /// End.
    pub end: i64,
}

impl HostInterval {
    /// Place of an interval that is still to come.
    const EMPTY: Self = Self {
        event: NONE,
        host: NONE,
        thread: NONE,
        parent: NONE,
        start: 0,
        end: 0,
    };
}

/// An interval of communication in flight, which nests in no other: `gloo:*`.
#[derive(Clone, Copy, Debug)]
pub struct InFlightInterval {
    /// Kineto event.
    pub event: u32,
    /// Index in [`RankTimeline::threads`].
    pub thread: u32,
    /// Start, ns since the epoch by this rank's clock.
    pub start: i64,
    /// End; of a message, the end of the program's wait for it.
    pub end: i64,
    /// Record function id.
    pub rf_id: u64,
}

/// A kernel, copy or other event on a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceInterval {
    /// Kineto event.
    pub event: u32,
    /// Item that launched it: a call of the runtime, or its operator where the profiler recorded no such calls;
    /// [`NONE`] if it was launched before the capture began.
    pub launch: u32,
    /// Stream.
    pub stream: i64,
    /// Start, ns since the epoch by this rank's clock.
    pub start: i64,
    /// End.
    pub end: i64,
}

/// A host thread.
#[derive(Clone, Debug)]
pub struct HostThread {
    /// Index in Kineto's tracks.
    pub track: u32,
    /// Range of its items in [`RankTimeline::items`].
    pub items: std::ops::Range<u32>,
}

/// A stretch of a thread's time with the item that it belongs to: the innermost one that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSegment {
    /// Owning item, or [`NONE`] between items.
    pub owner: u32,
    /// Start, ns.
    pub from: i64,
    /// End, ns.
    pub to: i64,
}

/// One rank's capture, joined.
#[derive(Debug)]
pub struct RankTimeline {
    /// Rank in the job.
    pub rank: u32,
    /// Host trace.
    pub host: HostTrace,
    /// Kineto trace, without its events.
    pub kineto: KinetoTrace,
    /// Events of the Kineto trace, by which intervals refer to them.
    pub events: Vec<TimelineEvent>,
    /// Process of its operators, if Kineto says so.
    pub process: Option<u64>,
    /// Whether nothing has a time, and the order of ticks is all that is known.
    pub untimed: bool,
    /// Whether record function ids were given out by order, as the profiler wrote none.
    pub ordered: bool,
    /// Items by thread, then start; an item comes after those that enclose it.
    pub items: Vec<HostInterval>,
    /// Threads by the start of their first interval.
    pub threads: Vec<HostThread>,
    /// Communication in flight on the host, by start.
    pub flights: Vec<InFlightInterval>,
    /// Events on devices, by stream, then start.
    pub devices: Vec<DeviceInterval>,
    /// Number of device events that were launched before the capture began.
    pub unlaunched: u64,
    /// Number of device events whose launch lies outside the window that is kept.
    pub beyond: u64,
    /// Number of device events that have an operator and no call of the runtime.
    pub by_operator: u64,
}

/// Lanes of the second device of a process, and of those behind it, begin at multiples of this.
const DEVICE_LANES: i64 = 1_000_000;

impl RankTimeline {
    /// Joins a rank's two files, keeping what starts in `window`.
    pub fn new(
        rank: u32,
        host: HostTrace,
        kineto: KinetoTrace,
        ordered: bool,
        link: &HostNodeLinks,
        window: TimeWindow,
    ) -> Self {
        let mut this = Self {
            rank,
            host,
            process: kineto.process(),
            kineto,
            events: Vec::new(),
            untimed: link.method == LinkMethod::HostAlone,
            ordered,
            items: Vec::new(),
            threads: Vec::new(),
            flights: Vec::new(),
            devices: Vec::new(),
            unlaunched: 0,
            beyond: 0,
            by_operator: 0,
        };
        // Communication requested within the window is kept to its end.
        let ids = this.kineto.events.iter().filter(|event| {
            window.holds(event.start_ns)
                && event.rf_id != 0
                && event.category == EventCategory::CpuOp
        });
        let asked = ids.fold((u64::MAX, 0), |(low, high), event| {
            (low.min(event.rf_id), high.max(event.rf_id))
        });
        let texts = &this.kineto.texts;
        let flies = (0..texts.len() as u32).map(|name| super::in_flight(texts.get(name)));
        let flies: Vec<bool> = flies.collect();
        let on_host = this.kineto.events.iter();
        let on_host = on_host.filter(|event| !is_device(event.category)).count();
        let mut kept: Vec<u32> = Vec::with_capacity(on_host);
        for (index, event) in this.kineto.events.iter().enumerate() {
            // One beyond the last operator: its interval gets the next id.
            let inside = if flies[event.name as usize] {
                window.is_all() || asked.0 <= event.rf_id && event.rf_id <= asked.1 + 1
            } else {
                window.holds(event.start_ns)
            };
            if inside && !is_device(event.category) {
                kept.push(index as u32);
            }
        }
        let mut on_track = vec![NONE; this.kineto.tracks.len()];
        let mut firsts: Vec<(i64, u32)> = Vec::new();
        for &index in &kept {
            let event = &this.kineto.events[index as usize];
            match &mut on_track[event.track as usize] {
                slot @ &mut NONE => {
                    *slot = firsts.len() as u32;
                    firsts.push((event.start_ns, event.track));
                }
                slot => firsts[*slot as usize].0 = firsts[*slot as usize].0.min(event.start_ns),
            }
        }
        // By first start, so that numbers do not depend on the order of the file.
        firsts.sort_unstable();
        for (thread, &(_, track)) in firsts.iter().enumerate() {
            on_track[track as usize] = thread as u32;
            this.threads.push(HostThread { track, items: 0..0 });
        }
        this.items.reserve_exact(kept.len());
        let thread_of = |event: &KinetoEvent| on_track[event.track as usize] as usize;
        let mut held = vec![0_u32; this.threads.len()];
        for &index in &kept {
            let event = &this.kineto.events[index as usize];
            held[thread_of(event)] += u32::from(!flies[event.name as usize]);
        }
        // Each thread has its place, so that its events keep the order of the file: that is mostly their own.
        let mut place = 0;
        for (thread, held) in this.threads.iter_mut().zip(held) {
            thread.items = place..place;
            place += held;
        }
        this.items.resize(place as usize, HostInterval::EMPTY);
        for index in kept {
            let event = &this.kineto.events[index as usize];
            let (thread, end) = (thread_of(event), end_of(event));
            if flies[event.name as usize] {
                this.flights.push(InFlightInterval {
                    event: index,
                    thread: thread as u32,
                    start: event.start_ns,
                    end,
                    rf_id: event.rf_id,
                });
                continue;
            }
            let own = &mut this.threads[thread].items;
            this.items[own.end as usize] = HostInterval {
                event: index,
                host: link.host_of[index as usize],
                thread: thread as u32,
                parent: NONE,
                start: event.start_ns,
                end,
            };
            own.end += 1;
        }
        // Of intervals that start together the longer encloses the shorter, and of equal ones the one that the
        // program opened first, which has the lower number.
        let events = &this.kineto.events;
        for thread in &this.threads {
            let own = thread.items.start as usize..thread.items.end as usize;
            // Takes time for what is out of order alone.
            this.items[own].sort_by(|a, b| {
                let times = |item: &HostInterval| (item.start, std::cmp::Reverse(item.end));
                let order = |item: &HostInterval| (events[item.event as usize].rf_id, item.event);
                times(a)
                    .cmp(&times(b))
                    .then_with(|| order(a).cmp(&order(b)))
            });
        }
        this.flights
            .sort_by_key(|flight| (flight.start, flight.rf_id));
        this.nest();
        this.place_devices(window);
        this.events = TimelineEvent::all(std::mem::take(&mut this.kineto.events));
        this
    }

    fn nest(&mut self) {
        let mut open: Vec<u32> = Vec::new();
        let mut thread = NONE;
        for i in 0..self.items.len() {
            let (start, own) = (self.items[i].start, self.items[i].thread);
            if own != thread {
                open.clear();
                thread = own;
            }
            let ended = |&top: &u32| self.items[top as usize].end <= start;
            // Intervals that touch do not nest.
            while open.last().is_some_and(ended) {
                open.pop();
            }
            self.items[i].parent = open.last().copied().unwrap_or(NONE);
            open.push(i as u32);
        }
    }

    fn place_devices(&mut self, window: TimeWindow) {
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

    /// Returns the operator that a device event belongs to: the item around its launch; [`NONE`] if unknown.
    pub fn operator_of(&self, device: &DeviceInterval) -> u32 {
        match self.items.get(device.launch as usize) {
            Some(item) if self.role(item) == HostIntervalKind::Runtime => item.parent,
            Some(_) => device.launch,
            None => NONE,
        }
    }

    /// Returns the name of an item: the host's, which is exact, before Kineto's.
    pub fn item_name(&self, item: &HostInterval) -> &str {
        match self.host.nodes.get(item.host as usize) {
            Some(node) => self.host.texts.get(node.name),
            None => self.name(item.event),
        }
    }

    /// Returns the items that enclose `item`, innermost first.
    pub fn ancestors(&self, item: u32) -> impl Iterator<Item = u32> + '_ {
        let parent = |i: u32| {
            let parent = self.items.get(i as usize)?.parent;
            (parent != NONE).then_some(parent)
        };
        std::iter::successors(parent(item), move |&i| parent(i))
    }

    /// Partitions the time of a thread at every start and end, without gaps from its first start to its last end.
    pub fn segments(&self, thread: u32) -> Vec<ThreadSegment> {
        let mut segments = Vec::new();
        self.for_each_segment(thread, |segment| segments.push(segment));
        segments
    }

    /// Hands the segments of a thread to `take`, one by one.
    pub fn for_each_segment(&self, thread: u32, take: impl FnMut(ThreadSegment)) {
        let range = self.threads[thread as usize].items.clone();
        let items = &self.items[range.start as usize..range.end as usize];
        for_each_segment(items, range.start, take);
    }
}

/// Part of a capture that is kept.
#[derive(Clone, Copy, Debug)]
pub struct TimeWindow {
    /// Start, ns since the epoch.
    pub from: i64,
    /// End.
    pub to: i64,
}

impl TimeWindow {
    /// The whole capture.
    pub const ALL: Self = Self {
        from: i64::MIN,
        to: i64::MAX,
    };

    fn is_all(&self) -> bool {
        self.from == i64::MIN && self.to == i64::MAX
    }

    fn holds(&self, start: i64) -> bool {
        self.from <= start && start < self.to
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
        let item = |list: &[(u64, u32)], id: u64| {
            let found = list.binary_search_by_key(&id, |&(key, _)| key).ok()?;
            Some(list[found].1)
        };
        if event.correlation != 0
            && let Some(call) = item(&self.calls, event.correlation)
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
        match item(operators, event.external_id) {
            Some(operator) => LaunchKey::Operator(operator),
            None => LaunchKey::Before,
        }
    }
}

/// Returns the items of a category by their `number`; those without one are left out.
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
    list.sort();
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

/// Returns whether an event is work of a device.
fn is_work(category: EventCategory) -> bool {
    use EventCategory::{Copy, Kernel, Set};
    matches!(category, Kernel | Copy | Set)
}

fn is_device(category: EventCategory) -> bool {
    is_work(category) || category == EventCategory::Sync
}

fn end_of(event: &KinetoEvent) -> i64 {
    event.start_ns.saturating_add_unsigned(event.duration_ns)
}

/// Partitions the time of one thread, whose `items` are sorted and numbered from `first`.
fn for_each_segment(items: &[HostInterval], first: u32, mut take: impl FnMut(ThreadSegment)) {
    let mut open: Vec<u32> = Vec::new();
    let Some(mut now) = items.first().map(|item| item.start) else {
        return;
    };
    for (i, item) in items.iter().enumerate() {
        advance(&mut take, &mut open, &mut now, items, first, item.start);
        open.push(first + i as u32);
    }
    let last = items.iter().map(|item| item.end).max().unwrap_or(now);
    advance(&mut take, &mut open, &mut now, items, first, last);
}

/// Assigns the time from `now` to `until` to the innermost of the open items, closing those that end.
fn advance(
    take: &mut impl FnMut(ThreadSegment),
    open: &mut Vec<u32>,
    now: &mut i64,
    items: &[HostInterval],
    first: u32,
    until: i64,
) {
    let end_of = |item: u32| items[(item - first) as usize].end;
    loop {
        while open.last().is_some_and(|&top| end_of(top) <= *now) {
            open.pop();
        }
        if *now >= until {
            return;
        }
        let owner = open.last().copied();
        let end = owner.map_or(until, |owner| end_of(owner).min(until));
        take(ThreadSegment {
            owner: owner.unwrap_or(NONE),
            from: *now,
            to: end,
        });
        *now = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(start: i64, end: i64) -> HostInterval {
        HostInterval {
            event: 0,
            host: NONE,
            thread: 0,
            parent: NONE,
            start,
            end,
        }
    }

    fn segments(items: &[HostInterval]) -> Vec<(u32, i64, i64)> {
        let mut found = Vec::new();
        for_each_segment(items, 0, |s| found.push((s.owner, s.from, s.to)));
        found
    }

    #[test]
    fn every_instant_of_a_thread_belongs_to_one_item() {
        // 0 ........ 10 with 2..4 and 5..9 inside, 6..6 in the latter; then a gap and 12..13.
        let items = [
            item(0, 10),
            item(2, 4),
            item(5, 9),
            item(6, 6),
            item(12, 13),
        ];
        let found = segments(&items);
        let expected = [
            (0, 0, 2),
            (1, 2, 4),
            (0, 4, 5),
            (2, 5, 6),
            (2, 6, 9),
            (0, 9, 10),
            (NONE, 10, 12),
            (4, 12, 13),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn intervals_that_overlap_without_nesting_lose_no_time() {
        // 0..5 and 3..8: the later one owns the overlap, and nobody owns it twice.
        let items = [item(0, 5), item(3, 8)];
        let found = segments(&items);
        assert_eq!(found, [(0, 0, 3), (1, 3, 8)]);
    }
}
