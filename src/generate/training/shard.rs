//! Megatron-LM's shard of an operator for one member of a tensor group.

use crate::model::{LayerOperator, OperatorKind, TensorSplit};

/// The shard of `operator` that one of `members` has. Sizes that do not divide are rounded up, as Megatron-LM pads
/// the vocabulary. With `sequence`, operators that are not sharded share the tokens, where these divide.
pub(super) fn shard(operator: &LayerOperator, members: u64, sequence: bool) -> OperatorKind {
    let mut work = operator.work.clone();
    if members == 1 {
        return work;
    }
    let part = |of: &mut u64| *of = of.div_ceil(members);
    match (&mut work, operator.cut) {
        (work, TensorSplit::Replicated) => {
            if let Some(rows) = rows(work).filter(|rows| sequence && rows.is_multiple_of(members)) {
                part(rows);
            }
        }
        (
            OperatorKind::Linear { outputs, .. } | OperatorKind::Convolution { outputs, .. },
            TensorSplit::ColumnParallel,
        ) => {
            part(outputs);
        }
        (
            OperatorKind::Linear { inputs, .. } | OperatorKind::Convolution { inputs, .. },
            TensorSplit::RowParallel,
        ) => {
            part(inputs);
        }
        (OperatorKind::Embedding { vocabulary, .. }, _) => part(vocabulary),
        (OperatorKind::EmbeddingBag { rows, .. }, TensorSplit::RowParallel) => part(rows),
        (OperatorKind::EmbeddingBag { width, .. }, _) => part(width),
        (
            OperatorKind::Attention {
                heads, kv_heads, ..
            },
            _,
        ) => {
            part(heads);
            part(kv_heads);
        }
        (
            OperatorKind::Activation { width, .. }
            | OperatorKind::Norm { width, .. }
            | OperatorKind::Residual { width, .. }
            | OperatorKind::Interaction { width, .. },
            _,
        ) => part(width),
        (OperatorKind::Loss { classes, .. }, _) => part(classes),
        (OperatorKind::Pool { channels, .. }, _) => part(channels),
        (
            OperatorKind::Linear { .. } | OperatorKind::Convolution { .. },
            TensorSplit::InsideRegion,
        ) => {}
    }
    work
}

/// The tokens that an operator goes over, if it goes over tokens.
pub(super) fn rows(work: &mut OperatorKind) -> Option<&mut u64> {
    match work {
        OperatorKind::Linear { rows, .. }
        | OperatorKind::Norm { rows, .. }
        | OperatorKind::Activation { rows, .. }
        | OperatorKind::Residual { rows, .. }
        | OperatorKind::Loss { rows, .. } => Some(rows),
        OperatorKind::Embedding { tokens, .. } => Some(tokens),
        _ => None,
    }
}
