//! Analysis and transformation of traces: validation, inspection, comparison, and edits.

pub mod diff;
pub mod edit;
pub mod inspect;
pub mod validate;
