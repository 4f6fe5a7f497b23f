//! `testkit capture`: the files of PyTorch's profiler of a job that never ran, and its truth.

use clap::{Args, Parser};
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use testkit::capture::{Options, generate};

/// References for chakram's tests
#[derive(Debug, Parser)]
enum Cli {
    Capture(CaptureArgs),
}

/// Write a job as PyTorch's profiler captures it, with the truth beside it
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

fn main() -> Result<(), Box<dyn Error>> {
    let Cli::Capture(args) = Cli::parse();
    capture(&args)
}

fn capture(args: &CaptureArgs) -> Result<(), Box<dyn Error>> {
    let capture = generate(&args.options)?;
    std::fs::create_dir_all(&args.output)?;
    capture.write(&args.output)?;
    let mut truth = BufWriter::new(File::create(args.output.join("truth.json"))?);
    serde_json::to_writer(&mut truth, &capture.truth())?;
    truth.write_all(b"\n")?;
    truth.flush()?;
    println!(
        "wrote {} ranks to {}",
        capture.ranks(),
        args.output.display()
    );
    Ok(())
}
