//! Layouts of a result over the members of a group, and the redistribution when the next operator needs another one.
//!
//! Members are numbered in mixed radix, and a [`MeshAxis`] of a member's number selects its shard of an axis. A
//! [`ShardLayout`] has a digit for each axis of a result: samples, rows, columns. Members that differ in other digits
//! only have the same shard: it is replicated. Everything here is in fractions of the result, whose shards are equal.
//!
//! Redistribution moves the least possible: each member receives exactly those elements that it needs and does not
//! have. [`redistribute`] returns the collective. Some cases, with members 0, 1, ..:
//!
//! | from | to | members | what moves |
//! |---|---|---|---|
//! | columns by 4 (Megatron-LM's column-parallel linear) | whole | 4 | all-gather among all: 3/4 to each |
//! | samples by 4 | columns by 4 (DLRM's tables, backwards) | 4 | all-to-all among all: 3 fragments of 1/16 to each |
//! | whole | columns by 4 | 4 | nothing, a slice is there |
//! | columns by 2, 0 and 2 having the first | samples by 2, 0 and 1 needing the first | 4 | all-gather of 1/4 each in {0, 1} and {2, 3} |
//! | columns by 2, 0 and 2 having the first | columns by 2, 0 and 1 needing the first | 4 | 0 to 1 and 1 to 2, 1/2 each |
//! | columns by 2, 0, 2 and 4 having the first | columns by 3, 0 and 1 needing the first | 6 | messages of 1/6 and 2/6 |

mod partition;
mod redistribution;
#[cfg(test)]
mod tests;

pub use partition::MemberPartition;
pub use redistribution::{Redistribution, ShardMessage, redistribute, reduce_scatter_groups};

/// A digit of a member's number: the axis is split into `parts` equal shards, and a member has shard `member / stride
/// % parts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MeshAxis {
    /// Number of equal shards; 1 if it is not sharded.
    pub parts: u32,
    /// Distance in numbers between members with neighbouring shards; 1 if there is one shard.
    pub stride: u32,
}

impl MeshAxis {
    /// Not sharded.
    pub const WHOLE: Self = Self {
        parts: 1,
        stride: 1,
    };

    /// Sharded into `parts`, neighbours `stride` apart.
    ///
    /// # Panics
    /// Panics if one of them is 0.
    pub fn new(parts: u32, stride: u32) -> Self {
        assert!(parts > 0 && stride > 0, "{parts} parts, stride {stride}");
        match parts {
            1 => Self::WHOLE,
            _ => Self { parts, stride },
        }
    }

    /// The part that `member` has.
    pub fn part(self, member: u32) -> u32 {
        member / self.stride % self.parts
    }
}

/// Returns true if `digits` are digits of the numbers below `members` in one mixed-radix notation, no two of them in
/// the same place.
fn on_one_grid(digits: &[MeshAxis], members: u32) -> bool {
    let mut cut: Vec<MeshAxis> = digits.iter().copied().filter(|d| d.parts > 1).collect();
    // In ascending order each digit must begin where the one below it ends, or above.
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

/// Layout of a result over the members of a group: sharded by samples, rows, columns.
///
/// Its digits are those of one grid, each in a place of its own; so every part is there, and all of them equally
/// often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardLayout {
    /// Sharding of the samples.
    pub samples: MeshAxis,
    /// Sharding of the rows of a sample.
    pub rows: MeshAxis,
    /// Sharding of the columns.
    pub columns: MeshAxis,
}

impl ShardLayout {
    /// Everyone has everything.
    pub const WHOLE: Self = Self {
        samples: MeshAxis::WHOLE,
        rows: MeshAxis::WHOLE,
        columns: MeshAxis::WHOLE,
    };

    /// Parts of the result: a member has 1/this of it.
    pub fn parts(&self) -> u64 {
        self.axes()
            .iter()
            .fold(1, |all: u64, digit| all.saturating_mul(digit.parts.into()))
    }

    fn axes(&self) -> [MeshAxis; 3] {
        [self.samples, self.rows, self.columns]
    }

    /// The parts that `member` has along the axes.
    fn part(&self, member: u32) -> [u64; 3] {
        self.axes().map(|digit| digit.part(member).into())
    }

    /// Row-major number of the shard with indices `part` along the axes.
    fn cell(&self, part: [u64; 3]) -> u64 {
        let axes = self.axes().into_iter();
        axes.zip(part).fold(0, |cell, (digit, part)| {
            cell * u64::from(digit.parts) + part
        })
    }
}
