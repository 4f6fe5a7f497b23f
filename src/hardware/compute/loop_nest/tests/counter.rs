//! Runs the loops of a mapping, and counts accesses with sets of words instead of formulas.

use super::*;
use std::collections::BTreeSet;

type WordCoordinates = [u64; 4];
type TileWordSet = BTreeSet<WordCoordinates>;

/// A loop that runs in time or over the array; lists of loops begin with the outermost.
#[derive(Clone, Copy)]
struct ExecutedLoop {
    level: usize,
    dimension: LoopDimension,
    bound: u64,
    stride: u64,
    side: Option<usize>,
}

fn list_executed_loops(
    accelerator: &LoopNestAccelerator,
    mapping: &LoopMapping,
) -> Vec<ExecutedLoop> {
    let mut all: Vec<ExecutedLoop> = Vec::new();
    for level in (0..mapping.temporal.len()).rev() {
        for &(dimension, bound) in &mapping.temporal[level] {
            all.push(ExecutedLoop {
                level,
                dimension,
                bound,
                stride: 0,
                side: None,
            });
        }
        if level == accelerator.own_levels {
            for (side, (dimension, bound)) in mapping.spatial.into_iter().enumerate() {
                all.push(ExecutedLoop {
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

/// Returns the words of `tensor` in the box that starts at `origin`.
fn list_tensor_words_in_box(
    layer: &LayerShape,
    tensor: LayerTensor,
    origin: [u64; 7],
    extent: [u64; 7],
) -> TileWordSet {
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
    let mut tile = TileWordSet::new();
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
struct HeldTile {
    tile: Option<(Vec<u64>, TileWordSet)>,
    visited: TileWordSet,
}

/// Runs the loops of `mapping`, and counts steps and accesses.
pub fn count_steps_and_accesses(
    accelerator: &LoopNestAccelerator,
    layer: &LayerShape,
    mapping: &LoopMapping,
) -> (u64, Vec<[TensorLevelAccesses; 3]>) {
    let all = list_executed_loops(accelerator, mapping);
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
    let mut found = vec![[TensorLevelAccesses::default(); 3]; levels];
    let mut held = vec![vec![vec![HeldTile::default(); units.len()]; 3]; levels];
    let mut innermost_seen = vec![TileWordSet::new(); units.len()];
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
            let keepers: Vec<usize> = (0..levels).filter(|level| keeps(*level, tensor)).collect();
            for pair in keepers.windows(2).rev() {
                let (inner, outer) = (pair[0], pair[1]);
                let joins = inner < own && outer >= own;
                let of_units = if inner < own { &units[..] } else { &units[..1] };
                // Indices of the outer loops that the tensor depends on.
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
                let (mut asked, mut left, mut back) =
                    (TileWordSet::new(), TileWordSet::new(), TileWordSet::new());
                let (mut asked_all, mut left_all, mut back_all) = (0, 0, 0);
                for (u, unit) in of_units.iter().enumerate() {
                    let held = &mut held[inner][of][u];
                    if held.tile.as_ref().is_some_and(|(at, _)| *at == now) {
                        continue;
                    }
                    let tile = list_tensor_words_in_box(
                        layer,
                        tensor,
                        origin(Some(inner), *unit),
                        extent(inner),
                    );
                    let old = held.tile.replace((now.clone(), tile.clone()));
                    if tensor == LayerTensor::Outputs {
                        if let Some((_, old)) = old {
                            left_all += old.len();
                            left.extend(old);
                        }
                        let again: TileWordSet =
                            tile.intersection(&held.visited).copied().collect();
                        held.visited.extend(tile);
                        found[inner][of].fills += again.len() as u64;
                        back_all += again.len();
                        back.extend(again);
                        continue;
                    }
                    // True if, among the loops that the tensor depends on, only the innermost advanced, by one step.
                    let slid = old.as_ref().is_some_and(|(before, _)| {
                        let mut later = before.clone();
                        later.last_mut().is_some_and(|last| {
                            *last += 1;
                            true
                        }) && later == now
                    });
                    let needed: TileWordSet = match old {
                        Some((_, old)) if slid => tile.difference(&old).copied().collect(),
                        _ => tile,
                    };
                    found[inner][of].fills += needed.len() as u64;
                    asked_all += needed.len();
                    asked.extend(needed);
                }
                let outer = &mut found[outer][of];
                let pick = |one: TileWordSet, all: usize| {
                    if joins { one.len() as u64 } else { all as u64 }
                };
                outer.reads += pick(asked, asked_all) + pick(back, back_all);
                outer.updates += pick(left, left_all);
            }
            // Count the multiplications of this step.
            let innermost = keepers[0];
            let mut together = TileWordSet::new();
            for (u, unit) in units.iter().enumerate() {
                let word = list_tensor_words_in_box(layer, tensor, origin(None, *unit), [1; 7]);
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
        // Advance to the next step.
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
    // The words that remain at the end are removed from their levels.
    let of = LayerTensor::Outputs as usize;
    let keepers: Vec<usize> = (0..levels)
        .filter(|level| keeps(*level, LayerTensor::Outputs))
        .collect();
    for pair in keepers.windows(2) {
        let joins = pair[0] < own && pair[1] >= own;
        let tiles = held[pair[0]][of]
            .iter()
            .filter_map(|held| held.tile.as_ref());
        let tiles: Vec<&TileWordSet> = tiles.map(|(_, tile)| tile).collect();
        let together: TileWordSet = tiles.iter().flat_map(|tile| tile.iter().copied()).collect();
        let each: usize = tiles.iter().map(|tile| tile.len()).sum();
        found[pair[1]][of].updates += if joins { together.len() } else { each } as u64;
    }
    (steps, found)
}
