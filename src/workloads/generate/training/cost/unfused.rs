//! Kernels of unfused attention, as in PyTorch and Megatron-LM: two matrix products, and kernels on
//! the scores between them.

use super::{KernelCostSizesAndOptions, OperatorKernels, build_kernel, build_saturated_gemm_shape};
use crate::generate::PatternOptionError;
use crate::generate::plan::{ElementwiseKernels, SoftmaxKernel};
use chakram_trace::format::MemoryBoundKernelClass;

impl KernelCostSizesAndOptions {
    /// Returns the kernels of unfused attention, which writes its scores to memory. There are `a`
    /// query heads; `q` and `kv` are the shapes of the queries and of the keys.
    pub(super) fn unfused_attention_kernels(
        &self,
        dropout: bool,
        [a, v, w]: [u128; 3],
        q: [u128; 4],
        kv: [u128; 4],
    ) -> Result<OperatorKernels, PatternOptionError> {
        let d = u128::from(self.number);
        let [b, _, m, _] = q;
        let s = kv[2];
        let n = b * m;
        let product = 2 * n * s * a * w;
        let all = n * a * s;
        let moved = d * (n * a * w + b * s * v * w + all);
        let p = [b, a, m, s];
        // Each head of a sequence has two matrix products: queries times all keys (scores), and
        // scores times values.
        let (scores, sums) = (
            build_saturated_gemm_shape(b * a, m, s, w),
            build_saturated_gemm_shape(b * a, m, w, s),
        );
        let key_sums = build_saturated_gemm_shape(b * a, s, w, m);
        let softmax = MemoryBoundKernelClass::Softmax;
        let in_one = match self.softmax {
            SoftmaxKernel::Fused => true,
            SoftmaxKernel::Unfused => false,
            SoftmaxKernel::Megatron => (b * a).is_multiple_of(4),
        };
        // Each of these single-precision kernels reads and writes all scores.
        let parts = |[first, last]: [u128; 2], names: [&'static str; 5]| {
            let moved = [first, 8, 8, 8, last];
            let parts = names.into_iter().zip(moved);
            let part = |(name, bytes): (_, u128)| build_kernel(name, 0, bytes * all, &[&p], &[&p]);
            parts
                .map(|one| part(one).map(|kernel| kernel.with_memory_bound_class(softmax)))
                .collect::<Result<Vec<_>, _>>()
        };
        let mut forward = vec![
            build_kernel(".scores", product, moved, &[&q, &kv], &[&p])?.with_kernel_shape(scores),
        ];
        if in_one {
            forward.push(
                build_kernel(".softmax", 0, 2 * d * all, &[&p], &[&p])?
                    .with_memory_bound_class(softmax),
            );
        } else {
            let names = [".single", ".scale", ".mask", ".softmax", ".half"];
            forward.extend(parts([d + 4, 4 + d], names)?);
        }
        let mut backward = vec![
            build_kernel(".values.dgrad", product, moved, &[&q, &kv], &[&p])?
                .with_kernel_shape(scores),
            build_kernel(".values.vgrad", product, moved, &[&p, &q], &[&kv])?
                .with_kernel_shape(key_sums),
        ];
        if dropout {
            let moved = (2 * d + 1) * all;
            let dropout = build_kernel(".dropout", 0, moved, &[&p], &[&p])?;
            // Dropout on scores reaches the same fraction of memory bandwidth as a softmax.
            let dropout = dropout.with_memory_bound_class(softmax);
            forward.push(dropout.clone());
            backward.push(dropout);
        }
        forward.push(
            build_kernel(".values", product, moved, &[&p, &kv], &[&q])?.with_kernel_shape(sums),
        );
        let megatron = self.elementwise == ElementwiseKernels::Megatron;
        if megatron {
            // Heads are merged for the matrix product after attention, and are split again in the
            // backward pass.
            let merge = build_kernel(".merge", 0, 2 * d * n * a * w, &[&q], &[&q])?;
            let merge = merge.with_memory_bound_class(MemoryBoundKernelClass::Copy);
            backward.insert(0, merge.clone());
            forward.push(merge);
        }
        if in_one {
            backward.push(
                build_kernel(".softmax", 0, 3 * d * all, &[&p, &p], &[&p])?
                    .with_memory_bound_class(softmax),
            );
        } else {
            let names = [".half", ".softmax", ".mask", ".scale", ".single"];
            backward.extend(parts([d + 4, 4 + d], names)?);
        }
        backward.push(
            build_kernel(".scores.qgrad", product, moved, &[&p, &kv], &[&q])?
                .with_kernel_shape(sums),
        );
        backward.push(
            build_kernel(".scores.kgrad", product, moved, &[&p, &q], &[&kv])?
                .with_kernel_shape(key_sums),
        );
        if megatron {
            let moved = 2 * d * n * (a + 2 * v) * w;
            let split = build_kernel(".split", 0, moved, &[&q, &kv, &kv], &[&q])?;
            backward.push(split.with_memory_bound_class(MemoryBoundKernelClass::Copy));
        }
        Ok(OperatorKernels {
            forward,
            backward,
            ..OperatorKernels::default()
        })
    }
}
