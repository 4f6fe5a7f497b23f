//! Trace files: finding them, and their contents after decompression.

use super::TraceError;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Files at least this large are mapped, smaller ones are read.
const MAP_FROM: u64 = 1 << 20;
/// The most that a compressed file may grow to.
const MAX_CONTENTS: u64 = 64 << 30;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The contents of a file, decompressed if its first bytes say gzip or zstd.
#[derive(Debug)]
pub struct Contents(Held);

#[derive(Debug)]
enum Held {
    Mapped(memmap2::Mmap),
    Read(Vec<u8>),
}

impl Contents {
    /// Opens `path`. The file is closed again before this returns, so any number may be held.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
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
        let this = Self(held);
        match decompressed(this.as_slice()) {
            Some(result) => Ok(Self(Held::Read(result.map_err(io("decompress"))?))),
            None => Ok(this),
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
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

/// Compresses what is written into it, as gzip.
pub struct Compressor<W: Write>(flate2::write::GzEncoder<W>);

impl<W: Write> Compressor<W> {
    /// Compresses into `out`.
    pub fn new(out: W) -> Self {
        Self(flate2::write::GzEncoder::new(
            out,
            flate2::Compression::default(),
        ))
    }

    /// Writes what is left and gives back the sink.
    pub fn finish(self) -> std::io::Result<W> {
        self.0.finish()
    }
}

impl<W: Write> Write for Compressor<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// A file on its way out: as it is, or compressed.
pub enum Packer<W: Write> {
    /// As it is.
    Plain(W),
    /// As gzip.
    Gzip(Compressor<W>),
    /// As zstd, with a checksum.
    Zstd(zstd::stream::write::Encoder<'static, W>),
}

impl<W: Write> Packer<W> {
    /// Compresses into `out` as the ending of a file's name says: `zst`, `gz`, or neither.
    pub fn new(out: W, ending: &str) -> std::io::Result<Self> {
        Ok(match ending {
            "gz" => Self::Gzip(Compressor::new(out)),
            "zst" => {
                let mut encoder = zstd::stream::write::Encoder::new(out, 3)?;
                encoder.include_checksum(true)?;
                Self::Zstd(encoder)
            }
            _ => Self::Plain(out),
        })
    }

    /// Writes what is left and gives back the sink.
    pub fn finish(self) -> std::io::Result<W> {
        match self {
            Self::Plain(out) => Ok(out),
            Self::Gzip(compressor) => compressor.finish(),
            Self::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl<W: Write> Write for Packer<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(out) => out.write(bytes),
            Self::Gzip(compressor) => compressor.write(bytes),
            Self::Zstd(encoder) => encoder.write(bytes),
        }
    }
    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Gzip(compressor) => compressor.flush(),
            Self::Zstd(encoder) => encoder.flush(),
        }
    }
}

/// One rank's trace file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankFile {
    /// The rank, from the file's name.
    pub rank: u32,
    /// The file.
    pub path: PathBuf,
}

/// The endings that a trace file may have after `{prefix}.{rank}`.
const ENDINGS: [&str; 3] = [".et", ".et.gz", ".et.zst"];

/// The rank in a file name `{prefix}.{rank}.et`, with the prefix.
fn split_name(name: &str) -> Option<(&str, u32)> {
    let stem = ENDINGS
        .iter()
        .find_map(|ending| name.strip_suffix(ending))?;
    let (prefix, rank) = stem.rsplit_once('.')?;
    let plain = !rank.is_empty() && rank.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| rank.parse().ok().map(|rank| (prefix, rank)))?
}

/// Finds the trace files that `path` means: a folder with traces of one job, one file of the job
/// (then only that one), or the prefix that the files of a job share. Sorted by rank.
///
/// Fails when there is none, when a folder holds several jobs, or when a rank has two files.
pub fn discover(path: &Path) -> Result<Vec<RankFile>, TraceError> {
    let name_of = |p: &Path| p.file_name().and_then(|n| n.to_str()).map(str::to_owned);
    if path.is_file() {
        let rank = name_of(path).and_then(|n| split_name(&n).map(|(_, rank)| rank));
        return match rank {
            Some(rank) => Ok(vec![RankFile {
                rank,
                path: path.to_owned(),
            }]),
            None => Err(not_found(path, "the name is not `PREFIX.RANK.et`")),
        };
    }
    let (folder, wanted) = if path.is_dir() {
        (path.to_owned(), None)
    } else {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        (parent, name_of(path))
    };
    let listing = std::fs::read_dir(&folder)
        .map_err(|source| TraceError::io(folder.clone(), "list", source))?;
    let mut found: Vec<(String, RankFile)> = Vec::new();
    for entry in listing {
        let entry = entry.map_err(|source| TraceError::io(folder.clone(), "list", source))?;
        let name = entry.file_name();
        let Some((prefix, rank)) = name.to_str().and_then(split_name) else {
            continue;
        };
        let path = entry.path();
        // A pipe of that name would never end.
        if wanted.as_deref().is_none_or(|w| w == prefix) && path.is_file() {
            found.push((prefix.to_owned(), RankFile { rank, path }));
        }
    }
    found.sort();
    let Some((prefix, _)) = found.first() else {
        return Err(not_found(path, "no file is named `PREFIX.RANK.et`"));
    };
    if let Some((other, _)) = found.iter().find(|(p, _)| p != prefix) {
        return Err(not_found(
            path,
            &format!(
                "the folder holds several jobs; name one, for example {} or {}",
                folder.join(prefix).display(),
                folder.join(other).display()
            ),
        ));
    }
    let files: Vec<RankFile> = found.into_iter().map(|(_, file)| file).collect();
    if let Some(pair) = files.windows(2).find(|pair| pair[0].rank == pair[1].rank) {
        return Err(not_found(
            path,
            &format!(
                "rank {} has two files, {} and {}",
                pair[0].rank,
                pair[0].path.display(),
                pair[1].path.display()
            ),
        ));
    }
    Ok(files)
}

fn not_found(path: &Path, why: &str) -> TraceError {
    let place = super::Place {
        file: Some(path.to_owned()),
        ..super::Place::default()
    };
    TraceError::refused_at(
        place,
        format!("no traces here: {why}"),
        "give a folder, a file, or the prefix of files named PREFIX.0.et, PREFIX.1.et, …",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split_into_prefix_and_rank() {
        assert_eq!(split_name("a.b.12.et"), Some(("a.b", 12)));
        assert_eq!(split_name("a.0.et.zst"), Some(("a", 0)));
        for bad in [
            "a.et",
            "a.+1.et",
            "a.x.et",
            "a.1.json",
            "a..et",
            "a.99999999999.et",
        ] {
            assert_eq!(split_name(bad), None, "{bad}");
        }
    }

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
