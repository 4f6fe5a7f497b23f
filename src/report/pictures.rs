//! Data that pages draw and tables do not have: activity of ranks, memory over time, and bytes between ranks.
//!
//! Nothing is kept node by node: neighbouring intervals of one sort are one, and where there are more than a picture
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
    /// Activity of ranks, one for all that do the same at the same times. Of many, first those that are out of memory, those
    /// with the least and the most time in a category, and those that others wait for; then one of each class.
    pub ranks: Vec<RankPicture>,
    /// Number of ranks that were watched: of many, some of each graph and class of NPUs.
    #[serde(default)]
    pub watched: Option<u32>,
    /// The critical path.
    pub critical_path: Vec<PictureSpan>,
    /// The longest pieces of the critical path, each of one operator on one rank.
    #[serde(default)]
    pub longest_on_path: Vec<PictureSpan>,
    /// Memory of ranks over time, of those ranks, where traces say what nodes allocate.
    pub memory: Vec<MemoryCurve>,
    /// Bytes between ranks.
    pub traffic: TrafficMatrix,
    /// Peaks of the classes of NPUs that ran kernels.
    #[serde(default)]
    pub rooflines: Vec<NpuRoofline>,
}

/// Peaks of a class of NPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct NpuRoofline {
    /// Name of the class.
    pub class: String,
    /// Bandwidth of its memory.
    pub memory_bytes_per_s: f64,
    /// Peak of each number format that kernels of the job compute in.
    pub peaks: Vec<FormatPeak>,
}

/// Peak of a number format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct FormatPeak {
    /// Name of the format.
    pub dtype: String,
    /// Its FLOPs per second.
    pub flops_per_s: f64,
}

/// Activity of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct RankPicture {
    /// The rank.
    pub rank: Rank,
    /// Number of other ranks that do the same at the same times; ranks that were not watched are among them if they execute
    /// the same graph on the same class of NPUs and take as long in each category.
    #[serde(default)]
    pub alike: u32,
    /// Its intervals, in order; idle ones are left out.
    pub spans: Vec<PictureSpan>,
}

/// An interval in a picture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct PictureSpan {
    /// Its beginning.
    #[serde(rename = "from_ps")]
    pub from: Time,
    /// Its end.
    #[serde(rename = "to_ps")]
    pub to: Time,
    /// The rank, on the critical path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// The category of the time, by its key in `time_ps`.
    pub category: String,
    /// Micro-batch and direction, or the operator.
    pub name: String,
}

/// Bytes that a rank holds over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MemoryCurve {
    /// The rank.
    pub rank: Rank,
    /// Capacity of its NPU's memory.
    #[serde(rename = "capacity_bytes")]
    pub capacity: Option<Bytes>,
    /// Instants in picoseconds, and the bytes from then on; between two of them the most.
    pub points: Vec<(Time, Bytes)>,
}

/// Bytes between ranks: what messages carry, and of all-reduces, all-gathers, reduce-scatters and all-to-alls the
/// least that members must exchange, spread evenly over all pairs of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct TrafficMatrix {
    /// Number of neighbouring ranks that share a row and a column.
    pub ranks_per_cell: u32,
    /// Bytes by sender, then receiver.
    pub bytes: Vec<Vec<u64>>,
}

/// The time that a picture of so much time resolves, with so many rows.
fn resolution(makespan: Span, rows: usize) -> Span {
    Span(makespan.0 / if rows > 24 { 600 } else { 1200 })
}
