//! Models of the caller's own: prices of kernels and of loads and stores that stand for the machine's.
//!
//! Networks are given to [`CompiledReplay::run_over`](super::CompiledReplay::run_over), and algorithms of collectives to
//! [`Machine::with_algorithm`](chakram_hardware::machine::Machine::with_algorithm).

use chakram_base::units::Span;
use chakram_hardware::compute::KernelProfile;
use chakram_hardware::machine::NpuClass;
use chakram_hardware::memory::{LocalMemory, MemoryModel};
use std::fmt;
use std::sync::Arc;

/// Prices of kernels.
pub trait KernelModel: fmt::Debug + Send + Sync {
    /// Returns the duration of a kernel on NPUs of a class; `None` leaves it to
    /// [`ReplayOptions::compute`](super::ReplayOptions::compute).
    fn duration(&self, kernel: &KernelProfile, class: &NpuClass) -> Option<Span>;
}

/// A design of memory: what an access to an NPU's own costs, and the state of that beyond it in each run.
pub trait MemoryDesign: fmt::Debug + Send + Sync {
    /// Returns the duration of an access of `bytes` to the NPU's own memory; `None` leaves it to the machine.
    fn local(&self, _memory: &LocalMemory, _bytes: u64) -> Option<Span> {
        None
    }

    /// Returns the memory beyond NPUs, idle; `None` leaves it to the machine. Capacities are the machine's.
    fn remote(&self) -> Option<Box<dyn MemoryModel>> {
        None
    }
}

/// Models that stand for the machine's.
#[derive(Clone, Debug, Default)]
pub struct Extensions {
    /// Prices of kernels.
    pub kernels: Option<Arc<dyn KernelModel>>,
    /// Memories.
    pub memory: Option<Arc<dyn MemoryDesign>>,
}
