//! Writes protobuf's wire format in a few lines of code, so that tests can create files that do not
//! follow the current schema.

/// A message under construction. Fields are in insertion order.
#[derive(Clone, Default)]
pub struct WireMessage(pub Vec<u8>);

fn append_varint(mut value: u64, out: &mut Vec<u8>) {
    while value > 127 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

impl WireMessage {
    pub fn with_number(mut self, field: u64, value: u64) -> Self {
        append_varint(field << 3, &mut self.0);
        append_varint(value, &mut self.0);
        self
    }

    pub fn with_repeated_number(self, field: u64, values: &[u64]) -> Self {
        values
            .iter()
            .fold(self, |this, v| this.with_number(field, *v))
    }

    pub fn with_float(mut self, field: u64, value: f32) -> Self {
        append_varint(field << 3 | 5, &mut self.0);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn with_bytes(mut self, field: u64, value: impl AsRef<[u8]>) -> Self {
        append_varint(field << 3 | 2, &mut self.0);
        append_varint(value.as_ref().len() as u64, &mut self.0);
        self.0.extend(value.as_ref());
        self
    }

    pub fn with_message(self, field: u64, value: Self) -> Self {
        self.with_bytes(field, value.0)
    }
}

/// Encodes records as a file: each record follows its length.
pub fn encode_file(records: impl IntoIterator<Item = WireMessage>) -> Vec<u8> {
    let mut out = Vec::new();
    for record in records {
        append_varint(record.0.len() as u64, &mut out);
        out.extend(record.0);
    }
    out
}
