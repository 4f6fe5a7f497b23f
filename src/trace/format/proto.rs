//! The generated message types: for writing, rewriting and tools, never for the hot reader.

#![allow(
    missing_docs,
    reason = "generated; proto/et_def.proto documents every field"
)]

include!(concat!(env!("OUT_DIR"), "/chakra_proto_msg.rs"));
