//! Trace files: finding them, and their contents after decompression.

use super::{Origins, TraceError, form, older, text};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

mod discover;
mod pack;

pub use discover::{RankFile, discover, named, rank_of};
pub use pack::{Compressor, Packer};

/// Files at least this large are mapped, smaller ones are read.
const MAP_FROM: u64 = 1 << 20;
/// The most that a compressed file may grow to.
const MAX_CONTENTS: u64 = 64 << 30;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The contents of a file, decompressed if its first bytes say gzip or zstd.
#[derive(Debug)]
pub struct Contents {
    held: Held,
    path: PathBuf,
    /// Where the records of a trace that was upgraded or read from text came from.
    origins: Option<Origins>,
}

#[derive(Debug)]
enum Held {
    Mapped(memmap2::Mmap),
    Read(Vec<u8>),
}

impl Contents {
    /// Opens the trace `path`, whatever its form (see [`form`]); what it holds is the contents of a file
    /// of the current schema. The file is closed again before this returns, so any number may be held.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        Self::raw(path)?.current()
    }

    /// The same as the contents of a file of the current schema.
    fn current(mut self) -> Result<Self, TraceError> {
        let upgraded = match form::text_form(self.as_slice()) {
            None => older::upgrade(self.as_slice(), None)
                .map(|upgraded| upgraded.map(|upgraded| (upgraded.bytes, upgraded.origins))),
            Some(form) => form.and_then(|form| {
                let read = text::read(self.as_slice(), form)?;
                Ok(Some((read.bytes, read.origins)))
            }),
        };
        if let Some((bytes, origins)) = upgraded.map_err(|e| e.in_file(&self.path))? {
            self.held = Held::Read(bytes);
            self.origins = Some(origins);
        }
        Ok(self)
    }

    /// Opens `path`, which may hold anything, as open as [`Self::open`] has it.
    pub fn raw(path: &Path) -> Result<Self, TraceError> {
        let mut this = Self::packed(path)?;
        if let Some(result) = decompressed(this.as_slice()) {
            let bytes = result.map_err(|source| TraceError::io(path, "decompress", source))?;
            this.held = Held::Read(bytes);
        }
        Ok(this)
    }

    /// Opens `path` without decompressing it.
    pub fn packed(path: &Path) -> Result<Self, TraceError> {
        let io = |doing| move |source| TraceError::io(path.to_owned(), doing, source);
        let mut file = File::open(path).map_err(io("open"))?;
        let size = file.metadata().map_err(io("ask for the size"))?.len();
        let held = if size >= MAP_FROM {
            // SAFETY: the map is read-only and private. Should another process truncate the file
            // meanwhile, the read faults, as it would fail with an error on a read file.
            Held::Mapped(unsafe { memmap2::Mmap::map(&file) }.map_err(io("map"))?)
        } else {
            let mut bytes = Vec::with_capacity(size as usize);
            file.read_to_end(&mut bytes).map_err(io("read"))?;
            Held::Read(bytes)
        };
        Ok(Self {
            held,
            path: path.to_owned(),
            origins: None,
        })
    }

    /// An error about these contents as one about the file that they came from: its name, and for a
    /// trace that was upgraded or read from text the record, the byte or the line there.
    #[must_use]
    pub fn blame(&self, error: TraceError) -> TraceError {
        let error = error.in_file(&self.path);
        match &self.origins {
            Some(origins) => error.at_origin(origins),
            None => error,
        }
    }

    /// The trace that comes through a pipe, to its end, as [`Self::open`] has it.
    pub fn from_pipe(mut pipe: impl Read) -> Result<Self, TraceError> {
        let path = Path::new("standard input");
        let io = |source| TraceError::io(path, "read", source);
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).map_err(io)?;
        if let Some(result) = decompressed(&bytes) {
            bytes = result.map_err(|source| TraceError::io(path, "decompress", source))?;
        }
        let held = Held::Read(bytes);
        let this = Self {
            held,
            path: path.to_owned(),
            origins: None,
        };
        this.current()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match &self.held {
            Held::Mapped(map) => map,
            Held::Read(bytes) => bytes,
        }
    }
}

/// The bytes of a file from its start to its end, decompressed on the way if its first bytes say gzip
/// or zstd. For files that are too large to be held.
pub struct Stream<'s>(Box<dyn Read + 's>);

impl Stream<'static> {
    /// Opens `path`, which stays open for as long as the stream lives.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let io = |doing| move |source| TraceError::io(path.to_owned(), doing, source);
        let file = File::open(path).map_err(io("open"))?;
        let size = file.metadata().map_err(io("ask for the size"))?.len();
        Self::new(file, size).map_err(io("read"))
    }
}

impl<'s> Stream<'s> {
    /// The same over bytes.
    pub fn of(bytes: &'s [u8]) -> std::io::Result<Self> {
        Self::new(bytes, bytes.len() as u64)
    }

    /// The same over a source of unknown length.
    pub fn from_reader(source: impl Read + 's) -> std::io::Result<Self> {
        Self::new(source, u64::MAX)
    }

    fn new(source: impl Read + 's, size: u64) -> std::io::Result<Self> {
        let mut source = std::io::BufReader::with_capacity(1 << 17, source);
        let first = std::io::BufRead::fill_buf(&mut source)?;
        let limit = MAX_CONTENTS.min(size.saturating_mul(1 << 16));
        Ok(Self(if first.starts_with(&ZSTD_MAGIC) {
            let decoder = zstd::stream::read::Decoder::with_buffer(source)?;
            Box::new(Bounded(decoder, limit))
        } else if first.starts_with(&GZIP_MAGIC) {
            let decoder = flate2::bufread::MultiGzDecoder::new(source);
            Box::new(Bounded(decoder, limit))
        } else {
            Box::new(source)
        }))
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

/// A reader that fails when it gives more than so many bytes.
struct Bounded<R>(R, u64);

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.0.read(into)?;
        self.1 = self.1.checked_sub(read as u64).ok_or_else(|| {
            std::io::Error::other("it decompresses to far more than a trace can be")
        })?;
        Ok(read)
    }
}

/// The decompressed bytes, `None` when they are not compressed.
pub fn decompressed(bytes: &[u8]) -> Option<std::io::Result<Vec<u8>>> {
    // Corrupt data can ask for any amount of memory, so growth is bounded by the input's size too.
    let limit = MAX_CONTENTS.min((bytes.len() as u64).saturating_mul(1 << 16));
    if bytes.starts_with(&ZSTD_MAGIC) {
        Some(zstd::stream::read::Decoder::new(bytes).and_then(|d| bounded(d, limit)))
    } else if bytes.starts_with(&GZIP_MAGIC) {
        Some(bounded(flate2::bufread::MultiGzDecoder::new(bytes), limit))
    } else {
        None
    }
}

/// As [`decompressed`], but of what is cut short or damaged as much as can be had, with what is wrong.
pub fn decompressed_partly(bytes: &[u8]) -> Option<(Vec<u8>, Option<std::io::Error>)> {
    let limit = MAX_CONTENTS.min((bytes.len() as u64).saturating_mul(1 << 16));
    let mut out = Vec::new();
    let mut read = |reader: &mut dyn Read| reader.take(limit).read_to_end(&mut out).err();
    let wrong = if bytes.starts_with(&ZSTD_MAGIC) {
        match zstd::stream::read::Decoder::new(bytes) {
            Ok(mut decoder) => read(&mut decoder),
            Err(wrong) => Some(wrong),
        }
    } else if bytes.starts_with(&GZIP_MAGIC) {
        read(&mut flate2::bufread::MultiGzDecoder::new(bytes))
    } else {
        return None;
    };
    Some((out, wrong))
}

fn bounded(reader: impl Read, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(std::io::Error::other(format!(
            "it decompresses to more than {limit} bytes"
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn compression_is_known_by_its_first_bytes() {
        let plain = b"hello".repeat(100);
        assert!(decompressed(&plain).is_none());
        let zstd = zstd::encode_all(&plain[..], 3).unwrap();
        assert_eq!(decompressed(&zstd).unwrap().unwrap(), plain);
        assert!(decompressed(&zstd[..zstd.len() - 3]).unwrap().is_err());
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        assert_eq!(
            decompressed(&gzip.finish().unwrap()).unwrap().unwrap(),
            plain
        );
    }
}
