//! Generates the message types of the member `trace` from the compiled schema, so that a build needs only a Rust
//! toolchain.
//!
//! `proto/et_def.bin` is `proto/et_def.proto` as a `FileDescriptorSet`. The test `schema` compiles the schema again
//! and compares; `BLESS=1` writes the file.

use prost::Message;
use prost_types::FileDescriptorSet;

/// Path relative to `src/trace`, where the script runs.
const SCHEMA: &str = "../../proto/et_def.bin";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={SCHEMA}");
    let schema = FileDescriptorSet::decode(std::fs::read(SCHEMA)?.as_slice())?;
    prost_build::Config::new()
        .bytes(["."])
        .compile_fds(schema)?;
    Ok(())
}
