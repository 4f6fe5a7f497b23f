//! `chakram score`: predictions against measured runs.

use super::compute::{ComputeArgs, score_error, with_flags};
use super::document::VersionedDocument;
use super::output::ReportDestination;
use chakram_base::config;
use chakram_base::units::Span;
use chakram_report::draw;
use chakram_report::draw::scatter::{self, ScatterPoint};
use chakram_report::summary::{KernelBasis, thousands};
use chakram_report::table::{TextTable, left, right};
use chakram_studies::score::{
    FittedConstant, FoldFit, IntervalSummary, MeasuredRun, RunColumns, RunTable, ScoreSummary,
    fit_in_folds, folds, one_rate, score,
};
use chakram_trace::files::OutputSet;
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Compare predictions with measured runs
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram score runs.csv --columns runs.toml
  chakram score runs.csv --columns runs.toml --by micro-batch
  chakram score runs.csv --columns runs.toml --set recompute=none --machine dgx-h100
  chakram score runs.csv --columns runs.toml --format csv > predicted.csv")]
pub struct ScoreArgs {
    /// The measured runs: CSV with a line of headings, a run in each row; several tables are scored together
    #[arg(value_name = "RUNS.csv", required = true)]
    runs: Vec<PathBuf>,
    /// Which columns are which options of `chakram generate`, and what was measured; one for each table
    #[arg(long, value_name = "FILE.toml", required = true)]
    columns: Vec<PathBuf>,
    /// Replay the runs on this machine instead of the one that the file of columns names
    #[arg(short, long, value_name = "MACHINE")]
    machine: Option<String>,
    /// Set an option of all runs, in place of what the file of columns says; several times for several
    #[arg(long, value_name = "OPTION=VALUE", value_parser = parse_setting)]
    set: Vec<(String, String)>,
    /// Also score the runs of each value of this option by themselves
    #[arg(long, value_name = "OPTION")]
    by: Option<String>,
    /// Fit these constants of the machine to the runs, in folds: each run is predicted with what was fitted to runs that
    /// differ from it in the options `folds`. Of launch, backward, collective, message, memory, softmax and
    /// cross-entropy
    #[arg(long, value_name = "CONSTANTS", value_delimiter = ',', value_parser = parse_constant)]
    fit: Vec<FittedConstant>,
    /// Number of folds
    #[arg(long, value_name = "N", default_value = "5", requires = "fit")]
    folds: NonZeroUsize,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Format of the result; CSV has a row for each run
    #[arg(long, value_enum, default_value_t = ScoreFormat::Text, value_name = "FORMAT")]
    format: ScoreFormat,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Draw what was predicted over what was measured, as SVG
    #[arg(long, value_name = "FILE.svg")]
    scatter: Option<PathBuf>,
}

/// Format of scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ScoreFormat {
    /// For people
    Text,
    /// Everything, as one document
    Json,
    /// A row for each run
    Csv,
}

fn parse_constant(text: &str) -> Result<FittedConstant, String> {
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

/// Predictions of a table of runs.
struct ScoredTable<'t> {
    table: &'t RunTable,
    predicted: Vec<f64>,
    /// 90 % intervals.
    intervals: Vec<Option<[f64; 2]>>,
    /// Constants that were fitted, by fold.
    fits: Vec<FoldFit>,
    /// Fold of each run; empty where nothing was fitted.
    fold_of: Vec<usize>,
    null: Vec<f64>,
}

impl ScoredTable<'_> {
    /// Scores of the runs that `wanted` picks, of this program and of the null model; `None` without such a run.
    fn summaries(&self, wanted: impl Fn(&MeasuredRun) -> bool) -> Option<[ScoreSummary; 2]> {
        let picked = |i: &usize| wanted(&self.table.runs[*i]);
        let indices: Vec<usize> = (0..self.table.runs.len()).filter(picked).collect();
        let runs: Vec<&MeasuredRun> = indices.iter().map(|&i| &self.table.runs[i]).collect();
        let of = |all: &[f64]| {
            let seconds: Vec<f64> = indices.iter().map(|&i| all[i]).collect();
            ScoreSummary::new(&runs, &seconds)
        };
        (!runs.is_empty()).then(|| [of(&self.predicted), of(&self.null)])
    }

    /// Returns the coverage of the intervals of the runs whose numbers `wanted` picks; `None` without such a run, or if one has none.
    fn covered(&self, wanted: impl Fn(usize) -> bool) -> Option<IntervalSummary> {
        let indices: Vec<usize> = (0..self.table.runs.len()).filter(|&i| wanted(i)).collect();
        let intervals = indices.iter().map(|&i| self.intervals[i]);
        let intervals: Vec<[f64; 2]> = intervals.collect::<Option<_>>()?;
        let runs: Vec<&MeasuredRun> = indices.iter().map(|&i| &self.table.runs[i]).collect();
        let predicted: Vec<f64> = indices.iter().map(|&i| self.predicted[i]).collect();
        (!runs.is_empty()).then(|| IntervalSummary::new(&runs, &predicted, &intervals))
    }

    /// Returns the coverage of the intervals of a fold's runs.
    fn covered_in_fold(&self, fold: usize) -> Option<IntervalSummary> {
        self.covered(|i| self.fold_of.get(i) == Some(&fold))
    }

    /// Values of option `key`, numbers in their order.
    fn values(&self, key: &str) -> Vec<String> {
        let mut values = BTreeMap::new();
        for run in &self.table.runs {
            let value = run.options.get(key).cloned().unwrap_or_default();
            let number = value.parse::<f64>().unwrap_or(f64::INFINITY);
            values.insert((number.to_bits(), value.clone()), value);
        }
        values.into_values().collect()
    }
}

/// Does what `args` ask for.
///
/// # Errors
///
/// Files that cannot be read, runs that cannot be replayed, or output that cannot be written.
pub fn run(args: &ScoreArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let read = |path: &PathBuf| {
        config::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    if args.runs.len() != args.columns.len() {
        return Err(format!(
            "there are {} tables and {} files of columns\n  try: --columns FILE.toml once for each table, in their order",
            args.runs.len(),
            args.columns.len()
        )
        .into());
    }
    let mut tables = None;
    for (runs, path) in args.runs.iter().zip(&args.columns) {
        let mut columns = RunColumns::parse(&read(path)?, &path.display().to_string())?;
        for (key, value) in &args.set {
            columns
                .set(key, value)
                .map_err(|why| format!("--set {key}={value}: {why}"))?;
        }
        if let Some(machine) = &args.machine {
            columns.on(machine);
        }
        let table = RunTable::parse(&read(runs)?, &runs.display().to_string(), &columns)?;
        match &mut tables {
            None => tables = Some(table),
            Some(all) => all.append(table),
        }
    }
    let table = tables.ok_or("there is no table")?;
    let machine = &table.runs[0].machine;
    let compute = args.compute.clone();
    let options = compute.options().map_err(|refusal| with_flags(&refusal))?;
    options
        .check_machine(machine)
        .map_err(|refusal| with_flags(&refusal))?;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let (predicted, fits, fold_of) = if args.fit.is_empty() {
        (
            score(&table, &options, threads).map_err(score_error)?,
            Vec::new(),
            Vec::new(),
        )
    } else {
        let fold_of = folds(&table.runs, args.folds);
        let (predicted, fits) =
            fit_in_folds(&table, &options, &args.fit, &fold_of, threads).map_err(score_error)?;
        (predicted, fits, fold_of)
    };
    let scored = ScoredTable {
        predicted: predicted.iter().map(|run| run.makespan.seconds()).collect(),
        intervals: (predicted.iter())
            .map(|run| Some(run.interval?.map(Span::seconds)))
            .collect(),
        fits,
        fold_of,
        null: one_rate(&table.runs),
        table: &table,
    };
    let by = args.by.as_ref().map(|key| key.replace('-', "_"));
    if let Some(key) = by
        .as_ref()
        .filter(|key| table.runs.iter().all(|r| !r.options.contains_key(*key)))
    {
        return Err(format!("--by {key}: no run states this option").into());
    }
    let mut outputs = OutputSet::default();
    let read = args.runs.iter().chain(&args.columns);
    read.for_each(|path| outputs.reads(path));
    let scatter = args.scatter.as_ref();
    let scatter = scatter.map(|path| outputs.claim(path)).transpose()?;
    let mut to = match &args.output {
        Some(path) => ReportDestination::claim(out, path, outputs)?,
        None => ReportDestination::standard_output(out, outputs),
    };
    let style = to.style();
    let curves = machine.has_curves() && options.compute.prefers_curves();
    let about = compute.text(&KernelBasis {
        by_curves: u64::from(curves),
        estimated: u64::from(!curves && !compute.model().computes()),
        priced: u64::from(!curves && compute.model().computes()),
        ..KernelBasis::default()
    });
    to.fill(|out| {
        match args.format {
            ScoreFormat::Text => {
                out.write_all(text(&scored, by.as_deref(), &about, style).as_bytes())?
            }
            ScoreFormat::Json => {
                let document = document(&scored, by.as_deref(), &compute);
                VersionedDocument::new("chakram.score.1", document).print(out)?;
            }
            ScoreFormat::Csv => rows(&scored, out)?,
        }
        Ok(())
    })?;
    if let Some(claim) = scatter {
        let mut file = claim.create()?;
        file.write_all(picture(&scored).as_bytes())?;
        file.commit()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs by what was measured and what was predicted, each table in a colour, with the line on which both are the same.
fn picture(scored: &ScoredTable<'_>) -> String {
    let mut files: Vec<&str> = Vec::new();
    let mut points = Vec::new();
    for (run, &predicted) in scored.table.runs.iter().zip(&scored.predicted) {
        let series = files.iter().position(|file| **file == run.file);
        let series = series.unwrap_or_else(|| {
            files.push(&run.file);
            files.len() - 1
        });
        points.push(ScatterPoint {
            x: run.measured,
            y: predicted,
            series: series % COLOURS,
            title: format!(
                "{}:{}: {} s measured, {} s predicted, {}",
                run.file,
                run.line,
                significant(run.measured),
                significant(predicted),
                signed(predicted / run.measured - 1.0)
            ),
        });
    }
    let ends = |value: fn(&ScatterPoint) -> f64| {
        let values = points.iter().map(value);
        let least = values.clone().fold(f64::INFINITY, f64::min);
        (least, values.fold(0.0, f64::max))
    };
    let (across, up) = (ends(|point| point.x), ends(|point| point.y));
    // The part of the line that lies on both axes.
    let (least, most) = (across.0.max(up.0), across.1.min(up.1));
    let same = [(least, least), (most, most)];
    let same = if least < most { &same[..] } else { &[] };
    let seconds = |value: f64| format!("{} s", significant(value));
    draw::document(&scatter::with_line(
        "Predicted and measured steps",
        &points,
        ("predicted as measured", same),
        ("measured", "predicted"),
        (&seconds, &seconds),
    ))
}

/// Colours of charts in files.
const COLOURS: usize = 6;

/// Three significant digits.
fn significant(value: f64) -> String {
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else if value >= 1.0 {
        2
    } else {
        3
    };
    format!("{value:.digits$}")
}

/// `12.3 %`.
fn percent(fraction: f64) -> String {
    format!("{:.1} %", 100.0 * fraction)
}

fn signed(fraction: f64) -> String {
    format!("{:+.1} %", 100.0 * fraction)
}

fn cells(name: &str, summary: &ScoreSummary) -> [String; 9] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
    [
        name.to_owned(),
        thousands(summary.runs as u64),
        percent(summary.mean),
        percent(summary.median),
        percent(summary.p90),
        percent(summary.max),
        signed(summary.bias),
        or_dash(summary.tau.map(|tau| format!("{tau:.2}"))),
        or_dash(summary.regret.map(percent)),
    ]
}

fn text(
    scored: &ScoredTable<'_>,
    by: Option<&str>,
    about: &str,
    style: chakram_report::text::TextStyle,
) -> String {
    let columns = [
        left("PREDICTED AGAINST MEASURED", 28),
        right("runs", 6),
        right("MAPE", 9),
        right("median", 9),
        right("p90", 9),
        right("max", 9),
        right("bias", 9),
        right("tau", 7),
        right("regret", 9),
    ];
    let table = TextTable::new(columns);
    let machine = scored.table.runs[0].machine.name();
    let several = scored
        .table
        .runs
        .iter()
        .any(|run| run.machine.name() != machine);
    let more = if several { " and others" } else { "" };
    let mut text = format!(
        "{}: {} runs on {machine}{more}, {about}\n",
        scored.table.file,
        thousands(scored.table.runs.len() as u64)
    );
    text += &table.headings(style);
    let mut put = |name: &str, summary: &ScoreSummary| {
        let cells = cells(name, summary);
        let row = cells.each_ref().map(|cell| cell as &dyn std::fmt::Display);
        text += &table.line(&row, anstyle::Style::new());
    };
    if let Some([ours, null]) = scored.summaries(|_| true) {
        put("chakram", &ours);
        put("null: one FLOP rate", &null);
    }
    if let Some(key) = by {
        for value in scored.values(key) {
            let one = |run: &MeasuredRun| run.options.get(key).map_or("", String::as_str) == value;
            if let Some([ours, _]) = scored.summaries(one) {
                put(&format!("{key} {value}"), &ours);
            }
        }
    }
    if let Some(intervals) = scored.covered(|_| true) {
        text += &format!(
            "90 % intervals hold {} of what was measured; their mean width is {:.2} times that of the interval that holds \
             90 %\n",
            percent(intervals.coverage),
            intervals.width
        );
    }
    for (i, fit) in scored.fits.iter().enumerate() {
        let machine = &scored.table.runs[0].machine;
        let constants = fit.constants.iter().map(|&(constant, factor)| {
            let value = constant.of(machine).unwrap_or_default() * factor;
            let unit = if constant.is_part() { "" } else { " us" };
            format!("{} {}{unit}", constant.name(), significant(value))
        });
        let constants: Vec<_> = constants.collect();
        let runs = thousands(fit.runs as u64);
        let held = scored
            .covered_in_fold(i)
            .map_or(String::new(), |intervals| {
                let (coverage, width) = (percent(intervals.coverage), intervals.width);
                format!("; intervals hold {coverage}, {width:.2} times as wide")
            });
        let constants = constants.join(", ");
        text += &format!("fold {}, {runs} runs: {constants}{held}\n", i + 1);
    }
    text
}

/// Document of a score.
#[derive(Serialize)]
struct ScoreDocument<'a> {
    options: Map<String, Value>,
    table: &'a str,
    scores: Option<ScorePair>,
    by: Vec<ScoreOfValue<'a>>,
    folds: Vec<FoldRow>,
    intervals: Option<IntervalSummary>,
    runs: Vec<RunRow<'a>>,
}

/// Scores of predictions, and of the null model of one rate.
#[derive(Serialize)]
struct ScorePair {
    chakram: ScoreSummary,
    one_rate: ScoreSummary,
}

/// Scores of runs with one value of an option.
#[derive(Serialize)]
struct ScoreOfValue<'a> {
    option: &'a str,
    value: String,
    scores: Option<ScorePair>,
}

#[derive(Serialize)]
struct FoldRow {
    runs: usize,
    factors: BTreeMap<&'static str, f64>,
    intervals: Option<IntervalSummary>,
}

#[derive(Serialize)]
struct RunRow<'a> {
    line: u64,
    group: usize,
    options: &'a BTreeMap<String, String>,
    measured_s: f64,
    predicted_s: f64,
    one_rate_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    low_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high_s: Option<f64>,
}

fn document<'a>(
    scored: &'a ScoredTable<'_>,
    by: Option<&'a str>,
    compute: &ComputeArgs,
) -> ScoreDocument<'a> {
    let mut options = Map::new();
    compute.describe(&mut options);
    let both = |wanted: &dyn Fn(&MeasuredRun) -> bool| {
        let pair = scored.summaries(wanted);
        pair.map(|[chakram, one_rate]| ScorePair { chakram, one_rate })
    };
    let parts = by.into_iter().flat_map(|option| {
        let values = scored.values(option).into_iter();
        values.map(move |value| {
            let is_of = |run: &MeasuredRun| match run.options.get(option) {
                Some(own) => *own == value,
                None => value.is_empty(),
            };
            ScoreOfValue {
                option,
                scores: both(&is_of),
                value,
            }
        })
    });
    let runs = scored.table.runs.iter().enumerate().map(|(i, run)| {
        let interval = scored.intervals[i];
        RunRow {
            line: run.line,
            group: run.group,
            options: &run.options,
            measured_s: run.measured,
            predicted_s: scored.predicted[i],
            one_rate_s: scored.null[i],
            low_s: interval.map(|[low, _]| low),
            high_s: interval.map(|[_, high]| high),
        }
    });
    let folds = scored.fits.iter().enumerate().map(|(fold, fit)| FoldRow {
        runs: fit.runs,
        factors: fit
            .constants
            .iter()
            .map(|(constant, factor)| (constant.name(), *factor))
            .collect(),
        intervals: scored.covered_in_fold(fold),
    });
    ScoreDocument {
        options,
        table: &scored.table.file,
        scores: both(&|_| true),
        by: parts.collect(),
        folds: folds.collect(),
        intervals: scored.covered(|_| true),
        runs: runs.collect(),
    }
}

fn rows(scored: &ScoredTable<'_>, out: &mut dyn Write) -> std::io::Result<()> {
    let mut keys: Vec<&str> = Vec::new();
    for run in &scored.table.runs {
        for key in run.options.keys() {
            if let Err(place) = keys.binary_search(&key.as_str()) {
                keys.insert(place, key);
            }
        }
    }
    let mut csv = csv::Writer::from_writer(out);
    let heads = [
        "line",
        "group",
        "measured_s",
        "predicted_s",
        "low_s",
        "high_s",
        "error",
    ];
    csv.write_record(heads.iter().copied().chain(keys.iter().copied()))?;
    let all = (scored.table.runs.iter()).zip(&scored.predicted);
    for ((run, predicted), interval) in all.zip(&scored.intervals) {
        let [low, high] = interval.map_or([String::new(), String::new()], |ends| {
            ends.map(|seconds| seconds.to_string())
        });
        let cells = [
            run.line.to_string(),
            run.group.to_string(),
            run.measured.to_string(),
            predicted.to_string(),
            low,
            high,
            format!("{:.6}", predicted / run.measured - 1.0),
        ];
        let options = keys
            .iter()
            .map(|key| run.options.get(*key).cloned().unwrap_or_default());
        csv.write_record(cells.into_iter().chain(options))?;
    }
    csv.flush()
}
