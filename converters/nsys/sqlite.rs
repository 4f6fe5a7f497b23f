//! Reads tables of SQLite files row by row. The reader supports only the SQLite features that
//! profiler exports use.
//!
//! A file consists of pages of equal size, numbered from 1. Each page is a b-tree node or part of a long row. A table
//! is a b-tree ordered by row id: inner pages list their children's page numbers, and leaves contain rows. A row
//! consists of a header with the types of its values, followed by the values. If a row does not fit into a page, it
//! continues in a chain of overflow pages. Integers are big-endian. A *varint* (an integer of variable length) has
//! seven bits in each of its first eight bytes, and eight bits in a ninth byte; the most significant bits come first.
//!
//! The reader loads one page at a time and keeps only the path from the root to a leaf, so memory does not grow with
//! the file. A table contains each page once. A walk that visits more pages than the file has is therefore in a cycle,
//! and ends with an error.

use chakram_trace::format::file::{DecompressedStream, read_bytes_within_memory_limit};
use chakram_trace::format::{TraceError, TraceErrorLocation, escape_and_shorten_name};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Magic bytes at the start of every SQLite file.
pub(crate) const MAGIC: &[u8] = b"SQLite format 3\0";
/// Size, in bytes, of the file header, which precedes the page header of the first page.
const HEADER: usize = 100;
/// Maximum number of inner pages above a leaf. A deeper tree with two children per page would have more than
/// 2^40 leaves.
const DEEPEST: usize = 40;
/// Maximum number of columns that a caller may request together.
const MOST_COLUMNS: usize = 16;
/// Maximum length of a row, in bytes.
const LONGEST_ROW: u64 = 64 << 20;
/// Advice in errors about damaged files.
const DAMAGED: &str = "export the report again: nsys export -t sqlite REPORT.nsys-rep";

/// Encoding of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextEncoding {
    Utf8,
    Utf16Le,
    Utf16Be,
}

/// A value of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum SqliteValue<'r> {
    /// SQL NULL.
    Null,
    /// An integer.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// A text in the encoding of the file.
    Text(&'r [u8], DatabaseTextEncoding),
    /// A blob; its bytes are not kept.
    Blob,
}

/// Encoding of text values in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseTextEncoding(TextEncoding);

impl<'r> SqliteValue<'r> {
    /// Returns the integer, or `None` if the value is not an integer.
    pub fn to_integer(self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(number),
            // In a REAL column, SQLite stores a whole number either as an integer or as a float, so accept both.
            Self::Real(number) if number.fract() == 0.0 && number.abs() < 9e15 => {
                Some(number as i64)
            }
            _ => None,
        }
    }

    /// Returns the integer, or `None` if the value is negative or not an integer.
    pub fn to_unsigned_integer(self) -> Option<u64> {
        u64::try_from(self.to_integer()?).ok()
    }

    /// Returns the text, with invalid Unicode replaced, or `None` if the value is not text.
    pub fn to_text(self) -> Option<Cow<'r, str>> {
        let Self::Text(bytes, DatabaseTextEncoding(encoding)) = self else {
            return None;
        };
        let wide = |read: fn([u8; 2]) -> u16| {
            let units = bytes.chunks_exact(2).map(|pair| read([pair[0], pair[1]]));
            let chars = char::decode_utf16(units);
            Cow::Owned(
                chars
                    .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
                    .collect(),
            )
        };
        Some(match encoding {
            TextEncoding::Utf8 => String::from_utf8_lossy(bytes),
            TextEncoding::Utf16Le => wide(u16::from_le_bytes),
            TextEncoding::Utf16Be => wide(u16::from_be_bytes),
        })
    }
}

/// A table of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SqliteTable {
    name: String,
    root: u32,
    columns: Vec<String>,
    /// Index of the column that is an alias of the row id (`INTEGER PRIMARY KEY`).
    row_id: Option<usize>,
}

impl SqliteTable {
    /// Returns true if the table has a column `name`.
    pub fn has_column(&self, name: &str) -> bool {
        self.column_place(name).is_some()
    }

    fn column_place(&self, name: &str) -> Option<usize> {
        let mut columns = self.columns.iter();
        columns.position(|column| column.eq_ignore_ascii_case(name))
    }
}

/// Bytes of a file, on disk or in memory.
enum FileOrMemoryDatabaseBytes {
    File(File),
    Memory(Vec<u8>),
}

/// An SQLite file.
pub(crate) struct SqliteDatabase {
    path: PathBuf,
    storage: FileOrMemoryDatabaseBytes,
    /// Size of a page, in bytes.
    page: usize,
    /// Number of bytes of a page that can contain data. The others are reserved.
    usable: usize,
    /// Number of pages.
    pages: u32,
    /// Size of the file, in bytes.
    bytes: u64,
    encoding: TextEncoding,
    /// Tables by name.
    tables: BTreeMap<String, SqliteTable>,
}

impl SqliteDatabase {
    /// Opens a file, which may be compressed with gzip or zstd, and reads its list of tables.
    ///
    /// # Errors
    ///
    /// Fails if the file is not an SQLite file, if it is damaged, or if a separate log file has
    /// newer changes.
    pub fn open_database(path: &Path) -> Result<Self, TraceError> {
        let io = |source| TraceError::from_io(path, "read", source);
        let mut file = File::open(path).map_err(io)?;
        let mut magic = Vec::new();
        let mut head = Read::by_ref(&mut file).take(MAGIC.len() as u64);
        head.read_to_end(&mut magic).map_err(io)?;
        if magic == MAGIC {
            let bytes = file.metadata().map_err(io)?.len();
            return Self::new(path, FileOrMemoryDatabaseBytes::File(file), bytes);
        }
        let contents =
            read_bytes_within_memory_limit(DecompressedStream::open_path(path)?, 0).map_err(io)?;
        let bytes = contents.len() as u64;
        Self::new(path, FileOrMemoryDatabaseBytes::Memory(contents), bytes)
    }

    /// Opens a file whose contents are in memory.
    #[cfg(test)]
    pub fn open_from_memory(contents: Vec<u8>) -> Result<Self, TraceError> {
        let bytes = contents.len() as u64;
        Self::new(
            Path::new("export"),
            FileOrMemoryDatabaseBytes::Memory(contents),
            bytes,
        )
    }

    fn new(
        path: &Path,
        storage: FileOrMemoryDatabaseBytes,
        bytes: u64,
    ) -> Result<Self, TraceError> {
        let mut this = Self {
            path: path.to_owned(),
            storage,
            page: HEADER,
            usable: HEADER,
            pages: 1,
            bytes,
            encoding: TextEncoding::Utf8,
            tables: BTreeMap::new(),
        };
        let refuse = |found: &str, hint: &str| TraceError::invalid_file(path, found, hint);
        let no_export = "pass what `nsys export -t sqlite` wrote";
        if bytes < HEADER as u64 {
            return Err(refuse(
                "the file is shorter than the header of a SQLite database",
                no_export,
            ));
        }
        let mut header = Vec::new();
        this.read_at(0, HEADER, &mut header)?;
        if !header.starts_with(MAGIC) {
            return Err(refuse("the file is not a SQLite database", no_export));
        }
        let page = match u16::from_be_bytes([header[16], header[17]]) {
            1 => 1 << 16,
            size => usize::from(size),
        };
        let usable = page.saturating_sub(usize::from(header[20]));
        if !page.is_power_of_two() || page < 512 || usable < 480 {
            let found = format!(
                "its header states pages of {page} bytes, of which {usable} are usable; expected a power of two from 512, with at least 480 usable"
            );
            return Err(refuse(&found, DAMAGED));
        }
        this.encoding = match read_u32(&header, 56) {
            Some(2) => TextEncoding::Utf16Le,
            Some(3) => TextEncoding::Utf16Be,
            _ => TextEncoding::Utf8,
        };
        (this.page, this.usable) = (page, usable);
        this.pages = u32::try_from(bytes / page as u64).unwrap_or(u32::MAX);
        // The page count in the header is valid only if the header's two change counters are equal.
        let stated = read_u32(&header, 28).filter(|_| header[24..28] == header[92..96]);
        if let Some(stated) = stated.filter(|stated| *stated > this.pages) {
            let found = format!(
                "its header states {stated} pages of {page} bytes, but the file has {}: it was cut off",
                this.pages
            );
            return Err(refuse(&found, DAMAGED));
        }
        this.reject_unread_write_ahead_log(header[18] == 2 || header[19] == 2)?;
        this.read_tables()?;
        Ok(this)
    }

    /// Rejects a file whose newest pages are only in its write-ahead log.
    fn reject_unread_write_ahead_log(&self, logs: bool) -> Result<(), TraceError> {
        let mut log = self.path.clone().into_os_string();
        log.push("-wal");
        let log = PathBuf::from(log);
        let has_pages = logs && log.metadata().is_ok_and(|log| log.len() > 0);
        if !has_pages || matches!(self.storage, FileOrMemoryDatabaseBytes::Memory(_)) {
            return Ok(());
        }
        Err(TraceError::invalid_file(
            &self.path,
            format!(
                "its newest pages are in the write-ahead log {}, which is not read",
                log.display()
            ),
            "write the log into the file: sqlite3 FILE 'PRAGMA wal_checkpoint(TRUNCATE)'; or export again",
        ))
    }

    /// Returns the size of the file, in bytes.
    pub fn file_size_in_bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the table `name`.
    pub fn find_table(&self, name: &str) -> Option<&SqliteTable> {
        self.tables.get(name)
    }

    /// Reads the list of tables, which is itself a table whose root is page 1.
    fn read_tables(&mut self) -> Result<(), TraceError> {
        let schema = SqliteTable {
            name: "sqlite_master".to_owned(),
            root: 1,
            columns: ["type", "name", "tbl_name", "rootpage", "sql"]
                .map(str::to_owned)
                .to_vec(),
            row_id: None,
        };
        let mut tables = BTreeMap::new();
        self.for_each_row(&schema, &["type", "name", "rootpage", "sql"], &mut |row| {
            let [Some(kind), Some(name), Some(sql)] =
                [row[0], row[1], row[3]].map(SqliteValue::to_text)
            else {
                return Ok(());
            };
            // Skip virtual tables, which have no pages, and tables without row ids, which use another kind of tree.
            let root = row[2]
                .to_integer()
                .and_then(|root| u32::try_from(root).ok());
            if let (Some(root @ 1..), true) = (root, kind == "table" && !is_without_row_id(&sql)) {
                let (columns, row_id) = column_names(&sql);
                let name = name.into_owned();
                tables.insert(
                    name.clone(),
                    SqliteTable {
                        name,
                        root,
                        columns,
                        row_id,
                    },
                );
            }
            Ok(())
        })?;
        self.tables = tables;
        Ok(())
    }

    /// Calls `take` with the values of `columns` in each row of `table`. Columns that the table does not have
    /// are null.
    ///
    /// # Errors
    ///
    /// Fails if the file is damaged, or if `take` fails.
    pub fn for_each_row(
        &self,
        table: &SqliteTable,
        columns: &[&str],
        take: &mut dyn FnMut(&[SqliteValue<'_>]) -> Result<(), TraceError>,
    ) -> Result<(), TraceError> {
        assert!(
            columns.len() <= MOST_COLUMNS,
            "rows are read into a place of that size"
        );
        let places: Vec<Option<usize>> = columns
            .iter()
            .map(|name| table.column_place(name))
            .collect();
        let mut walk = TableRowReader {
            database: self,
            table,
            places: &places,
            left: u64::from(self.pages) + 1,
            row: Vec::new(),
            overflow: Vec::new(),
        };
        walk.visit_all_rows(take)
    }

    /// Reads `length` bytes at `offset` into `into`, and replaces its previous contents.
    fn read_at(&self, offset: u64, length: usize, into: &mut Vec<u8>) -> Result<(), TraceError> {
        into.clear();
        match &self.storage {
            FileOrMemoryDatabaseBytes::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let found = start
                    .checked_add(length)
                    .and_then(|end| bytes.get(start..end));
                into.extend_from_slice(
                    found.ok_or_else(|| self.damaged_file_error(offset, "the file ends here"))?,
                );
                Ok(())
            }
            FileOrMemoryDatabaseBytes::File(file) => {
                let mut read = || -> io::Result<()> {
                    let mut file = file;
                    file.seek(SeekFrom::Start(offset))?;
                    into.resize(length, 0);
                    file.read_exact(into)
                };
                read().map_err(|source| TraceError::from_io(&self.path, "read", source))
            }
        }
    }

    /// Reads the page `number` into `into`.
    fn read_page(&self, number: u32, into: &mut Vec<u8>) -> Result<(), TraceError> {
        if number == 0 || number > self.pages {
            let found = format!(
                "a reference to page {number}, but the file has {} pages",
                self.pages
            );
            return Err(self.damaged_file_error(0, &found));
        }
        self.read_at(self.page_offset(number), self.page, into)
    }

    fn page_offset(&self, page: u32) -> u64 {
        u64::from(page - 1) * self.page as u64
    }

    fn damaged_file_error(&self, offset: u64, found: &str) -> TraceError {
        let place = TraceErrorLocation {
            file: Some(self.path.clone()),
            offset: usize::try_from(offset).ok(),
            ..TraceErrorLocation::default()
        };
        TraceError::invalid_at(place, format!("the database is damaged: {found}"), DAMAGED)
    }
}

/// A walk over the rows of a table.
struct TableRowReader<'d> {
    database: &'d SqliteDatabase,
    table: &'d SqliteTable,
    places: &'d [Option<usize>],
    /// Number of pages that the walk may still read. A table that would need more pages contains a
    /// cycle.
    left: u64,
    row: Vec<u8>,
    overflow: Vec<u8>,
}

/// An inner page, and the index of its next unvisited child.
struct BtreeInnerPageCursor {
    number: u32,
    bytes: Vec<u8>,
    next: usize,
}

impl TableRowReader<'_> {
    fn visit_all_rows(
        &mut self,
        take: &mut dyn FnMut(&[SqliteValue<'_>]) -> Result<(), TraceError>,
    ) -> Result<(), TraceError> {
        let mut path: Vec<BtreeInnerPageCursor> = Vec::new();
        let mut leaf = Vec::new();
        let mut next = Some(self.table.root);
        loop {
            let Some(number) = next
                .take()
                .map_or_else(|| self.next_child_page(&mut path), |n| Ok(Some(n)))?
            else {
                return Ok(());
            };
            self.count_page_and_refuse_cycle(number)?;
            self.database.read_page(number, &mut leaf)?;
            match leaf[page_header_offset(number)] {
                5 if path.len() < DEEPEST => path.push(BtreeInnerPageCursor {
                    number,
                    bytes: std::mem::take(&mut leaf),
                    next: 0,
                }),
                5 => {
                    let found = format!("more than {DEEPEST} levels of inner pages");
                    return Err(self.damaged_page_error(number, &found));
                }
                13 => self.read_leaf_rows(number, &leaf, take)?,
                kind => {
                    let found =
                        format!("page {number} has type {kind}, expected 5 (inner) or 13 (leaf)");
                    return Err(self.damaged_page_error(number, &found));
                }
            }
        }
    }

    /// Returns the next child of the last inner page in `path`. Removes pages that have no more children from `path`.
    fn next_child_page(
        &self,
        path: &mut Vec<BtreeInnerPageCursor>,
    ) -> Result<Option<u32>, TraceError> {
        while let Some(page) = path.last_mut() {
            let head = page_header_offset(page.number);
            let cells = usize::from(self.read_u16(page.number, &page.bytes, head + 3)?);
            let place = page.next;
            page.next += 1;
            let (number, bytes) = (page.number, &page.bytes);
            if place > cells {
                path.pop();
                continue;
            }
            let at = match place < cells {
                // The number of the last child is in the page header, not in a cell.
                false => head + 8,
                true => usize::from(self.read_u16(number, bytes, head + 12 + 2 * place)?),
            };
            let child = read_u32(bytes, at);
            return match child {
                Some(child) => Ok(Some(child)),
                None => {
                    Err(self
                        .damaged_page_error(number, "a cell that begins after the end of its page"))
                }
            };
        }
        Ok(None)
    }

    fn read_leaf_rows(
        &mut self,
        number: u32,
        page: &[u8],
        take: &mut dyn FnMut(&[SqliteValue<'_>]) -> Result<(), TraceError>,
    ) -> Result<(), TraceError> {
        let head = page_header_offset(number);
        let cells = usize::from(self.read_u16(number, page, head + 3)?);
        for place in 0..cells {
            let at = usize::from(self.read_u16(number, page, head + 8 + 2 * place)?);
            let mut row = std::mem::take(&mut self.row);
            let row_id = self.read_row_bytes_with_overflow(number, page, at, &mut row)?;
            let mut values = [SqliteValue::Null; MOST_COLUMNS];
            self.decode_row(&row, row_id, &mut values).ok_or_else(|| {
                self.damaged_page_error(number, "a row whose header contradicts its length")
            })?;
            take(&values[..self.places.len()])?;
            self.row = row;
        }
        Ok(())
    }

    /// Reads a row into `row`, including its overflow pages; `at` is the offset of the row's cell
    /// in the page. Returns the row id.
    fn read_row_bytes_with_overflow(
        &mut self,
        number: u32,
        page: &[u8],
        at: usize,
        row: &mut Vec<u8>,
    ) -> Result<i64, TraceError> {
        let cut =
            || self.damaged_page_error(number, "a row that extends beyond the end of its page");
        let mut rest = page.get(at..self.database.usable).ok_or_else(cut)?;
        let length = take_varint(&mut rest).ok_or_else(cut)? as u64;
        let row_id = take_varint(&mut rest).ok_or_else(cut)?;
        let usable = self.database.usable as u64;
        if length > LONGEST_ROW || length > self.database.bytes {
            let found = format!(
                "a row of {length} bytes, expected at most {LONGEST_ROW} and at most the file's size"
            );
            return Err(self.damaged_page_error(number, &found));
        }
        // If a row does not fit in a page, the page contains only a prefix of it. The file format chooses the prefix's
        // length so that the rest fills whole overflow pages.
        let most = usable - 35;
        let local = if length <= most {
            length
        } else {
            let least = (usable - 12) * 32 / 255 - 23;
            let left = least + (length - least) % (usable - 4);
            if left <= most { left } else { least }
        };
        row.clear();
        row.extend_from_slice(rest.get(..local as usize).ok_or_else(cut)?);
        let mut next = match local < length {
            true => read_u32(rest, local as usize).ok_or_else(cut)?,
            false => 0,
        };
        while (row.len() as u64) < length {
            self.count_page_and_refuse_cycle(next)?;
            let mut overflow = std::mem::take(&mut self.overflow);
            self.database.read_page(next, &mut overflow)?;
            let missing = (length - row.len() as u64).min(usable - 4) as usize;
            row.extend_from_slice(&overflow[4..4 + missing]);
            next = read_u32(&overflow, 0).unwrap_or(0);
            self.overflow = overflow;
        }
        Ok(row_id)
    }

    /// Decodes the requested columns into `values`. Returns `None` if the header of `row` is invalid.
    fn decode_row<'r>(
        &self,
        row: &'r [u8],
        row_id: i64,
        values: &mut [SqliteValue<'r>; MOST_COLUMNS],
    ) -> Option<()> {
        let mut types = row;
        let header = usize::try_from(take_varint(&mut types)?).ok()?;
        let used = row.len() - types.len();
        let mut types = row.get(used..header)?;
        let mut body = row.get(header..)?;
        let encoding = DatabaseTextEncoding(self.database.encoding);
        let mut column = 0;
        while !types.is_empty() {
            let kind = take_varint(&mut types)?;
            let length = match kind {
                0 | 8 | 9 => 0,
                1..=4 => kind as usize,
                5 => 6,
                6 | 7 => 8,
                12.. => usize::try_from((kind - 12) / 2).ok()?,
                _ => return None,
            };
            let bytes = body.get(..length)?;
            body = &body[length..];
            let cell = match kind {
                0 if self.table.row_id == Some(column) => SqliteValue::Integer(row_id),
                0 => SqliteValue::Null,
                8 | 9 => SqliteValue::Integer(kind - 8),
                7 => SqliteValue::Real(f64::from_be_bytes(bytes.try_into().ok()?)),
                1..=6 => SqliteValue::Integer(read_signed_big_endian_integer(bytes)),
                _ if kind % 2 == 0 => SqliteValue::Blob,
                _ => SqliteValue::Text(bytes, encoding),
            };
            let wanted = values.iter_mut().zip(self.places);
            for (value, _) in wanted.filter(|(_, own)| **own == Some(column)) {
                *value = cell;
            }
            column += 1;
        }
        Some(())
    }

    /// Counts a page as read. Fails if a table would have more pages than the file.
    fn count_page_and_refuse_cycle(&mut self, number: u32) -> Result<(), TraceError> {
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => {
                let found = format!(
                    "the pages of table {} form a cycle",
                    escape_and_shorten_name(&self.table.name)
                );
                return Err(self.damaged_page_error(number, &found));
            }
        }
        Ok(())
    }

    fn read_u16(&self, number: u32, page: &[u8], at: usize) -> Result<u16, TraceError> {
        let bytes = page.get(at..at + 2);
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(u16::from_be_bytes)
            .ok_or_else(|| self.damaged_page_error(number, "more cells than a page can have"))
    }

    fn damaged_page_error(&self, number: u32, found: &str) -> TraceError {
        let offset = number
            .checked_sub(1)
            .map_or(0, |before| u64::from(before) * self.database.page as u64);
        self.database.damaged_file_error(offset, found)
    }
}

/// Returns the offset of the page header within a page. In page 1, the page header follows the file
/// header.
fn page_header_offset(page: u32) -> usize {
    if page == 1 { HEADER } else { 0 }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// Removes a varint from the front of `bytes` and returns it.
fn take_varint(bytes: &mut &[u8]) -> Option<i64> {
    let mut value = 0_u64;
    for place in 0..9 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if place == 8 {
            return Some((value << 8 | u64::from(byte)).cast_signed());
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some(value.cast_signed())
}

/// Reads a signed big-endian integer of up to eight bytes.
fn read_signed_big_endian_integer(bytes: &[u8]) -> i64 {
    let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    let start = if negative { -1 } else { 0 };
    bytes
        .iter()
        .fold(start, |value, &byte| value << 8 | i64::from(byte))
}

/// Returns true if the `CREATE TABLE` statement `sql` contains `WITHOUT ROWID`.
fn is_without_row_id(sql: &str) -> bool {
    let tail = sql.rsplit(')').next().unwrap_or_default();
    let words: Vec<String> = tail.split_whitespace().map(str::to_uppercase).collect();
    words
        .windows(2)
        .any(|pair| pair[0] == "WITHOUT" && pair[1].starts_with("ROWID"))
}

/// Returns the column names in the `CREATE TABLE` statement `sql`, and the index of the column that is an alias of
/// the row id.
fn column_names(sql: &str) -> (Vec<String>, Option<usize>) {
    const CONSTRAINTS: [&str; 5] = ["PRIMARY", "UNIQUE", "CHECK", "FOREIGN", "CONSTRAINT"];
    let (mut columns, mut row_id) = (Vec::new(), None);
    for part in split_parenthesized_list(sql) {
        let Some((name, is_quoted)) = part.first() else {
            continue;
        };
        let upper: Vec<String> = part.iter().map(|(word, _)| word.to_uppercase()).collect();
        if !is_quoted && CONSTRAINTS.contains(&&*upper[0]) {
            continue;
        }
        let is_key = upper
            .windows(2)
            .any(|pair| pair[0] == "PRIMARY" && pair[1] == "KEY");
        if is_key && upper.get(1).is_some_and(|kind| kind == "INTEGER") {
            row_id = Some(columns.len());
        }
        columns.push(name.clone());
    }
    (columns, row_id)
}

/// A word, and whether it is quoted.
type MaybeQuotedSqlWord = (String, bool);

/// Splits the contents of `sql`'s outermost parentheses at commas. Returns the words of each part.
/// Words in inner parentheses are omitted.
fn split_parenthesized_list(sql: &str) -> Vec<Vec<MaybeQuotedSqlWord>> {
    let mut chars = sql.chars().peekable();
    let mut depth = 0_u32;
    let mut all = vec![Vec::new()];
    while let Some(c) = chars.next() {
        let closing = match c {
            '"' | '\'' | '`' => Some(c),
            '[' => Some(']'),
            _ => None,
        };
        if let Some(closing) = closing {
            let mut word = String::new();
            while let Some(c) = chars.next() {
                if c != closing {
                    word.push(c);
                } else if chars.peek() == Some(&closing) && closing != ']' {
                    word.push(c);
                    chars.next();
                } else {
                    break;
                }
            }
            if depth == 1 {
                all.last_mut().expect("there is one").push((word, true));
            }
            continue;
        }
        match (c, chars.peek()) {
            ('-', Some('-')) => {
                chars.by_ref().find(|c| *c == '\n');
            }
            ('/', Some('*')) => {
                chars.next();
                let mut last = ' ';
                chars.by_ref().find(|c| {
                    let ends = last == '*' && *c == '/';
                    last = *c;
                    ends
                });
            }
            ('(', _) => depth += 1,
            (')', _) => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    break;
                }
            }
            (',', _) if depth == 1 => all.push(Vec::new()),
            (c, _) if depth == 1 && (c.is_alphanumeric() || c == '_' || c == '$') => {
                let mut word = String::from(c);
                while let Some(&c) = chars.peek()
                    && (c.is_alphanumeric() || c == '_' || c == '$')
                {
                    word.push(c);
                    chars.next();
                }
                all.last_mut().expect("there is one").push((word, false));
            }
            _ => {}
        }
    }
    all
}
