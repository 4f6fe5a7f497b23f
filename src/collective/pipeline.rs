//! How collectives are cut into chunks, and how these follow one another.

use super::flow_shop::Intra;
use super::schedule::Inter;
use std::fmt;
use std::num::NonZeroU32;

/// How collectives are cut into chunks, and how these follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// Chunks of a collective if all are equal; fewer where it has fewer bytes. A schedule that cuts them up
    /// ([`Inter::ThemisFlex`]) makes more.
    pub chunks: NonZeroU32,
    /// How many chunks of an NPU are in one dimension at once; in trees perhaps more.
    pub active: NonZeroU32,
    /// In which order each chunk visits the dimensions.
    pub inter: Inter,
    /// Which of the chunks that wait for a dimension is next.
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
