//! Tests of ASTRA-sim 2.x: compares the plain simulator of `testkit` with the original's answers,
//! if the variable `CHAKRAM_CORPUS` names a folder with them, and the program with both.

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
