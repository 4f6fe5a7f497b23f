//! Kernels that only move bytes, as listed in the operator's spec.

use super::{KernelCostSizesAndOptions, LoweredKernel, OperatorKernels, build_kernel};
use crate::generate::PatternOptionError;
use crate::model::{MemoryBoundKernelSpec, MemoryBoundKernelsByPass, OperatorAxesAndTensorsSpec};

impl KernelCostSizesAndOptions {
    /// Returns the kernels of an operator that has no matrix products.
    pub(super) fn kernels_without_products(
        &self,
        spec: &OperatorAxesAndTensorsSpec,
        kernels: &MemoryBoundKernelsByPass,
    ) -> Result<OperatorKernels, PatternOptionError> {
        // Look-ups in tables and reductions of logits keep their own kernels, even if others are fused.
        let fusible = !spec.looks_up_table_rows() && !spec.reduces_rows_to_numbers();
        let lower = |one: &MemoryBoundKernelSpec| {
            let sides = [one.reads, one.writes];
            let moved = sides.map(|(axes, each)| {
                let all = self.rows_per_micro_batch(spec.tensor_element_count(axes));
                all.saturating_mul(each.compute_bytes_per_element(self.number, self.gradient))
            });
            let moved = moved[0].saturating_add(moved[1]);
            let [from, to] = sides.map(|(axes, _)| self.tensor_axis_sizes(spec, axes));
            let kernel = build_kernel(one.suffix, 0, moved, &[&from], &[&to])?
                .with_memory_bound_class(one.class);
            let moves = kernel.moves && fusible;
            Ok(LoweredKernel { moves, ..kernel })
        };
        Ok(OperatorKernels {
            forward: kernels
                .forward
                .iter()
                .map(lower)
                .collect::<Result<_, _>>()?,
            backward: kernels
                .backward
                .iter()
                .map(lower)
                .collect::<Result<_, _>>()?,
            ..OperatorKernels::default()
        })
    }
}
