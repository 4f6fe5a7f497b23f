//! Writes SQLite files as the published file format specifies, without sharing code with the reader.

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum WrittenSqliteValue {
    Null,
    Integer(i64),
    Text(String),
}

impl From<i64> for WrittenSqliteValue {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<&str> for WrittenSqliteValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Tables, each with its rows and the columns of its `CREATE TABLE` statement.
#[derive(Default)]
pub struct SqliteWriter {
    tables: Vec<(String, String, Vec<Vec<WrittenSqliteValue>>)>,
}

fn encode_sqlite_varint(number: u64) -> Vec<u8> {
    if number >> 56 != 0 {
        let high = (0..8).rev().map(|i| (number >> (8 + 7 * i)) as u8 | 0x80);
        return high.chain([number as u8]).collect();
    }
    let count = (1..=8).find(|count| number >> (7 * count) == 0).unwrap();
    let byte = |i: u32| (number >> (7 * i)) as u8 & 0x7f | if i > 0 { 0x80 } else { 0 };
    (0..count).rev().map(byte).collect()
}

fn encode_sqlite_record(row: &[WrittenSqliteValue]) -> Vec<u8> {
    let (mut types, mut body) = (Vec::new(), Vec::new());
    for value in row {
        match value {
            WrittenSqliteValue::Null => types.extend(encode_sqlite_varint(0)),
            WrittenSqliteValue::Integer(number) => {
                // An integer takes the smallest size that suffices: 1, 2, 3, 4, 6 or 8 bytes.
                let sizes = [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (6, 8)];
                let fits = |&&(_, bytes): &&(u64, u32)| {
                    let bits = 8 * bytes - 1;
                    bytes == 8 || (-(1_i64 << bits)..1_i64 << bits).contains(number)
                };
                let (kind, bytes) = *sizes.iter().find(fits).unwrap();
                types.extend(encode_sqlite_varint(kind));
                body.extend(&number.to_be_bytes()[8 - bytes as usize..]);
            }
            WrittenSqliteValue::Text(text) => {
                types.extend(encode_sqlite_varint(13 + 2 * text.len() as u64));
                body.extend(text.as_bytes());
            }
        }
    }
    // The header's length includes the length field, whose own size depends on the length.
    let mut length = types.len() as u64 + 1;
    while encode_sqlite_varint(length).len() as u64 + types.len() as u64 != length {
        length += 1;
    }
    [encode_sqlite_varint(length), types, body].concat()
}

impl SqliteWriter {
    pub fn add_table(&mut self, name: &str, columns: &str, rows: Vec<Vec<WrittenSqliteValue>>) {
        self.tables
            .push((name.to_owned(), columns.to_owned(), rows));
    }

    /// Returns the contents of the file, with pages of `page` bytes.
    pub fn encode_file(&self, page: usize) -> Vec<u8> {
        let mut pages: Vec<Vec<u8>> = vec![Vec::new()];
        let mut master = Vec::new();
        for (name, columns, rows) in &self.tables {
            let root = append_table_tree(rows, page, 0, &mut pages);
            let sql = format!("CREATE TABLE {name} ({columns})");
            master.push(vec![
                "table".into(),
                name.as_str().into(),
                name.as_str().into(),
                WrittenSqliteValue::Integer(i64::from(root)),
                sql.as_str().into(),
            ]);
        }
        // The root of the list of tables must be in page 1, after the file header.
        let root = append_table_tree(&master, page, 100, &mut pages) as usize - 1;
        let root = pages.swap_remove(root);
        let mut first = vec![0_u8; page];
        first[..16].copy_from_slice(b"SQLite format 3\0");
        first[16..18].copy_from_slice(&(if page == 65536 { 1 } else { page as u16 }).to_be_bytes());
        first[18..24].copy_from_slice(&[1, 1, 0, 64, 32, 32]);
        first[28..32].copy_from_slice(&(pages.len() as u32).to_be_bytes());
        first[44..48].copy_from_slice(&4_u32.to_be_bytes());
        first[56..60].copy_from_slice(&1_u32.to_be_bytes());
        first[100..].copy_from_slice(&root[100..]);
        pages[0] = first;
        pages.concat()
    }
}

/// Appends a tree of `rows` to `pages`. Returns the number of the root page, which is the last page. In the root, the
/// first `gap` bytes stay free.
fn append_table_tree(
    rows: &[Vec<WrittenSqliteValue>],
    page: usize,
    gap: usize,
    pages: &mut Vec<Vec<u8>>,
) -> u32 {
    // Encoded rows (leaf cells), with their row ids.
    let mut cells: Vec<(u64, Vec<u8>)> = Vec::new();
    for (id, row) in (1..).zip(rows) {
        let payload = encode_sqlite_record(row);
        let mut cell = [
            encode_sqlite_varint(payload.len() as u64),
            encode_sqlite_varint(id),
        ]
        .concat();
        let most = page - 35;
        let least = (page - 12) * 32 / 255 - 23;
        let local = match payload.len() {
            length if length <= most => length,
            length => match least + (length - least) % (page - 4) {
                local if local <= most => local,
                _ => least,
            },
        };
        cell.extend(&payload[..local]);
        let chunks: Vec<&[u8]> = payload[local..].chunks(page - 4).collect();
        if !chunks.is_empty() {
            cell.extend((pages.len() as u32 + 1).to_be_bytes());
        }
        for (i, chunk) in chunks.iter().enumerate() {
            let next = if i + 1 < chunks.len() {
                pages.len() as u32 + 2
            } else {
                0
            };
            let mut overflow = [&next.to_be_bytes()[..], chunk].concat();
            overflow.resize(page, 0);
            pages.push(overflow);
        }
        cells.push((id, cell));
    }
    let mut level = pack_tree_level_with_gap_only_in_root(13, cells, page, gap, pages);
    while level.len() > 1 {
        // Each child page except the last becomes a cell (entry) that contains the child's page
        // number and largest row id.
        let cells = level.iter().map(|&(id, child)| {
            (
                id,
                [&child.to_be_bytes()[..], &encode_sqlite_varint(id)].concat(),
            )
        });
        level = pack_tree_level_with_gap_only_in_root(5, cells.collect(), page, gap, pages);
    }
    level[0].1
}

/// Distributes cells (encoded entries) over pages. If one page is enough, it is the root and contains the gap.
/// Otherwise the pages have no gap, because the root is one level higher.
fn pack_tree_level_with_gap_only_in_root(
    kind: u8,
    cells: Vec<(u64, Vec<u8>)>,
    page: usize,
    gap: usize,
    pages: &mut Vec<Vec<u8>>,
) -> Vec<(u64, u32)> {
    let before = pages.len();
    let made = pack_cells_into_pages(kind, cells.clone(), page, gap, pages);
    if gap == 0 || made.len() == 1 {
        return made;
    }
    pages.truncate(before);
    let made = pack_cells_into_pages(kind, cells, page, 0, pages);
    assert!(made.len() > 1, "one page more would be needed for the gap");
    made
}

/// Distributes cells (encoded entries) over pages. For each page, returns its largest row id and
/// its page number.
fn pack_cells_into_pages(
    kind: u8,
    cells: Vec<(u64, Vec<u8>)>,
    page: usize,
    gap: usize,
    pages: &mut Vec<Vec<u8>>,
) -> Vec<(u64, u32)> {
    let head = if kind == 5 { 12 } else { 8 };
    let mut groups: Vec<Vec<(u64, Vec<u8>)>> = vec![Vec::new()];
    let mut used = gap + head;
    for (id, cell) in cells {
        // An inner page has at least two children. The last child is listed in the page's header, not in a cell.
        let full = used + cell.len() + 2 > page;
        if full
            && groups
                .last()
                .is_some_and(|group| group.len() > 1 || kind == 13 && !group.is_empty())
        {
            groups.push(Vec::new());
            used = gap + head;
        }
        used += cell.len() + 2;
        groups.last_mut().unwrap().push((id, cell));
    }
    let mut made = Vec::new();
    for mut group in groups {
        let greatest = group.last().map_or(0, |(id, _)| *id);
        let mut bytes = vec![0_u8; page];
        if kind == 5 {
            let (_, last) = group.pop().unwrap();
            bytes[gap + 8..gap + 12].copy_from_slice(&last[..4]);
        }
        bytes[gap] = kind;
        bytes[gap + 3..gap + 5].copy_from_slice(&(group.len() as u16).to_be_bytes());
        let mut end = page;
        for (i, (_, cell)) in group.iter().enumerate() {
            end -= cell.len();
            bytes[end..end + cell.len()].copy_from_slice(cell);
            let at = gap + head + 2 * i;
            bytes[at..at + 2].copy_from_slice(&(end as u16).to_be_bytes());
        }
        bytes[gap + 5..gap + 7].copy_from_slice(&(end as u16).to_be_bytes());
        pages.push(bytes);
        made.push((greatest, pages.len() as u32));
    }
    made
}
