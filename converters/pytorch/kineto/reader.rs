//! Conversion of the events of a file to a device trace.

use super::raw::{AllArgs, RawEvent};
use super::tracks::Tracks;
use super::{Category, Flow, FlowKind, KinetoEvent, KinetoTrace, NONE};
use crate::converters::pytorch::mend::Layout;
use crate::converters::pytorch::number::{self, nanoseconds};
use crate::converters::pytorch::stream::{At, Format, integer};
use crate::converters::pytorch::{Repair, RepairKind, communicates, groups};
use crate::trace::{Place, TraceError, shown};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// The device trace while it is read. Times are relative to the base until the end.
#[derive(Default)]
pub(super) struct Reader {
    pub trace: KinetoTrace,
    tracks: Tracks,
    left_out: BTreeMap<String, u64>,
    /// Base of all times, in nanoseconds since 1970. May stand behind the events.
    base_ns: i64,
}

const DAMAGED: &str =
    "the file is not what Kineto writes: capture again, or repair the event by hand";
const HUGE: &str = "a trace with more than 4 GiB of names cannot be read; capture fewer steps";

/// A stream id, which some versions write as a pointer or as −1 in unsigned 64 bits.
struct Stream(i64);

impl TryFrom<i128> for Stream {
    type Error = std::num::TryFromIntError;

    fn try_from(number: i128) -> Result<Self, Self::Error> {
        let unsigned = || u64::try_from(number).map(u64::cast_signed);
        i64::try_from(number).or_else(|_| unsigned()).map(Self)
    }
}

/// `distributedInfo` of a job; its keys differ between versions.
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
    /// Returns the trace, once all of it was read.
    pub fn finish(mut self) -> Result<KinetoTrace, TraceError> {
        let mut trace = self.trace;
        let base = self.base_ns;
        let times = trace.events.iter_mut().map(|event| &mut event.start_ns);
        for time in times.chain(trace.flows.iter_mut().map(|flow| &mut flow.at_ns)) {
            // The base may come last in the file, so it is added when everything is read.
            *time = time.checked_add(base).ok_or_else(|| {
                let found = format!("{time} ns after a base of {base} ns is beyond the year 2262");
                TraceError::refused_at(Place::default(), found, DAMAGED)
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
        // All arguments are kept only where they are used: they would outweigh everything else.
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
            offset: at.offset,
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

/// Parses the nanoseconds of a required time.
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
