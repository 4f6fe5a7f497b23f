//! The command line.
pub mod machine;
