//! Values of report options.

use chakram_report::NodeTable;
use chakram_report::report_csv::ReportCsvTable;
use clap::ValueEnum;
use std::sync::{Arc, OnceLock};

/// Format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormatArg {
    /// Human-readable text
    Text,
    /// JSON, times in picoseconds
    Json,
    /// One table as comma-separated values
    Csv,
}

/// Receives the table of nodes for a caller in this process.
#[derive(Clone, Debug, Default)]
pub struct CallerNodeTableSlot(Option<Arc<OnceLock<NodeTable>>>);

impl CallerNodeTableSlot {
    /// Creates a sink that stores the table of nodes in `place`.
    pub fn store_table_in(place: Arc<OnceLock<NodeTable>>) -> Self {
        Self(Some(place))
    }

    /// Returns true if a caller requested the table of nodes.
    pub(super) fn is_node_table_requested(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn store_first_table(&self, table: NodeTable) {
        if let Some(place) = &self.0 {
            // The place is still empty, because a call replays only once.
            let _ = place.set(table);
        }
    }
}

/// What to do if peak memory exceeds the NPUs' capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MemoryOverflowAction {
    /// Warn in the report
    Report,
    /// Warn, and exit with code 3
    Require,
}

/// Tables that `--format csv` can print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportTableArg {
    /// Time breakdown and finish time of each NPU
    #[value(alias = "ranks")]
    Npus,
    /// Collectives by group and kind
    Collectives,
    /// Operators by name
    Operators,
    /// Profiled steps of a captured job, and how long each takes
    Steps,
    /// Modules of a captured program, by their path
    Modules,
    /// Peak memory of each NPU by tensor class
    Memory,
    /// Bytes and load of each link, counted only if this table is requested
    Links,
    /// Facts that the traces lack, and the times of the nodes without them
    Unknown,
    /// Settings that were given but have no effect, and why
    Settings,
    /// Gains from faster parts
    Sensitivities,
    /// Tokens per second and cost, in one row
    Cost,
    /// Start and end of each node, and why it waited
    Nodes,
    /// One row per machine; the default with several machines
    Compare,
}
impl ReportTableArg {
    /// Returns a single report's table with the same content as this one, or `None` if there is none.
    pub(super) fn to_single_report_table(self) -> Option<ReportCsvTable> {
        match self {
            Self::Compare | Self::Nodes => None,
            Self::Npus => Some(ReportCsvTable::Npus),
            Self::Collectives => Some(ReportCsvTable::Collectives),
            Self::Operators => Some(ReportCsvTable::Operators),
            Self::Steps => Some(ReportCsvTable::Steps),
            Self::Modules => Some(ReportCsvTable::Modules),
            Self::Memory => Some(ReportCsvTable::Memory),
            Self::Links => Some(ReportCsvTable::Links),
            Self::Unknown => Some(ReportCsvTable::Unknown),
            Self::Settings => Some(ReportCsvTable::Settings),
            Self::Sensitivities => Some(ReportCsvTable::Sensitivities),
            Self::Cost => Some(ReportCsvTable::Cost),
        }
    }
}
