//! Compressing files on their way out.

use std::io::Write;

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
