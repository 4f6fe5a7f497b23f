//! Renders differences between reports as a JSON document.

use super::{ReplayDiff, ReportDiffByMachine};
use crate::diff::render::json::{JobDifferenceFlagsDocument, SCHEMA};
use crate::diff::render::{ExceededThresholds, JobNamesAndDiffStyle};
use chakram_report::document::VersionedDocument;
use serde::{Serialize, Serializer};

/// The differences between reports as a JSON document.
#[derive(Debug, Serialize)]
pub struct ReportDiffDocument<'r> {
    of: &'static str,
    before: &'r str,
    after: &'r str,
    notes: &'r [String],
    only_before: &'r [String],
    only_after: &'r [String],
    differs: JobDifferenceFlagsDocument,
    replays: &'r [ReplayDiff],
    exceeded: &'r [String],
}

/// Converts the differences to a document.
pub fn build_report_diff_document<'r>(
    reports: &'r ReportDiffByMachine,
    titles: &JobNamesAndDiffStyle<'r>,
    verdict: &'r ExceededThresholds,
) -> VersionedDocument<ReportDiffDocument<'r>> {
    VersionedDocument::new(
        SCHEMA,
        ReportDiffDocument {
            of: "reports",
            before: titles.names[0],
            after: titles.names[1],
            notes: &reports.notes,
            only_before: &reports.only[0],
            only_after: &reports.only[1],
            differs: JobDifferenceFlagsDocument::new(|aspect| {
                reports.any_replay_differs_in_aspect(aspect)
            }),
            replays: &reports.replays,
            exceeded: &verdict.exceeded,
        },
    )
}

/// Serializes a change as a 64-bit integer; larger values saturate.
pub(super) fn serialize_change_as_saturated_i64<S: Serializer>(
    more: &i128,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.serialize_i64(i64::try_from(*more).unwrap_or(i64::MAX))
}
