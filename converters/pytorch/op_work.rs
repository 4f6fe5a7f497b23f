//! Computes the FLOPs and bytes of operators from the shapes of their arguments.
//!
//! A multiplication and an addition count as two operations. The product C (m×n) = A (m×k) · B (k×n) costs 2·m·n·k. A
//! convolution is one matrix multiplication per output position: 2 · output elements · weight elements ÷ output
//! channels. A convolution's backward pass computes gradients. Each gradient takes one matrix multiplication of the
//! same size. Attention takes two matrix multiplications (Q·Kᵀ and P·V) in the forward pass, and five of the same size
//! in the backward pass. If an operator's name shows that it multiplies matrices, but the shapes do not show their
//! sizes, the FLOPs are unknown. Every other operator counts as zero FLOPs, because the bytes of its tensors limit its
//! time on every machine. Table lookups count only the rows that their indices select.

mod arguments;
mod attention;
mod computing;
mod lookups;
mod products;

pub(super) use arguments::{OperatorArguments, observer_inputs_to_kineto_scalar_values};
pub(super) use computing::{KernelComputeOrMoveHint, compute_or_move_hint_of_kernel};
pub(super) use lookups::is_row_lookup;

/// Returns true if the scalar values of the operator `name` affect how much it computes or moves.
pub(super) fn cost_depends_on_scalar_values(name: &str) -> bool {
    let plain = name.strip_prefix("aten::").unwrap_or(name);
    attention::flops_depend_on_scalar_values(plain)
        || products::flops_depend_on_scalar_values(plain)
        || lookups::bytes_depend_on_scalar_values(plain)
}

/// Cost of an operator, independent of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCost {
    /// FLOPs; zero unless the operator multiplies matrices.
    pub flops: u64,
    /// Bytes read and written; zero for operators that move no data, such as views.
    pub bytes: u64,
    /// True if the operator multiplies matrices of unknown size.
    pub flops_unknown: bool,
}

impl OpCost {
    /// Returns the fraction `time` / `whole` of this cost.
    pub(super) fn scale_by_time_fraction(self, time: u64, whole: u64) -> Self {
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

/// Returns the cost of an operator whose tensors take `bytes` bytes; `plain` is the operator's name without `aten::`.
pub(super) fn estimate_cost(plain: &str, operands: &OperatorArguments, bytes: u64) -> OpCost {
    let flops = attention::attention_flops(plain, operands)
        .or_else(|| products::product_flops(plain, operands));
    // If the number of rows is unknown, the bytes are unknown too.
    let bytes = match lookups::lookup_bytes(plain, operands) {
        None => bytes,
        Some(rows) => rows.unwrap_or(0),
    };
    OpCost {
        flops: flops.flatten().unwrap_or(0),
        bytes,
        flops_unknown: match flops {
            Some(flops) => flops.is_none(),
            None => computing::is_matrix_product(plain),
        },
    }
}
