//! Differences of two traces: none if only numbers and order differ; every single change is found with its kind and
//! place.

mod changes;
mod same;
mod traces;
