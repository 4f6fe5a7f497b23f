//! Formats sentences about memory.

use super::{NamedNode, NpuMemoryUseRow, find_rank_with_highest_filled_share, pool_memory};
use crate::Report;
use crate::summary::format_thousands;
use chakram_base::units::{Bytes, Time};
use chakram_trace::format::{TensorClass, escape_and_shorten_name};

impl NpuMemoryUseRow {
    /// Formats the time of the peak, as in ``at 12.35 us, when `layer3/mlp` was issued (node 17)``.
    pub(super) fn describe_peak_moment(&self) -> String {
        let at = self.at.since(Time::ZERO);
        match &self.node {
            Some(NamedNode { id, name }) => {
                format!(
                    "at {at}, when `{}` was issued (node {id})",
                    escape_and_shorten_name(name)
                )
            }
            None => "nothing is allocated".to_owned(),
        }
    }

    /// Formats the peak and the capacity, as in `needs 81.5 GB of 80.0 GB`.
    pub(super) fn describe_peak_and_capacity(&self) -> String {
        match self.capacity {
            Some(capacity) => format!("needs {} of {capacity}", self.peak),
            None => format!("needs {}", self.peak),
        }
    }

    /// Formats the peak by class, largest class first, as in `activations 60.1 GB, weights 20.0 GB`.
    fn describe_peak_by_class(&self) -> String {
        let mut parts: Vec<_> = TensorClass::ALL.iter().zip(self.classes).collect();
        parts.retain(|(_, bytes)| *bytes > 0);
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let parts = parts.iter();
        let parts = parts.map(|((_, name), bytes)| format!("{name} {}", Bytes(*bytes)));
        parts.collect::<Vec<_>>().join(", ")
    }
}

impl Report {
    /// Returns `false` if at least one rank's peak certainly exceeds its capacity.
    pub fn fits_memory(&self) -> bool {
        self.memory.iter().all(|row| row.fits != Some(false))
    }

    /// Returns how many ranks need more than their capacity.
    pub fn count_ranks_out_of_memory(&self) -> usize {
        self.memory
            .iter()
            .filter(|row| row.fits == Some(false))
            .count()
    }

    /// Returns a sentence about ranks that need more memory than is available; `None` if there are none.
    pub fn describe_ranks_out_of_memory(&self) -> Option<String> {
        let row = find_rank_with_highest_filled_share(&self.memory)
            .filter(|row| row.fits == Some(false))?;
        let others = match self.count_ranks_out_of_memory() as u64 - 1 {
            0 => String::new(),
            1 => "; so does 1 more rank".to_owned(),
            n => format!("; so do {} more ranks", format_thousands(n)),
        };
        let remote = row.beyond_own.or(row.offloaded).and(self.fullest_pool());
        let remote = remote.map_or_else(String::new, |pool| {
            format!(
                " and its share of remote memory ({})",
                pool_memory::format_pool_use(pool)
            )
        });
        Some(format!(
            "out of memory: rank {} allocates {} of its NPU's {}{remote}, {}: {}{others}",
            row.rank,
            row.peak,
            row.capacity.unwrap_or_default(),
            row.describe_peak_moment(),
            row.describe_peak_by_class()
        ))
    }

    /// Returns sentences that explain why the true peaks may be higher than the reported ones.
    pub fn explain_why_peaks_may_be_higher(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let silent = self.rows.len() - self.memory.len();
        if silent > 0 && !self.memory.is_empty() {
            warnings.push(format!(
                "{} ranks do not state their allocations, but others do; the memory of the former \
                 is unknown",
                format_thousands(silent as u64)
            ));
        }
        let rows = self.memory.iter();
        let missing: Vec<_> = rows
            .filter_map(|row| Some((row.rank, row.missing.as_ref()?)))
            .collect();
        if let Some((rank, first)) = missing.first() {
            let bytes = missing.iter().flat_map(|(_, missing)| missing.classes);
            let NamedNode { id, name } = &first.first;
            warnings.push(format!(
                "{} nodes free memory that nothing allocated, {} in all; the first is `{}` (node {id}) of \
                 rank {rank}; peaks may be too small",
                format_thousands(missing.iter().map(|(_, missing)| missing.nodes).sum()),
                Bytes(bytes.fold(0, u64::saturating_add)),
                escape_and_shorten_name(name)
            ));
        }
        warnings
    }
}
