//! Settings of a machine's network other than its links: the table `network` of machine files.

use crate::network::{NetworkModelKind, SendCompletionRule};
use crate::topology::{SwitchingMode, Topology};
use serde::{Serialize, Serializer};
use std::fmt::Display;

/// Settings of the network other than its links, as machine files and JSON state them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NetworkSettings {
    /// Network model, which a replay may override.
    #[serde(serialize_with = "serialize_as_displayed")]
    pub model: NetworkModelKind,
    /// Rule by which the devices between links forward messages. In JSON, it is the number of a message's bytes that
    /// must arrive before a device forwards them, or null for the whole message.
    #[serde(
        rename = "segment_bytes",
        serialize_with = "serialize_switching_segment"
    )]
    pub switching: SwitchingMode,
    /// Rule for when a send between two ranks completes; it is the same under every network model.
    #[serde(serialize_with = "serialize_as_displayed")]
    pub send_completion: SendCompletionRule,
}

impl Default for NetworkSettings {
    fn default() -> Self {
        Self {
            model: NetworkModelKind::default(),
            switching: SwitchingMode::IDEAL,
            send_completion: SendCompletionRule::default(),
        }
    }
}

impl NetworkSettings {
    /// Returns `topology` with the settings that affect its paths.
    pub(super) fn apply_to_topology(self, topology: Topology) -> Topology {
        topology.with_switching(self.switching)
    }

    /// Formats the settings that differ from the default, except the model:
    /// `, store-and-forward, sends complete when delivered`.
    pub fn describe_non_default_settings(self) -> String {
        let default = Self::default();
        let mut text = String::new();
        if self.switching != default.switching {
            text += &format!(", {}", self.switching);
        }
        if self.send_completion != default.send_completion {
            text += &format!(", sends complete when {}", self.send_completion);
        }
        text
    }

    /// Iterates over the names of the settings that differ from `other`. Excludes the switching mode, which is a
    /// property of paths.
    pub fn list_differences(self, other: Self) -> impl Iterator<Item = &'static str> {
        [
            (self.model != other.model, "network model"),
            (
                self.send_completion != other.send_completion,
                "end of sends",
            ),
        ]
        .into_iter()
        .filter_map(|(differs, what)| differs.then_some(what))
    }
}

fn serialize_as_displayed<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

fn serialize_switching_segment<S: Serializer>(
    switching: &SwitchingMode,
    to: S,
) -> Result<S::Ok, S::Error> {
    match switching {
        SwitchingMode::CutThrough { segment } => to.serialize_some(&segment.0),
        SwitchingMode::StoreAndForward => to.serialize_none(),
    }
}
