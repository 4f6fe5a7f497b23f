//! Totals of each operator, and the sizes that its degrees have to divide.

use super::halo::WindowRows;
use super::{GenerateError, OperatorAxis, refused};
use crate::model::OperatorKind;

mod image;

use image::ImageWindows;

/// Number of candidates to try for a valid degree in an error's hint, so that absurd sizes are refused as fast as
/// others.
const LOOK: usize = 1 << 20;

/// Numbers of shards that an axis admits.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AxisExtent {
    /// Divisors of all of these, named for messages.
    Divisors(Vec<(u64, &'static str)>),
    /// It cannot be sharded; the reason.
    Whole(&'static str),
}

/// An operator's totals over all samples and devices.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OperatorTotals {
    /// Letters of its degrees along b, m, n and k.
    pub letters: [&'static str; 4],
    /// The axes as devices are numbered, the slowest first.
    pub order: [OperatorAxis; 4],
    /// Sizes that its degrees have to divide along b, m, n and k.
    pub extents: [AxisExtent; 4],
    /// FLOPs of a forward pass.
    pub flops: u128,
    /// Elements that are summed over k.
    pub outputs: u128,
    /// Elements of the input's gradient that are summed over n; none if n shards the input like the output, or if the
    /// input is not the output of a layer.
    pub inputs: u128,
    /// Number of weights, sharded by n and k.
    pub weights: u128,
    /// Number of biases, sharded by n.
    pub biases: u128,
    /// Geometry of its windows over an image, if it has windows.
    pub rows: Option<WindowRows>,
}

/// The product, or the largest number there is.
pub(super) fn product(factors: &[u64]) -> u128 {
    factors
        .iter()
        .fold(1, |all: u128, &one| all.saturating_mul(one.into()))
}

const NO_INPUTS: AxisExtent = AxisExtent::Whole("no products are summed over its inputs");
const NO_ROWS: AxisExtent = AxisExtent::Whole("a sample is one row");

fn by(size: u64, what: &'static str) -> AxisExtent {
    AxisExtent::Divisors(vec![(size, what)])
}

fn biases(there: bool, count: u64) -> u128 {
    if there { count.into() } else { 0 }
}

impl OperatorTotals {
    /// Totals of an operator without FLOPs and weights, sharded by samples.
    fn none(batch: u64) -> Self {
        Self {
            letters: ["b", "m", "n", "k"],
            order: [
                OperatorAxis::B,
                OperatorAxis::M,
                OperatorAxis::N,
                OperatorAxis::K,
            ],
            extents: [by(batch, "samples"), NO_ROWS, NO_INPUTS, NO_INPUTS],
            flops: 0,
            outputs: 0,
            inputs: 0,
            weights: 0,
            biases: 0,
            rows: None,
        }
    }

    /// Totals of `work` on `batch` samples.
    pub(super) fn new(work: &OperatorKind, batch: u64) -> Self {
        let none = Self::none(batch);
        let samples = by(batch, "samples");
        match *work {
            OperatorKind::Linear {
                rows,
                inputs,
                outputs,
                bias,
                ..
            } => Self {
                extents: [
                    samples,
                    by(rows, "rows"),
                    by(outputs, "outputs"),
                    by(inputs, "inputs"),
                ],
                flops: product(&[2, batch, rows, inputs, outputs]),
                outputs: product(&[batch, rows, outputs]),
                inputs: product(&[batch, rows, inputs]),
                weights: product(&[inputs, outputs]),
                biases: biases(bias, outputs),
                ..none
            },
            OperatorKind::Convolution {
                inputs,
                outputs,
                size,
                kernel,
                stride,
                padding,
                groups,
                bias,
            } => {
                let windows = ImageWindows {
                    batch,
                    size,
                    kernel,
                    stride,
                    padding,
                };
                windows.convolution([inputs, outputs], groups, bias)
            }
            OperatorKind::Pool {
                channels,
                size,
                kernel,
                stride,
                padding,
            } => {
                let windows = ImageWindows {
                    batch,
                    size,
                    kernel,
                    stride,
                    padding,
                };
                windows.pool(channels)
            }
            // Heads of keys and values are not copied, so each part has whole ones.
            OperatorKind::Attention {
                tokens,
                heads,
                kv_heads,
                width,
                ..
            } => Self {
                extents: [
                    samples,
                    AxisExtent::Whole("a query needs the keys and values of every token"),
                    AxisExtent::Divisors(vec![
                        (heads, "heads"),
                        (kv_heads, "heads of keys and values"),
                    ]),
                    AxisExtent::Whole("a head is computed as a whole; `n` cuts by heads"),
                ],
                flops: product(&[4, batch, tokens, tokens, heads]).saturating_mul(width.into()),
                ..none
            },
            OperatorKind::Norm { rows, width, bias } => Self {
                extents: [
                    samples,
                    by(rows, "rows"),
                    AxisExtent::Whole("a row is scaled as a whole"),
                    NO_INPUTS,
                ],
                weights: width.into(),
                biases: biases(bias, width),
                ..none
            },
            OperatorKind::Activation { rows, width, .. }
            | OperatorKind::Residual { rows, width, .. } => Self {
                extents: [samples, by(rows, "rows"), by(width, "columns"), NO_INPUTS],
                ..none
            },
            OperatorKind::Embedding {
                vocabulary,
                width,
                tokens,
            } => Self {
                extents: [
                    samples,
                    by(tokens, "tokens"),
                    by(width, "columns"),
                    by(vocabulary, "rows of the table"),
                ],
                outputs: product(&[batch, tokens, width]),
                weights: product(&[vocabulary, width]),
                ..none
            },
            OperatorKind::Loss { rows, .. } => Self {
                extents: [
                    samples,
                    by(rows, "rows"),
                    AxisExtent::Whole("a row's probabilities add up over all classes"),
                    NO_INPUTS,
                ],
                ..none
            },
            OperatorKind::EmbeddingBag { rows, width, .. } => Self {
                extents: [
                    samples,
                    NO_ROWS,
                    by(width, "columns"),
                    by(rows, "rows of the table"),
                ],
                outputs: product(&[batch, width]),
                weights: product(&[rows, width]),
                ..none
            },
            OperatorKind::Interaction { vectors, width } => Self {
                extents: [
                    samples,
                    NO_ROWS,
                    AxisExtent::Whole("every vector meets every other one"),
                    NO_INPUTS,
                ],
                flops: product(&[batch, vectors, vectors.saturating_sub(1), width]),
                ..none
            },
        }
    }

    /// Checks that `axis` can be split into `degree` shards; the error suggests degrees that can.
    pub(super) fn check(&self, axis: OperatorAxis, degree: u32) -> Result<(), GenerateError> {
        let letter = self.letters[axis as usize];
        let sizes = match &self.extents[axis as usize] {
            AxisExtent::Whole(_) if degree == 1 => return Ok(()),
            AxisExtent::Whole(why) => return Err(refused(letter, degree, format!("1, for {why}"))),
            AxisExtent::Divisors(sizes) => sizes,
        };
        let degree = u64::from(degree);
        let divides = |by: u64| {
            sizes
                .iter()
                .all(|&(size, _)| size > 0 && size.is_multiple_of(by))
        };
        if divides(degree) {
            return Ok(());
        }
        // A common divisor is at most the smallest size.
        let most = sizes.iter().map(|&(size, _)| size).min().unwrap_or(0);
        let lower = (degree - 1).min(most);
        let below = (1..=lower).rev().take(LOOK).find(|&by| divides(by));
        let above = (degree + 1..=most).take(LOOK).find(|&by| divides(by));
        let named: Vec<String> = sizes
            .iter()
            .map(|(size, what)| format!("the {size} {what}"))
            .collect();
        let named = named.join(" and ");
        let near = match (below, above) {
            (Some(below), Some(above)) => format!(", such as {below} or {above}"),
            (Some(one), None) | (None, Some(one)) => format!(", such as {one}"),
            (None, None) => String::new(),
        };
        let expected = format!("a divisor of {named}, for parts are equal{near}");
        Err(refused(letter, degree, expected))
    }
}
