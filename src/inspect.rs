//! Inspection of a trace or a job: counts and times by type, lane, group, peer and operator, single nodes with
//! their neighbourhood, and the critical path of the recorded run.
//!
//! Nothing is replayed and no machine is needed. Each rank is read into a [`Trace`] on its own, whatever is
//! wrong with its file; ranks are read by several threads and handed on in order ([`in_order`]), so that at
//! most a few are in memory at a time.

mod attributes;
mod class;
mod fault;
mod filter;
mod gather;
mod lanes;
mod metadata;
mod near;
mod parallel;
mod path;
mod row;
mod summary;
mod table;
mod times;
mod trace;
mod track;

pub use class::Class;
pub use fault::{Complaint, Faults};
pub use filter::{Filter, Label, Pattern, RankSet, Types};
pub use gather::gather;
pub use lanes::{LaneKey, Lanes, group_label};
pub use metadata::Header;
pub use near::{Near, Neighbour, Neighbourhood, NodeRecord};
pub use parallel::in_order;
pub use path::{CriticalPath, Piece, Spent, critical_path, spent_by};
pub use row::NodeRow;
pub use summary::{Inspection, RECEIVED, RankFacts, RankSummary, SENT};
pub use table::{Row, Table, Tally};
pub use times::{Basis, Times};
pub use trace::Trace;
pub use track::Track;
