//! Breadth-first neighbourhood of a node.

use std::collections::{BTreeSet, VecDeque};

/// Returns the nodes that can be reached from `centre` in at most `depth` steps, nearest first, each with its
/// distance, without `centre` itself; `most` at most. `row` returns the neighbours of a node.
///
/// The second value is whether there are more.
pub fn around<'r>(
    centre: u32,
    depth: u32,
    most: usize,
    row: impl Fn(u32) -> &'r [u32],
) -> (Vec<(u32, u32)>, bool) {
    let mut found = Vec::new();
    let mut seen = BTreeSet::from([centre]);
    let mut queue = VecDeque::from([(centre, 0)]);
    while let Some((node, distance)) = queue.pop_front() {
        if distance == depth {
            break;
        }
        let mut near = row(node).to_vec();
        near.sort_unstable();
        for other in near {
            if seen.contains(&other) {
                continue;
            }
            if found.len() == most {
                return (found, true);
            }
            seen.insert(other);
            found.push((other, distance + 1));
            queue.push_back((other, distance + 1));
        }
    }
    (found, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_come_first_and_once() {
        // 0 → 1 → 3, 0 → 2 → 3 → 4 → 0.
        let rows: [&[u32]; 5] = [&[2, 1], &[3], &[3], &[4], &[0]];
        let row = |i: u32| rows[i as usize];
        assert_eq!(around(0, 2, 10, row), (vec![(1, 1), (2, 1), (3, 2)], false));
        assert_eq!(around(0, 9, 10, row).0.len(), 4);
        assert_eq!(around(0, 9, 3, row), (vec![(1, 1), (2, 1), (3, 2)], true));
        assert_eq!(around(0, 0, 3, row), (vec![], false));
    }
}
