//! Report as one JSON document, for programs.
//!
//! `schema` is `chakram.validation.1`; a field may be added under the same number, never changed. Counts are
//! exact; lists hold the first defects of each kind.

use super::Report;
use super::findings::{Defect, Site, Tally};
use super::kind::Kind;
use serde_json::{Map, Value, json};

/// Renders `report` with the options and inputs of the validation.
pub fn render(report: &Report<'_>, options: Value, inputs: Value) -> Value {
    let findings = &report.findings;
    let kinds = Kind::all().filter(|&kind| findings.count(kind) > 0);
    let kinds = kinds.map(|kind| {
        let shown = findings.of_kind(kind).iter().map(defect);
        json!({
            "kind": kind.name(),
            "severity": kind.severity().to_string(),
            "meaning": kind.meaning(),
            "try": kind.hint(),
            "count": findings.count(kind),
            "shown": shown.collect::<Value>(),
        })
    });
    let ranks = report.sources.iter().map(|source| {
        let mut row = counts(findings.of_rank(source.rank));
        row.insert("rank".to_owned(), source.rank.into());
        row.insert("file".to_owned(), source.file.clone().into());
        row.insert("nodes".to_owned(), source.trace.nodes().into());
        row.insert("dependencies".to_owned(), source.trace.edges().into());
        Value::Object(row)
    });
    let mut document = Map::new();
    let mut put = |key: &str, value: Value| document.insert(key.to_owned(), value);
    put("schema", "chakram.validation.1".into());
    put("tool_version", env!("CARGO_PKG_VERSION").into());
    put("options", options);
    put("inputs", inputs);
    put("sound", report.is_sound().into());
    for (key, count) in counts(findings.tally()) {
        put(&key, count);
    }
    put("nodes", report.nodes().into());
    put("defects", kinds.collect());
    put("ranks", ranks.collect());
    document.into()
}

fn counts(tally: Tally) -> Map<String, Value> {
    let counts = [
        ("errors", tally.errors),
        ("warnings", tally.warnings),
        ("notes", tally.notes),
    ];
    let counts = counts.map(|(key, count)| (key.to_owned(), count.into()));
    counts.into_iter().collect()
}

fn defect(defect: &Defect) -> Value {
    let mut row = site(defect.rank, &defect.site);
    row.insert("found".to_owned(), defect.found.clone().into());
    if let Some(hint) = &defect.hint {
        row.insert("try".to_owned(), hint.clone().into());
    }
    if let Some((rank, other)) = &defect.against {
        row.insert("against".to_owned(), site(Some(*rank), other).into());
    }
    row.into()
}

fn site(rank: Option<u32>, site: &Site) -> Map<String, Value> {
    let mut row = Map::new();
    row.insert("rank".to_owned(), rank.into());
    row.insert("node".to_owned(), site.node.into());
    let name = site.node.map(|_| site.name.clone());
    row.insert("name".to_owned(), name.into());
    row.insert("record".to_owned(), site.record.into());
    row.insert("offset".to_owned(), site.offset.into());
    row
}
