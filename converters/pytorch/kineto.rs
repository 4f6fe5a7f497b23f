//! The device trace: when operators ran on the host and kernels on the device, and which launched
//! which.

mod raw;
mod tracks;

use super::mend::Layout;
use super::number::{self, nanoseconds};
use super::stream::{self, At, Format, integer};
use super::{ProcessGroup, Repair, RepairKind, Repairs, communicates, groups};
use crate::graph::Names;
use crate::trace::{TraceError, shown};
use raw::{AllArgs, RawEvent};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::path::Path;
use tracks::Tracks;

pub use super::host::NONE;
pub use tracks::Track;

/// A device trace.
#[derive(Debug, Default)]
pub struct KinetoTrace {
    /// The events that have a duration and matter, in the order of the file.
    pub events: Vec<KinetoEvent>,
    /// What events run on: host threads and streams of devices.
    pub tracks: Vec<Track>,
    /// The texts that events number.
    pub texts: Names,
    /// The arguments of communication events, of kernels that say what they communicate and of
    /// synchronisations: strings as they are, anything else as JSON.
    pub args: Vec<Vec<(String, String)>>,
    /// The rank of the process, if the file says so.
    pub rank: Option<u32>,
    /// How many ranks there were.
    pub world_size: Option<u32>,
    /// What carries messages, such as `nccl`.
    pub backend: Option<String>,
    /// The process groups that the program had set up.
    pub groups: Vec<ProcessGroup>,
    /// The machine it ran on.
    pub host_name: Option<String>,
    /// Both ends of arrows: from forward to backward operators, and from launches to kernels.
    pub flows: Vec<Flow>,
    /// How many events of each category were left out, in the order of their names. Those without a
    /// category go by their phase.
    pub left_out: Vec<(String, u64)>,
    /// How many events have a [`KinetoEvent::rf_id`].
    pub with_rf_id: u64,
    /// What was repaired.
    pub repairs: Repairs,
    /// The length of the JSON, in bytes.
    pub bytes: u64,
    /// The devices of the machine.
    pub device_names: Vec<String>,
}

/// Something that took time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KinetoEvent {
    /// When it began, in nanoseconds since 1970.
    pub start_ns: i64,
    /// How long it took, in nanoseconds.
    pub duration_ns: u64,
    /// The number of its name in [`KinetoTrace::texts`].
    pub name: u32,
    /// What kind of thing it is.
    pub category: Category,
    /// The index in [`KinetoTrace::tracks`] of what it ran on.
    pub track: u32,
    /// The number that ties it to the host trace, 0 if there is none.
    pub rf_id: u64,
    /// The number that a launch shares with its operator or kernel, depending on the version; 0 if
    /// there is none.
    pub external_id: u64,
    /// The number that a launch shares with its kernel, 0 if there is none.
    pub correlation: u64,
    /// The stream of the device, −1 if there is none.
    pub stream: i64,
    /// The device, −1 if there is none.
    pub device: i32,
    /// How many bytes were copied or set.
    pub bytes: u64,
    /// Its index in [`KinetoTrace::args`], or [`NONE`].
    pub args: u32,
}

/// What kind of event one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// An operator on the host.
    CpuOp,
    /// A range that the program or a library named.
    Annotation,
    /// A call of the device's runtime or driver.
    Runtime,
    /// A kernel on the device.
    Kernel,
    /// A copy from, to or between devices.
    Copy,
    /// Memory of the device being set.
    Set,
    /// The host or a stream waiting for the device.
    Sync,
}

impl Category {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "cpu_op" => Self::CpuOp,
            "user_annotation" => Self::Annotation,
            "cuda_runtime" | "cuda_driver" | "hip_runtime" | "hip_driver" | "xpu_runtime"
            | "xpu_driver" => Self::Runtime,
            "kernel" => Self::Kernel,
            "gpu_memcpy" => Self::Copy,
            "gpu_memset" => Self::Set,
            "cuda_sync" => Self::Sync,
            _ => return None,
        })
    }
}

/// What an arrow links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// A forward operator to its backward operator.
    ForwardBackward,
    /// A launch to its kernel.
    Launch,
}

/// One end of an arrow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// What it links.
    pub kind: FlowKind,
    /// What both ends share; that of a launch is its correlation.
    pub id: u64,
    /// Whether it is the beginning.
    pub start: bool,
    /// When, in nanoseconds since 1970.
    pub at_ns: i64,
    /// The index in [`KinetoTrace::tracks`] of where.
    pub track: u32,
}

impl KinetoTrace {
    /// Reads `path`, which may be compressed.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let mut reader = Reader::default();
        reader.trace.bytes = stream::read(path, &mut reader)?;
        reader.finish().map_err(|error| error.in_file(path))
    }

    /// Reads the contents of a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        let mut reader = Reader::default();
        reader.trace.bytes = stream::read_bytes(bytes, &mut reader)?;
        reader.finish()
    }
}

/// The trace while it is read. Times are relative to the base until the end.
#[derive(Default)]
struct Reader {
    trace: KinetoTrace,
    tracks: Tracks,
    left_out: BTreeMap<String, u64>,
    /// When times count from, in nanoseconds since 1970. May stand behind the events.
    base_ns: i64,
}

const DAMAGED: &str =
    "the file is not what Kineto writes: capture again, or repair the event by hand";
const HUGE: &str = "a trace with more than 4 GiB of names cannot be read; capture fewer steps";

/// A stream, which some versions write as a pointer or as −1 in 64 bits without a sign.
struct Stream(i64);

impl TryFrom<i128> for Stream {
    type Error = std::num::TryFromIntError;

    fn try_from(number: i128) -> Result<Self, Self::Error> {
        let unsigned = || u64::try_from(number).map(u64::cast_signed);
        i64::try_from(number).or_else(|_| unsigned()).map(Self)
    }
}

/// What a job says about itself; versions differ in what is there.
#[derive(Deserialize)]
struct Distributed<'a> {
    backend: Option<String>,
    #[serde(borrow)]
    rank: Option<&'a RawValue>,
    #[serde(borrow)]
    world_size: Option<&'a RawValue>,
    #[serde(borrow)]
    pg_config: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Device {
    name: Option<String>,
}

impl Reader {
    fn finish(mut self) -> Result<KinetoTrace, TraceError> {
        let mut trace = self.trace;
        let base = self.base_ns;
        let times = trace.events.iter_mut().map(|event| &mut event.start_ns);
        for time in times.chain(trace.flows.iter_mut().map(|flow| &mut flow.at_ns)) {
            *time = time.checked_add(base).ok_or_else(|| {
                let found = format!("{time} ns after a base of {base} ns is beyond the year 2262");
                TraceError::refused_at(crate::trace::Place::default(), found, DAMAGED)
            })?;
        }
        trace.tracks = self.tracks.finish();
        trace.left_out = std::mem::take(&mut self.left_out).into_iter().collect();
        Ok(trace)
    }

    fn leave_out(&mut self, event: &RawEvent<'_>) {
        let what = event.cat.as_ref().unwrap_or(&event.ph);
        match self.left_out.get_mut(&**what) {
            Some(count) => *count += 1,
            None => {
                self.left_out.insert(what.clone().into_owned(), 1);
            }
        }
    }

    fn track(&mut self, raw: &RawEvent<'_>, at: &At<'_>) -> Result<u32, TraceError> {
        let number = self.tracks.number(raw.pid, raw.tid);
        number.ok_or_else(|| at.refused("", "more tracks than fit".to_owned(), HUGE))
    }

    fn flow(&mut self, raw: &RawEvent<'_>, kind: FlowKind, at: &At<'_>) -> Result<(), TraceError> {
        let Some(id) = integer(raw.id, "id", at)? else {
            return Err(at.refused("", "an arrow without `id`".to_owned(), DAMAGED));
        };
        let flow = Flow {
            kind,
            id,
            start: raw.ph == "s",
            at_ns: time(raw.ts, "ts", at)?,
            track: self.track(raw, at)?,
        };
        self.trace.flows.push(flow);
        Ok(())
    }

    fn event(
        &mut self,
        raw: &RawEvent<'_>,
        category: Category,
        at: &At<'_>,
    ) -> Result<(), TraceError> {
        let duration = time(raw.dur, "dur", at)?;
        let Ok(duration_ns) = u64::try_from(duration) else {
            let found = format!("`dur` is {duration} ns, expected no less than 0");
            let text = raw.dur.map_or("", RawValue::get);
            return Err(at.refused(text, found, DAMAGED));
        };
        let raw_args = &raw.args;
        let mut args = NONE;
        if raw_args.collective || category == Category::Sync || communicates(&raw.name) {
            args = self.trace.args.len() as u32;
            self.trace.args.push(AllArgs::of(at.text).0);
        }
        let name = self.trace.texts.intern(&raw.name);
        let event = KinetoEvent {
            start_ns: time(raw.ts, "ts", at)?,
            duration_ns,
            name: name.ok_or_else(|| at.refused("", "more names than fit".to_owned(), HUGE))?,
            category,
            track: self.track(raw, at)?,
            rf_id: integer(raw_args.rf_id, "Record function id", at)?.unwrap_or(0),
            external_id: integer(raw_args.external_id, "External id", at)?.unwrap_or(0),
            correlation: integer(raw_args.correlation, "correlation", at)?.unwrap_or(0),
            stream: integer(raw_args.stream, "stream", at)?.map_or(-1, |Stream(stream)| stream),
            device: integer(raw_args.device, "device", at)?.unwrap_or(-1),
            bytes: integer(raw_args.bytes, "bytes", at)?.unwrap_or(0),
            args,
        };
        self.trace.with_rf_id += u64::from(event.rf_id != 0);
        self.trace.events.push(event);
        Ok(())
    }

    fn distributed(&mut self, value: &RawValue, at: &At<'_>) -> Result<(), TraceError> {
        let read = serde_json::from_str::<Option<Distributed<'_>>>(value.get());
        let read = read.map_err(|error| {
            let found = format!("`distributedInfo` cannot be read: {error}");
            at.refused(value.get(), found, DAMAGED)
        })?;
        let Some(read) = read else { return Ok(()) };
        self.trace.rank = integer(read.rank, "rank", at)?;
        self.trace.world_size = integer(read.world_size, "world_size", at)?;
        self.trace.backend = read.backend;
        if let Some(config) = read.pg_config {
            let json = number::text(config.get());
            let (groups, wrong) = groups::parse(&json);
            if let Some(wrong) = wrong {
                let text = format!("{} groups were read: {wrong}", groups.len());
                self.trace.repairs.push(Repair {
                    offset: at.of(config.get()),
                    what: RepairKind::Groups,
                    text,
                });
            }
            self.trace.groups = groups;
        }
        Ok(())
    }
}

/// The nanoseconds in a time, which must be there.
fn time(value: Option<&RawValue>, what: &str, at: &At<'_>) -> Result<i64, TraceError> {
    let Some(value) = value else {
        let found = format!("an event without `{what}`, expected its microseconds");
        return Err(at.refused("", found, DAMAGED));
    };
    nanoseconds(value.get()).ok_or_else(|| {
        let found = format!(
            "`{what}` is {}, expected microseconds within 292 years",
            shown(value.get())
        );
        at.refused(value.get(), found, DAMAGED)
    })
}

impl Format for Reader {
    const WHAT: &'static str = "device trace";
    const ARRAY: &'static str = "traceEvents";
    const BARE: bool = true;
    const LAYOUT: Layout = Layout {
        follows: &["pid"],
        never: &["\"pid\"", "\"ts\"", "\"args\"", "\"ph\""],
    };
    type Element<'de> = RawEvent<'de>;

    fn element(&mut self, raw: RawEvent<'_>, at: At<'_>) -> Result<(), TraceError> {
        let cat = raw.cat.as_deref().unwrap_or("");
        match (&*raw.ph, cat) {
            ("X", cat) => {
                if let Some(category) = Category::named(cat) {
                    return self.event(&raw, category, &at);
                }
            }
            ("s" | "f", "fwdbwd") => return self.flow(&raw, FlowKind::ForwardBackward, &at),
            ("s" | "f", "ac2g" | "async_cpu_to_gpu") => {
                return self.flow(&raw, FlowKind::Launch, &at);
            }
            ("M", _) if raw.name == "thread_name" => {
                let named = self.tracks.name(raw.pid, raw.tid, raw.args.name);
                named.ok_or_else(|| at.refused("", "more tracks than fit".to_owned(), HUGE))?;
            }
            ("", _) => {
                let found = "an event without `ph`".to_owned();
                return Err(at.refused("", found, DAMAGED));
            }
            _ => {}
        }
        self.leave_out(&raw);
        Ok(())
    }

    fn value(&mut self, key: &str, value: &RawValue, at: At<'_>) -> Result<(), TraceError> {
        match key {
            "baseTimeNanoseconds" => {
                self.base_ns = integer(Some(value), key, &at)?.unwrap_or(0);
            }
            "distributedInfo" => self.distributed(value, &at)?,
            "host_name" => self.trace.host_name = Some(number::text(value.get()).into_owned()),
            "deviceProperties" => {
                let devices = serde_json::from_str::<Vec<Device>>(value.get());
                let devices = devices.map_err(|error| {
                    let found = format!("`{key}` cannot be read: {error}");
                    at.refused(value.get(), found, DAMAGED)
                })?;
                self.trace.device_names = devices.into_iter().filter_map(|d| d.name).collect();
            }
            _ => {}
        }
        Ok(())
    }

    fn repaired(&mut self, repair: Repair) {
        self.trace.repairs.push(repair);
    }
}

#[cfg(test)]
mod tests;
