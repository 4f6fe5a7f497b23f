//! The system file: an NPU's compute rates, and the chunks and algorithms of collectives.

use super::algorithm::{AlgorithmAndAllNpusAtOnceFlag, AstraAlgorithm, NAMES};
use super::document::{InputDocumentWithUniqueKnownKeys, ReadAndIgnoredKeys};
use super::error::{InputError, MisleadingValidInputNote, did_you_mean};
use super::input_entry::InputValue;
use chakram_base::setting::SettingKey;
use std::path::PathBuf;

/// Order in which waiting chunks of different collectives start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkSchedulingPolicy {
    /// The latest collective comes first.
    Lifo,
    /// The earliest collective comes first.
    Fifo,
    /// The collective whose node has the highest `comm_priority` comes first.
    Explicit,
}

/// Decomposition of an all-reduce over several dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllReduceDecomposition {
    /// The dimensions run an all-reduce of the whole chunk, one after another.
    Baseline,
    /// Reduce-scatters from the innermost dimension outward and all-gathers back inward, so that
    /// outer dimensions carry fewer bytes.
    LocalBwAware,
}

/// One value for each kind of collective that has implementations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerCollectiveKind<T> {
    /// Value for all-reduce.
    pub all_reduce: T,
    /// Value for all-gather.
    pub all_gather: T,
    /// Value for reduce-scatter.
    pub reduce_scatter: T,
    /// Value for all-to-all.
    pub all_to_all: T,
}

/// Implementations of each kind of collective: one per dimension, innermost first. An empty list means that the file
/// states no implementation, so such a collective cannot run.
pub type AlgorithmsPerCollectiveKind = PerCollectiveKind<Vec<AlgorithmAndAllNpusAtOnceFlag>>;

/// A LogGP bus between an NPU and its memory agent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogGpBusParams {
    /// Latency `L`, in ns.
    pub latency: u64,
    /// Overhead `o`, in ns.
    pub overhead: u64,
    /// Gap `g`, in ns.
    pub gap: u64,
    /// Gap per byte `G`, in ns.
    pub gap_per_byte: f64,
}

/// Contents of a system file.
#[derive(Clone, Debug, PartialEq)]
pub struct AstraSystemFile {
    /// Order in which chunks of several collectives start; if absent, last in, first out.
    pub scheduling: ChunkSchedulingPolicy,
    /// Decomposition of an all-reduce; the baseline if absent.
    pub optimization: AllReduceDecomposition,
    /// `endpoint-delay`: delay before each message sent and after each message received, in ns. `None` if absent; see
    /// [`AstraSystemFile::scaled_endpoint_delay`].
    pub endpoint_delay: Option<u64>,
    /// `active-chunks-per-dimension`: maximum number of chunks in flight in each dimension, at least 1.
    pub active_chunks: u32,
    /// `preferred-dataset-splits`: number of chunks per collective, at least 1.
    pub splits: u32,
    /// Algorithms for each kind of collective.
    pub implementations: AlgorithmsPerCollectiveKind,
    /// Prefix of a custom algorithm's trace files, for each kind of collective.
    pub custom: PerCollectiveKind<Option<PathBuf>>,
    /// File that assigns custom algorithms to single nodes (see [`super::PerNodeCustomAlgorithmPaths`]).
    pub per_node_custom: Option<PathBuf>,
    /// `local-mem-bw`, in GB/s of 10^9 bytes, above 0.
    pub local_memory_bandwidth: Option<f64>,
    /// `peak-perf`, in TFLOPS; 0 if absent.
    pub peak: f64,
    /// True if the roofline model sets the durations of compute nodes, and false if they keep their recorded durations.
    pub roofline: bool,
    /// True if the log has a line for each node.
    pub trace: bool,
    /// True if every node takes its recorded duration.
    pub replay_only: bool,
    /// True if the run tracks the memory that tensors occupy.
    pub track_memory: bool,
    /// Prefix of the memory files that the run writes, which are named `PREFIX.RANK.json`.
    pub memory_trace: String,
    /// `local-reduction-delay`, in ns; only the shared bus uses it.
    pub reduction_delay: u64,
    /// Bus that replaces the endpoint delay; `None` if the file enables no bus.
    pub shared_bus: Option<LogGpBusParams>,
}

impl AstraSystemFile {
    /// Default endpoint delay before each message sent and after each message received, in ns.
    pub const ENDPOINT_DELAY: u64 = 10;

    /// Returns the endpoint delay before each message sent and after each message received, in ns. `scale` multiplies
    /// the file's value but not the default; the product is truncated. If the result is 0 (no delay), ASTRA-sim aborts.
    pub fn scaled_endpoint_delay(&self, scale: f64) -> u64 {
        match self.endpoint_delay {
            Some(delay) => (delay as f64 * scale) as u64,
            None => Self::ENDPOINT_DELAY,
        }
    }

    /// Parses a system file. `file` is the file's name in errors. With `lenient`, unknown keys become
    /// notes.
    ///
    /// # Errors
    ///
    /// Fails if `text` is not a JSON object, has an unknown key, or has an invalid value.
    pub fn parse(
        text: &str,
        file: &str,
        lenient: bool,
    ) -> Result<(Self, Vec<MisleadingValidInputNote>), InputError> {
        let mut document = InputDocumentWithUniqueKnownKeys::parse_json_keeping_last_duplicate_key(
            text, file, &KEYS, lenient,
        )?;
        let system = build_system_from_document(&mut document)?;
        Ok((system, document.into_notes()))
    }
}

/// ASTRA-sim stores these numbers as `int`.
const MOST: u64 = i32::MAX as u64;

const KINDS: [(&str, &str); 4] = [
    (
        "all-reduce-implementation",
        "all-reduce-implementation-custom",
    ),
    (
        "all-gather-implementation",
        "all-gather-implementation-custom",
    ),
    (
        "reduce-scatter-implementation",
        "reduce-scatter-implementation-custom",
    ),
    (
        "all-to-all-implementation",
        "all-to-all-implementation-custom",
    ),
];

const BUS: [&str; 4] = ["L", "o", "g", "G"];

pub(super) const KEYS: ReadAndIgnoredKeys = ReadAndIgnoredKeys {
    read: &[
        "scheduling-policy",
        "collective-optimization",
        "endpoint-delay",
        "active-chunks-per-dimension",
        "preferred-dataset-splits",
        KINDS[0].0,
        KINDS[1].0,
        KINDS[2].0,
        KINDS[3].0,
        KINDS[0].1,
        KINDS[1].1,
        KINDS[2].1,
        KINDS[3].1,
        "per-node-custom-implementation",
        "local-mem-bw",
        "peak-perf",
        "roofline-enabled",
        "trace-enabled",
        "replay-only",
        "track-local-mem",
        "local-mem-trace-filename",
        "local-reduction-delay",
        "model-shared-bus",
        BUS[0],
        BUS[1],
        BUS[2],
        BUS[3],
    ],
    ignored: &[
        ("boost-mode", "ASTRA-sim 2 does not read it"),
        (
            "intra-dimension-scheduling",
            "ASTRA-sim does not read it since January 2023",
        ),
        (
            "inter-dimension-scheduling",
            "ASTRA-sim does not read it since January 2023",
        ),
    ],
};

fn build_system_from_document(
    document: &mut InputDocumentWithUniqueKnownKeys<'_>,
) -> Result<AstraSystemFile, InputError> {
    let scheduling = document.read_choice(
        "scheduling-policy",
        &[
            (ChunkSchedulingPolicy::Lifo, "LIFO"),
            (ChunkSchedulingPolicy::Fifo, "FIFO"),
            (ChunkSchedulingPolicy::Explicit, "EXPLICIT"),
        ],
    )?;
    if scheduling.is_none() {
        let why = "is absent and counts as LIFO; in the original the value is undefined";
        document.add_note("scheduling-policy", why);
    }
    let optimization = document.read_choice(
        "collective-optimization",
        &[
            (AllReduceDecomposition::Baseline, "baseline"),
            (AllReduceDecomposition::LocalBwAware, "localBWAware"),
        ],
    )?;
    if optimization.is_none() {
        let why = "is absent and counts as baseline; in the original the value is undefined";
        document.add_note("collective-optimization", why);
    }
    let local_memory_bandwidth = document
        .read_number_at_least_if_present("local-mem-bw", 0.0)?
        .filter(|&bw| bw > 0.0);
    if local_memory_bandwidth.is_none() {
        let why = "is absent or 0: reductions take no time";
        document.add_note("local-mem-bw", why);
    }
    let trace = document.read_zero_or_one("trace-enabled")?;
    if trace {
        let timeline = SettingKey::Timeline;
        let why = format!("has no effect: no log of nodes is written; {timeline} FILE draws them");
        document.add_note("trace-enabled", why);
    }
    let memory_trace = document.read_text("local-mem-trace-filename")?;
    let memory_trace = memory_trace.unwrap_or("local_mem_trace").to_owned();
    let per_node_custom = document.read_text("per-node-custom-implementation")?;
    let per_node_custom = per_node_custom.map(PathBuf::from);
    Ok(AstraSystemFile {
        scheduling: scheduling.unwrap_or(ChunkSchedulingPolicy::Lifo),
        optimization: optimization.unwrap_or(AllReduceDecomposition::Baseline),
        endpoint_delay: document.read_truncated_whole_number_in_range("endpoint-delay", 0, MOST)?,
        active_chunks: read_count(document, "active-chunks-per-dimension")?.unwrap_or(1),
        splits: read_dataset_splits(document)?,
        implementations: AlgorithmsPerCollectiveKind {
            all_reduce: read_implementations(document, KINDS[0].0)?,
            all_gather: read_implementations(document, KINDS[1].0)?,
            reduce_scatter: read_implementations(document, KINDS[2].0)?,
            all_to_all: read_implementations(document, KINDS[3].0)?,
        },
        custom: PerCollectiveKind {
            all_reduce: read_custom_prefix(document, KINDS[0])?,
            all_gather: read_custom_prefix(document, KINDS[1])?,
            reduce_scatter: read_custom_prefix(document, KINDS[2])?,
            all_to_all: read_custom_prefix(document, KINDS[3])?,
        },
        per_node_custom,
        local_memory_bandwidth,
        peak: document
            .read_number_at_least_if_present("peak-perf", 0.0)?
            .unwrap_or(0.0),
        roofline: document.read_zero_or_one("roofline-enabled")?,
        trace,
        replay_only: document.read_zero_or_one("replay-only")?,
        track_memory: document.read_zero_or_one("track-local-mem")?,
        memory_trace,
        reduction_delay: document
            .read_truncated_whole_number_in_range("local-reduction-delay", 0, MOST)?
            .unwrap_or(1),
        shared_bus: read_shared_bus_params(document)?,
    })
}

fn read_count(
    document: &mut InputDocumentWithUniqueKnownKeys<'_>,
    key: &str,
) -> Result<Option<u32>, InputError> {
    let count = document.read_truncated_whole_number_in_range(key, 1, MOST)?;
    Ok(count.map(|count| u32::try_from(count).expect("it is at most 2^31")))
}

fn read_dataset_splits(
    document: &mut InputDocumentWithUniqueKnownKeys<'_>,
) -> Result<u32, InputError> {
    const KEY: &str = "preferred-dataset-splits";
    let found = match document.get(KEY) {
        None => "nothing",
        Some(InputValue::Number(number)) if *number == 0.0 => "0",
        Some(_) => return Ok(read_count(document, KEY)?.unwrap_or(1)),
    };
    let expected = "the number of chunks of a collective, at least 1";
    let hint = "\"preferred-dataset-splits\": 1 (the original divides by zero)";
    Err(document.invalid_value(KEY, found, expected, hint))
}

fn read_implementations(
    document: &mut InputDocumentWithUniqueKnownKeys<'_>,
    key: &str,
) -> Result<Vec<AlgorithmAndAllNpusAtOnceFlag>, InputError> {
    let Some(list) = document.read_list(key)? else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for item in list {
        let Some(implementation) = item
            .as_text()
            .and_then(AlgorithmAndAllNpusAtOnceFlag::parse)
        else {
            let hint = item.as_text().map(|text| did_you_mean(text, NAMES));
            let expected = format!(
                "a list of names, one per dimension, of {}{}",
                NAMES.join(", "),
                hint.unwrap_or_default()
            );
            return Err(document.invalid_value(key, item.describe_value(), expected, ""));
        };
        if implementation.one && !all.is_empty() {
            let found = format_args!("`{implementation}` after other names");
            let expected = "this name first, because it stands for all dimensions";
            return Err(document.invalid_value(key, found, expected, ""));
        }
        all.push(implementation);
    }
    if let [first, _, ..] = &all[..]
        && first.one
    {
        let why =
            format!("names after `{first}` have no effect, because it stands for all dimensions");
        document.add_note(key, why);
    }
    let tree = |i: &AlgorithmAndAllNpusAtOnceFlag| i.algorithm == AstraAlgorithm::DoubleBinaryTree;
    if key != KINDS[0].0 && all.iter().any(tree) {
        let why = "doubleBinaryTree supports only all-reduce: other collectives will be rejected";
        document.add_note(key, why);
    }
    Ok(all)
}

fn read_custom_prefix(
    document: &InputDocumentWithUniqueKnownKeys<'_>,
    (_, key): (&str, &str),
) -> Result<Option<PathBuf>, InputError> {
    match document.read_list(key)? {
        None => Ok(None),
        Some([InputValue::Text(prefix)]) if !prefix.is_empty() => Ok(Some(PathBuf::from(prefix))),
        Some(list) => {
            let found = match list {
                [one] => one.describe_value(),
                _ => format!("a list of {}", list.len()),
            };
            let expected = "a list of exactly one prefix of files PREFIX.POSITION.et";
            Err(document.invalid_value(key, found, expected, ""))
        }
    }
}

fn read_shared_bus_params(
    document: &mut InputDocumentWithUniqueKnownKeys<'_>,
) -> Result<Option<LogGpBusParams>, InputError> {
    let bus = LogGpBusParams {
        latency: document
            .read_truncated_whole_number_in_range(BUS[0], 0, MOST)?
            .unwrap_or(0),
        overhead: document
            .read_truncated_whole_number_in_range(BUS[1], 0, MOST)?
            .unwrap_or(0),
        gap: document
            .read_truncated_whole_number_in_range(BUS[2], 0, MOST)?
            .unwrap_or(0),
        gap_per_byte: document
            .read_number_at_least_if_present(BUS[3], 0.0)?
            .unwrap_or(0.0),
    };
    if document.read_zero_or_one("model-shared-bus")? {
        return Ok(Some(bus));
    }
    for key in BUS.iter().chain(&["local-reduction-delay"]) {
        if document.get(key).is_some() {
            document.add_note(key, "has no effect without \"model-shared-bus\": 1");
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
