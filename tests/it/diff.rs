//! Tests differences between two jobs from a shell.

mod commands;
mod damaged;
mod reports;
