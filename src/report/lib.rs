//! Results of a replay: observers that watch it, and the report that they fill.
//!
//! Observers are chosen by the caller and compiled into the loop. Nothing is kept per node unless an
//! observer asks for it.

mod aggregation;
pub mod breakdown;
pub mod busy;
pub mod collectives;
pub mod compare;
pub mod critical_path;
pub mod csv;
pub mod document;
pub mod draw;
pub mod extrapolation;
pub mod html;
mod interval;
mod issue_times;
pub mod json;
mod keyed;
mod launched;
mod links;
mod machine_response;
pub mod memory;
mod memory_accesses;
pub mod npus;
pub mod operators;
pub mod pictures;
mod port_memory;
mod profiler;
mod relay;
mod replay;
pub mod spans;
pub mod summary;
pub mod table;
pub mod text;
mod throughput;
pub mod tile_map;
pub mod tiles;
pub mod timeline;
mod two_threads;
mod warnings;

pub use breakdown::{BreakdownObserver, ChargedTime};
pub use busy::{BusyObserver, RankBusyTime};
pub use chakram_engine::{CollectiveRecord, Observer, RunSegment, TimeCategory};
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
