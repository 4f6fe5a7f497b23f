//! What options of a replay can be.

use crate::engine::Comm;
use crate::network::Model;
use crate::report::csv::Table;
use clap::ValueEnum;

/// How reports are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs; times in picoseconds
    Json,
    /// One table, for spreadsheets
    Csv,
}

/// How durations of communication are found.
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
    pub(super) fn policy(self) -> Comm {
        match self {
            Self::Model => Comm::Model,
            Self::Captured => Comm::Captured,
            Self::Recorded => Comm::Recorded,
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
    pub(super) fn model(self) -> Model {
        match self {
            Self::ContentionFree => Model::ContentionFree,
            Self::Ports => Model::Ports,
            Self::Links => Model::Links,
        }
    }
}

/// What becomes of a replay that does not fit into the memory of the NPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fit {
    /// The report says so
    Report,
    /// The report says so, and the exit code is 3
    Require,
}

/// Tables of `--format csv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableArg {
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
impl TableArg {
    /// The table of single reports that this is.
    pub(super) fn single(self) -> Option<Table> {
        match self {
            Self::Compare => None,
            Self::Npus => Some(Table::Npus),
            Self::Collectives => Some(Table::Collectives),
            Self::Operators => Some(Table::Operators),
            Self::Memory => Some(Table::Memory),
        }
    }
}
