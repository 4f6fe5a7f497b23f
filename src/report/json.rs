//! Reads and writes machine-readable JSON documents: reports of one or several machines.
//!
//! The Rust types define the JSON schema; `docs/report.schema.json` is generated from them.

use super::Report;
use super::compare::ComparisonDocument;
use chakram_base::setting::SettingKey;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// Output of `chakram replay --format json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum ReportOrComparisonJson {
    /// The report of one machine.
    Report(Box<Report>),
    /// The comparison of several machines.
    Comparison(Box<ComparisonDocument<'static>>),
}

/// Why a string is not a valid report document.
#[derive(Debug, thiserror::Error)]
pub enum InvalidReportDocumentError {
    /// The string is not JSON, or not a report.
    #[error(
        "the document is not a report: {0}\n  try: the output of chakram replay {format} json", format = SettingKey::Format)]
    Malformed(#[from] serde_json::Error),
    /// The document has a different schema, or a different schema version.
    #[error(
        "the schema is `{0}`; expected `chakram.report.1` or `chakram.comparison.1`\n  try: replay again \
         with the version that compares, {format} json",
        format = SettingKey::Format
    )]
    Schema(String),
}

impl ReportOrComparisonJson {
    /// Parses a document that [`write_indented_json`] wrote.
    ///
    /// # Errors
    ///
    /// Fails if `text` is not a report or comparison in the current schema version.
    pub fn parse_report_or_comparison(text: &str) -> Result<Self, InvalidReportDocumentError> {
        #[derive(Deserialize)]
        struct DocumentHeadWithSchema {
            schema: String,
        }
        let head: DocumentHeadWithSchema = serde_json::from_str(text)?;
        Ok(match &*head.schema {
            "chakram.report.1" => Self::Report(serde_json::from_str(text)?),
            "chakram.comparison.1" => Self::Comparison(serde_json::from_str(text)?),
            _ => return Err(InvalidReportDocumentError::Schema(head.schema)),
        })
    }
}

/// Writes a document as indented JSON, followed by a newline.
///
/// # Errors
///
/// Fails if writing to `out` fails.
pub fn write_indented_json(out: &mut dyn Write, document: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, document)?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemars::generate::SchemaSettings;

    #[test]
    fn schema_file_matches_the_report_and_comparison_types() {
        let settings = SchemaSettings::draft2020_12().for_serialize();
        let schema = settings
            .into_generator()
            .into_root_schema_for::<ReportOrComparisonJson>();
        let mut text = Vec::new();
        write_indented_json(&mut text, &schema).unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/report.schema.json");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert!(
            std::fs::read(path).is_ok_and(|known| known == text),
            "docs/report.schema.json is not of these types; BLESS=1 cargo test -p chakram-report --lib schema writes it"
        );
    }
}
