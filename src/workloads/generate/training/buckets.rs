//! Gradient buckets: gradients that are reduced together.
//!
//! Gradients go into buckets in the order in which a backward pass produces them. A bucket closes with the gradient
//! that makes it as large as configured; the last bucket of a model chunk holds the remainder, however small. The
//! first bucket of a chunk may have another size.
//!
//! By parameters these are the buckets of PyTorch's `DistributedDataParallel` from its second step on, when it has
//! put them together anew in the order in which gradients were found (`Reducer::rebuild_buckets`,
//! `compute_bucket_assignment_by_size`):
//!
//! - Operators go last to first. Of a product with a bias, that of the bias comes first: it goes right to where it is
//!   summed up, the matrix' by way of a transposition. Elsewhere the weights' comes first; those of a norm are alike.
//! - `bucket_cap_mb` is `bucket`, in MiB. Without it PyTorch has `bucket = "25 MiB"` and `first_bucket = "1 MiB"`. With
//!   it, 2.3 has the same first bucket, and later ones (2.15 was looked at) have none of another size.
//! - Buckets set out in this order, each when its last gradient is found; so each waits for all that found its
//!   gradients, and for nothing behind them.
//!
//! Under expert parallelism gradients of experts go into buckets of their own, since fewer ranks have them; they close and are
//! reduced by the same rules (`overlap_grad_reduce` of Megatron-LM, whose buffers of experts are apart).
//!
//! One product of a model, such as that for queries, keys and values, has one matrix and one bias here, also where an
//! implementation has several. Events that occur once in a run are left out: a first step with all gradients in one
//! bucket, the two broadcasts by which ranks then agree on new buckets, and those by which replicas begin alike. So
//! are broadcasts of buffers that are not trained, as the running means of batch norms before a forward pass.

use crate::generate::plan::{BucketPolicy, ParallelGroupKind, ParallelismPlan};
use crate::model::OperatorKind;

/// Gradients that are reduced together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GradientBucket {
    /// The layer in which the last of them is found.
    pub layer: usize,
    /// Number of its operators, counted from the last, whose gradients are complete by then.
    pub operators: u32,
    /// True if the last of these contributes to the next bucket too.
    pub divided: bool,
    /// Weights that they are of.
    pub weights: u64,
    /// Ranks that have these weights.
    pub among: ParallelGroupKind,
}

/// The weights of an operator that does `work`, as many as are found at once, in the order in which they are.
pub(super) fn found(work: &OperatorKind) -> [u64; 2] {
    let spec = work.spec();
    let mut each = spec.gradients(false).map(|count| count as u64);
    [each.next(), each.next()].map(Option::unwrap_or_default)
}

/// Rule by which gradients are assigned to buckets.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketAssigner {
    by: BucketPolicy,
    /// Weights that fill the first bucket of a part, and the others.
    sizes: [u64; 2],
}

impl BucketAssigner {
    /// As in `plan`, with gradients of `gradient` bytes per weight.
    pub fn new(plan: &ParallelismPlan, gradient: u64) -> Self {
        let first = plan.first_bucket.unwrap_or(plan.bucket);
        Self {
            by: plan.buckets,
            sizes: [first, plan.bucket].map(|bytes| bytes.div_ceil(gradient)),
        }
    }

    /// Buckets, `among` ranks, of a model chunk with these layers, last to first: each with its number of weights and, from its last
    /// operator to its first, the weights whose gradients each produces.
    pub fn buckets<F: IntoIterator<Item = [u64; 2]>>(
        self,
        among: ParallelGroupKind,
        layers: impl Iterator<Item = (usize, u64, F)>,
    ) -> Vec<GradientBucket> {
        let mut buckets: Vec<GradientBucket> = Vec::new();
        let mut open = GradientBucket {
            layer: 0,
            operators: 0,
            divided: false,
            weights: 0,
            among,
        };
        let mut put = |layer, operators, weights| {
            if let Some(last) = buckets.last_mut() {
                last.divided |= (last.layer, last.operators) == (layer, operators);
            }
            (open.layer, open.operators) = (layer, operators);
            open.weights += weights;
            let [first, others] = self.sizes;
            if open.weights >= if buckets.is_empty() { first } else { others } {
                buckets.push(open);
                open.weights = 0;
            }
        };
        for (layer, weights, found) in layers {
            let mut operators = 0;
            for all in found {
                operators += 1;
                let each = all.into_iter().filter(|weights| *weights > 0);
                if self.by == BucketPolicy::Parameters {
                    each.for_each(|weights| put(layer, operators, weights));
                }
            }
            if self.by == BucketPolicy::Layers {
                put(layer, operators, weights);
            }
        }
        if open.weights > 0 {
            buckets.push(open);
        }
        buckets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(by: BucketPolicy, first: Option<u64>, bucket: u64) -> Vec<(usize, u32, bool, u64)> {
        let mut plan = ParallelismPlan::new();
        (plan.buckets, plan.first_bucket, plan.bucket) = (by, first, bucket);
        // Two layers; each has a bias of 4 and a matrix of 32, and in front of them a norm of 8 and 8.
        let found = [[4, 32], [0, 0], [8, 8]];
        let layers = [(1, 52, found), (0, 52, found)];
        let buckets =
            BucketAssigner::new(&plan, 2).buckets(ParallelGroupKind::Data, layers.into_iter());
        let each = buckets.iter();
        each.map(|b| (b.layer, b.operators, b.divided, b.weights))
            .collect()
    }

    #[test]
    fn a_bucket_is_filled_by_the_layer_with_which_it_has_enough() {
        // 52 weights of 2 B each are 104 B.
        let two = vec![(1, 3, false, 52), (0, 3, false, 52)];
        assert_eq!(buckets(BucketPolicy::Layers, None, 1), two);
        assert_eq!(buckets(BucketPolicy::Layers, None, 104), two);
        assert_eq!(
            buckets(BucketPolicy::Layers, None, 105),
            [(0, 3, false, 104)]
        );
        assert_eq!(buckets(BucketPolicy::Layers, Some(104), 1000), two);
    }

    #[test]
    fn a_bucket_is_filled_by_the_gradient_with_which_it_has_enough() {
        // 72 B are 36 weights, a bias and its matrix; then two halves of a norm, 16, and the next bias and matrix; and
        // the last norm.
        let expected = [(1, 1, false, 36), (0, 1, false, 16 + 36), (0, 3, false, 16)];
        assert_eq!(buckets(BucketPolicy::Parameters, None, 72), expected);
        // A first one of 8 B is the bias alone: what finds it finds gradients of the next bucket too. With 45 weights,
        // 90 B, that is 32 + 8 + 8; then 4 + 32 + 8 are 44, and 8 more are enough.
        let expected = [(1, 1, true, 4), (1, 3, false, 48), (0, 3, false, 52)];
        assert_eq!(buckets(BucketPolicy::Parameters, Some(8), 90), expected);
        // With 37 weights: 4 + 32 and one half of the norm, 8; its other half, 4 and 32; and the last norm.
        let expected = [(1, 3, true, 44), (0, 1, false, 44), (0, 3, false, 16)];
        assert_eq!(buckets(BucketPolicy::Parameters, None, 73), expected);
    }

    #[test]
    fn a_bias_is_found_before_its_matrix() {
        let (rows, inputs, outputs) = (2, 3, 5);
        let linear = |bias, tied| OperatorKind::Linear {
            rows,
            inputs,
            outputs,
            bias,
            tied,
        };
        assert_eq!(found(&linear(true, false)), [5, 15]);
        assert_eq!(found(&linear(false, false)), [15, 0]);
        assert_eq!(found(&linear(true, true)), [5, 0]);
        assert_eq!(found(&linear(false, true)), [0, 0]);
        let width = 7;
        let norm = |bias| OperatorKind::Norm { rows, width, bias };
        assert_eq!((found(&norm(true)), found(&norm(false))), ([7, 7], [7, 0]));
    }
}
