//! What differs between two jobs: nothing if only numbers and order do; every single change, with its kind
//! and place; and the program as a shell sees it.

mod changes;
mod commands;
mod damaged;
mod reports;
mod same;
mod traces;
