//! Distributes layers over the model chunks of a pipeline, and gradients over buckets.

use super::buckets::{GradientBucket, GradientBucketAssigner};
use super::cost::KernelCostSizesAndOptions;
use super::layer::{AllAndTrainedWeightCounts, LoweredLayer};
use super::stage_cuts::first_layers_of_parts;
use crate::generate::plan::{ParallelGroupKind, ParallelismPlan};
use crate::generate::schedule::PassKind;
use crate::model::Model;
use std::cmp::Reverse;
use std::ops::Range;

/// Layers, weights and boundary bytes of each part of the model, and the gradient buckets.
#[derive(Clone, Debug)]
pub(super) struct AllModelPartsAndGradientBuckets {
    /// First layer of each part; the last entry is the number of layers.
    starts: Vec<usize>,
    /// Number of weights of each layer on one rank, including copies of tied weights.
    weights: Vec<AllAndTrainedWeightCounts>,
    /// Gradient buckets of all layers, in the order in which they become complete.
    buckets: Vec<GradientBucket>,
    ends: Vec<Range<usize>>,
    /// For each part, the bytes that a rank sends to the next part.
    boundaries: Vec<u64>,
    /// Number of trained tied weights; the first and last stages each have a copy of them. `None` without tied weights.
    tied: Option<u64>,
}

impl AllModelPartsAndGradientBuckets {
    /// Distributes the layers of `model` over its parts, and their gradients over buckets.
    pub fn new(
        model: &Model,
        plan: &ParallelismPlan,
        lowered: &[&LoweredLayer],
        sizes: KernelCostSizesAndOptions,
    ) -> Self {
        let starts = first_layers_of_parts(model, plan);
        let mut weights: Vec<AllAndTrainedWeightCounts> =
            lowered.iter().map(|layer| layer.parameters).collect();
        let tied = find_tied_weight_copy(plan, &starts, lowered);
        if let Some(tied) = tied {
            let own = &mut weights[tied.layer];
            own.all += tied.weights;
            own.trained += if tied.is_trained { tied.weights } else { 0 };
        }
        let tied = tied.filter(|tied| tied.is_trained);
        let (mut buckets, mut ends) = (Vec::new(), vec![0..0; weights.len()]);
        let filling = GradientBucketAssigner::new(plan, sizes.gradient);
        for part in starts.windows(2) {
            let of_experts = |apart: bool| {
                (part[0]..part[1]).rev().map(move |layer| {
                    // All members of a tensor group have the same number of weights.
                    let backward = lowered[layer].program_for_member(PassKind::Backward, 0);
                    let found = backward.found.iter().enumerate();
                    let found = found.map(move |(i, found)| match tied {
                        _ if found.of_experts != apart => [0, 0],
                        Some(tied) if (tied.layer, tied.behind) == (layer, i) => {
                            [found.weights[0], tied.weights]
                        }
                        _ => found.weights,
                    });
                    (layer, lowered[layer].expert_parameters.trained, found)
                })
            };
            let common = of_experts(false);
            let common =
                common.map(|(layer, own, found)| (layer, weights[layer].trained - own, found));
            // Skip a layer with frozen weights; otherwise, the last bucket would wait for it.
            let common =
                common.filter(|(_, weights, _)| *weights > 0 || !plan.has_frozen_weights());
            let mut filled = Vec::new();
            if plan.weight_copy_count() > 1 {
                filled = filling.assign_buckets(plan.sharding_group_kind(), common);
            }
            if plan.expert_copies() > 1 {
                // Skip a layer without experts; otherwise, the last expert bucket would wait for it.
                let own = of_experts(true).filter(|(_, weights, _)| *weights > 0);
                filled.extend(filling.assign_buckets(ParallelGroupKind::ExpertData, own));
                filled.sort_by_key(|bucket| (Reverse(bucket.layer), bucket.operators));
            }
            for bucket in filled {
                let end: &mut Range<usize> = &mut ends[bucket.layer];
                if end.end == 0 {
                    *end = buckets.len()..buckets.len();
                }
                end.end += 1;
                buckets.push(bucket);
            }
        }
        let bytes = sizes.samples.saturating_mul(sizes.number);
        let inner = &starts[1..starts.len() - 1];
        let boundaries = inner.iter().map(|next| {
            let last = next.checked_sub(1).map(|layer| &model.layers[layer]);
            let out = last.and_then(|layer| layer.operators.last());
            out.map_or(0, |operator| {
                operator.work.output_elements().saturating_mul(bytes)
            })
        });
        Self {
            boundaries: boundaries.collect(),
            starts,
            weights,
            buckets,
            ends,
            tied: tied.map(|tied| tied.weights),
        }
    }

    /// Returns the range of layers in `part`.
    pub fn layers_of_part(&self, part: u32) -> Range<usize> {
        self.starts[part as usize]..self.starts[part as usize + 1]
    }

    /// Returns the number of weights of `layer` on one rank.
    pub fn weight_counts_of_layer(&self, layer: usize) -> AllAndTrainedWeightCounts {
        self.weights[layer]
    }

    /// Returns the buckets whose last gradient `layer` computes, in order.
    pub fn buckets_ending_at(&self, layer: usize) -> &[GradientBucket] {
        &self.buckets[self.ends[layer].clone()]
    }

    /// Bytes that part `below` sends to the next part.
    pub fn boundary_bytes(&self, below: u32) -> u64 {
        self.boundaries[below as usize]
    }

    /// Number of trained tied weights; the first and last stages each have a copy of them. `None` without tied weights.
    pub fn trained_tied_weight_count(&self) -> Option<u64> {
        self.tied
    }
}

/// The last part's copy of tied weights that belong to the first part.
#[derive(Clone, Copy)]
struct TiedWeightCopy {
    layer: usize,
    /// Number of operators in the layer after the operator with the copy.
    behind: usize,
    /// Number of weights in the copy on one rank.
    weights: u64,
    is_trained: bool,
}

/// Returns the last part's copy of tied weights; `None` if there is none, or if the first part is on the same stage.
fn find_tied_weight_copy(
    plan: &ParallelismPlan,
    starts: &[usize],
    lowered: &[&LoweredLayer],
) -> Option<TiedWeightCopy> {
    let [first, last] = plan.stages_of_model_ends();
    if first == last {
        return None;
    }
    let (last, end) = (*starts.get(starts.len().checked_sub(2)?)?, *starts.last()?);
    (last..end).find_map(|layer| {
        let tied = lowered[layer].tied?;
        Some(TiedWeightCopy {
            layer,
            behind: tied.behind,
            weights: tied.weights,
            is_trained: tied.is_trained,
        })
    })
}
