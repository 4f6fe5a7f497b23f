//! Reads the inputs of a run and checks that they are consistent.

use super::program::MemberQueueDirectionAndTree;
use super::{
    AnalyticalCongestionModel, AstraNetworkFile, AstraSystemFile, CommGroupFile, InputError,
    MisleadingValidInputNote, PerCollectiveKind, PerNodeCustomAlgorithmPaths, Quirk, QuirkSet,
    RemoteMemoryFile, RemoteMemorySharing, logging,
};
use chakram_base::setting::SettingKey;
use std::collections::BTreeSet;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

/// Command-line flags of ASTRA-sim. All scales are finite and not negative.
#[derive(Clone, Debug, PartialEq)]
pub struct AstraFlags {
    /// Network model that carries messages.
    pub model: AnalyticalCongestionModel,
    /// Prefix of the traces `PREFIX.RANK.et`.
    pub workload: PathBuf,
    /// File of groups. A name that contains `empty` means that there are no groups.
    pub groups: PathBuf,
    /// System file.
    pub system: PathBuf,
    /// File of the remote memory.
    pub memory: PathBuf,
    /// Network file.
    pub network: PathBuf,
    /// Logging configuration file; not read if it is called `empty`.
    pub logging: PathBuf,
    /// Folder for logs, or `None` if the command line does not set one.
    pub logging_folder: Option<PathBuf>,
    /// Number of queues in each dimension.
    pub queues: NonZeroU32,
    /// ASTRA-sim's scale of compute times. The flag is accepted without effect; a value other than 1 causes a note.
    pub compute_scale: f64,
    /// ASTRA-sim's scale of communication. The flag is accepted without effect; a value other than 1 causes a note.
    pub comm_scale: f64,
    /// Factor that multiplies the endpoint delay; applies only if the system file states a delay.
    pub injection_scale: f64,
    /// True if a handshake precedes every message.
    pub rendezvous: bool,
    /// True if unknown keys cause notes instead of errors.
    pub lenient: bool,
    /// True if the run writes a log in ASTRA-sim's format.
    pub logs: bool,
    /// Quirks that are on in this run.
    pub quirks: QuirkSet,
}

impl AstraFlags {
    /// Creates flags that name these files and otherwise have ASTRA-sim's defaults: no groups, the congestion-unaware
    /// network, and all quirks.
    pub fn new(workload: PathBuf, system: PathBuf, network: PathBuf, memory: PathBuf) -> Self {
        Self {
            model: AnalyticalCongestionModel::Unaware,
            workload,
            groups: PathBuf::from("empty"),
            system,
            memory,
            network,
            logging: PathBuf::from("empty"),
            logging_folder: None,
            queues: NonZeroU32::MIN,
            compute_scale: 1.0,
            comm_scale: 1.0,
            injection_scale: 1.0,
            rendezvous: false,
            lenient: false,
            logs: false,
            quirks: QuirkSet::ALL,
        }
    }
}

/// The inputs of a run, except the traces.
#[derive(Clone, Debug, PartialEq)]
pub struct AstraInputs {
    /// Network model that carries messages.
    pub model: AnalyticalCongestionModel,
    /// Prefix of the traces `PREFIX.RANK.et`.
    pub workload: PathBuf,
    /// Contents of the system file.
    pub system: AstraSystemFile,
    /// Contents of the network file.
    pub network: AstraNetworkFile,
    /// The remote memory; `None` if the machine has none.
    pub memory: Option<RemoteMemoryFile>,
    /// Communicator groups, whose members are NPUs of the network.
    pub groups: CommGroupFile,
    /// Custom algorithms for single nodes.
    pub per_node: PerNodeCustomAlgorithmPaths,
    /// Number of queues in each dimension.
    pub queues: NonZeroU32,
    /// Scaled endpoint delay before each message sent and after each message received, in ns.
    pub endpoint_delay: u64,
    /// True if a handshake precedes every message.
    pub rendezvous: bool,
    /// Quirks that are on in this run.
    pub quirks: QuirkSet,
    /// Notes about all inputs, in reading order.
    pub notes: Vec<MisleadingValidInputNote>,
}

/// Function that returns a file's text, given the file's role and path.
pub type TextLoader<'r> = dyn FnMut(&'static str, &Path) -> io::Result<String> + 'r;

impl AstraInputs {
    /// Reads all files that `flags` name, through `read`.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read, is invalid, or contradicts another file.
    pub fn read_files(flags: &AstraFlags, read: &mut TextLoader<'_>) -> Result<Self, InputError> {
        let mut notes = notes_on_ineffective_flags(flags);
        let mut text = |role: &'static str, path: &Path| {
            let file = path.display().to_string();
            let error = |source| InputError::Read {
                role,
                file: path.display().to_string(),
                source,
            };
            Ok::<_, InputError>((read(role, path).map_err(error)?, file))
        };
        let lenient = flags.lenient;
        let (system, found) = {
            let (text, file) = text("system", &flags.system)?;
            AstraSystemFile::parse(&text, &file, lenient)?
        };
        notes.extend(found);
        if flags.injection_scale != 1.0 && system.endpoint_delay.is_none() {
            let why = "has no effect: the system file states no endpoint delay";
            notes.push(MisleadingValidInputNote::about_flag(
                "--injection-scale",
                why,
            ));
        }
        let (network, found) = {
            let (text, file) = text("network", &flags.network)?;
            AstraNetworkFile::parse(&text, &file, lenient)?
        };
        notes.extend(found);
        let (memory, found) = {
            let (text, file) = text("memory", &flags.memory)?;
            RemoteMemoryFile::parse(&text, &file, lenient)?
        };
        notes.extend(found);
        let (groups, found) = if CommGroupFile::means_no_groups(&flags.groups.to_string_lossy()) {
            Default::default()
        } else {
            let (text, file) = text("groups", &flags.groups)?;
            CommGroupFile::parse(&text, &file, lenient)?
        };
        notes.extend(found);
        let (per_node, found) = match &system.per_node_custom {
            None => Default::default(),
            Some(path) => {
                let (text, file) = text("per-node", path)?;
                PerNodeCustomAlgorithmPaths::parse(&text, &file, lenient)?
            }
        };
        notes.extend(found);
        if flags.logging != Path::new("empty") {
            let (text, file) = text("logging", &flags.logging)?;
            notes.push(logging::check_logging_file_and_note_no_effect(
                &text, &file,
            )?);
        }
        if flags.logs {
            notes.retain(|note| !["trace-enabled", "--logging-folder"].contains(&&note.key[..]));
        }
        let inputs = Self {
            model: flags.model,
            workload: flags.workload.clone(),
            endpoint_delay: system.scaled_endpoint_delay(flags.injection_scale),
            system,
            network,
            memory,
            groups,
            per_node,
            queues: flags.queues,
            rendezvous: flags.rendezvous,
            quirks: flags.quirks,
            notes,
        };
        inputs.check_consistency(flags)
    }

    /// Returns true if a scale reduces the system file's endpoint delay to 0.
    pub fn scales_endpoint_delay_to_zero(&self) -> bool {
        self.endpoint_delay == 0 && self.system.endpoint_delay.is_some_and(|delay| delay > 0)
    }

    /// Returns the distinct prefixes of custom algorithms' trace files.
    pub fn custom_algorithm_file_prefixes(&self) -> BTreeSet<&Path> {
        let PerCollectiveKind {
            all_reduce,
            all_gather,
            reduce_scatter,
            all_to_all,
        } = &self.system.custom;
        let kinds = [all_reduce, all_gather, reduce_scatter, all_to_all];
        let kinds = kinds.into_iter().flatten().map(PathBuf::as_path);
        kinds
            .chain(self.per_node.iter().map(|(_, path)| path))
            .collect()
    }

    /// Checks that the inputs are consistent with one another.
    fn check_consistency(mut self, flags: &AstraFlags) -> Result<Self, InputError> {
        let refuse = |file: &Path, key: &str, why: String| {
            Err(InputError::Disagreement {
                file: file.display().to_string(),
                key: key.to_owned(),
                why,
            })
        };
        let dimensions = self.network.dimensions.len();
        let one_only = self.model == AnalyticalCongestionModel::Aware
            && self.quirks.has_quirk(Quirk::StoreAndForward);
        if one_only && dimensions > 1 {
            let why = format!(
                "found {dimensions} dimensions, expected one, the limit of the congestion-aware \
                 network\n  try: {} unaware, or {} all,-store-and-forward",
                SettingKey::NetworkModel,
                SettingKey::Quirks
            );
            return refuse(&flags.network, "topology", why);
        }
        let kinds = &self.system.implementations;
        let kinds = [
            ("all-reduce-implementation", &kinds.all_reduce),
            ("all-gather-implementation", &kinds.all_gather),
            ("reduce-scatter-implementation", &kinds.reduce_scatter),
            ("all-to-all-implementation", &kinds.all_to_all),
        ];
        for (key, list) in kinds {
            let one = list.first().is_some_and(|first| first.one);
            if list.len() > dimensions {
                let why = format!(
                    "found {} names, expected one for each of the {dimensions} dimensions of {}",
                    list.len(),
                    flags.network.display()
                );
                return refuse(&flags.system, key, why);
            }
            let short = self.quirks.has_quirk(Quirk::ShortList) && list.len() < dimensions;
            if !list.is_empty() && !one && short {
                self.notes.push(MisleadingValidInputNote {
                    file: flags.system.display().to_string(),
                    line: None,
                    key: key.to_owned(),
                    why: format!(
                        "has {} of {dimensions} dimensions: collectives of this kind skip the others",
                        list.len()
                    ),
                });
            }
        }
        let npus = self.network.npu_count();
        for (id, members) in self.groups.iter() {
            if let Some(rank) = members.iter().find(|rank| **rank >= npus) {
                let why = format!(
                    "found rank {rank}, expected ranks below {npus}, the NPUs of {}",
                    flags.network.display()
                );
                return refuse(&flags.groups, &id.to_string(), why);
            }
        }
        if let Some(RemoteMemorySharing::PerNode {
            nodes,
            npus_per_node,
        }) = self.memory.map(|memory| memory.sharing)
            && u64::from(nodes) * u64::from(npus_per_node) < u64::from(npus)
        {
            let why = format!(
                "found {nodes} nodes of {npus_per_node} NPUs, expected room for the {npus} of {}",
                flags.network.display()
            );
            return refuse(&flags.memory, "num-nodes", why);
        }
        if flags.queues.get() > MemberQueueDirectionAndTree::QUEUES {
            let why = format!(
                "found {}, expected at most {}",
                flags.queues,
                MemberQueueDirectionAndTree::QUEUES
            );
            let file = Path::new(MisleadingValidInputNote::COMMAND_LINE);
            return refuse(file, "--num-queues-per-dim", why);
        }
        // ASTRA-sim stores this value as an `int`.
        if self.endpoint_delay > i32::MAX as u64 {
            let why = format!(
                "found {}, which makes the endpoint delay longer than {} ns",
                flags.injection_scale,
                i32::MAX
            );
            return refuse(
                Path::new(MisleadingValidInputNote::COMMAND_LINE),
                "--injection-scale",
                why,
            );
        }
        let blind = self.system.peak == 0.0 || self.system.local_memory_bandwidth.is_none();
        if self.system.roofline && blind {
            self.notes.push(MisleadingValidInputNote {
                file: flags.system.display().to_string(),
                line: None,
                key: "roofline-enabled".to_owned(),
                why:
                    "needs peak-perf and local-mem-bw above 0: otherwise compute nodes have no time"
                        .to_owned(),
            });
        }
        Ok(self)
    }
}

fn notes_on_ineffective_flags(flags: &AstraFlags) -> Vec<MisleadingValidInputNote> {
    let unused = "has no effect: the original reads the value but does not use it";
    let mut notes = Vec::new();
    for (flag, scale) in [
        ("--compute-scale", flags.compute_scale),
        ("--comm-scale", flags.comm_scale),
    ] {
        if scale != 1.0 {
            notes.push(MisleadingValidInputNote::about_flag(flag, unused));
        }
    }
    for quirk in flags.quirks.quirks_not_in_set() {
        if !quirk.applies_to_network_model(flags.model) {
            let why = format!("{quirk} does not apply to the {} network", flags.model);
            notes.push(MisleadingValidInputNote::about_flag(
                format!("{:#}", SettingKey::Quirks),
                &why,
            ));
        }
    }
    if flags.logging_folder.is_some() {
        let why = "has no effect: no log is written";
        notes.push(MisleadingValidInputNote::about_flag(
            "--logging-folder",
            why,
        ));
    }
    notes
}

#[cfg(test)]
mod tests;
