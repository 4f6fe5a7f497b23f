//! Runs messages over an isolated network, for unit tests.

use super::{EventScheduler, MessageProgressNotice, NetworkBackend, NetworkEvent, NetworkMessage};
use crate::topology::{DimensionShape, SwitchingMode, Topology, TopologyDimension};
use chakram_base::ids::{Npu, OpIndex};
use chakram_base::units::{Bandwidth, Bytes, Span, Time, UnroundedBufferShare};
use std::collections::BTreeSet;

/// Builds a topology from dimensions, given as (shape, size, ps per byte of a link, ps of latency per link).
pub(super) fn create_topology(dimensions: &[(DimensionShape, u32, u64, u64)]) -> Topology {
    let dimensions = dimensions
        .iter()
        .map(|&(shape, size, ps_per_byte, latency)| TopologyDimension {
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

pub(super) fn cut_through_by_segment(bytes: u64) -> SwitchingMode {
    let segment = Bytes(bytes);
    SwitchingMode::CutThrough { segment }
}

/// The scheduled events, in the order in which they are handled.
#[derive(Default)]
pub(super) struct PendingEvents(pub BTreeSet<(Time, NetworkEvent)>);

impl EventScheduler for PendingEvents {
    fn schedule_event(&mut self, at: Time, event: NetworkEvent) {
        assert!(self.0.insert((at, event)), "{event:?} twice");
    }
}

impl PendingEvents {
    /// Handles all events due until `end`, and records in `ends` when ops left and arrived.
    pub fn run_until_and_record_ends(
        &mut self,
        network: &mut impl NetworkBackend,
        end: Time,
        ends: &mut [[u64; 2]],
    ) {
        while let Some((now, event)) = self.0.first().copied().filter(|(at, _)| *at <= end) {
            self.0.pop_first();
            let mut notices = Vec::new();
            network.handle_event(now, event, self, &mut notices);
            for notice in notices {
                match notice {
                    MessageProgressNotice::Injected(op) => ends[op.index()][0] = now.0,
                    MessageProgressNotice::Delivered(op) => ends[op.index()][1] = now.0,
                }
            }
        }
    }
}

/// Creates a message that requests all notices.
pub(super) fn create_message(op: u32, from: u32, to: u32, bytes: u64) -> NetworkMessage {
    NetworkMessage {
        tell_injected: true,
        ..NetworkMessage::create_message_without_port(
            OpIndex(op),
            (Npu(from), Npu(to)),
            UnroundedBufferShare::from_bytes(bytes),
        )
    }
}

/// Returns two times for each message: when its last byte left, and when it arrived. Messages are given as (submitted
/// at, from, to, bytes), in ascending order of time.
pub(super) fn simulate_injection_and_delivery_times(
    network: &mut impl NetworkBackend,
    messages: &[(u64, u32, u32, u64)],
) -> Vec<[u64; 2]> {
    let mut pending = PendingEvents::default();
    let mut ends = vec![[0; 2]; messages.len()];
    for (op, &(at, from, to, bytes)) in (0..).zip(messages) {
        pending.run_until_and_record_ends(network, Time(at), &mut ends);
        network.submit_message(Time(at), &create_message(op, from, to, bytes), &mut pending);
    }
    pending.run_until_and_record_ends(network, Time::END, &mut ends);
    ends
}
