//! Settings that errors and notes refer to.
//!
//! The library calls a setting by its key: "pass the groups with `groups`". A program whose users know settings by
//! other names, as a command line does by its flags, registers those names once with [`name_as`]. Names belong to the
//! process, as the limits of [`crate::bounds`] do, and appear in messages only: no result depends on them.

use crate::config::{did_you_mean, nearest};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::OnceLock;

/// Writes the name of a setting. It must not allocate: the message of a process that is out of memory has a name too.
pub type NameWriter = fn(SettingKey, &mut fmt::Formatter<'_>) -> fmt::Result;

static NAMES: OnceLock<NameWriter> = OnceLock::new();

/// Makes messages call settings by the names that `write_name` writes. Later calls have no effect.
pub fn name_as(write_name: NameWriter) {
    // Two programs in one process would each print the other's names.
    let _ = NAMES.set(write_name);
}

/// A setting by its key. `{}` prints the key in backquotes, and `{:#}` without, for use within backquotes; both print
/// the registered name where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingKey {
    /// Collectives that last otherwise.
    Collective,
    /// Let one of several identical ranks run for all of them.
    Aggregate,
    /// Bandwidth of each dimension of a machine that is given by its dimensions.
    Bandwidth,
    /// What times uncontended collectives.
    Collectives,
    /// What times collectives and messages.
    Comm,
    /// What prices kernels.
    Compute,
    /// Custom algorithm of a kind of collective.
    Custom,
    /// Times of kernels that vary at random.
    Jitter,
    /// Kernels that last otherwise.
    Kernel,
    /// Keys of the machine's file that have other values.
    Set,
    /// Ranks whose kernels last longer.
    Slow,
    /// Ranks that start later.
    Delays,
    /// Which dependencies to enforce.
    Dependencies,
    /// All rows of a report's text.
    Details,
    /// Changes of a captured or generated job.
    Edits,
    /// Parts of the machine that fail during the replay.
    Fail,
    /// Part of the peak rates that kernels by roofline reach.
    Efficiency,
    /// Use all NPUs of each rack.
    FillDomains,
    /// Format of a report.
    Format,
    /// Schema generation of a trace.
    Generation,
    /// Sizes of the dimensions that a job's ranks fill.
    Grid,
    /// Groups of ranks that traces do not declare.
    Groups,
    /// What times host work.
    Host,
    /// How to read rates between those of a table.
    Interpolate,
    /// Latency of each dimension of a machine that is given by its dimensions.
    Latency,
    /// How the host launches work.
    Launch,
    /// Ignore unknown keys of ASTRA-sim's files.
    Lenient,
    /// Count bytes over each link.
    Links,
    /// Describe the sources of a conversion.
    List,
    /// Give communication without size and duration no time.
    LowerBound,
    /// The simulated system.
    Machine,
    /// Memory limit of the process.
    MaxMemory,
    /// Expansion limit of compressed input.
    MaxRatio,
    /// Memory of a chip.
    Memory,
    /// What replaces ranks without a trace.
    MissingRanks,
    /// Name of a served model.
    Model,
    /// Name of a workload in an archive.
    Name,
    /// Network contention model.
    Network,
    /// Which of ASTRA-sim's networks to use.
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
    /// What scaling does to the size of shards.
    Sharded,
    /// Part of a sweep's points.
    Shard,
    /// How much of a comparison to print.
    Show,
    /// Limit on the time of requests.
    Slo,
    /// Captured step to convert or read.
    Step,
    /// Carry out every collective message by message.
    Stepwise,
    /// Table of a report in CSV.
    Table,
    /// Parts of each product.
    Tensor,
    /// Drawing of a machine of tiles.
    TileMap,
    /// Timeline of a replay.
    Timeline,
    /// Read files whose digests differ.
    NoVerify,
    /// Recorded costs to remove.
    Without,
}

impl SettingKey {
    /// Returns its key as files have it, which is stable.
    pub fn key(self) -> impl fmt::Display {
        PlainKey(self)
    }

    /// Returns whether it says how the traces of a job are read.
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

    /// Returns the setting with `value` as files have it: `compute = curves`, in backquotes.
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

/// A value of a setting that is one of a few, each with a word.
pub trait SettingChoice: Copy + PartialEq + 'static {
    /// The values with their words, as files have them, and what they do.
    const CHOICES: &'static [(Self, &'static str, &'static str)];

    /// Returns its word, which is empty if a setting means the value only by its absence.
    fn word(self) -> &'static str {
        let found = Self::CHOICES.iter().find(|(value, ..)| *value == self);
        found.map_or("", |(_, word, _)| *word)
    }

    /// Returns the value of a word.
    ///
    /// # Errors
    ///
    /// The words that are expected.
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
