//! Answers of a replay, against physics worked out by other means.
//!
//! - `rig` and `lines`: machines and traces in a few words, and a log of what an observer is told;
//! - `oracle`: integer arithmetic and closed forms, written again from what algorithms mean;
//! - `naive`: the same collectives message by message, as a fixpoint over explicit times;
//! - `wires`: what bytes pass, and a bound from it;
//! - `trains`: messages as packets over links, which serve one train after another;
//! - `flows`: messages that are handed over at given times;
//! - `programs`: who sends what to whom after what, for the simulator `naive`;
//! - `fixpoint`: delays and communication that lasts as recorded, as a fixpoint over explicit times;
//! - `doubling`: a machine file whose numbers are doubled one by one.
//!
//! The other modules are tests, one theme each.

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
mod lines;
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
mod rig;
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
