//! `chakram inspect`: shows the contents of a trace or a job.

use super::flags::parser_of_choices;
use super::load::{ProfiledStepArg, SkipJobFileCheckArg};
use super::output::ReportDestinationAndOutputs;
use super::progress::ProgressDisplay;
use super::terminal;
use chakram_analysis::inspect::render::{
    self, CriticalPathRenderInput, NodeListFormat, OmissionHints, SummaryTableKind,
};
use chakram_analysis::inspect::{
    self, AttributeFilter, InspectedRankTrace, NameGlobOrSubstring, NodeFilter, NodeTypeFilter,
    RankSet, RankTimesForCriticalPath, critical_path, for_each_in_order,
};
use chakram_base::setting::EnumeratedSetting;
use chakram_base::units::{Span, Time};
use chakram_jobs as job;
use chakram_report::summary::format_count_with_noun;
use chakram_report::text::TextStyleWidthAndDetail;
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::file::{DecompressedTraceFile, RankFile};
use clap::{Args, ValueEnum};
use std::error::Error;
use std::io::{BufWriter, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Help heading for the filters.
const FILTERS: &str = "Filters";

mod list;

/// Options that the text recommends for showing omitted details.
const HINTS: OmissionHints = OmissionHints {
    all: "--format json",
    all_paths: "--format json, or --rank R",
    table: |table| format!("--format csv --table {}", table.choice_name()),
    limit: |nodes| format!("--limit {nodes}"),
};

/// Show contents, times and critical path of traces
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram inspect traces/ddp-resnet18                 counts and times by type, lane, operator, …
  chakram inspect job --name 'aten::*mm*' --type compute
  chakram inspect job --rank 0 --lane 'stream 7' --from 10ms --to 12ms --list
  chakram inspect job --label phase=backward --label layer=3 --list
  chakram inspect job --type all-reduce --list --format csv > calls.csv
  chakram inspect job --rank 3 --node 4711 --depth 2  a record in full, with its neighbours
  chakram inspect job --rank 3 --node 4711 --format dot | dot -Tsvg > near.svg
  chakram inspect job --critical-path                 where the recorded run spent its time

Times are from the recorded run: exact if traces have delays, as `chakram convert` writes them; otherwise estimated
from durations. For damaged files, the readable part is shown.

Exit codes: 0 done, 2 bad input, or no file could be read")]
pub struct InspectArgs {
    /// Folder of traces, prefix of files named PREFIX.RANK.et, or files
    #[arg(required = true, value_name = "TRACES")]
    traces: Vec<PathBuf>,
    /// Select only these ranks, such as 0,4-7
    #[arg(long, help_heading = FILTERS, value_name = "RANKS")]
    rank: Option<RankSet>,
    /// Select only nodes whose name contains this text or matches this pattern with *, ? or [; repeatable
    #[arg(long, help_heading = FILTERS, value_name = "PATTERN")]
    name: Vec<NameGlobOrSubstring>,
    /// Select only nodes of these types: host, compute, load, store, send, receive, collective, all-reduce, …
    #[arg(help_heading = FILTERS, long = "type", value_name = "TYPES")]
    types: Vec<NodeTypeFilter>,
    /// Select only collectives of this process group; `all` is the group of all ranks
    #[arg(long, help_heading = FILTERS, value_name = "GROUP")]
    group: Vec<String>,
    /// Select only nodes on this lane (stream or thread); a name or a pattern
    #[arg(long, help_heading = FILTERS, value_name = "LANE")]
    lane: Vec<NameGlobOrSubstring>,
    /// Select only nodes with this attribute, such as phase=backward; repeatable
    #[arg(long, help_heading = FILTERS, value_name = "NAME=VALUE")]
    label: Vec<AttributeFilter>,
    /// Select only nodes that run after this time, such as 10ms
    #[arg(long, help_heading = FILTERS, value_name = "TIME", value_parser = parse_time)]
    from: Option<Time>,
    /// Select only nodes that run before this time
    #[arg(long, help_heading = FILTERS, value_name = "TIME", value_parser = parse_time)]
    to: Option<Time>,
    /// List nodes, one per line, by rank and start; with --critical-path, all nodes of the path
    #[arg(long)]
    list: bool,
    /// Maximum number of listed nodes; by default 100 in text, all in JSON and CSV
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Show all attributes of the node with this id, its dependencies and its dependents
    #[arg(long, value_name = "ID", conflicts_with_all = ["list", "critical_path", "name", "types", "group", "lane", "label", "from", "to"])]
    node: Option<u64>,
    /// Maximum distance, in dependencies, of the neighbours that --node shows
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "node",
        hide_default_value = true
    )]
    depth: u32,
    /// Show the critical path of the recorded run
    #[arg(long, conflicts_with_all = ["name", "types", "group", "lane", "label", "from", "to"])]
    critical_path: bool,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = InspectFormatArg::Text, value_name = "FORMAT")]
    format: InspectFormatArg,
    /// Table for --format csv; types by default
    #[arg(long, value_parser = parser_of_choices::<SummaryTableKind>(), value_name = "TABLE", conflicts_with_all = ["list", "node", "critical_path"])]
    table: Option<SummaryTableKind>,
    /// Print long names whole; by default they are cut to the terminal's width or 120 columns
    #[arg(long)]
    details: bool,
    #[command(flatten)]
    verify: SkipJobFileCheckArg,
    #[command(flatten)]
    step: ProfiledStepArg,
    /// Number of ranks that are read at the same time; one per core by default
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = crate::parse_number)]
    threads: Option<NonZeroUsize>,
    /// Write to this file; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
}

/// Output format of `inspect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum InspectFormatArg {
    /// Human-readable text
    Text,
    /// JSON, times in picoseconds
    Json,
    /// One table as comma-separated values
    Csv,
    /// Graphviz drawing, with --node
    Dot,
}

/// Default maximum number of nodes in a text listing.
const LISTED: usize = 100;

fn parse_time(text: &str) -> Result<Time, String> {
    let span: Span = text
        .parse()
        .map_err(|e: chakram_base::units::QuantityError| e.to_string())?;
    Ok(Time::ZERO + span)
}

/// Runs the command and prints to `out`.
///
/// # Errors
///
/// Fails if a file is missing or unreadable, if options contradict one another, or if output cannot be
/// written.
pub fn run(args: &InspectArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    args.check_options()?;
    let found = job::find_traces(&args.traces, args.verify.verify_level_for_replay())?;
    let found = job::restrict_to_step(found, args.step.step, None)?;
    let mut outputs = OutputsAndProtectedInputs::default();
    job::protect_found_files_as_inputs(&mut outputs, &found);
    let mut files = found.files;
    let found = files.len();
    if let Some(ranks) = &args.rank {
        files.retain(|file| ranks.has_rank(file.rank));
    }
    if files.is_empty() {
        return Err(args.describe_missing_rank(found).into());
    }
    let title = job::job_name_from_paths(&args.traces, &files);
    // Write a listing directly: a listing is streamed, but the destination would first collect the whole text.
    if args.list && !args.critical_path {
        return args.list_nodes(&files, out, outputs);
    }
    let mut to = ReportDestinationAndOutputs::create_at_path(out, &args.output, outputs)?;
    if let Some(id) = args.node {
        return args.show_node(id, &files, &mut to);
    }
    if args.critical_path {
        return args.show_critical_path(&title, &files, &mut to);
    }
    let progress = ProgressDisplay::start_counting("reading", "ranks", files.len() as u64);
    let read = || progress.count_one();
    let job = inspect::inspect_job_with_progress(
        &files,
        &args.node_filter(),
        args.thread_count(),
        &read,
    )?;
    drop(progress);
    warn_of_faults(job.fault_count())?;
    let text = match args.format {
        InspectFormatArg::Json => {
            render::json(&job, args.list_filter_options_with_values()).to_json_text()
        }
        InspectFormatArg::Csv => render::csv(&job, args.table.unwrap_or(SummaryTableKind::Types)),
        _ => render::text(
            &job,
            &title,
            &args.format_node_filter(),
            &HINTS,
            args.text_style(&to),
        ),
    };
    to.write_report(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Warns on standard error about the number of faults in the files, unless there are none.
fn warn_of_faults(faults: u64) -> std::io::Result<()> {
    match faults {
        0 => Ok(()),
        count => terminal::print_warning_unless_quiet(format_args!(
            "{}; the readable part is shown",
            format_count_with_noun(count, "fault")
        )),
    }
}

impl InspectArgs {
    fn check_options(&self) -> Result<(), String> {
        if self.limit.is_some() && !self.list && self.node.is_none() {
            return Err("--limit is for --list and --node".to_owned());
        }
        if self.table.is_some() && self.format != InspectFormatArg::Csv {
            return Err("--table needs --format csv\n  try: --format csv".to_owned());
        }
        if self.details && self.format != InspectFormatArg::Text {
            return Err(
                "--details is for --format text; other formats have whole names".to_owned(),
            );
        }
        match (self.format, self.node.is_some()) {
            (InspectFormatArg::Dot, false) => {
                Err("--format dot draws the neighbourhood of a node\n  try: --node ID".to_owned())
            }
            (InspectFormatArg::Csv, true) => {
                Err("--node has no table\n  try: --format json".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn describe_missing_rank(&self, found: usize) -> String {
        let ranks = self.rank.as_ref().map(ToString::to_string);
        format!(
            "--rank {}: none of the {found} files is of this rank\n  try: without --rank, for one line per rank",
            ranks.unwrap_or_default()
        )
    }

    fn node_filter(&self) -> NodeFilter {
        NodeFilter {
            names: self.name.clone(),
            types: self.types.clone(),
            groups: self.group.clone(),
            lanes: self.lane.clone(),
            labels: self.label.clone(),
            from: self.from,
            to: self.to,
        }
    }

    /// Returns the filters on the command line, as options with their values.
    fn list_filter_options_with_values(&self) -> Vec<(&'static str, Vec<String>)> {
        let mut words = Vec::new();
        let mut say = |name, values: Vec<String>| {
            if !values.is_empty() {
                words.push((name, values));
            }
        };
        say("rank", self.rank.iter().map(ToString::to_string).collect());
        say("name", self.name.iter().map(ToString::to_string).collect());
        say("type", self.types.iter().map(ToString::to_string).collect());
        say("group", self.group.clone());
        say("lane", self.lane.iter().map(ToString::to_string).collect());
        say(
            "label",
            self.label.iter().map(ToString::to_string).collect(),
        );
        say("from", self.from.iter().map(ToString::to_string).collect());
        say("to", self.to.iter().map(ToString::to_string).collect());
        words
    }

    /// Formats the filters except the filter for ranks; empty if there are none.
    fn format_node_filter(&self) -> String {
        let options = self
            .list_filter_options_with_values()
            .into_iter()
            .filter(|(name, _)| *name != "rank");
        let words: Vec<String> = options
            .map(|(name, values)| format!("{name} {}", values.join(" or ")))
            .collect();
        words.join(", ")
    }

    fn thread_count(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.map_or_else(cores, NonZeroUsize::get)
    }

    /// Returns the maximum number of rows: from the command line, or else the format's default.
    fn row_limit(&self) -> usize {
        let default = match self.format {
            InspectFormatArg::Text => LISTED,
            _ => usize::MAX,
        };
        self.limit.unwrap_or(default)
    }

    fn show_node(
        &self,
        id: u64,
        files: &[RankFile],
        to: &mut ReportDestinationAndOutputs<'_>,
    ) -> Result<ExitCode, Box<dyn Error>> {
        let [file] = files else {
            return Err(format!(
                "--node {id}: ids are unique only within a rank, but there are {} ranks\n  try: --rank {}",
                files.len(),
                files[0].rank
            )
            .into());
        };
        let contents = DecompressedTraceFile::open_verified(file)?;
        let trace = InspectedRankTrace::read_trace(file.rank, contents.as_slice(), |e| {
            contents.locate_error_in_original_file(e)
        })?;
        let limit = match self.format {
            // Apply the limit here too, because nobody can read a drawing of all nodes.
            InspectFormatArg::Dot => self.limit.unwrap_or(LISTED),
            _ => self.row_limit(),
        };
        let near =
            inspect::NodeNeighbourhood::new(&trace, id, self.depth, limit).ok_or_else(|| {
                let path = file.path.display();
                format!("--node {id}: {path} has no such node\n  try: --list, which shows ids")
            })?;
        warn_of_faults(trace.faults.count_replay_rejecting_faults())?;
        let text = match self.format {
            InspectFormatArg::Json => render::node_json(&trace, &near).to_json_text(),
            InspectFormatArg::Dot => near.render_dot(),
            _ => render::node_text(&trace, &near, &HINTS, self.text_style(to)),
        };
        to.write_report(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    fn text_style(&self, to: &ReportDestinationAndOutputs<'_>) -> TextStyleWidthAndDetail {
        TextStyleWidthAndDetail {
            details: self.details,
            ..to.text_style()
        }
    }

    fn show_critical_path(
        &self,
        title: &str,
        files: &[RankFile],
        to: &mut ReportDestinationAndOutputs<'_>,
    ) -> Result<ExitCode, Box<dyn Error>> {
        let progress = ProgressDisplay::start_counting("reading", "ranks", files.len() as u64);
        let mut tracks: Vec<RankTimesForCriticalPath> = Vec::new();
        let mut faults = 0;
        let work = |file: &RankFile| {
            let contents = DecompressedTraceFile::open_verified(file)?;
            let trace = InspectedRankTrace::read_trace(file.rank, contents.as_slice(), |e| {
                contents.locate_error_in_original_file(e)
            })?;
            let faults = trace.faults.count_replay_rejecting_faults();
            progress.count_one();
            RankTimesForCriticalPath::new(trace)
                .map(|track| (track, faults))
                .map_err(|e| e.in_file(&file.path))
        };
        // Every file must be readable, because the critical path may pass through any rank.
        for_each_in_order(
            files,
            self.thread_count(),
            work,
            |_, read: Result<_, chakram_trace::format::TraceError>| {
                let (track, found) = read?;
                faults += found;
                tracks.push(track);
                Ok::<_, chakram_trace::format::TraceError>(())
            },
        )?;
        drop(progress);
        warn_of_faults(faults)?;
        let shown = CriticalPathRenderInput {
            title,
            tracks: &tracks,
            list: self.list.then(|| self.row_limit()),
            hints: HINTS,
        };
        let paths = render::find_job_or_per_rank_critical_paths(&tracks, critical_path);
        let text = match self.format {
            InspectFormatArg::Json => shown.build_paths_document(&paths).to_json_text(),
            InspectFormatArg::Csv => shown.render_csv(&paths),
            _ => shown.render_text(&paths, self.text_style(to)),
        };
        to.write_report(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    fn list_nodes(
        &self,
        files: &[RankFile],
        out: &mut dyn Write,
        mut outputs: OutputsAndProtectedInputs,
    ) -> Result<ExitCode, Box<dyn Error>> {
        let list = list::NodeListingSettings {
            filter: self.node_filter(),
            list: match self.format {
                InspectFormatArg::Json => NodeListFormat::Json,
                InspectFormatArg::Csv => NodeListFormat::Csv,
                _ => NodeListFormat::Text {
                    width: match self.details {
                        true => usize::MAX,
                        false => {
                            terminal::terminal_columns_or_table_width(self.output == Path::new("-"))
                        }
                    },
                },
            },
            limit: self.row_limit(),
            threads: self.thread_count(),
        };
        if self.output == Path::new("-") {
            warn_of_faults(list.write_filtered_nodes_and_count_faults(files, out)?)?;
        } else {
            let file = BufWriter::new(outputs.create_file(&self.output)?);
            let mut text = terminal::EscapingWriter::new(file, terminal::EscapeStyle::All);
            let faults = list.write_filtered_nodes_and_count_faults(files, &mut text)?;
            let file = text.into_inner().into_inner();
            let file = file.map_err(std::io::IntoInnerError::into_error)?;
            file.commit()?;
            warn_of_faults(faults)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
