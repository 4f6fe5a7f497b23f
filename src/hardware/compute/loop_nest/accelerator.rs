//! Accelerators: levels of memory around an array of units, with Gemmini as one example.

use super::{LayerTensor, LoopDimension};
use chakram_base::units::{Bytes, Frequency};

/// Capacity of a memory level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLevelCapacity {
    /// The level has room for any layer.
    Unbounded,
    /// All tensors share this number of bytes.
    Shared(u64),
    /// Each tensor has this number of words of its own.
    Words(u64),
}

/// A level of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryLevel {
    /// Name of the level in reports.
    pub name: &'static str,
    /// True for each [`LayerTensor`] that the level can keep.
    pub keeps: [bool; 3],
    /// Capacity of the level.
    pub capacity: MemoryLevelCapacity,
    /// Bytes per cycle through the level's port, counting both directions, or `None` if the port never limits a
    /// mapping.
    pub bytes_per_cycle: Option<f64>,
    /// Energy of an access, in picojoules per byte.
    pub energy: f64,
}

/// Loop dimensions that run along the rows and along the columns of an array.
pub type RowAndColumnLoopDimensions = [LoopDimension; 2];

/// An accelerator: levels of memory, and an array of units.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopNestAccelerator {
    /// Levels, innermost first; the last level keeps all tensors.
    pub levels: Vec<MemoryLevel>,
    /// The number of inner levels of which each unit has its own copy. All units of the array share the outer levels.
    pub own_levels: usize,
    /// Numbers of rows and columns in the array of units.
    pub array: [u32; 2],
    /// Possible assignments of loop dimensions to rows and columns.
    pub choices: Vec<RowAndColumnLoopDimensions>,
    /// Bytes per word of each [`LayerTensor`]. For outputs, a word is a partial sum.
    pub word: [u64; 3],
    /// Bytes of a finished output in the outermost level.
    pub output_word: u64,
    /// Number of tiles of each tensor that must fit into a level at the same time: 2 if one tile is filled while
    /// another is used.
    pub buffering: u64,
    /// Energy of one multiplication with its addition, in picojoules.
    pub mac_energy: f64,
}

impl LoopNestAccelerator {
    /// Returns the number of units in the array.
    pub fn unit_count(&self) -> u64 {
        u64::from(self.array[0]) * u64::from(self.array[1])
    }
}

/// Gemmini (Genc et al., "Gemmini: Enabling Systematic Deep-Learning Architecture Evaluation via Full-Stack
/// Integration", DAC 2021) has an array of units, a scratchpad for weights and inputs, an accumulator memory for sums,
/// and main memory over a bus. Each unit has a register for a weight and a register for a sum.
///
/// Rows run along c and columns along k (weight stationary), or rows along p and columns along k (output stationary).
/// Energies are for 45 nm at 0.9 V (Horowitz, "Computing's Energy Problem", ISSCC 2014). An 8-bit multiplication takes
/// 0.2 pJ, and a 32-bit addition takes 0.1 pJ. An access to 64 bits of SRAM takes 10 pJ at 8 KiB, 20 pJ at 32 KiB and
/// 100 pJ at 1 MiB; other capacities are interpolated or extrapolated on logarithmic scales. An access to 64 bits of
/// DRAM takes 1.3 nJ. Registers take 0.42564 pJ per byte. This is Accelergy's value for a register file of 64 bytes,
/// from the outputs of Timeloop's tutorial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GemminiSettings {
    /// Numbers of rows and columns in the array.
    pub array: [u32; 2],
    /// Capacity of the scratchpad for weights and inputs.
    pub scratchpad: Bytes,
    /// Capacity of the accumulator memory for sums.
    pub accumulator: Bytes,
    /// Bandwidth of main memory, in bytes per second. `None` means Gemmini's system bus, which transfers 128 bit per
    /// cycle at any clock.
    pub bandwidth: Option<f64>,
    /// Cycles per second.
    pub clock: Frequency,
}

/// SRAM energies, as pairs (capacity in bytes, picojoules per byte).
const SRAM: [(f64, f64); 3] = [
    (8192.0, 10.0 / 8.0),
    (32768.0, 20.0 / 8.0),
    (1_048_576.0, 100.0 / 8.0),
];

/// Bytes per cycle of Gemmini's system bus, by default 128 bit wide (DAC 2021).
const BUS_BYTES_PER_CYCLE: f64 = 16.0;

/// Picojoules per byte of DRAM.
const DRAM: f64 = 1300.0 / 8.0;

/// Picojoules per byte of a register file.
const REGISTER: f64 = 0.42564;

impl GemminiSettings {
    /// Returns an array of `side` x `side` units at 700 MHz, with Gemmini's defaults: 256 KiB of scratchpad, 64 KiB of
    /// accumulator, and a main memory that transfers 128 bit per cycle. Returns `None` if `side` is 0 or above 1024.
    pub fn square_array(side: u32) -> Option<Self> {
        let clock = Frequency::new(700e6)?;
        (1..=1024).contains(&side).then_some(Self {
            array: [side; 2],
            scratchpad: Bytes(256 << 10),
            accumulator: Bytes(64 << 10),
            bandwidth: None,
            clock,
        })
    }

    /// Returns main memory's bandwidth in bytes per cycle.
    pub fn memory_bytes_per_cycle(&self) -> f64 {
        self.bandwidth
            .map_or(BUS_BYTES_PER_CYCLE, |rate| rate / self.clock.as_hertz())
    }

    /// Returns the accelerator's levels for operands of `word` bytes; sums have four bytes.
    pub fn build_accelerator(&self, word: u64) -> LoopNestAccelerator {
        use LoopDimension::{C, K, P};
        let [weights, inputs, outputs] = LayerTensor::ALL.map(|(tensor, _)| tensor as usize);
        let keeps = |all: &[usize]| std::array::from_fn(|tensor| all.contains(&tensor));
        let level = |name, keeps, capacity, bytes_per_cycle, energy| MemoryLevel {
            name,
            keeps,
            capacity,
            bytes_per_cycle,
            energy,
        };
        let buffer = |bytes: Bytes| {
            (
                MemoryLevelCapacity::Shared(bytes.0),
                sram_energy_per_byte(bytes.0 as f64),
            )
        };
        let (sums, sum_energy) = buffer(self.accumulator);
        let (pad, pad_energy) = buffer(self.scratchpad);
        let memory = Some(self.memory_bytes_per_cycle());
        LoopNestAccelerator {
            levels: vec![
                level(
                    "registers",
                    keeps(&[weights, outputs]),
                    MemoryLevelCapacity::Words(1),
                    None,
                    REGISTER,
                ),
                level("accumulator", keeps(&[outputs]), sums, None, sum_energy),
                level(
                    "scratchpad",
                    keeps(&[weights, inputs]),
                    pad,
                    None,
                    pad_energy,
                ),
                level(
                    "memory",
                    [true; 3],
                    MemoryLevelCapacity::Unbounded,
                    memory,
                    DRAM,
                ),
            ],
            own_levels: 1,
            array: self.array,
            choices: vec![[C, K], [P, K]],
            word: [word, word, word.max(4)],
            output_word: word,
            buffering: 2,
            mac_energy: 0.3,
        }
    }
}

/// Returns the energy per byte of an SRAM with a capacity of `bytes`, in picojoules.
fn sram_energy_per_byte(bytes: f64) -> f64 {
    let above = SRAM.iter().position(|(size, _)| *size >= bytes);
    let above = above.unwrap_or(SRAM.len() - 1).max(1);
    let ((small, low), (large, high)) = (SRAM[above - 1], SRAM[above]);
    let along = libm::log(bytes.max(1.0) / small) / libm::log(large / small);
    low * libm::pow(high / low, along)
}
