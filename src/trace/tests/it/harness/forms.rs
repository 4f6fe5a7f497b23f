//! Reads arbitrary bytes as traces in other forms: files of 2023, JSON Lines, pasted JSON, and damaged files.

use chakram_trace::format::TraceError;
use chakram_trace::format::file::DecompressedStream;
use chakram_trace::format::old_schemas::{SchemaGeneration, upgrade_contents};
use chakram_trace::format::proto::{GlobalMetadata, Node};
use chakram_trace::format::salvage::{SalvageSchemaAndDanglingOptions, salvage_trace};
use chakram_trace::format::source::TraceRecordReader;
use chakram_trace::format::text::{
    JsonLineReader, JsonLineWriter, JsonTraceFormat, parse_text_trace,
};
use chakram_trace::format::wire::FrameCursor;
use chakram_trace::graph::{EnforcedDependencyKinds, Graph};
use prost::Message;

/// Checks that an error's message is not empty and has at most a few lines.
fn assert_error_message_is_short_nonempty(error: &TraceError) {
    let error = error.to_string();
    assert!(!error.is_empty() && error.lines().count() < 20, "{error}");
}

/// Checks that the generated types accept all records of a converted file. Returns the number of records, including the
/// metadata.
fn check_records_decode_and_count_them(contents: &[u8]) -> usize {
    let mut frames = FrameCursor::new(contents);
    let mut records = 0;
    while let Some(record) = frames.next_record().expect("what is written can be read") {
        match record.number {
            0 => drop(GlobalMetadata::decode(record.bytes).expect("it is metadata")),
            _ => drop(Node::decode(record.bytes).expect("it is a node")),
        }
        records += 1;
    }
    match Graph::read_graph(contents, 0, EnforcedDependencyKinds::Auto) {
        Ok((graph, _)) => assert_eq!(graph.len() + 1, records),
        Err(error) => assert_error_message_is_short_nonempty(&error),
    }
    records
}

/// Checks that a file in any form yields the same records as the converted file when it is read record by record.
fn check_streamed_records(data: &[u8], expected: &[u8]) {
    let mut source =
        TraceRecordReader::new(DecompressedStream::from_bytes(data).expect("bytes"), None)
            .expect("it was read");
    let mut bytes = Vec::new();
    while let Some(record) = source.next_record().expect("it was read") {
        prost::encoding::encode_varint(record.bytes.len() as u64, &mut bytes);
        bytes.extend_from_slice(record.bytes);
    }
    assert!(bytes == expected, "the same records");
}

/// Reads arbitrary bytes as a file of 2023.
pub fn check_fuzzed_old_schema(data: &[u8]) {
    for (generation, _) in SchemaGeneration::ALL {
        match upgrade_contents(data, Some(generation)) {
            // The reader uses records of schema 0.0.4 unchanged.
            Ok(Some(_)) if generation == SchemaGeneration::V004 => {}
            Ok(Some(upgraded)) => {
                let records = check_records_decode_and_count_them(&upgraded.bytes);
                let mut frames = FrameCursor::new(data);
                let mut old = 0;
                while let Ok(Some(_)) = frames.next_record() {
                    old += 1;
                }
                assert!(records == old || records == old + 1, "none is lost");
            }
            Ok(None) => {}
            Err(error) => assert_error_message_is_short_nonempty(&error),
        }
    }
    match upgrade_contents(data, None) {
        Ok(Some(upgraded)) => {
            let said = upgrade_contents(data, Some(upgraded.generation)).expect("it was read");
            assert!(said.expect("it is old").bytes == upgraded.bytes);
            let compressed = [&[0x1f, 0x8b][..], &[0x28, 0xb5, 0x2f, 0xfd]];
            if !compressed.iter().any(|magic| data.starts_with(magic)) {
                check_streamed_records(data, &upgraded.bytes);
            }
        }
        Ok(None) => {}
        Err(error) => assert_error_message_is_short_nonempty(&error),
    }
}

/// Reads arbitrary bytes as JSON Lines, and also as binary records that are converted to lines.
pub fn check_fuzzed_json_lines(data: &[u8]) {
    let mut reader = JsonLineReader::new(data);
    let mut record = Vec::new();
    loop {
        match reader.next_record(&mut record) {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error) => assert_error_message_is_short_nonempty(&error),
        }
    }
    match parse_text_trace(data, JsonTraceFormat::JsonLines) {
        Ok(from) => check_json_lines_round_trip(&from.bytes),
        Err(error) => assert_error_message_is_short_nonempty(&error),
    }
    check_json_lines_round_trip(data);
}

/// Checks that a round trip from records to lines and back preserves the records.
fn check_json_lines_round_trip(contents: &[u8]) {
    let mut writer = JsonLineWriter::new(Vec::new());
    let mut frames = FrameCursor::new(contents);
    let mut sound = Vec::new();
    while let Ok(Some(record)) = frames.next_record() {
        let decoded = match record.number {
            0 => GlobalMetadata::decode(record.bytes).map(|m| format!("{m:?}")),
            _ => Node::decode(record.bytes).map(|n| format!("{n:?}")),
        };
        match (writer.write_record(record), decoded) {
            (Ok(()), Ok(decoded)) => sound.push(decoded),
            // JSON Lines also preserve content that the schema does not define. The generated types reject some of this
            // content.
            (Ok(()), Err(_)) => return,
            (Err(error), _) => return assert_error_message_is_short_nonempty(&error),
        }
    }
    let text = writer.into_inner();
    assert_eq!(text.split(|byte| *byte == b'\n').count(), sound.len() + 1);
    let back = parse_text_trace(&text, JsonTraceFormat::JsonLines)
        .expect("what is written can be read")
        .bytes;
    let mut frames = FrameCursor::new(&back);
    for expected in sound {
        let record = frames
            .next_record()
            .expect("it is whole")
            .expect("none is lost");
        let decoded = match record.number {
            0 => format!(
                "{:?}",
                GlobalMetadata::decode(record.bytes).expect("as before")
            ),
            _ => format!("{:?}", Node::decode(record.bytes).expect("as before")),
        };
        assert_eq!(decoded, expected);
    }
}

/// Reads arbitrary bytes as pasted text.
pub fn check_fuzzed_text_trace(data: &[u8]) {
    for form in [
        JsonTraceFormat::ProtoJson,
        JsonTraceFormat::WorkloadGraph,
        JsonTraceFormat::Nodes,
    ] {
        match parse_text_trace(data, form) {
            Ok(from) => {
                // The text may contain raw parts with arbitrary bytes, which the generated types may reject.
                let text = std::str::from_utf8(data).unwrap_or_default();
                if !text.contains("raw") && !text.contains("unknown") && !text.contains('\\') {
                    check_records_decode_and_count_them(&from.bytes);
                }
            }
            Err(error) => assert_error_message_is_short_nonempty(&error),
        }
    }
    let Ok(stream) = DecompressedStream::from_bytes(data) else {
        return;
    };
    let mut source = match TraceRecordReader::new(stream, None) {
        Ok(source) => source,
        Err(error) => return assert_error_message_is_short_nonempty(&error),
    };
    loop {
        match source.next_record() {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error) => return assert_error_message_is_short_nonempty(&error),
        }
    }
}

/// Salvages arbitrary bytes as a damaged file.
pub fn check_fuzzed_salvage(data: &[u8]) {
    for keep_dangling in [false, true] {
        let options = SalvageSchemaAndDanglingOptions {
            generation: None,
            keep_dangling,
        };
        let (bytes, report) = match salvage_trace(data, options) {
            Ok(salvaged) => salvaged,
            Err(error) => return assert_error_message_is_short_nonempty(&error),
        };
        let lost = report.lost.iter();
        assert!(
            lost.clone()
                .all(|lost| !lost.bytes.is_empty() && lost.bytes.end <= data.len())
        );
        assert!(
            lost.clone()
                .is_sorted_by(|a, b| a.bytes.end <= b.bytes.start)
        );
        let mut frames = FrameCursor::new(&bytes);
        let mut nodes = 0;
        while let Some(record) = frames.next_record().expect("what is written can be read") {
            nodes += usize::from(record.number > 0);
        }
        assert_eq!(nodes, report.nodes);
        if report.generation.is_some() {
            assert_eq!(check_records_decode_and_count_them(&bytes), nodes + 1);
            // A salvaged file contains no damage that a second salvage would find.
            let again = SalvageSchemaAndDanglingOptions {
                generation: Some(SchemaGeneration::V004),
                keep_dangling: true,
            };
            let (same, report) = salvage_trace(&bytes, again).expect("it is whole");
            assert!(same == bytes && report.is_whole(), "{report:?}");
        }
    }
}
