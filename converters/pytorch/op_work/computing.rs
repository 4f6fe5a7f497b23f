//! Identifies, by name, the kernels and operators that compute. The times of such kernels must not be derived from
//! bytes alone.

/// Kind of work that a kernel does, as far as its name shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pytorch) enum KernelComputeOrMoveHint {
    /// The kernel multiplies matrices, directly or in convolutions, attention or expert layers.
    Computes,
    /// The kernel moves data, element by element or in reductions.
    Moves,
    /// The name does not show what the kernel does.
    Unclear,
}

/// Prefixes of kernels that Inductor generates from element-wise operators and reductions. After
/// the prefix, the name lists the fused operators.
const GENERATED: [&str; 4] = ["triton_poi_", "triton_red_", "triton_per_", "triton_for_"];

/// Substrings in the names of kernels that multiply matrices, from NVIDIA's and AMD's libraries and from libraries for
/// attention and experts.
const PRODUCTS: [&str; 29] = [
    "attention",
    "attn",
    "batchdecode",
    "batchprefill",
    "bmm_",
    "cijk_",
    "conv1d",
    "conv2d",
    "conv3d",
    "convolution",
    "convolve",
    "dgrad",
    "flash_bwd",
    "flash_fwd",
    "flashmla",
    "fmha",
    "fprop",
    "fused_moe",
    "gemm",
    "gemv",
    "gmm",
    "conv_depthwise",
    "matmul",
    "nvjet",
    "rnn_",
    "triton_mm",
    "wgrad",
    "winograd",
    "xmma",
];

/// Substrings in the names of kernels that move data. They count only if the name contains no substring in
/// [`PRODUCTS`].
const MOVES: [&str; 26] = [
    "act_and_mul",
    "align",
    "cache",
    "cast",
    "copy",
    "dropout",
    "elementwise",
    "embedding",
    "fill",
    "gather",
    "gelu",
    "index",
    "memcpy",
    "memset",
    "norm",
    "permute",
    "quant",
    "reduce",
    "rope",
    "rotary",
    "scan",
    "scatter",
    "silu",
    "softmax",
    "sort",
    "topk",
];

/// Classifies a kernel by name.
pub(in crate::pytorch) fn compute_or_move_hint_of_kernel(name: &str) -> KernelComputeOrMoveHint {
    // Remove "fbgemm", the name of an embedding library. The word "fbgemm" contains "gemm" and
    // occurs in the types of the library's kernels, but it does not mean a matrix multiplication.
    let name = name.to_ascii_lowercase().replace("fbgemm", "");
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    if GENERATED.iter().any(|start| name.starts_with(start)) {
        KernelComputeOrMoveHint::Moves
    } else if has(&PRODUCTS) {
        KernelComputeOrMoveHint::Computes
    } else if has(&MOVES) {
        KernelComputeOrMoveHint::Moves
    } else {
        KernelComputeOrMoveHint::Unclear
    }
}

/// Words in the names of operators that multiply matrices.
const WORDS: [&str; 22] = [
    "addmm",
    "attention",
    "bmm",
    "conv1d",
    "conv2d",
    "conv3d",
    "convolution",
    "einsum",
    "experts",
    "gemm",
    "gmm",
    "gru",
    "linear",
    "lstm",
    "matmul",
    "mla",
    "mm",
    "moe",
    "rnn",
    "tensordot",
    "attn",
    "attnfunc",
];

/// Returns true if an operator with this name multiplies matrices. The FLOPs of such an operator are unknown unless
/// they follow from its shapes.
pub(super) fn is_matrix_product(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| WORDS.contains(&word))
        && compute_or_move_hint_of_kernel(&name) != KernelComputeOrMoveHint::Moves
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_kernel_hints_tell_products_from_moves() {
        for (name, expected) in [
            ("flash_fwd_kernel", KernelComputeOrMoveHint::Computes),
            (
                "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT",
                KernelComputeOrMoveHint::Computes,
            ),
            (
                "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>(Params)",
                KernelComputeOrMoveHint::Computes,
            ),
            (
                "Cijk_Alik_Bljk_BBS_BH_Bias",
                KernelComputeOrMoveHint::Computes,
            ),
            ("fused_moe_kernel", KernelComputeOrMoveHint::Computes),
            (
                "triton_poi_fused_addmm_relu_0",
                KernelComputeOrMoveHint::Moves,
            ),
            (
                "void vllm::reshape_and_cache_flash_kernel<bf16>",
                KernelComputeOrMoveHint::Moves,
            ),
            (
                "moe_align_block_size_kernel",
                KernelComputeOrMoveHint::Moves,
            ),
            (
                "void at::native::vectorized_elementwise_kernel<4>",
                KernelComputeOrMoveHint::Moves,
            ),
            (
                "void fbgemm_gpu::permute_2D_data_kernel<int>",
                KernelComputeOrMoveHint::Moves,
            ),
            ("my_kernel", KernelComputeOrMoveHint::Unclear),
        ] {
            assert_eq!(compute_or_move_hint_of_kernel(name), expected, "{name}");
        }
    }

    #[test]
    fn words_of_operators_tell_products() {
        for name in [
            "vllm::moe_forward",
            "aten::lstm",
            "vllm::unified_attention_with_output",
        ] {
            assert!(is_matrix_product(name), "{name}");
        }
        for name in [
            "aten::add",
            "aten::_convert_weight_to_int4pack",
            "aten::upsample_linear1d",
            "_moe_C::topk_softmax",
            "_moe_C::moe_align_block_size",
            "aten::native_layer_norm",
        ] {
            assert!(!is_matrix_product(name), "{name}");
        }
    }
}
