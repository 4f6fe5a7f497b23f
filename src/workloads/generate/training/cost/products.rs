//! Kernels of products that are not matrix multiplications: products of windows over images, and
//! dot products of vector pairs.

use super::{KernelCostSizesAndOptions, OperatorKernels, build_kernel};
use crate::generate::PatternOptionError;
use crate::model::OperatorAxesAndTensorsSpec;

impl KernelCostSizesAndOptions {
    /// Returns the kernels of an operator's product: one forward kernel, and one for the gradient of each factor.
    pub(super) fn matrix_product_kernels(
        &self,
        spec: &OperatorAxesAndTensorsSpec,
    ) -> Result<OperatorKernels, PatternOptionError> {
        let [d, g] = [self.number, self.gradient].map(u128::from);
        let counted = spec.products.iter().filter(|one| one.multiplies);
        let multiplied = counted.map(|one| {
            let over = spec.tensor_element_count(one.over);
            self.rows_per_micro_batch(spec.tensor_element_count(one.result))
                .saturating_mul(over)
        });
        let flops = multiplied.fold(0, u128::saturating_add).saturating_mul(2);
        let [input, output] = [&spec.inputs, &spec.outputs]
            .map(|all| self.rows_per_micro_batch(spec.sum_tensor_volumes(all)));
        let sizes = |axes: &&'static str| self.tensor_axis_sizes(spec, axes);
        let x: Vec<Vec<u128>> = spec.inputs.iter().map(sizes).collect();
        let y: Vec<Vec<u128>> = spec.outputs.iter().map(sizes).collect();
        // Only the filters count as weights, because adding the bias takes no extra time.
        let weights = spec.weights.first().map(|one| one.axes);
        let held = weights.map_or(0, |axes| spec.tensor_element_count(axes));
        let w = weights.map(|axes| {
            axes.chars()
                .map(|axis| spec.extent_of_axis(axis).into())
                .collect()
        });
        let w: Vec<Vec<u128>> = w.into_iter().collect();
        let moved = d.saturating_mul(input.saturating_add(held).saturating_add(output));
        let found = g * if self.sums { 2 } else { 1 };
        let product =
            |suffix, times: u128, moved: u128, from: [&Vec<Vec<u128>>; 2], to: &Vec<Vec<u128>>| {
                let from: Vec<&[u128]> = from.into_iter().flatten().map(Vec::as_slice).collect();
                let to: Vec<&[u128]> = to.iter().map(Vec::as_slice).collect();
                build_kernel(suffix, flops.saturating_mul(times), moved, &from, &to)
            };
        let forward = vec![product("", 1, moved, [&x, &w], &y)?];
        let (backward, weights) = if w.is_empty() {
            // Both factors are results of other operators, so both need gradients. A single kernel computes both.
            let moved = moved.saturating_mul(2);
            (product("", 2, moved, [&y, &x], &x)?, None)
        } else {
            let moved_weights = d
                .saturating_mul(input.saturating_add(output))
                .saturating_add(found.saturating_mul(held));
            (
                product(".dgrad", 1, moved, [&y, &w], &x)?,
                Some(product(".wgrad", 1, moved_weights, [&x, &y], &w)?),
            )
        };
        Ok(OperatorKernels {
            forward,
            backward: vec![backward],
            weights,
            ..OperatorKernels::default()
        })
    }
}
