//! Messages over a network of its own, for unit tests.

use super::{Message, Network, NetworkEvent, Notice, Schedule};
use crate::ids::Npu;
use crate::topology::{Dimension, Shape, Switching, Topology};
use crate::units::{Amount, Bandwidth, Bytes, Span, Time};
use std::collections::BTreeSet;

/// Dimensions of a shape, a size, ps per byte of a link, and ps of latency per link.
pub(super) fn topology(dimensions: &[(Shape, u32, u64, u64)]) -> Topology {
    let dimensions = dimensions
        .iter()
        .map(|&(shape, size, ps_per_byte, latency)| Dimension {
            name: String::new(),
            shape,
            size,
            bandwidth: {
                let links = if shape.has_ports() || size == 2 { 1 } else { 2 };
                Bandwidth::new(f64::from(links) * 1e12 / ps_per_byte as f64).unwrap()
            },
            latency: Span(latency),
        });
    Topology::new(dimensions.collect()).unwrap()
}

pub(super) fn by_segment(bytes: u64) -> Switching {
    let segment = Bytes(bytes);
    Switching::CutThrough { segment }
}

/// Scheduled events.
#[derive(Default)]
pub(super) struct Pending(pub BTreeSet<(Time, NetworkEvent)>);

impl Schedule for Pending {
    fn schedule(&mut self, at: Time, event: NetworkEvent) {
        assert!(self.0.insert((at, event)), "{event:?} twice");
    }
}

impl Pending {
    /// Handles all that is due until `end`, and notes in `ends` when ops left and arrived.
    pub fn run(&mut self, network: &mut impl Network, end: Time, ends: &mut [[u64; 2]]) {
        while let Some((now, event)) = self.0.first().copied().filter(|(at, _)| *at <= end) {
            self.0.pop_first();
            let mut notices = Vec::new();
            network.handle(now, event, self, &mut notices);
            for notice in notices {
                match notice {
                    Notice::Injected(op) => ends[op as usize][0] = now.0,
                    Notice::Delivered(op) => ends[op as usize][1] = now.0,
                }
            }
        }
    }
}

/// A message that wants to know all.
pub(super) fn message(op: u32, from: u32, to: u32, bytes: u64) -> Message {
    Message {
        tell_injected: true,
        ..Message::plain(op, (Npu(from), Npu(to)), Amount::whole(bytes))
    }
}

/// Times at which messages (submitted at, from, to, bytes) have left and arrived; in ascending order of time.
pub(super) fn ends(network: &mut impl Network, messages: &[(u64, u32, u32, u64)]) -> Vec<[u64; 2]> {
    let mut pending = Pending::default();
    let mut ends = vec![[0; 2]; messages.len()];
    for (op, &(at, from, to, bytes)) in (0..).zip(messages) {
        pending.run(network, Time(at), &mut ends);
        network.submit(Time(at), &message(op, from, to, bytes), &mut pending);
    }
    pending.run(network, Time::END, &mut ends);
    ends
}
