//! Traces that other tools capture: one file or folder per format.
//!
//! The formats' types stop here; what leaves is the project's own.

pub mod pytorch;
