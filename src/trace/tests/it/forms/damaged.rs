//! Tests that salvage keeps the sound records of damaged files and reports losses.

use super::decode_trace;
use super::lines::to_lines;
use chakram_trace::format::file::decompress_as_far_as_possible;
use chakram_trace::format::old_schemas::SchemaGeneration;
use chakram_trace::format::proto::{
    AttributeProto, GlobalMetadata, IoInfo, Node, attribute_proto::Value,
};
use chakram_trace::format::salvage::{
    SalvageReport, SalvageSchemaAndDanglingOptions, salvage_trace,
};
use chakram_trace::format::wire::FrameCursor;
use chakram_trace::graph::{EnforcedDependencyKinds, Graph};
use prost::Message;
use std::io::Write;
use std::ops::Range;
use testkit::wire::{WireMessage, encode_file};

/// Returns a node that resembles a captured node. The id determines the node's content.
fn build_captured_node(id: u64) -> Node {
    let attribute = |name: &str, value| AttributeProto {
        name: name.to_owned(),
        value: Some(value),
        ..AttributeProto::default()
    };
    Node {
        id,
        name: format!("aten::op_{}", id * id),
        r#type: 4,
        ctrl_deps: vec![],
        data_deps: (1..4)
            .filter_map(|back| id.checked_sub(back * back))
            .filter(|&dep| dep > 99)
            .collect(),
        duration_micros: id * 3,
        inputs: id.is_multiple_of(3).then(|| IoInfo {
            values: format!("[[{id}, 2, 0, 1024, 4, 'cuda:0']]"),
            ..IoInfo::default()
        }),
        attr: vec![
            attribute("is_cpu_op", Value::BoolVal(id.is_multiple_of(2))),
            attribute("num_ops", Value::Int64Val(id as i64 * 100_000)),
            attribute(
                "op_schema",
                Value::StringVal("aten::op(Tensor self) -> Tensor".to_owned()),
            ),
        ],
        ..Node::default()
    }
}

fn encode_trace(nodes: impl IntoIterator<Item = Node>) -> Vec<u8> {
    let metadata = GlobalMetadata {
        version: "0.0.4".to_owned(),
        attr: Vec::new(),
    };
    let mut out = metadata.encode_length_delimited_to_vec();
    for node in nodes {
        out.extend(node.encode_length_delimited_to_vec());
    }
    out
}

/// Returns the byte range of every record, including its length.
fn list_record_ranges(contents: &[u8]) -> Vec<Range<usize>> {
    let mut frames = FrameCursor::new(contents);
    let mut places = Vec::new();
    let mut start = 0;
    while let Some(record) = frames.next_record().unwrap() {
        places.push(start..record.offset + record.bytes.len());
        start = record.offset + record.bytes.len();
    }
    places
}

fn build_keep_dangling_options() -> SalvageSchemaAndDanglingOptions {
    SalvageSchemaAndDanglingOptions {
        keep_dangling: true,
        ..SalvageSchemaAndDanglingOptions::default()
    }
}

fn salvage_contents(
    contents: &[u8],
    options: SalvageSchemaAndDanglingOptions,
) -> (Vec<u8>, SalvageReport) {
    salvage_trace(contents, options).expect("something is sound")
}

#[test]
fn undamaged_trace_is_unchanged_by_salvage() {
    let contents = encode_trace((100..140).map(build_captured_node));
    let (bytes, report) = salvage_contents(&contents, SalvageSchemaAndDanglingOptions::default());
    assert_eq!(bytes, contents);
    assert!(report.is_whole(), "{report:?}");
    assert_eq!((report.nodes, report.bytes_lost()), (40, 0));
}

#[test]
fn a_cut_loses_the_record_that_it_is_in() {
    let contents = encode_trace((100..110).map(build_captured_node));
    let places = list_record_ranges(&contents);
    for cut in 1..contents.len() {
        let whole = places.iter().filter(|place| place.end <= cut).count();
        let Ok((bytes, report)) =
            salvage_trace(&contents[..cut], SalvageSchemaAndDanglingOptions::default())
        else {
            assert_eq!(whole, 0, "cut at {cut}");
            continue;
        };
        assert_eq!(bytes, contents[..places[whole - 1].end], "cut at {cut}");
        let lost = places[whole - 1].end..cut;
        match lost.is_empty() {
            true => assert!(report.is_whole()),
            false => {
                assert_eq!(report.lost.len(), 1, "{report:?}");
                assert_eq!(
                    (&report.lost[0].bytes, report.lost[0].record),
                    (&lost, whole)
                );
                assert!(
                    report.lost[0].why.contains("but only") || report.lost[0].why.contains("ends")
                );
            }
        }
    }
}

#[test]
fn a_record_with_only_its_length_damaged_is_recovered() {
    let contents = encode_trace((100..110).map(build_captured_node));
    let places = list_record_ranges(&contents);
    for (record, place) in places.iter().enumerate().skip(1) {
        for wrong in [0, 1, 5, 40, 0x7f, 0xff] {
            let mut damaged = contents.clone();
            if std::mem::replace(&mut damaged[place.start], wrong) == wrong {
                continue;
            }
            let (bytes, report) = salvage_contents(&damaged, build_keep_dangling_options());
            // If the last record's length is too large, the file looks truncated.
            if record == places.len() - 1 && usize::from(wrong & 0x7f) > place.len() {
                assert_eq!(bytes, contents[..place.start], "{report:?}");
                assert_eq!(report.lost[0].bytes, *place);
                continue;
            }
            assert_eq!(
                bytes, contents,
                "record {record}, length {wrong}: {report:?}"
            );
            assert_eq!(report.repaired.len(), 1, "{report:?}");
            assert_eq!(report.repaired[0].0, record);
        }
    }
}

#[test]
fn dependencies_on_lost_nodes_are_dropped_or_kept_by_option() {
    let contents = encode_trace((100..110).map(build_captured_node));
    let places = list_record_ranges(&contents);
    let mut damaged = contents.clone();
    // Record 3 is node 102, the predecessor of nodes 103, 106 and 111. The damage changes the wire type of that node's
    // first field, the id.
    damaged[places[3].start + 2] |= 7;
    let (bytes, report) = salvage_contents(&damaged, SalvageSchemaAndDanglingOptions::default());
    assert_eq!((report.nodes, report.lost.len()), (9, 1));
    assert_eq!(
        (report.lost[0].bytes.clone(), report.lost[0].record),
        (places[3].clone(), 3)
    );
    assert_eq!(report.dangling, [(103, 102, true), (106, 102, true)]);
    let (_, nodes) = decode_trace(&bytes);
    let deps = |id: u64, nodes: &[Node]| {
        let node = nodes.iter().find(|node| node.id == id).unwrap();
        node.data_deps.clone()
    };
    assert_eq!(deps(106, &nodes), [105]);
    Graph::read_graph(&bytes, 0, EnforcedDependencyKinds::Auto).unwrap();
    let (bytes, report) = salvage_contents(&damaged, build_keep_dangling_options());
    assert!(report.dangling_kept);
    assert_eq!(deps(106, &decode_trace(&bytes).1), [105, 102]);
    assert!(Graph::read_graph(&bytes, 0, EnforcedDependencyKinds::Auto).is_err());
}

#[test]
fn a_second_node_of_an_id_and_runs_of_zeros_are_left_out() {
    let twice = encode_trace([
        build_captured_node(100),
        build_captured_node(101),
        build_captured_node(100),
        build_captured_node(103),
    ]);
    let (bytes, report) = salvage_contents(&twice, SalvageSchemaAndDanglingOptions::default());
    assert_eq!(report.duplicate_ids, [(3, 100)]);
    assert_eq!(decode_trace(&bytes).1.len(), 3);
    // An empty record between two sound records is a node with default values.
    let contents = encode_trace([
        build_captured_node(100),
        Node::default(),
        build_captured_node(101),
    ]);
    let (bytes, report) = salvage_contents(&contents, SalvageSchemaAndDanglingOptions::default());
    assert_eq!(
        (bytes, report.empty, report.is_whole()),
        (contents.clone(), 1, true)
    );
    let mut zeros = encode_trace([build_captured_node(100)]);
    let from = zeros.len();
    zeros.extend([0; 50]);
    zeros.extend(build_captured_node(101).encode_length_delimited_to_vec());
    let (bytes, report) = salvage_contents(&zeros, SalvageSchemaAndDanglingOptions::default());
    let ids: Vec<u64> = decode_trace(&bytes).1.iter().map(|node| node.id).collect();
    assert_eq!(ids, [100, 101]);
    assert_eq!(report.lost[0].bytes, from..from + 50);
}

#[test]
fn lost_metadata_is_replaced_and_said_to_be_lost() {
    let mut damaged = encode_trace((100..110).map(build_captured_node));
    damaged[1] = 0xff;
    let (bytes, report) = salvage_contents(&damaged, build_keep_dangling_options());
    assert!(report.metadata_lost, "{report:?}");
    assert_eq!((report.nodes, report.lost[0].bytes.clone()), (10, 0..8));
    let (metadata, nodes) = decode_trace(&bytes);
    assert_eq!(metadata.version, "0.0.4");
    assert_eq!(
        nodes,
        (100..110).map(build_captured_node).collect::<Vec<_>>()
    );
}

#[test]
fn fields_of_the_future_are_sound() {
    let later = |id| {
        let mut message = build_captured_node(id).encode_to_vec();
        prost::encoding::bytes::encode(90, &b"later".to_vec(), &mut message);
        message
    };
    let mut contents = encode_trace([]);
    for id in 100..110 {
        let message = later(id);
        prost::encoding::encode_varint(message.len() as u64, &mut contents);
        contents.extend(message);
    }
    let (bytes, report) = salvage_contents(&contents, SalvageSchemaAndDanglingOptions::default());
    assert_eq!((bytes, report.is_whole()), (contents, true));
}

#[test]
fn old_schema_files_are_salvaged_in_their_generation() {
    let old = |id: u64| {
        WireMessage::default()
            .with_number(1, id)
            .with_bytes(2, format!("op_{id}"))
            .with_number(3, 3)
            .with_number(7, id * 2)
            .with_number(12, id * 1000)
    };
    let contents = encode_file((100..120).map(old));
    let whole = salvage_contents(&contents, SalvageSchemaAndDanglingOptions::default());
    assert_eq!(
        (whole.1.generation, whole.1.nodes),
        (Some(SchemaGeneration::V001), 20)
    );
    assert!(whole.1.is_whole(), "{:?}", whole.1);
    // The file is truncated, and it is also damaged at its start, from which the generation is detected.
    let mut damaged = contents[..contents.len() - 3].to_vec();
    damaged[1] = 0xff;
    let (bytes, report) = salvage_contents(&damaged, SalvageSchemaAndDanglingOptions::default());
    assert_eq!(
        (report.generation, report.nodes),
        (Some(SchemaGeneration::V001), 18)
    );
    assert_eq!(report.lost.len(), 2, "{report:?}");
    let (_, nodes) = decode_trace(&bytes);
    assert_eq!(
        (nodes[0].id, nodes[0].r#type, nodes[0].duration_micros),
        (101, 4, 202)
    );
}

#[test]
fn invalid_json_lines_are_left_out_by_salvage() {
    let contents = encode_trace((100..110).map(build_captured_node));
    let text = to_lines(&contents);
    let damaged =
        text.replace("\"id\":104,", "\"id\":104")
            .replacen("{\"schema\"", "\"schema\"", 0);
    let (bytes, report) = salvage_contents(damaged.as_bytes(), build_keep_dangling_options());
    assert_eq!(
        (report.nodes, report.lost.len(), report.lost[0].line),
        (9, 1, Some(6))
    );
    assert_eq!(decode_trace(&bytes).1[4].id, 105);
    let cut = &text[..text.len() - 10];
    let (_, report) = salvage_contents(cut.as_bytes(), build_keep_dangling_options());
    assert_eq!((report.nodes, report.lost[0].line), (9, Some(11)));
    let error = salvage_trace(b"{\"nodes\": []}", build_keep_dangling_options())
        .unwrap_err()
        .to_string();
    assert!(error.contains("try: use `salvage` with"), "{error}");
}

#[test]
fn truncated_compressed_streams_give_the_bytes_before_the_cut() {
    let contents = encode_trace((100..3000).map(build_captured_node));
    let zstd = zstd::encode_all(&contents[..], 3).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&contents).unwrap();
    for packed in [zstd, gzip.finish().unwrap()] {
        let (all, wrong) = decompress_as_far_as_possible(&packed).unwrap();
        assert!(all == contents && wrong.is_none());
        let (part, wrong) = decompress_as_far_as_possible(&packed[..packed.len() * 3 / 4]).unwrap();
        assert!(wrong.is_some());
        assert!(
            contents.starts_with(&part) && part.len() > contents.len() / 3,
            "{}",
            part.len()
        );
        let (bytes, report) = salvage_contents(&part, build_keep_dangling_options());
        let (_, nodes) = decode_trace(&bytes);
        assert_eq!(
            nodes[..],
            (100..3000)
                .map(build_captured_node)
                .take(report.nodes)
                .collect::<Vec<_>>()
        );
    }
    assert!(decompress_as_far_as_possible(&contents).is_none());
}

/// Generates pseudo-random numbers that are the same in every run.
struct DeterministicRandom(u64);

impl DeterministicRandom {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// After damage of every kind, salvage must keep all records that are neither damaged nor next to the damage. The
/// result must be readable, and the report must state the loss.
#[test]
fn whatever_is_apart_from_the_damage_is_kept() {
    let nodes: Vec<Node> = (100..160).map(build_captured_node).collect();
    let contents = encode_trace(nodes.iter().cloned());
    let places = list_record_ranges(&contents);
    let mut chance = DeterministicRandom(0x9e37_79b9_7f4a_7c15);
    let mut lost = 0;
    for round in 0..1000 {
        let at = chance.below(contents.len());
        let length = 1 + chance.below(40);
        let end = (at + length).min(contents.len());
        let mut damaged = contents.clone();
        let what = round % 5;
        // The part of the original file that was damaged.
        let touched = match what {
            0 => {
                damaged.truncate(at);
                at..contents.len()
            }
            1 => {
                damaged[at] ^= 1 << chance.below(8);
                at..at + 1
            }
            2 => {
                let inserted: Vec<u8> = (0..length).map(|_| chance.below(256) as u8).collect();
                damaged.splice(at..at, inserted);
                at.saturating_sub(1)..at + 1
            }
            3 => {
                damaged[at..end].fill(0);
                at..end
            }
            _ => {
                damaged.drain(at..end);
                at.saturating_sub(1)..end
            }
        };
        let label = format!("round {round}: kind {what}, {touched:?}");
        let Ok((bytes, report)) = salvage_trace(&damaged, build_keep_dangling_options()) else {
            assert!(what == 0 && at < places[1].end, "{label}");
            continue;
        };
        let (_, found) = decode_trace(&bytes);
        assert_eq!(found.len(), report.nodes, "{label}");
        for (i, place) in places.iter().enumerate().skip(1) {
            let near = |i: usize| {
                let place = &places[i];
                place.start < touched.end && touched.start < place.end
            };
            let apart = !near(i) && !near(i - 1) && (i + 1 == places.len() || !near(i + 1));
            if apart && place.end <= damaged.len().max(touched.start) {
                let node = &nodes[i - 1];
                assert!(
                    found.contains(node),
                    "{label}: node {} in {report:?}",
                    node.id
                );
            }
        }
        // Every changed node is reported, unless it differs only in a number or name, which salvage cannot detect.
        let before = found.iter().filter(|node| nodes.contains(node)).count();
        assert!(
            before + 2 >= found.len(),
            "{label}: {} of {}",
            before,
            found.len()
        );
        if before == found.len() && before < nodes.len() {
            let cut_between = what == 0 && places.iter().any(|place| place.end == at);
            let dropped = what == 4 && report.is_whole();
            assert!(!report.is_whole() || cut_between || dropped, "{label}");
        }
        lost += usize::from(!report.is_whole());
        // Once dangling dependencies are removed, the result can be loaded, unless a flipped bit created a cycle or an
        // invalid attribute.
        let (bytes, _) = salvage_contents(&damaged, SalvageSchemaAndDanglingOptions::default());
        if before == found.len() {
            Graph::read_graph(&bytes, 0, EnforcedDependencyKinds::Auto).expect(&label);
        }
    }
    println!("{lost} of 1000 lost something");
    assert!(lost > 600, "{lost}");
}
