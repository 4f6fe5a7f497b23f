//! Execution traces as files hold them: nodes, their operations, and their encoding on disk.
//!
//! One rank's trace is one `.et` file (see `proto/README.md`). Other formats ([`format`]) are converted when a
//! file is opened: files of 2023 are upgraded ([`old_schemas`]), text is parsed ([`text`]), and the sound records of
//! damaged files are kept on request ([`salvage`]). So everything behind that needs two readers only. [`scan`]
//! borrows from the mapped file, makes one pass over its bytes and allocates nothing; it feeds the graph
//! builder. [`proto`] holds the generated types; it serves writing, rewriting and tools. Tests hold the two
//! against each other.
//!
//! ```
//! use chakram::trace::{NodeView, Op, Sink, TraceWriter};
//! use chakram::validate::ValidatedTrace;
//!
//! let kernel = |flops| Op::Compute { flops, bytes: 0, dtype: None };
//! let mut writer = TraceWriter::new(Vec::new())?;
//! writer.node(&NodeView::new(1, "forward", kernel(1_000)), &[])?;
//! writer.node(&NodeView::new(2, "backward", kernel(2_000)), &[1])?;
//! let file = writer.into_inner();
//! assert_eq!(ValidatedTrace::check(&file, Default::default(), 1).nodes(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub(crate) mod attr;
pub(crate) mod encoder;
pub(crate) mod error;
mod escape;
mod family;
pub(crate) mod file;
pub(crate) mod format;
pub(crate) mod groups;
pub(crate) mod job;
pub(crate) mod labels;
pub(crate) mod members;
pub(crate) mod old_schemas;
pub(crate) mod op;
pub(crate) mod proto;
pub(crate) mod rewrite;
pub(crate) mod roles;
pub(crate) mod salvage;
pub(crate) mod scan;
mod schema_layout;
pub(crate) mod signal_safe_list;
pub(crate) mod source;
mod source_map;
pub(crate) mod split_sizes;
pub(crate) mod tensors;
pub(crate) mod text;
mod utf8;
pub(crate) mod wire;
pub(crate) mod work_amounts;
pub(crate) mod write;

pub use crate::collective_kind::CollectiveKind;
pub use crate::dtype::Dtype;
pub use crate::kernel_shape::{KernelShape, KernelShapeError, MovingKernel};
pub use error::{TraceError, TraceLocation};
pub use escape::{escape, escaped, is_harmful};
pub use family::{family, of_any_micro_batch};
pub use file::{FoundTraces, RankFile, TraceContents, VerifyLevel, discover};
pub use labels::{NodeLabels, TrainingPhase};
pub use old_schemas::SchemaGeneration;
pub use op::{GroupName, MemoryLocation, Op};
pub use scan::NodeView;
use source_map::SourceMap;
pub use tensors::{MemoryChanges, TensorClass};
pub use write::{Sink, TraceWriter};
