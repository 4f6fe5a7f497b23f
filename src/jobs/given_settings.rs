//! Settings that a user gave, held against the run without each of them.

use chakram_base::config::changed_values;
use chakram_base::setting::SettingKey;
use chakram_engine::{CompiledReplay, ReplayOptions};
use chakram_hardware::machine::{Machine, preset_text};
use chakram_report::settings::{
    RunFacts, SettingWithoutEffect, machine_differences, option_reason, reasons,
};
use chakram_report::{self as report, Report};
use chakram_trace::workload::Workload;
use std::borrow::Cow;

/// Nodes of all repeated runs together up to which a run is repeated without its settings, a step of a simulated collective
/// counted as a node: a second or two.
pub const MAX_REPEATED_NODES: u64 = 2_000_000;

/// Returns nodes of a run, and the steps of its collectives where some were simulated: as many as rings have, twice the members
/// for each member.
fn work(report: &Report, nodes: u64) -> u64 {
    let steps = report.collectives.iter().map(|row| {
        let members = u64::from(row.members);
        (row.tally.calls.saturating_mul(2)).saturating_mul(members.saturating_mul(members))
    });
    match report.outcome.stepwise {
        0 => nodes,
        _ => steps.fold(nodes, u64::saturating_add),
    }
}

/// A run without a setting: what of it is another; nothing where the run does without it what the setting says.
#[derive(Debug, Default)]
pub struct RunWithout<'a> {
    /// The workload.
    pub workload: Option<Workload>,
    /// The machine.
    pub machine: Option<Cow<'a, Machine>>,
    /// The options.
    pub options: Option<ReplayOptions>,
    /// Whether it is too large to be made.
    pub is_too_large: bool,
}

/// A setting that was given.
pub struct GivenSetting<'a> {
    /// Its key, as studies have it.
    pub key: String,
    /// Its value.
    pub value: String,
    /// The option that it is, if it is one.
    pub option: Option<SettingKey>,
    /// Makes the run without it; `None` where there is none, as of what a run needs.
    pub without: Box<dyn Fn() -> Option<RunWithout<'a>> + Sync + 'a>,
}

/// Finds which of `given` have no effect on the run `prepared` with this report, and notes them there.
pub fn note_settings(
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
        let run = RunFacts { prepared, report };
        let machine = without.machine.as_deref().unwrap_or(prepared.machine());
        let other_options = without.options.as_ref().unwrap_or(options);
        // The same inputs have the same results.
        let is_default = without.workload.is_none()
            && without.options.is_none()
            && machine == prepared.machine();
        if !is_default {
            let workload = without.workload.as_ref().unwrap_or(prepared.given());
            if workload.nodes() != prepared.given().nodes() || workload.ranks() != report.ranks {
                continue;
            }
            nodes += work(report, workload.nodes());
            if nodes > MAX_REPEATED_NODES {
                found.unchecked.push(setting.key.clone());
                continue;
            }
            let repeated = CompiledReplay::new(workload, machine, other_options).ok();
            let repeated = repeated.and_then(|prepared| report::replay(&prepared, ()).ok());
            let is_same = repeated.is_some_and(|(other, ())| report.has_same_results(&other));
            if !is_same {
                continue;
            }
        }
        let reason = match setting.option {
            Some(key) => option_reason(key, is_default, &run),
            None if is_default => "the run does the same without it".to_owned(),
            None if without.machine.is_some() => {
                reasons(&machine_differences(machine, prepared.machine()), &run)
            }
            None => "the job takes the same time, memory and traffic without it".to_owned(),
        };
        found.without_effect.push(SettingWithoutEffect {
            key: setting.key.clone(),
            value: setting.value.clone(),
            reason,
        });
    }
    report.settings = found;
}

/// A key of a machine's file that another value stands for in the file that it is an edit of.
#[derive(Clone, Debug)]
pub struct MachineEdit {
    /// Its path in the file.
    pub path: String,
    /// Its value, as TOML has it; `removed` where the edit removed it.
    pub value: String,
    /// The machine without this edit, if there is one.
    pub without: Option<Machine>,
}

/// Returns how the file `text` of `machine`, called `file`, differs from the preset whose name it has, key by key; nothing for
/// presets themselves, and for files that are an edit of none.
pub fn edits_of(machine: &Machine, text: &str, file: &str) -> Vec<MachineEdit> {
    let Ok(original) = preset_text(machine.name()) else {
        return Vec::new();
    };
    // Most runs are on presets as they are, which need not be taken apart to see that.
    if *text == *original {
        return Vec::new();
    }
    edits_between(text, &original, file)
}

/// Returns how the text of a machine, called `file`, differs from `original`, key by key.
pub fn edits_between(text: &str, original: &str, file: &str) -> Vec<MachineEdit> {
    // Labels are no settings.
    let is_label = |path: &str| path == "description" || path == "name";
    let changes = changed_values(text, original).into_iter();
    let changes = changes.filter(|change| !is_label(&change.path));
    let edits = changes.map(|change| MachineEdit {
        without: Machine::parse(&change.without, file).ok(),
        value: change.value.unwrap_or_else(|| "removed".to_owned()),
        path: change.path,
    });
    edits.collect()
}

impl MachineEdit {
    /// Returns it as a setting of a run on the edited machine.
    pub fn setting(&self) -> GivenSetting<'_> {
        GivenSetting {
            key: format!("machine.{}", self.path),
            value: self.value.clone(),
            option: None,
            without: Box::new(|| {
                Some(RunWithout {
                    machine: Some(Cow::Borrowed(self.without.as_ref()?)),
                    ..RunWithout::default()
                })
            }),
        }
    }
}
