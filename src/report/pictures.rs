//! Data for a page's pictures: activity of ranks, memory over time, and bytes between ranks. They appear in no table.
//!
//! Nothing is stored per node. Adjacent intervals with the same category and name are merged. If a picture cannot show
//! all intervals, short adjacent ones are merged into one, with the category and name that take most of its time.

mod intervals;
mod recorder;
mod rooflines;
mod traffic;

pub use recorder::PictureRecorder;

use chakram_base::ids::Rank;
use chakram_base::units::{Bytes, Span, Time};
use serde::{Deserialize, Serialize};

/// Data for the pictures of a replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ReplayPictures {
    /// Activity of ranks, sorted by rank; ranks with identical activity share one entry. If there are too many ranks,
    /// the most informative ones are kept: those that run out of memory, those with the shortest or longest time in a
    /// category, those that finish last, and those that others waited for. Then, one rank of each NPU class is kept.
    pub ranks: Vec<SingleRankActivityPicture>,
    /// Number of ranks with recorded activity. In a job with many ranks, only some of each graph and NPU class are
    /// recorded.
    #[serde(default)]
    pub watched: Option<u32>,
    /// Intervals of the critical path, in order of time.
    pub critical_path: Vec<PictureSpan>,
    /// The longest intervals of the critical path. Each interval is one operator on one rank.
    #[serde(default)]
    pub longest_on_path: Vec<PictureSpan>,
    /// Memory use over time for some of these ranks, if the traces record allocations.
    pub memory: Vec<MemoryCurve>,
    /// Bytes sent between ranks.
    pub traffic: TrafficMatrix,
    /// Peak rates of the NPU classes that run kernels.
    #[serde(default)]
    pub rooflines: Vec<NpuClassPeakRates>,
}

/// Peak rates of one NPU class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct NpuClassPeakRates {
    /// Name of the NPU class.
    pub class: String,
    /// Memory bandwidth, in bytes per second.
    pub memory_bytes_per_s: f64,
    /// Peak rates of the number formats that the job's kernels use.
    pub peaks: Vec<NumberFormatPeakRate>,
}

/// Peak rate for one number format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct NumberFormatPeakRate {
    /// Name of the number format.
    pub dtype: String,
    /// Peak rate, in FLOPs per second.
    pub flops_per_s: f64,
}

/// Activity of one rank over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct SingleRankActivityPicture {
    /// The rank.
    pub rank: Rank,
    /// Number of other ranks with identical activity. It includes unrecorded ranks that run the same graph on the same
    /// NPU class and spend the same time in each category.
    #[serde(default)]
    pub alike: u32,
    /// Intervals in order of time; idle intervals are omitted.
    pub spans: Vec<PictureSpan>,
}

/// An interval of a picture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct PictureSpan {
    /// Start of the interval.
    #[serde(rename = "from_ps")]
    pub from: Time,
    /// End of the interval.
    #[serde(rename = "to_ps")]
    pub to: Time,
    /// Rank of the interval; present only on the critical path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// Key of the interval's category, as used in `time_ps`.
    pub category: String,
    /// Micro-batch and direction (as in `mb3 bwd`), or the operator's name.
    pub name: String,
}

/// Allocated bytes of one rank over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MemoryCurve {
    /// The rank.
    pub rank: Rank,
    /// Memory capacity of the rank's NPU, in bytes.
    #[serde(rename = "capacity_bytes")]
    pub capacity: Option<Bytes>,
    /// Times in picoseconds in ascending order, each with the bytes allocated from that time. A point merged from
    /// several has the maximum of their bytes.
    pub points: Vec<(Time, Bytes)>,
}

/// Bytes sent between ranks. Each message adds its size. Each all-reduce, all-gather, reduce-scatter or all-to-all adds
/// the fewest bytes that its members must send, divided evenly among the pairs of members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct TrafficMatrix {
    /// Number of adjacent ranks that share one row and one column.
    pub ranks_per_cell: u32,
    /// Bytes by sender (row), then by receiver (column).
    pub bytes: Vec<Vec<u64>>,
}

/// Returns the shortest interval that a picture with `rows` rows can show, if its time axis covers `makespan`.
fn choose_resolution(makespan: Span, rows: usize) -> Span {
    Span(makespan.0 / if rows > 24 { 600 } else { 1200 })
}
