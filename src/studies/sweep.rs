//! Searches combinations of machines, models and plans for the best one. Each combination is a
//! point of a study.
//!
//! A [`Study`] defines the objectives, and the axes along which points differ. A [`StudyExplorer`] visits points, with
//! a search strategy for each layer of axes. It rejects impossible points, excludes points by their bounds ([`bound`]),
//! replays each remaining point once, and keeps a journal. A [`SweepTable`] contains the results.

mod axis;
mod bound;
mod check;
mod command;
mod evaluate;
mod explanation;
mod journal;
mod objective;
mod page;
mod point;
mod search;
mod setting;
mod study;
mod table;
mod without_effect;

pub use check::{StudyError, load_study_with_hash};
pub use command::{ModelOrTracesArgument, PointCommand};
pub use evaluate::PointEvaluator;
pub use explanation::compare_row_with_neighbours;
pub use journal::{JournaledBoundOrAnswer, RESULTS, SweepJournal};
pub use page::render_sweep_page;
pub use search::{
    NewAnswerOrBoundEvent, NewBoundAndReplayCounts, SearchLayerTurnRecord, StudyExplorer,
    StudyShard, SweepError, SweepThreadAndShardOptions,
};
pub use setting::Settings;
pub use study::Study;
pub use table::SweepTable;

/// Maximum number of points for a strategy that visits all points.
const MOST_POINTS: u64 = 4_000_000;
