//! Loads the machines that the arguments name.

use super::ReplayAndReportArgs;
use chakram_base::config::toml_value_at;
use chakram_base::units::Span;
use chakram_engine::{CompiledReplay, ReplayError, ReplayOptions, RequestedDurationChanges};
use chakram_hardware::machine::{Machine, find_machine_text, is_machine_file_path};
use chakram_jobs::{
    self as job, EditedMachineFileValue, FrameworkDurationsAndPlanOptions, MachineValueChange,
    SoftwareStackError, list_values_changed_from_machine_preset, machine_edits_between,
};
use chakram_report::edits::{EditWithEffectCounts, JobAndMachineEditReport};
use chakram_report::summary::HashedInput;
use chakram_trace::workload::Workload;
use std::error::Error;
use std::path::Path;

/// A machine, where it came from, and the changes from the command line.
#[derive(Debug)]
pub struct MachineWithSourceAndEdits {
    /// The parsed machine, with all changes.
    pub machine: Machine,
    /// Text of the machine file, including the changed keys.
    pub text: String,
    /// Name of the machine file in error messages.
    pub file: String,
    /// Name and hash of the machine file, if hashes are requested.
    pub input: Option<HashedInput>,
    /// Values that differ from the preset of the same name.
    pub edits: Vec<EditedMachineFileValue>,
    /// The machine without `--fill-domains`. On it, jobs leave some NPUs in each rack unused.
    pub unfilled: Option<Machine>,
    /// The machine without the changed keys, if any were changed.
    pub unchanged: Option<Machine>,
    /// The keys that were changed.
    pub changes: Vec<EditWithEffectCounts>,
}

/// Describes the change of a key in the machine file `text` to a new value.
fn describe_machine_key_change(set: &MachineValueChange, text: &str) -> EditWithEffectCounts {
    let before = toml_value_at(text, &set.path);
    let is_same = before.as_deref() == Some(&set.value.to_toml_text());
    EditWithEffectCounts {
        edit: format!("set machine.{}={}", set.path, set.value),
        counts: "keys".to_owned(),
        matched: 1,
        changed: u64::from(!is_same),
        added: 0,
        removed: 0,
        notes: vec![match before {
            Some(before) => format!("was {before}"),
            None => "the file does not state this".to_owned(),
        }],
    }
}

impl MachineWithSourceAndEdits {
    /// Also applies the kernel times of `stack` to `unfilled` and `unchanged`, the machines for comparisons.
    pub fn apply_stack_times_to_compared_machines(
        &mut self,
        stack: &FrameworkDurationsAndPlanOptions,
    ) -> Result<(), SoftwareStackError> {
        for other in [&mut self.unfilled, &mut self.unchanged]
            .into_iter()
            .flatten()
        {
            *other = stack.apply_durations_to_machine(other)?.0;
        }
        Ok(())
    }

    /// Returns the makespan of `workload` on the machine without changed keys. It uses `options`, but without changed
    /// kernel times and without failures.
    pub fn makespan_on_unchanged_machine(
        &self,
        workload: &Workload,
        options: &ReplayOptions,
    ) -> Result<Span, ReplayError> {
        let machine = self.unchanged.as_ref().unwrap_or(&self.machine);
        let options = ReplayOptions {
            changes: RequestedDurationChanges::default(),
            failures: Vec::new(),
            ..options.clone()
        };
        let prepared = CompiledReplay::new(workload, machine, &options)?;
        prepared.find_makespan_folding_large_jobs()
    }
}

impl MachineWithSourceAndEdits {
    /// Describes the edits of a job, and the changes to the machine and to kernel times. The description includes
    /// counts, and the makespan of the `original` job without edits and changes. Returns `None` if there are no edits
    /// and no changes. `rows` are the job's edits.
    pub fn describe_job_and_machine_edits(
        &self,
        original: &Workload,
        rows: &[EditWithEffectCounts],
        options: &ReplayOptions,
    ) -> Result<Option<JobAndMachineEditReport>, ReplayError> {
        let is_changed = !self.changes.is_empty()
            || options.changes_durations_or_has_failures()
            || !rows.is_empty();
        let unedited = is_changed.then(|| self.makespan_on_unchanged_machine(original, options));
        Ok(unedited
            .transpose()?
            .map(|unedited| JobAndMachineEditReport {
                completed: None,
                unedited: Some(unedited),
                rows: [&self.changes, rows].concat(),
            }))
    }
}

impl ReplayAndReportArgs {
    /// Loads a machine, and applies these arguments to it. If hashes are requested, also hashes the
    /// machine file.
    pub fn load_machine(&self, name: &str) -> Result<MachineWithSourceAndEdits, Box<dyn Error>> {
        let MachineFileText {
            text,
            file,
            is_named,
        } = read_archived_or_named_machine_text(name)?;
        let settings = self.timing.parsed_settings();
        let machine = settings.parse_machine_text_with_changed_values(&text, &file)?;
        let input = self.wants_input_hashes().then(|| hash_machine(name, &text));
        let mut loaded = match settings.machine_value_changes() {
            [] => MachineWithSourceAndEdits {
                input,
                // A preset under its own name has no edits, so do not parse its file again.
                edits: match is_named {
                    true => Vec::new(),
                    false => list_values_changed_from_machine_preset(&machine, &text, &file, None),
                },
                machine,
                text,
                file,
                unfilled: None,
                unchanged: None,
                changes: Vec::new(),
            },
            values => {
                let edited = settings.apply_value_changes_to_machine_text(&text, &file)?;
                let original = Machine::parse(&text, &file)?;
                let unedited = Some(&original);
                let mut edits =
                    list_values_changed_from_machine_preset(&machine, &edited, &file, unedited);
                if edits.is_empty() {
                    edits = machine_edits_between(&edited, &text, &file, unedited);
                }
                MachineWithSourceAndEdits {
                    input,
                    edits,
                    machine,
                    unfilled: None,
                    unchanged: Some(settings.fill_all_racks_if_requested(original)?),
                    changes: values
                        .iter()
                        .map(|set| describe_machine_key_change(set, &text))
                        .collect(),
                    text: edited,
                    file,
                }
            }
        };
        if !settings.fill_domains {
            return Ok(loaded);
        }
        let filled = settings.fill_all_racks_if_requested(loaded.machine.clone())?;
        loaded.unfilled = Some(std::mem::replace(&mut loaded.machine, filled));
        for edit in &mut loaded.edits {
            edit.without = edit.without.take().map(Machine::with_all_npus_used);
        }
        Ok(loaded)
    }
}

/// Loads a machine. If `hash` is true, also returns the name and the hash of its file.
pub fn load_machine(
    name: &str,
    hash: bool,
) -> Result<(Machine, Option<HashedInput>), Box<dyn Error>> {
    let MachineFileText { text, file, .. } = read_archived_or_named_machine_text(name)?;
    let input = hash.then(|| hash_machine(name, &text));
    Ok((Machine::parse(&text, &file)?, input))
}

/// Text of a machine file, and its name in error messages.
struct MachineFileText {
    text: String,
    file: String,
    /// True if the machine is a preset or a variant of a preset, false if the machine is a file.
    is_named: bool,
}

fn read_archived_or_named_machine_text(name: &str) -> Result<MachineFileText, Box<dyn Error>> {
    Ok(
        match chakram_archive::read_archived_file(Path::new(name))? {
            Some(text) => MachineFileText {
                text: String::from_utf8(text)
                    .map_err(|_| format!("{name}: the name of the machine is not UTF-8"))?,
                file: name.to_owned(),
                is_named: false,
            },
            None => {
                let source = find_machine_text(name)?;
                MachineFileText {
                    text: source.text.into_owned(),
                    file: source.file,
                    is_named: !is_machine_file_path(name),
                }
            }
        },
    )
}

fn hash_machine(name: &str, text: &str) -> HashedInput {
    job::describe_input_with_hash("machine", Path::new(name), text.as_bytes())
}
