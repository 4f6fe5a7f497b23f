//! `chakram archive create` and `add`.

use crate::flags::parser_of_choices;
use crate::progress::ProgressDisplay;
use chakram_archive::{
    self as archive, CompressionLevel, MeasuredStepTimeDistribution, MetadataValue, WorkloadToAdd,
};
use chakram_base::units::Bytes;
use chakram_jobs as job;
use chakram_studies::regression::parse_step_times;
use chakram_trace::format::escape_and_shorten_name;
use chakram_trace::format::file::{TraceHashVerificationLevel, job_prefix_of_file};
use clap::Args;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram archive create corpus.etz            one file
  chakram archive create --folder corpus       a folder, which grows faster when the corpus is large")]
pub struct CreateEmptyArchiveArgs {
    /// Path of the new archive; nothing may exist there yet
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    /// Create a folder instead of a file
    #[arg(long)]
    folder: bool,
}

/// Creates an empty archive.
pub fn create_empty_archive(args: &CreateEmptyArchiveArgs) -> Result<ExitCode, Box<dyn Error>> {
    archive::create_empty(&args.archive, args.folder)?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram archive add corpus.etz run7/job
  chakram archive add corpus.etz run7/job --name llama3/step-7 --set gpu=h100 --set retention=2028-12-31
  chakram archive add corpus.etz run7/job --with run7/capture --level best

Files are stored byte for byte: the traces, the job's file and machine.toml in the same folder, and
the files of --with. Data that the archive already has takes no extra space.

Known keys: model, commit, licence, owner, cluster, gpu (text); torch, framework, nccl, driver (versions); step
(number); retention (date: the last day to keep it). Values of other keys count as numbers, dates or versions if
they look like one, and as text otherwise.")]
pub struct AddArgs {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    /// A folder of traces, the prefix of files named PREFIX.RANK.et, or files
    #[arg(required = true, value_name = "TRACES")]
    traces: Vec<PathBuf>,
    /// Name of the workload; by default the name of the folder, file or prefix
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Metadata of the workload, such as gpu=h100; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_metadata_entry)]
    set: Vec<(String, MetadataValue)>,
    /// Also store this file or folder, such as the capture that the traces come from; repeatable
    #[arg(long, value_name = "PATH")]
    with: Vec<PathBuf>,
    /// Compression level
    #[arg(long, value_parser = parser_of_choices::<CompressionLevel>(), default_value = "default", value_name = "LEVEL")]
    level: CompressionLevel,
    /// Also store measured step times, from a file with one time per line: `12.3 ms`
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,
    /// Replace the workload of this name, but keep its recorded predictions
    #[arg(long)]
    replace: bool,
}

fn parse_metadata_entry(text: &str) -> Result<(String, MetadataValue), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or("expected KEY=VALUE, for example gpu=h100")?;
    let word = |c: char| c.is_alphanumeric() || c == '-' || c == '_' || c == '.';
    if key.is_empty()
        || !key.chars().all(word)
        || matches!(key, "name" | "ranks" | "and" | "or" | "not")
    {
        return Err(format!("`{}` is not a key", escape_and_shorten_name(key)));
    }
    let value = MetadataValue::parse_value_of_key(key, value).map_err(|error| error.to_string())?;
    Ok((key.to_owned(), value))
}

/// Stores a job's traces and files, with their metadata, as a workload.
pub fn add_workload(args: &AddArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let found = job::find_traces(&args.traces, TraceHashVerificationLevel::Hashes)?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => default_workload_name(&args.traces, &found.files),
    };
    let mut files = Vec::new();
    let machine = folder_itself_or_parent_of_file(&args.traces[0]).join(job::CASE_MACHINE);
    if machine.is_file() {
        files.push((job::CASE_MACHINE.to_owned(), machine));
    }
    // Also store the file of groups that `generate` writes next to a job for use by other programs.
    if let Some(path) = found
        .files
        .first()
        .and_then(|file| job_prefix_of_file(&file.path))
    {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let groups = path.with_file_name(format!("{name}.groups.json"));
        if groups.is_file() {
            files.push((format!("{name}.groups.json"), groups));
        }
    }
    for path in &args.with {
        add_file_or_folder(path, &mut files)?;
    }
    let files = dedup_paths_and_refuse_name_clash(files)?;
    let measured = args.measured.as_deref().map(|path| {
        let text = job::read_text(path)?;
        parse_step_times(&text).map_err(|error| format!("{}: {error}", path.display()).into())
    });
    let measured: Option<MeasuredStepTimeDistribution> = measured
        .transpose()
        .map_err(|error: Box<dyn Error>| error)?;
    let draft = WorkloadToAdd {
        name,
        level: args.level,
        metadata: args.set.iter().cloned().collect::<BTreeMap<_, _>>(),
        sources: args
            .traces
            .iter()
            .chain(&args.with)
            .map(|path| path.display().to_string())
            .collect(),
        found,
        files,
        measured,
        replace: args.replace,
    };
    let all = draft.found.files.len() + draft.found.jobs.len() + draft.files.len();
    let progress = ProgressDisplay::start_counting("adding", "files", all as u64);
    let amounts = archive::add_workload(&args.archive, &draft, &|| progress.count_one())?;
    drop(progress);
    super::print_note_naming_kept_bytes_file(amounts.kept_aside.as_ref())?;
    let known = match amounts.known {
        0 => String::new(),
        n => format!(", {n} of its files were there"),
    };
    writeln!(
        out,
        "{}: {} in {}{known}",
        escape_and_shorten_name(&draft.name),
        Bytes(amounts.bytes),
        Bytes(amounts.packed)
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the default name of a workload: the name of the case or folder, or the files' prefix if there is neither.
fn default_workload_name(
    paths: &[PathBuf],
    files: &[chakram_trace::format::file::RankFile],
) -> String {
    let name = job::job_name_from_paths(paths, files);
    let name = name
        .strip_suffix(chakram_trace::format::job::ENDING)
        .unwrap_or(&name);
    match (paths, chakram_trace::format::file::parse_file_rank(name)) {
        ([path], Some(rank)) if path.is_file() => {
            let at = name.rfind(&format!(".{rank}."));
            at.map_or(name, |at| &name[..at]).to_owned()
        }
        _ => name.to_owned(),
    }
}

fn folder_itself_or_parent_of_file(path: &Path) -> PathBuf {
    if path.is_dir() {
        return path.to_owned();
    }
    path.parent().map_or_else(PathBuf::new, Path::to_owned)
}

/// Removes all paths to a file except the first. Fails if two different files would have the same name in the archive.
fn dedup_paths_and_refuse_name_clash(
    mut files: Vec<(String, PathBuf)>,
) -> Result<Vec<(String, PathBuf)>, String> {
    files.sort();
    files.dedup_by(|b, a| {
        let identity = chakram_trace::files::file_identity(&a.1);
        a.0 == b.0 && identity.is_some() && identity == chakram_trace::files::file_identity(&b.1)
    });
    match files.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        None => Ok(files),
        Some(pair) => Err(format!(
            "{} and {} would both be stored as `{}`\n  expected: files of different names\n  try: --with a folder that holds one of them",
            pair[0].1.display(),
            pair[1].1.display(),
            escape_and_shorten_name(&pair[0].0)
        )),
    }
}

/// Adds the file `path`, or all files in the folder `path`. Names in the archive begin with the last component of
/// `path`.
fn add_file_or_folder(
    path: &Path,
    files: &mut Vec<(String, PathBuf)>,
) -> Result<(), Box<dyn Error>> {
    let own = path.file_name().and_then(|name| name.to_str());
    let own =
        own.ok_or_else(|| format!("{}: the path has no file name to store", path.display()))?;
    let mut waiting = vec![(own.to_owned(), path.to_owned())];
    while let Some((name, path)) = waiting.pop() {
        if !path.is_dir() {
            files.push((name, path));
            continue;
        }
        for entry in
            std::fs::read_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?
        {
            let entry = entry?;
            let inner = entry.file_name();
            let inner = inner
                .to_str()
                .ok_or_else(|| format!("{}: a name is not UTF-8", path.display()))?;
            waiting.push((format!("{name}/{inner}"), entry.path()));
        }
    }
    files.sort();
    Ok(())
}
