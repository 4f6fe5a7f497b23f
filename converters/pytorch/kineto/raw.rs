//! Events as Kineto writes them.

use crate::converters::pytorch::{Text, number};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// An event; the keys that are present depend on its phase.
#[derive(Deserialize)]
pub(super) struct RawEvent<'a> {
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
    pub args: Args<'a>,
}

/// Arguments that the conversion uses.
#[derive(Default)]
pub(super) struct Args<'a> {
    pub rf_id: Option<&'a RawValue>,
    pub external_id: Option<&'a RawValue>,
    pub correlation: Option<&'a RawValue>,
    pub stream: Option<&'a RawValue>,
    pub device: Option<&'a RawValue>,
    pub bytes: Option<&'a RawValue>,
    /// Name that a metadata event gives its track.
    pub name: Option<&'a RawValue>,
    /// Whether the arguments describe a collective.
    pub collective: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for Args<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ArgsVisitor)
    }
}

struct ArgsVisitor;

impl<'de> Visitor<'de> for ArgsVisitor {
    type Value = Args<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of arguments")
    }

    fn visit_unit<E>(self) -> Result<Args<'de>, E> {
        Ok(Args::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Args<'de>, A::Error> {
        let mut args = Args::default();
        while let Some(Text(key)) = entries.next_key()? {
            let slot = match &*key {
                "External id" => &mut args.external_id,
                "Record function id" => &mut args.rf_id,
                "correlation" => &mut args.correlation,
                "stream" => &mut args.stream,
                "device" => &mut args.device,
                "bytes" => &mut args.bytes,
                "name" => &mut args.name,
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
pub(super) struct AllArgs(pub Vec<(String, String)>);

impl AllArgs {
    /// Reads the event at the start of `text` a second time.
    pub fn of(text: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Event {
            #[serde(default)]
            args: AllArgs,
        }
        let mut event = serde_json::Deserializer::from_slice(text);
        // The same text was parsed before, so this cannot fail.
        Event::deserialize(&mut event).map_or_else(|_| Self::default(), |event| event.args)
    }
}

impl<'de> Deserialize<'de> for AllArgs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AllArgsVisitor)
    }
}

struct AllArgsVisitor;

impl<'de> Visitor<'de> for AllArgsVisitor {
    type Value = AllArgs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of arguments")
    }

    fn visit_unit<E>(self) -> Result<AllArgs, E> {
        Ok(AllArgs::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<AllArgs, A::Error> {
        let mut args = Vec::new();
        while let Some((key, value)) = entries.next_entry::<String, &RawValue>()? {
            args.push((key, number::text(value.get()).into_owned()));
        }
        Ok(AllArgs(args))
    }
}
