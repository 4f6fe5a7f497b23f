//! A message in flight: its position on its route, and when it reaches the next server.

use super::route::{is_link_between_dies, link_rate_and_latency_after_server};
use super::{
    NetworkMessage, Npu, PortsOrLinksOnRoute, RouteCursor, RouteServerAndLinkCountToNext, Span,
    SwitchingMode, Time, Topology, UnroundedBufferShare,
};
use crate::network::servers::QueueingServerId;
use crate::topology::{PathLatencyAndRates, RouteIntradieInterdieLinkCounts};
use chakram_base::units::{Bandwidth, SummedSecondsPerByte};

/// A message in flight: the next server that it must pass, and when it reaches that server.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlightMessageAtNextServer {
    amount: UnroundedBufferShare,
    sender: Npu,
    /// The rest of the route, after `stop`.
    route: RouteCursor,
    stop: RouteServerAndLinkCountToNext,
    /// Time at which the message's first segment reaches the device before `stop`.
    head: Time,
    tail: Time,
    /// Serialization time on the link of `stop`: γ for the first segment, δ for the remainder.
    segment: Span,
    rest: Span,
    /// Serialization of the first segment on the other links between `stop` and the next server.
    transit: Span,
    /// δ of the slowest link from `stop` on, where δ is the time to serialize what remains after the first segment.
    slowest_rest: Span,
    /// Rate of the route's slowest link, or `None` after the message has passed a link with this rate.
    slowest: Option<Bandwidth>,
    /// Sum of the inverse rates of the links that the message has passed. It leaves out one of the slowest links and
    /// all links in the dimension of `stop`.
    before: SummedSecondsPerByte,
    links: u32,
    passed: Span,
    /// On tiles, the number of links passed between dies. `links` then counts those inside dies, along both dimensions.
    borders: u32,
}

impl InFlightMessageAtNextServer {
    /// Creates the state of a message that is submitted at `now` along `path`.
    #[inline]
    pub fn new(
        now: Time,
        (message, path): (&NetworkMessage, &PathLatencyAndRates),
        reach: PortsOrLinksOnRoute,
        topology: &Topology,
    ) -> Self {
        let mut route = RouteCursor::new(reach, message.ends, topology);
        let whole = route;
        let stop = route
            .next(topology)
            .expect("a message goes from one NPU to another");
        let mut in_flight = Self {
            amount: message.amount,
            sender: message.ends.0,
            route,
            stop,
            head: now,
            tail: now,
            segment: Span::ZERO,
            rest: Span::ZERO,
            transit: Span::ZERO,
            slowest_rest: Span::ZERO,
            slowest: Some(path.bandwidth),
            before: SummedSecondsPerByte::ZERO,
            links: 0,
            passed: Span::ZERO,
            borders: 0,
        };
        in_flight.enter_dimension(&whole, topology);
        in_flight.enter_links(topology);
        in_flight
    }

    /// Returns the server that the message must pass next.
    #[inline]
    pub fn next_server(&self) -> QueueingServerId {
        self.stop.place
    }

    /// Returns the service time (s) at the next server.
    #[inline]
    pub fn service_time_at_next_server(&self) -> Span {
        self.segment + self.rest
    }

    /// Returns the route after the next server.
    #[inline]
    pub fn route_after_next_server(&self) -> RouteCursor {
        self.route
    }

    /// Returns the time at which the message's last byte reaches the device before the next server.
    #[inline]
    pub fn tail_arrival_time(&self) -> Time {
        self.tail
    }

    /// Returns the message's priority among messages that are ready at the same instant.
    #[inline]
    pub fn priority_among_ready_messages(&self) -> u32 {
        self.sender.0
    }

    /// Begins service at the next server. Returns the time at which the message is ready for the following server, or
    /// `None` after the last server.
    #[inline]
    pub fn begin_service_and_find_next_ready(
        &mut self,
        begin: Time,
        topology: &Topology,
    ) -> Option<Time> {
        let RouteServerAndLinkCountToNext { place, links, last } = self.stop;
        let zero = Span::ZERO;
        // The latency and the first segment count once for each link. A server may be at the start or end of its link.
        let between = match links {
            0 => zero,
            _ => {
                let (_, latency) = link_rate_and_latency_after_server(place, topology);
                latency.times(u64::from(links)) + self.transit
            }
        };
        self.head = begin + if last { self.segment } else { zero } + between;
        self.tail = begin + self.service_time_at_next_server() + between;
        let behind = self.route;
        self.stop = self.route.next(topology)?;
        if topology.tile_grid().is_some() {
            // On tiles, the links along a dimension have two classes: inside dies and between dies.
            self.enter_dimension(&behind, topology);
        } else if self.stop.place.dimension != place.dimension {
            // Add rates dimension by dimension, as Topology::path_between_npus does, so that both results round
            // identically.
            self.before = self
                .before
                .add_links(self.links, topology.link_bandwidth(place.dimension));
            self.links = 0;
            self.enter_dimension(&behind, topology);
        }
        let slack = if self.stop.links > 0 {
            self.enter_links(topology);
            self.slowest_rest
        } else {
            // The far end of the link receives bytes as they arrive, without waiting for a segment.
            self.slowest_rest + self.segment
        };
        // The message continues as soon as it need not wait for any later segment (see `network/contended.rs`).
        let gathered = Time(self.tail.0.saturating_sub(slack.0));
        Some(self.head.max(gathered))
    }

    /// Enters the dimension of `stop`. `way` is the route that begins in this dimension.
    #[inline]
    fn enter_dimension(&mut self, way: &RouteCursor, topology: &Topology) {
        let dimensions = topology.dimensions().len();
        let rest = topology
            .switching_mode()
            .remainder_after_first_segment(self.amount);
        let (own, _) = link_rate_and_latency_after_server(self.stop.place, topology);
        let ahead = (self.stop.place.dimension + 1..dimensions)
            .filter(|&d| way.crosses_dimension(topology, d));
        let slower = |slowest: Bandwidth, d: usize| {
            if topology.link_bandwidth(d) < slowest {
                topology.link_bandwidth(d)
            } else {
                slowest
            }
        };
        let slowest = match topology.tile_grid() {
            Some(_) => {
                let (at, to) = way.current_and_last_npu();
                topology
                    .path_between_npus(at, to)
                    .map_or(own, |path| path.bandwidth)
            }
            None => ahead.fold(own, slower),
        };
        self.rest = own.serialization_time(rest);
        self.slowest_rest = if slowest == own {
            self.rest
        } else {
            slowest.serialization_time(rest)
        };
    }

    /// Enters the links after `stop`.
    #[inline]
    fn enter_links(&mut self, topology: &Topology) {
        if topology.switching_mode() == SwitchingMode::IDEAL {
            return;
        }
        let (bandwidth, _) = link_rate_and_latency_after_server(self.stop.place, topology);
        let links = self.stop.links;
        let segment = topology.switching_mode().first_segment(self.amount);
        let border = is_link_between_dies(self.stop.place, topology);
        let mut pass = |links: u32| {
            *(if border {
                &mut self.borders
            } else {
                &mut self.links
            }) += links;
            // Add rates by class of link, as Topology::path_between_npus does, so that both results round identically.
            let all = match topology.tile_grid() {
                Some(tiles) => {
                    let count = RouteIntradieInterdieLinkCounts {
                        inside: self.links,
                        borders: self.borders,
                    };
                    tiles.sum_inverse_link_rates(topology.link_bandwidth(0), count)
                }
                None => self.before.add_links(self.links, bandwidth),
            };
            let passed = all.serialization_time(segment);
            let more = passed - self.passed;
            self.passed = passed;
            more
        };
        if self.slowest == Some(bandwidth) {
            self.slowest = None;
            self.segment = bandwidth.serialization_time(self.amount) - self.rest;
            self.transit = pass(links - 1);
        } else {
            self.segment = pass(1);
            self.transit = pass(links - 1);
        }
    }
}
