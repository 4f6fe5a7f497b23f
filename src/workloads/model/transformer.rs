//! Transformers described by a few sizes, such as GPT, BERT, Llama and Mixtral.

use super::{
    ActivationFunction, ExpertScoringAndGroupRule, LayerOperator, LayerRole, ModelLayer,
    OperatorKind, OperatorTensorParallelSplit,
};

/// A transformer that processes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformerModel {
    /// Number of blocks; layers before and after the blocks do not count.
    pub layers: u64,
    /// Sizes and options of each block.
    pub block: TransformerBlock,
    /// Vocabulary size: the number of rows in the token embedding table.
    pub vocabulary: u64,
    /// Encoding of the positions of tokens.
    pub positions: PositionEncoding,
    /// Number of rows in the table of token types (BERT's sentences A and B); 0 if there is none.
    pub segments: u64,
    /// True if a norm follows the embeddings.
    pub embedding_norm: bool,
    /// True if a norm follows the last block.
    pub final_norm: bool,
    /// Operators after the last block.
    pub head: OutputHead,
}

/// A transformer block: attention and an MLP, each with a norm and a skip path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformerBlock {
    /// Number of tokens per sample.
    pub tokens: u64,
    /// Width of the activations between blocks.
    pub hidden: u64,
    /// Number of query heads.
    pub heads: u64,
    /// Number of key heads, which is also the number of value heads.
    pub kv_heads: u64,
    /// Number of elements per head.
    pub head_width: u64,
    /// Intermediate size of the MLP (feed-forward network). With a gate, the first matrix product has twice as many
    /// outputs.
    pub ffn: u64,
    /// The MLP's activation function.
    pub function: ActivationFunction,
    /// True if one half of the first matrix product's result gates the other half.
    pub gated: bool,
    /// True if norms have a bias (LayerNorm); false for RMSNorm.
    pub norm_bias: bool,
    /// True if norms follow the residual sums (post-norm, BERT); false if they precede attention and MLP (pre-norm,
    /// GPT-2).
    pub norm_after: bool,
    /// True if matrix products have biases.
    pub biases: bool,
    /// True if attention is causal.
    pub causal: bool,
    /// True if training uses dropout.
    pub dropout: bool,
    /// True if queries and keys are rotated by their positions.
    pub rotary: bool,
    /// True if query heads and key heads are normalized to length 1.
    pub qk_norm: bool,
    /// Experts that replace the MLP; each has the intermediate size `ffn`.
    pub experts: Option<TotalAndChosenExpertCounts>,
}

/// Number of experts in a block, and number of experts per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TotalAndChosenExpertCounts {
    /// Number of experts.
    pub experts: u64,
    /// Number of experts that each token chooses.
    pub chosen: u64,
}

/// Name of the operator that looks up learned positions.
pub const POSITION_TABLE: &str = "positions";

/// Encoding of the positions of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionEncoding {
    /// A trained table with this number of rows, one per position.
    Learned(u64),
    /// Rotary embedding of queries and keys, without weights.
    Rotary,
    /// No encoding, or a fixed function without weights.
    None,
}

/// Head of a transformer: the operators after its last block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputHead {
    /// Logits of all vocabulary entries for each token, and their cross-entropy loss.
    Logits {
        /// True if the logits use the embedding's weights.
        tied: bool,
    },
    /// Logits with tied weights and a bias, preceded by one more matrix product, an activation and a norm, as in BERT's
    /// prediction of masked words.
    Masked,
    /// A matrix product on the first token, as in BERT's pooler.
    Pooler,
}

impl TransformerBlock {
    /// Returns the operators of one block in execution order.
    pub fn block_operators(&self) -> Vec<LayerOperator> {
        let attention = vec![
            self.linear_operator(
                "attention.qkv",
                [self.hidden, self.qkv_width()],
                OperatorTensorParallelSplit::ColumnParallel,
            ),
            LayerOperator::new(
                "attention.core",
                self.attention_operator(),
                OperatorTensorParallelSplit::InsideRegion,
            ),
            self.linear_operator(
                "attention.out",
                [self.attention_width(), self.hidden],
                OperatorTensorParallelSplit::RowParallel,
            ),
        ];
        let perceptron = match self.experts {
            Some(routing) => self.expert_operators(routing),
            None => self.perceptron_operators(),
        };
        let mut operators = Vec::with_capacity(12);
        for (norm, branch, residual) in [
            ("norm1", attention, "residual1"),
            ("norm2", perceptron, "residual2"),
        ] {
            if !self.norm_after {
                operators.push(self.norm_operator(norm));
            }
            operators.extend(branch);
            operators.push(self.residual_operator(residual));
            if self.norm_after {
                operators.push(self.norm_operator(norm));
            }
        }
        operators
    }

    fn perceptron_operators(&self) -> Vec<LayerOperator> {
        let [up, down] = self.perceptron_sizes();
        vec![
            self.linear_operator("mlp.up", up, OperatorTensorParallelSplit::ColumnParallel),
            LayerOperator::new(
                "mlp.activation",
                self.activation_operator(self.tokens),
                OperatorTensorParallelSplit::InsideRegion,
            ),
            self.linear_operator("mlp.down", down, OperatorTensorParallelSplit::RowParallel),
        ]
    }

    /// Returns the operators of the experts, including dispatch and combine.
    fn expert_operators(&self, routing: TotalAndChosenExpertCounts) -> Vec<LayerOperator> {
        let (tokens, width) = (self.tokens, self.hidden);
        let TotalAndChosenExpertCounts { experts, chosen } = routing;
        let rows = tokens.saturating_mul(chosen);
        let linear = |name, [inputs, outputs]: [u64; 2], cut| {
            let bias = self.biases;
            let work = OperatorKind::ExpertLinear {
                rows,
                experts,
                inputs,
                outputs,
                bias,
            };
            LayerOperator::new(name, work, cut)
        };
        let dispatch = OperatorKind::ExpertDispatch {
            tokens,
            width,
            experts,
            chosen,
            form: ExpertScoringAndGroupRule::default(),
        };
        let combine = OperatorKind::ExpertCombine {
            tokens,
            width,
            chosen,
        };
        let [up, down] = self.perceptron_sizes();
        vec![
            LayerOperator::new(
                "experts.dispatch",
                dispatch,
                OperatorTensorParallelSplit::Replicated,
            ),
            linear(
                "experts.up",
                up,
                OperatorTensorParallelSplit::ColumnParallel,
            ),
            LayerOperator::new(
                "experts.activation",
                self.activation_operator(rows),
                OperatorTensorParallelSplit::InsideRegion,
            ),
            linear(
                "experts.down",
                down,
                OperatorTensorParallelSplit::RowParallel,
            ),
            LayerOperator::new(
                "experts.combine",
                combine,
                OperatorTensorParallelSplit::Replicated,
            ),
        ]
    }

    /// Returns the number of inputs and the number of outputs of each of an MLP's two matrix products.
    fn perceptron_sizes(&self) -> [[u64; 2]; 2] {
        let halves = if self.gated { 2 } else { 1 };
        let up = self.ffn.saturating_mul(halves);
        [[self.hidden, up], [self.ffn, self.hidden]]
    }

    fn activation_operator(&self, rows: u64) -> OperatorKind {
        OperatorKind::Activation {
            function: self.function,
            rows,
            width: self.ffn,
            gated: self.gated,
        }
    }

    /// Number of query columns, summed over all heads.
    fn attention_width(&self) -> u64 {
        self.heads.saturating_mul(self.head_width)
    }

    /// Number of query, key and value columns, summed over all heads.
    fn qkv_width(&self) -> u64 {
        let heads = self.kv_heads.saturating_mul(2).saturating_add(self.heads);
        heads.saturating_mul(self.head_width)
    }

    fn attention_operator(&self) -> OperatorKind {
        OperatorKind::Attention {
            tokens: self.tokens,
            queries: self.tokens,
            heads: self.heads,
            kv_heads: self.kv_heads,
            width: self.head_width,
            causal: self.causal,
            dropout: self.dropout,
            rotary: self.rotary,
            qk_norm: self.qk_norm,
        }
    }

    fn linear_operator(
        &self,
        name: &str,
        [inputs, outputs]: [u64; 2],
        cut: OperatorTensorParallelSplit,
    ) -> LayerOperator {
        let work = OperatorKind::Linear {
            rows: self.tokens,
            inputs,
            outputs,
            bias: self.biases,
            tied: false,
        };
        LayerOperator::new(name, work, cut)
    }

    /// Returns a norm over the hidden size of all tokens.
    pub(super) fn norm_operator(&self, name: &str) -> LayerOperator {
        let work = OperatorKind::Norm {
            rows: self.tokens,
            width: self.hidden,
            bias: self.norm_bias,
        };
        LayerOperator::new(name, work, OperatorTensorParallelSplit::Replicated)
    }

    /// Returns a residual sum over all tokens.
    pub(super) fn residual_operator(&self, name: &str) -> LayerOperator {
        let work = OperatorKind::Residual {
            rows: self.tokens,
            width: self.hidden,
            dropout: self.dropout,
        };
        LayerOperator::new(name, work, OperatorTensorParallelSplit::Replicated)
    }
}

impl TransformerModel {
    /// Returns the model's layers, named `embedding`, `layer0`, `layer1`, …, `head`.
    pub fn expand_layers(&self) -> Vec<ModelLayer> {
        let operators = self.block.block_operators();
        let block = |index| {
            let name = format!("layer{index}");
            ModelLayer::new(name, LayerRole::Block, operators.clone())
        };
        let mut layers = vec![ModelLayer::new(
            "embedding",
            LayerRole::Input,
            self.embedding_operators(),
        )];
        layers.extend((0..self.layers).map(block));
        layers.push(ModelLayer::new(
            "head",
            LayerRole::Output,
            self.head_operators(),
        ));
        layers
    }

    fn embedding_operators(&self) -> Vec<LayerOperator> {
        let table = |name: &str, vocabulary: u64, cut: OperatorTensorParallelSplit| {
            let work = OperatorKind::Embedding {
                vocabulary,
                width: self.block.hidden,
                tokens: self.block.tokens,
            };
            LayerOperator::new(name, work, cut)
        };
        // The table is sharded by vocabulary entries: each member looks up its own entries, and the group sums the
        // results.
        let mut operators = vec![table(
            "tokens",
            self.vocabulary,
            OperatorTensorParallelSplit::RowParallel,
        )];
        if let PositionEncoding::Learned(rows) = self.positions {
            operators.push(table(
                POSITION_TABLE,
                rows,
                OperatorTensorParallelSplit::Replicated,
            ));
        }
        if self.segments > 0 {
            operators.push(table(
                "segments",
                self.segments,
                OperatorTensorParallelSplit::Replicated,
            ));
        }
        // A single table without dropout needs no sum.
        if operators.len() > 1 || self.block.dropout {
            operators.push(self.block.residual_operator("sum"));
        }
        if self.embedding_norm {
            operators.push(self.block.norm_operator("norm"));
        }
        operators
    }

    fn head_operators(&self) -> Vec<LayerOperator> {
        let TransformerBlock { tokens, hidden, .. } = self.block;
        let mut operators = Vec::new();
        if self.final_norm {
            operators.push(self.block.norm_operator("norm"));
        }
        let product = |rows, outputs, bias, tied| OperatorKind::Linear {
            rows,
            inputs: hidden,
            outputs,
            bias,
            tied,
        };
        let (bias, tied) = match self.head {
            // A model with a pooler has no logits and no loss.
            OutputHead::Pooler => {
                let work = product(1, hidden, true, false);
                operators.push(LayerOperator::new(
                    "pooler",
                    work,
                    OperatorTensorParallelSplit::Replicated,
                ));
                return operators;
            }
            OutputHead::Logits { tied } => (false, tied),
            OutputHead::Masked => {
                let work = product(tokens, hidden, true, false);
                operators.push(LayerOperator::new(
                    "transform",
                    work,
                    OperatorTensorParallelSplit::Replicated,
                ));
                let function = OperatorKind::Activation {
                    function: self.block.function,
                    rows: tokens,
                    width: hidden,
                    gated: false,
                };
                operators.push(LayerOperator::new(
                    "transform.activation",
                    function,
                    OperatorTensorParallelSplit::Replicated,
                ));
                operators.push(self.block.norm_operator("transform.norm"));
                (true, true)
            }
        };
        let logits = product(tokens, self.vocabulary, bias, tied);
        operators.push(LayerOperator::new(
            "logits",
            logits,
            OperatorTensorParallelSplit::ColumnParallel,
        ));
        let loss = OperatorKind::Loss {
            rows: tokens,
            classes: self.vocabulary,
        };
        operators.push(LayerOperator::new(
            "loss",
            loss,
            OperatorTensorParallelSplit::InsideRegion,
        ));
        operators
    }
}
