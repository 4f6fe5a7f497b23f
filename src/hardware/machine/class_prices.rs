//! Kernel curves and launch times of a software stack on one class of NPUs, from the stack's file.

use super::Host;
use crate::compute::KernelTimeCurves;

/// Kernel curves and launch times of a software stack on NPUs of one class.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ClassStackCurvesAndHost {
    /// Name of the class in machine files.
    pub name: String,
    /// Curves for short runs without a power limit, which replace the class's curves.
    pub kernels: KernelTimeCurves,
    /// Host that replaces the machine's host.
    pub host: Option<Host>,
}
