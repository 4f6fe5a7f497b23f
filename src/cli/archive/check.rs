//! `chakram archive baseline` and `check`.

use super::contents::parse_metadata_query;
use crate::compare::parallel_map;
use crate::load::TraceReadingArgs;
use crate::output::TimeChangingReplayArgs;
use chakram_archive::{
    self as archive, Archive, MetadataQuery, RecordedMakespanPrediction,
    UnsavedBaselineMakespanPrediction, WorkloadEntry,
};
use chakram_base::units::{Time, parse_unscaled_percent_number};
use chakram_engine::UnusableOptionReason;
use chakram_jobs::ReplaySettings;
use chakram_studies::regression::{
    self, ArchiveCheckResults, FailedPredictionWithErrorMessage, ReplayReportWithIneffectiveOption,
    WorkloadWithExpectedCheckTime, page, verdict,
};
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::escape_and_shorten_name;
use clap::{Args, Parser, ValueEnum};
use std::error::Error;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Output format of the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CheckFormat {
    /// A table, followed by causes
    Text,
    /// One document
    Json,
    /// A summary for GitHub, in Markdown
    Markdown,
}

impl CheckFormat {
    fn render_outcome(self, outcome: &ArchiveCheckResults) -> String {
        match self {
            Self::Text => verdict::render_verdict_table_with_causes(outcome),
            Self::Json => verdict::verdict_json(outcome),
            Self::Markdown => verdict::verdict_markdown(outcome),
        }
    }
}

/// Options of `chakram replay` that a baseline stores.
#[derive(Debug, Parser)]
#[command(name = "replay options", no_binary_name = true)]
struct StoredReplayOptionsOfBaseline {
    #[command(flatten)]
    job: TraceReadingArgs,
    #[command(flatten)]
    timing: TimeChangingReplayArgs,
}

impl StoredReplayOptionsOfBaseline {
    fn parse(arguments: &[String]) -> Result<ReplaySettings, String> {
        let this = Self::try_parse_from(arguments).map_err(|error| {
            let error = error.to_string();
            error.trim_start_matches("error: ").to_owned()
        })?;
        let given = this
            .job
            .given_options()
            .iter()
            .chain(this.timing.given_options());
        let settings = ReplaySettings::parse_settings(given.map(|(key, words)| (*key, &words[..])));
        settings.map_err(|error| error.to_string())
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram archive baseline corpus.etz -m dgx-h100 --reason 'first baseline'
  chakram archive baseline corpus.etz -m dgx-h100 -m mi300x --reason 'all machines' -- --compute roofline
  chakram archive baseline corpus.etz --where 'owner = me' -m machine.toml --reason 'as captured'

machine.toml means the workload's own file if the workload has a file with that name. Earlier baselines are kept
with their reasons; `check` compares with the latest baseline on each machine.")]
pub struct RecordBaselineArgs {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    /// Machine to predict for: a name from `chakram machine list`, a file of the workload, or a file; repeatable
    #[arg(short, long, required = true, value_name = "MACHINE")]
    machine: Vec<String>,
    /// Reason why these predictions are right; stored in the archive
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Select only workloads that satisfy this condition, as for `archive list`
    #[arg(long = "where", value_name = "QUESTION", value_parser = parse_metadata_query)]
    filter: Option<MetadataQuery>,
    /// Number of replays that run at the same time; one per core by default
    #[arg(long, value_name = "N", value_parser = crate::parse_number)]
    threads: Option<NonZeroUsize>,
    /// Options of `chakram replay` for the timing model and the traces, stored for later checks, which read the files
    /// that the options name again
    #[arg(last = true, value_name = "OPTIONS")]
    options: Vec<String>,
}

/// Replays the chosen workloads on each machine, and stores the results as baselines.
pub fn replay_workloads_and_store_baselines(
    args: &RecordBaselineArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let archive = Arc::new(super::open_archive_and_warn_of_tail(&args.archive)?);
    let options = StoredReplayOptionsOfBaseline::parse(&args.options)?;
    let machines = args
        .machine
        .iter()
        .map(|name| options.machine_name_with_rates(name));
    let machines: Vec<String> = machines.collect::<Result<_, _>>()?;
    let pairs: Vec<(&WorkloadEntry, &String)> =
        workloads_matching_filter(&archive, args.filter.as_ref())
            .flat_map(|entry| machines.iter().map(move |machine| (entry, machine)))
            .collect();
    if pairs.is_empty() {
        return Err("no workload is selected, so there is nothing to predict".into());
    }
    let drafts = parallel_map(("predicting", "replays"), pairs.len(), args.threads, |at| {
        let (entry, machine) = pairs[at];
        let draft = draft_baseline(&archive, entry, machine, &options, args);
        draft.map_err(|error| format!("{} on {machine}: {error}", entry.name))
    });
    let drafts: Vec<_> = drafts.into_iter().collect::<Result<_, _>>()?;
    let (drafts, ineffective): (Vec<UnsavedBaselineMakespanPrediction>, Vec<_>) =
        drafts.into_iter().unzip();
    if let [Some(first), ..] = &ineffective[..]
        && ineffective.iter().all(Option::is_some)
    {
        return Err(first.clone().into());
    }
    let kept = archive::add_baseline_predictions(&args.archive, &drafts)?;
    super::print_note_naming_kept_bytes_file(kept.as_ref())?;
    for draft in &drafts {
        let (name, machine) = (
            escape_and_shorten_name(&draft.workload),
            escape_and_shorten_name(&draft.record.machine),
        );
        writeln!(
            out,
            "{name} on {machine}: {}",
            Time(draft.record.makespan_ps)
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn workloads_matching_filter<'a>(
    archive: &'a Archive,
    filter: Option<&'a MetadataQuery>,
) -> impl Iterator<Item = &'a WorkloadEntry> {
    let all = archive.workloads().values();
    all.filter(move |entry| filter.is_none_or(|query| query.matches(*entry)))
}

fn draft_baseline(
    archive: &Arc<Archive>,
    entry: &WorkloadEntry,
    machine: &str,
    options: &ReplaySettings,
    args: &RecordBaselineArgs,
) -> Result<
    (
        UnsavedBaselineMakespanPrediction,
        Option<UnusableOptionReason>,
    ),
    Box<dyn Error + Send + Sync>,
> {
    let started = Instant::now();
    let text = regression::workload_or_preset_machine_text(archive, entry, machine)?;
    let predicted =
        regression::predict_archived_workload_time(archive, entry, machine, &text, options);
    let ReplayReportWithIneffectiveOption {
        report,
        ineffective,
    } = predicted?;
    let bytes = regression::report_json_bytes(&report);
    let record = RecordedMakespanPrediction {
        machine: machine.to_owned(),
        machine_blake3: blake3::hash(text.as_bytes()).to_hex().to_string(),
        machine_bytes: text.len() as u64,
        arguments: args.options.clone(),
        contents: entry.contents_hash(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        makespan_ps: report.outcome.makespan.0,
        report: blake3::hash(&bytes).to_hex().to_string(),
        report_bytes: bytes.len() as u64,
        reason: args.reason.clone(),
        replay_ms: started.elapsed().as_micros().div_ceil(1000) as u64,
        features: regression::list_features_covered_by_prediction(entry, machine, &report),
    };
    let draft = UnsavedBaselineMakespanPrediction {
        workload: entry.name.clone(),
        record,
        report: bytes,
        machine: text,
    };
    Ok((draft, ineffective))
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram archive check corpus.etz
  chakram archive check corpus.etz --threshold 0.5% --budget 60s
  chakram archive check corpus.etz --where 'owner = me' --format markdown >> $GITHUB_STEP_SUMMARY
  chakram archive check corpus.etz --machine dgx-h100=new/dgx-h100.toml --junit check.xml --html check.html

The check gives two verdicts. The first says whether a prediction changed, and fails if the change exceeds the
threshold. The second is the difference from measured steps, if `archive add --measured` added any; this verdict
never fails the check.

Exit codes: 0 no prediction changed, 2 a prediction failed, 3 a prediction changed by more than the threshold")]
pub struct PredictionChangeCheckArgs {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    /// Fail if a prediction changes by more than this percentage, up or down
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = parse_percent_option)]
    threshold: f64,
    /// Use another file for a machine of the baselines, such as dgx-h100=new.toml; repeatable
    #[arg(short, long, value_name = "MACHINE=FILE", value_parser = parse_machine_replacement)]
    machine: Vec<(String, String)>,
    /// Select only workloads that satisfy this condition, as for `archive list`
    #[arg(long = "where", value_name = "QUESTION", value_parser = parse_metadata_query)]
    filter: Option<MetadataQuery>,
    /// Check only a selection that takes about this long and covers operators, groups, sizes, schemas and machines; the
    /// output lists the rest
    #[arg(long, value_name = "TIME", value_parser = parse_time_budget)]
    budget: Option<Duration>,
    /// Number of replays that run at the same time; one per core by default
    #[arg(long, value_name = "N", value_parser = crate::parse_number)]
    threads: Option<NonZeroUsize>,
    /// Format of the verdict
    #[arg(long, value_enum, default_value_t = CheckFormat::Text, value_name = "FORMAT")]
    format: CheckFormat,
    /// Also write the verdict as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Also write an HTML page that shows, for each changed prediction, its times before and now, the cause, and
    /// earlier baselines
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
}

fn parse_percent_option(text: &str) -> Result<f64, String> {
    parse_unscaled_percent_number(text)
        .ok_or_else(|| format!("`{text}` is not a percentage; write for example 0.5%"))
}

fn parse_machine_replacement(text: &str) -> Result<(String, String), String> {
    let (machine, file) = text
        .split_once('=')
        .ok_or("expected MACHINE=FILE, for example dgx-h100=new.toml")?;
    Ok((machine.to_owned(), file.to_owned()))
}

fn parse_time_budget(text: &str) -> Result<Duration, String> {
    let span = text
        .parse::<chakram_base::units::Span>()
        .map_err(|error| error.to_string())?;
    Ok(Duration::from_nanos(span.0 / 1000))
}

/// A baseline to check, and the workload that it belongs to.
type WorkloadAndBaseline<'a> = (&'a WorkloadEntry, &'a RecordedMakespanPrediction);

/// Repeats the predictions of the chosen baselines, and prints the verdict.
pub fn repeat_and_judge_baseline_predictions(
    args: &PredictionChangeCheckArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let archive = Arc::new(super::open_archive_and_warn_of_tail(&args.archive)?);
    let mut outputs = OutputsAndProtectedInputs::default();
    outputs.register_input(&args.archive);
    let junit = args
        .junit
        .as_ref()
        .map(|path| outputs.create_file(path))
        .transpose()?;
    let html = args
        .html
        .as_ref()
        .map(|path| outputs.create_file(path))
        .transpose()?;
    let mut pairs: Vec<WorkloadAndBaseline<'_>> = Vec::new();
    let mut without = Vec::new();
    for entry in workloads_matching_filter(&archive, args.filter.as_ref()) {
        let latest = entry.latest_prediction_by_machine();
        if latest.is_empty() {
            without.push(entry.name.clone());
        }
        pairs.extend(latest.into_iter().map(|record| (entry, record)));
    }
    if pairs.is_empty() {
        return Err(
            "none of the selected workloads has a baseline\n  try: chakram archive baseline".into(),
        );
    }
    for (machine, _) in &args.machine {
        if !pairs.iter().any(|(_, record)| record.machine == *machine) {
            return Err(format!("--machine {machine}=…: no baseline is for this machine").into());
        }
    }
    let mut outcome = ArchiveCheckResults {
        threshold: args.threshold,
        without,
        ..ArchiveCheckResults::default()
    };
    if let Some(budget) = args.budget {
        pairs = choose_baselines_in_budget(budget, &pairs, args.threads, &mut outcome);
        if pairs.is_empty() {
            return Err("--budget: the time is too short for every prediction, so nothing would be checked\n  try: a \
                        longer time"
                .into());
        }
    }
    let results = parallel_map(("predicting", "replays"), pairs.len(), args.threads, |at| {
        check_one_baseline(&archive, pairs[at], args)
    });
    for (result, (entry, record)) in results.into_iter().zip(&pairs) {
        match result {
            Ok(checked) => outcome.checked.push(checked),
            Err(error) => outcome.failed.push(FailedPredictionWithErrorMessage {
                workload: entry.name.clone(),
                machine: record.machine.clone(),
                error: error.to_string(),
            }),
        }
    }
    if let Some(mut file) = junit {
        file.write_all(verdict::verdict_junit(&outcome).as_bytes())?;
        file.commit()?;
    }
    if let Some(mut file) = html {
        let name = args.archive.display().to_string();
        file.write_all(page::render_check_page(&outcome, &name).as_bytes())?;
        file.commit()?;
    }
    out.write_all(args.format.render_outcome(&outcome).as_bytes())?;
    Ok(
        match (
            outcome.failed.is_empty(),
            outcome.moved_predictions().next(),
        ) {
            (false, _) => ExitCode::from(2),
            (_, Some(_)) => ExitCode::from(3),
            _ => super::exit_code_for_archive_tail(archive.uncommitted_tail()),
        },
    )
}

fn check_one_baseline(
    archive: &Arc<Archive>,
    (entry, record): WorkloadAndBaseline<'_>,
    args: &PredictionChangeCheckArgs,
) -> Result<regression::PredictionComparedWithBaseline, Box<dyn Error + Send + Sync>> {
    let options = StoredReplayOptionsOfBaseline::parse(&record.arguments)?;
    let other = args
        .machine
        .iter()
        .find(|(machine, _)| *machine == record.machine);
    let machine = other.map_or(&record.machine, |(_, file)| file);
    let checked = regression::compare_prediction_with_baseline(
        archive,
        entry,
        record,
        machine,
        &options,
        args.threshold,
    );
    checked.map_err(Into::into)
}

/// Chooses the baselines that `threads` threads can check within `budget`. Records in `outcome` all other baselines,
/// and the features that only these cover.
fn choose_baselines_in_budget<'a>(
    budget: Duration,
    pairs: &[WorkloadAndBaseline<'a>],
    threads: Option<NonZeroUsize>,
    outcome: &mut ArchiveCheckResults,
) -> Vec<WorkloadAndBaseline<'a>> {
    let threads = threads.or_else(|| std::thread::available_parallelism().ok());
    let threads = threads.map_or(1, NonZeroUsize::get) as u64;
    let workloads: Vec<WorkloadWithExpectedCheckTime> = pairs
        .iter()
        .map(|(entry, record)| WorkloadWithExpectedCheckTime {
            name: format!("{} on {}", entry.name, record.machine),
            features: record.features.iter().cloned().collect(),
            millis: record.replay_ms,
        })
        .collect();
    let millis = u64::try_from(budget.as_millis()).unwrap_or(u64::MAX);
    let choice =
        regression::select_workloads_within_budget(&workloads, millis.saturating_mul(threads));
    let chosen = workloads
        .iter()
        .zip(pairs)
        .filter(|(workload, _)| choice.chosen.contains(&workload.name));
    let chosen = chosen.map(|(_, pair)| *pair).collect();
    outcome.left_out = choice.left_out;
    outcome.uncovered = choice.uncovered.into_iter().collect();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::ReplayArgs;
    use clap::{Command, CommandFactory};
    use std::collections::BTreeSet;

    /// A baseline omits the options of `replay` under other headings, because they only select the report or repeat the
    /// job.
    #[test]
    fn baselines_take_every_option_of_replays_about_times_and_traces() {
        let about = |command: &Command| -> BTreeSet<String> {
            let options = command.get_arguments().filter(|option| {
                let heading = option.get_help_heading();
                matches!(heading, Some("Timing model" | "Traces"))
            });
            options.map(|option| option.get_id().to_string()).collect()
        };
        let replay = about(&ReplayArgs::augment_args(Command::new("replay")));
        assert!(
            replay.len() > 18 && replay.contains("fill_domains"),
            "{replay:?}"
        );
        assert_eq!(about(&StoredReplayOptionsOfBaseline::command()), replay);
    }
}
