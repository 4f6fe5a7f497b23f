//! How a result lies on the members of a group, and what has to be moved when the next operator needs it otherwise.
//!
//! Members are numbered as a grid with several radices, and a [`Digit`] of a member's number says which part of an
//! axis it has. A [`Layout`] has a digit for each axis of a result: samples, rows, columns. Members that differ in
//! other digits only have the same part: it is replicated. Everything here is in fractions of the result, whose
//! parts are equal.
//!
//! What moves from one layout to another is the least there can be: of what it needs, a member gets exactly what it
//! does not have. [`moves`] says which collective does that. Some cases, with members 0, 1, ..:
//!
//! | from | to | members | what moves |
//! |---|---|---|---|
//! | columns by 4 (Megatron-LM's column-parallel linear) | whole | 4 | all-gather among all: 3/4 to each |
//! | samples by 4 | columns by 4 (DLRM's tables, backwards) | 4 | all-to-all among all: 3 pieces of 1/16 to each |
//! | whole | columns by 4 | 4 | nothing, a slice is there |
//! | columns by 2, 0 and 2 having the first | samples by 2, 0 and 1 needing the first | 4 | all-gather of 1/4 each in {0, 1} and {2, 3} |
//! | columns by 2, 0 and 2 having the first | columns by 2, 0 and 1 needing the first | 4 | 0 to 1 and 1 to 2, 1/2 each |
//! | columns by 2, 0, 2 and 4 having the first | columns by 3, 0 and 1 needing the first | 6 | messages of 1/6 and 2/6 |

mod moves;
mod partition;
#[cfg(test)]
mod tests;

pub use moves::{Message, Move, moves, scatters};
pub use partition::Partition;

/// Into how many equal parts something is cut, and which one a member has: `member / stride % parts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digit {
    /// Equal parts; 1 if it is not cut.
    pub parts: u32,
    /// How far apart members with neighbouring parts are; 1 if it is not cut.
    pub stride: u32,
}

impl Digit {
    /// Not cut.
    pub const WHOLE: Self = Self {
        parts: 1,
        stride: 1,
    };

    /// Cut into `parts`, neighbours `stride` apart.
    ///
    /// # Panics
    /// When one of them is 0.
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

/// Whether `digits` are digits of the numbers below `members`, written with some radices, no two of them in the same
/// place.
fn on_one_grid(digits: &[Digit], members: u32) -> bool {
    let mut cut: Vec<Digit> = digits.iter().copied().filter(|d| d.parts > 1).collect();
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

/// How a result lies on the members of a group: cut by samples, rows, columns.
///
/// Its digits are those of one grid, each in a place of its own; so every part is there, and all of them equally
/// often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Layout {
    /// How samples are cut.
    pub samples: Digit,
    /// How the rows of a sample are cut.
    pub rows: Digit,
    /// How columns are cut.
    pub columns: Digit,
}

impl Layout {
    /// Everyone has everything.
    pub const WHOLE: Self = Self {
        samples: Digit::WHOLE,
        rows: Digit::WHOLE,
        columns: Digit::WHOLE,
    };

    /// Parts of the result: a member has 1/this of it.
    pub fn parts(&self) -> u64 {
        self.axes()
            .iter()
            .fold(1, |all: u64, digit| all.saturating_mul(digit.parts.into()))
    }

    fn axes(&self) -> [Digit; 3] {
        [self.samples, self.rows, self.columns]
    }

    /// The parts that `member` has along the axes.
    fn part(&self, member: u32) -> [u64; 3] {
        self.axes().map(|digit| digit.part(member).into())
    }

    /// The number of the part of the whole that lies at `part` along the axes.
    fn cell(&self, part: [u64; 3]) -> u64 {
        let axes = self.axes().into_iter();
        axes.zip(part).fold(0, |cell, (digit, part)| {
            cell * u64::from(digit.parts) + part
        })
    }
}
