//! Values of replay options.

use chakram_report::NodeTable;
use chakram_report::report_csv::CsvTable;
use clap::ValueEnum;
use std::sync::{Arc, OnceLock};

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

/// Receiver of the table of nodes, for callers in this process.
#[derive(Clone, Debug, Default)]
pub struct NodeSink(Option<Arc<OnceLock<NodeTable>>>);

impl NodeSink {
    /// Puts the table into `place`.
    pub fn into(place: Arc<OnceLock<NodeTable>>) -> Self {
        Self(Some(place))
    }

    /// Whether anybody receives it.
    pub(super) fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Hands over the table of the first replay.
    pub(super) fn fill(&self, table: NodeTable) {
        if let Some(place) = &self.0 {
            // A call replays once.
            let _ = place.set(table);
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
    /// Profiled steps of a captured job, and their time
    Steps,
    /// Modules of a captured program, by their path
    Modules,
    /// Peak memory of each NPU by tensor class
    Memory,
    /// Bytes and load of each link, which are counted if this is asked for
    Links,
    /// Facts that the traces leave unsaid, and how their nodes were timed
    Unknown,
    /// Settings that were given and change nothing, with the reason
    Settings,
    /// What would help most
    Sensitivities,
    /// Tokens per second and money, in one row
    Cost,
    /// When each node ran, and what it waited for
    Nodes,
    /// A row per machine; the default of several machines
    Compare,
}
impl ReportTableArg {
    /// The table of single reports that this is.
    pub(super) fn single(self) -> Option<CsvTable> {
        match self {
            Self::Compare | Self::Nodes => None,
            Self::Npus => Some(CsvTable::Npus),
            Self::Collectives => Some(CsvTable::Collectives),
            Self::Operators => Some(CsvTable::Operators),
            Self::Steps => Some(CsvTable::Steps),
            Self::Modules => Some(CsvTable::Modules),
            Self::Memory => Some(CsvTable::Memory),
            Self::Links => Some(CsvTable::Links),
            Self::Unknown => Some(CsvTable::Unknown),
            Self::Settings => Some(CsvTable::Settings),
            Self::Sensitivities => Some(CsvTable::Sensitivities),
            Self::Cost => Some(CsvTable::Cost),
        }
    }
}
