//! Tests that round trips through JSON Lines preserve the content of traces.

use super::decode_trace;
use crate::readers::arbitrary::{encode_reordered_fields, node_strategy, unknown_field_strategy};
use chakram_trace::format::TraceError;
use chakram_trace::format::proto::{
    self, AttributeProto, GlobalMetadata, Node, attribute_proto::Value,
};
use chakram_trace::format::text::{self, JsonLineReader, JsonLineWriter, JsonTraceFormat};
use chakram_trace::format::wire::{FrameCursor, WireCursor};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;

/// Converts a file to text.
pub fn to_lines(contents: &[u8]) -> String {
    try_convert_to_json_lines(contents).expect("it is sound")
}

fn try_convert_to_json_lines(contents: &[u8]) -> Result<String, TraceError> {
    let mut writer = JsonLineWriter::new(Vec::new());
    let mut frames = FrameCursor::new(contents);
    while let Some(record) = frames.next_record()? {
        writer.write_record(record)?;
    }
    Ok(String::from_utf8(writer.into_inner()).expect("it is text"))
}

/// Converts a file to text and back, and returns the resulting file or the error.
pub fn convert_to_lines_and_back(contents: &[u8]) -> Result<Vec<u8>, String> {
    convert_text_checking_streaming_agrees(
        &try_convert_to_json_lines(contents).map_err(|e| e.to_string())?,
    )
}

/// Converts a text to a trace file. Reads the text both as a whole and line by line. The two results must be equal.
pub fn convert_text_checking_streaming_agrees(text: &str) -> Result<Vec<u8>, String> {
    let whole = text::parse_text_trace(text.as_bytes(), JsonTraceFormat::JsonLines);
    let mut reader = JsonLineReader::new(text.as_bytes());
    let mut streamed = Vec::new();
    let mut record = Vec::new();
    let end = loop {
        match reader.next_record(&mut record) {
            Ok(Some(_)) => {
                prost::encoding::encode_varint(record.len() as u64, &mut streamed);
                streamed.extend_from_slice(&record);
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error.to_string()),
        }
    };
    let whole = whole.map(|read| read.bytes).map_err(|e| e.to_string());
    assert_eq!(whole, end.map(|()| streamed));
    whole
}

fn attribute_strategy() -> impl Strategy<Value = AttributeProto> {
    use Value as V;
    macro_rules! list {
        ($kind:ident, $list:ident, $of:expr) => {
            vec($of, 0..4)
                .prop_map(|values| V::$kind(proto::$list { values }))
                .boxed()
        };
    }
    let bytes = || vec(any::<u8>(), 0..5).prop_map(Into::into);
    // Generates values of every type, and reals with every bit pattern.
    let value = prop_oneof![
        any::<u64>().prop_map(|v| V::DoubleVal(f64::from_bits(v))),
        any::<u32>().prop_map(|v| V::FloatVal(f32::from_bits(v))),
        any::<i32>().prop_map(V::Int32Val),
        any::<i64>().prop_map(V::Int64Val),
        any::<u32>().prop_map(V::Uint32Val),
        any::<u64>().prop_map(V::Uint64Val),
        any::<i32>().prop_map(V::Sint32Val),
        any::<i64>().prop_map(V::Sint64Val),
        any::<u32>().prop_map(V::Fixed32Val),
        any::<u64>().prop_map(V::Fixed64Val),
        any::<i32>().prop_map(V::Sfixed32Val),
        any::<i64>().prop_map(V::Sfixed64Val),
        any::<bool>().prop_map(V::BoolVal),
        any::<String>().prop_map(V::StringVal),
        bytes().prop_map(V::BytesVal),
    ];
    let lists = prop_oneof![
        list!(
            DoubleList,
            DoubleList,
            any::<u64>().prop_map(f64::from_bits)
        ),
        list!(FloatList, FloatList, any::<u32>().prop_map(f32::from_bits)),
        list!(Int32List, Int32List, any::<i32>()),
        list!(Int64List, Int64List, any::<i64>()),
        list!(Uint32List, Uint32List, any::<u32>()),
        list!(Uint64List, Uint64List, any::<u64>()),
        list!(Sint32List, Sint32List, any::<i32>()),
        list!(Sint64List, Sint64List, any::<i64>()),
        list!(Fixed32List, Fixed32List, any::<u32>()),
        list!(Fixed64List, Fixed64List, any::<u64>()),
        list!(Sfixed32List, Sfixed32List, any::<i32>()),
        list!(Sfixed64List, Sfixed64List, any::<i64>()),
        list!(BoolList, BoolList, any::<bool>()),
        list!(StringList, StringList, any::<String>()),
        list!(BytesList, BytesList, bytes()),
    ];
    let value = prop_oneof![1 => Just(None), 8 => value.prop_map(Some), 8 => lists.prop_map(Some)];
    ("[a-z]{0,4}", "[a-z\"]{0,3}", value).prop_map(|(name, doc_string, value)| AttributeProto {
        name,
        doc_string,
        value,
    })
}

/// Returns the fields of the node `message` that the schema does not define, in order.
fn list_fields_unknown_to_schema(message: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    let mut cursor = WireCursor::new(message, 0);
    while !cursor.is_empty() {
        let start = cursor.file_offset();
        if cursor.read_field().expect("it is sound").0 > 10 {
            found.push(&message[start..cursor.file_offset()]);
        }
    }
    found
}

fn frame_records(records: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut out = Vec::new();
    for record in records {
        prost::encoding::encode_varint(record.len() as u64, &mut out);
        out.extend(record);
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn canonical_binary_traces_survive_conversion_to_json_lines_and_back(
        version in any::<String>(),
        attr in vec(attribute_strategy(), 0..3),
        nodes in vec((node_strategy(), vec(attribute_strategy(), 0..6)), 0..4),
        unknown in vec(unknown_field_strategy(), 0..3),
    ) {
        let metadata = GlobalMetadata { version, attr }.encode_to_vec();
        let nodes = nodes.into_iter().map(|(node, attr)| Node { attr, ..node }.encode_to_vec());
        let tail = unknown.concat();
        let file = frame_records([metadata].into_iter().chain(nodes).map(|m| [m, tail.clone()].concat()));
        let text = to_lines(&file);
        prop_assert_eq!(convert_text_checking_streaming_agrees(&text).unwrap(), file);
        // `serde_json` must also read every line as one object.
        for line in text.lines() {
            let object: serde_json::Value = serde_json::from_str(line).unwrap();
            prop_assert!(object.is_object());
        }
    }

    #[test]
    fn non_canonical_files_come_back_with_equal_records(
        node in node_strategy(),
        unpacked: bool,
        order in Just((0..10_usize).collect::<Vec<_>>()).prop_shuffle(),
        unknown in vec((0..10_usize, unknown_field_strategy()), 0..4),
        in_attribute in unknown_field_strategy(),
        in_inputs in unknown_field_strategy(),
    ) {
        let mut bytes = encode_reordered_fields(&node, unpacked, &order, &unknown);
        // The attributes and the inputs contain fields that the schema does not define.
        let inner = AttributeProto { name: "odd".into(), ..AttributeProto::default() }.encode_to_vec();
        prost::encoding::bytes::encode(10, &[inner, in_attribute].concat(), &mut bytes);
        prost::encoding::bytes::encode(8, &in_inputs, &mut bytes);
        let before = frame_records([GlobalMetadata::default().encode_to_vec(), bytes.clone()]);
        let text = to_lines(&before);
        let after = convert_text_checking_streaming_agrees(&text).unwrap();
        prop_assert_eq!(format!("{:?}", decode_trace(&after)), format!("{:?}", decode_trace(&before)));
        let mut frames = FrameCursor::new(&after);
        frames.next_record().unwrap();
        let node = frames.next_record().unwrap().unwrap();
        prop_assert_eq!(list_fields_unknown_to_schema(node.bytes), list_fields_unknown_to_schema(&bytes));
        // Written traces are canonical, so a round trip preserves them byte for byte.
        prop_assert_eq!(to_lines(&after), text);
    }
}

#[test]
fn json_lines_are_written_as_documented() {
    let metadata = GlobalMetadata {
        version: "0.0.4".to_owned(),
        attr: vec![AttributeProto {
            name: "pid".to_owned(),
            value: Some(Value::Uint64Val(7)),
            ..AttributeProto::default()
        }],
    };
    let node = Node {
        id: 3,
        name: "mm".to_owned(),
        r#type: 4,
        data_deps: vec![1, 2],
        duration_micros: 5,
        attr: vec![AttributeProto {
            name: "num_ops".to_owned(),
            value: Some(Value::Int64Val(1000)),
            ..AttributeProto::default()
        }],
        ..Node::default()
    };
    let file = frame_records([metadata.encode_to_vec(), node.encode_to_vec(), Vec::new()]);
    let text = "\
{\"schema\":\"chakram.trace.1\",\"version\":\"0.0.4\",\"attr\":[{\"name\":\"pid\",\"uint64_val\":7}]}
{\"id\":3,\"name\":\"mm\",\"type\":\"COMP_NODE\",\"data_deps\":[1,2],\"duration_micros\":5,\
\"attr\":[{\"name\":\"num_ops\",\"int64_val\":1000}]}
{\"id\":0,\"type\":\"INVALID_NODE\"}
";
    assert_eq!(to_lines(&file), text);
    assert_eq!(convert_text_checking_streaming_agrees(text).unwrap(), file);
    // Blank lines, other line endings and a missing final line ending do not change the result.
    let loose = text.trim_end().replace('\n', "\r\n\r\n");
    assert_eq!(
        convert_text_checking_streaming_agrees(&loose).unwrap(),
        file
    );
}

#[test]
fn errors_name_line_column_and_node() {
    let first = "{\"schema\":\"chakram.trace.1\"}\n{\"id\":1}\n";
    for (line, expected) in [
        (
            "{\"id\":7,\"name\":5}",
            "line 3, column 16, node 7: expected a string",
        ),
        (
            "{\"id\":7,\"id\":8}",
            "line 3, column 14, node 7: a second `id`",
        ),
        (
            "{\"id\":7,\"nam\":\"\"}",
            "line 3, column 15, node 7: `nam` is not a field of a node",
        ),
        ("{\"id\":-7}", "line 3, column 7: expected a number from 0"),
        (
            "{\"type\":\"COMP\"}",
            "line 3, column 9: expected one of INVALID_NODE",
        ),
        (
            "{\"id\":7",
            "line 3, column 8, node 7: found the end of the text, expected `,` or `}`",
        ),
        (
            "{\"id\":7} x",
            "line 3, column 10: found text after the end",
        ),
        (
            "{\"attr\":[{\"int32_val\":2147483648}]}",
            "line 3, column 23: expected a value of type int32",
        ),
        (
            "{\"attr\":[{\"int32_val\":1,\"bool_val\":true}]}",
            "line 3, column 36: found a second value",
        ),
        (
            "{\"attr\":[{\"raw\":\"\",\"name\":\"x\"}]}",
            "`raw`, which must be alone",
        ),
        ("{\"unknown\":\"*\"}", "line 3, column 12: expected base64"),
        ("5", "line 3, column 1: found `5`, expected an object"),
    ] {
        let error =
            convert_text_checking_streaming_agrees(&format!("{first}{line}\n{{\"id\":2}}\n"))
                .unwrap_err();
        assert!(error.contains(expected), "{line}: {error}");
    }
    let newer =
        convert_text_checking_streaming_agrees("{\"schema\":\"chakram.trace.2\"}\n").unwrap_err();
    assert!(newer.contains("expected `chakram.trace.1`"), "{newer}");
}

/// Round trips must preserve other tools' traces byte for byte.
#[test]
fn corpus_traces_survive_round_trip_byte_for_byte() {
    let Some(cases) = testkit::corpus::unpack_cases_in_memory() else {
        return;
    };
    let mut files = 0;
    for (name, case) in &cases {
        for (file, contents) in case.iter().filter(|(file, _)| file.ends_with(".et")) {
            if name == "u_x_truncated" {
                continue;
            }
            let back = convert_text_checking_streaming_agrees(&to_lines(contents)).unwrap();
            assert!(back == *contents, "{name}/{file}");
            files += 1;
        }
    }
    println!("{files} files");
    assert!(files > 1000, "{files} files");
}
