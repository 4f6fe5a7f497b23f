//! Renders inspections as text, JSON and CSV.

use chakram_base::setting::EnumeratedSetting;

mod csv;
mod json;
mod labels;
mod list;
mod node;
mod path;
mod summary;

pub use csv::render_summary_table_as_csv as csv;
pub use json::{NamedViewDocument, SummaryDocument, build_summary_document as json};
pub use list::{NodeDocument, NodeListFormat};
pub use node::{
    NeighbourhoodDocument, build_node_neighbourhood_document as node_json,
    render_node_and_neighbours_as_text as node_text,
};
pub use path::{
    CriticalPathAndRankInputs, CriticalPathRenderInput, JobCriticalPathsDocument,
    find_job_or_per_rank_critical_paths,
};
pub use summary::render_summary_as_text as text;

/// Hints on how to show what a text omits, in the option syntax of the program that prints it.
#[derive(Clone, Copy, Debug)]
pub struct OmissionHints {
    /// Option to show everything.
    pub all: &'static str,
    /// Options to show the paths of all ranks, or of one rank.
    pub all_paths: &'static str,
    /// Returns the option to show all rows of a table.
    pub table: fn(SummaryTableKind) -> String,
    /// Returns the option that sets how many nodes are shown.
    pub limit: fn(usize) -> String,
}

/// A table in a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummaryTableKind {
    /// One row per rank.
    Ranks,
    /// Sums by node type.
    Types,
    /// Sums by lane.
    Lanes,
    /// Collectives by group and kind.
    Collectives,
    /// Messages by sender and receiver.
    Messages,
    /// Operators by name.
    Operators,
    /// Attributes of nodes.
    Attributes,
}

impl EnumeratedSetting for SummaryTableKind {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Ranks, "ranks", "Overview of each rank"),
        (Self::Types, "types", "Nodes by type"),
        (Self::Lanes, "lanes", "Nodes by lane"),
        (
            Self::Collectives,
            "collectives",
            "Collectives by group and kind",
        ),
        (
            Self::Messages,
            "messages",
            "Messages by sender and receiver",
        ),
        (Self::Operators, "operators", "Operators by name"),
        (Self::Attributes, "attributes", "Attributes of nodes"),
    ];
}
