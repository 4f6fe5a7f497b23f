//! Values of replay options.

use chakram_report::report_csv::CsvTable;
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
    /// Profiled steps of a captured job, and where their time went
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
    /// What would help most, which is found if this is asked for
    Sensitivities,
    /// Tokens per second and money, in one row
    Cost,
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
