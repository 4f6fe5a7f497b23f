//! Parses a profile in a simple way: lists all fields of all messages, and sums over them.

use chakram::trace::DecompressedTraceFile;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Sums over the streams of all devices.
pub struct DeviceEventCountAndBusyTime {
    pub events: u64,
    pub busy_ps: u64,
    /// Events whose correlation id also occurs on a host thread.
    pub linked: u64,
}

/// The integer and byte values of a message, by field number.
#[derive(Default)]
struct ProtobufFieldValues<'a> {
    numbers: BTreeMap<u64, Vec<u64>>,
    bytes: BTreeMap<u64, Vec<&'a [u8]>>,
}

impl<'a> ProtobufFieldValues<'a> {
    fn parse(mut rest: &'a [u8]) -> Self {
        let mut this = Self::default();
        let varint = |rest: &mut &'a [u8]| {
            let (mut value, mut shift) = (0_u64, 0);
            loop {
                let byte = rest[0];
                *rest = &rest[1..];
                value |= u64::from(byte & 127) << shift;
                shift += 7;
                if byte < 128 {
                    return value;
                }
            }
        };
        while !rest.is_empty() {
            let key = varint(&mut rest);
            match key & 7 {
                0 => {
                    let value = varint(&mut rest);
                    this.numbers.entry(key >> 3).or_default().push(value);
                }
                1 => rest = &rest[8..],
                2 => {
                    let length = varint(&mut rest) as usize;
                    this.bytes
                        .entry(key >> 3)
                        .or_default()
                        .push(&rest[..length]);
                    rest = &rest[length..];
                }
                other => panic!("wire type {other}"),
            }
        }
        this
    }

    fn parse_messages_of_field(&self, field: u64) -> impl Iterator<Item = ProtobufFieldValues<'a>> {
        let all = self.bytes.get(&field).cloned().unwrap_or_default();
        all.into_iter().map(ProtobufFieldValues::parse)
    }

    fn text(&self, field: u64) -> String {
        let first = self.bytes.get(&field).and_then(|all| all.first());
        String::from_utf8(first.map_or(Vec::new(), |bytes| bytes.to_vec())).unwrap()
    }

    fn number(&self, field: u64) -> u64 {
        self.numbers.get(&field).map_or(0, |all| all[0])
    }
}

pub fn count_device_events_and_busy_time(path: &Path) -> DeviceEventCountAndBusyTime {
    let contents = DecompressedTraceFile::decompress_file_without_converting(path)
        .expect("the corpus is there");
    let space = ProtobufFieldValues::parse(contents.as_slice());
    let mut host = BTreeSet::new();
    let mut device = Vec::new();
    let mut truth = DeviceEventCountAndBusyTime {
        events: 0,
        busy_ps: 0,
        linked: 0,
    };
    for plane in space.parse_messages_of_field(1) {
        let mut names = BTreeMap::new();
        for entry in plane.parse_messages_of_field(5) {
            let name = entry
                .parse_messages_of_field(2)
                .next()
                .map(|value| value.text(2));
            names.insert(entry.number(1), name.unwrap_or_default());
        }
        let name = plane.text(2);
        for line in plane.parse_messages_of_field(3) {
            for event in line.parse_messages_of_field(4) {
                let stats = event
                    .parse_messages_of_field(4)
                    .filter(|stat| names[&stat.number(1)] == "correlation_id");
                let ids: Vec<u64> = stats
                    .map(|stat| stat.number(3).max(stat.number(4)))
                    .collect();
                if name.starts_with("/device:") {
                    assert!(line.text(2).starts_with("Stream #"), "{}", line.text(2));
                    truth.events += 1;
                    truth.busy_ps += event.number(3);
                    device.extend(ids);
                } else {
                    host.extend(ids);
                }
            }
        }
    }
    truth.linked = device.iter().filter(|id| host.contains(id)).count() as u64;
    truth
}
