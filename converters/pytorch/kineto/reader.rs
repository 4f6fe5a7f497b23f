//! Converts the events of a file to a device trace.

use super::operands::OperatorInputCache;
use super::raw::{AllEventArgTexts, RawKinetoEvent};
use super::tracks::TrackTable;
use super::{
    EventCategory, KinetoEvent, KinetoTrace, NONE, PythonCallEvent, SharedEventProperties,
};
use crate::pytorch::name_repair::KeysAroundName;
use crate::pytorch::number::{self, parse_microseconds_as_nanoseconds};
use crate::pytorch::stream::{
    ElementLayouts, ElementTextAndOffset, JsonElementReceiver, JsonValueText, parse_integer,
};
use crate::pytorch::{
    ITEMS_BETWEEN_CHECKS, JsonRepairKind, SingleJsonRepairWithOffset, groups,
    is_communication_operator, op_work,
};
use chakram_base::interrupt;
use chakram_trace::format::{TraceError, TraceErrorLocation, escape_and_shorten_name};
use chakram_trace::graph::DistinctKeyInterner;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The device trace under construction. Times are relative to the base time until `finish_trace`
/// adds the base.
#[derive(Default)]
pub(super) struct KinetoReader {
    pub trace: KinetoTrace,
    layouts: ElementLayouts,
    tracks: TrackTable,
    operands: OperatorInputCache,
    details: DistinctKeyInterner<SharedEventProperties>,
    /// For each name, by text index, the arguments that the conversion uses from events with this name.
    named: Vec<ArgumentUseByEventName>,
    left_out: BTreeMap<String, u64>,
    /// Number of events of unknown categories, by category and track.
    unread: BTreeMap<(String, u32), u64>,
    /// Base of all times, in nanoseconds since 1970. The file may state the base only after the events.
    base_ns: i64,
}

/// Arguments that the conversion uses from events with a given name.
#[derive(Clone, Copy, Debug)]
struct ArgumentUseByEventName {
    /// True if all arguments are used, because the event communicates.
    of_call: bool,
    /// True if all arguments of the operator are used, because a convolution's padding and stride
    /// determine its output.
    of_convolution: bool,
    /// True if only the values of scalar arguments are used.
    values: bool,
}

const DAMAGED: &str =
    "the file is not what Kineto writes: capture again, or repair the event by hand";
const HUGE: &str = "a trace with more than 4 GiB of names cannot be read; capture fewer steps";

/// A stream id. Some Kineto versions write it as a pointer, or write −1 as an unsigned 64-bit number.
struct LenientStreamNumber(i64);

impl TryFrom<i128> for LenientStreamNumber {
    type Error = std::num::TryFromIntError;

    fn try_from(number: i128) -> Result<Self, Self::Error> {
        let unsigned = || u64::try_from(number).map(u64::cast_signed);
        i64::try_from(number).or_else(|_| unsigned()).map(Self)
    }
}

/// An id that connects events. Scripts write −1 for a missing id.
struct EventLinkId(u64);

impl TryFrom<i128> for EventLinkId {
    type Error = std::num::TryFromIntError;

    fn try_from(number: i128) -> Result<Self, Self::Error> {
        u64::try_from(number.max(0)).map(Self)
    }
}

/// The file's `distributedInfo` object. Versions of the profiler use different keys.
#[derive(Deserialize)]
struct DistributedInfo<'a> {
    backend: Option<String>,
    #[serde(borrow)]
    rank: Option<JsonValueText<'a>>,
    #[serde(borrow)]
    world_size: Option<JsonValueText<'a>>,
    #[serde(borrow)]
    pg_config: Option<JsonValueText<'a>>,
    nccl_version: Option<String>,
}

#[derive(Deserialize)]
struct DeviceNameEntry {
    name: Option<String>,
}

impl KinetoReader {
    /// Finishes the trace after the last event.
    pub fn finish_trace(mut self) -> Result<KinetoTrace, TraceError> {
        let mut trace = self.trace;
        let base = self.base_ns;
        for time in trace.events.iter_mut().map(|event| &mut event.start_ns) {
            // The base may be at the end of the file, so add the base only now.
            *time = time.checked_add(base).ok_or_else(|| {
                let found = format!("an event is {time} ns after the base time of {base} ns, which is beyond the year 2262");
                TraceError::invalid_at(TraceErrorLocation::default(), found, DAMAGED)
            })?;
        }
        for call in &mut trace.python {
            call.start_ns = call.start_ns.saturating_add(base);
        }
        if let Some((from, to)) = &mut trace.span {
            (*from, *to) = (from.saturating_add(base), to.saturating_add(base));
        }
        drop_events_with_impossible_times(&mut trace);
        trace.tracks = self.tracks.into_named_tracks();
        trace.unread = count_unread_events_outside_operators(&trace, self.unread);
        trace.details = self.details.into_keys();
        trace.left_out = std::mem::take(&mut self.left_out).into_iter().collect();
        Ok(trace)
    }

    fn count_dropped_event(&mut self, event: &RawKinetoEvent<'_>) {
        let what = event.cat.as_ref().unwrap_or(&event.ph);
        match self.left_out.get_mut(&**what) {
            Some(count) => *count += 1,
            None => {
                self.left_out.insert(what.clone().into_owned(), 1);
            }
        }
    }

    fn track_of(
        &mut self,
        raw: &RawKinetoEvent<'_>,
        at: &ElementTextAndOffset<'_>,
    ) -> Result<u32, TraceError> {
        let number = self.tracks.track_index(raw.pid, raw.tid);
        number.ok_or_else(|| {
            at.error_about(
                "",
                "more tracks than 32-bit indices can address".to_owned(),
                HUGE,
            )
        })
    }

    /// Returns true if the converter needs the arguments of events with this name and category.
    fn needs_args(&mut self, name: u32, category: EventCategory) -> bool {
        let used = self.argument_use_of_event_name(name);
        used.of_call || used.of_convolution && category == EventCategory::CpuOp
    }

    /// Returns the arguments that the conversion uses from events with the name `name`.
    fn argument_use_of_event_name(&mut self, name: u32) -> ArgumentUseByEventName {
        let known = self.named.len();
        let new = known..self.trace.texts.len();
        self.named.extend(new.map(|number| {
            let name = self.trace.texts.get(number as u32);
            ArgumentUseByEventName {
                of_call: is_communication_operator(name),
                of_convolution: name.ends_with("n_convolution"),
                values: op_work::cost_depends_on_scalar_values(name),
            }
        }));
        self.named[name as usize]
    }

    fn add_event(
        &mut self,
        raw: &RawKinetoEvent<'_>,
        category: EventCategory,
        at: &ElementTextAndOffset<'_>,
    ) -> Result<(), TraceError> {
        let duration = match raw.dur {
            Some(dur) if is_number(dur.as_str()) => parse_microseconds_as_nanoseconds(dur.as_str()),
            Some(_) => Some(parse_time(raw.dur, "dur", at)?),
            None => None,
        };
        let Some(duration_ns) = duration.and_then(|duration| u64::try_from(duration).ok()) else {
            self.trace.untimed += 1;
            return Ok(());
        };
        let raw_args = &raw.args;
        let huge = || {
            at.error_about(
                "",
                "more names than 32-bit indices can address".to_owned(),
                HUGE,
            )
        };
        let name = self.trace.texts.intern_name(&raw.name).ok_or_else(huge)?;
        let mut args = NONE;
        // Drop unused arguments, because they would take most of the memory.
        if raw_args.collective.is_some()
            || category == EventCategory::Sync
            || self.needs_args(name, category)
        {
            args = self.trace.args.len() as u32;
            self.trace
                .args
                .push(AllEventArgTexts::parse_arguments(at.text).0);
        }
        let operands = match (raw_args.dims, raw_args.types) {
            (Some(dims), Some(types)) => {
                let texts = &mut self.trace.texts;
                Some(
                    self.operands
                        .intern_operands(dims.as_str(), types.as_str(), texts)
                        .ok_or_else(huge)?,
                )
            }
            _ => None,
        };
        let mut values = NONE;
        if category == EventCategory::CpuOp && self.argument_use_of_event_name(name).values {
            let all = AllEventArgTexts::parse_arguments(at.text).0;
            let found = all.into_iter().find(|(key, _)| key == "Concrete Inputs");
            if let Some((_, found)) = found {
                values = self.trace.texts.intern_name(&found).ok_or_else(huge)?;
            }
        }
        let track = self.track_of(raw, at)?;
        let stream =
            parse_integer(raw_args.stream, "stream", at)?.map(|LenientStreamNumber(stream)| stream);
        let device = parse_integer(raw_args.device, "device", at)?;
        // Some device plug-ins record neither stream nor device. In such traces, each device appears as a process, and
        // each stream as a track.
        let of_track = |is_missing: bool| is_missing && category.is_device_work();
        let stream = match stream {
            None if of_track(true) => self.tracks.parse_or_derive_stream_number(track),
            stream => stream.unwrap_or(-1),
        };
        let device = match device {
            None if of_track(true) => self.tracks.device_of_track(track),
            device => device.unwrap_or(-1),
        };
        let details = SharedEventProperties {
            stream,
            device,
            bytes: parse_integer(raw_args.bytes, "bytes", at)?.unwrap_or(0),
            args,
            shapes: operands.as_ref().map_or(NONE, |operands| operands.shapes),
            types: operands.as_ref().map_or(NONE, |operands| operands.types),
            values,
            bytes_in: operands.map_or(0, |operands| operands.bytes),
        };
        let details = match details {
            SharedEventProperties::ABSENT => NONE,
            details => self.details.intern_key(details),
        };
        let id = |value, what| -> Result<u64, TraceError> {
            Ok(parse_integer(value, what, at)?.map_or(0, |EventLinkId(id)| id))
        };
        let event = KinetoEvent {
            start_ns: parse_time(raw.ts, "ts", at)?,
            duration_ns,
            name,
            category,
            track,
            rf_id: id(raw_args.rf_id, "Record function id")?,
            external_id: id(raw_args.external_id, "External id")?,
            correlation: id(raw_args.correlation, "correlation")?,
            details,
            offset: at.offset,
        };
        self.trace.with_rf_id += u64::from(event.rf_id != 0);
        if self.trace.events.len().is_multiple_of(ITEMS_BETWEEN_CHECKS) {
            interrupt::fail_if_stopped_or_out_of_memory()?;
        }
        self.trace.events.push(event);
        Ok(())
    }

    /// Records a Python call, unless it has no time.
    fn record_python_call(
        &mut self,
        raw: &RawKinetoEvent<'_>,
        at: &ElementTextAndOffset<'_>,
    ) -> Result<(), TraceError> {
        let times = [raw.ts, raw.dur].map(|time| parse_microseconds_as_nanoseconds(time?.as_str()));
        let [Some(start_ns), Some(duration)] = times else {
            return Ok(());
        };
        let Ok(duration_ns) = u64::try_from(duration) else {
            return Ok(());
        };
        let name = self.trace.texts.intern_name(&raw.name);
        let name = name.ok_or_else(|| {
            at.error_about(
                "",
                "more names than 32-bit indices can address".to_owned(),
                HUGE,
            )
        })?;
        let track = self.track_of(raw, at)?;
        self.trace.python.push(PythonCallEvent {
            start_ns,
            duration_ns,
            name,
            track,
        });
        Ok(())
    }

    /// Extends the profiler's span by an event that describes the recording itself.
    fn widen_profile_span(
        &mut self,
        raw: &RawKinetoEvent<'_>,
        at: &ElementTextAndOffset<'_>,
    ) -> Result<(), TraceError> {
        let from = parse_time(raw.ts, "ts", at)?;
        let to = from.saturating_add(parse_time(raw.dur, "dur", at)?.max(0));
        let span = self.trace.span.get_or_insert((from, to));
        *span = (span.0.min(from), span.1.max(to));
        Ok(())
    }

    fn read_distributed_info(
        &mut self,
        value: JsonValueText<'_>,
        at: &ElementTextAndOffset<'_>,
    ) -> Result<(), TraceError> {
        let read = serde_json::from_str::<Option<DistributedInfo<'_>>>(value.as_str());
        let read = read.map_err(|error| {
            let found = format!("`distributedInfo` cannot be read: {error}");
            at.error_about(value.as_str(), found, DAMAGED)
        })?;
        let Some(read) = read else { return Ok(()) };
        self.trace.rank = parse_integer(read.rank, "rank", at)?;
        self.trace.world_size = parse_integer(read.world_size, "world_size", at)?;
        self.trace.backend = read.backend;
        if let Some(version) = read.nccl_version {
            self.trace.versions.push(("nccl".to_owned(), version));
        }
        if let Some(config) = read.pg_config {
            let json = number::unquote_json_value(config.as_str());
            let (groups, wrong) = groups::parse_group_list(&json);
            if let Some(wrong) = wrong {
                let text = format!(
                    "{} groups were read, the rest failed: {wrong}",
                    groups.len()
                );
                self.trace
                    .repairs
                    .count_and_list_repair(SingleJsonRepairWithOffset {
                        offset: at.offset_of(config.as_str()),
                        what: JsonRepairKind::Groups,
                        text,
                    });
            }
            self.trace.groups = groups;
        }
        Ok(())
    }
}

/// Categories of Python calls.
const PYTHON: [&str; 3] = ["python_function", "PythonFunction", "Python"];

/// Further categories that are neither converted nor device work.
const ON_HOST: [&str; 13] = [
    "overhead",
    "Overhead",
    "gpu_user_annotation",
    "cuda_profiler_range",
    "cpu_instant_event",
    "fwdbwd",
    "ac2g",
    "collective_comm",
    "mtia_insight",
    "mtia_counters",
    "enqueue",
    "dequeue",
    "async_task_queue",
];

/// Returns the category of an event of Ascend's profiler, which writes no category for device tasks and CANN calls.
/// Returns `None` for events that do no work, and for all events of other profilers.
fn ascend_category(raw: &RawKinetoEvent<'_>) -> Option<EventCategory> {
    /// Prefixes of the types of tasks that do no work.
    const NO_WORK: [&str; 6] = [
        "EVENT_",
        "NOTIFY_",
        "PLACE_HOLDER",
        "WRITE_VALUE",
        "CAPTURE_",
        "PROFILER_",
    ];
    let args = &raw.args;
    // The HCCL operations of a group are on one track. The copies within them also appear as SDMA or RDMA tasks, which
    // must not be counted again.
    if raw.name.starts_with("hcom_") && args.task.is_none() {
        return Some(EventCategory::Kernel);
    }
    let Some(task) = args.task else {
        let calls = args.correlation.is_some() || raw.name.starts_with("AscendCL@");
        return calls.then_some(EventCategory::Runtime);
    };
    args.stream?;
    let task = number::unquote_json_value(task.as_str()).to_ascii_uppercase();
    match &*task {
        "MEMCPY_ASYNC" => Some(EventCategory::Copy),
        task if task.contains("SDMA") || task.contains("RDMA") => None,
        task if NO_WORK.iter().any(|begin| task.starts_with(begin)) => None,
        _ => Some(EventCategory::Kernel),
    }
}

/// Returns the number of unread events in each category, counting only tracks outside the operators' process.
fn count_unread_events_outside_operators(
    trace: &KinetoTrace,
    counts: BTreeMap<(String, u32), u64>,
) -> Vec<(String, u64)> {
    let processes = trace.count_operators_by_process();
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for ((category, track), count) in counts {
        let pid = &*trace.tracks[track as usize].pid;
        if !processes.contains_key(pid) {
            *found.entry(category).or_default() += count;
        }
    }
    found.into_iter().collect()
}

/// Drops events with impossible times. A time is impossible if it is before 1970 (unless the times
/// have another origin), or if it is outside the profiler's span by more than the span's length.
/// Kernels, and the profiler's own shutdown, may end slightly after the span. If the file states no
/// span, drops events that are a day or more from the median.
pub(super) fn drop_events_with_impossible_times(trace: &mut KinetoTrace) {
    let middle = || {
        let mut starts: Vec<i64> = trace.events.iter().map(|event| event.start_ns).collect();
        let middle = starts.len() / 2;
        (!starts.is_empty()).then(|| *starts.select_nth_unstable(middle).1)
    };
    let span = trace
        .span
        .or_else(|| middle().map(|middle| (middle, middle)));
    let Some((from, to)) = span else {
        return;
    };
    let around = match to.saturating_sub(from) {
        0 => DAY,
        length => length.max(SLACK),
    };
    // Times near 0 are relative to the start of the host or of the capture, so they may be
    // negative.
    let earliest = if from >= DAY { 0 } else { i64::MIN };
    let (from, to) = (
        from.saturating_sub(around).max(earliest),
        to.saturating_add(around),
    );
    let before = trace.events.len();
    trace.events.retain(|event| {
        let end = event.start_ns.saturating_add_unsigned(event.duration_ns);
        event.start_ns >= earliest && end >= from && end <= to
    });
    trace.outside = (before - trace.events.len()) as u64;
}

/// Minimum tolerance around the profiler's span, in ns; matters only for short spans.
const SLACK: i64 = 1_000_000_000;
/// One day in ns, which is longer than any capture.
const DAY: i64 = 86_400_000_000_000;

/// Returns true if a value is a JSON number of any size.
fn is_number(json: &str) -> bool {
    json.starts_with(|first: char| first == '-' || first.is_ascii_digit())
}

/// Parses a required time as nanoseconds.
fn parse_time(
    value: Option<JsonValueText<'_>>,
    what: &str,
    at: &ElementTextAndOffset<'_>,
) -> Result<i64, TraceError> {
    let Some(value) = value else {
        let found = format!("an event without `{what}`, expected microseconds");
        return Err(at.error_about("", found, DAMAGED));
    };
    parse_microseconds_as_nanoseconds(value.as_str()).ok_or_else(|| {
        let found = format!(
            "`{what}` is {}, expected microseconds within 292 years",
            escape_and_shorten_name(value.as_str())
        );
        at.error_about(value.as_str(), found, DAMAGED)
    })
}

impl JsonElementReceiver for KinetoReader {
    const WHAT: &'static str = "device trace";
    const ARRAY: &'static str = "traceEvents";
    const BARE: bool = true;
    const LAYOUT: KeysAroundName = KeysAroundName {
        follows: &["pid"],
        never: &["\"pid\"", "\"ts\"", "\"args\"", "\"ph\""],
    };
    type Element<'de> = RawKinetoEvent<'de>;

    fn scan_element_and_return_length<'de>(
        &mut self,
        text: &'de str,
        event: &mut RawKinetoEvent<'de>,
    ) -> Option<usize> {
        RawKinetoEvent::scan_event(&mut self.layouts, text, event)
    }

    fn handle_array_element(
        &mut self,
        raw: &RawKinetoEvent<'_>,
        at: ElementTextAndOffset<'_>,
    ) -> Result<(), TraceError> {
        let cat = raw.cat.as_deref().unwrap_or("");
        match (&*raw.ph, cat) {
            ("X", cat) => {
                if let Some(category) = EventCategory::from_name(cat) {
                    return self.add_event(raw, category, &at);
                }
                if PYTHON.contains(&cat) {
                    return self.record_python_call(raw, &at);
                }
                if cat == "Trace" {
                    self.widen_profile_span(raw, &at)?;
                } else if cat.is_empty() {
                    if let Some(category) = ascend_category(raw) {
                        return self.add_event(raw, category, &at);
                    }
                } else if !ON_HOST.contains(&cat) {
                    let track = self.track_of(raw, &at)?;
                    let unread = self.unread.entry((cat.to_owned(), track));
                    *unread.or_default() += 1;
                }
            }
            // Arrows repeat the ids of the events that they connect, so their own ids add nothing.
            ("s" | "f", "fwdbwd" | "ac2g" | "async_cpu_to_gpu") => {
                self.trace.arrows += 1;
                return Ok(());
            }
            ("M", _) if raw.name == "thread_name" => {
                let named = self.tracks.name_track(raw.pid, raw.tid, raw.args.name);
                named.ok_or_else(|| {
                    at.error_about(
                        "",
                        "more tracks than 32-bit indices can address".to_owned(),
                        HUGE,
                    )
                })?;
            }
            ("", _) => {
                let found = "an event without `ph`".to_owned();
                return Err(at.error_about("", found, DAMAGED));
            }
            _ => {}
        }
        self.count_dropped_event(raw);
        Ok(())
    }

    fn handle_non_array_key_value(
        &mut self,
        key: &str,
        value: JsonValueText<'_>,
        at: ElementTextAndOffset<'_>,
    ) -> Result<(), TraceError> {
        match key {
            "baseTimeNanoseconds" => {
                self.base_ns = parse_integer(Some(value), key, &at)?.unwrap_or(0);
            }
            "distributedInfo" => self.read_distributed_info(value, &at)?,
            "host_name" => {
                self.trace.host_name = Some(number::unquote_json_value(value.as_str()).into_owned())
            }
            "deviceProperties" => {
                let devices = serde_json::from_str::<Vec<DeviceNameEntry>>(value.as_str());
                let devices = devices.map_err(|error| {
                    let found = format!("`{key}` cannot be read: {error}");
                    at.error_about(value.as_str(), found, DAMAGED)
                })?;
                self.trace.device_names = devices.into_iter().filter_map(|d| d.name).collect();
            }
            _ => {
                if let Some(of) = key.strip_suffix("_version") {
                    let version = number::unquote_json_value(value.as_str()).into_owned();
                    self.trace.versions.push((of.to_owned(), version));
                }
            }
        }
        Ok(())
    }

    fn record_repair(&mut self, repair: SingleJsonRepairWithOffset) {
        self.trace.repairs.count_and_list_repair(repair);
    }
}
