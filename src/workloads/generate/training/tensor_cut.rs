//! Checks that tensor groups can split operators.

use crate::generate::{PatternOptionError, refused_option_value_error};
use crate::model::{LayerOperator, OperatorShardAxis, OperatorTensorParallelSplit};

/// Checks that `cut` can split `operator` among the `members` members of a tensor group.
/// Vocabularies are padded, so their sizes always divide evenly.
pub(super) fn check_split_divides_operator(
    operator: &LayerOperator,
    cut: OperatorTensorParallelSplit,
    members: u64,
) -> Result<(), PatternOptionError> {
    let spec = operator.work.to_axes_and_tensors();
    let axis = match cut {
        OperatorTensorParallelSplit::Replicated => return Ok(()),
        OperatorTensorParallelSplit::RowParallel => OperatorShardAxis::K,
        OperatorTensorParallelSplit::ColumnParallel | OperatorTensorParallelSplit::InsideRegion => {
            OperatorShardAxis::N
        }
    };
    if spec.looks_up_table_rows()
        || spec.is_matrix_product_without_windows() && axis == OperatorShardAxis::N
    {
        return Ok(());
    }
    let mut sizes = spec.sizes_that_axis_degree_must_divide(axis);
    match sizes.find(|(size, _)| !size.is_multiple_of(members)) {
        None => Ok(()),
        Some((size, what)) => {
            // Heads can be padded, but columns of an MLP cannot.
            let or = if spec.is_attention() {
                "; or pad_heads = true"
            } else {
                ""
            };
            let expected = format!("a divisor of the {size} {what} of {}{or}", operator.name);
            Err(refused_option_value_error("tensor", members, expected))
        }
    }
}
