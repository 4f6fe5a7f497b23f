//! Converts the nodes of a file to a host trace.

use super::raw::{RawHostNode, RawOperands};
use super::{
    HostNode, HostTrace, NONE, ObserverOnlyNodeIdsLinksAndStorages, RawCommOperatorArgs,
    SharedOperatorProperties,
};
use crate::pytorch::name_repair::KeysAroundName;
use crate::pytorch::stream::{
    ElementTextAndOffset, JsonElementReceiver, JsonValueText, parse_integer,
};
use crate::pytorch::tensors::{
    SimplifiedTensorOrOtherType, TensorArgStorageAndSize, append_tensors,
};
use crate::pytorch::{
    ITEMS_BETWEEN_CHECKS, JsonRepairKind, SingleJsonRepairWithOffset, groups,
    is_communication_operator, number, op_work, python_repr,
};
use chakram_base::interrupt;
use chakram_trace::format::{TraceError, escape_and_shorten_name};
use chakram_trace::graph::{DistinctKeyInterner, StringArenaInterner};
use std::borrow::Cow;

/// The host trace under construction.
#[derive(Default)]
pub(super) struct HostTraceBuilder {
    pub trace: HostTrace,
    forms: DistinctKeyInterner<SharedOperatorProperties>,
    /// JSON texts of shapes and types. `python` maps each to the index of the same text in Python's notation.
    json: StringArenaInterner,
    python: Vec<u32>,
    /// JSON texts of types. `meaning` maps each to its parsed form and to the index of the same text in Python's
    /// notation.
    types: StringArenaInterner,
    meaning: Vec<(SimplifiedTensorOrOtherType, u32)>,
    /// Tensors of the current node.
    tensors: Vec<TensorArgStorageAndSize>,
}

const OTHER_TOOL: &str = "pass the file that ExecutionTraceObserver wrote, as it is";
const NOT_LINKED: &str = "pass the two files that were linked; they contain launches, streams and arguments that the linker drops";
const HUGE: &str = "a trace with more than 4 GiB of names cannot be read; capture fewer steps";

/// Values, shapes and types of a node's inputs or outputs, each a JSON list.
struct InputsOrOutputsAsJson<'a> {
    values: Cow<'a, str>,
    shapes: &'a str,
    types: &'a str,
}

impl<'a> InputsOrOutputsAsJson<'a> {
    fn new(
        side: &Option<RawOperands<'a>>,
        flat_shapes: Option<JsonValueText<'a>>,
        flat_types: Option<JsonValueText<'a>>,
        at: &ElementTextAndOffset<'a>,
    ) -> Result<Self, TraceError> {
        let list = |raw: Option<JsonValueText<'a>>| raw.map_or("[]", JsonValueText::as_str);
        let (values, shapes, types) = match *side {
            None => (Cow::Borrowed("[]"), None, None),
            Some(RawOperands::Nested {
                values,
                shapes,
                types,
            }) => (Cow::Borrowed(list(values)), shapes, types),
            Some(RawOperands::Flat(first_and_last)) => {
                let between = first_and_last.map_or("", |(first, last)| {
                    at.text_from_first_through_last_value(first, last)
                });
                (Cow::Owned(format!("[{between}]")), flat_shapes, flat_types)
            }
        };
        if types.is_none() && values.as_bytes().iter().any(|b| !b"[] \n".contains(b)) {
            let found = "found values without `types`".to_owned();
            return Err(at.error_about("", found, OTHER_TOOL));
        }
        Ok(Self {
            values,
            shapes: list(shapes),
            types: list(types),
        })
    }
}

/// Facts about a node's inputs or outputs.
struct OperandSummary {
    shapes: u32,
    types: u32,
    storages: (u32, u32),
    bytes: u64,
}

impl HostTraceBuilder {
    /// Finishes the trace after the last node.
    pub fn finish_trace(mut self) -> HostTrace {
        self.trace.forms = self.forms.into_keys();
        self.trace
    }

    fn intern_text(
        &mut self,
        text: &str,
        at: &ElementTextAndOffset<'_>,
    ) -> Result<u32, TraceError> {
        let number = self.trace.texts.intern_name(text);
        number.ok_or_else(|| {
            at.error_about(
                "",
                "more names than 32-bit indices can address".to_owned(),
                HUGE,
            )
        })
    }

    /// Converts a JSON text to Python's notation; returns the index of the result.
    fn intern_json_as_python_notation(
        &mut self,
        json: &str,
        at: &ElementTextAndOffset<'_>,
    ) -> Result<u32, TraceError> {
        let Some(known) = self.json.intern_name(json) else {
            return Err(at.error_about(
                "",
                "more shapes than 32-bit indices can address".to_owned(),
                HUGE,
            ));
        };
        if let Some(number) = self.python.get(known as usize) {
            return Ok(*number);
        }
        let number = self.intern_text(&python_repr::json_to_python_text(json), at)?;
        self.python.push(number);
        Ok(number)
    }

    /// Parses a list of types once, and returns the index of its parsed form.
    fn intern_parsed_type_list(
        &mut self,
        json: &str,
        at: &ElementTextAndOffset<'_>,
    ) -> Result<usize, TraceError> {
        let Some(known) = self.types.intern_name(json) else {
            return Err(at.error_about(
                "",
                "more types than 32-bit indices can address".to_owned(),
                HUGE,
            ));
        };
        let known = known as usize;
        if known == self.meaning.len() {
            let types = serde_json::from_str::<Vec<Cow<'_, str>>>(json).ok();
            let Some(meaning) =
                types.and_then(|types| SimplifiedTensorOrOtherType::parse_argument_types(&types))
            else {
                let found = format!(
                    "types {}, expected a list of strings",
                    escape_and_shorten_name(json)
                );
                // The text already has its index, so push a placeholder even after a failure.
                // Otherwise all later indices would be off by one.
                self.meaning
                    .push((SimplifiedTensorOrOtherType::Other, NONE));
                return Err(at.error_about(json, found, OTHER_TOOL));
            };
            let text = self.intern_json_as_python_notation(json, at)?;
            self.meaning.push((meaning, text));
        }
        Ok(known)
    }

    fn summarize_operands(
        &mut self,
        lists: &InputsOrOutputsAsJson<'_>,
        at: &ElementTextAndOffset<'_>,
    ) -> Result<OperandSummary, TraceError> {
        let meaning = self.intern_parsed_type_list(lists.types, at)?;
        self.tensors.clear();
        let read = append_tensors(&lists.values, &self.meaning[meaning].0, &mut self.tensors);
        read.map_err(|(part, what)| {
            at.error_about(
                part,
                format!("{what}, found {}", escape_and_shorten_name(part)),
                OTHER_TOOL,
            )
        })?;
        let Ok(first) = u32::try_from(self.trace.storages.len() + self.tensors.len()) else {
            return Err(at.error_about("", "more than 2³² tensors".to_owned(), HUGE));
        };
        let first = first - self.tensors.len() as u32;
        self.trace.on_device |= self.tensors.iter().any(|tensor| tensor.on_device);
        // A tensor with storage 0 has no memory.
        let held = self.tensors.iter().map(|t| t.storage).filter(|s| *s != 0);
        self.trace.storages.extend(held);
        if self.tensors.len() > 1 {
            self.tensors.sort_unstable_by_key(|t| t.id);
            // An operator accesses a tensor once even if it occurs twice among the operands, so remove duplicates.
            self.tensors.dedup_by_key(|t| t.id);
        }
        let mut sizes = self.tensors.iter().map(|t| t.bytes);
        let bytes = sizes.try_fold(0_u64, |sum, size| sum.checked_add(size?));
        let Some(bytes) = bytes else {
            let found = "tensors of more than 2⁶⁴ bytes".to_owned();
            return Err(at.error_about(&lists.values, found, OTHER_TOOL));
        };
        Ok(OperandSummary {
            shapes: self.intern_json_as_python_notation(lists.shapes, at)?,
            types: self.meaning[meaning].1,
            storages: (first, self.trace.storages.len() as u32),
            bytes,
        })
    }

    /// Reads the groups from a node that lists them.
    fn read_process_groups(
        &mut self,
        values: &str,
        at: &ElementTextAndOffset<'_>,
    ) -> Result<(), TraceError> {
        let hint = "delete the node, and pass the groups to commands as a JSON file";
        let texts: Vec<Cow<'_, str>> = serde_json::from_str(values).map_err(|_| {
            let found = "the process groups of this node are not a list of JSON texts".to_owned();
            at.error_about(values, found, hint)
        })?;
        for text in texts {
            let (groups, wrong) = groups::parse_group_list(&text);
            if let Some(wrong) = wrong {
                if groups.is_empty() {
                    let found = format!("the process groups of this node cannot be read: {wrong}");
                    return Err(at.error_about(values, found, hint));
                }
                // Show the end of the text, because the text was truncated there.
                let end = text.char_indices().nth_back(60).map_or(0, |(i, _)| i);
                self.trace
                    .repairs
                    .count_and_list_repair(SingleJsonRepairWithOffset {
                        offset: at.offset_of(values),
                        what: JsonRepairKind::Groups,
                        text: text[end..].to_owned(),
                    });
            }
            self.trace.groups.extend(groups);
        }
        Ok(())
    }
}

impl JsonElementReceiver for HostTraceBuilder {
    const WHAT: &'static str = "host trace";
    const ARRAY: &'static str = "nodes";
    const BARE: bool = false;
    const LAYOUT: KeysAroundName = KeysAroundName {
        follows: &["ctrl_deps", "id"],
        never: &["\"ctrl_deps\"", "\"inputs\"", "\"attrs\"", "\"rf_id\""],
    };
    type Element<'de> = RawHostNode<'de>;

    fn scan_element_and_return_length<'de>(
        &mut self,
        text: &'de str,
        node: &mut RawHostNode<'de>,
    ) -> Option<usize> {
        RawHostNode::scan_node(text, node)
    }

    fn handle_array_element(
        &mut self,
        raw: &RawHostNode<'_>,
        at: ElementTextAndOffset<'_>,
    ) -> Result<(), TraceError> {
        // Reject files from `chakra_trace_link`. They contain a copy of a host node for each kernel, and the reader
        // would mistake it for a host operator.
        if raw.exclusive_dur.is_some() {
            let found = "a node with `exclusive_dur`, so this is a file that chakra_trace_link made of a host trace and a \
                         Kineto trace";
            return Err(at.error_about("", found.to_owned(), NOT_LINKED));
        }
        let attrs = &raw.attrs;
        let input =
            InputsOrOutputsAsJson::new(&raw.inputs, raw.input_shapes, raw.input_types, &at)?;
        let output =
            InputsOrOutputsAsJson::new(&raw.outputs, raw.output_shapes, raw.output_types, &at)?;
        let Some(parent) = parse_integer(raw.parent, "ctrl_deps", &at)? else {
            let found =
                "a node with neither `ctrl_deps` nor `parent`, expected the id of its parent node"
                    .to_owned();
            return Err(at.error_about("", found, OTHER_TOOL));
        };
        let mut args = NONE;
        if is_communication_operator(&raw.name) {
            args = self.trace.args.len() as u32;
            let text =
                |raw: &JsonValueText<'_>| number::unquote_json_value(raw.as_str()).into_owned();
            let attrs = attrs.others.iter();
            self.trace.args.push(RawCommOperatorArgs {
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
            self.read_process_groups(&input.values, &at)?;
        }
        let op_schema = match (attrs.op_schema, &raw.op_schema) {
            (Some(raw), _) => number::unquote_json_value(raw.as_str()),
            (None, Some(text)) => Cow::Borrowed(&**text),
            (None, None) => Cow::Borrowed(""),
        };
        let values = match op_work::cost_depends_on_scalar_values(&raw.name) {
            true => Cow::Owned(op_work::observer_inputs_to_kineto_scalar_values(
                &input.values,
            )),
            false => Cow::Borrowed("[]"),
        };
        let values = self.intern_text(&values, &at)?;
        let input = self.summarize_operands(&input, &at)?;
        let output = self.summarize_operands(&output, &at)?;
        // Nested formats store a host node's properties in `attrs`, whereas the flat format stores them at top level.
        let form = SharedOperatorProperties {
            scope: parse_integer(attrs.scope.or(raw.scope), "scope", &at)?.unwrap_or(0),
            op_schema: self.intern_text(&op_schema, &at)?,
            shapes_in: input.shapes,
            types_in: input.types,
            shapes_out: output.shapes,
            types_out: output.types,
            values,
            bytes_in: input.bytes,
            bytes_out: output.bytes,
        };
        self.trace
            .records
            .push(ObserverOnlyNodeIdsLinksAndStorages {
                id: parse_integer(Some(raw.id), "id", &at)?.unwrap_or(0),
                parent,
                rf_id: parse_integer(attrs.rf_id.or(raw.rf_id), "rf_id", &at)?.unwrap_or(0),
                seq_id: parse_integer(attrs.seq_id.or(raw.seq_id), "seq_id", &at)?.unwrap_or(-1),
                fw_parent: parse_integer(attrs.fw_parent.or(raw.fw_parent), "fw_parent", &at)?
                    .unwrap_or(0),
                storages_in: input.storages,
                storages_out: output.storages,
            });
        let node = HostNode {
            name: self.intern_text(&raw.name, &at)?,
            tid: parse_integer(attrs.tid.or(raw.tid), "tid", &at)?.unwrap_or(0),
            form: self.forms.intern_key(form),
            args,
        };
        if self.trace.nodes.len().is_multiple_of(ITEMS_BETWEEN_CHECKS) {
            interrupt::fail_if_stopped_or_out_of_memory()?;
        }
        self.trace.nodes.push(node);
        Ok(())
    }

    fn handle_non_array_key_value(
        &mut self,
        key: &str,
        value: JsonValueText<'_>,
        _: ElementTextAndOffset<'_>,
    ) -> Result<(), TraceError> {
        match key {
            "schema" => self.trace.schema = number::unquote_json_value(value.as_str()).into_owned(),
            "pid" => {
                let pid = number::parse_json_integer(value.as_str());
                self.trace.pid = pid.and_then(|pid| u64::try_from(pid).ok());
            }
            _ => {}
        }
        Ok(())
    }

    fn record_repair(&mut self, repair: SingleJsonRepairWithOffset) {
        self.trace.repairs.count_and_list_repair(repair);
    }
}
