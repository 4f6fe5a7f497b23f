//! Counts node attributes and fields.

use chakram_trace::format::attr::AttrView;
use chakram_trace::format::wire::{WireCursor, WireValue};
use chakram_trace::graph::{DistinctKeyInterner, RawTrace};
use std::collections::BTreeMap;

/// Fields that are counted like attributes, each with its number, name and type.
const FIELDS: [(u32, &str, &str); 4] = [
    (6, "start_time_micros", "field"),
    (7, "duration_micros", "field"),
    (8, "inputs", "field"),
    (9, "outputs", "field"),
];

/// Counts the `selected` nodes that have each attribute, identified by name and type.
pub fn count_nodes_by_attribute(
    raw: &RawTrace<'_>,
    selected: impl Fn(u32) -> bool,
) -> BTreeMap<(String, &'static str), u64> {
    let mut known: DistinctKeyInterner<(&[u8], &'static str)> = DistinctKeyInterner::default();
    // For each attribute: the number of nodes that have it, and the last of these nodes.
    let mut counts: Vec<(u64, u32)> = Vec::new();
    let mut fields = [0_u64; FIELDS.len()];
    // Similar nodes have the same attributes in the same order, so the previous node predicts the next attribute. A
    // correct prediction saves a look-up.
    let mut expected: Vec<(&[u8], &'static str, u32)> = Vec::new();
    for node in raw
        .range_of_all_node_indices()
        .filter(|&node| selected(node))
    {
        let record = &raw.nodes[node as usize].record;
        let mut cursor = WireCursor::new(record.bytes, record.offset);
        let mut place = 0;
        let mut seen = [false; FIELDS.len()];
        while !cursor.is_empty() {
            let usual = AttrView::scan_attribute_fast(&mut cursor);
            let Some(attr) = usual.or_else(|| read_next_field_if_attribute(&mut cursor, &mut seen))
            else {
                continue;
            };
            let key = (attr.name, attr.type_name());
            let index = match expected.get(place) {
                Some(&(name, kind, index)) if (name, kind) == key => index,
                _ => {
                    let index = known.intern_key(key);
                    let entry = (key.0, key.1, index);
                    match expected.get_mut(place) {
                        Some(slot) => *slot = entry,
                        None => expected.push(entry),
                    }
                    index
                }
            };
            place += 1;
            if index as usize == counts.len() {
                counts.push((0, u32::MAX));
            }
            let (count, last) = &mut counts[index as usize];
            *count += u64::from(*last != node);
            *last = node;
        }
        for (count, seen) in fields.iter_mut().zip(seen) {
            *count += u64::from(seen);
        }
    }
    let attributes = known.keys().iter().zip(&counts);
    let attributes = attributes.map(|(&(name, kind), &(count, _))| {
        ((String::from_utf8_lossy(name).into_owned(), kind), count)
    });
    let fields = FIELDS.iter().zip(fields).filter(|(_, count)| *count > 0);
    let fields = fields.map(|(&(_, name, kind), count)| ((name.to_owned(), kind), count));
    let mut all = BTreeMap::new();
    for (key, count) in attributes.chain(fields) {
        // Different names that are not UTF-8 may be equal after conversion, so add their counts.
        *all.entry(key).or_insert(0) += count;
    }
    all
}

/// Reads the next field of a node. Returns the field if it is an attribute. If the field is one of [`FIELDS`], marks
/// the field in `seen`. After a broken field, it skips the rest of the node.
fn read_next_field_if_attribute<'a>(
    node: &mut WireCursor<'a>,
    seen: &mut [bool; FIELDS.len()],
) -> Option<AttrView<'a>> {
    let Ok((number, wire)) = node.read_field() else {
        *node = WireCursor::new(&[], 0);
        return None;
    };
    match (number, wire) {
        (6 | 7, WireValue::Varint(1..)) => seen[number as usize - 6] = true,
        (8 | 9, WireValue::Bytes(message, _)) => seen[number as usize - 6] |= !message.is_empty(),
        (10, WireValue::Bytes(message, at)) => return AttrView::scan_attribute(message, at).ok(),
        _ => {}
    }
    None
}
