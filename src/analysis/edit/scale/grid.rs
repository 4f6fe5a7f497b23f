//! A grid of ranks with one scaled dimension.

use chakram_base::ids::MAX_NPUS;

/// Name and size of each dimension, outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankGridDimensions(Vec<(String, u32)>);

impl RankGridDimensions {
    /// Parses a grid such as `dp=2,tp=4`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut grid = Self(Vec::new());
        for part in text.split(',') {
            let (name, size) = Self::parse_dimension(part)?;
            if grid.0.iter().any(|(known, _)| *known == name) {
                return Err(format!("dimension `{name}` is given twice"));
            }
            grid.0.push((name, size));
        }
        let sizes = grid.0.iter().map(|(_, size)| u64::from(*size));
        // Saturate, because the product of five sizes may not fit even in 128 bits.
        if sizes.fold(1, u64::saturating_mul) > u64::from(MAX_NPUS) {
            return Err(format!("more than {MAX_NPUS} ranks"));
        }
        Ok(grid)
    }

    /// Parses the name and size of one dimension, such as `dp=2`.
    pub fn parse_dimension(text: &str) -> Result<(String, u32), String> {
        let wrong = || format!("`{text}` is not a dimension; write for example dp=2");
        let (name, size) = text.trim().split_once('=').ok_or_else(wrong)?;
        let (name, size) = (
            name.trim(),
            size.trim().parse::<u32>().map_err(|_| wrong())?,
        );
        if name.is_empty() || size == 0 {
            Err(wrong())
        } else {
            Ok((name.to_owned(), size))
        }
    }

    /// Returns the number of ranks in the grid.
    pub fn rank_count(&self) -> u32 {
        self.0.iter().map(|(_, size)| size).product()
    }

    /// Returns the coordinates of `rank`, outermost first.
    fn coordinates_of(&self, mut rank: u32) -> Vec<u32> {
        let mut list: Vec<u32> = self
            .0
            .iter()
            .rev()
            .map(|(_, size)| {
                let coordinate = rank % size;
                rank /= size;
                coordinate
            })
            .collect();
        list.reverse();
        list
    }
}

/// Position of a rank: its coordinate in the scaled dimension, a combined coordinate for the outer dimensions, and
/// another for the inner ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterScaledInnerCoordinates {
    pub(super) outer: u32,
    pub(super) x: u32,
    pub(super) inner: u32,
}

/// A grid of ranks, and the dimension whose size changes.
#[derive(Clone, Debug)]
pub struct ScaledDimension {
    grid: RankGridDimensions,
    dimension: usize,
    stride: u32,
    size: u32,
    new_size: u32,
}

impl ScaledDimension {
    /// Changes the size of dimension `name` to `size`.
    pub fn new(grid: RankGridDimensions, name: &str, size: u32) -> Result<Self, String> {
        let names: Vec<&str> = grid.0.iter().map(|(name, _)| &**name).collect();
        let found = names.iter().position(|known| *known == name);
        let dimension = found.ok_or_else(|| {
            format!(
                "the grid has no `{name}`; expected one of {}",
                names.join(", ")
            )
        })?;
        let stride: u32 = grid.0[dimension + 1..]
            .iter()
            .map(|(_, size)| size)
            .product();
        let old = grid.0[dimension].1;
        let ranks = u64::from(grid.rank_count() / old) * u64::from(size);
        if ranks > u64::from(MAX_NPUS) {
            return Err(format!("{ranks} ranks; a job has at most {MAX_NPUS}"));
        }
        Ok(Self {
            dimension,
            stride,
            size: old,
            new_size: size,
            grid,
        })
    }

    /// Returns the name of the scaled dimension.
    pub fn dimension_name(&self) -> &str {
        &self.grid.0[self.dimension].0
    }

    /// Returns the number of ranks in the original job.
    pub fn original_rank_count(&self) -> u32 {
        self.grid.rank_count()
    }

    /// Returns the number of ranks in the scaled job.
    pub fn scaled_rank_count(&self) -> u32 {
        self.grid.rank_count() / self.size * self.new_size
    }

    pub(super) fn original_size(&self) -> u32 {
        self.size
    }

    /// Returns the size of the dimension in the scaled job.
    pub fn scaled_dimension_size(&self) -> u32 {
        self.new_size
    }

    /// Returns the number of blocks: the new size divided by the old size, rounded up because the last block may be
    /// incomplete.
    pub(super) fn count_original_sized_blocks(&self) -> u32 {
        self.new_size.div_ceil(self.size)
    }

    fn split_rank(&self, rank: u32, size: u32) -> OuterScaledInnerCoordinates {
        OuterScaledInnerCoordinates {
            outer: rank / self.stride / size,
            x: rank / self.stride % size,
            inner: rank % self.stride,
        }
    }

    fn join_rank(&self, x: u32, place: OuterScaledInnerCoordinates, size: u32) -> u32 {
        (place.outer * size + x) * self.stride + place.inner
    }

    /// Returns the position of an old rank in the old grid.
    pub(super) fn coordinates_of_original_rank(&self, rank: u32) -> OuterScaledInnerCoordinates {
        self.split_rank(rank, self.size)
    }

    /// Returns the position of a new rank in the new grid.
    pub(super) fn coordinates_of_new_rank(&self, rank: u32) -> OuterScaledInnerCoordinates {
        self.split_rank(rank, self.new_size)
    }

    /// Returns the old rank whose coordinate along the dimension is `x` and whose other coordinates are those of
    /// `place`.
    pub(super) fn original_rank_at(&self, x: u32, place: OuterScaledInnerCoordinates) -> u32 {
        self.join_rank(x, place, self.size)
    }

    /// Returns the new rank whose coordinate along the dimension is `x` and whose other coordinates are those of
    /// `place`.
    pub(super) fn new_rank_at(&self, x: u32, place: OuterScaledInnerCoordinates) -> u32 {
        self.join_rank(x, place, self.new_size)
    }

    /// Returns the new rank in `block` at `place`, a position in the old grid; `None` if the last block is incomplete
    /// and lacks it.
    pub(super) fn new_rank_in_block(
        &self,
        place: OuterScaledInnerCoordinates,
        block: u32,
    ) -> Option<u32> {
        let x = u64::from(place.x) + u64::from(block) * u64::from(self.size);
        let x = u32::try_from(x).ok().filter(|&x| x < self.new_size)?;
        Some(self.new_rank_at(x, place))
    }

    /// Returns the old rank that the new rank `rank` copies, and the block that contains the new rank.
    pub fn source_rank_and_block(&self, rank: u32) -> (u32, u32) {
        let place = self.coordinates_of_new_rank(rank);
        (
            self.original_rank_at(place.x % self.size, place),
            place.x / self.size,
        )
    }

    /// Returns, in ascending order, every new rank that matches one of `ranks` in all dimensions but the scaled one.
    pub(super) fn scale_members(&self, ranks: &[u32]) -> Vec<u32> {
        let places = ranks
            .iter()
            .map(|&rank| self.coordinates_of_original_rank(rank));
        let first = places.filter(|place| place.x == 0);
        let mut all: Vec<u32> = first
            .flat_map(|place| (0..self.new_size).map(move |x| self.new_rank_at(x, place)))
            .collect();
        all.sort_unstable();
        all
    }

    /// Returns the coordinates of `rank` in all dimensions, outermost first, and the index of the scaled dimension.
    pub(super) fn coordinates_and_scaled_dimension_index(&self, rank: u32) -> (Vec<u32>, usize) {
        (self.grid.coordinates_of(rank), self.dimension)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_ranks_copy_old_ranks_at_their_grid_coordinates() {
        // The grid is pp=2, dp=2, tp=2, so rank = 4 pp + 2 dp + tp. The size of dp becomes 3.
        let grid = RankGridDimensions::parse("pp=2,dp=2,tp=2").unwrap();
        let along = ScaledDimension::new(grid, "dp", 3).unwrap();
        assert_eq!(
            (
                along.original_rank_count(),
                along.scaled_rank_count(),
                along.count_original_sized_blocks()
            ),
            (8, 12, 2)
        );
        // New rank 11 = (1, 2, 1) copies old rank 5 = (1, 0, 1), and is in block 1.
        assert_eq!(along.source_rank_and_block(11), (5, 1));
        assert_eq!(along.source_rank_and_block(6), (4, 0));
        // In block 1, the ranks (1, 1, *) would have the dp coordinate 3, which exceeds the new size.
        assert_eq!(
            along.new_rank_in_block(along.coordinates_of_original_rank(6), 1),
            None
        );
        assert_eq!(
            along.new_rank_in_block(along.coordinates_of_original_rank(4), 1),
            Some(10)
        );
        // At pp = 1 and tp = 1, the dp group consists of ranks 5 and 7; after scaling, it consists of ranks 7, 9 and
        // 11.
        assert_eq!(along.scale_members(&[5, 7]), [7, 9, 11]);
        assert_eq!(
            along.coordinates_and_scaled_dimension_index(6),
            (vec![1, 1, 0], 1)
        );
    }

    #[test]
    fn grids_that_make_no_sense_are_refused() {
        for bad in [
            "",
            "dp",
            "dp=0",
            "=3",
            "dp=2,dp=3",
            "dp=x",
            "dp=100000,tp=100000",
            "a=4294967295,b=4294967295,c=4294967295,d=4294967295,e=4294967295",
        ] {
            assert!(RankGridDimensions::parse(bad).is_err(), "{bad}");
        }
        let grid = RankGridDimensions::parse("dp=2, tp=4").unwrap();
        assert!(ScaledDimension::new(grid.clone(), "pp", 2).is_err());
        assert!(ScaledDimension::new(grid, "dp", u32::MAX).is_err());
    }
}
