//! Tests captures as other people make them: from other devices and versions, renamed, rewritten by
//! scripts, saved by editors, truncated, compressed, or without the fields of newer profilers.
//!
//! - `gpu_job`: a training job as Kineto shows it, which the tests rewrite
//! - `dialects`: versions of the profiler, devices, and events in odd order or number
//! - `groups`: collectives of groups without names
//! - `named`: names of files, ids and numbers
//! - `texts`: encodings, compression, and texts that are not captures

mod dialects;
mod gpu_job;
mod groups;
mod named;
mod texts;
