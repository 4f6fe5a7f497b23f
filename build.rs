//! Compiles the trace schema with a pure-Rust protobuf compiler, so that a Rust toolchain is enough.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/et_def.proto");
    let schema = protox::compile(["proto/et_def.proto"], ["proto"])?;
    prost_build::Config::new()
        .disable_comments(["."])
        .bytes(["."])
        .compile_fds(schema)?;
    Ok(())
}
