//! Compares the fast reader with the generated types, on nodes with arbitrary content.

use super::arbitrary::{encode_reordered_fields, node_strategy, unknown_field_strategy};
use super::build_attribute;
use crate::harness::oracle;
use chakram_trace::format::proto::attribute_proto::Value;
use chakram_trace::format::proto::{AttributeProto, BoolList, IoInfo, Node};
use chakram_trace::format::wire::RawRecord;
use proptest::prelude::*;
use prost::Message;

fn build_raw_record(bytes: &[u8]) -> RawRecord<'_> {
    RawRecord {
        number: 1,
        offset: 10,
        bytes,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn both_readers_see_the_same_node(
        node in node_strategy(),
        unpacked: bool,
        order in Just((0..10_usize).collect::<Vec<_>>()).prop_shuffle(),
        unknown in prop::collection::vec((0..10_usize, unknown_field_strategy()), 0..3),
    ) {
        let bytes = encode_reordered_fields(&node, unpacked, &order, &unknown);
        let whole = Node::decode(&bytes[..]).expect("pieces of a message are a message");
        // A NaN differs from itself, so compare the debug texts.
        prop_assert_eq!(format!("{whole:?}"), format!("{node:?}"));
        oracle::check_readers_agree(build_raw_record(&bytes));
    }

    #[test]
    fn both_readers_agree_on_damaged_records(
        node in node_strategy(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = node.encode_to_vec();
        for (at, byte) in damage {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        oracle::check_readers_agree(build_raw_record(&bytes));
    }
}

#[test]
fn most_arbitrary_nodes_are_accepted() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let accepted = (0..500).filter(|_| {
        let node = node_strategy()
            .new_tree(&mut runner)
            .expect("nothing is rejected")
            .current();
        oracle::build_expected_node(&node).is_ok()
    });
    let accepted = accepted.count();
    assert!((100..450).contains(&accepted), "{accepted} of 500");
}

#[test]
fn text_that_is_not_needed_is_not_looked_at() {
    // `outputs.values` is not UTF-8, so the message is invalid, although all fields that a replay needs are valid.
    let mut bytes = super::build_kernel(7, &[], &[]).encode_to_vec();
    prost::encoding::bytes::encode(9, &vec![0x0a, 1, 0xff], &mut bytes);
    assert!(Node::decode(&bytes[..]).is_err());
    assert_eq!(
        oracle::scan_record_with_fast_reader(build_raw_record(&bytes))
            .unwrap()
            .id,
        7
    );
    // A name that is not UTF-8 is an error.
    let mut bytes = Vec::new();
    prost::encoding::bytes::encode(2, &vec![0xff], &mut bytes);
    let error = oracle::scan_record_with_fast_reader(build_raw_record(&bytes))
        .unwrap_err()
        .to_string();
    assert!(error.contains("record 1, byte 10"), "{error}");
}

#[test]
fn split_protobuf_messages_are_merged() {
    let list = |values| AttributeProto {
        name: String::new(),
        ..build_attribute("", Value::BoolList(BoolList { values }))
    };
    // One attribute states the mask 0b01 of two dimensions as two lists, [1] and [0].
    let mut mask = build_attribute("involved_dim", Value::BoolVal(true)).encode_to_vec();
    mask.extend(list(vec![true]).encode_to_vec());
    mask.extend(list(vec![false]).encode_to_vec());
    let mut bytes = Node {
        r#type: 7,
        attr: vec![
            build_attribute("comm_type", Value::Int64Val(0)),
            build_attribute("comm_size", Value::Int64Val(8)),
        ],
        ..Node::default()
    }
    .encode_to_vec();
    prost::encoding::bytes::encode(10, &mask, &mut bytes);
    oracle::check_readers_agree(build_raw_record(&bytes));
    let node = oracle::scan_record_with_fast_reader(build_raw_record(&bytes)).unwrap();
    let chakram_trace::format::Op::Collective { dimensions, .. } = node.op else {
        panic!("{node:?}");
    };
    assert_eq!(dimensions, Some(0b01));

    // A metadata node's inputs are split into two fields: first the values, then the shapes.
    let io = |values: &str, shapes: &str| Node {
        inputs: Some(IoInfo {
            values: values.to_owned(),
            shapes: shapes.to_owned(),
            types: String::new(),
        }),
        ..Node::default()
    };
    let mut bytes = Node {
        name: "process_group:init".to_owned(),
        r#type: 1,
        ..io("[]", "")
    }
    .encode_to_vec();
    bytes.extend(io("", "x").encode_to_vec());
    oracle::check_readers_agree(build_raw_record(&bytes));
    let node = oracle::scan_record_with_fast_reader(build_raw_record(&bytes)).unwrap();
    assert_eq!(node.groups, Some("[]"));
}

#[test]
fn types_have_32_bits() {
    // The value is 4 + 2^32, which a writer with 64-bit numbers may produce. The schema's type keeps only the lower 32
    // bits.
    let mut bytes = Vec::new();
    prost::encoding::uint64::encode(3, &((1 << 32) + 4), &mut bytes);
    oracle::check_readers_agree(build_raw_record(&bytes));
    assert!(oracle::scan_record_with_fast_reader(build_raw_record(&bytes)).is_ok());
}
