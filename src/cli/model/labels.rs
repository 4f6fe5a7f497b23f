//! Names and sizes of operators, for text and JSON.

use chakram_workloads::model::{
    ActivationFunction, AttentionSpan, DeltaAttentionSizes, OperatorKind,
    OperatorTensorParallelSplit,
};

/// Returns the name of `cut` in model files.
pub(super) fn tensor_parallel_split_name(cut: OperatorTensorParallelSplit) -> &'static str {
    match cut {
        OperatorTensorParallelSplit::Replicated => "whole",
        OperatorTensorParallelSplit::ColumnParallel => "outputs",
        OperatorTensorParallelSplit::RowParallel => "inputs",
        OperatorTensorParallelSplit::InsideRegion => "between",
    }
}

/// Returns the name of `function` in model files.
pub(super) fn activation_function_name(function: ActivationFunction) -> &'static str {
    let found = ActivationFunction::ALL
        .iter()
        .find(|(known, _)| *known == function);
    found.map_or("", |(_, name)| name)
}

/// Formats the sizes of an operator: `linear 1024 x 1600 x 4800, bias`.
pub(super) fn format_operator_sizes(work: &OperatorKind) -> String {
    let optional = |there: bool, word: &'static str| if there { word } else { "" };
    let rest = match *work {
        OperatorKind::Linear {
            rows,
            inputs,
            outputs,
            bias,
            tied,
        } => {
            let (bias, tied) = (optional(bias, ", bias"), optional(tied, ", tied"));
            format!("{rows} x {inputs} x {outputs}{bias}{tied}")
        }
        OperatorKind::Attention {
            heads,
            kv_heads,
            width,
            causal,
            dropout,
            rotary,
            qk_norm,
            ..
        } => {
            let shared = if kv_heads == heads {
                String::new()
            } else {
                format!(" over {kv_heads}")
            };
            let (causal, dropout) = (optional(causal, ", causal"), optional(dropout, ", dropout"));
            let rotary = optional(rotary, ", rotary");
            let norms = optional(qk_norm, ", norms of heads");
            format!("{heads} heads{shared} x {width}{causal}{dropout}{rotary}{norms}")
        }
        OperatorKind::ShapedAttention {
            heads,
            kv_heads,
            width,
            value_width,
            latent,
            span,
            sinks,
            causal,
            ..
        } => {
            let shared = match (kv_heads == heads, latent) {
                (_, 1..) => format!(" of latents of {latent}"),
                (true, 0) => String::new(),
                (false, 0) => format!(" over {kv_heads}"),
            };
            let values = match value_width == width {
                true => String::new(),
                false => format!(" and {value_width}"),
            };
            let span = match span {
                AttentionSpan::All => String::new(),
                AttentionSpan::Window(tokens) => format!(", window {tokens}"),
                AttentionSpan::Piece(tokens) => format!(", pieces of {tokens}"),
            };
            let (causal, sinks) = (optional(causal, ", causal"), optional(sinks, ", sinks"));
            format!("{heads} heads{shared} x {width}{values}{causal}{span}{sinks}")
        }
        OperatorKind::LinearAttention { sizes, .. } => {
            let DeltaAttentionSizes {
                key_heads,
                value_heads,
                key_width,
                value_width,
                taps,
                ..
            } = sizes;
            format!(
                "{value_heads} heads over {key_heads}, states of {key_width} x {value_width}, convolution of {taps}"
            )
        }
        OperatorKind::LatentUp {
            rows,
            query_rank,
            kv_rank,
            heads,
            query_width,
            kv_width,
        } => format!(
            "{rows} x {query_rank} x {} and {kv_rank} x {}",
            heads.saturating_mul(query_width),
            heads.saturating_mul(kv_width)
        ),
        OperatorKind::ExpertDispatch {
            tokens,
            width,
            experts,
            chosen,
            form,
        } => {
            let sigmoid = optional(form.sigmoid, ", sigmoid");
            let groups = match form.groups {
                0 | 1 => String::new(),
                groups => format!(", {} of {groups} groups", form.chosen_groups),
            };
            format!("{tokens} x {width} to {chosen} of {experts}{sigmoid}{groups}")
        }
        OperatorKind::ExpertLinear {
            rows,
            experts,
            inputs,
            outputs,
            bias,
        } => {
            let bias = optional(bias, ", bias");
            format!("{rows} x {inputs} x {outputs}, {experts} experts{bias}")
        }
        OperatorKind::ExpertCombine {
            tokens,
            width,
            chosen,
        } => format!("{chosen} x {tokens} x {width}"),
        OperatorKind::Norm { rows, width, bias } => {
            format!("{rows} x {width}{}", optional(bias, ", bias"))
        }
        OperatorKind::Activation {
            function: name,
            rows,
            width,
            gated,
        } => {
            let gated = optional(gated, ", gated");
            return format!("{} {rows} x {width}{gated}", activation_function_name(name));
        }
        OperatorKind::Residual {
            rows,
            width,
            dropout,
        } => format!("{rows} x {width}{}", optional(dropout, ", dropout")),
        OperatorKind::Embedding {
            vocabulary,
            width,
            tokens,
        } => format!("{tokens} of {vocabulary} x {width}"),
        OperatorKind::Loss { rows, classes } => format!("{rows} x {classes}"),
        OperatorKind::Convolution {
            inputs,
            outputs,
            size,
            kernel,
            stride,
            padding,
            groups,
            bias,
        } => {
            let window = format_kernel_window_on_input(size, kernel, stride, padding);
            let groups = match groups {
                1 => String::new(),
                _ => format!(", {groups} groups"),
            };
            format!(
                "{inputs} to {outputs}, {window}{groups}{}",
                optional(bias, ", bias")
            )
        }
        OperatorKind::Pool {
            channels,
            size,
            kernel,
            stride,
            padding,
        } => format!(
            "{channels}, {}",
            format_kernel_window_on_input(size, kernel, stride, padding)
        ),
        OperatorKind::EmbeddingBag {
            rows,
            width,
            lookups,
        } => format!("{lookups} of {rows} x {width}"),
        OperatorKind::Interaction { vectors, width } => format!("{vectors} x {width}"),
    };
    format!(
        "{} {rest}",
        work.to_axes_and_tensors().name.replace('_', " ")
    )
}

/// Formats a window: `7x7 on 224x224, stride 2, padding 3`.
fn format_kernel_window_on_input(
    [h, w]: [u64; 2],
    [kh, kw]: [u64; 2],
    stride: u64,
    padding: u64,
) -> String {
    let mut text = format!("{kh}x{kw} on {h}x{w}");
    if stride != 1 {
        text += &format!(", stride {stride}");
    }
    if padding != 0 {
        text += &format!(", padding {padding}");
    }
    text
}
