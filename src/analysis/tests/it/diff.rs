//! Tests differences of two traces. There must be none if only ids and order differ, and every single change must be
//! found with its kind and place.

mod changes;
mod same;
mod traces;
