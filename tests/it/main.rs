//! Integration tests: the program and the library as users see them, in one binary.
//!
//! - `cases`: the goldens under `traces/`
//! - `harness`: the bodies of the fuzz targets, run on every seed
//! - `physics`: what collectives, messages, memory, lanes and groups take, against formulas and a
//!   simulator of a few lines that shares nothing with the engine; and what is refused or stuck
//! - `readers`: the two readers of traces against each other, and files of every kind
//! - `timeline`: the picture of a replay, parsed back

mod cases;
mod harness;
mod physics;
mod readers;
mod timeline;
