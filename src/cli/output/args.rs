//! Values of replay options.

use chakram_engine::CommTiming;
use chakram_hardware::network::NetworkKind;
use chakram_report::report_csv::CsvTable;
use clap::ValueEnum;
use clap::builder::PossibleValue;

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
    /// Returns how the engine times communication.
    pub fn policy(self) -> CommTiming {
        match self {
            Self::Model => CommTiming::Model,
            Self::Captured => CommTiming::Captured,
            Self::Recorded => CommTiming::Recorded,
        }
    }
}

/// Model of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkArg(NetworkKind);

impl NetworkArg {
    const ALL: [Self; NetworkKind::ALL.len()] = {
        let mut all = [Self(NetworkKind::ContentionFree); NetworkKind::ALL.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = Self(NetworkKind::ALL[i].0);
            i += 1;
        }
        all
    };

    /// Returns the model of the network.
    pub fn model(self) -> NetworkKind {
        self.0
    }
}

impl ValueEnum for NetworkArg {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let [name, summary] = self.0.option();
        Some(PossibleValue::new(name).help(summary))
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
