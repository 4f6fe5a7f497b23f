//! One rank's joined capture: the Kineto events and their host nodes, nested per thread.
//!
//! Kineto's intervals determine the nesting. For work on gloo's threads, some of the host trace's parent links are
//! wrong, because the observer pushes this work onto the caller's stack.

use super::event_links::KeptCaptureWindow;
use super::host::HostTrace;
use super::kineto::{EventCategory, KinetoEvent, KinetoTrace, SharedEventProperties};
use super::timeline_events::TimelineEventWithoutTimes;
use chakram_trace::format::scan::CaptureEnvironment;

mod joining;
mod launches;
mod origins;
mod segments;

pub use super::host::NONE;
pub use origins::{IntervalPythonStacks, ProfiledStepWindows};
pub use segments::InnermostIntervalSegment;

/// Role of an interval on a host thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostIntervalKind {
    /// An operator, whose own time counts as work.
    Operator,
    /// A range that Python opened. Its own time counts as host time between operators.
    Annotation,
    /// Call into the device's driver.
    Runtime,
}

impl HostIntervalKind {
    /// Returns the role of a host event.
    fn from_event_category(category: EventCategory) -> Self {
        match category {
            EventCategory::CpuOp => Self::Operator,
            EventCategory::Runtime => Self::Runtime,
            _ => Self::Annotation,
        }
    }
}

/// An interval on a host thread; [`JoinedRankCapture::kind_of_host_interval`] returns its role.
#[derive(Clone, Copy, Debug)]
pub struct HostInterval {
    /// Index of the interval's Kineto event.
    pub event: u32,
    /// Index of the interval's host node, or [`NONE`].
    pub host: u32,
    /// Index in [`JoinedRankCapture::threads`].
    pub thread: u32,
    /// Index of the host interval that encloses the interval, or [`NONE`].
    pub parent: u32,
    /// Start, in ns since the epoch, by this rank's clock.
    pub start: i64,
    /// End, in ns since the epoch, by this rank's clock.
    pub end: i64,
}

/// An interval of communication in flight (`gloo:*`), which no other interval encloses.
#[derive(Clone, Copy, Debug)]
pub struct InFlightGlooInterval {
    /// Index of the interval's Kineto event.
    pub event: u32,
    /// Index in [`JoinedRankCapture::threads`].
    pub thread: u32,
    /// Start, in ns since the epoch, by this rank's clock.
    pub start: i64,
    /// End of the interval. For a message, when the program's wait for the message ended.
    pub end: i64,
    /// Record function id. The operator that requested the communication is the last operator with a lower id.
    pub rf_id: u64,
}

/// A kernel, copy or other event on a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceInterval {
    /// Index of the event in [`JoinedRankCapture::events`].
    pub event: u32,
    /// Index of the host interval that launched the device event: a runtime call, or the operator if the profiler
    /// recorded no runtime calls. [`NONE`] if the launch was before the capture began.
    pub launch: u32,
    /// Stream number that the profiler assigned.
    pub stream: i64,
    /// Start, in ns since the epoch, by this rank's clock.
    pub start: i64,
    /// End, in ns; not later than the start of the next event on the stream.
    pub end: i64,
}

/// A host thread.
#[derive(Clone, Debug)]
pub struct HostThread {
    /// Index of the thread's track in Kineto's list of tracks.
    pub track: u32,
    /// Range of the thread's host intervals in [`JoinedRankCapture::items`].
    pub items: std::ops::Range<u32>,
}

/// One rank's joined capture.
#[derive(Debug)]
pub struct JoinedRankCapture {
    /// Rank in the job.
    pub rank: u32,
    /// Host trace, or a replacement built from the Kineto trace.
    pub host: HostTrace,
    /// Kineto trace, without its events, which are in `events`.
    pub kineto: KinetoTrace,
    /// Kineto events, to which intervals refer by index.
    pub events: Vec<TimelineEventWithoutTimes>,
    /// Process id of the rank's operators, or `None` if unknown.
    pub process: Option<u64>,
    /// True if no event has a time. Without times, starts and ends are ticks, which only define an
    /// order.
    pub untimed: bool,
    /// True if record function ids were assigned by order, because the profiler wrote none.
    pub ordered: bool,
    /// Host intervals, sorted by thread, then by start. An interval comes after the intervals that
    /// enclose it.
    pub items: Vec<HostInterval>,
    /// Threads, sorted by the start of their first interval.
    pub threads: Vec<HostThread>,
    /// Communication in flight on the host, sorted by start.
    pub flights: Vec<InFlightGlooInterval>,
    /// Device events, sorted by stream, then by start. Events of one stream do not overlap.
    pub devices: Vec<DeviceInterval>,
    /// Number of device events that were launched before the capture began.
    pub unlaunched: u64,
    /// Number of device events that were launched outside the kept window.
    pub beyond: u64,
    /// Number of device events that have an operator but no runtime call.
    pub by_operator: u64,
    /// Host intervals whose launched kernels the profiler did not record.
    pub dropped: Vec<u32>,
    /// Counts of device events that were cut off where the next event on their stream starts.
    pub overlaps: CutOffOverlappingDeviceEventCounts,
    /// Python calls around host intervals.
    pub stacks: IntervalPythonStacks,
}

/// Counts of device events that were cut off where the next event on their stream starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CutOffOverlappingDeviceEventCounts {
    /// Number of events that were cut off.
    pub events: u64,
    /// Number of events that were cut off because a programmatic dependent launch follows.
    pub programmatic: u64,
    /// Number of events that were cut off by an event of the same launched graph.
    pub in_graphs: u64,
    /// Time that was counted twice, in ns: the sum of the events' durations minus the time covered
    /// by at least one event.
    pub ns: u64,
}

impl JoinedRankCapture {
    /// Returns the hardware and software that the capture ran on, if the files state them.
    pub fn capture_environment(&self) -> CaptureEnvironment {
        let mut devices = self.kineto.device_names.iter();
        let device = devices
            .next()
            .filter(|first| devices.all(|other| other == *first));
        let versions = self.kineto.versions.iter();
        let versions: Vec<String> = versions
            .map(|(of, version)| format!("{of} {version}"))
            .collect();
        CaptureEnvironment {
            // Host-only captures also list the machine's devices, so name the device only if
            // something ran on it.
            device: device
                .filter(|_| self.has_run_or_launched_device_work())
                .cloned(),
            host: self.kineto.host_name.clone(),
            software: (!versions.is_empty()).then(|| versions.join(", ")),
        }
    }

    /// Returns true if anything ran on a device or was launched on one.
    pub fn has_run_or_launched_device_work(&self) -> bool {
        !self.devices.is_empty() || !self.dropped.is_empty()
    }

    /// Frees memory that was needed only for reading and joining.
    pub fn free_temporary_data(&mut self) {
        self.host.texts.free_hash_table();
        self.kineto.texts.free_hash_table();
        self.host.nodes.shrink_to_fit();
        self.host.records.shrink_to_fit();
        self.host.storages.shrink_to_fit();
        self.devices.shrink_to_fit();
    }

    /// Returns the role of a host interval.
    pub fn kind_of_host_interval(&self, item: &HostInterval) -> HostIntervalKind {
        HostIntervalKind::from_event_category(self.events[item.event as usize].category)
    }

    /// Returns the name of an event, as Kineto writes it.
    pub fn event_name(&self, event: u32) -> &str {
        self.kineto.texts.get(self.events[event as usize].name)
    }

    /// Returns the details of an event.
    pub fn details_of_event(&self, event: &TimelineEventWithoutTimes) -> &SharedEventProperties {
        self.kineto.details_at(event.details)
    }

    /// Returns the arguments of an event, or `None` if they were not kept.
    pub fn args_of_event(&self, event: &TimelineEventWithoutTimes) -> Option<&[(String, String)]> {
        self.kineto.args_at_details_index(event.details)
    }

    /// Returns the operator of a device event: the host interval around its launch. Returns [`NONE`] if
    /// unknown.
    pub fn operator_of_device_event(&self, device: &DeviceInterval) -> u32 {
        match self.items.get(device.launch as usize) {
            Some(item) if self.kind_of_host_interval(item) == HostIntervalKind::Runtime => {
                item.parent
            }
            Some(_) => device.launch,
            None => NONE,
        }
    }

    /// Returns true if no operator encloses a host interval. Such an interval is at top level, or only inside ranges
    /// that Python opened.
    pub fn has_no_enclosing_operator(&self, item: u32) -> bool {
        let parent = self.items.get(self.items[item as usize].parent as usize);
        parent.is_none_or(|parent| self.kind_of_host_interval(parent) != HostIntervalKind::Operator)
    }

    /// Returns the name of a host interval, taken from the host trace if there is one and otherwise from Kineto.
    pub fn host_interval_name(&self, item: &HostInterval) -> &str {
        match self.host.nodes.get(item.host as usize) {
            Some(node) => self.host.texts.get(node.name),
            None => self.event_name(item.event),
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

fn is_device_work_or_sync(category: EventCategory) -> bool {
    category.is_device_work() || category == EventCategory::Sync
}

fn event_end_ns(event: &KinetoEvent) -> i64 {
    event.start_ns.saturating_add_unsigned(event.duration_ns)
}
