//! Layouts of a result over a group's members, and the communication that changes one layout into another.
//!
//! The members are numbered in mixed radix. Each digit of a member's number is a [`MemberNumberDigit`]: the index of
//! the member's shard along one axis. A [`SampleRowColumnSharding`] uses one digit for each axis of a result: samples,
//! rows and columns. Members that differ only in digits that the layout does not use have copies of the same shard. All
//! shards of a result are equal, so sizes here are fractions of the result.
//!
//! A redistribution sends as little as possible: each member receives exactly the elements that it needs and does not
//! have. [`plan_redistribution`] returns the required communication. Some examples, with members 0, 1, …:
//!
//! | from | to | members | transfers |
//! |---|---|---|---|
//! | columns by 4 (Megatron-LM's column-parallel linear) | whole | 4 | all-gather among all: 3/4 to each |
//! | samples by 4 | columns by 4 (DLRM's tables, backward) | 4 | all-to-all among all: 3 fragments of 1/16 to each |
//! | whole | columns by 4 | 4 | nothing, each member takes a slice |
//! | columns by 2 (first half on 0 and 2) | samples by 2 (first half for 0 and 1) | 4 | all-gather of 1/4 each in {0, 1} and {2, 3} |
//! | columns by 2 (first half on 0 and 2) | columns by 2 (first half for 0 and 1) | 4 | 0 to 1 and 1 to 2, 1/2 each |
//! | columns by 2 (first half on 0, 2 and 4) | columns by 3 (first third for 0 and 1) | 6 | messages of 1/6 and 2/6 |

mod partition;
mod redistribution;
#[cfg(test)]
mod tests;

pub use partition::EqualSizedMemberGroups;
pub use redistribution::{
    Redistribution, ShardMessage, plan_redistribution, reduce_scatter_groups,
};

/// A digit of a member's number. The digit splits its axis into `parts` equal shards, and the
/// member has shard `member / stride % parts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberNumberDigit {
    /// Number of equal shards; 1 if the axis is not sharded.
    pub parts: u32,
    /// Distance between members with neighbouring shards; 1 if there is only one shard.
    pub stride: u32,
}

impl MemberNumberDigit {
    /// The digit of an axis that is not sharded.
    pub const WHOLE: Self = Self {
        parts: 1,
        stride: 1,
    };

    /// Creates the digit of an axis with `parts` shards, in which members with neighbouring shards are `stride` apart.
    ///
    /// # Panics
    /// Panics if `parts` or `stride` is 0.
    pub fn new(parts: u32, stride: u32) -> Self {
        assert!(parts > 0 && stride > 0, "{parts} parts, stride {stride}");
        match parts {
            1 => Self::WHOLE,
            _ => Self { parts, stride },
        }
    }

    /// Returns the index of the shard that `member` has.
    pub fn shard_of_member(self, member: u32) -> u32 {
        member / self.stride % self.parts
    }
}

/// Returns true if all `digits` belong to one mixed-radix numbering of `members`, and no two digits
/// overlap.
fn are_digits_of_one_grid(digits: &[MemberNumberDigit], members: u32) -> bool {
    let mut cut: Vec<MemberNumberDigit> = digits.iter().copied().filter(|d| d.parts > 1).collect();
    // In ascending order of strides, no digit may begin before the previous one ends, because the two would overlap.
    cut.sort_unstable_by_key(|digit| digit.stride);
    let mut below = 1;
    for digit in cut {
        if !u64::from(digit.stride).is_multiple_of(below) {
            return false;
        }
        below = u64::from(digit.stride) * u64::from(digit.parts);
    }
    members > 0 && u64::from(members).is_multiple_of(below)
}

/// Layout of a result over the members of a group: how its samples, rows and columns are sharded.
///
/// The digits belong to one numbering and do not overlap, so every shard has the same number of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SampleRowColumnSharding {
    /// How the samples are sharded.
    pub samples: MemberNumberDigit,
    /// How the rows of a sample are sharded.
    pub rows: MemberNumberDigit,
    /// How the columns are sharded.
    pub columns: MemberNumberDigit,
}

impl SampleRowColumnSharding {
    /// Layout in which every member has the whole result.
    pub const WHOLE: Self = Self {
        samples: MemberNumberDigit::WHOLE,
        rows: MemberNumberDigit::WHOLE,
        columns: MemberNumberDigit::WHOLE,
    };

    /// Number of different shards of the result; each member has exactly one.
    pub fn shard_count(&self) -> u64 {
        self.digits_of_all_axes()
            .iter()
            .fold(1, |all: u64, digit| all.saturating_mul(digit.parts.into()))
    }

    fn digits_of_all_axes(&self) -> [MemberNumberDigit; 3] {
        [self.samples, self.rows, self.columns]
    }

    /// Returns the index of `member`'s shard along each axis.
    fn shard_indices(&self, member: u32) -> [u64; 3] {
        self.digits_of_all_axes()
            .map(|digit| digit.shard_of_member(member).into())
    }

    /// Returns the number of the shard with indices `part` along the axes, in row-major order.
    fn shard_number_from_indices(&self, part: [u64; 3]) -> u64 {
        let axes = self.digits_of_all_axes().into_iter();
        axes.zip(part).fold(0, |cell, (digit, part)| {
            cell * u64::from(digit.parts) + part
        })
    }
}
