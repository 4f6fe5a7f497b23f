//! Data for the pictures of a page, which tables do not contain: activity of ranks, memory over time, and bytes
//! between ranks.
//!
//! No data is stored per node. Adjacent intervals of the same sort are merged. If a picture cannot show all intervals,
//! adjacent short intervals are drawn as one interval, with the sort that takes the most time.

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
    /// Activity of ranks; ranks with identical activity share one entry. If there are many ranks, the most informative
    /// ranks come first: ranks that are out of memory, have the shortest or longest time in a category, or made
    /// others wait. One rank of each NPU class follows.
    pub ranks: Vec<RankPicture>,
    /// Number of observed ranks. If there are many ranks, only some ranks per graph and NPU class are observed.
    #[serde(default)]
    pub watched: Option<u32>,
    /// Intervals of the critical path.
    pub critical_path: Vec<PictureSpan>,
    /// The longest parts of the critical path, each of one operator on one rank.
    #[serde(default)]
    pub longest_on_path: Vec<PictureSpan>,
    /// Memory of some of these ranks over time, if traces state allocations.
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
    /// Memory bandwidth of the class, bytes per second.
    pub memory_bytes_per_s: f64,
    /// Peak rate of each number format that kernels of the job use.
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

/// Activity of a rank over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct RankPicture {
    /// The rank.
    pub rank: Rank,
    /// Number of other ranks with identical activity. Unobserved ranks count if they run the same graph on the same NPU
    /// class and spend the same time in each category.
    #[serde(default)]
    pub alike: u32,
    /// Intervals of the rank in order of time, without idle intervals.
    pub spans: Vec<PictureSpan>,
}

/// An interval in a picture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct PictureSpan {
    /// Start of the interval.
    #[serde(rename = "from_ps")]
    pub from: Time,
    /// End of the interval.
    #[serde(rename = "to_ps")]
    pub to: Time,
    /// Rank of the interval; set only on the critical path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// Key of the time's category, as in `time_ps`.
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
    /// Memory capacity of the rank's NPU, bytes.
    #[serde(rename = "capacity_bytes")]
    pub capacity: Option<Bytes>,
    /// Instants in picoseconds, each with the bytes allocated from this instant on. A point that merges several points
    /// has their highest value.
    pub points: Vec<(Time, Bytes)>,
}

/// Bytes exchanged between ranks. A message adds its size. An all-reduce, all-gather, reduce-scatter or all-to-all adds
/// the minimum number of bytes that its members must exchange, divided evenly among all pairs of members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct TrafficMatrix {
    /// Number of adjacent ranks that share a row and a column.
    pub ranks_per_cell: u32,
    /// Bytes, indexed first by sender, then by receiver.
    pub bytes: Vec<Vec<u64>>,
}

/// Returns the shortest time that a picture of `makespan` with `rows` rows can resolve.
fn choose_resolution(makespan: Span, rows: usize) -> Span {
    Span(makespan.0 / if rows > 24 { 600 } else { 1200 })
}
