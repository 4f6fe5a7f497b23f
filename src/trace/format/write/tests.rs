//! Tests round trips of written traces.

use super::*;
use crate::format::proto::{self, AttributeProto, attribute_proto::Value as Proto};
use crate::format::scan::{self, DependencyVisitor};
use crate::format::split_sizes::AllToAllSplitText;
use crate::format::wire::FrameCursor;
use crate::format::{
    CollectiveKind, Dtype, GroupName, MemoryLocation, NodeMemoryChanges,
    NodePhaseStageLayerAndShapes, TrainingPhase,
};
use chakram_base::units::Span;
use prost::Message;

#[derive(Default)]
struct CollectedDependencies {
    data: Vec<u64>,
    control: Vec<u64>,
}
impl DependencyVisitor for CollectedDependencies {
    fn visit_data_dependency(&mut self, id: u64) -> Result<(), TraceError> {
        self.data.push(id);
        Ok(())
    }
    fn visit_control_dependency(&mut self, id: u64) -> Result<(), TraceError> {
        self.control.push(id);
        Ok(())
    }
}

#[test]
fn written_nodes_are_read_back() {
    let ops = [
        Op::NoOp,
        Op::Host,
        Op::Compute {
            flops: 7,
            bytes: 9,
            dtype: Some(Dtype::Fp8),
        },
        Op::Memory {
            store: true,
            place: MemoryLocation::Local,
            bytes: 64,
            in_switch: false,
        },
        Op::Memory {
            store: true,
            place: MemoryLocation::Remote,
            bytes: 64,
            in_switch: true,
        },
        Op::Memory {
            store: false,
            place: MemoryLocation::Remote,
            bytes: 64,
            in_switch: true,
        },
        Op::Message {
            receive: true,
            peer: 3,
            tag: -2,
            bytes: 11,
            own: Some(1),
            host: false,
        },
        Op::Collective {
            kind: CollectiveKind::AllToAll,
            bytes: 9,
            group: GroupName::World,
            root: None,
            dimensions: None,
            host: false,
        },
        Op::Collective {
            kind: CollectiveKind::Broadcast,
            bytes: 1 << 40,
            group: GroupName::Text("tp_0"),
            root: Some(2),
            dimensions: Some(0b01),
            host: true,
        },
    ];
    for (i, op) in ops.into_iter().enumerate() {
        // The durations are zero, whole microseconds, and microseconds with a fraction.
        for ns in [0, 5_000, 1_234] {
            let node = NodeView {
                lane: Some(7),
                recorded: Span::from_ns(ns),
                micros: ns / 1000,
                delay: Span::from_ns(ns / 2),
                wait: Span::from_ns(ns * 3),
                eager: ns > 0,
                splits: match op {
                    Op::Collective { bytes: 9, .. } => AllToAllSplitText {
                        send: "[4, 0, 5]",
                        receive: "[1, 2, 3]",
                    },
                    _ => AllToAllSplitText::default(),
                },
                memory: NodeMemoryChanges {
                    allocates: [ns, 0, 3, 1 << 62, ns],
                    frees: [0, ns, 5, ns, u64::MAX],
                    remote: ns,
                },
                ..NodeView::new(i as u64, "node é", op)
            };
            let mut writer = TraceWriter::new(Vec::new()).unwrap();
            writer.receive_node(&node, &[5, 300, 1 << 40]).unwrap();
            let file = writer.into_unflushed_sink();
            let mut deps = CollectedDependencies::default();
            assert_eq!(
                scan::scan_node(check_records_against_prost_and_read_node(&file), &mut deps)
                    .unwrap(),
                node
            );
            assert_eq!((deps.data, deps.control), (vec![5, 300, 1 << 40], vec![]));
        }
    }
}

/// Checks that the file's records equal the output of the generated types, and then returns the node in `file`.
fn check_records_against_prost_and_read_node(file: &[u8]) -> RawRecord<'_> {
    let mut frames = FrameCursor::new(file);
    let metadata = frames.next_record().unwrap().unwrap();
    let generated = proto::GlobalMetadata::decode(metadata.bytes).unwrap();
    assert_eq!(generated.encode_to_vec(), metadata.bytes);
    let node = frames.next_record().unwrap().unwrap();
    let generated = proto::Node::decode(node.bytes).unwrap();
    assert_eq!(generated.encode_to_vec(), node.bytes);
    node
}

fn proto_attribute(name: &str, value: Proto) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        doc_string: String::new(),
        value: Some(value),
    }
}

const KERNEL: Op<'_> = Op::Compute {
    flops: 0,
    bytes: 0,
    dtype: None,
};

#[test]
fn fields_that_replays_ignore_are_still_written() {
    let mut writer = TraceWriter::start_with_metadata(
        Vec::new(),
        &[
            ("schema", AttributeValue::Text("1.1.1")),
            ("captured_ns", AttributeValue::Uint(9)),
        ],
    )
    .unwrap();
    let extra = NodeFieldsBeyondView {
        control: &[3, 1 << 33],
        inputs: NodeInputsOrOutputs {
            values: "[1]",
            shapes: "[[]]",
            types: "['Int']",
        },
        outputs: NodeInputsOrOutputs::default(),
        attributes: &[
            ("rf_id", AttributeValue::Int(-1)),
            ("ts", AttributeValue::Uint(u64::MAX)),
            ("is_async", AttributeValue::Bool(true)),
            ("op_schema", AttributeValue::Text("f(int a) -> int")),
            ("splits", AttributeValue::Ints(&[4, -4])),
        ],
    };
    let node = NodeView {
        recorded: Span::from_ns(7),
        ..NodeView::new(8, "f", KERNEL)
    };
    writer.write_node(&node, &[2], &extra).unwrap();
    let file = writer.into_unflushed_sink();
    let mut deps = CollectedDependencies::default();
    assert_eq!(
        scan::scan_node(check_records_against_prost_and_read_node(&file), &mut deps).unwrap(),
        node
    );
    assert_eq!((deps.data, deps.control), (vec![2], vec![3, 1 << 33]));
    let first = FrameCursor::new(&file).next_record().unwrap().unwrap();
    let captured = scan::read_metadata(first).unwrap().captured;
    assert_eq!(captured, Some(Span::from_ns(9)));
    let metadata = proto::GlobalMetadata::decode(first.bytes).unwrap();
    let schema = Some(Proto::StringVal("1.1.1".to_owned()));
    assert_eq!(
        (&*metadata.attr[0].name, &metadata.attr[0].value),
        ("schema", &schema)
    );

    let written =
        proto::Node::decode(check_records_against_prost_and_read_node(&file).bytes).unwrap();
    let inputs = written.inputs.unwrap();
    let texts = (&*inputs.values, &*inputs.shapes, &*inputs.types);
    assert_eq!((texts, written.outputs), (("[1]", "[[]]", "['Int']"), None));
    let list = proto::Int64List {
        values: vec![4, -4],
    };
    let wanted = [
        ("rf_id", Proto::Int64Val(-1)),
        ("ts", Proto::Uint64Val(u64::MAX)),
        ("is_async", Proto::BoolVal(true)),
        ("op_schema", Proto::StringVal("f(int a) -> int".to_owned())),
        ("splits", Proto::Int64List(list)),
    ];
    let found = &written.attr[written.attr.len() - wanted.len()..];
    for (found, (name, value)) in found.iter().zip(wanted) {
        assert_eq!((&*found.name, &found.value), (name, &Some(value)));
    }
}

#[test]
fn attributes_may_not_contradict_the_node() {
    let write = |node: &NodeView<'_>, attribute: NamedAttribute<'_>| {
        let mut writer = TraceWriter::new(Vec::new()).unwrap();
        let extra = NodeFieldsBeyondView {
            attributes: &[attribute],
            ..NodeFieldsBeyondView::default()
        };
        writer
            .write_node(node, &[], &extra)
            .map_err(|e| e.to_string())
    };
    let kernel = NodeView {
        lane: Some(7),
        ..NodeView::new(5, "mm", KERNEL)
    };
    // A kernel's stream takes precedence over its thread, so adding `tid` does not change the node.
    write(&kernel, ("tid", AttributeValue::Int(3))).unwrap();
    write(&kernel, ("stream", AttributeValue::Int(7))).unwrap();
    let error = write(&kernel, ("stream", AttributeValue::Int(8))).unwrap_err();
    assert!(
        error.contains("node 5") && error.contains("`stream`"),
        "{error}"
    );
    assert!(write(&kernel, ("duration_ns", AttributeValue::Uint(5))).is_err());
    assert!(write(&kernel, ("delay_ns", AttributeValue::Bool(true))).is_err());
    let bare = NodeView::new(5, "mm", KERNEL);
    assert!(write(&bare, ("tid", AttributeValue::Int(3))).is_err());
}

#[test]
fn declared_groups_are_read_back() {
    let text = r#"[{"pg_name": "1", "ranks": [0, 2]}]"#;
    let declaring = NodeView::declare_groups(4, text);
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    writer.receive_node(&declaring, &[]).unwrap();
    let file = writer.into_unflushed_sink();
    let back = scan::scan_node(
        check_records_against_prost_and_read_node(&file),
        &mut CollectedDependencies::default(),
    )
    .unwrap();
    assert_eq!(back, declaring);
    let written =
        proto::Node::decode(check_records_against_prost_and_read_node(&file).bytes).unwrap();
    assert_eq!(written.r#type, NodeType::MetadataNode as i32);
    // The writer rejects group declarations on a node of another type, because they would be lost.
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    let kernel = NodeView {
        groups: Some(text),
        ..NodeView::new(4, "mm", KERNEL)
    };
    assert!(writer.receive_node(&kernel, &[]).is_err());
    let twice = NodeFieldsBeyondView {
        inputs: NodeInputsOrOutputs {
            values: "[]",
            ..NodeInputsOrOutputs::default()
        },
        ..NodeFieldsBeyondView::default()
    };
    assert!(writer.write_node(&declaring, &[], &twice).is_err());
}

#[test]
fn node_labels_are_written_as_attributes_and_shapes() {
    let node = NodeView {
        labels: NodePhaseStageLayerAndShapes {
            phase: Some(TrainingPhase::Recompute),
            stage: Some(0),
            micro_batch: Some(7),
            layer: None,
            inputs: "[[4, 8], [8, 2]]",
            outputs: "[[4, 2]]",
        },
        memory: NodeMemoryChanges {
            allocates: [0, 0, 0, 16, 0],
            frees: [0, 0, 0, 0, 9],
            remote: 0,
        },
        ..NodeView::new(8, "f", KERNEL)
    };
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    writer.receive_node(&node, &[]).unwrap();
    let file = writer.into_unflushed_sink();
    let written =
        proto::Node::decode(check_records_against_prost_and_read_node(&file).bytes).unwrap();
    let shapes = |io: Option<proto::IoInfo>| io.unwrap().shapes;
    assert_eq!(shapes(written.inputs), "[[4, 8], [8, 2]]");
    assert_eq!(shapes(written.outputs), "[[4, 2]]");
    let text = |name: &str, value| proto_attribute(name, value);
    let wanted = [
        text("allocates.activations", Proto::Uint64Val(16)),
        text("frees.temporary", Proto::Uint64Val(9)),
        text("phase", Proto::StringVal("recompute".to_owned())),
        text("stage", Proto::Uint32Val(0)),
        text("micro_batch", Proto::Uint32Val(7)),
    ];
    // The first three attributes describe the kernel: host or device, FLOPs, bytes.
    assert_eq!(written.attr[3..], wanted);
    // The phase is the only label that the reader returns.
    let read = scan::scan_node(
        check_records_against_prost_and_read_node(&file),
        &mut CollectedDependencies::default(),
    )
    .unwrap();
    let labels = NodePhaseStageLayerAndShapes {
        phase: node.labels.phase,
        ..NodePhaseStageLayerAndShapes::default()
    };
    assert_eq!(read, NodeView { labels, ..node });
}

#[test]
fn input_shapes_in_both_labels_and_inputs_are_written_once() {
    let node = NodeView {
        labels: NodePhaseStageLayerAndShapes {
            inputs: "[[4]]",
            ..NodePhaseStageLayerAndShapes::default()
        },
        ..NodeView::new(8, "f", KERNEL)
    };
    let write = |shapes: &'static str| {
        let inputs = NodeInputsOrOutputs {
            shapes,
            types: "['Tensor']",
            ..NodeInputsOrOutputs::default()
        };
        let extra = NodeFieldsBeyondView {
            inputs,
            ..NodeFieldsBeyondView::default()
        };
        TraceWriter::new(Vec::new())
            .unwrap()
            .write_node(&node, &[], &extra)
    };
    assert!(write("").is_ok() && write("[[4]]").is_ok());
    let error = write("[[5]]").unwrap_err().to_string();
    assert!(error.contains("other shapes"), "{error}");
}

#[test]
fn negative_memory_change_bytes_are_refused() {
    let extra = NodeFieldsBeyondView {
        attributes: &[("frees.weights", AttributeValue::Int(-1))],
        ..NodeFieldsBeyondView::default()
    };
    // If replays read an attribute of this name, the writer scans its own output again.
    let node = NodeView::new(8, "f", KERNEL);
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    assert!(writer.write_node(&node, &[], &extra).is_err());
    let record = proto::Node {
        id: 8,
        attr: vec![proto_attribute("allocates.optimizer", Proto::Sint64Val(-1))],
        ..proto::Node::default()
    }
    .encode_to_vec();
    let record = RawRecord {
        number: 3,
        offset: 40,
        bytes: &record,
    };
    let error = scan::scan_node(record, &mut CollectedDependencies::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`allocates.optimizer` cannot be read as a count"),
        "{error}"
    );
    assert!(error.contains("record 3"), "{error}");
}
