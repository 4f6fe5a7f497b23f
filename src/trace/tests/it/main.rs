//! White-box tests of traces, against generated types, plain readers and what other tools wrote.

mod corpus;
mod forms;
mod harness;
mod readers;
