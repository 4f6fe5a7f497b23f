//! Tests differences of two traces. A comparison must find no differences if only ids and order differ, and must find
//! every single change with its kind and place.

mod changes;
mod same;
mod traces;
