//! Internals for tests, benches and fuzz targets. These internals are not part of the public interface and change
//! without notice. A test that needs more internals belongs in the crate that it tests.

/// Networks that are driven event by event: tests compare a replay's transfers with each network alone.
pub use chakram_hardware::network::{
    ContentionFreeNetwork, ExclusiveNetwork, FairSharingNetwork, LinkNetwork, PortNetwork,
};

/// Record types generated from `proto/`: tests write and read files with them, so tests share no
/// code with the reader and writer under test.
pub use chakram_trace::format::proto;

/// Boundaries of the records in a file: tests damage files there.
pub use chakram_trace::format::wire::FrameCursor;

/// Group tables of nodes and of ASTRA-sim's files: tests declare groups and read declarations.
pub use chakram_trace::format::groups;

/// Names of a job's files by prefix, even if other files begin with the same prefix.
pub use chakram_trace::format::file::PrefixedTraceFiles;

/// Writer of protobuf's wire format, because JAX profiles have no generated types.
pub use chakram_trace::format::encoder::MessageEncoder;

/// Hash of a text; a bench prints it to compare results of two builds.
pub use chakram_trace::graph::stable_hash;

/// Limit that every slice must satisfy; tests check it with random slices.
pub use chakram_analysis::edit::slice::MOST_BEHIND;

/// Conversion of MSCCL algorithms to scripts, which another crate's reader must accept.
pub use chakram_converters::msccl::{MscclAlgorithm, MscclTraceWriter};

/// Parser of ASTRA-sim's logging file, fuzzed with arbitrary bytes.
pub use chakram_astra_sim::logging;

/// Options of replays: a test tries each as a flag and as a key of studies.
pub use chakram_jobs::{REPLAY_OPTIONS, ReplayOption, ReplayOptionSyntax};

/// Sensitivities to a machine's rates and latencies: a test compares them with replays on other machines.
pub use chakram_jobs::{MachineText, find_sensitivities};
