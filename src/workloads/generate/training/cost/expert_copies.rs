//! Kernels that copy tokens on a rank with several experts, and kernels that add these experts'
//! biases to their results.
//!
//! After an all-to-all with one copy of a token per expert, a rank has the copies of each sender in the order of its
//! own experts. It must first sort all copies by expert. Before the results return, it sorts them by receiver again.
//! Transformer Engine's 8-bit products need a multiple of 16 or 32 rows. So Megatron-LM pads the rows of each expert
//! before the first product, and removes the padding after the last one. With `r` copies of tokens with `h` columns:
//!
//! | kernel | where | bytes |
//! |---|---|---|
//! | `sort` | after and before each all-to-all | `2d rh` |
//! | `pad`, `unpad` | 8-bit products, one by one | `2d rh` |
//!
//! For each expert, Megatron-LM's `TEGroupedMLP` multiplies the bias of the last product by the
//! scores and adds it to the results; then it joins all results (`_apply_bias`). For an expert with
//! `n` rows and `m` outputs:
//!
//! | kernel | launches | bytes |
//! |---|---|---|
//! | `bias.scale`, `bias.add` | one per expert | `d nm`, `3d nm` |
//! | `bias.join` | one | `2d` per output of all experts |
//! | `bias.scale`, `bias.sum` backward | one per expert | `2d nm`, `d nm` |
//! | `bias.scores`, `bias.scores.sum` backward | one per expert | `2d nm`, `d nm` |
//!
//! If experts limit the inputs of their activation, as in GPT-OSS, Megatron-LM limits both inputs of the gate by
//! separate kernels and joins them; a fused kernel then computes the activation (`weighted_bias_quick_geglu_impl`). For
//! `n` rows of `m` outputs of all experts:
//!
//! | kernel | bytes |
//! |---|---|
//! | `clamp.gate`, `clamp.up` | `2d nm` each |
//! | `clamp.join` | `4d nm` |
//! | `clamp.gate`, `clamp.up` backward | `3d nm` each |
//! | `clamp.join` backward | `4d nm` |

use super::{KernelCostSizesAndOptions, LoweredKernel, OperatorKernels, build_kernel};
use crate::generate::PatternOptionError;
use chakram_trace::format::MemoryBoundKernelClass;

impl KernelCostSizesAndOptions {
    /// Returns the kernels that sort `rows` copies of `width` columns by expert, and the kernels
    /// that sort results by receiver. `pads` adds kernels that pad the rows for 8-bit products.
    pub fn kernels_sorting_copies_by_expert_and_back(
        &self,
        [rows, width]: [u128; 2],
        pads: bool,
    ) -> Result<[Vec<LoweredKernel>; 2], PatternOptionError> {
        let x = [rows, width];
        let copy = |suffix| {
            let moved = 2 * u128::from(self.number) * rows * width;
            let kernel = build_kernel(suffix, 0, moved, &[&x], &[&x])?;
            Ok::<_, PatternOptionError>(
                kernel.with_memory_bound_class(MemoryBoundKernelClass::Copy),
            )
        };
        let (mut by_expert, mut by_receiver) = (vec![copy(".sort")?], vec![copy(".sort")?]);
        if pads && self.casts_operands() {
            by_expert.push(copy(".pad")?);
            by_receiver.insert(0, copy(".unpad")?);
        }
        Ok([by_expert, by_receiver])
    }

    /// Appends the kernels that add an expert's bias to results with `rows` rows and `outputs`
    /// columns.
    pub(super) fn add_expert_bias_kernels(
        &self,
        [rows, outputs]: [u128; 2],
        kernels: &mut OperatorKernels,
    ) -> Result<(), PatternOptionError> {
        let x = [rows, outputs];
        let elements = u128::from(self.number) * rows * outputs;
        let one = |suffix, times: u128, to: &[u128]| {
            let kernel = build_kernel(suffix, 0, times * elements, &[&x], &[to])?;
            Ok::<_, PatternOptionError>(
                kernel.with_memory_bound_class(MemoryBoundKernelClass::ElementWise),
            )
        };
        kernels.forward.push(one(".bias.scale", 1, &x)?);
        kernels.forward.push(one(".bias.add", 3, &x)?);
        let backward = [
            one(".bias.scale", 2, &x)?,
            one(".bias.sum", 1, &[outputs])?,
            one(".bias.scores", 2, &x)?,
            one(".bias.scores.sum", 1, &[rows])?,
        ];
        // The sum's gradients are computed before the product's.
        kernels.backward.splice(..0, backward);
        Ok(())
    }

    /// Adds the kernels that limit both inputs of a gate with `rows` rows of `width` outputs.
    pub(super) fn add_gate_input_clamp_kernels(
        &self,
        [rows, width]: [u128; 2],
        kernels: &mut OperatorKernels,
    ) -> Result<(), PatternOptionError> {
        let (half, whole) = ([rows, width], [rows, 2 * width]);
        let elements = u128::from(self.number) * rows * width;
        let one = |suffix, times: u128, to: &[u128], class| {
            let kernel = build_kernel(suffix, 0, times * elements, &[to], &[to])?;
            Ok::<_, PatternOptionError>(kernel.with_memory_bound_class(class))
        };
        let (limit, copy) = (
            MemoryBoundKernelClass::ElementWise,
            MemoryBoundKernelClass::Copy,
        );
        let forward = [
            one(".clamp.gate", 2, &half, limit)?,
            one(".clamp.up", 2, &half, limit)?,
            one(".clamp.join", 4, &whole, copy)?,
        ];
        kernels.forward.splice(..0, forward);
        kernels.backward.extend([
            one(".clamp.gate", 3, &half, limit)?,
            one(".clamp.up", 3, &half, limit)?,
            one(".clamp.join", 4, &whole, copy)?,
        ]);
        Ok(())
    }

    /// Returns the kernel that joins the results of all experts.
    pub(super) fn build_join_kernel_of_expert_results(
        &self,
        x: [u128; 2],
    ) -> Result<LoweredKernel, PatternOptionError> {
        let moved = 2 * u128::from(self.number) * x[0] * x[1];
        let kernel = build_kernel(".bias.join", 0, moved, &[&x], &[&x])?;
        Ok(kernel.with_memory_bound_class(MemoryBoundKernelClass::Copy))
    }
}
