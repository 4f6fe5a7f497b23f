//! Computes the FLOPs of matrix multiplications and convolutions from shapes.

use super::arguments::{OperatorArgument, OperatorArguments, element_count};

#[derive(Clone, Copy)]
enum MatrixProductKind {
    /// Matrix multiplication; the values are the argument positions of the two matrices.
    Matrices(usize, usize),
    /// Matrix-vector multiplication; the value is the argument position of the matrix.
    Vector(usize),
    /// Multiplication by the transpose of a weight whose shape is (features out, features in).
    Linear,
    /// Multiplication of two tensors, with broadcasting.
    Broadcast,
    Convolution,
    /// Transposed convolution: one multiplication per input position.
    Transposed,
    ConvolutionBackward,
    /// Grouped multiplication: one tensor's rows form groups, and each group is multiplied by its own matrix from the
    /// other tensor.
    Grouped,
    /// A mixture-of-experts block: both layers of every expert that a token chose.
    Experts,
}

fn product_kind(name: &str) -> Option<MatrixProductKind> {
    Some(match name {
        "mm" | "bmm" | "_scaled_mm" | "_int_mm" => MatrixProductKind::Matrices(0, 1),
        "addmm" | "baddbmm" | "addmm_" | "_addmm_activation" => MatrixProductKind::Matrices(1, 2),
        // 8-bit matrix multiplications of vLLM and SGLang.
        "_C::cutlass_scaled_mm" => MatrixProductKind::Matrices(1, 2),
        "sgl_kernel::fp8_scaled_mm"
        | "sgl_kernel::int8_scaled_mm"
        | "sgl_kernel::fp8_blockwise_scaled_mm" => MatrixProductKind::Matrices(0, 1),
        "mv" | "dot" | "vdot" => MatrixProductKind::Vector(0),
        "addmv" | "addmv_" => MatrixProductKind::Vector(1),
        "linear" | "vllm::rocm_unquantized_gemm" => MatrixProductKind::Linear,
        "matmul" => MatrixProductKind::Broadcast,
        "conv_transpose1d"
        | "conv_transpose2d"
        | "conv_transpose3d"
        | "cudnn_convolution_transpose"
        | "miopen_convolution_transpose" => MatrixProductKind::Transposed,
        "conv1d"
        | "conv2d"
        | "conv3d"
        | "convolution"
        | "_convolution"
        | "mkldnn_convolution"
        | "cudnn_convolution"
        | "miopen_convolution"
        | "thnn_conv2d"
        | "_slow_conv2d_forward"
        | "convolution_overrideable"
        | "_conv_depthwise2d"
        | "mkldnn_convolution_pointwise" => MatrixProductKind::Convolution,
        "convolution_backward" => MatrixProductKind::ConvolutionBackward,
        "_grouped_mm" | "_scaled_grouped_mm" | "grouped_gemm::gmm" | "GroupedGemm" => {
            MatrixProductKind::Grouped
        }
        _ if is_fused_experts_operator(name) => MatrixProductKind::Experts,
        _ => return None,
    })
}

/// Returns true if an operator executes the experts that each token chose, such as `vllm::inplace_fused_experts`.
fn is_fused_experts_operator(name: &str) -> bool {
    let plain = name.rsplit("::").next().unwrap_or(name);
    let plain = plain
        .trim_start_matches("inplace_")
        .trim_start_matches("outplace_");
    name.contains("::") && matches!(plain, "fused_experts" | "fused_experts_impl" | "fused_moe")
}

/// Returns true if the operator's scalar values affect how much it computes.
pub(super) fn flops_depend_on_scalar_values(name: &str) -> bool {
    name == "convolution_backward"
}

/// Returns the FLOPs of the operator `name`. The result is `Some(None)` if the FLOPs do not follow from the shapes, and
/// `None` if the operator is not a matrix multiplication.
pub(super) fn product_flops(name: &str, operands: &OperatorArguments) -> Option<Option<u64>> {
    Some(product_kind(name)?.count_flops(operands))
}

impl MatrixProductKind {
    fn count_flops(self, operands: &OperatorArguments) -> Option<u64> {
        // Sizes of a tensor, or `None` for a number or list.
        let tensor =
            |place: usize| Some(operands.shape_at(place)).filter(|shape| !shape.is_empty());
        match self {
            Self::Matrices(a, b) => {
                let &[ref batch @ .., m, k] = tensor(a)? else {
                    return None;
                };
                let &n = tensor(b)?.last()?;
                2_u64
                    .checked_mul(element_count(batch)?)?
                    .checked_mul(element_count(&[m, k, n])?)
            }
            Self::Vector(matrix) => 2_u64.checked_mul(element_count(tensor(matrix)?)?),
            Self::Linear => {
                let &features = tensor(1)?.first()?;
                element_count(tensor(0)?)?
                    .checked_mul(features)?
                    .checked_mul(2)
            }
            Self::Broadcast => {
                let &width = tensor(0)?.last()?;
                let output = operands.element_count_of_first_output()?;
                output.checked_mul(width)?.checked_mul(2)
            }
            Self::Transposed => convolution_flops(tensor(0)?, tensor(1)?),
            Self::Convolution => {
                let output = operands.outputs.first()?;
                let (input, weight) = (tensor(0)?, tensor(1)?);
                let over = if is_transposed_convolution(input, weight, output) {
                    input
                } else {
                    output
                };
                convolution_flops(over, weight)
            }
            Self::ConvolutionBackward => {
                // The first three arguments are the output's gradient, the input, and the weight.
                let one = convolution_flops(tensor(0)?, tensor(2)?)?;
                one.checked_mul(count_wanted_gradients(operands)?)
            }
            Self::Grouped => grouped_flops(tensor(0)?, tensor(1)?),
            Self::Experts => expert_flops(&operands.args),
        }
    }
}

/// Returns how many gradients (the input's and the weight's) a convolution's backward pass computes, as its mask
/// argument states. Without a mask, the results' shapes show the number, because a gradient that was not computed has
/// no shape.
fn count_wanted_gradients(operands: &OperatorArguments) -> Option<u64> {
    const MASK: usize = 10;
    let wanted = match operands.flags_at(MASK) {
        Some(mask) => mask.iter().take(2).filter(|wanted| **wanted).count(),
        None => {
            let outputs = operands.outputs.iter().take(2);
            outputs.filter(|shape| !shape.is_empty()).count()
        }
    };
    Some(wanted as u64)
}

/// Returns the FLOPs of a grouped multiplication. The group sizes add up to one dimension; each row (or column) is
/// multiplied by its group's matrix.
fn grouped_flops(a: &[u64], b: &[u64]) -> Option<u64> {
    match (a, b) {
        // Groups of rows have one matrix each, and the operands may be in either order.
        (&[_, width], &[_, rows, columns]) => {
            let out = if rows == width { columns } else { rows };
            element_count(a)?.checked_mul(out)?.checked_mul(2)
        }
        // The groups are ranges of columns, or of the inner dimension.
        (&[_, rows, inner] | &[rows, inner], &[_, columns]) => {
            element_count(&[2, rows, inner, columns])
        }
        (&[groups, rows, inner], &[_, _, columns]) => {
            element_count(&[2, groups, rows, inner, columns])
        }
        _ => None,
    }
}

/// Returns the FLOPs of two expert layers with weights of shape (experts, features out, features
/// in). The tokens have the shape (tokens, features). The list of chosen experts has the shape
/// (tokens, experts per token).
fn expert_flops(args: &[OperatorArgument]) -> Option<u64> {
    let &[tokens, width] = &args.first()?.shape[..] else {
        return None;
    };
    let mut layers = args.iter().filter(|arg| arg.shape.len() == 3);
    let (up, down) = (&layers.next()?.shape, &layers.next()?.shape);
    // Weights with fewer bits per element are packed, so their sizes do not fit the number of
    // features.
    if up[2] != width || down[1] != width {
        return None;
    }
    let is_choice =
        |arg: &&OperatorArgument| arg.integer && arg.shape.len() == 2 && arg.shape[0] == tokens;
    let chosen = args.iter().find(is_choice)?.element_count()?;
    let one = element_count(&up[1..])?.checked_add(element_count(&down[1..])?)?;
    chosen.checked_mul(one)?.checked_mul(2)
}

/// Returns true if a convolution is transposed, so that its weight has the shape (channels in, channels out ÷ groups,
/// …). A convolution with as many input channels as output channels counts as transposed if its output is larger than
/// its input.
fn is_transposed_convolution(input: &[u64], weight: &[u64], output: &[u64]) -> bool {
    let channels = |shape: &[u64]| {
        let place = shape.len().checked_sub(weight.len().saturating_sub(1));
        place.and_then(|place| shape.get(place).copied())
    };
    let first = weight.first().copied();
    if channels(output) == first {
        channels(input) == first && element_count(output) > element_count(input)
    } else {
        channels(input) == first
    }
}

/// Returns the FLOPs: 2 · elements of the output · weights per output channel. The weight has the shape (channels
/// out, channels in ÷ groups, …).
fn convolution_flops(output: &[u64], weight: &[u64]) -> Option<u64> {
    let (_, per_channel) = weight.split_first()?;
    2_u64
        .checked_mul(element_count(output)?)?
        .checked_mul(element_count(per_channel)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_product_flops(name: &str, inputs: &str, outputs: &str) -> Option<u64> {
        product_flops(name, &OperatorArguments::new(inputs, "[]", outputs, "[]")).flatten()
    }

    #[test]
    fn products_count_two_operations_for_each_multiplication() {
        // Matrices (4×5)·(5×6): 2·4·5·6 = 240.
        assert_eq!(
            count_product_flops("mm", "[[4, 5], [5, 6]]", "[[4, 6]]"),
            Some(240)
        );
        // A bias does not count, even as the first argument. A batch of 3 has 3 · 240 FLOPs.
        assert_eq!(
            count_product_flops("baddbmm", "[[3, 4, 6], [3, 4, 5], [3, 5, 6]]", "[]"),
            Some(720)
        );
        assert_eq!(count_product_flops("add", "[[4], [4]]", "[[4]]"), None);
    }

    #[test]
    fn a_convolution_is_a_product_for_every_output() {
        // The first convolution of ResNet has 4 images, 64 output channels of 32×32, and 3 input channels with
        // filters of 7×7: 2 · (4·64·32·32) · (3·7·7) = 77,070,336.
        let forward = count_product_flops(
            "mkldnn_convolution",
            "[[4, 3, 64, 64], [64, 3, 7, 7], [], [], [], [], []]",
            "[[4, 64, 32, 32]]",
        );
        assert_eq!(forward, Some(77_070_336));
        // In the first case, only the weight's gradient is computed, because the image needs no
        // gradient. In the second case, both gradients are computed.
        let inputs = "[[4, 64, 32, 32], [4, 3, 64, 64], [64, 3, 7, 7]]";
        let weight = count_product_flops("convolution_backward", inputs, "[[], [64, 3, 7, 7], []]");
        assert_eq!(weight, forward);
        let both = count_product_flops(
            "convolution_backward",
            inputs,
            "[[4, 3, 64, 64], [64, 3, 7, 7], []]",
        );
        assert_eq!(both, forward.map(|one| one * 2));
    }

    #[test]
    fn composite_operators_cost_what_their_parts_do() {
        // Matrices (32×64)·(64×256): 2·32·64·256 = 1,048,576; the weight is (256, 64).
        assert_eq!(
            count_product_flops("linear", "[[32, 64], [256, 64], [256]]", "[[32, 256]]"),
            Some(1_048_576)
        );
        // Tensors (2×4×8)·(8×5), broadcast: 2·(2·4·5)·8 = 640.
        assert_eq!(
            count_product_flops("matmul", "[[2, 4, 8], [8, 5]]", "[[2, 4, 5]]"),
            Some(640)
        );
        // A 4×8 matrix times a vector of length 8: 2·4·8.
        assert_eq!(
            count_product_flops("mv", "[[4, 8], [8]]", "[[4]]"),
            Some(64)
        );
        // 8×8 positions of 16 channels, each times 8 channels of 2×2: 2·(16·64)·(8·4) = 65,536. Every name of the
        // operator produces the same result.
        let (inputs, output) = ("[[1, 16, 8, 8], [16, 8, 2, 2]]", "[[1, 8, 16, 16]]");
        assert_eq!(
            count_product_flops("conv_transpose2d", inputs, output),
            Some(65_536)
        );
        assert_eq!(
            count_product_flops("convolution", inputs, output),
            Some(65_536)
        );
        // There are as many input channels as output channels, so only the sizes tell the two apart. With a stride of
        // 2, a transposed convolution enlarges its input, and a convolution shrinks it.
        let weight = "[4, 4, 2, 2]";
        let up = count_product_flops(
            "convolution",
            &format!("[[1, 4, 8, 8], {weight}]"),
            "[[1, 4, 16, 16]]",
        );
        let down = count_product_flops(
            "convolution",
            &format!("[[1, 4, 16, 16], {weight}]"),
            "[[1, 4, 8, 8]]",
        );
        assert_eq!((up, down), (Some(8192), Some(8192)));
    }

    #[test]
    fn the_mask_of_a_convolution_says_which_gradients_it_computes() {
        // 2 · (4·64·32·32) · (3·7·7) FLOPs are needed twice: for the weight's gradient and for the
        // input's gradient.
        let inputs = "[[4, 64, 32, 32], [4, 3, 64, 64], [64, 3, 7, 7]]";
        let of = |mask: &str| {
            let values = format!(r#"["", "", "", "", "", "", "", "", "", "", "{mask}"]"#);
            let operands = OperatorArguments::new(inputs, "[]", "[[4, 64, 32, 32]]", &values);
            product_flops("convolution_backward", &operands).flatten()
        };
        assert_eq!(of("[False, True, True]"), Some(77_070_336));
        assert_eq!(of("[True, True, False]"), Some(2 * 77_070_336));
    }

    #[test]
    fn grouped_product_multiplies_each_row_by_the_matrix_of_its_group() {
        // 100 rows of length 8, multiplied by four 8×6 matrices: 2·100·8·6 = 9,600. The matrices may also be
        // transposed.
        let out = "[[100, 6]]";
        assert_eq!(
            count_product_flops("_grouped_mm", "[[100, 8], [4, 8, 6], [4]]", out),
            Some(9600)
        );
        assert_eq!(
            count_product_flops("grouped_gemm::gmm", "[[100, 8], [4, 6, 8], [4]]", out),
            Some(9600)
        );
        // Four 5×8 matrices whose columns form four groups: 2·5·8·100. With the inner dimension in 4 groups: 2·5·100·6.
        assert_eq!(
            count_product_flops("_grouped_mm", "[[4, 5, 8], [8, 100], [4]]", "[[5, 100]]"),
            Some(8000)
        );
        assert_eq!(
            count_product_flops("_grouped_mm", "[[5, 100], [100, 6], [4]]", "[[4, 5, 6]]"),
            Some(6000)
        );
        // Four multiplications of 2·5·8·6 = 480 each.
        assert_eq!(
            count_product_flops("_grouped_mm", "[[4, 5, 8], [4, 8, 6]]", "[[4, 5, 6]]"),
            Some(4 * 480)
        );
    }

    #[test]
    fn expert_flops_count_only_the_experts_chosen_for_each_token() {
        // 10 tokens of 16 features with two experts each. Each expert has 2·32 features up and 32 down:
        // 2·10·2·(64·16 + 16·32) = 61,440.
        let shapes = "[[10, 16], [8, 64, 16], [8, 16, 32], [10, 2], [10, 2], []]";
        let types = "['Tensor(c10::BFloat16)', 'Tensor(c10::BFloat16)', 'Tensor(c10::BFloat16)', 'Tensor(float)', 'Tensor(int)', '']";
        let operands = OperatorArguments::new(shapes, types, "[]", "[]");
        let count = |name| product_flops(name, &operands);
        assert_eq!(count("vllm::inplace_fused_experts"), Some(Some(61_440)));
        assert_eq!(count("sglang::outplace_fused_experts"), Some(Some(61_440)));
        // The FLOPs are unknown: in the first case the number of experts is missing, and in the
        // second case the weights have four bits.
        let name = "vllm::fused_moe";
        assert_eq!(
            count_product_flops(name, "[[10, 16], [8, 64, 16], [8, 16, 32], [10, 8]]", "[]"),
            None
        );
        assert_eq!(
            count_product_flops(name, "[[10, 16], [8, 64, 8], [8, 16, 16], [10, 2]]", "[]"),
            None
        );
    }
}
