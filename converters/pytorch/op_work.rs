//! FLOPs and bytes of operators, from the shapes of their arguments.
//!
//! A multiplication and an addition are two operations. With C (m×n) = A (m×k) · B (k×n) that is 2·m·n·k; a
//! convolution is such a product for every position of its output: 2 · elements of the output · elements of the
//! weight ÷ output channels. Its backward pass has a product of the same size for each gradient that it computes.
//! Attention computes Q·Kᵀ and P·V, and five such products in the backward pass. FLOPs of what plainly forms products, by
//! its name, and whose shapes do not say how large, are unknown. Everything else counts no FLOPs: it is memory-bound on
//! every machine, by the bytes of its tensors, of which lookups in tables touch the rows of their indices.

mod arguments;
mod attention;
mod computing;
mod lookups;
mod products;

pub(super) use arguments::{OperatorArguments, scalar_values};
pub(super) use computing::{ComputeHint, kernel_hint};
pub(super) use lookups::is_lookup;

/// Returns whether the values of scalars of the operator `name` say how much it computes or moves.
pub(super) fn needs_values(name: &str) -> bool {
    let plain = name.strip_prefix("aten::").unwrap_or(name);
    attention::needs_values(plain) || products::needs_values(plain) || lookups::needs_values(plain)
}

/// Cost of an operator, independent of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCost {
    /// FLOPs; zero if it is no product of matrices.
    pub flops: u64,
    /// Bytes read and written; zero if it moves none, as a view.
    pub bytes: u64,
    /// Whether it forms products of unknown size.
    pub flops_unknown: bool,
}

impl OpCost {
    /// Returns the part of a cost that falls to `time` of `whole`.
    pub(super) fn part(self, time: u64, whole: u64) -> Self {
        let part = |amount: u64| {
            let share = u128::from(amount) * u128::from(time) / u128::from(whole.max(1));
            u64::try_from(share).unwrap_or(u64::MAX)
        };
        Self {
            flops: part(self.flops),
            bytes: part(self.bytes),
            flops_unknown: self.flops_unknown,
        }
    }
}

/// Returns the cost of the operator `plain`, which is called so without `aten::`, and whose tensors have so many bytes.
pub(super) fn cost(plain: &str, operands: &OperatorArguments, bytes: u64) -> OpCost {
    let flops = attention::flops(plain, operands).or_else(|| products::flops(plain, operands));
    // Of rows of unknown number nothing is known.
    let bytes = match lookups::bytes(plain, operands) {
        None => bytes,
        Some(rows) => rows.unwrap_or(0),
    };
    OpCost {
        flops: flops.flatten().unwrap_or(0),
        bytes,
        flops_unknown: match flops {
            Some(flops) => flops.is_none(),
            None => computing::is_product(plain),
        },
    }
}
