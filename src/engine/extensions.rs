//! Caller-supplied models that replace the machine's models of kernel, load and store durations.
//!
//! To replace the network, call [`CompiledReplay::run_on_network`](super::CompiledReplay::run_on_network); to replace
//! collective algorithms, call
//! [`Machine::with_dimension_algorithm`](chakram_hardware::machine::Machine::with_dimension_algorithm).

use chakram_base::units::Span;
use chakram_hardware::compute::KernelTraceFacts;
use chakram_hardware::machine::NpuClass;
use chakram_hardware::memory::{LocalMemory, UserRemoteMemoryModel};
use std::fmt;
use std::sync::Arc;

/// A model of kernel durations.
pub trait KernelDurationModel: fmt::Debug + Send + Sync {
    /// Returns the duration of a kernel on NPUs of `class`. If the result is `None`, the engine uses the model of
    /// [`ReplayOptions::compute`](super::ReplayOptions::compute).
    fn price_kernel(&self, kernel: &KernelTraceFacts, class: &NpuClass) -> Option<Span>;
}

/// A memory model: it gives the durations of local accesses, and the state of remote memory in each run.
pub trait ReplacementMemoryModel: fmt::Debug + Send + Sync {
    /// Returns the duration of an access of `bytes` to the NPU's local memory. If the result is `None`, the engine uses
    /// the machine's model.
    fn time_local_access_by_user_model(&self, _memory: &LocalMemory, _bytes: u64) -> Option<Span> {
        None
    }

    /// Creates an idle remote memory. If the result is `None`, the engine uses the machine's model. Capacities always
    /// come from the machine.
    fn create_remote_memory(&self) -> Option<Box<dyn UserRemoteMemoryModel>> {
        None
    }
}

/// Caller-supplied models that replace the machine's models.
#[derive(Clone, Debug, Default)]
pub struct ReplacementKernelAndMemoryModels {
    /// Caller's model of kernel durations, or `None` for the machine's model.
    pub kernels: Option<Arc<dyn KernelDurationModel>>,
    /// Caller's memory model, or `None` for the machine's model.
    pub memory: Option<Arc<dyn ReplacementMemoryModel>>,
}
