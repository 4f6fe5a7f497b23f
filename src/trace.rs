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

use serde::{Deserialize, Serialize};
use std::fmt;

pub(crate) mod attr;
pub(crate) mod encoder;
pub(crate) mod error;
mod escape;
mod family;
pub(crate) mod file;
pub(crate) mod format;
pub(crate) mod groups;
pub(crate) mod job;
mod kernel_shape;
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

pub use error::{TraceError, TraceLocation};
pub use escape::{escape, escaped, is_harmful};
pub use family::{family, of_any_micro_batch};
pub use file::{FoundTraces, RankFile, TraceContents, VerifyLevel, discover};
pub use kernel_shape::{KernelShape, KernelShapeError, MovingKernel};
pub use labels::{NodeLabels, TrainingPhase};
pub use old_schemas::SchemaGeneration;
pub use op::{GroupName, MemoryLocation, Op};
pub use scan::NodeView;
use source_map::SourceMap;
pub use tensors::{MemoryChanges, TensorClass};
pub use write::{Sink, TraceWriter};

/// A number format that NPUs compute in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE double precision.
    Fp64,
    /// IEEE single precision.
    Fp32,
    /// 19-bit format of tensor cores, stored as single precision.
    Tf32,
    /// IEEE half precision.
    Fp16,
    /// Brain float.
    Bf16,
    /// Eight-bit floats of either kind.
    Fp8,
    /// Four-bit floats with block scales.
    Fp4,
    /// Eight-bit integers.
    Int8,
}

impl Dtype {
    /// Number of formats.
    pub const COUNT: usize = 8;

    /// All formats with their names in files.
    pub const ALL: [(Self, &'static str); Self::COUNT] = [
        (Self::Fp64, "fp64"),
        (Self::Fp32, "fp32"),
        (Self::Tf32, "tf32"),
        (Self::Fp16, "fp16"),
        (Self::Bf16, "bf16"),
        (Self::Fp8, "fp8"),
        (Self::Fp4, "fp4"),
        (Self::Int8, "int8"),
    ];

    /// Bytes of an element, with its part of a scale that goes with a block.
    pub fn element_bytes(self) -> f64 {
        match self {
            Self::Fp64 => 8.0,
            Self::Fp32 | Self::Tf32 => 4.0,
            Self::Fp16 | Self::Bf16 => 2.0,
            Self::Fp8 | Self::Int8 => 1.0,
            // A scale of a byte goes with 16 numbers.
            Self::Fp4 => 0.5625,
        }
    }

    /// Parses the name of a format as written here or by PyTorch; `None` for anything else.
    pub fn from_name(name: &str) -> Option<Self> {
        if let Some((dtype, _)) = Self::ALL.iter().find(|(_, known)| *known == name) {
            return Some(*dtype);
        }
        let name = name.strip_prefix("c10::").unwrap_or(name);
        Some(match name.to_ascii_lowercase().as_str() {
            "double" | "float64" => Self::Fp64,
            "float" | "float32" => Self::Fp32,
            "half" | "float16" => Self::Fp16,
            "bfloat16" => Self::Bf16,
            "float8_e4m3fn" | "float8_e5m2" | "float8_e4m3fnuz" | "float8_e5m2fnuz" => Self::Fp8,
            "float4_e2m1fn_x2" => Self::Fp4,
            "char" | "signed char" => Self::Int8,
            _ => return None,
        })
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum CollectiveKind {
    /// Every member ends with the sum of all buffers.
    AllReduce,
    /// The root ends with the sum of all buffers.
    Reduce,
    /// Every member ends with all shards.
    AllGather,
    /// The root ends with all shards.
    Gather,
    /// Every member ends with its part of the root's buffer.
    Scatter,
    /// Every member ends with the root's buffer.
    Broadcast,
    /// Every member sends every other its own part of the buffer.
    AllToAll,
    /// Every member ends with its part of the sum of all buffers.
    ReduceScatter,
    /// No member continues before all have arrived.
    Barrier,
}

impl CollectiveKind {
    /// Every collective with its name and the schema's value of `comm_type`.
    pub const ALL: [(Self, &'static str, u64); 9] = [
        (Self::AllReduce, "all-reduce", 0),
        (Self::Reduce, "reduce", 1),
        (Self::AllGather, "all-gather", 2),
        (Self::Gather, "gather", 3),
        (Self::Scatter, "scatter", 4),
        (Self::Broadcast, "broadcast", 5),
        (Self::AllToAll, "all-to-all", 6),
        (Self::ReduceScatter, "reduce-scatter", 7),
        (Self::Barrier, "barrier", 9),
    ];

    /// Returns the collective with this value of `comm_type`. The schema's REDUCE_SCATTER_BLOCK (8) is a
    /// reduce-scatter in equal shards, the only kind there is here.
    pub fn from_comm_type(value: u64) -> Option<Self> {
        let value = if value == 8 { 7 } else { value };
        let found = Self::ALL.iter().find(|(_, _, number)| *number == value);
        found.map(|(kind, _, _)| *kind)
    }

    /// The schema's value of `comm_type`.
    pub fn comm_type(self) -> u64 {
        Self::ALL[self as usize].2
    }

    /// Returns whether one member has a part of its own.
    pub fn has_root(self) -> bool {
        matches!(
            self,
            Self::Reduce | Self::Gather | Self::Scatter | Self::Broadcast
        )
    }

    /// Returns the size in bytes of the whole buffer that the members build or share, from a node's
    /// `comm_size`: every member's result for all-gather, the root's for gather, and `comm_size` itself for the
    /// others. `None` for 2^63 bytes or more.
    pub fn buffer(self, comm_size: u64, members: u32) -> Option<u64> {
        let bytes = match self {
            Self::AllGather | Self::Gather => comm_size.checked_mul(u64::from(members))?,
            Self::Barrier => 0,
            _ => comm_size,
        };
        (bytes <= i64::MAX as u64).then_some(bytes)
    }
}

impl fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_in_the_order_of_their_enums() {
        for (i, (dtype, _)) in Dtype::ALL.iter().enumerate() {
            assert_eq!(*dtype as usize, i);
        }
        for (i, (kind, _, number)) in CollectiveKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, i);
            assert_eq!(CollectiveKind::from_comm_type(*number), Some(*kind));
        }
        assert_eq!(CollectiveKind::from_comm_type(10), None);
    }

    #[test]
    fn sizes_on_disk_become_whole_buffers() {
        // 8 shards of 1,000 B make 8,000 B; a reduce-scatter's size is its input already.
        assert_eq!(CollectiveKind::AllGather.buffer(1000, 8), Some(8000));
        assert_eq!(CollectiveKind::ReduceScatter.buffer(1000, 8), Some(1000));
        assert_eq!(CollectiveKind::AllGather.buffer(u64::MAX, 2), None);
    }

    #[test]
    fn formats_have_the_names_that_pytorch_gives_them() {
        assert_eq!(Dtype::from_name("c10::BFloat16"), Some(Dtype::Bf16));
        assert_eq!(Dtype::from_name("Half"), Some(Dtype::Fp16));
        assert_eq!(Dtype::from_name("quint8"), None);
    }
}
