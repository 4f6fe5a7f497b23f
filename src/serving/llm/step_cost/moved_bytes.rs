//! Kernels of a block that only move bytes, such as norms, and their times.

use super::super::model_sizes::{
    ModelBlockAttentionSizes, ModelBlockKindWithCount, TokenMixingOperator,
};
use super::super::rules::AllReduceKernelLibrary;
use super::StepTimeCalculator;
use chakram_base::dtype::Dtype;
use chakram_base::kernel_shape::{KernelShape, MemoryBoundKernelClass};
use chakram_hardware::compute::KernelTraceFacts;

/// A kernel of a block that only moves bytes, with the number of elements that it reads and writes
/// per token.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryBoundKernelElementCount {
    pub(super) kernel: MemoryBoundKernelClass,
    pub(super) elements: u64,
}

/// Maximum number of experts by which a single kernel sorts tokens.
const MOST_EXPERTS_OF_ONE_KERNEL: u64 = 64;

/// Bytes per element that a kernel moves when it quantizes the inputs of a product. The kernel reads two bytes and
/// writes one, but not at full memory bandwidth: on H100, a measured product that includes this kernel takes as long as
/// a product without it plus a transfer of 11 bytes per element (aiconfigurator, Apache-2.0).
const QUANTIZATION_BYTES: u64 = 11;

impl StepTimeCalculator {
    /// Returns how many seconds a kernel that moves bytes takes, without the gap after it.
    pub(super) fn memory_bound_seconds(&self, kernel: MemoryBoundKernelClass, bytes: u64) -> f64 {
        let profile = KernelTraceFacts {
            bytes,
            dtype: Some(Dtype::Bf16),
            shape: Some(KernelShape::Moving(kernel)),
            ..KernelTraceFacts::default()
        };
        let gap = self
            .class
            .curves
            .moving
            .as_ref()
            .map_or(0.0, |curve| curve.gap);
        (self.kernel_seconds(profile) - gap).max(0.0)
    }

    pub(super) fn memory_bound_kernels_of_block(
        &self,
        kind: &ModelBlockKindWithCount,
    ) -> Vec<MemoryBoundKernelElementCount> {
        let sizes = &self.sizes;
        let parts = u64::from(self.npus);
        let mut work = vec![MemoryBoundKernelElementCount {
            kernel: MemoryBoundKernelClass::ElementWise,
            elements: (kind.widest + kind.widest / 2) / parts,
        }];
        if !self.fuses_norms_into_all_reduces() {
            // A block has two norms. Each norm includes the residual sum before it, so it reads twice and writes twice.
            work.extend(
                [MemoryBoundKernelElementCount {
                    kernel: MemoryBoundKernelClass::Normalization,
                    elements: 4 * sizes.hidden,
                }; 2],
            );
        }
        match &kind.mixing {
            TokenMixingOperator::Attention(attention) => {
                self.add_memory_kernels_around_attention(attention, &mut work)
            }
            TokenMixingOperator::Delta(delta) => {
                let [_, values] = delta.key_and_value_heads_per_npu(self.npus);
                // These are the convolution, and the norm and gate of the results.
                work.push(MemoryBoundKernelElementCount {
                    kernel: MemoryBoundKernelClass::ElementWise,
                    elements: 2 * delta.convolved_columns(self.npus),
                });
                work.push(MemoryBoundKernelElementCount {
                    kernel: MemoryBoundKernelClass::Normalization,
                    elements: 3 * values * delta.value_width,
                });
            }
        }
        if let Some([experts, chosen]) = kind.experts {
            // The router chooses experts, and kernels count tokens and sort them by expert (vLLM's
            // `moe_align_block_size`: one kernel for up to 64 experts, otherwise two). A later kernel sums the experts'
            // results.
            work.push(MemoryBoundKernelElementCount {
                kernel: MemoryBoundKernelClass::Softmax,
                elements: 3 * experts,
            });
            let sorting = if experts <= MOST_EXPERTS_OF_ONE_KERNEL {
                1
            } else {
                2
            };
            work.extend((0..sorting).map(|_| MemoryBoundKernelElementCount {
                kernel: MemoryBoundKernelClass::ElementWise,
                elements: 4 * chosen,
            }));
            work.push(MemoryBoundKernelElementCount {
                kernel: MemoryBoundKernelClass::ElementWise,
                elements: (chosen + 1) * sizes.hidden,
            });
        }
        self.add_fp8_quantization_kernels(kind, &mut work);
        work
    }

    /// Adds the kernels that quantize the inputs of products to FP8.
    fn add_fp8_quantization_kernels(
        &self,
        kind: &ModelBlockKindWithCount,
        work: &mut Vec<MemoryBoundKernelElementCount>,
    ) {
        for product in &kind.products {
            let (format, has_own) = match product.experts {
                None => (
                    self.formats.weights,
                    self.has_separate_quantization_kernel(kind, product),
                ),
                Some(_) => (self.formats.experts, false),
            };
            if format != Dtype::Fp8 || !(has_own || self.formats.has_block_scales) {
                continue;
            }
            let [inputs, _] = kind.product_inputs_and_outputs_per_npu(product, self.npus);
            // A token is quantized once for all of its experts, and then once in each expert.
            let rows = match product.experts {
                Some([_, chosen]) if product.inputs != self.sizes.hidden => chosen,
                _ => 1,
            };
            work.push(MemoryBoundKernelElementCount {
                kernel: MemoryBoundKernelClass::ElementWise,
                elements: (QUANTIZATION_BYTES * rows * inputs).div_ceil(2),
            });
        }
    }

    /// Returns true if the all-reduces before norms also compute the norms.
    pub(super) fn fuses_norms_into_all_reduces(&self) -> bool {
        self.npus > 1
            && self.all_reduce.kernels == AllReduceKernelLibrary::TensorrtLlm
            && !self.all_reduce.own.is_empty()
    }

    /// Adds the kernels that move bytes before and after a block's attention.
    pub(super) fn add_memory_kernels_around_attention(
        &self,
        attention: &ModelBlockAttentionSizes,
        work: &mut Vec<MemoryBoundKernelElementCount>,
    ) {
        let heads = attention.heads / u64::from(self.npus);
        let turned = match attention.latent {
            Some([_, turned]) => (heads + 1) * turned,
            None => (heads + attention.kv_heads_per_npu(self.npus)) * attention.width,
        };
        work.push(MemoryBoundKernelElementCount {
            kernel: MemoryBoundKernelClass::ElementWise,
            elements: 2 * turned,
        });
        work.push(MemoryBoundKernelElementCount {
            kernel: MemoryBoundKernelClass::Copy,
            elements: 2 * attention.cached_elements_per_token(self.npus),
        });
        if attention.qk_norm {
            work.push(MemoryBoundKernelElementCount {
                kernel: MemoryBoundKernelClass::Normalization,
                elements: 2 * turned,
            });
        }
        if attention.is_gated {
            work.push(MemoryBoundKernelElementCount {
                kernel: MemoryBoundKernelClass::ElementWise,
                elements: 3 * heads * attention.width,
            });
        }
    }
}
