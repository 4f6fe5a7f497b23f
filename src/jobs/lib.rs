//! Prepares jobs for a replay. A job comes from files, from a pattern that generates it, or from ASTRA-sim's input
//! files.

use chakram_base::bounds::MemoryLimitError;
use chakram_base::interrupt::StopOrMemoryInterruption;
use chakram_base::setting::SettingKey;
use chakram_engine::{CompiledReplay, ReplayError, ReplayOptions};
use chakram_hardware::machine::Machine;
use chakram_report::edits::EditWithEffectCounts;
use chakram_report::summary::HashedInput;
use chakram_report::{self as report, Report};
use chakram_trace::format::{TraceError, escape_and_shorten_name};
use chakram_trace::workload::{MissingRankPolicy, Workload, WorkloadError};
use chakram_workloads::generate::{self, PatternOptionError, WorkloadPattern};
use std::io;
use std::path::{Path, PathBuf};

mod astra_sim;
mod custom;
mod given_settings;
mod input;
mod load;
mod machine_facts;
mod machine_reference;
mod outputs;
mod replay_settings;
mod sensitivities;
mod stack;
mod traces;

pub use astra_sim::AstraSimJob;
pub use astra_sim::replay_on_input_network;
pub use custom::{CustomCollectiveAlgorithmFiles, load_custom_algorithms};
pub use given_settings::{
    EditedMachineFileValue, GivenSetting, MAX_REPEATED_NODES, RunInputsWithoutSetting,
    list_values_changed_from_machine_preset, machine_edits_between, note_settings_without_effect,
};
pub use input::{
    CASE_MACHINE, describe_input_with_hash, find_machine_beside_traces_or_in_job,
    job_name_from_paths, read_text,
};
pub use load::{JobLoadOptions, LoadProgressFn};
pub use load::{
    check_replay_state_fits_memory, declared_groups, find_traces, groups_from_file_or_job,
    load_found_traces, protect_found_files_as_inputs, restrict_to_step,
};
pub use machine_facts::{least_npu_memory, machine_properties_for_plans};
pub use outputs::{
    JobBeingWritten, SavedJob, list_stale_traces, update_trace_digest_in_job_file, write_job_file,
};
pub use replay_settings::{
    MachineValueChange, MachineValuesError, REPLAY_OPTIONS, ReplayOptionDefinition,
    ReplayOptionValueKind, ReplaySettings, ReplaySettingsError, parse_edit_or_edits_file,
    parse_npus,
};
pub use sensitivities::{NamedMachineText, find_sensitivities};
pub use stack::{
    FrameworkDurationsAndPlanOptions, STACK_PRESETS, SoftwareStackError, SoftwareStackPreset,
};
pub use traces::{JobTraceFilesOrPipe, merge_job_file_declarations};

/// A job that can be replayed on any machine.
#[derive(Debug)]
pub struct Job {
    name: String,
    workload: Workload,
    absent: MissingRankPolicy,
    inputs: Vec<HashedInput>,
    edits: Vec<EditWithEffectCounts>,
    completed: u64,
}

/// Reason why a job cannot be loaded, generated or written.
#[derive(Debug, thiserror::Error)]
pub enum JobLoadOrWriteError {
    /// A trace cannot be used.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The traces do not form a workload.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The job would exceed the memory limit.
    #[error(transparent)]
    Memory(#[from] MemoryLimitError),
    /// Loading was interrupted.
    #[error(transparent)]
    Interrupted(#[from] StopOrMemoryInterruption),
    /// The options of a pattern are invalid.
    #[error(transparent)]
    MessageTrafficPattern(#[from] PatternOptionError),
    /// An ASTRA-sim file is invalid.
    #[error(transparent)]
    AstraSim(#[from] chakram_astra_sim::InputError),
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Two jobs declare a group differently.
    #[error("{}: group `{}` has different ranks in another job of this command\n  try: one job, or {}", .file.display(), escape_and_shorten_name(.group), SettingKey::Groups)]
    GroupTwice {
        /// The file of the second job.
        file: PathBuf,
        /// Name of the group in both jobs.
        group: String,
    },
    /// A rank that should start later has no trace.
    #[error("{} {rank}=…: rank {rank} has no trace; expected one of {} to {}", SettingKey::Delays, known.0, known.1)]
    NobodyToDelay {
        /// Rank that lacks a trace.
        rank: u32,
        /// The first and the last rank that have a trace.
        known: (u32, u32),
    },
    /// No trace states how much time the profiler itself took.
    #[error(
        "{} profiler: no node states the overhead of the profiler\n  try: convert the capture again, with both files of each rank or its Kineto trace",
        SettingKey::Without
    )]
    NoProfilerCost,
    /// This output name is not allowed for a job.
    #[error("{0}")]
    Output(&'static str),
}

impl Job {
    /// Opens the job at `paths`. `paths` names a folder of traces, the prefix of files called `PREFIX.RANK.et`, the job
    /// file, or the files of single ranks.
    ///
    /// # Errors
    ///
    /// Fails if there are no traces, if a trace is invalid, or if the traces do not form a job.
    pub fn open_job<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
    ) -> Result<Self, JobLoadOrWriteError> {
        Self::open_job_with_options(paths, &JobLoadOptions::default())
    }

    /// Opens a job like [`Self::open_job`], with options.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`Self::open_job`].
    pub fn open_job_with_options<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        options: &JobLoadOptions,
    ) -> Result<Self, JobLoadOrWriteError> {
        let paths = paths.into_iter().map(|path| path.as_ref().to_owned());
        let paths: Vec<PathBuf> = paths.collect();
        let found = find_traces(&paths, options.verify)?;
        let name = job_name_from_paths(&paths, &found.files);
        load_found_traces(&found, name, options, &mut |_, _| {})
    }

    /// Generates the job that `pattern` describes, in memory and without files.
    ///
    /// # Errors
    ///
    /// Fails if the options are invalid, or if the job would exceed the memory limit.
    pub fn generate_job(pattern: WorkloadPattern) -> Result<Self, JobLoadOrWriteError> {
        let job = generate::CheckedWorkloadPattern::new(pattern)?;
        job.check_workload_fits_memory()?;
        Ok(Self {
            name: "job".to_owned(),
            workload: job.build_workload()?,
            absent: MissingRankPolicy::Refuse,
            inputs: Vec::new(),
            edits: Vec::new(),
            completed: 0,
        })
    }

    /// Replays the job on `machine` and returns the report. Ranks without a trace were already handled when the job was
    /// opened, so `options` do not affect them.
    ///
    /// # Errors
    ///
    /// Fails if the machine cannot run the job, or if the replay deadlocks.
    pub fn replay_on(
        &self,
        machine: &Machine,
        options: &ReplayOptions,
    ) -> Result<Report, ReplayError> {
        let absent = self.absent;
        let options = ReplayOptions {
            missing_ranks: absent,
            ..options.clone()
        };
        replay_workload(&self.workload, machine, &options)
    }

    /// Returns a readable name of the job.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the graphs, ranks and groups of the job.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Returns the graphs, ranks and groups of the job, and drops the rest.
    pub fn into_workload(self) -> Workload {
        self.workload
    }

    /// Returns the number of items that each of the [edit_effect_counts](JobLoadOptions::edits) changed.
    pub fn edit_effect_counts(&self) -> &[EditWithEffectCounts] {
        &self.edits
    }

    /// Returns how many ranks without a trace copy captured ranks that have the same role.
    pub fn count_ranks_copying_captured_ranks(&self) -> u64 {
        self.completed
    }

    /// Returns the files of the job with their hashes. The list is empty unless
    /// [`JobLoadOptions::hash`] is true.
    pub fn hashed_inputs(&self) -> &[HashedInput] {
        &self.inputs
    }
}

/// Replays `workload` on `machine` and returns the report.
///
/// # Errors
///
/// Fails in the same cases as [`Job::replay_on`].
pub fn replay_workload(
    workload: &Workload,
    machine: &Machine,
    options: &ReplayOptions,
) -> Result<Report, ReplayError> {
    let prepared = CompiledReplay::new(workload, machine, options)?;
    report::replay_to_report(&prepared, ()).map(|(report, ())| report)
}
