//! Parses nodes as the observer writes them: in the flat form (schema 1.0.1) or in the nested form
//! (later schemas).

use crate::pytorch::DecodedJsonString;
use crate::pytorch::stream::{JsonScanner, JsonValueText, SeenKeys};
use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;

/// A node of either form; keys that only one form has are optional.
#[derive(Debug, Default, PartialEq, Deserialize)]
pub(super) struct RawHostNode<'a> {
    #[serde(borrow)]
    pub id: JsonValueText<'a>,
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    #[serde(borrow, alias = "ctrl_deps")]
    pub parent: Option<JsonValueText<'a>>,
    #[serde(borrow)]
    pub inputs: Option<RawOperands<'a>>,
    #[serde(borrow)]
    pub outputs: Option<RawOperands<'a>>,
    #[serde(borrow)]
    pub input_shapes: Option<JsonValueText<'a>>,
    #[serde(borrow)]
    pub input_types: Option<JsonValueText<'a>>,
    #[serde(borrow)]
    pub output_shapes: Option<JsonValueText<'a>>,
    #[serde(borrow)]
    pub output_types: Option<JsonValueText<'a>>,
    #[serde(borrow)]
    pub rf_id: Option<JsonValueText<'a>>,
    #[serde(borrow)]
    pub fw_parent: Option<JsonValueText<'a>>,
    #[serde(borrow)]
    pub seq_id: Option<JsonValueText<'a>>,
    #[serde(borrow)]
    pub scope: Option<JsonValueText<'a>>,
    #[serde(borrow)]
    pub tid: Option<JsonValueText<'a>>,
    #[serde(borrow)]
    pub op_schema: Option<Cow<'a, str>>,
    /// Duration that `chakra_trace_link` adds to a node.
    #[serde(borrow)]
    pub exclusive_dur: Option<JsonValueText<'a>>,
    #[serde(borrow, default)]
    pub attrs: RawAttrs<'a>,
}

/// Inputs or outputs of a node.
#[derive(Debug, PartialEq)]
pub(super) enum RawOperands<'a> {
    /// Values, with shapes and types in the same object.
    Nested {
        values: Option<JsonValueText<'a>>,
        shapes: Option<JsonValueText<'a>>,
        types: Option<JsonValueText<'a>>,
    },
    /// Only the values, as the first and the last value of the list in the text.
    Flat(Option<(JsonValueText<'a>, JsonValueText<'a>)>),
}

impl<'de: 'a, 'a> Deserialize<'de> for RawOperands<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawOperandsVisitor)
    }
}

struct RawOperandsVisitor;

impl<'de> Visitor<'de> for RawOperandsVisitor {
    type Value = RawOperands<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{values, shapes, types} or a list of values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<RawOperands<'de>, A::Error> {
        let (mut values, mut shapes, mut types) = (None, None, None);
        while let Some(DecodedJsonString(key)) = entries.next_key()? {
            let slot = match &*key {
                "values" => &mut values,
                "shapes" => &mut shapes,
                "types" => &mut types,
                _ => {
                    entries.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if slot.replace(entries.next_value()?).is_some() {
                return Err(A::Error::custom(format!("`{key}` twice")));
            }
        }
        Ok(RawOperands::Nested {
            values,
            shapes,
            types,
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<RawOperands<'de>, A::Error> {
        let mut ends: Option<(JsonValueText<'_>, JsonValueText<'_>)> = None;
        while let Some(value) = entries.next_element()? {
            ends = Some((ends.map_or(value, |(first, _)| first), value));
        }
        Ok(RawOperands::Flat(ends))
    }
}

/// Attributes of a nested node. The file contains them as a list of `{name, type, value}`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RawAttrs<'a> {
    pub rf_id: Option<JsonValueText<'a>>,
    pub fw_parent: Option<JsonValueText<'a>>,
    pub seq_id: Option<JsonValueText<'a>>,
    pub scope: Option<JsonValueText<'a>>,
    pub tid: Option<JsonValueText<'a>>,
    pub op_schema: Option<JsonValueText<'a>>,
    /// Attributes that only some nodes have.
    pub others: Vec<(Cow<'a, str>, JsonValueText<'a>)>,
}

#[derive(Deserialize)]
struct RawAttr<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    value: JsonValueText<'a>,
}

impl<'a> RawAttrs<'a> {
    /// Stores an attribute. Returns the attribute's name if the node already has this attribute.
    fn set_attribute(
        &mut self,
        name: Cow<'a, str>,
        value: JsonValueText<'a>,
    ) -> Option<Cow<'a, str>> {
        let slot = match &*name {
            "rf_id" => &mut self.rf_id,
            "fw_parent" => &mut self.fw_parent,
            "seq_id" => &mut self.seq_id,
            "scope" => &mut self.scope,
            "tid" => &mut self.tid,
            "op_schema" => &mut self.op_schema,
            "fw_tid" | "kernel_backend" | "kernel_file" | "tensor_range" => return None,
            _ => {
                self.others.push((name, value));
                return None;
            }
        };
        slot.replace(value).map(|_| name)
    }

    fn scan_attributes(&mut self, scan: &mut JsonScanner<'a>) -> Option<()> {
        scan.read_list(|scan| {
            let (mut name, mut value) = (None, None);
            scan.read_object(|scan, key| match key {
                "name" => set_once(&mut name, scan.read_plain_string()?),
                "value" => set_once(&mut value, scan.read_value_text()?),
                _ => scan.skip_value(),
            })?;
            match self.set_attribute(Cow::Borrowed(name?), value?) {
                None => Some(()),
                Some(_) => None,
            }
        })
    }
}

/// Sets a value once; returns `None` if the value was already set.
fn set_once<T>(slot: &mut Option<T>, value: T) -> Option<()> {
    slot.replace(value).is_none().then_some(())
}

impl<'a> RawOperands<'a> {
    fn scan_operands(scan: &mut JsonScanner<'a>) -> Option<Self> {
        if scan.peek_non_blank_byte()? == b'[' {
            let mut ends: Option<(JsonValueText<'a>, JsonValueText<'a>)> = None;
            scan.read_list(|scan| {
                let value = scan.read_value_text()?;
                ends = Some((ends.map_or(value, |(first, _)| first), value));
                Some(())
            })?;
            return Some(Self::Flat(ends));
        }
        let (mut values, mut shapes, mut types) = (None, None, None);
        scan.read_object(|scan, key| match key {
            "values" => set_once(&mut values, scan.read_value_text()?),
            "shapes" => set_once(&mut shapes, scan.read_value_text()?),
            "types" => set_once(&mut types, scan.read_value_text()?),
            _ => scan.skip_value(),
        })?;
        Some(Self::Nested {
            values,
            shapes,
            types,
        })
    }
}

impl<'a> RawHostNode<'a> {
    /// Reads the node at the start of `text` into `node`, which must be empty. Returns the length
    /// of the node's text.
    pub fn scan_node(text: &'a str, node: &mut Self) -> Option<usize> {
        let mut scan = JsonScanner::new(text);
        let (mut id, mut name) = (None, None);
        let mut seen = SeenKeys::default();
        scan.read_object(|scan, key| {
            let (place, slot) = match key {
                "id" => return set_once(&mut id, scan.read_value_text()?),
                "name" => return set_once(&mut name, scan.read_plain_string()?),
                "inputs" | "outputs" => {
                    let side = if key == "inputs" {
                        &mut node.inputs
                    } else {
                        &mut node.outputs
                    };
                    return set_once(side, RawOperands::scan_operands(scan)?);
                }
                "attrs" => {
                    node.attrs.scan_attributes(scan)?;
                    return seen.record_key_if_new(0);
                }
                "op_schema" => {
                    node.op_schema = Some(Cow::Borrowed(scan.read_plain_string()?));
                    return seen.record_key_if_new(1);
                }
                "parent" | "ctrl_deps" => (2, &mut node.parent),
                "input_shapes" => (3, &mut node.input_shapes),
                "input_types" => (4, &mut node.input_types),
                "output_shapes" => (5, &mut node.output_shapes),
                "output_types" => (6, &mut node.output_types),
                "rf_id" => (7, &mut node.rf_id),
                "fw_parent" => (8, &mut node.fw_parent),
                "seq_id" => (9, &mut node.seq_id),
                "scope" => (10, &mut node.scope),
                "tid" => (11, &mut node.tid),
                "exclusive_dur" => (12, &mut node.exclusive_dur),
                _ => return scan.skip_value(),
            };
            *slot = scan.read_optional()?;
            seen.record_key_if_new(place)
        })?;
        node.id = id?;
        node.name = Cow::Borrowed(name?);
        Some(scan.consumed_bytes())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RawAttrs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(RawAttrsVisitor)
    }
}

struct RawAttrsVisitor;

impl<'de> Visitor<'de> for RawAttrsVisitor {
    type Value = RawAttrs<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of {name, type, value}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<RawAttrs<'de>, A::Error> {
        let mut attrs = RawAttrs::default();
        while let Some(RawAttr { name, value }) = entries.next_element()? {
            if let Some(name) = attrs.set_attribute(name, value) {
                return Err(A::Error::custom(format!(
                    "found the attribute `{name}` twice, expected it once"
                )));
            }
        }
        Ok(attrs)
    }
}

#[cfg(test)]
mod tests {
    use super::super::reader::HostTraceBuilder;
    use crate::pytorch::stream::damage::assert_scan_equals_parser_on_damaged_texts;

    #[test]
    fn node_scanner_agrees_with_general_json_parser() {
        let nested = r#"{"id": 6, "name": "aten::add", "ctrl_deps": 3, "inputs": {"values": [[1,2,0,8,4,"cpu"],1], "shapes": [[8],[]],
            "types": ["Tensor(float)","Int"]}, "outputs": {"values": [], "shapes": [], "types": []}, "attrs": [{"name": "rf_id",
            "type": "uint64", "value": 5},{"name": "op_schema", "type": "string", "value": "a\\n"},{"name": "pg_name", "type": "string",
            "value": "0"}]}"#;
        let flat = r#"{"name": "aten::t", "id": 7, "rf_id": 2, "parent": 3, "fw_parent": null, "seq_id": -1, "scope": 0, "tid": 1,
            "fw_tid": 0, "op_schema": "", "inputs": [[1,2,0,8,4,"cpu"], 4], "input_shapes": [[8],[]], "input_types": ["Tensor(float)",
            "Int"], "outputs": [], "output_shapes": [], "output_types": []}"#;
        let parts = [
            "null",
            "{}",
            "[]",
            "\"",
            ",",
            ":",
            "}",
            "]",
            "\"id\": 1, ",
            "\"parent\": 2, ",
            "\"ctrl_deps\": 2, ",
            "\"tid\": null, ",
            "\"inputs\": null, ",
            "\"attrs\": [], ",
            "\"values\": 1, ",
            "\\",
            "é",
            "\u{2}",
            "1e3",
            " ",
        ];
        assert_scan_equals_parser_on_damaged_texts::<HostTraceBuilder>(&[nested, flat], &parts);
    }
}
