//! Sweeps: many machines, models and plans, each a point of a study, and which of them is best.
//!
//! A [`Study`] says along which axes points differ and what is looked for. A [`StudyExplorer`] goes over them with a
//! strategy for each layer of axes, refuses what cannot be, excludes what a bound excludes ([`bound`]), replays the
//! rest, each once, and keeps a journal. A [`SweepTable`] is what came out.

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

pub use check::{StudyError, load};
pub use command::{PointCommand, PointWork};
pub use evaluate::PointEvaluator;
pub use explanation::explain;
pub use journal::{JournalEntry, RESULTS, SweepJournal};
pub use page::render;
pub use search::{
    LayerTurn, StudyExplorer, StudyShard, SweepError, SweepOptions, SweepStep, WorkDone,
};
pub use setting::Settings;
pub use study::Study;
pub use table::SweepTable;

/// The most points that a strategy which visits all of them may have.
const MOST_POINTS: u64 = 4_000_000;
