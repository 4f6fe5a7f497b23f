//! Decodes chunks: unpacks their frames and rebuilds the original bytes from columns.

use super::{ChunkBytesOrColumnsEncoding, LARGEST};
use crate::ArchiveError;
use crate::columns::{ChunkTemplatesAndColumns, ReusableColumnBuffers};
use crate::wire::ArchiveDecodingError;
use std::cell::RefCell;
use std::io;
use zstd::zstd_safe::{DCtx, get_error_name};

/// A decoded chunk: its unpacked frame and its columns.
#[derive(Debug)]
pub struct DecodedFrameAndColumns {
    pub(super) unpacked: Vec<u8>,
    pub(super) columns: Option<ChunkTemplatesAndColumns>,
    /// True if records in the columns have length prefixes.
    pub(super) framed: bool,
}

/// Memory of earlier chunks. Later chunks reuse it, because allocating new memory takes as long as unpacking.
#[derive(Debug, Default)]
pub struct ReusableChunkBuffers {
    /// Memory of the frame that is read.
    pub frame: Vec<u8>,
    unpacked: Vec<Vec<u8>>,
    columns: ReusableColumnBuffers,
    /// The most recently rebuilt bytes of an object.
    pub joined: Vec<u8>,
}

impl ReusableChunkBuffers {
    /// Returns memory for an unpacked frame and for its columns.
    pub fn frame_and_column_buffers(&mut self) -> (Vec<u8>, &mut ReusableColumnBuffers) {
        let unpacked = self.unpacked.pop().unwrap_or_default();
        (unpacked, &mut self.columns)
    }
}

/// Magic number of trained zstd dictionaries, which zstd treats differently from raw content.
const TRAINED: [u8; 4] = 0xEC30_A437_u32.to_le_bytes();

thread_local! {
    /// Reusable decompression context.
    static CONTEXT: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// Unpacks a frame that contains exactly `unpacked` bytes.
pub fn decompress_frame(
    frame: &[u8],
    unpacked: u64,
    dictionary: Option<&[u8]>,
) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    decompress_into(frame, unpacked, dictionary, &mut out)?;
    Ok(out)
}

fn decompress_into(
    frame: &[u8],
    unpacked: u64,
    dictionary: Option<&[u8]>,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    if unpacked > LARGEST {
        return Err(io::Error::other(
            "the chunk states that it unpacks to more than 64 MiB",
        ));
    }
    let wrong = |code| io::Error::other(get_error_name(code));
    out.clear();
    // The operating system provides reserved memory only when it is written, so a corrupt file that overstates a size
    // costs nothing.
    out.reserve_exact(unpacked as usize);
    let size = match dictionary {
        // Raw content that begins like a trained dictionary must be passed explicitly as raw content.
        Some(dictionary) if dictionary.starts_with(&TRAINED) => {
            let mut context = DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
            context.ref_prefix(dictionary).map_err(wrong)?;
            context.decompress(out, frame).map_err(wrong)?
        }
        // Archives have many small documents, and creating a context takes longer than unpacking a document, so the
        // context is reused.
        _ => CONTEXT.with_borrow_mut(|context| {
            if context.is_none() {
                *context = DCtx::try_create();
            }
            let context = context.as_mut().ok_or(io::ErrorKind::OutOfMemory)?;
            let dictionary = dictionary.unwrap_or_default();
            let size = context.decompress_using_dict(out, frame, dictionary);
            size.map_err(wrong)
        })?,
    };
    if size as u64 != unpacked {
        return Err(io::Error::other(
            "the chunk does not unpack to its stated size",
        ));
    }
    Ok(())
}

impl DecodedFrameAndColumns {
    /// Decodes a chunk that contains `bytes` bytes of an object. The chunk's frame unpacks to
    /// `unpacked` bytes.
    pub fn decode_frame(
        frame: &[u8],
        coding: ChunkBytesOrColumnsEncoding,
        (unpacked, bytes): (u64, u64),
        base: Option<&Self>,
        buffers: &mut ReusableChunkBuffers,
    ) -> Result<Self, ArchiveError> {
        if bytes > LARGEST {
            return Err(ArchiveError::broken_archive_error(
                "a chunk states a size of more than 64 MiB",
            ));
        }
        let dictionary = base.map(|base| &base.unpacked[..]);
        let (mut out, columns_buffers) = buffers.frame_and_column_buffers();
        decompress_into(frame, unpacked, dictionary, &mut out).map_err(|error| {
            ArchiveError::broken_archive_error(format!("a frame cannot be unpacked: {error}"))
        })?;
        let has_columns = matches!(
            coding,
            ChunkBytesOrColumnsEncoding::Columns | ChunkBytesOrColumnsEncoding::Lines
        );
        let columns = has_columns.then(|| {
            let base = base.and_then(|base| base.columns.as_ref());
            ChunkTemplatesAndColumns::decode_columns(&out, base, bytes as usize, columns_buffers)
        });
        Ok(Self {
            columns: columns.transpose()?,
            unpacked: out,
            framed: coding == ChunkBytesOrColumnsEncoding::Columns,
        })
    }

    /// Passes the object's `bytes` bytes to `out`. For a chunk of columns, `joined` buffers the rebuilt bytes.
    pub fn write_contents(
        &self,
        bytes: u64,
        joined: &mut Vec<u8>,
        out: &mut dyn FnMut(&[u8]) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        match &self.columns {
            Some(columns) => columns.rebuild_records(bytes as usize, self.framed, joined, out),
            None if self.unpacked.len() as u64 == bytes => out(&self.unpacked),
            None => Err(ArchiveError::broken_archive_error(
                "a chunk does not have its stated size",
            )),
        }
    }

    /// Returns the chunk's memory to `buffers` for reuse.
    pub fn recycle_into(self, buffers: &mut ReusableChunkBuffers) {
        buffers.unpacked.push(self.unpacked);
        if let Some(columns) = self.columns {
            columns.recycle_into(&mut buffers.columns);
        }
    }
}

impl From<ArchiveDecodingError> for ArchiveError {
    fn from(error: ArchiveDecodingError) -> Self {
        Self::broken_archive_error(format!("a chunk is malformed: {error}"))
    }
}
