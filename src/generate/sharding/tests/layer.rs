//! A transformer's layer as one operator, sharded as by Megatron (PALM, Table III, last row, and Eq. 6).

use crate::generate::sharding::sizes::{AxisExtent, OperatorTotals, product};
use crate::generate::sharding::{GenerateError, OperatorAxis, OperatorSharding, ShardingDegrees};

/// A layer of a transformer with a feed-forward part of 4 H on the samples of a micro-batch.
///
/// Nd parts of the samples and Nm parts of heads and columns: FLOPs `(24 B S H^2 + 4 B S^2 H) / (Nd Nm)`, sums of
/// `2 B S H / Nd` elements over Nm in each pass (one behind attention and one behind the feed-forward part), and
/// of `12 H^2 / Nm` over Nd for the update. PALM's published code sums half as much in each pass, and
/// `4 H^2 + 8 H^2 / Nm` for the update; neither agrees with its Eq. 6, to which the table leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformerRow {
    /// Samples, B: those of all Nd parts together.
    pub batch: u64,
    /// Tokens of a sample, S.
    pub tokens: u64,
    /// Columns, H.
    pub hidden: u64,
    /// Heads.
    pub heads: u64,
}

impl TransformerRow {
    /// Shards the layer over `data` times `model` devices; those that share a replica are consecutive.
    /// [`OperatorAxis::B`] is Nd, [`OperatorAxis::N`] is Nm.
    pub fn sharding(
        &self,
        data: u32,
        model: u32,
        devices: u32,
    ) -> Result<OperatorSharding, GenerateError> {
        let Self {
            batch,
            tokens,
            hidden,
            heads,
        } = *self;
        let inner = product(&[batch, tokens, hidden]);
        let square = product(&[24, hidden]).saturating_add(product(&[4, tokens]));
        let whole = AxisExtent::Whole("a layer is cut by samples and by heads");
        let sizes = OperatorTotals {
            letters: ["Nd", "", "Nm", ""],
            order: [
                OperatorAxis::B,
                OperatorAxis::M,
                OperatorAxis::N,
                OperatorAxis::K,
            ],
            extents: [
                AxisExtent::Divisors(vec![(batch, "samples")]),
                whole.clone(),
                AxisExtent::Divisors(vec![(heads, "heads"), (hidden, "columns")]),
                whole,
            ],
            flops: inner.saturating_mul(square),
            outputs: 0,
            inputs: inner.saturating_mul(2),
            weights: product(&[12, hidden, hidden]),
            biases: 0,
            rows: None,
        };
        let degrees = ShardingDegrees {
            b: data,
            m: 1,
            n: model,
            k: 1,
        };
        let mut sharding = OperatorSharding::of(sizes, degrees, devices)?;
        // A layer begins sharded by outputs and ends sharded by inputs, so both passes sum over the same devices.
        sharding.forward = sharding.backward;
        Ok(sharding)
    }

    /// PALM's Eq. 6: bytes that a device sums in a layer, forward, back and for the update, at two bytes for an
    /// element: `8 B S H Nm / N + 24 H^2 / Nm`. Groups of one are counted, as they are there, and parts need not be
    /// whole.
    pub fn volume(&self, devices: f64, model: f64) -> f64 {
        let [batch, tokens, hidden, _] = self.numbers();
        8.0 * batch * tokens * hidden * model / devices + 24.0 * hidden * hidden / model
    }

    /// The Nm at which Eq. 6 is least, `sqrt(3 H N / (B S))`, whole or not: there its derivative
    /// `8 B S H / N - 24 H^2 / Nm^2` is 0.
    pub fn optimum(&self, devices: f64) -> f64 {
        let [batch, tokens, hidden, _] = self.numbers();
        (3.0 * hidden * devices / (batch * tokens)).sqrt()
    }

    fn numbers(&self) -> [f64; 4] {
        [self.batch, self.tokens, self.hidden, self.heads].map(|number| number as f64)
    }
}
