//! Differences of two jobs: the program as a shell sees it.

mod commands;
mod damaged;
mod reports;
