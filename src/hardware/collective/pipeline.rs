//! How collectives are split into chunks: the number, order and overlap of chunks.

use super::flow_shop::WaitingChunkPriority;
use super::inter_dimension::DimensionVisitOrder;
use std::fmt;
use std::num::NonZeroU32;

/// The number, order and overlap of a collective's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkCountOrderAndOverlap {
    /// Number of chunks into which a collective is split if all chunks are equal. A collective never has more chunks
    /// than bytes. [`DimensionVisitOrder::ThemisFlex`] splits chunks further. If `None`, a number is chosen for each
    /// collective (`chunk_count.rs`).
    pub chunks: Option<NonZeroU32>,
    /// Maximum number of chunks that an NPU has in one dimension at the same time. Trees allow more chunks.
    pub active: NonZeroU32,
    /// Order in which each chunk visits the dimensions.
    pub inter: DimensionVisitOrder,
    /// Priority among the chunks that wait for a dimension.
    pub intra: WaitingChunkPriority,
}

impl ChunkCountOrderAndOverlap {
    /// Maximum number of equal chunks into which a collective is divided.
    pub const MOST_CHUNKS: u32 = 1 << 12;
}

impl fmt::Display for ChunkCountOrderAndOverlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.chunks {
            Some(chunks) => write!(f, "{chunks} chunks")?,
            None => f.write_str("as many chunks as each collective takes")?,
        }
        if self.active.get() > 1 {
            write!(f, ", {} at once", self.active)?;
        }
        let inter = DimensionVisitOrder::ALL
            .iter()
            .find(|(inter, _)| *inter == self.inter);
        let intra = WaitingChunkPriority::ALL
            .iter()
            .find(|(intra, _)| *intra == self.intra);
        if let (Some((_, inter)), true) = (inter, self.inter != DimensionVisitOrder::default()) {
            write!(f, ", {inter}")?;
        }
        if let (Some((_, intra)), true) = (intra, self.intra != WaitingChunkPriority::default()) {
            write!(f, ", {intra}")?;
        }
        Ok(())
    }
}

impl Default for ChunkCountOrderAndOverlap {
    /// Leaves the number of chunks open, to be chosen for each collective.
    fn default() -> Self {
        Self {
            chunks: None,
            active: NonZeroU32::MIN,
            inter: DimensionVisitOrder::Ascending,
            intra: WaitingChunkPriority::Fifo,
        }
    }
}
