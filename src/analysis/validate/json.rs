//! Renders a validation report as one JSON document.
//!
//! The field `schema` is `chakram.validation.1`. Within a version, fields may be added, but existing fields do not
//! change. Counts are complete; lists contain only the first defects of each kind.

use super::ValidationReport;
use super::defects::{Defect, DefectCountsBySeverity, DefectLocationInFile};
use super::kind::DefectKind;
use chakram_report::document::VersionedDocument;
use serde::Serialize;
use serde_json::Value;

#[derive(Serialize)]
struct ValidationDocument<'r> {
    options: Value,
    inputs: Value,
    sound: bool,
    #[serde(flatten)]
    tally: DefectCountsBySeverity,
    nodes: u64,
    defects: Vec<DefectsOfKind<'r>>,
    ranks: Vec<RankDefectCounts<'r>>,
}

#[derive(Serialize)]
struct DefectsOfKind<'r> {
    kind: &'static str,
    severity: String,
    meaning: &'static str,
    r#try: String,
    count: u64,
    shown: Vec<DefectRow<'r>>,
}

#[derive(Serialize)]
struct DefectRow<'r> {
    #[serde(flatten)]
    site: LocationRow<'r>,
    found: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#try: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<LocationRow<'r>>,
}

#[derive(Serialize)]
struct LocationRow<'r> {
    rank: Option<u32>,
    node: Option<u64>,
    name: Option<&'r str>,
    record: Option<usize>,
    offset: Option<usize>,
}

#[derive(Serialize)]
struct RankDefectCounts<'r> {
    #[serde(flatten)]
    tally: DefectCountsBySeverity,
    rank: u32,
    file: &'r str,
    nodes: u64,
    dependencies: u64,
}

/// Renders `report` with the options and inputs of the validation.
pub fn render_json(report: &ValidationReport<'_>, options: Value, inputs: Value) -> Value {
    let findings = &report.findings;
    let kinds = DefectKind::iter_all().filter(|&kind| findings.count_of_kind(kind) > 0);
    let kinds = kinds.map(|kind| DefectsOfKind {
        kind: kind.stable_name(),
        severity: kind.severity().to_string(),
        meaning: kind.explain_meaning(),
        r#try: kind.hint(),
        count: findings.count_of_kind(kind),
        shown: findings
            .first_defects_of_kind(kind)
            .iter()
            .map(build_defect_row)
            .collect(),
    });
    let ranks = report.sources.iter().map(|source| RankDefectCounts {
        tally: findings.count_defects_of_rank_by_severity(source.rank),
        rank: source.rank,
        file: &source.file,
        nodes: source.trace.node_count(),
        dependencies: source.trace.edge_count(),
    });
    let document = ValidationDocument {
        options,
        inputs,
        sound: report.has_no_errors_or_strict_warnings(),
        tally: findings.count_by_severity(),
        nodes: report.node_count(),
        defects: kinds.collect(),
        ranks: ranks.collect(),
    };
    let document = VersionedDocument::new("chakram.validation.1", document);
    serde_json::to_value(document).expect("its keys are texts")
}

fn build_defect_row(defect: &Defect) -> DefectRow<'_> {
    let against = defect.against.as_ref();
    DefectRow {
        site: build_location_row(defect.rank, &defect.site),
        found: &defect.found,
        r#try: defect.hint.as_deref(),
        against: against.map(|(rank, other)| build_location_row(Some(*rank), other)),
    }
}

fn build_location_row(rank: Option<u32>, site: &DefectLocationInFile) -> LocationRow<'_> {
    LocationRow {
        rank,
        node: site.node,
        name: site.node.map(|_| site.name.as_str()),
        record: site.record,
        offset: site.offset,
    }
}
