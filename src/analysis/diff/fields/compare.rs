//! Compares two records field by field.

use super::{NodeField, NodeFieldChange, bytes_moved_by_op, group_name, type_name};
use crate::diff::value::NodeFieldValue;
use chakram_base::units::Span;
use chakram_trace::format::attr::AttrView;
use chakram_trace::format::wire::{RawRecord, WireCursor, WireValue};
use chakram_trace::format::{Dtype, Op, escape_and_shorten_name};
use chakram_trace::graph::raw_trace::{CompactRawNodeView, RawTraceNode};

/// Names of the fields for the values, shapes and types of a node's inputs and outputs.
const IO: [[&str; 3]; 2] = [
    ["inputs.values", "inputs.shapes", "inputs.types"],
    ["outputs.values", "outputs.shapes", "outputs.types"],
];

/// Attributes whose numbers, such as ids, the captured process assigned. They do not affect the job, so only their
/// presence is compared.
const PROCESS_NUMBERS: [&[u8]; 5] = [b"et_id", b"fw_parent", b"rf_id", b"seq_id", b"stack"];
/// Attributes that contain ids of other nodes.
const NODE_IDS: [&[u8]; 2] = [b"launch", b"parent"];

/// Returns the fields that are decoded from an attribute.
fn fields_of_attribute(attribute: &[u8]) -> &'static [NodeField] {
    match attribute {
        b"is_cpu_op" => &[NodeField::Type, NodeField::Host, NodeField::Lane],
        b"num_ops" => &[NodeField::Flops],
        b"tensor_size" | b"comm_size" => &[NodeField::Bytes, NodeField::Type],
        b"tensor_loc" | b"comm_type" => &[NodeField::Type],
        b"in_switch" => &[NodeField::InSwitch],
        b"dtype" => &[NodeField::Dtype],
        b"stream" | b"tid" => &[NodeField::Lane],
        b"duration_ns" => &[NodeField::Duration],
        b"delay_ns" => &[NodeField::Delay],
        b"wait_ns" => &[NodeField::Wait],
        b"eager" => &[NodeField::Eager],
        b"comm_src" | b"comm_dst" => &[NodeField::Peer, NodeField::Own],
        b"comm_tag" => &[NodeField::Tag],
        b"comm_root" => &[NodeField::Root],
        b"involved_dim" | b"involve_dims" => &[NodeField::Dimensions],
        b"pg_name" | b"comm_group" => &[NodeField::Group],
        _ => &[],
    }
}

struct NodeFieldChangeCollector<'f>(&'f mut Vec<NodeFieldChange>);

impl NodeFieldChangeCollector<'_> {
    fn push(&mut self, field: NodeField, before: NodeFieldValue, after: NodeFieldValue) {
        self.0.push(NodeFieldChange {
            field,
            before,
            after,
        });
    }

    fn compare_text<T: PartialEq>(
        &mut self,
        field: NodeField,
        pair: [T; 2],
        show: impl Fn(&T) -> String,
    ) {
        if pair[0] != pair[1] {
            let [before, after] = pair.map(|value| NodeFieldValue::Text(show(&value)));
            self.push(field, before, after);
        }
    }

    fn compare_optional<T: PartialEq + ToString>(
        &mut self,
        field: NodeField,
        pair: [Option<T>; 2],
    ) {
        if pair[0] != pair[1] {
            let value = |v: Option<T>| {
                v.map_or(NodeFieldValue::Absent, |v| {
                    NodeFieldValue::Text(v.to_string())
                })
            };
            let [before, after] = pair.map(value);
            self.push(field, before, after);
        }
    }

    fn compare_count(&mut self, field: NodeField, pair: [u64; 2]) {
        if pair[0] != pair[1] {
            let [before, after] = pair.map(NodeFieldValue::Count);
            self.push(field, before, after);
        }
    }

    fn has_change_in_fields(&self, fields: &[NodeField]) -> bool {
        self.0.iter().any(|change| fields.contains(&change.field))
    }
}

/// Compares all fields of two nodes except ids and dependencies, and appends the differences to `found`. `partners`
/// returns true if two ids, one of each trace, belong to matched nodes.
pub(in crate::diff) fn compare_nodes(
    a: &RawTraceNode<'_>,
    b: &RawTraceNode<'_>,
    partners: &dyn Fn(u64, u64) -> bool,
    found: &mut Vec<NodeFieldChange>,
) {
    let mut found = NodeFieldChangeCollector(found);
    compare_views(&a.view, &b.view, &mut found);
    compare_fields_outside_view(&a.record, &b.record, partners, &mut found);
}

fn compare_views(
    a: &CompactRawNodeView<'_>,
    b: &CompactRawNodeView<'_>,
    found: &mut NodeFieldChangeCollector<'_>,
) {
    let yes = |yes: &bool| if *yes { "yes" } else { "no" }.to_owned();
    found.compare_text(
        NodeField::Type,
        [type_name(&a.op), type_name(&b.op)],
        String::clone,
    );
    found.compare_text(NodeField::Name, [a.name, b.name], |name| {
        escape_and_shorten_name(name)
    });
    found.compare_optional(NodeField::Lane, [a.lane, b.lane]);
    match (a.op, b.op) {
        (
            Op::Compute {
                flops: f, dtype: d, ..
            },
            Op::Compute { flops, dtype, .. },
        ) => {
            found.compare_optional::<Dtype>(NodeField::Dtype, [d, dtype]);
            found.compare_count(NodeField::Flops, [f, flops]);
        }
        (Op::Memory { in_switch: s, .. }, Op::Memory { in_switch, .. }) => {
            found.compare_text(NodeField::InSwitch, [s, in_switch], yes);
        }
        (
            Op::Message {
                peer: p,
                tag: t,
                own: o,
                host: h,
                ..
            },
            Op::Message {
                peer,
                tag,
                own,
                host,
                ..
            },
        ) => {
            found.compare_optional(NodeField::Peer, [Some(p), Some(peer)]);
            found.compare_optional(NodeField::Tag, [Some(t), Some(tag)]);
            found.compare_optional(NodeField::Own, [o, own]);
            found.compare_text(NodeField::Host, [h, host], yes);
        }
        (
            Op::Collective {
                group: g,
                root: r,
                dimensions: d,
                host: h,
                ..
            },
            Op::Collective {
                group,
                root,
                dimensions,
                host,
                ..
            },
        ) => {
            found.compare_text(NodeField::Group, [g, group], |&group| group_name(group));
            found.compare_optional(NodeField::Root, [r, root]);
            let mask = |mask: Option<u32>| mask.map(|mask| format!("mask {mask:#b}"));
            found.compare_optional(NodeField::Dimensions, [mask(d), mask(dimensions)]);
            found.compare_text(NodeField::Host, [h, host], yes);
        }
        _ => {}
    }
    if let (Some(before), Some(after)) = (bytes_moved_by_op(&a.op), bytes_moved_by_op(&b.op)) {
        found.compare_count(NodeField::Bytes, [before, after]);
    }
    for (field, before, after) in [
        (NodeField::Duration, a.recorded, b.recorded),
        (NodeField::Delay, a.delay, b.delay),
        (NodeField::Wait, a.wait, b.wait),
    ] {
        if before != after {
            found.push(
                field,
                NodeFieldValue::Time(before),
                NodeFieldValue::Time(after),
            );
        }
    }
    found.compare_text(NodeField::Eager, [a.eager, b.eager], yes);
}

/// Parts of a record that the decoded view of the node omits.
#[derive(Default)]
struct RecordFieldsOutsideView<'a> {
    kind: u64,
    start: u64,
    micros: u64,
    io: [[&'a [u8]; 3]; 2],
    /// Name and encoded message of each attribute, sorted by name.
    attributes: Vec<(&'a [u8], &'a [u8])>,
    /// Number and bytes of each unknown or broken field, sorted by number.
    unknown: Vec<(u32, &'a [u8])>,
}

fn parse_fields_outside_view<'a>(record: &RawRecord<'a>) -> RecordFieldsOutsideView<'a> {
    let mut parts = RecordFieldsOutsideView::default();
    let mut cursor = WireCursor::new(record.bytes, record.offset);
    while !cursor.is_empty() {
        let from = cursor.file_offset() - record.offset;
        let Ok((number, raw)) = cursor.read_field() else {
            // Fields after a broken field cannot be read, so compare the rest of the record as bytes.
            parts.unknown.push((0, &record.bytes[from..]));
            break;
        };
        match (number, raw) {
            (1 | 2 | 4 | 5, _) => {}
            (3, WireValue::Varint(kind)) => parts.kind = u64::from(kind as u32),
            (6, WireValue::Varint(start)) => parts.start = start,
            (7, WireValue::Varint(micros)) => parts.micros = micros,
            (8 | 9, WireValue::Bytes(io, at)) => {
                let mut fields = WireCursor::new(io, at);
                while let Ok((which @ 1..=3, WireValue::Bytes(text, _))) = fields.read_field() {
                    parts.io[number as usize - 8][which as usize - 1] = text;
                }
            }
            (10, WireValue::Bytes(message, at)) => {
                let name = AttrView::scan_attribute(message, at).map_or(&b""[..], |attr| attr.name);
                parts.attributes.push((name, message));
            }
            _ => {
                let field = &record.bytes[from..cursor.file_offset() - record.offset];
                parts.unknown.push((number, field));
            }
        }
    }
    // The sorts are stable, so that repeated attributes keep their order.
    parts.attributes.sort_by_key(|(name, _)| *name);
    parts.unknown.sort_by_key(|(number, _)| *number);
    parts
}

fn compare_fields_outside_view(
    a: &RawRecord<'_>,
    b: &RawRecord<'_>,
    partners: &dyn Fn(u64, u64) -> bool,
    found: &mut NodeFieldChangeCollector<'_>,
) {
    let (a, b) = (parse_fields_outside_view(a), parse_fields_outside_view(b));
    // Different type numbers can mean the same operation, so compare the numbers too.
    if !found.has_change_in_fields(&[NodeField::Type]) {
        found.compare_text(NodeField::Type, [a.kind, b.kind], |kind| {
            format!("number {kind}")
        });
    }
    // The field in microseconds repeats the duration, so report its change only if the durations are equal.
    if !found.has_change_in_fields(&[NodeField::Duration]) {
        found.compare_count(NodeField::Micros, [a.micros, b.micros]);
    }
    found.compare_count(NodeField::Start, [a.start, b.start]);
    let text = |bytes: &&[u8]| match bytes {
        [] => "nothing".to_owned(),
        _ => escape_and_shorten_name(&String::from_utf8_lossy(bytes)),
    };
    for (names, (a, b)) in IO.iter().zip(a.io.into_iter().zip(b.io)) {
        for (i, name) in names.iter().enumerate() {
            found.compare_text(NodeField::Io(name), [a[i], b[i]], text);
        }
    }
    let value = |messages: &[&[u8]]| match messages {
        [] => NodeFieldValue::Absent,
        _ => {
            let shown = messages
                .iter()
                .map(|message| match AttrView::scan_attribute(message, 0) {
                    Ok(attr) => attr.describe_type_and_value(),
                    Err(_) => format!("{} bytes that are not an attribute", message.len()),
                });
            NodeFieldValue::Text(shown.collect::<Vec<_>>().join(", then "))
        }
    };
    let number = |messages: &[&[u8]]| match messages {
        [message] => AttrView::scan_attribute(message, 0).ok()?.as_count().ok(),
        _ => None,
    };
    for_each_differing_key(&a.attributes, &b.attributes, |name, a, b| {
        let numbers = number(a).zip(number(b));
        if let Some((one, other)) = numbers
            && (PROCESS_NUMBERS.contains(name) || NODE_IDS.contains(name) && partners(one, other))
        {
            return;
        }
        if let (Some((one, other)), true) = (numbers, *name == b"profiler_ns") {
            let [one, other] = [one, other].map(|ns| NodeFieldValue::Time(Span::from_ns(ns)));
            return found.push(NodeField::Profiler, one, other);
        }
        // If a decoded field already shows the change, do not report the attribute as well.
        if !found.has_change_in_fields(fields_of_attribute(name)) {
            let name = String::from_utf8_lossy(name).into_owned();
            found.push(NodeField::Attribute(name), value(a), value(b));
        }
    });
    let bytes = |fields: &[&[u8]]| match fields {
        [] => NodeFieldValue::Absent,
        _ => NodeFieldValue::Text(format!("{} bytes", fields.concat().len())),
    };
    for_each_differing_key(&a.unknown, &b.unknown, |&number, a, b| {
        found.push(NodeField::Unknown(number), bytes(a), bytes(b));
    });
}

/// Calls `each` for every key whose values differ between the two lists, which must be sorted by key.
fn for_each_differing_key<'a, K: Ord + Copy>(
    a: &[(K, &'a [u8])],
    b: &[(K, &'a [u8])],
    mut each: impl FnMut(&K, &[&'a [u8]], &[&'a [u8]]),
) {
    let (mut i, mut j) = (0, 0);
    while let Some(key) = [a.get(i), b.get(j)]
        .into_iter()
        .flatten()
        .map(|(k, _)| *k)
        .min()
    {
        let run = |list: &[(K, &'a [u8])], from: &mut usize| {
            let run = list[*from..].iter().take_while(|(k, _)| *k == key);
            let values: Vec<_> = run.map(|(_, value)| *value).collect();
            *from += values.len();
            values
        };
        let (x, y) = (run(a, &mut i), run(b, &mut j));
        if x != y {
            each(&key, &x, &y);
        }
    }
}
