//! Distances in links from every vertex to every NPU, within each dimension.
//!
//! A dimension's links divide the vertices into unconnected components, so a row of distances covers only one
//! component. An NPU with a single incoming link shares the row of the vertex at its start, which every path to the NPU
//! passes. NPUs below one switch therefore share a row.

use super::DirectedLink;
use chakram_base::ids::Npu;
use std::collections::VecDeque;

/// Distance that marks an unreachable vertex.
const UNREACHABLE: u16 = u16::MAX;

/// Index that marks a vertex without links in a dimension, or a missing row.
const NONE: u32 = u32::MAX;

/// Distances within every dimension.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LinkDistancesByDimension {
    dimensions: Vec<DimensionDistances>,
}

/// Distances along the links of one dimension.
#[derive(Clone, Debug, Default, PartialEq)]
struct DimensionDistances {
    /// Component of each vertex, and the vertex's index within the component.
    places: Vec<(u32, u32)>,
    /// For each NPU, its row and the distance from the row's vertex to the NPU: 0 or 1.
    targets: Vec<(u32, u16)>,
    /// First entry of each row in `table`.
    rows: Vec<usize>,
    /// Distances from the vertices of a row's component, in the order of their indices.
    table: Vec<u16>,
}

impl LinkDistancesByDimension {
    /// Measures the distances along `links`, which must be in service. Vertices from 0 to `npus` are NPUs.
    pub fn measure<'l>(
        (npus, vertices): (u32, usize),
        dimensions: usize,
        links: impl Iterator<Item = &'l DirectedLink> + Clone,
    ) -> Self {
        let of = |d| {
            links
                .clone()
                .filter(move |link| link.dimension as usize == d)
        };
        let measured =
            (0..dimensions).map(|d| DimensionDistances::measure((npus, vertices), of(d)));
        Self {
            dimensions: measured.collect(),
        }
    }

    /// Returns the number of links from `vertex` to an NPU along a dimension, or `None` if there is no path.
    #[inline]
    pub fn links_to_npu_along_dimension(
        &self,
        vertex: u32,
        to: Npu,
        dimension: usize,
    ) -> Option<u32> {
        self.dimensions[dimension].between(vertex, to)
    }

    /// Returns the row of distances to an NPU. Two NPUs that share a row are reached from the same vertices.
    pub fn row_of(&self, to: Npu, dimension: usize) -> u32 {
        self.dimensions[dimension].targets[to.0 as usize].0
    }
}

impl DimensionDistances {
    fn measure<'l>(
        (npus, vertices): (u32, usize),
        links: impl Iterator<Item = &'l DirectedLink> + Clone,
    ) -> Self {
        let mut incoming = vec![Vec::new(); vertices];
        let mut neighbours = vec![Vec::new(); vertices];
        for link in links {
            incoming[link.to as usize].push(link.from);
            neighbours[link.to as usize].push(link.from);
            neighbours[link.from as usize].push(link.to);
        }
        let (places, sizes) = divide_into_components(&neighbours);
        let mut distances = Self {
            places,
            targets: Vec::with_capacity(npus as usize),
            rows: Vec::new(),
            table: Vec::new(),
        };
        let mut row_of = vec![NONE; vertices];
        for npu in 0..npus {
            let (vertex, extra) = match incoming[npu as usize][..] {
                [only] => (only, 1),
                _ => (npu, 0),
            };
            if row_of[vertex as usize] == NONE {
                row_of[vertex as usize] = distances.rows.len() as u32;
                let size = sizes.get(distances.places[vertex as usize].0 as usize);
                distances.add_distances_to_target(vertex, size.copied().unwrap_or(0), &incoming);
            }
            distances.targets.push((row_of[vertex as usize], extra));
        }
        distances
    }

    /// Adds the row of distances to `target`, whose component has `size` vertices.
    fn add_distances_to_target(&mut self, target: u32, size: usize, incoming: &[Vec<u32>]) {
        let first = self.table.len();
        self.rows.push(first);
        self.table.resize(first + size, UNREACHABLE);
        if size == 0 {
            return;
        }
        let row = &mut self.table[first..];
        let place = |vertex: u32| self.places[vertex as usize].1 as usize;
        row[place(target)] = 0;
        let mut queue = VecDeque::from([target]);
        while let Some(at) = queue.pop_front() {
            let next = row[place(at)] + 1;
            for &from in &incoming[at as usize] {
                if row[place(from)] == UNREACHABLE {
                    row[place(from)] = next;
                    queue.push_back(from);
                }
            }
        }
    }

    #[inline]
    fn between(&self, vertex: u32, to: Npu) -> Option<u32> {
        if vertex == to.0 {
            return Some(0);
        }
        let (component, index) = self.places[vertex as usize];
        if component == NONE || component != self.places[to.0 as usize].0 {
            return None;
        }
        let (row, extra) = self.targets[to.0 as usize];
        let distance = self.table[self.rows[row as usize] + index as usize];
        (distance != UNREACHABLE).then(|| u32::from(distance) + u32::from(extra))
    }
}

/// Returns the component of each vertex with the vertex's index in the component, and the sizes of the components.
fn divide_into_components(neighbours: &[Vec<u32>]) -> (Vec<(u32, u32)>, Vec<usize>) {
    let mut places = vec![(NONE, 0); neighbours.len()];
    let mut sizes = Vec::new();
    let mut found = Vec::new();
    for first in 0..neighbours.len() as u32 {
        if places[first as usize].0 != NONE || neighbours[first as usize].is_empty() {
            continue;
        }
        let component = sizes.len() as u32;
        let mut size = 0;
        found.push(first);
        places[first as usize] = (component, size);
        while let Some(at) = found.pop() {
            for &next in &neighbours[at as usize] {
                if places[next as usize].0 == NONE {
                    size += 1;
                    places[next as usize] = (component, size);
                    found.push(next);
                }
            }
        }
        sizes.push(size as usize + 1);
    }
    (places, sizes)
}
