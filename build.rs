//! Generates the message types from the compiled schema, so that a Rust toolchain is enough; of the member `trace`.
//!
//! `proto/et_def.bin` is `proto/et_def.proto` as a `FileDescriptorSet`. The test `schema` compiles it anew and
//! compares; `BLESS=1` writes it.

use prost::Message;
use prost_types::FileDescriptorSet;

/// Seen from `src/trace`, where the script runs.
const SCHEMA: &str = "../../proto/et_def.bin";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={SCHEMA}");
    let schema = FileDescriptorSet::decode(std::fs::read(SCHEMA)?.as_slice())?;
    prost_build::Config::new()
        .bytes(["."])
        .compile_fds(schema)?;
    Ok(())
}
