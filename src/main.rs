//! `chakram`: replays machine-learning execution traces on hardware you do not have.

use std::process::ExitCode;

fn main() -> ExitCode {
    chakram::cli::main()
}
