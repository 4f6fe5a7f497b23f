//! FLOPs of products of matrices, from shapes.

#[derive(Clone, Copy)]
enum ProductKind {
    /// Product of two matrices, at these positions among the arguments.
    Matrices(usize, usize),
    /// Product with a vector, the matrix at this position.
    Vector(usize),
    /// Product with the transpose of a weight (features out, features in).
    Linear,
    /// Product of two tensors that are broadcast.
    Broadcast,
    Convolution,
    /// Convolution the other way round: a product for every position of its input.
    Transposed,
    ConvolutionBackward,
    /// Number of products, and the position of the query; (batch, heads, length, width).
    Attention(u64, usize),
    /// The same with (batch, length, heads, width).
    AttentionByRows(u64, usize),
}

fn product(name: &str) -> Option<ProductKind> {
    Some(match name {
        "mm" | "bmm" | "_scaled_mm" | "_int_mm" | "_grouped_mm" | "_scaled_grouped_mm" => {
            ProductKind::Matrices(0, 1)
        }
        "addmm" | "baddbmm" | "addmm_" | "_addmm_activation" => ProductKind::Matrices(1, 2),
        "mv" | "dot" | "vdot" => ProductKind::Vector(0),
        "addmv" | "addmv_" => ProductKind::Vector(1),
        "linear" => ProductKind::Linear,
        "matmul" => ProductKind::Broadcast,
        "conv_transpose1d"
        | "conv_transpose2d"
        | "conv_transpose3d"
        | "cudnn_convolution_transpose"
        | "miopen_convolution_transpose" => ProductKind::Transposed,
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
        | "mkldnn_convolution_pointwise" => ProductKind::Convolution,
        "convolution_backward" => ProductKind::ConvolutionBackward,
        "_flash_attention_forward" | "_efficient_attention_forward" => {
            ProductKind::AttentionByRows(2, 0)
        }
        "_flash_attention_backward" | "_efficient_attention_backward" => {
            ProductKind::AttentionByRows(5, 1)
        }
        _ if name.starts_with("_scaled_dot_product") && name.contains("_backward") => {
            ProductKind::Attention(5, 1)
        }
        _ if name.starts_with("_scaled_dot_product") || name == "scaled_dot_product_attention" => {
            ProductKind::Attention(2, 0)
        }
        _ => return None,
    })
}

pub(super) fn flops(name: &str, inputs: &str, outputs: &str) -> Option<u64> {
    let kind = product(name)?;
    let ins = shapes(inputs);
    match kind {
        ProductKind::Matrices(a, b) => {
            let (a, b) = (ins.get(a)?, ins.get(b)?);
            let &[ref batch @ .., m, k] = &a[..] else {
                return None;
            };
            let &n = b.last()?;
            2_u64
                .checked_mul(elements(batch)?)?
                .checked_mul(elements(&[m, k, n])?)
        }
        ProductKind::Vector(matrix) => 2_u64.checked_mul(elements(ins.get(matrix)?)?),
        ProductKind::Linear => {
            let &features = ins.get(1)?.first()?;
            elements(ins.first()?)?
                .checked_mul(features)?
                .checked_mul(2)
        }
        ProductKind::Broadcast => {
            let &width = ins.first()?.last()?;
            let output = shapes(outputs).into_iter().next()?;
            elements(&output)?.checked_mul(width)?.checked_mul(2)
        }
        ProductKind::Transposed => convolution(ins.first()?, ins.get(1)?),
        ProductKind::Convolution => {
            let output = shapes(outputs).into_iter().next()?;
            let (input, weight) = (ins.first()?, ins.get(1)?);
            let over = if is_transposed(input, weight, &output) {
                input
            } else {
                &output
            };
            convolution(over, weight)
        }
        ProductKind::ConvolutionBackward => {
            // Gradient of the output, input, weight; a gradient that is not required has no shape.
            let one = convolution(ins.first()?, ins.get(2)?)?;
            let wanted = shapes(outputs)
                .iter()
                .take(2)
                .filter(|s| !s.is_empty())
                .count();
            one.checked_mul(wanted as u64)
        }
        ProductKind::Attention(products, query) | ProductKind::AttentionByRows(products, query) => {
            // One product is 2 · b·h · l_q · l_k · d.
            let (q, k) = (ins.get(query)?, ins.get(query + 1)?);
            let (batch, length, width, keys) = match (kind, &q[..], &k[..]) {
                (ProductKind::AttentionByRows(..), &[b, length, h, width], &[_, keys, ..]) => {
                    (b.checked_mul(h)?, length, width, keys)
                }
                (ProductKind::Attention(..), [batch @ .., length, width], [.., keys, _]) => {
                    (elements(batch)?, *length, *width, *keys)
                }
                _ => return None,
            };
            let scores = elements(&[2, batch, length, keys])?;
            // The second product of the forward pass is as wide as the values, which may differ.
            let values = ins.get(query + 2).and_then(|values| values.last());
            let &value_width = values.filter(|_| products == 2).unwrap_or(&width);
            let first = scores.checked_mul(width)?.checked_mul(products - 1)?;
            first.checked_add(scores.checked_mul(value_width)?)
        }
    }
}

/// Returns whether a convolution is transposed, whose weight is (channels in, channels out ÷ groups, …). Where channels
/// are as many on both sides, its output is the larger.
fn is_transposed(input: &[u64], weight: &[u64], output: &[u64]) -> bool {
    let channels = |shape: &[u64]| {
        let place = shape.len().checked_sub(weight.len().saturating_sub(1));
        place.and_then(|place| shape.get(place).copied())
    };
    let first = weight.first().copied();
    if channels(output) == first {
        channels(input) == first && elements(output) > elements(input)
    } else {
        channels(input) == first
    }
}

/// Returns 2 · elements of the output · weights per output channel; a weight is (channels out, channels in ÷
/// groups, …).
fn convolution(output: &[u64], weight: &[u64]) -> Option<u64> {
    let (_, per_channel) = weight.split_first()?;
    2_u64
        .checked_mul(elements(output)?)?
        .checked_mul(elements(per_channel)?)
}

fn elements(shape: &[u64]) -> Option<u64> {
    shape
        .iter()
        .try_fold(1_u64, |product, &n| product.checked_mul(n))
}

/// Parses the shapes of the arguments in `[[4, 3, 64, 64], [], [[2], [3]]]`; those of a list of tensors, and of a
/// scalar, are empty.
fn shapes(text: &str) -> Vec<Vec<u64>> {
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let arguments = value.as_array().cloned().unwrap_or_default();
    let shape = |argument: &serde_json::Value| {
        let sizes = argument.as_array().map_or(&[][..], |list| &list[..]);
        let sizes: Option<Vec<u64>> = sizes.iter().map(serde_json::Value::as_u64).collect();
        sizes.unwrap_or_default()
    };
    arguments.iter().map(shape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_count_two_operations_for_each_multiplication() {
        // (4×5)·(5×6): 2·4·5·6 = 240.
        assert_eq!(flops("mm", "[[4, 5], [5, 6]]", "[[4, 6]]"), Some(240));
        // A bias in front, 3 of them in a batch: 3 · 240.
        assert_eq!(
            flops("baddbmm", "[[3, 4, 6], [3, 4, 5], [3, 5, 6]]", "[]"),
            Some(720)
        );
        assert_eq!(flops("add", "[[4], [4]]", "[[4]]"), None);
    }

    #[test]
    fn a_convolution_is_a_product_for_every_output() {
        // ResNet's first: 4 images, 64 channels of 32×32 out, 3 channels of 7×7 in:
        // 2 · (4·64·32·32) · (3·7·7) = 77,070,336.
        let forward = flops(
            "mkldnn_convolution",
            "[[4, 3, 64, 64], [64, 3, 7, 7], [], [], [], [], []]",
            "[[4, 64, 32, 32]]",
        );
        assert_eq!(forward, Some(77_070_336));
        // The gradient of the weight alone, as the image needs none; then both.
        let inputs = "[[4, 64, 32, 32], [4, 3, 64, 64], [64, 3, 7, 7]]";
        let weight = flops("convolution_backward", inputs, "[[], [64, 3, 7, 7], []]");
        assert_eq!(weight, forward);
        let both = flops(
            "convolution_backward",
            inputs,
            "[[4, 3, 64, 64], [64, 3, 7, 7], []]",
        );
        assert_eq!(both, forward.map(|one| one * 2));
    }

    #[test]
    fn composite_operators_cost_what_their_parts_do() {
        // (32×64)·(64×256): 2·32·64·256 = 1,048,576; the weight is (256, 64).
        assert_eq!(
            flops("linear", "[[32, 64], [256, 64], [256]]", "[[32, 256]]"),
            Some(1_048_576)
        );
        // (2×4×8)·(8×5), broadcast: 2·(2·4·5)·8 = 640.
        assert_eq!(
            flops("matmul", "[[2, 4, 8], [8, 5]]", "[[2, 4, 5]]"),
            Some(640)
        );
        // (4×8)·8: 2·4·8.
        assert_eq!(flops("mv", "[[4, 8], [8]]", "[[4]]"), Some(64));
        // 8×8 positions of 16 channels, each times 8 channels of 2×2: 2·(16·64)·(8·4) = 65,536, whatever it is called.
        let (inputs, output) = ("[[1, 16, 8, 8], [16, 8, 2, 2]]", "[[1, 8, 16, 16]]");
        assert_eq!(flops("conv_transpose2d", inputs, output), Some(65_536));
        assert_eq!(flops("convolution", inputs, output), Some(65_536));
        // As many channels on both sides: a stride of 2 makes more positions there, fewer here.
        let weight = "[4, 4, 2, 2]";
        let up = flops(
            "convolution",
            &format!("[[1, 4, 8, 8], {weight}]"),
            "[[1, 4, 16, 16]]",
        );
        let down = flops(
            "convolution",
            &format!("[[1, 4, 16, 16], {weight}]"),
            "[[1, 4, 8, 8]]",
        );
        assert_eq!((up, down), (Some(8192), Some(8192)));
    }

    #[test]
    fn values_may_be_narrower_than_keys() {
        // 3 heads of 5 queries and 7 keys, 8 wide, and values 4 wide: 2·3·5·7·(8 + 4) = 2,520.
        let shapes = "[[3, 5, 8], [3, 7, 8], [3, 7, 4]]";
        assert_eq!(
            flops("scaled_dot_product_attention", shapes, "[]"),
            Some(2520)
        );
    }

    #[test]
    fn attention_forms_two_products_and_five_on_the_way_back() {
        // 2 batches · 8 heads, 64 queries, 64 keys, width 32: one product is 2·16·64·64·32 = 4,194,304.
        let shape = "[2, 8, 64, 32]";
        let forward = format!("[{shape}, {shape}, {shape}]");
        let name = "_scaled_dot_product_flash_attention_for_cpu";
        assert_eq!(flops(name, &forward, "[]"), Some(2 * 4_194_304));
        // The same with lengths before heads.
        let rows = format!("[{0}, {0}, {0}]", "[2, 64, 8, 32]");
        assert_eq!(
            flops("_flash_attention_forward", &rows, "[]"),
            Some(2 * 4_194_304)
        );
        let back = format!("[{shape}, {shape}, {shape}, {shape}]");
        assert_eq!(
            flops(&format!("{name}_backward"), &back, "[]"),
            Some(5 * 4_194_304)
        );
    }
}
