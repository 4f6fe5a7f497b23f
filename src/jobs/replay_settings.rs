//! Declares each option of a replay in one place: its key, words, help and effect.
//!
//! The command line converts [`REPLAY_OPTIONS`] to flags, archives store the words of options, and studies use the keys
//! of options. All three therefore accept the same options and parse them in the same way.

use super::{CustomCollectiveAlgorithmFiles, JobLoadOptions, load_custom_algorithms};
use chakram_base::config::{ConfigLiteral, STANDARD_INPUT, TomlEditError, replace_toml_values};
use chakram_base::setting::SettingKey;
use chakram_engine::{
    CollectiveCurvesOrAlgorithms, CommunicationDurationSource, HostLaunchMode, ReplayOptions,
    UnusableOptionReason,
};
use chakram_hardware::compute::{
    RooflinePeakFraction, parse_efficiency, parse_host_duration_source, parse_kernel_duration_model,
};
use chakram_hardware::machine::{
    Machine, MachineError, find_machine_text, is_inline_notation_without_rates,
};
use chakram_hardware::network::NetworkModelKind;
use chakram_report::summary::HashedInput;
use chakram_trace::format::file::TraceHashVerificationLevel;
use chakram_trace::format::{CollectiveKind, TraceError};
use chakram_trace::graph::{EnforcedDependencyKinds, ProfilerOverheadRemovalPolicy};
use chakram_trace::workload::MissingRankPolicy;
use std::fmt;

mod words;

use words::{
    choice_words_and_summaries, parse_choice, parse_custom_algorithm_prefix, parse_each_word,
    parse_flag, parse_machine_value_change, parse_rank_count, parse_rank_delay,
    parse_recorded_kernel_duration_source, parse_single_word, parse_slow_rank, parse_step_number,
    parse_text,
};
pub use words::{parse_edit_or_edits_file, parse_npus};

/// An option of a replay: a key in studies, and a flag on the command line.
#[derive(Debug)]
pub struct ReplayOptionDefinition {
    /// Key of the option, which is also its flag on the command line.
    pub key: SettingKey,
    /// Placeholder for the value in the help text; empty for switches.
    pub value: &'static str,
    /// Help text. Braces mark the keys of other options.
    pub help: &'static str,
    /// Word that selects the default value. Empty if there is no default.
    pub default: &'static str,
    /// True if the short help (`-h`) omits the option.
    pub is_rare: bool,
    /// Words that the option accepts.
    pub syntax: ReplayOptionValueKind,
    /// Options that contradict this one.
    pub excludes: &'static [SettingKey],
    /// True if the option affects only how results are computed, not the results.
    pub is_exact: bool,
    set: fn(&mut ReplaySettings, &[String]) -> Result<(), String>,
}

/// Words that an option accepts.
#[derive(Clone, Copy, Debug)]
pub enum ReplayOptionValueKind {
    /// No words: the option is on if it is present.
    Switch,
    /// A single word, without restrictions.
    Word,
    /// One of a few words, each with its meaning.
    Choice(fn() -> Vec<(&'static str, &'static str)>),
    /// Several texts.
    List,
}

use ReplayOptionValueKind::{Choice, List, Switch, Word};

impl ReplayOptionDefinition {
    const BASE: Self = Self {
        key: SettingKey::Compute,
        value: "",
        help: "",
        default: "",
        is_rare: true,
        syntax: Word,
        excludes: &[],
        is_exact: false,
        set: |_, _| Ok(()),
    };

    /// Returns the option `key`, or `None` if it is not an option of replays.
    pub fn find_by_key(key: SettingKey) -> Option<&'static Self> {
        REPLAY_OPTIONS.iter().find(|option| option.key == key)
    }

    /// Returns the option that has this key in studies.
    pub fn find_by_study_key(key: &str) -> Option<&'static Self> {
        let mut all = REPLAY_OPTIONS.iter();
        all.find(|option| option.key.display_key_in_files().to_string() == key)
    }

    /// Checks the words of this option, without regard to other options.
    ///
    /// # Errors
    ///
    /// Fails with a description of the expected words.
    pub fn check_words(&self, words: &[String]) -> Result<(), String> {
        (self.set)(&mut ReplaySettings::default(), words)
    }

    /// Returns true if `words` turn off a switch, which then has no effect.
    fn is_switched_off(&self, words: &[String]) -> bool {
        matches!(self.syntax, Switch) && matches!(words, [word] if word == "false")
    }
}

/// Every option, in the order of help: options of the timing model, then options of traces.
pub static REPLAY_OPTIONS: &[ReplayOptionDefinition] = &[
    ReplayOptionDefinition {
        key: SettingKey::Compute,
        value: "MODEL",
        help: "Compute model: recorded (without a recording: curves, else roofline), scaled:F (recorded times F), curves \
               (measured, by class and shape), roofline (by FLOPs and bytes) or loopnest:gemmini-16",
        default: "recorded",
        is_rare: false,
        set: |to, words| {
            parse_single_word(words, parse_kernel_duration_model)
                .map(|model| to.replay.compute = model)
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::RecordedOn,
        value: "MACHINE",
        help: "Machine on which the kernels were recorded, or capture for the devices named in the capture; scales \
               recorded times by the ratio of the machines' rooflines",
        excludes: &[SettingKey::Compute, SettingKey::Efficiency],
        set: |to, words| {
            to.replay.compute = parse_single_word(words, parse_recorded_kernel_duration_source)?;
            to.recorded_on = words.first().cloned();
            Ok(())
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Efficiency,
        value: "FRACTION",
        help: "Fraction of the peak rates that roofline kernels reach, up to 1",
        is_rare: false,
        set: |to, words| {
            parse_single_word(words, parse_efficiency).map(|part| to.efficiency = Some(part))
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Host,
        value: "MODEL",
        help: "Host timing: recorded, or scaled:F (recorded times F; below 1 is a faster host)",
        default: "recorded",
        set: |to, words| {
            parse_single_word(words, parse_host_duration_source).map(|host| to.replay.host = host)
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Launch,
        value: "HOW",
        help: "How the machine's host launches kernels, collectives and messages, for traces without host work; by \
               default eager if kernel times come from curves, else none",
        syntax: Choice(choice_words_and_summaries::<HostLaunchMode>),
        set: |to, words| parse_choice(words).map(|launch| to.replay.launch = launch),
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Collectives,
        value: "HOW",
        help: "How to time uncontended collectives; by default curves if kernels use curves",
        syntax: Choice(choice_words_and_summaries::<CollectiveCurvesOrAlgorithms>),
        set: |to, words| parse_choice(words).map(|how| to.replay.collectives = Some(how)),
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Comm,
        value: "TIMING",
        help: "How to time collectives and messages",
        default: "model",
        is_rare: false,
        syntax: Choice(choice_words_and_summaries::<CommunicationDurationSource>),
        set: |to, words| parse_choice(words).map(|comm| to.replay.comm = comm),
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Network,
        value: "MODEL",
        help: "Network contention model; by default the machine's own",
        is_rare: false,
        syntax: Choice(choice_words_and_summaries::<NetworkModelKind>),
        set: |to, words| parse_choice(words).map(|network| to.replay.network = Some(network)),
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Bandwidth,
        value: "RATES",
        help: "Bandwidth of an NPU into each dimension of {machine} 'Ring(4)_Switch(2)': 250GB/s,50GB/s, or one for all",
        set: |to, words| {
            parse_single_word(words, parse_text).map(|rates| to.bandwidth = Some(rates))
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Latency,
        value: "TIMES",
        help: "Latency of a link in each dimension of {machine} 'Ring(4)_Switch(2)': 500ns,1us, or one for all",
        set: |to, words| parse_single_word(words, parse_text).map(|times| to.latency = Some(times)),
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Map,
        value: "NPUS",
        help: "NPUs of ranks 0, 1, …, such as 0-3,8-11; by default rank r runs on NPU r",
        set: |to, words| {
            parse_single_word(words, parse_npus).map(|npus| to.replay.map = Some(npus))
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::FillDomains,
        help: "Place ranks on all NPUs of each rack, even if the machine's jobs leave some free",
        syntax: Switch,
        excludes: &[SettingKey::Map],
        set: |to, words| parse_single_word(words, parse_flag).map(|fill| to.fill_domains = fill),
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Stepwise,
        help: "Simulate every collective message by message, even if the analytical result is exact",
        syntax: Switch,
        is_exact: true,
        set: |to, words| {
            parse_single_word(words, parse_flag).map(|stepwise| to.replay.stepwise = stepwise)
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Aggregate,
        help: "Simulate one rank in place of several, as long as they do the same at the same time; fewer events, \
               same result",
        syntax: Switch,
        is_exact: true,
        set: |to, words| {
            parse_single_word(words, parse_flag).map(|aggregate| to.replay.aggregate = aggregate)
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::LowerBound,
        help: "Give communication without size and recorded duration no time, instead of rejecting it",
        syntax: Switch,
        set: |to, words| {
            parse_single_word(words, parse_flag).map(|bound| to.replay.lower_bound = bound)
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Custom,
        value: "KIND=PREFIX",
        help: "Custom algorithm for a kind of collective, from files PREFIX.0.et, …, one per member: all-reduce=ring8; \
               repeatable",
        syntax: List,
        set: |to, words| {
            parse_each_word(words, parse_custom_algorithm_prefix).map(|custom| to.custom = custom)
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Set,
        value: "machine.KEY=VALUE",
        help: "Change the value of a key in the machine file: machine.dimension.nvlink.bandwidth=900GB/s; repeatable",
        syntax: List,
        set: |to, words| {
            parse_each_word(words, parse_machine_value_change)
                .map(|values| to.machine_values = values)
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Kernel,
        value: "PATTERN=TIME",
        help: "Change the time of kernels: '*flash*=0.5' (names), class:gemm=0.9, 'shape:gemm*k=4096=12us', \
               'module:*mlp*=0.8' or op:aten::mm=2; a number is a factor; repeatable",
        syntax: List,
        set: |to, words| {
            parse_each_word(words, str::parse).map(|kernels| to.replay.changes.kernels = kernels)
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Collective,
        value: "PATTERN=TIME",
        help: "Change the uncontended time of collectives by kind or name: all-reduce=0.5 or '*grad*=2ms'; a number is a \
               factor; repeatable",
        syntax: List,
        set: |to, words| {
            parse_each_word(words, str::parse)
                .map(|collectives| to.replay.changes.collectives = collectives)
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Slow,
        value: "RANK=FACTOR",
        help: "Multiply the time of a rank's kernels by a factor: 3=1.2; repeatable",
        syntax: List,
        set: |to, words| {
            parse_each_word(words, parse_slow_rank).map(|slow| to.replay.changes.slow = slow)
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Jitter,
        value: "SPREAD",
        help: "Change each kernel's time at random by up to this spread, uniformly in both directions: 5% or 5%,seed=7",
        set: |to, words| {
            parse_single_word(words, str::parse)
                .map(|jitter| to.replay.changes.jitter = Some(jitter))
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Fail,
        value: "PART@TIME",
        help: "Make an NPU fail (3@2ms), which deadlocks its job, or a link (0-1@500us), which messages avoid; repeatable",
        syntax: List,
        set: |to, words| {
            parse_each_word(words, str::parse).map(|failures| to.replay.failures = failures)
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::NoVerify,
        help: "Accept traces that differ from their job's file, PREFIX.job.json",
        syntax: Switch,
        set: |to, words| {
            to.job.verify = match parse_single_word(words, parse_flag)? {
                true => TraceHashVerificationLevel::Nothing,
                false => TraceHashVerificationLevel::default(),
            };
            Ok(())
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Groups,
        value: "FILE",
        help: "Process groups as JSON, replacing the job's: {\"1\": [0, 1], …}",
        is_rare: false,
        set: |to, words| {
            parse_single_word(words, parse_text).map(|path| to.job.groups = Some(path.into()))
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Dependencies,
        value: "WHICH",
        help: "Which dependencies to enforce",
        default: "auto",
        syntax: Choice(choice_words_and_summaries::<EnforcedDependencyKinds>),
        set: |to, words| parse_choice(words).map(|which| to.job.dependencies = which),
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::MissingRanks,
        value: "WHAT",
        help: "Action for ranks without a trace",
        default: "refuse",
        is_rare: false,
        syntax: Choice(choice_words_and_summaries::<MissingRankPolicy>),
        set: |to, words| parse_choice(words).map(|what| to.job.absent = what),
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Ranks,
        value: "N",
        help: "Number of ranks of the job, if more than the traces show; by default all NPUs with {missing_ranks} mirror",
        set: |to, words| {
            parse_single_word(words, parse_rank_count).map(|ranks| to.job.ranks = Some(ranks))
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Without,
        value: "WHAT",
        help: "Part of a captured job to leave out; by default the profiler, if the capture has steps without it",
        syntax: Choice(choice_words_and_summaries::<ProfilerOverheadRemovalPolicy>),
        set: |to, words| parse_choice(words).map(|what| to.profiler = Some(what)),
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Step,
        value: "N",
        help: "Use only this profiled step, like `chakram slice`",
        set: |to, words| {
            parse_single_word(words, parse_step_number).map(|step| to.job.step = Some(step))
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Delays,
        value: "RANK=TIME",
        help: "Start a rank late, to find the ranks that wait for a straggler: 3=10ms; repeatable",
        syntax: List,
        set: |to, words| {
            parse_each_word(words, parse_rank_delay).map(|delays| to.job.delays = delays)
        },
        ..ReplayOptionDefinition::BASE
    },
    ReplayOptionDefinition {
        key: SettingKey::Edits,
        value: "EDIT",
        help: "Change the job first: batch=2x, layers=+4, … (`chakram help edit`), or a file of `edits`; repeatable",
        syntax: List,
        set: |to, words| {
            let edits = parse_each_word(words, parse_edit_or_edits_file)?;
            to.job.edits = edits.into_iter().flatten().collect();
            Ok(())
        },
        ..ReplayOptionDefinition::BASE
    },
];

/// Reason why the machine values in the options do not fit a machine's text.
#[derive(Debug, thiserror::Error)]
pub enum MachineValuesError {
    /// A value in the machine's text cannot be changed.
    #[error(transparent)]
    Edit(#[from] TomlEditError),
    /// The machine is invalid with the changed values.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

/// Parsed options of a replay.
#[derive(Clone, Debug, Default)]
pub struct ReplaySettings {
    job: JobLoadOptions,
    replay: ReplayOptions,
    profiler: Option<ProfilerOverheadRemovalPolicy>,
    bandwidth: Option<String>,
    latency: Option<String>,
    machine_values: Vec<MachineValueChange>,
    /// The machine on which the kernels' durations were recorded.
    pub recorded_on: Option<String>,
    /// Fraction of the peak rates that kernels reach when the roofline model times them.
    pub efficiency: Option<RooflinePeakFraction>,
    /// True if ranks occupy all NPUs of each rack.
    pub fill_domains: bool,
    /// Custom algorithms of collectives.
    pub custom: Vec<CustomCollectiveAlgorithmFiles>,
}

/// A change of a value in a machine file.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineValueChange {
    /// Path of the value in the file.
    pub path: String,
    /// The new value.
    pub value: ConfigLiteral,
}

/// Reason why given options are rejected.
#[derive(Debug, thiserror::Error)]
pub enum ReplaySettingsError {
    /// An option has an invalid value.
    Value {
        /// Option that rejects the value.
        key: SettingKey,
        /// The value as the user wrote it.
        value: String,
        /// Description of the values that the option accepts.
        why: String,
    },
    /// Two options contradict each other.
    Beside(SettingKey, SettingKey),
    /// Two custom algorithms are given for the same kind of collective.
    CustomTwice(CollectiveKind),
    /// The user states rates that the machine file already sets.
    OwnRates(String),
    /// The user states only a bandwidth or only a latency, but both are needed.
    RateMissing {
        /// The option that was given.
        given: SettingKey,
        /// The option that is missing.
        missing: SettingKey,
    },
    /// An option would have no effect.
    Option(#[from] UnusableOptionReason),
    /// A file cannot be read.
    File(#[from] TraceError),
}

impl ReplaySettingsError {
    /// Returns the rejected option.
    pub fn key_of_rejected_option(&self) -> SettingKey {
        match self {
            Self::Value { key, .. } | Self::Beside(key, _) => *key,
            Self::CustomTwice(_) | Self::File(_) => SettingKey::Custom,
            Self::OwnRates(_) => SettingKey::Bandwidth,
            Self::RateMissing { given, .. } => *given,
            Self::Option(refusal) => refusal.rejected_key(),
        }
    }
}

/// Formats the error. Options appear as flags or, with `{:#}`, by their keys in files.
impl fmt::Display for ReplaySettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_files = f.alternate();
        let name = |key: &SettingKey| match in_files {
            true => format!("`{}`", key.display_key_in_files()),
            false => key.to_string(),
        };
        match self {
            Self::Value { key, value, why } => write!(f, "{} is {value}: {why}", name(key)),
            Self::Beside(one, other) => write!(
                f,
                "{} cannot be given together with {}\n  try: one of the two",
                name(one),
                name(other)
            ),
            Self::CustomTwice(kind) => write!(
                f,
                "{} {kind}=… is given twice\n  try: one algorithm for {kind}",
                name(&SettingKey::Custom)
            ),
            Self::OwnRates(machine) => write!(
                f,
                "{} and {} need a machine given by its dimensions, but {machine} has its own dimensions\n  \
                 try: {} 'Ring(4)_Switch(2)', or a copy of `chakram machine show {machine}`",
                name(&SettingKey::Bandwidth),
                name(&SettingKey::Latency),
                name(&SettingKey::Machine)
            ),
            Self::RateMissing { given, missing } => {
                write!(f, "{} needs {}", name(given), name(missing))
            }
            Self::Option(refusal) if in_files => write!(f, "{refusal:#}"),
            Self::Option(refusal) => write!(f, "{refusal}"),
            Self::File(error) => write!(f, "{error}"),
        }
    }
}

/// Returns true if no preset has this name, and no file with this name can be read.
fn names_no_machine(name: &str) -> bool {
    // Standard input can be read only once.
    name != STANDARD_INPUT && find_machine_text(name).is_err()
}

impl ReplaySettings {
    /// Parses options from their words; the order of options does not matter.
    ///
    /// # Errors
    ///
    /// Fails if an option's value is invalid, or if options contradict each other.
    pub fn parse_settings<'w>(
        given: impl IntoIterator<Item = (SettingKey, &'w [String])>,
    ) -> Result<Self, ReplaySettingsError> {
        let given: Vec<_> = given.into_iter().collect();
        let mut settings = Self::default();
        let words_of = |option: &ReplayOptionDefinition| {
            let found = given.iter().find(|(key, _)| *key == option.key);
            found.map(|(_, words)| *words)
        };
        let is_given = |key| {
            let option = ReplayOptionDefinition::find_by_key(key);
            option.is_some_and(|option| {
                words_of(option).is_some_and(|words| !option.is_switched_off(words))
            })
        };
        for option in REPLAY_OPTIONS {
            let Some(words) = words_of(option) else {
                continue;
            };
            (option.set)(&mut settings, words).map_err(|why| ReplaySettingsError::Value {
                key: option.key,
                value: words.join(" "),
                why,
            })?;
            let other = option.excludes.iter().find(|other| is_given(**other));
            if let (Some(other), false) = (other, option.is_switched_off(words)) {
                return Err(ReplaySettingsError::Beside(option.key, *other));
            }
        }
        settings.replay.missing_ranks = settings.job.absent;
        Ok(settings)
    }

    /// Returns the options of the replay, except options that need files.
    /// [`Self::options_with_efficiency_without_files`] also applies the efficiency.
    pub fn options_without_files_and_efficiency(&self) -> &ReplayOptions {
        &self.replay
    }

    /// Returns the options for loading the traces. A mirrored job of unknown size gets one rank per NPU of the machine
    /// (`npus`).
    pub fn job_load_options(&self, npus: u32) -> JobLoadOptions {
        // A replay with recorded communication must reproduce the capture unchanged, including the
        // profiler's cost.
        let default = match self.replay.comm {
            CommunicationDurationSource::Captured => ProfilerOverheadRemovalPolicy::Keep,
            _ => ProfilerOverheadRemovalPolicy::default(),
        };
        JobLoadOptions {
            mirrored: npus,
            profiler: self.profiler.unwrap_or(default),
            ..self.job.clone()
        }
    }

    /// Returns the replay's options, except options that need files.
    ///
    /// # Errors
    ///
    /// Fails if options contradict each other.
    pub fn options_with_efficiency_without_files(
        &self,
    ) -> Result<ReplayOptions, ReplaySettingsError> {
        for (i, custom) in self.custom.iter().enumerate() {
            if self.custom[..i].iter().any(|one| one.kind == custom.kind) {
                return Err(ReplaySettingsError::CustomTwice(custom.kind));
            }
        }
        let mut options = self.replay.clone();
        if let Some(efficiency) = self.efficiency {
            options.set_roofline_efficiency(efficiency)?;
        }
        Ok(options)
    }

    /// Returns the options of the replay. If hashes are requested, adds the files that the options name to
    /// `inputs`.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`Self::options_with_efficiency_without_files`], and if a file cannot be read.
    pub fn replay_options(
        &self,
        inputs: Option<&mut Vec<HashedInput>>,
    ) -> Result<ReplayOptions, ReplaySettingsError> {
        let options = self.options_with_efficiency_without_files()?;
        Ok(ReplayOptions {
            custom: load_custom_algorithms(&self.custom, inputs)?,
            ..options
        })
    }

    /// Returns the full name of the machine `name`. If it is a list of dimensions, adds the user's rates.
    ///
    /// # Errors
    ///
    /// Fails if the user states rates that the machine file already sets. A machine that does not exist keeps its name,
    /// so that loading it fails. Also fails if the user states a bandwidth
    /// without a latency, or a latency without a bandwidth.
    pub fn machine_name_with_rates(&self, name: &str) -> Result<String, ReplaySettingsError> {
        let missing = |given, missing| Err(ReplaySettingsError::RateMissing { given, missing });
        match (&self.bandwidth, &self.latency) {
            (None, None) => Ok(name.to_owned()),
            // The error about a missing machine or file arises where the machine is loaded.
            _ if !is_inline_notation_without_rates(name) && names_no_machine(name) => {
                Ok(name.to_owned())
            }
            _ if !is_inline_notation_without_rates(name) => {
                Err(ReplaySettingsError::OwnRates(name.to_owned()))
            }
            (Some(bandwidth), Some(latency)) => Ok(format!("{name}:{bandwidth}:{latency}")),
            (Some(_), None) => missing(SettingKey::Bandwidth, SettingKey::Latency),
            (None, Some(_)) => missing(SettingKey::Latency, SettingKey::Bandwidth),
        }
    }

    /// Returns the changes that the options request in the machine file.
    pub fn machine_value_changes(&self) -> &[MachineValueChange] {
        &self.machine_values
    }

    /// Returns the machine's `text` with the requested changes of values. Error messages call the text `file`.
    ///
    /// # Errors
    ///
    /// Fails if the text is not TOML, or if it has no value at a given path.
    pub fn apply_value_changes_to_machine_text(
        &self,
        text: &str,
        file: &str,
    ) -> Result<String, TomlEditError> {
        let values = self.machine_values.iter();
        let values: Vec<_> = values.map(|set| (&*set.path, &set.value)).collect();
        replace_toml_values(text, file, &values)
    }

    /// Parses the machine in `text`, with the requested changes of values. Error messages call the text `file`.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`Self::apply_value_changes_to_machine_text`], and if a value is invalid.
    pub fn parse_machine_text_with_changed_values(
        &self,
        text: &str,
        file: &str,
    ) -> Result<Machine, MachineValuesError> {
        let original = Machine::parse(text, file)?;
        if self.machine_values.is_empty() {
            return Ok(original);
        }
        let edited = self.apply_value_changes_to_machine_text(text, file)?;
        Ok(Machine::parse_edited_text_of_machine(
            &edited, file, &original,
        )?)
    }

    /// Returns the machine. If the options request it, jobs on the returned machine occupy all NPUs of each rack.
    ///
    /// # Errors
    ///
    /// Fails if jobs on `machine` already occupy all NPUs of each rack.
    pub fn fill_all_racks_if_requested(
        &self,
        machine: Machine,
    ) -> Result<Machine, UnusableOptionReason> {
        match (self.fill_domains, machine.dimension_with_npu_limit()) {
            (false, _) => Ok(machine),
            (true, Some(_)) => Ok(machine.with_all_npus_used()),
            (true, None) => Err(UnusableOptionReason::NoFreeNpus {
                machine: machine.name().to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_base::ids::Npu;
    use chakram_hardware::compute::KernelDurationSource;

    fn parse_setting_words(
        given: &[(SettingKey, &str)],
    ) -> Result<ReplaySettings, ReplaySettingsError> {
        let words: Vec<_> = given
            .iter()
            .map(|(key, word)| (*key, vec![(*word).to_owned()]))
            .collect();
        ReplaySettings::parse_settings(words.iter().map(|(key, words)| (*key, &words[..])))
    }

    #[test]
    fn options_are_read_in_any_order_and_words_in_files_and_flags() {
        let settings = parse_setting_words(&[
            (SettingKey::Network, "contention-free"),
            (SettingKey::Efficiency, "0.5"),
            (SettingKey::Compute, "roofline"),
            (SettingKey::Map, "1-2,7"),
        ]);
        let options = settings.unwrap().replay_options(None).unwrap();
        let half = RooflinePeakFraction::new(0.5).unwrap();
        assert_eq!(options.compute, KernelDurationSource::Roofline(half));
        assert_eq!(options.map, Some(vec![Npu(1), Npu(2), Npu(7)]));
        assert_eq!(options.network, Some(NetworkModelKind::ContentionFree));
        let keys = REPLAY_OPTIONS
            .iter()
            .map(|option| option.key.display_key_in_files());
        let mut keys: Vec<String> = keys.map(|key| key.to_string()).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), REPLAY_OPTIONS.len(), "each option stands once");
    }

    #[test]
    fn what_contradicts_itself_is_refused_by_key() {
        let said = |given| format!("{:#}", parse_setting_words(given).unwrap_err());
        let both = [
            (SettingKey::RecordedOn, "dgx-h100"),
            (SettingKey::Efficiency, "0.5"),
        ];
        assert!(
            said(&both).starts_with("`recorded_on` cannot be given together with `efficiency`"),
            "{}",
            said(&both)
        );
        let filled = [(SettingKey::FillDomains, "true"), (SettingKey::Map, "0")];
        assert!(said(&filled).starts_with("`fill_domains` cannot be given together with `map`"));
        // A switch with the value false is equivalent to an omitted switch.
        let off = [(SettingKey::FillDomains, "false"), (SettingKey::Map, "0")];
        assert!(parse_setting_words(&off).is_ok());
        let wrong = said(&[(SettingKey::Comm, "recordd")]);
        assert!(wrong.ends_with("did you mean `recorded`?"), "{wrong}");
    }

    #[test]
    fn replays_as_captured_keep_the_profiler_unless_told() {
        let of = |given| {
            parse_setting_words(given)
                .unwrap()
                .job_load_options(4)
                .profiler
        };
        assert_eq!(
            of(&[(SettingKey::Comm, "captured")]),
            ProfilerOverheadRemovalPolicy::Keep
        );
        let told = [
            (SettingKey::Comm, "captured"),
            (SettingKey::Without, "profiler"),
        ];
        assert_eq!(of(&told), ProfilerOverheadRemovalPolicy::Remove);
        assert_eq!(of(&[]), ProfilerOverheadRemovalPolicy::default());
    }
}
