//! Extension points: the traits that other crates can implement, and the types that these traits use.
//!
//! - A network implements [`NetworkBackend`]. Pass the network to
//!   [`CompiledReplay::run_on_network`](crate::engine::CompiledReplay::run_on_network).
//! - A collective algorithm implements [`UserAlgorithmModel`]. Pass the algorithm to
//!   [`Machine::with_dimension_algorithm`](crate::Machine::with_dimension_algorithm).
//! - A [`KernelDurationModel`] times kernels, and a [`ReplacementMemoryModel`] with its [`UserRemoteMemoryModel`] adds
//!   a memory. Pass kernel models and memories as [`ReplacementKernelAndMemoryModels`] of the
//!   [options](crate::engine::ReplayOptions).
//!
//! `testkit/extension` implements one extension of each kind and runs replays with them.
//!
//! ```
//! use chakram::engine::{CompiledReplay, ReplayOptions};
//! use chakram::extend::{KernelDurationModel, KernelTraceFacts};
//! use chakram::machine::NpuClass;
//! use chakram::units::Span;
//! use chakram::{Job, Machine};
//! use std::sync::Arc;
//!
//! /// Every kernel takes a microsecond.
//! #[derive(Debug)]
//! struct Microsecond;
//!
//! impl KernelDurationModel for Microsecond {
//!     fn price_kernel(&self, _: &KernelTraceFacts, _: &NpuClass) -> Option<Span> {
//!         Some(Span::from_ns(1000))
//!     }
//! }
//!
//! let (job, machine) = (Job::open_job(["traces/tight-2"])?, Machine::load_by_name("dgx-h100")?);
//! let options = ReplayOptions::default_with_changes(|options| options.extensions.kernels = Some(Arc::new(Microsecond)));
//! let report = job.replay_on(&machine, &options)?;
//! let recorded = job.replay_on(&machine, &ReplayOptions::default())?;
//! assert_ne!(report.outcome.makespan, recorded.outcome.makespan);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use chakram_base::ids::{EndpointId, OpIndex};
pub use chakram_engine::{
    KernelDurationModel, ReplacementKernelAndMemoryModels, ReplacementMemoryModel,
};
pub use chakram_hardware::collective::{
    CollectiveAlgorithm, CollectiveStage, CollectiveStagePrimitive, DimensionAlgorithmChoice,
    MemberLinePosition, SendStepWithConditions, UserAlgorithmHandle, UserAlgorithmModel,
};
pub use chakram_hardware::compute::KernelTraceFacts;
pub use chakram_hardware::memory::{LocalMemory, RemoteMemoryAccess, UserRemoteMemoryModel};
pub use chakram_hardware::network::{
    CollectiveLinkReservations, ConsecutivePortsOpenedByOperation, EventScheduler,
    LinkAndPortBusyTimes, MemoryLoadStoreTransfer, MessageProgressNotice, NetworkBackend,
    NetworkEvent, NetworkMessage, OperationPortHandle,
};
pub use chakram_hardware::topology::{LineSendPattern, PathLatencyAndRates};
