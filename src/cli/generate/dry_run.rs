//! `chakram generate MODEL --dry-run`: what a plan comes to, as text and as JSON.

mod fit;
mod json;
mod lies;
mod text;

use super::training::Asked;
use crate::cli::output::{Fit, Format, RunArgs};
use crate::cli::terminal;
use crate::engine::place;
use crate::generate::training::Summary;
use crate::machine::Machine;
use crate::trace::Phase;
use fit::Room;
use lies::Lies;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

/// What there is to tell.
struct DryRun<'r> {
    name: &'r str,
    summary: &'r Summary,
    /// The machine's name, and where groups lie on it.
    on: Option<(&'r str, Vec<Lies>)>,
    room: Room,
}

fn phase(phase: Option<Phase>) -> &'static str {
    match phase {
        Some(Phase::Forward) => "forward",
        Some(Phase::Backward) => "backward",
        Some(Phase::Recompute) => "recompute",
        Some(Phase::Synchronize) => "synchronize",
        Some(Phase::Optimizer) => "optimizer",
        None => "",
    }
}

/// Prints what `asked` comes to, and where it lies on `machine` if there is one.
pub fn run(
    asked: Asked,
    machine: Option<&Machine>,
    run: &RunArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    if machine.is_none() && run.map.is_some() {
        return Err("--map is for a machine; add --machine MACHINE".into());
    }
    let plan = asked.training.plan.clone();
    let summary = asked.training.summary();
    let summary = summary.map_err(|error| asked.origin.blame(error))?;
    let npus = machine.map(|machine| place(summary.ranks, machine, run.map()));
    let npus = npus.transpose()?;
    let on = machine.zip(npus.as_deref());
    let room = Room::new(&summary, &plan, asked.capacity, on);
    if run.fit == Fit::Require && !room.is_known() {
        return Err("--fit require: nothing says how much memory an NPU has\n  \
             try: --capacity 80GB, or --machine MACHINE"
            .into());
    }
    let dry = DryRun {
        name: &asked.name,
        summary: &summary,
        on: on.map(|(machine, npus)| (machine.name(), lies::all(&summary, machine, npus))),
        room,
    };
    let text = match run.format {
        Format::Text => text::render(&dry),
        Format::Json => json::render(&dry),
        Format::Csv => return Err("--dry-run prints text or json".into()),
    };
    out.write_all(text.as_bytes())?;
    match dry.room.exceeded() {
        Some(text) if run.fit == Fit::Require => {
            terminal::say(format_args!("exceeded: {text}"))?;
            Ok(ExitCode::from(3))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
