//! References for chakram's tests: captures of simulated jobs with their ground truth, and simple simulators.
//!
//! Nothing here depends on chakram or shares code with it, and nothing here is shipped to users. Test code that
//! uses chakram's own types is in the tests of the respective crates.
//!
//! - [`capture`]: files in the form of PyTorch's profiler, with the true times of all events
//! - [`astra_sim`]: a sequential simulator of ASTRA-sim 2.x, and random jobs for it
//! - [`switch_pool`]: loads through two levels of switches, by bisection
//! - [`serving`]: requests on processors, one task or one request at a time
//! - [`llm_serving`]: an engine of language models, step by step
//! - [`port_chunks`]: chunks of loads and messages that take turns at ports
//! - [`corpus`]: traces and captures of other tools, and the tests that are skipped without them
//! - [`seeds`]: runs fuzz targets on their seeds
//! - [`wire`]: a small writer of protobuf's wire format

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
