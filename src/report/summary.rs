//! What a report says of itself: the program and its inputs, the machine, what times rest on; and how it says numbers.

use chakram_base::units::Span;
use chakram_engine::CommTiming;
use chakram_hardware::machine::Machine;
use chakram_trace::graph::NodeKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;

pub use chakram_base::units::{counted, thousands};

/// Version of the form of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub enum ReportSchema {
    /// The first.
    #[default]
    #[serde(rename = "chakram.report.1")]
    V1,
}

/// The program, its options and the files it read, which led to a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Provenance {
    /// Version of the program.
    pub tool_version: String,
    /// Options by name.
    pub options: Map<String, Value>,
    /// Files, and presets.
    pub inputs: Vec<HashedInput>,
}

impl Provenance {
    /// Makes that of a document that this program writes.
    pub fn new(options: Map<String, Value>, inputs: &[HashedInput]) -> Self {
        Self {
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            options,
            inputs: inputs.to_vec(),
        }
    }
}

/// An input of the replay: what it was for, its name, and the hash of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct HashedInput {
    /// `trace`, `machine`, `groups`, `custom`.
    pub role: Cow<'static, str>,
    /// The file, or the name of a preset.
    pub name: String,
    /// BLAKE3 of its bytes, in hexadecimal.
    pub blake3: String,
}

/// A machine as reports name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MachineName {
    /// Its name.
    pub name: String,
    /// Number of its NPUs.
    pub npus: u32,
}

impl MachineName {
    /// Names `machine`.
    pub fn of(machine: &Machine) -> Self {
        Self {
            name: machine.name().to_owned(),
            npus: machine.topology().npus(),
        }
    }
}

/// Number of kernels whose durations rest on one thing or another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct KernelBasis {
    /// Priced as asked for: as recorded, or by roofline.
    pub priced: u64,
    /// Priced by curves of measured kernels.
    #[serde(default)]
    pub by_curves: u64,
    /// Priced by roofline although durations as recorded were asked for, because none was recorded.
    #[serde(default)]
    pub estimated: u64,
    /// Kept their recorded duration, because the roofline lacks FLOPs, bytes or a peak.
    pub kept_recorded: u64,
    /// Take no time, because nothing is known of them.
    pub unknown: u64,
}

/// Basis of the durations of collectives and messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct CommunicationBasis {
    /// Whether the network carried them, or they last as in the traces.
    #[serde(rename = "timing", default)]
    pub lasts_as: CommTiming,
    /// Number of nodes that last as recorded or captured.
    #[serde(rename = "recorded")]
    pub as_recorded: u64,
    /// Number of nodes that would, but for which the trace has no duration; they take no time.
    pub unknown: u64,
}

/// Exposed communication of a group, summed over its NPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ExposedRow {
    /// The group, or messages between ranks.
    #[serde(rename = "name")]
    pub what: String,
    /// Number of its members; none of messages.
    #[serde(default)]
    pub members: u32,
    /// The sum over NPUs.
    #[serde(rename = "sum_over_npus_ps")]
    pub exposed: Span,
    /// The purpose of the group, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// Sends and receives together, as people call them.
pub(super) const MESSAGES: &str = "messages between ranks";
/// Name of communication of which the traces do not state the operation or the partners.
pub(super) const UNKNOWN_COMMUNICATION: &str = "unknown communication";

impl KernelBasis {
    /// Returns the number of kernels.
    pub fn all(&self) -> u64 {
        self.priced + self.by_curves + self.estimated + self.kept_recorded + self.unknown
    }
}

/// `128 groups of 8`.
pub(super) fn groups_of(groups: usize, members: u32) -> String {
    format!("{} of {members}", counted(groups as u64, "group"))
}

/// By how much `found` is more than `expected`, in percent of that; `None` when that is nothing.
pub fn percent_more(found: Span, expected: Span) -> Option<f64> {
    let (found, expected) = (found.0 as f64, expected.0 as f64);
    (expected > 0.0).then(|| 100.0 * (found - expected) / expected)
}

/// `sum` over `count`, to the nearest picosecond.
pub(super) fn mean(sum: Span, count: usize) -> Span {
    rounded(sum.0.into(), count)
}

pub(super) fn rounded(sum: u128, count: usize) -> Span {
    let count = count.max(1) as u128;
    Span(((sum + count / 2) / count) as u64)
}

/// Returns the kind of node of an operator, for people.
pub fn kind_label(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Nothing => "nothing",
        NodeKind::Host => "host",
        NodeKind::Compute => "compute",
        NodeKind::LocalMemory => "local memory",
        NodeKind::RemoteMemory => "remote memory",
        NodeKind::Send => "send",
        NodeKind::Receive => "receive",
        NodeKind::Collective => "collective",
        NodeKind::Communication => "communication",
    }
}

#[cfg(test)]
mod tests {
    use super::percent_more;
    use chakram_base::units::Span;

    #[test]
    fn differences_are_in_percent_of_what_was_captured() {
        // 103 - 100 = 3 of 100; 50 - 200 = -150 of 200.
        assert_eq!(percent_more(Span(103), Span(100)), Some(3.0));
        assert_eq!(percent_more(Span(50), Span(200)), Some(-75.0));
        assert_eq!(percent_more(Span(50), Span::ZERO), None);
    }
}
