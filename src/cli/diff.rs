//! `chakram diff`: compares two jobs or two reports, and prints the differences.

use super::compare::parallel_map;
use super::load::{ProfiledStepArg, SkipJobFileCheckArg};
use super::output::{ReportDestinationAndOutputs, ReportFormatArg};
use super::terminal;
use chakram_analysis::diff::render::{
    self, DiffPercentLimitAndForbiddenAspects, ExceededThresholds, JobNamesAndDiffStyle,
};
use chakram_analysis::diff::tally::{
    DiffTally, FileFaultSummary, StoredChangeLimitAndTimeTolerance, TimeTolerance,
};
use chakram_analysis::diff::{StructureTimeOrBytesAspect, differences, reports};
use chakram_base::units::{Span, parse_unscaled_percent_number};
use chakram_jobs::{find_traces, protect_found_files_as_inputs, restrict_to_step};
use chakram_report::document::json_text;
use chakram_report::text::TextStyleWidthAndDetail;
use chakram_trace::files::{OutputFile, OutputsAndProtectedInputs};
use chakram_trace::format::file::{
    DecompressedTraceFile, FoundTraces, RankFile, parse_file_rank, read_text,
};
use chakram_trace::format::{TraceError, job, trace_format};
use chakram_trace::graph::RawTrace;
use clap::{Args, ValueEnum};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod sides;

use sides::{UnreadableTraces, WholeOrSalvagedTrace};

/// Compare two jobs, or two reports
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram diff old/job new/job                        rank by rank, independent of node ids
  chakram diff job.0.et job.1.et                      two traces of any ranks
  chakram diff old/job new/job --fail-on structure    exit code 3 if more than times and sizes differ
  chakram diff old/job new/job --tolerance 2% --threshold 1% --show 20
  chakram replay job -m dgx-h100 --format json > a.json
  chakram replay job -m mi300x --format json | chakram diff a.json - --threshold 1%
  chakram diff a.json b.json --html diff.html

Exit codes: 0 compared, with or without differences; 2 bad input; 3 --threshold or --fail-on exceeded")]
pub struct DiffArgs {
    /// Traces (folder, PREFIX or file), or a report; - is a report on standard input
    #[arg(value_name = "A")]
    before: PathBuf,
    /// Traces or report to compare with A
    #[arg(value_name = "B")]
    after: PathBuf,
    /// Exit with code 3 if the makespan of reports, or the total time or bytes of traces, changes by more than this,
    /// such as 1%
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent_option)]
    threshold: Option<f64>,
    /// Exit with code 3 if one of these differs; comma-separated
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHAT")]
    fail_on: Vec<FailOnStructureTimeBytesArg>,
    /// Ignore changes of a node's times up to this limit, such as 2% or 5us
    #[arg(long, value_name = "CHANGE", value_parser = parse_percent_or_time_tolerance, default_value = "0ps")]
    tolerance: TimeTolerance,
    /// Maximum number of lines per list, or `all`; by default 10 in text and all in other formats
    #[arg(long, value_name = "N", value_parser = parse_line_limit)]
    show: Option<LineLimit>,
    /// Compare the intact records of damaged traces, and report the losses
    #[arg(long, hide_short_help = true)]
    salvage: bool,
    /// Number of ranks that are compared at the same time; one per core by default
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = crate::parse_number)]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    verify: SkipJobFileCheckArg,
    #[command(flatten)]
    step: ProfiledStepArg,
    /// Also write the differences of reports as a self-contained page with charts
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Print long names and lines whole; by default they are cut to the terminal's width or 120 columns
    #[arg(long)]
    details: bool,
    /// Format of the differences
    #[arg(long, value_enum, default_value_t = ReportFormatArg::Text, value_name = "FORMAT")]
    format: ReportFormatArg,
    /// Write the differences to this file; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
}

/// Kinds of differences for which the command fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FailOnStructureTimeBytesArg {
    /// Nodes, dependencies, and attributes other than times and sizes; in reports, counts
    Structure,
    /// Durations, delays and waiting times of nodes; in reports, any time
    Time,
    /// Bytes and FLOPs of nodes; in reports, the buffers of collectives
    Bytes,
    /// Any of these
    Any,
}

/// Maximum number of lines in a list; `None` for all lines.
#[derive(Clone, Copy, Debug)]
struct LineLimit(Option<usize>);

const SHOWN_IN_TEXT: usize = 10;

fn parse_percent_option(text: &str) -> Result<f64, String> {
    parse_unscaled_percent_number(text).ok_or_else(|| match text.strip_suffix('%') {
        None => "expected percent, for example 1%".to_owned(),
        Some(number) => format!("`{number}` is not a percentage; write for example 0.5%"),
    })
}

fn parse_percent_or_time_tolerance(text: &str) -> Result<TimeTolerance, String> {
    if text.ends_with('%') {
        return parse_percent_option(text).map(TimeTolerance::Percent);
    }
    let span = text.parse::<Span>().map_err(|e| e.to_string())?;
    Ok(TimeTolerance::Absolute(span))
}

fn parse_line_limit(text: &str) -> Result<LineLimit, String> {
    match text {
        "all" => Ok(LineLimit(None)),
        _ => match text.parse() {
            Ok(lines) => Ok(LineLimit(Some(lines))),
            Err(_) => Err(format!("`{text}` is neither a number of lines nor `all`")),
        },
    }
}

impl DiffArgs {
    fn line_limit(&self) -> Option<usize> {
        match (self.show, self.format) {
            (Some(LineLimit(lines)), _) => lines,
            (None, ReportFormatArg::Text) => Some(SHOWN_IN_TEXT),
            (None, _) => None,
        }
    }

    fn tally_options(&self) -> StoredChangeLimitAndTimeTolerance {
        StoredChangeLimitAndTimeTolerance {
            singles: self.line_limit(),
            tolerance: self.tolerance,
        }
    }

    fn to_limit_and_forbidden_aspects(&self) -> DiffPercentLimitAndForbiddenAspects {
        let all = [
            StructureTimeOrBytesAspect::Structure,
            StructureTimeOrBytesAspect::Time,
            StructureTimeOrBytesAspect::Bytes,
        ];
        let of = [
            FailOnStructureTimeBytesArg::Structure,
            FailOnStructureTimeBytesArg::Time,
            FailOnStructureTimeBytesArg::Bytes,
        ];
        let wanted = |fail| {
            self.fail_on.contains(&fail) || self.fail_on.contains(&FailOnStructureTimeBytesArg::Any)
        };
        let aspects = all.into_iter().zip(of).filter(|&(_, fail)| wanted(fail));
        DiffPercentLimitAndForbiddenAspects {
            threshold: self.threshold,
            aspects: aspects.map(|(aspect, _)| aspect).collect(),
        }
    }
}

/// Compares the two inputs and prints the differences to `out`.
///
/// # Errors
///
/// Fails if input is invalid, or if output cannot be written.
pub fn run(args: &DiffArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    if args.details && args.format != ReportFormatArg::Text {
        return Err("--details is for --format text; other formats have whole names".into());
    }
    let paths = [&args.before, &args.after];
    if paths.iter().all(|path| path.as_os_str() == "-") {
        return Err("standard input can be only one of the two documents\n  try: A and -".into());
    }
    let texts = [
        read_text_if_report(paths[0])?,
        read_text_if_report(paths[1])?,
    ];
    if args.step.step.is_some() && texts.iter().any(Option::is_some) {
        return Err("--step is for traces, but the input is a report\n  try: compare reports of `chakram replay --step`".into());
    }
    let mut outputs = OutputsAndProtectedInputs::default();
    let ranks = match texts {
        [None, None] => Some(pair_rank_files(args, &mut outputs)?),
        _ => None,
    };
    paths.iter().for_each(|path| outputs.register_input(path));
    if args.html.is_some() && texts.iter().all(Option::is_none) {
        return Err("--html shows reports, but the inputs are traces\n  \
             try: compare the outputs of `chakram replay --format json`"
            .into());
    }
    let mut to = ReportDestinationAndOutputs::create_at_path(out, &args.output, outputs)?;
    let page = args.html.as_ref();
    let page = page
        .map(|path| to.create_additional_output("--html", path))
        .transpose()?;
    let names = paths.map(|path| path.display().to_string());
    let titles = JobNamesAndDiffStyle {
        names: [&names[0], &names[1]],
        show: args.line_limit(),
        style: TextStyleWidthAndDetail {
            details: args.details,
            ..to.text_style()
        },
    };
    let (text, verdict) = match &texts {
        [Some(a), Some(b)] => compare_report_files(args, [a, b], &titles, page)?,
        [None, None] => compare_trace_files(args, &ranks.unwrap_or_default(), &titles)?,
        [a, _] => {
            let [report, other] = if a.is_some() { [0, 1] } else { [1, 0] };
            return Err(format!(
                "{} is a report, and {} is not: traces are compared with traces, reports with reports",
                names[report], names[other]
            )
            .into());
        }
    };
    to.write_report(&text)?;
    if verdict.exceeded.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    for text in &verdict.exceeded {
        terminal::print_or_capture_stderr_line(format_args!("exceeded: {text}"))?;
    }
    Ok(ExitCode::from(3))
}

/// Returns the text of `path` if the file is a report. A file is a report if it begins like JSON and does not have a
/// trace's extension.
fn read_text_if_report(path: &Path) -> Result<Option<String>, Box<dyn Error>> {
    if path.as_os_str() == "-" {
        let text = read_text(std::io::stdin().lock(), 0)
            .map_err(|source| TraceError::from_io("standard input", "read", source))?;
        return Ok(Some(text));
    }
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("");
    let trace = [".et", ".et.gz", ".et.zst"]
        .iter()
        .any(|ending| name.ends_with(ending));
    if trace || !path.is_file() {
        return Ok(None);
    }
    let contents = DecompressedTraceFile::decompress_file_without_converting(path)?;
    if matches!(
        trace_format::detect_text_format(contents.as_slice()),
        Some(Ok(_))
    ) {
        return Ok(None);
    }
    let begin = contents.as_slice().trim_ascii_start();
    match begin.first() {
        Some(b'{') => {
            let text = String::from_utf8(contents.as_slice().to_vec())
                .map_err(|e| format!("{}: {e}", path.display()))?;
            Ok(Some(text))
        }
        _ => Ok(None),
    }
}

fn compare_report_files(
    args: &DiffArgs,
    texts: [&String; 2],
    titles: &JobNamesAndDiffStyle<'_>,
    page: Option<OutputFile>,
) -> Result<(String, ExceededThresholds), Box<dyn Error>> {
    if args.tolerance != TimeTolerance::Absolute(Span::ZERO) {
        return Err(
            "--tolerance is for the nodes of traces, but the inputs are reports\n  try: --threshold"
                .into(),
        );
    }
    if args.threads.is_some() {
        return Err("--threads is for the ranks of traces, but the inputs are reports".into());
    }
    if args.salvage {
        return Err("--salvage is for traces, but the inputs are reports".into());
    }
    let read = |which: usize| -> Result<_, String> {
        reports::parse_report_document(texts[which])
            .map_err(|e| format!("{}: {e}", titles.names[which]))
    };
    let found = reports::ReportDiffByMachine::new(&read(0)?, &read(1)?);
    let verdict = found.find_exceeded_thresholds(&args.to_limit_and_forbidden_aspects());
    if let Some(mut file) = page {
        file.write_all(reports::html(&found, titles.names).as_bytes())?;
        file.commit()?;
    }
    let text = match args.format {
        ReportFormatArg::Text => reports::text(&found, titles),
        ReportFormatArg::Json => json_text(&reports::json(&found, titles, &verdict)),
        ReportFormatArg::Csv => {
            return Err("--format csv is for traces; reports have text and json".into());
        }
    };
    Ok((text, verdict))
}

fn compare_trace_files(
    args: &DiffArgs,
    ranks: &FilesOfBothJobsByRank,
    titles: &JobNamesAndDiffStyle<'_>,
) -> Result<(String, ExceededThresholds), Box<dyn Error>> {
    let ranks: Vec<_> = ranks.iter().collect();
    let tallies = parallel_map(("comparing", "ranks"), ranks.len(), args.threads, |i| {
        let (&rank, files) = ranks[i];
        match files {
            [Some(a), Some(b)] => tally_differences_of_rank_files(rank, [a, b], args),
            [_, b] => Ok(DiffTally::for_unpaired_rank(rank, b.is_some())),
        }
    });
    let mut all = DiffTally::default();
    let tallies = UnreadableTraces::values_or_unreadable_error(tallies).map_err(|error| {
        if args.salvage {
            error
        } else {
            error.with_salvage_hint()
        }
    })?;
    for tally in tallies {
        all.merge_ranks(tally, args.tally_options());
    }
    if args.format == ReportFormatArg::Csv {
        // CSV has no rows for faults, so print the faults as warnings.
        for FileFaultSummary { rank, text, .. } in &all.faults {
            terminal::print_warning_unless_quiet(format_args!("rank {rank}: {text}"))?;
        }
    }
    let verdict = args
        .to_limit_and_forbidden_aspects()
        .find_exceeded_tally_thresholds(&all);
    let text = match args.format {
        ReportFormatArg::Text => render::text::render_text(&all, titles),
        ReportFormatArg::Json => json_text(&render::json::build_trace_diff_document(
            &all, titles, &verdict,
        )),
        ReportFormatArg::Csv => render::csv::render_csv(&all, titles),
    };
    Ok((text, verdict))
}

/// For each rank, its file in the first job and its file in the second job.
type FilesOfBothJobsByRank = BTreeMap<u32, [Option<RankFile>; 2]>;

/// Finds the files of both jobs, and registers them as inputs, so that `outputs` must not replace
/// them. Two single files are compared even if their ranks differ.
fn pair_rank_files(
    args: &DiffArgs,
    outputs: &mut OutputsAndProtectedInputs,
) -> Result<FilesOfBothJobsByRank, Box<dyn Error>> {
    let paths = [&args.before, &args.after];
    let is_job = |path: &&PathBuf| path.to_string_lossy().ends_with(job::ENDING);
    if paths.iter().all(|path| path.is_file() && !is_job(path)) {
        let name = args.before.file_name().and_then(|name| name.to_str());
        let rank = name.and_then(parse_file_rank).unwrap_or(0);
        let file = |path: &PathBuf| -> Result<Option<RankFile>, Box<dyn Error>> {
            let found = FoundTraces {
                files: vec![RankFile::new(rank, path.clone())],
                ..FoundTraces::default()
            };
            Ok(restrict_to_step(found, args.step.step, None)?.files.pop())
        };
        let files = [file(paths[0])?, file(paths[1])?];
        return Ok(FilesOfBothJobsByRank::from([(rank, files)]));
    }
    let mut ranks = FilesOfBothJobsByRank::new();
    for (which, path) in paths.into_iter().enumerate() {
        let found = find_traces([path], args.verify.verify_level_for_replay())?;
        protect_found_files_as_inputs(outputs, &found);
        for file in restrict_to_step(found, args.step.step, None)?.files {
            let rank = ranks.entry(file.rank).or_default();
            rank[which] = Some(file);
        }
    }
    Ok(ranks)
}

fn tally_differences_of_rank_files(
    rank: u32,
    files: [&RankFile; 2],
    args: &DiffArgs,
) -> Result<DiffTally, UnreadableTraces> {
    let sides = UnreadableTraces::values_or_unreadable_error(
        files.map(|file| WholeOrSalvagedTrace::open_file(file, args.salvage)),
    )?;
    let contents = [
        sides[0].bytes_in_current_trace_schema(),
        sides[1].bytes_in_current_trace_schema(),
    ];
    let lost =
        [(0, false), (1, true)].map(|(i, second)| sides[i].salvage_losses_as_fault(rank, second));
    let same = contents[0] == contents[1];
    let mut traces = if same {
        // The two files are equal but may be damaged, so check one of them.
        [RawTrace::read_trace(contents[0]), RawTrace::read_trace(b"")]
    } else {
        differences::parse_both_traces(contents)
    };
    if same {
        let once = sides[0].fail_if_trace_damaged(&mut traces[0]);
        if once.is_err() {
            traces = differences::parse_both_traces(contents);
            let checks = (0..2).map(|i| sides[i].fail_if_trace_damaged(&mut traces[i]));
            UnreadableTraces::values_or_unreadable_error(checks)?;
        }
        let mut tally = DiffTally::for_identical_rank(rank);
        tally.faults.extend(lost.into_iter().flatten());
        return Ok(tally);
    }
    UnreadableTraces::values_or_unreadable_error(
        (0..2).map(|i| sides[i].fail_if_trace_damaged(&mut traces[i])),
    )?;
    for ((trace, side), file) in traces.iter_mut().zip(&sides).zip(files) {
        trace.map_fault_errors(|error| side.add_file_name_to_error(error));
        if trace.nodes.len() > differences::MOST {
            let found = format!(
                "more than {} nodes, which no comparison can hold",
                differences::MOST
            );
            return Err(TraceError::malformed_at(0, found)
                .in_file(&file.path)
                .into());
        }
    }
    let found = differences::compare_traces(&traces[0], &traces[1]);
    let mut tally = DiffTally::new(rank, [&traces[0], &traces[1]], &found, args.tally_options());
    tally.faults.extend(lost.into_iter().flatten());
    Ok(tally)
}
