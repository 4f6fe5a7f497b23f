//! Transformers with different kinds of blocks, or with parts of attention or experts that a
//! [`TransformerBlock`] cannot describe.
//!
//! | part | operators |
//! |---|---|
//! | latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1) | one product to both latent vectors and the rotary key, norms of the two, products to heads, attention of heads whose values are narrower than their keys |
//! | shared experts | an MLP for every token, in parallel to the routed experts |
//! | dense layers | an MLP instead of experts |
//! | prediction of more tokens (DeepSeek-AI, "DeepSeek-V3", 2024, section 2.2) | a block after the last that joins a state with the embedding of the next token, with the model's own embedding and logits |
//!
//! In training and prefill, latent vectors are expanded, so that each head has its own keys and
//! values. In decoding, only the latent vectors are cached (see [`OperatorKind::cached_elements`]
//! and [`OperatorKind::decode_multiplications`]).

use super::transformer::{TransformerBlock, TransformerModel};
use super::{
    AttentionSpan, LayerOperator, LayerRole, ModelLayer, OperatorKind, RouterForm, TensorSplit,
};

/// A transformer with parts that a [`TransformerModel`] cannot describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformerArchitecture {
    /// The model without the additional parts. If the model's block has experts, all layers that
    /// are not dense have experts.
    pub base: TransformerModel,
    /// Latent attention; if absent, keys and values are computed directly from the hidden state.
    pub latent: Option<LatentAttention>,
    /// True if the matrix products before attention have biases, even if other products have none.
    pub qkv_biases: bool,
    /// True if each head's softmax includes a trained score that belongs to no token.
    pub sinks: bool,
    /// The earlier tokens to which a token attends, in layers without full attention.
    pub span: AttentionSpan,
    /// Number of layers from one layer with full attention to the next; the last layer of each
    /// period has full attention; 0 if no layer has full attention.
    pub full_every: u64,
    /// True if attention and MLP each have a norm before and after them.
    pub sandwich_norm: bool,
    /// Intermediate size of the shared experts' MLP; 0 if there are no shared experts.
    pub shared_ffn: u64,
    /// The router's rule for choosing experts from scores.
    pub router: RouterForm,
    /// Number of layers without experts at the beginning of the model.
    pub dense_layers: u64,
    /// Number of layers from one layer with experts to the next; the last layer of each period has
    /// experts, and the others are dense.
    pub experts_every: u64,
    /// Intermediate size of the MLP (feed-forward network) in dense layers.
    pub dense_ffn: u64,
    /// Number of additional blocks, each of which predicts one more token.
    pub more_predictions: u64,
}

/// Sizes of multi-head latent attention (MLA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentAttention {
    /// Elements of the latent vector of queries; 0 if queries are computed directly from the hidden
    /// state.
    pub query_rank: u64,
    /// Elements of the latent vector of keys and values.
    pub kv_rank: u64,
    /// Columns of a query or key head without rotary embedding.
    pub plain: u64,
    /// Columns of a query or key head with rotary embedding. All key heads share a single set of
    /// these columns.
    pub turned: u64,
    /// Elements of a value vector per head.
    pub values: u64,
}

impl TransformerArchitecture {
    /// Creates an architecture that equals `base`, without additional parts.
    pub fn plain_model(base: TransformerModel) -> Self {
        Self {
            base,
            latent: None,
            qkv_biases: base.block.biases,
            sinks: false,
            span: AttentionSpan::All,
            full_every: 0,
            sandwich_norm: false,
            shared_ffn: 0,
            router: RouterForm::default(),
            dense_layers: 0,
            experts_every: 1,
            dense_ffn: base.block.ffn,
            more_predictions: 0,
        }
    }

    /// Returns the model's layers, named `embedding`, `layer0`, `layer1`, …, then `predict0`, …
    /// (blocks that predict further tokens), and `head`.
    pub fn expand_layers(&self) -> Vec<ModelLayer> {
        let mut layers = self.base.expand_layers();
        let blocks = layers
            .iter_mut()
            .filter(|layer| layer.role == LayerRole::Block);
        for (index, layer) in (0..).zip(blocks) {
            layer.operators = self.block_operators(index);
        }
        // The predictions of all tokens share one matrix for logits.
        let predictions = self.more_predictions.saturating_add(1);
        for operator in layers
            .iter_mut()
            .rev()
            .take(1)
            .flat_map(|head| &mut head.operators)
        {
            if let OperatorKind::Linear { rows, .. } | OperatorKind::Loss { rows, .. } =
                &mut operator.work
            {
                *rows = rows.saturating_mul(predictions);
            }
        }
        let head = layers.len() - 1;
        let predict = |index| self.prediction_layer(index);
        layers.splice(head..head, (0..self.more_predictions).map(predict));
        layers
    }

    fn has_experts(&self, index: u64) -> bool {
        let at = index.checked_sub(self.dense_layers);
        let every = self.experts_every.max(1);
        at.is_some_and(|_| (index + 1).is_multiple_of(every)) && self.base.block.experts.is_some()
    }

    /// Returns the earlier tokens to which the tokens of block `index` attend.
    fn span_of(&self, index: u64) -> AttentionSpan {
        match self.full_every {
            0 => self.span,
            every if (index + 1).is_multiple_of(every) => AttentionSpan::All,
            _ => self.span,
        }
    }

    fn block_operators(&self, index: u64) -> Vec<LayerOperator> {
        let experts = self.has_experts(index);
        let block = TransformerBlock {
            experts: self.base.block.experts.filter(|_| experts),
            ffn: match experts {
                true => self.base.block.ffn,
                false => self.dense_ffn,
            },
            ..self.base.block
        };
        let mut operators = Vec::with_capacity(16);
        for operator in block.block_operators() {
            match &*operator.name {
                "attention.qkv" => {
                    operators.extend(self.products_before_attention(&block, operator))
                }
                "attention.core" => {
                    operators.push(self.attention_operator(&block, operator, index))
                }
                "experts.dispatch" => operators.push(self.router_operator(operator)),
                "experts.combine" => {
                    operators.push(operator);
                    operators.extend(self.shared_experts(&block));
                }
                "attention.out" => operators.push(self.product_after_attention(&block, operator)),
                "residual1" | "residual2" if self.sandwich_norm => {
                    let at = if operator.name == "residual1" { 1 } else { 2 };
                    operators.push(block.norm_operator(&format!("norm{at}.after")));
                    operators.push(operator);
                }
                _ => operators.push(operator),
            }
        }
        operators
    }

    /// Returns the matrix products before attention, which are `qkv` or the products of latent
    /// attention.
    fn products_before_attention(
        &self,
        block: &TransformerBlock,
        mut qkv: LayerOperator,
    ) -> Vec<LayerOperator> {
        let Some(latent) = self.latent else {
            if let OperatorKind::Linear { bias, .. } = &mut qkv.work {
                *bias = self.qkv_biases;
            }
            return vec![qkv];
        };
        let (rows, hidden) = (block.tokens, block.hidden);
        let LatentAttention {
            query_rank,
            kv_rank,
            plain,
            turned,
            values,
        } = latent;
        let ranks = query_rank.saturating_add(kv_rank);
        let down = OperatorKind::Linear {
            rows,
            inputs: hidden,
            outputs: ranks.saturating_add(turned),
            bias: false,
            tied: false,
        };
        let norm = OperatorKind::Norm {
            rows,
            width: ranks,
            bias: false,
        };
        let up = OperatorKind::LatentUp {
            rows,
            query_rank: if query_rank == 0 { hidden } else { query_rank },
            kv_rank,
            heads: block.heads,
            query_width: plain.saturating_add(turned),
            kv_width: plain.saturating_add(values),
        };
        vec![
            LayerOperator::new("attention.down", down, TensorSplit::Replicated),
            LayerOperator::new("attention.norm", norm, TensorSplit::Replicated),
            LayerOperator::new("attention.up", up, TensorSplit::ColumnParallel),
        ]
    }

    fn attention_operator(
        &self,
        block: &TransformerBlock,
        core: LayerOperator,
        index: u64,
    ) -> LayerOperator {
        let span = self.span_of(index);
        if self.latent.is_none() && span == AttentionSpan::All && !self.sinks {
            return core;
        }
        let plain = (block.kv_heads, block.head_width, block.head_width, 0, 0);
        let (kv_heads, width, value_width, turned, latent) = self.latent.map_or(plain, |latent| {
            let width = latent.plain.saturating_add(latent.turned);
            (
                block.heads,
                width,
                latent.values,
                latent.turned,
                latent.kv_rank,
            )
        });
        let work = OperatorKind::ShapedAttention {
            tokens: block.tokens,
            queries: block.tokens,
            heads: block.heads,
            kv_heads,
            width,
            value_width,
            turned: match (block.rotary, turned) {
                (false, _) => 0,
                (true, 0) => width,
                (true, turned) => turned,
            },
            latent,
            span,
            sinks: self.sinks,
            causal: block.causal,
            dropout: block.dropout,
            qk_norm: block.qk_norm,
        };
        LayerOperator { work, ..core }
    }

    fn product_after_attention(
        &self,
        block: &TransformerBlock,
        mut out: LayerOperator,
    ) -> LayerOperator {
        if let (Some(latent), OperatorKind::Linear { inputs, .. }) = (self.latent, &mut out.work) {
            *inputs = block.heads.saturating_mul(latent.values);
        }
        out
    }

    fn router_operator(&self, mut dispatch: LayerOperator) -> LayerOperator {
        if let OperatorKind::ExpertDispatch { form, .. } = &mut dispatch.work {
            *form = self.router;
        }
        dispatch
    }

    /// Returns the shared experts' MLP, placed on the skip path around the routed experts.
    fn shared_experts(&self, block: &TransformerBlock) -> Vec<LayerOperator> {
        if self.shared_ffn == 0 {
            return Vec::new();
        }
        let shared = TransformerBlock {
            ffn: self.shared_ffn,
            experts: None,
            ..*block
        };
        let operators = shared.block_operators().into_iter();
        let perceptron = operators.filter_map(|operator| {
            let name = operator.name.strip_prefix("mlp.")?;
            let name = format!("shared.{name}");
            Some(LayerOperator { name, ..operator }.on_skip_path())
        });
        perceptron.collect()
    }

    /// Returns a block that predicts one more token. The block has norms of the hidden state and of
    /// the token's embedding, a matrix product that joins the two, a copy of the last block, and a
    /// norm before the model's logits.
    fn prediction_layer(&self, index: u64) -> ModelLayer {
        let block = self.base.block;
        let (rows, hidden) = (block.tokens, block.hidden);
        let join = OperatorKind::Linear {
            rows,
            inputs: hidden.saturating_mul(2),
            outputs: hidden,
            bias: false,
            tied: false,
        };
        let both = OperatorKind::Norm {
            rows,
            width: hidden.saturating_mul(2),
            bias: block.norm_bias,
        };
        let mut operators = vec![
            LayerOperator::new("norms", both, TensorSplit::Replicated),
            LayerOperator::new("join", join, TensorSplit::Replicated),
        ];
        operators.extend(self.block_operators(self.base.layers.saturating_sub(1)));
        operators.push(block.norm_operator("norm"));
        ModelLayer::new(format!("predict{index}"), LayerRole::Block, operators)
    }
}
