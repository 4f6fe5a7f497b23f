//! Tests commands that make traces from traces: `slice`, `anonymise`, `audit`, `scale`.

mod closing;
mod damage;
mod hiding;
mod rig;
mod scaling;
mod slicing;
