//! Weights, multiplications and elements of operators, and their sums.

use super::{LayerOperator, Model, ModelLayer, OperatorKind};

/// The product, or the largest number there is.
pub(super) fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |all, &one| all.saturating_mul(one))
}

/// The sum, or the largest number there is.
pub(super) fn sum(terms: impl IntoIterator<Item = u64>) -> u64 {
    terms.into_iter().fold(0, u64::saturating_add)
}

/// Number of positions of a window of `kernel` in `size` with `padding` on both sides.
pub(super) fn windows(size: u64, kernel: u64, stride: u64, padding: u64) -> u64 {
    let padded = size.saturating_add(padding.saturating_mul(2));
    match padded.checked_sub(kernel) {
        // The stride of a parsed model is at least 1; max() protects hand-built ones from a division by zero.
        Some(free) => free / stride.max(1) + 1,
        None => 0,
    }
}

impl OperatorKind {
    /// Number of weights; 0 where they are tied to another operator's.
    pub fn parameters(&self) -> u64 {
        match *self {
            Self::Linear {
                inputs,
                outputs,
                bias,
                tied,
                ..
            } => {
                let matrix = if tied { 0 } else { product(&[inputs, outputs]) };
                sum([matrix, optional(bias, outputs)])
            }
            Self::Norm { width, bias, .. } => sum([width, optional(bias, width)]),
            Self::Embedding {
                vocabulary, width, ..
            } => product(&[vocabulary, width]),
            Self::Convolution {
                inputs,
                outputs,
                kernel: [height, width],
                groups,
                bias,
                ..
            } => {
                let matrix = product(&[inputs / groups.max(1), outputs, height, width]);
                sum([matrix, optional(bias, outputs)])
            }
            Self::EmbeddingBag { rows, width, .. } => product(&[rows, width]),
            Self::Attention { .. }
            | Self::Activation { .. }
            | Self::Residual { .. }
            | Self::Loss { .. }
            | Self::Pool { .. }
            | Self::Interaction { .. } => 0,
        }
    }

    /// Multiplications of matrix products in a forward pass of one sample; elementwise work is left out, as in
    /// papers. Attention counts the whole square of tokens.
    pub fn multiplications(&self) -> u64 {
        match *self {
            Self::Linear {
                rows,
                inputs,
                outputs,
                ..
            } => product(&[rows, inputs, outputs]),
            // Each head: tokens x width by width x tokens, then tokens x tokens by tokens x width.
            Self::Attention {
                tokens,
                heads,
                width,
                ..
            } => product(&[2, heads, tokens, tokens, width]),
            Self::Convolution {
                inputs,
                kernel: [height, width],
                groups,
                ..
            } => {
                let each = product(&[inputs / groups.max(1), height, width]);
                product(&[self.output_elements(), each])
            }
            Self::Interaction { vectors, width } => product(&[pairs(vectors), width]),
            Self::Norm { .. }
            | Self::Activation { .. }
            | Self::Residual { .. }
            | Self::Embedding { .. }
            | Self::Loss { .. }
            | Self::Pool { .. }
            | Self::EmbeddingBag { .. } => 0,
        }
    }

    /// Number of its [`multiplications`](Self::multiplications) without effect: under a causal mask those of tokens
    /// with later ones, `s (s - 1) / 2` of `s s` pairs.
    pub fn skippable_multiplications(&self) -> u64 {
        match *self {
            Self::Attention {
                tokens,
                heads,
                width,
                causal: true,
                ..
            } => product(&[2, heads, pairs(tokens), width]),
            _ => 0,
        }
    }

    /// Weights of tables that rows are picked from.
    ///
    /// LIGHTSPEED's Table 5.2 and the simulator that followed it count each of them as a multiplication, once a
    /// sample, as if a row were picked by a product with a vector of zeros and a one. Add them to
    /// [`multiplications`](Self::multiplications) for its counts of GPT-2, BERT and DLRM. What the table prints for
    /// MegatronBERT (3.57e9) and DLRM (3.14e9) follows from no published sizes.
    pub fn table_weights(&self) -> u64 {
        match self {
            Self::Embedding { .. } | Self::EmbeddingBag { .. } => self.parameters(),
            _ => 0,
        }
    }

    /// Elements read from the layer before, per sample: numbers of tokens where rows of a table are picked.
    pub fn input_elements(&self) -> u64 {
        match *self {
            Self::Linear { rows, inputs, .. } => product(&[rows, inputs]),
            Self::Attention {
                tokens,
                heads,
                kv_heads,
                width,
                ..
            } => product(&[tokens, sum([heads, kv_heads, kv_heads]), width]),
            Self::Norm { rows, width, .. } | Self::Residual { rows, width, .. } => {
                product(&[rows, width])
            }
            Self::Activation {
                rows, width, gated, ..
            } => product(&[rows, width, if gated { 2 } else { 1 }]),
            Self::Embedding { tokens, .. } => tokens,
            Self::Loss { rows, classes } => product(&[rows, classes]),
            Self::Convolution {
                inputs: channels,
                size: [height, width],
                ..
            }
            | Self::Pool {
                channels,
                size: [height, width],
                ..
            } => product(&[channels, height, width]),
            Self::EmbeddingBag { lookups, .. } => lookups,
            Self::Interaction { vectors, width } => product(&[vectors, width]),
        }
    }

    /// Rows of an image's output; 0 for operators without windows.
    pub fn window_rows(&self) -> u64 {
        match *self {
            Self::Convolution {
                size,
                kernel,
                stride,
                padding,
                ..
            }
            | Self::Pool {
                size,
                kernel,
                stride,
                padding,
                ..
            } => windows(size[0], kernel[0], stride, padding),
            _ => 0,
        }
    }

    /// Elements of the output, per sample.
    pub fn output_elements(&self) -> u64 {
        match *self {
            Self::Linear { rows, outputs, .. } => product(&[rows, outputs]),
            Self::Attention {
                tokens,
                heads,
                width,
                ..
            } => product(&[tokens, heads, width]),
            Self::Norm { rows, width, .. }
            | Self::Residual { rows, width, .. }
            | Self::Activation { rows, width, .. } => product(&[rows, width]),
            Self::Embedding { width, tokens, .. } => product(&[tokens, width]),
            Self::Loss { rows, .. } => rows,
            Self::Convolution {
                outputs: channels,
                size,
                kernel,
                stride,
                padding,
                ..
            }
            | Self::Pool {
                channels,
                size,
                kernel,
                stride,
                padding,
            } => {
                let side = |axis: usize| windows(size[axis], kernel[axis], stride, padding);
                product(&[channels, side(0), side(1)])
            }
            Self::EmbeddingBag { width, .. } => width,
            Self::Interaction { vectors, width } => sum([pairs(vectors), width]),
        }
    }
}

/// `count` if `there`.
fn optional(there: bool, count: u64) -> u64 {
    if there { count } else { 0 }
}

/// Number of pairs of `n` things.
fn pairs(n: u64) -> u64 {
    match n % 2 {
        // Halves the even factor first, so that the product overflows only if the result does.
        0 => product(&[n / 2, n.saturating_sub(1)]),
        _ => product(&[n, n / 2]),
    }
}

impl LayerOperator {
    /// Number of weights.
    pub fn parameters(&self) -> u64 {
        self.work.parameters()
    }

    /// Multiplications of a forward pass of one sample.
    pub fn multiplications(&self) -> u64 {
        self.work.multiplications()
    }
}

impl ModelLayer {
    /// Number of weights of its operators.
    pub fn parameters(&self) -> u64 {
        sum(self.operators.iter().map(LayerOperator::parameters))
    }

    /// Multiplications of a forward pass of one sample.
    pub fn multiplications(&self) -> u64 {
        sum(self.operators.iter().map(LayerOperator::multiplications))
    }

    /// Number of its multiplications that a causal kernel skips.
    pub fn skippable_multiplications(&self) -> u64 {
        let each = |operator: &LayerOperator| operator.work.skippable_multiplications();
        sum(self.operators.iter().map(each))
    }

    /// Weights of its tables.
    pub fn table_weights(&self) -> u64 {
        sum(self.operators.iter().map(|o| o.work.table_weights()))
    }

    /// Elements that come from the layer before, per sample.
    pub fn input_elements(&self) -> u64 {
        let first = self.operators.first();
        first.map_or(0, |operator| operator.work.input_elements())
    }

    /// Elements of the output, per sample.
    pub fn output_elements(&self) -> u64 {
        let last = self.operators.last();
        last.map_or(0, |operator| operator.work.output_elements())
    }
}

impl Model {
    /// Number of weights.
    pub fn parameters(&self) -> u64 {
        sum(self.layers.iter().map(ModelLayer::parameters))
    }

    /// Multiplications of a forward pass of one sample.
    pub fn multiplications(&self) -> u64 {
        sum(self.layers.iter().map(ModelLayer::multiplications))
    }

    /// Number of its multiplications that a causal kernel skips.
    pub fn skippable_multiplications(&self) -> u64 {
        sum(self
            .layers
            .iter()
            .map(ModelLayer::skippable_multiplications))
    }

    /// Weights of its tables.
    pub fn table_weights(&self) -> u64 {
        sum(self.layers.iter().map(ModelLayer::table_weights))
    }
}
