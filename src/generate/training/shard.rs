//! Megatron-LM's shard of an operator for one member of a tensor group.

use crate::model::{Cut, Operator, Work};

/// The shard of `operator` that one of `members` has. Sizes that do not divide are rounded up, as Megatron-LM pads
/// the vocabulary. With `sequence`, operators that are not sharded share the tokens, where these divide.
pub(super) fn shard(operator: &Operator, members: u64, sequence: bool) -> Work {
    let mut work = operator.work.clone();
    if members == 1 {
        return work;
    }
    let part = |of: &mut u64| *of = of.div_ceil(members);
    match (&mut work, operator.cut) {
        (work, Cut::Whole) => {
            if let Some(rows) = rows(work).filter(|rows| sequence && rows.is_multiple_of(members)) {
                part(rows);
            }
        }
        (Work::Linear { outputs, .. } | Work::Convolution { outputs, .. }, Cut::Outputs) => {
            part(outputs);
        }
        (Work::Linear { inputs, .. } | Work::Convolution { inputs, .. }, Cut::Inputs) => {
            part(inputs);
        }
        (Work::Embedding { vocabulary, .. }, _) => part(vocabulary),
        (Work::EmbeddingBag { rows, .. }, Cut::Inputs) => part(rows),
        (Work::EmbeddingBag { width, .. }, _) => part(width),
        (
            Work::Attention {
                heads, kv_heads, ..
            },
            _,
        ) => {
            part(heads);
            part(kv_heads);
        }
        (
            Work::Activation { width, .. }
            | Work::Norm { width, .. }
            | Work::Residual { width, .. }
            | Work::Interaction { width, .. },
            _,
        ) => part(width),
        (Work::Loss { classes, .. }, _) => part(classes),
        (Work::Pool { channels, .. }, _) => part(channels),
        (Work::Linear { .. } | Work::Convolution { .. }, Cut::Between) => {}
    }
    work
}

/// The tokens that an operator goes over, if it goes over tokens.
pub(super) fn rows(work: &mut Work) -> Option<&mut u64> {
    match work {
        Work::Linear { rows, .. }
        | Work::Norm { rows, .. }
        | Work::Activation { rows, .. }
        | Work::Residual { rows, .. }
        | Work::Loss { rows, .. } => Some(rows),
        Work::Embedding { tokens, .. } => Some(tokens),
        _ => None,
    }
}
