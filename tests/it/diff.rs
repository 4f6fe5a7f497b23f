//! Differences of two jobs: none if only numbers and order differ; every single change, with its kind
//! and place; and the program as a shell sees it.

mod changes;
mod commands;
mod damaged;
mod reports;
mod same;
mod traces;
