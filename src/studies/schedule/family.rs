//! DEAP's family of language models: a transformer's encoders and decoders as matrix products, which are cut
//! into sub-layers.
//!
//! A layer is a chain of products. The first products are queries, keys and values; scores; values weighted by scores;
//! and the projection. A decoder repeats these products for cross-attention. The last two products form the
//! feed-forward part. After all layers, one product computes the vocabulary scores. Layers that a forward pass does not
//! compute (dropout, batch normalization) are omitted. Each product is cut into `tensor` sub-layers by its output
//! columns, unless another partition is selected. The input is divided into `micro_batches`, which pass through the
//! model one after another. Sub-layers that compute the same columns of a product share weights. A sub-layer waits for
//! the sub-layers of the previous product that compute its inputs. For scores, it waits for all sub-layers; otherwise,
//! only for sub-layers with the same rows. Sub-layers of the first product read their micro-batch's input. Sub-layers
//! with the same rows read the same part of it.

use super::partition::{
    MatrixCutDirection, MatrixProductCutSequence, MatrixProductPartPosition,
    MatrixProductSizesForTransfers, choose_matrix_product_cuts, count_words_moved_by_forward_pass,
    find_row_piece_and_piece_count, position_of_part_in_matrix_product,
};
use super::{LayerPartOfOneAccelerator, OrderedSubLayersOfModel, SubLayerShapeAndKind};
use chakram_base::setting::EnumeratedSetting;

/// A model of DEAP's family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeapLanguageModel {
    /// Hidden size: number of elements in a token's embedding.
    pub embedding: u64,
    /// Intermediate size of the feed-forward network.
    pub forward: u64,
    /// Number of attention heads; must divide the hidden size.
    pub heads: u64,
    /// Number of encoder layers.
    pub encoders: u32,
    /// Number of decoder layers.
    pub decoders: u32,
    /// Number of words in the vocabulary. If it is 0, the last matrix product is omitted.
    pub vocabulary: u64,
    /// Number of tokens per sequence.
    pub sequence: u64,
    /// Number of sequences; each is a micro-batch.
    pub micro_batches: u32,
    /// Number of sub-layers per matrix product.
    pub tensor: u64,
    /// Rule for cutting matrix products into sub-layers.
    pub partition: MatrixProductPartitionRule,
}

/// Rule for cutting matrix products into sub-layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixProductPartitionRule {
    /// Divides all matrix products by columns, as in tensor parallelism.
    Columns,
    /// Divides all matrix products by rows, as in data parallelism.
    Rows,
    /// Divides each matrix product so that the model moves the fewest words ([`super::partition`]).
    Hierarchical,
}

impl EnumeratedSetting for MatrixProductPartitionRule {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (
            Self::Columns,
            "columns",
            "Cut all products along columns, like tensor parallelism",
        ),
        (
            Self::Rows,
            "rows",
            "Cut all products along rows, like data parallelism",
        ),
        (
            Self::Hierarchical,
            "hypar",
            "Cut each product to move the fewest words, by HyPar's hierarchical dynamic programming",
        ),
    ];
}

/// A model's matrix products with their cuts, and how many words a forward pass moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCutsAndMovedWords {
    /// Each matrix product's name and cuts, in execution order.
    pub products: Vec<(String, MatrixProductCutSequence)>,
    /// Words that a forward pass moves, both between chips and from memory.
    pub words: u64,
}

/// Reason why a model is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LanguageModelError {
    /// A size is invalid.
    #[error("found {found}, expected {expected}")]
    Size {
        /// The invalid value, as text.
        found: String,
        /// Description of the valid values.
        expected: &'static str,
    },
    /// The model has too many sub-layers to be scheduled.
    #[error(
        "found {0} sub-layers, expected at most {MOST}\n  try: fewer `micro_batches`, layers or parts (`tensor`)"
    )]
    TooMany(u64),
}

/// Maximum number of sub-layers of a model.
const MOST: u64 = 200_000;

#[derive(Clone, Copy, Debug)]
struct LayerMatrixProduct {
    name: &'static str,
    /// Number of tokens, or of tokens times heads for products that are computed per head.
    rows: u64,
    inputs: u64,
    outputs: u64,
    has_weights: bool,
}

impl LayerMatrixProduct {
    fn sizes_for_transfers(&self) -> MatrixProductSizesForTransfers {
        MatrixProductSizesForTransfers {
            rows: self.rows,
            columns: self.outputs,
            weights: if self.has_weights {
                self.inputs * self.outputs
            } else {
                0
            },
            inputs: self.rows * self.inputs,
            // Scores need the keys of all tokens, so their sub-layers read all of the previous output.
            takes_all: self.name.starts_with(SCORES),
        }
    }
}

/// Prefix in the names of products that multiply queries by keys.
const SCORES: &str = "scores";

impl DeapLanguageModel {
    /// Returns the matrix products of one encoder layer, or of one decoder layer.
    fn products_of_encoder_or_decoder_layer(&self, decoder: bool) -> Vec<LayerMatrixProduct> {
        let (e, s, h) = (self.embedding, self.sequence, self.heads);
        let product = |name, rows, inputs, outputs, has_weights| LayerMatrixProduct {
            name,
            rows,
            inputs,
            outputs,
            has_weights,
        };
        let attention = |names: [&'static str; 4]| {
            [
                product(names[0], s, e, 3 * e, true),
                // The matrix product has one row per query and head.
                product(names[1], s * h, e / h, s, false),
                product(names[2], s * h, s, e / h, false),
                product(names[3], s, e, e, true),
            ]
        };
        let own = attention([
            "queries, keys, values",
            SCORES,
            "weighted values",
            "projection",
        ]);
        let mut all = own.to_vec();
        if decoder {
            all.extend(attention([
                "queries, keys, values of the encoder",
                "scores of the encoder",
                "weighted values of the encoder",
                "projection of the encoder",
            ]));
        }
        all.push(product("feed forward in", s, e, self.forward, true));
        all.push(product("feed forward out", s, self.forward, e, true));
        all
    }

    /// Returns all matrix products in order, each with the name of its layer.
    fn list_all_products(&self) -> Result<Vec<(String, LayerMatrixProduct)>, LanguageModelError> {
        let wrong = |found: String, expected| Err(LanguageModelError::Size { found, expected });
        let sizes = [
            ("embedding", self.embedding),
            ("forward", self.forward),
            ("heads", self.heads),
            ("sequence", self.sequence),
            ("tensor", self.tensor),
            ("micro_batches", self.micro_batches.into()),
        ];
        if let Some((key, size)) = sizes.iter().find(|(_, size)| !(1..=1 << 20).contains(size)) {
            return wrong(format!("`{key}` {size}"), "a size from 1 to 1048576");
        }
        let layers = u64::from(self.encoders) + u64::from(self.decoders);
        if layers > 4096 {
            let found = format!(
                "`encoders` {} and `decoders` {}",
                self.encoders, self.decoders
            );
            return wrong(found, "at most 4096 layers");
        }
        if !self.embedding.is_multiple_of(self.heads) {
            let found = format!("{} heads of a width of {}", self.heads, self.embedding);
            return wrong(found, "a number of heads that divides the width");
        }
        let layers = (0..self.encoders)
            .map(|_| false)
            .chain((0..self.decoders).map(|_| true));
        let mut products: Vec<(String, LayerMatrixProduct)> = Vec::new();
        for (layer, decoder) in layers.enumerate() {
            for product in self.products_of_encoder_or_decoder_layer(decoder) {
                products.push((format!("layer {layer}: {}", product.name), product));
            }
        }
        if self.vocabulary > 0 {
            let last = LayerMatrixProduct {
                name: "vocabulary",
                rows: self.sequence,
                inputs: self.embedding,
                outputs: self.vocabulary,
                has_weights: true,
            };
            products.push(("vocabulary".to_owned(), last));
        }
        let most = products.len() as u64 * self.tensor * u64::from(self.micro_batches);
        if most > MOST || products.is_empty() {
            return match products.is_empty() {
                true => wrong("no layers".to_owned(), "one or more"),
                false => Err(LanguageModelError::TooMany(most)),
            };
        }
        Ok(products)
    }

    /// Returns the cuts of all matrix products.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::build_task_graph`].
    pub fn choose_product_cuts_and_count_moved_words(
        &self,
    ) -> Result<ModelCutsAndMovedWords, LanguageModelError> {
        let products = self.list_all_products()?;
        let wrong = |found: String, expected| Err(LanguageModelError::Size { found, expected });
        if !self.tensor.is_power_of_two() {
            let found = format!("{} parts of products", self.tensor);
            return wrong(found, "a power of two, as chips are halved at each level");
        }
        let levels = self.tensor.ilog2();
        let sizes: Vec<MatrixProductSizesForTransfers> = products
            .iter()
            .map(|(_, product)| product.sizes_for_transfers())
            .collect();
        let same = |along| vec![vec![along; levels as usize]; sizes.len()];
        let cuts = match self.partition {
            MatrixProductPartitionRule::Columns => Some(same(MatrixCutDirection::Columns)),
            MatrixProductPartitionRule::Rows => Some(same(MatrixCutDirection::Rows)),
            MatrixProductPartitionRule::Hierarchical => {
                choose_matrix_product_cuts(&sizes, levels, self.micro_batches)
            }
        };
        let fits = |cuts: &Vec<MatrixProductCutSequence>| {
            let mut all = sizes.iter().zip(cuts);
            all.all(|(size, cut)| {
                let MatrixProductPartPosition { row, column } =
                    position_of_part_in_matrix_product(cut, 0);
                u64::from(row.1) <= size.rows && u64::from(column.1) <= size.columns
            })
        };
        let Some(cuts) = cuts.filter(fits) else {
            let found = format!("{} parts of products", self.tensor);
            return wrong(found, "no more than a product has rows and columns");
        };
        let words = count_words_moved_by_forward_pass(&sizes, &cuts, self.micro_batches);
        let names = products.into_iter().map(|(name, _)| name);
        Ok(ModelCutsAndMovedWords {
            products: names.zip(cuts).collect(),
            words,
        })
    }

    /// Returns the positions of each matrix product's parts. If only columns are cut, a product with fewer columns than
    /// parts is divided into fewer parts.
    fn matrix_product_part_positions(
        &self,
        products: &[(String, LayerMatrixProduct)],
    ) -> Result<Vec<Vec<MatrixProductPartPosition>>, LanguageModelError> {
        if self.partition == MatrixProductPartitionRule::Columns {
            let columns = |(_, product): &(String, LayerMatrixProduct)| {
                let parts = self.tensor.min(product.outputs) as u32;
                let place = |part| MatrixProductPartPosition {
                    row: (0, 1),
                    column: (part, parts),
                };
                (0..parts).map(place).collect()
            };
            return Ok(products.iter().map(columns).collect());
        }
        let parts = 0..self.tensor as u32;
        let cuts = self.choose_product_cuts_and_count_moved_words()?.products;
        let places = cuts.iter().map(|(_, cut)| {
            parts
                .clone()
                .map(|part| position_of_part_in_matrix_product(cut, part))
                .collect()
        });
        Ok(places.collect())
    }

    /// Returns the model's sub-layers with their dependencies.
    ///
    /// # Errors
    ///
    /// Fails if a size is zero, or if the number of heads does not divide the hidden size. Also fails if there are too
    /// many sub-layers, or if a matrix product has too few rows or columns to cut.
    pub fn build_task_graph(&self) -> Result<OrderedSubLayersOfModel, LanguageModelError> {
        let products = self.list_all_products()?;
        let places = self.matrix_product_part_positions(&products)?;
        let mut graph = OrderedSubLayersOfModel::default();
        for batch in 0..self.micro_batches {
            let mut before: Vec<(u32, MatrixProductPartPosition)> = Vec::new();
            for (number, (name, product)) in (0_u64..).zip(&products) {
                let mut own = Vec::new();
                for (part, place) in (0..).zip(&places[number as usize]) {
                    // Divide rows and columns as evenly as possible.
                    let of = |(block, blocks): (u32, u32), size: u64| {
                        let (block, blocks) = (u64::from(block), u64::from(blocks));
                        (block + 1) * size / blocks - block * size / blocks
                    };
                    let rows = of(place.row, product.rows);
                    let columns = of(place.column, product.outputs);
                    let record =
                        SubLayerShapeAndKind::from_linear_layer(rows, product.inputs, columns);
                    let record = record.ok_or_else(|| LanguageModelError::Size {
                        found: format!("a product of {rows} x {} x {columns}", product.inputs),
                        expected: "one that can be counted",
                    })?;
                    let needed = if product.sizes_for_transfers().takes_all {
                        (0, 1)
                    } else {
                        place.row
                    };
                    let taken = before.iter().filter_map(|(task, held)| {
                        let share = find_row_piece_and_piece_count(held.row, needed)?;
                        Some((*task, share))
                    });
                    let taken: Vec<(u32, (u32, u32))> = taken.collect();
                    let mut piece = None;
                    for &(task, (taken, pieces)) in &taken {
                        if pieces > 1 {
                            graph.tasks[task as usize].pieces = pieces;
                            piece = Some(taken);
                        }
                    }
                    own.push((graph.tasks.len() as u32, *place));
                    graph.tasks.push(LayerPartOfOneAccelerator {
                        name: format!("{name}, part {part} of micro-batch {batch}"),
                        record,
                        after: taken.iter().map(|(task, _)| *task).collect(),
                        piece,
                        pieces: 1,
                        weights: product
                            .has_weights
                            .then_some((number * self.tensor) as u32 + place.column.0),
                        input: (number == 0).then_some(batch * place.row.1 + place.row.0),
                    });
                }
                before = own;
            }
        }
        Ok(graph)
    }
}
