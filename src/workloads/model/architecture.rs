//! Transformers with several kinds of blocks, or with parts of attention or experts that a
//! [`TransformerBlock`] cannot describe.
//!
//! | part | operators |
//! |---|---|
//! | latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1) | one product to both latent vectors and the rotary key, norms of the two, products to heads, attention of heads whose values are narrower than their keys |
//! | linear attention (Yang et al., "Gated Delta Networks", 2024) | in all blocks except every n-th: one product to queries, keys, values, gate, decay and rate, and attention with a state instead of keys and values |
//! | gated attention | a gate, computed in the same product as the queries, that multiplies the results of attention |
//! | shared experts | an MLP for every token, in parallel to the routed experts |
//! | dense layers | an MLP instead of experts |
//! | prediction of more tokens (DeepSeek-AI, "DeepSeek-V3", 2024, section 2.2) | a block after the last that joins a state with the embedding of the next token, with the model's own embedding and logits |
//!
//! In training and prefill, the latent vectors are expanded, so that each head has its own keys and
//! values. In decoding, only the latent vectors are cached (see [`OperatorKind::cached_elements`]
//! and [`OperatorKind::multiplications_per_decode_pair`]).

use super::transformer::{TransformerBlock, TransformerModel};
use super::{
    ActivationFunction, AttentionSpan, ExpertScoringAndGroupRule, LayerOperator, LayerRole,
    ModelLayer, OperatorKind, OperatorTensorParallelSplit,
};
use serde::Serialize;

/// A transformer with parts that a [`TransformerModel`] cannot describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedTransformerModel {
    /// The model without the parts in the other fields. If its block has experts, all layers except the dense ones have
    /// experts.
    pub base: TransformerModel,
    /// Latent attention; if absent, keys and values are computed directly from the hidden state.
    pub latent: Option<LatentAttentionSizes>,
    /// Linear attention in all layers without full attention; if absent, no layer has linear
    /// attention.
    pub delta: Option<DeltaAttentionSizes>,
    /// True if a gate, computed with the queries, multiplies the results of full attention.
    pub output_gate: bool,
    /// True if the matrix products before attention have biases, even if others do not.
    pub qkv_biases: bool,
    /// True if each head's softmax includes a trained score that belongs to no token.
    pub sinks: bool,
    /// The earlier tokens to which a token attends in layers without full attention.
    pub span: AttentionSpan,
    /// Period of full attention, in layers: the last layer of each period has full attention. If 0, no layer has it.
    pub full_every: u64,
    /// True if attention and MLP each have a norm before and after them.
    pub sandwich_norm: bool,
    /// Intermediate size of the shared experts' MLP; 0 without shared experts.
    pub shared_ffn: u64,
    /// The rule by which the router chooses experts from scores.
    pub router: ExpertScoringAndGroupRule,
    /// Number of layers without experts at the beginning of the model.
    pub dense_layers: u64,
    /// Period of layers with experts: the last layer of each period has experts, and the others are dense.
    pub experts_every: u64,
    /// Intermediate size of the MLP (feed-forward network) in dense layers.
    pub dense_ffn: u64,
    /// Number of additional blocks, each of which predicts one more token.
    pub more_predictions: u64,
}

/// Sizes of multi-head latent attention (MLA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentAttentionSizes {
    /// Number of elements in the queries' latent vector; 0 if queries are computed directly from
    /// the hidden state.
    pub query_rank: u64,
    /// Number of elements in the latent vector of keys and values.
    pub kv_rank: u64,
    /// Number of columns per query or key head without rotary embedding.
    pub plain: u64,
    /// Number of columns per query or key head with rotary embedding. All key heads share one set of these columns.
    pub turned: u64,
    /// Number of elements per value head.
    pub values: u64,
}

/// Sizes of linear attention with a gated delta rule. Each value head has a state, which replaces the
/// keys and values of all tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeltaAttentionSizes {
    /// Number of query heads, and of key heads.
    pub key_heads: u64,
    /// Number of value heads; each has a state and, for each token, a decay and a rate of change.
    pub value_heads: u64,
    /// Number of elements per query or key head.
    pub key_width: u64,
    /// Number of elements per value head.
    pub value_width: u64,
    /// Number of tokens that the convolution combines: a token and the tokens immediately before it.
    pub taps: u64,
    /// Bytes per element of the state.
    pub state_bytes: u64,
}

impl DeltaAttentionSizes {
    /// Number of value columns, summed over heads.
    fn value_columns(&self) -> u64 {
        self.value_heads.saturating_mul(self.value_width)
    }

    /// Number of output columns of the product before attention: queries, keys, values, gate, and
    /// one decay and one rate per value head.
    fn columns_of_product_before_attention(&self) -> u64 {
        let keys = self.key_heads.saturating_mul(self.key_width);
        let values = self.value_columns().saturating_add(self.value_heads);
        keys.saturating_add(values).saturating_mul(2)
    }

    /// Returns the number of key heads and the number of value heads on each of `npus` NPUs.
    pub fn key_and_value_heads_per_npu(&self, npus: u32) -> [u64; 2] {
        [self.key_heads, self.value_heads].map(|heads| (heads / u64::from(npus)).max(1))
    }

    /// Returns the number of query, key and value columns that the convolution processes on each of
    /// `npus` NPUs.
    pub fn convolved_columns(&self, npus: u32) -> u64 {
        let [keys, values] = self.key_and_value_heads_per_npu(npus);
        let keys = keys.saturating_mul(self.key_width).saturating_mul(2);
        keys.saturating_add(values.saturating_mul(self.value_width))
    }

    /// Returns the bytes of a sequence's states on each of `npus` NPUs, without the inputs of the
    /// convolution.
    pub fn state_bytes_per_npu(&self, npus: u32) -> u64 {
        let [_, values] = self.key_and_value_heads_per_npu(npus);
        let values = values.saturating_mul(self.value_width);
        let states = values.saturating_mul(self.key_width);
        states.saturating_mul(self.state_bytes)
    }

    /// Returns the bytes per sequence on each of `npus` NPUs: the states, and the last inputs of the convolution with
    /// `number` bytes per value.
    pub fn state_and_convolution_bytes_per_npu(&self, npus: u32, number: u64) -> u64 {
        let inputs = self.convolved_columns(npus).saturating_mul(self.taps - 1);
        let inputs = inputs.saturating_mul(number);
        self.state_bytes_per_npu(npus).saturating_add(inputs)
    }
}

impl ExtendedTransformerModel {
    /// Creates an architecture that equals `base`.
    pub fn from_plain_transformer(base: TransformerModel) -> Self {
        Self {
            base,
            latent: None,
            delta: None,
            output_gate: false,
            qkv_biases: base.block.biases,
            sinks: false,
            span: AttentionSpan::All,
            full_every: 0,
            sandwich_norm: false,
            shared_ffn: 0,
            router: ExpertScoringAndGroupRule::default(),
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
        // The predictions of all tokens use one matrix for logits.
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
        let predict = |index| self.build_multi_token_prediction_layer(index);
        layers.splice(head..head, (0..self.more_predictions).map(predict));
        layers
    }

    fn block_has_experts(&self, index: u64) -> bool {
        let at = index.checked_sub(self.dense_layers);
        let every = self.experts_every.max(1);
        at.is_some_and(|_| (index + 1).is_multiple_of(every)) && self.base.block.experts.is_some()
    }

    /// Returns the earlier tokens to which a token attends in block `index`.
    fn attention_span_of_block(&self, index: u64) -> AttentionSpan {
        match self.is_full_attention_block(index) {
            true => AttentionSpan::All,
            false => self.span,
        }
    }

    fn block_operators(&self, index: u64) -> Vec<LayerOperator> {
        let experts = self.block_has_experts(index);
        let block = TransformerBlock {
            experts: self.base.block.experts.filter(|_| experts),
            ffn: match experts {
                true => self.base.block.ffn,
                false => self.dense_ffn,
            },
            ..self.base.block
        };
        let mut operators = Vec::with_capacity(16);
        let delta = self.delta.filter(|_| !self.is_full_attention_block(index));
        for operator in block.block_operators() {
            match (&*operator.name, delta) {
                ("attention.qkv", Some(delta)) => operators.push(LayerOperator::new(
                    "attention.in",
                    OperatorKind::Linear {
                        rows: block.tokens,
                        inputs: block.hidden,
                        outputs: delta.columns_of_product_before_attention(),
                        bias: false,
                        tied: false,
                    },
                    OperatorTensorParallelSplit::ColumnParallel,
                )),
                ("attention.core", Some(delta)) => operators.push(LayerOperator {
                    work: OperatorKind::LinearAttention {
                        tokens: block.tokens,
                        sizes: delta,
                    },
                    ..operator
                }),
                ("attention.out", Some(delta)) => operators.push(LayerOperator {
                    work: OperatorKind::Linear {
                        rows: block.tokens,
                        inputs: delta.value_columns(),
                        outputs: block.hidden,
                        bias: false,
                        tied: false,
                    },
                    ..operator
                }),
                _ => operators.extend(self.replacement_operators(&block, operator, index)),
            }
        }
        operators
    }

    /// Returns the operators that replace `operator` in a block without linear attention.
    fn replacement_operators(
        &self,
        block: &TransformerBlock,
        operator: LayerOperator,
        index: u64,
    ) -> Vec<LayerOperator> {
        let mut operators = Vec::with_capacity(4);
        match &*operator.name {
            "attention.qkv" => operators.extend(self.products_before_attention(block, operator)),
            "attention.core" => {
                operators.push(self.attention_operator(block, operator, index));
                operators.extend(self.gate_after_attention(block));
            }
            "experts.dispatch" => operators.push(self.set_router_of_expert_dispatch(operator)),
            "experts.combine" => {
                operators.push(operator);
                operators.extend(self.shared_expert_operators(block));
            }
            "attention.out" => operators.push(self.product_after_attention(block, operator)),
            "residual1" | "residual2" if self.sandwich_norm => {
                let at = if operator.name == "residual1" { 1 } else { 2 };
                operators.push(block.norm_operator(&format!("norm{at}.after")));
                operators.push(operator);
            }
            _ => operators.push(operator),
        }
        operators
    }

    /// Returns true if block `index` has full attention because it is the last in a period of `full_every` blocks.
    fn is_full_attention_block(&self, index: u64) -> bool {
        self.full_every > 0 && (index + 1).is_multiple_of(self.full_every)
    }

    /// Returns the gate after attention, if the model has one.
    fn gate_after_attention(&self, block: &TransformerBlock) -> Option<LayerOperator> {
        let gate = OperatorKind::Activation {
            function: ActivationFunction::Sigmoid,
            rows: block.tokens,
            width: block.heads.saturating_mul(block.head_width),
            gated: true,
        };
        let gate = LayerOperator::new(
            "attention.gate",
            gate,
            OperatorTensorParallelSplit::InsideRegion,
        );
        self.output_gate.then_some(gate)
    }

    /// Returns the matrix products before attention, which are `qkv` or the products of latent
    /// attention.
    fn products_before_attention(
        &self,
        block: &TransformerBlock,
        mut qkv: LayerOperator,
    ) -> Vec<LayerOperator> {
        let Some(latent) = self.latent else {
            if let OperatorKind::Linear { bias, outputs, .. } = &mut qkv.work {
                *bias = self.qkv_biases;
                if self.output_gate {
                    let gate = block.heads.saturating_mul(block.head_width);
                    *outputs = outputs.saturating_add(gate);
                }
            }
            return vec![qkv];
        };
        let (rows, hidden) = (block.tokens, block.hidden);
        let LatentAttentionSizes {
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
            LayerOperator::new(
                "attention.down",
                down,
                OperatorTensorParallelSplit::Replicated,
            ),
            LayerOperator::new(
                "attention.norm",
                norm,
                OperatorTensorParallelSplit::Replicated,
            ),
            LayerOperator::new(
                "attention.up",
                up,
                OperatorTensorParallelSplit::ColumnParallel,
            ),
        ]
    }

    fn attention_operator(
        &self,
        block: &TransformerBlock,
        core: LayerOperator,
        index: u64,
    ) -> LayerOperator {
        let span = self.attention_span_of_block(index);
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

    fn set_router_of_expert_dispatch(&self, mut dispatch: LayerOperator) -> LayerOperator {
        if let OperatorKind::ExpertDispatch { form, .. } = &mut dispatch.work {
            *form = self.router;
        }
        dispatch
    }

    /// Returns the shared experts' MLP, on the skip path around the routed experts.
    fn shared_expert_operators(&self, block: &TransformerBlock) -> Vec<LayerOperator> {
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
            Some(LayerOperator { name, ..operator }.move_to_skip_path())
        });
        perceptron.collect()
    }

    /// Returns a block that predicts one more token. It consists of norms of the hidden state and of the token's
    /// embedding, a matrix product that joins the two, a copy of the last block, and a norm before the logits.
    fn build_multi_token_prediction_layer(&self, index: u64) -> ModelLayer {
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
            LayerOperator::new("norms", both, OperatorTensorParallelSplit::Replicated),
            LayerOperator::new("join", join, OperatorTensorParallelSplit::Replicated),
        ];
        operators.extend(self.block_operators(self.base.layers.saturating_sub(1)));
        operators.push(block.norm_operator("norm"));
        ModelLayer::new(format!("predict{index}"), LayerRole::Block, operators)
    }
}
