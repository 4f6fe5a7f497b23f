//! Data that pages draw but tables do not contain: activity of ranks, memory over time, and bytes between ranks.
//!
//! Nothing is stored per node. Adjacent intervals of the same sort are merged, and if there are more than a picture
//! can show, short ones are drawn as the longest among them.

mod intervals;
mod recorder;
mod rooflines;
mod traffic;

pub use recorder::PictureRecorder;

use chakram_base::ids::Rank;
use chakram_base::units::{Bytes, Span, Time};
use serde::{Deserialize, Serialize};

/// Data of the pictures of a replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ReplayPictures {
    /// Activity of ranks; ranks with identical activity share one entry. If there are many ranks, those that are out of
    /// memory, have the shortest or longest time in a category, or make others wait come first, then one rank of each
    /// class.
    pub ranks: Vec<RankPicture>,
    /// Number of observed ranks. If there are many ranks, only some of each graph and NPU class are observed.
    #[serde(default)]
    pub watched: Option<u32>,
    /// The critical path.
    pub critical_path: Vec<PictureSpan>,
    /// The longest parts of the critical path, each with one operator on one rank.
    #[serde(default)]
    pub longest_on_path: Vec<PictureSpan>,
    /// Memory of these ranks over time, if traces state what nodes allocate.
    pub memory: Vec<MemoryCurve>,
    /// Bytes exchanged between ranks.
    pub traffic: TrafficMatrix,
    /// Peak rates of the NPU classes that ran kernels.
    #[serde(default)]
    pub rooflines: Vec<NpuRoofline>,
}

/// Peak rates of an NPU class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct NpuRoofline {
    /// Name of the class.
    pub class: String,
    /// Bandwidth of its memory, bytes per second.
    pub memory_bytes_per_s: f64,
    /// Peak rate of each number format in which kernels of the job compute.
    pub peaks: Vec<FormatPeak>,
}

/// Peak rate of a number format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct FormatPeak {
    /// Name of the format.
    pub dtype: String,
    /// Peak rate, FLOPs per second.
    pub flops_per_s: f64,
}

/// Activity of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct RankPicture {
    /// The rank.
    pub rank: Rank,
    /// Number of other ranks with identical activity. Unobserved ranks count if they run the same graph on the same NPU
    /// class and spend the same time in each category.
    #[serde(default)]
    pub alike: u32,
    /// Its intervals in order, without idle ones.
    pub spans: Vec<PictureSpan>,
}

/// An interval in a picture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct PictureSpan {
    /// Start.
    #[serde(rename = "from_ps")]
    pub from: Time,
    /// End.
    #[serde(rename = "to_ps")]
    pub to: Time,
    /// The rank; only on the critical path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// Category of the time, as its key in `time_ps`.
    pub category: String,
    /// Micro-batch and direction, or the operator's name.
    pub name: String,
}

/// Allocated bytes of a rank over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MemoryCurve {
    /// The rank.
    pub rank: Rank,
    /// Capacity of its NPU's memory, bytes.
    #[serde(rename = "capacity_bytes")]
    pub capacity: Option<Bytes>,
    /// Instants in picoseconds, and the bytes from then on. For points that were merged, the highest value.
    pub points: Vec<(Time, Bytes)>,
}

/// Bytes exchanged between ranks: bytes of messages; and for all-reduce, all-gather, reduce-scatter and
/// all-to-all the minimum that members must exchange, spread evenly over all pairs of members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct TrafficMatrix {
    /// Number of adjacent ranks that share a row and a column.
    pub ranks_per_cell: u32,
    /// Bytes, indexed by sender, then receiver.
    pub bytes: Vec<Vec<u64>>,
}

/// Returns the shortest time that a picture of `makespan` with `rows` rows can resolve.
fn resolution(makespan: Span, rows: usize) -> Span {
    Span(makespan.0 / if rows > 24 { 600 } else { 1200 })
}
