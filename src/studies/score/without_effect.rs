//! Finds settings that apply to all runs but do not change any prediction.

use super::{
    MeasuredRun, PredictedStepTimeWithInterval, RunTable, ScoreError, map_runs_in_table_order,
    predict_run, replay_run_and_compute_answer,
};
use chakram_base::setting::SettingKey;
use chakram_engine::ReplayOptions;
use chakram_report::settings::{
    CompiledReplayWithReport, SettingWithoutEffect, reason_option_has_no_effect,
};
use std::io;
use std::num::NonZeroUsize;

/// A setting for all runs, and the runs without it.
#[derive(Debug)]
pub struct RunsWithoutOneSetting {
    /// Key of the setting on the command line.
    pub key: String,
    /// Value of the setting, as text.
    pub value: String,
    /// The runs without the setting; `None` if it does not change them.
    pub table: Option<RunTable>,
    /// Key of the replay option, and the replay options without it; `None` if the setting is not a replay option.
    pub option: Option<(SettingKey, ReplayOptions)>,
}

/// Returns those settings in `given` that do not change the `answers` for the runs of `table`. Each setting comes with
/// the reason. The runs that a setting changes are predicted again without it, until one prediction differs.
pub fn settings_without_effect(
    table: &RunTable,
    options: &ReplayOptions,
    answers: &[Result<PredictedStepTimeWithInterval, ScoreError>],
    given: &[RunsWithoutOneSetting],
    threads: NonZeroUsize,
) -> Vec<SettingWithoutEffect> {
    let found = given.iter().filter_map(|setting| {
        let other = setting.table.as_ref().unwrap_or(table);
        let is_same = |i: usize, run: &MeasuredRun| {
            let own = &table.runs[i];
            setting.option.is_none() && own.training == run.training && own.machine == run.machine
        };
        let is_default = has_same_rows(table, other)
            && (other.runs.iter().enumerate()).all(|(i, run)| is_same(i, run));
        if !is_default {
            let without = setting.option.as_ref();
            let without = without.map_or(options, |(_, without)| without);
            let ask = |i: usize, run: &MeasuredRun| {
                let is_another = !is_same(i, run);
                is_another.then(|| predict_run(run, without)).transpose()
            };
            let mut rows = answers.iter();
            let is_kept = has_same_rows(table, other)
                && map_runs_in_table_order(other, threads, ask, |_, answer| {
                    let is_kept = match (rows.next(), answer) {
                        (Some(_), Ok(None)) => true,
                        (Some(Ok(own)), Ok(Some(other))) => own == other,
                        (Some(Err(own)), Err(other)) => own.to_string() == other.to_string(),
                        _ => false,
                    };
                    // One prediction that differs shows that the setting has an effect.
                    is_kept
                        .then_some(())
                        .ok_or_else(|| io::ErrorKind::Interrupted.into())
                })
                .is_ok();
            if !is_kept {
                return None;
            }
        }
        let reason = match &setting.option {
            _ if is_default => "all runs are the same without the option".to_owned(),
            Some((key, _)) => reason_option_without_effect_on_first_run(*key, table, options),
            None => "all runs take the same time without the option".to_owned(),
        };
        Some(SettingWithoutEffect {
            key: setting.key.clone(),
            value: setting.value.clone(),
            reason,
        })
    });
    found.collect()
}

/// Returns true if both tables have the same valid rows with the same measured values.
fn has_same_rows(table: &RunTable, other: &RunTable) -> bool {
    let row = |run: &MeasuredRun| (run.line, run.measured.to_bits(), run.group, run.fold);
    table.refused == other.refused && (table.runs.iter().map(row)).eq(other.runs.iter().map(row))
}

/// Returns the reason why option `key` has no effect on the first run that can be predicted.
fn reason_option_without_effect_on_first_run(
    key: SettingKey,
    table: &RunTable,
    options: &ReplayOptions,
) -> String {
    let reason = table.runs.iter().find_map(|run| {
        let reason = replay_run_and_compute_answer(run, options, |compiled| {
            let (report, ()) = chakram_report::replay_to_report(compiled, ())?;
            let facts = CompiledReplayWithReport {
                prepared: compiled,
                report: &report,
            };
            Ok((reason_option_has_no_effect(key, false, &facts), true))
        });
        reason.ok()
    });
    reason.unwrap_or_else(|| "no run can be predicted".to_owned())
}
