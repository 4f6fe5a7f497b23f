//! Gradient buckets: gradients that are reduced together.
//!
//! Gradients enter buckets in the order in which a backward pass produces them. The gradient that
//! brings a bucket to the configured size closes the bucket; the last bucket of a model chunk has
//! the remainder, which may be small. The first bucket of a chunk may have another size.
//!
//! With single parameters, the buckets are PyTorch's `DistributedDataParallel`'s from the second
//! step on, after it has rebuilt its buckets in the order in which gradients were produced
//! (`Reducer::rebuild_buckets`, `compute_bucket_assignment_by_size`):
//!
//! - Operators are processed last to first. In a product with a bias, the bias gradient comes
//!   first, because it goes directly to its accumulator, while the matrix gradient passes a
//!   transposition. In other operators the weight's gradient comes first; the two gradients of a
//!   norm are interchangeable because they have the same size.
//! - `bucket_cap_mb` is `bucket`, in MiB. Without it PyTorch has `bucket = "25 MiB"` and
//!   `first_bucket = "1 MiB"`. If it is set, version 2.3 has the same first bucket; later versions
//!   (checked: 2.15) have no first bucket of another size.
//! - Buckets are reduced in this order, each when its last gradient is produced, so each bucket
//!   waits only for the nodes up to that gradient.
//!
//! Under expert parallelism, gradients of experts have separate buckets, because fewer ranks have
//! these gradients; the same rules close and reduce these buckets (`overlap_grad_reduce` of
//! Megatron-LM, which has separate buffers for experts).
//!
//! One matrix multiplication of a model, such as the multiplication for queries, keys and values,
//! has one matrix and one bias in this module, even if an implementation has several. Events that
//! occur once per run are left out: a first step with all gradients in one bucket, the two
//! broadcasts in which ranks then agree on new buckets, and the broadcasts that give replicas equal
//! initial weights. Broadcasts of buffers that are not trained, such as running means of batch
//! norms before a forward pass, are also left out.

use crate::generate::plan::{BucketPolicy, ParallelGroupKind, ParallelismPlan};
use crate::model::OperatorKind;

/// Gradients that are reduced together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GradientBucket {
    /// The layer in which the last of these gradients is produced.
    pub layer: usize,
    /// Number of the layer's operators, counted from the last, whose gradients are complete when
    /// the bucket is.
    pub operators: u32,
    /// True if the last of these operators contributes to the next bucket too.
    pub divided: bool,
    /// Elements of the weights.
    pub weights: u64,
    /// Ranks that have these weights.
    pub among: ParallelGroupKind,
}

/// Returns the numbers of weights of an operator that does `work`, in the order in which their
/// gradients are produced.
pub(super) fn weights_by_gradient(work: &OperatorKind) -> [u64; 2] {
    let spec = work.spec();
    let mut each = spec.gradients(false).map(|count| count as u64);
    [each.next(), each.next()].map(Option::unwrap_or_default)
}

/// Rule by which gradients are assigned to buckets.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketAssigner {
    by: BucketPolicy,
    /// Numbers of weights that fill the first bucket of a part, and later buckets.
    sizes: [u64; 2],
}

impl BucketAssigner {
    /// Creates the assigner for `plan`, with gradients of `gradient` bytes per weight.
    pub fn new(plan: &ParallelismPlan, gradient: u64) -> Self {
        let first = plan.first_bucket.unwrap_or(plan.bucket);
        Self {
            by: plan.buckets,
            sizes: [first, plan.bucket].map(|bytes| bytes.div_ceil(gradient)),
        }
    }

    /// Returns the buckets of a model chunk with these layers, last to first, summed over the ranks
    /// `among`. Each entry of `layers` has the layer, its number of weights and, from its last
    /// operator to its first, the weights whose gradients each operator produces.
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
        // The model has two layers, each with a norm of 8 and 8 before a bias of 4 and a matrix
        // of 32.
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
        // A size of 72 B is 36 weights. Buckets: a bias and its matrix; both halves of a norm, 16,
        // with the next bias and matrix; the last norm.
        let expected = [(1, 1, false, 36), (0, 1, false, 16 + 36), (0, 3, false, 16)];
        assert_eq!(buckets(BucketPolicy::Parameters, None, 72), expected);
        // A first bucket of 8 B has only the bias: its operator also produces gradients of the next bucket. The limit
        // of 45 weights, 90 B, is reached by 32 + 8 + 8, and then by 4 + 32 + 8 = 44 plus 8 more.
        let expected = [(1, 1, true, 4), (1, 3, false, 48), (0, 3, false, 52)];
        assert_eq!(buckets(BucketPolicy::Parameters, Some(8), 90), expected);
        // With a size of 37 weights, the buckets are 4 + 32 and one half of the norm, 8, then the
        // other half with 4 and 32, then the last norm.
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
        assert_eq!(weights_by_gradient(&linear(true, false)), [5, 15]);
        assert_eq!(weights_by_gradient(&linear(false, false)), [15, 0]);
        assert_eq!(weights_by_gradient(&linear(true, true)), [5, 0]);
        assert_eq!(weights_by_gradient(&linear(false, true)), [0, 0]);
        let width = 7;
        let norm = |bias| OperatorKind::Norm { rows, width, bias };
        assert_eq!(
            (
                weights_by_gradient(&norm(true)),
                weights_by_gradient(&norm(false))
            ),
            ([7, 7], [7, 0])
        );
    }
}
