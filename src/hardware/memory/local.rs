//! Local memory: an access takes `latency + bytes / bandwidth`, and accesses do not contend.
//!
//! The formula is from the memory section of the ASTRA-sim 2.0 paper.

use super::LocalMemory;
use chakram_base::units::{Span, UnroundedBufferShare};

impl LocalMemory {
    /// Returns the duration of one load or store of `bytes`, or `None` if the latency is unknown.
    pub fn time_access(&self, bytes: u64) -> Option<Span> {
        Some(
            self.latency?
                + self
                    .bandwidth
                    .serialization_time(UnroundedBufferShare::from_bytes(bytes)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_base::units::{Bandwidth, Bytes};

    #[test]
    fn an_access_is_latency_plus_bytes_over_bandwidth() {
        let memory = LocalMemory {
            bandwidth: Bandwidth::new(2e12).unwrap(),
            latency: Some(Span::from_ns(500)),
            capacity: Some(Bytes(80_000_000_000)),
        };
        // 1 MB / 2 TB/s = 0.5 us, plus 0.5 us of latency.
        assert_eq!(memory.time_access(1_000_000), Some(Span(1_000_000)));
    }
}
