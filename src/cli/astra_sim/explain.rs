//! Shows the effect of each quirk on the makespan. Compares three kinds of replays: with all quirks, with one quirk
//! corrected, and with all quirks corrected.

use super::{AstraSimArgs, replay};
use crate::compare::parallel_map;
use crate::output::{ReportDestinationAndOutputs, ReportFormatArg};
use crate::terminal;
use chakram_astra_sim::{Quirk, QuirkSet};
use chakram_base::units::Span;
use chakram_engine::ReplayError;
use chakram_report::summary::format_count_with_noun;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

mod table;

/// The quirks that a replay corrects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuirksCorrectedInReplay {
    Nothing,
    One(Quirk),
    Everything,
}

impl QuirksCorrectedInReplay {
    /// Returns all variations in the order in which the table lists them.
    fn all_variations() -> Vec<Self> {
        let ones = Quirk::all_quirks().map(Self::One);
        let all = [Self::Nothing].into_iter().chain(ones);
        all.chain([Self::Everything]).collect()
    }

    fn reproduced_quirks(self) -> QuirkSet {
        match self {
            Self::Nothing => QuirkSet::ALL,
            Self::One(quirk) => QuirkSet::ALL.without_quirk(quirk),
            Self::Everything => QuirkSet::NONE,
        }
    }
}

/// Outcome of replaying one variation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum QuirkReplayResult {
    After(Span),
    /// The quirk has no effect on the chosen network.
    NotApplicable,
    /// The replay was rejected, deadlocked, or would never end.
    Failed {
        how: &'static str,
        why: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct QuirkCorrectionResult {
    corrected: QuirksCorrectedInReplay,
    ended: QuirkReplayResult,
}

/// Replays the inputs of `args` once per variation, and prints the table. If a replay with a corrected quirk fails, the
/// table and the exit code report the failure.
pub fn replay_each_variation_and_print_table(
    args: &AstraSimArgs,
    to: &mut ReportDestinationAndOutputs<'_>,
) -> Result<ExitCode, Box<dyn Error>> {
    let mut job = args.load_job_and_print_time(QuirkSet::ALL)?;
    let start = Instant::now();
    let (model, files) = (job.inputs.model, std::mem::take(&mut job.files));
    for note in &job.notes {
        terminal::print_note(format_args!("{note}"))?;
    }
    let ended = |outcome: Result<Span, (&'static str, String)>| match outcome {
        Ok(span) => QuirkReplayResult::After(span),
        Err((how, why)) => QuirkReplayResult::Failed { how, why },
    };
    let before = replay::replay_without_observers(args, &job)?.makespan;
    let all = QuirksCorrectedInReplay::all_variations();
    let again = parallel_map(
        ("replaying", "variants"),
        all.len(),
        None,
        |index| match all[index] {
            QuirksCorrectedInReplay::Nothing => QuirkReplayResult::After(before),
            QuirksCorrectedInReplay::One(quirk) if !quirk.applies_to_network_model(model) => {
                QuirkReplayResult::NotApplicable
            }
            corrected => ended(makespan_reproducing_quirks(
                args,
                corrected.reproduced_quirks(),
            )),
        },
    );
    let variants = format_count_with_noun(all.len() as u64, "variant");
    terminal::print_detail_with_elapsed_time(start, format_args!("replayed {variants}"))?;
    let rows = all.into_iter().zip(again);
    let rows: Vec<QuirkCorrectionResult> = rows
        .map(|(corrected, ended)| QuirkCorrectionResult { corrected, ended })
        .collect();
    let document = match args.format {
        ReportFormatArg::Text => table::render_quirk_correction_table(&rows, before),
        ReportFormatArg::Csv => table::render_csv(&rows, before),
        ReportFormatArg::Json => {
            table::build_quirk_effects_document(&rows, before, args.option_json(), &files)
                .to_json_text()
        }
    };
    to.write_report(&document)?;
    let failed = rows.iter().find_map(|row| match &row.ended {
        QuirkReplayResult::Failed { how, why } => Some((how, why)),
        _ => None,
    });
    match failed {
        None => Ok(ExitCode::SUCCESS),
        Some((how, why)) => {
            terminal::print_or_capture_stderr_line(format_args!("error: {how}: {why}"))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Returns the makespan of a replay that reproduces `quirks`. If the replay fails, returns the kind of failure and its
/// message.
fn makespan_reproducing_quirks(
    args: &AstraSimArgs,
    quirks: QuirkSet,
) -> Result<Span, (&'static str, String)> {
    let job = args
        .load_job(quirks)
        .map_err(|error| ("refused", error.to_string()))?;
    let outcome = replay::replay_without_observers(args, &job).map_err(|error| {
        let how = match error {
            ReplayError::Refused(_) => "refused",
            ReplayError::Stuck(_) => "deadlocked",
            ReplayError::TooLong => "too long",
            ReplayError::Interrupted(_) => "interrupted",
        };
        (how, error.to_string())
    })?;
    Ok(outcome.makespan)
}
