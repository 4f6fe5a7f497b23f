//! What a replay says, against physics worked out by other means.
//!
//! - `rig` and `lines`: machines and traces in a few words, and a log of what an observer is told;
//! - `oracle`: integer arithmetic and closed forms, written again from what algorithms mean;
//! - `naive`: the same collectives message by message, as a fixpoint over explicit times;
//! - `fixpoint`: delays and communication that lasts as recorded, as a fixpoint over explicit times;
//! - `doubling`: a machine file whose numbers are doubled one by one.
//!
//! The other modules are tests, one theme each.

mod as_recorded;
mod bytes;
mod closed_forms;
mod delays;
mod determinism;
mod doubling;
mod fixpoint;
mod groups;
mod hierarchy;
mod lines;
mod machine_keys;
mod messages;
mod mirror;
mod monotone;
mod naive;
mod oracle;
mod placement;
mod refused;
mod rig;
mod skewed;
mod stuck;
mod turns;
