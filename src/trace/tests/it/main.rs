//! White-box tests of traces: they compare traces with generated types, simple readers and traces of other tools.

mod corpus;
mod forms;
mod harness;
mod readers;
