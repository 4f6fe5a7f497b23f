//! Message types generated from the schema, for writing, rewriting and tools. The fast reader does not use these types.

#![allow(
    missing_docs,
    reason = "generated; proto/et_def.proto documents every field"
)]

include!(concat!(env!("OUT_DIR"), "/chakra_proto_msg.rs"));
