//! Kernels of lowered operators: their work, their class, and their shapes in PyTorch's notation.

use crate::generate::training::program::OperatorOperandBytes;
use crate::generate::{MOST_WORK, PatternOptionError, check_limit};
use chakram_trace::format::{Dtype, KernelShape, MemoryBoundKernelClass};

/// A kernel of an operator: its work, and its name in the trace.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct LoweredKernel {
    /// Suffix of the kernel's name after the operator's name, including a dot; empty for most
    /// kernels.
    pub suffix: &'static str,
    pub flops: u64,
    pub bytes: u64,
    /// True for a kernel that only moves bytes.
    pub moves: bool,
    /// Class and shape of the kernel, if its duration depends on them.
    pub shape: Option<KernelShape>,
    /// Number format in which the kernel computes, if it differs from the plan's format.
    pub dtype: Option<Dtype>,
    pub inputs: String,
    pub outputs: String,
    /// The operator's operands, if this kernel counts their loads and stores.
    pub operands: Option<OperatorOperandBytes>,
}

/// All kernels of an operator, in execution order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super) struct OperatorKernels {
    pub forward: Vec<LoweredKernel>,
    /// Kernels that compute the gradient of the operator's input. If the input needs no gradient, they compute the
    /// gradient of the weights.
    pub backward: Vec<LoweredKernel>,
    /// Separate kernel that computes the weights' gradient, if there is one.
    pub weights: Option<LoweredKernel>,
    /// Kernels that run after the separate weight-gradient kernel and also compute weight gradients.
    pub after_weights: Vec<LoweredKernel>,
    /// Bytes that are saved from the forward pass for the backward pass, without `scores`.
    pub keeps: u64,
    /// Bytes of attention scores, which are also saved unless selective recomputation recomputes them.
    pub scores: u64,
}

/// Formats a shape in PyTorch's notation.
fn format_pytorch_shape(sizes: &[u128]) -> String {
    format!("{sizes:?}")
}

fn format_shapes(all: &[&[u128]]) -> String {
    let all: Vec<_> = all.iter().map(|one| format_pytorch_shape(one)).collect();
    format!("[{}]", all.join(", "))
}

const SMALLER: &str = "a smaller micro-batch or a higher tensor degree";

pub(super) fn check_kernel_byte_limit(amount: u128) -> Result<u64, PatternOptionError> {
    check_limit("bytes of a kernel", amount, MOST_WORK, SMALLER)
}

pub(super) fn build_kernel(
    suffix: &'static str,
    flops: u128,
    moved: u128,
    inputs: &[&[u128]],
    outputs: &[&[u128]],
) -> Result<LoweredKernel, PatternOptionError> {
    Ok(LoweredKernel {
        suffix,
        flops: check_limit("FLOPs of a kernel", flops, MOST_WORK, SMALLER)?,
        bytes: check_kernel_byte_limit(moved)?,
        moves: flops == 0,
        shape: None,
        dtype: None,
        inputs: format_shapes(inputs),
        outputs: format_shapes(outputs),
        operands: None,
    })
}

impl LoweredKernel {
    /// Returns the kernel with its class and shape.
    pub(super) fn with_kernel_shape(self, shape: KernelShape) -> Self {
        let shape = Some(shape);
        Self { shape, ..self }
    }

    pub(super) fn with_memory_bound_class(self, class: MemoryBoundKernelClass) -> Self {
        self.with_kernel_shape(KernelShape::Moving(class))
    }
}

/// Returns the shape of `batch` equal matrix products in one kernel. Sizes saturate at `u64::MAX`. A product with a
/// larger size either has no FLOPs, or was already rejected for its FLOPs.
pub(super) fn build_saturated_gemm_shape(batch: u128, m: u128, n: u128, k: u128) -> KernelShape {
    let [batch, m, n, k] = [batch, m, n, k].map(|size| u64::try_from(size).unwrap_or(u64::MAX));
    KernelShape::Gemm { batch, m, n, k }
}

/// Returns kernels that run one after another. Each entry gives the kernel's name, its class, and the bytes that it
/// moves per element of `x`.
pub(super) fn kernel_chain(
    x: [u128; 2],
    kernels: &[(&'static str, MemoryBoundKernelClass, u128)],
) -> Result<Vec<LoweredKernel>, PatternOptionError> {
    let one =
        |&(name, class, bytes): &(&'static str, MemoryBoundKernelClass, u128)| {
            Ok(build_kernel(name, 0, bytes * x[0] * x[1], &[&x], &[&x])?
                .with_memory_bound_class(class))
        };
    kernels.iter().map(one).collect()
}
