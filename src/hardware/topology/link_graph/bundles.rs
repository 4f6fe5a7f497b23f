//! Bundles: links that carry equal parts of every sprayed message.
//!
//! In a Clos network, a sprayed message leaves a subtree of switches in equal parts over all upward links, and enters a
//! subtree in equal parts over all downward links. If all links of the dimension have the same rate and latency, a
//! bundle's links saturate at the same time. One of them then represents all others, so a route has two entries per
//! level instead of two per switch.

use super::legs::SingleDimensionRouteLeg;
use super::{
    DirectedLink, LinkGraph, LinkMessageFraction, Npu, RouteLinksAndFractions, ShortestPathChoice,
};
use chakram_base::random::split_mix;
use chakram_base::units::Span;
use hashbrown::HashTable;

/// Finds routes over the bundles of a graph without failed links, and caches the parts that they share.
#[derive(Clone, Debug)]
pub struct BundledRouteFinder {
    dimensions: Vec<LinkPropertiesOfDimension>,
    /// Number of links of each bundle.
    sizes: Vec<u32>,
    shared: HashTable<LegPartSharedByNpus>,
    /// Links of the shared parts.
    links: Vec<LinkMessageFraction>,
}

/// Part of a leg that is the same for all NPUs at its two vertices. In a Clos network, this is the part from one switch
/// of the lowest level to another.
#[derive(Clone, Copy, Debug)]
struct LegPartSharedByNpus {
    dimension: usize,
    /// Vertices at which the part begins and ends.
    ends: (u32, u32),
    /// Range of entries in [`BundledRouteFinder::links`].
    links: (u32, u32),
    latency: Span,
}

/// Properties of the links of a dimension.
#[derive(Clone, Debug)]
struct LinkPropertiesOfDimension {
    /// True if messages are sprayed over bundles whose links have the same rate and latency.
    has_bundles: bool,
    /// For each NPU, the link that leaves it along the dimension, if there is only one.
    only_outgoing: Vec<Option<u32>>,
    /// For each NPU, the link that enters it along the dimension, if there is only one.
    only_incoming: Vec<Option<u32>>,
}

impl BundledRouteFinder {
    /// Finds the bundles of `graph`.
    pub fn new(graph: &LinkGraph) -> Self {
        let mut sizes = vec![0; graph.links.len()];
        for bundle in graph.bundles.iter().flatten() {
            sizes[*bundle as usize] += 1;
        }
        let dimensions = 0..graph.labels.len();
        Self {
            dimensions: dimensions
                .map(|d| LinkPropertiesOfDimension::new(graph, d))
                .collect(),
            sizes,
            shared: HashTable::new(),
            links: Vec::new(),
        }
    }

    /// Replaces `route` by the route from `a` to `b`. Links in bundles are represented by the bundle's first link.
    pub fn find_route(
        &mut self,
        graph: &LinkGraph,
        (a, b): (Npu, Npu),
        route: &mut RouteLinksAndFractions,
    ) {
        route.links.clear();
        route.latency = Span::ZERO;
        let mut at = a.0;
        while let Some(leg) = graph.legs.first_leg(at, b.0) {
            match graph.policies[leg.dimension] {
                // A hash of both NPUs selects the links, so legs share no part.
                ShortestPathChoice::Hashed(_) => {
                    let found =
                        graph.add_leg_along_one_shortest_path((at, leg.end), leg, (a, b), route);
                    found.expect("every NPU can be reached");
                }
                ShortestPathChoice::First | ShortestPathChoice::Sprayed => {
                    self.append_leg(graph, at, leg, route);
                }
            }
            at = leg.end;
        }
    }

    fn append_leg(
        &mut self,
        graph: &LinkGraph,
        from: u32,
        leg: SingleDimensionRouteLeg,
        route: &mut RouteLinksAndFractions,
    ) {
        let dimension = &self.dimensions[leg.dimension];
        let first = dimension.only_outgoing[from as usize];
        let last = dimension.only_incoming[leg.end as usize];
        let mut start = from;
        if let Some(link) = first {
            start = append_link_to_route(graph, link, route);
            if start == leg.end {
                return;
            }
        }
        let end = last.map_or(leg.end, |link| graph.links[link as usize].from);
        let part = self.find_or_build_shared_leg_part(graph, (start, end), leg);
        let (first, behind) = part.links;
        let links = &self.links[first as usize..behind as usize];
        route.links.extend_from_slice(links);
        route.latency += part.latency;
        if let Some(link) = last {
            append_link_to_route(graph, link, route);
        }
    }

    /// Returns the part of `leg` between two vertices; its links are found on first use.
    fn find_or_build_shared_leg_part(
        &mut self,
        graph: &LinkGraph,
        ends: (u32, u32),
        leg: SingleDimensionRouteLeg,
    ) -> LegPartSharedByNpus {
        let dimension = leg.dimension;
        let hash = hash_part(dimension, ends);
        let is_part = |part: &LegPartSharedByNpus| (part.dimension, part.ends) == (dimension, ends);
        if let Some(part) = self.shared.find(hash, is_part) {
            return *part;
        }
        let mut route = RouteLinksAndFractions::default();
        if self.dimensions[dimension].has_bundles {
            append_link_bundles_to_route(graph, &self.sizes, ends, leg, &mut route);
        } else {
            let found = graph.follow_leg(ends, leg, &mut route);
            found.expect("every NPU can be reached");
        }
        let first = self.links.len() as u32;
        self.links.extend(route.links);
        let part = LegPartSharedByNpus {
            dimension,
            ends,
            links: (first, self.links.len() as u32),
            latency: route.latency,
        };
        let rehash = |part: &LegPartSharedByNpus| hash_part(part.dimension, part.ends);
        self.shared.insert_unique(hash, part, rehash);
        part
    }
}

fn hash_part(dimension: usize, (start, end): (u32, u32)) -> u64 {
    let mut word = u64::from(start) << 32 | u64::from(end);
    split_mix(&mut word) ^ dimension as u64
}

impl LinkPropertiesOfDimension {
    fn new(graph: &LinkGraph, d: usize) -> Self {
        let links = || {
            (0..)
                .zip(&graph.links)
                .filter(|(_, link)| link.dimension as usize == d)
        };
        let mut all = links().map(|(_, link)| (link.bandwidth, link.latency));
        let first = all.next();
        let is_uniform = all.all(|link| Some(link) == first);
        let is_bundled = links().all(|(number, _)| graph.bundles[number as usize].is_some());
        let is_sprayed = graph.policies[d] == ShortestPathChoice::Sprayed;
        let only = |npu_of: fn(&DirectedLink) -> u32| {
            let mut counts = vec![(0, 0); graph.npus as usize];
            for (number, link) in links() {
                if let Some(count) = counts.get_mut(npu_of(link) as usize) {
                    *count = (count.0 + 1, number);
                }
            }
            let only = counts
                .into_iter()
                .map(|(count, link)| (count == 1).then_some(link));
            only.collect()
        };
        Self {
            has_bundles: is_sprayed && is_uniform && is_bundled,
            only_outgoing: only(|link| link.from),
            only_incoming: only(|link| link.to),
        }
    }
}

/// Appends a link that the whole message passes, and returns the vertex at its end.
fn append_link_to_route(graph: &LinkGraph, link: u32, route: &mut RouteLinksAndFractions) -> u32 {
    let DirectedLink { to, latency, .. } = graph.links[link as usize];
    route.links.push((link, 1.0));
    route.latency += latency;
    to
}

/// Appends the bundles from `start` to `end`, which are both on the way to the end of `leg`. All paths cross the same
/// bundles, so following one path is enough.
fn append_link_bundles_to_route(
    graph: &LinkGraph,
    sizes: &[u32],
    (start, end): (u32, u32),
    leg: SingleDimensionRouteLeg,
    route: &mut RouteLinksAndFractions,
) {
    let mut at = start;
    while at != end {
        let link = graph.links_towards(at, leg).next();
        let link = link.expect("every NPU can be reached");
        let DirectedLink { to, latency, .. } = graph.links[link as usize];
        let bundle = graph.bundles[link as usize].unwrap_or(link);
        route
            .links
            .push((bundle, 1.0 / f64::from(sizes[bundle as usize])));
        route.latency += latency;
        at = to;
    }
}
