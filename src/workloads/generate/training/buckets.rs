//! Gradient buckets: gradients that are reduced together.
//!
//! Gradients enter buckets in the order in which a backward pass computes them. The gradient that
//! brings a bucket to the configured size closes the bucket. The last bucket of a model chunk has
//! the remaining gradients, so it may be small. The first bucket of a chunk may have another size.
//!
//! If gradients enter one by one, the buckets equal those that PyTorch's `DistributedDataParallel`
//! uses from the second step on. From the second step on, the buckets of `DistributedDataParallel`
//! are rebuilt in the order in which gradients were computed (`Reducer::rebuild_buckets`,
//! `compute_bucket_assignment_by_size`):
//!
//! - Operators are processed from the last to the first. In a product with a bias, the bias
//!   gradient comes first, because it is accumulated directly, while the matrix gradient is first
//!   transposed. In all other operators, the weight's gradient comes first. The order of a norm's
//!   two gradients has no effect, because both have the same size.
//! - `bucket_cap_mb` corresponds to `bucket`, in MiB. By default PyTorch has `bucket = "25 MiB"`
//!   and `first_bucket = "1 MiB"`. If `bucket_cap_mb` is set, version 2.3 keeps this size of the
//!   first bucket, but later versions (checked: 2.15) give the first bucket the same size as the
//!   others.
//! - Buckets are reduced in this order, each as soon as its last gradient is computed. So a
//!   bucket's reduction waits only for nodes up to the bucket's last gradient.
//!
//! With expert parallelism, gradients of experts are in separate buckets, because fewer ranks have
//! these gradients. The same rules apply to these buckets (`overlap_grad_reduce` of Megatron-LM,
//! which has separate buffers for experts).
//!
//! In this module, a matrix multiplication of a model, such as the one for queries, keys and
//! values, has a single matrix and a single bias, even if an implementation has several. Events
//! that occur only once per run are left out. These events are the first step, which has all
//! gradients in one bucket; the two broadcasts in which ranks then agree on new buckets; and the
//! broadcasts of equal initial weights. Broadcasts of untrained buffers, such as a batch norm's
//! running means before a forward pass, are also left out.

use crate::generate::plan::{BucketPolicy, ParallelGroupKind, ParallelismPlan};
use crate::model::OperatorKind;

/// A bucket: gradients that are reduced together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GradientBucket {
    /// The layer that computes the last of the bucket's gradients.
    pub layer: usize,
    /// Number of this layer's operators, counted from the last, whose gradients are complete when
    /// the bucket is complete.
    pub operators: u32,
    /// True if the last of these operators also has gradients in the next bucket.
    pub divided: bool,
    /// Number of weights whose gradients are in the bucket.
    pub weights: u64,
    /// Group of ranks that have copies of these weights and reduce the bucket.
    pub among: ParallelGroupKind,
}

/// Returns the sizes of the weight tensors of an operator of kind `work`, in the order in which
/// their gradients are computed.
pub(super) fn weights_by_gradient(work: &OperatorKind) -> [u64; 2] {
    let spec = work.to_spec();
    let mut each = spec.gradient_sizes(false).map(|count| count as u64);
    [each.next(), each.next()].map(Option::unwrap_or_default)
}

/// Rule by which gradients are assigned to buckets.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketAssigner {
    by: BucketPolicy,
    /// Numbers of weights that fill the first bucket of a model chunk, and each later bucket.
    sizes: [u64; 2],
}

impl BucketAssigner {
    /// Creates the assigner for `plan`; each weight's gradient has `gradient` bytes.
    pub fn new(plan: &ParallelismPlan, gradient: u64) -> Self {
        let first = plan.first_bucket.unwrap_or(plan.bucket);
        Self {
            by: plan.buckets,
            sizes: [first, plan.bucket].map(|bytes| bytes.div_ceil(gradient)),
        }
    }

    /// Returns the buckets of a model chunk whose layers are given from last to first; `among` is
    /// the group that reduces them. Each entry of `layers` has the layer and its number of weights.
    /// For each operator from the last to the first, the entry also has the numbers of weights
    /// whose gradients the operator computes.
    pub fn assign_buckets<F: IntoIterator<Item = [u64; 2]>>(
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
        // Each of the two layers has a norm (8 and 8 weights), then a bias of 4 and a matrix of 32.
        let found = [[4, 32], [0, 0], [8, 8]];
        let layers = [(1, 52, found), (0, 52, found)];
        let buckets = BucketAssigner::new(&plan, 2)
            .assign_buckets(ParallelGroupKind::Data, layers.into_iter());
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
        // 72 B are 36 weights. The buckets are: a bias and its matrix; both halves of a norm (16)
        // with the next bias and matrix (36); and the last norm.
        let expected = [(1, 1, false, 36), (0, 1, false, 16 + 36), (0, 3, false, 16)];
        assert_eq!(buckets(BucketPolicy::Parameters, None, 72), expected);
        // A first bucket of 8 B has only the bias. The same operator's matrix gradient belongs to
        // the next bucket. Later buckets close at 45 weights (90 B): one at 32 + 8 + 8, the next at
        // 4 + 32 + 8 = 44 plus 8 more.
        let expected = [(1, 1, true, 4), (1, 3, false, 48), (0, 3, false, 52)];
        assert_eq!(buckets(BucketPolicy::Parameters, Some(8), 90), expected);
        // If a bucket is full at 37 weights, the first has 4 + 32 and one half of the norm (8), the
        // second the other half with 4 and 32, and the third the last norm.
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
