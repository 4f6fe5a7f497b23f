//! ASTRA-sim 2.x: a simulator of its behaviour that is only there to be right, and what holds it
//! against the answers of the original, where the variable `CHAKRAM_CORPUS` names a folder with them.

mod against;
mod chance;
mod golden;
mod inputs;
pub mod oracle;
mod outputs;
mod product;
mod quirks;
mod repro;
mod rows;
