//! Parses an operator of a layer, given the shape of its input.

use super::{
    MOST, parse_height_and_width, read_flag_or_default, read_positive_integer, read_size_or_default,
};
use crate::model::spec::window_position_count;
use crate::model::{
    ActivationFunction, ExpertScoringAndGroupRule, LayerOperator, OperatorKind,
    OperatorTensorParallelSplit,
};
use chakram_base::config::{ConfigError, ConfigField, ConfigTable};
use std::fmt;

/// Shape of the activations passed from one operator to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActivationShape {
    /// An image, or its feature maps.
    Image {
        channels: u64,
        /// Height and width in pixels.
        size: [u64; 2],
    },
    /// Rows of values, such as tokens.
    Rows {
        rows: u64,
        /// Number of elements per row.
        columns: u64,
    },
}

impl ActivationShape {
    /// Returns the number of rows and of columns or, for an image, the number of pixels and of channels.
    fn rows_and_columns(self) -> (u64, u64) {
        match self {
            Self::Image { channels, size } => (size[0].saturating_mul(size[1]), channels),
            Self::Rows { rows, columns } => (rows, columns),
        }
    }

    /// Returns the shape with its number of columns or channels changed to `columns`.
    fn with_columns(self, columns: u64) -> Self {
        match self {
            Self::Image { size, .. } => Self::Image {
                channels: columns,
                size,
            },
            Self::Rows { rows, .. } => Self::Rows { rows, columns },
        }
    }
}

impl fmt::Display for ActivationShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image {
                channels,
                size: [height, width],
            } => write!(f, "{channels} channels of {height} x {width}"),
            Self::Rows { rows, columns } => write!(f, "{rows} x {columns}"),
        }
    }
}

/// Shapes of the activations that the next operator of a layer can use, on the branch and on the
/// skip path around it.
pub(super) struct LayerShapeCursor {
    pub(super) main: ActivationShape,
    around: ActivationShape,
}

impl LayerShapeCursor {
    /// Creates the state at the start of a layer with an input of shape `shape`.
    pub(super) fn new(shape: ActivationShape) -> Self {
        Self {
            main: shape,
            around: shape,
        }
    }
}

/// Keyword of an operator in model files.
#[derive(Clone, Copy)]
enum OperatorKeyword {
    Linear,
    Attention,
    Norm,
    Activation,
    Residual,
    Embedding,
    Loss,
    Convolution,
    Pool,
    EmbeddingBag,
    Interaction,
    ExpertDispatch,
    ExpertLinear,
    ExpertCombine,
}

/// The keyword of each operator, and the keys that the operator accepts in addition to the common keys.
const OPS: [(OperatorKeyword, &str, &[&str]); 14] = [
    (
        OperatorKeyword::Linear,
        "linear",
        &["outputs", "bias", "tied"],
    ),
    (
        OperatorKeyword::Attention,
        "attention",
        &[
            "heads", "kv_heads", "causal", "dropout", "rotary", "qk_norm",
        ],
    ),
    (OperatorKeyword::Norm, "norm", &["bias"]),
    (
        OperatorKeyword::Activation,
        "activation",
        &["function", "gated"],
    ),
    (OperatorKeyword::Residual, "residual", &["dropout"]),
    (
        OperatorKeyword::Embedding,
        "embedding",
        &["vocabulary", "width"],
    ),
    (OperatorKeyword::Loss, "loss", &[]),
    (
        OperatorKeyword::Convolution,
        "convolution",
        &["outputs", "kernel", "stride", "padding", "groups", "bias"],
    ),
    (
        OperatorKeyword::Pool,
        "pool",
        &["kernel", "stride", "padding"],
    ),
    (
        OperatorKeyword::EmbeddingBag,
        "embedding_bag",
        &["rows", "width", "lookups"],
    ),
    (OperatorKeyword::Interaction, "interaction", &["vectors"]),
    (
        OperatorKeyword::ExpertDispatch,
        "expert_dispatch",
        &["experts", "experts_per_token"],
    ),
    (
        OperatorKeyword::ExpertLinear,
        "expert_linear",
        &["experts", "outputs", "bias"],
    ),
    (
        OperatorKeyword::ExpertCombine,
        "expert_combine",
        &["experts_per_token"],
    ),
];

/// Keys that every operator can have.
const COMMON: [&str; 4] = ["op", "name", "cut", "around"];

const CUTS: [(OperatorTensorParallelSplit, &str); 4] = [
    (OperatorTensorParallelSplit::Replicated, "whole"),
    (OperatorTensorParallelSplit::ColumnParallel, "outputs"),
    (OperatorTensorParallelSplit::RowParallel, "inputs"),
    (OperatorTensorParallelSplit::InsideRegion, "between"),
];

/// Parses an operator, and updates `state` to the shapes after it.
pub(super) fn parse_operator(
    field: &ConfigField<'_>,
    state: &mut LayerShapeCursor,
) -> Result<LayerOperator, ConfigError> {
    let names = OPS.map(|(op, name, _)| (op, name));
    let op = field.read_table(None)?.read_choice("op", &names)?;
    // `OPS` has the same order as the enum.
    let (_, word, keys) = OPS[op as usize];
    let table = field.read_table(Some(&[&COMMON, keys].concat()))?;
    let name = table.read_or_default("name", word, |field| field.read_one_line_text())?;
    let cut = table.read_or_default("cut", OperatorTensorParallelSplit::Replicated, |f| {
        f.read_choice(&CUTS)
    })?;
    let around = read_flag_or_default(&table, "around", false)?;
    let shape = if around { state.around } else { state.main };
    let (work, shape) = parse_operator_kind(op, &table, shape)?;
    match (op, around) {
        (OperatorKeyword::Residual, false) if state.around != state.main => {
            let found = format_args!("{} to be added to {}", state.main, state.around);
            return Err(table.invalid_table_error(
                found,
                "equal sizes; operators with `around = true` are on the residual path",
            ));
        }
        (OperatorKeyword::Residual, true) => {
            return Err(table.invalid_table_error(
                "a residual sum on the residual path",
                "`around` on other operators",
            ));
        }
        (_, true) => state.around = shape,
        (_, false) => state.main = shape,
    }
    // A new skip path starts after a residual sum or an embedding.
    if matches!(op, OperatorKeyword::Residual | OperatorKeyword::Embedding) {
        state.around = state.main;
    }
    let operator = LayerOperator::new(name, work, cut);
    Ok(if around {
        operator.move_to_skip_path()
    } else {
        operator
    })
}

/// Parses an operator's kind, given the `shape` of its input. Returns the kind and the output's
/// shape.
fn parse_operator_kind(
    op: OperatorKeyword,
    table: &ConfigTable<'_>,
    shape: ActivationShape,
) -> Result<(OperatorKind, ActivationShape), ConfigError> {
    let (rows, width) = shape.rows_and_columns();
    Ok(match op {
        OperatorKeyword::Linear => parse_linear(table, shape)?,
        OperatorKeyword::Attention => parse_attention(table, shape)?,
        OperatorKeyword::ExpertDispatch => expert_dispatch(table, shape)?,
        OperatorKeyword::ExpertLinear => {
            let (rows, inputs) = require_sequence_shape(table, shape)?;
            let outputs = read_positive_integer(table, "outputs")?;
            let work = OperatorKind::ExpertLinear {
                rows,
                experts: read_positive_integer(table, "experts")?,
                inputs,
                outputs,
                bias: read_flag_or_default(table, "bias", true)?,
            };
            (work, shape.with_columns(outputs))
        }
        OperatorKeyword::ExpertCombine => expert_combine(table, shape)?,
        OperatorKeyword::Norm => {
            let bias = read_flag_or_default(table, "bias", true)?;
            (OperatorKind::Norm { rows, width, bias }, shape)
        }
        OperatorKeyword::Activation => parse_activation_operator(table, shape)?,
        OperatorKeyword::Residual => {
            let dropout = read_flag_or_default(table, "dropout", false)?;
            let work = OperatorKind::Residual {
                rows,
                width,
                dropout,
            };
            (work, shape)
        }
        OperatorKeyword::Embedding => {
            let tokens = require_sequence_shape(table, shape)?.0;
            let width = read_positive_integer(table, "width")?;
            let work = OperatorKind::Embedding {
                vocabulary: read_positive_integer(table, "vocabulary")?,
                width,
                tokens,
            };
            (work, shape.with_columns(width))
        }
        OperatorKeyword::Loss => {
            let (rows, classes) = require_sequence_shape(table, shape)?;
            (OperatorKind::Loss { rows, classes }, shape)
        }
        OperatorKeyword::Convolution => parse_convolution(table, shape)?,
        OperatorKeyword::Pool => parse_pool(table, shape)?,
        OperatorKeyword::EmbeddingBag => {
            let work = OperatorKind::EmbeddingBag {
                rows: read_positive_integer(table, "rows")?,
                width: read_positive_integer(table, "width")?,
                lookups: read_size_or_default(table, "lookups", 1, 1)?,
            };
            // A table's result is outside the chain until an interaction uses it, so the chain's shape does not change.
            (work, shape)
        }
        OperatorKeyword::Interaction => {
            let (_, width) = require_sequence_shape(table, shape)?;
            let vectors = table
                .require_field("vectors", "the number of vectors")?
                .read_integer_between(2, MOST)?;
            let work = OperatorKind::Interaction { vectors, width };
            let columns = work.output_elements();
            (work, shape.with_columns(columns))
        }
    })
}

/// Parses a matrix product. An image as input is flattened to one row.
fn parse_linear(
    table: &ConfigTable<'_>,
    shape: ActivationShape,
) -> Result<(OperatorKind, ActivationShape), ConfigError> {
    let (rows, inputs) = match shape {
        ActivationShape::Rows { rows, columns } => (rows, columns),
        ActivationShape::Image { .. } => {
            let (pixels, channels) = shape.rows_and_columns();
            (1, pixels.saturating_mul(channels))
        }
    };
    let outputs = read_positive_integer(table, "outputs")?;
    let work = OperatorKind::Linear {
        rows,
        inputs,
        outputs,
        bias: read_flag_or_default(table, "bias", true)?,
        tied: read_flag_or_default(table, "tied", false)?,
    };
    let columns = outputs;
    Ok((work, ActivationShape::Rows { rows, columns }))
}

fn parse_attention(
    table: &ConfigTable<'_>,
    shape: ActivationShape,
) -> Result<(OperatorKind, ActivationShape), ConfigError> {
    let (tokens, columns) = require_sequence_shape(table, shape)?;
    let heads = read_positive_integer(table, "heads")?;
    let kv_heads = read_size_or_default(table, "kv_heads", 1, heads)?;
    // The input's columns are the queries, keys and values, in this order.
    let all = heads.saturating_add(kv_heads.saturating_mul(2));
    if !heads.is_multiple_of(kv_heads) || !columns.is_multiple_of(all) {
        return Err(table.invalid_table_error(
            format_args!("{columns} columns, {heads} heads, and {kv_heads} of keys and of values"),
            "columns of queries, keys and values that divide evenly among heads, and heads that divide evenly among key-value heads",
        ));
    }
    let width = columns / all;
    let work = OperatorKind::Attention {
        tokens,
        queries: tokens,
        heads,
        kv_heads,
        width,
        causal: read_flag_or_default(table, "causal", false)?,
        dropout: read_flag_or_default(table, "dropout", false)?,
        rotary: read_flag_or_default(table, "rotary", false)?,
        qk_norm: read_flag_or_default(table, "qk_norm", false)?,
    };
    Ok((work, shape.with_columns(heads.saturating_mul(width))))
}

fn expert_dispatch(
    table: &ConfigTable<'_>,
    shape: ActivationShape,
) -> Result<(OperatorKind, ActivationShape), ConfigError> {
    let (tokens, width) = require_sequence_shape(table, shape)?;
    let experts = read_positive_integer(table, "experts")?;
    let chosen = table
        .require_field("experts_per_token", "experts that each token is sent to")?
        .read_integer_between(1, experts)?;
    let work = OperatorKind::ExpertDispatch {
        tokens,
        width,
        experts,
        chosen,
        form: ExpertScoringAndGroupRule::default(),
    };
    let (rows, columns) = (tokens.saturating_mul(chosen), width);
    Ok((work, ActivationShape::Rows { rows, columns }))
}

fn expert_combine(
    table: &ConfigTable<'_>,
    shape: ActivationShape,
) -> Result<(OperatorKind, ActivationShape), ConfigError> {
    let (rows, width) = require_sequence_shape(table, shape)?;
    let chosen = read_positive_integer(table, "experts_per_token")?;
    if !rows.is_multiple_of(chosen) {
        return Err(table.invalid_table_error(
            format_args!("{rows} rows before it, and {chosen} copies of each token"),
            "the number of copies of each token that the expert_dispatch before it made",
        ));
    }
    let tokens = rows / chosen;
    let work = OperatorKind::ExpertCombine {
        tokens,
        width,
        chosen,
    };
    let (rows, columns) = (tokens, width);
    Ok((work, ActivationShape::Rows { rows, columns }))
}

fn parse_activation_operator(
    table: &ConfigTable<'_>,
    shape: ActivationShape,
) -> Result<(OperatorKind, ActivationShape), ConfigError> {
    let (rows, columns) = shape.rows_and_columns();
    let gated = read_flag_or_default(table, "gated", false)?;
    if gated && !columns.is_multiple_of(2) {
        let found = format_args!("{columns} columns for a gate");
        return Err(table.invalid_table_error(found, "an even number of columns"));
    }
    let width = if gated { columns / 2 } else { columns };
    let work = OperatorKind::Activation {
        function: table.read_choice("function", &ActivationFunction::ALL)?,
        rows,
        width,
        gated,
    };
    Ok((work, shape.with_columns(width)))
}

fn parse_convolution(
    table: &ConfigTable<'_>,
    shape: ActivationShape,
) -> Result<(OperatorKind, ActivationShape), ConfigError> {
    let (inputs, size_before) = require_image_shape(table, shape)?;
    // As in PyTorch, the default stride is 1 for convolutions, and the window's size for pools.
    let window = ImageWindowSizes::parse_window_spec(table, size_before, None)?;
    let groups = read_size_or_default(table, "groups", 1, 1)?;
    let outputs = read_positive_integer(table, "outputs")?;
    if !inputs.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
        return Err(table
            .require_field("groups", "groups")?
            .invalid_value_error(
                groups,
                format_args!("a number that divides {inputs} and {outputs} channels"),
            ));
    }
    let work = OperatorKind::Convolution {
        inputs,
        outputs,
        size: size_before,
        kernel: window.kernel,
        stride: window.stride,
        padding: window.padding,
        groups,
        bias: read_flag_or_default(table, "bias", true)?,
    };
    let (channels, size) = (outputs, window.outputs);
    Ok((work, ActivationShape::Image { channels, size }))
}

fn parse_pool(
    table: &ConfigTable<'_>,
    shape: ActivationShape,
) -> Result<(OperatorKind, ActivationShape), ConfigError> {
    let (channels, size_before) = require_image_shape(table, shape)?;
    let kernel = parse_height_and_width(
        &table.require_field("kernel", "pixels of a side, or [height, width]")?,
    )?;
    let window = ImageWindowSizes::parse_window_spec(table, size_before, Some(kernel[0]))?;
    let work = OperatorKind::Pool {
        channels,
        size: size_before,
        kernel,
        stride: window.stride,
        padding: window.padding,
    };
    let size = window.outputs;
    Ok((work, ActivationShape::Image { channels, size }))
}

/// Sizes of sliding windows over an image.
struct ImageWindowSizes {
    kernel: [u64; 2],
    stride: u64,
    padding: u64,
    outputs: [u64; 2],
}

impl ImageWindowSizes {
    fn parse_window_spec(
        table: &ConfigTable<'_>,
        size: [u64; 2],
        stride: Option<u64>,
    ) -> Result<Self, ConfigError> {
        let field = table.require_field("kernel", "pixels of a side, or [height, width]")?;
        let kernel = parse_height_and_width(&field)?;
        let stride = read_size_or_default(table, "stride", 1, stride.unwrap_or(1))?;
        let padding = read_size_or_default(table, "padding", 0, 0)?;
        let outputs = [0, 1]
            .map(|axis: usize| window_position_count(size[axis], kernel[axis], stride, padding));
        if outputs.contains(&0) {
            return Err(field.invalid_value_error(
                format_args!("a window of {} x {} pixels", kernel[0], kernel[1]),
                format_args!(
                    "one that fits {} x {} pixels and {padding} more on each side",
                    size[0], size[1]
                ),
            ));
        }
        Ok(Self {
            kernel,
            stride,
            padding,
            outputs,
        })
    }
}

/// Returns the channels and size of an image. Fails for other shapes.
fn require_image_shape(
    table: &ConfigTable<'_>,
    shape: ActivationShape,
) -> Result<(u64, [u64; 2]), ConfigError> {
    match shape {
        ActivationShape::Image { channels, size } => Ok((channels, size)),
        ActivationShape::Rows { .. } => {
            Err(table.invalid_table_error(format_args!("{shape} before it"), "an image"))
        }
    }
}

/// Returns the rows and columns of a sequence. Fails for other shapes.
fn require_sequence_shape(
    table: &ConfigTable<'_>,
    shape: ActivationShape,
) -> Result<(u64, u64), ConfigError> {
    match shape {
        ActivationShape::Rows { rows, columns } => Ok((rows, columns)),
        ActivationShape::Image { .. } => {
            Err(table.invalid_table_error(format_args!("{shape} before it"), "rows"))
        }
    }
}
