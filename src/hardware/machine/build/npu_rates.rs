//! Rates of the NPUs on which kernels were measured.

use crate::compute::PeakRatesByFormat;
use crate::machine::NpuClass;
use chakram_base::units::Bandwidth;

/// Peak rates and memory bandwidth of the NPUs on which kernels were measured.
pub(super) struct KernelMeasurementNpuRates {
    pub peaks: PeakRatesByFormat,
    pub memory: Bandwidth,
}

impl KernelMeasurementNpuRates {
    /// Returns the rates of a class, or `None` if unknown.
    pub fn of_class(class: &NpuClass) -> Option<Self> {
        Some(Self {
            peaks: class.peaks.clone(),
            memory: class.memory_bandwidth()?,
        })
    }
}
