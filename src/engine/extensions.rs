//! Models of the caller that replace the machine's models: durations of kernels, loads and stores.
//!
//! A caller's network is passed to [`CompiledReplay::run_over`](super::CompiledReplay::run_over), and a caller's
//! collective algorithm to [`Machine::with_algorithm`](chakram_hardware::machine::Machine::with_algorithm).

use chakram_base::units::Span;
use chakram_hardware::compute::KernelProfile;
use chakram_hardware::machine::NpuClass;
use chakram_hardware::memory::{LocalMemory, MemoryModel};
use std::fmt;
use std::sync::Arc;

/// A model of kernel durations.
pub trait KernelModel: fmt::Debug + Send + Sync {
    /// Returns the duration of a kernel on NPUs of a class. If the result is `None`, the model of
    /// [`ReplayOptions::compute`](super::ReplayOptions::compute) is used.
    fn price_kernel(&self, kernel: &KernelProfile, class: &NpuClass) -> Option<Span>;
}

/// A model of memories: the duration of local accesses, and the state of remote memory in each run.
pub trait MemoryDesign: fmt::Debug + Send + Sync {
    /// Returns the duration of an access of `bytes` to the NPU's own memory. If the result is `None`, the machine's
    /// model is used.
    fn time_local_access(&self, _memory: &LocalMemory, _bytes: u64) -> Option<Span> {
        None
    }

    /// Creates an idle remote memory. If the result is `None`, the machine's model is used. The machine always
    /// determines capacities.
    fn create_remote_memory(&self) -> Option<Box<dyn MemoryModel>> {
        None
    }
}

/// The caller's models, which replace the machine's models.
#[derive(Clone, Debug, Default)]
pub struct Extensions {
    /// Model of kernel durations, or `None` for the machine's model.
    pub kernels: Option<Arc<dyn KernelModel>>,
    /// Model of memories, or `None` for the machine's model.
    pub memory: Option<Arc<dyn MemoryDesign>>,
}
