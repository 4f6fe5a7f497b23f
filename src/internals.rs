//! What tests, benches and fuzz targets need of the inside that no user does. It is no part of the interface: names here
//! change without notice. A test that needs more belongs to the crate of its subject.

/// Networks one event at a time: tests hold what a replay says of transfers against each of them alone.
pub use chakram_hardware::network::{
    ContentionFreeNetwork, ExclusiveNetwork, FairSharingNetwork, LinkNetwork, PortNetwork,
};

/// Records of traces by the types that are generated from `proto/`: tests write and read files by them, and so share no
/// code with what they test.
pub use chakram_trace::format::proto;

/// Where the records of a file begin and end: tests damage files at these places.
pub use chakram_trace::format::wire::FrameCursor;

/// Tables of groups as nodes and files of ASTRA-sim have them: tests declare groups, and read what was declared.
pub use chakram_trace::format::groups;

/// Names of the files of a job, from a prefix that files of others begin with too.
pub use chakram_trace::format::file::PrefixFiles;

/// A writer of protobuf's wire format: profiles of JAX have no generated types.
pub use chakram_trace::format::encoder::MessageEncoder;

/// One number for a text, which a bench prints so that answers of two builds can be compared.
pub use chakram_trace::graph::fingerprint;

/// The bound that slices keep, which random slices are held against.
pub use chakram_analysis::edit::slice::MOST_BEHIND;

/// Scripts of collectives from an algorithm, which the reader of another crate must take.
pub use chakram_converters::msccl::{MscclAlgorithm, MscclScripts};

/// The check of ASTRA-sim's logging file, a door for any bytes.
pub use chakram_astra_sim::logging;

/// Options of replays, each of which a test tries as a flag and as a key of studies.
pub use chakram_jobs::{REPLAY_OPTIONS, ReplayOption, ReplayOptionSyntax};
