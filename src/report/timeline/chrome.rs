//! Timelines as JSON in the Chrome trace format, for Perfetto, Speedscope and chrome://tracing.
//!
//! The format stores times as microseconds in double precision. Viewers subtract the trace's start from each time. Some
//! viewers then round or truncate the result to nanoseconds. Each operation rounds decimal fractions. If slices were
//! written as a start and a duration, adjacent slices would therefore overlap: Perfetto's trace processor, v52, dropped
//! between one in ten and one in twenty of them. It also sorted such a slice before the path slice that begins at the
//! same time and should enclose it. Each slice is therefore written as two events, its begin and its end. Times are
//! rounded to 1/1024 us. Doubles represent such times exactly up to 2^43 us (101 days), so adjacent slices share the
//! same number. A node whose rounded start and end are equal is drawn as an instant, because viewers would sort such a
//! slice after others.

use super::events::{
    ArrowEnd, RankTrackId, TimelineCounterQuantity, TimelineEncoder, TimelineNodeDetails,
    TimelineSlice,
};
use chakram_base::units::Time;
use serde::Serialize;
use serde_json::{Map, Value};
use std::io::{self, Write};

/// A time in units of 1/1024 us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TimeIn1024thMicros(u64);

impl TimeIn1024thMicros {
    const PER_US: u64 = 1024;

    fn nearest_tick(at: Time) -> Self {
        const PS_PER_US: u128 = 1_000_000;
        let ticks = u128::from(at.0) * u128::from(Self::PER_US);
        Self(((ticks + PS_PER_US / 2) / PS_PER_US) as u64)
    }

    fn to_micros(self) -> f64 {
        self.0 as f64 / Self::PER_US as f64
    }
}

/// Name of the short slices that mark arrivals of messages.
const ARRIVAL: &str = "arrival";

/// An event of the Chrome trace format.
#[derive(Debug, Default, Serialize)]
struct ChromeTraceEvent<'e> {
    ph: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    name: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<ChromeEventArgs<'e>>,
}

/// Arguments of an event; viewers show them for a selected event.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ChromeEventArgs<'e> {
    Name { name: &'e str },
    Order { sort_index: u32 },
    Held(Map<String, Value>),
    Node(NodeEventArgs<'e>),
}

#[derive(Debug, Serialize)]
struct NodeEventArgs<'e> {
    node: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flops: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<&'e str>,
}

impl<'e> NodeEventArgs<'e> {
    fn from_facts(facts: &'e TimelineNodeDetails<'_>) -> Self {
        Self {
            node: facts.node,
            name: facts.name,
            flops: facts.flops,
            bytes: facts.bytes,
            group: facts.group,
            algorithm: facts.algorithm.as_deref(),
        }
    }
}

/// Encodes a timeline in the Chrome trace format, and writes it to `out`.
#[derive(Debug)]
pub(super) struct ChromeEncoder<W> {
    out: W,
    first: bool,
    /// First write error; after an error, nothing more is written.
    failed: Option<io::Error>,
}

impl<W: Write> ChromeEncoder<W> {
    pub fn new(out: W) -> Self {
        let mut this = Self {
            out,
            first: true,
            failed: None,
        };
        this.write_raw(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
        this
    }

    /// Finishes the file; returns `out`, or the first write error.
    pub fn finish_file(mut self) -> io::Result<W> {
        self.write_raw(b"\n]}\n");
        self.failed.map_or(Ok(self.out), Err)
    }

    fn write_raw(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.out.write_all(bytes).err();
        }
    }

    fn write_event(&mut self, event: &ChromeTraceEvent<'_>) {
        let separator: &[u8] = if self.first { b"\n" } else { b",\n" };
        self.first = false;
        self.write_raw(separator);
        let text = serde_json::to_vec(event).expect("its keys are texts");
        self.write_raw(&text);
    }

    /// Writes the values of a process's counter at one time.
    fn write_counter(&mut self, pid: u32, name: &str, at: Time, values: Map<String, Value>) {
        self.write_event(&ChromeTraceEvent {
            ph: "C",
            name,
            pid,
            ts: Some(TimeIn1024thMicros::nearest_tick(at).to_micros()),
            args: Some(ChromeEventArgs::Held(values)),
            ..ChromeTraceEvent::default()
        });
    }

    /// Writes the name of a process or track, and its position in the display order.
    fn write_label(&mut self, pid: u32, tid: Option<u32>, label: &str, order: u32) {
        let names = match tid {
            None => ["process_name", "process_sort_index"],
            Some(_) => ["thread_name", "thread_sort_index"],
        };
        let args = [
            ChromeEventArgs::Name { name: label },
            ChromeEventArgs::Order { sort_index: order },
        ];
        for (name, args) in names.into_iter().zip(args) {
            self.write_event(&ChromeTraceEvent {
                ph: "M",
                name,
                pid,
                tid,
                args: Some(args),
                ..ChromeTraceEvent::default()
            });
        }
    }

    /// Draws an arrow from the start of a send to a short slice at the end of the receive. The slice marks the arrival,
    /// and lasts for the last tick of the receive. It is needed because viewers draw an arrow to the beginning of a
    /// slice, but the receive's own slice may begin before the send.
    fn draw_message_arrow_end(
        &mut self,
        track: RankTrackId,
        arrow: ArrowEnd,
        start: TimeIn1024thMicros,
        end: TimeIn1024thMicros,
    ) {
        let (phase, id, at) = match arrow {
            ArrowEnd::From(id) => ("s", id, start),
            ArrowEnd::To(id) => (
                "f",
                id,
                TimeIn1024thMicros(end.0.saturating_sub(1)).max(start),
            ),
        };
        let arrives = phase == "f" && start < at;
        if arrives {
            self.write_range_boundary("B", track, ARRIVAL, at);
        }
        self.write_event(&ChromeTraceEvent {
            ph: phase,
            bp: Some("e"),
            name: "message",
            cat: Some("message"),
            id: Some(id.into()),
            pid: track.rank,
            tid: Some(track.lane),
            ts: Some(at.to_micros()),
            ..ChromeTraceEvent::default()
        });
        if arrives {
            self.write_range_boundary("E", track, ARRIVAL, end);
        }
    }

    /// Draws one end of a launch arrow, which leads from a call to a node that it launched. The end is at the beginning
    /// of the slice.
    fn draw_launch_arrow_end(
        &mut self,
        track: RankTrackId,
        phase: &'static str,
        id: u64,
        at: TimeIn1024thMicros,
    ) {
        self.write_event(&ChromeTraceEvent {
            ph: phase,
            bp: (phase == "f").then_some("e"),
            name: "launch",
            cat: Some("launch"),
            id: Some(id),
            pid: track.rank,
            tid: Some(track.lane),
            ts: Some(at.to_micros()),
            ..ChromeTraceEvent::default()
        });
    }

    fn write_range_boundary(
        &mut self,
        phase: &'static str,
        track: RankTrackId,
        name: &str,
        at: TimeIn1024thMicros,
    ) {
        self.write_event(&ChromeTraceEvent {
            ph: phase,
            name,
            pid: track.rank,
            tid: Some(track.lane),
            ts: Some(at.to_micros()),
            ..ChromeTraceEvent::default()
        });
    }
}

impl<W: Write> TimelineEncoder for ChromeEncoder<W> {
    fn name_rank(&mut self, rank: u32, name: &str) {
        self.write_label(rank, None, name, rank);
    }

    fn name_track(&mut self, track: RankTrackId, name: &str, order: u32) {
        self.write_label(track.rank, Some(track.lane), name, order);
    }

    fn is_long_enough_for_slice(&self, start: Time, end: Time) -> bool {
        TimeIn1024thMicros::nearest_tick(start) < TimeIn1024thMicros::nearest_tick(end)
    }

    fn draw_slice_or_instant(&mut self, track: RankTrackId, slice: &TimelineSlice<'_>) {
        let (start, end) = (
            TimeIn1024thMicros::nearest_tick(slice.start),
            TimeIn1024thMicros::nearest_tick(slice.end),
        );
        let event = |ph, s, at: TimeIn1024thMicros| ChromeTraceEvent {
            ph,
            s,
            name: slice.name,
            cat: Some(slice.category),
            pid: track.rank,
            tid: Some(track.lane),
            ts: Some(at.to_micros()),
            // Speedscope matches the end of a slice to its begin by name and arguments, so the end event must repeat
            // the arguments.
            args: Some(ChromeEventArgs::Node(NodeEventArgs::from_facts(
                &slice.facts,
            ))),
            ..ChromeTraceEvent::default()
        };
        let lasts = start < end;
        self.write_event(&match lasts {
            true => event("B", None, start),
            false => event("i", Some("t"), start),
        });
        if let Some(arrow) = slice.arrow {
            self.draw_message_arrow_end(track, arrow, start, end);
        }
        if lasts {
            // Only slices can have arrows in this format, so a node drawn as an instant has none.
            for &id in &slice.launched {
                self.draw_launch_arrow_end(track, "s", id, start);
            }
            if let Some(id) = slice.launch {
                self.draw_launch_arrow_end(track, "f", id, start);
            }
            self.write_event(&event("E", None, end));
        }
    }

    fn begin_slice(&mut self, track: RankTrackId, name: &str, at: Time) {
        self.write_range_boundary("B", track, name, TimeIn1024thMicros::nearest_tick(at));
    }

    fn end_slice(&mut self, track: RankTrackId, name: &str, at: Time) {
        self.write_range_boundary("E", track, name, TimeIn1024thMicros::nearest_tick(at));
    }

    fn draw_marker(&mut self, rank: u32, name: &str, at: Time) {
        self.write_event(&ChromeTraceEvent {
            ph: "i",
            s: Some("p"),
            name,
            pid: rank,
            tid: Some(0),
            ts: Some(TimeIn1024thMicros::nearest_tick(at).to_micros()),
            ..ChromeTraceEvent::default()
        });
    }

    fn draw_memory(&mut self, rank: u32, at: Time, held: &[(&'static str, u64)]) {
        let held = held
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), (*bytes).into()));
        self.write_counter(rank, "memory", at, held.collect());
    }

    fn draw_counter(&mut self, rank: u32, counter: TimelineCounterQuantity, at: Time, value: u64) {
        let values = [("value".to_owned(), value.into())];
        self.write_counter(
            rank,
            counter.display_name(),
            at,
            values.into_iter().collect(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_rounded_instants_are_exact() {
        // 0.1 us + 0.2 us is 0.3 us, but the sum of the nearest doubles is larger.
        let micros = |ps| TimeIn1024thMicros::nearest_tick(Time(ps)).to_micros();
        let between = TimeIn1024thMicros(307 - 102).to_micros();
        assert_eq!(micros(100_000) + between, micros(300_000));
        // 0.1 and 0.3 us are 102.4 and 307.2 ticks; 15 us are 15,360 ticks.
        assert_eq!(
            (
                TimeIn1024thMicros::nearest_tick(Time(100_000)).0,
                TimeIn1024thMicros::nearest_tick(Time(300_000)).0
            ),
            (102, 307)
        );
        assert_eq!(
            TimeIn1024thMicros::nearest_tick(Time(15_000_000)),
            TimeIn1024thMicros(15_360)
        );
        assert_eq!(micros(15_000_000), 15.0);
    }
}
