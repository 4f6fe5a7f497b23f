//! Captures as other people make them: other devices and versions, names of their own, rewritten by scripts, saved by editors,
//! cut, packed, or without what newer profilers write.
//!
//! - `gpu_job`: a training job as Kineto shows it, which the tests rewrite
//! - `dialects`: versions of the profiler, devices, and events in odd order or number
//! - `groups`: collectives of groups that nothing names
//! - `named`: names of files, ids and numbers
//! - `texts`: encodings, packages, and texts that are no capture

mod dialects;
mod gpu_job;
mod groups;
mod named;
mod texts;
