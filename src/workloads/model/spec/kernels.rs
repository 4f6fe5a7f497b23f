//! Describes an operator's kernels as data: matrix products, or the bytes that each kernel reads
//! and writes.
//!
//! Kernels without matrix products move a number of bytes per element of a tensor. Below, `d` is
//! the number of bytes per value, and `g` is the number of bytes per weight gradient:
//!
//! | operator | forward | backward |
//! |---|---|---|
//! | norm | `2d` | `3d` |
//! | RMSNorm, operation by operation | `4d + 28`: cast, square, mean, product, cast, gain | `6d + 48` |
//! | activation | `2d`; a gate `3d` | `3d`; a gate `5d` |
//! | … a gate, operation by operation | `2d`; `3d` | `3d` three times |
//! | residual | `3d` | `3d`: two gradients are added |
//! | … with dropout | `3d + 1` | `5d + 1` |
//! | embedding | `2d` | `d + 2g` |
//! | embedding bag of `l` rows, for each element of its sum | `d (l + 1)` | `d + 2g l` |
//! | loss, operation by operation | `d + 36` | `d + 12` |
//! | … fused: reads logits twice and overwrites them with gradients | `3d` | `2d`: scaled |
//! | pool | `d` of input and output | the same |
//! | expert combine | `d` of copies and tokens | `.copies`: `d` of tokens and copies; `.scores`: `2d` of copies, and 4 for each |
//!
//! The loss has the same kernels as Megatron-LM's vocabulary-parallel cross entropy. The forward kernels are conversion
//! to single precision (`d + 4` bytes), maximum (4), difference (8), exponential (8), sum (4) and quotient (8). The
//! backward kernels are product (8) and conversion to the logits' format (`4 + d`).

use chakram_trace::format::MemoryBoundKernelClass::{
    self, Copy, CrossEntropy, ElementWise, Embedding, Normalization, Softmax,
};

/// Bytes per element of a tensor, if they depend on the plan's number formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatDependentElementBytes {
    /// Number of values in the model's number format.
    pub numbers: u8,
    /// Number of values in the format of weight gradients.
    pub gradients: u8,
    /// Number of bytes that do not depend on these formats: masks, and values in single precision.
    pub fixed: u8,
}

impl FormatDependentElementBytes {
    /// Returns the bytes per element, for values of `number` bytes and weight gradients of `gradient` bytes.
    pub fn compute_bytes_per_element(self, number: u64, gradient: u64) -> u128 {
        let [numbers, gradients, fixed] =
            [self.numbers, self.gradients, self.fixed].map(u128::from);
        numbers * u128::from(number) + gradients * u128::from(gradient) + fixed
    }
}

/// A kernel that only moves bytes, so that memory bandwidth limits its speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBoundKernelSpec {
    /// Suffix of the kernel's name after the operator's name, including a dot.
    pub suffix: &'static str,
    /// Class of the kernel; the memory bandwidth that the kernel reaches depends on it.
    pub class: MemoryBoundKernelClass,
    /// Axes of the tensor that the kernel reads, and the bytes read per element.
    pub reads: (&'static str, FormatDependentElementBytes),
    /// Axes of the tensor that the kernel writes, and the bytes written per element.
    pub writes: (&'static str, FormatDependentElementBytes),
}

/// Byte-moving kernels of the forward and the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBoundKernelsByPass {
    /// Kernels of the forward pass, in execution order.
    pub forward: &'static [MemoryBoundKernelSpec],
    /// Kernels of the backward pass, in execution order.
    pub backward: &'static [MemoryBoundKernelSpec],
}

/// Kernels of an operator, with alternatives if frameworks use different ones. The plan chooses one alternative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorKernelSpec {
    /// Three kernels: one each for the matrix product, the input's gradient, and the weights'
    /// gradient.
    Products,
    /// Products of queries with keys and of scores with values, either in one fused kernel or in several kernels.
    Attention {
        /// True if queries and keys are rotated by their positions first.
        rotary: bool,
        /// True if scores have dropout.
        dropout: bool,
        /// True if query heads and key heads are normalized before the rotation.
        qk_norm: bool,
    },
    /// The product of tokens and the router's weights, a softmax, and a copy of each token for each of its experts.
    Router {
        /// True if the logistic function replaces the softmax.
        sigmoid: bool,
        /// True if scores have biases.
        biased: bool,
        /// True if tokens choose groups of experts before individual experts.
        grouped: bool,
    },
    /// Two independent matrix products of latent vectors.
    LatentUp,
    /// Kernels that move bytes.
    Moving {
        /// Kernels that fuse all operations that can be fused.
        fused: MemoryBoundKernelsByPass,
        /// Kernels that perform one framework operation each; `None` if they are the same as `fused`.
        one_by_one: Option<MemoryBoundKernelsByPass>,
    },
}

const fn create_element_bytes(
    numbers: u8,
    gradients: u8,
    fixed: u8,
) -> FormatDependentElementBytes {
    FormatDependentElementBytes {
        numbers,
        gradients,
        fixed,
    }
}

const fn create_bytes_per_model_number(count: u8) -> FormatDependentElementBytes {
    create_element_bytes(count, 0, 0)
}

const fn fixed_bytes_per_element(count: u8) -> FormatDependentElementBytes {
    create_element_bytes(0, 0, count)
}

/// Creates a kernel that reads and writes each element of `mn`.
const fn elementwise_kernel(
    suffix: &'static str,
    class: MemoryBoundKernelClass,
    reads: FormatDependentElementBytes,
    writes: FormatDependentElementBytes,
) -> MemoryBoundKernelSpec {
    create_memory_bound_kernel(suffix, class, ("mn", reads), ("mn", writes))
}

const fn create_memory_bound_kernel(
    suffix: &'static str,
    class: MemoryBoundKernelClass,
    reads: (&'static str, FormatDependentElementBytes),
    writes: (&'static str, FormatDependentElementBytes),
) -> MemoryBoundKernelSpec {
    MemoryBoundKernelSpec {
        suffix,
        class,
        reads,
        writes,
    }
}

impl OperatorKernelSpec {
    const fn from_memory_bound_kernels(
        forward: &'static [MemoryBoundKernelSpec],
        backward: &'static [MemoryBoundKernelSpec],
    ) -> Self {
        Self::Moving {
            fused: MemoryBoundKernelsByPass { forward, backward },
            one_by_one: None,
        }
    }

    const fn with_unfused_alternative(
        self,
        forward: &'static [MemoryBoundKernelSpec],
        backward: &'static [MemoryBoundKernelSpec],
    ) -> Self {
        match self {
            Self::Moving { fused, .. } => Self::Moving {
                fused,
                one_by_one: Some(MemoryBoundKernelsByPass { forward, backward }),
            },
            other => other,
        }
    }

    pub(super) const NORM: Self = Self::from_memory_bound_kernels(
        &[elementwise_kernel(
            "",
            Normalization,
            create_bytes_per_model_number(1),
            create_bytes_per_model_number(1),
        )],
        &[elementwise_kernel(
            "",
            Normalization,
            create_bytes_per_model_number(2),
            create_bytes_per_model_number(1),
        )],
    );

    /// RMSNorm in single precision between two casts, composed as in PyTorch. Casts, and products with one value per
    /// row or column, reach the memory bandwidth of copies. Sums of rows reach the memory bandwidth of a softmax.
    pub(super) const RMS_NORM: Self = Self::NORM.with_unfused_alternative(
        &[
            elementwise_kernel(
                ".single",
                Copy,
                create_bytes_per_model_number(1),
                fixed_bytes_per_element(4),
            ),
            elementwise_kernel(
                ".square",
                ElementWise,
                fixed_bytes_per_element(4),
                fixed_bytes_per_element(4),
            ),
            elementwise_kernel(
                ".mean",
                Softmax,
                fixed_bytes_per_element(4),
                fixed_bytes_per_element(0),
            ),
            elementwise_kernel(
                ".product",
                Copy,
                fixed_bytes_per_element(4),
                fixed_bytes_per_element(4),
            ),
            elementwise_kernel(
                ".half",
                Copy,
                fixed_bytes_per_element(4),
                create_bytes_per_model_number(1),
            ),
            elementwise_kernel(
                ".gain",
                Copy,
                create_bytes_per_model_number(1),
                create_bytes_per_model_number(1),
            ),
        ],
        &[
            elementwise_kernel(
                ".gain.dinput",
                Copy,
                create_bytes_per_model_number(1),
                create_bytes_per_model_number(1),
            ),
            elementwise_kernel(
                ".gain.dgain",
                Softmax,
                create_bytes_per_model_number(2),
                fixed_bytes_per_element(0),
            ),
            elementwise_kernel(
                ".single",
                Copy,
                create_bytes_per_model_number(1),
                fixed_bytes_per_element(4),
            ),
            elementwise_kernel(
                ".product.dinput",
                Copy,
                fixed_bytes_per_element(4),
                fixed_bytes_per_element(4),
            ),
            elementwise_kernel(
                ".product.dscale",
                Softmax,
                fixed_bytes_per_element(8),
                fixed_bytes_per_element(0),
            ),
            elementwise_kernel(
                ".square",
                ElementWise,
                fixed_bytes_per_element(8),
                fixed_bytes_per_element(4),
            ),
            elementwise_kernel(
                ".sum",
                ElementWise,
                fixed_bytes_per_element(8),
                fixed_bytes_per_element(4),
            ),
            elementwise_kernel(
                ".half",
                Copy,
                fixed_bytes_per_element(4),
                create_bytes_per_model_number(1),
            ),
        ],
    );

    pub(super) const ACTIVATION: Self = Self::from_memory_bound_kernels(
        &[elementwise_kernel(
            "",
            ElementWise,
            create_bytes_per_model_number(1),
            create_bytes_per_model_number(1),
        )],
        &[elementwise_kernel(
            "",
            ElementWise,
            create_bytes_per_model_number(2),
            create_bytes_per_model_number(1),
        )],
    );

    pub(super) const GATE: Self = Self::from_memory_bound_kernels(
        &[elementwise_kernel(
            "",
            ElementWise,
            create_bytes_per_model_number(2),
            create_bytes_per_model_number(1),
        )],
        &[elementwise_kernel(
            "",
            ElementWise,
            create_bytes_per_model_number(3),
            create_bytes_per_model_number(2),
        )],
    )
    .with_unfused_alternative(
        &[
            elementwise_kernel(
                ".function",
                ElementWise,
                create_bytes_per_model_number(1),
                create_bytes_per_model_number(1),
            ),
            elementwise_kernel(
                ".gate",
                ElementWise,
                create_bytes_per_model_number(2),
                create_bytes_per_model_number(1),
            ),
        ],
        &[
            elementwise_kernel(
                ".gate.dgate",
                ElementWise,
                create_bytes_per_model_number(2),
                create_bytes_per_model_number(1),
            ),
            elementwise_kernel(
                ".gate.dvalue",
                ElementWise,
                create_bytes_per_model_number(2),
                create_bytes_per_model_number(1),
            ),
            elementwise_kernel(
                ".function",
                ElementWise,
                create_bytes_per_model_number(2),
                create_bytes_per_model_number(1),
            ),
        ],
    );

    pub(super) const RESIDUAL: Self = Self::from_memory_bound_kernels(
        &[elementwise_kernel(
            "",
            ElementWise,
            create_bytes_per_model_number(2),
            create_bytes_per_model_number(1),
        )],
        &[elementwise_kernel(
            "",
            ElementWise,
            create_bytes_per_model_number(2),
            create_bytes_per_model_number(1),
        )],
    );

    pub(super) const DROPPED_RESIDUAL: Self = Self::from_memory_bound_kernels(
        &[elementwise_kernel(
            "",
            ElementWise,
            create_bytes_per_model_number(2),
            create_element_bytes(1, 0, 1),
        )],
        &[elementwise_kernel(
            "",
            ElementWise,
            create_element_bytes(3, 0, 1),
            create_bytes_per_model_number(2),
        )],
    );

    pub(super) const EMBEDDING: Self = Self::from_memory_bound_kernels(
        &[elementwise_kernel(
            "",
            Embedding,
            create_bytes_per_model_number(1),
            create_bytes_per_model_number(1),
        )],
        &[elementwise_kernel(
            "",
            Embedding,
            create_element_bytes(1, 1, 0),
            create_element_bytes(0, 1, 0),
        )],
    );

    /// Kernel of an embedding bag, which reads the table rows `ln` and sums them to `n`.
    pub(super) const EMBEDDING_BAG: Self = Self::from_memory_bound_kernels(
        &[create_memory_bound_kernel(
            "",
            Embedding,
            ("ln", create_bytes_per_model_number(1)),
            ("n", create_bytes_per_model_number(1)),
        )],
        &[create_memory_bound_kernel(
            "",
            Embedding,
            ("n", create_bytes_per_model_number(1)),
            ("ln", create_element_bytes(0, 2, 0)),
        )],
    );

    pub(super) const LOSS: Self = Self::from_memory_bound_kernels(
        &[elementwise_kernel(
            "",
            CrossEntropy,
            create_bytes_per_model_number(2),
            create_bytes_per_model_number(1),
        )],
        &[elementwise_kernel(
            "",
            CrossEntropy,
            create_bytes_per_model_number(1),
            create_bytes_per_model_number(1),
        )],
    )
    .with_unfused_alternative(
        &[elementwise_kernel(
            "",
            CrossEntropy,
            create_element_bytes(1, 0, 20),
            fixed_bytes_per_element(16),
        )],
        &[elementwise_kernel(
            "",
            CrossEntropy,
            fixed_bytes_per_element(8),
            create_element_bytes(1, 0, 4),
        )],
    );

    /// Kernel of an expert combine, which sums the copies `cn` to the tokens `mn`.
    pub(super) const EXPERT_COMBINE: Self = Self::from_memory_bound_kernels(
        &[create_memory_bound_kernel(
            "",
            Copy,
            ("cn", create_bytes_per_model_number(1)),
            ("mn", create_bytes_per_model_number(1)),
        )],
        &[
            create_memory_bound_kernel(
                ".scores",
                Copy,
                ("cn", create_bytes_per_model_number(2)),
                ("c", fixed_bytes_per_element(4)),
            ),
            create_memory_bound_kernel(
                ".copies",
                Copy,
                ("mn", create_bytes_per_model_number(1)),
                ("cn", create_bytes_per_model_number(1)),
            ),
        ],
    );

    pub(super) const POOL: Self = Self::from_memory_bound_kernels(
        &[create_memory_bound_kernel(
            "",
            ElementWise,
            ("nij", create_bytes_per_model_number(1)),
            ("nhw", create_bytes_per_model_number(1)),
        )],
        &[create_memory_bound_kernel(
            "",
            ElementWise,
            ("nhw", create_bytes_per_model_number(1)),
            ("nij", create_bytes_per_model_number(1)),
        )],
    );
}
