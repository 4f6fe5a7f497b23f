//! Results of a replay: observers that watch it, and the report that they fill.
//!
//! Observers are chosen by the caller and compiled into the loop. Nothing is kept per node unless an
//! observer asks for it.
//!
//! ```
//! use chakram::{Job, Machine, engine::ReplayOptions};
//!
//! let job = Job::open(["traces/data-parallel-8"])?;
//! let report = job.replay(&Machine::load("dgx-h100")?, &ReplayOptions::default())?;
//! for row in &report.rows {
//!     println!("rank {}: {}", row.rank, report.outcome.makespan);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod aggregation;
pub(crate) mod breakdown;
pub(crate) mod busy;
pub(crate) mod collectives;
pub(crate) mod compare;
pub(crate) mod critical_path;
pub(crate) mod csv;
pub(crate) mod extrapolation;
pub(crate) mod html;
mod interval;
mod issue_times;
pub(crate) mod json;
mod keyed;
mod launched;
mod links;
mod machine_response;
pub(crate) mod memory;
mod memory_accesses;
pub(crate) mod npus;
pub(crate) mod operators;
pub(crate) mod pictures;
mod port_memory;
mod profiler;
mod relay;
mod replay;
pub(crate) mod spans;
pub(crate) mod summary;
pub(crate) mod table;
pub(crate) mod text;
mod throughput;
pub(crate) mod tile_map;
pub(crate) mod tiles;
pub(crate) mod timeline;
mod two_threads;
mod warnings;

pub use crate::engine::{CollectiveRecord, Observer, RunSegment, TimeCategory};
pub use breakdown::{BreakdownObserver, ChargedTime};
pub use busy::{BusyObserver, RankBusyTime};
pub use collectives::CollectiveObserver;
pub use compare::{MachineColumn, MachineComparison, MachineResult};
pub use critical_path::CriticalPathSummary;
pub use launched::{beside, replay_launched};
pub use memory::{MemoryObserver, MemoryRow};
pub use operators::OperatorObserver;
pub use pictures::{PictureRecorder, ReplayPictures};
pub use replay::{replay, replay_in};
pub use spans::{NodeSpan, SpanRecorder};
pub use summary::{HashedInput, Report};
pub use throughput::Throughput;
pub use timeline::{TimelineFormat, TimelineSelection, TimelineWriter};
