//! Kernels that a low-rank adapter adds to the kernels of its frozen matrix product
//! ([`frozen_weights`](crate::generate::training::frozen_weights)).

use super::{
    KernelCostSizesAndOptions, LoweredKernel, OperatorKernels, build_kernel,
    check_kernel_byte_limit, kernel_chain,
};
use crate::generate::PatternOptionError;
use crate::generate::plan::ElementwiseKernels;
use crate::model::{OperatorKind, TrainedOperatorWeights};
use chakram_trace::format::MemoryBoundKernelClass;

impl KernelCostSizesAndOptions {
    /// Adds the kernels of an adapter, which consists of the two `products`, to the kernels of a
    /// frozen matrix product.
    pub fn add_adapter_kernels(
        &self,
        products: &[OperatorKind; 2],
        kernels: &mut OperatorKernels,
    ) -> Result<(), PatternOptionError> {
        let plain = Self {
            linear: None,
            training: TrainedOperatorWeights::All,
            ..*self
        };
        let [mut a, mut b] = [
            plain.kernels_of_operator(products[0].clone())?,
            plain.kernels_of_operator(products[1].clone())?,
        ];
        for (product, names) in [
            (
                &mut a,
                [
                    ".lora.a",
                    ".lora.a.dgrad",
                    ".lora.a.wgrad",
                    ".lora.a.wgrad.sum",
                ],
            ),
            (
                &mut b,
                [
                    ".lora.b",
                    ".lora.b.dgrad",
                    ".lora.b.wgrad",
                    ".lora.b.wgrad.sum",
                ],
            ),
        ] {
            let all = product.forward.iter_mut().chain(&mut product.backward);
            let of_weights = product.weights.iter_mut().chain(&mut product.after_weights);
            for kernel in all.chain(of_weights) {
                kernel.suffix = match kernel.suffix {
                    "" => names[0],
                    ".dgrad" => names[1],
                    ".wgrad" => names[2],
                    ".wgrad.sum" => names[3],
                    other => other,
                };
                kernel.operands = None;
            }
        }
        let [rows, inputs, _] = self.operator_rows_inputs_and_outputs(&products[0]);
        let [.., outputs] = self.operator_rows_inputs_and_outputs(&products[1]);
        kernels.forward.extend(a.forward);
        kernels.forward.extend(b.forward);
        kernels
            .forward
            .extend(self.kernels_adding_adapter_result([rows, outputs], true)?);
        kernels
            .backward
            .extend(self.adapter_scale_kernels([rows, outputs])?);
        kernels.backward.extend(b.backward);
        kernels.backward.extend(a.backward);
        kernels
            .backward
            .extend(self.kernels_adding_adapter_result([rows, inputs], false)?);
        kernels.weights = b.weights;
        kernels.after_weights = b.after_weights;
        kernels.after_weights.extend(a.weights);
        kernels.after_weights.extend(a.after_weights);
        Ok(())
    }

    /// Returns the bytes that an adapter saves for the gradients of its two matrices: first the bytes of its input,
    /// then the bytes of the first product's result.
    pub fn saved_bytes_of_adapter(
        &self,
        products: &[OperatorKind; 2],
    ) -> Result<[u64; 2], PatternOptionError> {
        let [rows, inputs, rank] = self.operator_rows_inputs_and_outputs(&products[0]);
        let bytes = |columns| check_kernel_byte_limit(rows * columns * u128::from(self.number));
        Ok([bytes(inputs)?, bytes(rank)?])
    }

    /// Sizes of a matrix product: rows, input columns, output columns.
    fn operator_rows_inputs_and_outputs(&self, work: &OperatorKind) -> [u128; 3] {
        let spec = work.to_axes_and_tensors();
        let [rows, inputs, outputs] = ['m', 'k', 'n'].map(|axis| spec.extent_of_axis(axis).into());
        [self.rows_per_micro_batch(rows), inputs, outputs]
    }

    /// Returns the kernel that adds the adapter's result to the frozen product's result. If `scales` is true, another
    /// kernel scales that result first.
    fn kernels_adding_adapter_result(
        &self,
        x: [u128; 2],
        scales: bool,
    ) -> Result<Vec<LoweredKernel>, PatternOptionError> {
        let mut kernels = match scales {
            true => self.adapter_scale_kernels(x)?,
            false => Vec::new(),
        };
        let moved = 3 * u128::from(self.number) * x[0] * x[1];
        let sum = build_kernel(".lora.sum", 0, moved, &[&x, &x], &[&x])?;
        kernels.push(sum.with_memory_bound_class(MemoryBoundKernelClass::ElementWise));
        Ok(kernels)
    }

    fn adapter_scale_kernels(
        &self,
        x: [u128; 2],
    ) -> Result<Vec<LoweredKernel>, PatternOptionError> {
        let apart = matches!(
            self.elementwise,
            ElementwiseKernels::Megatron | ElementwiseKernels::Eager
        );
        let bytes = 2 * u128::from(self.number);
        let scale = [(".lora.scale", MemoryBoundKernelClass::ElementWise, bytes)];
        kernel_chain(x, if apart { &scale } else { &[] })
    }
}
