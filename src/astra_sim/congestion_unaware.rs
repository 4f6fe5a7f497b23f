//! The congestion-unaware network: messages never wait for a link.
//!
//! A message of m bytes takes ⌊hops · latency + m / bandwidth⌋ ns, computed in double precision. Only the *lowest*
//! dimension in which sender and receiver differ counts: it determines the hops, the latency and the bandwidth. A
//! message makes one hop between fully connected NPUs and two hops through a switch. On a ring, a message takes the
//! shorter direction.
//!
//! If [`Quirk::FirstDimension`] is corrected, the latencies of all crossed dimensions add up, and the slowest dimension
//! determines the rate. If [`Quirk::FullyConnectedLinks`] is corrected, an NPU's n - 1 links share its bandwidth
//! equally.

use super::network_file;
use super::quirks::{self, Quirk, QuirkSet};
use chakram_base::ids::Npu;
use chakram_base::units::{Span, Time, UnroundedBufferShare};
use chakram_hardware::network::{
    EventScheduler, MessageProgressNotice, NetworkBackend, NetworkEvent, NetworkMessage,
};
use chakram_hardware::topology::{DimensionShape, LineSendPattern};

/// One dimension of the congestion-unaware network, with derived values.
#[derive(Clone, Copy, Debug)]
struct CongestionUnawareDimension {
    shape: DimensionShape,
    size: u32,
    latency: f64,
    bytes_per_ns: f64,
}

/// Returns the rate of a single message that crosses a dimension without contention, in bytes per ns.
pub(super) fn uncontended_rate(dimension: &network_file::AstraDimension, quirks: QuirkSet) -> f64 {
    let rate = quirks.bytes_per_ns(dimension.bandwidth);
    match dimension.shape {
        DimensionShape::FullyConnected if !quirks.has_quirk(Quirk::FullyConnectedLinks) => {
            rate / f64::from(dimension.npus - 1)
        }
        _ => rate,
    }
}

/// The congestion-unaware network; the module's documentation describes it.
#[derive(Debug)]
pub struct CongestionUnawareModel {
    levels: Vec<CongestionUnawareDimension>,
    quirks: QuirkSet,
}

impl CongestionUnawareModel {
    /// Creates the network that `file` describes.
    pub fn new(file: &network_file::AstraNetworkFile, quirks: QuirkSet) -> Self {
        let levels = file
            .dimensions
            .iter()
            .map(|dimension| CongestionUnawareDimension {
                shape: dimension.shape,
                size: dimension.npus,
                latency: dimension.latency,
                bytes_per_ns: uncontended_rate(dimension, quirks),
            });
        Self {
            levels: levels.collect(),
            quirks,
        }
    }

    /// Returns the duration of a message of `amount` bytes from one NPU to another.
    #[inline]
    fn message_duration(&self, (a, b): (Npu, Npu), amount: UnroundedBufferShare) -> Span {
        let (mut a, mut b) = (a.0, b.0);
        let (mut latency, mut slowest) = (0.0, f64::INFINITY);
        for level in &self.levels {
            let (x, y) = (a % level.size, b % level.size);
            if x != y {
                latency += f64::from(level.shape.hop_count(level.size, x, y)) * level.latency;
                slowest = level.bytes_per_ns.min(slowest);
                if self.quirks.has_quirk(Quirk::FirstDimension) {
                    break;
                }
            }
            (a, b) = (a / level.size, b / level.size);
        }
        // A message from an NPU to itself crosses no link and takes no time.
        self.quirks
            .convert_ns_to_span(latency + quirks::fractional_bytes_of_share(amount) / slowest)
    }
}

impl NetworkBackend for CongestionUnawareModel {
    const NAME: &'static str = "congestion_unaware";
    const SHARED: bool = false;

    fn is_send_pattern_conflict_free(&self, _: usize, _: u32, _: LineSendPattern) -> bool {
        true
    }

    fn uncontended_time(&self, ends: (Npu, Npu), amount: UnroundedBufferShare) -> Option<Span> {
        Some(self.message_duration(ends, amount))
    }

    #[inline]
    fn submit_message(
        &mut self,
        now: Time,
        message: &NetworkMessage,
        agenda: &mut impl EventScheduler,
    ) {
        let delay = self.message_duration(message.ends, message.amount);
        agenda.schedule_event(now + delay, NetworkEvent::Delivered(message.op));
    }

    #[inline]
    fn handle_event(
        &mut self,
        _: Time,
        event: NetworkEvent,
        _: &mut impl EventScheduler,
        notices: &mut Vec<MessageProgressNotice>,
    ) {
        match event {
            NetworkEvent::Delivered(op) => notices.push(MessageProgressNotice::Delivered(op)),
            _ => unreachable!("a message is delivered and nothing else"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_network_model(
        shapes: &[(DimensionShape, u32, f64, f64)],
        quirks: QuirkSet,
    ) -> CongestionUnawareModel {
        let dimensions =
            shapes.iter().map(
                |&(shape, npus, bandwidth, latency)| network_file::AstraDimension {
                    shape,
                    npus,
                    bandwidth,
                    latency,
                },
            );
        let dimensions = dimensions.collect();
        CongestionUnawareModel::new(&network_file::AstraNetworkFile { dimensions }, quirks)
    }

    fn predict_message_ps(network: &CongestionUnawareModel, a: u32, b: u32, bytes: u64) -> u64 {
        network
            .message_duration((Npu(a), Npu(b)), UnroundedBufferShare::from_bytes(bytes))
            .0
    }

    fn predict_message_ns(network: &CongestionUnawareModel, a: u32, b: u32) -> u64 {
        predict_message_ps(network, a, b, 1 << 20) / 1000
    }

    #[test]
    fn message_times_match_the_original_astra_sim() {
        // Serialization takes 2^20 B / (50 · 2^30 / 10^9 B/ns) = 19,531.25 ns. A message needs three hops in the first
        // shape, one in the second, and two in the third. Each hop takes 500 ns.
        for (shape, expected) in [
            (DimensionShape::Ring, 21_031),
            (DimensionShape::FullyConnected, 20_031),
            (DimensionShape::Switch, 20_531),
        ] {
            let network = build_network_model(&[(shape, 16, 50.0, 500.0)], QuirkSet::ALL);
            assert_eq!(predict_message_ns(&network, 1, 4), expected);
        }
        // At 200, 100 and 50 GB/s, messages take 4,882.8 + 50 ns, 9,765.6 + 500 ns and 19,531.25 + 2 · 2,000 ns. Only
        // the lowest dimension in which sender and receiver differ counts. Between NPU 0 and NPU 63, the ring is the
        // lowest such dimension.
        let stack = build_network_model(&STACK, QuirkSet::ALL);
        assert_eq!(predict_message_ns(&stack, 0, 1), 4_932);
        assert_eq!(predict_message_ns(&stack, 0, 2), 10_265);
        assert_eq!(predict_message_ns(&stack, 0, 16), 23_531);
        assert_eq!(predict_message_ns(&stack, 0, 63), 4_932);
    }

    const STACK: [(DimensionShape, u32, f64, f64); 3] = [
        (DimensionShape::Ring, 2, 200.0, 50.0),
        (DimensionShape::FullyConnected, 8, 100.0, 500.0),
        (DimensionShape::Switch, 4, 50.0, 2000.0),
    ];

    #[test]
    fn latencies_of_all_dimensions_add_up_without_first_dimension_quirk() {
        let stack = build_network_model(&STACK, QuirkSet::ALL.without_quirk(Quirk::FirstDimension));
        // From 0 to 63, the latencies add up to 50 + 500 + 2 * 2,000 ns. At the slowest rate (50 GB/s, where a GB is
        // 2^30 B), 2^20 B take 19,531.25 ns.
        assert_eq!(predict_message_ns(&stack, 0, 63), 24_081);
        // Message times along one dimension are unchanged.
        assert_eq!(
            (
                predict_message_ns(&stack, 0, 1),
                predict_message_ns(&stack, 0, 16)
            ),
            (4_932, 23_531)
        );
        assert_eq!(predict_message_ns(&stack, 5, 5), 0);
    }

    #[test]
    fn correcting_link_unit_and_rounding_quirks_changes_message_times() {
        let with = |quirk| build_network_model(&STACK, QuirkSet::ALL.without_quirk(quirk));
        // Each of the seven links has a seventh of 100 GB/s, so a message takes 7 * 9,765.625 + 500 ns. The times of
        // other shapes are unchanged.
        let links = with(Quirk::FullyConnectedLinks);
        assert_eq!(
            (
                predict_message_ns(&links, 0, 2),
                predict_message_ns(&links, 0, 16)
            ),
            (68_859, 23_531)
        );
        // 2^20 B at 200 B/ns take 5,242.88 + 50 ns.
        assert_eq!(predict_message_ns(&with(Quirk::Gib), 0, 1), 5_292);
        // 4,882.8125 + 50 ns is 4,932,812.5 ps, and a half is rounded away from zero.
        assert_eq!(
            predict_message_ps(&with(Quirk::WholeNs), 0, 1, 1 << 20),
            4_932_813
        );
    }
}
