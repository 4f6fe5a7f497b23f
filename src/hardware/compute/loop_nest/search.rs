//! Searches for the mapping with the fewest cycles and, among equally fast mappings, the least energy.
//!
//! The search alternates between drawing a random mapping and changing a few choices of the best one so far. If a drawn
//! mapping's tiles do not fit, loops move outwards until they do. A seed always gives the same sequence of mappings, so
//! more draws never give a worse result.

use super::{
    LayerShape, LayerTensor, LoopDimension, LoopMapping, LoopNestAccelerator, MappingCost,
    MemoryLevelCapacity,
};
use chakram_base::random::split_mix;

/// The best mapping that a search has found.
#[derive(Clone, Debug, PartialEq)]
pub struct BestMapping {
    /// The mapping with the fewest cycles and, among these, the least energy.
    pub mapping: LoopMapping,
    /// Cost of the mapping.
    pub cost: MappingCost,
    /// Index of the draw that found the mapping, counting from 1.
    pub draw: u32,
    /// Number of valid mappings among all draws.
    pub valid: u32,
}

/// Draws `mappings` mappings of `layer` and returns the best. Returns `None` if no mapping is valid.
pub fn search_mapping(
    accelerator: &LoopNestAccelerator,
    layer: &LayerShape,
    mappings: u32,
    seed: u64,
) -> Option<BestMapping> {
    let mut draws = MappingChoiceSampler {
        accelerator,
        layer,
        state: seed,
    };
    let mut best: Option<(MappingDraw, BestMapping)> = None;
    let mut valid = 0;
    for draw in 1..=mappings {
        let mut choices = match &best {
            Some((best, _)) if draw % 2 == 0 => draws.mutate_choices(best),
            _ => draws.draw_choices(),
        };
        draws.shrink_to_fit(&mut choices);
        let mapping = choices.build_mapping(accelerator, layer);
        let Some(cost) = accelerator.evaluate_mapping(layer, &mapping) else {
            continue;
        };
        valid += 1;
        let better = best.as_ref().is_none_or(|(_, found)| {
            let old = &found.cost;
            (cost.cycles, cost.energy) < (old.cycles, old.energy)
        });
        if better {
            let found = BestMapping {
                mapping,
                cost,
                draw,
                valid,
            };
            best = Some((choices, found));
        }
    }
    let (_, found) = best?;
    Some(BestMapping { valid, ..found })
}

/// Choices that determine a mapping.
#[derive(Clone, Debug)]
struct MappingDraw {
    /// Index into the accelerator's choices of dimensions for rows and columns.
    along: usize,
    /// Numbers of rows and columns that the mapping uses.
    spatial: [u64; 2],
    /// For each level except the outermost, the number of iterations of each loop. The outermost level has the
    /// remaining iterations.
    bounds: Vec<[u64; 7]>,
    /// For each level, the dimensions in order from the outermost loop to the innermost.
    orders: Vec<[LoopDimension; 7]>,
    keeps: Vec<[bool; 3]>,
}

impl MappingDraw {
    /// Builds the mapping that these choices determine. Each loop bound is lowered as long as outer levels keep the
    /// same number of iterations.
    fn build_mapping(&self, accelerator: &LoopNestAccelerator, layer: &LayerShape) -> LoopMapping {
        let along = accelerator.choices[self.along];
        let spatial = [0, 1].map(|side| (along[side], self.spatial[side]));
        let mut left = layer.sizes;
        for (dimension, bound) in spatial {
            let left = &mut left[dimension as usize];
            *left = left.div_ceil(bound);
        }
        let levels = accelerator.levels.len();
        let mut temporal = Vec::with_capacity(levels);
        for level in 0..levels {
            let mut loops = Vec::new();
            for dimension in self.orders[level] {
                let left = &mut left[dimension as usize];
                let bound = match self.bounds.get(level) {
                    Some(bounds) => smallest_equivalent_bound(*left, bounds[dimension as usize]),
                    None => *left,
                };
                *left = left.div_ceil(bound);
                if bound > 1 {
                    loops.push((dimension, bound));
                }
            }
            temporal.push(loops);
        }
        LoopMapping {
            temporal,
            spatial,
            keeps: self.keeps.clone(),
        }
    }
}

/// Returns the smallest bound that divides `left` iterations into the same number of rounds as `bound` does.
fn smallest_equivalent_bound(left: u64, bound: u64) -> u64 {
    let rounds = left.div_ceil(bound.min(left).max(1));
    left.div_ceil(rounds)
}

/// Draws random choices for mappings.
struct MappingChoiceSampler<'d> {
    accelerator: &'d LoopNestAccelerator,
    layer: &'d LayerShape,
    state: u64,
}

impl MappingChoiceSampler<'_> {
    /// Returns a number below `limit`, which must not be zero.
    fn draw_below(&mut self, limit: u64) -> u64 {
        ((u128::from(split_mix(&mut self.state)) * u128::from(limit)) >> 64) as u64
    }

    /// Draws a bound for a loop of `size`: often the whole size or 1, otherwise a number that is uniformly distributed
    /// on a logarithmic scale.
    fn draw_log_uniform_bound_up_to_size(&mut self, size: u64) -> u64 {
        match self.draw_below(8) {
            0..=2 => 1,
            3 => size,
            _ => {
                let digits = u64::from(64 - size.leading_zeros());
                let most = (1 << (1 + self.draw_below(digits))).min(size);
                1 + self.draw_below(most)
            }
        }
    }

    fn draw_spatial_bounds(&mut self, along: usize) -> [u64; 2] {
        let dimensions = self.accelerator.choices[along];
        [0, 1].map(|side| {
            let size = self.layer.loop_iteration_count(dimensions[side]);
            let most = size.min(self.accelerator.array[side].into());
            let all = self.draw_below(8) > 0;
            if all { most } else { 1 + self.draw_below(most) }
        })
    }

    fn draw_kept_tensors(&mut self, level: usize) -> [bool; 3] {
        let can = self.accelerator.levels[level].keeps;
        can.map(|can| can && self.draw_below(6) > 0)
    }

    fn draw_loop_order(&mut self) -> [LoopDimension; 7] {
        let mut order = LoopDimension::ALL.map(|(dimension, _)| dimension);
        for last in (1..order.len()).rev() {
            order.swap(last, self.draw_below(last as u64 + 1) as usize);
        }
        order
    }

    fn draw_choices(&mut self) -> MappingDraw {
        let levels = self.accelerator.levels.len();
        let along = self.draw_below(self.accelerator.choices.len() as u64) as usize;
        let sizes = self.layer.sizes;
        MappingDraw {
            along,
            spatial: self.draw_spatial_bounds(along),
            bounds: (1..levels)
                .map(|_| sizes.map(|size| self.draw_log_uniform_bound_up_to_size(size)))
                .collect(),
            orders: (0..levels).map(|_| self.draw_loop_order()).collect(),
            keeps: (0..levels)
                .map(|level| self.draw_kept_tensors(level))
                .collect(),
        }
    }

    /// Returns the choices of `best` with one to three changes.
    fn mutate_choices(&mut self, best: &MappingDraw) -> MappingDraw {
        let mut choices = best.clone();
        let levels = self.accelerator.levels.len();
        for _ in 0..=self.draw_below(3) {
            let level = self.draw_below(levels as u64) as usize;
            let inner = self.draw_below(levels as u64 - 1) as usize;
            let dimension = self.draw_below(7) as usize;
            match self.draw_below(8) {
                0 => choices.spatial = self.draw_spatial_bounds(choices.along),
                1 => {
                    choices.along = self.draw_below(self.accelerator.choices.len() as u64) as usize;
                    choices.spatial = self.draw_spatial_bounds(choices.along);
                }
                2 => choices.keeps[level] = self.draw_kept_tensors(level),
                3 | 4 => {
                    let other = self.draw_below(7) as usize;
                    choices.orders[level].swap(dimension, other);
                }
                5 => {
                    // Move iterations from one level to the next.
                    let bound = choices.bounds[inner][dimension];
                    let part = self.draw_log_uniform_bound_up_to_size(bound);
                    choices.bounds[inner][dimension] = part;
                    if let Some(next) = choices.bounds.get_mut(inner + 1) {
                        next[dimension] *= bound.div_ceil(part);
                        next[dimension] = next[dimension].min(self.layer.sizes[dimension]);
                    }
                }
                _ => {
                    let size = self.layer.sizes[dimension];
                    choices.bounds[inner][dimension] = self.draw_log_uniform_bound_up_to_size(size);
                }
            }
        }
        choices
    }

    /// Moves loops outwards until the tiles of all levels fit. A tensor that never fits a level bypasses it.
    fn shrink_to_fit(&mut self, choices: &mut MappingDraw) {
        for level in 0..self.accelerator.levels.len() - 1 {
            // If a level keeps single words, the loops that the words' tensors depend on must run in outer levels.
            if self.accelerator.levels[level].capacity == MemoryLevelCapacity::Words(1) {
                for (tensor, _) in LayerTensor::ALL {
                    let keeps = self.accelerator.levels[level].keeps[tensor as usize];
                    for (dimension, _) in LoopDimension::ALL {
                        if keeps
                            && choices.keeps[level][tensor as usize]
                            && tensor.depends_on(dimension)
                        {
                            choices.bounds[..=level]
                                .iter_mut()
                                .for_each(|bounds| bounds[dimension as usize] = 1);
                        }
                    }
                }
            }
            loop {
                let mapping = choices.build_mapping(self.accelerator, self.layer);
                let tiles = self.accelerator.tile_extents(&mapping);
                if self
                    .accelerator
                    .tiles_fit(self.layer, &mapping, level, &tiles[level])
                {
                    break;
                }
                let places = (0..=level).flat_map(|at| (0..7).map(move |d| (at, d)));
                let large: Vec<_> = places
                    .filter(|&(at, d)| choices.bounds[at][d] > 1)
                    .collect();
                if large.is_empty() {
                    choices.keeps[level] = [false; 3];
                    break;
                }
                let (at, d) = large[self.draw_below(large.len() as u64) as usize];
                let bound = &mut choices.bounds[at][d];
                *bound = (*bound).min(self.layer.sizes[d]).div_ceil(2);
            }
        }
    }
}
