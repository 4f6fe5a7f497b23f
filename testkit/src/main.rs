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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn captures_are_written_with_their_truth() {
        let folder = tempfile::tempdir().expect("there is room");
        let output = folder.path().join("cap");
        let line = [
            "testkit",
            "capture",
            "--ranks",
            "2",
            "--straggler",
            "1=1.5",
            "-o",
        ];
        let line = line.into_iter().chain(output.to_str());
        let Cli::Capture(args) = Cli::parse_from(line);
        capture(&args).expect("the options make sense");
        let read = |name: &str| -> serde_json::Value {
            let text = std::fs::read(output.join(name)).expect("it was written");
            serde_json::from_slice(&text).expect("it is JSON")
        };
        assert!(
            ["host.1.json", "kineto.1.json"]
                .map(read)
                .iter()
                .all(serde_json::Value::is_object)
        );
        let truth = read("truth.json");
        assert_eq!(truth["version"], 1);
        assert_eq!(truth["ranks"][1]["straggle_permille"], 1500);
    }
}
