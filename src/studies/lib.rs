//! Evaluates many replays: sweeps over plans and machines, scores against measured runs, schedules
//! on chips, and regression checks of archives.

pub mod regression;
pub mod schedule;
pub mod score;
pub mod sweep;
