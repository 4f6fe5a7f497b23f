//! `chakram validate`: finds defects in traces before a replay.

use super::compare::parallel_map;
use super::flags::parser_of_choices;
use super::load::{ProfiledStepArg, SkipJobFileCheckArg};
use super::output::{ReportDestinationAndOutputs, load_machine};
use chakram_analysis::validate::{
    DefectCountsBySeverity, TraceDefectsAndDigest, ValidateOptions, ValidatedTraceFile,
    ValidationReport, ValidationTextStyles, to_json, to_text,
};
use chakram_base::ids::MAX_NPUS;
use chakram_base::setting::EnumeratedSetting;
use chakram_jobs as job;
use chakram_report::document::json_text;
use chakram_report::summary::HashedInput;
use chakram_trace::files::{OutputsAndProtectedInputs, file_identity};
use chakram_trace::format::file::{DecompressedTraceFile, FoundTraces, RankFile};
use chakram_trace::graph::EnforcedDependencyKinds;
use chakram_trace::workload::MissingRankPolicy;
use clap::{Args, ValueEnum};
use serde_json::Value;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::error::Error;
use std::fmt;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check traces for defects before a replay
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram validate traces/data-parallel-8             a folder with the traces of a job
  chakram validate run7/job --groups run7/groups.json
  chakram validate job.0.et --absent mirror           one rank of a larger job
  chakram validate run7/job --machine dgx-h100x4      collectives over some dimensions of a machine
  chakram validate run7/job --strict --format json | jq '.defects[] | .kind, .count'

Errors make a replay fail or deadlock. For warnings, chakram repairs the input or makes an assumption. Notes state
facts.


Exit codes: 0 sound, 2 unsound or bad input; with --strict warnings make a job unsound")]
pub struct ValidateArgs {
    /// Folder of traces, prefix of files named PREFIX.RANK.et, or files
    #[arg(required = true, value_name = "TRACES")]
    traces: Vec<PathBuf>,
    /// Process groups as JSON: {"1": [0, 1], …}
    #[arg(long, value_name = "FILE")]
    groups: Option<PathBuf>,
    /// Which dependencies to enforce
    #[arg(long, hide_short_help = true, value_parser = parser_of_choices::<EnforcedDependencyKinds>(), default_value = "auto", value_name = "WHICH")]
    deps: EnforcedDependencyKinds,
    /// What to do with ranks that have no trace
    #[arg(long, value_parser = parser_of_choices::<MissingRankPolicy>(), default_value = "refuse", value_name = "WHAT")]
    absent: MissingRankPolicy,
    /// Number of ranks in the job, if it is larger than the traces show
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_NPUS)))]
    ranks: Option<u32>,
    /// Machine whose dimensions the collectives name: a preset or a file
    #[arg(short, long, value_name = "MACHINE")]
    machine: Option<String>,
    /// Maximum number of printed defects of each kind
    #[arg(long, default_value_t = 5, value_name = "N")]
    show: usize,
    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    verify: SkipJobFileCheckArg,
    #[command(flatten)]
    step: ProfiledStepArg,
    /// How many traces to read at the same time; one per core by default
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = crate::parse_number)]
    threads: Option<NonZeroUsize>,
    /// Format of the report
    #[arg(long, value_enum, default_value_t = ValidateOutputFormatArg::Text, value_name = "FORMAT")]
    format: ValidateOutputFormatArg,
    /// Write the report to this file; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
}

/// Output format of `validate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ValidateOutputFormatArg {
    /// Human-readable text
    Text,
    /// JSON
    Json,
}

/// Error for traces with defects, raised after their report was printed.
#[derive(Debug)]
struct UnsoundTracesError(DefectCountsBySeverity);

impl fmt::Display for UnsoundTracesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (errors, warnings) = (self.0.errors, self.0.warnings);
        write!(
            f,
            "the traces are unsound; errors: {errors}, warnings: {warnings}"
        )
    }
}

impl Error for UnsoundTracesError {}

/// Runs the command and prints the report to `out`.
///
/// # Errors
///
/// Fails if input is invalid, if traces have defects, or if output cannot be written.
pub fn run(args: &ValidateArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let hash = args.format == ValidateOutputFormatArg::Json;
    let mut inputs = Vec::new();
    // Check all hashes here, although a replay checks hashes only for small jobs.
    let found = job::find_traces(&args.traces, args.verify.verify_level_for_full_read())?;
    let found = job::restrict_to_step(found, args.step.step, None)?;
    let options = build_validate_options(args, &found, hash, &mut inputs)?;
    let mut outputs = OutputsAndProtectedInputs::default();
    job::protect_found_files_as_inputs(&mut outputs, &found);
    let given = args.groups.iter().map(PathBuf::as_path);
    let given = given.chain(args.machine.as_deref().map(Path::new));
    given.for_each(|path| outputs.register_input(path));
    let mut to = ReportDestinationAndOutputs::create_at_path(out, &args.output, outputs)?;
    let files = found.files;
    let (traces, of_file) = read_and_check_distinct_files(&files, &options, args.threads, hash);
    let sources = files
        .iter()
        .zip(&of_file)
        .map(|(file, &trace)| ValidatedTraceFile {
            rank: file.rank,
            file: file.path.display().to_string(),
            trace: &traces[trace].0,
        });
    let report = ValidationReport::new(sources.collect(), &options, args.strict);
    to.write_report(&match args.format {
        ValidateOutputFormatArg::Text => to_text(
            &report,
            if to.is_terminal() {
                ValidationTextStyles::create_coloured_styles()
            } else {
                ValidationTextStyles::default()
            },
        ),
        ValidateOutputFormatArg::Json => {
            let read = files.iter().zip(&of_file).filter_map(|(file, &trace)| {
                let blake3 = traces[trace].1.clone()?;
                let name = file.path.display().to_string();
                Some(HashedInput {
                    role: "trace".into(),
                    name,
                    blake3,
                })
            });
            let inputs: Vec<HashedInput> = inputs.into_iter().chain(read).collect();
            let inputs = serde_json::to_value(inputs)?;
            let document = to_json(&report, options_json(args), inputs);
            json_text(&document)
        }
    })?;
    if report.has_no_errors_or_strict_warnings() {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(UnsoundTracesError(report.findings.count_by_severity()).into())
    }
}

fn build_validate_options(
    args: &ValidateArgs,
    found: &FoundTraces,
    hash: bool,
    inputs: &mut Vec<HashedInput>,
) -> Result<ValidateOptions, Box<dyn Error>> {
    let mut options = ValidateOptions {
        dependencies: args.deps,
        mirror: args.absent == MissingRankPolicy::Mirror,
        ranks: args.ranks,
        show: args.show,
        ..ValidateOptions::default()
    };
    options.declared =
        job::groups_from_file_or_job(args.groups.as_deref(), found, hash.then_some(&mut *inputs))?;
    if let Some(name) = &args.machine {
        let (machine, input) = load_machine(name, hash)?;
        inputs.extend(input);
        let dimensions = machine.topology().dimensions().iter();
        options.dimensions = Some(dimensions.map(|dimension| dimension.size).collect());
    }
    Ok(options)
}

/// A checked trace, and the hash of its contents if hashes are requested.
type ValidatedTraceAndHash = (TraceDefectsAndDigest, Option<String>);

/// Reads and checks `files`. Returns the checked traces, and for each file the index of its trace. A file with several
/// names is read only once, unless each name represents a different member of the file.
fn read_and_check_distinct_files(
    files: &[RankFile],
    options: &ValidateOptions,
    threads: Option<NonZeroUsize>,
    hash: bool,
) -> (Vec<ValidatedTraceAndHash>, Vec<usize>) {
    let mut known = BTreeMap::new();
    let mut distinct: Vec<&RankFile> = Vec::new();
    let of_file = files.iter().map(|file| {
        let mut new = || {
            distinct.push(file);
            distinct.len() - 1
        };
        let Some(key) = file_identity(&file.path) else {
            return new();
        };
        // The job file may list different hashes for several names of one file. At most one of these hashes is right,
        // so check all of them.
        match known.entry((key, file.seal)) {
            Entry::Vacant(entry) => entry.insert((new(), None)).0,
            Entry::Occupied(mut entry) => {
                let (first, is_shared) = entry.get_mut();
                let is_shared = is_shared.get_or_insert_with(|| {
                    let opened = DecompressedTraceFile::open_verified(file);
                    opened.is_ok_and(|contents| !contents.represents_several_ranks())
                });
                if *is_shared { *first } else { new() }
            }
        }
    });
    // Collect the list before the checks start, because the iterator also fills `distinct`.
    let of_file = of_file.collect();
    let traces = parallel_map(("checking", "traces"), distinct.len(), threads, |i| {
        find_trace_defects_and_hash(distinct[i], options.dependencies, options.show, hash)
    });
    (traces, of_file)
}

fn find_trace_defects_and_hash(
    file: &RankFile,
    policy: EnforcedDependencyKinds,
    show: usize,
    hash: bool,
) -> ValidatedTraceAndHash {
    match DecompressedTraceFile::open_verified(file) {
        Err(error) => (TraceDefectsAndDigest::from_read_error(&error, show), None),
        Ok(contents) => {
            let bytes = contents.as_slice();
            let hash =
                hash.then(|| job::describe_input_with_hash("trace", &file.path, bytes).blake3);
            let told = |error| contents.locate_error_in_original_file(error);
            (
                TraceDefectsAndDigest::check_trace_and_map_errors(bytes, policy, show, told),
                hash,
            )
        }
    }
}

/// Returns the options as JSON, for the report.
fn options_json(args: &ValidateArgs) -> Value {
    let fields: [(&str, Value); 6] = [
        ("deps", args.deps.choice_name().into()),
        ("absent", args.absent.choice_name().into()),
        ("ranks", args.ranks.into()),
        ("machine", args.machine.clone().into()),
        ("show", args.show.into()),
        ("strict", args.strict.into()),
    ];
    fields.into_iter().collect()
}
