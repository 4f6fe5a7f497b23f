//! Parses the planes, lines, events and stats of an `XSpace`. Parsed values borrow from the
//! contents of the file.

use chakram_base::bounds;
use chakram_trace::format::TraceError;
use chakram_trace::format::wire::{WireCursor, WireValue};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Bytes of a message, and their offset in the file.
pub(super) type MessageBytesAndOffset<'a> = (&'a [u8], usize);

/// Calls a visitor for each field of a message.
pub(super) fn for_each_field<'a>(
    message: MessageBytesAndOffset<'a>,
    mut visit: impl FnMut(u32, WireValue<'a>) -> Result<(), TraceError>,
) -> Result<(), TraceError> {
    let mut cursor = WireCursor::new(message.0, message.1);
    while !cursor.is_empty() {
        let (number, value) = cursor.read_field()?;
        visit(number, value)?;
    }
    Ok(())
}

pub(super) fn decode_utf8_lossily(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// The planes of one host's profile.
#[derive(Debug)]
pub(super) struct HostProfilePlanes<'a> {
    pub planes: Vec<ProfilePlane<'a>>,
}

/// A plane: a group of lines, which are a device's streams or a host's threads.
#[derive(Debug, Default)]
pub(super) struct ProfilePlane<'a> {
    pub name: Cow<'a, str>,
    lines: Vec<MessageBytesAndOffset<'a>>,
    pub event_kinds: BTreeMap<i64, EventKindMetadata<'a>>,
    stat_names: BTreeMap<i64, Cow<'a, str>>,
}

/// Metadata that all events of a kind share.
#[derive(Debug, Default)]
pub(super) struct EventKindMetadata<'a> {
    pub name: Cow<'a, str>,
    pub metadata: Option<MessageBytesAndOffset<'a>>,
    pub stats: Vec<MessageBytesAndOffset<'a>>,
}

/// A line: the timeline of a device's stream or of a host's thread.
#[derive(Debug, Default)]
pub(super) struct ProfileLine<'a> {
    pub name: Cow<'a, str>,
    pub events: Vec<ProfileEvent<'a>>,
    /// Number of events without a time or duration: instants, and summaries of many occurrences.
    pub instants: u64,
}

/// An event with a duration.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProfileEvent<'a> {
    pub kind: i64,
    /// Start, in ps since an epoch that all planes of a file share.
    pub start: i128,
    pub end: i128,
    /// The event's message, which is parsed again if its stats are needed.
    message: MessageBytesAndOffset<'a>,
}

/// Value of a stat.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum XplaneStatValue<'a> {
    Number(u64),
    Text(Cow<'a, str>),
    Bytes(MessageBytesAndOffset<'a>),
}

impl<'a> HostProfilePlanes<'a> {
    /// Parses the contents of an `xplane.pb` file.
    pub fn parse(contents: &'a [u8]) -> Result<Self, TraceError> {
        let mut planes = Vec::new();
        for_each_field((contents, 0), |number, value| {
            if let (1, WireValue::Bytes(plane, offset)) = (number, value) {
                planes.push(ProfilePlane::parse((plane, offset))?);
            }
            Ok(())
        })?;
        Ok(Self { planes })
    }
}

impl<'a> ProfilePlane<'a> {
    fn parse(message: MessageBytesAndOffset<'a>) -> Result<Self, TraceError> {
        let mut plane = Self::default();
        for_each_field(message, |number, value| {
            match (number, value) {
                (2, WireValue::Bytes(name, _)) => plane.name = decode_utf8_lossily(name),
                (3, WireValue::Bytes(line, offset)) => plane.lines.push((line, offset)),
                (4, WireValue::Bytes(entry, offset)) => {
                    let (id, value) = parse_map_entry((entry, offset))?;
                    plane
                        .event_kinds
                        .insert(id, EventKindMetadata::parse(value)?);
                }
                (5, WireValue::Bytes(entry, offset)) => {
                    let (id, value) = parse_map_entry((entry, offset))?;
                    for_each_field(value, |number, value| {
                        if let (2, WireValue::Bytes(name, _)) = (number, value) {
                            plane.stat_names.insert(id, decode_utf8_lossily(name));
                        }
                        Ok(())
                    })?;
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(plane)
    }

    /// Returns the plane's number of lines.
    pub fn line_count(&self) -> usize {
        self.lines.len()
    }

    /// Parses the line at `index`.
    pub fn parse_line(&self, index: usize) -> Result<ProfileLine<'a>, TraceError> {
        let mut line = ProfileLine::default();
        let mut timestamp = 0_i64;
        let mut count = 0_u64;
        for_each_field(self.lines[index], |number, value| {
            match (number, value) {
                (2, WireValue::Bytes(name, _)) => line.name = decode_utf8_lossily(name),
                (3, WireValue::Varint(ns)) => timestamp = ns as i64,
                (4, WireValue::Bytes(..)) => count += 1,
                _ => {}
            }
            Ok(())
        })?;
        let each = size_of::<ProfileEvent<'_>>() as u64;
        bounds::check_items_fit_memory("the events of a line", count, each, "a shorter profile")
            .map_err(|error| {
                TraceError::from_io("", "keep in memory", std::io::Error::other(error))
            })?;
        line.events.reserve_exact(count as usize);
        let start = i128::from(timestamp) * 1000;
        for_each_field(self.lines[index], |number, value| {
            if let (4, WireValue::Bytes(event, offset)) = (number, value) {
                match ProfileEvent::parse((event, offset), start)? {
                    Some(event) => line.events.push(event),
                    None => line.instants += 1,
                }
            }
            Ok(())
        })?;
        Ok(line)
    }

    /// Returns the name of an event, which is stored with the event's kind.
    pub fn name_of_event(&self, event: &ProfileEvent<'a>) -> &str {
        self.event_kinds
            .get(&event.kind)
            .map_or("event", |kind| &kind.name)
    }

    /// Calls `visit` for the stats of an event's kind, and then for the event's own stats.
    pub fn for_each_stat_of_event(
        &self,
        event: &ProfileEvent<'a>,
        mut visit: impl FnMut(&str, XplaneStatValue<'a>),
    ) -> Result<(), TraceError> {
        if let Some(kind) = self.event_kinds.get(&event.kind) {
            for stat in &kind.stats {
                self.decode_stat_and_visit_name_and_value(*stat, &mut visit)?;
            }
        }
        for_each_field(event.message, |number, value| {
            if let (4, WireValue::Bytes(stat, offset)) = (number, value) {
                self.decode_stat_and_visit_name_and_value((stat, offset), &mut visit)?;
            }
            Ok(())
        })
    }

    /// Visits a stat with its name and value.
    pub fn decode_stat_and_visit_name_and_value(
        &self,
        message: MessageBytesAndOffset<'a>,
        visit: &mut impl FnMut(&str, XplaneStatValue<'a>),
    ) -> Result<(), TraceError> {
        let (mut id, mut found) = (0, None);
        for_each_field(message, |number, value| {
            match (number, value) {
                (1, WireValue::Varint(number)) => id = number as i64,
                (3 | 4, WireValue::Varint(number)) => found = Some(XplaneStatValue::Number(number)),
                (5, WireValue::Bytes(bytes, _)) => {
                    found = Some(XplaneStatValue::Text(decode_utf8_lossily(bytes)))
                }
                (6, WireValue::Bytes(bytes, offset)) => {
                    found = Some(XplaneStatValue::Bytes((bytes, offset)));
                }
                // Each text is stored only once, as the name of a stat kind. This stat contains the id of the kind that
                // has the text as its name.
                (7, WireValue::Varint(number)) => {
                    let name = self.stat_names.get(&(number as i64));
                    found = name.map(|name| XplaneStatValue::Text(name.clone()));
                }
                _ => {}
            }
            Ok(())
        })?;
        if let (Some(name), Some(value)) = (self.stat_names.get(&id), found) {
            visit(name, value);
        }
        Ok(())
    }
}

/// Returns the key and the value of a map entry.
fn parse_map_entry(
    message: MessageBytesAndOffset<'_>,
) -> Result<(i64, MessageBytesAndOffset<'_>), TraceError> {
    let (mut key, mut found) = (0, (&[][..], message.1));
    for_each_field(message, |number, value| {
        match (number, value) {
            (1, WireValue::Varint(id)) => key = id as i64,
            (2, WireValue::Bytes(bytes, offset)) => found = (bytes, offset),
            _ => {}
        }
        Ok(())
    })?;
    Ok((key, found))
}

impl<'a> EventKindMetadata<'a> {
    fn parse(message: MessageBytesAndOffset<'a>) -> Result<Self, TraceError> {
        let mut kind = Self::default();
        for_each_field(message, |number, value| {
            match (number, value) {
                (2, WireValue::Bytes(name, _)) => kind.name = decode_utf8_lossily(name),
                (3, WireValue::Bytes(bytes, offset)) => kind.metadata = Some((bytes, offset)),
                (5, WireValue::Bytes(stat, offset)) => kind.stats.push((stat, offset)),
                _ => {}
            }
            Ok(())
        })?;
        Ok(kind)
    }
}

impl<'a> ProfileEvent<'a> {
    /// Creates an event with these times, without a kind or stats.
    #[cfg(test)]
    pub fn with_start_and_end(start: i128, end: i128) -> Self {
        Self {
            kind: 0,
            start,
            end,
            message: (&[], 0),
        }
    }

    /// Parses an event of a line; `start` is the start of the line. Returns `None` if the event has
    /// no duration.
    fn parse(message: MessageBytesAndOffset<'a>, start: i128) -> Result<Option<Self>, TraceError> {
        let (mut kind, mut offset, mut duration) = (0, Some(0), 0_i64);
        for_each_field(message, |number, value| {
            match (number, value) {
                (1, WireValue::Varint(id)) => kind = id as i64,
                (2, WireValue::Varint(ps)) => offset = Some(ps as i64),
                (3, WireValue::Varint(ps)) => duration = ps as i64,
                // An event that states a number of occurrences summarizes them, so it has no time of its own.
                (5, WireValue::Varint(_)) => offset = None,
                _ => {}
            }
            Ok(())
        })?;
        if duration < 0 {
            return Err(TraceError::malformed_at(
                message.1,
                format!("an event lasts {duration} ps, expected 0 or more"),
            ));
        }
        let event = |offset: i64| Self {
            kind,
            start: start + i128::from(offset),
            end: start + i128::from(offset) + i128::from(duration),
            message,
        };
        Ok(offset.filter(|_| duration > 0).map(event))
    }
}
