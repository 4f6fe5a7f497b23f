//! Compares costs of loop nests with published mappings, and with accesses counted while the loops run.

mod counter;
mod timeloop;

use super::*;
use crate::compute::SystolicArrays;
use LoopDimension::{C, K, N, P, Q, R, S};
use chakram_base::units::{Bytes, Frequency};

fn build_memory_level(
    name: &'static str,
    keeps: [bool; 3],
    capacity: MemoryLevelCapacity,
) -> MemoryLevel {
    MemoryLevel {
        name,
        keeps,
        capacity,
        bytes_per_cycle: None,
        energy: 1.0,
    }
}

/// Returns an accelerator with registers in each unit, a buffer, and a memory that transfers half a byte per cycle.
fn build_small_accelerator(
    array: [u32; 2],
    buffer: u64,
    choices: Vec<RowAndColumnLoopDimensions>,
) -> LoopNestAccelerator {
    let mut memory = build_memory_level("memory", [true; 3], MemoryLevelCapacity::Unbounded);
    memory.bytes_per_cycle = Some(0.5);
    LoopNestAccelerator {
        levels: vec![
            build_memory_level(
                "registers",
                [true, false, true],
                MemoryLevelCapacity::Shared(6),
            ),
            build_memory_level("buffer", [true; 3], MemoryLevelCapacity::Shared(buffer)),
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

/// Returns all orders of the loops.
fn list_loop_orders(loops: &[LoopDimensionBound]) -> Vec<Vec<LoopDimensionBound>> {
    if loops.is_empty() {
        return vec![Vec::new()];
    }
    let first = |i: usize| {
        let mut rest = loops.to_vec();
        let one = rest.remove(i);
        list_loop_orders(&rest).into_iter().map(move |mut tail| {
            tail.insert(0, one);
            tail
        })
    };
    (0..loops.len()).flat_map(first).collect()
}

/// Returns every mapping of a layer: all ways to divide loops among the levels and the array, all loop orders, and all
/// choices of kept tensors.
fn for_each_mapping_of_layer(
    accelerator: &LoopNestAccelerator,
    layer: &LayerShape,
    act: &mut dyn FnMut(LoopMapping),
) {
    let levels = accelerator.levels.len();
    let mut spatials = Vec::new();
    for along in &accelerator.choices {
        let most = |side: usize| {
            layer
                .loop_iteration_count(along[side])
                .min(accelerator.array[side].into())
        };
        for rows in 1..=most(0) {
            spatials.extend((1..=most(1)).map(|columns| [(along[0], rows), (along[1], columns)]));
        }
    }
    for spatial in spatials {
        let mut left = layer.sizes;
        for (dimension, bound) in spatial {
            left[dimension as usize] = left[dimension as usize].div_ceil(bound);
        }
        // Bounds by level for each dimension. The outermost level has the remaining iterations.
        let mut all = vec![vec![Vec::<LoopDimensionBound>::new(); levels]];
        for (dimension, _) in LoopDimension::ALL {
            let mut parts = vec![(left[dimension as usize], Vec::new())];
            for _ in 1..levels {
                parts = parts
                    .iter()
                    .flat_map(|(left, bounds): &(u64, Vec<u64>)| {
                        let with =
                            |bound: u64| (left.div_ceil(bound), [&bounds[..], &[bound]].concat());
                        // If two bounds leave the same number of iterations, the larger only adds zeros.
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
                    .flat_map(|before: &Vec<Vec<LoopDimensionBound>>| {
                        list_loop_orders(loops)
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
                    // A mapping must not keep a tensor in a level that cannot keep it.
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

/// Checks a small layer. For one in `every` mappings, the closed form must equal the accesses counted while the loops
/// run. The search must find the best of all mappings.
fn check_all_mapping_costs_and_best_found(
    accelerator: &LoopNestAccelerator,
    layer: &LayerShape,
    every: usize,
    draws: u32,
) -> usize {
    let (mut seen, mut valid) = (0, 0);
    let mut best: Option<(u64, f64)> = None;
    for_each_mapping_of_layer(accelerator, layer, &mut |mapping| {
        let Some(cost) = accelerator.evaluate_mapping(layer, &mapping) else {
            return;
        };
        valid += 1;
        let found = (cost.cycles, cost.energy);
        if best.is_none_or(|best| found < best) {
            best = Some(found);
        }
        assert!(cost.cycles >= layer.mac_count().div_ceil(accelerator.unit_count()));
        let word = [1, 1, accelerator.output_word];
        assert!(cost.cycles as f64 >= layer.bytes_of_all_tensors(word) as f64 / 0.5);
        seen += 1;
        if seen % every != 0 {
            return;
        }
        let (steps, accesses) = counter::count_steps_and_accesses(accelerator, layer, &mapping);
        assert_eq!(cost.accesses, accesses, "{mapping:?}");
        assert_eq!(cost.compute_cycles, steps, "{mapping:?}");
        // Main memory transfers half a byte per cycle, so each byte takes two cycles. Partial sums have two bytes,
        // except the last sum of each output.
        let [weights, inputs, outputs] = accesses.last().unwrap();
        let words = |one: &TensorLevelAccesses| one.reads + one.fills + one.updates;
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
fn matrix_product_cost_equals_counts_of_executed_loops() {
    let layer = LayerShape::from_matrix_product([3, 4, 2]).unwrap();
    let accelerator = build_small_accelerator([2, 2], 16, vec![[C, K], [P, K]]);
    assert!(check_all_mapping_costs_and_best_found(&accelerator, &layer, 1, 6000) > 20_000);
}

/// The layer's windows overlap by two inputs along a row.
#[test]
fn convolution_cost_equals_counts_of_executed_loops() {
    let layer = LayerShape::new([1, 2, 1, 3, 1, 3, 1]).unwrap();
    let accelerator = build_small_accelerator([2, 1], 12, vec![[P, K], [K, K]]);
    assert!(check_all_mapping_costs_and_best_found(&accelerator, &layer, 1, 6000) > 20_000);
    // This test's layer has strides, dilation, and windows along columns too. It has too many mappings to run all of
    // them.
    let layer = LayerShape {
        stride: [2, 1],
        dilation: [1, 2],
        ..LayerShape::new([1, 1, 2, 2, 2, 2, 2]).unwrap()
    };
    let accelerator = build_small_accelerator([2, 2], 40, vec![[Q, C], [P, Q]]);
    assert!(check_all_mapping_costs_and_best_found(&accelerator, &layer, 101, 20_000) > 100_000);
}

/// Returns an array of 16 x 16 units at 700 MHz, with 32 MB of local memory and a main memory that transfers 128 bit
/// per cycle.
fn build_gemmini_settings() -> GemminiSettings {
    GemminiSettings {
        scratchpad: Bytes(32_000_000),
        ..GemminiSettings::square_array(16).unwrap()
    }
}

/// Cycles are never below multiplications ÷ units or bytes ÷ bandwidth, and trying more mappings never gives a worse
/// result. If memory does not limit it, a mapping takes no more cycles than SCALE-Sim's formula gives. In that formula,
/// each fold also takes cycles to skew operands in and to drain results.
#[test]
fn found_mapping_cycles_stay_within_known_bounds() {
    let mut accelerator = build_gemmini_settings().build_accelerator(1);
    for [m, n, k] in [
        [512, 512, 512],
        [1, 4096, 4096],
        [197, 768, 3072],
        [4096, 17, 33],
    ] {
        let layer = LayerShape::from_matrix_product([m, n, k]).unwrap();
        let mut before = u64::MAX;
        for mappings in [1, 10, 100, 1000] {
            let found = search_mapping(&accelerator, &layer, mappings, 3).unwrap();
            let cycles = found.cost.cycles;
            assert!(cycles <= before, "{mappings}");
            before = cycles;
            assert!(cycles >= layer.mac_count().div_ceil(256));
            assert!(cycles as f64 >= layer.bytes_of_all_tensors([1; 3]) as f64 / 16.0);
            assert!(found.cost.multiplications >= layer.mac_count());
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
        let layer = LayerShape::from_matrix_product(sizes).unwrap();
        let found = search_mapping(&accelerator, &layer, 1000, 3).unwrap();
        let [m, n, k] = sizes;
        // At this clock, a cycle is one picosecond.
        let skewed = arrays.matmul_duration(1, [m, n, k]).unwrap().0;
        assert!(
            found.cost.cycles <= skewed,
            "{sizes:?} {} {skewed}",
            found.cost.cycles
        );
    }
}

#[test]
fn layers_that_cannot_be_are_refused() {
    assert!(LayerShape::from_matrix_product([0, 1, 1]).is_none());
    assert!(LayerShape::from_matrix_product([u64::MAX, 1, 1]).is_none());
    assert!(LayerShape::from_matrix_product([1 << 30, 1 << 30, 1 << 30]).is_none());
    assert!(GemminiSettings::square_array(0).is_none());
    let layer = LayerShape::from_matrix_product([1 << 20, 1 << 18, 1 << 16]).unwrap();
    let accelerator = build_gemmini_settings().build_accelerator(8);
    let found = search_mapping(&accelerator, &layer, 200, 0).unwrap();
    assert!(found.cost.cycles >= layer.mac_count() / 256);
    let (steps, _) = counter::count_steps_and_accesses(
        &build_small_accelerator([1, 1], 16, vec![[C, K]]),
        &LayerShape::from_matrix_product([1, 1, 1]).unwrap(),
        &LoopMapping {
            temporal: vec![Vec::new(); 3],
            spatial: [(C, 1), (K, 1)],
            keeps: vec![[true; 3]; 3],
        },
    );
    assert_eq!(steps, 1);
    assert_eq!(layer.loop_iteration_count(S), 1);
}

/// Attention takes the energy of both matrix products for each head. The backward pass takes twice this energy, plus
/// the energy of a fifth product. A kernel without a mapping takes 0.3 pJ for every two operations and 162.5 pJ for
/// each byte of memory. An empty kernel takes no energy.
#[test]
fn energy_of_kernels_is_that_of_their_mappings() {
    let model = LoopNestModel {
        gemmini: build_gemmini_settings(),
        mappings: 20,
        seed: 1,
    };
    let energy = |sizes| {
        let layer = LayerShape::from_matrix_product(sizes).unwrap();
        let found = search_mapping(
            &build_gemmini_settings().build_accelerator(2),
            &layer,
            20,
            1,
        )
        .unwrap();
        found.cost.energy
    };
    let kernel = |shape| KernelTraceFacts {
        flops: 1000,
        bytes: 80,
        dtype: Some(Dtype::Bf16),
        shape,
        ..KernelTraceFacts::default()
    };
    let price = |shape| model.price_kernel(&kernel(shape)).unwrap().energy;
    let product = KernelShape::Gemm {
        batch: 3,
        m: 64,
        n: 32,
        k: 16,
    };
    assert_eq!(price(Some(product)), energy([64, 32, 16]) * 3.0);
    let attention = |backward| KernelShape::Attention {
        batch: 2,
        heads: 4,
        kv_heads: 4,
        queries: 32,
        keys: 48,
        width: 16,
        causal: true,
        backward,
    };
    let heads = 8.0 * (energy([32, 48, 16]) + energy([32, 16, 48]));
    assert!((price(Some(attention(false))) / heads - 1.0).abs() < 1e-12);
    assert!((price(Some(attention(true))) / (2.5 * heads) - 1.0).abs() < 1e-12);
    assert_eq!(price(None), 500.0 * 0.3 + 80.0 * 162.5);
    assert_eq!(model.price_kernel(&KernelTraceFacts::default()), None);
}
