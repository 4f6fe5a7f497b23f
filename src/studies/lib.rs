//! Many replays for one answer: sweeps over plans and machines, scores against measured runs, schedules on chips, and
//! regression of archives.

pub mod regression;
pub mod schedule;
pub mod score;
pub mod sweep;
