//! Shard that one member of a tensor group has of an operator with degrees of its own.

use crate::generate::sharding::{MeshAxis, ShardLayout};
use crate::model::OperatorKind;

/// Sharding of an operator: the number of shards along each axis, and the one that a member has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ShardSpec {
    pub samples: MeshAxis,
    pub rows: MeshAxis,
    /// Columns of the output.
    pub outputs: MeshAxis,
    /// Columns of the input that products are summed over.
    pub inputs: MeshAxis,
}

impl ShardSpec {
    pub const WHOLE: Self = Self {
        samples: MeshAxis::WHOLE,
        rows: MeshAxis::WHOLE,
        outputs: MeshAxis::WHOLE,
        inputs: MeshAxis::WHOLE,
    };

    /// Layout in which `work` needs its input.
    pub fn input_layout(&self, work: &OperatorKind) -> ShardLayout {
        let columns = match work {
            OperatorKind::Linear { .. } | OperatorKind::Convolution { .. } => self.inputs,
            OperatorKind::Interaction { .. } => MeshAxis::WHOLE,
            _ => self.outputs,
        };
        ShardLayout {
            samples: self.samples,
            rows: self.rows,
            columns,
        }
    }

    /// Layout of its output.
    pub fn output_layout(&self) -> ShardLayout {
        ShardLayout {
            samples: self.samples,
            rows: self.rows,
            columns: self.outputs,
        }
    }

    /// Members that differ in this have terms of the output to be summed.
    pub fn partial_axis(&self) -> Option<MeshAxis> {
        (self.inputs.parts > 1).then_some(self.inputs)
    }

    /// A member's shard of `work`, per sample of its own. Rows of an image are split so that windows are shared out
    /// evenly: the shard is an image of its own, with the same padding. Sizes that do not divide are rounded up, as
    /// Megatron-LM pads the vocabulary.
    pub fn local_shard(&self, work: &OperatorKind) -> OperatorKind {
        let mut work = work.clone();
        let windows = work.window_rows();
        let cut = |size: &mut u64, by: MeshAxis| *size = size.div_ceil(by.parts.into());
        match &mut work {
            OperatorKind::Linear {
                rows,
                inputs,
                outputs,
                ..
            } => {
                cut(rows, self.rows);
                cut(inputs, self.inputs);
                cut(outputs, self.outputs);
            }
            OperatorKind::Convolution {
                inputs,
                outputs,
                size,
                kernel,
                stride,
                padding,
                ..
            } => {
                cut(inputs, self.inputs);
                cut(outputs, self.outputs);
                size[0] = self.image_rows(size[0], windows, kernel[0], *stride, *padding);
            }
            OperatorKind::Pool {
                channels,
                size,
                kernel,
                stride,
                padding,
            } => {
                cut(channels, self.outputs);
                size[0] = self.image_rows(size[0], windows, kernel[0], *stride, *padding);
            }
            OperatorKind::Attention {
                heads, kv_heads, ..
            } => {
                cut(heads, self.outputs);
                cut(kv_heads, self.outputs);
            }
            OperatorKind::Norm { rows, width, .. }
            | OperatorKind::Activation { rows, width, .. }
            | OperatorKind::Residual { rows, width, .. }
            | OperatorKind::Loss {
                rows,
                classes: width,
            } => {
                cut(rows, self.rows);
                cut(width, self.outputs);
            }
            OperatorKind::Embedding {
                vocabulary,
                width,
                tokens,
            } => {
                cut(tokens, self.rows);
                cut(width, self.outputs);
                cut(vocabulary, self.inputs);
            }
            OperatorKind::EmbeddingBag { rows, width, .. } => {
                cut(width, self.outputs);
                cut(rows, self.inputs);
            }
            OperatorKind::Interaction { .. } => {}
        }
        work
    }

    /// Returns true if a member's shard of `work` has exactly its share of the windows. It has if the windows of its
    /// rows reach beyond the padding.
    pub fn shares_windows(&self, work: &OperatorKind) -> bool {
        let parts = u64::from(self.rows.parts);
        self.local_shard(work).window_rows().saturating_mul(parts) == work.window_rows()
    }

    /// Rows of an image with a member's share of `windows` rows of windows: `(windows - 1) stride + kernel - 2
    /// padding`.
    fn image_rows(&self, all: u64, windows: u64, kernel: u64, stride: u64, padding: u64) -> u64 {
        if self.rows.parts == 1 {
            return all;
        }
        let own = windows.div_ceil(self.rows.parts.into()).max(1);
        // Rows from the first to the last window, halo included.
        let reached = (own - 1).saturating_mul(stride).saturating_add(kernel);
        reached
            .saturating_sub(padding.saturating_mul(2))
            .clamp(1, all)
    }
}

/// Columns of the output.
pub(super) fn columns(work: &OperatorKind) -> u64 {
    match *work {
        OperatorKind::Linear { outputs, .. } | OperatorKind::Convolution { outputs, .. } => outputs,
        OperatorKind::Attention { heads, width, .. } => heads.saturating_mul(width),
        OperatorKind::Norm { width, .. }
        | OperatorKind::Activation { width, .. }
        | OperatorKind::Residual { width, .. }
        | OperatorKind::Embedding { width, .. }
        | OperatorKind::EmbeddingBag { width, .. } => width,
        OperatorKind::Loss { .. } => 1,
        OperatorKind::Pool { channels, .. } => channels,
        OperatorKind::Interaction { .. } => work.output_elements(),
    }
}
