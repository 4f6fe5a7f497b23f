//! Chunking of collectives: number, order and overlap of chunks.

use super::flow_shop::Intra;
use super::schedule::Inter;
use std::fmt;
use std::num::NonZeroU32;

/// Chunking of collectives: number, order and overlap of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// Number of chunks of a collective if all are equal; fewer if it has fewer bytes. [`Inter::ThemisFlex`] splits
    /// them further.
    pub chunks: NonZeroU32,
    /// Number of chunks of an NPU in one dimension at once; trees may have more.
    pub active: NonZeroU32,
    /// Order in which each chunk visits the dimensions.
    pub inter: Inter,
    /// Priority among the chunks that wait for a dimension.
    pub intra: Intra,
}

impl Pipeline {
    /// The most equal chunks of a collective.
    pub const MOST_CHUNKS: u32 = 1 << 12;
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} chunks", self.chunks)?;
        if self.active.get() > 1 {
            write!(f, ", {} at once", self.active)?;
        }
        let inter = Inter::ALL.iter().find(|(inter, _)| *inter == self.inter);
        let intra = Intra::ALL.iter().find(|(intra, _)| *intra == self.intra);
        if let (Some((_, inter)), true) = (inter, self.inter != Inter::default()) {
            write!(f, ", {inter}")?;
        }
        if let (Some((_, intra)), true) = (intra, self.intra != Intra::default()) {
            write!(f, ", {intra}")?;
        }
        Ok(())
    }
}

impl Default for Pipeline {
    /// One chunk.
    fn default() -> Self {
        Self {
            chunks: NonZeroU32::MIN,
            active: NonZeroU32::MIN,
            inter: Inter::Ascending,
            intra: Intra::Fifo,
        }
    }
}
