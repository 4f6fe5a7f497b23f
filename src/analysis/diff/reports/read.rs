//! Reads reports that `chakram replay --format json` wrote.

use chakram_base::ids::Rank;
use chakram_report::MachineResult;
use chakram_report::Report;
use chakram_report::json::{InvalidReportDocumentError, ReportOrComparisonJson};
use chakram_report::summary::Provenance;
use serde_json::Value;
use std::borrow::Cow;

/// Reason why a document cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum InvalidOrCorruptReportError {
    /// The document is not a replay report.
    #[error(transparent)]
    Document(#[from] InvalidReportDocumentError),
    /// The parts of a rank's time do not sum to the makespan, so the report is corrupt.
    #[error(
        "the parts of rank {rank} sum to {sum} ps, but the makespan is {makespan} ps: the report was changed"
    )]
    Sum {
        /// Rank whose parts have the wrong sum.
        rank: Rank,
        /// Sum of the parts of the rank's time, in picoseconds.
        sum: u128,
        /// Makespan in picoseconds, which the sum should equal.
        makespan: u64,
    },
}

/// A report document, for one or several machines.
#[derive(Clone, Debug)]
pub struct ComparedReportDocument {
    /// Version, options and inputs of the program when it wrote the document.
    pub provenance: Provenance,
    /// Results, one per machine.
    pub machines: Vec<MachineResult<'static>>,
}

impl ComparedReportDocument {
    /// Returns the value of a replay option, as text.
    pub(super) fn format_replay_option(&self, name: &str) -> String {
        let value = self.provenance.options.get(name);
        value.map_or_else(|| "nothing".to_owned(), Value::to_string)
    }
}

/// Parses a report document for one or several machines.
pub fn parse_report_document(
    text: &str,
) -> Result<ComparedReportDocument, InvalidOrCorruptReportError> {
    let mut document = match ReportOrComparisonJson::parse_report_or_comparison(text)? {
        ReportOrComparisonJson::Report(report) => ComparedReportDocument {
            provenance: report.provenance.clone().unwrap_or_default(),
            machines: vec![MachineResult::Completed(Cow::Owned(*report))],
        },
        ReportOrComparisonJson::Comparison(comparison) => ComparedReportDocument {
            provenance: comparison.provenance,
            machines: comparison.machines,
        },
    };
    for machine in &mut document.machines {
        if let MachineResult::Completed(report) = machine {
            check_parts_sum_to_makespan(report)?;
            // Some reports have one row per micro-batch, others one row for all micro-batches. Sum over micro-batches,
            // so that both can be compared.
            report.to_mut().merge_micro_batch_operators();
        }
    }
    Ok(document)
}

/// Rejects a report in which a rank's parts do not sum to the makespan.
fn check_parts_sum_to_makespan(report: &Report) -> Result<(), InvalidOrCorruptReportError> {
    let makespan = report.outcome.makespan.0;
    for row in &report.rows {
        let sum: u128 = row.time.parts.iter().map(|part| u128::from(part.0)).sum();
        if sum != u128::from(makespan) {
            return Err(InvalidOrCorruptReportError::Sum {
                rank: row.rank,
                sum,
                makespan,
            });
        }
    }
    Ok(())
}
