//! References for chakram's tests: captures of jobs that never ran, with their truth, and plain simulators.
//!
//! Nothing here depends on chakram or shares code with it, and nothing of it reaches a user. What tests need that
//! speaks chakram's own types lies beside them.
//!
//! - [`capture`]: files as PyTorch's profiler writes them, and when everything in them really happened
//! - [`astra_sim`]: ASTRA-sim 2.x as a simulator that does one thing after another, and random jobs for it
//! - [`switch_pool`]: loads through two levels of switches, by bisection
//! - [`serving`]: requests on processors, one task or one request at a time
//! - [`llm_serving`]: an engine of language models, step by step
//! - [`port_chunks`]: chunks of loads and messages that take turns at ports
//! - [`corpus`]: traces and captures of other tools, and the tests that go without
//! - [`seeds`]: fuzz targets on their seeds
//! - [`wire`]: protobuf's wire format in a few lines

pub mod astra_sim;
pub mod capture;
pub mod corpus;
pub mod llm_serving;
pub mod port_chunks;
pub mod seeds;
pub mod serving;
pub mod switch_pool;
pub mod tile_transfers;
pub mod wire;
