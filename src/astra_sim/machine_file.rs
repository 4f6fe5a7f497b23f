//! Translates ASTRA-sim's network, system and memory files to a machine file, with notes about keys that it cannot
//! translate.
//!
//! ASTRA-sim's own models of networks and collectives use the machine of [`super::machine`]. The machine file that this
//! module writes is for chakram's models instead. Its bandwidths are chosen so that chakram's models yield the same
//! times as ASTRA-sim's:
//!
//! | dimension | algorithm | ASTRA-sim: a message | machine: an NPU |
//! |---|---|---|---|
//! | switch | any | B | B |
//! | ring of more than two | ring, which sends half in each direction | B | B |
//! | ring of more than two | another, whose messages take one direction over half of the NPU's bandwidth | B | 2 B |
//! | fully connected, n NPUs | direct, n - 1 messages one after another | B | (n - 1) B |
//! | fully connected | another, one message at a time | B | B |

use super::document::{InputDocumentWithUniqueKnownKeys, ReadAndIgnoredKeys};
use super::{
    AlgorithmAndAllNpusAtOnceFlag, AllReduceDecomposition, AstraAlgorithm, AstraDimension,
    AstraNetworkFile, AstraSystemFile, InputError, MisleadingValidInputNote, Quirk,
    RemoteMemoryFile, RemoteMemorySharing, memory_file, network_file, system,
};
use chakram_base::config::ConfigLiteral;
use chakram_base::dtype::Dtype;
use chakram_hardware::collective::ChunkCountOrderAndOverlap;
use chakram_hardware::machine::Machine;
use chakram_hardware::topology::DimensionShape;

/// An input file: its text, and its name for messages.
#[derive(Clone, Copy, Debug)]
pub struct NamedInputText<'a> {
    /// Name of the file for messages.
    pub file: &'a str,
    /// Contents of the file.
    pub text: &'a str,
}

/// A machine file translated from ASTRA-sim's inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedMachineFile {
    /// Text of the machine file, which contains the notes as comments.
    pub text: String,
    /// Notes, one for each behaviour of ASTRA-sim that affects these inputs and that the machine does not reproduce.
    pub notes: Vec<MisleadingValidInputNote>,
}

/// Kinds of collectives with implementations. Each dimension takes its algorithm from the first kind that has one for
/// it.
const KINDS: [&str; 4] = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"];

/// Writes the machine file for a network. The system file and the remote memory file are optional. Keys that a machine
/// file cannot express become notes. The text is always a valid machine file.
///
/// # Errors
///
/// Fails if a parser rejects a file, or if a number in a file exceeds the limits of machine files.
pub fn machine_file(
    name: &str,
    network: NamedInputText<'_>,
    system: Option<NamedInputText<'_>>,
    memory: Option<NamedInputText<'_>>,
) -> Result<ImportedMachineFile, InputError> {
    let (dimensions, mut notes) = AstraNetworkFile::parse(network.text, network.file, false)?;
    let dimensions = dimensions.dimensions;
    let mut unsaid = AstraKeysWithoutMachineEquivalent::default();
    let mut parts = String::new();
    let mut collectives = String::new();
    let mut algorithms = vec![None; dimensions.len()];
    if let Some(system) = system {
        let (file, found) = AstraSystemFile::parse(system.text, system.file, false)?;
        notes.extend(found.into_iter().filter(|note| note.line.is_some()));
        algorithms = dimension_algorithms(&file, &dimensions, &mut unsaid);
        parts += &npu_table(&file, &mut unsaid);
        collectives = collectives_table(&file, &mut unsaid);
        add_notes_on_remaining_system_keys(&file, &dimensions, &mut unsaid);
        notes.extend(unsaid.convert_keys_to_input_notes(system, &system::KEYS, false)?);
        notes.push(note_on_unreproduced_quirks(&file, &dimensions, &algorithms));
    }
    for (index, dimension) in dimensions.iter().enumerate() {
        parts += &dimension_table(index, dimension, algorithms[index], &mut unsaid);
    }
    notes.extend(unsaid.convert_keys_to_input_notes(network, &network_file::KEYS, true)?);
    parts += &collectives;
    if let Some(memory) = memory {
        let (file, found) = RemoteMemoryFile::parse(memory.text, memory.file, false)?;
        notes.extend(found);
        parts += &format_remote_memory_table(file, &mut unsaid);
        notes.extend(unsaid.convert_keys_to_input_notes(memory, &memory_file::KEYS, false)?);
    }
    let files: Vec<_> = [Some(network), system, memory]
        .into_iter()
        .flatten()
        .map(|input| replace_line_breaks(input.file))
        .collect();
    let mut text = format!(
        "# By `chakram machine import` from ASTRA-sim's {}.\n# GB of the network file are of 2^30 bytes, others of 10^9. \
         Messages do not slow one another, as in the congestion-unaware network.\n",
        files.join(", ")
    );
    if system.is_none() {
        text += "# No system file: NPUs are unknown, algorithms and chunks are chosen for each collective.\n";
    }
    if !notes.is_empty() {
        text += "# ASTRA-sim does these, and this machine does not:\n";
    }
    for note in &notes {
        text += &format!("#   {}\n", replace_line_breaks(&note.to_string()));
    }
    let name = ConfigLiteral::Text(name.to_owned()).to_toml_text();
    text += &format!("name = {name}\n{parts}");
    match Machine::parse(&text, "the machine file") {
        Ok(_) => Ok(ImportedMachineFile { text, notes }),
        Err(error) => {
            let cause = std::error::Error::source(&error);
            Err(InputError::Disagreement {
                file: network.file.to_owned(),
                key: "topology".to_owned(),
                why: format!(
                    "no machine file can say these numbers: {}",
                    cause.map_or(error.to_string(), ToString::to_string)
                ),
            })
        }
    }
}

/// Replaces line breaks in `text`, because they would end a comment.
fn replace_line_breaks(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Keys that the machine file cannot express, each with its effect.
#[derive(Default)]
struct AstraKeysWithoutMachineEquivalent(Vec<(String, String)>);

impl AstraKeysWithoutMachineEquivalent {
    fn add_key(&mut self, key: &str, why: impl Into<String>) {
        self.0.push((key.to_owned(), why.into()));
    }

    /// Converts the keys to notes about `input`, with their lines.
    fn convert_keys_to_input_notes(
        &mut self,
        input: NamedInputText<'_>,
        keys: &ReadAndIgnoredKeys,
        yaml: bool,
    ) -> Result<Vec<MisleadingValidInputNote>, InputError> {
        let mut document = match yaml {
            true => {
                InputDocumentWithUniqueKnownKeys::parse_yaml(input.text, input.file, keys, true)?
            }
            false => InputDocumentWithUniqueKnownKeys::parse_json_keeping_last_duplicate_key(
                input.text, input.file, keys, true,
            )?,
        };
        let unsaid = std::mem::take(&mut self.0);
        let count = unsaid.len();
        for (key, why) in unsaid {
            document.add_note(&key, why);
        }
        // Drop the parser's own notes, which come first, because the caller already has them.
        let mut notes = document.into_notes();
        Ok(notes.split_off(notes.len() - count))
    }
}

/// Returns each dimension's algorithm, from the first kind of collective that has one for it.
fn dimension_algorithms(
    system: &AstraSystemFile,
    dimensions: &[AstraDimension],
    unsaid: &mut AstraKeysWithoutMachineEquivalent,
) -> Vec<Option<AstraAlgorithm>> {
    let kinds = &system.implementations;
    let lists = [
        &kinds.all_reduce,
        &kinds.all_gather,
        &kinds.reduce_scatter,
        &kinds.all_to_all,
    ];
    let along = |list: &[AlgorithmAndAllNpusAtOnceFlag]| -> Vec<Option<AstraAlgorithm>> {
        let at = |index| list.get(index).or(list.last());
        (0..dimensions.len())
            .map(|index| Some(at(index)?.algorithm))
            .collect()
    };
    let Some(chosen) = lists.iter().position(|list| !list.is_empty()) else {
        return along(&[]);
    };
    let all = along(lists[chosen]);
    for (kind, list) in KINDS.iter().zip(lists) {
        let key = format!("{kind}-implementation");
        if list.first().is_some_and(|first| first.one) && dimensions.len() > 1 {
            unsaid.add_key(&key, "one algorithm over all NPUs as one dimension; a machine goes dimension by dimension");
        } else if !list.is_empty() && list.len() < dimensions.len() {
            unsaid.add_key(
                &key,
                "leaves out the dimensions behind its end; here the last name stands for them",
            );
        } else if !list.is_empty() && along(list) != all {
            unsaid.add_key(
                &key,
                format!(
                    "a dimension has one algorithm for all collectives, here that of {}",
                    KINDS[chosen]
                ),
            );
        }
        let windows = list
            .iter()
            .zip(dimensions)
            .any(|(one, dimension)| match one.algorithm {
                AstraAlgorithm::Direct { window } => {
                    window.is_some_and(|window| window < dimension.npus - 1)
                }
                _ => false,
            });
        let tree =
            |one: &AlgorithmAndAllNpusAtOnceFlag| one.algorithm == AstraAlgorithm::DoubleBinaryTree;
        if list.iter().any(tree) {
            unsaid.add_key(
                &key,
                "a doubleBinaryTree takes active-chunks-per-dimension chunks at once; here at least four for each level",
            );
        }
        if windows {
            unsaid.add_key(
                &key,
                "messages in flight are limited; here all are sent behind one another",
            );
        }
    }
    for (kind, custom) in KINDS.iter().zip([
        &system.custom.all_reduce,
        &system.custom.all_gather,
        &system.custom.reduce_scatter,
        &system.custom.all_to_all,
    ]) {
        if custom.is_some() {
            unsaid.add_key(
                &format!("{kind}-implementation-custom"),
                "custom algorithms are given to a replay, not to a machine",
            );
        }
    }
    if system.per_node_custom.is_some() {
        unsaid.add_key(
            "per-node-custom-implementation",
            "custom algorithms are given to a replay, not to a machine",
        );
    }
    all
}

/// Returns the table for the NPU class, or an empty string if the system file does not state the NPU's rates.
fn npu_table(system: &AstraSystemFile, unsaid: &mut AstraKeysWithoutMachineEquivalent) -> String {
    let bandwidth = system.local_memory_bandwidth;
    let peak = Some(system.peak).filter(|peak| *peak > 0.0);
    let (Some(bandwidth), Some(peak)) = (bandwidth, peak) else {
        for (key, known, other) in [
            ("local-mem-bw", bandwidth.is_some(), "peak-perf"),
            ("peak-perf", peak.is_some(), "local-mem-bw"),
        ] {
            if known {
                unsaid.add_key(
                    key,
                    format!("a class of NPUs needs {other} too, so NPUs are unknown here"),
                );
            }
        }
        return String::new();
    };
    let formats: Vec<_> = Dtype::ALL
        .iter()
        .map(|(_, name)| format!("{name} = \"{peak} TFLOP/s\""))
        .collect();
    format!(
        "\n# Capacity and latency of its memory are unknown.\n[npu.npu]\nmemory_bandwidth = \"{bandwidth} GB/s\"  # local-mem-bw\n\
         lanes = 32  # as many as GPUs have; ASTRA-sim runs one kernel at a time\nhost_lanes = 32\n\
         # peak-perf, which holds for kernels of every number format.\npeak = {{ {} }}\n",
        formats.join(", ")
    )
}

/// Returns the table for collectives, which states the number of chunks.
fn collectives_table(
    system: &AstraSystemFile,
    unsaid: &mut AstraKeysWithoutMachineEquivalent,
) -> String {
    let most = ChunkCountOrderAndOverlap::MOST_CHUNKS;
    for (key, count) in [
        ("preferred-dataset-splits", system.splits),
        ("active-chunks-per-dimension", system.active_chunks),
    ] {
        if count > most {
            unsaid.add_key(key, format!("is {count}; a machine has at most {most}"));
        }
    }
    format!(
        "\n[collectives]\nchunks = {}  # preferred-dataset-splits\nactive = {}  # active-chunks-per-dimension\n",
        system.splits.min(most),
        system.active_chunks.min(most)
    )
}

/// Adds notes about the system file's remaining keys.
fn add_notes_on_remaining_system_keys(
    system: &AstraSystemFile,
    dimensions: &[AstraDimension],
    unsaid: &mut AstraKeysWithoutMachineEquivalent,
) {
    let delay = system.scaled_endpoint_delay(1.0);
    if delay > 0 {
        let by_default = if system.endpoint_delay.is_none() {
            " by default"
        } else {
            ""
        };
        unsaid.add_key(
            "endpoint-delay",
            format!("{delay} ns{by_default} before each message and after each reception"),
        );
    }
    if system.local_memory_bandwidth.is_some() {
        unsaid.add_key("local-mem-bw", "all-reduce and reduce-scatter read and write what they reduce at this rate, three times the bytes of a message");
    }
    if system.optimization == AllReduceDecomposition::Baseline && dimensions.len() > 1 {
        unsaid.add_key("collective-optimization", "an all-reduce of the whole buffer in every dimension; here outer dimensions carry what inner ones scattered");
    }
    unsaid.add_key(
        "scheduling-policy",
        "collectives of an NPU follow one another; here they overlap as the lanes of a trace do",
    );
    for (is_on, key, why) in [
        (
            system.roofline,
            "roofline-enabled",
            "how kernels are priced is said to a replay: by roofline",
        ),
        (
            system.replay_only,
            "replay-only",
            "that everything lasts as recorded is said to a replay",
        ),
        (
            system.trace,
            "trace-enabled",
            "what is written is said to a replay: a timeline",
        ),
        (
            system.track_memory,
            "track-local-mem",
            "what is written is said to a replay",
        ),
    ] {
        if is_on {
            unsaid.add_key(key, why);
        }
    }
    if system.shared_bus.is_some() {
        unsaid.add_key("model-shared-bus", "a bus with L, o, g, G and local-reduction-delay between NPU and memory takes the place of the endpoint delay");
    }
}

/// Returns the note about quirks that may change the results but that the machine does not reproduce.
fn note_on_unreproduced_quirks(
    system: &AstraSystemFile,
    dimensions: &[AstraDimension],
    algorithms: &[Option<AstraAlgorithm>],
) -> MisleadingValidInputNote {
    let several = dimensions.len() > 1;
    let bursts = algorithms
        .iter()
        .zip(dimensions)
        .any(|(algorithm, dimension)| match algorithm {
            Some(AstraAlgorithm::Direct { .. }) => {
                dimension.shape != DimensionShape::FullyConnected && dimension.npus > 2
            }
            Some(AstraAlgorithm::DoubleBinaryTree) => true,
            _ => false,
        });
    let matters = |quirk: Quirk| match quirk {
        Quirk::Padding | Quirk::WholeNs | Quirk::OneAtATime | Quirk::GroupRing => true,
        Quirk::FreePorts => bursts || system.active_chunks > 1,
        Quirk::FirstDimension => several,
        // Either the machine reproduces these quirks, or the notes about reductions and endpoints describe them.
        _ => false,
    };
    let names: Vec<_> = Quirk::all_quirks()
        .filter(|quirk| matters(*quirk))
        .map(Quirk::quirk_name)
        .collect();
    MisleadingValidInputNote {
        file: "ASTRA-sim".to_owned(),
        line: None,
        key: "quirks".to_owned(),
        why: format!(
            "{}; the help of `chakram astra-sim` describes each",
            names.join(", ")
        ),
    }
}

/// Returns the table of one dimension.
fn dimension_table(
    index: usize,
    dimension: &AstraDimension,
    algorithm: Option<AstraAlgorithm>,
    unsaid: &mut AstraKeysWithoutMachineEquivalent,
) -> String {
    use AstraAlgorithm::{Direct, DoubleBinaryTree, HalvingDoubling, Ring};
    let number = index + 1;
    let one_way = dimension.shape == DimensionShape::Ring && dimension.npus > 2;
    let links = f64::from(dimension.npus - 1);
    let (factor, why) = match (dimension.shape, algorithm) {
        (DimensionShape::Ring, None | Some(Ring)) if one_way => {
            let why = format!(
                "dimension {number}: a collective's ring has it; other messages have half, since an NPU sends half each way"
            );
            unsaid.add_key("bandwidth", why);
            (1.0, "what a ring sends, half each way")
        }
        (DimensionShape::Ring, algorithm) if one_way => {
            if matches!(algorithm, Some(Direct { .. })) {
                unsaid.add_key(
                    "bandwidth",
                    format!(
                        "dimension {number}: that of a message; here an NPU sends that much each way round at once"
                    ),
                );
            }
            (2.0, "twice that of a message, which goes one way")
        }
        (DimensionShape::FullyConnected, Some(Direct { .. })) if links > 1.0 => {
            let why = format!(
                "dimension {number}: that of each link; here a single message may use all {links} links of its NPU"
            );
            unsaid.add_key("bandwidth", why);
            (links, "of all links of an NPU")
        }
        _ => (1.0, "as the network file says"),
    };
    let algorithm = match algorithm {
        None => "auto",
        Some(Ring) => "ring",
        Some(Direct { .. }) => "direct",
        Some(HalvingDoubling) => "halving_doubling",
        Some(DoubleBinaryTree) => "double_binary_tree",
    };
    format!(
        "\n[[dimension]]\nname = \"dimension {number}\"\nshape = \"{}\"\nsize = {}\nbandwidth = \"{} GiB/s\"  # {why}\n\
         latency = \"{} ns\"\nalgorithm = \"{algorithm}\"\n",
        dimension.shape,
        dimension.npus,
        dimension.bandwidth * factor,
        dimension.latency,
    )
}

/// Returns the table of the remote memory.
fn format_remote_memory_table(
    memory: Option<RemoteMemoryFile>,
    unsaid: &mut AstraKeysWithoutMachineEquivalent,
) -> String {
    let Some(memory) = memory else {
        return String::new();
    };
    let attachment = match memory.sharing {
        RemoteMemorySharing::PerNpu => "per_npu",
        RemoteMemorySharing::Pool => "pool",
        RemoteMemorySharing::PerNode { npus_per_node, .. } => {
            let why = format!(
                "memory that {npus_per_node} NPUs share is none of a machine's kinds, so this one has none"
            );
            unsaid.add_key("memory-type", why);
            return String::new();
        }
    };
    format!(
        "\n# Its capacity is unknown.\n[remote_memory]\nattachment = \"{attachment}\"\nbandwidth = \"{} GB/s\"\nlatency = \"{} ns\"\n",
        memory.bandwidth, memory.latency
    )
}

#[cfg(test)]
mod tests;
