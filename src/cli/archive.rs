//! `chakram archive`: keeps corpora of traces in one file or folder, and compares new predictions with recorded
//! predictions.

use crate::terminal;
use chakram_archive::{Archive, UncommittedArchiveTail, UncommittedTailState};
use clap::{Args, Subcommand};
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod check;
mod contents;
mod maintain;
mod write;

/// Keep traces in archives: compressed, checked, described, and compared with earlier predictions
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram archive create corpus.etz
  chakram archive add corpus.etz run7/job --name llama3/step-7 --set gpu=h100 --set torch=2.5.1
  chakram archive list corpus.etz --where 'gpu = h100 and torch >= 2.5'
  chakram archive show corpus.etz::llama3/step-7
  chakram archive extract corpus.etz::llama3/step-7 -o step-7
  chakram archive verify corpus.etz
  chakram archive baseline corpus.etz -m dgx-h100 --reason 'first baseline'
  chakram archive check corpus.etz --threshold 1%
  chakram archive merge all.etz corpus.etz other.etz
  chakram archive gc corpus.etz --as-of 2027-01-01")]
pub struct ArchiveArgs {
    #[command(subcommand)]
    command: ArchiveCommand,
}

#[derive(Debug, Subcommand)]
enum ArchiveCommand {
    /// Create an empty archive
    Create(write::CreateEmptyArchiveArgs),
    /// Add a job's traces and the files stored with them as a workload
    Add(write::AddArgs),
    /// List workloads
    List(contents::ListArgs),
    /// Show the metadata, files and predictions of a workload
    Show(contents::ShowArgs),
    /// Write the files of a workload
    Extract(contents::ExtractArgs),
    /// Record predictions of workloads, for later comparison by `check`
    Baseline(check::RecordBaselineArgs),
    /// Predict again and fail if a prediction changed
    Check(check::PredictionChangeCheckArgs),
    /// Read all data and compare it with its checksums
    Verify(maintain::VerifyArgs),
    /// Add the workloads of other archives
    Merge(maintain::MergeArgs),
    /// Drop workloads whose retention has ended, and data that no workload uses
    Gc(maintain::ExpiredWorkloadGcArgs),
}

/// Runs the subcommand, and prints its output to `out`.
///
/// # Errors
///
/// Fails if input is invalid, or if the archive cannot be written.
pub fn run(args: &ArchiveArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    match &args.command {
        ArchiveCommand::Create(args) => write::create_empty_archive(args),
        ArchiveCommand::Add(args) => write::add_workload(args, out),
        ArchiveCommand::List(args) => contents::print_workloads_matching_query(args, out),
        ArchiveCommand::Show(args) => contents::show_workload_details(args, out),
        ArchiveCommand::Extract(args) => contents::extract_workload(args, out),
        ArchiveCommand::Baseline(args) => check::replay_workloads_and_store_baselines(args, out),
        ArchiveCommand::Check(args) => check::repeat_and_judge_baseline_predictions(args, out),
        ArchiveCommand::Verify(args) => maintain::verify_archive(args, out),
        ArchiveCommand::Merge(args) => maintain::merge_archives(args, out),
        ArchiveCommand::Gc(args) => maintain::drop_workloads_and_collect_garbage(args, out),
    }
}

/// Opens an archive for reading. Prints a warning if the archive's end is damaged or unfinished.
fn open_archive_and_warn_of_tail(path: &Path) -> Result<Archive, Box<dyn Error>> {
    let archive = Archive::open_archive(path)?;
    warn_of_archive_tail(archive.uncommitted_tail())?;
    Ok(archive)
}

fn warn_of_archive_tail(tail: Option<&UncommittedArchiveTail>) -> io::Result<()> {
    match tail {
        Some(tail) if tail.tail_state() != UncommittedTailState::Growing => {
            terminal::print_warning_unless_quiet(format_args!("{}: {tail}", tail.file.display()))
        }
        _ => Ok(()),
    }
}

/// Returns exit code 2 if the archive's tail is damaged, because workloads may be missing, and 0 otherwise.
fn exit_code_for_archive_tail(tail: Option<&UncommittedArchiveTail>) -> ExitCode {
    match tail.is_some_and(UncommittedArchiveTail::is_damaged) {
        true => ExitCode::from(2),
        false => ExitCode::SUCCESS,
    }
}

/// Prints the name of the file that now holds the bytes that an unfinished command had written.
fn print_note_naming_kept_bytes_file(file: Option<&PathBuf>) -> io::Result<()> {
    file.map_or(Ok(()), |file| {
        terminal::print_or_capture_stderr_line(format_args!(
            "note: the archive ended with a command that was not finished; its bytes are kept in {}",
            file.display()
        ))
    })
}

/// An archive and the name of one of its workloads, parsed from `ARCHIVE::WORKLOAD`.
#[derive(Clone, Debug)]
struct ArchivedWorkloadPath {
    archive: PathBuf,
    workload: String,
}

impl ArchivedWorkloadPath {
    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once("::") {
            Some((archive, workload)) if !archive.is_empty() && !workload.is_empty() => Ok(Self {
                archive: Path::new(archive).to_owned(),
                workload: workload.to_owned(),
            }),
            _ => {
                Err("expected ARCHIVE::WORKLOAD, for example corpus.etz::llama3/step-7".to_owned())
            }
        }
    }
}
