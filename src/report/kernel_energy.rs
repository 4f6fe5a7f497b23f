//! Energy that kernels use. Only kernels timed by loop nests have a known energy.

use crate::summary::KernelCountsByDurationMethod;
use chakram_base::units::{format_count_with_noun, format_joules};
use chakram_engine::DurationSourceCounts;
use serde::{Deserialize, Serialize};

/// Total energy of the kernels timed by loop nests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct TotalEnergyOfLoopNestTimedKernels {
    /// Energy in picojoules.
    #[serde(rename = "energy_pj")]
    pub energy: f64,
    /// Number of kernels with known energy.
    pub kernels: u64,
    /// Number of kernels with unknown energy.
    pub without: u64,
}

impl TotalEnergyOfLoopNestTimedKernels {
    /// Returns the energy of a replay's kernels; `None` if no kernel was timed by loop nests.
    pub(super) fn from_basis(
        basis: &DurationSourceCounts,
        kernels: &KernelCountsByDurationMethod,
    ) -> Option<Self> {
        (basis.mapped > 0).then(|| Self {
            energy: basis.mapped_energy,
            kernels: basis.mapped,
            without: kernels.kernel_count().saturating_sub(basis.mapped),
        })
    }

    /// Returns the line about energy for the text report.
    pub(super) fn describe_energy(&self) -> String {
        let known = format!(
            "{} for {} by loop nests",
            format_joules(self.energy * 1e-12),
            format_count_with_noun(self.kernels, "kernel")
        );
        match self.without {
            0 => known,
            without => format!(
                "{known}, {} without known energy",
                format_count_with_noun(without, "kernel")
            ),
        }
    }
}
