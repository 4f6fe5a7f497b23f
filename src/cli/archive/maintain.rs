//! `chakram archive verify`, `merge` and `gc`.

use crate::progress::ProgressDisplay;
use crate::terminal;
use chakram_archive::{self as archive, Archive, UncommittedTailState};
use chakram_base::units::Bytes;
use chakram_report::summary::format_count_with_noun;
use chakram_trace::format::escape_and_shorten_name;
use clap::Args;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  chakram archive verify corpus.etz

Exit codes: 0 all data is intact, 1 all committed data is intact but a later command was interrupted, 2 some data is
damaged")]
pub struct VerifyArgs {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
}

/// Compares every byte of the archive with its checksums, and prints the result.
pub fn verify_archive(args: &VerifyArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let archive = Archive::open_archive(&args.archive)?;
    let progress = ProgressDisplay::start_counting("verifying", "objects", archive.object_count());
    let verdict = archive.verify_all(&|| progress.count_one())?;
    drop(progress);
    writeln!(
        out,
        "{} in {}: {} of {} in {}",
        format_count_with_noun(archive.workloads().len() as u64, "workload"),
        format_count_with_noun(verdict.segments, "segment"),
        format_count_with_noun(verdict.objects, "object"),
        Bytes(verdict.bytes),
        Bytes(archive.total_segment_bytes())
    )?;
    for fault in &verdict.faults {
        writeln!(out, "damaged: {}", escape_and_shorten_name(fault))?;
    }
    for name in &verdict.lost {
        writeln!(out, "lost: {}", escape_and_shorten_name(name))?;
    }
    if let Some(tail) = &verdict.tail {
        let word = match tail.tail_state() {
            UncommittedTailState::Growing => "growing",
            UncommittedTailState::Unfinished => "unfinished",
            UncommittedTailState::Damaged => "damaged",
        };
        let file = tail.file.display().to_string();
        writeln!(out, "{word}: {}: {tail}", escape_and_shorten_name(&file))?;
    }
    if !verdict.is_sound() {
        return Ok(ExitCode::from(2));
    }
    writeln!(out, "all committed data is intact")?;
    Ok(ExitCode::from(u8::from(verdict.has_unfinished_tail())))
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  chakram archive merge all.etz berlin.etz tokyo.etz

Workloads with the same name must be identical; otherwise, nothing is merged.")]
pub struct MergeArgs {
    /// The archive that receives the workloads
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    /// Archives whose workloads are added
    #[arg(required = true, value_name = "FROM")]
    from: Vec<PathBuf>,
}

/// Adds the workloads of the other archives. Adds nothing if two different workloads have the same
/// name.
pub fn merge_archives(args: &MergeArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let sources = args
        .from
        .iter()
        .map(|path| super::open_archive_and_warn_of_tail(path));
    let sources: Vec<Archive> = sources.collect::<Result<_, _>>()?;
    let entries = sources
        .iter()
        .flat_map(|source| source.workloads().values());
    let objects = entries
        .map(|entry| entry.hashes_and_sizes_of_needed_objects().count() as u64)
        .sum();
    let progress = ProgressDisplay::start_counting("merging", "objects", objects);
    let result = archive::merge_archives(&args.archive, &sources, &|| progress.count_one())?;
    drop(progress);
    super::print_note_naming_kept_bytes_file(result.kept_aside.as_ref())?;
    writeln!(
        out,
        "{} joined, {} were there",
        format_count_with_noun(result.added.len() as u64, "workload"),
        result.known.len()
    )?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram archive gc corpus.etz --as-of 2027-01-01 --dry-run
  chakram archive gc corpus.etz --as-of 2027-01-01
  chakram archive gc corpus.etz --drop llama3/step-7

A workload is kept until the end of its `retention` date, or forever if it has none.")]
pub struct ExpiredWorkloadGcArgs {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    /// Today, as YYYY-MM-DD; workloads whose retention ended before this date are dropped
    #[arg(long, value_name = "DATE", required_unless_present = "drop")]
    as_of: Option<String>,
    /// Drop this workload regardless of its retention; repeatable
    #[arg(long, value_name = "WORKLOAD")]
    drop: Vec<String>,
    /// Only print what would be dropped, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Removes workloads whose retention has ended, workloads that `--drop` names, and all data that no
/// workload uses.
pub fn drop_workloads_and_collect_garbage(
    args: &ExpiredWorkloadGcArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let dropped = |archive: &Archive| {
        let mut names = Vec::new();
        for name in &args.drop {
            names.push(archive.find_workload(name)?.name.clone());
        }
        if let Some(as_of) = &args.as_of {
            names.extend(archive::expired_workloads(archive, as_of)?);
        }
        names.sort();
        names.dedup();
        Ok(names)
    };
    let before = Archive::open_archive(&args.archive)?;
    let going = dropped(&before)?;
    if args.dry_run {
        super::warn_of_archive_tail(before.uncommitted_tail())?;
        for name in going {
            writeln!(out, "would go: {}", escape_and_shorten_name(&name))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let staying = before.workloads().values();
    let staying = staying.filter(|entry| !going.contains(&entry.name));
    let objects = staying
        .map(|entry| entry.hashes_and_sizes_of_needed_objects().count() as u64)
        .sum();
    let progress = ProgressDisplay::start_counting("collecting", "objects", objects);
    let result =
        archive::rewrite_archive_without_dropped_workloads(&args.archive, &dropped, &|| {
            progress.count_one()
        })?;
    drop(progress);
    super::print_note_naming_kept_bytes_file(result.kept_aside.as_ref())?;
    for name in &result.dropped {
        terminal::print_or_capture_stderr_line(format_args!(
            "dropped: {}",
            escape_and_shorten_name(name)
        ))?;
    }
    writeln!(
        out,
        "{} dropped, {} before, {} now",
        format_count_with_noun(result.dropped.len() as u64, "workload"),
        Bytes(result.before),
        Bytes(result.after)
    )?;
    Ok(ExitCode::SUCCESS)
}
