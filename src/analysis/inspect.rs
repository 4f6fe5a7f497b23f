//! Inspects a trace or a job: shows counts and times by type, lane, group, peer and operator; single nodes with their
//! neighbourhood; and the critical path of the recorded run.
//!
//! An inspection does not replay traces and needs no machine. Each rank's trace is read into its own
//! [`InspectedRankTrace`], even if the file has faults. Several threads read traces, but [`for_each_in_order`] passes
//! them on in ascending order of ranks, so that only a few are in memory at a time.

mod attributes;
mod class;
mod critical_path;
mod fault;
mod filter;
mod job_summary;
mod lanes;
mod metadata;
mod neighbourhood;
mod parallel;
mod path_input;
pub mod render;
mod row;
mod summary;
mod table;
mod times;
mod trace;

pub use class::InspectedNodeType;
pub use critical_path::{
    CriticalPath, PathDelayWaitWorkTotals, PathSegment, critical_path, sum_path_time_by_key,
};
pub use fault::{CountedFault, RejectedAndRepairedFaults};
pub use filter::{AttributeFilter, NameGlobOrSubstring, NodeFilter, NodeTypeFilter, RankSet};
pub use job_summary::{inspect_job, inspect_job_with_progress};
pub use lanes::{LaneKey, NodeLaneTable, group_label};
pub use metadata::TraceMetadataRecord;
pub use neighbourhood::{
    NearbyPredecessorsOrSuccessors, NodeAtDistance, NodeNeighbourhood, NodeWithAllFields,
};
pub use parallel::for_each_in_order;
pub use path_input::RankTimesForCriticalPath;
pub use row::NodeRow;
pub use summary::{
    JobInspectionSummary, RECEIVED, RankInspectionSummary, SENT, UnfilteredRankTraceTotals,
};
pub use table::{NodeSums, RankSumsAndExtremesByKey, SumOverRanksAndExtremeRanksRow};
pub use times::{NodeStartTimesSource, RankNodeTimes};
pub use trace::InspectedRankTrace;
