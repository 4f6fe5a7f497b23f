//! Nodes as the observer writes them, flat (schema 1.0.1) or nested (all later ones).

use crate::converters::pytorch::JsonString;
use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// A node; keys that one of the layouts lacks are optional.
#[derive(Deserialize)]
pub(super) struct RawHostNode<'a> {
    #[serde(borrow)]
    pub id: &'a RawValue,
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    #[serde(borrow, alias = "ctrl_deps")]
    pub parent: Option<&'a RawValue>,
    #[serde(borrow)]
    pub inputs: Option<RawOperands<'a>>,
    #[serde(borrow)]
    pub outputs: Option<RawOperands<'a>>,
    #[serde(borrow)]
    pub input_shapes: Option<&'a RawValue>,
    #[serde(borrow)]
    pub input_types: Option<&'a RawValue>,
    #[serde(borrow)]
    pub output_shapes: Option<&'a RawValue>,
    #[serde(borrow)]
    pub output_types: Option<&'a RawValue>,
    #[serde(borrow)]
    pub rf_id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub fw_parent: Option<&'a RawValue>,
    #[serde(borrow)]
    pub seq_id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub scope: Option<&'a RawValue>,
    #[serde(borrow)]
    pub tid: Option<&'a RawValue>,
    #[serde(borrow)]
    pub fw_tid: Option<&'a RawValue>,
    #[serde(borrow)]
    pub op_schema: Option<Cow<'a, str>>,
    /// Duration that `chakra_trace_link` adds.
    #[serde(borrow)]
    pub exclusive_dur: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub attrs: RawAttrs<'a>,
}

/// Inputs or outputs of a node.
pub(super) enum RawOperands<'a> {
    /// Values, with shapes and types beside them in the same object.
    Nested {
        values: Option<&'a RawValue>,
        shapes: Option<&'a RawValue>,
        types: Option<&'a RawValue>,
    },
    /// Values alone: the first and the last, between which the others stand.
    Flat(Option<(&'a RawValue, &'a RawValue)>),
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
        while let Some(JsonString(key)) = entries.next_key()? {
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
        let mut ends: Option<(&RawValue, &RawValue)> = None;
        while let Some(value) = entries.next_element()? {
            ends = Some((ends.map_or(value, |(first, _)| first), value));
        }
        Ok(RawOperands::Flat(ends))
    }
}

/// Attributes of nested nodes, a list of `{name, type, value}`.
#[derive(Default)]
pub(super) struct RawAttrs<'a> {
    pub rf_id: Option<&'a RawValue>,
    pub fw_parent: Option<&'a RawValue>,
    pub seq_id: Option<&'a RawValue>,
    pub scope: Option<&'a RawValue>,
    pub tid: Option<&'a RawValue>,
    pub fw_tid: Option<&'a RawValue>,
    pub op_schema: Option<&'a RawValue>,
    /// All but the attributes that every node has.
    pub others: Vec<(Cow<'a, str>, &'a RawValue)>,
}

#[derive(Deserialize)]
struct RawAttr<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    value: &'a RawValue,
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
            let slot = match &*name {
                "rf_id" => &mut attrs.rf_id,
                "fw_parent" => &mut attrs.fw_parent,
                "seq_id" => &mut attrs.seq_id,
                "scope" => &mut attrs.scope,
                "tid" => &mut attrs.tid,
                "fw_tid" => &mut attrs.fw_tid,
                "op_schema" => &mut attrs.op_schema,
                "kernel_backend" | "kernel_file" | "tensor_range" => continue,
                _ => {
                    attrs.others.push((name, value));
                    continue;
                }
            };
            if slot.replace(value).is_some() {
                return Err(A::Error::custom(format!("the attribute `{name}` twice")));
            }
        }
        Ok(attrs)
    }
}
