//! Kernels of a router, which chooses experts for each token and sends it to them.
//!
//! Below, there are `t` tokens with `h` columns, `x` experts, and `c` copies per token:
//!
//! | kernel | FLOPs | bytes |
//! |---|---|---|
//! | `score` | `2thx` | `d (th + hx + tx)` |
//! | `choose`: softmax in single precision, and the highest scores | | `(d + 4) tx` |
//! | … with logistic functions instead of the softmax: `sigmoid` | | `(d + 4) tx` |
//! | … with a bias per expert, `bias`; and `highest` | | `8 tx`; `4 tx` |
//! | … with groups of experts: `groups`, keeps the best ones | | `8 tx` |
//! | `cast`, if tokens are sent in 8 bits | | `(d + 1 + 1 / 32) th` |
//! | `permute`: copies tokens in the order of experts | | `d (1 + c) th` |
//! | `counts`, if the host needs the numbers of tokens of all experts, and waits for them | | `8x` |
//! | backward `permute`: adds gradients of copies | | `d (1 + c) th` |
//! | … `choose` | | `(8 + d) tx` |
//! | … `score.dgrad` | `2thx` | `d (tx + hx + th)` |
//! | … `sum` of both gradients of a token | | `3d th` |
//! | … `score.wgrad` | `2thx` | `d (th + tx)`, and `g hx`, twice if micro-batches are summed |
//!
//! Scores have the plan's number format even if other products have 8 bits, as in Megatron-LM and
//! DeepSeek-V3.

use super::{KernelCostSizesAndOptions, OperatorKernels, build_kernel, build_saturated_gemm_shape};
use crate::generate::PatternOptionError;
use crate::model::OperatorAxesAndTensorsSpec;
use chakram_trace::format::MemoryBoundKernelClass;

impl KernelCostSizesAndOptions {
    /// Returns the kernels of a router: for scores, for the choice of experts, and for copies of
    /// tokens.
    pub(super) fn router_kernels(
        &self,
        spec: &OperatorAxesAndTensorsSpec,
        [sigmoid, biased, grouped]: [bool; 3],
    ) -> Result<OperatorKernels, PatternOptionError> {
        let [d, g] = [self.number, self.gradient].map(u128::from);
        let [t, copies] =
            ['m', 'c'].map(|axis| self.rows_per_micro_batch(spec.extent_of_axis(axis).into()));
        let [h, x] = ['n', 'e'].map(|axis| u128::from(spec.extent_of_axis(axis)));
        let flops = 2 * t * h * x;
        let (tokens, copied, scores, weights) = ([t, h], [copies, h], [t, x], [h, x]);
        let moved = d * (t * h + h * x + t * x);
        let permuted = d * (t + copies) * h;
        let softmax = MemoryBoundKernelClass::Softmax;
        let over_scores = |suffix, each: u128, class| {
            let kernel = build_kernel(suffix, 0, each * t * x, &[&scores], &[&scores])?;
            Ok::<_, PatternOptionError>(kernel.with_memory_bound_class(class))
        };
        let element = MemoryBoundKernelClass::ElementWise;
        let mut forward = vec![
            build_kernel(".score", flops, moved, &[&tokens, &weights], &[&scores])?
                .with_kernel_shape(build_saturated_gemm_shape(1, t, x, h)),
        ];
        if sigmoid {
            forward.push(over_scores(".sigmoid", d + 4, element)?);
        } else {
            forward.push(over_scores(".choose", d + 4, softmax)?);
        }
        if biased {
            forward.push(over_scores(".bias", 8, element)?);
        }
        if grouped {
            forward.push(over_scores(".groups", 8, softmax)?);
        }
        if sigmoid {
            forward.push(over_scores(".highest", 4, softmax)?);
        }
        if self.sent.is_some() {
            // The cast reads values of `d` bytes, and writes one byte per value and one 4 B scale per 128 values.
            let cast = d * t * h + t * h + t * h / 32;
            forward.push(
                build_kernel(".cast", 0, cast, &[&tokens], &[&tokens])?
                    .with_memory_bound_class(element),
            );
        }
        forward.push(
            build_kernel(".permute", 0, permuted, &[&tokens], &[&copied])?
                .with_memory_bound_class(MemoryBoundKernelClass::Copy),
        );
        if self.counts_on_host {
            forward.push(
                build_kernel(".counts", 0, 8 * x, &[&[x]], &[&[x]])?
                    .with_memory_bound_class(MemoryBoundKernelClass::HostCopy),
            );
        }
        let inputs: [&[u128]; 2] = [&scores, &weights];
        let backward = vec![
            build_kernel(".permute", 0, permuted, &[&copied], &[&tokens])?
                .with_memory_bound_class(MemoryBoundKernelClass::Copy),
            build_kernel(
                ".choose",
                0,
                (8 + d) * t * x,
                &[&scores, &scores],
                &[&scores],
            )?
            .with_memory_bound_class(softmax),
            build_kernel(".score.dgrad", flops, moved, &inputs, &[&tokens])?
                .with_kernel_shape(build_saturated_gemm_shape(1, t, h, x)),
            build_kernel(".sum", 0, 3 * d * t * h, &[&tokens, &tokens], &[&tokens])?
                .with_memory_bound_class(MemoryBoundKernelClass::ElementWise),
        ];
        let found = g * if self.sums { 2 } else { 1 } * h * x;
        let moved = d * (t * h + t * x) + found;
        let of_weights = build_kernel(
            ".score.wgrad",
            flops,
            moved,
            &[&tokens, &scores],
            &[&weights],
        )?;
        Ok(OperatorKernels {
            forward,
            backward,
            weights: Some(of_weights.with_kernel_shape(build_saturated_gemm_shape(1, h, x, t))),
            ..OperatorKernels::default()
        })
    }
}
