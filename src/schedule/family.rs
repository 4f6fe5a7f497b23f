//! DEAP's family of language models: encoders and decoders of a transformer as products of matrices, cut into sub-layers.
//!
//! A layer is a list of products that follow one another: queries, keys and values; scores; values weighted by them; the
//! projection; in a decoder the same for what it takes from the encoder; and two of the feed-forward part; behind all layers
//! one onto the vocabulary. What a forward pass does not compute (dropout, batch normalization) is left out. Each product is
//! cut over its output columns into `tensor` sub-layers, and sequences into `micro_batches`, which go through the model one after
//! another; sub-layers of one product and column take the same weights. A sub-layer waits for all of the product before.

use super::{LayerRecord, SubLayer, TaskGraph};

/// A model of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanguageModel {
    /// Width of embeddings.
    pub embedding: u64,
    /// Width of the feed-forward part.
    pub forward: u64,
    /// Heads of attention.
    pub heads: u64,
    /// Encoder layers.
    pub encoders: u32,
    /// Decoder layers.
    pub decoders: u32,
    /// Number of tokens; 0 leaves out the product onto them.
    pub vocabulary: u64,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// Sequences, each a micro-batch.
    pub micro_batches: u32,
    /// Sub-layers of a product.
    pub tensor: u64,
}

/// A model that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FamilyError {
    /// A size does not go.
    #[error("found {found}, expected {expected}")]
    Size {
        /// Finding.
        found: String,
        /// Expectation.
        expected: &'static str,
    },
    /// There are too many sub-layers.
    #[error("found {0} sub-layers, expected at most {MOST}")]
    TooMany(u64),
}

/// The most sub-layers.
const MOST: u64 = 200_000;

/// A product of a layer: its name, rows for each token or head, inputs, outputs, and whether it has weights.
type LayerProduct = (&'static str, u64, u64, u64, bool);

impl LanguageModel {
    /// Products of an encoder, or of a decoder.
    fn products(&self, decoder: bool) -> Vec<LayerProduct> {
        let (e, s, h) = (self.embedding, self.sequence, self.heads);
        let attention = |names: [&'static str; 4]| {
            [
                (names[0], s, e, 3 * e, true),
                // A row for each query of each head.
                (names[1], s * h, e / h, s, false),
                (names[2], s * h, s, e / h, false),
                (names[3], s, e, e, true),
            ]
        };
        let own = attention([
            "queries, keys, values",
            "scores",
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
        all.push(("feed forward in", s, e, self.forward, true));
        all.push(("feed forward out", s, self.forward, e, true));
        all
    }

    /// Its sub-layers.
    ///
    /// # Errors
    ///
    /// Sizes of zero, heads that do not divide the width, and too many sub-layers.
    pub fn tasks(&self) -> Result<TaskGraph, FamilyError> {
        let wrong = |found: String, expected| Err(FamilyError::Size { found, expected });
        let sizes = [
            self.embedding,
            self.forward,
            self.heads,
            self.sequence,
            self.tensor,
        ];
        if sizes.contains(&0) || self.micro_batches == 0 || sizes.iter().any(|size| *size > 1 << 20)
        {
            return wrong(
                format!("sizes {sizes:?}"),
                "sizes from 1 to 1048576, and a micro-batch",
            );
        }
        if !self.embedding.is_multiple_of(self.heads) {
            let found = format!("{} heads of a width of {}", self.heads, self.embedding);
            return wrong(found, "heads that divide it");
        }
        let layers = (0..self.encoders)
            .map(|_| false)
            .chain((0..self.decoders).map(|_| true));
        let mut products: Vec<(String, LayerProduct)> = Vec::new();
        for (layer, decoder) in layers.enumerate() {
            if layer > 4096 {
                return wrong(format!("layer {layer}"), "at most 4096 layers");
            }
            for product in self.products(decoder) {
                products.push((format!("layer {layer}: {}", product.0), product));
            }
        }
        if self.vocabulary > 0 {
            let last = (
                "vocabulary",
                self.sequence,
                self.embedding,
                self.vocabulary,
                true,
            );
            products.push(("vocabulary".to_owned(), last));
        }
        let most = products.len() as u64 * self.tensor * u64::from(self.micro_batches);
        if most > MOST || products.is_empty() {
            return match products.is_empty() {
                true => wrong("no layers".to_owned(), "one or more"),
                false => Err(FamilyError::TooMany(most)),
            };
        }
        let mut graph = TaskGraph::default();
        for batch in 0..self.micro_batches {
            let mut before: Vec<u32> = Vec::new();
            for (number, (name, (_, rows, inputs, outputs, has_weights))) in
                (0_u64..).zip(&products)
            {
                let mut own = Vec::new();
                // Columns are dealt out as evenly as goes; of few columns some parts have none.
                let parts = self.tensor.min(*outputs);
                for part in 0..parts {
                    let columns = (part + 1) * outputs / parts - part * outputs / parts;
                    let record = LayerRecord::linear(*rows, *inputs, columns);
                    let record = record.ok_or_else(|| FamilyError::Size {
                        found: format!("a product of {rows} x {inputs} x {columns}"),
                        expected: "one that can be counted",
                    })?;
                    own.push(graph.tasks.len() as u32);
                    graph.tasks.push(SubLayer {
                        name: format!("{name}, part {part} of micro-batch {batch}"),
                        record,
                        after: before.clone(),
                        weights: has_weights.then_some((number * self.tensor + part) as u32),
                    });
                }
                before = own;
            }
        }
        Ok(graph)
    }
}
