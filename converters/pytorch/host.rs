//! The host trace: what operators ran, in which order and in which other operator, with their
//! arguments. It has no times; those come from the device trace.

mod raw;

use super::mend::Layout;
use super::stream::{self, At, Format, integer};
use super::tensors::{Tensor, Type, tensors};
use super::{ProcessGroup, Repair, RepairKind, Repairs, communicates, groups, number, python};
use crate::graph::Names;
use crate::trace::{TraceError, shown};
use raw::{RawNode, Side};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::path::Path;

/// Where there is no index.
pub const NONE: u32 = u32::MAX;

/// A host trace.
#[derive(Debug, Default)]
pub struct HostTrace {
    /// The version that the file states, such as `1.1.1-chakra.0.0.4`.
    pub schema: String,
    /// The nodes in the order of the file: that in which operators ended.
    pub nodes: Vec<HostNode>,
    /// The texts that nodes number.
    pub texts: Names,
    /// The storages that ranges of nodes lie in.
    pub storages: Vec<u64>,
    /// The arguments of communication operators.
    pub args: Vec<CommArgs>,
    /// The process groups that the program had set up.
    pub groups: Vec<ProcessGroup>,
    /// What was repaired.
    pub repairs: Repairs,
    /// The length of the JSON, in bytes.
    pub bytes: u64,
}

/// An operator, or the process or a thread that operators ran in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNode {
    /// Its id. Ids ascend in the order in which operators began.
    pub id: u64,
    /// The id of the node it ran in; the process has its own.
    pub parent: u64,
    /// The number that ties it to the device trace, 0 if there is none.
    pub rf_id: u64,
    /// The sequence number of autograd, −1 if there is none.
    pub seq_id: i64,
    /// The id of the forward operator that it belongs to, 0 if there is none.
    pub fw_parent: u64,
    /// The number of its name in [`HostTrace::texts`].
    pub name: u32,
    /// Its thread, numbered from 1 by the observer.
    pub tid: u32,
    /// The thread of the forward operator, 0 if there is none.
    pub fw_tid: u32,
    /// The kind of range: 0 a function, 1 a backward function, 7 one of the user.
    pub scope: u8,
    /// The number of its signature in [`HostTrace::texts`].
    pub op_schema: u32,
    /// The number of the shapes of its inputs, as Python shows them: `[[4, 3, 64, 64], []]`.
    pub shapes_in: u32,
    /// The number of the types of its inputs, as Python shows them: `['Tensor(float)', 'Int']`.
    pub types_in: u32,
    /// The number of the shapes of its outputs.
    pub shapes_out: u32,
    /// The number of the types of its outputs.
    pub types_out: u32,
    /// The range in [`HostTrace::storages`] of the storages of its input tensors.
    pub storages_in: (u32, u32),
    /// The range in [`HostTrace::storages`] of the storages of its output tensors.
    pub storages_out: (u32, u32),
    /// The bytes of its input tensors, each tensor counted once.
    pub bytes_in: u64,
    /// The bytes of its output tensors, each tensor counted once.
    pub bytes_out: u64,
    /// Its index in [`HostTrace::args`], or [`NONE`].
    pub args: u32,
}

/// The arguments of a communication operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommArgs {
    /// The values of its inputs, a JSON list.
    pub inputs: String,
    /// Their types, a JSON list of strings.
    pub input_types: String,
    /// Their shapes, a JSON list.
    pub input_shapes: String,
    /// The values of its outputs, a JSON list.
    pub outputs: String,
    /// Attributes that not every node has, such as `collective_name` and `pg_name`: strings as they
    /// are, anything else as JSON.
    pub attrs: Vec<(String, String)>,
}

impl HostTrace {
    /// Reads `path`, which may be compressed.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let mut reader = Reader::default();
        reader.trace.bytes = stream::read(path, &mut reader)?;
        Ok(reader.trace)
    }

    /// Reads the contents of a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        let mut reader = Reader::default();
        reader.trace.bytes = stream::read_bytes(bytes, &mut reader)?;
        Ok(reader.trace)
    }
}

/// The trace while it is read.
#[derive(Default)]
struct Reader {
    trace: HostTrace,
    /// Shapes and types as JSON, and the number of each as Python shows it.
    json: Names,
    python: Vec<u32>,
    /// The types as JSON, and what each means.
    types: Names,
    meaning: Vec<Type>,
    /// The tensors of the node at hand.
    tensors: Vec<Tensor>,
}

const OTHER_TOOL: &str = "pass the file that ExecutionTraceObserver wrote, as it is";
const HUGE: &str = "a trace with more than 4 GiB of names cannot be read; capture fewer steps";

/// The values, shapes and types of one side, each a JSON list.
struct Lists<'a> {
    values: Cow<'a, str>,
    shapes: &'a str,
    types: &'a str,
}

impl<'a> Lists<'a> {
    fn new(
        side: &Option<Side<'a>>,
        flat_shapes: Option<&'a RawValue>,
        flat_types: Option<&'a RawValue>,
        at: &At<'a>,
    ) -> Result<Self, TraceError> {
        let list = |raw: Option<&'a RawValue>| raw.map_or("[]", RawValue::get);
        let (values, shapes, types) = match *side {
            None => (Cow::Borrowed("[]"), None, None),
            Some(Side::Nested {
                values,
                shapes,
                types,
            }) => (Cow::Borrowed(list(values)), shapes, types),
            Some(Side::Flat(first_and_last)) => {
                let between = first_and_last.map_or("", |(first, last)| at.between(first, last));
                (Cow::Owned(format!("[{between}]")), flat_shapes, flat_types)
            }
        };
        if types.is_none() && values.as_bytes().iter().any(|b| !b"[] \n".contains(b)) {
            let found = "values without `types`".to_owned();
            return Err(at.refused("", found, OTHER_TOOL));
        }
        Ok(Self {
            values,
            shapes: list(shapes),
            types: list(types),
        })
    }
}

/// What one side of a node comes to.
struct Summary {
    shapes: u32,
    types: u32,
    storages: (u32, u32),
    bytes: u64,
}

impl Reader {
    fn text(&mut self, text: &str, at: &At<'_>) -> Result<u32, TraceError> {
        let number = self.trace.texts.intern(text);
        number.ok_or_else(|| at.refused("", "more names than fit".to_owned(), HUGE))
    }

    /// The number of a JSON text as Python shows it.
    fn python(&mut self, json: &str, at: &At<'_>) -> Result<u32, TraceError> {
        let Some(known) = self.json.intern(json) else {
            return Err(at.refused("", "more shapes than fit".to_owned(), HUGE));
        };
        if let Some(number) = self.python.get(known as usize) {
            return Ok(*number);
        }
        let number = self.text(&python::shown(json), at)?;
        self.python.push(number);
        Ok(number)
    }

    /// The index of what a list of types means.
    fn meaning(&mut self, json: &str, at: &At<'_>) -> Result<usize, TraceError> {
        let Some(known) = self.types.intern(json) else {
            return Err(at.refused("", "more types than fit".to_owned(), HUGE));
        };
        let known = known as usize;
        if known == self.meaning.len() {
            let types = serde_json::from_str::<Vec<Cow<'_, str>>>(json).ok();
            let Some(meaning) = types.and_then(|types| Type::list(&types)) else {
                let found = format!("types {}, expected a list of strings", shown(json));
                // The next text must not find a number without a meaning.
                self.meaning.push(Type::Other);
                return Err(at.refused(json, found, OTHER_TOOL));
            };
            self.meaning.push(meaning);
        }
        Ok(known)
    }

    fn side(&mut self, lists: &Lists<'_>, at: &At<'_>) -> Result<Summary, TraceError> {
        let meaning = self.meaning(lists.types, at)?;
        self.tensors.clear();
        let read = tensors(&lists.values, &self.meaning[meaning], &mut self.tensors);
        read.map_err(|(part, what)| {
            at.refused(part, format!("{what}, found {}", shown(part)), OTHER_TOOL)
        })?;
        let Ok(first) = u32::try_from(self.trace.storages.len() + self.tensors.len()) else {
            return Err(at.refused("", "more than 2³² tensors".to_owned(), HUGE));
        };
        let first = first - self.tensors.len() as u32;
        let held = self.tensors.iter().map(|t| t.storage).filter(|s| *s != 0);
        self.trace.storages.extend(held);
        if self.tensors.len() > 1 {
            self.tensors.sort_unstable_by_key(|t| t.id);
            self.tensors.dedup_by_key(|t| t.id);
        }
        let sizes = self.tensors.iter().map(|t| t.bytes);
        let bytes = sizes.fold(Some(0), |sum: Option<u64>, size| sum?.checked_add(size?));
        let Some(bytes) = bytes else {
            let found = "tensors of more than 2⁶⁴ bytes".to_owned();
            return Err(at.refused(&lists.values, found, OTHER_TOOL));
        };
        Ok(Summary {
            shapes: self.python(lists.shapes, at)?,
            types: self.python(lists.types, at)?,
            storages: (first, self.trace.storages.len() as u32),
            bytes,
        })
    }

    /// Takes the groups from the node that lists them.
    fn take_groups(&mut self, values: &str, at: &At<'_>) -> Result<(), TraceError> {
        let hint = "delete the node and pass the groups by other means";
        let texts: Vec<Cow<'_, str>> = serde_json::from_str(values).map_err(|_| {
            let found = "process groups that are not a list of one string".to_owned();
            at.refused(values, found, hint)
        })?;
        for text in texts {
            let (groups, wrong) = groups::parse(&text);
            if let Some(wrong) = wrong {
                if groups.is_empty() {
                    let found = format!("process groups that cannot be read: {wrong}");
                    return Err(at.refused(values, found, hint));
                }
                let end = text.char_indices().nth_back(60).map_or(0, |(i, _)| i);
                self.trace.repairs.push(Repair {
                    offset: at.of(values),
                    what: RepairKind::Groups,
                    text: text[end..].to_owned(),
                });
            }
            self.trace.groups.extend(groups);
        }
        Ok(())
    }
}

impl Format for Reader {
    const WHAT: &'static str = "host trace";
    const ARRAY: &'static str = "nodes";
    const BARE: bool = false;
    const LAYOUT: Layout = Layout {
        follows: &["ctrl_deps", "id"],
        never: &["\"ctrl_deps\"", "\"inputs\"", "\"attrs\"", "\"rf_id\""],
    };
    type Element<'de> = RawNode<'de>;

    fn element(&mut self, raw: RawNode<'_>, at: At<'_>) -> Result<(), TraceError> {
        let attrs = &raw.attrs;
        let input = Lists::new(&raw.inputs, raw.input_shapes, raw.input_types, &at)?;
        let output = Lists::new(&raw.outputs, raw.output_shapes, raw.output_types, &at)?;
        let Some(parent) = integer(raw.parent, "ctrl_deps", &at)? else {
            let found = "a node without `ctrl_deps` or `parent`, expected the id of one".to_owned();
            return Err(at.refused("", found, OTHER_TOOL));
        };
        let mut args = NONE;
        if communicates(&raw.name) {
            args = self.trace.args.len() as u32;
            let text = |raw: &&RawValue| number::text(raw.get()).into_owned();
            let attrs = attrs.others.iter();
            self.trace.args.push(CommArgs {
                inputs: input.values.clone().into_owned(),
                input_types: input.types.to_owned(),
                input_shapes: input.shapes.to_owned(),
                outputs: output.values.clone().into_owned(),
                attrs: attrs
                    .map(|(name, value)| (name.clone().into_owned(), text(value)))
                    .collect(),
            });
        }
        if raw.name == "## process_group:init ##" {
            self.take_groups(&input.values, &at)?;
        }
        let op_schema = match (attrs.op_schema, &raw.op_schema) {
            (Some(raw), _) => number::text(raw.get()),
            (None, Some(text)) => Cow::Borrowed(&**text),
            (None, None) => Cow::Borrowed(""),
        };
        let input = self.side(&input, &at)?;
        let output = self.side(&output, &at)?;
        let node = HostNode {
            id: integer(Some(raw.id), "id", &at)?.unwrap_or(0),
            parent,
            rf_id: integer(attrs.rf_id.or(raw.rf_id), "rf_id", &at)?.unwrap_or(0),
            seq_id: integer(attrs.seq_id.or(raw.seq_id), "seq_id", &at)?.unwrap_or(-1),
            fw_parent: integer(attrs.fw_parent.or(raw.fw_parent), "fw_parent", &at)?.unwrap_or(0),
            name: self.text(&raw.name, &at)?,
            tid: integer(attrs.tid.or(raw.tid), "tid", &at)?.unwrap_or(0),
            fw_tid: integer(attrs.fw_tid.or(raw.fw_tid), "fw_tid", &at)?.unwrap_or(0),
            scope: integer(attrs.scope.or(raw.scope), "scope", &at)?.unwrap_or(0),
            op_schema: self.text(&op_schema, &at)?,
            shapes_in: input.shapes,
            types_in: input.types,
            shapes_out: output.shapes,
            types_out: output.types,
            storages_in: input.storages,
            storages_out: output.storages,
            bytes_in: input.bytes,
            bytes_out: output.bytes,
            args,
        };
        self.trace.nodes.push(node);
        Ok(())
    }

    fn value(&mut self, key: &str, value: &RawValue, _: At<'_>) -> Result<(), TraceError> {
        if key == "schema" {
            self.trace.schema = number::text(value.get()).into_owned();
        }
        Ok(())
    }

    fn repaired(&mut self, repair: Repair) {
        self.trace.repairs.push(repair);
    }
}

#[cfg(test)]
mod tests;
