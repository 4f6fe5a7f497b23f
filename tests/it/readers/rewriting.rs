//! Rewriting loses nothing: canonical files come back byte for byte, others with equal nodes and all
//! of their unknown fields.

use super::arbitrary::{node, scattered, unknown};
use super::{attribute, file, frame};
use chakram::internals::trace::proto::attribute_proto::Value;
use chakram::internals::trace::proto::{BoolList, Node};
use chakram::internals::trace::rewrite::{RewriteMode, rewrite};
use chakram::internals::trace::wire::{FrameCursor, WireCursor};
use proptest::prelude::*;
use prost::Message;

/// The fields of `message` that the schema does not have, as they stand.
fn unknown_fields(message: &[u8], known: u32) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut cursor = WireCursor::new(message, 0);
    while !cursor.is_empty() {
        let start = cursor.offset();
        if cursor.field().unwrap().0 > known {
            found.push(message[start..cursor.offset()].to_vec());
        }
    }
    found
}

fn records(contents: &[u8]) -> Vec<&[u8]> {
    let mut frames = FrameCursor::new(contents);
    let next = std::iter::from_fn(move || frames.next_record().unwrap());
    next.map(|record| record.bytes).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn canonical_files_come_back_byte_for_byte(
        nodes in prop::collection::vec(node(), 0..4),
        unknown in prop::collection::vec(unknown(), 0..3),
    ) {
        let plain = file(&nodes);
        let with_unknown = frame(nodes.iter().map(|n| [n.encode_to_vec(), unknown.concat()].concat()));
        for contents in [plain, with_unknown] {
            for mode in [RewriteMode::Copy, RewriteMode::Encode] {
                prop_assert_eq!(&rewrite(&contents, mode).unwrap()[..], &contents[..]);
            }
        }
    }

    #[test]
    fn unusual_files_keep_nodes_and_unknown_fields(
        node in node(),
        unpacked: bool,
        order in Just((0..10_usize).collect::<Vec<_>>()).prop_shuffle(),
        unknown in prop::collection::vec((0..10_usize, unknown()), 0..4),
    ) {
        let bytes = scattered(&node, unpacked, &order, &unknown);
        let before = frame([&bytes]);
        prop_assert_eq!(&rewrite(&before, RewriteMode::Copy).unwrap()[..], &before[..]);
        let after = rewrite(&before, RewriteMode::Encode).unwrap();
        let after = records(&after)[1];
        let back = Node::decode(after).unwrap();
        prop_assert_eq!(format!("{back:?}"), format!("{node:?}"));
        prop_assert_eq!(unknown_fields(after, 10), unknown_fields(&bytes, 10));
        crate::harness::et_reader::check_rewriting(&before);
    }

    #[test]
    fn unknown_fields_inside_of_parts_survive(
        node in node(),
        in_attribute in unknown(),
        in_list in unknown(),
        in_inputs in unknown(),
    ) {
        // Canonical but for unknown fields in an attribute, in a list, and in the inputs.
        let list = [BoolList { values: vec![true, false] }.encode_to_vec(), in_list].concat();
        let mut strange = attribute("involved_dim", Value::BoolVal(true));
        strange.value = None;
        let mut strange = strange.encode_to_vec();
        prost::encoding::bytes::encode(28, &list, &mut strange);
        strange.extend(in_attribute);
        let inputs = node.inputs.clone().unwrap_or_default();
        let head = Node { inputs: None, outputs: None, attr: vec![], ..node.clone() };
        let mut bytes = head.encode_to_vec();
        prost::encoding::bytes::encode(8, &[inputs.encode_to_vec(), in_inputs].concat(), &mut bytes);
        let tail = Node { outputs: node.outputs, attr: node.attr, ..Node::default() };
        bytes.extend(tail.encode_to_vec());
        prost::encoding::bytes::encode(10, &strange, &mut bytes);
        let before = frame([&bytes]);
        prop_assert_eq!(&rewrite(&before, RewriteMode::Encode).unwrap()[..], &before[..]);
    }
}

#[test]
fn what_is_no_message_is_refused_with_its_place() {
    let before = frame([&[0x08_u8, 0x01][..], &[0x0a, 0x01, 0x00]]);
    assert_eq!(rewrite(&before, RewriteMode::Copy).unwrap(), before);
    let error = rewrite(&before, RewriteMode::Encode)
        .unwrap_err()
        .to_string();
    assert!(error.contains("record 2, byte "), "{error}");
}
