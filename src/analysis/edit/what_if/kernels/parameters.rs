//! Scales work on parameters and transfers of parameters, which grow with the hidden size and not with the tokens.

use super::super::gradients::{collective_bytes_after_edits, is_gradient_reduction};
use super::super::program::{EditableRankProgram, NewAttributeValueOrRemoval, TrainingStepPhase};
use super::super::shapes::count_elements;
use super::super::unedited::ValuesReplacedByEdits;
use super::super::width::layers_of_gradient_or_parameter_transfer;
use super::changes::{change_attributes_keeping_unedited, scale_communication_bytes_and_time};
use super::work::tensor_shapes_of_kernel;
use super::{BatchSequenceHiddenFactors, KernelWorkAndTimeScaler, ScaledNodeCountsByMethod};
use chakram_trace::format::Op;

impl KernelWorkAndTimeScaler {
    /// Returns how many of the `bytes` that a node allocates or frees belong to gathered parameters or to unreduced
    /// gradients. Their memory does not grow with the number of tokens.
    pub(super) fn parameter_bytes_of_allocation(
        &self,
        program: &EditableRankProgram<'_>,
        node: u32,
        name: &str,
        bytes: u64,
    ) -> u64 {
        if !name.ends_with(".temporary") {
            return 0;
        }
        let whole = self.whole_gradients.get(&node).copied();
        if let Some(whole) = whole.filter(|_| name.starts_with("allocates.")) {
            return whole.min(bytes);
        }
        let layer = program.facts[node as usize].layer;
        let gathered = layer.and_then(|layer| self.gathered.get(&layer)).copied();
        gathered.filter(|&gathered| gathered <= bytes).unwrap_or(0)
    }

    /// Scales the work on parameters, and the transfers of parameters, to the new hidden size.
    pub(super) fn widen_parameter_work(
        &self,
        program: &mut EditableRankProgram<'_>,
        item: u32,
        by: BatchSequenceHiddenFactors,
        counts: &mut ScaledNodeCountsByMethod,
    ) {
        let node = program.items[item as usize].node;
        let view = *program.view_of_node(node);
        let of_parameters = matches!(
            program.facts[node as usize].phase,
            TrainingStepPhase::Parameters | TrainingStepPhase::Optimizer
        );
        match view.op {
            Op::NoOp => {
                let unedited = ValuesReplacedByEdits::parse(program.facts[node as usize].unedited);
                let growth = self.widths.growth_of_all_parameters(by.hidden);
                let new: Vec<_> = view
                    .memory
                    .nonzero_changes_with_attribute_names()
                    .map(|(name, now)| {
                        let bytes = unedited.attribute_count_before_edits(name).unwrap_or(now)
                            as f64
                            * growth;
                        (
                            name,
                            NewAttributeValueOrRemoval::Count(bytes.round() as u64),
                        )
                    })
                    .collect();
                if !new.is_empty() {
                    change_attributes_keeping_unedited(
                        program,
                        item,
                        new,
                        by == BatchSequenceHiddenFactors::NONE,
                    );
                }
            }
            Op::Collective { bytes, .. } if of_parameters && bytes > 0 => {
                let layers = layers_of_gradient_or_parameter_transfer(program, item);
                let reduces = is_gradient_reduction(program, item);
                let whole = view
                    .memory
                    .nonzero_changes_with_attribute_names()
                    .find(|(name, _)| name.ends_with(".temporary"));
                let unedited = ValuesReplacedByEdits::parse(program.facts[node as usize].unedited);
                let old = match whole {
                    Some((name, now)) if !reduces => {
                        unedited.attribute_count_before_edits(name).unwrap_or(now)
                    }
                    _ => unedited
                        .attribute_count_before_edits("comm_size")
                        .unwrap_or(bytes),
                };
                // After the optimizer step, parameters are gathered in the same buckets as their gradients.
                let own = program.facts[node as usize].layer;
                let bucket = program.order.iter().copied().find(|&other| {
                    own.is_some()
                        && !reduces
                        && whole.is_none()
                        && is_gradient_reduction(program, other)
                        && program.facts_of_item(other).layer == own
                });
                if let (Some(bucket), Op::Collective { .. }) = (bucket, view.op) {
                    let facts = program.facts_of_item(bucket);
                    let now = collective_bytes_after_edits(program, bucket);
                    let old = ValuesReplacedByEdits::parse(facts.unedited)
                        .attribute_count_before_edits("comm_size");
                    let old = old.unwrap_or(match program.view_of_item(bucket).op {
                        Op::Collective { bytes, .. } => bytes,
                        _ => now,
                    });
                    let layers = layers_of_gradient_or_parameter_transfer(program, bucket);
                    let growth = self
                        .widths
                        .growth_of_weights(&layers, Some(old), true, by.hidden);
                    scale_communication_bytes_and_time(program, item, bytes, growth, &[], by);
                    counts.matched += 1;
                    counts.changed += 1;
                    return;
                }
                let growth = match layers.is_empty() {
                    // A reduction of a single number, such as a norm, does not grow.
                    _ if old <= 8 => 1.0,
                    true if program.has_layers => by.hidden.to_f64(),
                    true => self.widths.growth_of_all_parameters(by.hidden),
                    false => self
                        .widths
                        .growth_of_weights(&layers, Some(old), reduces, by.hidden),
                };
                counts.by_weights += u64::from(layers.is_empty());
                scale_communication_bytes_and_time(program, item, bytes, growth, &[], by);
                counts.matched += 1;
                counts.changed += 1;
            }
            Op::Compute { .. } if of_parameters => {
                let (inputs, _) = tensor_shapes_of_kernel(program, node);
                let sizes: f64 = inputs
                    .iter()
                    .map(|shape| count_elements(shape) as f64)
                    .sum();
                let grown = inputs.iter().map(|shape| {
                    let power = self.widths.hidden_size_power_of_weight(shape);
                    count_elements(shape) as f64 * by.hidden.to_f64().powi(power)
                });
                let growth = match sizes > 0.0 {
                    true => grown.sum::<f64>() / sizes,
                    false => {
                        counts.by_weights += 1;
                        self.widths.growth_of_all_parameters(by.hidden)
                    }
                };
                self.multiply_work_and_note_original(
                    program,
                    item,
                    growth,
                    by == BatchSequenceHiddenFactors::NONE,
                );
                counts.matched += 1;
                counts.changed += 1;
            }
            _ => {}
        }
    }
}
