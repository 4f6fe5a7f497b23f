//! Chunks as they are read: what their frames unpack to, and the bytes that their columns join to.

use super::{ChunkCoding, LARGEST};
use crate::ArchiveError;
use crate::columns::{ColumnBuffers, TraceColumns};
use crate::wire::WireError;
use std::cell::RefCell;
use std::io;
use zstd::zstd_safe::{DCtx, get_error_name};

/// Chunk as it is read: what its frame unpacks to, and its columns.
#[derive(Debug)]
pub struct DecodedChunk {
    pub(super) unpacked: Vec<u8>,
    pub(super) columns: Option<TraceColumns>,
    /// Whether records of the columns stand behind their lengths.
    pub(super) framed: bool,
}

/// Memory of chunks that were read or written, for those that are next: asking the system for it anew takes as long as
/// unpacking.
#[derive(Debug, Default)]
pub struct ChunkBuffers {
    /// Frame that is being read.
    pub frame: Vec<u8>,
    unpacked: Vec<Vec<u8>>,
    columns: ColumnBuffers,
    /// Bytes of the object that were put together last.
    pub joined: Vec<u8>,
}

impl ChunkBuffers {
    /// Returns memory for what a frame unpacks to, and that for its columns.
    pub fn for_columns(&mut self) -> (Vec<u8>, &mut ColumnBuffers) {
        let unpacked = self.unpacked.pop().unwrap_or_default();
        (unpacked, &mut self.columns)
    }
}

/// First bytes of dictionaries that zstd trained, which are more than content.
const TRAINED: [u8; 4] = 0xEC30_A437_u32.to_le_bytes();

thread_local! {
    /// Context of frames.
    static CONTEXT: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// Unpacks a frame of exactly `unpacked` bytes.
pub fn decompress(frame: &[u8], unpacked: u64, dictionary: Option<&[u8]>) -> io::Result<Vec<u8>> {
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
            "it says that it unpacks to more than 64 MiB",
        ));
    }
    let wrong = |code| io::Error::other(get_error_name(code));
    out.clear();
    // What is not written is not touched, so a claim takes no more than what is there.
    out.reserve_exact(unpacked as usize);
    let size = match dictionary {
        // Content that looks like a dictionary of another kind has to be said to be content.
        Some(dictionary) if dictionary.starts_with(&TRAINED) => {
            let mut context = DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
            context.ref_prefix(dictionary).map_err(wrong)?;
            context.decompress(out, frame).map_err(wrong)?
        }
        // A context takes longer to make than a small document to unpack, and archives have many.
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
        return Err(io::Error::other("it unpacks to another size than it says"));
    }
    Ok(())
}

impl DecodedChunk {
    /// Reads a chunk of `bytes` bytes whose frame unpacks to `unpacked`.
    pub fn read(
        frame: &[u8],
        coding: ChunkCoding,
        (unpacked, bytes): (u64, u64),
        base: Option<&Self>,
        buffers: &mut ChunkBuffers,
    ) -> Result<Self, ArchiveError> {
        if bytes > LARGEST {
            return Err(ArchiveError::broken(
                "a chunk says that it has more than 64 MiB",
            ));
        }
        let dictionary = base.map(|base| &base.unpacked[..]);
        let (mut out, columns_buffers) = buffers.for_columns();
        decompress_into(frame, unpacked, dictionary, &mut out).map_err(|error| {
            ArchiveError::broken(format!("a frame cannot be unpacked: {error}"))
        })?;
        let has_columns = matches!(coding, ChunkCoding::Columns | ChunkCoding::Lines);
        let columns = has_columns.then(|| {
            let base = base.and_then(|base| base.columns.as_ref());
            TraceColumns::decode(&out, base, bytes as usize, columns_buffers)
        });
        Ok(Self {
            columns: columns.transpose()?,
            unpacked: out,
            framed: coding == ChunkCoding::Columns,
        })
    }

    /// Gives the bytes of the object, of which there are `bytes`, to `out`, in `joined` where they have to be put together.
    pub fn contents(
        &self,
        bytes: u64,
        joined: &mut Vec<u8>,
        out: &mut dyn FnMut(&[u8]) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        match &self.columns {
            Some(columns) => columns.join(bytes as usize, self.framed, joined, out),
            None if self.unpacked.len() as u64 == bytes => out(&self.unpacked),
            None => Err(ArchiveError::broken(
                "a chunk has another size than it says",
            )),
        }
    }

    /// Gives its memory to chunks that are read next.
    pub fn recycle(self, buffers: &mut ChunkBuffers) {
        buffers.unpacked.push(self.unpacked);
        if let Some(columns) = self.columns {
            columns.recycle(&mut buffers.columns);
        }
    }
}

impl From<WireError> for ArchiveError {
    fn from(error: WireError) -> Self {
        Self::broken(format!("a chunk is malformed: {error}"))
    }
}
