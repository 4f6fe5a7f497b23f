//! Totals of an operator, and the sizes that its degrees must divide.

use super::halo::SlidingWindowGeometry;
use super::{OperatorShardAxis, PatternOptionError, refused_option_value_error};
use crate::model::{DividingDegreeOrReason, OperatorAxesAndTensorsSpec};

/// Names that error messages use for the degrees along the axes.
pub(super) const LETTERS: [&str; 4] = ["b", "m", "n", "k"];

/// Maximum number of candidates to try in search of a valid degree for an error's hint. Without this limit, rejecting
/// absurd sizes would take a long time.
const LOOK: usize = 1 << 20;

/// Valid numbers of shards along an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AxisDivisorsOrUnsplittable {
    /// Every common divisor of these sizes is valid. Error messages use the strings as names of the sizes.
    Divisors(Vec<(u64, &'static str)>),
    /// The axis cannot be split; the string is the reason.
    Whole(&'static str),
}

impl AxisDivisorsOrUnsplittable {
    /// Returns the valid numbers of shards along `axis` of `spec` for `batch` samples.
    fn from_operator_axis(
        spec: &OperatorAxesAndTensorsSpec,
        axis: OperatorShardAxis,
        batch: u64,
    ) -> Self {
        if axis == OperatorShardAxis::B {
            return Self::Divisors(vec![(batch, "samples")]);
        }
        let sizes: Vec<_> = spec.sizes_that_axis_degree_must_divide(axis).collect();
        if !sizes.is_empty() {
            return Self::Divisors(sizes);
        }
        let why = spec.axes.iter().find_map(|one| match one.cut {
            DividingDegreeOrReason::Whole(by, why) if by == axis => Some(why),
            _ => None,
        });
        Self::Whole(why.unwrap_or(match axis {
            OperatorShardAxis::M => "a sample is one row",
            _ => "no products are summed over its inputs",
        }))
    }
}

/// An operator's totals over all samples and devices.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TotalsOfOneUnshardedOperator {
    /// The axes in the order in which devices are numbered. The index along the first axis changes slowest.
    pub order: [OperatorShardAxis; 4],
    /// Sizes that the degrees along b, m, n and k must divide.
    pub extents: [AxisDivisorsOrUnsplittable; 4],
    /// FLOPs of a forward pass over all samples and devices.
    pub flops: u128,
    /// Number of output elements that are summed over k.
    pub outputs: u128,
    /// Number of elements in the input's gradient that are summed over n. It is 0 if n shards the input like the
    /// output, or if the input is not the output of another layer.
    pub inputs: u128,
    /// For each weight tensor, its number of elements, and whether n and k shard it.
    pub weights: Vec<(u128, [bool; 2])>,
    /// Geometry of the operator's windows over an image; `None` if the operator has no windows.
    pub rows: Option<SlidingWindowGeometry>,
}

impl TotalsOfOneUnshardedOperator {
    /// Computes the totals of `spec` for `batch` samples.
    pub(super) fn new(spec: &OperatorAxesAndTensorsSpec, batch: u64) -> Self {
        use OperatorShardAxis::{B, K, M, N};
        let batched = |count: u128| count.saturating_mul(batch.into());
        // Count two FLOPs per multiplication, and two per element compared in a pooling window.
        let products = spec.products.iter().map(|one| {
            let sums = spec
                .tensor_element_count(one.result)
                .saturating_mul(spec.tensor_element_count(one.over));
            sums.saturating_mul(2)
        });
        let if_any = |any: bool, count: u128| if any { batched(count) } else { 0 };
        let channels = if spec.sums_over_input_columns() { K } else { N };
        let order = match (spec.windows, channels) {
            (None, _) => [B, M, N, K],
            (Some(_), K) => [B, K, M, N],
            (Some(_), _) => [B, N, M, K],
        };
        let weights = spec.weights.iter().map(|one| {
            let cut = [N, K].map(|axis| spec.is_tensor_divided_along_axis(axis, one.axes));
            (spec.tensor_element_count(one.axes), cut)
        });
        Self {
            order,
            extents: OperatorShardAxis::ALL
                .map(|axis| AxisDivisorsOrUnsplittable::from_operator_axis(spec, axis, batch)),
            flops: batched(products.fold(0, u128::saturating_add)),
            outputs: if_any(
                spec.sums_over_input_columns() || spec.looks_up_table_rows(),
                spec.sum_tensor_volumes(&spec.outputs),
            ),
            inputs: if_any(
                spec.sums_over_input_columns(),
                spec.sum_tensor_volumes(&spec.inputs),
            ),
            weights: weights.collect(),
            rows: spec.windows.map(|windows| SlidingWindowGeometry {
                inputs: spec.extent_of_axis('i'),
                outputs: spec.extent_of_axis('h'),
                kernel: windows.kernel,
                stride: windows.stride,
                padding: windows.padding,
            }),
        }
    }

    /// Checks that `axis` can be split into `degree` shards. The error suggests valid degrees.
    pub(super) fn check_axis_degree(
        &self,
        axis: OperatorShardAxis,
        degree: u32,
    ) -> Result<(), PatternOptionError> {
        let letter = LETTERS[axis as usize];
        let sizes = match &self.extents[axis as usize] {
            AxisDivisorsOrUnsplittable::Whole(_) if degree == 1 => return Ok(()),
            AxisDivisorsOrUnsplittable::Whole(why) => {
                return Err(refused_option_value_error(
                    letter,
                    degree,
                    format!("1, for {why}"),
                ));
            }
            AxisDivisorsOrUnsplittable::Divisors(sizes) => sizes,
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
        // A common divisor is never greater than the smallest size.
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
        Err(refused_option_value_error(letter, degree, expected))
    }
}
