//! `chakram anonymise`: traces without names that identify who made them.

use super::convert::SummaryFormatArg;
use super::terminal;
use super::traces::{self, InputArgs, OutputArgs, TraceTarget};
use crate::edit::anonymise::{AnonymiserCounts, TraceAnonymiser};
use crate::job::{groups_of, read_text};
use crate::report::summary::thousands;
use crate::trace::job::JobFile;
use clap::{ArgGroup, Args};
use serde_json::json;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Take out of traces what tells who made them
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("secret").required(true).args(["key", "key_file", "random_key"]),
    after_help = "\
Examples:
  chakram anonymise run7/job --key-file ~/.trace-key -o shared/job
  chakram anonymise run7/job --random-key --keep 'void at::native::*' -o shared/job
  chakram audit --leaks shared/job

Structure, times, bytes and FLOPs stay, so a replay takes as long as before to the picosecond. Names become
keyed hashes, alike on all ranks and in all runs with one key, but for those of public operators (aten::…,
c10d::…, nccl:…, gloo:…, ProfilerStep#N); groups keep their numbers, and names of groups and lanes become
hashes. Arguments, comments, unknown fields and all that replays do not read go. Whoever has the key can
test whether a name they know is in the traces; a random key is thrown away."
)]
pub struct AnonymiseArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Hash with this key; others on the machine may see it while the command runs
    #[arg(long, value_name = "TEXT")]
    key: Option<String>,
    /// Hash with the contents of a file as the key
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Hash with a key that nobody learns: names of two runs cannot be compared
    #[arg(long)]
    random_key: bool,
    /// Keep names like this; * stands for any text; may be given more than once
    #[arg(long, value_name = "PATTERN")]
    keep: Vec<String>,
    /// Hash the names of public operators, too
    #[arg(long)]
    all: bool,
    /// Groups of ranks, which are written to PREFIX.groups.json under the names they get: a JSON file
    /// {"1": [0, 1], …}
    #[arg(long, value_name = "FILE")]
    groups: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

fn secret(args: &AnonymiseArgs) -> Result<Vec<u8>, Box<dyn Error>> {
    let secret = match (&args.key, &args.key_file) {
        (Some(key), _) => key.clone().into_bytes(),
        // Editors end files with a line break, which is no part of the key.
        (None, Some(path)) => read_text(path)?.trim_end().to_owned().into_bytes(),
        (None, None) => {
            let mut key = vec![0; 32];
            getrandom::fill(&mut key).map_err(|e| format!("no random key can be had here: {e}"))?;
            key
        }
    };
    if secret.is_empty() {
        Err("the key is empty, so everybody knows it".into())
    } else {
        Ok(secret)
    }
}

/// Runs the command and prints a summary to `out`.
///
/// # Errors
///
/// Traces that cannot be read, and output that cannot be written.
pub fn run(args: &AnonymiseArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let anonymiser = TraceAnonymiser::new(&secret(args)?, !args.all, args.keep.clone());
    let traces = traces::find(&args.input)?;
    let groups = anonymiser.groups(&groups_of(args.groups.as_deref(), &traces.found, None)?);
    let beside = [&args.groups, &args.key_file];
    let mut outputs = TraceTarget::new(&args.output, traces.files().len(), &traces, &beside)?;
    let mut sum = AnonymiserCounts::default();
    for file in traces.files() {
        let opened = traces.open(file)?;
        let made = anonymiser.trace(opened.as_slice());
        let (trace, done) = made.map_err(|e| opened.blame(e))?;
        outputs.write(file.rank, &trace)?;
        sum.nodes += done.nodes;
        sum.hashed += done.hashed;
        sum.kept += done.kept;
        sum.attributes += done.attributes;
        sum.fields += done.fields;
    }
    let beside = outputs.groups(&groups, args.groups.is_some())?;
    let piped = outputs.is_pipe();
    // Roles of groups, and the machine, would tell what anonymous traces hide.
    let about = JobFile {
        groups,
        ..JobFile::default()
    };
    let names = outputs.commit(about)?;
    match args.output.format {
        _ if piped => {}
        SummaryFormatArg::Text => {
            writeln!(
                out,
                "{} nodes of {} ranks in {names}",
                thousands(sum.nodes),
                traces.files().len()
            )?;
            if let Some(path) = beside {
                writeln!(out, "groups in {}", path.display())?;
            }
            writeln!(
                out,
                "names: {} hashed, {} kept; gone: {} attributes, {} other fields",
                thousands(sum.hashed),
                thousands(sum.kept),
                thousands(sum.attributes),
                thousands(sum.fields)
            )?;
        }
        SummaryFormatArg::Json => {
            let document = json!({
                "schema": "chakram.anonymise.1",
                "tool_version": env!("CARGO_PKG_VERSION"),
                "ranks": traces.files().len(),
                "nodes": sum.nodes,
                "names_hashed": sum.hashed,
                "names_kept": sum.kept,
                "attributes_gone": sum.attributes,
                "fields_gone": sum.fields,
            });
            out.write_all(terminal::json(&document).as_bytes())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
