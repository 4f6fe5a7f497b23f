//! ASTRA-sim 2.x: the plain simulator of `testkit` against the original's answers, if the variable `CHAKRAM_CORPUS`
//! names a folder with them, and the program against both.

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
