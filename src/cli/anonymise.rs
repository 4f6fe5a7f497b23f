//! `chakram anonymise`: removes names and text that could identify the author of traces.

use super::progress::ProgressDisplay;
use super::terminal;
use super::traces::{
    self, InputTraceArgs, OutputPipeOrJobFiles, OutputTraceArgs, SummaryFormatArg,
};
use chakram_analysis::edit::anonymise::{AnonymiserCounts, TraceAnonymiser};
use chakram_hardware::machine::is_preset;
use chakram_jobs::{groups_from_file_or_job, read_text};
use chakram_report::document::VersionedDocument;
use chakram_report::summary::{format_count_with_noun, format_thousands};
use chakram_trace::format::job::JobTraceManifest;
use clap::{ArgGroup, Args};
use serde::Serialize;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Remove identifying names and text from traces
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("secret").required(true).args(["key", "key_file", "random_key"]),
    after_help = "\
Examples:
  chakram anonymise run7/job --key-file ~/.trace-key -o shared/job
  chakram anonymise run7/job --random-key --keep 'void at::native::*' -o shared/job
  chakram audit --leaks shared/job

Structure, times, bytes and FLOPs are kept, so a replay takes the same time, to the picosecond. Names become keyed
hashes, which are the same on all ranks and in all runs with the same key. Names of public operators (aten::…,
c10d::…, nccl:…, gloo:…, ProfilerStep#N) are kept. Arguments, comments and unknown fields are removed. Roles of
groups are kept; a machine's name is kept only if the machine is a preset. The owner of the key can test whether a
known name is in the traces."
)]
pub struct AnonymiseArgs {
    #[command(flatten)]
    input: InputTraceArgs,
    /// Hash names with this key (visible to other users while the command runs)
    #[arg(long, value_name = "TEXT")]
    key: Option<String>,
    /// Hash names with the contents of this file as the key
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Hash names with a random key that is discarded
    #[arg(long)]
    random_key: bool,
    /// Keep names that match this pattern, in which * matches any text; repeatable
    #[arg(long, value_name = "PATTERN")]
    keep: Vec<String>,
    /// Hash the names of public operators too, and name no machine
    #[arg(long)]
    all: bool,
    /// Process groups as JSON, {"1": [0, 1], …}; written with hashed names to PREFIX.groups.json
    #[arg(long, value_name = "FILE")]
    groups: Option<PathBuf>,
    #[command(flatten)]
    output: OutputTraceArgs,
}

/// JSON summary with the numbers of hashed and removed values.
#[derive(Serialize)]
struct AnonymiserCountsDocument {
    ranks: usize,
    nodes: u64,
    names_hashed: u64,
    names_kept: u64,
    attributes_removed: u64,
    fields_removed: u64,
}

fn read_or_generate_secret_key(args: &AnonymiseArgs) -> Result<Vec<u8>, Box<dyn Error>> {
    let secret = match (&args.key, &args.key_file) {
        (Some(key), _) => key.clone().into_bytes(),
        // Remove the line break that editors add at the end of a file; it is not part of the key.
        (None, Some(path)) => read_text(path)?.trim_end().to_owned().into_bytes(),
        (None, None) => {
            let mut key = vec![0; 32];
            getrandom::fill(&mut key)
                .map_err(|e| format!("the system provides no random key: {e}"))?;
            key
        }
    };
    if secret.is_empty() {
        Err("the key is empty, so everybody can compute the hashes".into())
    } else {
        Ok(secret)
    }
}

/// Runs the command and prints a summary to `out`.
///
/// # Errors
///
/// Fails if traces cannot be read, or if output cannot be written.
pub fn run(args: &AnonymiseArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let anonymiser = TraceAnonymiser::new(
        &read_or_generate_secret_key(args)?,
        !args.all,
        args.keep.clone(),
    );
    let traces = traces::find_traces_and_select_step(&args.input)?;
    let groups = anonymiser.replace_declared_group_names(&groups_from_file_or_job(
        args.groups.as_deref(),
        &traces.found,
        None,
    )?);
    let beside = [&args.groups, &args.key_file];
    let mut outputs =
        OutputPipeOrJobFiles::new(&args.output, traces.rank_files().len(), &traces, &beside)?;
    let mut sum = AnonymiserCounts::default();
    let progress =
        ProgressDisplay::start_counting("anonymising", "traces", traces.rank_files().len() as u64);
    for file in traces.rank_files() {
        progress.count_one();
        let opened = traces.open_file(file)?;
        let made = anonymiser.anonymise_trace(opened.as_slice());
        let (trace, done) = made.map_err(|e| opened.locate_error(e))?;
        outputs.write_trace(file.rank, &trace)?;
        sum.nodes += done.nodes;
        sum.hashed += done.hashed;
        sum.kept += done.kept;
        sum.attributes += done.attributes;
        sum.fields += done.fields;
    }
    let beside = outputs.write_groups(&groups, args.groups.is_some())?;
    let piped = outputs.is_pipe();
    let told = traces.job_declarations_with_groups(groups);
    let machine = told.machine.clone();
    let about = JobTraceManifest {
        roles: anonymiser.replace_private_roles(&told.roles),
        // Names of presets are public, as are those of PyTorch's operators. The name of any other machine, such as a
        // file or a list of dimensions, may be private.
        machine: machine.clone().filter(|name| !args.all && is_preset(name)),
        ..told
    };
    let left_out = machine.filter(|_| about.machine.is_none());
    let names = outputs.commit_files(about)?;
    if let Some(machine) = left_out.filter(|_| !piped) {
        terminal::print_note(format_args!(
            "the job file does not name the machine {machine}: replay the job with --machine"
        ))?;
    }
    match args.output.format {
        _ if piped => {}
        SummaryFormatArg::Text => {
            writeln!(
                out,
                "{} of {} in {names}",
                format_count_with_noun(sum.nodes, "node"),
                format_count_with_noun(traces.rank_files().len() as u64, "rank")
            )?;
            if let Some(path) = beside {
                writeln!(out, "groups in {}", path.display())?;
            }
            writeln!(
                out,
                "names: {} hashed, {} kept; removed: {} attributes, {} other fields",
                format_thousands(sum.hashed),
                format_thousands(sum.kept),
                format_thousands(sum.attributes),
                format_thousands(sum.fields)
            )?;
        }
        SummaryFormatArg::Json => {
            let body = AnonymiserCountsDocument {
                ranks: traces.rank_files().len(),
                nodes: sum.nodes,
                names_hashed: sum.hashed,
                names_kept: sum.kept,
                attributes_removed: sum.attributes,
                fields_removed: sum.fields,
            };
            VersionedDocument::new("chakram.anonymise.1", body).print_to(out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
