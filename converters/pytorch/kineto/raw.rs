//! Events as Kineto writes them.

use crate::pytorch::stream::{ElementLayouts, JsonScanner, JsonValueText, SeenKeys};
use crate::pytorch::{DecodedJsonString, number};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// An event, whose keys depend on its phase (`ph`).
#[derive(Debug, Default, PartialEq, Deserialize)]
pub(super) struct RawKinetoEvent<'a> {
    #[serde(borrow, default)]
    pub ph: Cow<'a, str>,
    #[serde(borrow)]
    pub cat: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
    #[serde(borrow)]
    pub pid: Option<JsonValueText<'a>>,
    #[serde(borrow)]
    pub tid: Option<JsonValueText<'a>>,
    #[serde(borrow)]
    pub ts: Option<JsonValueText<'a>>,
    #[serde(borrow)]
    pub dur: Option<JsonValueText<'a>>,
    #[serde(borrow, default)]
    pub args: UsedEventArgs<'a>,
}

/// Arguments that the conversion uses.
#[derive(Debug, Default, PartialEq)]
pub(super) struct UsedEventArgs<'a> {
    pub rf_id: Option<JsonValueText<'a>>,
    pub external_id: Option<JsonValueText<'a>>,
    pub correlation: Option<JsonValueText<'a>>,
    pub stream: Option<JsonValueText<'a>>,
    pub device: Option<JsonValueText<'a>>,
    pub bytes: Option<JsonValueText<'a>>,
    /// Name of a track, from a metadata event.
    pub name: Option<JsonValueText<'a>>,
    /// Shapes of the inputs.
    pub dims: Option<JsonValueText<'a>>,
    /// Types of the inputs.
    pub types: Option<JsonValueText<'a>>,
    /// Name of the collective that the arguments describe.
    pub collective: Option<JsonValueText<'a>>,
    /// Hardware unit that does the work, in Ascend traces.
    pub task: Option<JsonValueText<'a>>,
}

/// Indices of an event's values within [`ElementLayouts`].
mod value {
    pub(super) use crate::pytorch::stream::SKIPPED;
    pub const PH: u8 = 1;
    pub const CAT: u8 = 2;
    pub const NAME: u8 = 3;
    /// Index of the first value that may contain escapes or may not be a string.
    pub const PID: u8 = 4;
    pub const TID: u8 = 5;
    pub const TS: u8 = 6;
    pub const DUR: u8 = 7;
    pub const ARGS: u8 = 8;
    pub const EXTERNAL_ID: u8 = 9;
    pub const RF_ID: u8 = 10;
    pub const CORRELATION: u8 = 11;
    pub const STREAM: u8 = 12;
    pub const DEVICE: u8 = 13;
    pub const BYTES: u8 = 14;
    pub const TRACK_NAME: u8 = 15;
    pub const DIMS: u8 = 16;
    pub const TYPES: u8 = 17;
    pub const COLLECTIVE: u8 = 18;
    pub const TASK: u8 = 19;
    pub const COUNT: usize = 20;

    /// Returns the index of the value for the event key `key`.
    pub fn index_of_key(key: &str) -> u8 {
        match key {
            "ph" => PH,
            "cat" => CAT,
            "name" => NAME,
            "pid" => PID,
            "tid" => TID,
            "ts" => TS,
            "dur" => DUR,
            "args" => ARGS,
            _ => SKIPPED,
        }
    }

    /// Returns the index of the value for the argument key `key`.
    pub fn value_index_of_argument_key(key: &str) -> u8 {
        match key {
            // In 2021, profilers wrote this key in lower case on kernels.
            "External id" | "external id" => EXTERNAL_ID,
            "Record function id" => RF_ID,
            "correlation" | "connection_id" => CORRELATION,
            "stream" | "Stream Id" => STREAM,
            "device" => DEVICE,
            "bytes" => BYTES,
            "name" => TRACK_NAME,
            "Input Dims" | "Input dims" => DIMS,
            "Input type" => TYPES,
            "Collective name" => COLLECTIVE,
            "Task Type" => TASK,
            _ => SKIPPED,
        }
    }
}

impl<'a> RawKinetoEvent<'a> {
    /// Reads the event at the start of `text` into `event`, which must be empty. Returns the length
    /// of the event's text.
    #[inline]
    pub fn scan_event(
        layouts: &mut ElementLayouts,
        text: &'a str,
        event: &mut Self,
    ) -> Option<usize> {
        let mut values = [None; value::COUNT];
        if let Some(used) =
            layouts.read_element_values_by_known_layout(text, value::PID, &mut values)
        {
            event.set_fields(&values);
            return Some(used);
        }
        values = [None; value::COUNT];
        let used = scan_event_keys_and_learn_layout(layouts, text, &mut values)?;
        event.set_fields(&values);
        layouts.learn_layout(&text[..used]);
        Some(used)
    }

    /// Sets the fields from `values`, whose indices are those of the module `value`.
    #[inline]
    fn set_fields(&mut self, values: &[Option<&'a str>; value::COUNT]) {
        let json = |number: u8| values[number as usize].map(JsonValueText::from_valid_json);
        self.ph = values[value::PH as usize].unwrap_or_default().into();
        self.cat = values[value::CAT as usize].map(Cow::Borrowed);
        self.name = values[value::NAME as usize].unwrap_or_default().into();
        self.pid = json(value::PID);
        self.tid = json(value::TID);
        self.ts = json(value::TS);
        self.dur = json(value::DUR);
        self.args = UsedEventArgs {
            external_id: json(value::EXTERNAL_ID),
            rf_id: json(value::RF_ID),
            correlation: json(value::CORRELATION),
            stream: json(value::STREAM),
            device: json(value::DEVICE),
            bytes: json(value::BYTES),
            name: json(value::TRACK_NAME),
            dims: json(value::DIMS),
            types: json(value::TYPES),
            collective: json(value::COLLECTIVE),
            task: json(value::TASK),
        };
    }
}

/// Reads the event at the start of `text` key by key into `values`, and records its layout in `layouts`.
/// Returns the event's length.
fn scan_event_keys_and_learn_layout<'a>(
    layouts: &mut ElementLayouts,
    text: &'a str,
    values: &mut [Option<&'a str>; value::COUNT],
) -> Option<usize> {
    let mut scan = JsonScanner::new(text);
    let mut seen = SeenKeys::default();
    layouts.begin_learning_element();
    let mut note = |number: u8, value: &'a str, json: &'a str| {
        layouts.record_element_value(number, json, text);
        values[number as usize] = Some(value);
    };
    scan.read_object(|scan, key| {
        let number = value::index_of_key(key);
        if number != value::SKIPPED {
            seen.record_key_if_new(number.into())?;
        }
        match number {
            // Do not record a null value, because layouts treat null as part of the text between values.
            value::CAT | value::PID | value::TID | value::TS | value::DUR | value::ARGS
                if scan.accept_null()? => {}
            value::ARGS => scan.read_object(|scan, key| {
                let value = scan.read_value_text()?.as_str();
                note(value::value_index_of_argument_key(key), value, value);
                Some(())
            })?,
            value::PH | value::CAT | value::NAME => {
                let json = scan.read_value_text()?.as_str();
                note(number, content_without_escapes(json)?, json);
            }
            _ => {
                let value = scan.read_value_text()?.as_str();
                note(number, value, value);
            }
        }
        Some(())
    })?;
    Some(scan.consumed_bytes())
}

/// Returns the content of a JSON string, or `None` if it has escapes.
fn content_without_escapes(json: &str) -> Option<&str> {
    let content = json.strip_prefix('"')?.strip_suffix('"')?;
    (!content.contains('\\')).then_some(content)
}

impl<'a> UsedEventArgs<'a> {
    /// Returns the field that stores the argument `key`, or `None` if it is not kept.
    fn field_of_argument(&mut self, key: &str) -> Option<&mut Option<JsonValueText<'a>>> {
        Some(match value::value_index_of_argument_key(key) {
            value::EXTERNAL_ID => &mut self.external_id,
            value::RF_ID => &mut self.rf_id,
            value::CORRELATION => &mut self.correlation,
            value::STREAM => &mut self.stream,
            value::DEVICE => &mut self.device,
            value::BYTES => &mut self.bytes,
            value::TRACK_NAME => &mut self.name,
            value::DIMS => &mut self.dims,
            value::TYPES => &mut self.types,
            value::COLLECTIVE => &mut self.collective,
            value::TASK => &mut self.task,
            _ => return None,
        })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for UsedEventArgs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UsedEventArgsVisitor)
    }
}

struct UsedEventArgsVisitor;

impl<'de> Visitor<'de> for UsedEventArgsVisitor {
    type Value = UsedEventArgs<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of arguments")
    }

    fn visit_unit<E>(self) -> Result<UsedEventArgs<'de>, E> {
        Ok(UsedEventArgs::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<UsedEventArgs<'de>, A::Error> {
        let mut args = UsedEventArgs::default();
        while let Some(DecodedJsonString(key)) = entries.next_key()? {
            let Some(slot) = args.field_of_argument(&key) else {
                entries.next_value::<IgnoredAny>()?;
                continue;
            };
            *slot = Some(entries.next_value()?);
        }
        Ok(args)
    }
}

/// All arguments of an event as texts. Strings are unchanged, and other values are JSON.
#[derive(Default)]
pub(super) struct AllEventArgTexts(pub Vec<(String, String)>);

impl AllEventArgTexts {
    /// Parses the event at the start of `text` a second time, now with all its arguments.
    pub fn parse_arguments(text: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct EventWithAllArgs {
            #[serde(default)]
            args: AllEventArgTexts,
        }
        let mut event = serde_json::Deserializer::from_slice(text);
        // Parsing cannot fail, because the same text was parsed before.
        EventWithAllArgs::deserialize(&mut event)
            .map_or_else(|_| Self::default(), |event| event.args)
    }
}

impl<'de> Deserialize<'de> for AllEventArgTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AllEventArgsVisitor)
    }
}

struct AllEventArgsVisitor;

impl<'de> Visitor<'de> for AllEventArgsVisitor {
    type Value = AllEventArgTexts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of arguments")
    }

    fn visit_unit<E>(self) -> Result<AllEventArgTexts, E> {
        Ok(AllEventArgTexts::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<AllEventArgTexts, A::Error> {
        let mut args = Vec::new();
        while let Some((key, value)) = entries.next_entry::<String, &RawValue>()? {
            args.push((key, number::unquote_json_value(value.get()).into_owned()));
        }
        Ok(AllEventArgTexts(args))
    }
}

#[cfg(test)]
mod tests {
    use super::super::reader::KinetoReader;
    use crate::pytorch::stream::damage::assert_scan_equals_parser_on_damaged_texts;

    #[test]
    fn event_scanner_agrees_with_general_json_parser() {
        let plain = r#"{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": "7", "ts": 1.5, "dur": 2, "id": null,
            "args": {"External id": 3, "Record function id": 0, "correlation": 9, "stream": -1, "device": 0, "bytes": 4,
            "Input Dims": [[4, 8], []], "Input type": ["float", ""], "Concrete Inputs": ["", "\\n"], "Ev Idx": 5}}"#;
        let parts = [
            "null",
            "{}",
            "[]",
            "\"",
            ",",
            ":",
            "}",
            "\"ph\": \"M\", ",
            "\"args\": null, ",
            "\"cat\": null, ",
            "\"pid\": 8, ",
            "\\",
            "\"stream\": 2, ",
            "\"Collective name\": \"x\", ",
            "é",
            "\u{2}",
            "1e3",
            " ",
        ];
        assert_scan_equals_parser_on_damaged_texts::<KinetoReader>(&[plain], &parts);
    }
}
