//! Computes the cost of a mapping in closed form.

use super::{
    LayerShape, LayerTensor, LoopDimension, LoopDimensionBound, LoopMapping, LoopNestAccelerator,
    MemoryLevelCapacity,
};

/// Accesses to one tensor in one level, in words, summed over all units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorLevelAccesses {
    /// Words that an inner level or the units read.
    pub reads: u64,
    /// Words filled from an outer level.
    pub fills: u64,
    /// Output words that an inner level or units update.
    pub updates: u64,
}

/// Cycles and energy of a layer with a given mapping.
#[derive(Clone, Debug, PartialEq)]
pub struct MappingCost {
    /// Cycles: the larger of the units' cycles and the busiest port's cycles.
    pub cycles: u64,
    /// Number of cycles for which the units compute, not counting waits for memory.
    pub compute_cycles: u64,
    /// Accesses of each level, innermost first, by [`LayerTensor`].
    pub accesses: Vec<[TensorLevelAccesses; 3]>,
    /// Bytes that pass through the port of each level, innermost first.
    pub bytes: Vec<u64>,
    /// Energy in picojoules.
    pub energy: f64,
    /// Number of multiplications by all units, including multiplications with zeros beyond the layer.
    pub multiplications: u64,
}

/// A loop that runs in time, and the step by which each iteration advances its dimension.
#[derive(Clone, Copy, Debug)]
struct TemporalLoop {
    level: usize,
    dimension: LoopDimension,
    bound: u64,
    step: u64,
}

/// Words filled into a level over all steps: for one unit, and for all units, where a word shared by several units
/// counts only once.
#[derive(Clone, Copy, Debug)]
struct UnitAndTotalFillWords {
    own: u64,
    distinct: u64,
}

impl LoopNestAccelerator {
    /// Returns the cost of `mapping` for `layer`. Returns `None` if a tile does not fit, a loop does not cover its
    /// dimension, or the mapping has more rows or columns than the array.
    pub fn evaluate_mapping(
        &self,
        layer: &LayerShape,
        mapping: &LoopMapping,
    ) -> Option<MappingCost> {
        let tiles = self.tile_extents(mapping);
        let fits = |level: usize| self.tiles_fit(layer, mapping, level, &tiles[level]);
        // The limit is far below 2^64, so that sums of words over all tensors do not overflow.
        let mut covered = tiles.last()?.iter();
        covered
            .try_fold(1_u64, |all, extent| all.checked_mul(*extent))
            .filter(|all| *all < 1 << 58)?;
        let covers = tiles.last()?.iter().zip(&layer.sizes);
        if !covers.into_iter().all(|(covered, size)| covered >= size)
            || !(0..self.levels.len()).all(fits)
            || (0..2).any(|side| mapping.spatial[side].1 > self.array[side].into())
        {
            return None;
        }
        let nest = MappedLayerLoops {
            accelerator: self,
            layer,
            mapping,
            loops: self.list_temporal_loops_innermost_first(mapping),
            tiles,
        };
        Some(nest.cost_mapping_by_accesses())
    }

    /// Returns each dimension's extent in the tile of each level. If each unit has its own level, the tile belongs to
    /// one unit.
    pub(super) fn tile_extents(&self, mapping: &LoopMapping) -> Vec<[u64; 7]> {
        let mut extents = [1_u64; 7];
        let mut tiles = Vec::with_capacity(self.levels.len());
        for (level, loops) in mapping.temporal.iter().enumerate() {
            if level == self.own_levels {
                for (dimension, bound) in mapping.spatial {
                    extents[dimension as usize] *= bound;
                }
            }
            for (dimension, bound) in loops {
                extents[*dimension as usize] *= bound;
            }
            tiles.push(extents);
        }
        tiles
    }

    pub(super) fn keeps_tensor(
        &self,
        mapping: &LoopMapping,
        level: usize,
        tensor: LayerTensor,
    ) -> bool {
        let is_last = level + 1 == self.levels.len();
        is_last
            || self.levels[level].keeps[tensor as usize] && mapping.keeps[level][tensor as usize]
    }

    /// Returns true if the tiles of `level` fit its capacity.
    pub(super) fn tiles_fit(
        &self,
        layer: &LayerShape,
        mapping: &LoopMapping,
        level: usize,
        tile: &[u64; 7],
    ) -> bool {
        let kept = LayerTensor::ALL
            .iter()
            .map(|(tensor, _)| *tensor)
            .filter(|tensor| self.keeps_tensor(mapping, level, *tensor));
        match self.levels[level].capacity {
            MemoryLevelCapacity::Unbounded => true,
            MemoryLevelCapacity::Words(most) => {
                let mut kept = kept;
                kept.all(|tensor| layer.count_tensor_words(tensor, tile) <= most)
            }
            MemoryLevelCapacity::Shared(most) => {
                let bytes = kept
                    .map(|tensor| {
                        layer.count_tensor_words(tensor, tile) * self.word[tensor as usize]
                    })
                    .fold(0_u64, u64::saturating_add);
                bytes.saturating_mul(self.buffering) <= most
            }
        }
    }

    /// Returns the loops that run in time, innermost first.
    fn list_temporal_loops_innermost_first(&self, mapping: &LoopMapping) -> Vec<TemporalLoop> {
        let mut extents = [1_u64; 7];
        let mut placed = Vec::new();
        for (level, loops) in mapping.temporal.iter().enumerate() {
            if level == self.own_levels {
                for (dimension, bound) in mapping.spatial {
                    extents[dimension as usize] *= bound;
                }
            }
            for &(dimension, bound) in loops.iter().rev() {
                let step = extents[dimension as usize];
                extents[dimension as usize] *= bound;
                if bound > 1 {
                    placed.push(TemporalLoop {
                        level,
                        dimension,
                        bound,
                        step,
                    });
                }
            }
        }
        placed
    }
}

/// A layer's mapping, with the loops and tiles that follow from it.
struct MappedLayerLoops<'m> {
    accelerator: &'m LoopNestAccelerator,
    layer: &'m LayerShape,
    mapping: &'m LoopMapping,
    loops: Vec<TemporalLoop>,
    tiles: Vec<[u64; 7]>,
}

impl MappedLayerLoops<'_> {
    fn cost_mapping_by_accesses(&self) -> MappingCost {
        let accelerator = self.accelerator;
        let steps: u64 = self.loops.iter().map(|one| one.bound).product();
        let units: u64 = self
            .mapping
            .spatial
            .iter()
            .map(|(_, bound)| bound)
            .product();
        let mut accesses = vec![[TensorLevelAccesses::default(); 3]; accelerator.levels.len()];
        let outputs: u64 = {
            let all = self.tiles.last().expect("there is a level");
            self.layer.count_tensor_words(LayerTensor::Outputs, all)
        };
        // Outputs of one unit if units have their own levels: all outputs divided by the number of units with distinct
        // outputs.
        let of_unit = outputs / self.count_units_with_distinct_words(LayerTensor::Outputs);
        for (tensor, _) in LayerTensor::ALL {
            let of = tensor as usize;
            let levels = 0..accelerator.levels.len();
            let mut keepers =
                levels.filter(|level| accelerator.keeps_tensor(self.mapping, *level, tensor));
            let innermost = keepers.next().expect("the outermost keeps all");
            let is_own = |level: usize| level < accelerator.own_levels;
            // Units access the innermost level at every step.
            let met = if is_own(innermost) {
                steps * units
            } else {
                steps * self.count_units_with_distinct_words(tensor)
            };
            let at = &mut accesses[innermost][of];
            if tensor == LayerTensor::Outputs {
                at.updates += met;
                at.reads += met
                    - if is_own(innermost) {
                        of_unit * units
                    } else {
                        outputs
                    };
            } else {
                at.reads += met;
            }
            let mut inner = innermost;
            for outer in keepers {
                let loads = self.count_words_entering_tile(tensor, inner);
                let count = if is_own(inner) { units } else { 1 };
                // Words that pass between the two levels. Words that the array shares count once, all others once for
                // each unit.
                let joins = is_own(inner) && !is_own(outer);
                let passed = if joins {
                    loads.distinct
                } else {
                    loads.own * count
                };
                if tensor == LayerTensor::Outputs {
                    let first = if is_own(inner) { of_unit } else { outputs };
                    let back = (loads.own - first) * count;
                    accesses[inner][of].fills += back;
                    accesses[outer][of].updates += passed;
                    accesses[outer][of].reads += if joins { passed - outputs } else { back };
                } else {
                    accesses[inner][of].fills += loads.own * count;
                    accesses[outer][of].reads += passed;
                }
                inner = outer;
            }
        }
        self.total_cost(steps, units, outputs, accesses)
    }

    fn total_cost(
        &self,
        steps: u64,
        units: u64,
        outputs: u64,
        accesses: Vec<[TensorLevelAccesses; 3]>,
    ) -> MappingCost {
        let accelerator = self.accelerator;
        let last = accelerator.levels.len() - 1;
        let bytes_of = |(level, all): (usize, &[TensorLevelAccesses; 3])| {
            let words = all.iter().map(|one| one.reads + one.fills + one.updates);
            let bytes: u64 = words
                .zip(accelerator.word)
                .map(|(words, word)| words * word)
                .sum();
            // Finished outputs have fewer bytes than partial sums.
            let smaller = accelerator.word[LayerTensor::Outputs as usize] - accelerator.output_word;
            bytes - if level == last { outputs * smaller } else { 0 }
        };
        let bytes: Vec<u64> = accesses.iter().enumerate().map(bytes_of).collect();
        let ports = accelerator.levels.iter().zip(&bytes);
        let ports = ports.filter_map(|(level, bytes)| {
            let cycles = *bytes as f64 / level.bytes_per_cycle?;
            Some(cycles.ceil() as u64)
        });
        let multiplications = steps * units;
        let levels = accelerator.levels.iter().zip(&bytes);
        let energy: f64 = levels
            .map(|(level, bytes)| level.energy * *bytes as f64)
            .sum();
        MappingCost {
            cycles: ports.fold(steps, u64::max),
            compute_cycles: steps,
            energy: energy + accelerator.mac_energy * multiplications as f64,
            accesses,
            bytes,
            multiplications,
        }
    }

    /// Returns the number of units that use different words of a tensor at the same step.
    fn count_units_with_distinct_words(&self, tensor: LayerTensor) -> u64 {
        let one = [1; 7];
        self.count_distinct_words_of_all_units(tensor, &one, None)
    }

    /// Returns the number of words that enter a level's tile, summed over all steps. For outputs, this is also the
    /// number of words that leave the tile.
    fn count_words_entering_tile(
        &self,
        tensor: LayerTensor,
        level: usize,
    ) -> UnitAndTotalFillWords {
        let tile = &self.tiles[level];
        let is_own = level < self.accelerator.own_levels;
        let distinct = |moved: Option<(LoopDimension, u64)>, own: u64| {
            if is_own {
                self.count_distinct_words_of_all_units(tensor, tile, moved)
            } else {
                own
            }
        };
        let own = self.layer.count_tensor_words(tensor, tile);
        let mut loads = UnitAndTotalFillWords {
            own,
            distinct: distinct(None, own),
        };
        let mut moves = false;
        for one in self.loops.iter().filter(|one| one.level > level) {
            if !tensor.depends_on(one.dimension) {
                if moves {
                    loads.own *= one.bound;
                    loads.distinct *= one.bound;
                }
                continue;
            }
            if moves {
                loads.own *= one.bound;
                loads.distinct *= one.bound;
                continue;
            }
            moves = true;
            // From the second step on, only the new words of overlapping tiles are loaded.
            let new = self.count_new_words(tensor, tile, (one.dimension, one.step));
            loads.own += (one.bound - 1) * new;
            let moved = Some((one.dimension, one.step));
            loads.distinct += (one.bound - 1) * distinct(moved, new);
        }
        loads
    }

    /// Returns the direction in which new inputs appear when `dimension` advances by `step` (0 along a row, 1 along a
    /// column), and how many are new.
    fn direction_and_count_of_new_inputs(
        &self,
        tile: &[u64; 7],
        (dimension, step): (LoopDimension, u64),
    ) -> Option<(usize, u64)> {
        let (along, far) = match dimension {
            LoopDimension::P => (0, step * self.layer.stride[0]),
            LoopDimension::Q => (1, step * self.layer.stride[1]),
            LoopDimension::R => (0, step * self.layer.dilation[0]),
            LoopDimension::S => (1, step * self.layer.dilation[1]),
            _ => return None,
        };
        Some((along, far.min(self.tile_input_extent(tile, along))))
    }

    /// Returns the number of a tile's inputs along a row or column.
    fn tile_input_extent(&self, tile: &[u64; 7], along: usize) -> u64 {
        let [.., p, q, r, s] = *tile;
        self.layer
            .input_extent_of_windows(along, [p, q][along], [r, s][along])
    }

    /// Returns the number of new words in a tile when `moved` advances by a step.
    fn count_new_words(
        &self,
        tensor: LayerTensor,
        tile: &[u64; 7],
        moved: (LoopDimension, u64),
    ) -> u64 {
        let all = self.layer.count_tensor_words(tensor, tile);
        match self.direction_and_count_of_new_inputs(tile, moved) {
            Some((along, new)) if tensor == LayerTensor::Inputs => {
                all / self.tile_input_extent(tile, along) * new
            }
            _ => all,
        }
    }

    /// Returns the number of distinct words in the tiles of all units. With `moved`, counts only words that are new
    /// when this loop advances by a step.
    fn count_distinct_words_of_all_units(
        &self,
        tensor: LayerTensor,
        tile: &[u64; 7],
        moved: Option<(LoopDimension, u64)>,
    ) -> u64 {
        let spatial = self.mapping.spatial;
        if tensor != LayerTensor::Inputs {
            let own = self.layer.count_tensor_words(tensor, tile);
            let apart = spatial.iter().filter(|(d, _)| tensor.depends_on(*d));
            return own * apart.map(|(_, bound)| bound).product::<u64>();
        }
        let new = moved.and_then(|moved| self.direction_and_count_of_new_inputs(tile, moved));
        let lengths: [u64; 2] = std::array::from_fn(|along| match new {
            Some((of, length)) if of == along => length,
            _ => self.tile_input_extent(tile, along),
        });
        let channels = spatial
            .iter()
            .filter(|(d, _)| matches!(d, LoopDimension::N | LoopDimension::C));
        let channels: u64 = channels.map(|(_, bound)| bound).product();
        let [n, _, c, ..] = *tile;
        n * c
            * channels
            * self.count_inputs_covered_by_units(0, lengths[0])
            * self.count_inputs_covered_by_units(1, lengths[1])
    }

    /// Returns the number of inputs along a row or column that the units' intervals of `length` inputs cover together.
    fn count_inputs_covered_by_units(&self, along: usize, length: u64) -> u64 {
        let own = self.accelerator.own_levels;
        let inside = own.checked_sub(1).map_or([1; 7], |level| self.tiles[level]);
        let mut places = vec![0_u64];
        for (dimension, bound) in self.mapping.spatial {
            let far = match (dimension, along) {
                (LoopDimension::P, 0) | (LoopDimension::Q, 1) => self.layer.stride[along],
                (LoopDimension::R, 0) | (LoopDimension::S, 1) => self.layer.dilation[along],
                _ => continue,
            };
            let step = far * inside[dimension as usize];
            places = places
                .iter()
                .flat_map(|place| (0..bound).map(move |unit| place + unit * step))
                .collect();
        }
        if places.len() == 1 {
            return length;
        }
        places.sort_unstable();
        let (mut covered, mut end) = (0, 0);
        for place in places {
            let from = place.max(end);
            end = end.max(place + length);
            covered += end - from.min(end);
        }
        covered
    }
}

/// Formats the loops of a level: `C 4, K 2`.
pub(super) fn format_loops(loops: &[LoopDimensionBound]) -> String {
    let loops = loops.iter().filter(|(_, bound)| *bound > 1);
    let parts = loops.map(|(d, bound)| format!("{} {bound}", LoopDimension::ALL[*d as usize].1));
    parts.collect::<Vec<_>>().join(", ")
}

impl LoopMapping {
    /// Formats the loops of each level and of the array, outermost first.
    pub fn format_levels(&self, accelerator: &LoopNestAccelerator) -> Vec<String> {
        let mut lines = Vec::new();
        for level in (0..self.temporal.len()).rev() {
            let kept = LayerTensor::ALL.iter();
            let kept = kept.filter(|(tensor, _)| accelerator.keeps_tensor(self, level, *tensor));
            let kept: Vec<_> = kept.map(|(_, name)| *name).collect();
            let loops = format_loops(&self.temporal[level]);
            let name = accelerator.levels[level].name;
            lines.push(format!("{name} ({}): {loops}", kept.join(", ")));
            if level == accelerator.own_levels {
                let [rows, columns] = self.spatial.map(|one| format_loops(&[one]));
                lines.push(format!("array: rows {rows}; columns {columns}"));
            }
        }
        lines
    }
}
