//! Facts about where a report comes from: the program, its inputs, the machine, and the sources of times. The module
//! also formats numbers for users.

use chakram_base::units::Span;
use chakram_engine::CommunicationDurationSource;
use chakram_hardware::machine::Machine;
use chakram_trace::graph::NodeKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;

pub use chakram_base::units::{format_count_with_noun, format_thousands};

/// Schema version of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub enum ReportSchema {
    /// Version 1.
    #[default]
    #[serde(rename = "chakram.report.1")]
    V1,
}

/// Program, options and input files behind a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Provenance {
    /// Version of the program.
    pub tool_version: String,
    /// Options with which the program was called, by name.
    pub options: Map<String, Value>,
    /// Input files and presets, with their hashes.
    pub inputs: Vec<HashedInput>,
}

impl Provenance {
    /// Creates the provenance of a document, with the version of this program.
    pub fn new(options: Map<String, Value>, inputs: &[HashedInput]) -> Self {
        Self {
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            options,
            inputs: inputs.to_vec(),
        }
    }
}

/// An input of the replay: its role, its name, and the hash of its contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct HashedInput {
    /// Role of the input: `trace`, `machine`, `groups` or `custom`.
    pub role: Cow<'static, str>,
    /// File path, or name of a preset.
    pub name: String,
    /// BLAKE3 hash of the contents, in hexadecimal.
    pub blake3: String,
}

/// Name and size of a machine in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MachineNameAndSize {
    /// Name of the machine.
    pub name: String,
    /// Number of NPUs of the machine.
    pub npus: u32,
}

impl MachineNameAndSize {
    /// Returns the name and size of `machine`.
    pub fn from_machine(machine: &Machine) -> Self {
        Self {
            name: machine.name().to_owned(),
            npus: machine.topology().npu_count(),
        }
    }
}

/// Number of kernels timed by each method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct KernelCountsByDurationMethod {
    /// Number of kernels timed as the options request: by recorded durations, or by roofline.
    pub priced: u64,
    /// Number of kernels timed by curves of measured kernels.
    #[serde(default)]
    pub by_curves: u64,
    /// Number of kernels timed by roofline because they lack the recorded duration that the options request.
    #[serde(default)]
    pub estimated: u64,
    /// Number of kernels that keep their recorded duration because the roofline does not know their FLOPs, their bytes
    /// or a peak rate.
    pub kept_recorded: u64,
    /// Number of kernels that take no time because their work and their duration are both unknown.
    pub unknown: u64,
}

/// Methods that determined the durations of collectives and messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct CommunicationTimingMethods {
    /// States whether durations come from the network model or from the traces.
    #[serde(rename = "timing", default)]
    pub lasts_as: CommunicationDurationSource,
    /// Number of nodes that keep recorded or captured durations.
    #[serde(rename = "recorded")]
    pub as_recorded: u64,
    /// Number of nodes that take no time because they lack the recorded duration that they should keep.
    pub unknown: u64,
}

/// Exposed communication of one group, summed over NPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct GroupExposedCommunicationRow {
    /// Name of the group, or `messages between ranks`.
    #[serde(rename = "name")]
    pub what: String,
    /// Number of members in the group; 0 for messages.
    #[serde(default)]
    pub members: u32,
    /// Exposed communication time, summed over NPUs.
    #[serde(rename = "sum_over_npus_ps")]
    pub exposed: Span,
    /// Role of the group in the job, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// Name that users see for all sends and receives.
pub(super) const MESSAGES: &str = "messages between ranks";
/// Name that users see for communication with an unknown operation or unknown partners.
pub(super) const UNKNOWN_COMMUNICATION: &str = "unknown communication";

impl KernelCountsByDurationMethod {
    /// Returns the number of kernels timed by all methods together.
    pub fn kernel_count(&self) -> u64 {
        self.priced + self.by_curves + self.estimated + self.kept_recorded + self.unknown
    }
}

/// Formats a number of groups and their size, as in `128 groups of 8`.
pub(super) fn format_group_count_and_size(groups: usize, members: u32) -> String {
    format!(
        "{} of {members}",
        format_count_with_noun(groups as u64, "group")
    )
}

/// Returns by how much `found` exceeds `expected`, as a percentage of `expected`; `None` if `expected` is zero.
pub fn percent_more(found: Span, expected: Span) -> Option<f64> {
    let (found, expected) = (found.0 as f64, expected.0 as f64);
    (expected > 0.0).then(|| 100.0 * (found - expected) / expected)
}

/// Returns `sum / count`, rounded to the nearest picosecond.
pub(super) fn mean_span_from_sum(sum: Span, count: usize) -> Span {
    rounded_mean_span(sum.0.into(), count)
}

pub(super) fn rounded_mean_span(sum: u128, count: usize) -> Span {
    let count = count.max(1) as u128;
    Span(((sum + count / 2) / count) as u64)
}

/// Returns the name that users see for a node kind.
pub fn node_kind_label(kind: NodeKind) -> &'static str {
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
        // 103 - 100 is 3 percent of 100, and 50 - 200 is -75 percent of 200.
        assert_eq!(percent_more(Span(103), Span(100)), Some(3.0));
        assert_eq!(percent_more(Span(50), Span(200)), Some(-75.0));
        assert_eq!(percent_more(Span(50), Span::ZERO), None);
    }
}
