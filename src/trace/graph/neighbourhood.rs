//! Finds the neighbourhood of a node by breadth-first search.

use super::Csr;
use petgraph::visit::Bfs;

/// Returns the nodes within `depth` steps of `centre` in the graph `rows`, nearest first, each with its distance.
/// Excludes `centre`, and stops after `most` nodes;
///
/// the second value is true if the neighbourhood contains more nodes.
pub fn find_neighbourhood(
    centre: u32,
    depth: u32,
    most: usize,
    rows: &Csr,
) -> (Vec<(u32, u32)>, bool) {
    let mut found = Vec::new();
    let mut search = Bfs::new(rows, centre);
    search.next(rows);
    for distance in 1..=depth {
        // At this point, the search's queue contains exactly the nodes at this distance.
        for _ in 0..search.stack.len() {
            if found.len() == most {
                return (found, true);
            }
            found.extend(search.next(rows).map(|node| (node, distance)));
        }
        if search.stack.is_empty() {
            break;
        }
    }
    (found, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_neighbours_come_first_and_once() {
        // The edges are 0 → 1 → 3 and 0 → 2 → 3 → 4 → 0.
        let edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 0)];
        let rows = Csr::new(5, |each| edges.iter().for_each(|&(a, b)| each(a, b)));
        let rows = &rows;
        assert_eq!(
            find_neighbourhood(0, 2, 10, rows),
            (vec![(1, 1), (2, 1), (3, 2)], false)
        );
        assert_eq!(find_neighbourhood(0, 9, 10, rows).0.len(), 4);
        assert_eq!(
            find_neighbourhood(0, 9, 3, rows),
            (vec![(1, 1), (2, 1), (3, 2)], true)
        );
        assert_eq!(find_neighbourhood(0, 0, 3, rows), (vec![], false));
    }
}
