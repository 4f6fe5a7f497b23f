//! Loop nests on a systolic accelerator: the cycles, accesses and energy of a layer's mapping.
//!
//! A layer consists of seven loops around a multiply-accumulate: images n, output channels k, input channels c, outputs
//! p along a row and q along a column, weights r along a row and s along a column. (A matrix product of M × K by K × N
//! has p = M, c = K, k = N.). An accelerator has levels of memory, numbered from the innermost, and an array of units
//! between two of these levels. A mapping divides each loop among the levels and the array, orders the loops of each
//! level, and selects the tensors that each level keeps. All other tensors bypass the level.
//!
//! # Cycles
//!
//! A unit does one multiplication per cycle, while the memories transfer data (double buffering). The loops that run in
//! time have the bounds T, and b_l bytes pass through the port of each memory level l at B_l bytes per cycle. The
//! number of cycles is
//!
//! cycles = max(Π T, max_l b_l / B_l).
//!
//! # Accesses
//!
//! A level keeps a *tile* of each tensor: the box that the inner loops touch. A tile changes when an outer loop that
//! the tensor depends on advances. The new tile's words are then filled from the next outer level that keeps the
//! tensor. Tiles may overlap, as input windows do. If the innermost loop that the tensor depends on advanced by one
//! step, only the new words are filled. Filled words are read from the outer level once for all units that need them
//! (multicast). Each multiplication reads its operands from the innermost levels that keep them. It then updates an
//! output in the innermost level that keeps outputs, after a sum over the units that share the output. When an output
//! tile leaves a level, it is summed over the units and updates the next level. If the tile returns, it is filled
//! again. The first update of an output reads nothing. The reads that drain a tile count as part of the outer level's
//! updates, not separately. These rules for counting reads and updates are the conventions of Timeloop (Parashar et
//! al., ISPASS 2019); tests compare with Timeloop's published tutorial.
//!
//! If the loop bounds do not divide a layer's sizes, the loops cover more than the layer. The excess is zeros, which
//! are moved and multiplied like other numbers.
//!
//! # Energy
//!
//! Energy is the sum, over all levels, of bytes accessed × energy per byte, plus multiplications × energy per
//! multiplication. [`GemminiSettings`] documents where the energies come from. [`LoopNestModel`] computes durations of
//! kernels and layers for chip schedules, replays and sweeps.

mod accelerator;
mod access;
mod layer;
mod search;

pub use accelerator::{
    GemminiSettings, LoopNestAccelerator, MemoryLevel, MemoryLevelCapacity,
    RowAndColumnLoopDimensions,
};
pub use access::{MappingCost, TensorLevelAccesses};
pub use layer::{LayerShape, LayerTensor, LoopDimension};
pub use search::{BestMapping, search_mapping};

use super::KernelTraceFacts;
use chakram_base::dtype::Dtype;
use chakram_base::kernel_shape::KernelShape;
use chakram_base::units::Span;

/// A loop's dimension and its number of iterations.
pub type LoopDimensionBound = (LoopDimension, u64);

/// How a layer's loops are assigned to an accelerator's levels and array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopMapping {
    /// Loops that run in time, by level. The innermost level comes first; within a level, the outermost loop comes
    /// first.
    pub temporal: Vec<Vec<LoopDimensionBound>>,
    /// Loops over the rows and the columns of the array.
    pub spatial: [LoopDimensionBound; 2],
    /// For each level, the tensors ([`LayerTensor`]) that it keeps; the outermost level keeps all of them.
    pub keeps: Vec<[bool; 3]>,
}

/// Model that computes a kernel's time and energy from the best mapping found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoopNestModel {
    /// Accelerator that executes the kernels; the search maps loops to its levels and array.
    pub gemmini: GemminiSettings,
    /// Number of mappings that the search tries for each kernel. Trying more mappings takes longer and never gives a
    /// worse result.
    pub mappings: u32,
    /// Seed of the search's random mappings.
    pub seed: u64,
}

/// Cycles and energy of a kernel or layer on an accelerator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoopNestCost {
    /// Cycles until all multiplications and transfers have ended.
    pub cycles: u64,
    /// Energy in picojoules.
    pub energy: f64,
}

impl LoopNestCost {
    /// Returns the cycles and energy of the work repeated `times` times.
    fn multiply_by(self, times: u64) -> Self {
        Self {
            cycles: self.cycles.saturating_mul(times),
            energy: self.energy * times as f64,
        }
    }

    /// Returns the cycles and energy of `self` followed by `other`.
    fn add_cost(self, other: Self) -> Self {
        Self {
            cycles: self.cycles.saturating_add(other.cycles),
            energy: self.energy + other.energy,
        }
    }
}

impl LoopNestModel {
    /// Returns the cycles and energy that a layer takes with its best mapping. The layer's numbers have `word` bytes
    /// each. Returns `None` if none of the tried mappings fits the accelerator.
    pub fn cost_of_best_mapping(&self, layer: &LayerShape, word: u64) -> Option<LoopNestCost> {
        let accelerator = self.gemmini.build_accelerator(word);
        let found = search_mapping(&accelerator, layer, self.mappings, self.seed)?;
        Some(LoopNestCost {
            cycles: found.cost.cycles,
            energy: found.cost.energy,
        })
    }

    /// Converts the cycles of `price` to time.
    pub fn convert_cycles_to_time(&self, price: LoopNestCost) -> Span {
        self.gemmini.clock.time_for_cycles(price.cycles)
    }

    /// Returns the cycles and energy of `kernel`. Matrix multiplications, including both multiplications of attention,
    /// use the best mapping. Any other kernel takes the longer of two times: the time of its operations on all units,
    /// or the time of its memory traffic. Its energy is the sum of both. Returns `None` if the kernel has neither
    /// operations nor bytes.
    pub fn price_kernel(&self, kernel: &KernelTraceFacts) -> Option<LoopNestCost> {
        let word = word_bytes(kernel.dtype);
        let mapped = |layer: LayerShape, times: u64| {
            Some(self.cost_of_best_mapping(&layer, word)?.multiply_by(times))
        };
        let of_shape = match kernel.shape {
            Some(KernelShape::Gemm { batch, m, n, k }) => {
                LayerShape::from_matrix_product([m, n, k]).and_then(|layer| mapped(layer, batch))
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
                // Attention consists of two matrix multiplications. The first computes the scores, and the second sums
                // the values, weighted by the scores. The backward pass has five matrix multiplications: the scores
                // again, and the gradients of the scores and of the three inputs.
                let times = batch.saturating_mul(heads) * if backward { 2 } else { 1 };
                let scores = LayerShape::from_matrix_product([queries, keys, width]);
                let values = LayerShape::from_matrix_product([queries, width, keys]);
                let both = scores.zip(values).and_then(|(scores, values)| {
                    Some(mapped(scores, times)?.add_cost(mapped(values, times)?))
                });
                // Add the fifth matrix multiplication of the backward pass; it costs a quarter of the other four
                // together.
                both.map(|both| match backward {
                    true => both.add_cost(LoopNestCost {
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
        let accelerator = self.gemmini.build_accelerator(word);
        let multiplied = kernel.flops.div_ceil(2 * accelerator.unit_count());
        let moved = kernel.bytes as f64 / self.gemmini.memory_bytes_per_cycle();
        let memory = accelerator.levels.last().map_or(0.0, |level| level.energy);
        Some(LoopNestCost {
            cycles: multiplied.max(moved.ceil() as u64),
            energy: kernel.flops as f64 / 2.0 * accelerator.mac_energy
                + kernel.bytes as f64 * memory,
        })
    }
}

/// Returns the size of a number in bytes. If the format is unknown, the result is 1, Gemmini's default.
fn word_bytes(dtype: Option<Dtype>) -> u64 {
    match dtype {
        Some(Dtype::Fp64) => 8,
        Some(Dtype::Fp32 | Dtype::Tf32) => 4,
        Some(Dtype::Fp16 | Dtype::Bf16) => 2,
        Some(Dtype::Fp8 | Dtype::Int8 | Dtype::Fp4) | None => 1,
    }
}

#[cfg(test)]
mod tests;
