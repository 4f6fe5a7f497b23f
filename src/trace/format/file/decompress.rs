//! Decompresses data within the process's memory limits. The decoder checks the limits as bytes arrive, before it
//! allocates memory for them.

use super::append_all_bytes;
use chakram_base::bounds;
use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Compression format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompressionFormat {
    Gzip,
    Zstd,
}

impl CompressionFormat {
    /// Detects the compression format from the first bytes of a file. Returns `None` if the bytes are not compressed.
    pub fn detect_format(first: &[u8]) -> Option<Self> {
        match first {
            _ if first.starts_with(&ZSTD_MAGIC) => Some(Self::Zstd),
            _ if first.starts_with(&GZIP_MAGIC) => Some(Self::Gzip),
            _ => None,
        }
    }

    /// Decompresses `source`. `packed` is the compressed size of `source`, and limits the size of the output.
    pub fn decompress<'s>(
        self,
        source: impl io::BufRead + 's,
        packed: KnownOrCountedCompressedSize,
    ) -> io::Result<Box<dyn Read + 's>> {
        Ok(match self {
            Self::Zstd => Box::new(BoundedDecoder {
                inner: zstd::stream::read::Decoder::with_buffer(source)?,
                packed,
                given: 0,
            }),
            Self::Gzip => Box::new(BoundedDecoder {
                inner: flate2::bufread::MultiGzDecoder::new(source),
                packed,
                given: 0,
            }),
        })
    }
}

/// Compressed size of a source, in bytes.
#[derive(Clone, Debug)]
pub(super) enum KnownOrCountedCompressedSize {
    /// The size is known in advance.
    Known(u64),
    /// The size is unknown (as for a pipe); the counter states how many were read so far.
    SoFar(Rc<Cell<u64>>),
}

impl KnownOrCountedCompressedSize {
    fn get(&self) -> u64 {
        match self {
            Self::Known(bytes) => *bytes,
            Self::SoFar(bytes) => bytes.get(),
        }
    }
}

/// Reader that counts the bytes it returns.
pub(super) struct CountingReader<R>(pub R, pub Rc<Cell<u64>>);

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(into)?;
        self.1.set(self.1.get() + read as u64);
        Ok(read)
    }
}

/// Decoder that fails when its output exceeds a limit that depends on the size of its source.
struct BoundedDecoder<R> {
    inner: R,
    packed: KnownOrCountedCompressedSize,
    given: u64,
}

impl<R: Read> Read for BoundedDecoder<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(into)?;
        self.given += read as u64;
        bounds::check_unpacked_size(self.packed.get(), self.given).map_err(io::Error::other)?;
        Ok(read)
    }
}

/// Decompresses `bytes`. Returns `None` if `bytes` are not compressed.
pub fn decompress_bytes(bytes: &[u8]) -> Option<io::Result<Vec<u8>>> {
    let (bytes, wrong) = decompress_as_far_as_possible(bytes)?;
    Some(wrong.map_or(Ok(bytes), Err))
}

/// Like [`decompress_bytes`], but recovers as much as possible of truncated or damaged input. Returns the recovered
/// bytes and the error, if any, or `None` if `bytes` are not compressed.
pub fn decompress_as_far_as_possible(bytes: &[u8]) -> Option<(Vec<u8>, Option<io::Error>)> {
    let size = bytes.len() as u64;
    let reader = CompressionFormat::detect_format(bytes)?
        .decompress(bytes, KnownOrCountedCompressedSize::Known(size));
    let mut out = Vec::new();
    // Traces expand to 10 to 50 times their compressed size. The estimate is deliberately lower, because the buffer
    // grows as needed.
    let wrong = reader.and_then(|reader| append_all_bytes(reader, 3 * size, &mut out));
    Some((out, wrong.err()))
}

#[cfg(test)]
mod tests {
    use super::super::{read_bytes_within_memory_limit, read_text};
    use super::*;
    use std::io::Write;

    #[test]
    fn compression_is_known_by_its_first_bytes() {
        let plain = b"hello".repeat(100);
        assert!(decompress_bytes(&plain).is_none());
        let zstd = zstd::encode_all(&plain[..], 3).unwrap();
        assert_eq!(decompress_bytes(&zstd).unwrap().unwrap(), plain);
        assert!(decompress_bytes(&zstd[..zstd.len() - 3]).unwrap().is_err());
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        assert_eq!(
            decompress_bytes(&gzip.finish().unwrap()).unwrap().unwrap(),
            plain
        );
    }

    #[test]
    fn zeros_are_unpacked_no_further_than_their_ratio_allows() {
        let zeros = vec![0; 64 << 20];
        let packed = zstd::encode_all(&zeros[..], 3).unwrap();
        assert!(packed.len() < 16 << 10);
        // The output limit is at least 16 MiB, even for small input.
        let (bytes, wrong) = decompress_as_far_as_possible(&packed).unwrap();
        assert!(bytes.len() <= 16 << 20, "{}", bytes.len());
        let wrong = wrong.expect("it is refused").to_string();
        assert!(
            wrong.contains("16.8 MB") && wrong.contains("`max_ratio`"),
            "{wrong}"
        );
        // The limit also applies to a pipe; it is proportional to the number of bytes read so far.
        let stream = super::super::DecompressedStream::from_reader(&packed[..]).unwrap();
        assert!(read_bytes_within_memory_limit(stream, 0).is_err());
    }

    #[test]
    fn all_bytes_are_read_whatever_size_is_expected() {
        for length in [0, 1, 65_535, 65_536, 65_537, 300_000] {
            let bytes: Vec<u8> = (0..length).map(|i: u32| i as u8).collect();
            for expected in [0, u64::from(length), 70_000] {
                assert_eq!(
                    read_bytes_within_memory_limit(&bytes[..], expected).unwrap(),
                    bytes
                );
            }
        }
        assert!(read_text(&b"a\xff"[..], 0).is_err());
    }
}
