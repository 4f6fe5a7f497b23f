//! Converts the shapes and types of an operator's inputs to the host trace's notation.
//!
//! For a tensor, Kineto writes only the element type, `float`. The host trace writes `Tensor(float)`, which
//! all later stages expect.

use crate::pytorch::elements::{count_tensor_elements, element_bytes_of_cpp_type};
use crate::pytorch::python_repr;
use chakram_trace::graph::StringArenaInterner;

/// Inputs of a file's operators; each distinct text is parsed only once.
#[derive(Default)]
pub(super) struct OperatorInputCache {
    shapes: StringArenaInterner,
    types: StringArenaInterner,
    /// For each distinct shape string: its index in the trace's string table, and the number of elements in each
    /// tensor.
    known_shapes: Vec<(u32, Vec<u64>)>,
    /// For each distinct type string: its index in the trace's string table, and the bytes per
    /// element of each tensor.
    known_types: Vec<(u32, Vec<u64>)>,
}

/// Indices of the texts of an operator's shapes and types, and the bytes of all its tensors.
pub(super) struct ShapeAndTypeTextIndicesWithTensorBytes {
    pub shapes: u32,
    pub types: u32,
    pub bytes: u64,
}

impl OperatorInputCache {
    /// Interns the inputs of an event into `texts`. Returns `None` if the table of texts is full.
    pub fn intern_operands(
        &mut self,
        dims: &str,
        types: &str,
        texts: &mut StringArenaInterner,
    ) -> Option<ShapeAndTypeTextIndicesWithTensorBytes> {
        let shape = self.shapes.intern_name(dims)? as usize;
        if shape == self.known_shapes.len() {
            let text = texts.intern_name(&python_repr::json_to_python_text(dims))?;
            self.known_shapes.push((text, element_counts(dims)));
        }
        let kind = self.types.intern_name(types)? as usize;
        if kind == self.known_types.len() {
            let (text, sizes) = host_trace_types_and_element_bytes(types);
            self.known_types.push((texts.intern_name(&text)?, sizes));
        }
        let (shapes, elements) = &self.known_shapes[shape];
        let (types, sizes) = &self.known_types[kind];
        let bytes = elements.iter().zip(sizes);
        let bytes = bytes.map(|(elements, size)| elements.saturating_mul(*size));
        Some(ShapeAndTypeTextIndicesWithTensorBytes {
            shapes: *shapes,
            types: *types,
            bytes: bytes.fold(0, u64::saturating_add),
        })
    }
}

/// Returns the number of elements of each argument; for a list of tensors, the sum over its tensors.
fn element_counts(dims: &str) -> Vec<u64> {
    let value: serde_json::Value = serde_json::from_str(dims).unwrap_or_default();
    let arguments = value.as_array().map_or(&[][..], Vec::as_slice);
    arguments.iter().map(count_tensor_elements).collect()
}

/// Returns the types in the host trace's notation, and the bytes per element of each tensor.
fn host_trace_types_and_element_bytes(types: &str) -> (String, Vec<u64>) {
    let list: Vec<String> = serde_json::from_str(types).unwrap_or_default();
    let sizes = list
        .iter()
        .map(|name| element_bytes_of_cpp_type(name).unwrap_or(0));
    let sizes = sizes.collect();
    let named = list
        .into_iter()
        .map(|name| match element_bytes_of_cpp_type(&name) {
            Some(_) => format!("Tensor({name})"),
            None => name,
        });
    let named: Vec<String> = named.collect();
    let json = serde_json::to_string(&named).unwrap_or_default();
    (python_repr::json_to_python_text(&json), sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operand_shapes_types_and_bytes(dims: &str, types: &str) -> (String, String, u64) {
        let mut texts = StringArenaInterner::default();
        let found = OperatorInputCache::default()
            .intern_operands(dims, types, &mut texts)
            .expect("there is room");
        let text = |number: u32| texts.get(number).to_owned();
        (text(found.shapes), text(found.types), found.bytes)
    }

    #[test]
    fn types_are_those_of_the_host_trace_and_tensors_have_bytes() {
        // The tensors have 4·8 half-precision elements and three 8-byte integers, so they take 4·8·2 + 3·8 = 88 bytes.
        // Scalars, and lists of unknown type, count as zero bytes.
        let (shapes, types, bytes) = operand_shapes_types_and_bytes(
            r#"[[4,8],[],[3],[[2],[2]]]"#,
            r#"["c10::Half","Scalar","long int","TensorList"]"#,
        );
        assert_eq!(shapes, "[[4, 8], [], [3], [[2], [2]]]");
        assert_eq!(
            types,
            "['Tensor(c10::Half)', 'Scalar', 'Tensor(long int)', 'TensorList']"
        );
        assert_eq!(bytes, 88);
    }

    #[test]
    fn tensor_without_dims_has_one_element_and_lists_sum_theirs() {
        assert_eq!(operand_shapes_types_and_bytes("[[]]", r#"["float"]"#).2, 4);
        assert_eq!(element_counts("[[[2,3],[4]],[5]]"), [10, 5]);
    }
}
