//! Differences between two jobs, as a shell sees them.

mod commands;
mod damaged;
mod reports;
