//! Tests differences of two traces: there are none if only ids and order differ, and every single change is found
//! with its kind and place.

mod changes;
mod same;
mod traces;
