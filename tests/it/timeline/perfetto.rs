//! Tests Perfetto's format. Compares the file's contents with the same replay as JSON. An independent reader finds
//! these contents, knowing only protobuf's wire format and the field numbers.

use super::*;
use crate::corpus::count_test_as_skipped;
use std::io::Read;
use std::process::Command;

/// The value of a message field: an integer, or bytes.
#[derive(Clone, Copy, Debug)]
enum ProtobufFieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn read_varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = bytes.split_first().expect("a number ends");
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

/// Returns the fields of a message, in order.
fn parse_message_fields(mut bytes: &[u8]) -> Vec<(u64, ProtobufFieldValue<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = read_varint(&mut bytes);
        let length = match tag & 7 {
            0 => {
                fields.push((
                    tag >> 3,
                    ProtobufFieldValue::Number(read_varint(&mut bytes)),
                ));
                continue;
            }
            1 => 8,
            2 => read_varint(&mut bytes) as usize,
            other => panic!("wire type {other} of field {}", tag >> 3),
        };
        let (taken, rest) = bytes.split_at(length);
        bytes = rest;
        let field = match tag & 7 {
            1 => ProtobufFieldValue::Number(u64::from_le_bytes(taken.try_into().unwrap())),
            _ => ProtobufFieldValue::Bytes(taken),
        };
        fields.push((tag >> 3, field));
    }
    fields
}

fn find_number_field(message: &[(u64, ProtobufFieldValue<'_>)], tag: u64) -> Option<u64> {
    message.iter().find_map(|(found, field)| match field {
        ProtobufFieldValue::Number(number) if *found == tag => Some(*number),
        _ => None,
    })
}

fn list_inner_messages<'a>(
    message: &[(u64, ProtobufFieldValue<'a>)],
    tag: u64,
) -> Vec<Vec<(u64, ProtobufFieldValue<'a>)>> {
    let parts = message.iter().filter_map(|(found, field)| match field {
        ProtobufFieldValue::Bytes(bytes) if *found == tag => Some(parse_message_fields(bytes)),
        _ => None,
    });
    parts.collect()
}

fn find_text_field(message: &[(u64, ProtobufFieldValue<'_>)], tag: u64) -> Option<String> {
    message.iter().find_map(|(found, field)| match field {
        ProtobufFieldValue::Bytes(bytes) if *found == tag => {
            Some(String::from_utf8(bytes.to_vec()).unwrap())
        }
        _ => None,
    })
}

/// A slice: its track by name, its own name, start and end in nanoseconds, depth, and numeric facts.
type TrackSlice = (String, String, u64, u64, usize, BTreeMap<String, u64>);

/// The ends of arrows by id, each as a time and `true` if the arrow enters.
type ArrowEndsById = BTreeMap<u64, Vec<(u64, bool)>>;

/// Returns the slices and arrows of a file.
fn read_slices_and_arrows(file: &[u8]) -> (Vec<TrackSlice>, ArrowEndsById) {
    let mut names: BTreeMap<(u64, u64), String> = BTreeMap::new();
    let mut tracks: BTreeMap<u64, (String, Option<u64>)> = BTreeMap::new();
    let mut open: BTreeMap<u64, Vec<TrackSlice>> = BTreeMap::new();
    let (mut slices, mut arrows) = (Vec::new(), BTreeMap::<u64, Vec<_>>::new());
    let mut packets = Vec::new();
    for packet in list_inner_messages(&parse_message_fields(file), 1) {
        let [(50, ProtobufFieldValue::Bytes(deflated))] = packet[..] else {
            panic!("packets are deflated together");
        };
        flate2::read::ZlibDecoder::new(deflated)
            .read_to_end(&mut packets)
            .unwrap();
    }
    for packet in list_inner_messages(&parse_message_fields(&packets), 1) {
        assert_eq!(find_number_field(&packet, 10), Some(1), "one sequence");
        for interned in list_inner_messages(&packet, 12) {
            for sort in [1, 2, 3, 29] {
                for one in list_inner_messages(&interned, sort) {
                    let iid = find_number_field(&one, 1).unwrap();
                    assert!(iid > 0);
                    let known = names.insert((sort, iid), find_text_field(&one, 2).unwrap());
                    assert_eq!(known, None, "a text is stored once");
                }
            }
        }
        for track in list_inner_messages(&packet, 60) {
            let name = find_text_field(&track, 2).unwrap_or_default();
            let parent = find_number_field(&track, 5);
            assert!(parent.is_none_or(|parent| tracks.contains_key(&parent)));
            tracks.insert(find_number_field(&track, 1).unwrap(), (name, parent));
        }
        for event in list_inner_messages(&packet, 11) {
            let at = find_number_field(&packet, 8).expect("an event has a time");
            let track = find_number_field(&event, 11).unwrap();
            let stack = open.entry(track).or_default();
            for (tag, enters) in [(47, false), (48, true)] {
                if let Some(id) = find_number_field(&event, tag) {
                    // The viewer orders an arrow's ends by the start of their slices, and a receive may start first.
                    let kind = if enters { 3 } else { 1 };
                    assert_eq!(
                        find_number_field(&event, 9),
                        Some(kind),
                        "where an arrow ends"
                    );
                    assert_eq!(
                        stack.is_empty(),
                        !enters,
                        "an arrow enters a slice that is open"
                    );
                    arrows.entry(id).or_default().push((at, enters));
                }
            }
            match find_number_field(&event, 9).unwrap() {
                1 => {
                    let facts = list_inner_messages(&event, 4)
                        .into_iter()
                        .filter_map(|fact| {
                            let name = &names[&(3, find_number_field(&fact, 1)?)];
                            Some((name.clone(), find_number_field(&fact, 3)?))
                        });
                    let name = names[&(2, find_number_field(&event, 10).unwrap())].clone();
                    let (of, parent) = &tracks[&track];
                    let rank = parent.map_or("", |parent| &tracks[&parent].0);
                    let place = format!("{rank}: {of}");
                    stack.push((place, name, at, at, stack.len(), facts.collect()));
                }
                2 => {
                    let (track, name, from, _, depth, facts) = stack.pop().expect("it is open");
                    assert!(from <= at);
                    slices.push((track, name, from, at, depth, facts));
                }
                _ => {}
            }
        }
    }
    assert!(open.values().all(Vec::is_empty), "all slices end");
    // The critical path belongs to no rank.
    slices.retain(|slice: &TrackSlice| slice.0.starts_with("rank"));
    (slices, arrows)
}

fn write_perfetto_timeline(workload: &Workload, options: &ReplayOptions) -> Vec<u8> {
    replay_to_timeline_and_node_count(
        workload,
        options,
        TimelineFormat::Perfetto,
        TimelineSelection::default(),
    )
    .0
}

#[test]
fn slices_are_exact_to_the_nanosecond_and_nest() {
    // Kernels with a duration of 0 must not get a duration from their work.
    let options =
        ReplayOptions::default_with_changes(|o| o.compute = KernelDurationSource::RecordedOnly);
    let (slices, _) = read_slices_and_arrows(&write_perfetto_timeline(
        &build_fractional_ns_job(),
        &options,
    ));
    let mut now = 123_457;
    let nodes: Vec<_> = slices
        .iter()
        .filter(|slice| slice.5.contains_key("node"))
        .collect();
    assert_eq!(nodes.len(), 600);
    for (id, (track, name, start, end, depth, facts)) in (0..).zip(nodes) {
        // The duration is the job's, in picoseconds, rounded to nanoseconds.
        let lasts = if id % 11 == 0 {
            0
        } else {
            1 + id * 997 % 40_009
        };
        let ns = |ps: u64| (ps + 500) / 1000;
        assert_eq!(
            (facts["node"], *start, *end),
            (id, ns(now), ns(now + lasts))
        );
        assert_eq!((&name[..], *depth), ("gemm", 2));
        assert_eq!((facts["flops"], facts["bytes"]), (1000 + id, 7));
        assert!(
            track.starts_with("rank 0 on NPU 0") && track.ends_with(": compute"),
            "{track}"
        );
        now += lasts;
    }
    let steps = slices.iter().filter(|slice| slice.4 == 0);
    let steps: Vec<_> = steps.map(|slice| (&slice.1[..], slice.3)).collect();
    assert_eq!(
        steps,
        [
            ("step0", slices.iter().find(|s| s.1 == "step0").unwrap().3),
            ("step1", (now + 500) / 1000)
        ]
    );
}

#[test]
fn arrows_lead_from_sends_to_the_ends_of_receives() {
    let options =
        ReplayOptions::default_with_changes(|o| o.comm = CommunicationDurationSource::Recorded);
    let (slices, arrows) =
        read_slices_and_arrows(&write_perfetto_timeline(&build_delayed_job(), &options));
    // The send begins at 30 us, and the receive, posted at 0, ends at 37.
    let arrows: Vec<_> = arrows.into_values().collect();
    let [ends] = &arrows[..] else {
        panic!("{arrows:?}")
    };
    let mut ends = ends.clone();
    ends.sort_unstable();
    assert_eq!(ends, [(30_000, false), (37_000, true)]);
    assert_eq!(slices.len(), 4);
}

#[test]
fn both_formats_draw_the_same_and_protobuf_is_smaller() {
    let model = CheckedWorkloadPattern::new(WorkloadPattern::DataParallel(
        DataParallelTrainingJobParameters {
            layers: 6,
            ..DataParallelTrainingJobParameters::new(8)
        },
    ));
    let workload = model.unwrap().build_workload().unwrap();
    let options = ReplayOptions::default();
    let file = write_perfetto_timeline(&workload, &options);
    let (slices, _) = read_slices_and_arrows(&file);
    let json = replay_to_timeline_and_node_count(
        &workload,
        &options,
        TimelineFormat::Chrome,
        TimelineSelection::default(),
    )
    .0;
    let events = draw_timeline_events(&workload, &options);
    for rank in 0..8 {
        let of = format!("rank {rank} on");
        let slices = slices
            .iter()
            .filter(|s| s.0.starts_with(&of) && s.5.contains_key("node"));
        let mut ours: Vec<_> = slices.map(|s| (s.1.clone(), s.2, s.3)).collect();
        let mut theirs = list_rank_slices(&events, rank);
        assert_eq!(ours.len(), theirs.len());
        ours.sort_by(|a, b| (a.1, a.2, &a.0).cmp(&(b.1, b.2, &b.0)));
        theirs.sort_by(|a, b| {
            a.1.total_cmp(&b.1)
                .then(a.2.total_cmp(&b.2))
                .then(a.0.cmp(&b.0))
        });
        for ((name, from, to), (other, ts, dur)) in ours.iter().zip(&theirs) {
            assert_eq!(name, other);
            // JSON rounds to 1/1024 us.
            let near = |ns: u64, us: f64| (ns as f64 - us * 1000.0).abs() <= 1.0;
            assert!(near(*from, *ts) && near(*to, ts + dur), "{name}");
        }
    }
    assert!(
        file.len() * 3 < json.len(),
        "{} and {} bytes",
        file.len(),
        json.len()
    );
}

/// A script that counts a file's entries using Perfetto's own format descriptions, and its trace processor if that
/// starts.
const READER: &str = r#"
import json, sys, zlib
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
trace = pb.Trace()
trace.ParseFromString(open(sys.argv[1], 'rb').read())
inner = pb.Trace()
inner.ParseFromString(b''.join(zlib.decompress(p.compressed_packets) for p in trace.packet))
found = {'begins': 0, 'ends': 0, 'counts': 0, 'flows': 0, 'units': []}
for packet in inner.packet:
    event = packet.track_event
    kinds = {event.TYPE_SLICE_BEGIN: 'begins', event.TYPE_SLICE_END: 'ends', event.TYPE_COUNTER: 'counts'}
    if packet.HasField('track_event') and event.type in kinds:
        found[kinds[event.type]] += 1
        found['flows'] += len(event.flow_ids)
    if packet.track_descriptor.HasField('counter'):
        counter = packet.track_descriptor.counter
        found['units'].append([packet.track_descriptor.name, counter.unit_name or counter.Unit.Name(counter.unit)])
try:
    from perfetto.trace_processor import TraceProcessor
    processor = TraceProcessor(trace=sys.argv[1])
    one = lambda query: next(iter(processor.query(query))).n
    found['processor'] = {
        'slices': one('select count(*) as n from slice where dur > 0'),
        'deepest': one('select max(depth) as n from slice'),
        'flows': one('select count(*) as n from flow'),
        'counts': one('select count(*) as n from counter'),
        'errors': one("select coalesce(sum(value), 0) as n from stats where severity = 'error'"),
    }
except Exception as error:
    found['without_processor'] = str(error)
print(json.dumps(found))
"#;

/// If `CHAKRAM_PYTHON` or `python3` has the Python package `perfetto`, the package reads the written file.
#[test]
fn perfettos_own_package_reads_what_was_written() {
    let python = std::env::var("CHAKRAM_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timeline.pftrace");
    let workload = build_job_of_two_kernels_and_all_reduce(4);
    let file = write_perfetto_timeline(&workload, &ReplayOptions::default());
    let (slices, _) = read_slices_and_arrows(&file);
    std::fs::write(&path, &file).unwrap();
    let output = Command::new(python)
        .args(["-c", READER])
        .arg(&path)
        .output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        count_test_as_skipped("python3 has no package perfetto");
        return;
    };
    // The package may print messages about downloads.
    let text = String::from_utf8(output.stdout).unwrap();
    let found: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    // The file has the ranks' slices, and three slices for the critical path: both kernels and the all-reduce.
    let drawn = slices.len() + 3;
    assert_eq!(found["begins"], drawn);
    assert_eq!(found["ends"], drawn);
    // Each rank has two values of waiting nodes and two of sent bytes.
    assert_eq!(found["counts"], 16, "{found}");
    let units = found["units"].as_array().unwrap();
    let count = |unit: [&str; 2]| {
        units
            .iter()
            .filter(|one| **one == serde_json::json!(unit))
            .count()
    };
    assert_eq!(count(["sending", "bytes/s"]), 4, "{found}");
    assert_eq!(count(["waiting nodes", "UNIT_COUNT"]), 4, "{found}");
    let Some(processor) = found.get("processor") else {
        count_test_as_skipped("the package perfetto found no trace processor");
        return;
    };
    assert_eq!(processor["errors"], 0, "{found}");
    assert_eq!(processor["slices"], drawn);
    assert_eq!(processor["counts"], 16, "{found}");
    assert_eq!(
        processor["deepest"],
        slices.iter().map(|slice| slice.4).max().unwrap()
    );
}
