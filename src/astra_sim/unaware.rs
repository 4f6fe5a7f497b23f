//! The congestion-unaware network: no link is ever busy.
//!
//! A message of m bytes takes ⌊hops · latency + m / bandwidth⌋ ns, in double precision, with the numbers
//! of the *lowest* dimension in which its ends differ; the others do not count. Hops: the shorter way
//! round a ring, one between any two that are fully connected, two through a switch.

use super::network_file;
use crate::ids::Npu;
use crate::network::{Message, Network, NetworkEvent, Notice, Ports, Schedule};
use crate::topology::Shape;
use crate::units::{Amount, Span, Time};

/// One dimension as the model needs it.
#[derive(Clone, Copy, Debug)]
struct Level {
    shape: Shape,
    size: u32,
    latency: f64,
    bytes_per_ns: f64,
}

/// Bytes per ns of a bandwidth in GB/s of 2^30 bytes.
pub(super) fn bytes_per_ns(gbps: f64) -> f64 {
    gbps * f64::from(1 << 30) / 1e9
}

/// See the module.
#[derive(Debug)]
pub struct Unaware {
    levels: Vec<Level>,
}

impl Unaware {
    /// The network of `file`.
    pub fn new(file: &network_file::Network) -> Self {
        let levels = file.dimensions.iter().map(|dimension| Level {
            shape: dimension.shape,
            size: dimension.npus,
            latency: dimension.latency,
            bytes_per_ns: bytes_per_ns(dimension.bandwidth),
        });
        Self {
            levels: levels.collect(),
        }
    }

    /// How long a message of `bytes` takes from one NPU to another.
    #[inline]
    fn delay(&self, (a, b): (Npu, Npu), bytes: u64) -> Span {
        let (mut a, mut b) = (a.0, b.0);
        for level in &self.levels {
            let (x, y) = (a % level.size, b % level.size);
            if x != y {
                let hops = f64::from(level.shape.hops(level.size, x, y));
                let ns = hops * level.latency + bytes as f64 / level.bytes_per_ns;
                return Span::from_ns(ns as u64);
            }
            (a, b) = (a / level.size, b / level.size);
        }
        // To oneself: nothing is crossed.
        Span::ZERO
    }
}

impl Network for Unaware {
    fn open(&mut self, count: u32) -> Ports {
        Ports::new(0, count)
    }

    fn close(&mut self, _: Ports) {}

    fn uncontended(&self, ends: (Npu, Npu), amount: Amount) -> Option<Span> {
        Some(self.delay(ends, amount.bytes()))
    }

    #[inline]
    fn submit(&mut self, now: Time, message: &Message, agenda: &mut impl Schedule) {
        let delay = self.delay(message.ends, message.amount.bytes());
        agenda.schedule(now + delay, NetworkEvent::Delivered(message.op));
    }

    #[inline]
    fn handle(
        &mut self,
        _: Time,
        event: NetworkEvent,
        _: &mut impl Schedule,
        notices: &mut Vec<Notice>,
    ) {
        match event {
            NetworkEvent::Delivered(op) => notices.push(Notice::Delivered(op)),
            _ => unreachable!("a message is delivered and nothing else"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(shapes: &[(Shape, u32, f64, f64)]) -> Unaware {
        let dimensions =
            shapes.iter().map(
                |&(shape, npus, bandwidth, latency)| network_file::Dimension {
                    shape,
                    npus,
                    bandwidth,
                    latency,
                },
            );
        Unaware::new(&network_file::Network {
            dimensions: dimensions.collect(),
        })
    }

    fn ns(network: &Unaware, a: u32, b: u32) -> u64 {
        network.delay((Npu(a), Npu(b)), 1 << 20).0 / 1000
    }

    #[test]
    fn the_original_s_own_anchors() {
        // 2^20 B / (50 · 2^30 / 10^9 B/ns) = 19,531.25 ns. Three hops, one, two of 500 ns.
        for (shape, expected) in [
            (Shape::Ring, 21_031),
            (Shape::FullyConnected, 20_031),
            (Shape::Switch, 20_531),
        ] {
            assert_eq!(ns(&network(&[(shape, 16, 50.0, 500.0)]), 1, 4), expected);
        }
        // At 200, 100 and 50 GB/s: 4,882.8 + 50, 9,765.6 + 500, 19,531.25 + 2 · 2,000 ns. Only the lowest
        // dimension that differs counts: from 0 to 63 that is the ring.
        let stack = network(&[
            (Shape::Ring, 2, 200.0, 50.0),
            (Shape::FullyConnected, 8, 100.0, 500.0),
            (Shape::Switch, 4, 50.0, 2000.0),
        ]);
        assert_eq!(ns(&stack, 0, 1), 4_932);
        assert_eq!(ns(&stack, 0, 2), 10_265);
        assert_eq!(ns(&stack, 0, 16), 23_531);
        assert_eq!(ns(&stack, 0, 63), 4_932);
    }
}
