//! Values of replay options.

use crate::engine::CommTiming;
use crate::network::NetworkKind;
use crate::report::csv::CsvTable;
use clap::ValueEnum;

/// Format of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormatArg {
    /// For people
    Text,
    /// For programs; times in picoseconds
    Json,
    /// One table, for spreadsheets
    Csv,
}

/// Source of durations of communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CommArg {
    /// As the machine's network has it
    Model,
    /// As captured, waiting included, each rank by itself: what a conversion kept
    Captured,
    /// Transfers as recorded; who waits for whom comes out of the replay
    Recorded,
}

impl CommArg {
    pub fn policy(self) -> CommTiming {
        match self {
            Self::Model => CommTiming::Model,
            Self::Captured => CommTiming::Captured,
            Self::Recorded => CommTiming::Recorded,
        }
    }
}

/// Models of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetworkArg {
    /// Operations do not slow one another
    ContentionFree,
    /// All operations share each NPU's port into a dimension
    Ports,
    /// All operations share every link of every route
    Links,
}

impl NetworkArg {
    pub fn model(self) -> NetworkKind {
        match self {
            Self::ContentionFree => NetworkKind::ContentionFree,
            Self::Ports => NetworkKind::Ports,
            Self::Links => NetworkKind::Links,
        }
    }
}

/// Policy for a replay that does not fit into the memory of the NPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnMemoryOverflow {
    /// The report says so
    Report,
    /// The report says so, and the exit code is 3
    Require,
}

/// Tables of `--format csv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportTableArg {
    /// Where the time of each NPU goes, and when its rank finished
    #[value(alias = "ranks")]
    Npus,
    /// Collectives by group and kind
    Collectives,
    /// Operators by name
    Operators,
    /// The peak memory of each NPU, by class, when and where
    Memory,
    /// A row per machine; what several machines print if nothing else is asked for
    Compare,
}
impl ReportTableArg {
    /// The table of single reports that this is.
    pub(super) fn single(self) -> Option<CsvTable> {
        match self {
            Self::Compare => None,
            Self::Npus => Some(CsvTable::Npus),
            Self::Collectives => Some(CsvTable::Collectives),
            Self::Operators => Some(CsvTable::Operators),
            Self::Memory => Some(CsvTable::Memory),
        }
    }
}
