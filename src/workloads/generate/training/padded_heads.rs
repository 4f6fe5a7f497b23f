//! Pads attention heads to a multiple of the tensor degree, so that all members have the same number of whole heads.
//!
//! With `v` KV heads and `a` query heads before padding, `t` members together have `v' = t ⌈v / t⌉` KV heads and `a' =
//! v' ⌈a / v'⌉` query heads. The matrix products before and after attention grow accordingly. If a head has `w`
//! columns, the product before attention has `(a' + 2 v') w` outputs, and the product after attention has `a' w`
//! inputs. Padding is computed and communicated like real heads. Each member therefore takes as long as the fullest
//! member would with unpadded heads.

use crate::generate::plan::ParallelismPlan;
use crate::generate::{PatternOptionError, refused_option_value_error};
use crate::model::{Model, ModelLayer, OperatorKind, OperatorShardAxis};
use std::borrow::Cow;

/// Returns `model`, with padded heads if `plan` requires them.
pub(super) fn pad_heads<'m>(
    model: &'m Model,
    plan: &ParallelismPlan,
) -> Result<Cow<'m, Model>, PatternOptionError> {
    let mut model = Cow::Borrowed(model);
    if plan.pad_heads {
        for layer in &mut model.to_mut().layers {
            pad_layer_heads(layer, plan.tensor.max(1).into())?;
        }
    }
    Ok(model)
}

fn pad_layer_heads(layer: &mut ModelLayer, members: u64) -> Result<(), PatternOptionError> {
    for i in 0..layer.operators.len() {
        let spec = layer.operators[i].work.to_axes_and_tensors();
        if !spec.is_attention() {
            continue;
        }
        let [heads, kv_heads, width] = ['n', 'g', 'w'].map(|letter| spec.extent_of_axis(letter));
        let padded_kv = kv_heads.next_multiple_of(members);
        let padded = heads.next_multiple_of(padded_kv.max(1));
        if (padded, padded_kv) == (heads, kv_heads) {
            continue;
        }
        let columns = |a: u64, v: u64| {
            let all = v.saturating_mul(2).saturating_add(a);
            [all, a].map(|heads| heads.saturating_mul(width))
        };
        let [[qkv, out], [padded_qkv, padded_out]] =
            [columns(heads, kv_heads), columns(padded, padded_kv)];
        let named = layer.operators[i].name.clone();
        for (size, new) in layer.operators[i]
            .work
            .divisible_sizes_mut()
            .into_iter()
            .zip([padded, padded_kv])
        {
            *size.1 = new;
        }
        let mut grow = |at: Option<usize>, axis, from, to| {
            let operator = at.and_then(|at| layer.operators.get_mut(at));
            let size =
                operator.and_then(|one| column_count_mut_of_linear_operator(&mut one.work, axis));
            size.filter(|size| **size == from).map(|size| *size = to)
        };
        let front = grow(i.checked_sub(1), OperatorShardAxis::N, qkv, padded_qkv);
        let behind = grow(Some(i + 1), OperatorShardAxis::K, out, padded_out);
        if front.and(behind).is_none() {
            let expected = format!(
                "false, because {named} of {} has no linear operators with its heads' columns before and after it",
                layer.name
            );
            return Err(refused_option_value_error("pad_heads", "true", expected));
        }
    }
    Ok(())
}

/// Returns a mutable reference to the number of outputs (axis N) or inputs of a linear operator.
fn column_count_mut_of_linear_operator(
    work: &mut OperatorKind,
    axis: OperatorShardAxis,
) -> Option<&mut u64> {
    if !work
        .to_axes_and_tensors()
        .is_matrix_product_without_windows()
    {
        return None;
    }
    let mut sizes = work.divisible_sizes_mut().into_iter();
    sizes.find(|(cut, _)| *cut == axis).map(|(_, size)| size)
}
