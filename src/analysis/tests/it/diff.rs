//! Tests comparisons of two traces. If only ids and order differ, the comparison must find no difference. After a
//! single change, it must find exactly this change.

mod changes;
mod same;
mod traces;
