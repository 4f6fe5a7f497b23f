//! White-box tests of traces, compared with generated types, simple readers and traces of other
//! tools.

mod corpus;
mod forms;
mod harness;
mod readers;
