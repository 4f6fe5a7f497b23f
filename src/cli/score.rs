//! `chakram score`: compares predictions with measured runs.

use super::compute::ComputeArgs;
use super::given::parse_settings_without_option;
use super::output::ReportDestinationAndOutputs;
use super::terminal;
use chakram_base::config;
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use chakram_engine::ReplayOptions;
use chakram_hardware::machine::Machine;
use chakram_report::document::VersionedDocument;
use chakram_report::summary::KernelCountsByDurationMethod;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::TextStyleWidthAndDetail;
use chakram_serving::llm::score::{
    MeasuredServingTable, format_csv_per_row_and_metric, render_scores,
};
use chakram_studies::score::{
    FittedConstant, MeasuredRun, PredictedStepTimeWithInterval, PredictionsCorrectedByOtherJobs,
    RunColumnRules, RunScoreCsvWriter, RunTable, RunsWithoutOneSetting, ScoreError, ScoredRunTable,
    WhatIfPairsAndReplaySettings, WhatIfScoresByPredictor, assign_folds,
    correct_by_runs_of_other_option_values, correct_predictions_by_measured_steps,
    count_rightly_ordered_pairs_by_option, option_value_of_measured_run,
    predict_runs_by_fitting_other_folds, predict_runs_in_table_order,
    predict_times_by_one_flop_rate, settings_without_effect,
};
use chakram_trace::files::OutputsAndProtectedInputs;
use clap::{Args, ValueEnum};
use serde_json::Map;
use std::error::Error;
use std::fmt::Display;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Compare predictions with measured runs
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  chakram score runs.csv --columns runs.toml
  chakram score runs.csv --columns runs.toml --by micro-batch
  chakram score runs.csv --columns runs.toml --set recompute=none --machine dgx-h100
  chakram score runs.csv --columns runs.toml --stack llm-foundry
  chakram score runs.csv --columns runs.toml --leave-out model
  chakram score runs.csv --columns runs.toml --format csv > predicted.csv
  chakram score --pairs pairs.toml
  chakram score served.csv --scenarios served.toml --by model")]
pub struct ScoreArgs {
    /// Measured runs: CSV with a line of headings and a run in each row; several tables are scored together
    #[arg(value_name = "RUNS.csv", required_unless_present = "pairs")]
    runs: Vec<PathBuf>,
    /// File that maps columns to options of `chakram generate` and to measured values; give one per table
    #[arg(long, value_name = "FILE.toml", required_unless_present_any = ["pairs", "scenarios"])]
    columns: Vec<PathBuf>,
    /// Serve language models instead: this file turns each row of RUNS.csv into a scenario, and names the columns of
    /// measured times
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["pairs", "columns", "set", "fit", "folds", "signs", "leave_out", "steps", "scatter", "machine", "stack"])]
    scenarios: Option<PathBuf>,
    /// Score changes of captured jobs instead; each pair has traces, edits, and the measured step
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["runs", "columns", "set", "by", "fit", "folds", "scatter", "machine"])]
    pairs: Option<PathBuf>,
    /// Replay the runs on this machine instead of the machine that the file of columns names
    #[arg(short, long, value_name = "MACHINE")]
    machine: Option<String>,
    /// Software stack for all runs instead of the stack that the file of columns names: preset or file
    #[arg(long, value_name = "STACK", conflicts_with = "pairs")]
    stack: Option<String>,
    /// Set an option for all runs, overriding the file of columns; repeatable
    #[arg(long, value_name = "OPTION=VALUE", value_parser = parse_setting)]
    set: Vec<(String, String)>,
    /// Also score the runs separately for each value of this option, or, with --scenarios, of this column
    #[arg(long, value_name = "OPTION")]
    by: Option<String>,
    /// Fit these constants of the machine to the runs, in folds: each run is predicted with constants fitted to runs
    /// that differ from it in the options `folds`. The constants are launch, backward, collective, message, memory,
    /// softmax and cross-entropy
    #[arg(long, value_name = "CONSTANTS", value_delimiter = ',', value_parser = parse_fitted_constant)]
    fit: Vec<FittedConstant>,
    /// Number of folds
    #[arg(long, value_name = "N", default_value = "5", requires = "fit")]
    folds: NonZeroUsize,
    /// Also count pairs of runs that differ in one option, and how many of these pairs are predicted in the measured
    /// order
    #[arg(long, conflicts_with = "pairs")]
    signs: bool,
    /// Also correct each run with the errors of runs that have other values of this option, such as model
    #[arg(long, value_name = "OPTION", conflicts_with_all = ["fit", "pairs"])]
    leave_out: Option<String>,
    /// Also correct all runs with these measured steps, a table with the same columns
    #[arg(long, value_name = "STEPS.csv", conflicts_with_all = ["leave_out", "fit", "pairs"])]
    steps: Option<PathBuf>,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Format of the result; CSV has a row for each run
    #[arg(long, value_enum, default_value_t = ScoreFormat::Text, value_name = "FORMAT")]
    format: ScoreFormat,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Draw predicted against measured times, as SVG
    #[arg(long, value_name = "FILE.svg")]
    scatter: Option<PathBuf>,
}

/// Output format of `score`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ScoreFormat {
    /// Human-readable text
    Text,
    /// JSON with all values
    Json,
    /// One row per run
    Csv,
}

fn parse_fitted_constant(text: &str) -> Result<FittedConstant, String> {
    let mut all = FittedConstant::ALL.into_iter();
    let found = all.find(|(_, name)| *name == text);
    found.map(|(constant, _)| constant).ok_or_else(|| {
        let names = FittedConstant::ALL.map(|(_, name)| name);
        format!("expected one of {}", names.join(", "))
    })
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected OPTION=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Name and contents of a file: a table of runs, or a file of columns.
struct RunTableOrColumnMapFileText {
    name: String,
    text: String,
}

impl RunTableOrColumnMapFileText {
    fn read_file(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let text = config::read_file_or_standard_input(path)
            .map_err(|error| format!("cannot read {name}: {error}"))?;
        Ok(Self { name, text })
    }
}

/// Tables of runs, each with its file of columns.
struct RunTablesWithColumnMapFiles(Vec<[RunTableOrColumnMapFileText; 2]>);

impl RunTablesWithColumnMapFiles {
    fn read_files(args: &ScoreArgs) -> Result<Self, String> {
        let [tables, columns] = [args.runs.len(), args.columns.len()];
        if tables != columns {
            return Err(format!(
                "the command has {tables} tables, but {columns} files of columns\n  try: --columns FILE.toml once \
                 for each table, in their order"
            ));
        }
        let pairs = args.runs.iter().zip(&args.columns);
        let pairs = pairs.map(|(runs, columns)| {
            Ok([
                RunTableOrColumnMapFileText::read_file(runs)?,
                RunTableOrColumnMapFileText::read_file(columns)?,
            ])
        });
        pairs.collect::<Result<_, _>>().map(Self)
    }

    /// Parses the measured steps in the file `path`, with the first file of columns and the settings
    /// of `args`.
    fn read_step_table(&self, args: &ScoreArgs, path: &Path) -> Result<RunTable, Box<dyn Error>> {
        let [[_, file], ..] = &self.0[..] else {
            return Err("there is no table".into());
        };
        let steps = RunTableOrColumnMapFileText::read_file(path)?;
        parse_runs_of_table(args, &steps, file)
    }

    /// Parses the runs in all tables with the settings of `args`.
    fn parse_tables(&self, args: &ScoreArgs) -> Result<RunTable, Box<dyn Error>> {
        let mut tables = None;
        for [runs, file] in &self.0 {
            let table = parse_runs_of_table(args, runs, file)?;
            match &mut tables {
                None => tables = Some(table),
                Some(all) => all.append_table(table),
            }
        }
        Ok(tables.ok_or("no table is given")?)
    }

    /// Returns the settings of `args`, each with the runs as they would be without that setting. Omits each setting
    /// without which no run is possible, because such a setting clearly has an effect.
    fn runs_without_each_setting(&self, args: &ScoreArgs) -> Vec<RunsWithoutOneSetting> {
        let of_runs = |key: &str, value: &str, without: ScoreArgs| {
            Some(RunsWithoutOneSetting {
                key: key.to_owned(),
                value: value.to_owned(),
                table: Some(self.parse_tables(&without).ok()?),
                option: None,
            })
        };
        let set = args.set.iter().enumerate().map(|(i, (key, value))| {
            let mut without = args.clone();
            without.set.remove(i);
            of_runs(key, value, without)
        });
        let machine = args.machine.iter().map(|machine| {
            let without = ScoreArgs {
                machine: None,
                ..args.clone()
            };
            of_runs(
                &SettingKey::Machine.display_key_in_files().to_string(),
                machine,
                without,
            )
        });
        let stack = args.stack.iter().map(|stack| {
            let without = ScoreArgs {
                stack: None,
                ..args.clone()
            };
            of_runs("stack", stack, without)
        });
        let given = args.compute.given_options();
        let options = given.iter().map(|(key, words)| {
            let settings = parse_settings_without_option(given, *key)?;
            Some(RunsWithoutOneSetting {
                key: key.display_key_in_files().to_string(),
                value: words.join(" "),
                table: None,
                option: Some((*key, settings.options_with_efficiency_without_files().ok()?)),
            })
        });
        set.chain(machine)
            .chain(stack)
            .chain(options)
            .flatten()
            .collect()
    }
}

/// Parses the `runs` of a table with the columns in `file` and the settings of `args`.
fn parse_runs_of_table(
    args: &ScoreArgs,
    runs: &RunTableOrColumnMapFileText,
    file: &RunTableOrColumnMapFileText,
) -> Result<RunTable, Box<dyn Error>> {
    let mut columns = RunColumnRules::parse(&file.text, &file.name)?;
    for (key, value) in &args.set {
        columns
            .override_option_for_all_runs(key, value)
            .map_err(|why| format!("--set {key}={value}: {why}"))?;
    }
    if let Some(machine) = &args.machine {
        columns.override_machine_for_all_runs(machine);
    }
    if let Some(stack) = &args.stack {
        columns.override_option_for_all_runs("stack", stack)?;
    }
    Ok(RunTable::parse(&runs.text, &runs.name, &columns)?)
}

/// Scores the runs, and prints or writes the result.
///
/// # Errors
///
/// Fails if files cannot be read, if runs cannot be replayed, or if output cannot be written.
pub fn score_runs_and_report(
    args: &ScoreArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    if let Some(path) = &args.pairs {
        return score_what_if_pairs(args, path, out);
    }
    if args.signs && args.format == ScoreFormat::Csv {
        return Err(
            "--signs: CSV has a row for each run only\n  try: --format text or json".into(),
        );
    }
    if let Some(path) = &args.scenarios {
        return score_serving(args, path, out);
    }
    let files = RunTablesWithColumnMapFiles::read_files(args)?;
    let mut table = files.parse_tables(args)?;
    let by = args.by.as_ref().map(|key| key.replace('-', "_"));
    if let Some(key) = by
        .as_ref()
        .filter(|key| table.runs.iter().all(|r| !r.options.contains_key(*key)))
    {
        return Err(format!("--by {key}: no run states this option").into());
    }
    let machine = machine_of_first_run(&table)?;
    let compute = args.compute.clone();
    let options = compute.replay_options()?;
    options.check_machine_supports_options(machine)?;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let mut outputs = OutputsAndProtectedInputs::default();
    let read = args.runs.iter().chain(&args.columns).chain(&args.steps);
    read.for_each(|path| outputs.register_input(path));
    let scatter = args.scatter.as_ref();
    let scatter = scatter.map(|path| outputs.claim_path(path)).transpose()?;
    let mut to = match &args.output {
        Some(path) => ReportDestinationAndOutputs::create_at_path(out, path, outputs)?,
        None => ReportDestinationAndOutputs::create_on_standard_output(out, outputs),
    };
    let why = |error: ScoreError| error.to_string();
    // Write each row as soon as its run is predicted. A fit or a correction needs all runs, so the rows are then
    // written at the end.
    let is_corrected = args.leave_out.is_some() || args.steps.is_some();
    let grows = args.format == ScoreFormat::Csv && args.fit.is_empty() && !is_corrected;
    let answers =
        if grows {
            let (mut rows, mut answers) = (RunScoreCsvWriter::new(&table), Vec::new());
            to.write_streamed_output(|out| {
                answers = predict_runs_in_table_order(&table, &options, threads, |run, answer| {
                    match answer {
                        Ok(answer) => {
                            let interval = answer.interval.map(|ends| ends.map(Span::as_seconds));
                            rows.write_row(run, answer.makespan.as_seconds(), interval, out)?;
                            out.flush()
                        }
                        Err(_) => Ok(()),
                    }
                })?;
                Ok(())
            })?;
            answers
        } else {
            predict_runs_in_table_order(&table, &options, threads, |_, _| Ok(()))?
        };
    let given = files.runs_without_each_setting(args);
    let without_effect = settings_without_effect(&table, &options, &answers, &given, threads);
    let mut predicted = table.keep_predicted_runs(answers, why);
    let machine = machine_of_first_run(&table)?;
    let (mut fits, mut fold_of) = (Vec::new(), Vec::new());
    if !args.fit.is_empty() {
        fold_of = assign_folds(&table.runs, args.folds);
        (predicted, fits) =
            predict_runs_by_fitting_other_folds(&table, &options, &args.fit, &fold_of, threads)?;
    }
    let correction = correct_predictions_if_requested(args, &files, &table, &predicted, &options)?;
    let scored = ScoredRunTable {
        correction,
        signs: match args.signs {
            true => {
                let seconds = predicted.iter().map(|run| run.makespan.as_seconds());
                count_rightly_ordered_pairs_by_option(&table.runs, &seconds.collect::<Vec<_>>())
            }
            false => Vec::new(),
        },
        predicted: predicted
            .iter()
            .map(|run| run.makespan.as_seconds())
            .collect(),
        intervals: (predicted.iter())
            .map(|run| Some(run.interval?.map(Span::as_seconds)))
            .collect(),
        fits,
        fold_of,
        null: predict_times_by_one_flop_rate(&table.runs),
        without_effect,
        table: &table,
    };
    let style = to.text_style();
    let curves = machine.has_kernel_curves() && options.compute.prefers_curves();
    let about = compute.describe_durations(&KernelCountsByDurationMethod {
        by_curves: u64::from(curves),
        estimated: u64::from(!curves && !compute.compute_model().ignores_recorded_durations()),
        priced: u64::from(!curves && compute.compute_model().ignores_recorded_durations()),
        ..KernelCountsByDurationMethod::default()
    });
    if args.format == ScoreFormat::Csv {
        for line in scored
            .describe_caveats(TextStyleWidthAndDetail::default())
            .lines()
        {
            terminal::print_warning_unless_quiet(format_args!(
                "{}",
                line.trim_start_matches([' ', '!'])
            ))?;
        }
    }
    if !grows {
        to.run_write_and_commit_output(|out| {
            match args.format {
                ScoreFormat::Text => {
                    out.write_all(scored.render_text(by.as_deref(), &about, style).as_bytes())?
                }
                ScoreFormat::Json => {
                    let mut options = Map::new();
                    compute.add_duration_sources_to_json(&mut options);
                    scored.to_document(by.as_deref(), options).print_to(out)?;
                }
                ScoreFormat::Csv => scored.write_csv(out)?,
            }
            Ok(())
        })?;
    }
    if let Some(claim) = scatter {
        let mut file = claim.create_file()?;
        file.write_all(scored.draw_scatter().as_bytes())?;
        file.commit()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Corrects the predictions of `table` by measured steps, if `args` requests it.
fn correct_predictions_if_requested(
    args: &ScoreArgs,
    files: &RunTablesWithColumnMapFiles,
    table: &RunTable,
    predicted: &[PredictedStepTimeWithInterval],
    options: &ReplayOptions,
) -> Result<Option<PredictionsCorrectedByOtherJobs>, Box<dyn Error>> {
    if let Some(key) = &args.leave_out {
        let key = key.replace('-', "_");
        let is_stated = |run: &MeasuredRun| run.options.contains_key(&key);
        if key != "model" && !table.runs.iter().any(is_stated) {
            return Err(format!("--leave-out {key}: no run states this option").into());
        }
        let values = || {
            table
                .runs
                .iter()
                .map(|run| option_value_of_measured_run(run, &key))
        };
        if let Some(first) = values().next()
            && values().all(|value| value == first)
        {
            return Err(format!(
                "--leave-out {key}: all runs have {first}, so no other runs can correct them\n  try: --steps with \
                 measured steps of other runs, or an option with several values"
            )
            .into());
        }
        return Ok(Some(PredictionsCorrectedByOtherJobs {
            steps: format!("runs of another {}", key.replace('_', "-")),
            runs: correct_by_runs_of_other_option_values(&table.runs, predicted, &key),
        }));
    }
    let Some(path) = &args.steps else {
        return Ok(None);
    };
    let mut steps = files.read_step_table(args, path)?;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let answers = predict_runs_in_table_order(&steps, options, threads, |_, _| Ok(()))?;
    let seconds = steps.keep_predicted_runs(answers, |error| error.to_string());
    if let Some(refused) = steps.refused.first() {
        return Err(refused.to_string().into());
    }
    Ok(Some(PredictionsCorrectedByOtherJobs {
        steps: format!("{} steps of {}", seconds.len(), steps.file),
        runs: correct_predictions_by_measured_steps(&table.runs, predicted, &steps.runs, &seconds),
    }))
}

/// Scores predictions of changed captured jobs.
fn score_what_if_pairs(
    args: &ScoreArgs,
    path: &Path,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    if let Some((key, _)) = args.compute.given_options().first() {
        return Err(format!("--pairs: {key} must be in the file, for all pairs").into());
    }
    let file = RunTableOrColumnMapFileText::read_file(path)?;
    let table = WhatIfPairsAndReplaySettings::parse(&file.text, path)?;
    let mut outputs = OutputsAndProtectedInputs::default();
    outputs.register_input(path);
    let mut to = match &args.output {
        Some(path) => ReportDestinationAndOutputs::create_at_path(out, path, outputs)?,
        None => ReportDestinationAndOutputs::create_on_standard_output(out, outputs),
    };
    let scores = table.score_all_pairs()?;
    let style = to.text_style();
    to.run_write_and_commit_output(|out| {
        match args.format {
            ScoreFormat::Text => print_what_if_pair_scores(&scores, style, out)?,
            ScoreFormat::Json => VersionedDocument::new("chakram.pairs.1", &scores).print_to(out)?,
            ScoreFormat::Csv => {
                writeln!(
                    out,
                    "pair,unedited_ps,edited_ps,predicted_ps,measured_ps,error_percent,no_change_percent,sample_ratio_percent"
                )?;
                for pair in &scores.pairs {
                    writeln!(
                        out,
                        "{},{},{},{},{},{:.2},{:.2},{:.2}",
                        quote_csv_text(&pair.name),
                        pair.unedited.0,
                        pair.edited.0,
                        pair.predicted.0,
                        pair.measured.0,
                        pair.error_percent,
                        pair.no_change_percent,
                        pair.sample_ratio_percent
                    )?;
                }
            }
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Scores predictions of language model serving.
fn score_serving(
    args: &ScoreArgs,
    path: &Path,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    if let Some((key, _)) = args.compute.given_options().first() {
        return Err(format!("--scenarios: {key} has no effect on steps of engines").into());
    }
    let [runs] = args.runs.as_slice() else {
        return Err(format!(
            "there are {} tables and one file of scenarios\n  try: one RUNS.csv",
            args.runs.len()
        )
        .into());
    };
    let file = RunTableOrColumnMapFileText::read_file(path)?;
    let table = MeasuredServingTable::read_table(runs, (path, &file.text), args.by.as_deref())?;
    let mut outputs = OutputsAndProtectedInputs::default();
    outputs.register_input(path);
    outputs.register_input(runs);
    let mut to = match &args.output {
        Some(path) => ReportDestinationAndOutputs::create_at_path(out, path, outputs)?,
        None => ReportDestinationAndOutputs::create_on_standard_output(out, outputs),
    };
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let scores = table.score_rows(threads)?;
    let style = to.text_style();
    let rendered = match args.format {
        ScoreFormat::Text => render_scores(&scores, style),
        ScoreFormat::Csv => format_csv_per_row_and_metric(&scores),
        ScoreFormat::Json => {
            VersionedDocument::new("chakram.score-serving.1", &scores).to_json_text()
        }
    };
    to.write_report(&rendered)?;
    Ok(ExitCode::SUCCESS)
}

/// Adds quotes to a CSV field if it needs them.
fn quote_csv_text(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

fn print_what_if_pair_scores(
    scores: &WhatIfScoresByPredictor,
    style: TextStyleWidthAndDetail,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let table = TextTable::new([
        left_aligned_column("PAIR", 26),
        right_aligned_column("predicted", 12),
        right_aligned_column("measured", 12),
        right_aligned_column("error", 9),
        right_aligned_column("change", 9),
        right_aligned_column("measured", 9),
        right_aligned_column("no change", 10),
        right_aligned_column("samples", 9),
    ]);
    out.write_all(table.render_empty_line_and_headings(style).as_bytes())?;
    let percent = |value: f64| format!("{value:+.1} %");
    for pair in &scores.pairs {
        let change = pair.measured_change_percent.map_or("-".to_owned(), percent);
        let cells: [&dyn Display; 8] = [
            &style.clip_to_width(&pair.name, 26),
            &pair.predicted,
            &pair.measured,
            &percent(pair.error_percent),
            &percent(pair.change_percent),
            &change,
            &percent(pair.no_change_percent),
            &percent(pair.sample_ratio_percent),
        ];
        out.write_all(table.render_line(&cells, anstyle::Style::new()).as_bytes())?;
    }
    let [pairs, right] = scores.signs;
    for (name, errors) in [
        ("chakram", scores.chakram),
        ("no change", scores.no_change),
        ("ratio of samples", scores.sample_ratio),
    ] {
        writeln!(
            out,
            "  {name}: median error {:.1} %, mean {:.1} %",
            errors.median_percent, errors.mean_percent
        )?;
    }
    writeln!(
        out,
        "  correct sign in {right} of {pairs} pairs whose change exceeds the noise"
    )?;
    writeln!(
        out,
        "  predicted: the measured step of the first side times the ratio of replays, edited and not; no change, samples: \
         errors\n  of that step, and of it times the ratio of samples"
    )
}

/// Returns the machine of the first run. Fails if no row of the table can be predicted.
fn machine_of_first_run(table: &RunTable) -> Result<&Machine, String> {
    let Some(run) = table.runs.first() else {
        let rows = table.refused.len();
        if rows == 0 {
            return Err("the table has no rows, expected at least one".to_owned());
        }
        let first = table.refused.first().map(ToString::to_string);
        return Err(format!(
            "none of the {rows} rows can be predicted; the first: {}",
            first.unwrap_or_default()
        ));
    };
    Ok(&run.machine)
}
