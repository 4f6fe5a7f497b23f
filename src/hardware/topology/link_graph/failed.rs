//! Failed links, identified by their endpoints, and detours around them.

use super::{LinkGraph, Npu, RouteLinksAndFractions};
use std::collections::VecDeque;

/// Maximum number of a vertex's neighbours that an error message lists.
const NAMED: usize = 8;

impl LinkGraph {
    /// Returns the links in both directions between two vertices, written in `ends` as `A-B`. NPUs are written as their
    /// numbers, and switches are written as the names that [`Self::vertex_name`] returns.
    ///
    /// # Errors
    ///
    /// Fails if a vertex is unknown, or if no link connects the two vertices.
    pub fn links_between_named_ends(&self, ends: &str) -> Result<Vec<u32>, String> {
        let mut known = None;
        // Try every `-`, because names may contain a `-` themselves.
        for (at, _) in ends.match_indices('-') {
            let named = [&ends[..at], &ends[at + 1..]].map(|name| self.find_vertex(name.trim()));
            let [Some(a), Some(b)] = named else {
                known = known.or(named[0]).or(named[1]);
                continue;
            };
            let joins = |from: u32, to: u32| (from, to) == (a, b) || (from, to) == (b, a);
            let links = (0..).zip(&self.links);
            let links: Vec<u32> = links
                .filter(|(_, link)| joins(link.from, link.to))
                .map(|(number, _)| number)
                .collect();
            if !links.is_empty() {
                return Ok(links);
            }
            let (a_name, b_name) = (self.vertex_name(a), self.vertex_name(b));
            let has = self.format_neighbour_names(a);
            return Err(format!(
                "no link joins {a_name} and {b_name}: {a_name} has links to {has}"
            ));
        }
        Err(match known {
            Some(vertex) => format!(
                "`{ends}` names {} but no second vertex; expected one of its neighbours {}",
                self.vertex_name(vertex),
                self.format_neighbour_names(vertex)
            ),
            None => format!(
                "`{ends}` does not name two vertices; NPU 0, for example, has links to {}",
                self.format_neighbour_names(0)
            ),
        })
    }

    /// Returns the vertex called `name`: an NPU's number, optionally after `NPU`, or a switch's name.
    fn find_vertex(&self, name: &str) -> Option<u32> {
        let number = name.strip_prefix("NPU ").unwrap_or(name);
        match number.parse() {
            Ok(npu) => Some(npu).filter(|npu| *npu < self.npus),
            Err(_) => {
                let switch = self.switches.iter().position(|switch| switch == name)?;
                Some(self.npus + switch as u32)
            }
        }
    }

    fn format_neighbour_names(&self, vertex: u32) -> String {
        let links = &self.outgoing[vertex as usize];
        let mut names: Vec<String> = Vec::new();
        for &link in links {
            let name = self.vertex_name(self.links[link as usize].to);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        let text = names.join(", ");
        match more {
            0 => text,
            more => format!("{text} and {more} more"),
        }
    }

    /// Returns true if a link is in service.
    pub fn is_link_in_service(&self, link: u32) -> bool {
        !self.failed[link as usize]
    }

    /// Returns the graph without the links `failed`. The remaining links keep their numbers. If failed links leave no
    /// path along a dimension, messages take a route with the fewest links over any dimensions
    /// ([`Self::find_route_around_failures`]).
    pub fn without_links(&self, failed: &[u32]) -> Self {
        let mut graph = self.clone();
        for &link in failed {
            graph.failed[link as usize] = true;
        }
        graph.measure_distances_and_outgoing_links();
        graph
    }

    /// Returns a route from `a` to `b` with the fewest links, over any dimensions. With ties, takes the first-added
    /// link at each vertex. Returns `None` if there is no route.
    pub(super) fn find_route_over_any_dimensions(
        &self,
        a: Npu,
        b: Npu,
    ) -> Option<RouteLinksAndFractions> {
        let mut came_by = vec![None; self.outgoing.len()];
        let mut queue = VecDeque::from([a.0]);
        while let Some(at) = queue.pop_front() {
            if at == b.0 {
                break;
            }
            for &link in &self.outgoing[at as usize] {
                let to = self.links[link as usize].to;
                if to != a.0 && came_by[to as usize].is_none() {
                    came_by[to as usize] = Some(link);
                    queue.push_back(to);
                }
            }
        }
        let mut route = RouteLinksAndFractions::default();
        let mut at = b.0;
        while at != a.0 {
            let link = came_by[at as usize]?;
            route.links.push((link, 1.0));
            route.latency += self.links[link as usize].latency;
            at = self.links[link as usize].from;
        }
        route.links.reverse();
        Some(route)
    }
}
