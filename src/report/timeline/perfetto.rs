//! Timelines in Perfetto's own protobuf format: integer nanoseconds, interned strings, arrows, and counters with units.
//!
//! The format is defined in `protos/perfetto/trace/` of the Perfetto project. Every packet is field 1 of the `Trace`
//! message, so a file can be written packet by packet. Strings are interned: the first packet that uses a string also
//! defines the string's id. Batches of packets are compressed (`compressed_packets`).

use super::events::{
    ArrowEnd, RankTrackId, TimelineCounterQuantity, TimelineEncoder, TimelineSlice,
};
use chakram_base::units::Time;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use prost::Message;
use schema::{
    CounterDescriptor, DebugAnnotation, InternedData, TracePacket, TrackDescriptor, TrackEvent,
};
use std::collections::BTreeMap;
use std::io::{self, Write};
use texts::InternedStringIds;

mod schema;
mod texts;

/// Id of the packet sequence. A file has only one sequence.
const SEQUENCE: u32 = 1;
/// Id of the root track, the parent of all other tracks.
const ROOT: u64 = 1;
/// Size of a batch of packets before compression, in bytes.
const DEFLATED: usize = 1 << 18;

/// A track, identified by the object that it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TrackKey {
    Rank(u32),
    Lane(RankTrackId),
    /// Bytes that a rank has allocated, of one tensor class or (for `None`) in total.
    Memory(u32, Option<&'static str>),
    Counter(u32, TimelineCounterQuantity),
}

/// Smallest id of a launch arrow; those of message arrows are smaller.
const LAUNCHES: u64 = 1 << 33;

/// Names of the facts attached to slices.
const FACTS: [&str; 6] = ["node", "name", "flops", "bytes", "group", "algorithm"];

/// Encodes a timeline in Perfetto's format, and writes it to `out`.
#[derive(Debug)]
pub(super) struct PerfettoEncoder<W> {
    out: W,
    /// First write error; after an error, nothing more is written.
    failed: Option<io::Error>,
    tracks: BTreeMap<TrackKey, u64>,
    categories: InternedStringIds,
    names: InternedStringIds,
    facts: InternedStringIds,
    texts: InternedStringIds,
    /// Last value of each counter.
    held: BTreeMap<u64, u64>,
    /// Encoded packets that are not yet written.
    buffer: Vec<u8>,
}

/// Appends a packet to `to` as a length-delimited field 1 of the trace.
fn frame_packet(packet: &TracePacket, mut to: Vec<u8>) -> Vec<u8> {
    to.push(0x0a);
    let encoded = packet.encode_length_delimited(&mut to);
    encoded.expect("a vector grows as needed");
    to
}

fn nearest_nanosecond(at: Time) -> u64 {
    at.0 / 1000 + u64::from(at.0 % 1000 >= 500)
}

impl<W: Write> PerfettoEncoder<W> {
    /// Starts a file with this title.
    pub fn new(out: W, title: &str) -> Self {
        let mut this = Self {
            out,
            failed: None,
            tracks: BTreeMap::new(),
            categories: InternedStringIds::default(),
            names: InternedStringIds::default(),
            facts: InternedStringIds::default(),
            texts: InternedStringIds::default(),
            held: BTreeMap::new(),
            buffer: Vec::new(),
        };
        let root = TrackDescriptor {
            uuid: ROOT,
            name: Some(title.to_owned()),
            child_ordering: Some(TrackDescriptor::EXPLICIT_ORDER),
            ..TrackDescriptor::default()
        };
        // The first packet must declare that no string ids are valid yet.
        this.append_packet_with_new_strings(TracePacket {
            sequence_flags: Some(TracePacket::STATE_CLEARED),
            track_descriptor: Some(root),
            ..TracePacket::default()
        });
        for fact in FACTS {
            this.facts.id_of_text(fact);
        }
        this
    }

    /// Finishes the file; returns `out`, or the first write error.
    pub fn finish_file(mut self) -> io::Result<W> {
        self.compress_and_write_buffered_packets();
        self.failed.map_or(Ok(self.out), Err)
    }

    /// Compresses and writes the collected packets, and empties the buffer.
    fn compress_and_write_buffered_packets(&mut self) {
        if self.failed.is_some() {
            return;
        }
        let mut deflated = ZlibEncoder::new(Vec::new(), Compression::default());
        let deflated = deflated
            .write_all(&self.buffer)
            .and_then(|()| deflated.finish());
        self.buffer.clear();
        let packet = TracePacket {
            compressed: Some(deflated.expect("a vector grows as needed")),
            ..TracePacket::default()
        };
        let written = self.out.write_all(&frame_packet(&packet, Vec::new()));
        self.failed = written.err();
    }

    /// Writes a packet. Also adds definitions of the strings that no earlier packet used.
    fn append_packet_with_new_strings(&mut self, packet: TracePacket) {
        let interned = InternedData {
            categories: std::mem::take(&mut self.categories.fresh),
            names: std::mem::take(&mut self.names.fresh),
            facts: std::mem::take(&mut self.facts.fresh),
            texts: std::mem::take(&mut self.texts.fresh),
        };
        let packet = TracePacket {
            sequence: Some(SEQUENCE),
            interned: (interned != InternedData::default()).then_some(interned),
            ..packet
        };
        self.buffer = frame_packet(&packet, std::mem::take(&mut self.buffer));
        if self.buffer.len() >= DEFLATED {
            self.compress_and_write_buffered_packets();
        }
    }

    fn write_event(&mut self, at: Time, event: TrackEvent) {
        let uses_texts = event.name.is_some() || !event.categories.is_empty();
        self.append_packet_with_new_strings(TracePacket {
            timestamp: Some(nearest_nanosecond(at)),
            sequence_flags: uses_texts.then_some(TracePacket::NEEDS_STATE),
            event: Some(event),
            ..TracePacket::default()
        });
    }

    /// Returns the id of a track. On the track's first use, writes the description that `describe` returns.
    fn track_id_describing_on_first_use(
        &mut self,
        key: TrackKey,
        describe: impl FnOnce() -> TrackDescriptor,
    ) -> u64 {
        if let Some(known) = self.tracks.get(&key) {
            return *known;
        }
        let uuid = ROOT + 1 + self.tracks.len() as u64;
        self.tracks.insert(key, uuid);
        let descriptor = TrackDescriptor { uuid, ..describe() };
        self.append_packet_with_new_strings(TracePacket {
            track_descriptor: Some(descriptor),
            ..TracePacket::default()
        });
        uuid
    }

    fn rank_track(&mut self, rank: u32) -> u64 {
        self.track_id_describing_on_first_use(TrackKey::Rank(rank), || TrackDescriptor {
            parent: Some(ROOT),
            name: Some(format!("rank {rank}")),
            child_ordering: Some(TrackDescriptor::EXPLICIT_ORDER),
            ..TrackDescriptor::default()
        })
    }

    fn lane_track(&mut self, track: RankTrackId) -> u64 {
        let parent = self.rank_track(track.rank);
        self.track_id_describing_on_first_use(TrackKey::Lane(track), || TrackDescriptor {
            parent: Some(parent),
            ..TrackDescriptor::default()
        })
    }

    /// Writes the value of a counter of `rank`. On the counter's first use, also writes its name and unit.
    fn write_counter(
        &mut self,
        (rank, key): (u32, TrackKey),
        describe: impl FnOnce() -> (String, CounterDescriptor),
        at: Time,
        value: u64,
    ) {
        let parent = self.rank_track(rank);
        let track = self.track_id_describing_on_first_use(key, || {
            let (name, counter) = describe();
            TrackDescriptor {
                parent: Some(parent),
                name: Some(name),
                counter: Some(counter),
                order: Some(i32::MAX),
                ..TrackDescriptor::default()
            }
        });
        if self.held.insert(track, value) == Some(value) {
            return;
        }
        self.write_event(
            at,
            TrackEvent {
                kind: Some(TrackEvent::COUNTER),
                track: Some(track),
                // Counter values are signed in this format, but no real count reaches 2^63.
                counter: Some(i64::try_from(value).unwrap_or(i64::MAX)),
                ..TrackEvent::default()
            },
        );
    }
}

impl<W: Write> PerfettoEncoder<W> {
    /// Writes the bytes that `rank` has allocated, of one class or in total.
    fn write_memory_counter(
        &mut self,
        rank: u32,
        class: Option<&'static str>,
        at: Time,
        bytes: u64,
    ) {
        let describe = || {
            let name = class.map_or("memory".to_owned(), |class| format!("memory: {class}"));
            let unit = CounterDescriptor {
                unit: Some(CounterDescriptor::BYTES),
                unit_name: None,
            };
            (name, unit)
        };
        self.write_counter((rank, TrackKey::Memory(rank, class)), describe, at, bytes);
    }
}

impl<W: Write> TimelineEncoder for PerfettoEncoder<W> {
    fn name_rank(&mut self, rank: u32, name: &str) {
        self.track_id_describing_on_first_use(TrackKey::Rank(rank), || TrackDescriptor {
            parent: Some(ROOT),
            name: Some(name.to_owned()),
            child_ordering: Some(TrackDescriptor::EXPLICIT_ORDER),
            order: i32::try_from(rank).ok(),
            ..TrackDescriptor::default()
        });
    }

    fn name_track(&mut self, track: RankTrackId, name: &str, order: u32) {
        let parent = self.rank_track(track.rank);
        // Sort tracks by `order`, then by lane.
        let order = order.saturating_mul(10_000) + track.lane.min(9_999);
        self.track_id_describing_on_first_use(TrackKey::Lane(track), || TrackDescriptor {
            parent: Some(parent),
            name: Some(name.to_owned()),
            order: i32::try_from(order).ok(),
            merging: Some(TrackDescriptor::NEVER_MERGED),
            ..TrackDescriptor::default()
        });
    }

    fn is_long_enough_for_slice(&self, _: Time, _: Time) -> bool {
        // A slice has two events, one at its begin and one at its end. Viewers process events with equal times in file
        // order.
        true
    }

    fn draw_slice_or_instant(&mut self, track: RankTrackId, slice: &TimelineSlice<'_>) {
        let (kind, facts) = (Some(TrackEvent::SLICE_BEGIN), &slice.facts);
        let track = Some(self.lane_track(track));
        let number = |name: &str| {
            FACTS
                .iter()
                .position(|fact| *fact == name)
                .map(|i| i as u64 + 1)
        };
        let mut annotations = vec![DebugAnnotation {
            name: number("node"),
            uint: Some(facts.node),
            text: None,
        }];
        for (name, amount) in [("flops", facts.flops), ("bytes", facts.bytes)] {
            annotations.extend(amount.map(|amount| DebugAnnotation {
                name: number(name),
                uint: Some(amount),
                text: None,
            }));
        }
        let algorithm = facts.algorithm.as_deref();
        for (name, text) in [
            ("name", facts.name),
            ("group", facts.group),
            ("algorithm", algorithm),
        ] {
            annotations.extend(text.map(|text| DebugAnnotation {
                name: number(name),
                uint: None,
                text: Some(self.texts.id_of_text(text)),
            }));
        }
        let begin = TrackEvent {
            kind,
            track,
            categories: vec![self.categories.id_of_text(slice.category)],
            name: Some(self.names.id_of_text(slice.name)),
            annotations,
            ..TrackEvent::default()
        };
        let end = TrackEvent {
            kind: Some(TrackEvent::SLICE_END),
            track,
            ..TrackEvent::default()
        };
        // Viewers draw an arrow from the slice that began first, but a receive may be posted before its send begins.
        // The arrow therefore ends at an instant event at the receive's end. Arrow ids start at 1, because 0 means no
        // arrow.
        let (leaving, entering) = match slice.arrow {
            None => (vec![], vec![]),
            Some(ArrowEnd::From(id)) => (vec![u64::from(id) + 1], vec![]),
            Some(ArrowEnd::To(id)) => (vec![], vec![u64::from(id) + 1]),
        };
        // Use ids above those of all message arrows.
        let number = |id: u64| LAUNCHES + id;
        let leaving = leaving.into_iter();
        let begin = TrackEvent {
            leaving: leaving
                .chain(slice.launched.iter().copied().map(number))
                .collect(),
            entering: slice.launch.map(number).into_iter().collect(),
            ..begin
        };
        self.write_event(slice.start, begin);
        if !entering.is_empty() {
            let arrival = TrackEvent {
                kind: Some(TrackEvent::INSTANT),
                track,
                name: Some(self.names.id_of_text("arrival")),
                entering,
                ..TrackEvent::default()
            };
            self.write_event(slice.end, arrival);
        }
        self.write_event(slice.end, end);
    }

    fn begin_slice(&mut self, track: RankTrackId, name: &str, at: Time) {
        let event = TrackEvent {
            kind: Some(TrackEvent::SLICE_BEGIN),
            track: Some(self.lane_track(track)),
            name: Some(self.names.id_of_text(name)),
            ..TrackEvent::default()
        };
        self.write_event(at, event);
    }

    fn end_slice(&mut self, track: RankTrackId, _: &str, at: Time) {
        let event = TrackEvent {
            kind: Some(TrackEvent::SLICE_END),
            track: Some(self.lane_track(track)),
            ..TrackEvent::default()
        };
        self.write_event(at, event);
    }

    fn draw_marker(&mut self, rank: u32, name: &str, at: Time) {
        let event = TrackEvent {
            kind: Some(TrackEvent::INSTANT),
            track: Some(self.rank_track(rank)),
            name: Some(self.names.id_of_text(name)),
            ..TrackEvent::default()
        };
        self.write_event(at, event);
    }

    fn draw_memory(&mut self, rank: u32, at: Time, held: &[(&'static str, u64)]) {
        let all = held
            .iter()
            .fold(0_u64, |all, (_, bytes)| all.saturating_add(*bytes));
        self.write_memory_counter(rank, None, at, all);
        for &(class, bytes) in held {
            self.write_memory_counter(rank, Some(class), at, bytes);
        }
    }

    fn draw_counter(&mut self, rank: u32, counter: TimelineCounterQuantity, at: Time, value: u64) {
        let describe = || {
            let (name, unit) = match counter {
                TimelineCounterQuantity::Sending => {
                    let unit_name = Some("bytes/s".to_owned());
                    let unit = CounterDescriptor {
                        unit: None,
                        unit_name,
                    };
                    ("sending", unit)
                }
                TimelineCounterQuantity::Waiting => {
                    let unit = CounterDescriptor {
                        unit: Some(CounterDescriptor::COUNT),
                        unit_name: None,
                    };
                    (counter.display_name(), unit)
                }
            };
            (name.to_owned(), unit)
        };
        self.write_counter(
            (rank, TrackKey::Counter(rank, counter)),
            describe,
            at,
            value,
        );
    }
}
