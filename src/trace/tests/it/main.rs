//! White-box tests of traces. They compare the readers and writers with generated types, simple readers and other
//! tools' traces.

mod corpus;
mod forms;
mod harness;
mod readers;
