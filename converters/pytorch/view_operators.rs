//! Operators that look at a tensor's memory in another way, and compute nothing.

/// Their names, without `aten::`.
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

/// Returns whether the operator `name` only looks at memory in another way.
pub(super) fn is_view(name: &str) -> bool {
    let name = name.strip_prefix("aten::");
    name.is_some_and(|name| VIEWS.binary_search(&name).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found() {
        assert!(VIEWS.is_sorted());
        assert!(VIEWS.iter().all(|name| is_view(&format!("aten::{name}"))));
        assert!(!is_view("aten::mm") && !is_view("view"));
    }
}
