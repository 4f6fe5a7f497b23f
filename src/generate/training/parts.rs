//! How layers are dealt out to the parts of a pipeline, and their gradients to buckets.

use super::cost::Sizes;
use super::shard::shard;
use crate::generate::plan::Plan;
use crate::generate::schedule::Schedule;
use crate::model::{Model, Role, Work};
use std::ops::Range;

/// Layers, weights and gradients by part.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    /// Where each part's layers begin, and where the last one's end.
    starts: Vec<usize>,
    /// Weights of each layer that a rank has, a copy of tied ones included.
    weights: Vec<u64>,
    /// Weights of the bucket that ends with each layer; 0 where none does.
    buckets: Vec<u64>,
    /// Bytes that each part hands to the next.
    boundaries: Vec<u64>,
    /// Weights of which the first and the last stage have copies.
    tied: Option<u64>,
}

/// Where parts begin if blocks are dealt out evenly; what comes before the blocks goes with the first, and what
/// comes behind with the last.
pub(super) fn deal(model: &Model, plan: &Plan) -> Vec<usize> {
    let count = model.layers.len();
    let parts = plan.schedule.chunks() * plan.pipeline;
    if !plan.stages.is_empty() {
        let starts = plan.stages.iter().map(|[first, _]| *first as usize);
        return starts.chain([count]).collect();
    }
    if matches!(plan.schedule, Schedule::LayerWise { .. }) {
        return (0..=count).collect();
    }
    let is_block = |layer: &&crate::model::Layer| layer.role == Role::Block;
    let blocks = model.layers.iter().filter(is_block).count();
    let each = blocks / parts as usize;
    let before = model.layers.iter().take_while(|layer| !is_block(layer));
    let before = before.count();
    let inner = (1..parts as usize).map(|part| before + part * each);
    [0].into_iter().chain(inner).chain([count]).collect()
}

impl Parts {
    /// Deals out the layers of `model`, whose weights per rank are given.
    pub fn new(model: &Model, plan: &Plan, weights: &[u64], sizes: Sizes) -> Self {
        let starts = deal(model, plan);
        let mut weights = weights.to_vec();
        let tied = copied(model, plan, &starts);
        if let Some((layer, copy)) = tied {
            weights[layer] += copy;
        }
        let mut buckets = vec![0; weights.len()];
        let bucket = (plan.bucket / sizes.gradient).max(1);
        for part in starts.windows(2) {
            let mut filled = 0;
            for layer in (part[0]..part[1]).rev() {
                filled += weights[layer];
                if filled >= bucket || layer == part[0] {
                    buckets[layer] = filled;
                    filled = 0;
                }
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
            tied: tied.map(|(_, copy)| copy),
        }
    }

    /// Layers of `part`.
    pub fn layers(&self, part: u32) -> Range<usize> {
        self.starts[part as usize]..self.starts[part as usize + 1]
    }

    /// Weights of `layer` that a rank has.
    pub fn weights(&self, layer: usize) -> u64 {
        self.weights[layer]
    }

    /// Weights whose gradients are reduced when those of `layer` are found.
    pub fn bucket(&self, layer: usize) -> u64 {
        self.buckets[layer]
    }

    /// Bytes that part `below` hands to the next.
    pub fn boundary(&self, below: u32) -> u64 {
        self.boundaries[below as usize]
    }

    /// Weights of which the first and the last stage have copies.
    pub fn tied(&self) -> Option<u64> {
        self.tied
    }
}

/// The layer that has a copy of weights of the first part, and how many a rank has.
fn copied(model: &Model, plan: &Plan, starts: &[usize]) -> Option<(usize, u64)> {
    if plan.pipeline == 1 {
        return None;
    }
    let last = *starts.get(starts.len().checked_sub(2)?)?;
    let behind = model.layers.iter().enumerate().skip(last);
    let mut operators = behind.flat_map(|(i, layer)| layer.operators.iter().map(move |o| (i, o)));
    operators.find_map(
        |(layer, operator)| match shard(operator, plan.tensor.into(), false) {
            Work::Linear {
                inputs,
                outputs,
                tied: true,
                ..
            } => Some((layer, inputs.saturating_mul(outputs))),
            _ => None,
        },
    )
}
