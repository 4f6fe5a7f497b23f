//! Time of a GEMM, modelled by tiles and waves: `batch` multiplications of an `m x k` by a `k x n` matrix. A
//! multiprocessor computes one tile at a time.
//!
//! `d` is the number of bytes per operand element, and `r = efficiency peak / multiprocessors` is the FLOP/s of one
//! multiprocessor. For each tile size `a x b` and each split of `k` into `s` parts:
//!
//! ```text
//! step  = ((2ab / r)^6 + ((a + b) d / operands)^6)^(1/6)         a tile, each unit of k
//! waves = ceil(ceil(m / a) ceil(n / b) batch s / multiprocessors)
//! T     = waves (max(k, 32) / s step + ab w / results)           w = 2 bytes of a result, 4 of a partial sum
//! M     = batch (d (mk + kn) + 2mn) / (memory fraction x bandwidth)
//! u     = start + min over tiles and splits of (T^4 + M^4)^(1/4) + (reduction if s > 1)
//! t     = u (1 + slower u / (u + after))
//! ```
//!
//! The term `ab w / results` is the time to fill and drain a tile, which no other work hides. The powers combine times
//! that overlap imperfectly. The last line applies only to NPU classes with a slowdown: if a multiplication lasts for
//! milliseconds, the NPU reaches its power limit and reduces its clock rate.

use chakram_base::units::Bandwidth;

/// Slowdown of matrix multiplications that last long enough to reach the power limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongGemmPowerLimitSlowdown {
    /// Slowdown of the longest matrix multiplications, as a fraction.
    pub slower: f64,
    /// Duration, in seconds, at which a multiplication reaches half of the slowdown.
    pub after: f64,
}

/// Constants of GEMMs on an NPU class in one number format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GemmTimeCurve {
    /// Duration of the shortest GEMM, in seconds.
    pub start: f64,
    /// Fraction of the peak that the inner loop of a tile reaches.
    pub efficiency: f64,
    /// Number of multiprocessors; each computes one tile at a time.
    pub multiprocessors: f64,
    /// Rate at which each multiprocessor reads operands, in bytes per second.
    pub operands: f64,
    /// Rate at which each multiprocessor writes results, in bytes per second.
    pub results: f64,
    /// Fraction of the memory's bandwidth that GEMMs reach.
    pub memory: f64,
    /// Seconds that it takes to sum up the parts of a split GEMM.
    pub reduction: f64,
    /// Relative error of the curve's durations, one standard deviation.
    pub error: f64,
    /// True if the curve is that of other makers' NPUs. The error is then that of all sizes together, and not that of a
    /// single size.
    pub is_carried_over: bool,
    /// Slowdown of long matrix multiplications that reach the power limit, or `None` if unknown.
    pub throttling: Option<LongGemmPowerLimitSlowdown>,
}

/// The time that a GEMM's curve gives, with the intermediate values that [`MeasuredGemms`](super::MeasuredGemms)
/// compares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GemmTimeWithIntermediateValues {
    /// Duration that the curve gives, in seconds.
    pub seconds: f64,
    /// Memory time (`M` in the module documentation) divided by the time of the best tile.
    pub memory_part: f64,
    /// For the best tile: number of tiles divided by the number of multiprocessors, before rounding up.
    pub waves: f64,
    /// Number of the NPU's multiprocessors.
    pub multiprocessors: f64,
}

/// Sizes of the tiles that a library may use, as (rows, columns).
const TILES: [[f64; 2]; 6] = [
    [256.0, 128.0],
    [128.0, 256.0],
    [128.0, 128.0],
    [128.0, 64.0],
    [64.0, 128.0],
    [64.0, 64.0],
];
/// Numbers of parts into which `k` is split.
const SPLITS: [f64; 6] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
/// Minimum size of `k` in each part of a split GEMM.
const LEAST_PART: f64 = 128.0;
/// If `k` is smaller than this, a tile's loop takes as long as with this value.
const LEAST_LOOP: f64 = 32.0;
/// Bytes per element of the result, and per element of a partial sum.
const RESULT: [f64; 2] = [2.0, 4.0];

/// Combines two times that overlap imperfectly, by their norm of order 4.
pub(super) fn norm_of_order_4(a: f64, b: f64) -> f64 {
    let (a, b) = (a * a, b * b);
    (a * a + b * b).sqrt().sqrt()
}

/// Combines two times that overlap imperfectly, by their norm of order 6.
fn norm_of_order_6(a: f64, b: f64) -> f64 {
    let (a, b) = (a * a * a, b * b * b);
    libm::cbrt((a * a + b * b).sqrt())
}

impl GemmTimeCurve {
    /// Returns the time, in seconds, of a GEMM with the sizes `[batch, m, n, k]` and operands of `element` bytes, at
    /// `peak` operations per second.
    pub fn predict_seconds(
        &self,
        sizes: [u64; 4],
        element: f64,
        peak: f64,
        memory: Bandwidth,
    ) -> f64 {
        self.estimate_gemm_with_intermediate_values(sizes, element, peak, memory)
            .seconds
    }

    /// Computes the same time as [`Self::predict_seconds`], and also returns the intermediate values.
    pub fn estimate_gemm_with_intermediate_values(
        &self,
        sizes: [u64; 4],
        element: f64,
        peak: f64,
        memory: Bandwidth,
    ) -> GemmTimeWithIntermediateValues {
        let [batch, m, n, k] = sizes.map(|size| size as f64);
        let rate = self.efficiency * peak / self.multiprocessors;
        let moved = batch * (element * (m * k + k * n) + RESULT[0] * m * n);
        let memory = moved / (self.memory * memory.bytes_per_second());
        let (mut best, mut best_waves) = (f64::INFINITY, 1.0);
        for [a, b] in TILES {
            let step = norm_of_order_6(2.0 * a * b / rate, (a + b) * element / self.operands);
            for split in SPLITS {
                let splits = split > 1.0;
                if splits && (batch > 1.0 || k / split < LEAST_PART) {
                    break;
                }
                let tiles = (m / a).ceil() * (n / b).ceil() * batch * split;
                let waves = tiles / self.multiprocessors;
                let end = a * b * RESULT[usize::from(splits)] / self.results;
                let time = waves.ceil() * (k.max(LEAST_LOOP) / split * step + end);
                let sum = if splits { self.reduction } else { 0.0 };
                let time = norm_of_order_4(time, memory) + sum;
                if time < best {
                    (best, best_waves) = (time, waves);
                }
            }
        }
        let time = self.start + best;
        let seconds = match self.throttling {
            Some(limit) => time * (1.0 + limit.slower * time / (time + limit.after)),
            None => time,
        };
        GemmTimeWithIntermediateValues {
            seconds,
            memory_part: memory / best,
            waves: best_waves,
            multiprocessors: self.multiprocessors,
        }
    }
}
