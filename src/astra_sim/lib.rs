//! The input files and flags of ASTRA-sim 2's analytical networks. Values keep ASTRA-sim's names and units. An
//! [`MisleadingValidInputNote`] marks each value that users may misunderstand.
//!
//! Each input of ASTRA-sim has its own type: [`AstraSystemFile`] (JSON), [`AstraNetworkFile`] (YAML),
//! [`RemoteMemoryFile`] (JSON), [`CommGroupFile`] (JSON), and [`PerNodeCustomAlgorithmPaths`] (YAML). The logging
//! configuration (TOML) has no type, because it is checked and then ignored. Each parser takes the text, the file's
//! name for errors, and a flag that is true if unknown keys cause notes instead of errors. The parser returns the value
//! with its notes, or an [`InputError`] that names file, line and key. Parsing takes time and memory proportional to
//! the text's length, even if the text is invalid.
//!
//! [`AstraInputs`] contains all inputs of an ASTRA-sim run, checked for consistency.
//!
//! A GB is 2^30 bytes in the network file, and 10^9 bytes in all other files.
//!
//! A [`Quirk`] is a behaviour of ASTRA-sim that a correct model would not have. A run has every quirk that is not
//! corrected.

mod algorithm;
mod analytical_network;
mod check;
mod collectives;
mod congestion_aware;
mod congestion_unaware;
pub mod custom_algorithm;
mod cut_through;
mod cut_through_links;
mod cut_through_ports;
mod document;
mod end_order;
mod endless_waits;
mod error;
mod groups_file;
mod input_entry;
mod input_kind;
mod inputs;
mod json;
mod lenient;
pub mod logging;
mod machine;
mod machine_file;
mod memory;
mod memory_file;
mod network_file;
mod node_types;
mod per_node;
mod program;
mod quirks;
mod shared_bus;
mod statistics;
mod summary;
mod symmetry;
mod system;
mod tensors;
mod trace;
mod yaml;

pub use algorithm::{AlgorithmAndAllNpusAtOnceFlag, AstraAlgorithm};
pub use analytical_network::AnalyticalCongestionModel;
pub use collectives::AstraCollectiveBackend;
pub use congestion_aware::CongestionAwareModel;
pub use congestion_unaware::CongestionUnawareModel;
pub use cut_through::{
    CutThroughNetwork, LinkOrPortHop, LinkOrPortRouting, MessageNpuAndRoutingState,
};
pub use cut_through_links::LinkCutThroughNetwork;
pub use cut_through_ports::PortCutThroughNetwork;
pub use endless_waits::EndlessWait;
pub use error::{InputError, MisleadingValidInputNote};
pub use groups_file::CommGroupFile;
pub use input_kind::AstraInputKind;
pub use inputs::{AstraFlags, AstraInputs};
pub use machine::build_machine;
pub use machine_file::{ImportedMachineFile, NamedInputText, machine_file};
pub use memory::{CompletedNode, TensorLifetimesAndAccesses};
pub use memory_file::{RemoteMemoryFile, RemoteMemorySharing};
pub use network_file::{AstraDimension, AstraNetworkFile};
pub use node_types::NodeTypesById;
pub use per_node::PerNodeCustomAlgorithmPaths;
pub use program::CollectiveChunkPhase;
pub use quirks::{Quirk, QuirkSet};
pub use statistics::{RankWorkKindsAndKernelTime, RooflineMeans};
pub use system::{
    AlgorithmsPerCollectiveKind, AllReduceDecomposition, AstraSystemFile, ChunkSchedulingPolicy,
    LogGpBusParams, PerCollectiveKind,
};
pub use tensors::RankTensors;
pub use trace::{AstraRankGraphAndBinding, AstraTraceGraphReader, astra_kind_of_compute_node};

#[cfg(test)]
mod tests;
