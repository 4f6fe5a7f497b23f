//! The congestion-aware network of ASTRA-sim 2.x has one dimension. Directed links store and
//! forward whole messages, and each link has a queue. A link that starts to send at t delivers the
//! message at t + trunc(latency + bytes / bandwidth), and is free at t + trunc(bytes / bandwidth).
//! The network schedules the arrival before the event that frees the link.

use super::super::agenda::{AgendaEvent, EventAgenda};
use super::super::config::{DimensionTopology, WholeSimulationInput};
use super::super::post::NumberedMessageKey;
use super::{TransitMessage, bytes_per_ns};
use std::collections::{BTreeMap, VecDeque};

/// The network; a link is created on first use.
#[derive(Debug)]
pub struct CongestionAwareNetwork {
    shape: DimensionTopology,
    n: usize,
    bytes_per_ns: f64,
    latency: f64,
    links: BTreeMap<(usize, usize), LinkQueue>,
}

#[derive(Debug, Default)]
struct LinkQueue {
    busy: bool,
    waiting: VecDeque<TransitMessage>,
}

impl CongestionAwareNetwork {
    pub fn new(config: &WholeSimulationInput) -> Self {
        let dim = &config.dims[0];
        Self {
            shape: dim.shape,
            n: dim.n,
            bytes_per_ns: bytes_per_ns(dim.bw),
            latency: dim.lat,
            links: BTreeMap::new(),
        }
    }

    /// Returns all devices on the path from source to destination. On a ring, the path takes the shorter direction; if
    /// both directions are equally long, it runs clockwise.
    fn route_between(&self, src: usize, dst: usize) -> VecDeque<usize> {
        match self.shape {
            DimensionTopology::FullyConnected => VecDeque::from([src, dst]),
            DimensionTopology::Switch => VecDeque::from([src, self.n, dst]),
            DimensionTopology::Ring => {
                let forward = (dst + self.n - src) % self.n;
                let step = if self.n - forward < forward {
                    self.n - 1
                } else {
                    1
                };
                let mut route = VecDeque::from([src]);
                let mut at = src;
                while at != dst {
                    at = (at + step) % self.n;
                    route.push_back(at);
                }
                route
            }
        }
    }

    pub fn send_message(&mut self, key: NumberedMessageKey, agenda: &mut EventAgenda) {
        if key.src != key.dst {
            let route = self.route_between(key.src, key.dst);
            self.forward_transfer(TransitMessage { key, route }, agenda);
        }
    }

    /// Puts a message on the link to its next device, or into this link's queue.
    pub fn forward_transfer(&mut self, transfer: TransitMessage, agenda: &mut EventAgenda) {
        let ends = (transfer.route[0], transfer.route[1]);
        let link = self.links.entry(ends).or_default();
        if link.busy {
            link.waiting.push_back(transfer);
        } else {
            self.occupy_link_and_schedule_arrival(transfer, agenda);
        }
    }

    fn occupy_link_and_schedule_arrival(
        &mut self,
        transfer: TransitMessage,
        agenda: &mut EventAgenda,
    ) {
        let ends = (transfer.route[0], transfer.route[1]);
        self.links.entry(ends).or_default().busy = true;
        let serial = transfer.key.bytes as f64 / self.bytes_per_ns;
        agenda.add_event(
            (self.latency + serial) as u64,
            AgendaEvent::Arrival(transfer),
        );
        agenda.add_event(serial as u64, AgendaEvent::LinkFree(ends.0, ends.1));
    }

    pub fn free_link_and_start_next_transfer(
        &mut self,
        from: usize,
        to: usize,
        agenda: &mut EventAgenda,
    ) {
        let link = self.links.entry((from, to)).or_default();
        link.busy = false;
        if let Some(next) = link.waiting.pop_front() {
            self.occupy_link_and_schedule_arrival(next, agenda);
        }
    }
}
