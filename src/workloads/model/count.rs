//! Weights, multiplications and elements of operators, and their sums.

use super::spec::{ProductSpec, amount};
use super::{LayerOperator, Model, ModelLayer, OperatorKind};

/// The sum, or the largest number there is.
pub(super) fn sum(terms: impl IntoIterator<Item = u64>) -> u64 {
    terms.into_iter().fold(0, u64::saturating_add)
}

impl OperatorKind {
    /// Number of weights; 0 where they are tied to another operator's.
    pub fn parameters(&self) -> u64 {
        amount(total(self.spec().gradients(false)))
    }

    /// Multiplications of matrix products in a forward pass of one sample; elementwise work is left out, as in
    /// papers. Attention counts the whole square of tokens.
    pub fn multiplications(&self) -> u64 {
        let spec = self.spec();
        let products = spec.products.iter().filter(|one| one.multiplies);
        let each = |one: &ProductSpec| {
            spec.volume(one.result)
                .saturating_mul(spec.volume(one.over))
        };
        amount(total(products.map(each)))
    }

    /// Number of its [`multiplications`](Self::multiplications) without effect: under a causal mask those of tokens
    /// with later ones, `s (s - 1) / 2` of `s s` pairs.
    pub fn skippable_multiplications(&self) -> u64 {
        let spec = self.spec();
        let products = spec.products.iter().filter(|one| !one.skipped.is_empty());
        amount(total(products.map(|one| spec.volume(one.skipped))))
    }

    /// Numbers of a token that decoding keeps: its keys and values, or the latent vector and the turned key from which they are
    /// found.
    pub fn cached_elements(&self) -> u64 {
        match *self {
            Self::Attention {
                kv_heads, width, ..
            } => kv_heads.saturating_mul(width).saturating_mul(2),
            Self::ShapedAttention { latent, turned, .. } if latent > 0 => {
                latent.saturating_add(turned)
            }
            Self::ShapedAttention {
                kv_heads,
                width,
                value_width,
                ..
            } => kv_heads.saturating_mul(width.saturating_add(value_width)),
            _ => 0,
        }
    }

    /// Multiplications of a token that is decoded with each token before it: of its queries and their keys, and of scores and values.
    /// With latent vectors, the products to heads act on queries and on the sum, and heads meet latent vectors (absorbed).
    pub fn decode_multiplications(&self) -> u64 {
        let [heads, keys, values] = match *self {
            Self::Attention { heads, width, .. } => [heads, width, width],
            Self::ShapedAttention {
                heads,
                latent,
                turned,
                ..
            } if latent > 0 => [heads, latent.saturating_add(turned), latent],
            Self::ShapedAttention {
                heads,
                width,
                value_width,
                ..
            } => [heads, width, value_width],
            _ => [0; 3],
        };
        heads.saturating_mul(keys.saturating_add(values))
    }

    /// Weights of tables that rows are picked from.
    ///
    /// LIGHTSPEED's Table 5.2 and the simulator that followed it count each of them as a multiplication, once a
    /// sample, as if a row were picked by a product with a vector of zeros and a one. Add them to
    /// [`multiplications`](Self::multiplications) for its counts of GPT-2, BERT and DLRM. What the table prints for
    /// MegatronBERT (3.57e9) and DLRM (3.14e9) follows from no published sizes.
    pub fn table_weights(&self) -> u64 {
        if self.spec().looks_up() {
            self.parameters()
        } else {
            0
        }
    }

    /// Elements read from the layer before, per sample: numbers of tokens where rows of a table are picked.
    pub fn input_elements(&self) -> u64 {
        let spec = self.spec();
        amount(spec.volumes(&spec.inputs))
    }

    /// Elements of the output, per sample.
    pub fn output_elements(&self) -> u64 {
        let spec = self.spec();
        amount(spec.volumes(&spec.outputs))
    }

    /// Rows of an image's output; 0 for operators without windows.
    pub fn window_rows(&self) -> u64 {
        self.spec().extent('h')
    }
}

/// The sum, or the largest number there is.
fn total(counts: impl Iterator<Item = u128>) -> u128 {
    counts.fold(0, u128::saturating_add)
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
    /// Layers in order, those alike that follow one another together.
    pub fn runs(&self) -> impl Iterator<Item = &[ModelLayer]> {
        self.layers
            .chunk_by(|one, other| (one.role, &one.operators) == (other.role, &other.operators))
    }

    /// The sum of a count over layers.
    pub(super) fn over_layers(&self, count: impl Fn(&ModelLayer) -> u64) -> u64 {
        let each = |run: &[ModelLayer]| count(&run[0]).saturating_mul(run.len() as u64);
        sum(self.runs().map(each))
    }

    /// Number of weights.
    pub fn parameters(&self) -> u64 {
        self.over_layers(ModelLayer::parameters)
    }

    /// Number of weights that a token passes: of experts, those that it is sent to.
    pub fn active_parameters(&self) -> u64 {
        let tokens = self.sequence.max(1);
        self.over_layers(|layer| {
            sum(layer.operators.iter().map(|operator| match operator.work {
                OperatorKind::ExpertLinear { rows, experts, .. } => {
                    let each = operator.parameters() / experts.max(1);
                    each.saturating_mul(rows / tokens)
                }
                _ => operator.parameters(),
            }))
        })
    }

    /// Numbers of a token that decoding keeps in all layers.
    pub fn cached_elements(&self) -> u64 {
        self.over_layers(|layer| sum(layer.operators.iter().map(|o| o.work.cached_elements())))
    }

    /// Multiplications of a forward pass of one sample.
    pub fn multiplications(&self) -> u64 {
        self.over_layers(ModelLayer::multiplications)
    }

    /// Number of its multiplications that a causal kernel skips.
    pub fn skippable_multiplications(&self) -> u64 {
        self.over_layers(ModelLayer::skippable_multiplications)
    }

    /// Weights of its tables.
    pub fn table_weights(&self) -> u64 {
        self.over_layers(ModelLayer::table_weights)
    }
}
