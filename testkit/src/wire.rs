//! Writes protobuf's wire format in a few lines of code, for files that do not follow the current
//! schema.

/// A message under construction. Fields keep the order in which they were added.
#[derive(Clone, Default)]
pub struct Wire(pub Vec<u8>);

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value > 127 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

impl Wire {
    pub fn number(mut self, field: u64, value: u64) -> Self {
        varint(field << 3, &mut self.0);
        varint(value, &mut self.0);
        self
    }

    pub fn numbers(self, field: u64, values: &[u64]) -> Self {
        values.iter().fold(self, |this, v| this.number(field, *v))
    }

    pub fn float(mut self, field: u64, value: f32) -> Self {
        varint(field << 3 | 5, &mut self.0);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn bytes(mut self, field: u64, value: impl AsRef<[u8]>) -> Self {
        varint(field << 3 | 2, &mut self.0);
        varint(value.as_ref().len() as u64, &mut self.0);
        self.0.extend(value.as_ref());
        self
    }

    pub fn part(self, field: u64, value: Self) -> Self {
        self.bytes(field, value.0)
    }
}

/// Encodes records as a file: each record follows its length.
pub fn file(records: impl IntoIterator<Item = Wire>) -> Vec<u8> {
    let mut out = Vec::new();
    for record in records {
        varint(record.0.len() as u64, &mut out);
        out.extend(record.0);
    }
    out
}
