//! Chunks that go where the load is least.
//!
//! *Themis* (Rashidi et al., "Themis: a network bandwidth-aware collective scheduling policy", ISCA 2022;
//! ASTRA-sim's `OfflineGreedy`): each chunk of a reduce-scatter visits the dimensions by the load that
//! chunks before it have put on them, the least loaded first, where it is largest; then its own load is
//! added. A chunk that is s bytes large when it comes to dimension d with n members and bandwidth B loads it
//! with s (n−1)/n / B seconds and is s/n large afterwards. If the difference in load is less than what a
//! sixteenth of a chunk would put on the least loaded dimension, the chunk goes in ascending order. Loads that differ
//! by less than [`TimeEstimate::MARGIN`] are equal, and equally loaded dimensions are visited in ascending order.
//!
//! *Themis, flex* (ASTRA-sim's `OfflineGreedyFlex`; the paper's chunks are equal): the same, but a chunk that
//! goes by load is as large as it takes for the least loaded dimension, which it visits first, to come to the
//! load of the most loaded one:
//!
//! ```text
//! x (n−1)/n / B = L_most − L_least        so        x = (L_most − L_least) B n/(n−1) bytes
//! ```
//!
//! with n and B of the least loaded dimension. A chunk that goes in ascending order, as the first always does,
//! has the equal size E, the collective's bytes over the `chunks` of the machine file. The last chunk takes
//! what is left. ASTRA-sim cuts x down to whole bytes, has no upper bound, and goes in ascending order where x
//! is less than E in its newer sources, than 0.128 MiB in its first.
//!
//! Ours is:
//!
//! - the bound below, that of Themis: where x is less than E/16 the chunk is equal and ascending. So at most
//!   16 times as many chunks come out, and as many as `chunks` at least;
//! - the bound above: x is at most E. A larger chunk would close more of the gap at once, but other chunks
//!   wait for it, and a pipeline of fewer chunks takes longer to fill and to drain;
//! - grains: x is rounded to a whole number of E/256, so that the sizes of all chunks add up to the
//!   collective, few chunks differ and what is alike is worked out once. An error of E/512 is far below the
//!   gap of E/16 that is not closed either.

use super::EQUAL;
use crate::group::GroupExtent;
use crate::topology::Topology;
use chakram_base::units::TimeEstimate;

/// Smallest gap between loads that is worth another order, as a fraction of a chunk's own load.
const LEAST_GAP: f64 = 1.0 / 16.0;

/// Load that chunks have put on the phases of a group.
pub(super) struct ThemisBalancer<'a> {
    extent: &'a GroupExtent,
    /// Accumulated sending time of each phase, in units in which an equal chunk is one byte: only ratios matter.
    loads: Vec<f64>,
    /// Rate at which a member sends in each phase, in bytes per second, or relative to the first phase.
    rates: Vec<f64>,
    /// True if chunk sizes are chosen to equalize the loads.
    flexible: bool,
}

impl<'a> ThemisBalancer<'a> {
    /// No load yet, for equal chunks.
    pub fn new(extent: &'a GroupExtent, topology: &Topology) -> Self {
        let rate = |phase: &crate::group::GroupPhase| {
            let dimension = &topology.dimensions()[phase.dimension];
            dimension.bandwidth.bytes_per_second()
        };
        Self {
            extent,
            loads: vec![0.0; extent.phases.len()],
            rates: extent.phases.iter().map(rate).collect(),
            flexible: false,
        }
    }

    /// No load yet, for chunks that make the loads equal. Such loads must be found to be equal. So rates are
    /// those of the first phase: where they and the sizes are powers of two, loads are exact.
    pub fn flexible(extent: &'a GroupExtent, topology: &Topology) -> Self {
        let mut balance = Self::new(extent, topology);
        if let Some(&first) = balance.rates.first() {
            for rate in &mut balance.rates {
                *rate /= first;
            }
        }
        balance.flexible = true;
        balance
    }

    /// Load that a chunk with a remaining `share` puts on a phase.
    fn load(&self, phase: usize, share: f64) -> f64 {
        let n = f64::from(self.extent.phases[phase].size);
        share * (n - 1.0) / n / self.rates[phase]
    }

    /// Sorts the phases, which are ascending, into the order for the next chunk, and adds its load. Returns the
    /// chunk's size in grains, of which `left` are left.
    pub fn next(&mut self, order: &mut [usize], left: u64) -> u32 {
        let loads = &self.loads;
        // A stable sort: equally loaded dimensions stay ascending.
        order.sort_by(|&a, &b| loads[a].total_cmp(&loads[b]));
        // So do loads that differ by rounding errors only.
        for alike in
            order.chunk_by_mut(|&a, &b| loads[b] <= loads[a] * (1.0 + TimeEstimate::MARGIN))
        {
            alike.sort_unstable();
        }
        let mut grains = EQUAL;
        if let (Some(&least), Some(&most)) = (order.first(), order.last()) {
            let gap = loads[most] - loads[least];
            if gap < self.load(least, LEAST_GAP) * (1.0 - TimeEstimate::MARGIN) {
                order.sort_unstable();
            } else if self.flexible {
                let equal = f64::from(EQUAL);
                let closing = (gap / self.load(least, 1.0) * equal).round();
                // max() first: it replaces NaN, which extreme rates produce, by the least size.
                grains = closing.max(equal * LEAST_GAP).min(equal) as u32;
            }
        }
        let grains = grains.min(u32::try_from(left).unwrap_or(u32::MAX));
        let mut share = f64::from(grains) / f64::from(EQUAL);
        for &phase in &*order {
            self.loads[phase] += self.load(phase, share);
            share /= f64::from(self.extent.phases[phase].size);
        }
        grains
    }
}
