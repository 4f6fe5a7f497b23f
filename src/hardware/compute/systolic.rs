//! Systolic arrays: the cycles that a matrix product takes. A partly filled array takes as long as a full one.
//!
//! An array of R x C multiply-accumulate units computes R x C results at the same time, each in one
//! unit. A product of m x k by k x n takes (Samajdar et al., "SCALE-Sim: Systolic CNN Accelerator
//! Simulator", 2018, output stationary)
//!
//! (2R + C + k − 2) ⌈m / (P R)⌉ ⌈n / (Q C)⌉ cycles
//!
//! on P x Q such arrays. Operands take R + C − 2 cycles of skew to enter and k cycles to be multiplied and summed, and
//! results take R cycles to drain. The last results may not fill an array but still take a full array's time, so small
//! matrix multiplications are inefficient.

use chakram_base::units::{Frequency, Span};

/// The systolic arrays of a core, and their clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SystolicArrays {
    /// Rows and columns of an array, at least 1.
    pub array: [u32; 2],
    /// Number of arrays along the rows of a result, and along its columns; each is at least 1.
    pub arrays: [u32; 2],
    /// Cycles per second.
    pub clock: Frequency,
}

impl SystolicArrays {
    /// Returns the time of `batch` multiplications of an `m` x `k` by a `k` x `n` matrix, or `None` if the number of
    /// cycles overflows.
    pub fn matmul_duration(&self, batch: u64, [m, n, k]: [u64; 3]) -> Option<Span> {
        let [rows, columns] = self.array.map(u64::from);
        let parts = |size: u64, along: usize| {
            let at_once = u64::from(self.array[along]).checked_mul(self.arrays[along].into())?;
            Some(size.div_ceil(at_once.max(1)))
        };
        let fold = (2 * rows + columns).checked_add(k)?.checked_sub(2)?;
        let folds = parts(m, 0)?.checked_mul(parts(n, 1)?)?;
        let cycles = fold.checked_mul(folds)?.checked_mul(batch)?;
        Some(self.clock.time_for_cycles(cycles))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_32x16_systolic_arrays(arrays: [u32; 2]) -> SystolicArrays {
        SystolicArrays {
            array: [32, 16],
            arrays,
            clock: Frequency::new(1e9).unwrap(),
        }
    }

    /// At 1 GHz a cycle is 1 ns.
    #[test]
    fn matmul_duration_is_cycles_per_fold_times_folds() {
        for (count, batch, [m, n, k], cycles) in [
            // One fold takes 2 x 32 + 16 + 100 - 2 = 178 cycles.
            ([1, 1], 1, [32, 16, 100], 178),
            // One more row of the matrix needs another fold, which takes as long as a full one.
            ([1, 1], 1, [33, 16, 100], 2 * 178),
            ([1, 1], 1, [64, 32, 100], 4 * 178),
            // A product that fills four arrays runs on 2 x 2 arrays in parallel.
            ([2, 2], 1, [64, 32, 100], 178),
            ([2, 2], 3, [65, 33, 100], 3 * 4 * 178),
        ] {
            let found = build_32x16_systolic_arrays(count).matmul_duration(batch, [m, n, k]);
            assert_eq!(found, Some(Span::from_ns(cycles)), "{count:?} {m} {n} {k}");
        }
        assert_eq!(
            build_32x16_systolic_arrays([1, 1]).matmul_duration(u64::MAX, [64, 64, 64]),
            None
        );
    }
}
