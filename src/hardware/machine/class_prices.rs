//! Prices of a software stack on one class of NPUs, as its file has them.

use super::Host;
use crate::compute::KernelCurves;

/// Prices of a stack on NPUs of one class.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ClassPrices {
    /// Name of the class in machine files.
    pub name: String,
    /// Curves in place of the class's, at the rates of short runs and no limit of power.
    pub kernels: KernelCurves,
    /// Launches in place of the machine's.
    pub host: Option<Host>,
}
