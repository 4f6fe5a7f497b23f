//! Tests comparisons of two traces. If only ids and order differ, they must find no difference. After a single change,
//! they must find exactly this change.

mod changes;
mod same;
mod traces;
