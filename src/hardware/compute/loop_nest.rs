//! Loop nests on a systolic accelerator: cycles, accesses and energy of a mapping of a layer.
//!
//! A layer is seven loops around a multiply-accumulate: images n, output channels k, input channels c, outputs p along a row
//! and q along a column, weights r and s (a matrix product m × k by k × n has p = m, c = k, k = n). An accelerator is levels
//! of memory, innermost first, with an array of units between two of them. A mapping divides each loop among levels and the
//! array, orders the loops of each level, and says which tensors each level keeps; what it does not keep passes by.
//!
//! # Cycles
//!
//! A unit does one multiplication a cycle, and memories work beside it (double buffering), so with the bounds T of loops in
//! time, and of each level l the bytes b that pass its port at B_l bytes a cycle,
//!
//! cycles = max(Π T, max_l b_l / B_l).
//!
//! # Accesses
//!
//! A level holds a *tile* of each tensor, the box that the loops inside touch. It changes when a loop outside moves that the
//! tensor depends on. Then the words of the new tile are filled from the next level outside that keeps the tensor; of tiles
//! that overlap, as windows of inputs do, only the new words, if the innermost such loop went one step on. Filled words are
//! read there once for all units that need them (multicast). Each multiplication reads its operands from the innermost
//! level that keeps them, and updates an output there, after a sum over units that have the same. An output tile that
//! leaves updates the next level, summed over units likewise; one that comes back is filled again. The first update of an
//! output reads nothing, and reads that drain a tile are part of the updates outside. These are the conventions of Timeloop
//! (Parashar et al., ISPASS 2019), whose published tutorial the tests hold this against.
//!
//! Where loops do not divide a layer, they cover more, and the rest is zeros that are moved and multiplied as numbers are.
//!
//! # Energy
//!
//! Σ over levels of bytes accessed × energy of a byte, and multiplications × energy of one. See [`LoopNestAccelerator`] for
//! where the numbers come from. [`LoopNestModel`] has it for kernels and layers alike: chip schedules, replays and sweeps
//! ask there.

mod accelerator;
mod access;
mod layer;
mod search;

pub use accelerator::{
    GemminiSettings, LevelCapacity, LoopNestAccelerator, MemoryLevel, SpatialChoice,
};
pub use access::{LevelAccesses, MappingCost};
pub use layer::{LayerShape, LayerTensor, LoopDimension};
pub use search::{FoundMapping, search_mapping};

use super::KernelProfile;
use chakram_base::dtype::Dtype;
use chakram_base::kernel_shape::KernelShape;
use chakram_base::units::Span;

/// A bound loop: what it counts, and how often it goes around.
pub type BoundLoop = (LoopDimension, u64);

/// Division of a layer's loops among an accelerator's levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopMapping {
    /// Loops in time by level, innermost level first; of a level the outermost loop first.
    pub temporal: Vec<Vec<BoundLoop>>,
    /// Loops over the rows and the columns of the array.
    pub spatial: [BoundLoop; 2],
    /// By level, which tensors it keeps, by [`LayerTensor`]; the outermost keeps all.
    pub keeps: Vec<[bool; 3]>,
}

/// Pricing of kernels by the best mapping that a search finds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoopNestModel {
    /// The accelerator.
    pub gemmini: GemminiSettings,
    /// Mappings that are looked at for each kernel.
    pub mappings: u32,
    /// Seed of what is drawn.
    pub seed: u64,
}

/// Cycles and energy of work on an accelerator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoopNestPrice {
    /// Cycles.
    pub cycles: u64,
    /// Energy in picojoules.
    pub energy: f64,
}

impl LoopNestPrice {
    /// The price of the same work so many times.
    fn times(self, times: u64) -> Self {
        Self {
            cycles: self.cycles.saturating_mul(times),
            energy: self.energy * times as f64,
        }
    }

    /// The price of both, one after the other.
    fn and(self, other: Self) -> Self {
        Self {
            cycles: self.cycles.saturating_add(other.cycles),
            energy: self.energy + other.energy,
        }
    }
}

impl LoopNestModel {
    /// Price of a layer whose numbers have `word` bytes, by its best mapping; `None` if no mapping that was drawn can be.
    pub fn layer(&self, layer: &LayerShape, word: u64) -> Option<LoopNestPrice> {
        let accelerator = self.gemmini.accelerator(word);
        let found = search_mapping(&accelerator, layer, self.mappings, self.seed)?;
        Some(LoopNestPrice {
            cycles: found.cost.cycles,
            energy: found.cost.energy,
        })
    }

    /// Time that so many cycles take.
    pub fn time(&self, price: LoopNestPrice) -> Span {
        self.gemmini.clock.cycles(price.cycles)
    }

    /// Price of `kernel`: of a product of matrices, and of the two of attention, by the best mapping; of anything else by
    /// its operations on all units, or its bytes from memory, whichever takes longer, and with the energy of both. `None`
    /// if it has neither.
    pub fn price(&self, kernel: &KernelProfile) -> Option<LoopNestPrice> {
        let word = word(kernel.dtype);
        let mapped = |layer: LayerShape, times: u64| Some(self.layer(&layer, word)?.times(times));
        let of_shape = match kernel.shape {
            Some(KernelShape::Gemm { batch, m, n, k }) => {
                LayerShape::product([m, n, k]).and_then(|layer| mapped(layer, batch))
            }
            Some(KernelShape::Attention {
                batch,
                heads,
                queries,
                keys,
                width,
                backward,
                ..
            }) => {
                // Scores, and values weighted by them; backward their gradients and those of all three inputs.
                let times = batch.saturating_mul(heads) * if backward { 2 } else { 1 };
                let scores = LayerShape::product([queries, keys, width]);
                let values = LayerShape::product([queries, width, keys]);
                let both = scores.zip(values).and_then(|(scores, values)| {
                    Some(mapped(scores, times)?.and(mapped(values, times)?))
                });
                // Backward a fifth product beside these four.
                both.map(|both| match backward {
                    true => both.and(LoopNestPrice {
                        cycles: both.cycles / 4,
                        energy: both.energy / 4.0,
                    }),
                    false => both,
                })
            }
            _ => None,
        };
        if of_shape.is_some() {
            return of_shape;
        }
        if kernel.flops == 0 && kernel.bytes == 0 {
            return None;
        }
        let accelerator = self.gemmini.accelerator(word);
        let multiplied = kernel.flops.div_ceil(2 * accelerator.units());
        let moved = kernel.bytes as f64 / self.gemmini.bytes_per_cycle();
        let memory = accelerator.levels.last().map_or(0.0, |level| level.energy);
        Some(LoopNestPrice {
            cycles: multiplied.max(moved.ceil() as u64),
            energy: kernel.flops as f64 / 2.0 * accelerator.mac_energy
                + kernel.bytes as f64 * memory,
        })
    }
}

/// Bytes of a number; one where the format is not known, as Gemmini has by default.
fn word(dtype: Option<Dtype>) -> u64 {
    match dtype {
        Some(Dtype::Fp64) => 8,
        Some(Dtype::Fp32 | Dtype::Tf32) => 4,
        Some(Dtype::Fp16 | Dtype::Bf16) => 2,
        Some(Dtype::Fp8 | Dtype::Int8 | Dtype::Fp4) | None => 1,
    }
}

#[cfg(test)]
mod tests;
