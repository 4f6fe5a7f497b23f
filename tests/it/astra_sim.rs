//! Tests ASTRA-sim 2.x. If the variable `CHAKRAM_CORPUS` names a folder with the original's
//! answers, compares the plain simulator of `testkit` with these answers, and the program with
//! both.

mod against;
mod chance;
mod golden;
mod imported;
mod inputs;
mod order;
mod outputs;
mod product;
mod quirks;
mod repro;
mod rows;
mod settings;
