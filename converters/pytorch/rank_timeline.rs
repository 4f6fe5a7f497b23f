//! One rank's joined capture: host nodes with their Kineto events, nested per thread.
//!
//! Nesting comes from Kineto's intervals. The host trace's parent links are partly wrong for work on gloo's
//! threads, because the observer pushes that work on its caller's stack.

use super::event_links::TimeWindow;
use super::host::HostTrace;
use super::kineto::{EventCategory, EventDetails, KinetoEvent, KinetoTrace};
use super::timeline_events::TimelineEvent;
use chakram_trace::format::scan::CaptureContext;

mod joining;
mod launches;
mod origins;
mod segments;

pub use super::host::NONE;
pub use origins::{IntervalStacks, StepWindows};
pub use segments::ThreadSegment;

/// Role of an interval on a host thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostIntervalKind {
    /// Operator; its own time counts as work.
    Operator,
    /// Range opened by Python; its own time counts as host time between operators.
    Annotation,
    /// Call into the device's driver.
    Runtime,
}

impl HostIntervalKind {
    /// Returns the role of a host event.
    fn of_category(category: EventCategory) -> Self {
        match category {
            EventCategory::CpuOp => Self::Operator,
            EventCategory::Runtime => Self::Runtime,
            _ => Self::Annotation,
        }
    }
}

/// An interval on a host thread; [`RankTimeline::role`] returns its role.
#[derive(Clone, Copy, Debug)]
pub struct HostInterval {
    /// Index of the interval's Kineto event.
    pub event: u32,
    /// Index of the interval's host node, or [`NONE`].
    pub host: u32,
    /// Index in [`RankTimeline::threads`].
    pub thread: u32,
    /// Index of the host interval that encloses the interval, or [`NONE`].
    pub parent: u32,
    /// Start, ns since the epoch by this rank's clock.
    pub start: i64,
    /// End, same clock.
    pub end: i64,
}

/// An interval of communication in flight (`gloo:*`), which nests in no other interval.
#[derive(Clone, Copy, Debug)]
pub struct InFlightInterval {
    /// Index of the interval's Kineto event.
    pub event: u32,
    /// Index in [`RankTimeline::threads`].
    pub thread: u32,
    /// Start, ns since the epoch by this rank's clock.
    pub start: i64,
    /// End of the interval, or, for a message, the end of the program's wait for the message.
    pub end: i64,
    /// Record function id.
    pub rf_id: u64,
}

/// A kernel, copy or other event on a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceInterval {
    /// Index of the event in [`RankTimeline::events`].
    pub event: u32,
    /// Index of the host interval that launched the device event: a runtime call, or the operator if the profiler
    /// recorded no runtime calls, or [`NONE`] if the launch was before the capture began.
    pub launch: u32,
    /// Stream.
    pub stream: i64,
    /// Start, ns since the epoch by this rank's clock.
    pub start: i64,
    /// End, at most the start of the next device event on the stream.
    pub end: i64,
}

/// A host thread.
#[derive(Clone, Debug)]
pub struct HostThread {
    /// Index in Kineto's tracks.
    pub track: u32,
    /// Range of the thread's host intervals in [`RankTimeline::items`].
    pub items: std::ops::Range<u32>,
}

/// One rank's joined capture.
#[derive(Debug)]
pub struct RankTimeline {
    /// Rank in the job.
    pub rank: u32,
    /// Host trace.
    pub host: HostTrace,
    /// Kineto trace; the events of this trace have moved to `events`.
    pub kineto: KinetoTrace,
    /// Kineto events; intervals refer to them by index.
    pub events: Vec<TimelineEvent>,
    /// Process id of the rank's operators, or `None` if unknown.
    pub process: Option<u64>,
    /// Whether events have no times; then the times are ticks, and only the order of ticks is known.
    pub untimed: bool,
    /// Whether record function ids were assigned by order because the profiler wrote none.
    pub ordered: bool,
    /// Host intervals sorted by thread, then start; an interval follows the intervals that enclose
    /// it.
    pub items: Vec<HostInterval>,
    /// Threads, sorted by the start of their first interval.
    pub threads: Vec<HostThread>,
    /// Communication in flight on the host, sorted by start.
    pub flights: Vec<InFlightInterval>,
    /// Device events sorted by stream, then start; events of one stream do not overlap.
    pub devices: Vec<DeviceInterval>,
    /// Number of device events that were launched before the capture began.
    pub unlaunched: u64,
    /// Number of device events launched outside the kept window.
    pub beyond: u64,
    /// Number of device events that have an operator but no runtime call.
    pub by_operator: u64,
    /// Host intervals that launched kernels which the profiler did not record.
    pub dropped: Vec<u32>,
    /// Device events cut off because they ran past the start of the next event on their stream.
    pub overlaps: StreamOverlaps,
    /// Python calls that enclose host intervals.
    pub stacks: IntervalStacks,
}

/// Device events that were cut off because they ran past the start of the next event on their stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StreamOverlaps {
    /// Number of clipped events.
    pub events: u64,
    /// Number of clipped events that precede a programmatic dependent launch.
    pub programmatic: u64,
    /// Number of clipped events in the same launched graph as the next event.
    pub in_graphs: u64,
    /// Sum of durations minus the union of the intervals, ns.
    pub ns: u64,
}

impl RankTimeline {
    /// Returns the capture's hardware and software, as far as the files state them.
    pub fn captured_on(&self) -> CaptureContext {
        let mut devices = self.kineto.device_names.iter();
        let device = devices
            .next()
            .filter(|first| devices.all(|other| other == *first));
        let versions = self.kineto.versions.iter();
        let versions: Vec<String> = versions
            .map(|(of, version)| format!("{of} {version}"))
            .collect();
        CaptureContext {
            // Captures of the host alone also list the machine's devices, so the device counts only if something ran
            // on it.
            device: device.filter(|_| self.has_device()).cloned(),
            host: self.kineto.host_name.clone(),
            software: (!versions.is_empty()).then(|| versions.join(", ")),
        }
    }

    /// Returns whether anything ran on a device or was launched on one.
    pub fn has_device(&self) -> bool {
        !self.devices.is_empty() || !self.dropped.is_empty()
    }

    /// Frees memory that only reading and joining needed.
    pub fn shrink(&mut self) {
        self.host.texts.freeze();
        self.kineto.texts.freeze();
        self.host.nodes.shrink_to_fit();
        self.host.records.shrink_to_fit();
        self.host.storages.shrink_to_fit();
        self.devices.shrink_to_fit();
    }

    /// Returns the role of a host interval.
    pub fn role(&self, item: &HostInterval) -> HostIntervalKind {
        HostIntervalKind::of_category(self.events[item.event as usize].category)
    }

    /// Returns the name of an event, as Kineto writes it.
    pub fn name(&self, event: u32) -> &str {
        self.kineto.texts.get(self.events[event as usize].name)
    }

    /// Returns the details of an event.
    pub fn details(&self, event: &TimelineEvent) -> &EventDetails {
        self.kineto.details_at(event.details)
    }

    /// Returns the arguments of an event, or `None`.
    pub fn args_of(&self, event: &TimelineEvent) -> Option<&[(String, String)]> {
        self.kineto.args_at(event.details)
    }

    /// Returns the operator of a device event: the host interval around its launch, or [`NONE`] if
    /// unknown.
    pub fn operator_of(&self, device: &DeviceInterval) -> u32 {
        match self.items.get(device.launch as usize) {
            Some(item) if self.role(item) == HostIntervalKind::Runtime => item.parent,
            Some(_) => device.launch,
            None => NONE,
        }
    }

    /// Returns whether no operator encloses a host interval: the interval is at top level or only inside ranges
    /// that Python opened.
    pub fn encloser_is_no_operator(&self, item: u32) -> bool {
        let parent = self.items.get(self.items[item as usize].parent as usize);
        parent.is_none_or(|parent| self.role(parent) != HostIntervalKind::Operator)
    }

    /// Returns the name of a host interval: the exact name from the host trace, or otherwise
    /// Kineto's name.
    pub fn item_name(&self, item: &HostInterval) -> &str {
        match self.host.nodes.get(item.host as usize) {
            Some(node) => self.host.texts.get(node.name),
            None => self.name(item.event),
        }
    }

    /// Returns the host intervals that enclose `item`, innermost first.
    pub fn ancestors_of(&self, item: u32) -> impl Iterator<Item = u32> + '_ {
        let parent = |i: u32| {
            let parent = self.items.get(i as usize)?.parent;
            (parent != NONE).then_some(parent)
        };
        std::iter::successors(parent(item), move |&i| parent(i))
    }
}

fn is_device(category: EventCategory) -> bool {
    category.is_work() || category == EventCategory::Sync
}

fn end_of(event: &KinetoEvent) -> i64 {
    event.start_ns.saturating_add_unsigned(event.duration_ns)
}
