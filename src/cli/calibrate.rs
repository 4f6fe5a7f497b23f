//! `chakram calibrate`: measured steps in, a machine file out.

use super::compute::ComputeArgs;
use super::output::ReportDestination;
use crate::config;
use crate::engine::ReplayOptions;
use crate::files::OutputSet;
use crate::machine;
use crate::report::summary::thousands;
use crate::report::table::{TextTable, left, right};
use crate::score::{RunColumns, RunTable, StepCorrection, calibrate};
use clap::Args;
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Correct a machine's prices by measured steps
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram calibrate steps.csv --columns steps.toml -o ours.toml
  chakram score others.csv --columns steps.toml --machine ours.toml
  chakram generate gpt3-13b --tensor 8 --machine ours.toml

Steps of models of one width, with as many tokens in a micro-batch and members in a tensor group, share a
correction; one measured step of each is enough.")]
pub struct CalibrateArgs {
    /// The measured steps: CSV with a line of headings, a step in each row, as `chakram score` reads it
    #[arg(value_name = "STEPS.csv")]
    steps: PathBuf,
    /// Which columns are which options of `chakram generate`, and what was measured
    #[arg(long, value_name = "FILE.toml")]
    columns: PathBuf,
    /// Correct this machine instead of the one that the file of columns names
    #[arg(short, long, value_name = "MACHINE")]
    machine: Option<String>,
    /// The machine file to write
    #[arg(short, long, value_name = "FILE.toml")]
    output: PathBuf,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Does what `args` ask for.
///
/// # Errors
///
/// Files that cannot be read, steps that cannot be replayed, a machine without curves, or output that cannot be written.
pub fn run(args: &CalibrateArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let read = |path: &PathBuf| {
        config::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let mut columns =
        RunColumns::parse(&read(&args.columns)?, &args.columns.display().to_string())?;
    if let Some(machine) = &args.machine {
        columns.on(machine);
    }
    let name = args.steps.display().to_string();
    let table = RunTable::parse(&read(&args.steps)?, &name, &columns)?;
    let base = machine::source(columns.machine())?;
    let first = &table.runs[0].machine;
    if !first.has_curves() || !args.compute.model().prefers_curves() {
        return Err(format!(
            "steps correct prices by curves, and kernels on machine `{}` are not priced so\n  try: a machine with curves, and \
             neither --compute nor --efficiency",
            first.name()
        )
        .into());
    }
    let options = ReplayOptions::with(|options| {
        options.compute = args.compute.model();
        options.launch = args.compute.launch();
        options.measured_collectives = args.compute.measures_collectives();
    });
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let found = calibrate(&table, &options, threads)?;
    let mut text = without_corrections(&base.text);
    write!(
        text,
        "\n# Corrections by `chakram calibrate` from {} steps of {}, on the prices above.\n",
        table.runs.len(),
        name.replace(char::is_control, " ")
    )?;
    for step in &found {
        let gemms = step.correction.gemms;
        let lines: Vec<_> = step.lines.iter().map(u64::to_string).collect();
        write!(
            text,
            "\n[[correction]]         # measured: {} {}\ngemms = {gemms:?}\nfactor = {:.4}\nerror = {:.3}\n",
            if lines.len() == 1 { "line" } else { "lines" },
            lines.join(", "),
            step.correction.factor,
            step.correction.error,
        )?;
    }
    let path = args.output.display().to_string();
    // The text that is written can be read.
    machine::Machine::parse(&text, &path)?;
    let mut outputs = OutputSet::default();
    [&args.steps, &args.columns]
        .iter()
        .for_each(|path| outputs.reads(path));
    let summary = summary(&found, table.runs.len(), &path);
    ReportDestination::claim(&mut *out, &args.output, outputs)?
        .fill(|out| out.write_all(text.as_bytes()))?;
    out.write_all(summary.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The text of a machine file without the corrections of an earlier calibration, which come last.
fn without_corrections(text: &str) -> String {
    let end = text.find("\n# Corrections by `chakram calibrate`");
    let kept = end.map_or(text, |end| &text[..end]);
    let mut kept = kept.trim_end().to_owned();
    kept.push('\n');
    kept
}

fn summary(found: &[StepCorrection], steps: usize, path: &str) -> String {
    let table = TextTable::new([
        left("CORRECTIONS BY PRODUCTS", 44),
        right("steps", 7),
        right("factor", 9),
        right("left out", 12),
    ]);
    let mut text = format!(
        "{path}: {} steps correct what passes cost around {} pairs of products\n",
        thousands(steps as u64),
        thousands(found.len() as u64)
    );
    text += &table.headings(crate::report::text::TextStyle::default());
    for step in found {
        let [first, next] = step
            .correction
            .gemms
            .map(|[m, n, k]| format!("{m} x {n} x {k}"));
        let errors = &step.left_out;
        let mean = errors.iter().map(|e| e.abs()).sum::<f64>() / errors.len().max(1) as f64;
        let left_out = if errors.is_empty() {
            "one step".to_owned()
        } else {
            format!("{:.1} %", 100.0 * mean)
        };
        let cells = [
            format!("{first}, {next}"),
            step.lines.len().to_string(),
            format!("{:.3}", step.correction.factor),
            left_out,
        ];
        let row = cells.each_ref().map(|cell| cell as &dyn std::fmt::Display);
        text += &table.line(&row, anstyle::Style::new());
    }
    text += "left out: mean error of a step by the factor of the others of its products\n";
    text
}
