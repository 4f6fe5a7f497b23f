//! Checks whether an operator can be split among the members of a tensor group.

use crate::generate::{GenerateError, option_refused};
use crate::model::{LayerOperator, OperatorAxis, TensorSplit};

/// Checks that `operator` can be sharded by `cut` among the `members` of a tensor group. Vocabularies are padded, so
/// they need not divide.
pub(super) fn check_divides(
    operator: &LayerOperator,
    cut: TensorSplit,
    members: u64,
) -> Result<(), GenerateError> {
    let spec = operator.work.spec();
    let axis = match cut {
        TensorSplit::Replicated => return Ok(()),
        TensorSplit::RowParallel => OperatorAxis::K,
        TensorSplit::ColumnParallel | TensorSplit::InsideRegion => OperatorAxis::N,
    };
    if spec.looks_up() || spec.is_linear() && axis == OperatorAxis::N {
        return Ok(());
    }
    let mut sizes = spec.sizes(axis);
    match sizes.find(|(size, _)| !size.is_multiple_of(members)) {
        None => Ok(()),
        Some((size, what)) => {
            // Heads can be padded, but columns of a perceptron cannot.
            let or = if spec.attends() {
                "; or pad_heads = true"
            } else {
                ""
            };
            let expected = format!("a divisor of the {size} {what} of {}{or}", operator.name);
            Err(option_refused("tensor", members, expected))
        }
    }
}
