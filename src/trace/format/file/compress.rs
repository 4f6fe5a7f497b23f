//! Compresses files while they are written.

use std::io::Write;

/// Gzip-compressing writer.
pub struct GzipWriter<W: Write>(flate2::write::GzEncoder<W>);

impl<W: Write> GzipWriter<W> {
    /// Creates a writer that compresses into `out`.
    pub fn new(out: W) -> Self {
        Self(flate2::write::GzEncoder::new(
            out,
            flate2::Compression::default(),
        ))
    }

    /// Writes the remaining data and returns the inner writer.
    pub fn finish(self) -> std::io::Result<W> {
        self.0.finish()
    }
}

impl<W: Write> Write for GzipWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Writer that writes a file compressed or uncompressed.
pub enum MaybeCompressedWriter<W: Write> {
    /// No compression.
    Plain(W),
    /// The gzip format.
    Gzip(GzipWriter<W>),
    /// The zstd format, with a checksum.
    Zstd(zstd::stream::write::Encoder<'static, W>),
}

impl<W: Write> MaybeCompressedWriter<W> {
    /// Selects the compression by the file name's ending: `zst`, `gz` or neither.
    pub fn new(out: W, ending: &str) -> std::io::Result<Self> {
        Ok(match ending {
            "gz" => Self::Gzip(GzipWriter::new(out)),
            "zst" => {
                let mut encoder = zstd::stream::write::Encoder::new(out, 3)?;
                encoder.include_checksum(true)?;
                Self::Zstd(encoder)
            }
            _ => Self::Plain(out),
        })
    }

    /// Writes the remaining data and returns the inner writer.
    pub fn finish(self) -> std::io::Result<W> {
        match self {
            Self::Plain(out) => Ok(out),
            Self::Gzip(compressor) => compressor.finish(),
            Self::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl<W: Write> Write for MaybeCompressedWriter<W> {
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
