//! Looking at traces and changing them: what is wrong with them, what is in them, what differs, and traces that become
//! other traces.

pub mod diff;
pub mod edit;
pub mod inspect;
pub mod validate;
