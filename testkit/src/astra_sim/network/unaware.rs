//! The congestion-unaware network of ASTRA-sim 2.x: a message takes trunc(hops·latency + bytes / bandwidth) ns. Both
//! values are those of the lowest dimension in which the two addresses differ.

use super::super::agenda::{AgendaEvent, EventAgenda};
use super::super::config::{DimensionTopology, NetworkDimension, WholeSimulationInput};
use super::super::post::NumberedMessageKey;
use super::{TransitMessage, bytes_per_ns};
use std::collections::VecDeque;

/// The dimensions, innermost first.
#[derive(Debug)]
pub struct CongestionUnawareNetwork {
    dims: Vec<NetworkDimension>,
}

impl CongestionUnawareNetwork {
    pub fn new(config: &WholeSimulationInput) -> Self {
        Self {
            dims: config.dims.clone(),
        }
    }

    /// Schedules the arrival of a message at its destination. A message from an NPU to itself never
    /// arrives.
    pub fn schedule_arrival(&self, key: NumberedMessageKey, agenda: &mut EventAgenda) {
        let (mut from, mut to) = (key.src, key.dst);
        for dim in &self.dims {
            let (a, b) = (from % dim.n, to % dim.n);
            if a != b {
                let hops = match dim.shape {
                    DimensionTopology::Ring => a.abs_diff(b).min(dim.n - a.abs_diff(b)),
                    DimensionTopology::FullyConnected => 1,
                    DimensionTopology::Switch => 2,
                };
                let ns = hops as f64 * dim.lat + key.bytes as f64 / bytes_per_ns(dim.bw);
                let route = VecDeque::from([key.src, key.dst]);
                agenda.add_event(
                    ns as u64,
                    AgendaEvent::Arrival(TransitMessage { key, route }),
                );
                return;
            }
            from /= dim.n;
            to /= dim.n;
        }
    }
}
