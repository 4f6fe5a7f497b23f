//! Events as Kineto writes them.

use crate::converters::pytorch::stream::{JsonScanner, JsonText, SeenKeys};
use crate::converters::pytorch::{JsonString, number};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// An event; the keys that are present depend on its phase.
#[derive(Debug, Default, PartialEq, Deserialize)]
pub(super) struct RawKinetoEvent<'a> {
    #[serde(borrow, default)]
    pub ph: Cow<'a, str>,
    #[serde(borrow)]
    pub cat: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
    #[serde(borrow)]
    pub pid: Option<JsonText<'a>>,
    #[serde(borrow)]
    pub tid: Option<JsonText<'a>>,
    #[serde(borrow)]
    pub ts: Option<JsonText<'a>>,
    #[serde(borrow)]
    pub dur: Option<JsonText<'a>>,
    #[serde(borrow, default)]
    pub args: EventArgs<'a>,
}

/// Arguments that the conversion uses.
#[derive(Debug, Default, PartialEq)]
pub(super) struct EventArgs<'a> {
    pub rf_id: Option<JsonText<'a>>,
    pub external_id: Option<JsonText<'a>>,
    pub correlation: Option<JsonText<'a>>,
    pub stream: Option<JsonText<'a>>,
    pub device: Option<JsonText<'a>>,
    pub bytes: Option<JsonText<'a>>,
    /// Name that a metadata event gives its track.
    pub name: Option<JsonText<'a>>,
    /// Shapes of the inputs.
    pub dims: Option<JsonText<'a>>,
    /// Types of the inputs.
    pub types: Option<JsonText<'a>>,
    /// Whether the arguments describe a collective.
    pub collective: bool,
}

impl<'a> RawKinetoEvent<'a> {
    /// Reads the event at the start of `text` into an empty one, and returns its length.
    pub fn scan(text: &'a str, event: &mut Self) -> Option<usize> {
        let mut scan = JsonScanner::new(text);
        let mut seen = SeenKeys::default();
        scan.object(|scan, key| {
            let mut first = |key| seen.first(key);
            match key {
                "ph" => first(0)
                    .and_then(|()| scan.plain())
                    .map(|text| event.ph = text.into()),
                "cat" => {
                    first(1)?;
                    if !scan.null()? {
                        event.cat = Some(scan.plain()?.into());
                    }
                    Some(())
                }
                "name" => first(2)
                    .and_then(|()| scan.plain())
                    .map(|text| event.name = text.into()),
                "pid" => first(3)
                    .and_then(|()| scan.optional())
                    .map(|value| event.pid = value),
                "tid" => first(4)
                    .and_then(|()| scan.optional())
                    .map(|value| event.tid = value),
                "ts" => first(5)
                    .and_then(|()| scan.optional())
                    .map(|value| event.ts = value),
                "dur" => first(6)
                    .and_then(|()| scan.optional())
                    .map(|value| event.dur = value),
                "args" => {
                    first(7)?;
                    if !scan.null()? {
                        event.args.scan(scan)?;
                    }
                    Some(())
                }
                _ => scan.skip(),
            }
        })?;
        Some(scan.used())
    }
}

impl<'a> EventArgs<'a> {
    /// Returns where the argument `key` is kept, if it is, and notes what its presence says.
    fn slot(&mut self, key: &str) -> Option<&mut Option<JsonText<'a>>> {
        Some(match key {
            // Profilers of 2021 wrote it small on kernels.
            "External id" | "external id" => &mut self.external_id,
            "Record function id" => &mut self.rf_id,
            "correlation" => &mut self.correlation,
            "stream" => &mut self.stream,
            "device" => &mut self.device,
            "bytes" => &mut self.bytes,
            "name" => &mut self.name,
            "Input Dims" | "Input dims" => &mut self.dims,
            "Input type" => &mut self.types,
            key => {
                self.collective |= key == "Collective name";
                return None;
            }
        })
    }

    fn scan(&mut self, scan: &mut JsonScanner<'a>) -> Option<()> {
        scan.object(|scan, key| match self.slot(key) {
            Some(slot) => scan.value().map(|value| *slot = Some(value)),
            None => scan.skip(),
        })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for EventArgs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EventArgsVisitor)
    }
}

struct EventArgsVisitor;

impl<'de> Visitor<'de> for EventArgsVisitor {
    type Value = EventArgs<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of arguments")
    }

    fn visit_unit<E>(self) -> Result<EventArgs<'de>, E> {
        Ok(EventArgs::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<EventArgs<'de>, A::Error> {
        let mut args = EventArgs::default();
        while let Some(JsonString(key)) = entries.next_key()? {
            let Some(slot) = args.slot(&key) else {
                entries.next_value::<IgnoredAny>()?;
                continue;
            };
            *slot = Some(entries.next_value()?);
        }
        Ok(args)
    }
}

/// All arguments of an event as texts: strings as they are, anything else as JSON.
#[derive(Default)]
pub(super) struct AllEventArgs(pub Vec<(String, String)>);

impl AllEventArgs {
    /// Reads the event at the start of `text` a second time.
    pub fn of(text: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct ArgsOfEvent {
            #[serde(default)]
            args: AllEventArgs,
        }
        let mut event = serde_json::Deserializer::from_slice(text);
        // The same text was parsed before, so this cannot fail.
        ArgsOfEvent::deserialize(&mut event).map_or_else(|_| Self::default(), |event| event.args)
    }
}

impl<'de> Deserialize<'de> for AllEventArgs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AllEventArgsVisitor)
    }
}

struct AllEventArgsVisitor;

impl<'de> Visitor<'de> for AllEventArgsVisitor {
    type Value = AllEventArgs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of arguments")
    }

    fn visit_unit<E>(self) -> Result<AllEventArgs, E> {
        Ok(AllEventArgs::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<AllEventArgs, A::Error> {
        let mut args = Vec::new();
        while let Some((key, value)) = entries.next_entry::<String, &RawValue>()? {
            args.push((key, number::text(value.get()).into_owned()));
        }
        Ok(AllEventArgs(args))
    }
}

#[cfg(test)]
mod tests {
    use super::super::reader::KinetoReader;
    use crate::converters::pytorch::stream::damage::hold_scan;

    #[test]
    fn what_is_scanned_is_what_the_general_parser_reads() {
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
        hold_scan::<KinetoReader>(&[plain], &parts);
    }
}
