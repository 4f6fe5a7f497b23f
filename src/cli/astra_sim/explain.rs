//! Effect of quirks on a result: replays with all of them, with each one corrected, and with all corrected.

use super::job::Job;
use super::{AstraSimArgs, replay};
use crate::astra_sim::{Quirk, Quirks};
use crate::cli::compare::on_threads;
use crate::cli::output::{Destination, Format};
use crate::cli::terminal;
use crate::engine::ReplayError;
use crate::units::Span;
use std::error::Error;
use std::process::ExitCode;

mod table;

/// Quirks that a replay corrects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Corrected {
    Nothing,
    One(Quirk),
    Everything,
}

impl Corrected {
    /// Returns the replays in the order of the table.
    fn all() -> Vec<Self> {
        let ones = Quirk::all().map(Self::One);
        let all = [Self::Nothing].into_iter().chain(ones);
        all.chain([Self::Everything]).collect()
    }

    fn quirks(self) -> Quirks {
        match self {
            Self::Nothing => Quirks::ALL,
            Self::One(quirk) => Quirks::ALL.without(quirk),
            Self::Everything => Quirks::NONE,
        }
    }
}

/// Result of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ended {
    After(Span),
    /// The network has no such quirk.
    NotApplicable,
    /// It was refused, deadlocked or never ends.
    Failed {
        how: &'static str,
        why: String,
    },
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    corrected: Corrected,
    ended: Ended,
}

/// Replays the inputs of `args` repeatedly and prints the table. Where a replay with a quirk corrected fails, the
/// table says so, and so does the exit code.
pub fn run(args: &AstraSimArgs, to: &mut Destination<'_>) -> Result<ExitCode, Box<dyn Error>> {
    let mut job = Job::load(args, Quirks::ALL)?;
    let (model, files) = (job.inputs.model, std::mem::take(&mut job.files));
    for note in &job.notes {
        terminal::note(format_args!("{note}"))?;
    }
    let ended = |outcome: Result<Span, (&'static str, String)>| match outcome {
        Ok(span) => Ended::After(span),
        Err((how, why)) => Ended::Failed { how, why },
    };
    let before = replay::outcome(args, job)?.makespan;
    let all = Corrected::all();
    let again = on_threads(all.len(), None, |index| match all[index] {
        Corrected::Nothing => Ended::After(before),
        Corrected::One(quirk) if !quirk.applies(model) => Ended::NotApplicable,
        corrected => ended(makespan(args, corrected.quirks())),
    });
    let rows = all.into_iter().zip(again);
    let rows: Vec<Row> = rows
        .map(|(corrected, ended)| Row { corrected, ended })
        .collect();
    let document = match args.format {
        Format::Text => table::text(&rows, before),
        Format::Csv => table::csv(&rows, before),
        Format::Json => {
            let document = table::json(&rows, before, args.options(), &files);
            terminal::json(&document)
        }
    };
    to.write(&document)?;
    let failed = rows.iter().find_map(|row| match &row.ended {
        Ended::Failed { how, why } => Some((how, why)),
        _ => None,
    });
    match failed {
        None => Ok(ExitCode::SUCCESS),
        Some((how, why)) => {
            terminal::say(format_args!("error: {how}: {why}"))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Returns the duration of a replay with these quirks, or the kind of failure and its message.
fn makespan(args: &AstraSimArgs, quirks: Quirks) -> Result<Span, (&'static str, String)> {
    let job = Job::load(args, quirks).map_err(|error| ("refused", error.to_string()))?;
    let outcome = replay::outcome(args, job).map_err(|error| {
        let how = match error {
            ReplayError::Refused(_) => "refused",
            ReplayError::Stuck(_) => "stuck",
            ReplayError::TooLong => "too long",
        };
        (how, error.to_string())
    })?;
    Ok(outcome.makespan)
}
