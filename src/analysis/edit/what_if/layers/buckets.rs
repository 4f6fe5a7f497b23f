//! Divides gradients into new buckets after the number of layers has changed.

use super::super::MatchedAndChangedItemCounts;
use super::super::gradients::{self, CollectiveTimesPerKib, StepGradientReductions};
use super::super::program::{
    EditableRankProgram, ItemDependency, NewAttributeValueOrRemoval, TrainingStepPhase,
};
use super::copies::LayerEditor;
use super::labels::layer_label_after_edit;
use super::passes::StepPasses;
use chakram_trace::format::{CollectiveKind, Op, TraceError};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The buckets of gradients that a step reduces.
pub(super) enum StepGradientBuckets {
    /// The step does not reduce gradients. `elements` is the total number of elements in all parameters, or 0 if no
    /// hooks show it.
    None { elements: u64 },
    /// Buckets of a captured job with parameter hooks: the bucket limit in bytes, the bytes per element, and the total
    /// number of parameter elements.
    Hooks {
        limit: u64,
        each: u64,
        elements: u64,
    },
    /// Buckets of a generated job with layer labels.
    Layers(GeneratedJobBuckets),
}

pub(super) struct GeneratedJobBuckets {
    limit: u64,
    /// Gradient bytes of one repeated layer, if a bucket shows how many there are.
    layer: Option<u64>,
    /// For each layer: the bytes of its gradients. The key is the layer's label before the edit.
    sizes: BTreeMap<u32, u64>,
    /// Nodes that compute gradients.
    producers: BTreeSet<u32>,
    /// For each backward pass that reduces gradients: its reductions, and its nodes.
    passes: Vec<(Vec<u32>, BTreeSet<u32>)>,
    /// Total bytes of gradients.
    bytes: u64,
    /// True if reductions run only after the backward pass.
    at_end: bool,
    /// Collectives that gather parameters after the optimizer has updated them.
    gathers: Vec<u32>,
    shard: f64,
}

fn unknown_buckets_error() -> TraceError {
    super::super::refuse_edit(
        "the job does not reduce the gradients of the parameters whose hooks are captured, so the \
         reductions of more layers are unknown",
        "edit a job without reductions, or one of DistributedDataParallel that was captured with shapes",
    )
}

impl StepGradientBuckets {
    /// Finds the buckets of one step. Layers whose labels are in the ranges `repeated` are equal; `layer_bytes` is the
    /// size, in bytes, of the weights in one layer's matrix multiplications, if known.
    pub fn find_buckets(
        program: &EditableRankProgram<'_>,
        step: u32,
        reductions: &StepGradientReductions,
        passes: &StepPasses,
        repeated: &[(u32, u32)],
        layer_bytes: Option<u64>,
    ) -> Result<Self, TraceError> {
        let elements = reductions.sum_parameter_elements_of_hooks();
        if reductions.collectives.is_empty() {
            return Ok(Self::None { elements });
        }
        let all = reductions.sum_bytes(program);
        if elements > 0 && all.is_multiple_of(elements) {
            return Ok(Self::Hooks {
                limit: BucketLimitAndLayerBytes::from_edit_notes(program.earlier.as_deref())
                    .map(|noted| noted.limit)
                    .or(reductions.bucket_limit_from_smallest_bucket(program))
                    .unwrap_or(u64::MAX),
                each: all / elements,
                elements,
            });
        }
        if repeated.is_empty() {
            return Err(unknown_buckets_error());
        }
        let found = GeneratedJobBuckets::find_buckets(
            program,
            step,
            reductions,
            passes,
            repeated,
            layer_bytes,
        );
        found.map(Self::Layers)
    }

    /// Returns the bucket sizes, which cannot be derived from the trace once layers are removed.
    pub fn bucket_limit_and_layer_bytes(&self) -> Option<BucketLimitAndLayerBytes> {
        match self {
            Self::None { .. } => None,
            Self::Hooks { limit, .. } => Some(BucketLimitAndLayerBytes {
                limit: *limit,
                layer: None,
            }),
            Self::Layers(layers) => Some(BucketLimitAndLayerBytes {
                limit: layers.limit,
                layer: layers.layer,
            }),
        }
    }

    /// Divides the gradients of the edited step into buckets.
    pub fn regroup_buckets(
        &self,
        program: &mut EditableRankProgram<'_>,
        step: u32,
        editor: &LayerEditor,
        rates: &CollectiveTimesPerKib,
        counts: &mut MatchedAndChangedItemCounts,
    ) -> Result<(), TraceError> {
        match self {
            Self::None { .. } => {}
            Self::Hooks { limit, each, .. } => {
                let found = gradients::regroup_gradients_of_step(
                    program,
                    step,
                    *limit,
                    rates,
                    Some(*each),
                )?;
                counts.notes.extend(found.notes);
            }
            Self::Layers(layers) => layers.regroup_buckets(program, step, editor, rates, counts)?,
        }
        Ok(())
    }

    /// Returns the factor by which a step's parameters grow, and the step's last hook, if there is one. Returns `None`
    /// if the factor is unknown.
    pub fn parameter_growth_factor_and_last_hook(
        &self,
        program: &EditableRankProgram<'_>,
        step: u32,
    ) -> Option<(f64, Option<u32>)> {
        let now =
            StepGradientReductions::find_reductions(program, step).keep_bucket_reductions(program);
        let hook = now.hooks.last().map(|hook| hook.0);
        let elements = now.sum_parameter_elements_of_hooks();
        match self {
            Self::None { elements: 0 } => None,
            Self::None { elements: old } | Self::Hooks { elements: old, .. } => {
                Some((elements as f64 / *old as f64, hook))
            }
            Self::Layers(layers) => {
                let bytes = now.sum_bytes(program);
                Some((bytes as f64 / layers.bytes as f64, Some(u32::MAX)))
            }
        }
    }
}

/// Prefix that marks [`BucketLimitAndLayerBytes`] in a trace's list of edits.
pub(in super::super) const BUCKETS: &str = "buckets=";

/// Bucket limit in bytes, and gradient bytes of one repeated layer, if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct BucketLimitAndLayerBytes {
    limit: u64,
    layer: Option<u64>,
}

impl BucketLimitAndLayerBytes {
    /// Parses the sizes that an earlier layer edit stored in the list of edits.
    fn from_edit_notes(edits: Option<&str>) -> Option<Self> {
        let mut words = edits.unwrap_or_default().split_ascii_whitespace();
        let word = words.find_map(|word| word.strip_prefix(BUCKETS))?;
        let (limit, layer) = word.split_once(',')?;
        Some(Self {
            limit: limit.parse().ok()?,
            layer: layer.parse().ok(),
        })
    }
}

impl fmt::Display for BucketLimitAndLayerBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{BUCKETS}{},", self.limit)?;
        match self.layer {
            Some(layer) => write!(f, "{layer}"),
            None => f.write_str("-"),
        }
    }
}

impl GeneratedJobBuckets {
    fn find_buckets(
        program: &EditableRankProgram<'_>,
        step: u32,
        reductions: &StepGradientReductions,
        passes: &StepPasses,
        repeated: &[(u32, u32)],
        layer_bytes: Option<u64>,
    ) -> Result<Self, TraceError> {
        let mut this = Self {
            limit: u64::MAX,
            layer: None,
            sizes: BTreeMap::new(),
            producers: BTreeSet::new(),
            passes: Vec::new(),
            bytes: 0,
            at_end: false,
            gathers: Vec::new(),
            shard: 0.0,
        };
        let mut pass_of: BTreeMap<u32, usize> = BTreeMap::new();
        for (index, pass) in passes.backward.iter().enumerate() {
            pass_of.extend(pass.items.iter().map(|&item| (item, index)));
        }
        // For each pass, the reduction, bytes and layers of each bucket.
        let mut of_pass: BTreeMap<usize, Vec<(u32, u64, BTreeSet<u32>)>> = BTreeMap::new();
        for &item in &reductions.collectives {
            let bytes = gradients::collective_bytes_after_edits(program, item);
            this.bytes += bytes;
            let (mut layers, mut pass) = (BTreeSet::new(), None);
            for dep in &program.items[item as usize].deps {
                let Some(&index) = pass_of.get(&dep.on) else {
                    continue;
                };
                this.producers.insert(program.items[dep.on as usize].node);
                pass = Some(index);
                // If a node copies gradients into a buffer before the reduction, that node's dependencies compute the
                // gradients.
                let copies = program.facts_of_item(dep.on).phase == TrainingStepPhase::Parameters;
                let own = [dep.on];
                let made: Vec<u32> = match copies {
                    true => program.items[dep.on as usize]
                        .deps
                        .iter()
                        .map(|dep| dep.on)
                        .collect(),
                    false => own.to_vec(),
                };
                let made = made.iter().filter(|on| pass_of.contains_key(on));
                let found: BTreeSet<u32> = made
                    .filter_map(|&on| program.facts_of_item(on).layer)
                    .collect();
                if copies && found.len() > 1 {
                    return Err(super::super::refuse_edit(
                        "the job copies the gradients of several layers into one bucket, so the buckets of more layers are unknown",
                        "generate the job with the number of layers that you want",
                    ));
                }
                layers.extend(found);
            }
            let pass = pass.ok_or_else(unknown_buckets_error)?;
            of_pass.entry(pass).or_default().push((item, bytes, layers));
        }
        let is_repeated = |layer: &u32| repeated.iter().any(|(a, b)| (*a..=*b).contains(layer));
        let noted = BucketLimitAndLayerBytes::from_edit_notes(program.earlier.as_deref());
        for buckets in of_pass.values() {
            if let Some(noted) = noted {
                this.limit = noted.limit;
            } else if let Some((_, full)) = buckets.split_last() {
                let least = full.iter().map(|(_, bytes, _)| *bytes).min();
                this.limit = this.limit.min(least.unwrap_or(u64::MAX));
            }
        }
        let uniform = of_pass.values().flatten().find(|(_, bytes, layers)| {
            let count = layers.len() as u64;
            count > 0 && layers.iter().all(is_repeated) && bytes.is_multiple_of(count)
        });
        this.layer = match uniform {
            Some((_, bytes, layers)) => Some(bytes / layers.len() as u64),
            None => noted.and_then(|noted| noted.layer),
        };
        let layer = this
            .layer
            .or(layer_bytes)
            .ok_or_else(unknown_buckets_error)?;
        for buckets in of_pass.values() {
            let mut sizes: BTreeMap<u32, u64> = BTreeMap::new();
            for (_, bytes, layers) in buckets {
                let alike: Vec<u32> = layers.iter().copied().filter(is_repeated).collect();
                sizes.extend(alike.iter().map(|&own| (own, layer)));
                let rest = bytes
                    .checked_sub(alike.len() as u64 * layer)
                    .ok_or_else(unknown_buckets_error)?;
                match layers.iter().find(|layer| !is_repeated(layer)) {
                    Some(other) => *sizes.entry(*other).or_default() += rest,
                    None if rest > 0 => return Err(unknown_buckets_error()),
                    None => {}
                }
            }
            this.sizes.extend(sizes);
        }
        let places = program.item_positions();
        for (pass, buckets) in &of_pass {
            let items: BTreeSet<u32> = passes.backward[*pass].items.iter().copied().collect();
            let last = items.iter().map(|&item| places[item as usize]).max();
            let first = buckets.first().map(|(item, _, _)| places[*item as usize]);
            let ends = passes.backward[*pass].items.last();
            let waits = buckets.first().is_some_and(|(item, _, _)| {
                let deps = &program.items[*item as usize].deps;
                deps.iter().any(|dep| Some(&dep.on) == ends)
            });
            this.at_end |= first > last && buckets.len() > 1 && waits;
            let collectives = buckets.iter().map(|(item, _, _)| *item).collect();
            this.passes.push((collectives, items));
        }
        if this.at_end && this.passes.len() > 1 {
            return Err(super::super::refuse_edit(
                "the job reduces gradients after each of several passes, and their order with more layers is unknown",
                "generate the job with the number of layers that you want",
            ));
        }
        this.find_parameter_gathers(program, step)?;
        Ok(this)
    }

    /// Finds the collectives that gather the updated parameters after the optimizer.
    fn find_parameter_gathers(
        &mut self,
        program: &EditableRankProgram<'_>,
        step: u32,
    ) -> Result<(), TraceError> {
        let is_gather = |item: u32| {
            let facts = program.facts_of_item(item);
            facts.step == Some(step)
                && facts.layer.is_some()
                && facts.micro_batch.is_none()
                && facts.phase == TrainingStepPhase::Parameters
                && matches!(
                    program.view_of_item(item).op,
                    Op::Collective {
                        kind: CollectiveKind::AllGather,
                        ..
                    }
                )
        };
        self.gathers = program
            .order
            .iter()
            .copied()
            .filter(|&item| is_gather(item))
            .collect();
        let Some(&first) = self.gathers.first() else {
            return Ok(());
        };
        let known: BTreeSet<u32> = self.gathers.iter().copied().collect();
        let waits = program.order.iter().any(|&item| {
            program.facts_of_item(item).phase == TrainingStepPhase::Forward
                && program.items[item as usize]
                    .deps
                    .iter()
                    .any(|dep| known.contains(&dep.on))
        });
        let last = self.passes.last().and_then(|(all, _)| all.last());
        let (Some(&last), false) = (last, waits) else {
            return Err(super::super::refuse_edit(
                "the job gathers updated parameters during the next forward pass, in buckets that more layers would change",
                "generate the job with the number of layers that you want",
            ));
        };
        self.shard = gradients::collective_bytes_after_edits(program, first) as f64
            / gradients::collective_bytes_after_edits(program, last) as f64;
        Ok(())
    }

    fn regroup_buckets(
        &self,
        program: &mut EditableRankProgram<'_>,
        step: u32,
        editor: &LayerEditor,
        rates: &CollectiveTimesPerKib,
        counts: &mut MatchedAndChangedItemCounts,
    ) -> Result<(), TraceError> {
        let mut reduced = Vec::new();
        for (collectives, items) in &self.passes {
            let runs: BTreeSet<usize> = items
                .iter()
                .filter_map(|item| Some(editor.moves.get(item)?.run))
                .collect();
            let of_pass = |item: u32| {
                let moved = editor.moves.get(&item);
                items.contains(&item) || moved.is_some_and(|moved| runs.contains(&moved.run))
            };
            let mut found = StepGradientReductions {
                collectives: collectives.clone(),
                launches: vec![Vec::new(); collectives.len()],
                ..StepGradientReductions::default()
            };
            // There are no hooks, so a layer's last kernel in the pass serves as its hook.
            let mut ends: Vec<(u32, u32)> = Vec::new();
            for &item in program.order.iter().filter(|&&item| of_pass(item)) {
                let computes = matches!(program.view_of_item(item).op, Op::Compute { .. });
                let Some(layer) = layer_label_after_edit(program, item).filter(|_| computes) else {
                    continue;
                };
                match ends.last_mut() {
                    Some(end) if end.0 == layer => end.1 = item,
                    _ => ends.push((layer, item)),
                }
                if self.producers.contains(&program.items[item as usize].node) {
                    found.producers.push((item, ends.len() - 1));
                }
            }
            for &(_, item) in &ends {
                let layer = program.facts_of_item(item).layer;
                let size = layer.and_then(|layer| self.sizes.get(&layer).copied());
                found.hooks.push((item, size.unwrap_or(0)));
            }
            let found =
                gradients::regroup_found_gradients(program, found, self.limit, rates, Some(1))?;
            counts.notes.extend(found.notes);
        }
        if self.at_end {
            gradients::move_reductions_to_end(program);
        }
        let now =
            StepGradientReductions::find_reductions(program, step).keep_bucket_reductions(program);
        let complete = now
            .collectives
            .last()
            .map(|&item| program.facts_of_item(item).micro_batch);
        for &item in &now.collectives {
            if Some(program.facts_of_item(item).micro_batch) == complete {
                reduced.push(item);
            }
        }
        self.replace_parameter_gathers(program, &reduced);
        Ok(())
    }

    /// Replaces the gathers of updated parameters by one gather per new bucket.
    fn replace_parameter_gathers(&self, program: &mut EditableRankProgram<'_>, reduced: &[u32]) {
        let Some(&template) = self.gathers.first() else {
            return;
        };
        let mut all = Vec::new();
        for &reduction in reduced.iter().rev() {
            let gather = program.clone_items_with_inner_dependencies(&[template], &|_| false)[0];
            let bytes =
                gradients::collective_bytes_after_edits(program, reduction) as f64 * self.shard;
            let own = program.items[reduction as usize].name.clone();
            let own = own.unwrap_or_else(|| program.view_of_item(reduction).name.to_owned());
            let label = layer_label_after_edit(program, reduction);
            let item = &mut program.items[gather as usize];
            item.changes.insert(
                "comm_size",
                NewAttributeValueOrRemoval::Count(bytes.ceil() as u64),
            );
            if let Some((layer, _)) = own.split_once("/gradients/") {
                let parts = layer.split('/').filter(|part| {
                    let number = part.strip_prefix("mb");
                    number.is_none_or(|number| number.parse::<u32>().is_err())
                });
                let parts: Vec<&str> = parts.collect();
                item.name = Some(format!("{}/parameters/all-gather", parts.join("/")));
            }
            if let Some(label) = label {
                item.changes
                    .insert("layer", NewAttributeValueOrRemoval::Count(label.into()));
            }
            all.push(gather);
        }
        let old: BTreeSet<u32> = self.gathers.iter().copied().collect();
        let mut order = Vec::with_capacity(program.order.len());
        for item in std::mem::take(&mut program.order) {
            if item == template {
                order.append(&mut all.clone());
            }
            if old.contains(&item) {
                continue;
            }
            let own = &mut program.items[item as usize].deps;
            if let Some(dep) = own.iter().find(|dep| old.contains(&dep.on)).copied() {
                own.retain(|dep| !old.contains(&dep.on));
                own.extend(all.iter().map(|&on| ItemDependency {
                    on,
                    in_turn: false,
                    ..dep
                }));
            }
            order.push(item);
        }
        program.order = order;
    }
}
