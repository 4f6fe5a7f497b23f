//! References for Chakram's tests: captures of simulated jobs with true times, and simple simulators.
//!
//! The testkit does not depend on Chakram, shares no code with it, and is not published. Helpers that use Chakram's own
//! types are next to the tests that use them.
//!
//! - [`capture`]: files as PyTorch's profiler writes them, and the true times of their events
//! - [`astra_sim`]: ASTRA-sim 2.x as a plain event-by-event simulator, and random jobs for it
//! - [`switch_pool`]: loads through two levels of switches, computed by bisection
//! - [`serving`]: requests on processors, one task or one request at a time
//! - [`llm_serving`]: a serving engine of language models, step by step
//! - [`expert_routing`]: copies of tokens for experts on other ranks, token by token
//! - [`port_chunks`]: chunks of loads and messages that alternate at ports
//! - [`corpus`]: traces and captures of other tools, and a list of the tests that lack them
//! - [`seeds`]: fuzz targets, run on their seeds
//! - [`wire`]: protobuf's wire format in a few lines

pub mod astra_sim;
pub mod capture;
pub mod corpus;
pub mod expert_routing;
pub mod llm_serving;
pub mod port_chunks;
pub mod seeds;
pub mod serving;
pub mod switch_pool;
pub mod tile_transfers;
pub mod wire;
