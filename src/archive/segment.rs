//! Reads and writes segments: frames of objects, followed by frames that describe them.
//!
//! ```text
//! CKST start │ objects: plain zstd frames, or CKOB frames │ CKCT catalogue │ CKIX objects │ CKEN end
//! ```
//!
//! Plain objects are zstd frames. Everything else is in skippable zstd frames, whose contents begin with four letters,
//! such as `CKST`. Documents are JSON in zstd frames. The `CKEN` frame has a fixed size, so readers can find it at the
//! end of a file. It contains the locations of the catalogue and of the object index.

use super::ArchiveError;
use super::chunk::{ChunkBytesOrColumnsEncoding, EncodedChunk, compress_frame, decompress_frame};
use super::document::{
    ChunkFrameAndBaseRow, ObjectHashAndChunkListRow, SegmentObjectIndex,
    SegmentWorkloadCatalogueChanges, SegmentWriteIntent,
};
use chakram_base::bounds;
use flate2::Crc;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// First bytes of the skippable frames of archives.
pub const MAGIC: [u8; 4] = 0x184D_2A5C_u32.to_le_bytes();
/// Version of the format that this program writes. Version 1 had no decimal numbers in templates, and version 2 had no
/// predictor that adds columns.
pub const VERSION: u32 = 3;
/// Size of a segment's end, in bytes.
pub const END_BYTES: u64 = 8 + 4 + 4 + 4 * 8 + 8 + 32 + 4;
/// The letters that begin each kind of frame.
pub const START: [u8; 4] = *b"CKST";
pub const OBJECT: [u8; 4] = *b"CKOB";
pub const CATALOGUE: [u8; 4] = *b"CKCT";
pub const INDEX: [u8; 4] = *b"CKIX";
pub const END: [u8; 4] = *b"CKEN";

/// The end of a segment, which says where the catalogue and the index are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFooter {
    /// Size of the segment, including its end, in bytes.
    pub length: u64,
    /// Offset and length of the catalogue's zstd frame; the offset is relative to the start of the
    /// segment.
    catalogue: (u64, u64),
    /// Offset and length of the object index's zstd frame; the offset is relative to the start of
    /// the segment.
    index: (u64, u64),
    /// BLAKE3 hash of the segment without its end.
    pub digest: [u8; 32],
}

impl SegmentFooter {
    fn to_bytes(self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&(END_BYTES as u32 - 8).to_le_bytes());
        out.extend_from_slice(&END);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let (catalogue, index) = (self.catalogue, self.index);
        for number in [self.length, catalogue.0, catalogue.1, index.0, index.1] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.digest);
        let crc = compute_crc32(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Parses the end of a segment from a file's last bytes. Returns `None` if these bytes are not the end of a
    /// segment, and `Err` with the version if this program does not know that version.
    pub fn parse(bytes: &[u8]) -> Option<Result<Self, u32>> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        let head = [&MAGIC[..], &(END_BYTES as u32 - 8).to_le_bytes(), &END].concat();
        if bytes.len() as u64 != END_BYTES
            || !body.starts_with(&head)
            || *crc != compute_crc32(body).to_le_bytes()
        {
            return None;
        }
        let version = u32::from_le_bytes(body[12..16].try_into().ok()?);
        if !(1..=VERSION).contains(&version) {
            return Some(Err(version));
        }
        let numbers: Vec<u64> = body[16..56]
            .chunks_exact(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
            .collect();
        let this = Self {
            length: numbers[0],
            catalogue: (numbers[1], numbers[2]),
            index: (numbers[3], numbers[4]),
            digest: body[56..88].try_into().ok()?,
        };
        let within = |(at, length): (u64, u64)| {
            at.checked_add(length)
                .is_some_and(|end| end <= this.length - END_BYTES)
        };
        let sound = this.length >= END_BYTES && within(this.catalogue) && within(this.index);
        sound.then_some(Ok(this))
    }
}

/// Returns the CRC-32 of `bytes`, as zlib computes it.
pub fn compute_crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Writes a segment.
pub struct SegmentWriter<W> {
    out: W,
    at: u64,
    hasher: blake3::Hasher,
    objects: Vec<ObjectHashAndChunkListRow>,
    hashes: BTreeSet<String>,
}

impl<W: Write> SegmentWriter<W> {
    /// Starts a segment.
    pub fn new(out: W, start: &SegmentWriteIntent) -> io::Result<Self> {
        let mut this = Self {
            out,
            at: 0,
            hasher: blake3::Hasher::new(),
            objects: Vec::new(),
            hashes: BTreeSet::new(),
        };
        this.write_compressed_json_frame(START, start)?;
        Ok(this)
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.hasher.update(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Writes `contents` in a skippable frame; returns the offset and the length of `contents`.
    fn write_skippable_frame(
        &mut self,
        letters: [u8; 4],
        contents: &[u8],
    ) -> io::Result<(u64, u64)> {
        let size = u32::try_from(contents.len() + 4)
            .map_err(|_| io::Error::other("a frame would be larger than 4 GiB"))?;
        self.write_bytes(&MAGIC)?;
        self.write_bytes(&size.to_le_bytes())?;
        self.write_bytes(&letters)?;
        let at = self.at;
        self.write_bytes(contents)?;
        Ok((at, contents.len() as u64))
    }

    fn write_compressed_json_frame(
        &mut self,
        letters: [u8; 4],
        document: &impl Serialize,
    ) -> io::Result<(u64, u64)> {
        let text = serde_json::to_vec(document)?;
        self.write_skippable_frame(letters, &compress_frame(&text, 9, None)?)
    }

    /// Returns the number of objects written so far.
    pub fn object_count(&self) -> u32 {
        self.objects.len() as u32
    }

    /// Returns whether the object with this hash was written.
    pub fn has_object(&self, hash: &str) -> bool {
        self.hashes.contains(hash)
    }

    /// Writes the chunks of an object whose size is `bytes` bytes.
    pub fn write_object_chunks(
        &mut self,
        hash: String,
        bytes: u64,
        chunks: Vec<EncodedChunk>,
    ) -> io::Result<()> {
        let mut rows = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let (at, length) = match chunk.coding {
                ChunkBytesOrColumnsEncoding::Plain => {
                    let at = self.at;
                    self.write_bytes(&chunk.frame)?;
                    (at, chunk.frame.len() as u64)
                }
                _ => self.write_skippable_frame(OBJECT, &chunk.frame)?,
            };
            let base = chunk
                .base
                .map_or((-1, -1), |(object, at)| (object.into(), at.into()));
            rows.push(ChunkFrameAndBaseRow(
                at,
                length,
                chunk.coding as u8,
                chunk.unpacked,
                chunk.bytes,
                chunk.records,
                base.0,
                base.1,
            ));
        }
        self.hashes.insert(hash.clone());
        self.objects.push(ObjectHashAndChunkListRow {
            blake3: hash,
            bytes,
            chunks: rows,
        });
        Ok(())
    }

    /// Writes the catalogue and the index. Returns the sink and the bytes of the segment's end. The caller must write
    /// the end once everything else is synced.
    pub fn finish_segment_and_return_footer(
        mut self,
        catalogue: &SegmentWorkloadCatalogueChanges,
    ) -> io::Result<(W, Vec<u8>)> {
        let catalogue = self.write_compressed_json_frame(CATALOGUE, catalogue)?;
        let index = SegmentObjectIndex {
            objects: std::mem::take(&mut self.objects),
        };
        let index = self.write_compressed_json_frame(INDEX, &index)?;
        let end = SegmentFooter {
            length: self.at + END_BYTES,
            catalogue,
            index,
            digest: *self.hasher.finalize().as_bytes(),
        };
        Ok((self.out, end.to_bytes()))
    }
}

/// A file with segments, which can be read at any offset.
#[derive(Debug)]
pub struct RandomAccessSegmentFile {
    pub path: PathBuf,
    file: Mutex<File>,
}

impl RandomAccessSegmentFile {
    /// Opens `path`.
    pub fn open_file(path: &Path) -> Result<Self, ArchiveError> {
        let file = File::open(path).map_err(|error| ArchiveError::io_error(path, "open", error))?;
        Ok(Self {
            path: path.to_owned(),
            file: Mutex::new(file),
        })
    }

    /// Acquires the writers' lock in shared mode; closing the returned file releases the lock.
    pub fn try_open_with_shared_lock(&self) -> Result<File, TryLockError> {
        let file = File::open(&self.path).map_err(TryLockError::Error)?;
        file.try_lock_shared()?;
        Ok(file)
    }

    /// Returns the length of the file, in bytes.
    pub fn file_length(&self) -> Result<u64, ArchiveError> {
        let file = self
            .file
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let metadata = file.metadata();
        metadata
            .map(|m| m.len())
            .map_err(|error| ArchiveError::io_error(&self.path, "read the size of", error))
    }

    /// Reads `length` bytes at offset `at`. The file must contain all of these bytes.
    pub fn read_exact_at(&self, at: u64, length: u64) -> Result<Vec<u8>, ArchiveError> {
        let mut out = Vec::new();
        self.read_into(at, length, &mut out)?;
        Ok(out)
    }

    /// Reads `length` bytes at offset `at` into `out`, and drops the previous contents of `out`.
    pub fn read_into(&self, at: u64, length: u64, out: &mut Vec<u8>) -> Result<(), ArchiveError> {
        let io = |error| ArchiveError::io_error(&self.path, "read", error);
        bounds::check_items_fit_memory("a part of an archive", length, 1, "smaller archives")
            .map_err(|e| io(io::Error::other(e)))?;
        let mut file = self
            .file
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        file.seek(SeekFrom::Start(at)).map_err(io)?;
        out.clear();
        // The file may be shorter than stated, so limit the allocation to the file's size.
        let there = file.metadata().map_err(io)?.len().saturating_sub(at);
        out.reserve_exact(length.min(there) as usize);
        (&mut *file).take(length).read_to_end(out).map_err(io)?;
        if out.len() as u64 == length {
            return Ok(());
        }
        Err(ArchiveError::broken_archive_error("the segment ends too early").in_file(&self.path))
    }
}

/// A segment of a file.
#[derive(Debug)]
pub struct ArchiveFileSegment {
    pub file: Arc<RandomAccessSegmentFile>,
    /// Offset of the segment's first byte in the file.
    pub start: u64,
    pub end: SegmentFooter,
}

impl ArchiveFileSegment {
    fn read_document(&self, (at, length): (u64, u64), what: &str) -> Result<Vec<u8>, ArchiveError> {
        let frame = self.file.read_exact_at(self.start + at, length)?;
        unpack_document_frame_within_limits(&frame)
            .map_err(|error| self.unreadable_document_error(at, what, &error))
    }

    fn unreadable_document_error(
        &self,
        at: u64,
        what: &str,
        found: &dyn fmt::Display,
    ) -> ArchiveError {
        let at = self.start + at;
        ArchiveError::broken_archive_error(format!("byte {at}: the {what} cannot be read: {found}"))
            .in_file(&self.file.path)
    }

    /// Reads the text of the catalogue.
    pub fn read_catalogue_text(&self) -> Result<Vec<u8>, ArchiveError> {
        self.read_document(self.end.catalogue, "catalogue")
    }

    /// Parses the text of the catalogue.
    pub fn parse_catalogue<'t, W: Deserialize<'t>>(
        &self,
        text: &'t [u8],
    ) -> Result<SegmentWorkloadCatalogueChanges<W>, ArchiveError> {
        let parsed = serde_json::from_slice(text);
        parsed.map_err(|error| {
            self.unreadable_document_error(self.end.catalogue.0, "catalogue", &error)
        })
    }

    /// Reads the index of the segment's objects. Checks that its chunks follow one another within the segment.
    pub fn read_object_index(&self) -> Result<SegmentObjectIndex, ArchiveError> {
        let text = self.read_document(self.end.index, "index")?;
        let index: SegmentObjectIndex = serde_json::from_slice(&text)
            .map_err(|error| self.unreadable_document_error(self.end.index.0, "index", &error))?;
        let mut next = 0;
        for (number, row) in index.objects.iter().enumerate() {
            let mut bytes = 0u64;
            for (position, chunk) in row.chunks.iter().enumerate() {
                let end = chunk
                    .0
                    .checked_add(chunk.1)
                    .filter(|&end| end <= self.end.length);
                let earlier = (chunk.6, chunk.7) < (number as i64, position as i64);
                let base = match (chunk.6, chunk.7) {
                    (-1, -1) => true,
                    (object, at) => object >= 0 && at >= 0 && earlier,
                };
                if chunk.0 < next || end.is_none() || !base {
                    let found = format!(
                        "object {number} of the segment at byte {}: the list of chunks is invalid",
                        self.start
                    );
                    return Err(ArchiveError::broken_archive_error(found).in_file(&self.file.path));
                }
                next = chunk.0 + chunk.1;
                bytes = bytes.saturating_add(chunk.4);
            }
            if bytes != row.bytes {
                let found = format!(
                    "object {number} of the segment at byte {}: the chunks have {bytes} bytes, but the object has {}",
                    self.start, row.bytes
                );
                return Err(ArchiveError::broken_archive_error(found).in_file(&self.file.path));
            }
        }
        Ok(index)
    }
}

/// Unpacks the frame of a document, within the limits for compressed input. The frame must state
/// its unpacked size.
pub fn unpack_document_frame_within_limits(frame: &[u8]) -> io::Result<Vec<u8>> {
    let size = zstd::zstd_safe::get_frame_content_size(frame);
    let size = size
        .ok()
        .flatten()
        .ok_or_else(|| io::Error::other("a frame does not state its size"))?;
    bounds::check_unpacked_size(frame.len() as u64, size).map_err(io::Error::other)?;
    if size > super::chunk::LARGEST {
        bounds::check_items_fit_memory("a document of an archive", size, 1, "smaller archives")
            .map_err(io::Error::other)?;
        let mut out = Vec::new();
        zstd::Decoder::with_buffer(frame)?
            .single_frame()
            .take(size + 1)
            .read_to_end(&mut out)?;
        return Ok(out);
    }
    decompress_frame(frame, size, None)
}

/// Parses the plan of a segment from the segment's first bytes.
pub fn parse_segment_write_plan(bytes: &[u8]) -> Option<SegmentWriteIntent> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (size, rest) = rest.split_first_chunk::<4>()?;
    let contents = rest.get(..u32::from_le_bytes(*size) as usize)?;
    let text = unpack_document_frame_within_limits(contents.strip_prefix(&START)?).ok()?;
    serde_json::from_slice(&text).ok()
}
