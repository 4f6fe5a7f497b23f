//! Internals for tests, benches and fuzz targets. These internals are not part of the public interface and change
//! without notice. Put a test that needs more internals into the crate that it tests.

/// Networks that a caller drives event by event: tests compare a replay's transfers with those of a separate network.
pub use chakram_hardware::network::{
    ContentionFreePortBusyTimes, FairSharingNetwork, LinkContentionNetwork,
    OneTransferPerLinkNetwork, PortContentionNetwork,
};

/// Record types generated from `proto/`. Tests use them to write and read files, and thus share no code with the reader
/// and writer under test.
pub use chakram_trace::format::proto;

/// Finds the boundaries of the records in a file, at which tests damage files.
pub use chakram_trace::format::wire::FrameCursor;

/// Tables of groups in nodes and in ASTRA-sim's files; tests declare groups in them and read declarations from them.
pub use chakram_trace::format::groups;

/// Finds the names of a job's files by prefix, even if other files begin with the same prefix.
pub use chakram_trace::format::file::PrefixedTraceFiles;

/// Writes protobuf's wire format, because JAX profiles have no generated types.
pub use chakram_trace::format::encoder::ProtobufMessageBuilder;

/// Hash of a string; a bench prints the hash of its results, so that two builds can be compared.
pub use chakram_trace::graph::stable_hash;

/// Limit that every slice must satisfy; tests check random slices against it.
pub use chakram_analysis::edit::slice::MOST_BEHIND;

/// Converts MSCCL algorithms to scripts; a test checks that another crate's reader accepts the scripts.
pub use chakram_converters::msccl::{MscclAlgorithm, MscclTraceWriter};

/// Parser of ASTRA-sim's logging file, fuzzed with arbitrary bytes.
pub use chakram_astra_sim::logging;

/// Options of replays: a test tries each option as a flag and as a key of studies.
pub use chakram_jobs::{REPLAY_OPTIONS, ReplayOptionDefinition, ReplayOptionValueKind};

/// Finds the sensitivities to a machine's rates and latencies: a test compares them with replays on changed machines.
pub use chakram_jobs::{NamedMachineText, find_sensitivities};
