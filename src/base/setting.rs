//! Settings that errors and notes refer to.
//!
//! The library calls a setting by its key: "pass the groups with `groups`". A program whose users know settings by
//! other names, as a command line does by its flags, registers those names once with [`name_as`]. Names belong to the
//! process, as the limits of [`crate::bounds`] do, and appear in messages only: no result depends on them.

use std::fmt;
use std::sync::OnceLock;

static NAMES: OnceLock<fn(SettingKey) -> &'static str> = OnceLock::new();

/// Makes messages call settings by the names that `name` returns. Later calls have no effect.
pub fn name_as(name: fn(SettingKey) -> &'static str) {
    // Two programs in one process would each print the other's names.
    let _ = NAMES.set(name);
}

/// A setting by its key. `{}` prints the key in backquotes, and `{:#}` without, for use within backquotes; both print
/// the registered name where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingKey {
    /// Bandwidth of each dimension of a machine that is given by its dimensions.
    Bandwidth,
    /// What times collectives and messages.
    Comm,
    /// What prices kernels.
    Compute,
    /// Custom algorithm of a kind of collective.
    Custom,
    /// Ranks that start later.
    Delays,
    /// Which dependencies to enforce.
    Dependencies,
    /// All rows of a report's text.
    Details,
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
    /// How to read rates between those of a table.
    Interpolate,
    /// Latency of each dimension of a machine that is given by its dimensions.
    Latency,
    /// Ignore unknown keys of ASTRA-sim's files.
    Lenient,
    /// Count bytes over each link.
    Links,
    /// Describe the sources of a conversion.
    List,
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
    /// Captured step to convert.
    Step,
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

/// Keys, in the order of the variants.
const KEYS: [(SettingKey, &str); 46] = [
    (SettingKey::Bandwidth, "bandwidth"),
    (SettingKey::Comm, "comm"),
    (SettingKey::Compute, "compute"),
    (SettingKey::Custom, "custom"),
    (SettingKey::Delays, "delays"),
    (SettingKey::Dependencies, "dependencies"),
    (SettingKey::Details, "details"),
    (SettingKey::FillDomains, "fill_domains"),
    (SettingKey::Format, "format"),
    (SettingKey::Generation, "generation"),
    (SettingKey::Grid, "grid"),
    (SettingKey::Groups, "groups"),
    (SettingKey::Interpolate, "interpolate"),
    (SettingKey::Latency, "latency"),
    (SettingKey::Lenient, "lenient"),
    (SettingKey::Links, "links"),
    (SettingKey::List, "list"),
    (SettingKey::Machine, "machine"),
    (SettingKey::MaxMemory, "max_memory"),
    (SettingKey::MaxRatio, "max_ratio"),
    (SettingKey::Memory, "memory"),
    (SettingKey::MissingRanks, "missing_ranks"),
    (SettingKey::Model, "model"),
    (SettingKey::Name, "name"),
    (SettingKey::Network, "network"),
    (SettingKey::NetworkModel, "network_model"),
    (SettingKey::Nodes, "nodes"),
    (SettingKey::Order, "order"),
    (SettingKey::Output, "output"),
    (SettingKey::Map, "map"),
    (SettingKey::Quirks, "quirks"),
    (SettingKey::Ranks, "ranks"),
    (SettingKey::Replace, "replace"),
    (SettingKey::Resume, "resume"),
    (SettingKey::Salvage, "salvage"),
    (SettingKey::Sharded, "sharded"),
    (SettingKey::Shard, "shard"),
    (SettingKey::Show, "show"),
    (SettingKey::Slo, "slo"),
    (SettingKey::Step, "step"),
    (SettingKey::Table, "table"),
    (SettingKey::Tensor, "tensor"),
    (SettingKey::TileMap, "tile_map"),
    (SettingKey::Timeline, "timeline"),
    (SettingKey::NoVerify, "no_verify"),
    (SettingKey::Without, "without"),
];

impl SettingKey {
    /// Iterates over all settings.
    pub fn all() -> impl Iterator<Item = Self> {
        KEYS.iter().map(|(setting, _)| *setting)
    }

    /// Returns its key, which is stable.
    pub fn key(self) -> &'static str {
        KEYS[self as usize].1
    }
}

impl fmt::Display for SettingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.get() {
            Some(name) => f.write_str(name(*self)),
            None if f.alternate() => f.write_str(self.key()),
            None => write!(f, "`{}`", self.key()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_settings_by_their_keys() {
        assert!(
            SettingKey::all()
                .enumerate()
                .all(|(i, setting)| setting as usize == i)
        );
        let text = format!(
            "set {} or `{:#} 1`",
            SettingKey::MissingRanks,
            SettingKey::Step
        );
        assert_eq!(text, "set `missing_ranks` or `step 1`");
    }
}
