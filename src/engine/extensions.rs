//! Models of the caller: durations of kernels, loads and stores that replace the machine's.
//!
//! Networks are passed to [`CompiledReplay::run_over`](super::CompiledReplay::run_over), and collective algorithms to
//! [`Machine::with_algorithm`](chakram_hardware::machine::Machine::with_algorithm).

use chakram_base::units::Span;
use chakram_hardware::compute::KernelProfile;
use chakram_hardware::machine::NpuClass;
use chakram_hardware::memory::{LocalMemory, MemoryModel};
use std::fmt;
use std::sync::Arc;

/// Prices of kernels.
pub trait KernelModel: fmt::Debug + Send + Sync {
    /// Returns the duration of a kernel on NPUs of a class; on `None` the model of
    /// [`ReplayOptions::compute`](super::ReplayOptions::compute) is used.
    fn duration(&self, kernel: &KernelProfile, class: &NpuClass) -> Option<Span>;
}

/// A memory design: the duration of local accesses, and the state of remote memory in each run.
pub trait MemoryDesign: fmt::Debug + Send + Sync {
    /// Returns the duration of an access of `bytes` to the NPU's own memory; on `None` the
    /// machine's model is used.
    fn local(&self, _memory: &LocalMemory, _bytes: u64) -> Option<Span> {
        None
    }

    /// Creates an idle remote memory; on `None` the machine's model is used. Capacities are always
    /// the machine's.
    fn remote(&self) -> Option<Box<dyn MemoryModel>> {
        None
    }
}

/// Models that replace the machine's.
#[derive(Clone, Debug, Default)]
pub struct Extensions {
    /// Prices of kernels.
    pub kernels: Option<Arc<dyn KernelModel>>,
    /// Memory design, if replaced.
    pub memory: Option<Arc<dyn MemoryDesign>>,
}
