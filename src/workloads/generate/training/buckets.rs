//! Gradient buckets: sets of gradients that are reduced together.
//!
//! Gradients enter buckets in the order in which a backward pass computes them. A bucket ends with the gradient that
//! fills it to the configured size. A model chunk's last bucket takes the remaining gradients, so it may be small. A
//! chunk's first bucket may have a different size.
//!
//! Adding gradients one by one gives the buckets that PyTorch's `DistributedDataParallel` uses from the second step on.
//! PyTorch's buckets follow the order in which the first step computed gradients (`Reducer::rebuild_buckets`,
//! `compute_bucket_assignment_by_size`):
//!
//! - Operators are processed from the last to the first. In a product with a bias, the bias gradient comes first: it is
//!   accumulated directly, whereas the matrix gradient must first be transposed. In all other operators, the weight
//!   gradient comes first. The order of a norm's two gradients does not matter, because they are equally large.
//! - PyTorch's `bucket_cap_mb` corresponds to the option `bucket`, in MiB. PyTorch's defaults correspond to `bucket =
//!   "25 MiB"` and `first_bucket = "1 MiB"`. If `bucket_cap_mb` is set, version 2.3 keeps 1 MiB for the first bucket,
//!   but later versions (checked: 2.15) apply the new size to it too.
//! - Buckets are reduced in this order, each as soon as its last gradient has been computed. A bucket's reduction
//!   therefore waits only for the nodes up to its last gradient.
//!
//! With expert parallelism, the experts' gradients go into separate buckets, because fewer ranks hold copies of each
//! expert. Expert buckets follow the same rules (`overlap_grad_reduce` in Megatron-LM, which has separate buffers for
//! experts).
//!
//! Here, a model's matrix product has a single matrix and a single bias, even where implementations split them, for
//! example into one each for queries, keys and values. Events that occur only once per run are ignored: the first step,
//! which puts all gradients into one bucket; two broadcasts in which ranks agree on new buckets; and the broadcasts of
//! the initial weights. Broadcasts of untrained buffers, such as the running means of a batch norm before a forward
//! pass, are also ignored.

use crate::generate::plan::{BucketPolicy, ParallelGroupKind, ParallelismPlan};
use crate::model::OperatorKind;

/// A set of gradients that are reduced together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GradientBucket {
    /// The layer that computes the bucket's last gradient.
    pub layer: usize,
    /// Number of the layer's operators, counted from the last, whose gradients must be ready before the bucket is
    /// complete.
    pub operators: u32,
    /// True if the first of these operators (the last in backward order) also puts gradients into the next bucket.
    pub divided: bool,
    /// Number of weights whose gradients are in the bucket.
    pub weights: u64,
    /// Group of ranks that have copies of these weights and reduce the bucket.
    pub among: ParallelGroupKind,
}

/// Returns the sizes of the weight tensors of an operator of kind `work`, in the order in which
/// their gradients are computed.
pub(super) fn gradient_sizes_of_operator_weights(work: &OperatorKind) -> [u64; 2] {
    let spec = work.to_axes_and_tensors();
    let mut each = spec
        .weight_gradient_element_counts(false)
        .map(|count| count as u64);
    [each.next(), each.next()].map(Option::unwrap_or_default)
}

/// Assigns gradients to buckets.
#[derive(Clone, Copy, Debug)]
pub(super) struct GradientBucketAssigner {
    by: BucketPolicy,
    /// Number of weights that fill the first bucket of a model chunk, and number of weights that
    /// fill each later bucket.
    sizes: [u64; 2],
}

impl GradientBucketAssigner {
    /// Creates the assigner for `plan`; each weight's gradient has `gradient` bytes.
    pub fn new(plan: &ParallelismPlan, gradient: u64) -> Self {
        let first = plan.first_bucket.unwrap_or(plan.bucket);
        Self {
            by: plan.buckets,
            sizes: [first, plan.bucket].map(|bytes| bytes.div_ceil(gradient)),
        }
    }

    /// Returns the buckets of a model chunk; `among` is the group that reduces them. `layers` has one entry per layer,
    /// from the last layer to the first. An entry gives the layer and its number of weights. It also lists, for each
    /// operator from the last to the first, the number of weights in each gradient that the operator computes.
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

    fn list_assigned_buckets(
        by: BucketPolicy,
        first: Option<u64>,
        bucket: u64,
    ) -> Vec<(usize, u32, bool, u64)> {
        let mut plan = ParallelismPlan::new();
        (plan.buckets, plan.first_bucket, plan.bucket) = (by, first, bucket);
        // Each of the two layers has a norm (two tensors of 8 weights each), then a bias of 4
        // weights and a matrix of 32 weights.
        let found = [[4, 32], [0, 0], [8, 8]];
        let layers = [(1, 52, found), (0, 52, found)];
        let buckets = GradientBucketAssigner::new(&plan, 2)
            .assign_buckets(ParallelGroupKind::Data, layers.into_iter());
        let each = buckets.iter();
        each.map(|b| (b.layer, b.operators, b.divided, b.weights))
            .collect()
    }

    #[test]
    fn a_bucket_is_filled_by_the_layer_with_which_it_has_enough() {
        // A bucket limit of 104 B is 52 weights of 2 B each.
        let two = vec![(1, 3, false, 52), (0, 3, false, 52)];
        assert_eq!(list_assigned_buckets(BucketPolicy::Layers, None, 1), two);
        assert_eq!(list_assigned_buckets(BucketPolicy::Layers, None, 104), two);
        assert_eq!(
            list_assigned_buckets(BucketPolicy::Layers, None, 105),
            [(0, 3, false, 104)]
        );
        assert_eq!(
            list_assigned_buckets(BucketPolicy::Layers, Some(104), 1000),
            two
        );
    }

    #[test]
    fn a_bucket_is_filled_by_the_gradient_with_which_it_has_enough() {
        // A bucket limit of 72 B is 36 weights. The buckets are, in order: a bias and its matrix (36 weights); both
        // halves of a norm (16) with the next bias and matrix (36); and the last norm (16).
        let expected = [(1, 1, false, 36), (0, 1, false, 16 + 36), (0, 3, false, 16)];
        assert_eq!(
            list_assigned_buckets(BucketPolicy::Parameters, None, 72),
            expected
        );
        // A first bucket of 8 B contains only the bias. The matrix gradient of the same operator
        // belongs to the next bucket. With a limit of 90 B (45 weights) for later buckets, one
        // bucket has 32 + 8 + 8 = 48 weights, and the next has 4 + 32 + 8 + 8 = 52 weights.
        let expected = [(1, 1, true, 4), (1, 3, false, 48), (0, 3, false, 52)];
        assert_eq!(
            list_assigned_buckets(BucketPolicy::Parameters, Some(8), 90),
            expected
        );
        // With a bucket limit of 37 weights, the first bucket holds 4 + 32 weights and half of the norm's weights (8).
        // The second bucket holds the norm's other half (8 weights), the next bias (4) and the next matrix (32). The
        // third bucket holds the last norm.
        let expected = [(1, 3, true, 44), (0, 1, false, 44), (0, 3, false, 16)];
        assert_eq!(
            list_assigned_buckets(BucketPolicy::Parameters, None, 73),
            expected
        );
    }

    #[test]
    fn bias_gradient_size_precedes_that_of_its_matrix() {
        let (rows, inputs, outputs) = (2, 3, 5);
        let linear = |bias, tied| OperatorKind::Linear {
            rows,
            inputs,
            outputs,
            bias,
            tied,
        };
        assert_eq!(
            gradient_sizes_of_operator_weights(&linear(true, false)),
            [5, 15]
        );
        assert_eq!(
            gradient_sizes_of_operator_weights(&linear(false, false)),
            [15, 0]
        );
        assert_eq!(
            gradient_sizes_of_operator_weights(&linear(true, true)),
            [5, 0]
        );
        assert_eq!(
            gradient_sizes_of_operator_weights(&linear(false, true)),
            [0, 0]
        );
        let width = 7;
        let norm = |bias| OperatorKind::Norm { rows, width, bias };
        assert_eq!(
            (
                gradient_sizes_of_operator_weights(&norm(true)),
                gradient_sizes_of_operator_weights(&norm(false))
            ),
            ([7, 7], [7, 0])
        );
    }
}
