//! Events as Kineto writes them.

use crate::converters::pytorch::{JsonString, number};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// An event; the keys that are present depend on its phase.
#[derive(Deserialize)]
pub(super) struct RawKinetoEvent<'a> {
    #[serde(borrow, default)]
    pub ph: Cow<'a, str>,
    #[serde(borrow)]
    pub cat: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
    #[serde(borrow)]
    pub pid: Option<&'a RawValue>,
    #[serde(borrow)]
    pub tid: Option<&'a RawValue>,
    #[serde(borrow)]
    pub ts: Option<&'a RawValue>,
    #[serde(borrow)]
    pub dur: Option<&'a RawValue>,
    #[serde(borrow)]
    pub id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub args: EventArgs<'a>,
}

/// Arguments that the conversion uses.
#[derive(Default)]
pub(super) struct EventArgs<'a> {
    pub rf_id: Option<&'a RawValue>,
    pub external_id: Option<&'a RawValue>,
    pub correlation: Option<&'a RawValue>,
    pub stream: Option<&'a RawValue>,
    pub device: Option<&'a RawValue>,
    pub bytes: Option<&'a RawValue>,
    /// Name that a metadata event gives its track.
    pub name: Option<&'a RawValue>,
    /// Shapes of the inputs.
    pub dims: Option<&'a RawValue>,
    /// Types of the inputs.
    pub types: Option<&'a RawValue>,
    /// Whether the arguments describe a collective.
    pub collective: bool,
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
            let slot = match &*key {
                // Profilers of 2021 wrote it small on kernels.
                "External id" | "external id" => &mut args.external_id,
                "Record function id" => &mut args.rf_id,
                "correlation" => &mut args.correlation,
                "stream" => &mut args.stream,
                "device" => &mut args.device,
                "bytes" => &mut args.bytes,
                "name" => &mut args.name,
                "Input Dims" | "Input dims" => &mut args.dims,
                "Input type" => &mut args.types,
                key => {
                    args.collective |= key == "Collective name";
                    entries.next_value::<IgnoredAny>()?;
                    continue;
                }
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
