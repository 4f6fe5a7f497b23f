//! Reads and writes execution traces: nodes, their operations, and their encodings.
//!
//! One rank's trace is one `.et` file (see `proto/README.md`). Opening a file in another format ([`trace_format`])
//! converts it: files of 2023 are upgraded ([`old_schemas`]), and text is parsed ([`text`]). On request, sound records
//! are recovered from damaged files ([`salvage`]). Later code therefore needs only two readers. [`scan`] feeds the
//! graph builder: it borrows from the mapped file, reads the bytes in one pass, and allocates nothing. [`proto`]
//! contains the generated types for writing, rewriting and tools. Tests compare the two readers.

pub mod attr;
mod digest;
pub mod encoder;
pub mod error;
mod escape;
mod family;
pub mod file;
pub mod groups;
pub mod job;
pub mod labels;
pub mod members;
pub mod old_schemas;
pub mod op;
pub mod origin;
pub mod profiler_cost;
pub mod proto;
mod read_all;
pub mod rewrite;
pub mod roles;
pub mod salvage;
pub mod scan;
mod schema_layout;
pub mod signal_safe_list;
pub mod source;
mod source_map;
pub mod split_sizes;
pub mod tensors;
pub mod text;
pub mod trace_format;
mod utf8;
pub mod wire;
pub mod work_amounts;
pub mod write;

pub use chakram_base::collective_kind::CollectiveKind;
pub use chakram_base::dtype::Dtype;
pub use chakram_base::kernel_shape::{KernelShape, KernelShapeError, MemoryBoundKernelClass};
pub use error::{TraceError, TraceErrorLocation};
pub use escape::{
    escape_and_shorten_name, escape_control_characters, escape_control_characters_in_lines,
    escape_harmful_characters_in_json, is_harmful_character,
};
pub use family::{append_name_family, replace_micro_batch_number_by_star};
pub use file::{
    DecompressedTraceFile, FoundTraces, RankFile, TraceHashVerificationLevel, discover_traces,
};
pub use labels::{NodePhaseStageLayerAndShapes, TrainingPhase};
pub use old_schemas::SchemaGeneration;
pub use op::{GroupName, MemoryLocation, Op};
pub use scan::NodeView;
use source_map::OriginalRecordLocations;
pub use tensors::{NodeMemoryChanges, TensorClass};
pub use write::{Sink, TraceWriter};
