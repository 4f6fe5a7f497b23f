//! Builds host nodes from the operators in the Kineto trace, for a capture without a host trace.
//!
//! Kineto records names, shapes, types and scalar values, but no outputs and no storages. Output shapes are therefore
//! derived from input shapes, and the uses of results are inferred only from times.

use super::call_names::{comm_kind_of_interval, comm_kind_of_operator};
use super::elements::{count_tensor_elements, element_bytes_of_cpp_type};
use super::event_links::{HostKinetoMatchMethod, KinetoEventHostNodeMap};
use super::host::{HostNode, HostTrace, NONE, RawCommOperatorArgs, SharedOperatorProperties};
use super::kineto::{EventCategory, KinetoTrace, SharedEventProperties};
use super::output_shapes;
use chakram_trace::graph::{DistinctKeyInterner, StringArenaInterner};
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Builds a host trace from the operators and annotations of `kineto`. `order` contains the indices of these events in
/// any order. All of them must have record function ids.
pub(super) fn build_host_trace_from_kineto_events(
    kineto: &KinetoTrace,
    mut order: Vec<u32>,
) -> (HostTrace, KinetoEventHostNodeMap) {
    order.sort_by_key(|&i| {
        let event = &kineto.events[i as usize];
        (event.rf_id, event.start_ns, Reverse(event.duration_ns), i)
    });
    let mut host = HostTrace {
        texts: kineto.texts.clone(),
        ..HostTrace::default()
    };
    let none = host.texts.intern_name("[]").unwrap_or(0);
    let mut link = KinetoEventHostNodeMap::without_links(kineto.events.len());
    link.method = HostKinetoMatchMethod::KinetoAlone;
    host.nodes.reserve_exact(order.len());
    let carriers = find_events_executing_comm_operators(kineto, &order);
    let mut outputs = OutputShapeCache::default();
    let mut forms = DistinctKeyInterner::default();
    for &i in &order {
        let event = &kineto.events[i as usize];
        let mut args = NONE;
        if let Some(kept) = kineto.args_of_event(event)
            && comm_kind_of_operator(kineto.texts.get(event.name)).is_some()
        {
            args = host.args.len() as u32;
            let carrier = carriers.get(&i).and_then(|&carrier| {
                CommTensorElementsAndType::from_executing_event(kineto, carrier)
            });
            host.args.push(format_comm_arguments_like_host_trace(
                kept,
                carrier.as_ref(),
            ));
        }
        let text = |index| if index == NONE { none } else { index };
        let details = kineto.details_of_event(event);
        let (shapes_out, bytes_out) = match event.category {
            EventCategory::CpuOp => {
                outputs.output_shapes_and_bytes_of_event(kineto, i, &mut host.texts)
            }
            _ => None,
        }
        .unwrap_or((none, 0));
        link.host_of[i as usize] = host.nodes.len() as u32;
        host.nodes.push(HostNode {
            name: event.name,
            tid: event.track,
            form: forms.intern_key(SharedOperatorProperties {
                scope: if event.category == EventCategory::CpuOp {
                    0
                } else {
                    7
                },
                op_schema: none,
                shapes_in: text(details.shapes),
                types_in: text(details.types),
                shapes_out,
                types_out: none,
                values: text(details.values),
                bytes_in: details.bytes_in,
                bytes_out,
            }),
            args,
        });
    }
    host.forms = forms.into_keys();
    link.linked = host.nodes.len() as u64;
    (host, link)
}

/// Cache of output shapes and bytes for each distinct input.
#[derive(Default)]
struct OutputShapeCache {
    operators: DistinctKeyInterner<(u32, u32, u32)>,
    outputs: Vec<Option<(u32, u64)>>,
}

impl OutputShapeCache {
    /// Returns the index of the output shapes in `texts`, and the bytes of the outputs.
    fn output_shapes_and_bytes_of_event(
        &mut self,
        kineto: &KinetoTrace,
        event: u32,
        texts: &mut StringArenaInterner,
    ) -> Option<(u32, u64)> {
        let event = &kineto.events[event as usize];
        let SharedEventProperties { shapes, types, .. } = *kineto.details_of_event(event);
        let key = (event.name, shapes, types);
        let concrete = kineto.args_of_event(event);
        let operator = self.operators.intern_key(key) as usize;
        if let Some(known) = self.outputs.get(operator).filter(|_| concrete.is_none()) {
            return *known;
        }
        let found = (shapes != NONE && types != NONE).then(|| {
            let parse = |text: &str| serde_json::from_str::<Vec<Value>>(text).unwrap_or_default();
            let dims = parse(kineto.texts.get(shapes));
            let concrete =
                concrete.map(|args| parse_json_list_of_argument_key(args, "Concrete Inputs"));
            let name = kineto.texts.get(event.name);
            let shape = output_shapes::output_shape(name, &dims, &concrete.unwrap_or_default())?;
            let types = kineto.texts.get(types);
            // The output is assumed to have the element type of the first input tensor.
            let (_, rest) = types.split_once("Tensor(")?;
            let size = element_bytes_of_cpp_type(rest.split_once(')')?.0)?;
            let elements = shape
                .iter()
                .fold(1, |product: u64, &n| product.saturating_mul(n));
            let text = texts.intern_name(&format!("[{shape:?}]"))?;
            Some((text, elements.saturating_mul(size)))
        });
        let found = found.flatten();
        match self.outputs.get_mut(operator) {
            Some(known) => *known = found,
            None => self.outputs.push(found),
        }
        found
    }
}

/// Returns, for each communication operator, the event that executes it: the first event of the same kind with a higher
/// id.
fn find_events_executing_comm_operators(kineto: &KinetoTrace, order: &[u32]) -> BTreeMap<u32, u32> {
    /// Maximum number of events searched after an operator.
    const NEAR: usize = 64;
    let mut found = BTreeMap::new();
    let name = |i: u32| kineto.texts.get(kineto.events[i as usize].name);
    for (place, &i) in order.iter().enumerate() {
        let Some(kind) = comm_kind_of_operator(name(i)) else {
            continue;
        };
        let near = order[place + 1..].iter().take(NEAR);
        let mut fitting = near.filter(|&&other| {
            comm_kind_of_interval(name(other))
                .is_some_and(|carrier| kind.can_be_executed_by_interval(carrier))
        });
        if let Some(&carrier) = fitting.next() {
            found.insert(i, carrier);
        }
    }
    found
}

/// A tensor that an event transfers.
struct CommTensorElementsAndType {
    elements: u64,
    dtype: String,
}

impl CommTensorElementsAndType {
    fn from_executing_event(kineto: &KinetoTrace, carrier: u32) -> Option<Self> {
        let args = kineto.args_of_event(&kineto.events[carrier as usize])?;
        let (dims, types) = (
            parse_json_list_of_argument_key(args, "Input Dims"),
            parse_json_list_of_argument_key(args, "Input type"),
        );
        let sizes = dims.iter().map(count_tensor_elements);
        Some(Self {
            elements: sizes.fold(0, u64::saturating_add),
            dtype: types.first()?.as_str()?.to_owned(),
        })
    }
}

fn parse_json_list_of_argument_key(args: &[(String, String)], key: &str) -> Vec<Value> {
    let found = args.iter().find(|(name, _)| name == key);
    let parsed = found.and_then(|(_, text)| serde_json::from_str(text).ok());
    parsed.unwrap_or_default()
}

/// Returns the arguments of a communication operator in the host trace's notation.
fn format_comm_arguments_like_host_trace(
    args: &[(String, String)],
    carrier: Option<&CommTensorElementsAndType>,
) -> RawCommOperatorArgs {
    let (dims, types) = (
        parse_json_list_of_argument_key(args, "Input Dims"),
        parse_json_list_of_argument_key(args, "Input type"),
    );
    let concrete = parse_json_list_of_argument_key(args, "Concrete Inputs");
    let (mut values, mut kinds) = (Vec::new(), Vec::new());
    for (i, kind) in types.iter().enumerate() {
        let kind = kind.as_str().unwrap_or("");
        let dims = dims.get(i).unwrap_or(&Value::Null);
        if let Some(size) = element_bytes_of_cpp_type(kind) {
            values.push(json_of_tensor_without_storage(
                count_tensor_elements(dims),
                size,
            ));
            kinds.push(format!("Tensor({kind})"));
        } else if kind == "TensorList" {
            let dtype = carrier.map_or("", |carrier| &carrier.dtype);
            let size = element_bytes_of_cpp_type(dtype).unwrap_or(0);
            let tensors = dims.as_array().map_or(&[][..], Vec::as_slice);
            let listed = tensors
                .iter()
                .map(|dims| json_of_tensor_without_storage(count_tensor_elements(dims), size));
            let mut listed: Vec<Value> = listed.collect();
            // Before 2024, profilers wrote no tensor lists. So take the tensor from the event that
            // executed the call.
            if let (true, Some(carrier)) = (listed.is_empty(), carrier) {
                listed.push(json_of_tensor_without_storage(carrier.elements, size));
            }
            values.push(Value::from(listed));
            kinds.push(format!("GenericList[Tensor({dtype})]"));
        } else {
            let text = concrete.get(i).and_then(Value::as_str).unwrap_or("");
            values.push(python_scalar_to_json(text));
            kinds.push(if kind.is_empty() { "Object" } else { kind }.to_owned());
        }
    }
    RawCommOperatorArgs {
        inputs: Value::from(values).to_string(),
        input_types: Value::from(kinds).to_string(),
        input_shapes: Value::from(dims).to_string(),
        outputs: "[]".to_owned(),
        attrs: Vec::new(),
    }
}

/// Returns a tensor without storage in the host trace's notation.
fn json_of_tensor_without_storage(elements: u64, size: u64) -> Value {
    let zero = Value::from(0);
    let [elements, size] = [elements, size].map(Value::from);
    Value::from(vec![
        zero.clone(),
        zero.clone(),
        zero,
        elements,
        size,
        "".into(),
    ])
}

/// Converts a scalar from Python's notation to JSON.
fn python_scalar_to_json(text: &str) -> Value {
    match text {
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        _ => serde_json::from_str(text).unwrap_or_else(|_| Value::from("<Object>")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_those_that_the_observer_would_have_written() {
        let arg = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let args = [
            arg("Input Dims", "[[[64,2]],[],[],[]]"),
            arg("Input type", r#"["TensorList","","Scalar","Scalar"]"#),
            arg("Concrete Inputs", r#"["","","1","True"]"#),
        ];
        let carrier = CommTensorElementsAndType {
            elements: 7,
            dtype: "c10::Half".to_owned(),
        };
        let made = format_comm_arguments_like_host_trace(&args, Some(&carrier));
        // The tensor has 64·2 half-precision elements.
        assert_eq!(made.inputs, r#"[[[0,0,0,128,2,""]],"<Object>",1,true]"#);
        let empty = [
            arg("Input Dims", "[[]]"),
            arg("Input type", r#"["TensorList"]"#),
        ];
        let made = format_comm_arguments_like_host_trace(&empty, Some(&carrier));
        assert_eq!(made.inputs, r#"[[[0,0,0,7,2,""]]]"#);
        assert_eq!(made.input_types, r#"["GenericList[Tensor(c10::Half)]"]"#);
    }
}
