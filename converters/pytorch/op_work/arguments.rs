//! Parses an operator's arguments: shapes, element types, and values of scalars.

use crate::pytorch::elements::{count_tensor_elements, element_bytes_of_cpp_type};
use serde_json::Value;

/// Arguments of an operator, if the capture contains them.
#[derive(Debug, Default)]
pub(in crate::pytorch) struct OperatorArguments {
    pub args: Vec<OperatorArgument>,
    /// Shapes of the results, which are estimated if no observer recorded them.
    pub outputs: Vec<Vec<u64>>,
    /// True if the shapes of the results were recorded.
    pub outputs_recorded: bool,
    /// Values of scalar arguments, by position. A value is empty if the argument is not a scalar or its value is
    /// unknown.
    values: Vec<String>,
}

/// An argument of an operator.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::pytorch) struct OperatorArgument {
    /// Sizes of a tensor; empty for numbers and lists of tensors.
    pub shape: Vec<u64>,
    /// Number of elements in all tensors of a list; 0 for other arguments.
    pub listed: u64,
    /// Bytes per element, or `None` if the argument is not a tensor.
    pub element: Option<u64>,
    /// True if the elements are integers, such as indices.
    pub integer: bool,
}

impl OperatorArgument {
    /// Returns the number of elements of the tensor.
    pub fn element_count(&self) -> Option<u64> {
        element_count(&self.shape)
    }

    /// Returns the tensor's size in bytes; 0 for other arguments.
    pub fn byte_count(&self) -> Option<u64> {
        match self.element {
            Some(size) => self.element_count()?.checked_mul(size),
            None => Some(0),
        }
    }
}

impl OperatorArguments {
    /// Parses the arguments. Shapes and types are in Python's notation; `values` is a JSON list.
    pub fn new(shapes_in: &str, types_in: &str, shapes_out: &str, values: &str) -> Self {
        // Only type names are in quotes, so every other part is a type name.
        let types: Vec<&str> = types_in.split('\'').skip(1).step_by(2).collect();
        let shaped = parse_json_list_or_empty(shapes_in);
        let arg = |(i, shape): (usize, &Value)| {
            let of_tensor = types.get(i).and_then(|name| name.strip_prefix("Tensor("));
            let element = of_tensor.and_then(|name| name.strip_suffix(')'));
            let nested = shape
                .as_array()
                .is_some_and(|s| s.iter().any(Value::is_array));
            OperatorArgument {
                shape: shape_of_json_argument(shape),
                listed: if nested {
                    count_tensor_elements(shape)
                } else {
                    0
                },
                element: element.and_then(element_bytes_of_cpp_type),
                integer: element
                    .is_some_and(|name| name.ends_with("int") || name.starts_with("long")),
            }
        };
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        Self {
            args: shaped.iter().enumerate().map(arg).collect(),
            outputs: parse_json_list_or_empty(shapes_out)
                .iter()
                .map(shape_of_json_argument)
                .collect(),
            outputs_recorded: false,
            values: parse_json_list_or_empty(values).iter().map(text).collect(),
        }
    }

    /// Returns the argument at `place`, or `None` if there are fewer arguments.
    pub fn argument_at(&self, place: usize) -> Option<&OperatorArgument> {
        self.args.get(place)
    }

    /// Returns the sizes of the tensor at `place`; empty for other arguments.
    pub fn shape_at(&self, place: usize) -> &[u64] {
        self.args.get(place).map_or(&[], |arg| &arg.shape)
    }

    /// Returns the first result's number of elements.
    pub fn element_count_of_first_output(&self) -> Option<u64> {
        element_count(self.outputs.first()?)
    }

    /// Returns the number at `place`, or `None` if unknown.
    pub fn number_at(&self, place: usize) -> Option<i64> {
        self.values.get(place)?.parse().ok()
    }

    /// Returns the flag at `place`, or `None` if unknown.
    pub fn flag_at(&self, place: usize) -> Option<bool> {
        match &**self.values.get(place)? {
            "True" | "true" => Some(true),
            "False" | "false" => Some(false),
            number => number.parse::<i64>().ok().map(|number| number != 0),
        }
    }

    /// Returns the list of flags at `place`, or `None` if unknown.
    pub fn flags_at(&self, place: usize) -> Option<Vec<bool>> {
        let text = self.values.get(place)?.to_ascii_lowercase();
        serde_json::from_str(&text).ok()
    }
}

/// Returns the number of elements of a tensor with this shape, or `None` on overflow.
pub(super) fn element_count(shape: &[u64]) -> Option<u64> {
    shape
        .iter()
        .try_fold(1_u64, |product, &n| product.checked_mul(n))
}

fn parse_json_list_or_empty(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap_or_default()
}

/// Returns the sizes of a tensor; empty for a scalar and for a list of tensors.
fn shape_of_json_argument(argument: &Value) -> Vec<u64> {
    let sizes = argument.as_array().map_or(&[][..], |list| &list[..]);
    let sizes: Option<Vec<u64>> = sizes.iter().map(Value::as_u64).collect();
    sizes.unwrap_or_default()
}

/// Returns the scalar values among `inputs`, an observer's JSON list, in Kineto's notation. Tensors and lists
/// become empty texts.
pub(in crate::pytorch) fn observer_inputs_to_kineto_scalar_values(inputs: &str) -> String {
    let word = |value: Value| match value {
        Value::Array(list) if !list.iter().all(Value::is_boolean) => Value::from(""),
        Value::Array(list) => Value::from(Value::from(list).to_string()),
        Value::Object(_) => Value::from(""),
        scalar => scalar,
    };
    let words: Vec<Value> = parse_json_list_or_empty(inputs)
        .into_iter()
        .map(word)
        .collect();
    Value::from(words).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_shapes_types_and_values() {
        let operands = OperatorArguments::new(
            "[[4, 8], [3], [], [[2], [2, 5]]]",
            "['Tensor(c10::Half)', 'Tensor(long int)', 'Scalar', 'TensorList']",
            "[[3, 8]]",
            r#"["", "", "-1", ""]"#,
        );
        let [table, index, scalar, list] = &operands.args[..] else {
            panic!("{operands:?}")
        };
        assert_eq!((table.byte_count(), table.integer), (Some(64), false));
        assert_eq!((index.byte_count(), index.integer), (Some(24), true));
        assert_eq!((scalar.byte_count(), list.listed), (Some(0), 12));
        assert_eq!(operands.number_at(2), Some(-1));
        assert_eq!(operands.number_at(0), None);
        assert_eq!(operands.element_count_of_first_output(), Some(24));
    }

    #[test]
    fn values_of_an_observer_are_those_of_the_profiler() {
        let values = observer_inputs_to_kineto_scalar_values(
            r#"[[1, 2, 0, 8, 2, "cuda:0"], 8192, true, "<None>", [true, false], 0.5]"#,
        );
        assert_eq!(values, r#"["",8192,true,"<None>","[true,false]",0.5]"#);
        let operands = OperatorArguments::new("[]", "[]", "[]", &values);
        assert_eq!(
            (operands.number_at(1), operands.flag_at(2)),
            (Some(8192), Some(true))
        );
        assert_eq!(operands.flags_at(4), Some(vec![true, false]));
        assert_eq!(operands.flag_at(3), None);
        let operands =
            OperatorArguments::new("[]", "[]", "[]", r#"["False", "[True, False]", "2"]"#);
        assert_eq!(operands.flag_at(0), Some(false));
        assert_eq!(operands.flags_at(1), Some(vec![true, false]));
        assert_eq!(operands.flag_at(2), Some(true));
    }
}
