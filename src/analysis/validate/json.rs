//! Renders the report as one JSON document.
//!
//! `schema` is `chakram.validation.1`; new fields may be added under the same version, but existing fields never
//! change. Counts are exact; lists contain only the first defects of each kind.

use super::ValidationReport;
use super::defects::{Defect, DefectCounts, DefectLocation};
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
    tally: DefectCounts,
    nodes: u64,
    defects: Vec<DefectsOfKind<'r>>,
    ranks: Vec<RankFindings<'r>>,
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
    site: SiteRow<'r>,
    found: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#try: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<SiteRow<'r>>,
}

#[derive(Serialize)]
struct SiteRow<'r> {
    rank: Option<u32>,
    node: Option<u64>,
    name: Option<&'r str>,
    record: Option<usize>,
    offset: Option<usize>,
}

#[derive(Serialize)]
struct RankFindings<'r> {
    #[serde(flatten)]
    tally: DefectCounts,
    rank: u32,
    file: &'r str,
    nodes: u64,
    dependencies: u64,
}

/// Renders `report` with the options and inputs of the validation.
pub fn render(report: &ValidationReport<'_>, options: Value, inputs: Value) -> Value {
    let findings = &report.findings;
    let kinds = DefectKind::all().filter(|&kind| findings.count(kind) > 0);
    let kinds = kinds.map(|kind| DefectsOfKind {
        kind: kind.name(),
        severity: kind.severity().to_string(),
        meaning: kind.meaning(),
        r#try: kind.hint(),
        count: findings.count(kind),
        shown: findings.of_kind(kind).iter().map(defect).collect(),
    });
    let ranks = report.sources.iter().map(|source| RankFindings {
        tally: findings.of_rank(source.rank),
        rank: source.rank,
        file: &source.file,
        nodes: source.trace.nodes(),
        dependencies: source.trace.edges(),
    });
    let document = ValidationDocument {
        options,
        inputs,
        sound: report.is_sound(),
        tally: findings.tally(),
        nodes: report.nodes(),
        defects: kinds.collect(),
        ranks: ranks.collect(),
    };
    let document = VersionedDocument::new("chakram.validation.1", document);
    serde_json::to_value(document).expect("its keys are texts")
}

fn defect(defect: &Defect) -> DefectRow<'_> {
    let against = defect.against.as_ref();
    DefectRow {
        site: site(defect.rank, &defect.site),
        found: &defect.found,
        r#try: defect.hint.as_deref(),
        against: against.map(|(rank, other)| site(Some(*rank), other)),
    }
}

fn site(rank: Option<u32>, site: &DefectLocation) -> SiteRow<'_> {
    SiteRow {
        rank,
        node: site.node,
        name: site.node.map(|_| site.name.as_str()),
        record: site.record,
        offset: site.offset,
    }
}
