//! Checks partitions against explicit sets of elements, the optimizer against exhaustive search, and word counts
//! against simulated schedules.

use super::MatrixCutDirection::{Columns, Rows};
use super::*;
use crate::schedule::{
    DeapLanguageModel, MatrixProductPartitionRule, MultiChipMachine, SubLayerChipAssignmentRule,
    SubLayerTimeAndEnergy, schedule_sub_layers_on_chips,
};
use chakram_hardware::topology::chip_graph::{LinkRateByLinkCount, RateInterpolationByLinkCount};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Number of cells along each side of a tensor in this test. A block is a range of cells.
const GRID: u32 = 16;

type MatrixCellSet = BTreeSet<(u32, u32)>;

/// Returns the cells in this row block and this column block.
fn list_matrix_block_cells(row: (u32, u32), column: (u32, u32)) -> MatrixCellSet {
    let of = |(block, blocks): (u32, u32)| block * GRID / blocks..(block + 1) * GRID / blocks;
    let rows = of(row);
    rows.flat_map(|i| of(column).map(move |j| (i, j))).collect()
}

/// Computes the row block and column block of a part, level by level. Returns both blocks, each with the number of such
/// blocks.
fn row_and_column_blocks_of_part(cut: &MatrixProductCutSequence, part: u32) -> [(u32, u32); 2] {
    let (mut low, mut high) = ([0, 0], [GRID; 2]);
    for (level, along) in cut.iter().enumerate() {
        let side = usize::from(*along == Columns);
        let middle = (low[side] + high[side]) / 2;
        let outer_first = cut.len() - 1 - level;
        if part >> outer_first & 1 == 0 {
            high[side] = middle;
        } else {
            low[side] = middle;
        }
    }
    [0, 1].map(|side| {
        let size = high[side] - low[side];
        (low[side] / size, GRID / size)
    })
}

/// Counts the moved words with sets of cells: the cells that each part needs and does not have.
fn count_moved_words_by_cells(
    products: &[MatrixProductSizesForTransfers],
    cuts: &[MatrixProductCutSequence],
    batches: u32,
) -> f64 {
    let mut words = 0.0;
    for (l, product) in products.iter().enumerate() {
        for part in 0..1 << cuts[l].len() {
            let [row, column] = row_and_column_blocks_of_part(&cuts[l], part);
            words += product.weights as f64 / f64::from(column.1);
            let Some(before) = l.checked_sub(1) else {
                // The input is only in memory, so a part reads all columns of its rows from there.
                let taken =
                    list_matrix_block_cells(row, (0, 1)).len() as f64 / f64::from(GRID * GRID);
                words += f64::from(batches) * product.inputs as f64 * taken;
                continue;
            };
            let [held_row, held_column] = row_and_column_blocks_of_part(&cuts[before], part);
            let row = if product.takes_all { (0, 1) } else { row };
            let needed = list_matrix_block_cells(row, (0, 1));
            let taken = needed
                .difference(&list_matrix_block_cells(held_row, held_column))
                .count();
            let outputs = (products[before].rows * products[before].columns) as f64;
            words += f64::from(batches) * outputs * taken as f64 / f64::from(GRID * GRID);
        }
    }
    words
}

/// Returns all combinations of cuts for `products` products on `levels` levels.
fn list_all_cut_combinations(products: usize, levels: usize) -> Vec<Vec<MatrixProductCutSequence>> {
    let bits = products * levels;
    let cut = |choice: u32, product: usize| {
        let level = |level: usize| match choice >> (product * levels + level) & 1 {
            0 => Columns,
            _ => Rows,
        };
        (0..levels).map(level).collect()
    };
    (0..1_u32 << bits)
        .map(|choice| (0..products).map(|product| cut(choice, product)).collect())
        .collect()
}

fn build_product_sizes(
    rows: u64,
    columns: u64,
    [weights, inputs]: [u64; 2],
    takes_all: bool,
) -> MatrixProductSizesForTransfers {
    MatrixProductSizesForTransfers {
        rows,
        columns,
        weights,
        inputs,
        takes_all,
    }
}

proptest! {
    #[test]
    fn moved_words_match_cell_counts_and_each_level_is_optimal(
        sizes in prop::collection::vec((0u32..3, 0u32..3, [0u64..500, 0u64..9], prop::bool::weighted(0.2)), 1..5),
        batches in 1u32..4,
        levels in 1usize..4,
    ) {
        // Products have 16 to 64 rows and columns, so that every cut is possible.
        let products: Vec<MatrixProductSizesForTransfers> = sizes
            .iter()
            .map(|&(rows, columns, [weights, inputs], all)| {
                let words = [weights * 16, (16 << rows) * inputs];
                build_product_sizes(16 << rows, 16 << columns, words, all)
            })
            .collect();
        let words = |cuts: &Vec<MatrixProductCutSequence>| count_words_moved_by_forward_pass(&products, cuts, batches);
        if levels * products.len() <= 8 {
            for cuts in list_all_cut_combinations(products.len(), levels) {
                prop_assert_eq!(words(&cuts) as f64, count_moved_words_by_cells(&products, &cuts, batches));
            }
        }
        let all = list_all_cut_combinations(products.len(), 1);
        let least = all.iter().map(&words).min().unwrap();
        let found = choose_matrix_product_cuts(&products, 1, batches).unwrap();
        prop_assert_eq!(words(&found), least);
        // The optimizer decides level by level, so the total cost may exceed the minimum, but cannot be below it.
        let deep = choose_matrix_product_cuts(&products, 2, batches).unwrap();
        let least = list_all_cut_combinations(products.len(), 2).iter().map(&words).min().unwrap();
        prop_assert!(words(&deep) >= least);
    }
}

/// The test cuts two products with 8 rows and 4 columns (32 words) into two parts each. Cuts along columns move the
/// weights once, and each half lacks half of the 32 words per micro-batch. Cuts along rows move only the weights,
/// twice. Only in the last case of the test do products read the model's input.
#[test]
fn cut_choice_weighs_weight_words_against_moved_data() {
    let cuts = |weights, batches| {
        let products = [build_product_sizes(8, 4, [weights, 0], false); 2];
        let cuts = choose_matrix_product_cuts(&products, 1, batches).unwrap();
        (
            count_words_moved_by_forward_pass(&products, &cuts, batches),
            cuts,
        )
    };
    // With 16 words of weights, cuts along columns move 32 + 2 x 32 = 96 words, and cuts along rows move 64.
    assert_eq!(cuts(16, 2), (64, vec![vec![Rows]; 2]));
    // With 100 words of weights, cuts along columns move 200 + 2 x 32 = 264 words, and cuts along rows move 400.
    assert_eq!(cuts(100, 2), (264, vec![vec![Columns]; 2]));
    // If the first product is cut along columns and the second along rows, 100 + 2 x 16 words of weights move. Each
    // half then lacks a quarter of the 32 words in each of two micro-batches, so the total is 164 words. The other cuts
    // move more words: 116 + 64 = 180 (columns for both products), 232 (rows for both), and 200 + 16 + 64 = 280 (rows,
    // then columns).
    let products = [
        build_product_sizes(8, 4, [100, 0], false),
        build_product_sizes(8, 4, [16, 0], false),
    ];
    let cuts = choose_matrix_product_cuts(&products, 1, 2).unwrap();
    assert_eq!(cuts, [vec![Columns], vec![Rows]]);
    assert_eq!(count_words_moved_by_forward_pass(&products, &cuts, 2), 164);
    // A product with a single row can be cut only along columns, until each part has a single
    // column.
    let narrow = [build_product_sizes(1, 4, [0, 0], false)];
    assert_eq!(
        choose_matrix_product_cuts(&narrow, 2, 1),
        Some(vec![vec![Columns, Columns]])
    );
    assert_eq!(choose_matrix_product_cuts(&narrow, 3, 1), None);
    // The input has 60 words in each of two micro-batches. With cuts along columns, each half reads
    // the whole input: 100 + 2 x 120 = 340 words. With cuts along rows, each half reads only its
    // own rows: 2 x 100 + 2 x 60 = 320 words. Without the input, cuts along columns would move
    // fewer words, because they move the weights only once.
    let cut = |inputs| {
        let products = [build_product_sizes(8, 4, [100, inputs], false)];
        let cuts = choose_matrix_product_cuts(&products, 1, 2).unwrap();
        (count_words_moved_by_forward_pass(&products, &cuts, 2), cuts)
    };
    assert_eq!(cut(0), (100, vec![vec![Columns]]));
    assert_eq!(cut(60), (320, vec![vec![Rows]]));
}

/// Places each part of a matrix product on its own chip. Checks that the schedule moves as many words between chips and
/// from memory as predicted.
#[test]
fn schedules_move_as_many_words_as_the_partition_predicts() {
    let model = DeapLanguageModel {
        embedding: 32,
        forward: 64,
        heads: 4,
        encoders: 1,
        decoders: 1,
        vocabulary: 64,
        sequence: 16,
        micro_batches: 3,
        tensor: 4,
        partition: MatrixProductPartitionRule::Hierarchical,
    };
    let machine = MultiChipMachine {
        links: None,
        technology: LinkRateByLinkCount {
            interface: 1.0,
            links: Vec::new(),
            interpolation: RateInterpolationByLinkCount::None,
        },
        capacity: None,
        memory_bandwidth: None,
        connection_power: 0.0,
        word: 1,
        accelerators: 1,
        dispatch: 0.0,
    };
    let mut least = u64::MAX;
    for tensor in [2, 4, 8] {
        for partition in [
            MatrixProductPartitionRule::Columns,
            MatrixProductPartitionRule::Rows,
            MatrixProductPartitionRule::Hierarchical,
        ] {
            let model = DeapLanguageModel {
                tensor,
                partition,
                ..model
            };
            let graph = model.build_task_graph().unwrap();
            let places = schedule_sub_layers_on_chips(
                &graph,
                tensor as usize,
                SubLayerChipAssignmentRule::Steps,
            )
            .unwrap();
            let costs = vec![SubLayerTimeAndEnergy::default(); graph.tasks.len()];
            let totals = machine.simulate_steps(&graph, &places, &costs).unwrap();
            let moved = totals.steps.iter().map(|s| s.between_chips + s.memory);
            let moved: u64 = moved.sum();
            assert_eq!(
                moved,
                model
                    .choose_product_cuts_and_count_moved_words()
                    .unwrap()
                    .words,
                "{tensor} {partition:?}"
            );
            match partition {
                MatrixProductPartitionRule::Hierarchical => assert!(moved <= least, "{tensor}"),
                MatrixProductPartitionRule::Rows => least = least.min(moved),
                MatrixProductPartitionRule::Columns => least = moved,
            }
        }
    }
}
