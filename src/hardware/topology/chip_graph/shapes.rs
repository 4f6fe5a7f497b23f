//! Named graphs, the best tori, and random graphs.

use super::{ChipGraph, ChipGraphError, MOST_CHIPS};
use std::collections::BTreeSet;

impl ChipGraph {
    /// Returns the graph called `torus:2x4`, `mesh:2x4` or `ring:8`. Links have unit length, and two chips have at most
    /// one link in common.
    ///
    /// # Errors
    ///
    /// Fails if the name is unknown, or if the graph would have more than [`MOST_CHIPS`] chips.
    pub fn parse_named_shape(text: &str) -> Result<Self, ChipGraphError> {
        let wrong = || ChipGraphError::Shape {
            found: text.chars().take(80).collect(),
        };
        let (shape, size) = text.split_once(':').ok_or_else(wrong)?;
        let sizes = size
            .split('x')
            .map(|part| part.parse::<u32>().ok().filter(|size| *size > 0));
        let sizes: Vec<u32> = sizes.collect::<Option<_>>().ok_or_else(wrong)?;
        let chips = sizes
            .iter()
            .try_fold(1_u32, |all, size| all.checked_mul(*size));
        chips
            .filter(|chips| *chips <= MOST_CHIPS)
            .ok_or_else(wrong)?;
        match shape {
            "torus" => Ok(Self::create_grid(text, &sizes, true)),
            "mesh" => Ok(Self::create_grid(text, &sizes, false)),
            "ring" if sizes.len() == 1 => Ok(Self::create_grid(text, &sizes, true)),
            _ => Err(wrong()),
        }
    }

    /// Creates a grid of chips. If `closes` is true, each dimension is a ring. The last coordinate varies fastest.
    fn create_grid(name: &str, sizes: &[u32], closes: bool) -> Self {
        let chips: u32 = sizes.iter().product();
        let mut links = vec![Vec::new(); chips as usize];
        for chip in 0..chips {
            let mut stride = 1;
            let mut neighbours = BTreeSet::new();
            for &size in sizes.iter().rev() {
                let at = chip / stride % size;
                let to = |there: u32| chip - at * stride + there * stride;
                if at + 1 < size || closes {
                    neighbours.insert(to((at + 1) % size));
                }
                if at > 0 || closes {
                    neighbours.insert(to((at + size - 1) % size));
                }
                stride *= size;
            }
            neighbours.remove(&chip);
            links[chip as usize] = neighbours.into_iter().map(|to| (to, 1)).collect();
        }
        Self {
            name: name.to_owned(),
            dimensions: sizes.len() as u32,
            links,
        }
    }

    /// Returns the two-dimensional torus of `chips` chips with the smallest mean number of hops; with ties, the widest.
    pub fn find_torus_with_fewest_mean_hops(chips: u32) -> Self {
        let widths = (1..=chips).filter(|width| chips.is_multiple_of(*width));
        let all = widths.map(|width| {
            Self::create_grid(
                &format!("torus:{width}x{}", chips / width),
                &[width, chips / width],
                true,
            )
        });
        let hops = |graph: &Self| graph.summarize().mean_hops;
        let best = all.reduce(|best, other| {
            if hops(&other) <= hops(&best) {
                other
            } else {
                best
            }
        });
        best.expect("every number has a divisor")
    }

    /// Returns a random connected graph of `chips` chips: a random tree, plus links between unlinked pairs. The total
    /// number of links is random: at least the number of links in the tree, and at most three per chip. `random`
    /// returns 64 random bits.
    pub fn create_random_connected_graph(chips: u32, random: &mut dyn FnMut() -> u64) -> Self {
        let mut below = |limit: u64| ((u128::from(random()) * u128::from(limit)) >> 64) as u64;
        let n = u64::from(chips);
        let mut links = vec![BTreeSet::new(); chips as usize];
        let mut count = 0;
        for chip in 1..chips {
            let other = below(u64::from(chip)) as u32;
            links[chip as usize].insert(other);
            links[other as usize].insert(chip);
            count += 1;
        }
        let most = (3 * n).min(n * n.saturating_sub(1) / 2);
        let wanted = count + below(most.saturating_sub(count) + 1);
        while count < wanted {
            let (a, b) = (below(n) as u32, below(n) as u32);
            if a != b && links[a as usize].insert(b) {
                links[b as usize].insert(a);
                count += 1;
            }
        }
        Self {
            name: format!("random:{chips}"),
            dimensions: 1,
            links: links
                .into_iter()
                .map(|of| of.into_iter().map(|to| (to, 1)).collect())
                .collect(),
        }
    }
}
