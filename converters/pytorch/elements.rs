//! Computes the number and the size of tensor elements.

/// Returns the number of elements of a tensor with the sizes `dims`, or the total over a list of
/// tensors.
pub(super) fn count_tensor_elements(dims: &serde_json::Value) -> u64 {
    let list = dims.as_array().map_or(&[][..], Vec::as_slice);
    if list.iter().any(serde_json::Value::is_array) {
        return list
            .iter()
            .map(count_tensor_elements)
            .fold(0, u64::saturating_add);
    }
    let sizes = list.iter().map(|size| size.as_u64().unwrap_or(0));
    sizes.fold(1, u64::saturating_mul)
}

/// Returns the bytes per element of the C++ type `name`, or `None` if the name is not an element
/// type.
pub(super) fn element_bytes_of_cpp_type(name: &str) -> Option<u64> {
    let plain = name.trim_start_matches("c10::");
    Some(match plain {
        "bool" | "unsigned char" | "signed char" | "char" | "quint8" | "qint8" => 1,
        "short" | "short int" | "unsigned short" | "uint16_t" | "Half" | "BFloat16" => 2,
        "int" | "float" | "unsigned int" | "uint32_t" | "qint32" | "complex<Half>" => 4,
        "long" | "long int" | "long long" | "unsigned long" | "uint64_t" | "double"
        | "complex<float>" => 8,
        "complex<double>" => 16,
        // For types that pack two values into a byte, each pair counts as one element.
        _ if plain.starts_with("Float8") || plain.starts_with("Float4") => 1,
        _ => return None,
    })
}
