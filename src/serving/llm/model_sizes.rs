//! Computes the sizes of a served language model, and each NPU's share.

use super::super::error::ServeError;
use chakram_base::dtype::Dtype;
use chakram_workloads::model::{
    AttentionSpan, DeltaAttentionSizes, LayerOperator, LayerRole, Model,
    ModelWithDefinitionProperties, OperatorKind, OperatorTensorParallelSplit, POSITION_TABLE,
    PresetOrModelFileText,
};

/// How a matrix multiplication is divided among the NPUs of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixProductSplit {
    /// Each NPU computes some of the output columns.
    ByOutputs,
    /// Each NPU has some of the input columns; an all-reduce adds up the results.
    ByInputs,
    /// Each NPU computes the whole multiplication.
    Repeated,
}

/// A matrix product of a block, before it is divided among NPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelBlockMatrixProduct {
    /// Number of input columns.
    pub inputs: u64,
    /// Number of output columns.
    pub outputs: u64,
    /// How the multiplication is divided among NPUs.
    pub split: MatrixProductSplit,
    /// True if the product computes queries, keys and values.
    pub is_qkv: bool,
    /// How many experts have this product, and how many of them a token uses; `None` if it belongs to no expert.
    pub experts: Option<[u64; 2]>,
}

/// Shape of a block's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelBlockAttentionSizes {
    /// Number of query heads.
    pub heads: u64,
    /// Number of key heads, which equals the number of value heads.
    pub kv_heads: u64,
    /// Columns per head. With latent vectors, this is the mean of a key's and a value's columns.
    pub width: u64,
    /// True if query and key heads are normalized.
    pub qk_norm: bool,
    /// Maximum number of tokens that a token attends to; `None` for no maximum.
    pub window: Option<u64>,
    /// Number of elements in the latent vector, and in the rotated key. All heads share both, and they are cached
    /// instead of keys and values.
    pub latent: Option<[u64; 2]>,
    /// True if a gate, computed with the queries, multiplies the attention's results.
    pub is_gated: bool,
}

/// The operator of a block that combines information across tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenMixingOperator {
    /// Attention over the keys and values of all tokens, or of a window.
    Attention(ModelBlockAttentionSizes),
    /// Linear attention.
    Delta(DeltaAttentionSizes),
}

impl ModelBlockAttentionSizes {
    /// Returns the attention that an operator describes; `None` if it is not attention, or an error if it cannot be
    /// served.
    fn from_operator(work: &OperatorKind) -> Result<Option<Self>, &'static str> {
        let (attention, causal) = match *work {
            OperatorKind::Attention {
                heads,
                kv_heads,
                width,
                causal,
                qk_norm,
                ..
            } => {
                let plain = Self {
                    heads,
                    kv_heads,
                    width,
                    qk_norm,
                    window: None,
                    latent: None,
                    is_gated: false,
                };
                (plain, causal)
            }
            OperatorKind::ShapedAttention {
                heads,
                kv_heads,
                width,
                value_width,
                turned,
                latent,
                span,
                causal,
                qk_norm,
                ..
            } => {
                let window = match span {
                    AttentionSpan::All => None,
                    // Chunked attention is treated as a window of the chunk's length, because a token reads at most its
                    // own chunk.
                    AttentionSpan::Window(tokens) | AttentionSpan::Piece(tokens) => Some(tokens),
                };
                if latent == 0 && width != value_width {
                    return Err("the heads of keys and values have different widths");
                }
                let shaped = Self {
                    heads,
                    kv_heads,
                    width: (width + value_width) / 2,
                    qk_norm,
                    window,
                    latent: (latent > 0).then_some([latent, turned]),
                    is_gated: false,
                };
                (shaped, causal)
            }
            _ => return Ok(None),
        };
        match causal {
            true => Ok(Some(attention)),
            false => Err("the attention is not causal"),
        }
    }

    /// Returns the number of key heads on each of `npus` NPUs: at least one, and the same as the number of value heads.
    pub fn kv_heads_per_npu(&self, npus: u32) -> u64 {
        (self.kv_heads / u64::from(npus)).max(1)
    }

    /// Returns the number of query and gate columns on each of `npus` NPUs.
    fn query_and_gate_columns_per_npu(&self, npus: u32) -> u64 {
        self.heads / u64::from(npus) * if self.is_gated { 2 } else { 1 }
    }

    /// Returns the number of elements that each of `npus` NPUs caches per token. Latent vectors are not divided,
    /// because all heads share them.
    pub fn cached_elements_per_token(&self, npus: u32) -> u64 {
        match self.latent {
            Some([latent, turned]) => latent + turned,
            None => 2 * self.kv_heads_per_npu(npus) * self.width,
        }
    }

    /// Returns how many keys a token reads; `keys` counts the tokens up to and including the token itself.
    pub fn keys_read_per_token(&self, keys: u64) -> u64 {
        self.window.map_or(keys, |window| keys.min(window))
    }
}

impl TokenMixingOperator {
    /// Returns the only operator of a block that combines information across tokens.
    fn from_operators(operators: &[LayerOperator]) -> Result<Self, String> {
        let mut found = None;
        let mut set = |mixing| match found.replace(mixing) {
            None => Ok(()),
            Some(_) => Err("the blocks have two attention operators".to_owned()),
        };
        for (at, operator) in operators.iter().enumerate() {
            if let OperatorKind::LinearAttention { sizes, .. } = operator.work {
                set(Self::Delta(sizes))?;
            }
            if let Some(attention) = ModelBlockAttentionSizes::from_operator(&operator.work)? {
                let behind = operators.get(at + 1).map(|behind| &behind.work);
                let columns = attention.heads * attention.width;
                let is_gated = matches!(
                    behind,
                    Some(OperatorKind::Activation { gated: true, width, .. }) if *width == columns
                );
                set(Self::Attention(ModelBlockAttentionSizes {
                    is_gated,
                    ..attention
                }))?;
            }
        }
        found.ok_or("the blocks have no attention".to_owned())
    }
}

/// Identical blocks of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelBlockKindWithCount {
    /// Number of blocks of this kind.
    pub count: u64,
    /// Each block's operator that combines information across tokens.
    pub mixing: TokenMixingOperator,
    /// Matrix products of each block, in order.
    pub products: Vec<ModelBlockMatrixProduct>,
    /// Number of experts, and number of experts per token.
    pub experts: Option<[u64; 2]>,
    /// Width of the MLP's intermediate activation, including the gate, in columns.
    pub widest: u64,
}

impl ModelBlockKindWithCount {
    /// Derives a kind, with a count of one, from the operators of one of its blocks.
    fn kind_from_operators_of_one_block(operators: &[LayerOperator]) -> Result<Self, String> {
        let mixing = TokenMixingOperator::from_operators(operators)?;
        let attention = match mixing {
            TokenMixingOperator::Attention(attention) => Some(attention),
            TokenMixingOperator::Delta(_) => None,
        };
        let plain = attention.filter(|attention| attention.latent.is_none());
        let qkv =
            plain.map(|of| (of.query_and_gate_columns_per_npu(1) + 2 * of.kv_heads) * of.width);
        let (mut products, mut experts, mut widest) = (Vec::new(), None, 0);
        let mut chosen = 1;
        for operator in operators {
            let split = match operator.cut {
                OperatorTensorParallelSplit::ColumnParallel => MatrixProductSplit::ByOutputs,
                OperatorTensorParallelSplit::RowParallel => MatrixProductSplit::ByInputs,
                OperatorTensorParallelSplit::Replicated
                | OperatorTensorParallelSplit::InsideRegion => MatrixProductSplit::Repeated,
            };
            let by_outputs = split == MatrixProductSplit::ByOutputs;
            let product = |inputs, outputs| ModelBlockMatrixProduct {
                inputs,
                outputs,
                split,
                is_qkv: false,
                experts: None,
            };
            match operator.work {
                OperatorKind::Linear {
                    inputs, outputs, ..
                } => {
                    // Only the first product can compute queries, keys and values; a later product
                    // may have the same width by chance.
                    let is_qkv = by_outputs
                        && Some(outputs) == qkv
                        && products.is_empty();
                    // The first product of linear attention is divided by head.
                    let is_first = products.is_empty();
                    if by_outputs && !is_qkv && !(is_first && attention.is_none()) {
                        widest = widest.max(outputs);
                    }
                    products.push(ModelBlockMatrixProduct {
                        is_qkv,
                        ..product(inputs, outputs)
                    });
                }
                // Decoding merges the second product into the queries and into the attention's results. The numbers of
                // weights and of products do not change.
                OperatorKind::LatentUp {
                    query_rank,
                    kv_rank,
                    heads,
                    query_width,
                    kv_width,
                    ..
                } => {
                    products.push(product(query_rank, heads * query_width));
                    products.push(product(kv_rank, heads * kv_width));
                }
                OperatorKind::ExpertDispatch {
                    experts: count,
                    chosen: each,
                    ..
                } => {
                    experts = Some([count, each]);
                    chosen = each;
                }
                OperatorKind::ExpertLinear {
                    experts: count,
                    inputs,
                    outputs,
                    ..
                } => {
                    if by_outputs {
                        // Each expert that a token uses has its own activations.
                        widest = widest.max(outputs * chosen);
                    }
                    products.push(ModelBlockMatrixProduct {
                        experts: Some([count, chosen]),
                        ..product(inputs, outputs)
                    });
                }
                // The only weights of these operators are attention sinks and the gains of norms. No product includes
                // them, so they are counted elsewhere.
                OperatorKind::Norm { .. }
                | OperatorKind::Attention { .. }
                | OperatorKind::ShapedAttention { .. }
                // Linear attention has further weights: the convolution, the decay rates, and the
                // gain of a norm.
                | OperatorKind::LinearAttention { .. } => {}
                _ if operator.parameter_count() > 0 => {
                    return Err(format!(
                        "operator {} has weights, but its time in a step is unknown",
                        operator.name
                    ));
                }
                _ => {}
            }
        }
        if plain.is_some() && !products.first().is_some_and(|first| first.is_qkv) {
            return Err(
                "the blocks have no matrix multiplication for queries, keys and values".to_owned(),
            );
        }
        Ok(Self {
            count: 1,
            mixing,
            products,
            experts,
            widest,
        })
    }

    /// Returns the block's attention, or `None` if it has linear attention.
    pub fn attention_sizes(&self) -> Option<&ModelBlockAttentionSizes> {
        match &self.mixing {
            TokenMixingOperator::Attention(attention) => Some(attention),
            TokenMixingOperator::Delta(_) => None,
        }
    }

    /// Returns the block's linear attention, or `None` if it has none.
    pub fn linear_attention_sizes(&self) -> Option<&DeltaAttentionSizes> {
        match &self.mixing {
            TokenMixingOperator::Attention(_) => None,
            TokenMixingOperator::Delta(delta) => Some(delta),
        }
    }

    /// Returns the number of elements that each of `npus` NPUs stores per token.
    pub fn block_cached_elements_per_token(&self, npus: u32) -> u64 {
        self.attention_sizes()
            .map_or(0, |of| of.cached_elements_per_token(npus))
    }

    /// Returns the numbers of input and output columns of a product on each of `npus` NPUs.
    pub fn product_inputs_and_outputs_per_npu(
        &self,
        product: &ModelBlockMatrixProduct,
        npus: u32,
    ) -> [u64; 2] {
        let parts = u64::from(npus);
        if let (true, Some(of)) = (product.is_qkv, self.attention_sizes()) {
            let columns = of.query_and_gate_columns_per_npu(npus) + 2 * of.kv_heads_per_npu(npus);
            return [product.inputs, columns * of.width];
        }
        match product.split {
            MatrixProductSplit::ByOutputs => [product.inputs, product.outputs / parts],
            MatrixProductSplit::ByInputs => [product.inputs / parts, product.outputs],
            MatrixProductSplit::Repeated => [product.inputs, product.outputs],
        }
    }

    /// Returns the number of product weights per NPU, outside experts and in experts, summed over all blocks of this
    /// kind. Each rank has `npus` NPUs, and the `ranks` ranks share the experts.
    fn product_weights_per_npu(&self, npus: u32, ranks: u32) -> [u64; 2] {
        let mut weights = [0; 2];
        for product in &self.products {
            let [inputs, outputs] = self.product_inputs_and_outputs_per_npu(product, npus);
            match product.experts {
                None => weights[0] += self.count * inputs * outputs,
                Some([count, _]) => {
                    weights[1] += self.count * (inputs * outputs * count).div_ceil(ranks.into());
                }
            }
        }
        weights
    }
}

/// Sizes of a decoder with a few kinds of blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct LlmModelSizes {
    /// Name of the model.
    pub name: String,
    /// Number of blocks.
    pub layers: u64,
    /// Width of the activations between blocks.
    pub hidden: u64,
    /// Kinds of blocks, in the order of their first occurrence.
    pub kinds: Vec<ModelBlockKindWithCount>,
    /// Size of the vocabulary.
    pub vocabulary: u64,
    /// Number of weights in all norms and biases.
    pub small_weights: u64,
    /// Number of weights in the embedding table, and in the head if it has its own.
    pub table_weights: u64,
    /// Total number of weights.
    pub parameters: u64,
    /// Maximum sequence length, as the model's file states it.
    pub sequence: u64,
    /// Number of learned positions, which no request can exceed. `None` if the model computes its positions.
    pub learned_positions: Option<u64>,
}

/// Returns the number of rows in the model's table of learned positions, if it has one.
fn learned_position_count(model: &Model) -> Option<u64> {
    let others = model
        .layers
        .iter()
        .filter(|layer| layer.role != LayerRole::Block);
    let mut operators = others.flat_map(|layer| &layer.operators);
    operators.find_map(|operator| match operator.work {
        OperatorKind::Embedding { vocabulary, .. } if operator.name == POSITION_TABLE => {
            Some(vocabulary)
        }
        _ => None,
    })
}

impl LlmModelSizes {
    /// Returns the sizes of the model `name`, which is a preset or the path of a file.
    ///
    /// # Errors
    ///
    /// Fails if the model does not exist, its file is malformed, or it cannot be served token by token.
    pub fn load_by_name(name: &str) -> Result<Self, ServeError> {
        let definition = PresetOrModelFileText::find_source(name)
            .and_then(|source| source.parse_definition(None))
            .map_err(|source| ServeError::RequestedModel(Box::new(source)))?;
        Self::from_definition(&definition)
    }

    /// Returns the sizes of the model that `definition` describes.
    ///
    /// # Errors
    ///
    /// Fails if the model is not a decoder over tokens.
    pub fn from_definition(definition: &ModelWithDefinitionProperties) -> Result<Self, ServeError> {
        let model = &definition.model;
        let unfit = |why: &str| {
            ServeError::Unfit(format!(
                "model {}: {why}; only decoders with causal attention are served token by token\n  try: \
                 llama3-8b",
                model.name
            ))
        };
        let blocks = model
            .layers
            .iter()
            .filter(|layer| layer.role == LayerRole::Block);
        let mut known: Vec<(&[LayerOperator], ModelBlockKindWithCount)> = Vec::new();
        for block in blocks {
            let same = known
                .iter_mut()
                .find(|(operators, _)| *operators == block.operators.as_slice());
            match same {
                Some((_, kind)) => kind.count += 1,
                None => {
                    let kind =
                        ModelBlockKindWithCount::kind_from_operators_of_one_block(&block.operators)
                            .map_err(|why| unfit(&why))?;
                    known.push((&block.operators, kind));
                }
            }
        }
        let mut kinds: Vec<ModelBlockKindWithCount> = Vec::new();
        for (_, kind) in known {
            // Blocks whose operators differ only in name are of the same kind.
            let same = kinds.iter_mut().find(|other| {
                ModelBlockKindWithCount {
                    count: other.count,
                    ..kind.clone()
                } == **other
            });
            match same {
                Some(same) => same.count += kind.count,
                None => kinds.push(kind),
            }
        }
        let first = kinds
            .first()
            .ok_or_else(|| unfit("the model has no blocks"))?;
        let hidden = first.products[0].inputs;
        let head = model
            .layers
            .iter()
            .filter(|layer| layer.role == LayerRole::Output);
        let head = head.flat_map(|layer| &layer.operators);
        let vocabulary = head
            .filter_map(|operator| match operator.work {
                OperatorKind::Linear { rows, outputs, .. } if rows > 1 || model.sequence == 1 => {
                    Some(outputs)
                }
                _ => None,
            })
            .next_back()
            .ok_or_else(|| unfit("the model has no logits"))?;
        let of_products = kinds
            .iter()
            .flat_map(|kind| kind.product_weights_per_npu(1, 1));
        let of_products: u64 = of_products.sum();
        let is_table = |operator: &&LayerOperator| {
            matches!(operator.work, OperatorKind::Embedding { .. })
                || matches!(operator.work, OperatorKind::Linear { outputs, .. } if outputs == vocabulary)
        };
        let others = model
            .layers
            .iter()
            .filter(|layer| layer.role != LayerRole::Block);
        let tables = others.flat_map(|layer| &layer.operators).filter(is_table);
        let table_weights: u64 = tables.map(|operator| operator.parameter_count()).sum();
        let parameters = model.parameter_count();
        Ok(Self {
            name: model.name.clone(),
            layers: kinds.iter().map(|kind| kind.count).sum(),
            hidden,
            kinds,
            vocabulary,
            small_weights: parameters.saturating_sub(of_products + table_weights),
            table_weights,
            parameters,
            sequence: model.sequence,
            learned_positions: learned_position_count(model),
        })
    }

    /// Returns true if the model can be divided among `npus` NPUs.
    pub fn can_divide_among_npus(&self, npus: u32) -> bool {
        let npus = u64::from(npus);
        self.kinds.iter().all(|kind| {
            let divides_heads = match &kind.mixing {
                TokenMixingOperator::Attention(of) => {
                    of.heads.is_multiple_of(npus)
                        && (of.latent.is_some()
                            || of.kv_heads.is_multiple_of(npus)
                            || npus.is_multiple_of(of.kv_heads))
                }
                TokenMixingOperator::Delta(of) => {
                    of.key_heads.is_multiple_of(npus) && of.value_heads.is_multiple_of(npus)
                }
            };
            let mut products = kind.products.iter().filter(|product| !product.is_qkv);
            divides_heads
                && products.all(|product| match product.split {
                    MatrixProductSplit::ByOutputs => product.outputs.is_multiple_of(npus),
                    MatrixProductSplit::ByInputs => product.inputs.is_multiple_of(npus),
                    MatrixProductSplit::Repeated => true,
                })
        })
    }

    /// Returns the largest numbers of query heads and of key heads in any block.
    pub fn max_query_and_key_head_counts(&self) -> [u64; 2] {
        let attentions = self
            .kinds
            .iter()
            .filter_map(|kind| kind.attention_sizes().copied());
        let largest =
            |of: fn(ModelBlockAttentionSizes) -> u64| attentions.clone().map(of).max().unwrap_or(1);
        [
            largest(|attention| attention.heads),
            largest(|attention| attention.kv_heads),
        ]
    }

    /// Returns true if blocks have experts.
    pub fn has_experts(&self) -> bool {
        self.kinds.iter().any(|kind| kind.experts.is_some())
    }

    /// Returns true if the experts can be divided evenly among `npus` NPUs.
    pub fn can_divide_experts(&self, npus: u32) -> bool {
        let mut experts = self.kinds.iter().filter_map(|kind| kind.experts);
        experts.all(|[experts, _]| experts.is_multiple_of(npus.into()))
    }

    /// Returns the bytes of weights per NPU. `formats` are the formats of products outside experts
    /// and of expert products; all other weights are in BF16. Each rank has `npus` NPUs, and the
    /// `ranks` ranks share the experts.
    pub fn weight_bytes_per_npu(&self, npus: u32, ranks: u32, formats: [Dtype; 2]) -> u64 {
        let mut products = [0; 2];
        for kind in &self.kinds {
            let own = kind.product_weights_per_npu(npus, ranks);
            products = [products[0] + own[0], products[1] + own[1]];
        }
        let bytes = |at: usize| products[at] as f64 * formats[at].element_bytes();
        let tables = self.table_weights.div_ceil(u64::from(npus));
        (bytes(0) + bytes(1)) as u64 + 2 * (tables + self.small_weights)
    }

    /// Returns the bytes that each of `npus` NPUs caches per token: keys and values, or latent vectors. Blocks with
    /// attention windows cache every token too.
    pub fn kv_bytes_per_token_and_npu(&self, npus: u32, format: Dtype) -> u64 {
        let elements = self
            .kinds
            .iter()
            .map(|kind| kind.count * kind.block_cached_elements_per_token(npus));
        (elements.sum::<u64>() as f64 * format.element_bytes()) as u64
    }

    /// Returns the bytes of a request's linear-attention states on each of `npus` NPUs; they do not depend on the
    /// request's length.
    pub fn linear_attention_state_bytes(&self, npus: u32) -> u64 {
        let of_kinds = self.kinds.iter().filter_map(|kind| {
            let delta = kind.linear_attention_sizes()?;
            Some(kind.count * delta.state_and_convolution_bytes_per_npu(npus, 2))
        });
        of_kinds.sum()
    }

    /// Returns true if some blocks limit attention to a window of earlier tokens.
    pub fn has_attention_windows(&self) -> bool {
        self.kinds
            .iter()
            .any(|kind| kind.attention_sizes().is_some_and(|of| of.window.is_some()))
    }

    /// Returns how many columns per token a block keeps while it runs on one of `npus` NPUs; this is for the largest
    /// block. These are the queries, keys and values, and the MLP's intermediate products.
    pub fn max_activation_columns_per_token(&self, npus: u32) -> u64 {
        let parts = u64::from(npus);
        let columns = self.kinds.iter().map(|kind| {
            let mixed = match &kind.mixing {
                TokenMixingOperator::Attention(attention) => {
                    let kv_heads = match attention.latent {
                        Some(_) => attention.heads / parts,
                        None => attention.kv_heads_per_npu(npus),
                    };
                    (attention.query_and_gate_columns_per_npu(npus) + 2 * kv_heads)
                        * attention.width
                }
                TokenMixingOperator::Delta(delta) => {
                    let [_, values] = delta.key_and_value_heads_per_npu(npus);
                    delta.convolved_columns(npus) + values * delta.value_width
                }
            };
            mixed + (kind.widest + kind.widest / 2) / parts
        });
        columns.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_workloads::model::PresetOrModelFileText;

    fn load_model_sizes(name: &str) -> LlmModelSizes {
        LlmModelSizes::from_definition(
            &PresetOrModelFileText::find_source(name)
                .unwrap()
                .parse_definition(None)
                .unwrap(),
        )
        .unwrap()
    }

    /// The bytes per token are 2 (keys and values) x key heads x columns x 2 bytes x layers.
    #[test]
    fn keys_and_values_have_the_published_sizes() {
        let kib = |name| {
            load_model_sizes(name).kv_bytes_per_token_and_npu(1, Dtype::Bf16) as f64 / 1024.0
        };
        let known = [
            ("llama3-8b", 128.0),
            ("llama3-70b", 320.0),
            ("llama2-7b", 512.0),
            ("qwen3-32b", 256.0),
            ("qwen3-30b-a3b", 96.0),
            // A quarter of the 48 blocks have attention, with two key heads of 256 columns.
            ("qwen3-next-80b-a3b", 24.0),
            ("mixtral-8x7b", 128.0),
            // A token takes 576 elements (512 + 64) x 2 bytes x 61 layers = 68.625 KiB.
            ("deepseek-v3", 68.625),
            // All 36 blocks count, including those with windows, which are half of them.
            ("gpt-oss-120b", 72.0),
        ];
        for (name, expected) in known {
            assert_eq!(kib(name), expected, "{name}");
        }
        // With eight heads on sixteen NPUs, each NPU stores one head, so each head is stored twice.
        assert_eq!(
            load_model_sizes("llama3-70b").kv_bytes_per_token_and_npu(16, Dtype::Bf16),
            320 * 1024 / 8
        );
        assert_eq!(
            load_model_sizes("llama3-70b").kv_bytes_per_token_and_npu(8, Dtype::Fp8),
            320 * 1024 / 16
        );
        // States are divided by head. Each of 36 blocks has 32 heads with 128 x 128 values in
        // single precision, and three inputs of a convolution over 2 x 2048 + 4096 columns.
        let hybrid = load_model_sizes("qwen3-next-80b-a3b");
        let states = 36 * (32 * 128 * 128 * 4 + 3 * 2 * 8192);
        assert_eq!(
            [1, 4].map(|npus| hybrid.linear_attention_state_bytes(npus)),
            [states, states / 4]
        );
        assert_eq!(
            load_model_sizes("llama3-8b").linear_attention_state_bytes(1),
            0
        );
        // Each NPU keeps the whole latent vectors.
        let latent = load_model_sizes("deepseek-v3");
        assert_eq!(
            latent.kv_bytes_per_token_and_npu(8, Dtype::Bf16),
            latent.kv_bytes_per_token_and_npu(1, Dtype::Bf16)
        );
    }

    #[test]
    fn weights_of_one_npu_are_all_of_them() {
        for name in [
            "llama3-8b",
            "llama3-70b",
            "mixtral-8x7b",
            "qwen3-30b-a3b",
            "qwen3-next-80b-a3b",
            "qwen3.5-397b-a17b",
            "gpt3-1.3b",
            "deepseek-v3",
            "kimi-k2",
            "gpt-oss-20b",
        ] {
            let sizes = load_model_sizes(name);
            assert_eq!(
                sizes.weight_bytes_per_npu(1, 1, [Dtype::Bf16; 2]),
                2 * sizes.parameters,
                "{name}"
            );
        }
        // The 80 blocks have 8192 x (10240 + 8192) + 3 x 8192 x 28672 weights each, and the two tables have 128256 x
        // 8192 weights each. All of them are divided by 4, but norms are not.
        let block = 8192 * (10_240 + 8192) + 3 * 8192 * 28_672;
        let tables = 2 * 128_256 * 8192;
        let norms = (2 * 80 + 1) * 8192;
        assert_eq!(
            load_model_sizes("llama3-70b").weight_bytes_per_npu(4, 1, [Dtype::Bf16; 2]),
            2 * ((80 * block + tables) / 4 + norms)
        );
    }

    /// DeepSeek-V3 has three dense blocks, and then 58 blocks with experts. In GPT-OSS, half of the
    /// blocks have a window of 128 tokens.
    #[test]
    fn blocks_of_several_kinds_are_counted() {
        let counts = |name| -> Vec<u64> {
            load_model_sizes(name)
                .kinds
                .iter()
                .map(|kind| kind.count)
                .collect()
        };
        assert_eq!(counts("deepseek-v3"), [3, 58]);
        assert_eq!(counts("gpt-oss-120b"), [18, 18]);
        assert_eq!(counts("llama3-8b"), [32]);
        let windows = load_model_sizes("gpt-oss-120b").kinds;
        let windows: Vec<_> = windows
            .iter()
            .map(|kind| kind.attention_sizes().unwrap().window)
            .collect();
        assert!(
            windows.contains(&Some(128)) && windows.contains(&None),
            "{windows:?}"
        );
        let attention = *load_model_sizes("deepseek-v3").kinds[0]
            .attention_sizes()
            .unwrap();
        assert_eq!(attention.latent, Some([512, 64]));
        assert_eq!(
            (
                attention.keys_read_per_token(5),
                attention.cached_elements_per_token(8)
            ),
            (5, 576)
        );
    }

    #[test]
    fn what_does_not_answer_token_by_token_is_refused() {
        for name in ["bert-base", "resnet-50", "vit-b-16", "dlrm"] {
            let definition = PresetOrModelFileText::find_source(name)
                .unwrap()
                .parse_definition(None)
                .unwrap();
            let error = LlmModelSizes::from_definition(&definition)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(name) && error.contains("only decoders"),
                "{error}"
            );
        }
    }
}
