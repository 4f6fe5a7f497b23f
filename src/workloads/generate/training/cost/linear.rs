//! Kernels of a linear layer: its products, and additional kernels that number formats and
//! frameworks need.
//!
//! For a product of `n x k` by `k x m`, `e` is the number of bytes per element of an operand. If
//! `x` experts have `n / x` rows each, `x km` replaces `km` in the byte counts, and the FLOPs count
//! all `n` rows:
//!
//! | kernel | where | bytes |
//! |---|---|---|
//! | product | | `e (nk + km) + d nm` |
//! | `dgrad` | | `e (nm + km) + d nk` |
//! | `wgrad` | | `e (nk + nm)`, and `g km`, twice if micro-batches are summed |
//! | `quantize` | 8-bit operands | `(d + 2e) nk`: read, and written in both original and transposed order; `(d + e) nk` with frozen weights |
//! | `grad.quantize` | 8-bit operands | `(d + 2e) nm` |
//! | `amax`, `grad.amax` | current scaling | `d nk`, `d nm`: the maximum is computed first |
//! | `bgrad` | Megatron-LM, with a bias | `d nm` |
//! | `wgrad.sum` | Megatron-LM, if micro-batches are summed | `(d + 2g) km`; `wgrad` then writes `d km` |
//!
//! Delayed scaling needs no kernel for maxima: it uses the maxima of earlier steps, which product kernels compute as a
//! by-product. Block scaling computes the maximum of each block of 32 values, and writes one byte for it. The optimizer
//! quantizes weights once per step. Transformer Engine calls these recipes delayed, current and block scaling. 4-bit
//! formats have no cast kernels, because their products' measured times include the casts.

use super::{
    KernelCostSizesAndOptions, LoweredKernel, OperatorKernels, build_kernel,
    build_saturated_gemm_shape,
};
use crate::generate::PatternOptionError;
use crate::generate::plan::{ElementwiseKernels, ScalingRecipe};
use crate::model::{OperatorAxesAndTensorsSpec, TrainedOperatorWeights};
use chakram_trace::format::{Dtype, MemoryBoundKernelClass};

/// Returns the bytes of two values, because a single value may occupy only 4 bits.
pub(in super::super) fn bytes_of_two_numbers(dtype: Dtype) -> u64 {
    match dtype {
        Dtype::Fp64 => 16,
        Dtype::Fp32 | Dtype::Tf32 => 8,
        Dtype::Fp16 | Dtype::Bf16 => 4,
        Dtype::Fp8 | Dtype::Int8 => 2,
        Dtype::Fp4 => 1,
    }
}

impl KernelCostSizesAndOptions {
    /// Returns true if separate kernels cast the operands of matrix products.
    pub fn casts_operands(&self) -> bool {
        let narrow = matches!(self.linear, Some(Dtype::Fp8 | Dtype::Int8));
        narrow && self.number > 1
    }

    /// Returns the kernels of a matrix product with the sizes `[n, k, m]`; if `bias` is true, also returns those of its
    /// bias. With several `experts`, each has its own product, and the products divide the `n` rows evenly.
    pub(super) fn linear_kernels(
        &self,
        [n, k, m]: [u128; 3],
        experts: u128,
        bias: bool,
    ) -> Result<OperatorKernels, PatternOptionError> {
        let [d, g] = [self.number, self.gradient].map(u128::from);
        let pair = self
            .linear
            .map_or(2 * d, |dtype| bytes_of_two_numbers(dtype).into());
        let operands = |elements: u128| pair * elements / 2;
        let megatron = self.elementwise == ElementwiseKernels::Megatron;
        let apart = megatron && self.sums;
        // A kernel that accumulates gradients reads them before it writes them.
        let sums = match (self.sums, apart) {
            (_, true) => d,
            (true, false) => 2 * g,
            (false, false) => g,
        };
        let flops = 2 * n * k * m;
        let held = experts * k * m;
        // A grouped matrix product takes as long as its largest product. So if experts have different numbers of rows,
        // use the largest.
        let rows = n.div_ceil(experts);
        let [x, y] = [[n, k], [n, m]];
        let (one, all) = ([k, m], [experts, k, m]);
        let w = if experts == 1 { &one[..] } else { &all[..] };
        let product = |suffix, moved, [a, b]: [&[u128]; 2], c: &[u128], shape| {
            let kernel =
                build_kernel(suffix, flops, moved, &[a, b], &[c])?.with_kernel_shape(shape);
            let dtype = self.linear;
            Ok::<_, PatternOptionError>(LoweredKernel { dtype, ..kernel })
        };
        let mut forward = self.cast_kernels([".amax", ".quantize"], x)?;
        let moved = operands(n * k + held) + d * n * m;
        forward.push(product(
            "",
            moved,
            [&x, w],
            &y,
            build_saturated_gemm_shape(experts, rows, m, k),
        )?);
        let mut backward = self.cast_kernels([".grad.amax", ".grad.quantize"], y)?;
        let moved = operands(n * m + held) + d * n * k;
        let shape = build_saturated_gemm_shape(experts, rows, k, m);
        backward.push(product(".dgrad", moved, [&y, w], &x, shape)?);
        let moved = operands(n * k + n * m) + sums * held;
        let weights = product(
            ".wgrad",
            moved,
            [&x, &y],
            w,
            build_saturated_gemm_shape(experts, k, m, rows),
        )?;
        let mut after_weights = Vec::new();
        if megatron && bias {
            let sum = build_kernel(".bgrad", 0, d * n * m, &[&y], &[&[experts * m]])?;
            after_weights.push(sum.with_memory_bound_class(MemoryBoundKernelClass::ElementWise));
        }
        if apart {
            let sum = build_kernel(".wgrad.sum", 0, (d + 2 * g) * held, &[w, w], &[w])?;
            after_weights.push(sum.with_memory_bound_class(MemoryBoundKernelClass::ElementWise));
        }
        Ok(OperatorKernels {
            forward,
            backward,
            weights: Some(weights),
            after_weights,
            ..OperatorKernels::default()
        })
    }

    /// Returns the kernels of `experts` separate matrix products, which divide the rows among them. If the rows do not
    /// divide evenly, the first experts have one more row than the others.
    pub(super) fn per_expert_linear_kernels(
        &self,
        [n, k, m]: [u128; 3],
        experts: u128,
        bias: bool,
    ) -> Result<OperatorKernels, PatternOptionError> {
        let mut all = OperatorKernels::default();
        for expert in 0..experts {
            let rows = n / experts + u128::from(expert < n % experts);
            if rows == 0 {
                // An expert without tokens launches no kernel.
                break;
            }
            let mut own = self.linear_kernels([rows, k, m], 1, bias)?;
            if bias && self.adds_expert_biases {
                self.add_expert_bias_kernels([rows, m], &mut own)?;
            }
            all.forward.extend(own.forward);
            all.backward.extend(own.backward);
            match &all.weights {
                None => all.weights = own.weights,
                Some(_) => all.after_weights.extend(own.weights),
            }
            all.after_weights.extend(own.after_weights);
        }
        if bias && self.adds_expert_biases {
            all.forward
                .push(self.build_join_kernel_of_expert_results([n, m])?);
        }
        Ok(all)
    }

    /// Returns the kernels of two independent matrix products with `m` rows each. One input has `k`
    /// columns, and the other has `c` columns.
    pub(super) fn latent_up(
        &self,
        spec: &OperatorAxesAndTensorsSpec,
    ) -> Result<OperatorKernels, PatternOptionError> {
        let [m, n, k, c, i, j] =
            ['m', 'n', 'k', 'c', 'i', 'j'].map(|axis| u128::from(spec.extent_of_axis(axis)));
        let mut kernels =
            self.linear_kernels([self.rows_per_micro_batch(m), k, n * i], 1, false)?;
        let mut second = self.linear_kernels([self.rows_per_micro_batch(m), c, n * j], 1, false)?;
        let lowered = second.forward.iter_mut().chain(&mut second.backward);
        let of_weights = second.weights.iter_mut().chain(&mut second.after_weights);
        for kernel in lowered.chain(of_weights) {
            kernel.suffix = match kernel.suffix {
                "" => ".kv",
                ".dgrad" => ".kv.dgrad",
                ".wgrad" => ".kv.wgrad",
                ".amax" => ".kv.amax",
                ".quantize" => ".kv.quantize",
                ".grad.amax" => ".kv.grad.amax",
                ".grad.quantize" => ".kv.grad.quantize",
                ".wgrad.sum" => ".kv.wgrad.sum",
                other => other,
            };
        }
        kernels.forward.extend(second.forward);
        kernels.backward.extend(second.backward);
        kernels.after_weights.extend(second.weights);
        kernels.after_weights.extend(second.after_weights);
        Ok(kernels)
    }

    /// Returns the kernels that cast tensor `x` for a matrix product, if the number format needs
    /// casts.
    fn cast_kernels(
        &self,
        [amax, quantize]: [&'static str; 2],
        x: [u128; 2],
    ) -> Result<Vec<LoweredKernel>, PatternOptionError> {
        let Some(dtype) = self.linear.filter(|_| self.casts_operands()) else {
            return Ok(Vec::new());
        };
        let (elements, d) = (x[0] * x[1], u128::from(self.number));
        let mut kernels = Vec::new();
        if self.scaling == ScalingRecipe::Current {
            kernels.push(build_kernel(amax, 0, d * elements, &[&x], &[&[1]])?);
        }
        // Only the products for weight gradients need the transposed copy.
        let copies = match self.training {
            TrainedOperatorWeights::All => 2,
            TrainedOperatorWeights::Frozen | TrainedOperatorWeights::Adapter { .. } => 1,
        };
        let mut moved =
            d * elements + u128::from(bytes_of_two_numbers(dtype)) * elements * copies / 2;
        if self.scaling == ScalingRecipe::Block {
            moved += copies * elements.div_ceil(32);
        }
        kernels.push(build_kernel(quantize, 0, moved, &[&x], &[&x, &x])?);
        let moving = |kernel: LoweredKernel| {
            kernel.with_memory_bound_class(MemoryBoundKernelClass::ElementWise)
        };
        Ok(kernels.into_iter().map(moving).collect())
    }
}
