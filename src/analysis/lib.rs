//! Validates, inspects, compares and transforms traces.

pub mod diff;
pub mod edit;
pub mod inspect;
pub mod validate;
