//! FLOPs and bytes of operators, from the shapes of their arguments.
//!
//! A multiplication and an addition are two operations. With C (m×n) = A (m×k) · B (k×n) that is 2·m·n·k; a
//! convolution is such a product for every position of its output: 2 · elements of the output · elements of the
//! weight ÷ output channels. Its backward pass has a product of the same size for each gradient that it computes.
//! Attention computes Q·Kᵀ and P·V, and five such products in the backward pass. Everything else counts no FLOPs: it
//! is memory-bound on every machine, by the bytes of its tensors.

use super::rank_timeline::{DeviceInterval, HostIntervalKind, RankTimeline};

/// Attribution of costs to items: work is counted once, at the innermost operator that does it. The kernels of an
/// operator share its cost as they share its time; one that launches kernels itself has the cost of its own tensors,
/// whoever wrote it.
///
/// An operator whose children move about as many bytes as itself only calls those that do the work; one that moves
/// more than twice as many does work of its own beside converting a scalar or the like.
#[derive(Debug)]
pub struct OpCosts {
    /// Cost attributed to each item.
    of: Vec<OpCost>,
    /// Cost of the kernels that each item launches itself, and their time, ns.
    launched: Vec<(OpCost, u64)>,
}

impl OpCosts {
    /// Attributes the costs of the items of `rank`.
    pub fn new(rank: &RankTimeline) -> Self {
        let count = rank.items.len();
        let mut this = Self {
            of: vec![OpCost::default(); count],
            launched: vec![(OpCost::default(), 0); count],
        };
        // Items come after those that enclose them, so in reverse order children are known first.
        let mut inside = vec![OpCost::default(); count];
        for (i, item) in rank.items.iter().enumerate().rev() {
            let mut whole = inside[i];
            if item.role == HostIntervalKind::Operator
                && let Some(node) = rank.host.nodes.get(item.host as usize)
            {
                let texts = &rank.host.texts;
                let bytes = node.bytes_in.saturating_add(node.bytes_out);
                let shapes = (texts.get(node.shapes_in), texts.get(node.shapes_out));
                let own = of(texts.get(node.name), shapes.0, shapes.1, bytes);
                if whole.flops == 0 && (own.flops > 0 || own.bytes / 2 > whole.bytes) {
                    this.of[i] = own;
                    whole = own;
                }
            }
            if let Some(parent) = inside.get_mut(item.parent as usize) {
                parent.flops = parent.flops.saturating_add(whole.flops);
                parent.bytes = parent.bytes.saturating_add(whole.bytes);
            }
        }
        for device in &rank.devices {
            let operator = rank.operator_of(device);
            if let Some((_, time)) = this.launched.get_mut(operator as usize) {
                *time = time.saturating_add(length(device));
            }
        }
        for (i, (cost, time)) in this.launched.iter_mut().enumerate() {
            let node = rank.host.nodes.get(rank.items[i].host as usize);
            let Some(node) = node.filter(|_| *time > 0) else {
                continue;
            };
            let texts = &rank.host.texts;
            let name = texts.get(node.name);
            let shapes = (texts.get(node.shapes_in), texts.get(node.shapes_out));
            let plain = name.strip_prefix("aten::").unwrap_or(name);
            *cost = OpCost {
                flops: flops(plain, shapes.0, shapes.1).unwrap_or(0),
                bytes: node.bytes_in.saturating_add(node.bytes_out),
            };
        }
        this
    }

    /// Returns the cost attributed to `item`: zero if its work is counted inside, or if it does none.
    pub fn of(&self, item: u32) -> OpCost {
        self.of.get(item as usize).copied().unwrap_or_default()
    }

    /// Returns what the kernel `device` does of the cost of the operator `item`, which launched it: its share of their
    /// time.
    pub fn share(&self, item: u32, device: &DeviceInterval) -> OpCost {
        let (cost, whole) = self
            .launched
            .get(item as usize)
            .copied()
            .unwrap_or_default();
        let part = |amount: u64| {
            let share = u128::from(amount) * u128::from(length(device)) / u128::from(whole.max(1));
            u64::try_from(share).unwrap_or(u64::MAX)
        };
        OpCost {
            flops: part(cost.flops),
            bytes: part(cost.bytes),
        }
    }
}

fn length(device: &DeviceInterval) -> u64 {
    u64::try_from(device.end.saturating_sub(device.start)).unwrap_or(0)
}

/// Cost of an operator, independent of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCost {
    /// FLOPs; zero if it is no product of matrices.
    pub flops: u64,
    /// Bytes read and written; zero if it moves none, as a view.
    pub bytes: u64,
}

/// Operators that return another view of their tensors, or allocate without writing.
const VIEWS: [&str; 41] = [
    "_local_scalar_dense",
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "as_strided",
    "as_strided_",
    "broadcast_to",
    "chunk",
    "detach",
    "detach_",
    "diagonal",
    "empty",
    "empty_like",
    "empty_strided",
    "expand",
    "expand_as",
    "flatten",
    "is_nonzero",
    "item",
    "lift_fresh",
    "movedim",
    "narrow",
    "new_empty",
    "new_empty_strided",
    "numpy_T",
    "permute",
    "resize_",
    "resolve_conj",
    "resolve_neg",
    "result_type",
    "select",
    "set_",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "transpose",
    "unbind",
    "unsqueeze",
    "view",
];

/// Returns the cost of the operator `name`. `bytes` are those of its tensors; `inputs` and `outputs` their shapes as
/// Python shows them.
pub fn of(name: &str, inputs: &str, outputs: &str, bytes: u64) -> OpCost {
    let Some(name) = name.strip_prefix("aten::") else {
        return OpCost::default();
    };
    if VIEWS.binary_search(&name).is_ok() {
        return OpCost::default();
    }
    OpCost {
        flops: flops(name, inputs, outputs).unwrap_or(0),
        bytes,
    }
}

#[derive(Clone, Copy)]
enum ProductKind {
    /// Product of two matrices, at these positions among the arguments.
    Matrices(usize, usize),
    Convolution,
    ConvolutionBackward,
    /// Number of products, and the position of the query; (batch, heads, length, width).
    Attention(u64, usize),
    /// The same with (batch, length, heads, width).
    AttentionByRows(u64, usize),
}

fn product(name: &str) -> Option<ProductKind> {
    Some(match name {
        "mm" | "bmm" | "_scaled_mm" | "_int_mm" => ProductKind::Matrices(0, 1),
        "addmm" | "baddbmm" | "addmm_" | "_addmm_activation" => ProductKind::Matrices(1, 2),
        "mkldnn_convolution"
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
        _ if name.starts_with("_scaled_dot_product") => ProductKind::Attention(2, 0),
        _ => return None,
    })
}

fn flops(name: &str, inputs: &str, outputs: &str) -> Option<u64> {
    let ins = shapes(inputs);
    let kind = product(name)?;
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
        ProductKind::Convolution => convolution(&shapes(outputs).into_iter().next()?, ins.get(1)?),
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
            let (&[b, one, other, width], &[_, key_one, key_other, _]) = (&q[..], &k[..]) else {
                return None;
            };
            let (h, length, keys) = match kind {
                ProductKind::AttentionByRows(..) => (other, one, key_one),
                _ => (one, other, key_other),
            };
            let one = elements(&[2, b, h, length])?.checked_mul(elements(&[keys, width])?)?;
            one.checked_mul(products)
        }
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
    fn views_are_sorted_and_move_nothing() {
        assert!(VIEWS.is_sorted());
        assert_eq!(of("aten::view", "[[8]]", "[[8]]", 64), OpCost::default());
        assert_eq!(of("aten::add_", "[[8], [8]]", "[[8]]", 96).bytes, 96);
        assert_eq!(of("Optimizer.step", "[]", "[]", 96), OpCost::default());
    }

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
