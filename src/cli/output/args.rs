//! Values of replay options.

use crate::engine::CommTiming;
use crate::network::NetworkKind;
use crate::report::csv::CsvTable;
use clap::ValueEnum;

/// Format of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormatArg {
    /// Text for reading
    Text,
    /// JSON, times in picoseconds
    Json,
    /// One table as comma-separated values
    Csv,
}

/// Source of durations of communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CommArg {
    /// Simulated on the machine's network
    Model,
    /// As captured, waiting included: each rank by itself
    Captured,
    /// Transfers as recorded; waiting is simulated
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
    /// No contention between operations
    ContentionFree,
    /// Operations share each NPU's port into a dimension
    Ports,
    /// Operations share every link of their routes
    Links,
    /// Messages in flight share every link of their routes at once, max-min fairly
    FairSharing,
    /// A transfer holds all links of its route from start to end
    Exclusive,
}

impl NetworkArg {
    pub fn model(self) -> NetworkKind {
        match self {
            Self::ContentionFree => NetworkKind::ContentionFree,
            Self::Ports => NetworkKind::Ports,
            Self::Links => NetworkKind::Links,
            Self::FairSharing => NetworkKind::FairSharing,
            Self::Exclusive => NetworkKind::Exclusive,
        }
    }
}

/// Policy for a replay that does not fit into the memory of the NPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnMemoryOverflow {
    /// Warn in the report
    Report,
    /// Warn, and exit with code 3
    Require,
}

/// Tables of `--format csv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportTableArg {
    /// Time breakdown and finish of each NPU
    #[value(alias = "ranks")]
    Npus,
    /// Collectives by group and kind
    Collectives,
    /// Operators by name
    Operators,
    /// Peak memory of each NPU by tensor class
    Memory,
    /// Bytes and load of each link, which are counted if this is asked for
    Links,
    /// A row per machine; the default of several machines
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
            Self::Links => Some(CsvTable::Links),
        }
    }
}
