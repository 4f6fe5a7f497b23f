//! The simulated machine: passive models that compute how long operations take.

pub mod collective;
pub mod compute;
pub mod devices;
pub mod group;
pub mod machine;
pub mod memory;
pub mod network;
pub mod recordings;
pub mod topology;
