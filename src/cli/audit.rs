//! `chakram audit`: finds information in traces that identifies their author.

use super::progress::ProgressDisplay;
use super::traces::{self, InputTraceArgs, SummaryFormatArg};
use chakram_analysis::edit::audit::{LeakKind, PrivateStringFinding, TracePrivateStringFindings};
use chakram_report::document::VersionedDocument;
use chakram_report::summary::{format_count_with_noun, format_thousands};
use chakram_trace::format::escape_and_shorten_name;
use clap::Args;
use serde::Serialize;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Search traces for identifying information and secrets
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram audit --leaks run7/job
  chakram audit --leaks run7/job --format json | jq '.findings[].kind'

Finds host names, IP and MAC addresses, paths, user names, e-mail addresses, lines of Python and strings that look
like keys, in all text, including unknown fields. Words that reveal something by their meaning, such as a project's
name inside an operator's name, are not found; chakram anonymise removes them.

Exit codes: 0 nothing found, 2 bad input, 3 something found")]
pub struct LeakAuditArgs {
    /// Search for hosts, addresses, paths, user names and secrets
    #[arg(long, required = true)]
    leaks: bool,
    #[command(flatten)]
    input: InputTraceArgs,
    /// Maximum number of printed findings of each kind
    #[arg(long, default_value_t = 10, value_name = "N")]
    limit: usize,
    /// Format of the findings; text shows some findings, JSON shows all
    #[arg(long, value_enum, default_value_t = SummaryFormatArg::Text, value_name = "FORMAT")]
    format: SummaryFormatArg,
}

/// JSON document of the findings.
#[derive(Serialize)]
struct LeakAuditDocument {
    files: usize,
    texts: u64,
    findings: Vec<LeakFindingDocument>,
}

#[derive(Serialize)]
struct LeakFindingDocument {
    kind: String,
    text: String,
    count: u64,
    file: String,
    record: usize,
    node: Option<u64>,
    field: String,
}

/// Exit code if the audit found identifying information.
const FOUND: u8 = 3;

/// Runs the command and prints the findings to `out`.
///
/// # Errors
///
/// Fails if traces cannot be read completely, or if output cannot be written.
pub fn audit_traces_and_print_findings(
    args: &LeakAuditArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let traces = traces::find_traces_and_select_step(&args.input)?;
    let mut texts = 0;
    let mut all: Vec<(&Path, PrivateStringFinding)> = Vec::new();
    let progress =
        ProgressDisplay::start_counting("searching", "traces", traces.rank_files().len() as u64);
    for file in traces.rank_files() {
        progress.count_one();
        let opened = traces.open_file(file)?;
        let audit = TracePrivateStringFindings::search_trace(opened.as_slice())
            .map_err(|e| opened.locate_error(e))?;
        texts += audit.texts;
        let found = audit.into_findings().into_iter();
        all.extend(found.map(|finding| (file.path.as_path(), finding)));
    }
    match args.format {
        SummaryFormatArg::Text => {
            write_text(&all, texts, traces.rank_files().len(), args.limit, out)?
        }
        SummaryFormatArg::Json => {
            let findings = all.iter().map(|(path, finding)| LeakFindingDocument {
                kind: finding.kind.to_string(),
                text: escape_and_shorten_name(&finding.text),
                count: finding.count,
                file: path.display().to_string(),
                record: finding.place.record,
                node: finding.place.node,
                field: finding.place.field.to_string(),
            });
            let body = LeakAuditDocument {
                files: traces.rank_files().len(),
                texts,
                findings: findings.collect(),
            };
            VersionedDocument::new("chakram.audit.1", body).print_to(out)?;
        }
    }
    Ok(if all.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FOUND)
    })
}

fn write_text(
    all: &[(&Path, PrivateStringFinding)],
    texts: u64,
    files: usize,
    limit: usize,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    writeln!(
        out,
        "{} in {}: {}",
        format_count_with_noun(texts, "text"),
        format_count_with_noun(files as u64, "file"),
        format_count_with_noun(all.len() as u64, "finding")
    )?;
    for (kind, name) in LeakKind::ALL {
        let of: Vec<_> = all
            .iter()
            .filter(|(_, finding)| finding.kind == kind)
            .collect();
        if of.is_empty() {
            continue;
        }
        writeln!(out, "\n{}", name.to_uppercase())?;
        for (path, finding) in of.iter().take(limit) {
            let place = &finding.place;
            let node = place
                .node
                .map_or(String::new(), |node| format!(", node {node}"));
            let more = match finding.count {
                1 => String::new(),
                count => format!(", {} times", format_thousands(count)),
            };
            writeln!(
                out,
                "  {}\n    {}, record {}{node}, {}{more}",
                escape_and_shorten_name(&finding.text),
                path.display(),
                place.record,
                place.field
            )?;
        }
        if of.len() > limit {
            writeln!(
                out,
                "  … {} more: --limit N",
                format_thousands((of.len() - limit) as u64)
            )?;
        }
    }
    Ok(())
}
