//! Loop nests against a counter whose loops really run, and against published mappings.

use super::*;
use crate::compute::SystolicArrays;
use crate::units::{Bytes, Frequency};
use LoopDimension::{C, K, N, P, Q, R, S};

/// Loops that really run, with sets of words in place of formulas.
mod counter {
    use super::*;
    use std::collections::BTreeSet;

    type Word = [u64; 4];
    type Tile = BTreeSet<Word>;

    /// A loop in time or over the array; outermost first.
    #[derive(Clone, Copy)]
    struct RunLoop {
        level: usize,
        dimension: LoopDimension,
        bound: u64,
        stride: u64,
        side: Option<usize>,
    }

    fn loops(accelerator: &LoopNestAccelerator, mapping: &LoopMapping) -> Vec<RunLoop> {
        let mut all: Vec<RunLoop> = Vec::new();
        for level in (0..mapping.temporal.len()).rev() {
            for &(dimension, bound) in &mapping.temporal[level] {
                all.push(RunLoop {
                    level,
                    dimension,
                    bound,
                    stride: 0,
                    side: None,
                });
            }
            if level == accelerator.own_levels {
                for (side, (dimension, bound)) in mapping.spatial.into_iter().enumerate() {
                    all.push(RunLoop {
                        level,
                        dimension,
                        bound,
                        stride: 0,
                        side: Some(side),
                    });
                }
            }
        }
        for i in 0..all.len() {
            let inside = all[i + 1..]
                .iter()
                .filter(|one| one.dimension == all[i].dimension);
            all[i].stride = inside.map(|one| one.bound).product();
        }
        all
    }

    /// Words of `tensor` in the box from `origin` on.
    fn words(layer: &LayerShape, tensor: LayerTensor, origin: [u64; 7], extent: [u64; 7]) -> Tile {
        let range = |d: LoopDimension| origin[d as usize]..origin[d as usize] + extent[d as usize];
        let window = |along: usize, out: LoopDimension, weight: LoopDimension| {
            let from = origin[out as usize] * layer.stride[along]
                + origin[weight as usize] * layer.dilation[along];
            let far = (extent[out as usize] - 1) * layer.stride[along]
                + (extent[weight as usize] - 1) * layer.dilation[along];
            from..from + far + 1
        };
        let ranges = match tensor {
            LayerTensor::Weights => [range(K), range(C), range(R), range(S)],
            LayerTensor::Outputs => [range(N), range(K), range(P), range(Q)],
            LayerTensor::Inputs => [range(N), range(C), window(0, P, R), window(1, Q, S)],
        };
        let [a, b, c, d] = ranges;
        let mut tile = Tile::new();
        for a in a {
            for b in b.clone() {
                for c in c.clone() {
                    for d in d.clone() {
                        tile.insert([a, b, c, d]);
                    }
                }
            }
        }
        tile
    }

    #[derive(Clone, Default)]
    struct Held {
        tile: Option<(Vec<u64>, Tile)>,
        visited: Tile,
    }

    /// Steps and accesses.
    pub fn count(
        accelerator: &LoopNestAccelerator,
        layer: &LayerShape,
        mapping: &LoopMapping,
    ) -> (u64, Vec<[LevelAccesses; 3]>) {
        let all = loops(accelerator, mapping);
        let time: Vec<usize> = (0..all.len()).filter(|i| all[*i].side.is_none()).collect();
        let levels = accelerator.levels.len();
        let own = accelerator.own_levels;
        let units: Vec<[u64; 2]> = (0..mapping.spatial[0].1)
            .flat_map(|row| (0..mapping.spatial[1].1).map(move |column| [row, column]))
            .collect();
        let keeps = |level: usize, tensor: LayerTensor| {
            level + 1 == levels
                || accelerator.levels[level].keeps[tensor as usize]
                    && mapping.keeps[level][tensor as usize]
        };
        let extent = |level: usize| {
            let mut extent = [1; 7];
            for one in &all {
                if one.level <= level && (one.side.is_none() || level >= own) {
                    extent[one.dimension as usize] *= one.bound;
                }
            }
            extent
        };
        let mut found = vec![[LevelAccesses::default(); 3]; levels];
        let mut held = vec![vec![vec![Held::default(); units.len()]; 3]; levels];
        let mut innermost_seen = vec![Tile::new(); units.len()];
        let mut index = vec![0_u64; all.len()];
        let mut steps = 0;
        loop {
            steps += 1;
            let origin = |level: Option<usize>, unit: [u64; 2]| {
                let mut origin = [0; 7];
                for (i, one) in all.iter().enumerate() {
                    let outside = level.is_none_or(|level| one.level > level);
                    let at = match one.side {
                        Some(side) if level.is_none_or(|level| level < own) => unit[side],
                        None if outside => index[i],
                        _ => 0,
                    };
                    origin[one.dimension as usize] += at * one.stride;
                }
                origin
            };
            for (tensor, _) in LayerTensor::ALL {
                let of = tensor as usize;
                let keepers: Vec<usize> =
                    (0..levels).filter(|level| keeps(*level, tensor)).collect();
                for pair in keepers.windows(2).rev() {
                    let (inner, outer) = (pair[0], pair[1]);
                    let joins = inner < own && outer >= own;
                    let of_units = if inner < own { &units[..] } else { &units[..1] };
                    // Indices of the loops outside that the tensor depends on.
                    let moving: Vec<usize> = time
                        .iter()
                        .copied()
                        .filter(|i| {
                            all[*i].level > inner
                                && all[*i].bound > 1
                                && tensor.depends_on(all[*i].dimension)
                        })
                        .collect();
                    let now: Vec<u64> = moving.iter().map(|i| index[*i]).collect();
                    let (mut asked, mut left, mut back) = (Tile::new(), Tile::new(), Tile::new());
                    let (mut asked_all, mut left_all, mut back_all) = (0, 0, 0);
                    for (u, unit) in of_units.iter().enumerate() {
                        let held = &mut held[inner][of][u];
                        if held.tile.as_ref().is_some_and(|(at, _)| *at == now) {
                            continue;
                        }
                        let tile = words(layer, tensor, origin(Some(inner), *unit), extent(inner));
                        let old = held.tile.replace((now.clone(), tile.clone()));
                        if tensor == LayerTensor::Outputs {
                            if let Some((_, old)) = old {
                                left_all += old.len();
                                left.extend(old);
                            }
                            let again: Tile = tile.intersection(&held.visited).copied().collect();
                            held.visited.extend(tile);
                            found[inner][of].fills += again.len() as u64;
                            back_all += again.len();
                            back.extend(again);
                            continue;
                        }
                        // One step on of the innermost loop that moves it, and of no other.
                        let slid = old.as_ref().is_some_and(|(before, _)| {
                            let mut later = before.clone();
                            later.last_mut().is_some_and(|last| {
                                *last += 1;
                                true
                            }) && later == now
                        });
                        let needed: Tile = match old {
                            Some((_, old)) if slid => tile.difference(&old).copied().collect(),
                            _ => tile,
                        };
                        found[inner][of].fills += needed.len() as u64;
                        asked_all += needed.len();
                        asked.extend(needed);
                    }
                    let outer = &mut found[outer][of];
                    let pick =
                        |one: Tile, all: usize| if joins { one.len() as u64 } else { all as u64 };
                    outer.reads += pick(asked, asked_all) + pick(back, back_all);
                    outer.updates += pick(left, left_all);
                }
                // The multiplications of this step.
                let innermost = keepers[0];
                let mut together = Tile::new();
                for (u, unit) in units.iter().enumerate() {
                    let word = words(layer, tensor, origin(None, *unit), [1; 7]);
                    let word = *word.first().unwrap();
                    if innermost >= own {
                        together.insert(word);
                        continue;
                    }
                    let at = &mut found[innermost][of];
                    if tensor != LayerTensor::Outputs {
                        at.reads += 1;
                    } else {
                        at.updates += 1;
                        at.reads += u64::from(!innermost_seen[u].insert(word));
                    }
                }
                let at = &mut found[innermost][of];
                for word in together {
                    if tensor != LayerTensor::Outputs {
                        at.reads += 1;
                    } else {
                        at.updates += 1;
                        at.reads += u64::from(!innermost_seen[0].insert(word));
                    }
                }
            }
            // The next step.
            let mut turned = false;
            for &i in time.iter().rev() {
                index[i] += 1;
                if index[i] < all[i].bound {
                    turned = true;
                    break;
                }
                index[i] = 0;
            }
            if !turned {
                break;
            }
        }
        // What is still held leaves.
        let of = LayerTensor::Outputs as usize;
        let keepers: Vec<usize> = (0..levels)
            .filter(|level| keeps(*level, LayerTensor::Outputs))
            .collect();
        for pair in keepers.windows(2) {
            let joins = pair[0] < own && pair[1] >= own;
            let tiles = held[pair[0]][of]
                .iter()
                .filter_map(|held| held.tile.as_ref());
            let tiles: Vec<&Tile> = tiles.map(|(_, tile)| tile).collect();
            let together: Tile = tiles.iter().flat_map(|tile| tile.iter().copied()).collect();
            let each: usize = tiles.iter().map(|tile| tile.len()).sum();
            found[pair[1]][of].updates += if joins { together.len() } else { each } as u64;
        }
        (steps, found)
    }
}

fn level(name: &'static str, keeps: [bool; 3], capacity: LevelCapacity) -> MemoryLevel {
    MemoryLevel {
        name,
        keeps,
        capacity,
        bytes_per_cycle: None,
        energy: 1.0,
    }
}

/// Registers of each unit, a buffer, and memory at half a byte a cycle.
fn small(array: [u32; 2], buffer: u64, choices: Vec<SpatialChoice>) -> LoopNestAccelerator {
    let mut memory = level("memory", [true; 3], LevelCapacity::Unbounded);
    memory.bytes_per_cycle = Some(0.5);
    LoopNestAccelerator {
        levels: vec![
            level("registers", [true, false, true], LevelCapacity::Shared(6)),
            level("buffer", [true; 3], LevelCapacity::Shared(buffer)),
            memory,
        ],
        own_levels: 1,
        array,
        choices,
        word: [1, 1, 2],
        output_word: 1,
        buffering: 1,
        mac_energy: 0.5,
    }
}

/// All orders of some loops.
fn permutations(loops: &[BoundLoop]) -> Vec<Vec<BoundLoop>> {
    if loops.is_empty() {
        return vec![Vec::new()];
    }
    let first = |i: usize| {
        let mut rest = loops.to_vec();
        let one = rest.remove(i);
        permutations(&rest).into_iter().map(move |mut tail| {
            tail.insert(0, one);
            tail
        })
    };
    (0..loops.len()).flat_map(first).collect()
}

/// Every mapping of a layer: all parts of loops over levels and the array, orders, and tensors kept.
fn every_mapping(
    accelerator: &LoopNestAccelerator,
    layer: &LayerShape,
    act: &mut dyn FnMut(LoopMapping),
) {
    let levels = accelerator.levels.len();
    let mut spatials = Vec::new();
    for along in &accelerator.choices {
        let most = |side: usize| layer.size(along[side]).min(accelerator.array[side].into());
        for rows in 1..=most(0) {
            spatials.extend((1..=most(1)).map(|columns| [(along[0], rows), (along[1], columns)]));
        }
    }
    for spatial in spatials {
        let mut left = layer.sizes;
        for (dimension, bound) in spatial {
            left[dimension as usize] = left[dimension as usize].div_ceil(bound);
        }
        // Bounds by level of each dimension, the outermost for what is left.
        let mut all = vec![vec![Vec::<BoundLoop>::new(); levels]];
        for (dimension, _) in LoopDimension::ALL {
            let mut parts = vec![(left[dimension as usize], Vec::new())];
            for _ in 1..levels {
                parts = parts
                    .iter()
                    .flat_map(|(left, bounds): &(u64, Vec<u64>)| {
                        let with =
                            |bound: u64| (left.div_ceil(bound), [&bounds[..], &[bound]].concat());
                        // A bound that a lower one equals in rounds is the lower one with zeros.
                        let useful = |bound: &u64| {
                            *bound == 1 || left.div_ceil(*bound) < left.div_ceil(bound - 1)
                        };
                        (1..=*left).filter(useful).map(with).collect::<Vec<_>>()
                    })
                    .collect();
            }
            all = all
                .iter()
                .flat_map(|nest| {
                    parts.iter().map(|(last, bounds)| {
                        let mut nest = nest.clone();
                        for (level, bound) in bounds.iter().chain([last]).enumerate() {
                            if *bound > 1 {
                                nest[level].push((dimension, *bound));
                            }
                        }
                        nest
                    })
                })
                .collect();
        }
        for nest in all {
            let mut orders = vec![Vec::new()];
            for loops in &nest {
                orders = orders
                    .iter()
                    .flat_map(|before: &Vec<Vec<BoundLoop>>| {
                        permutations(loops)
                            .into_iter()
                            .map(|one| [&before[..], &[one]].concat())
                    })
                    .collect();
            }
            for temporal in orders {
                for mask in 0..1_u32 << (3 * (levels - 1)) {
                    let keeps: Vec<[bool; 3]> = (0..levels)
                        .map(|level| {
                            std::array::from_fn(|tensor| mask >> (3 * level + tensor) & 1 == 1)
                        })
                        .collect();
                    // What a level cannot keep it does not.
                    let can = keeps.iter().zip(&accelerator.levels).take(levels - 1);
                    if can
                        .clone()
                        .any(|(keeps, level)| (0..3).any(|t| keeps[t] && !level.keeps[t]))
                    {
                        continue;
                    }
                    act(LoopMapping {
                        temporal: temporal.clone(),
                        spatial,
                        keeps,
                    });
                }
            }
        }
    }
}

/// Small layers with all their mappings: the closed form counts as loops that run do, and the search finds the best of all.
fn holds(accelerator: &LoopNestAccelerator, layer: &LayerShape, every: usize, draws: u32) -> usize {
    let (mut seen, mut valid) = (0, 0);
    let mut best: Option<(u64, f64)> = None;
    every_mapping(accelerator, layer, &mut |mapping| {
        let Some(cost) = accelerator.cost(layer, &mapping) else {
            return;
        };
        valid += 1;
        let found = (cost.cycles, cost.energy);
        if best.is_none_or(|best| found < best) {
            best = Some(found);
        }
        assert!(cost.cycles >= layer.macs().div_ceil(accelerator.units()));
        let word = [1, 1, accelerator.output_word];
        assert!(cost.cycles as f64 >= layer.least_bytes(word) as f64 / 0.5);
        seen += 1;
        if seen % every != 0 {
            return;
        }
        let (steps, accesses) = counter::count(accelerator, layer, &mapping);
        assert_eq!(cost.accesses, accesses, "{mapping:?}");
        assert_eq!(cost.compute_cycles, steps, "{mapping:?}");
        // Bytes of memory at half a byte a cycle, sums of two bytes but for each output's last.
        let [weights, inputs, outputs] = accesses.last().unwrap();
        let words = |one: &LevelAccesses| one.reads + one.fills + one.updates;
        let finished: u64 = {
            let covered = |d: LoopDimension| {
                let time = mapping.temporal.iter().flatten();
                let all = time.chain(&mapping.spatial).filter(|(of, _)| *of == d);
                all.map(|(_, bound)| bound).product::<u64>()
            };
            [N, K, P, Q].map(covered).iter().product()
        };
        let bytes = words(weights) + words(inputs) + 2 * words(outputs) - finished;
        assert_eq!(cost.cycles, steps.max(2 * bytes), "{mapping:?}");
    });
    let found = search_mapping(accelerator, layer, draws, 1).unwrap();
    let best = best.unwrap();
    assert_eq!(found.cost.cycles, best.0, "{found:?}");
    assert!(
        (found.cost.energy / best.1 - 1.0).abs() < 1e-9,
        "{} {}",
        found.cost.energy,
        best.1
    );
    valid
}

#[test]
fn products_cost_what_loops_that_run_count() {
    let layer = LayerShape::product([3, 4, 2]).unwrap();
    let accelerator = small([2, 2], 16, vec![[C, K], [P, K]]);
    assert!(holds(&accelerator, &layer, 7, 6000) > 1000);
}

/// Windows that overlap, by two along a row.
#[test]
fn convolutions_cost_what_loops_that_run_count() {
    let layer = LayerShape::new([1, 2, 1, 3, 1, 3, 1]).unwrap();
    let accelerator = small([2, 1], 12, vec![[P, K], [K, K]]);
    assert!(holds(&accelerator, &layer, 5, 6000) > 500);
    // With steps, holes and a second direction, of which a part of all mappings is counted.
    let layer = LayerShape {
        stride: [2, 1],
        dilation: [1, 2],
        ..LayerShape::new([1, 1, 2, 2, 2, 2, 2]).unwrap()
    };
    let accelerator = small([2, 2], 40, vec![[Q, C], [P, Q]]);
    assert!(holds(&accelerator, &layer, 4001, 20_000) > 10_000);
}

/// Exercises 03 and 04 of the tutorial of Timeloop and Accelergy (ISPASS 2020): a convolution along one dimension, weights
/// 3, outputs 16 and 32 channels of them, on one unit and on 16 of them, each with a register file of 64 bytes and a buffer
/// of 256 KiB. Cycles and scalar accesses are those of the published outputs (`timeloop-model.stats.txt`), per instance
/// times instances; so is the energy of multiplications (0.845 pJ), registers (0.42564 pJ) and of whole blocks of memory.
#[test]
fn the_published_tutorial_of_timeloop_is_met() {
    let tutorial = |units: u32| LoopNestAccelerator {
        levels: vec![
            MemoryLevel {
                energy: 0.42564,
                ..level("registers", [true; 3], LevelCapacity::Shared(64))
            },
            level("buffer", [true; 3], LevelCapacity::Shared(262_144)),
            MemoryLevel {
                energy: 64.0,
                ..level("memory", [true; 3], LevelCapacity::Unbounded)
            },
        ],
        own_levels: 2,
        array: [units, 1],
        choices: vec![[K, K], [C, C]],
        word: [1; 3],
        output_word: 1,
        buffering: 1,
        mac_energy: 0.845,
    };
    let of = |[reads, fills, updates]: [u64; 3]| LevelAccesses {
        reads,
        fills,
        updates,
    };
    let keep = [true; 3];
    let alone = LayerShape::new([1, 32, 1, 16, 1, 3, 1]).unwrap();
    let many = LayerShape::new([1, 32, 32, 16, 1, 3, 1]).unwrap();
    let nest =
        |inner: &[BoundLoop], outer: &[BoundLoop]| vec![inner.to_vec(), outer.to_vec(), Vec::new()];
    let one = [(K, 1), (K, 1)];
    let cases = [
        // 03, all levels keep all.
        (
            (1, alone, 1536),
            (
                nest(&[(K, 2), (R, 3)], &[(K, 16), (P, 16)]),
                one,
                vec![keep; 3],
            ),
            [
                [[1536, 96, 0], [1536, 288, 0], [1024, 0, 1536]],
                [[96, 96, 0], [288, 18, 0], [0, 0, 512]],
                [[96, 0, 0], [18, 0, 0], [0, 0, 512]],
            ],
        ),
        // 03, weights and inputs pass the registers, outputs the buffer.
        (
            (1, alone, 1536),
            (
                nest(&[(K, 2), (R, 3)], &[(K, 16), (P, 16)]),
                one,
                vec![[false, false, true], [true, true, false], keep],
            ),
            [
                [[0; 3], [0; 3], [1024, 0, 1536]],
                [[1536, 96, 0], [1536, 18, 0], [0; 3]],
                [[96, 0, 0], [18, 0, 0], [0, 0, 512]],
            ],
        ),
        // 04, output channels over 16 units.
        (
            (16, many, 3072),
            (
                nest(&[(P, 16)], &[(C, 32), (K, 2), (R, 3)]),
                [(K, 16), (K, 1)],
                vec![keep; 3],
            ),
            [
                [[3072, 192, 0], [3072, 1152, 0], [3040, 992, 3072]],
                [[192, 192, 0], [1152, 576, 0], [992, 0, 1024]],
                [[3072, 0, 0], [576, 0, 0], [0, 0, 512]],
            ],
        ),
        // 04, input channels over 16 units, whose sums are added on the way.
        (
            (16, many, 3072),
            (
                nest(&[(P, 16)], &[(C, 2), (K, 32), (R, 3)]),
                [(C, 16), (C, 1)],
                vec![keep; 3],
            ),
            [
                [[3072, 192, 0], [3072, 1152, 0], [2560, 512, 3072]],
                [[192, 192, 0], [1152, 36, 0], [512, 0, 1024]],
                [[3072, 0, 0], [576, 0, 0], [0, 0, 512]],
            ],
        ),
    ];
    for ((units, layer, cycles), (temporal, spatial, keeps), expected) in cases {
        let accelerator = tutorial(units);
        let mapping = LoopMapping {
            temporal,
            spatial,
            keeps,
        };
        let cost = accelerator.cost(&layer, &mapping).unwrap();
        assert_eq!(cost.cycles, cycles);
        for (level, of_level) in expected.iter().enumerate() {
            for (tensor, words) in of_level.iter().enumerate() {
                let instances = if level < 2 { u64::from(units) } else { 1 };
                let each = words.map(|words| words * instances);
                assert_eq!(
                    cost.accesses[level][tensor],
                    of(each),
                    "{cycles} level {level} tensor {tensor}"
                );
            }
        }
        assert_eq!(cost.multiplications, layer.macs());
    }
    // 03: 1,297.92 pJ of multiplications, 694.64 + 776.37 + 1,089.64 pJ of registers.
    let mapping = LoopMapping {
        temporal: nest(&[(K, 2), (R, 3)], &[(K, 16), (P, 16)]),
        spatial: one,
        keeps: vec![keep; 3],
    };
    let mut free = tutorial(1);
    free.levels[1].energy = 0.0;
    free.levels[2].energy = 0.0;
    let energy = free.cost(&alone, &mapping).unwrap().energy;
    assert!(
        (energy - (1297.92 + 694.64 + 776.37 + 1089.64)).abs() < 0.05,
        "{energy}"
    );
}

/// An array of 16 x 16 at 700 MHz with 32 MB, and 128 bit of memory a cycle.
fn gemmini() -> GemminiSettings {
    GemminiSettings {
        scratchpad: Bytes(32_000_000),
        ..GemminiSettings::square(16).unwrap()
    }
}

/// Never below multiplications over units or bytes over bandwidth, more mappings never worse, and, where memory is no
/// limit, no longer than arrays whose operands are skewed in and results drained for each fold (SCALE-Sim's form).
#[test]
fn found_mappings_keep_their_bounds() {
    let mut accelerator = gemmini().accelerator(1);
    for [m, n, k] in [
        [512, 512, 512],
        [1, 4096, 4096],
        [197, 768, 3072],
        [4096, 17, 33],
    ] {
        let layer = LayerShape::product([m, n, k]).unwrap();
        let mut before = u64::MAX;
        for mappings in [1, 10, 100, 1000] {
            let found = search_mapping(&accelerator, &layer, mappings, 3).unwrap();
            let cycles = found.cost.cycles;
            assert!(cycles <= before, "{mappings}");
            before = cycles;
            assert!(cycles >= layer.macs().div_ceil(256));
            assert!(cycles as f64 >= layer.least_bytes([1; 3]) as f64 / 16.0);
            assert!(found.cost.multiplications >= layer.macs());
            assert!(found.valid > mappings / 2);
        }
    }
    accelerator.levels[3].bytes_per_cycle = None;
    let arrays = SystolicArrays {
        array: [16; 2],
        arrays: [1; 2],
        clock: Frequency::new(1e12).unwrap(),
    };
    for sizes in [[512, 512, 512], [16, 16, 1000], [100, 33, 7]] {
        let layer = LayerShape::product(sizes).unwrap();
        let found = search_mapping(&accelerator, &layer, 1000, 3).unwrap();
        let [m, n, k] = sizes;
        // A cycle is a picosecond.
        let skewed = arrays.duration(1, [m, n, k]).unwrap().0;
        assert!(
            found.cost.cycles <= skewed,
            "{sizes:?} {} {skewed}",
            found.cost.cycles
        );
    }
}

#[test]
fn layers_that_cannot_be_are_refused() {
    assert!(LayerShape::product([0, 1, 1]).is_none());
    assert!(LayerShape::product([u64::MAX, 1, 1]).is_none());
    assert!(LayerShape::product([1 << 30, 1 << 30, 1 << 30]).is_none());
    assert!(GemminiSettings::square(0).is_none());
    let layer = LayerShape::product([1 << 20, 1 << 18, 1 << 16]).unwrap();
    let accelerator = gemmini().accelerator(8);
    let found = search_mapping(&accelerator, &layer, 200, 0).unwrap();
    assert!(found.cost.cycles >= layer.macs() / 256);
    let (steps, _) = counter::count(
        &small([1, 1], 16, vec![[C, K]]),
        &LayerShape::product([1, 1, 1]).unwrap(),
        &LoopMapping {
            temporal: vec![Vec::new(); 3],
            spatial: [(C, 1), (K, 1)],
            keeps: vec![[true; 3]; 3],
        },
    );
    assert_eq!(steps, 1);
    assert_eq!(layer.size(S), 1);
}
