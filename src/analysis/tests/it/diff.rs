//! Tests differences of two traces. If only ids and order differ, a comparison must find no difference. If one thing
//! is changed, the comparison must find exactly this change.

mod changes;
mod same;
mod traces;
