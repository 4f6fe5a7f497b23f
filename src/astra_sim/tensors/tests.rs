//! Tests how traces list tensors, and which lists are rejected.

use super::*;
use chakram_trace::format::Op;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::write::{AttributeValue, NodeFieldsBeyondView, TraceWriter};

type TensorInputOutputLists<'a> = (&'a [&'a str], &'a [&'a str]);

/// Writes a trace of kernels that have these lists. The first node does nothing and has no lists.
fn encode_kernels_with_tensor_lists(nodes: &[Option<TensorInputOutputLists<'_>>]) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    let nothing = NodeView::new(100, "nothing", Op::NoOp);
    writer
        .write_node(&nothing, &[], &NodeFieldsBeyondView::default())
        .unwrap();
    for (id, lists) in nodes.iter().enumerate().rev() {
        let kernel = Op::Compute {
            flops: 0,
            bytes: 0,
            dtype: None,
        };
        let node = NodeView::new(id as u64, "kernel", kernel);
        let attributes = lists.map(|(inputs, outputs)| {
            [
                ("inputs", AttributeValue::Texts(inputs)),
                ("outputs", AttributeValue::Texts(outputs)),
            ]
        });
        let extra = NodeFieldsBeyondView {
            attributes: attributes.as_ref().map_or(&[], |both| both.as_slice()),
            ..NodeFieldsBeyondView::default()
        };
        writer.write_node(&node, &[], &extra).unwrap();
    }
    writer.into_unflushed_sink()
}

fn unwrap_tensor_read_error_text(
    nodes: &[Option<TensorInputOutputLists<'_>>],
    lenient: bool,
) -> String {
    let error = RankTensors::read_tensors(
        &encode_kernels_with_tensor_lists(nodes),
        lenient,
        "f",
        &mut Vec::new(),
    );
    error.unwrap_err().to_string()
}

#[test]
fn tensors_are_read_by_node() {
    let nodes = [
        Some((&["w", "100", "x", "7"][..], &["y", "50"][..])),
        Some((&["y", "50"], &["none", "0"])),
        Some((&[][..], &[][..])),
    ];
    let tensors = RankTensors::read_tensors(
        &encode_kernels_with_tensor_lists(&nodes),
        false,
        "f",
        &mut Vec::new(),
    )
    .unwrap();
    let of = |id| {
        let name = |tensor: u32| tensors.names[tensor as usize].as_str();
        let uses = tensors.tensor_uses_of_node(id).iter();
        uses.map(|one| (name(one.tensor), one.bytes, one.write))
            .collect::<Vec<_>>()
    };
    let expected = [("w", 100, false), ("x", 7, false), ("y", 50, true)];
    assert_eq!(of(0), expected);
    assert_eq!(of(1), [("y", 50, false)], "a tensor of 0 bytes is none");
    assert_eq!((of(2), of(100), of(5)), (vec![], vec![], vec![]));
}

#[test]
fn sizes_are_the_numbers_at_the_beginning_of_their_texts() {
    // `std::stoul` parses white space, a sign and digits, and ignores the rest of the text.
    for (text, bytes) in [
        ("1048576.0", 1_048_576),
        ("1e6", 1),
        (" \t\n+7 bytes", 7),
        ("007", 7),
        ("0x10", 0),
        ("-0", 0),
        ("18446744073709551615.9", u64::MAX),
    ] {
        assert_eq!(leading_number(text), Some(bytes), "{text}");
    }
    // The texts have no digits, digits after other text, numbers of more than 64 bits (for which `std::stoul` throws),
    // or numbers below 0.
    for text in [
        "",
        " ",
        ".5",
        "nan",
        "+ 5",
        "--5",
        "\u{a0}5",
        "18446744073709551616",
        "-1.0",
    ] {
        assert_eq!(leading_number(text), None, "{text}");
    }
}

#[test]
fn tensor_lists_that_astra_sim_rejects_are_refused() {
    for (lists, part) in [
        ((&["w"][..], &[][..]), "has 1 texts, expected pairs"),
        (
            (&["w", "many"], &[]),
            "the size `many` of `w`, expected bytes",
        ),
        ((&["w", "-1"], &[]), "the size `-1` of `w`"),
        (
            (&[], &["w", "1", "w", "1"]),
            "writes the tensor `w`, and so does node 0",
        ),
    ] {
        let error = unwrap_tensor_read_error_text(&[Some(lists)], true);
        assert!(error.contains(part), "{error}");
    }
    let nodes = [
        Some((&[][..], &["y", "1"][..])),
        Some((&[][..], &["y", "1"][..])),
    ];
    let twice = unwrap_tensor_read_error_text(&nodes, false);
    assert!(twice.contains("writes the tensor `y`"), "{twice}");
}

#[test]
fn nodes_without_tensor_lists_are_refused_unless_lenient() {
    let nodes = [None, None, Some((&[][..], &["y", "5"][..]))];
    let error = unwrap_tensor_read_error_text(&nodes, false);
    assert!(error.contains("no attribute `inputs`"), "{error}");
    let mut notes = Vec::new();
    let tensors = RankTensors::read_tensors(
        &encode_kernels_with_tensor_lists(&nodes),
        true,
        "f",
        &mut notes,
    )
    .unwrap();
    assert_eq!(tensors.tensor_uses_of_node(2).len(), 1);
    let notes: Vec<_> = notes
        .iter()
        .map(MisleadingValidInputNote::to_string)
        .collect();
    let expected =
        "f: `node 0`: has no lists of tensors, like 2 nodes in total: these nodes use no tensors";
    assert_eq!(notes, [expected]);
}
