//! Compares Timeloop's published mappings with the cycles and accesses that Timeloop reports.

use super::*;

/// Exercises 03 and 04 of the tutorial of Timeloop and Accelergy (ISPASS 2020): a convolution along one dimension with
/// 3 weights, 16 outputs and 32 output channels. The convolution runs on one unit and on 16 units, each with a register
/// file of 64 bytes and a buffer of 256 KiB. Cycles and scalar accesses are from the published outputs
/// (`timeloop-model.stats.txt`), multiplied by the number of instances of each component. The energies of
/// multiplications (0.845 pJ), registers (0.42564 pJ) and whole blocks of memory are from the same outputs.
#[test]
fn the_published_tutorial_of_timeloop_is_met() {
    let tutorial = |units: u32| LoopNestAccelerator {
        levels: vec![
            MemoryLevel {
                energy: 0.42564,
                ..build_memory_level("registers", [true; 3], MemoryLevelCapacity::Shared(64))
            },
            build_memory_level("buffer", [true; 3], MemoryLevelCapacity::Shared(262_144)),
            MemoryLevel {
                energy: 64.0,
                ..build_memory_level("memory", [true; 3], MemoryLevelCapacity::Unbounded)
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
    let of = |[reads, fills, updates]: [u64; 3]| TensorLevelAccesses {
        reads,
        fills,
        updates,
    };
    let keep = [true; 3];
    let alone = LayerShape::new([1, 32, 1, 16, 1, 3, 1]).unwrap();
    let many = LayerShape::new([1, 32, 32, 16, 1, 3, 1]).unwrap();
    let nest = |inner: &[LoopDimensionBound], outer: &[LoopDimensionBound]| {
        vec![inner.to_vec(), outer.to_vec(), Vec::new()]
    };
    let one = [(K, 1), (K, 1)];
    let cases = [
        // Exercise 03 with all tensors in all levels.
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
        // Exercise 03 with bypasses: weights and inputs bypass the registers, and outputs bypass the buffer.
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
        // Exercise 04 with output channels spread over 16 units.
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
        // Exercise 04 with input channels spread over 16 units. The partial sums of the units are added up.
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
        let cost = accelerator.evaluate_mapping(&layer, &mapping).unwrap();
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
        assert_eq!(cost.multiplications, layer.mac_count());
    }
    // Exercise 03: 1,297.92 pJ for multiplications, 694.64 + 776.37 + 1,089.64 pJ for registers.
    let mapping = LoopMapping {
        temporal: nest(&[(K, 2), (R, 3)], &[(K, 16), (P, 16)]),
        spatial: one,
        keeps: vec![keep; 3],
    };
    let mut free = tutorial(1);
    free.levels[1].energy = 0.0;
    free.levels[2].energy = 0.0;
    let energy = free.evaluate_mapping(&alone, &mapping).unwrap().energy;
    assert!(
        (energy - (1297.92 + 694.64 + 776.37 + 1089.64)).abs() < 0.05,
        "{energy}"
    );
}
