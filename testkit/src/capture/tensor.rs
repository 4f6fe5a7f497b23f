//! Arguments of operators, in the notation of the host file and of Kineto's file.

use std::fmt::Write;

/// The number format of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Float,
    Double,
}

impl Kind {
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Float => 4,
            Self::Double => 8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Double => "double",
        }
    }
}

/// A tensor of a step's program. In a run, the writer replaces `slot` by ids.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub slot: u32,
    pub kind: Kind,
    pub shape: Vec<u64>,
    pub strides: Vec<u64>,
    /// Offset of the tensor in its storage, in elements.
    pub offset: u64,
    /// `true` if the tensor is in host memory even in a job with GPUs.
    pub host: bool,
}

impl Tensor {
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.elements() * self.kind.bytes()
    }
}

/// Returns the strides of a contiguous tensor of this shape.
pub(super) fn dense(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    strides
}

/// An argument or a result of an operator.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg<'a> {
    Tensor(&'a Tensor),
    Tensors(&'a [&'a Tensor]),
    Int(i64),
    Ints(&'a [u64]),
    Bool(bool),
    Bools(usize),
    /// A number as text, in the notations of the host file and of Kineto's file.
    Double(&'a str, &'a str),
    None,
    Device,
    Text(&'a str),
    Pair(&'a str, &'a str),
    /// An integer that increases from step to step.
    Number,
    Object,
}

/// Placeholder in a text for the two ids of the next tensor.
pub(super) const TENSOR: char = '\u{1}';
/// Placeholder in a text for the integer that increases from step to step.
pub(super) const NUMBER: char = '\u{2}';

/// Function that writes one argument. Its last parameter is the device's name.
type Render = fn(&mut String, &Arg<'_>, &str);

/// Writes the four lists that describe a host node's inputs or outputs. Appends their slots to `slots`.
pub(super) fn host(out: &mut String, args: &[Arg<'_>], device: &str, slots: &mut Vec<u32>) {
    let lists: [(&str, Render); 4] = [
        ("{\"values\": ", value),
        (", \"shapes\": ", |out, arg, _| {
            sizes(out, arg, |t| &t.shape)
        }),
        (", \"types\": ", |out, arg, _| {
            out.push('"');
            type_name(out, arg);
            out.push('"');
        }),
        (", \"strides\": ", |out, arg, _| {
            sizes(out, arg, |t| &t.strides);
        }),
    ];
    for (title, render) in lists {
        out.push_str(title);
        list(out, args, ",", |out, arg| render(out, arg, device));
    }
    out.push('}');
    for arg in args {
        match arg {
            Arg::Tensor(tensor) => slots.push(tensor.slot),
            Arg::Tensors(tensors) => slots.extend(tensors.iter().map(|t| t.slot)),
            _ => {}
        }
    }
}

/// Writes Kineto's description of the inputs.
pub(super) fn kineto(out: &mut String, args: &[Arg<'_>]) {
    out.push_str("\"Concrete Inputs\": ");
    list(out, args, ", ", |out, arg| {
        out.push('"');
        concrete(out, arg);
        out.push('"');
    });
    out.push_str(", \"Input type\": ");
    list(out, args, ", ", |out, arg| {
        let name = match arg {
            Arg::Tensor(tensor) => tensor.kind.name(),
            Arg::Tensors(_) => "TensorList",
            Arg::Int(_) | Arg::Bool(_) | Arg::Double(..) | Arg::Number => "Scalar",
            Arg::Ints(_) | Arg::Bools(_) => "ScalarList",
            _ => "",
        };
        write!(out, "\"{name}\"").expect("a string grows");
    });
    out.push_str(", \"Input Strides\": ");
    list(out, args, ", ", |out, arg| {
        extents(out, arg, |t| &t.strides)
    });
    out.push_str(", \"Input Dims\": ");
    list(out, args, ", ", |out, arg| extents(out, arg, |t| &t.shape));
}

fn list<T>(out: &mut String, items: &[T], between: &str, render: impl Fn(&mut String, &T)) {
    out.push('[');
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(between);
        }
        render(out, item);
    }
    out.push(']');
}

fn numbers(out: &mut String, values: &[u64], between: &str) {
    list(out, values, between, |out, value| {
        write!(out, "{value}").expect("a string grows");
    });
}

fn value(out: &mut String, arg: &Arg<'_>, device: &str) {
    let tensor = |out: &mut String, t: &Tensor| {
        let place = if t.host { "cpu" } else { device };
        let (offset, count, size) = (t.offset, t.elements(), t.kind.bytes());
        write!(out, "[{TENSOR},{offset},{count},{size},\"{place}\"]").expect("a string grows");
    };
    match *arg {
        Arg::Tensor(t) => tensor(out, t),
        Arg::Tensors(tensors) => list(out, tensors, ",", |out, t| tensor(out, t)),
        Arg::Int(number) => write!(out, "{number}").expect("a string grows"),
        Arg::Ints(values) => numbers(out, values, ","),
        Arg::Bool(yes) => out.push_str(if yes { "true" } else { "false" }),
        Arg::Bools(count) => list(out, &vec![true; count], ",", |out, _| out.push_str("true")),
        Arg::Double(text, _) => out.push_str(text),
        Arg::None => out.push_str("\"<None>\""),
        Arg::Object => out.push_str("\"<Object>\""),
        Arg::Device => write!(out, "\"{device}\"").expect("a string grows"),
        Arg::Text(text) => write!(out, "\"{text}\"").expect("a string grows"),
        Arg::Pair(a, b) => write!(out, "[\"{a}\",\"{b}\"]").expect("a string grows"),
        Arg::Number => out.push(NUMBER),
    }
}

fn type_name(out: &mut String, arg: &Arg<'_>) {
    let mut generic = |name: &str, count: usize| {
        write!(out, "GenericList[{}]", vec![name; count].join(",")).expect("a string grows");
    };
    match *arg {
        Arg::Tensor(t) => write!(out, "Tensor({})", t.kind.name()).expect("a string grows"),
        Arg::Tensors(tensors) => {
            let name = format!(
                "Tensor({})",
                tensors.first().map_or("float", |t| t.kind.name())
            );
            generic(&name, tensors.len());
        }
        Arg::Ints(values) => generic("Int", values.len()),
        Arg::Bools(count) => generic("Bool", count),
        Arg::Int(_) | Arg::Number => out.push_str("Int"),
        Arg::Bool(_) => out.push_str("Bool"),
        Arg::Double(..) => out.push_str("Double"),
        Arg::None => out.push_str("None"),
        Arg::Object => out.push_str("Object"),
        Arg::Device => out.push_str("Device"),
        Arg::Text(_) => out.push_str("String"),
        Arg::Pair(..) => out.push_str("Tuple[String,String]"),
    }
}

/// Writes shapes or strides for the host file, in which a list of scalars has an empty list for each
/// scalar.
fn sizes(out: &mut String, arg: &Arg<'_>, of: fn(&Tensor) -> &[u64]) {
    let empty =
        |out: &mut String, count| list(out, &vec![(); count], ",", |out, ()| out.push_str("[]"));
    match *arg {
        Arg::Tensor(t) => numbers(out, of(t), ","),
        Arg::Tensors(tensors) => list(out, tensors, ",", |out, t| numbers(out, of(t), ",")),
        Arg::Ints(values) => empty(out, values.len()),
        Arg::Bools(count) => empty(out, count),
        Arg::Pair(..) => empty(out, 2),
        _ => out.push_str("[]"),
    }
}

/// Writes shapes or strides for Kineto's file.
fn extents(out: &mut String, arg: &Arg<'_>, of: fn(&Tensor) -> &[u64]) {
    match *arg {
        Arg::Tensor(t) => numbers(out, of(t), ", "),
        Arg::Tensors(tensors) => list(out, tensors, ", ", |out, t| numbers(out, of(t), ", ")),
        _ => out.push_str("[]"),
    }
}

fn concrete(out: &mut String, arg: &Arg<'_>) {
    match *arg {
        Arg::Int(number) => write!(out, "{number}").expect("a string grows"),
        Arg::Ints(values) => numbers(out, values, ", "),
        Arg::Bool(yes) => out.push_str(if yes { "True" } else { "False" }),
        Arg::Bools(count) => list(out, &vec![true; count], ", ", |out, _| out.push_str("True")),
        Arg::Double(_, text) => out.push_str(text),
        Arg::Number => out.push(NUMBER),
        _ => {}
    }
}
