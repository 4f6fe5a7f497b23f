//! Converts traces that other tools capture or describe: one file or folder per format.
//!
//! The formats' own types stay within this crate; its results use chakram's types.

mod comm_kernels;
mod folder;
pub mod goal;
pub mod msccl;
pub mod nsys;
pub mod pytorch;
pub mod simai;
pub mod sources;
pub mod text_workload;
mod words;
pub mod xplane;
