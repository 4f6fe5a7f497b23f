//! Encodes one message in protobuf's wire format, field by field.

/// A protobuf message under construction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProtobufMessageBuilder(Vec<u8>);

/// Appends `value` as a varint: 7 bits per byte, lowest first. Each byte of a varint except the last has its top bit
/// set.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Returns how many bytes `value` takes as a varint: one byte for every 7 bits.
#[inline]
pub fn varint_length(value: u64) -> usize {
    let bits = u64::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

impl ProtobufMessageBuilder {
    /// Clears the message, but keeps its memory for the next message.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the encoded message.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Appends encoded fields unchanged.
    pub fn append_raw(&mut self, fields: &[u8]) {
        self.0.extend_from_slice(fields);
    }

    fn append_key(&mut self, number: u32, wire_type: u32) {
        put_varint(&mut self.0, u64::from(number << 3 | wire_type));
    }

    /// Appends a varint field.
    pub fn append_varint(&mut self, number: u32, value: u64) {
        self.append_key(number, 0);
        put_varint(&mut self.0, value);
    }

    /// Appends the field `number`: a nested message with text in field 1 and a varint in field `value_number`.
    ///
    /// The length is computed before the message is written, so no bytes move afterwards. For a constant name, the
    /// compiler computes most of the bytes.
    #[inline(always)]
    pub fn append_named_varint(&mut self, number: u32, name: &str, value_number: u32, value: u64) {
        const MOST: usize = 24;
        let keys = [number << 3 | 2, value_number << 3].map(u64::from);
        let lengths = keys.map(varint_length);
        let length = 2 + name.len() + lengths[1] + varint_length(value);
        // This path handles messages whose length does not fit in one byte.
        if length >= 0x80 {
            return self.append_nested(number, |put| {
                put.append_bytes(1, name.as_bytes());
                put.append_varint(value_number, value);
            });
        }
        self.0.reserve(MOST + name.len());
        put_varint(&mut self.0, keys[0]);
        self.0
            .extend_from_slice(&[length as u8, 1 << 3 | 2, name.len() as u8]);
        self.0.extend_from_slice(name.as_bytes());
        put_varint(&mut self.0, keys[1]);
        put_varint(&mut self.0, value);
    }

    /// Appends a fixed-size 64-bit field (the wire type of `double`).
    pub fn append_fixed64(&mut self, number: u32, bits: u64) {
        self.append_key(number, 1);
        self.append_raw(&bits.to_le_bytes());
    }

    /// Appends a fixed-size 32-bit field (the wire type of `float`).
    pub fn append_fixed32(&mut self, number: u32, bits: u32) {
        self.append_key(number, 5);
        self.append_raw(&bits.to_le_bytes());
    }

    /// Appends a length-delimited field: text, bytes, or a nested message.
    pub fn append_bytes(&mut self, number: u32, bytes: &[u8]) {
        self.append_key(number, 2);
        put_varint(&mut self.0, bytes.len() as u64);
        self.append_raw(bytes);
    }

    /// Appends a packed list of varints; appends nothing for an empty list.
    pub fn append_packed(&mut self, number: u32, values: &[u64]) {
        self.append_packed_from(number, values.iter().copied());
    }

    /// Appends a packed list of varints; appends nothing for an empty list.
    pub fn append_packed_from(&mut self, number: u32, values: impl ExactSizeIterator<Item = u64>) {
        if values.len() > 0 {
            self.append_nested(number, |list| {
                values.for_each(|value| put_varint(&mut list.0, value))
            });
        }
    }

    /// Appends a nested message; `fill` appends its fields.
    #[inline]
    pub fn append_nested(&mut self, number: u32, fill: impl FnOnce(&mut Self)) {
        self.append_key(number, 2);
        let start = self.0.len();
        // Most lengths take one byte, so the encoder reserves one byte. If the length takes several bytes, the encoder
        // moves the message.
        self.0.push(0);
        fill(self);
        let length = self.0.len() - start - 1;
        if length < 0x80 {
            self.0[start] = length as u8;
        } else {
            let end = self.0.len();
            put_varint(&mut self.0, length as u64);
            // Rotate the length's bytes from the end of the message to the place reserved before it.
            let bytes = self.0.len() - end;
            self.0[start + 1..].rotate_right(bytes);
            self.0.remove(start);
        }
    }

    /// Appends the message to a file, preceded by its length.
    pub fn append_frame_to(&self, file: &mut Vec<u8>) {
        append_frame(file, &self.0);
    }
}

/// Appends `message` to a file, preceded by its length.
pub fn append_frame(file: &mut Vec<u8>, message: &[u8]) {
    put_varint(file, message.len() as u64);
    file.extend_from_slice(message);
}

#[cfg(test)]
mod tests {
    use super::super::proto::Node;
    use super::*;
    use prost::Message;

    #[test]
    fn named_varint_equals_nested_message_of_name_and_value() {
        for name in ["", "lane", &"n".repeat(200)] {
            for value in (0..64).map(|bit| u64::MAX >> bit).chain([0, 128, 1 << 63]) {
                let (mut put, mut expected) =
                    <(ProtobufMessageBuilder, ProtobufMessageBuilder)>::default();
                put.append_named_varint(10, name, 27, value);
                expected.append_nested(10, |part| {
                    part.append_bytes(1, name.as_bytes());
                    part.append_varint(27, value);
                });
                assert_eq!(put, expected, "{name} {value}");
            }
        }
    }

    #[test]
    fn messages_are_those_of_the_generated_types() {
        let node = Node {
            id: 300,
            name: "mm".to_owned(),
            r#type: 4,
            ctrl_deps: vec![],
            data_deps: vec![1, 127, 128, u64::MAX],
            ..Node::default()
        };
        let mut put = ProtobufMessageBuilder::default();
        put.append_varint(1, 300);
        put.append_bytes(2, b"mm");
        put.append_varint(3, 4);
        put.append_packed(4, &[]);
        put.append_packed(5, &node.data_deps);
        assert_eq!(put.as_bytes(), node.encode_to_vec());
        let mut nested = ProtobufMessageBuilder::default();
        nested.append_nested(7, |part| part.append_bytes(2, &[9; 200]));
        let mut expected = ProtobufMessageBuilder::default();
        // The field has a key of one byte, a length of two bytes, and 200 bytes of content.
        expected.append_bytes(7, &[&[2 << 3 | 2, 200 | 0x80, 1][..], &[9; 200]].concat());
        assert_eq!(nested, expected);
        let mut file = Vec::new();
        put.append_frame_to(&mut file);
        assert_eq!(file, node.encode_length_delimited_to_vec());
    }
}
