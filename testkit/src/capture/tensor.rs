//! Writes operators' arguments in two notations, one for the host file and one for Kineto's file.

use std::fmt::Write;

/// The number format of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloatOrDoubleElement {
    Float,
    Double,
}

impl FloatOrDoubleElement {
    pub(super) fn element_bytes(self) -> u64 {
        match self {
            Self::Float => 4,
            Self::Double => 8,
        }
    }

    fn kind_name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Double => "double",
        }
    }
}

/// A tensor of a step's program. When the program runs, the writer replaces the tensor's `slot` (its index in the
/// program) with ids.
#[derive(Clone, Debug)]
pub(super) struct ProgramTensor {
    pub slot: u32,
    pub kind: FloatOrDoubleElement,
    pub shape: Vec<u64>,
    pub strides: Vec<u64>,
    /// Offset of the tensor in its storage, in elements.
    pub offset: u64,
    /// `true` if the tensor is in host memory, even in a job with GPUs.
    pub host: bool,
}

impl ProgramTensor {
    pub(super) fn element_count(&self) -> u64 {
        self.shape.iter().product()
    }

    pub(super) fn byte_count(&self) -> u64 {
        self.element_count() * self.kind.element_bytes()
    }
}

/// Returns the strides (in elements) of a contiguous tensor with this shape.
pub(super) fn dense_strides(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    strides
}

/// An argument or a result of an operator.
#[derive(Clone, Copy, Debug)]
pub(super) enum OperatorOperand<'a> {
    Tensor(&'a ProgramTensor),
    Tensors(&'a [&'a ProgramTensor]),
    Int(i64),
    Ints(&'a [u64]),
    Bool(bool),
    Bools(usize),
    /// A number as text, once for the host file and once for Kineto's file.
    Double(&'a str, &'a str),
    None,
    Device,
    Text(&'a str),
    Pair(&'a str, &'a str),
    /// An integer that grows from step to step.
    Number,
    Object,
}

/// Placeholder in a text for the two ids (of tensor and storage) of the next tensor.
pub(super) const TENSOR: char = '\u{1}';
/// Placeholder in a text for the integer that grows from step to step.
pub(super) const NUMBER: char = '\u{2}';

/// Function that writes one argument. The function's last parameter is the device's name.
type ArgumentWriter = fn(&mut String, &OperatorOperand<'_>, &str);

/// Writes the four lists that describe a host node's inputs or outputs. Appends the slots of the
/// tensors to `slots`.
pub(super) fn write_host_lists(
    out: &mut String,
    args: &[OperatorOperand<'_>],
    device: &str,
    slots: &mut Vec<u32>,
) {
    let lists: [(&str, ArgumentWriter); 4] = [
        ("{\"values\": ", write_host_operand_value),
        (", \"shapes\": ", |out, arg, _| {
            write_host_shape_or_strides(out, arg, |t| &t.shape)
        }),
        (", \"types\": ", |out, arg, _| {
            out.push('"');
            write_host_type_name(out, arg);
            out.push('"');
        }),
        (", \"strides\": ", |out, arg, _| {
            write_host_shape_or_strides(out, arg, |t| &t.strides);
        }),
    ];
    for (title, render) in lists {
        out.push_str(title);
        write_list(out, args, ",", |out, arg| render(out, arg, device));
    }
    out.push('}');
    for arg in args {
        match arg {
            OperatorOperand::Tensor(tensor) => slots.push(tensor.slot),
            OperatorOperand::Tensors(tensors) => slots.extend(tensors.iter().map(|t| t.slot)),
            _ => {}
        }
    }
}

/// Writes Kineto's description of the inputs.
pub(super) fn write_kineto_operator_inputs(out: &mut String, args: &[OperatorOperand<'_>]) {
    out.push_str("\"Concrete Inputs\": ");
    write_list(out, args, ", ", |out, arg| {
        out.push('"');
        write_concrete_input(out, arg);
        out.push('"');
    });
    out.push_str(", \"Input type\": ");
    write_list(out, args, ", ", |out, arg| {
        let name = match arg {
            OperatorOperand::Tensor(tensor) => tensor.kind.kind_name(),
            OperatorOperand::Tensors(_) => "TensorList",
            OperatorOperand::Int(_)
            | OperatorOperand::Bool(_)
            | OperatorOperand::Double(..)
            | OperatorOperand::Number => "Scalar",
            OperatorOperand::Ints(_) | OperatorOperand::Bools(_) => "ScalarList",
            _ => "",
        };
        write!(out, "\"{name}\"").expect("a string grows");
    });
    out.push_str(", \"Input Strides\": ");
    write_list(out, args, ", ", |out, arg| {
        write_kineto_shape_or_strides(out, arg, |t| &t.strides)
    });
    out.push_str(", \"Input Dims\": ");
    write_list(out, args, ", ", |out, arg| {
        write_kineto_shape_or_strides(out, arg, |t| &t.shape)
    });
}

fn write_list<T>(out: &mut String, items: &[T], between: &str, render: impl Fn(&mut String, &T)) {
    out.push('[');
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(between);
        }
        render(out, item);
    }
    out.push(']');
}

fn write_numbers(out: &mut String, values: &[u64], between: &str) {
    write_list(out, values, between, |out, value| {
        write!(out, "{value}").expect("a string grows");
    });
}

fn write_host_operand_value(out: &mut String, arg: &OperatorOperand<'_>, device: &str) {
    let tensor = |out: &mut String, t: &ProgramTensor| {
        let place = if t.host { "cpu" } else { device };
        let (offset, count, size) = (t.offset, t.element_count(), t.kind.element_bytes());
        write!(out, "[{TENSOR},{offset},{count},{size},\"{place}\"]").expect("a string grows");
    };
    match *arg {
        OperatorOperand::Tensor(t) => tensor(out, t),
        OperatorOperand::Tensors(tensors) => write_list(out, tensors, ",", |out, t| tensor(out, t)),
        OperatorOperand::Int(number) => write!(out, "{number}").expect("a string grows"),
        OperatorOperand::Ints(values) => write_numbers(out, values, ","),
        OperatorOperand::Bool(yes) => out.push_str(if yes { "true" } else { "false" }),
        OperatorOperand::Bools(count) => {
            write_list(out, &vec![true; count], ",", |out, _| out.push_str("true"))
        }
        OperatorOperand::Double(text, _) => out.push_str(text),
        OperatorOperand::None => out.push_str("\"<None>\""),
        OperatorOperand::Object => out.push_str("\"<Object>\""),
        OperatorOperand::Device => write!(out, "\"{device}\"").expect("a string grows"),
        OperatorOperand::Text(text) => write!(out, "\"{text}\"").expect("a string grows"),
        OperatorOperand::Pair(a, b) => write!(out, "[\"{a}\",\"{b}\"]").expect("a string grows"),
        OperatorOperand::Number => out.push(NUMBER),
    }
}

fn write_host_type_name(out: &mut String, arg: &OperatorOperand<'_>) {
    let mut generic = |name: &str, count: usize| {
        write!(out, "GenericList[{}]", vec![name; count].join(",")).expect("a string grows");
    };
    match *arg {
        OperatorOperand::Tensor(t) => {
            write!(out, "Tensor({})", t.kind.kind_name()).expect("a string grows")
        }
        OperatorOperand::Tensors(tensors) => {
            let name = format!(
                "Tensor({})",
                tensors.first().map_or("float", |t| t.kind.kind_name())
            );
            generic(&name, tensors.len());
        }
        OperatorOperand::Ints(values) => generic("Int", values.len()),
        OperatorOperand::Bools(count) => generic("Bool", count),
        OperatorOperand::Int(_) | OperatorOperand::Number => out.push_str("Int"),
        OperatorOperand::Bool(_) => out.push_str("Bool"),
        OperatorOperand::Double(..) => out.push_str("Double"),
        OperatorOperand::None => out.push_str("None"),
        OperatorOperand::Object => out.push_str("Object"),
        OperatorOperand::Device => out.push_str("Device"),
        OperatorOperand::Text(_) => out.push_str("String"),
        OperatorOperand::Pair(..) => out.push_str("Tuple[String,String]"),
    }
}

/// Writes shapes or strides for the host file. In the host file, a list of scalars has an empty
/// list for each scalar.
fn write_host_shape_or_strides(
    out: &mut String,
    arg: &OperatorOperand<'_>,
    of: fn(&ProgramTensor) -> &[u64],
) {
    let empty = |out: &mut String, count| {
        write_list(out, &vec![(); count], ",", |out, ()| out.push_str("[]"))
    };
    match *arg {
        OperatorOperand::Tensor(t) => write_numbers(out, of(t), ","),
        OperatorOperand::Tensors(tensors) => {
            write_list(out, tensors, ",", |out, t| write_numbers(out, of(t), ","))
        }
        OperatorOperand::Ints(values) => empty(out, values.len()),
        OperatorOperand::Bools(count) => empty(out, count),
        OperatorOperand::Pair(..) => empty(out, 2),
        _ => out.push_str("[]"),
    }
}

/// Writes shapes or strides for Kineto's file.
fn write_kineto_shape_or_strides(
    out: &mut String,
    arg: &OperatorOperand<'_>,
    of: fn(&ProgramTensor) -> &[u64],
) {
    match *arg {
        OperatorOperand::Tensor(t) => write_numbers(out, of(t), ", "),
        OperatorOperand::Tensors(tensors) => {
            write_list(out, tensors, ", ", |out, t| write_numbers(out, of(t), ", "))
        }
        _ => out.push_str("[]"),
    }
}

fn write_concrete_input(out: &mut String, arg: &OperatorOperand<'_>) {
    match *arg {
        OperatorOperand::Int(number) => write!(out, "{number}").expect("a string grows"),
        OperatorOperand::Ints(values) => write_numbers(out, values, ", "),
        OperatorOperand::Bool(yes) => out.push_str(if yes { "True" } else { "False" }),
        OperatorOperand::Bools(count) => {
            write_list(out, &vec![true; count], ", ", |out, _| out.push_str("True"))
        }
        OperatorOperand::Double(_, text) => out.push_str(text),
        OperatorOperand::Number => out.push(NUMBER),
        _ => {}
    }
}
