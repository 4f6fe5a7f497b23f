//! Reads the records of a trace in any format, and returns them in the current schema.
//!
//! For the current schema and JSON Lines, the reader needs memory only for the longest record. It reads any other file
//! whole before it returns the first record, because the file's end may decide its format or generation.

use super::file::{self, DecompressedStream};
use super::text::{JsonLineReader, JsonTraceFormat};
use super::trace_format::{TraceFormat, detect_text_format};
use super::wire::{FrameCursor, MAX_RECORD};
use super::{OriginalRecordLocations, SchemaGeneration, TraceError, old_schemas, text};
use std::io::{BufRead, BufReader, Chain, Cursor, Read};

/// Number of bytes inspected to detect the format.
const HEAD: u64 = 1 << 16;

type StreamWithPeekedStart<'s> = BufReader<Chain<Cursor<Vec<u8>>, DecompressedStream<'s>>>;

/// Record reader of a trace.
pub struct TraceRecordReader<'s> {
    form: TraceFormat,
    kind: FramesLinesOrWholeReader<'s>,
    record: Vec<u8>,
    next: usize,
}

enum FramesLinesOrWholeReader<'s> {
    Frames(FrameReader<StreamWithPeekedStart<'s>>),
    Lines(Box<JsonLineReader<StreamWithPeekedStart<'s>>>),
    Whole(Vec<u8>, usize, Option<OriginalRecordLocations>),
}

impl<'s> TraceRecordReader<'s> {
    /// Creates a reader of `stream`; `generation` overrides detection.
    ///
    /// Fails if `stream` is not a trace. For formats that are read as a whole, every other error in the file is
    /// reported here too.
    pub fn new(
        mut stream: DecompressedStream<'s>,
        generation: Option<SchemaGeneration>,
    ) -> Result<Self, TraceError> {
        let mut head = Vec::new();
        let read = (&mut stream).take(HEAD).read_to_end(&mut head);
        read.map_err(read_error)?;
        let whole_head = head.len() < HEAD as usize;
        let form = detect_text_format(&head).transpose();
        let form = match form {
            // If the head does not contain the key that identifies the format, inspect the whole file.
            Err(_) if !whole_head => None,
            form => form?,
        };
        let lines = form == Some(JsonTraceFormat::JsonLines);
        let first = FrameCursor::new(&head).next_record();
        let current = matches!(&first, Ok(Some(first)) if old_schemas::is_current_metadata(first.bytes) == Some(true));
        let current = current && generation.is_none_or(|g| g == SchemaGeneration::V004);
        let rest = BufReader::with_capacity(1 << 17, Cursor::new(head).chain(stream));
        let (form, kind) = if lines {
            (
                TraceFormat::Text(JsonTraceFormat::JsonLines),
                FramesLinesOrWholeReader::Lines(Box::new(JsonLineReader::new(rest))),
            )
        } else if current {
            (
                TraceFormat::Et(SchemaGeneration::V004),
                FramesLinesOrWholeReader::Frames(FrameReader::new(rest)),
            )
        } else {
            let contents = file::read_bytes_within_memory_limit(rest, 0).map_err(read_error)?;
            convert_contents(contents, generation)?
        };
        Ok(Self {
            form,
            kind,
            record: Vec::new(),
            next: 0,
        })
    }

    /// Returns the detected format.
    pub fn detected_format(&self) -> TraceFormat {
        self.form
    }

    /// Returns the next record, or `None` at the end. The first record is the metadata.
    pub fn next_record(&mut self) -> Result<Option<super::wire::RawRecord<'_>>, TraceError> {
        let number = self.next;
        let offset = match &mut self.kind {
            FramesLinesOrWholeReader::Frames(frames) => {
                match frames.next_record(&mut self.record)? {
                    Some(offset) => offset,
                    None => return Ok(None),
                }
            }
            FramesLinesOrWholeReader::Lines(lines) => match lines.next_record(&mut self.record)? {
                Some(_) => 0,
                None => return Ok(None),
            },
            FramesLinesOrWholeReader::Whole(contents, at, origins) => {
                let mut frames = FrameCursor::new(&contents[*at..]);
                let record = match frames.next_record() {
                    Ok(Some(record)) => record,
                    Ok(None) => return Ok(None),
                    Err(error) => return Err(error.set_record_and_shift_offset(number, *at)),
                };
                self.record.clear();
                self.record.extend_from_slice(record.bytes);
                let offset = *at + record.offset;
                *at = offset + record.bytes.len();
                match origins {
                    Some(origins) => origins.original_offset(number),
                    None => offset,
                }
            }
        };
        self.next += 1;
        Ok(Some(super::wire::RawRecord {
            number,
            offset,
            bytes: &self.record,
        }))
    }
}

fn read_error(source: std::io::Error) -> TraceError {
    TraceError::from_io("", "read", source)
}

/// Converts a file in a format that is read as a whole.
fn convert_contents(
    contents: Vec<u8>,
    generation: Option<SchemaGeneration>,
) -> Result<(TraceFormat, FramesLinesOrWholeReader<'static>), TraceError> {
    // The data after the head may decide which text format this is, or which generation an old file has.
    if let Some(form) = detect_text_format(&contents).transpose()? {
        let read = text::parse_text_trace(&contents, form)?;
        let kind = FramesLinesOrWholeReader::Whole(read.bytes, 0, Some(read.origins));
        return Ok((TraceFormat::Text(form), kind));
    }
    Ok(
        match old_schemas::upgrade_contents(&contents, generation)? {
            Some(upgraded) => (
                TraceFormat::Et(upgraded.generation),
                FramesLinesOrWholeReader::Whole(upgraded.bytes, 0, Some(upgraded.origins)),
            ),
            None => (
                TraceFormat::Et(SchemaGeneration::V004),
                FramesLinesOrWholeReader::Whole(contents, 0, None),
            ),
        },
    )
}

/// Reads the frames of a stream.
struct FrameReader<R> {
    source: R,
    offset: usize,
    next: usize,
}

impl<R: BufRead> FrameReader<R> {
    fn new(source: R) -> Self {
        Self {
            source,
            offset: 0,
            next: 0,
        }
    }

    /// Reads the next record into `record` and returns its byte offset, or `None` at the end.
    fn next_record(&mut self, record: &mut Vec<u8>) -> Result<Option<usize>, TraceError> {
        record.clear();
        let start = self.offset;
        // A frame is the length as a varint, followed by the message.
        let mut length = Vec::with_capacity(10);
        while length.len() < 10 && length.last().is_none_or(|byte| *byte >= 0x80) {
            let Some(&byte) = self.source.fill_buf().map_err(read_error)?.first() else {
                break;
            };
            self.source.consume(1);
            length.push(byte);
        }
        if length.is_empty() {
            return Ok(None);
        }
        self.offset += length.len();
        let wrong = |error: TraceError| {
            error
                .with_cause("the file is truncated, or is not an execution trace")
                .in_record(self.next, start)
        };
        let announced = super::wire::WireCursor::new(&length, start)
            .read_varint()
            .map_err(wrong)?;
        if announced > MAX_RECORD {
            let found = format!("a record of {announced} bytes, expected less than 2^32");
            return Err(wrong(TraceError::malformed_at(start, found)));
        }
        let offset = self.offset;
        let source = (&mut self.source).take(announced);
        // The stream may end before the stated length, so allocate memory only for bytes that have arrived.
        file::append_all_bytes(source, 0, record).map_err(read_error)?;
        let read = record.len();
        if (read as u64) < announced {
            let found =
                format!("the record's length is {announced} bytes, but only {read} are left");
            return Err(wrong(TraceError::malformed_at(offset, found)));
        }
        self.offset += read;
        self.next += 1;
        Ok(Some(offset))
    }
}
