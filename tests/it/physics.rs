//! Compares results of replays with physics computed by other means.
//!
//! - `rig` and `lines`: short notations for machines and traces, and a log of an observer's
//!   notifications;
//! - `oracle`: integer arithmetic and closed forms, derived again from the definitions of the
//!   algorithms;
//! - `naive`: the same collectives as single messages, by a fixpoint over explicit times;
//! - `wires`: bytes over each link, and a bound that follows from them;
//! - `trains`: messages as packets on links that serve one train after another;
//! - `flows`: messages sent at given times;
//! - `programs`: messages of each member and their prerequisites, for the simulator `naive`;
//! - `fixpoint`: delays and communication as recorded, by a fixpoint over explicit times;
//! - `doubling`: a machine file, and tests that double one of its numbers.
//!
//! Each other module tests one theme.

mod adapters;
mod as_recorded;
mod auto;
mod bandwidth;
mod bytes;
mod chunk_count;
mod closed_forms;
mod communicators;
mod custom;
mod data_flow;
mod delays;
mod determinism;
mod doubling;
mod endpoints;
mod fixpoint;
mod flexible;
mod flows;
mod folding;
mod groups;
mod hierarchy;
mod in_switch;
mod launches;
mod laws;
pub mod lines;
mod links;
mod loads;
mod machine_keys;
mod messages;
mod mirror;
mod monotone;
mod naive;
mod named_memories;

mod oracle;
mod pipeline;
mod placement;
mod pools;
mod ports;
mod programs;
mod refused;
mod rehearsals;
mod replicas;
pub mod rig;
mod scale;
mod send_completion;
mod sensitivities;
mod settings;
mod skewed;
mod stuck;
mod table_v;
mod through;
mod tile_groups;
mod tiles;
mod trains;
mod turns;
mod unequal;
mod waiting;
mod wires;
