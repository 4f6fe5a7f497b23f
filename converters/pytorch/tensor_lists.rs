//! Computes how many bytes are moved by operators on lists of tensors, such as `aten::cat` and `aten::_foreach_add_`.
//!
//! For a list of tensors, Kineto records the shapes but no element type. The element type is a C++ template argument in
//! the kernel's name. A kernel on tensor lists reads all its input lists, and writes one list as long as the longest of
//! them.

use super::elements::count_tensor_elements;
use serde_json::Value;

/// Names of element types in kernel names, with the bytes per element.
const ELEMENTS: [(&str, u64); 14] = [
    ("OpaqueType<1u>", 1),
    ("OpaqueType<2u>", 2),
    ("OpaqueType<4u>", 4),
    ("OpaqueType<8u>", 8),
    ("OpaqueType<16u>", 16),
    ("BFloat16", 2),
    ("Half", 2),
    ("half", 2),
    ("bfloat16", 2),
    ("Float8", 1),
    ("float", 4),
    ("double", 8),
    ("long", 8),
    ("int", 4),
];

/// Returns the bytes that `kernel` moves for an operator with these input shapes (in Python's
/// notation). Returns `None` if no input is a list of tensors, or if the kernel's name contains no
/// element type.
pub(super) fn bytes_moved_by_tensor_list_kernel(shapes: &str, kernel: &str) -> Option<u64> {
    let arguments: Vec<Value> = serde_json::from_str(shapes).ok()?;
    let is_list = |argument: &&Value| {
        let tensors = argument.as_array().map_or(&[][..], Vec::as_slice);
        tensors.iter().any(Value::is_array)
    };
    let lists = arguments.iter().filter(is_list).map(count_tensor_elements);
    let (all, longest) = lists.fold((0_u64, 0), |(all, longest), one| {
        (all.saturating_add(one), one.max(longest))
    });
    let size = element_bytes_from_kernel_name(kernel).filter(|_| all > 0)?;
    Some(all.saturating_add(longest).saturating_mul(size))
}

/// Returns the size in bytes of the first element type among the C++ template arguments in a kernel's name.
fn element_bytes_from_kernel_name(kernel: &str) -> Option<u64> {
    let (_, arguments) = kernel.split_once('<')?;
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let found = ELEMENTS.iter().filter_map(|&(name, size)| {
        let whole = |&(at, _): &(usize, &str)| {
            let before = arguments[..at].chars().next_back();
            let after = arguments[at + name.len()..].chars().next();
            // `Float8` may continue, as in `Float8_e4m3fn`, but `Int` must not match within
            // `UnsignedInt`.
            !before.is_some_and(word) && (name == "Float8" || !after.is_some_and(word))
        };
        let (at, _) = arguments.match_indices(name).find(whole)?;
        Some((at, size))
    });
    found.min().map(|(_, size)| size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_list_kernel_reads_all_lists_and_writes_one_list() {
        let cat = "void at::native::CatArrayBatchedCopy_contig<at::native::OpaqueType<2u>, unsigned int, 3, 128, 1>(int)";
        // The operator reads and writes 2 · 3 + 4 elements of two bytes each.
        assert_eq!(
            bytes_moved_by_tensor_list_kernel("[[[2, 3], [4]], []]", cat),
            Some(40)
        );
        let add = "multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<float, 2, 2, 0>>";
        // The operator reads two lists of 10 elements and writes one: 30 floats.
        assert_eq!(
            bytes_moved_by_tensor_list_kernel("[[[10]], [[6], [4]], []]", add),
            Some(120)
        );
        // A single tensor is not a list. A name without template arguments reveals no element type.
        assert_eq!(bytes_moved_by_tensor_list_kernel("[[10], []]", add), None);
        assert_eq!(
            bytes_moved_by_tensor_list_kernel("[[[10]]]", "triton_cat_0"),
            None
        );
        assert_eq!(bytes_moved_by_tensor_list_kernel("no list", add), None);
    }

    #[test]
    fn first_element_type_in_kernel_name_gives_size() {
        for (kernel, expected) in [
            ("copy<c10::BFloat16, float>", Some(2)),
            ("copy<float, c10::BFloat16>", Some(4)),
            ("copy<c10::Float8_e4m3fn, float>", Some(1)),
            ("copy<UnsignedInt, floats, long>", Some(8)),
            ("copy<3>", None),
            ("float", None),
        ] {
            assert_eq!(element_bytes_from_kernel_name(kernel), expected, "{kernel}");
        }
    }
}
