//! `chakram platform`: lists and shows platforms for serving, and creates platforms from
//! measurements.

use super::output::ReportDestinationAndOutputs;
use crate::terminal::plain_style;
use chakram_base::units::format_thousands;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_serving::{
    MeasurementImportDefaults, PRESETS, Platform, format_platform_file,
    read_measurement_group_means, read_platform_text,
};
use chakram_trace::files::OutputsAndProtectedInputs;
use clap::{Args, Subcommand};
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// List and show platforms for `chakram serve`, and import measurements
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram platform list
  chakram platform show lightning > my.toml
  chakram platform import perf.csv --name t4 --model vgg-16 -o t4.toml")]
pub struct PlatformArgs {
    #[command(subcommand)]
    action: PlatformCommand,
}

#[derive(Debug, Subcommand)]
enum PlatformCommand {
    /// List the built-in platforms
    #[command(after_help = "Example:\n  chakram platform list")]
    List,
    /// Print a platform's file, as a template for your own
    #[command(after_help = "Example:\n  chakram platform show a100 > my.toml")]
    Show {
        /// Preset, or a file (a name with a / or ending in .toml; - is standard input)
        name: String,
    },
    /// Make a platform's file from measurements: CSV of Triton's performance analyzer, or any table
    #[command(after_help = "\
Examples:
  chakram platform import perf_analyzer.csv --name t4 --model vgg-16 -o t4.toml
  chakram platform import latencies.csv --name p4    columns model, batch, compute_us, total_us")]
    Import(PlatformTableImportArgs),
}

/// A table to import, and the values that the table lacks.
#[derive(Debug, Args)]
struct PlatformTableImportArgs {
    /// The table, with a line of headings
    #[arg(value_name = "FILE.csv")]
    table: PathBuf,
    /// Name of the platform; if the table has a column `platform`, only rows with this name are read
    #[arg(long)]
    name: String,
    /// Model of all rows, if no column gives the model
    #[arg(long)]
    model: Option<String>,
    /// Inferences per request in all rows, if no column gives the inferences
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch: Option<u32>,
    /// Write to this file; standard output by default
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Prints the list or the platform to `out`, or imports a table.
///
/// # Errors
///
/// Fails if a platform does not exist, if a table is invalid, or if output cannot be written.
pub fn list_show_or_import_platforms(
    args: &PlatformArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let mut outputs = OutputsAndProtectedInputs::default();
    let (text, path) = match &args.action {
        PlatformCommand::List => (list_platforms()?, None),
        PlatformCommand::Show { name } => {
            Platform::load_by_name(name)?;
            (read_platform_text(name)?.into_owned(), None)
        }
        PlatformCommand::Import(import) => {
            outputs.register_input(&import.table);
            (
                import_table_as_platform_text(import)?,
                import.output.as_deref(),
            )
        }
    };
    let path = path.unwrap_or(Path::new("-"));
    ReportDestinationAndOutputs::create_at_path(out, path, outputs)?.write_report(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn list_platforms() -> Result<String, Box<dyn Error>> {
    let mut table = TextTable::new([
        left_aligned_column("NAME", 0),
        right_aligned_column("CORES", 0),
        right_aligned_column("CLOCK", 0),
        right_aligned_column("DATAPATH", 0),
        left_aligned_column("SOURCE", 0),
    ])
    .with_indent(0);
    for preset in PRESETS {
        let platform = Platform::load_by_name(preset.name)?;
        let cores = platform.cores;
        let source = platform.source.split_once(')');
        table.add_row(&[
            &platform.name,
            &cores.map_or("-".to_owned(), |cores| format_thousands(cores.cores.into())),
            &cores.map_or("-".to_owned(), |cores| {
                format!("{} GHz", cores.clock.as_hertz() / 1e9)
            }),
            &platform.describe_datapath_latencies(),
            &source.map_or("", |(source, _)| source).replace('(', ""),
        ]);
    }
    Ok(table.to_text(plain_style()))
}

fn import_table_as_platform_text(args: &PlatformTableImportArgs) -> Result<String, Box<dyn Error>> {
    let options = MeasurementImportDefaults {
        platform: args.name.clone(),
        model: args.model.clone(),
        batch: args.batch,
    };
    let measurements = read_measurement_group_means(&args.table, &options)?;
    let source = args.table.file_name().unwrap_or_default().to_string_lossy();
    Ok(format_platform_file(&options, &source, &measurements))
}
