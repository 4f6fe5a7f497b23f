//! `chakram calibrate`: corrects a machine file with measured steps or captured jobs.

mod collectives;
mod kernels;
mod products;
mod rank_classes;

use super::compute::ComputeArgs;
use super::flags::flag_of_setting;
use super::output::ReportDestinationAndOutputs;
use chakram_base::config::{self, ConfigLiteral};
use chakram_base::units::format_percent;
use chakram_hardware::machine::{self, Machine, PresetOrMachineFileText};
use chakram_jobs as job;
use chakram_report::summary::format_thousands;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_studies::score::{
    MeasuredStepKernelTimeCorrections, RunColumnRules, RunTable,
    fit_step_corrections_by_product_shapes,
};
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::file::TraceHashVerificationLevel;
use clap::Args;
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Sections that a calibration appends to a machine file.
const SECTIONS: [&str; 4] = ["Kernels", "GEMMs", "Collectives", "Corrections"];

/// Correct a machine's times with measured steps, kernels of captured jobs, tables of GEMMs, or logs of nccl-tests
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram calibrate steps.csv --columns steps.toml -o ours.toml
  chakram score others.csv --columns steps.toml --machine ours.toml
  chakram generate gpt3-13b --tensor 8 --machine ours.toml
  chakram calibrate --kernels job --machine dgx-h100 -o ours.toml
  chakram replay other --machine ours.toml --compute curves
  chakram calibrate --gemm gemms.csv --nccl all_reduce_8.txt --machine dgx-h100 -o ours.toml

Steps of models with the same width, tokens per micro-batch and tensor group size share one correction; one measured
step of each group is enough. Kernel times depend on name, format, FLOPs and bytes. A table of
GEMMs has the columns format, m, n, k and us (or ms, or s).")]
pub struct CalibrateArgs {
    /// Measured steps as `chakram score` reads them: CSV with a line of headings and a step in each row
    #[arg(
        value_name = "STEPS.csv",
        required_unless_present_any = ["kernels", "gemm", "nccl"],
        requires = "columns"
    )]
    steps: Option<PathBuf>,
    /// File that maps columns to options of `chakram generate` and to measured values
    #[arg(long, value_name = "FILE.toml", requires = "steps")]
    columns: Option<PathBuf>,
    /// Traces, as for `chakram replay`; their recorded kernels set the times of kernels with the same names
    #[arg(long, value_name = "TRACES", num_args = 1.., conflicts_with = "steps", requires = "machine")]
    kernels: Vec<PathBuf>,
    /// Give each rank an NPU class with its own kernel times, because ranks differ and all of them wait for the slowest
    #[arg(long, requires = "kernels")]
    by_rank: bool,
    /// Measured GEMMs as CSV, which correct the curves of their number formats between the measured shapes
    #[arg(
        long,
        value_name = "GEMMS.csv",
        conflicts_with = "steps",
        requires = "machine"
    )]
    gemm: Option<PathBuf>,
    /// Logs of nccl-tests, each of one collective, which replace the machine's curves
    #[arg(long, value_name = "LOG", num_args = 1.., conflicts_with = "steps", requires = "machine")]
    nccl: Vec<PathBuf>,
    /// Correct this machine instead of the machine in the file of columns
    #[arg(short, long, value_name = "MACHINE")]
    machine: Option<String>,
    /// The machine file to write
    #[arg(short, long, value_name = "FILE.toml")]
    output: PathBuf,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Computes the calibrated values, and writes the machine file and a summary.
///
/// # Errors
///
/// Fails if files cannot be read, if steps cannot be replayed, if the machine has no curves, or if output
/// cannot be written.
pub fn calibrate_and_write_machine_file(
    args: &CalibrateArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let path = args.output.display().to_string();
    let mut outputs = OutputsAndProtectedInputs::default();
    let (text, summary) = match (&args.steps, &args.columns, &args.machine) {
        (Some(steps), Some(columns), _) => {
            [steps, columns]
                .iter()
                .for_each(|path| outputs.register_input(path));
            let (machine, corrected) = correct_machine_by_measured_steps(args, steps, columns)?;
            outputs.register_input(Path::new(&machine));
            corrected
        }
        (_, _, Some(machine)) => {
            // Only steps are replayed; the other measurements are times of single kernels and collectives.
            if let Some((key, _)) = args.compute.given_options().first() {
                return Err(format!(
                    "{} has no effect without measured steps\n  try: STEPS.csv with --columns, or leave the option out",
                    flag_of_setting(*key)
                )
                .into());
            }
            let inputs = args.gemm.iter().chain(&args.nccl);
            inputs.for_each(|path| outputs.register_input(path));
            outputs.register_input(Path::new(machine));
            if !args.kernels.is_empty() {
                job::protect_found_files_as_inputs(
                    &mut outputs,
                    &job::find_traces(&args.kernels, TraceHashVerificationLevel::Nothing)?,
                );
            }
            calibrate_machine_text(args, &machine::find_machine_text(machine)?)?
        }
        _ => {
            return Err(
                "neither measured steps nor other measurements are given\n  try: --help".into(),
            );
        }
    };
    // Check that the new machine file is valid.
    Machine::parse(&text, &path)?;
    ReportDestinationAndOutputs::create_at_path(&mut *out, &args.output, outputs)?
        .run_write_and_commit_output(|out| out.write_all(text.as_bytes()))?;
    write!(out, "{path}: {summary}")?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the text of `base` with the calibrated values, and a summary of these values.
fn calibrate_machine_text(
    args: &CalibrateArgs,
    base: &PresetOrMachineFileText,
) -> Result<(String, String), Box<dyn Error>> {
    let machine = Machine::parse(&base.text, &base.file)?;
    let (mut text, mut said) = (base.text.clone().into_owned(), String::new());
    let mut more;
    if !args.kernels.is_empty() {
        (text, more) =
            kernels::add_recorded_kernels_to_machine(&text, &machine, &args.kernels, args.by_rank)?;
        said += &more;
    }
    if let Some(table) = &args.gemm {
        (text, more) = products::add_measured_gemms_to_machine_text(&text, &machine, table)?;
        said += &more;
    }
    if !args.nccl.is_empty() {
        (text, more) = collectives::add_collective_logs(&text, &machine, &args.nccl)?;
        said += &more;
    }
    Ok((text, said))
}

fn quote_toml(text: &str) -> String {
    ConfigLiteral::Text(text.to_owned()).to_toml_text()
}

/// Returns the machine's name, its text with corrections from measured steps, and a summary of the
/// corrections.
fn correct_machine_by_measured_steps(
    args: &CalibrateArgs,
    steps: &Path,
    columns: &Path,
) -> Result<(String, (String, String)), Box<dyn Error>> {
    let read = |path: &Path| {
        config::read_file_or_standard_input(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let mut columns = RunColumnRules::parse(&read(columns)?, &columns.display().to_string())?;
    if let Some(machine) = &args.machine {
        columns.override_machine_for_all_runs(machine);
    }
    let name = steps.display().to_string();
    let table = RunTable::parse(&read(steps)?, &name, &columns)?.require_all_valid()?;
    let base = machine::find_machine_text(columns.default_machine())?;
    let first = &table.runs[0].machine;
    let options = args.compute.replay_options()?;
    if !first.has_kernel_curves() || !options.compute.prefers_curves() {
        return Err(format!(
            "steps correct kernel times from curves, but kernels on machine `{}` have no such times\n  try: a \
             machine with curves, and neither --compute nor --efficiency",
            first.name()
        )
        .into());
    }
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let found = fit_step_corrections_by_product_shapes(&table, &options, threads)?;
    let mut section = format!(
        "{} steps of {}, on the prices above.\n",
        table.runs.len(),
        name.replace(char::is_control, " ")
    );
    for step in &found.groups {
        let gemms = step.correction.gemms.unwrap_or_default();
        let lines: Vec<_> = step.lines.iter().map(u64::to_string).collect();
        write!(
            section,
            "\n[[correction]]         # measured: {} {}\ngemms = {gemms:?}\nfactor = {:.4}\nerror = {:.3}\n",
            if lines.len() == 1 { "line" } else { "lines" },
            lines.join(", "),
            step.correction.factor,
            step.correction.error,
        )?;
    }
    if let Some(shared) = found.shared {
        write!(
            section,
            "\n[[correction]]         # derived: what the products above share, for all others\nfactor = {:.4}\nerror = {:.3}\n",
            shared.factor, shared.error,
        )?;
    }
    let text = append_machine_section(&base.text, "Corrections", &section);
    let corrected = (text, summarize_corrections(&found, table.runs.len()));
    Ok((columns.default_machine().to_owned(), corrected))
}

/// Returns the comment that starts a section of a machine file. The caller appends the source of the section's values.
fn section_comment(title: &str) -> String {
    format!("\n# {title} by `chakram calibrate` from ")
}

/// Adds the section `title` to the end of the text. If an earlier calibration wrote a section with this title, replaces
/// that section.
fn append_machine_section(text: &str, title: &str, section: &str) -> String {
    let heading = section_comment(title);
    let mut kept = text.to_owned();
    if let Some(start) = text.find(&heading) {
        let behind = start + heading.len();
        let next = SECTIONS
            .iter()
            .filter_map(|title| text[behind..].find(&section_comment(title)));
        let end = next.min().map_or(text.len(), |next| behind + next);
        kept.replace_range(start..end, "");
    }
    kept.truncate(kept.trim_end().len());
    kept + "\n" + &heading + section
}

fn summarize_corrections(found: &MeasuredStepKernelTimeCorrections, steps: usize) -> String {
    let table = TextTable::new([
        left_aligned_column("CORRECTIONS BY PRODUCTS", 44),
        right_aligned_column("steps", 7),
        right_aligned_column("factor", 9),
        right_aligned_column("left out", 12),
    ]);
    let mut text = format!(
        "{} steps correct what passes cost around {} pairs of products\n",
        format_thousands(steps as u64),
        format_thousands(found.groups.len() as u64)
    );
    text += &table
        .render_empty_line_and_headings(chakram_report::text::TextStyleWidthAndDetail::default());
    for step in &found.groups {
        let [first, next] = step
            .correction
            .gemms
            .unwrap_or_default()
            .map(|[m, n, k]| format!("{m} x {n} x {k}"));
        let errors = &step.left_out;
        let mean = errors.iter().map(|e| e.abs()).sum::<f64>() / errors.len().max(1) as f64;
        let left_out = if errors.is_empty() {
            "one step".to_owned()
        } else {
            format_percent(mean)
        };
        let cells = [
            format!("{first}, {next}"),
            step.lines.len().to_string(),
            format!("{:.3}", step.correction.factor),
            left_out,
        ];
        let row = cells.each_ref().map(|cell| cell as &dyn std::fmt::Display);
        text += &table.render_line(&row, anstyle::Style::new());
    }
    if let Some(shared) = found.shared {
        let cells = ["all others", "-", &format!("{:.3}", shared.factor), "-"];
        let row = cells.each_ref().map(|cell| cell as &dyn std::fmt::Display);
        text += &table.render_line(&row, anstyle::Style::new());
    }
    text += "left out: mean error of a step by the factor of the others of its products\n";
    if let Some([by_others, without]) = found.left_out_groups {
        text += &format!(
            "products left out as a whole: mean error of their steps {} by what the others share, {} without a correction\n",
            format_percent(by_others),
            format_percent(without)
        );
    }
    text
}
