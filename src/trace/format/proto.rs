//! Generated message types, which are used for writing and rewriting and by tools, but not by the fast reader.

#![allow(
    missing_docs,
    reason = "generated; proto/et_def.proto documents every field"
)]

include!(concat!(env!("OUT_DIR"), "/chakra_proto_msg.rs"));
