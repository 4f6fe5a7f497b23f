//! Keys of settings, as named in errors and notes.
//!
//! The library names a setting by its key: "pass the groups with `groups`". A program with other names for settings,
//! such as the flags of a command line, registers its names once with [`name_as`]. Names are global to the process,
//! like the limits of [`crate::bounds`], and appear only in messages: no result depends on them.

use crate::config::{did_you_mean, nearest};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::OnceLock;

/// Function that writes the name of a setting. The function must not allocate, because messages
/// about a lack of memory also contain names.
pub type NameWriter = fn(SettingKey, &mut fmt::Formatter<'_>) -> fmt::Result;

static NAMES: OnceLock<NameWriter> = OnceLock::new();

/// Registers the names that messages use for settings. Later calls have no effect.
pub fn name_as(write_name: NameWriter) {
    // The first registration wins; two programs in one process cannot both have their names.
    let _ = NAMES.set(write_name);
}

/// A setting by its key. `{}` prints the key in backquotes; `{:#}` prints it without backquotes,
/// for use within them. If a name is registered, both print the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingKey {
    /// Changed durations of collectives.
    Collective,
    /// Simulate one of several identical ranks for all of them.
    Aggregate,
    /// Bandwidth of each dimension, for a machine in the notation of dimensions.
    Bandwidth,
    /// Source of the times of uncontended collectives.
    Collectives,
    /// Source of the times of collectives and messages.
    Comm,
    /// Source of the durations of kernels.
    Compute,
    /// Custom algorithm for one kind of collective.
    Custom,
    /// Random variation of kernel durations.
    Jitter,
    /// Changed durations of kernels.
    Kernel,
    /// Changed values of keys in the machine's file.
    Set,
    /// Ranks with slower kernels.
    Slow,
    /// Ranks that start later.
    Delays,
    /// Dependencies to enforce.
    Dependencies,
    /// Print all rows of a report's text.
    Details,
    /// Changes of a captured or generated job.
    Edits,
    /// Parts of the machine that fail during the replay.
    Fail,
    /// Fraction of peak rates that roofline kernels reach.
    Efficiency,
    /// Use all NPUs of each rack.
    FillDomains,
    /// Format of a report.
    Format,
    /// Schema generation of a trace.
    Generation,
    /// Sizes of the dimensions of a job's ranks.
    Grid,
    /// Groups of ranks that traces do not declare.
    Groups,
    /// Source of the times of host work.
    Host,
    /// Interpolation between the rates of a table.
    Interpolate,
    /// Latency of each dimension, for a machine in the notation of dimensions.
    Latency,
    /// Mode in which the host launches work.
    Launch,
    /// Ignore unknown keys of ASTRA-sim's files.
    Lenient,
    /// Count bytes over each link.
    Links,
    /// List the sources of a conversion instead of converting.
    List,
    /// Treat communication of unknown size and duration as instantaneous.
    LowerBound,
    /// The simulated system.
    Machine,
    /// Memory limit of the process.
    MaxMemory,
    /// Expansion limit of compressed input.
    MaxRatio,
    /// Memory of a chip.
    Memory,
    /// Treatment of ranks without a trace.
    MissingRanks,
    /// Name of a served model.
    Model,
    /// Name of a workload in an archive.
    Name,
    /// Network contention model.
    Network,
    /// ASTRA-sim's network to use.
    NetworkModel,
    /// Range of nodes to extract.
    Nodes,
    /// Rank order of a plan.
    Order,
    /// Files to write.
    Output,
    /// NPU of each rank.
    Map,
    /// Quirks of ASTRA-sim to reproduce.
    Quirks,
    /// Number of ranks of a job.
    Ranks,
    /// Machine on which kernels were recorded.
    RecordedOn,
    /// Replace a workload of an archive.
    Replace,
    /// Continue an earlier sweep.
    Resume,
    /// Keep the sound records of a damaged file.
    Salvage,
    /// Effect of scaling on the size of shards.
    Sharded,
    /// Part of a sweep's points.
    Shard,
    /// Amount of detail of a comparison.
    Show,
    /// Limit on the time of requests.
    Slo,
    /// Captured step to convert or read.
    Step,
    /// Simulate every collective message by message.
    Stepwise,
    /// Table of a report in CSV.
    Table,
    /// Number of parts of each matrix product (tensor parallelism).
    Tensor,
    /// Drawing of a machine of tiles.
    TileMap,
    /// Timeline of a replay.
    Timeline,
    /// Read files whose digests differ.
    NoVerify,
    /// Recorded time of the profiler to remove.
    Without,
}

impl SettingKey {
    /// Returns the setting's key in files. Keys never change.
    pub fn key(self) -> impl fmt::Display {
        PlainKey(self)
    }

    /// Returns true if the setting affects how the traces of a job are read.
    pub fn is_of_traces(self) -> bool {
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

    /// Returns the setting with `value` in the form of files, in backquotes: `compute = curves`.
    pub fn entry(self, value: impl fmt::Display) -> String {
        format!("`{} = {value}`", self.key())
    }

    /// Returns the setting with `value`, for messages: [`Self::entry`], or the registered name and the value.
    pub fn with(self, value: impl fmt::Display) -> String {
        match NAMES.get() {
            Some(_) => format!("{self} {value}"),
            None => self.entry(value),
        }
    }
}

/// A setting with a few possible values, each with a word.
pub trait SettingChoice: Copy + PartialEq + 'static {
    /// The values, with their words in files and their meanings.
    const CHOICES: &'static [(Self, &'static str, &'static str)];

    /// Returns the value's word (empty for a value that only the absence of the setting selects).
    fn word(self) -> &'static str {
        let found = Self::CHOICES.iter().find(|(value, ..)| *value == self);
        found.map_or("", |(_, word, _)| *word)
    }

    /// Returns the value of a word.
    ///
    /// # Errors
    ///
    /// Returns a list of the expected words.
    fn parse(text: &str) -> Result<Self, String> {
        let found = Self::CHOICES.iter().find(|(_, word, _)| *word == text);
        found.map(|(value, ..)| *value).ok_or_else(|| {
            let words: Vec<&str> = Self::CHOICES.iter().map(|(_, word, _)| *word).collect();
            let near = nearest(text, words.iter().copied());
            format!("expected one of {}{}", words.join(", "), did_you_mean(near))
        })
    }
}

struct PlainKey(SettingKey);

impl fmt::Display for PlainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.serialize(f)
    }
}

impl fmt::Display for SettingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.get() {
            Some(write_name) => write_name(*self, f),
            None if f.alternate() => self.serialize(f),
            None => write!(f, "`{}`", self.key()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_settings_by_their_keys() {
        let text = format!(
            "set {}, `{:#} 1` or {}",
            SettingKey::MissingRanks,
            SettingKey::Step,
            SettingKey::RecordedOn.with("dgx-h100")
        );
        assert_eq!(
            text,
            "set `missing_ranks`, `step 1` or `recorded_on = dgx-h100`"
        );
    }
}
