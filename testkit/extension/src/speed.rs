//! A model of kernel durations: operations divided by a single rate.

use chakram::extend::{KernelDurationModel, KernelTraceFacts};
use chakram::machine::NpuClass;
use chakram::units::{FlopRate, Span};

/// A model in which every kernel with known operations runs at this rate, on NPUs of every class.
#[derive(Debug)]
pub struct UniformRateModel(pub FlopRate);

impl KernelDurationModel for UniformRateModel {
    fn price_kernel(&self, kernel: &KernelTraceFacts, _: &NpuClass) -> Option<Span> {
        let seconds = kernel.flops as f64 / self.0.per_second();
        (kernel.flops > 0).then(|| Span::from_seconds_saturating(seconds))
    }
}
