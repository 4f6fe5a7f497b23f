//! `chakram audit`: identifying information in traces.

use super::convert::SummaryFormatArg;
use super::terminal;
use super::traces::{self, InputArgs};
use crate::edit::audit::{AuditFinding, LeakKind, TraceAudit};
use crate::report::summary::thousands;
use crate::trace::escape;
use clap::Args;
use serde_json::json;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Look for what traces should not tell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram audit --leaks run7/job
  chakram audit --leaks run7/job --format json | jq '.findings[].kind'

Found are names of machines, IP and MAC addresses, paths, user names, e-mail addresses, lines of Python
and what looks like a key, in every text of the traces, unknown fields included. What gives itself away
only by its meaning, such as a project's word in an operator's name, is not found: see chakram anonymise.

Exit codes: 0 nothing found, 2 bad input, 3 something found")]
pub struct AuditArgs {
    /// Look for hosts, addresses, paths, people and secrets
    #[arg(long, required = true)]
    leaks: bool,
    #[command(flatten)]
    input: InputArgs,
    /// Print at most this many findings of a kind
    #[arg(long, default_value_t = 10, value_name = "N")]
    limit: usize,
    /// How findings are printed; JSON has all of them
    #[arg(long, value_enum, default_value_t = SummaryFormatArg::Text, value_name = "FORMAT")]
    format: SummaryFormatArg,
}

/// Exit code where something was found.
const FOUND: u8 = 3;

/// Runs the command and prints the findings to `out`.
///
/// # Errors
///
/// Traces that cannot be read to their end, and output that cannot be written.
pub fn run(args: &AuditArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let traces = traces::find(&args.input)?;
    let mut texts = 0;
    let mut all: Vec<(&Path, AuditFinding)> = Vec::new();
    for file in traces.files() {
        let opened = traces.open(file)?;
        let audit = TraceAudit::of(opened.as_slice()).map_err(|e| opened.blame(e))?;
        texts += audit.texts;
        let found = audit.findings().into_iter();
        all.extend(found.map(|finding| (file.path.as_path(), finding)));
    }
    match args.format {
        SummaryFormatArg::Text => text(&all, texts, traces.files().len(), args.limit, out)?,
        SummaryFormatArg::Json => {
            let findings = all.iter().map(|(path, finding)| {
                json!({
                    "kind": finding.kind.to_string(), "text": escape(&finding.text), "count": finding.count,
                    "file": path.display().to_string(), "record": finding.place.record,
                    "node": finding.place.node, "field": finding.place.field,
                })
            });
            let document = json!({
                "schema": "chakram.audit.1",
                "tool_version": env!("CARGO_PKG_VERSION"),
                "files": traces.files().len(),
                "texts": texts,
                "findings": findings.collect::<Vec<_>>(),
            });
            out.write_all(terminal::json(&document).as_bytes())?;
        }
    }
    Ok(if all.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FOUND)
    })
}

fn text(
    all: &[(&Path, AuditFinding)],
    texts: u64,
    files: usize,
    limit: usize,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    writeln!(
        out,
        "{} texts of {files} files: {} findings",
        thousands(texts),
        thousands(all.len() as u64)
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
                count => format!(", {} times", thousands(count)),
            };
            writeln!(
                out,
                "  {}\n    {}, record {}{node}, {}{more}",
                escape(&finding.text),
                path.display(),
                place.record,
                place.field
            )?;
        }
        if of.len() > limit {
            writeln!(
                out,
                "  … {} more: --limit N",
                thousands((of.len() - limit) as u64)
            )?;
        }
    }
    Ok(())
}
