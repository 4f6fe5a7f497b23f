//! Keys that identify settings in errors and notes.
//!
//! The library refers to a setting by its key, as in this example: "pass the groups with `groups`". A program with
//! other names for settings, such as command-line flags, registers them once with
//! [`register_setting_names_for_messages`]. They are global to the process, like the limits of [`crate::bounds`], and
//! appear only in messages, so no result depends on them.

use crate::config::{did_you_mean, find_most_similar_name};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::OnceLock;

/// Function that writes the name of a setting. It must not allocate, because messages about a lack of memory also
/// contain names.
pub type SettingNameWriter = fn(SettingKey, &mut fmt::Formatter<'_>) -> fmt::Result;

static NAMES: OnceLock<SettingNameWriter> = OnceLock::new();

/// Registers the names that messages use for settings. Calls after the first have no effect.
pub fn register_setting_names_for_messages(write_name: SettingNameWriter) {
    // The first registration is kept, because two programs in one process cannot both use their own names.
    let _ = NAMES.set(write_name);
}

/// A setting, identified by its key. `{}` prints the key in backquotes. `{:#}` prints the key without them, for use
/// inside backquotes. If the program has registered a name, both forms print it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingKey {
    /// Change the durations of collectives.
    Collective,
    /// Simulate one rank of each set of identical ranks, instead of all ranks.
    Aggregate,
    /// Bandwidth of each dimension, for a machine that is specified as a list of dimensions.
    Bandwidth,
    /// Source of times for uncontended collectives.
    Collectives,
    /// Source of times for collectives and messages.
    Comm,
    /// Source of kernel durations.
    Compute,
    /// Custom algorithm for one kind of collective.
    Custom,
    /// Random variation of kernel durations.
    Jitter,
    /// Change the durations of kernels.
    Kernel,
    /// Change values of the machine's file.
    Set,
    /// Ranks with slower kernels.
    Slow,
    /// Ranks that start later.
    Delays,
    /// Which dependencies of a trace to enforce.
    Dependencies,
    /// Print all rows of the tables in a text report.
    Details,
    /// Changes of a captured or generated job.
    Edits,
    /// Parts of the machine that fail during the replay.
    Fail,
    /// Fraction of peak rates that roofline kernels reach.
    Efficiency,
    /// Use all NPUs of each rack, although the machine's file leaves some free.
    FillDomains,
    /// Output format of the report.
    Format,
    /// Version (generation) of a trace's schema.
    Generation,
    /// Shape of the grid that a job's ranks form: the size of each dimension.
    Grid,
    /// Groups of ranks that traces do not declare.
    Groups,
    /// Source of times for host work.
    Host,
    /// Interpolation between the rates of a table.
    Interpolate,
    /// Latency of each dimension, for a machine that is specified as a list of dimensions.
    Latency,
    /// How the host launches work.
    Launch,
    /// Ignore unknown keys in ASTRA-sim's files.
    Lenient,
    /// Count bytes over each link.
    Links,
    /// List the sources of a conversion instead of converting.
    List,
    /// Treat communication of unknown size and duration as if it took no time.
    LowerBound,
    /// The simulated system.
    Machine,
    /// Memory limit of the process.
    MaxMemory,
    /// Expansion limit of compressed input.
    MaxRatio,
    /// Memory capacity of each chip.
    Memory,
    /// How to treat ranks without a trace.
    MissingRanks,
    /// Name of a served model.
    Model,
    /// Name of a workload in an archive.
    Name,
    /// Network model, which determines how messages contend.
    Network,
    /// Network model of ASTRA-sim to use.
    NetworkModel,
    /// Range of nodes to extract from a trace.
    Nodes,
    /// Rank order of a plan.
    Order,
    /// Files to write.
    Output,
    /// NPU on which each rank runs.
    Map,
    /// Quirks of ASTRA-sim that the replay reproduces.
    Quirks,
    /// Number of ranks in a job.
    Ranks,
    /// Machine on which kernels were recorded.
    RecordedOn,
    /// Replace a workload of an archive.
    Replace,
    /// Continue an earlier sweep.
    Resume,
    /// Keep the sound records of a damaged file.
    Salvage,
    /// Treatment of sharded buffers when a job is scaled: either their total size or each shard's size stays constant.
    Sharded,
    /// Simulate only one part of a sweep's points.
    Shard,
    /// Amount of detail that a comparison shows.
    Show,
    /// Latency limit that requests should meet.
    Slo,
    /// Captured step to convert or read.
    Step,
    /// Simulate every collective message by message.
    Stepwise,
    /// Table of a report to write as CSV.
    Table,
    /// Number of NPUs that share each matrix multiplication (tensor parallelism).
    Tensor,
    /// Draw a map of the tiles that a job uses.
    TileMap,
    /// Write a timeline of the replay.
    Timeline,
    /// Read files even if their digests differ.
    NoVerify,
    /// Recorded profiler time to remove.
    Without,
}

impl SettingKey {
    /// Returns the setting's key in files. Keys never change.
    pub fn display_key_in_files(self) -> impl fmt::Display {
        SettingKeyDisplay(self)
    }

    /// Returns true if the setting affects how the traces of a job are read.
    pub fn affects_trace_reading(self) -> bool {
        matches!(
            self,
            Self::NoVerify
                | Self::Groups
                | Self::Dependencies
                | Self::MissingRanks
                | Self::Ranks
                | Self::Without
                | Self::Delays
                | Self::Edits
                | Self::Step
        )
    }

    /// Returns the setting with `value` in backquotes, as both are written in files, for example `compute = curves`.
    pub fn format_as_entry(self, value: impl fmt::Display) -> String {
        format!("`{} = {value}`", self.display_key_in_files())
    }

    /// Formats the setting and `value` for messages. Uses the registered name if there is one; otherwise, formats them
    /// as [`Self::format_as_entry`] does.
    pub fn format_with_value(self, value: impl fmt::Display) -> String {
        match NAMES.get() {
            Some(_) => format!("{self} {value}"),
            None => self.format_as_entry(value),
        }
    }
}

/// A setting with a few possible values. Each value has a name in files.
pub trait EnumeratedSetting: Copy + PartialEq + 'static {
    /// The values, each with its name in files and its meaning.
    const CHOICES: &'static [(Self, &'static str, &'static str)];

    /// Returns the value's name. The name is empty if users can select the value only by omitting the setting.
    fn choice_name(self) -> &'static str {
        let found = Self::CHOICES.iter().find(|(value, ..)| *value == self);
        found.map_or("", |(_, word, _)| *word)
    }

    /// Returns the value that `text` names.
    ///
    /// # Errors
    ///
    /// Fails if no value has this name. The error lists the expected names.
    fn parse_named_choice(text: &str) -> Result<Self, String> {
        let found = Self::CHOICES.iter().find(|(_, word, _)| *word == text);
        found.map(|(value, ..)| *value).ok_or_else(|| {
            let words: Vec<&str> = Self::CHOICES.iter().map(|(_, word, _)| *word).collect();
            let near = find_most_similar_name(text, words.iter().copied());
            format!("expected one of {}{}", words.join(", "), did_you_mean(near))
        })
    }
}

struct SettingKeyDisplay(SettingKey);

impl fmt::Display for SettingKeyDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.serialize(f)
    }
}

impl fmt::Display for SettingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.get() {
            Some(write_name) => write_name(*self, f),
            None if f.alternate() => self.serialize(f),
            None => write!(f, "`{}`", self.display_key_in_files()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_show_file_keys_without_registered_names() {
        let text = format!(
            "set {}, `{:#} 1` or {}",
            SettingKey::MissingRanks,
            SettingKey::Step,
            SettingKey::RecordedOn.format_with_value("dgx-h100")
        );
        assert_eq!(
            text,
            "set `missing_ranks`, `step 1` or `recorded_on = dgx-h100`"
        );
    }
}
