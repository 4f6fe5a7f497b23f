//! Routes over links, and the time of a message alone on its route.

use super::legs::SingleDimensionRouteLeg;
use super::{
    Bandwidth, DirectedLink, LinkGraph, LinkMessageFraction, Npu, PathLatencyAndRates,
    RouteLinksAndFractions, ShortestPathChoice, Span, SummedSecondsPerByte, SwitchingMode,
};
use chakram_base::random::split_mix;

impl LinkGraph {
    /// Returns the number of links between two NPUs.
    pub fn hop_count(&self, a: Npu, b: Npu) -> u32 {
        let mut at = a.0;
        let mut hops = 0;
        while let Some(leg) = self.legs.first_leg(at, b.0) {
            hops += self.distance_to_leg_end(at, leg).unwrap_or(0);
            at = leg.end;
        }
        hops
    }

    /// Returns the number of links from `vertex` to the end of `leg` along the leg's dimension, or `None` if there is
    /// no path.
    pub(super) fn distance_to_leg_end(
        &self,
        vertex: u32,
        leg: SingleDimensionRouteLeg,
    ) -> Option<u32> {
        self.distances
            .links_to_npu_along_dimension(vertex, Npu(leg.end), leg.dimension)
    }

    /// Returns the outgoing links of `vertex` that are on a shortest path to the end of `leg`.
    pub(super) fn links_towards(
        &self,
        vertex: u32,
        leg: SingleDimensionRouteLeg,
    ) -> impl Iterator<Item = u32> + '_ {
        let nearer = self
            .distance_to_leg_end(vertex, leg)
            .and_then(|far| far.checked_sub(1));
        let links = self.outgoing[vertex as usize].iter().copied();
        links.filter(move |&link| {
            let link = &self.links[link as usize];
            link.dimension as usize == leg.dimension
                && nearer.is_some()
                && self.distance_to_leg_end(link.to, leg) == nearer
        })
    }

    /// Returns the route from `a` to `b` in a graph without failed links. The route is empty if both are the same NPU.
    pub fn route_between(&self, a: Npu, b: Npu) -> RouteLinksAndFractions {
        let route = self.find_route_around_failures(a, b);
        route.expect("every NPU can be reached")
    }

    /// Returns the route from `a` to `b` leg by leg. If failed links interrupt a leg, returns a shortest route over any
    /// links instead. Returns `None` if failed links leave no route.
    pub fn find_route_around_failures(&self, a: Npu, b: Npu) -> Option<RouteLinksAndFractions> {
        let of_legs = self.follow_legs(a, b);
        of_legs.or_else(|| self.find_route_over_any_dimensions(a, b))
    }

    fn follow_legs(&self, a: Npu, b: Npu) -> Option<RouteLinksAndFractions> {
        let mut route = RouteLinksAndFractions::default();
        let mut at = a.0;
        while let Some(leg) = self.legs.first_leg(at, b.0) {
            match self.policies[leg.dimension] {
                ShortestPathChoice::Hashed(_) => {
                    self.add_leg_along_one_shortest_path((at, leg.end), leg, (a, b), &mut route)?;
                }
                _ => self.follow_leg((at, leg.end), leg, &mut route)?,
            }
            at = leg.end;
        }
        Some(route)
    }

    /// Adds the part of a leg from vertex `start` to vertex `end`, over one path or over all paths. Routes must not be
    /// hashed. Returns `None` if failed links leave no path.
    pub(super) fn follow_leg(
        &self,
        part: (u32, u32),
        leg: SingleDimensionRouteLeg,
        route: &mut RouteLinksAndFractions,
    ) -> Option<()> {
        match self.policies[leg.dimension] {
            ShortestPathChoice::Sprayed => self.spread_over_paths(part, leg, route),
            _ => {
                self.add_leg_along_one_shortest_path(part, leg, (Npu(part.0), Npu(leg.end)), route)
            }
        }
    }

    /// Adds the part of a leg from vertex `at` to vertex `end` along one shortest path, for a message from `a` to `b`.
    /// Returns `None` if failed links leave no path.
    pub(super) fn add_leg_along_one_shortest_path(
        &self,
        (mut at, end): (u32, u32),
        leg: SingleDimensionRouteLeg,
        (a, b): (Npu, Npu),
        route: &mut RouteLinksAndFractions,
    ) -> Option<()> {
        while at != end {
            let mut onward = self.links_towards(at, leg);
            let link = match self.policies[leg.dimension] {
                ShortestPathChoice::Hashed(seed) => {
                    let all: Vec<_> = onward.collect();
                    let pair = u64::from(a.0) << 32 | u64::from(b.0);
                    let draw = mix_bits(seed ^ mix_bits(pair ^ mix_bits(at.into())));
                    let count = (!all.is_empty()).then_some(all.len() as u64)?;
                    Some(all[(draw % count) as usize])
                }
                _ => onward.next(),
            };
            let link = link?;
            route.links.push((link, 1.0));
            let DirectedLink { to, latency, .. } = self.links[link as usize];
            route.latency += latency;
            at = to;
        }
        Some(())
    }

    /// Adds the part of a leg from vertex `from` to vertex `end` over all shortest paths: each vertex sends equal parts
    /// over all links on shortest paths. Returns `None` if failed links leave no path.
    fn spread_over_paths(
        &self,
        (from, end): (u32, u32),
        leg: SingleDimensionRouteLeg,
        route: &mut RouteLinksAndFractions,
    ) -> Option<()> {
        // Vertices at the same distance from `from`, as (vertex, fraction of the message at the vertex, latency of the
        // slowest path to the vertex).
        let mut front = vec![(from, 1.0, Span::ZERO)];
        while front[0].0 != end {
            let mut next: Vec<(u32, f64, Span)> = Vec::new();
            for &(at, part, latency) in &front {
                let count = self.links_towards(at, leg).count() as f64;
                if count == 0.0 {
                    return None;
                }
                for link in self.links_towards(at, leg) {
                    let part = part / count;
                    route.links.push((link, part));
                    let of = self.links[link as usize];
                    let latency = latency + of.latency;
                    match next.iter_mut().find(|(vertex, _, _)| *vertex == of.to) {
                        Some((_, sum, slowest)) => {
                            *sum += part;
                            *slowest = (*slowest).max(latency);
                        }
                        None => next.push((of.to, part, latency)),
                    }
                }
            }
            front = next;
        }
        route.latency += front[0].2;
        Some(())
    }

    /// Returns the latency and rates of a lone message from `a` to `b`, or `None` if both are the same NPU. With
    /// store-and-forward devices, each link in turn serializes the message, n times if its length is n.
    pub fn path_latency_and_rates(
        &self,
        a: Npu,
        b: Npu,
        switching: SwitchingMode,
    ) -> Option<PathLatencyAndRates> {
        let route = self.route_between(a, b);
        let rate = |&(link, part): &LinkMessageFraction| {
            let whole = self.links[link as usize].bandwidth;
            if part < 1.0 {
                Bandwidth::new(whole.bytes_per_second() / part).unwrap_or(whole)
            } else {
                whole
            }
        };
        let rates = route.links.iter().map(rate);
        let bandwidth = rates.reduce(|least, rate| if rate < least { rate } else { least })?;
        let mut others = SummedSecondsPerByte::ZERO;
        if switching == SwitchingMode::StoreAndForward {
            // Skip one unit of the slowest link, because its serialization is counted separately.
            let mut slowest = Some(bandwidth);
            for &(link, _) in &route.links {
                let DirectedLink {
                    bandwidth, length, ..
                } = self.links[link as usize];
                let out = u32::from(slowest == Some(bandwidth));
                if out == 1 {
                    slowest = None;
                }
                others = others.add_links(length - out, bandwidth);
            }
        }
        Some(PathLatencyAndRates {
            latency: route.latency,
            bandwidth,
            switching,
            others,
        })
    }
}

/// Returns a hash of `word`.
fn mix_bits(mut word: u64) -> u64 {
    split_mix(&mut word)
}
