//! Sizes of a language model for serving, and the share of each NPU of an engine.

use super::super::error::ServeError;
use chakram_base::dtype::Dtype;
use chakram_workloads::model::{LayerRole, ModelDefinition, ModelSource, OperatorKind};

/// A matrix product of a block, before it is divided among NPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockProduct {
    /// Columns of the input.
    pub inputs: u64,
    /// Columns of the output.
    pub outputs: u64,
    /// True if NPUs divide the product's outputs, false if they divide its inputs.
    pub by_outputs: bool,
    /// True if the product computes queries, keys and values.
    pub is_qkv: bool,
    /// Number of experts that each have this product, and number of experts per token, or `None` if
    /// the product belongs to no expert.
    pub experts: Option<[u64; 2]>,
}

/// A decoder of identical blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct LlmSizes {
    /// Name of the model.
    pub name: String,
    /// Number of blocks.
    pub layers: u64,
    /// Width of the activations between blocks.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Heads of keys and of values.
    pub kv_heads: u64,
    /// Columns of a head.
    pub head_width: u64,
    /// True if heads of queries and keys are normalized.
    pub qk_norm: bool,
    /// Size of the vocabulary.
    pub vocabulary: u64,
    /// Products of a block.
    pub products: Vec<BlockProduct>,
    /// Number of experts, and number of experts per token.
    pub experts: Option<[u64; 2]>,
    /// Columns between the products of an MLP, including its gate.
    pub widest: u64,
    /// Number of weights of all norms and biases.
    pub small_weights: u64,
    /// Number of weights of the embedding table, and of the head if it has separate weights.
    pub table_weights: u64,
    /// Number of all weights.
    pub parameters: u64,
    /// Maximum sequence length that the model's file states.
    pub sequence: u64,
}

impl LlmSizes {
    /// Returns the sizes of the model `name`, which is a preset or the path of a file.
    ///
    /// # Errors
    ///
    /// Fails if the model does not exist, its file is malformed, or the model cannot be served token by token.
    pub fn find(name: &str) -> Result<Self, ServeError> {
        let definition = ModelSource::find(name)
            .and_then(|source| source.definition(None))
            .map_err(|source| ServeError::ServedModel(Box::new(source)))?;
        Self::of(&definition)
    }

    /// Returns the sizes of the model that `definition` describes.
    ///
    /// # Errors
    ///
    /// Fails if the model is not a decoder over tokens, or its blocks differ.
    pub fn of(definition: &ModelDefinition) -> Result<Self, ServeError> {
        let model = &definition.model;
        let unfit = |why: &str| {
            ServeError::Unfit(format!(
                "model {}: {why}; only decoders with identical blocks are served token by token\n  try: llama3-8b",
                model.name
            ))
        };
        let shaped = |work: &OperatorKind| matches!(work, OperatorKind::ShapedAttention { .. });
        let mut operators = model.layers.iter().flat_map(|layer| &layer.operators);
        if operators.any(|operator| shaped(&operator.work)) {
            return Err(unfit(
                "the attention has latent vectors, windows or sinks, whose memory per token is not simulated",
            ));
        }
        let mut blocks = model
            .layers
            .iter()
            .filter(|layer| layer.role == LayerRole::Block);
        let block = blocks
            .next()
            .ok_or_else(|| unfit("the model has no blocks"))?;
        if blocks.any(|other| other.operators != block.operators) {
            return Err(unfit("the blocks differ"));
        }
        let layers = model
            .layers
            .iter()
            .filter(|layer| layer.role == LayerRole::Block);
        let attentions = block
            .operators
            .iter()
            .filter_map(|operator| match operator.work {
                OperatorKind::Attention {
                    heads,
                    kv_heads,
                    width,
                    causal,
                    qk_norm,
                    ..
                } => Some((heads, kv_heads, width, causal, qk_norm)),
                _ => None,
            });
        let mut attentions = attentions;
        let (heads, kv_heads, head_width, causal, qk_norm) = attentions
            .next()
            .ok_or_else(|| unfit("the blocks have no attention"))?;
        if attentions.next().is_some() {
            return Err(unfit("the blocks have two attention operators"));
        }
        if !causal {
            return Err(unfit("the attention is not causal"));
        }
        let qkv = (heads + 2 * kv_heads) * head_width;
        let (mut products, mut experts, mut widest) = (Vec::new(), None, 0);
        let mut chosen = 1;
        for operator in &block.operators {
            let by_outputs = operator.cut == chakram_workloads::model::TensorSplit::ColumnParallel;
            match operator.work {
                OperatorKind::Linear {
                    inputs, outputs, ..
                } => {
                    // Only the first product can compute queries, keys and values; a later one may have the same width
                    // by chance.
                    let is_qkv = by_outputs && outputs == qkv && products.is_empty();
                    if by_outputs && !is_qkv {
                        widest = widest.max(outputs);
                    }
                    products.push(BlockProduct {
                        inputs,
                        outputs,
                        by_outputs,
                        is_qkv,
                        experts: None,
                    });
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
                        // A token's activations exist once for each of its experts.
                        widest = widest.max(outputs * chosen);
                    }
                    let of = Some([count, chosen]);
                    products.push(BlockProduct {
                        inputs,
                        outputs,
                        by_outputs,
                        is_qkv: false,
                        experts: of,
                    });
                }
                // The remaining weights are gains of norms, including norms of heads.
                OperatorKind::Norm { .. } | OperatorKind::Attention { .. } => {}
                _ if operator.parameters() > 0 => {
                    return Err(unfit(&format!(
                        "operator {} has weights, but its time in a step is unknown",
                        operator.name
                    )));
                }
                _ => {}
            }
        }
        if !products.first().is_some_and(|first| first.is_qkv) {
            return Err(unfit(
                "the blocks have no matrix multiplication for queries, keys and values",
            ));
        }
        let hidden = products[0].inputs;
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
        let count = layers.clone().count() as u64;
        let of_products: u64 = products
            .iter()
            .map(|product| {
                product.inputs * product.outputs * product.experts.map_or(1, |[count, _]| count)
            })
            .sum();
        let is_table = |operator: &&chakram_workloads::model::LayerOperator| {
            matches!(operator.work, OperatorKind::Embedding { .. })
                || matches!(operator.work, OperatorKind::Linear { outputs, .. } if outputs == vocabulary)
        };
        let others = model
            .layers
            .iter()
            .filter(|layer| layer.role != LayerRole::Block);
        let tables = others.flat_map(|layer| &layer.operators).filter(is_table);
        let table_weights: u64 = tables.map(|operator| operator.parameters()).sum();
        let parameters = model.parameters();
        Ok(Self {
            name: model.name.clone(),
            layers: count,
            hidden,
            heads,
            kv_heads,
            head_width,
            qk_norm,
            vocabulary,
            products,
            experts,
            widest,
            small_weights: parameters.saturating_sub(count * of_products + table_weights),
            table_weights,
            parameters,
            sequence: model.sequence,
        })
    }

    /// Returns true if `npus` NPUs can divide the model.
    pub fn divides(&self, npus: u32) -> bool {
        let npus = u64::from(npus);
        self.heads.is_multiple_of(npus)
            && (self.kv_heads.is_multiple_of(npus) || npus.is_multiple_of(self.kv_heads))
            && self
                .products
                .iter()
                .filter(|product| !product.is_qkv)
                .all(|product| {
                    let cut = if product.by_outputs {
                        product.outputs
                    } else {
                        product.inputs
                    };
                    cut.is_multiple_of(npus)
                })
    }

    /// Returns the number of heads of keys and values on each of `npus` NPUs: at least one.
    pub fn own_kv_heads(&self, npus: u32) -> u64 {
        (self.kv_heads / u64::from(npus)).max(1)
    }

    /// Returns the inputs and outputs of a product on each of `npus` NPUs.
    pub fn own_product(&self, product: &BlockProduct, npus: u32) -> [u64; 2] {
        let parts = u64::from(npus);
        if product.is_qkv {
            let columns = self.heads / parts + 2 * self.own_kv_heads(npus);
            return [product.inputs, columns * self.head_width];
        }
        match product.by_outputs {
            true => [product.inputs, product.outputs / parts],
            false => [product.inputs / parts, product.outputs],
        }
    }

    /// Returns the bytes of weights on each of `npus` NPUs: products in `format`, all other weights in BF16.
    pub fn weight_bytes(&self, npus: u32, format: Dtype) -> u64 {
        let of_products = self.products.iter().map(|product| {
            let [inputs, outputs] = self.own_product(product, npus);
            inputs * outputs * product.experts.map_or(1, |[count, _]| count)
        });
        let products = self.layers * of_products.sum::<u64>();
        let tables = self.table_weights.div_ceil(u64::from(npus));
        (products as f64 * format.element_bytes()) as u64 + 2 * (tables + self.small_weights)
    }

    /// Returns the bytes of keys and values per token on each of `npus` NPUs.
    pub fn kv_bytes(&self, npus: u32, format: Dtype) -> u64 {
        let elements = 2 * self.own_kv_heads(npus) * self.head_width * self.layers;
        (elements as f64 * format.element_bytes()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_workloads::model::ModelSource;

    fn sizes(name: &str) -> LlmSizes {
        LlmSizes::of(&ModelSource::find(name).unwrap().definition(None).unwrap()).unwrap()
    }

    /// The bytes per token are 2 x heads of keys x columns x 2 bytes x layers.
    #[test]
    fn keys_and_values_have_the_published_sizes() {
        let kib = |name| sizes(name).kv_bytes(1, Dtype::Bf16) as f64 / 1024.0;
        let known = [
            ("llama3-8b", 128.0),
            ("llama3-70b", 320.0),
            ("llama2-7b", 512.0),
            ("qwen3-32b", 256.0),
            ("qwen3-30b-a3b", 96.0),
            ("mixtral-8x7b", 128.0),
        ];
        for (name, expected) in known {
            assert_eq!(kib(name), expected, "{name}");
        }
        // Eight heads on sixteen NPUs: one head per NPU, so each head is stored twice.
        assert_eq!(
            sizes("llama3-70b").kv_bytes(16, Dtype::Bf16),
            320 * 1024 / 8
        );
        assert_eq!(sizes("llama3-70b").kv_bytes(8, Dtype::Fp8), 320 * 1024 / 16);
    }

    #[test]
    fn weights_of_one_npu_are_all_of_them() {
        for name in [
            "llama3-8b",
            "llama3-70b",
            "mixtral-8x7b",
            "qwen3-30b-a3b",
            "gpt3-1.3b",
        ] {
            let sizes = sizes(name);
            assert_eq!(
                sizes.weight_bytes(1, Dtype::Bf16),
                2 * sizes.parameters,
                "{name}"
            );
        }
        // 80 blocks of 8192 x (10240 + 8192) + 3 x 8192 x 28672, and two tables of 128256 x 8192, divided by 4; norms
        // are not divided.
        let block = 8192 * (10_240 + 8192) + 3 * 8192 * 28_672;
        let tables = 2 * 128_256 * 8192;
        let norms = (2 * 80 + 1) * 8192;
        assert_eq!(
            sizes("llama3-70b").weight_bytes(4, Dtype::Bf16),
            2 * ((80 * block + tables) / 4 + norms)
        );
    }

    #[test]
    fn what_does_not_answer_token_by_token_is_refused() {
        for name in [
            "bert-base",
            "resnet-50",
            "vit-b-16",
            "dlrm",
            "deepseek-v3",
            "gpt-oss-20b",
        ] {
            let definition = ModelSource::find(name).unwrap().definition(None).unwrap();
            let error = LlmSizes::of(&definition).unwrap_err().to_string();
            assert!(
                error.contains(name) && error.contains("only decoders"),
                "{error}"
            );
        }
    }
}
