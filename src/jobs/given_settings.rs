//! Finds settings that have no effect. Compares the given run with a run that omits each setting in turn.

use chakram_base::config::changed_values;
use chakram_base::setting::SettingKey;
use chakram_engine::{CompiledReplay, ReplayOptions};
use chakram_hardware::machine::{Machine, read_preset_text};
use chakram_report::settings::{
    CompiledReplayWithReport, SettingWithoutEffect, explain_no_effect_of_differences,
    machine_differences, reason_option_has_no_effect,
};
use chakram_report::{self as report, Report};
use chakram_trace::workload::Workload;
use std::borrow::Cow;

/// Maximum number of nodes in all repeated runs together. A step of a simulated collective counts as a node. Replaying
/// this many nodes takes one or two seconds.
pub const MAX_REPEATED_NODES: u64 = 2_000_000;

/// Estimates the work of a run as a number of nodes. A simulated collective of n members also counts as 2 n² nodes,
/// one per step of a ring.
fn estimate_run_work_in_nodes(report: &Report, nodes: u64) -> u64 {
    let steps = report.collectives.iter().map(|row| {
        let members = u64::from(row.members);
        (row.tally.calls.saturating_mul(2)).saturating_mul(members.saturating_mul(members))
    });
    match report.outcome.stepwise {
        0 => nodes,
        _ => steps.fold(nodes, u64::saturating_add),
    }
}

/// The parts of a run that change if a setting is omitted. If the run does not change, all parts
/// are `None`.
#[derive(Debug, Default)]
pub struct RunInputsWithoutSetting<'a> {
    /// The workload without the setting, if it differs.
    pub workload: Option<Workload>,
    /// The machine without the setting, if it differs.
    pub machine: Option<Cow<'a, Machine>>,
    /// The options without the setting, if they differ.
    pub options: Option<ReplayOptions>,
    /// True if the run without the setting is too large to repeat.
    pub is_too_large: bool,
}

/// A setting that the user gave.
pub struct GivenSetting<'a> {
    /// Key of the setting in studies.
    pub key: String,
    /// Value of the setting, as text.
    pub value: String,
    /// Replay option of this setting; `None` if the setting is not a replay option.
    pub option: Option<SettingKey>,
    /// Creates the run without the setting; returns `None` if such a run is impossible.
    pub without: Box<dyn Fn() -> Option<RunInputsWithoutSetting<'a>> + Sync + 'a>,
}

/// Finds the settings in `given` that do not affect the run `prepared`. Adds notes about them to `report`, which
/// describes this run.
pub fn note_settings_without_effect(
    report: &mut Report,
    prepared: &CompiledReplay<'_>,
    options: &ReplayOptions,
    given: &[GivenSetting<'_>],
) {
    let mut nodes = 0;
    let mut found = std::mem::take(&mut report.settings);
    for setting in given {
        let Some(without) = (setting.without)() else {
            continue;
        };
        if without.is_too_large {
            found.unchecked.push(setting.key.clone());
            continue;
        }
        let run = CompiledReplayWithReport { prepared, report };
        let machine = without.machine.as_deref().unwrap_or(prepared.machine());
        let other_options = without.options.as_ref().unwrap_or(options);
        // Equal inputs give equal results, so skip the replay.
        let is_default = without.workload.is_none()
            && without.options.is_none()
            && machine == prepared.machine();
        if !is_default {
            let workload = without
                .workload
                .as_ref()
                .unwrap_or(prepared.workload_without_added_launches());
            if workload.node_count() != prepared.workload_without_added_launches().node_count()
                || workload.rank_count_including_untraced() != report.ranks
            {
                continue;
            }
            nodes += estimate_run_work_in_nodes(report, workload.node_count());
            if nodes > MAX_REPEATED_NODES {
                found.unchecked.push(setting.key.clone());
                continue;
            }
            let repeated = CompiledReplay::new(workload, machine, other_options).ok();
            let repeated =
                repeated.and_then(|prepared| report::replay_to_report(&prepared, ()).ok());
            let is_same = repeated.is_some_and(|(other, ())| report.has_same_results(&other));
            if !is_same {
                continue;
            }
        }
        let reason = match setting.option {
            Some(key) => reason_option_has_no_effect(key, is_default, &run),
            None if is_default => "the run is the same without the setting".to_owned(),
            None if without.machine.is_some() => explain_no_effect_of_differences(
                &machine_differences(machine, prepared.machine()),
                &run,
            ),
            None => "the job has the same time, memory and traffic without the setting".to_owned(),
        };
        found.without_effect.push(SettingWithoutEffect {
            key: setting.key.clone(),
            value: setting.value.clone(),
            reason,
        });
    }
    report.settings = found;
}

/// A value in an edited machine file that differs from the original file.
#[derive(Clone, Debug)]
pub struct EditedMachineFileValue {
    /// Path of the value in the file.
    pub path: String,
    /// New value as TOML text; `removed` if the edit removed the value.
    pub value: String,
    /// The machine without this edit; `None` if that machine would be invalid.
    pub without: Option<Machine>,
}

/// Returns the values that `machine`'s text changes from the preset of the same name, sorted by key. The list is empty
/// for an unmodified preset, and for a machine that has no preset's name. Error messages call the machine's text
/// `file`.
/// If `unedited` is given, `machine` was parsed as an edited version of it.
pub fn list_values_changed_from_machine_preset(
    machine: &Machine,
    text: &str,
    file: &str,
    unedited: Option<&Machine>,
) -> Vec<EditedMachineFileValue> {
    let Ok(original) = read_preset_text(machine.name()) else {
        return Vec::new();
    };
    // Most runs use unmodified presets, so return early.
    if *text == *original {
        return Vec::new();
    }
    machine_edits_between(text, &original, file, unedited)
}

/// Returns the values that differ between a machine's text and `original`, sorted by key. Error messages call the
/// machine's text `file`. If `unedited` is given, the machine was parsed as an edited version of it.
pub fn machine_edits_between(
    text: &str,
    original: &str,
    file: &str,
    unedited: Option<&Machine>,
) -> Vec<EditedMachineFileValue> {
    let parse = |text: &str| match unedited {
        Some(unedited) => Machine::parse_edited_text_of_machine(text, file, unedited).ok(),
        None => Machine::parse(text, file).ok(),
    };
    // Ignore labels, because they do not affect results.
    let is_label = |path: &str| path == "description" || path == "name";
    let changes = changed_values(text, original).into_iter();
    let changes = changes.filter(|change| !is_label(&change.path));
    let edits = changes.map(|change| EditedMachineFileValue {
        without: parse(&change.without),
        value: change.value.unwrap_or_else(|| "removed".to_owned()),
        path: change.path,
    });
    edits.collect()
}

impl EditedMachineFileValue {
    /// Returns the edit as a setting of a run on the edited machine.
    pub fn to_setting(&self) -> GivenSetting<'_> {
        GivenSetting {
            key: format!("machine.{}", self.path),
            value: self.value.clone(),
            option: None,
            without: Box::new(|| {
                Some(RunInputsWithoutSetting {
                    machine: Some(Cow::Borrowed(self.without.as_ref()?)),
                    ..RunInputsWithoutSetting::default()
                })
            }),
        }
    }
}
