//! Tests comparisons of two traces. If only ids and order differ, no difference may be found. If one thing changes,
//! exactly this change must be found.

mod changes;
mod same;
mod traces;
