//! Commands of the testkit. `testkit capture` writes PyTorch profiler files for a simulated job, with its true times.
//! `testkit astra-sim` writes random inputs of ASTRA-sim.

use clap::{Args, Parser};
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use testkit::astra_sim::{create_config_with_overlapping_groups, create_random_config};
use testkit::capture::{Options, generate_capture};

/// References for chakram's tests
#[derive(Debug, Parser)]
enum Cli {
    Capture(CaptureArgs),
    AstraSim(AstraSimCaseWriterArgs),
}

/// Write a job as PyTorch's profiler captures it, with its ground truth
///
/// Writes host.R.json (ExecutionTraceObserver) and kineto.R.json for every rank R, and truth.json.
#[derive(Debug, Args)]
#[command(after_help = "\
Writes host.R.json (ExecutionTraceObserver) and kineto.R.json for every rank R, and truth.json.

Examples:
  cargo run -p testkit -- capture --ranks 4 --steps 2 -o /tmp/cap
  cargo run -p testkit -- capture --ranks 8 --tp 2 --device cuda --straggler 3=1.5 -o /tmp/cap
  cargo run -p testkit -- capture --ranks 4 --style pipeline --microbatches 8 -o /tmp/cap")]
struct CaptureArgs {
    /// Write into this folder
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    #[command(flatten)]
    options: Options,
}

/// Write random inputs of ASTRA-sim, a folder for each seed
#[derive(Debug, Args)]
#[command(after_help = "\
Writes FOLDER/SEED/args.txt, the network and the options of the original's command line, and what they name.
Every third is of groups that overlap.

Example:
  cargo run -p testkit -- astra-sim --from 0 --to 2000 -o /tmp/cases")]
struct AstraSimCaseWriterArgs {
    /// Write into this folder
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// First seed
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,
    /// Seed after the last
    #[arg(long, value_name = "SEED", default_value_t = 2000)]
    to: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    match Cli::parse() {
        Cli::Capture(args) => write_capture_with_truth(&args),
        Cli::AstraSim(args) => write_astra_sim_cases(&args),
    }
}

fn write_astra_sim_cases(args: &AstraSimCaseWriterArgs) -> Result<(), Box<dyn Error>> {
    for seed in args.from..args.to {
        let config = match seed % 3 {
            2 => create_config_with_overlapping_groups(seed),
            _ => create_random_config(seed),
        };
        config.write_case(&args.output.join(seed.to_string()))?;
    }
    Ok(())
}

fn write_capture_with_truth(args: &CaptureArgs) -> Result<(), Box<dyn Error>> {
    let capture = generate_capture(&args.options)?;
    std::fs::create_dir_all(&args.output)?;
    capture.write_files(&args.output)?;
    let mut truth = BufWriter::new(File::create(args.output.join("truth.json"))?);
    serde_json::to_writer(&mut truth, &capture.compute_truth())?;
    truth.write_all(b"\n")?;
    truth.flush()?;
    println!(
        "wrote {} ranks to {}",
        capture.rank_count(),
        args.output.display()
    );
    Ok(())
}
