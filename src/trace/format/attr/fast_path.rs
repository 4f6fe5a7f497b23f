//! Fast path for attributes in the encoding that all known writers produce.

use super::super::wire::{WireCursor, WireValue, join_varint_bytes};
use super::{AttrView, FIRST_VALUE, LAST_VALUE, wire_type};

/// Returns a mask with one bit for each field of the `oneof` whose wire type is `wanted`.
const fn wire_type_field_mask(wanted: u32) -> u64 {
    let (mut fields, mut number) = (0, FIRST_VALUE);
    while number <= LAST_VALUE {
        if wire_type(number) == wanted {
            fields |= 1 << number;
        }
        number += 1;
    }
    fields
}

/// Masks of the `oneof`'s varint fields and of its length-delimited fields.
const NUMBERS: u64 = wire_type_field_mask(0);
const LENGTHS: u64 = wire_type_field_mask(2);

impl<'a> AttrView<'a> {
    /// Takes a node's next attribute if it has the usual encoding: a short name, then a whole number or short bytes.
    /// Otherwise returns `None` and consumes nothing, so that [`Self::scan_attribute`] can read the attribute.
    #[inline(always)]
    pub fn scan_attribute_fast(node: &mut WireCursor<'a>) -> Option<Self> {
        /// Key of an attribute in a node, and key of the name in an attribute.
        const ATTRIBUTE: u8 = 10 << 3 | 2;
        const NAME: u8 = 1 << 3 | 2;
        let [ATTRIBUTE, length @ 0..0x80, rest @ ..] = node.get_unread_bytes_slice() else {
            return None;
        };
        let (message, behind) = rest.split_at_checked(usize::from(*length))?;
        let [NAME, length @ 0..0x80, named @ ..] = message else {
            return None;
        };
        let (name, valued) = named.split_at_checked(usize::from(*length))?;
        let (key, value) = match valued {
            [a @ 0..0x80, value @ ..] => (u32::from(*a), value),
            [a, b @ 0..0x80, value @ ..] => (u32::from(*a & 0x7f) | u32::from(*b) << 7, value),
            _ => return None,
        };
        let number = key >> 3;
        if number > LAST_VALUE {
            return None;
        }
        let offset = node.file_offset() + 2;
        let raw = match key & 7 {
            0 if NUMBERS >> number & 1 == 1 => {
                // The varint is read as one eight-byte word, which may include bytes after the value.
                let from = rest.get(message.len() - value.len()..)?;
                WireValue::Varint(decode_if_exactly_one_varint(value, from)?)
            }
            2 if LENGTHS >> number & 1 == 1 => match value {
                [length @ 0..0x80, bytes @ ..] if usize::from(*length) == bytes.len() => {
                    WireValue::Bytes(bytes, offset + message.len() - bytes.len())
                }
                _ => return None,
            },
            _ => return None,
        };
        node.skip_to_remaining_suffix(behind);
        Some(Self {
            name,
            value: Some((number, raw)),
            message,
            offset,
        })
    }
}

/// Decodes `bytes`, which must be exactly one varint. `data` starts with `bytes` and supplies the rest of an eight-byte
/// word. Returns `None` if `bytes` are not a single varint, have more than eight bytes, or are near the end of the
/// data.
#[inline(always)]
fn decode_if_exactly_one_varint(bytes: &[u8], data: &[u8]) -> Option<u64> {
    if let [only @ 0..0x80] = bytes {
        return Some(u64::from(*only));
    }
    let bits = 8 * bytes.len();
    if !(8..=64).contains(&bits) {
        return None;
    }
    let word = u64::from_le_bytes(*data.first_chunk::<8>()?) & (u64::MAX >> (64 - bits));
    // The mask selects the top bit of every byte except the varint's last byte.
    let more = 0x8080_8080_8080_8080 & ((1 << (bits - 8)) - 1);
    (word & 0x8080_8080_8080_8080 == more).then(|| join_varint_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_varint_decodes_only_if_it_fills_its_bytes() {
        for value in [
            0,
            5,
            127,
            128,
            300,
            1 << 20,
            (1 << 49) - 1,
            1 << 49,
            (1 << 56) - 1,
        ] {
            let mut bytes = Vec::new();
            prost::encoding::encode_varint(value, &mut bytes);
            let count = bytes.len();
            bytes.extend([0xff; 8]);
            assert_eq!(
                decode_if_exactly_one_varint(&bytes[..count], &bytes),
                Some(value)
            );
            // With one more byte, `bytes` is longer than the varint. With one byte less, the varint is incomplete.
            assert_eq!(
                decode_if_exactly_one_varint(&bytes[..count + 1], &bytes),
                None
            );
            assert_eq!(
                decode_if_exactly_one_varint(&bytes[..count - 1], &bytes),
                None
            );
        }
        assert_eq!(decode_if_exactly_one_varint(&[0x80, 1], &[0x80, 1]), None);
    }

    #[test]
    fn fast_path_leaves_unusual_attributes_unread() {
        let usual: &[u8] = b"R\x0a\n\x06streamH\x07\x18\x04";
        let mut node = WireCursor::new(usual, 100);
        let attr = AttrView::scan_attribute_fast(&mut node).unwrap();
        assert_eq!((attr.name, attr.offset), (&b"stream"[..], 102));
        assert_eq!((attr.as_count().unwrap(), node.file_offset()), (7, 112));
        assert!(AttrView::scan_attribute_fast(&mut node).is_none());
        for other in [
            // The fast path must leave these inputs to the slow path: a field that is not an attribute; an attribute
            // that ends too late; a number that ends before or after the attribute's end; two values; text longer than
            // its attribute; a real; no value.
            &b"\x18\x04"[..],
            b"R\x0b\n\x06streamH\x07",
            b"R\x0b\n\x06streamH\x07\x07",
            b"R\x0a\n\x06streamH\x87\x01",
            b"R\x0c\n\x06streamH\x07H\x07",
            b"R\x0b\n\x05dtype\xea\x01\x04bf16",
            b"R\x11\n\x06stream\x19\0\0\0\0\0\0\0\0",
            b"R\x08\n\x06stream",
        ] {
            let mut node = WireCursor::new(other, 0);
            assert!(
                AttrView::scan_attribute_fast(&mut node).is_none(),
                "{other:?}"
            );
            assert_eq!(node.get_unread_bytes_slice(), other);
        }
    }
}
