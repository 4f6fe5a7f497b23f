//! `chakram machine`: lists, shows, checks, creates and imports machines.

use crate::recognition::{ReadableInputs, describe_kind_and_reading_command};
use chakram_hardware::machine::{self, Machine, MachineError, PRESETS};
use chakram_hardware::network::NetworkModelKind;
use chakram_hardware::topology::TopologyDimension;
use chakram_report::document::VersionedDocument;
use chakram_report::table::{TextTable, left_aligned_column};
use chakram_report::text::TextStyleWidthAndDetail;
use clap::{Args, Subcommand, ValueEnum};
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod import;
mod json;
mod new;
mod tile_ratios;

use json::{MachineDetails, MachineDocument, MachineListDocument, MachineSummary};
use tile_ratios::TileMachineHardwareRatios;

/// List, show, check and create machines
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram machine list
  chakram machine show dgx-h100x4 > my.toml
  chakram machine check my.toml")]
pub struct MachineArgs {
    #[command(subcommand)]
    action: MachineCommand,
}

#[derive(Debug, Subcommand)]
enum MachineCommand {
    /// List the built-in machines
    #[command(after_help = "Example:\n  chakram machine list --format json")]
    List {
        /// Format of the list
        #[arg(long, value_enum, default_value_t = MachineOutputFormatArg::Text)]
        format: MachineOutputFormatArg,
    },
    /// Print a machine's file, as a template for your own
    #[command(after_help = "\
Examples:
  chakram machine show dgx-h100 > my.toml    comments give the source of every number
  chakram machine show dgx-h100x4            the same with four nodes")]
    Show {
        /// Preset, NAMExN for N of its nodes, or a file (a name with a / or ending in .toml; - is standard input)
        name: String,
        /// Text: the file as written; JSON: all values in base units
        #[arg(long, value_enum, default_value_t = MachineOutputFormatArg::Text)]
        format: MachineOutputFormatArg,
    },
    /// Check machine files; exit code 2 if any is invalid
    #[command(after_help = "Example:\n  chakram machine check my.toml other.toml")]
    Check {
        /// Machine files or presets
        #[arg(required = true, value_name = "FILE")]
        files: Vec<String>,
    },
    /// Write a machine file that starts from another machine and takes values from a datasheet
    #[command(after_help = "\
Examples:
  chakram machine new h200 --from h100 --memory 141GB --bandwidth 4.8TB/s -o h200.toml
  chakram machine new next --from b200 --peak bf16=2.5PFLOP/s,fp8=5PFLOP/s --link 3.6TB/s --price 6

Curves of kernels and collectives come from the other machine and scale with the rates. The errors of the curves
grow if rates differ, because the scaled times were not measured. Comments in the file state the source of each
number.")]
    New(new::NewMachineArgs),
    /// Write a machine file from ASTRA-sim's network, system and memory files
    #[command(after_help = "\
Examples:
  chakram machine import network.yml system.json memory.json -o my.toml
  chakram machine import network.yml                    NPUs stay unknown

Settings that a machine file cannot express are printed as notes, and written into the file as comments. To get
ASTRA-sim's times to the nanosecond, use `chakram astra-sim`; a machine file uses this program's own models.")]
    Import {
        /// ASTRA-sim's files: the network, and optionally the system and the remote memory, in any order
        #[arg(required = true, num_args = 1..=3, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Write to this file; standard output by default
        #[arg(short, long, value_name = "FILE.toml")]
        output: Option<PathBuf>,
    },
}

impl MachineArgs {
    /// Returns true if the inputs are files of ASTRA-sim.
    pub fn has_astra_sim_inputs(&self) -> bool {
        matches!(self.action, MachineCommand::Import { .. })
    }
}

/// Output format of `machine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MachineOutputFormatArg {
    /// Human-readable text
    Text,
    /// JSON, times in picoseconds, rates per second, sizes in bytes
    Json,
}

/// Runs the command, and prints its result to `out`. Returns exit code 2 if a checked file is
/// invalid.
///
/// # Errors
///
/// Fails if a machine to show does not exist or is invalid (a [`MachineError`]), or if output cannot be written.
pub fn run_machine_subcommand(
    args: &MachineArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    match &args.action {
        MachineCommand::List { format } => list_machines(*format, out)?,
        MachineCommand::Show { name, format } => show_machine(name, *format, out)?,
        MachineCommand::Check { files } => return Ok(check_files(files, out)?),
        MachineCommand::New(args) => new::run(args, out)?,
        MachineCommand::Import { files, output } => import::run(files, output.as_deref(), out)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Width of the list of machines, in columns.
const WIDTH: u16 = 100;

fn list_machines(
    format: MachineOutputFormatArg,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let presets = PRESETS
        .iter()
        .map(|preset| Machine::load_preset(preset.name));
    let machines: Vec<_> = presets.collect::<Result<_, MachineError>>()?;
    if format == MachineOutputFormatArg::Json {
        let machines = machines.iter().map(MachineSummary::of_machine).collect();
        let list = MachineListDocument { machines };
        VersionedDocument::new("chakram.machines.1", list).print_to(out)?;
        return Ok(());
    }
    let mut table = TextTable::new([
        left_aligned_column("NAME", 0),
        left_aligned_column("NPUs", 0),
        left_aligned_column("DIMENSIONS, INNERMOST FIRST", 0),
        left_aligned_column("DESCRIPTION", 0),
    ])
    .with_indent(0)
    .wrap_cells_to_width(WIDTH);
    for machine in &machines {
        let dimensions = format_dimensions(machine).join("\n");
        table.add_row(&[
            &machine.name(),
            &format_npu_count_or_multiple(machine),
            &dimensions,
            &machine.description(),
        ]);
    }
    out.write_all(table.to_text(TextStyleWidthAndDetail::default()).as_bytes())?;
    Ok(())
}

fn show_machine(
    name: &str,
    format: MachineOutputFormatArg,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let source = machine::find_machine_text(name)?;
    let machine = Machine::parse(&source.text, &source.file)?;
    match format {
        MachineOutputFormatArg::Text => {
            out.write_all(source.text.as_bytes())?;
            if let Some(ratios) = TileMachineHardwareRatios::of_machine(&machine) {
                // Print the ratios as a comment, so that the text remains a valid machine file.
                write!(out, "\n{}", ratios.format_comment(machine.name()))?;
            }
        }
        MachineOutputFormatArg::Json => {
            let machine = MachineDetails::of_machine(&machine);
            VersionedDocument::new("chakram.machine.1", MachineDocument { machine })
                .print_to(out)?
        }
    }
    Ok(())
}

fn check_files(files: &[String], out: &mut dyn Write) -> io::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for file in files {
        match Machine::load_by_name(file) {
            Ok(machine) => {
                let npus = machine.topology().npu_count();
                let dimensions = format_dimensions(&machine).join(", ");
                let network = format_non_default_network(&machine);
                writeln!(
                    out,
                    "{file}: ok: {}, {npus} NPUs, {dimensions}{network}",
                    machine.name()
                )?;
            }
            Err(error) => {
                code = ExitCode::from(2);
                match describe_kind_and_reading_command(Path::new(file), ReadableInputs::Own) {
                    Some(explained) => writeln!(out, "{explained}")?,
                    None => writeln!(out, "{}", crate::error_text_with_causes_and_hint(&error))?,
                }
            }
        }
    }
    Ok(code)
}

/// Formats the number of NPUs: `512`, or `8 x N` if the outermost dimension has no fixed size.
fn format_npu_count_or_multiple(machine: &Machine) -> String {
    let npus = machine.topology().npu_count();
    match (machine.is_scalable(), machine.topology().dimensions()) {
        (true, [.., outermost]) => format!("{} x N", npus / outermost.size),
        _ => npus.to_string(),
    }
}

/// Formats each dimension as `switch 8 @ 450 GB/s`. For a topology of individual links, formats its kind and rate:
/// `clos 4x4 @ 12.5 GB/s`.
fn format_dimensions(machine: &Machine) -> Vec<String> {
    let graph = machine.topology().explicit_links();
    let dimensions = machine.topology().dimensions();
    let words = |(index, dimension): (usize, &TopologyDimension)| {
        let gb = dimension.bandwidth.bytes_per_second() / 1e9;
        if let Some(label) = graph.and_then(|graph| graph.explicit_links_label(index)) {
            return format!("{label} @ {gb} GB/s");
        }
        let open = machine.is_scalable() && index + 1 == dimensions.len() && dimension.size == 1;
        let size = if open {
            "N".to_owned()
        } else {
            dimension.size.to_string()
        };
        format!("{} {size} @ {gb} GB/s", dimension.shape)
    };
    dimensions.iter().enumerate().map(words).collect()
}

/// Formats the network properties that differ from their defaults: `, network ports, cut-through by 4096 B`.
fn format_non_default_network(machine: &Machine) -> String {
    let mut text = String::new();
    if machine.network_model() != NetworkModelKind::default() {
        text += &format!(", network {}", machine.network_model());
    }
    if let Some(tiles) = machine.topology().tile_grid() {
        let [[x, y], [a, b]] = [tiles.dies, tiles.cores];
        text += &format!(", {x} x {y} dies of {a} x {b} cores");
    }
    text + &machine.network_settings().describe_non_default_settings()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::Value;

    #[derive(Parser)]
    struct TestMachineCommandLine {
        #[command(flatten)]
        args: MachineArgs,
    }

    fn run_machine_command(words: &[&str]) -> Result<(String, ExitCode), Box<dyn Error>> {
        let line = TestMachineCommandLine::try_parse_from([&["machine"], words].concat())?;
        let mut out = Vec::new();
        let code = run_machine_subcommand(&line.args, &mut out)?;
        Ok((String::from_utf8(out)?, code))
    }

    #[test]
    fn the_list_fits_100_columns_and_names_every_preset() {
        let (text, _) = run_machine_command(&["list"]).unwrap();
        assert!(
            text.lines()
                .all(|line| line.chars().count() <= WIDTH.into()),
            "{text}"
        );
        for preset in PRESETS {
            assert!(
                text.lines().any(|line| line.starts_with(preset.name)),
                "{text}"
            );
        }
        assert!(
            text.contains("8 x N") && text.contains("switch 8 @ 450 GB/s"),
            "{text}"
        );
        assert!(text.contains("switch N @ 50 GB/s"), "{text}");
    }

    #[test]
    fn what_is_shown_is_a_machine_file() {
        for name in ["dgx-h100", "dgx-h100x4", "conv-4d"] {
            let (text, _) = run_machine_command(&["show", name]).unwrap();
            assert_eq!(
                Machine::parse(&text, name).unwrap(),
                Machine::load_preset(name).unwrap()
            );
        }
        assert!(run_machine_command(&["show", "dgx-h10"]).is_err());
    }

    #[test]
    fn json_is_in_base_units() {
        let (text, _) = run_machine_command(&["show", "dgx-a100x2", "--format", "json"]).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["schema"], "chakram.machine.1");
        let machine = &json["machine"];
        // Two nodes have 8 NPUs each; 300 GB/s = 300e9 B/s; 550 ns = 550,000 ps.
        assert_eq!(machine["npus"], 16);
        assert_eq!(machine["dimensions"][0]["bandwidth_bytes_per_s"], 300e9);
        assert_eq!(machine["dimensions"][0]["latency_ps"], 550_000);
        assert_eq!(machine["classes"][0]["peak_flop_per_s"]["bf16"], 312e12);
        let (text, _) = run_machine_command(&["list", "--format", "json"]).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            json["machines"].as_array().map(Vec::len),
            Some(PRESETS.len())
        );
    }

    #[test]
    fn a_check_reports_every_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let (good, bad) = (path("good.toml"), path("bad.toml"));
        std::fs::write(&good, PRESETS[0].text).unwrap();
        std::fs::write(&bad, "name = 3\n").unwrap();
        let (text, code) = run_machine_command(&["check", &bad, "no.toml", &good]).unwrap();
        assert_eq!(code, ExitCode::from(2));
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[0].starts_with(&format!("{bad}:1: key `name`: found the number 3")),
            "{text}"
        );
        assert!(
            lines[1].starts_with("cannot read machine file no.toml")
                && lines[2].starts_with("  because: ")
                && lines[3].starts_with("  try: "),
            "{text}"
        );
        let ok = "ok: dgx-a100, 8 NPUs, switch 8 @ 300 GB/s, switch N @ 25 GB/s";
        assert_eq!(lines[4], format!("{good}: {ok}"));
        assert_eq!(
            run_machine_command(&["check", &good]).unwrap().1,
            ExitCode::SUCCESS
        );
    }
}
