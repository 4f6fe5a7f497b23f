//! Chunks of an object: compresses its bytes to zstd frames, and decompresses them.
//!
//! A chunk is compressed by itself or with a *base*, an earlier chunk of the segment. The unpacked base serves as the
//! frame's dictionary, and its column values can predict those of the chunk. A rank's chunk uses the corresponding
//! chunk of an earlier rank as its base.

use super::CompressionLevel;
use super::columns::{
    ChunkTemplatesAndColumns, ColumnRecordKind, EncodedColumnsAndPlaneEnds,
    TemplateAndColumnInterner,
};
use super::wire::{decode_minimal_varint, varint_length};
use frame::compress_parts_in_own_blocks;
use std::cell::RefCell;
use std::io;

mod decode;
mod frame;

pub use decode::{DecodedFrameAndColumns, ReusableChunkBuffers, decompress_frame};
pub use frame::compress_frame;

/// Target size of a chunk, in bytes.
const TARGET: usize = 4 << 20;
/// Maximum size of a chunk, packed or unpacked, in bytes.
pub const LARGEST: u64 = 64 << 20;
/// Maximum number of objects that can provide bases, per family of objects with similar names.
const BASES: usize = 8;
/// Maximum number of chunks per object whose columns are kept as bases.
const KEPT: usize = 64;

/// Encoding of a chunk's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkBytesOrColumnsEncoding {
    /// The unchanged bytes, in a plain zstd frame that any zstd reader can unpack.
    Plain,
    /// The unchanged bytes, in a zstd frame within a skippable frame. Other zstd readers skip it.
    Bytes,
    /// Columns of a trace, in a zstd frame within a skippable frame.
    Columns,
    /// Text whose lines are split into columns, in a zstd frame within a skippable frame.
    Lines,
}

impl ChunkBytesOrColumnsEncoding {
    /// All codings of chunks, indexed by their numbers in archives.
    pub const ALL: [Self; 4] = [Self::Plain, Self::Bytes, Self::Columns, Self::Lines];
}

/// Base of a chunk: index of the object in the segment, and index of the chunk in the object.
pub type DeltaBaseObjectAndChunkIndex = (u32, u32);

/// Compressed chunk.
#[derive(Debug)]
pub struct EncodedChunk {
    /// The zstd frame.
    pub frame: Vec<u8>,
    /// Coding of the chunk's bytes.
    pub coding: ChunkBytesOrColumnsEncoding,
    /// Size of the unpacked frame, in bytes.
    pub unpacked: u64,
    /// How many of the object's bytes the chunk contains.
    pub bytes: u64,
    /// Number of records in the chunk, or 0 if the object is not a trace.
    pub records: u64,
    /// Base of the chunk.
    pub base: Option<DeltaBaseObjectAndChunkIndex>,
}

/// A chunk that can be a base.
struct CandidateDeltaBaseChunk {
    at: DeltaBaseObjectAndChunkIndex,
    decoded: DecodedFrameAndColumns,
    index: TemplateAndColumnInterner,
    records: usize,
}

/// An object whose chunks can be bases.
struct ObjectWithCandidateBaseChunks {
    family: String,
    records: usize,
    chunks: Vec<CandidateDeltaBaseChunk>,
}

/// Encodes the objects of a workload. Shared data is stored only once.
pub struct WorkloadObjectDeltaEncoder {
    level: CompressionLevel,
    bases: Vec<ObjectWithCandidateBaseChunks>,
    /// Memory that later chunks reuse.
    buffers: RefCell<ReusableChunkBuffers>,
}

impl WorkloadObjectDeltaEncoder {
    /// Creates an encoder without any bases.
    pub fn new(level: CompressionLevel) -> Self {
        Self {
            level,
            bases: Vec::new(),
            buffers: RefCell::default(),
        }
    }

    /// Encodes the object with index `number` in the segment. Objects with the same `family` are similar; `is_trace` is
    /// true for a trace.
    pub fn encode_object(
        &mut self,
        bytes: &[u8],
        number: u32,
        family: &str,
        is_trace: bool,
    ) -> io::Result<Vec<EncodedChunk>> {
        let records = if is_trace {
            split_trace_into_records(bytes)
        } else {
            None
        };
        let plain = is_trace && self.level == CompressionLevel::Plain;
        let count = records.as_ref().map_or(0, Vec::len);
        let mut same = self.bases.iter().filter(|base| base.family == family);
        // The base is the latest object with as many records, because its templates are probably in the same order. If
        // there is none, the base is the family's first object, which has most of the templates.
        let alike = self
            .bases
            .iter()
            .rposition(|b| b.family == family && b.records == count);
        let first = self.bases.iter().position(|b| b.family == family);
        let base = alike.or(first).filter(|_| !plain);
        let room = same.by_ref().count() < BASES && !plain;
        let base = base.map(|at| &self.bases[at]);
        let mut made = ObjectWithCandidateBaseChunks {
            family: family.to_owned(),
            records: count,
            chunks: Vec::new(),
        };
        let mut out = Vec::new();
        let mut alike = 0;
        match (&records, plain) {
            (Some(records), false) => {
                let mut at = 0;
                while at < records.len() {
                    let position = out.len();
                    let own = base.and_then(|base| base.chunks.get(position));
                    let taken = own.map_or_else(
                        || count_records_of_first_chunk(&records[at..]),
                        |own| own.records.min(records.len() - at),
                    );
                    let part = &records[at..at + taken];
                    let on = own.or_else(|| base.unwrap_or(&made).chunks.first());
                    let at_chunk = (number, position as u32);
                    let (chunk, kept) = self.encode_nodes(part, at == 0, on, at_chunk)?;
                    if let (Some(own), Some(columns)) = (own, &kept.decoded.columns) {
                        alike +=
                            own.decoded.columns.as_ref().map_or(0, |own| {
                                columns.count_same_index_same_template_records(own)
                            });
                    }
                    if position < KEPT {
                        made.chunks.push(kept);
                    }
                    out.push(chunk);
                    at += taken;
                }
            }
            (Some(records), true) => {
                let (mut at, mut rest) = (0, bytes);
                while at < records.len() {
                    let taken = count_records_of_first_chunk(&records[at..]);
                    let size = framed_records_size(&records[at..at + taken]);
                    let (part, behind) = rest.split_at(size);
                    out.push(EncodedChunk {
                        frame: compress_frame(part, self.level.zstd_level(), None)?,
                        coding: ChunkBytesOrColumnsEncoding::Plain,
                        unpacked: size as u64,
                        bytes: size as u64,
                        records: taken as u64,
                        base: None,
                    });
                    at += taken;
                    rest = behind;
                }
            }
            (None, _) => {
                for (position, part) in bytes.chunks(TARGET).enumerate() {
                    let on = base.and_then(|base| base.chunks.get(position));
                    let at = (number, position as u32);
                    let mut best = self.compress_chunk_bytes_and_keep_as_base(
                        part,
                        plain,
                        on.filter(|_| !plain),
                        at,
                    )?;
                    if !plain {
                        let lines = self.encode_lines_as_columns(part, on, at)?;
                        if lines.0.frame.len() < best.0.frame.len() {
                            best = lines;
                        }
                    }
                    out.push(best.0);
                    if base.is_none() && position < KEPT {
                        made.chunks.push(best.1);
                    }
                }
            }
        }
        if room && 2 * alike < count.max(1) && !made.chunks.is_empty() {
            self.bases.push(made);
        } else {
            let buffers = self.buffers.get_mut();
            let chunks = made.chunks.into_iter();
            chunks.for_each(|kept| kept.decoded.recycle_into(buffers));
        }
        Ok(out)
    }

    /// Encodes a chunk as plain bytes, and keeps it as a possible base.
    fn compress_chunk_bytes_and_keep_as_base(
        &self,
        part: &[u8],
        plain: bool,
        on: Option<&CandidateDeltaBaseChunk>,
        at: DeltaBaseObjectAndChunkIndex,
    ) -> io::Result<(EncodedChunk, CandidateDeltaBaseChunk)> {
        let dictionary = on.map(|on| &on.decoded.unpacked[..]);
        let chunk = EncodedChunk {
            frame: compress_frame(part, self.level.zstd_level(), dictionary)?,
            coding: if plain {
                ChunkBytesOrColumnsEncoding::Plain
            } else {
                ChunkBytesOrColumnsEncoding::Bytes
            },
            unpacked: part.len() as u64,
            bytes: part.len() as u64,
            records: 0,
            base: on.map(|on| on.at),
        };
        let kept = CandidateDeltaBaseChunk {
            at,
            decoded: DecodedFrameAndColumns {
                unpacked: part.to_vec(),
                columns: None,
                framed: false,
            },
            index: TemplateAndColumnInterner::default(),
            records: 0,
        };
        Ok((chunk, kept))
    }

    /// Encodes a chunk of nodes as columns, and keeps it as a possible base.
    fn encode_nodes(
        &self,
        records: &[&[u8]],
        first: bool,
        on: Option<&CandidateDeltaBaseChunk>,
        at: DeltaBaseObjectAndChunkIndex,
    ) -> io::Result<(EncodedChunk, CandidateDeltaBaseChunk)> {
        let kind = if first {
            ColumnRecordKind::FirstNodes
        } else {
            ColumnRecordKind::Nodes
        };
        let (chunk, kept) = self.encode_columns(records, kind, on, at)?;
        let chunk = EncodedChunk {
            bytes: framed_records_size(records) as u64,
            records: records.len() as u64,
            ..chunk
        };
        Ok((chunk, kept))
    }

    /// Encodes a chunk of text by splitting its lines into columns, and keeps it as a possible base.
    fn encode_lines_as_columns(
        &self,
        part: &[u8],
        on: Option<&CandidateDeltaBaseChunk>,
        at: DeltaBaseObjectAndChunkIndex,
    ) -> io::Result<(EncodedChunk, CandidateDeltaBaseChunk)> {
        let lines: Vec<&[u8]> = part.split_inclusive(|byte| *byte == b'\n').collect();
        self.encode_columns(&lines, ColumnRecordKind::Lines, on, at)
    }

    /// Encodes records as columns, and keeps the columns as a possible base.
    fn encode_columns(
        &self,
        bodies: &[&[u8]],
        kind: ColumnRecordKind,
        on: Option<&CandidateDeltaBaseChunk>,
        at: DeltaBaseObjectAndChunkIndex,
    ) -> io::Result<(EncodedChunk, CandidateDeltaBaseChunk)> {
        let base = on.and_then(|on| on.decoded.columns.as_ref());
        let mut index = on.map_or_else(TemplateAndColumnInterner::default, |on| on.index.clone());
        let mut buffers = self.buffers.borrow_mut();
        let (memory, buffers) = buffers.frame_and_column_buffers();
        let mut columns =
            ChunkTemplatesAndColumns::split_records(bodies, kind, base, &mut index, buffers);
        let EncodedColumnsAndPlaneEnds {
            bytes: unpacked,
            ends,
            ..
        } = columns.encode_columns(base, memory, buffers);
        let dictionary = on.map(|on| &on.decoded.unpacked[..]);
        let chunk = EncodedChunk {
            frame: compress_parts_in_own_blocks(
                &unpacked,
                &ends,
                self.level.zstd_level(),
                dictionary,
            )?,
            coding: if kind == ColumnRecordKind::Lines {
                ChunkBytesOrColumnsEncoding::Lines
            } else {
                ChunkBytesOrColumnsEncoding::Columns
            },
            unpacked: unpacked.len() as u64,
            bytes: bodies.iter().map(|body| body.len() as u64).sum(),
            records: 0,
            base: on.map(|on| on.at),
        };
        let kept = CandidateDeltaBaseChunk {
            at,
            decoded: DecodedFrameAndColumns {
                unpacked,
                columns: Some(columns),
                framed: kind != ColumnRecordKind::Lines,
            },
            index,
            records: bodies.len(),
        };
        Ok((chunk, kept))
    }
}

/// Splits a trace into its records, without their lengths; returns `None` if the bytes are not a trace, or if a
/// length is not encoded minimally.
fn split_trace_into_records(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut all = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (length, prefix) = decode_minimal_varint(rest)?;
        let record = rest[prefix..].get(..usize::try_from(length).ok()?)?;
        let end = prefix + record.len();
        if end > TARGET {
            return None;
        }
        all.push(record);
        rest = &rest[end..];
    }
    (!all.is_empty()).then_some(all)
}

/// Returns the total size of `records`, including their length prefixes.
fn framed_records_size(records: &[&[u8]]) -> usize {
    let framed = |record: &&[u8]| varint_length(record.len() as u64) + record.len();
    records.iter().map(framed).sum()
}

/// Takes up to `count` records from the front of `bytes`, a part of a trace, and subtracts their number from `count`.
pub fn take_up_to_count_records<'b>(bytes: &mut &'b [u8], count: &mut u64) -> Option<&'b [u8]> {
    let mut at = 0;
    while *count > 0 && at < bytes.len() {
        let (length, prefix) = decode_minimal_varint(&bytes[at..])?;
        at = at
            .checked_add(prefix)?
            .checked_add(usize::try_from(length).ok()?)?;
        *count -= 1;
    }
    bytes.split_off(..at)
}

/// Returns how many records at the start of `records` form one chunk.
fn count_records_of_first_chunk(records: &[&[u8]]) -> usize {
    let mut bytes = 0;
    let fits = |record: &&&[u8]| {
        bytes += framed_records_size(&[record]);
        bytes <= TARGET
    };
    records.iter().take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests;
