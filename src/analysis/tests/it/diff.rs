//! Tests comparisons of two traces. If only ids and order differ, a comparison must find no difference. After
//! a single change, a comparison must find exactly this change.

mod changes;
mod same;
mod traces;
