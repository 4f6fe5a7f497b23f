//! Shard that one member of a tensor group has of an operator with degrees of its own.

use crate::generate::sharding::{MeshAxis, ShardLayout};
use crate::model::{OperatorAxis, OperatorKind, OperatorSpec, WindowSpec};

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

    /// The digit that cuts `axis`.
    pub fn digit(&self, axis: OperatorAxis) -> MeshAxis {
        match axis {
            OperatorAxis::B => self.samples,
            OperatorAxis::M => self.rows,
            OperatorAxis::N => self.outputs,
            OperatorAxis::K => self.inputs,
        }
    }

    /// Layout in which an operator needs its input.
    pub fn input_layout(&self, spec: &OperatorSpec) -> ShardLayout {
        ShardLayout {
            samples: self.samples,
            rows: self.rows,
            columns: if spec.sums() {
                self.inputs
            } else {
                self.outputs
            },
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
        let mut local = work.clone();
        let spec = work.spec();
        for (axis, size) in local.sizes_mut() {
            *size = match (axis, spec.windows) {
                (OperatorAxis::M, Some(windows)) => {
                    self.image_rows(*size, spec.extent('h'), windows)
                }
                _ => size.div_ceil(self.digit(axis).parts.into()),
            };
        }
        local
    }

    /// Returns true if a member's shard of `work` has exactly its share of the windows. It has if the windows of its
    /// rows reach beyond the padding.
    pub fn shares_windows(&self, work: &OperatorKind) -> bool {
        let parts = u64::from(self.rows.parts);
        self.local_shard(work).window_rows().saturating_mul(parts) == work.window_rows()
    }

    /// Rows of an image with a member's share of `all` rows of windows: `(share - 1) stride + kernel - 2 padding`.
    fn image_rows(&self, rows: u64, all: u64, windows: WindowSpec) -> u64 {
        if self.rows.parts == 1 {
            return rows;
        }
        let own = all.div_ceil(self.rows.parts.into()).max(1);
        // Rows from the first to the last window, halo included.
        let between = (own - 1).saturating_mul(windows.stride);
        let reached = between.saturating_add(windows.kernel);
        reached
            .saturating_sub(windows.padding.saturating_mul(2))
            .clamp(1, rows)
    }
}
