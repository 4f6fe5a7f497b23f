//! Operators that return a view of a tensor's memory and compute nothing.

/// Names of view operators, without `aten::`.
const VIEWS: &[&str] = &[
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "as_strided",
    "as_strided_",
    "detach",
    "expand",
    "expand_as",
    "narrow",
    "permute",
    "resolve_conj",
    "resolve_neg",
    "select",
    "slice",
    "squeeze",
    "t",
    "transpose",
    "unsqueeze",
    "view",
    "view_as",
];

/// Further operators that neither read nor write elements. They allocate tensors, change or query their properties, or
/// return several views.
const OTHERS: &[&str] = &[
    "_local_scalar_dense",
    "broadcast_to",
    "chunk",
    "detach_",
    "diagonal",
    "empty",
    "empty_like",
    "empty_strided",
    "flatten",
    "is_nonzero",
    "item",
    "lift_fresh",
    "movedim",
    "new_empty",
    "new_empty_strided",
    "numpy_T",
    "resize_",
    "result_type",
    "set_",
    "split",
    "split_with_sizes",
    "unbind",
];

/// Returns true if an operator only returns a view; `plain` is the operator's name without
/// `aten::`.
pub(super) fn is_view_operator(plain: &str) -> bool {
    VIEWS.binary_search(&plain).is_ok()
}

/// Returns true if the operator `plain` moves no data: it returns a view, or it allocates without
/// writing.
pub(super) fn moves_nothing(plain: &str) -> bool {
    is_view_operator(plain) || OTHERS.binary_search(&plain).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn view_and_no_move_operator_names_are_found_in_sorted_lists() {
        assert!(VIEWS.is_sorted() && OTHERS.is_sorted());
        assert!(
            VIEWS
                .iter()
                .all(|name| is_view_operator(name) && moves_nothing(name))
        );
        assert!(
            OTHERS
                .iter()
                .all(|name| !is_view_operator(name) && moves_nothing(name))
        );
        assert!(!is_view_operator("mm") && !moves_nothing("mm"));
    }
}
