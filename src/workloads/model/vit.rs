//! Vision transformers described by a few sizes.

use super::{
    ActivationFunction, LayerOperator, LayerRole, ModelLayer, OperatorKind,
    OperatorTensorParallelSplit, TransformerBlock,
};

/// A transformer over an image's patches and one class token (Dosovitskiy et al., "An Image is Worth 16x16 Words",
/// 2021). It has LayerNorm before attention and before the MLP, biases in all products, and GELU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisionTransformer {
    /// Number of blocks; layers before and after the blocks do not count.
    pub layers: u64,
    /// Width of the activations between blocks.
    pub hidden: u64,
    /// Number of attention heads.
    pub heads: u64,
    /// Number of elements per head.
    pub head_width: u64,
    /// Intermediate size of the MLP (feed-forward network).
    pub ffn: u64,
    /// Height and width of the image, in pixels.
    pub image: [u64; 2],
    /// Number of color channels per pixel.
    pub channels: u64,
    /// Side length of a square patch, in pixels.
    pub patch: u64,
    /// Number of classes of the classifier.
    pub classes: u64,
    /// True if training uses dropout.
    pub dropout: bool,
}

impl VisionTransformer {
    /// Number of patches, plus one for the class token.
    pub fn token_count(&self) -> u64 {
        let [height, width] = self.image.map(|side| side / self.patch.max(1));
        height.saturating_mul(width).saturating_add(1)
    }

    /// Returns the model's layers, named `embedding`, `layer0`, `layer1`, …, `head`.
    pub fn expand_layers(&self) -> Vec<ModelLayer> {
        let block = TransformerBlock {
            tokens: self.token_count(),
            hidden: self.hidden,
            heads: self.heads,
            kv_heads: self.heads,
            head_width: self.head_width,
            ffn: self.ffn,
            function: ActivationFunction::Gelu,
            gated: false,
            norm_bias: true,
            norm_after: false,
            biases: true,
            causal: false,
            dropout: self.dropout,
            rotary: false,
            qk_norm: false,
            experts: None,
        };
        let operators = block.block_operators();
        let mut layers = vec![ModelLayer::new(
            "embedding",
            LayerRole::Input,
            self.embedding_operators(&block),
        )];
        layers.extend((0..self.layers).map(|index| {
            ModelLayer::new(format!("layer{index}"), LayerRole::Block, operators.clone())
        }));
        layers.push(ModelLayer::new(
            "head",
            LayerRole::Output,
            self.head_operators(&block),
        ));
        layers
    }

    fn embedding_operators(&self, block: &TransformerBlock) -> Vec<LayerOperator> {
        let patches = OperatorKind::Convolution {
            inputs: self.channels,
            outputs: self.hidden,
            size: self.image,
            kernel: [self.patch; 2],
            stride: self.patch,
            padding: 0,
            groups: 1,
            bias: true,
        };
        let table = |rows| OperatorKind::Embedding {
            vocabulary: rows,
            width: self.hidden,
            tokens: rows,
        };
        vec![
            LayerOperator::new("patches", patches, OperatorTensorParallelSplit::Replicated),
            LayerOperator::new("class", table(1), OperatorTensorParallelSplit::Replicated),
            LayerOperator::new(
                "positions",
                table(self.token_count()),
                OperatorTensorParallelSplit::Replicated,
            ),
            block.residual_operator("sum"),
        ]
    }

    fn head_operators(&self, block: &TransformerBlock) -> Vec<LayerOperator> {
        let classifier = OperatorKind::Linear {
            rows: 1,
            inputs: self.hidden,
            outputs: self.classes,
            bias: true,
            tied: false,
        };
        let loss = OperatorKind::Loss {
            rows: 1,
            classes: self.classes,
        };
        vec![
            block.norm_operator("norm"),
            LayerOperator::new(
                "classifier",
                classifier,
                OperatorTensorParallelSplit::Replicated,
            ),
            LayerOperator::new("loss", loss, OperatorTensorParallelSplit::Replicated),
        ]
    }
}
