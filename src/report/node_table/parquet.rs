//! Writes node tables as Apache Parquet. A file consists of row groups. Each row group has one page per column.
//!
//! The format is described at <https://parquet.apache.org/docs/file-format/>. The format's metadata structures are
//! encoded in Thrift's compact protocol. Numbers are stored plain, and strings as indices into a dictionary. Pages are
//! compressed with gzip, which every reader supports. This writer supports only this table's columns, and compiles ten
//! times as fast as a Parquet package.

use super::{CodedTextColumn, NodeColumnValues, NodeTable, OptionalNumberColumn};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Write};

const ROWS_OF_GROUP: usize = 1 << 20;
/// Bytes at the beginning and at the end of every file.
const MAGIC: &[u8; 4] = b"PAR1";

/// Codes of Parquet's enumerations.
mod codes {
    pub const INT32: i64 = 1;
    pub const INT64: i64 = 2;
    pub const BYTE_ARRAY: i64 = 6;
    pub const REQUIRED: i64 = 0;
    pub const OPTIONAL: i64 = 1;
    pub const UTF8: i64 = 0;
    pub const UINT_32: i64 = 13;
    pub const UINT_64: i64 = 14;
    pub const PLAIN: i64 = 0;
    pub const RLE: i64 = 3;
    pub const RLE_DICTIONARY: i64 = 8;
    pub const GZIP: i64 = 2;
    pub const DATA_PAGE: i64 = 0;
    pub const DICTIONARY_PAGE: i64 = 2;
}

/// A structure encoded in Thrift's compact protocol.
#[derive(Default)]
struct ThriftStruct {
    bytes: Vec<u8>,
    /// Id of the last field written. It is needed because each field stores only the difference between its id and the
    /// previous one.
    last: i16,
}

/// Type numbers of fields.
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

fn write_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn encode_zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

impl ThriftStruct {
    fn push_field_header(&mut self, field: i16, kind: u8) {
        // Each id exceeds the previous one by at most 15, so the short form suffices.
        self.bytes.push(((field - self.last) as u8) << 4 | kind);
        self.last = field;
    }

    fn push_i32(mut self, field: i16, number: i64) -> Self {
        self.push_field_header(field, I32);
        write_varint(&mut self.bytes, encode_zigzag(number));
        self
    }

    fn push_i64(mut self, field: i16, number: u64) -> Self {
        self.push_field_header(field, I64);
        write_varint(&mut self.bytes, encode_zigzag(number as i64));
        self
    }

    fn push_text(mut self, field: i16, text: &str) -> Self {
        self.push_field_header(field, BINARY);
        write_varint(&mut self.bytes, text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
        self
    }

    fn push_struct(mut self, field: i16, inner: Self) -> Self {
        self.push_field_header(field, STRUCT);
        self.bytes.extend(inner.into_bytes());
        self
    }

    fn push_list(
        mut self,
        field: i16,
        kind: u8,
        items: impl ExactSizeIterator<Item = Vec<u8>>,
    ) -> Self {
        self.push_field_header(field, LIST);
        match items.len() {
            few @ 0..15 => self.bytes.push((few as u8) << 4 | kind),
            many => {
                self.bytes.push(0xf0 | kind);
                write_varint(&mut self.bytes, many as u64);
            }
        }
        items.for_each(|item| self.bytes.extend(item));
        self
    }

    fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

/// Encodes an integer as a list element.
fn encode_integer_as_list_element(number: i64) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_varint(&mut bytes, encode_zigzag(number));
    bytes
}

/// A writer that counts the bytes written.
struct CountingWriter<'w> {
    out: &'w mut dyn Write,
    written: u64,
}

impl CountingWriter<'_> {
    fn write_counted(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}

/// Appends numbers below `1 << width` as one bit-packed run, least significant bits first.
fn pack_bits(out: &mut Vec<u8>, width: u32, numbers: impl ExactSizeIterator<Item = u32>) {
    let groups = numbers.len().div_ceil(8);
    write_varint(out, (groups as u64) << 1 | 1);
    let end = out.len() + groups * width as usize;
    let (mut held, mut bits) = (0_u64, 0);
    for number in numbers {
        held |= u64::from(number) << bits;
        bits += width;
        while bits >= 8 {
            out.push(held as u8);
            held >>= 8;
            bits -= 8;
        }
    }
    if bits > 0 {
        out.push(held as u8);
    }
    out.resize(end, 0);
}

/// Appends the definition levels of an optional column: their length, then one bit per row (1 if the row has a value).
fn append_definition_levels(page: &mut Vec<u8>, known: impl ExactSizeIterator<Item = bool>) {
    let mut levels = Vec::new();
    pack_bits(&mut levels, 1, known.map(u32::from));
    page.extend((levels.len() as u32).to_le_bytes());
    page.extend(levels);
}

/// Returns the number of bits, at least 1, for numbers below `count`.
fn bit_width_for_count(count: usize) -> u32 {
    (usize::BITS - count.saturating_sub(1).leading_zeros()).max(1)
}

/// Uncompressed pages of a column in one row group.
struct UncompressedColumnPages {
    dictionary: Option<(usize, Vec<u8>)>,
    data: Vec<u8>,
}

impl NodeColumnValues<'_> {
    /// Returns the physical type and the logical type. Also returns true if some of the column's values may be unknown.
    fn column_types_and_nullability(&self) -> (i64, i64, bool) {
        use codes::{BYTE_ARRAY, INT32, INT64, UINT_32, UINT_64, UTF8};
        match self {
            Self::U32(_) => (INT32, UINT_32, false),
            Self::U64(_) => (INT64, UINT_64, false),
            Self::PartialU32(_) => (INT32, UINT_32, true),
            Self::PartialU64(_) => (INT64, UINT_64, true),
            Self::Text(_) => (BYTE_ARRAY, UTF8, true),
        }
    }

    fn encode_pages(&self, rows: std::ops::Range<usize>) -> UncompressedColumnPages {
        fn encode_known_values<T: Copy + Default, const N: usize>(
            column: &OptionalNumberColumn<T>,
            rows: std::ops::Range<usize>,
            bytes: impl Fn(T) -> [u8; N],
        ) -> Vec<u8> {
            let mut data = Vec::new();
            append_definition_levels(&mut data, rows.clone().map(|row| column.get(row).is_some()));
            data.extend(rows.filter_map(|row| column.get(row)).flat_map(bytes));
            data
        }
        let mut dictionary = None;
        let data = match self {
            Self::U32(numbers) => numbers[rows].iter().flat_map(|n| n.to_le_bytes()).collect(),
            Self::U64(numbers) => numbers[rows].iter().flat_map(|n| n.to_le_bytes()).collect(),
            Self::PartialU32(column) => encode_known_values(column, rows, u32::to_le_bytes),
            Self::PartialU64(column) => encode_known_values(column, rows, u64::to_le_bytes),
            Self::Text(CodedTextColumn { codes, values }) => {
                let mut texts = Vec::new();
                for value in values {
                    texts.extend((value.len() as u32).to_le_bytes());
                    texts.extend_from_slice(value.as_bytes());
                }
                dictionary = Some((values.len(), texts));
                let codes = &codes[rows];
                let mut data = Vec::new();
                append_definition_levels(&mut data, codes.iter().map(|code| *code >= 0));
                let width = bit_width_for_count(values.len());
                data.push(width as u8);
                let known: Vec<u32> =
                    (codes.iter().filter_map(|code| (*code).try_into().ok())).collect();
                pack_bits(&mut data, width, known.into_iter());
                data
            }
        };
        UncompressedColumnPages { dictionary, data }
    }
}

fn compress_page(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// Writes a page. Returns the page's uncompressed size, including the header.
fn write_page(
    out: &mut CountingWriter<'_>,
    kind: i64,
    page: &[u8],
    header: (i16, ThriftStruct),
) -> io::Result<u64> {
    let packed = compress_page(page)?;
    let head = ThriftStruct::default()
        .push_i32(1, kind)
        .push_i32(2, page.len() as i64)
        .push_i32(3, packed.len() as i64)
        .push_struct(header.0, header.1)
        .into_bytes();
    out.write_counted(&head)?;
    out.write_counted(&packed)?;
    Ok((head.len() + page.len()) as u64)
}

/// Writes a column of a row group. Returns the column's metadata and uncompressed size.
fn write_column(
    out: &mut CountingWriter<'_>,
    name: &str,
    column: &NodeColumnValues<'_>,
    rows: std::ops::Range<usize>,
) -> io::Result<(Vec<u8>, u64)> {
    let count = rows.len() as i64;
    let pages = column.encode_pages(rows);
    let first = out.written;
    let mut bytes = 0;
    let encoding = match &pages.dictionary {
        None => codes::PLAIN,
        Some((values, texts)) => {
            let header = ThriftStruct::default()
                .push_i32(1, *values as i64)
                .push_i32(2, codes::PLAIN);
            bytes += write_page(out, codes::DICTIONARY_PAGE, texts, (7, header))?;
            codes::RLE_DICTIONARY
        }
    };
    let data_at = out.written;
    let header = ThriftStruct::default()
        .push_i32(1, count)
        .push_i32(2, encoding)
        .push_i32(3, codes::RLE)
        .push_i32(4, codes::RLE);
    bytes += write_page(out, codes::DATA_PAGE, &pages.data, (5, header))?;
    let encodings =
        [codes::PLAIN, codes::RLE, codes::RLE_DICTIONARY].map(encode_integer_as_list_element);
    let mut path = Vec::new();
    write_varint(&mut path, name.len() as u64);
    path.extend_from_slice(name.as_bytes());
    let mut description = ThriftStruct::default()
        .push_i32(1, column.column_types_and_nullability().0)
        .push_list(2, I32, encodings.into_iter())
        .push_list(3, BINARY, [path].into_iter())
        .push_i32(4, codes::GZIP)
        .push_i64(5, count as u64)
        .push_i64(6, bytes)
        .push_i64(7, out.written - first)
        .push_i64(9, data_at);
    if pages.dictionary.is_some() {
        description = description.push_i64(11, first);
    }
    let chunk = ThriftStruct::default()
        .push_i64(2, first)
        .push_struct(3, description)
        .into_bytes();
    Ok((chunk, bytes))
}

impl NodeTable {
    /// Writes the table as Apache Parquet, with times in picoseconds.
    ///
    /// # Errors
    ///
    /// Fails if writing to `out` fails.
    pub fn write_parquet(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut out = CountingWriter { out, written: 0 };
        out.write_counted(MAGIC)?;
        let columns = self.list_columns();
        let mut groups = Vec::new();
        let starts = (0..self.len()).step_by(ROWS_OF_GROUP);
        for rows in starts.map(|start| start..(start + ROWS_OF_GROUP).min(self.len())) {
            let (mut chunks, mut bytes) = (Vec::new(), 0);
            for (name, column) in Self::COLUMNS.iter().zip(&columns) {
                let (chunk, size) = write_column(&mut out, name, column, rows.clone())?;
                chunks.push(chunk);
                bytes += size;
            }
            let group = ThriftStruct::default()
                .push_list(1, STRUCT, chunks.into_iter())
                .push_i64(2, bytes)
                .push_i64(3, rows.len() as u64);
            groups.push(group.into_bytes());
        }
        let root = ThriftStruct::default()
            .push_text(4, "nodes")
            .push_i32(5, columns.len() as i64);
        let mut schema = vec![root.into_bytes()];
        for (name, column) in Self::COLUMNS.iter().zip(&columns) {
            let (physical, logical, may_lack) = column.column_types_and_nullability();
            let repetition = match may_lack {
                true => codes::OPTIONAL,
                false => codes::REQUIRED,
            };
            let element = ThriftStruct::default()
                .push_i32(1, physical)
                .push_i32(3, repetition)
                .push_text(4, name)
                .push_i32(6, logical);
            schema.push(element.into_bytes());
        }
        let footer = ThriftStruct::default()
            .push_i32(1, 1)
            .push_list(2, STRUCT, schema.into_iter())
            .push_i64(3, self.len() as u64)
            .push_list(4, STRUCT, groups.into_iter())
            .push_text(6, concat!("chakram ", env!("CARGO_PKG_VERSION")))
            .into_bytes();
        out.write_counted(&footer)?;
        out.write_counted(&(footer.len() as u32).to_le_bytes())?;
        out.write_counted(MAGIC)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::build_example_table;
    use super::*;

    #[test]
    fn numbers_are_packed_lowest_bits_first() {
        // An example from the format's description: at 3 bits each, the numbers 0 to 7 form one group of 8, stored as
        // the bytes 0x88, 0xc6, 0xfa. The header of the run is (1 << 1) | 1.
        let mut bytes = Vec::new();
        pack_bits(&mut bytes, 3, [0, 1, 2, 3, 4, 5, 6, 7].into_iter());
        assert_eq!(bytes, [3, 0x88, 0xc6, 0xfa]);
        // Five numbers of 9 bits have 45 bits, but groups always contain 8 numbers, so the run has 9 bytes.
        let mut bytes = Vec::new();
        pack_bits(&mut bytes, 9, [511; 5].into_iter());
        assert_eq!(bytes.len(), 10);
        assert_eq!(bytes[6..], [0x1f, 0, 0, 0]);
        assert_eq!(
            [0, 1, 2, 3, 256, 257].map(bit_width_for_count),
            [1, 1, 1, 2, 8, 9]
        );
    }

    #[test]
    fn files_begin_and_end_as_the_format_says() {
        let mut file = Vec::new();
        build_example_table().write_parquet(&mut file).unwrap();
        assert_eq!(&file[..4], MAGIC);
        assert_eq!(&file[file.len() - 4..], MAGIC);
        let length = file[file.len() - 8..][..4].try_into().unwrap();
        let footer = u32::from_le_bytes(length) as usize;
        // The footer begins with field 1 of type 5, the format version: 1, which zigzag encodes as 2.
        assert_eq!(file[file.len() - 8 - footer..][..2], [0x15, 2]);
        // A table without rows has no row groups, but must be readable too.
        let mut empty = Vec::new();
        NodeTable::default().write_parquet(&mut empty).unwrap();
        assert_eq!(&empty[empty.len() - 4..], MAGIC);
    }
}
