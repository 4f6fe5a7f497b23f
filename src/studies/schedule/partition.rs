//! Layer-wise partition by hierarchical dynamic programming. For each matrix product, the method decides whether to cut
//! rows or columns.
//!
//! The method is that of HyPar (Song et al., HPCA 2019), which DEAP cites. It repeatedly divides the chips into halves.
//! At each level, it cuts every product in two. After a cut along rows, each half has all weights and half of the data.
//! After a cut along columns, each half has half of the weights and all data. HyPar counts the transfers of training.
//! Like DEAP, this module counts only the transfers of a forward pass. Part p of every product is on chip p. A product
//! of P parts, with a row blocks and b = P / a column blocks, moves these numbers of words:
//!
//! - weights = a W, once, for W words of weights;
//! - moved = F (P / a − n / (b' max(a, a'))) per micro-batch from the previous product, for F
//!   outputs of the previous product in a' x b' blocks;
//! - input = I P / a per micro-batch from memory, for a first product with an input of I words.
//!
//! n counts the parts whose row block contains, or is inside, the same chip's row block in the previous product. A
//! product that needs the whole previous output (as scores need all keys) moves F (P − 1) words. A product's cost
//! depends only on its own cut and its predecessor's. With L products, one pass per level therefore finds the best of
//! all 2^L choices. Cuts are decided level by level, beginning at the outermost.

use std::collections::BTreeMap;

/// Direction of a cut through a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MatrixCutDirection {
    /// Cuts the rows, that is, tokens or tokens times heads.
    Rows,
    /// Cuts the columns, so that each half computes a part of every token's outputs.
    Columns,
}

/// Cuts of a matrix product, outermost level first.
pub type MatrixProductCutSequence = Vec<MatrixCutDirection>;

/// The sizes that determine a matrix product's transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixProductSizesForTransfers {
    /// Number of rows of the matrix product's output.
    pub rows: u64,
    /// Number of columns of the matrix product's output.
    pub columns: u64,
    /// Number of words of weights; 0 without weights.
    pub weights: u64,
    /// Number of input words per micro-batch that the matrix product reads from memory. Zero for all products except
    /// the first.
    pub inputs: u64,
    /// True if every part needs the previous matrix product's whole output.
    pub takes_all: bool,
}

/// Position of a part: its row block and its column block, each with the number of such blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixProductPartPosition {
    /// Index of the row block, and the number of row blocks.
    pub row: (u32, u32),
    /// Index of the column block, and the number of column blocks.
    pub column: (u32, u32),
}

/// Costs are counted in units of 1 / `SHARES` word, so that they are integers.
const SHARES: u128 = 1 << 24;

/// Returns the position of `part` in a matrix product with these cuts. Each level appends one bit to the index of the
/// row block or the column block.
pub fn position_of_part_in_matrix_product(
    cut: &[MatrixCutDirection],
    part: u32,
) -> MatrixProductPartPosition {
    let (mut row, mut column) = ((0, 1), (0, 1));
    for (level, along) in cut.iter().enumerate() {
        let half = part >> (cut.len() - 1 - level) & 1;
        let block = match along {
            MatrixCutDirection::Rows => &mut row,
            MatrixCutDirection::Columns => &mut column,
        };
        *block = (2 * block.0 + half, 2 * block.1);
    }
    MatrixProductPartPosition { row, column }
}

/// Returns how many words a forward pass of `batches` micro-batches moves with these cuts.
pub fn count_words_moved_by_forward_pass(
    products: &[MatrixProductSizesForTransfers],
    cuts: &[MatrixProductCutSequence],
    batches: u32,
) -> u64 {
    let mut costs = MatrixCutPairTransferCostCache::default();
    let own = products.iter().zip(cuts);
    let weights = own
        .map(|(product, cut)| count_weight_words_read(product, cut))
        .sum::<u128>();
    let pairs = products.windows(2).zip(cuts.windows(2));
    let moved = pairs.map(|(of, cuts)| {
        costs.words_moved_between_products([&of[0], &of[1]], [&cuts[0], &cuts[1]])
    });
    let first = products.first().zip(cuts.first());
    let input = first.map_or(0, |(product, cut)| count_input_words_read(product, cut));
    let all = weights + u128::from(batches) * (input + moved.sum::<u128>());
    u64::try_from(all.div_ceil(SHARES)).unwrap_or(u64::MAX)
}

/// Returns each matrix product's cuts on `levels` levels; `None` if one of the products has too few rows and columns.
pub fn choose_matrix_product_cuts(
    products: &[MatrixProductSizesForTransfers],
    levels: u32,
    batches: u32,
) -> Option<Vec<MatrixProductCutSequence>> {
    let mut cuts = vec![MatrixProductCutSequence::new(); products.len()];
    for _ in 0..levels {
        add_best_cut_on_one_more_level(products, &mut cuts, batches)?;
    }
    Some(cuts)
}

/// Divides the rows `held` into equal pieces, one of which is exactly the rows `needed`. Returns the index of this
/// piece, and the number of pieces. There is one piece if `needed` contains all rows of `held`. `None` if `held` and
/// `needed` share no row.
pub fn find_row_piece_and_piece_count(held: (u32, u32), needed: (u32, u32)) -> Option<(u32, u32)> {
    if held.1 >= needed.1 {
        return (held.0 / (held.1 / needed.1) == needed.0).then_some((0, 1));
    }
    let pieces = needed.1 / held.1;
    (needed.0 / pieces == held.0).then_some((needed.0 % pieces, pieces))
}

/// The cuts that are possible at a level. With ties, the first is preferred.
const CHOICES: [MatrixCutDirection; 2] = [MatrixCutDirection::Columns, MatrixCutDirection::Rows];

/// Adds the best cut on one more level to each matrix product.
fn add_best_cut_on_one_more_level(
    products: &[MatrixProductSizesForTransfers],
    cuts: &mut [MatrixProductCutSequence],
    batches: u32,
) -> Option<()> {
    let mut costs = MatrixCutPairTransferCostCache::default();
    // `least` is the minimum cost so far, for each possible cut of the latest matrix product. For each cut of each
    // product, `before` is the best cut of the product's predecessor.
    let mut least: [Option<u128>; 2] = [Some(0), None];
    let mut before: Vec<[usize; 2]> = Vec::with_capacity(products.len());
    let with = |cut: &MatrixProductCutSequence, along| [&cut[..], &[along]].concat();
    for (l, product) in products.iter().enumerate() {
        let mut next = [None; 2];
        let mut from = [0; 2];
        for (choice, along) in CHOICES.into_iter().enumerate() {
            let cut = with(&cuts[l], along);
            let last = position_of_part_in_matrix_product(&cut, 0);
            let goes = u64::from(last.row.1) <= product.rows
                && u64::from(last.column.1) <= product.columns;
            if !goes {
                continue;
            }
            let own = count_weight_words_read(product, &cut);
            for (earlier, cost) in least.into_iter().enumerate() {
                let Some(cost) = cost else { continue };
                let moved = match l.checked_sub(1) {
                    None => count_input_words_read(product, &cut),
                    Some(l) => {
                        let other = with(&cuts[l], CHOICES[earlier]);
                        costs.words_moved_between_products([&products[l], product], [&other, &cut])
                    }
                };
                let cost = cost + own + u128::from(batches) * moved;
                if next[choice].is_none_or(|best| cost < best) {
                    (next[choice], from[choice]) = (Some(cost), earlier);
                }
            }
        }
        least = next;
        before.push(from);
    }
    let ends = (0..2).filter(|choice| least[*choice].is_some());
    let mut choice = ends.min_by_key(|choice| least[*choice])?;
    for (l, from) in before.iter().enumerate().rev() {
        cuts[l].push(CHOICES[choice]);
        choice = from[choice];
    }
    Some(())
}

/// Returns how many weight words all parts read, in units of `1 / SHARES` word.
fn count_weight_words_read(
    product: &MatrixProductSizesForTransfers,
    cut: &[MatrixCutDirection],
) -> u128 {
    let rows = u128::from(position_of_part_in_matrix_product(cut, 0).row.1);
    u128::from(product.weights) * rows * SHARES
}

/// Counts the input words that the parts of the first matrix product read from memory, in units of `1 / SHARES` word.
fn count_input_words_read(
    product: &MatrixProductSizesForTransfers,
    cut: &[MatrixCutDirection],
) -> u128 {
    let parts = 1_u128 << cut.len();
    u128::from(product.inputs) * SHARES * parts
        / u128::from(position_of_part_in_matrix_product(cut, 0).row.1)
}

/// Cache of transfer costs; the keys are pairs of cuts.
#[derive(Default)]
struct MatrixCutPairTransferCostCache {
    /// For each pair of cuts, the number of parts whose row blocks are nested (one cut's row block contains the
    /// other's).
    nested: BTreeMap<[MatrixProductCutSequence; 2], u32>,
}

impl MatrixCutPairTransferCostCache {
    /// Counts the words of the first matrix product's output that the second product's parts
    /// receive from other chips, in units of `1 / SHARES` word.
    fn words_moved_between_products(
        &mut self,
        products: [&MatrixProductSizesForTransfers; 2],
        cuts: [&MatrixProductCutSequence; 2],
    ) -> u128 {
        let outputs = u128::from(products[0].rows) * u128::from(products[0].columns);
        let parts = 1_u32 << cuts[0].len();
        if products[1].takes_all {
            return outputs * u128::from(parts - 1) * SHARES;
        }
        let nested = self
            .nested
            .entry(cuts.map(Clone::clone))
            .or_insert_with(|| {
                let is_nested = |part: &u32| {
                    let [one, other] =
                        cuts.map(|cut| position_of_part_in_matrix_product(cut, *part).row);
                    find_row_piece_and_piece_count(one, other).is_some()
                };
                (0..parts).filter(is_nested).count() as u32
            });
        let [before, own] = cuts.map(|cut| position_of_part_in_matrix_product(cut, 0));
        let needed = outputs * SHARES * u128::from(parts) / u128::from(own.row.1);
        let most = u128::from(before.row.1.max(own.row.1));
        let had = outputs * SHARES * u128::from(*nested) / (most * u128::from(before.column.1));
        needed - had
    }
}

#[cfg(test)]
mod tests;
