//! Finds axis keys that have no effect: rows that differ only in such a key have equal results.

use super::evaluate::{PointEvaluator, PointRefusalOrMeasures};
use super::search::{SweepRow, VisitedPointOutcome};
use super::setting::{self, SettingKind, Settings, kind_of_setting};
use super::study::Study;
use chakram_report::settings::SettingWithoutEffect;
use std::collections::BTreeMap;

/// Returns the keys that have no effect on a row, by row index. This requires that other rows differ from the row only
/// in the key, that they were all replayed, and that all results are equal.
pub(super) fn keys_without_effect_by_row(
    study: &Study,
    rows: &[SweepRow],
    values: &[Option<Vec<f64>>],
) -> Vec<Vec<SettingWithoutEffect>> {
    let evaluator = PointEvaluator::new(study);
    let mut found = vec![Vec::new(); rows.len()];
    for key in study.axes.iter().flat_map(|axis| &axis.keys) {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, row) in rows.iter().enumerate() {
            let mut others = row.point.clone();
            others.remove(key);
            groups
                .entry(setting::format_settings(&others))
                .or_default()
                .push(index);
        }
        for group in groups.values() {
            let [first, rest @ ..] = &group[..] else {
                continue;
            };
            let result = |row: usize| match &rows[row].outcome {
                VisitedPointOutcome::Answered(PointRefusalOrMeasures::Replayed(measures)) => {
                    Some((measures, &values[row]))
                }
                _ => None,
            };
            let known = result(*first);
            let is_same = known.is_some() && rest.iter().all(|row| result(*row) == known);
            let Some(last) = rest.last().filter(|_| is_same) else {
                continue;
            };
            let [one, other] = [*first, *last].map(|row| &rows[row].point);
            let reason = find_equal_results_reason(study, &evaluator, key, one, other);
            for &row in group {
                let value = rows[row].point.get(key);
                found[row].push(SettingWithoutEffect {
                    key: key.clone(),
                    value: value.map_or_else(String::new, ToString::to_string),
                    reason: reason.clone(),
                });
            }
        }
    }
    found
}

/// Returns the reason why the points `one` and `other` have equal results although `key` differs.
fn find_equal_results_reason(
    study: &Study,
    evaluator: &PointEvaluator<'_>,
    key: &str,
    one: &Settings,
    other: &Settings,
) -> String {
    let is_used = study.objectives.iter().any(|one| match one.column_name() {
        "energy" | "energy_delay" => key.starts_with("power."),
        "run_energy" => key.starts_with("power.") || key == "total_tokens",
        "cost" | "dollars_per_million_tokens" => key.starts_with("price."),
        "run_dollars" => key.starts_with("price.") || key == "total_tokens",
        "run_days" | "run_npu_hours" => key == "total_tokens",
        _ => false,
    });
    if matches!(kind_of_setting(key), Ok(SettingKind::Rate)) && !is_used {
        return "no objective of the study uses it".to_owned();
    }
    let found = match kind_of_setting(key) {
        Ok(SettingKind::Machine(_)) => evaluator.why_machines_give_equal_results(one, other),
        Ok(SettingKind::Name) if key == "machine" => {
            evaluator.why_machines_give_equal_results(one, other)
        }
        Ok(SettingKind::Option(option)) => evaluator.reason_option_has_no_effect(option.key, other),
        _ => None,
    };
    found.unwrap_or_else(|| "rows that differ only in this key have the same results".to_owned())
}
