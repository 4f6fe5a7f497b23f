//! The part of an operator that one member computes.

use crate::generate::sharding::{MemberNumberDigit, SampleRowColumnSharding};
use crate::model::{
    ImageWindowStrideAndPadding, OperatorAxesAndTensorsSpec, OperatorKind, OperatorShardAxis,
};

/// Sharding of an operator: for each axis, the digit of a member's number that selects the member's shard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OperatorShardingByMemberDigits {
    pub samples: MemberNumberDigit,
    pub rows: MemberNumberDigit,
    /// Digit that shards the columns of the output.
    pub outputs: MemberNumberDigit,
    /// Digit that shards the columns of the input; matrix products sum over these columns.
    pub inputs: MemberNumberDigit,
}

impl OperatorShardingByMemberDigits {
    pub const WHOLE: Self = Self {
        samples: MemberNumberDigit::WHOLE,
        rows: MemberNumberDigit::WHOLE,
        outputs: MemberNumberDigit::WHOLE,
        inputs: MemberNumberDigit::WHOLE,
    };

    /// Returns the digit that shards `axis`.
    pub fn member_digit_that_shards_axis(&self, axis: OperatorShardAxis) -> MemberNumberDigit {
        match axis {
            OperatorShardAxis::B => self.samples,
            OperatorShardAxis::M => self.rows,
            OperatorShardAxis::N => self.outputs,
            OperatorShardAxis::K => self.inputs,
        }
    }

    /// Returns the layout in which an operator with the spec `spec` needs its input.
    pub fn input_layout(&self, spec: &OperatorAxesAndTensorsSpec) -> SampleRowColumnSharding {
        SampleRowColumnSharding {
            samples: self.samples,
            rows: self.rows,
            columns: if spec.sums_over_input_columns() {
                self.inputs
            } else {
                self.outputs
            },
        }
    }

    /// Returns the layout of the operator's output.
    pub fn output_layout(&self) -> SampleRowColumnSharding {
        SampleRowColumnSharding {
            samples: self.samples,
            rows: self.rows,
            columns: self.outputs,
        }
    }

    /// Returns the digit that distinguishes members with different partial sums of the output, or `None` if there are
    /// no partial sums.
    pub fn partial_sum_digit(&self) -> Option<MemberNumberDigit> {
        (self.inputs.parts > 1).then_some(self.inputs)
    }

    /// Returns one member's part of `work`, for one sample. An image is divided by rows, so that every member computes
    /// the same number of windows. A member's part is a separate image with the same padding. Sizes that do not divide
    /// evenly are rounded up, as Megatron-LM rounds up the vocabulary.
    pub fn local_part_of_operator(&self, work: &OperatorKind) -> OperatorKind {
        let mut local = work.clone();
        let spec = work.to_axes_and_tensors();
        for (axis, size) in local.divisible_sizes_mut() {
            *size = match (axis, spec.windows) {
                (OperatorShardAxis::M, Some(windows)) => {
                    self.image_rows_for_windows(*size, spec.extent_of_axis('h'), windows)
                }
                _ => size.div_ceil(self.member_digit_that_shards_axis(axis).parts.into()),
            };
        }
        local
    }

    /// Returns true if all members' parts of `work` together have exactly its windows. This requires that their rows
    /// extend past the padding.
    pub fn divides_windows_exactly(&self, work: &OperatorKind) -> bool {
        let parts = u64::from(self.rows.parts);
        self.local_part_of_operator(work)
            .output_rows_of_windows()
            .saturating_mul(parts)
            == work.output_rows_of_windows()
    }

    /// Returns the number of image rows that a member needs for its share of `all` rows of windows:
    /// `(share - 1) stride + kernel - 2 padding`.
    fn image_rows_for_windows(
        &self,
        rows: u64,
        all: u64,
        windows: ImageWindowStrideAndPadding,
    ) -> u64 {
        if self.rows.parts == 1 {
            return rows;
        }
        let own = all.div_ceil(self.rows.parts.into()).max(1);
        // Count the rows from the first to the last window, including the halo.
        let between = (own - 1).saturating_mul(windows.stride);
        let reached = between.saturating_add(windows.kernel);
        reached
            .saturating_sub(windows.padding.saturating_mul(2))
            .clamp(1, rows)
    }
}
