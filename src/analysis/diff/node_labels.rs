//! Computes labels (hashes) of nodes from their own content.

use chakram_trace::format::wire::WireCursor;
use chakram_trace::format::{GroupName, MemoryLocation, Op};
use chakram_trace::graph::raw_trace::{CompactRawNodeView, RawTraceNode};
use chakram_trace::graph::{RawTrace, stable_hash};

/// Returns the label of each node, as computed by `label`.
pub(super) fn apply_label_function_to_each_node(
    raw: &RawTrace<'_>,
    label: fn(&CompactRawNodeView<'_>) -> u64,
) -> Vec<u64> {
    raw.nodes.iter().map(|item| label(&item.view)).collect()
}

/// Returns a small number that identifies the node's type.
pub(super) fn type_number_of_op(op: &Op<'_>) -> u8 {
    match *op {
        Op::NoOp => 0,
        Op::Host => 1,
        Op::Compute { .. } => 2,
        Op::Memory { store, place, .. } => {
            3 + 2 * u8::from(place == MemoryLocation::Local) + u8::from(store)
        }
        Op::Message { receive, .. } => 7 + u8::from(receive),
        Op::Communication { .. } => 9,
        Op::Collective { kind, .. } => 16 + kind as u8,
    }
}

pub(super) fn hash_name_and_type(view: &CompactRawNodeView<'_>) -> u64 {
    stable_hash(&(view.name, type_number_of_op(&view.op)))
}

pub(super) fn hash_name(view: &CompactRawNodeView<'_>) -> u64 {
    stable_hash(&view.name)
}

/// Hashes the name, type, lane and peers of a node, but not its times, sizes and other properties.
pub(super) fn hash_name_type_lane_and_peers(view: &CompactRawNodeView<'_>) -> u64 {
    let group = |group: GroupName<'_>| match group {
        GroupName::World => 0,
        GroupName::Number(number) => stable_hash(&number),
        GroupName::Text(text) => stable_hash(&text),
    };
    let whom = match view.op {
        Op::Message { peer, tag, .. } => stable_hash(&(peer, tag)),
        Op::Collective {
            group: name,
            root,
            dimensions,
            ..
        } => stable_hash(&(group(name), root, dimensions)),
        Op::Compute { dtype, .. } => stable_hash(&dtype),
        Op::NoOp | Op::Host | Op::Memory { .. } | Op::Communication { .. } => 0,
    };
    stable_hash(&(view.name, type_number_of_op(&view.op), view.lane, whom))
}

/// Hashes the whole record except id and dependencies; the order of fields has no effect.
pub(super) fn hash_content(item: &RawTraceNode<'_>) -> u64 {
    let (view, record) = (&item.view, &item.record);
    let times = (view.recorded.0, view.delay.0, view.wait.0, view.eager);
    let mut sum = mix_bits(hash_name_type_lane_and_peers(view) ^ stable_hash(&times));
    let mut cursor = WireCursor::new(record.bytes, record.offset);
    while !cursor.is_empty() {
        let from = cursor.file_offset() - record.offset;
        let number = match cursor.read_field() {
            Ok((number, _)) => number,
            // If the record cannot be decoded further, hash its remaining bytes as a whole.
            Err(_) => return sum.wrapping_add(stable_hash(&&record.bytes[from..])),
        };
        if !matches!(number, 1 | 4 | 5) {
            let field = &record.bytes[from..cursor.file_offset() - record.offset];
            // Add the hashes of fields, so that the order of fields has no effect.
            sum = sum.wrapping_add(mix_bits(stable_hash(&field)));
        }
    }
    sum
}

/// Mixes the bits of a hash, so that sums of hashes rarely collide.
#[inline]
pub(super) fn mix_bits(value: u64) -> u64 {
    const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;
    let value = (value ^ value >> 32).wrapping_mul(FACTOR);
    let value = (value ^ value >> 32).wrapping_mul(FACTOR);
    value ^ value >> 32
}
