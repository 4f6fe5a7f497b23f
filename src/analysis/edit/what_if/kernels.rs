//! Scales kernels, messages and collectives for other batch sizes, sequence lengths and hidden sizes.
//!
//! Work: a tensor with a sample dimension grows with the number of samples; a parameter tensor does not. One dimension
//! of a matrix multiplication is the number of samples, so its FLOPs grow with this number. The FLOPs of attention grow
//! with the square of the sequence length. A kernel's bytes are proportional to the total number of elements in its
//! tensors. If a trace has no shapes, all work in forward and backward passes is assumed to grow.
//!
//! Time: a kernel has `F` FLOPs, moves `Y` bytes and takes the recorded time `t`, of which the profiler added `p`.
//! After scaling, these are `F'`, `Y'` and `t'`:
//!
//! ```text
//! t' = p + a + (t - p - a) w(F', Y') / w(F, Y)
//! ```
//!
//! The work `w` of a kernel is `F` or, if the kernel has no FLOPs, `Y`. The exception is a kernel with FLOPs that moves
//! bytes at no less than half of the trace's highest rate. Its work is `max(F / f, Y / y)`, where `f` and `y` are the
//! highest rates of FLOPs and of bytes in the trace.
//!
//! `a` is the fixed time of a kernel call, independent of its work. If the work of kernels with the same name differs
//! by a factor of two or more, `a` is the intercept of a line fitted to their median times against their work. If the
//! work differs less, `a` is the time of the shortest kernel of the trace.

mod call_time;
mod changes;
mod gradients;
mod learning;
mod parameters;
mod work;

use super::grammar::ScaleFactor;
use super::program::{EditableRankProgram, NewAttributeValueOrRemoval, TrainingStepPhase};
use super::shapes::{TensorShape, count_elements};
use super::unedited::{ValuesReplacedByEdits, parse_attribute_count_before_edits};
use super::width::{ModelWidths, contains_normal_form_of_shape};
use call_time::FixedKernelCallTime;
use chakram_base::kernel_shape::KernelShape;
use chakram_trace::format::Op;
use changes::{change_attributes_keeping_unedited, scale_communication_bytes_and_time};
use std::collections::{BTreeMap, BTreeSet};
use work::{
    is_attention, is_matmul_summing_over_samples, tensor_shapes_of_kernel, unedited_work_of_kernel,
};

/// Factors for the batch size, the sequence length and the hidden size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchSequenceHiddenFactors {
    pub batch: ScaleFactor,
    pub sequence: ScaleFactor,
    pub hidden: ScaleFactor,
}

impl BatchSequenceHiddenFactors {
    pub const NONE: Self = Self {
        batch: ScaleFactor::ONE,
        sequence: ScaleFactor::ONE,
        hidden: ScaleFactor::ONE,
    };

    /// Returns the factor by which the number of tokens grows.
    fn token_growth(self) -> f64 {
        self.batch.to_f64() * self.sequence.to_f64()
    }
}

/// Numbers of scaled nodes, by the method that computed their times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ScaledNodeCountsByMethod {
    /// Number of kernels, messages and collectives that are scaled.
    pub matched: u64,
    pub changed: u64,
    /// Number of kernels whose fixed call time comes from a fitted line.
    pub by_line: u64,
    /// Number of kernels without known shapes.
    pub without_shapes: u64,
    /// Number of kernels that process parameters but have no shapes, plus the number of parameter transfers of unknown
    /// layers.
    pub by_weights: u64,
}

/// Operands of a kernel's matrix multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KernelWeightOrWeightGradientMatmul {
    /// The kernel has no FLOPs, so it multiplies no matrices.
    None,
    /// Multiplies samples by a weight.
    WithWeight,
    /// Multiplies samples by samples and sums the products into a weight gradient.
    GradientOfWeight,
}

pub(super) struct KernelWorkAndTimeScaler {
    /// Shapes of parameters, in [`sort_sizes_without_ones`].
    parameters: BTreeSet<TensorShape>,
    /// Number of samples, if the trace shows it.
    batch: Option<u64>,
    tokens: Option<u64>,
    widths: ModelWidths,
    calls: BTreeMap<String, FixedKernelCallTime>,
    /// For each layer of a generated job: the bytes of parameters that the layer's passes gather.
    gathered: BTreeMap<u32, u64>,
    /// For each kernel's node: how many bytes it allocates for whole gradients, which their reduction frees.
    whole_gradients: BTreeMap<u32, u64>,
    shortest: f64,
    flops_rate: f64,
    bytes_rate: f64,
}

impl KernelWorkAndTimeScaler {
    pub fn stored_model_widths(&self) -> &ModelWidths {
        &self.widths
    }

    fn fixed_call_time_of_kernel(&self, name: &str) -> FixedKernelCallTime {
        let alone = FixedKernelCallTime {
            fixed: self.shortest,
            by_line: false,
        };
        self.calls.get(name).copied().unwrap_or(alone)
    }

    /// Multiplies a kernel's work by `ratio`. The time changes in proportion, except for the fixed time of the
    /// call.
    pub fn multiply_kernel_work(
        &self,
        program: &mut EditableRankProgram<'_>,
        item: u32,
        ratio: f64,
    ) {
        let new = self.list_scaled_time_changes(program, item, ratio);
        program.items[item as usize].changes.extend(new);
    }

    /// Like [`Self::multiply_kernel_work`], but also stores the unedited values in an attribute of the node.
    fn multiply_work_and_note_original(
        &self,
        program: &mut EditableRankProgram<'_>,
        item: u32,
        ratio: f64,
        restores: bool,
    ) {
        let new = self.list_scaled_time_changes(program, item, ratio);
        change_attributes_keeping_unedited(program, item, new, restores);
    }

    fn list_scaled_time_changes(
        &self,
        program: &EditableRankProgram<'_>,
        item: u32,
        ratio: f64,
    ) -> Vec<(&'static str, NewAttributeValueOrRemoval)> {
        let node = program.items[item as usize].node;
        if !matches!(program.view_of_node(node).op, Op::Compute { .. }) {
            return Vec::new();
        }
        let work = unedited_work_of_kernel(program, node);
        let fixed = self
            .fixed_call_time_of_kernel(program.view_of_node(node).name)
            .fixed
            .min(work.ns as f64);
        let ns = work.profiler as f64 + fixed + (work.ns as f64 - fixed) * ratio;
        let time = match program.has_work_time_in_delay(node) {
            true => "delay_ns",
            false => "duration_ns",
        };
        let values = [
            (time, work.ns, ns),
            ("num_ops", work.flops, work.flops as f64 * ratio),
            ("tensor_size", work.bytes, work.bytes as f64 * ratio),
        ];
        let known = values.into_iter().filter(|(_, old, _)| *old > 0);
        known
            .map(|(name, _, new)| {
                (
                    name,
                    NewAttributeValueOrRemoval::Count(new.round().max(0.0) as u64),
                )
            })
            .collect()
    }

    /// Returns the factor by which a tensor's number of elements grows; `None` if it does not grow.
    fn tensor_growth(
        &self,
        shape: &[u64],
        is_parameter: bool,
        by: BatchSequenceHiddenFactors,
    ) -> Option<f64> {
        let tokens = self.tensor_growth_by_tokens(shape, is_parameter, by);
        let power = match tokens {
            _ if by.hidden == ScaleFactor::ONE => 0,
            Some(_) => self.widths.hidden_size_power_of_activation(shape),
            None => self.widths.hidden_size_power_of_weight(shape),
        };
        match power {
            0 => tokens,
            power => Some(tokens.unwrap_or(1.0) * by.hidden.to_f64().powi(power)),
        }
    }

    /// Returns one entry per tensor of a kernel (inputs, then outputs): true if the tensor contains parameters or
    /// their gradient.
    ///
    /// In most cases, a tensor's sizes show what it contains. But a matrix with as many rows as there are tokens may
    /// happen to have the sizes of a weight. In that case, its position among the inputs decides. A matrix
    /// multiplication does one of two things. Either it multiplies samples (first input) by a weight (second input), or
    /// it multiplies the samples of both inputs and sums the products into a weight gradient. All other kernels of a
    /// pass process samples.
    fn mark_parameter_tensors(
        &self,
        product: KernelWeightOrWeightGradientMatmul,
        inputs: &[TensorShape],
        outputs: &[TensorShape],
    ) -> Vec<bool> {
        let rows = self
            .batch
            .zip(self.tokens)
            .map(|(batch, tokens)| batch * tokens);
        let is_matrix = |shape: &&TensorShape| shape.len() == 2;
        let first = inputs.iter().position(|shape| is_matrix(&shape));
        let is_parameter = |(at, shape): (usize, &TensorShape)| {
            let is_input = at < inputs.len();
            let may_be_samples = is_matrix(&shape) && Some(shape[0]) == rows;
            contains_normal_form_of_shape(&self.parameters, shape)
                && match (may_be_samples, product) {
                    (false, _) => true,
                    (true, KernelWeightOrWeightGradientMatmul::None) => false,
                    (true, KernelWeightOrWeightGradientMatmul::GradientOfWeight) => !is_input,
                    (true, KernelWeightOrWeightGradientMatmul::WithWeight) => {
                        is_input && Some(at) != first
                    }
                }
        };
        let tensors = inputs.iter().chain(outputs).enumerate();
        tensors.map(is_parameter).collect()
    }

    /// Returns the factor by which a tensor grows as the numbers of samples and tokens grow; `None` for parameters.
    fn tensor_growth_by_tokens(
        &self,
        shape: &[u64],
        is_parameter: bool,
        by: BatchSequenceHiddenFactors,
    ) -> Option<f64> {
        let tokens_only = match (self.batch, self.tokens) {
            (Some(batch), Some(tokens)) => {
                shape.len() <= 2 && shape[0] == tokens && batch > 1 && tokens != batch
            }
            _ => false,
        };
        if count_elements(shape) <= 1 || is_parameter {
            return None;
        }
        if tokens_only {
            // Position indices and tables of rotary angles describe a single sequence, so they do not grow with the
            // batch.
            return Some(by.sequence.to_f64());
        }
        let sequences = match self.tokens {
            Some(tokens) if shape.len() > 2 => {
                let along = shape[1..].iter().filter(|&&size| size == tokens).count();
                along.clamp(1, 2) as i32
            }
            _ => 1,
        };
        Some(by.batch.to_f64() * by.sequence.to_f64().powi(sequences))
    }

    /// Scales the nodes that `which` selects, starting from the values that they had before all edits.
    pub fn scale_selected_nodes(
        &self,
        program: &mut EditableRankProgram<'_>,
        by: BatchSequenceHiddenFactors,
        which: &dyn Fn(u32) -> bool,
    ) -> ScaledNodeCountsByMethod {
        let mut counts = ScaledNodeCountsByMethod::default();
        for item in program.order.clone() {
            let facts = *program.facts_of_item(item);
            // Messages between stages carry activations or their gradients, even in another phase.
            let passes = matches!(
                facts.phase,
                TrainingStepPhase::Forward | TrainingStepPhase::Backward
            );
            let op = program.view_of_item(item).op;
            let was_widened = facts.unedited.is_some() && !passes;
            if (by.hidden != ScaleFactor::ONE || was_widened) && which(item) && !passes {
                self.widen_parameter_work(program, item, by, &mut counts);
            }
            let sends =
                matches!(op, Op::Message { .. }) && facts.phase != TrainingStepPhase::Outside;
            if !(passes || sends) || !which(item) {
                continue;
            }
            let changed = match op {
                Op::Compute { .. } => self.scale_kernel(program, item, by, &mut counts),
                Op::Message { bytes, .. } | Op::Collective { bytes, .. } if bytes > 0 => {
                    let widens = self.batch.zip(self.tokens).is_none_or(|(batch, tokens)| {
                        // Transfers of only a few numbers per token, such as a loss, do not grow with the hidden
                        // size.
                        let bytes = parse_attribute_count_before_edits(facts.unedited, "comm_size")
                            .unwrap_or(bytes);
                        bytes > 8 * batch.saturating_mul(tokens)
                    });
                    let hidden = if widens { by.hidden.to_f64() } else { 1.0 };
                    let growth = by.token_growth() * hidden;
                    let node = program.items[item as usize].node;
                    let layer = facts.layer;
                    let fixed = program
                        .view_of_node(node)
                        .memory
                        .nonzero_changes_with_attribute_names()
                        .map(|(name, now)| {
                            let all = parse_attribute_count_before_edits(facts.unedited, name)
                                .unwrap_or(now);
                            let fixed =
                                self.parameter_bytes_of_allocation(program, node, name, all);
                            let wider = self
                                .widths
                                .growth_of_layer_parameters(layer, fixed, by.hidden);
                            (name, fixed, wider)
                        });
                    let fixed: Vec<(&str, u64, f64)> = fixed.collect();
                    scale_communication_bytes_and_time(program, item, bytes, growth, &fixed, by);
                    true
                }
                _ => continue,
            };
            counts.matched += 1;
            counts.changed += u64::from(changed);
        }
        counts
    }

    fn scale_kernel(
        &self,
        program: &mut EditableRankProgram<'_>,
        item: u32,
        by: BatchSequenceHiddenFactors,
        counts: &mut ScaledNodeCountsByMethod,
    ) -> bool {
        let node = program.items[item as usize].node;
        let (view, facts) = (*program.view_of_node(node), program.facts[node as usize]);
        let old = unedited_work_of_kernel(program, node);
        let (inputs, outputs) = tensor_shapes_of_kernel(program, node);
        let shapes: Vec<TensorShape> = inputs.iter().chain(&outputs).cloned().collect();
        let sums = |kernel| is_matmul_summing_over_samples(kernel, facts.phase, &inputs);
        let product = match old.flops > 0 {
            false => KernelWeightOrWeightGradientMatmul::None,
            true if view.kernel.is_some_and(sums) => {
                KernelWeightOrWeightGradientMatmul::GradientOfWeight
            }
            true => KernelWeightOrWeightGradientMatmul::WithWeight,
        };
        let parameters = self.mark_parameter_tensors(product, &inputs, &outputs);
        let tensors = || shapes.iter().zip(parameters.iter().copied());
        let grown: Vec<Option<f64>> = tensors()
            .map(|(shape, is_parameter)| self.tensor_growth(shape, is_parameter, by))
            .collect();
        let by_tokens = tensors().filter_map(|(shape, is_parameter)| {
            self.tensor_growth_by_tokens(shape, is_parameter, by)
        });
        let by_tokens: Vec<f64> = by_tokens.collect();
        let hidden = by.hidden.to_f64();
        let products = old.flops > 0;
        let (mut flops, mut bytes) = (old.flops as f64, old.bytes as f64);
        if shapes.is_empty() {
            counts.without_shapes += 1;
            flops *= by.token_growth() * hidden * hidden;
            bytes *= by.token_growth() * hidden;
        } else {
            // Do not skip a kernel that an earlier edit changed, because this edit may restore its values.
            if grown.iter().all(Option::is_none) && !products && facts.unedited.is_none() {
                return false;
            }
            let attends = is_attention(program, node);
            if products {
                let squares = attends
                    || by_tokens.iter().any(|&g| {
                        g > by.token_growth() * 1.000_1 || g < by.token_growth() * 0.999_9
                    });
                let sequence = by.sequence.to_f64();
                flops *= by.token_growth() * if squares { sequence } else { 1.0 };
                let power = match attends {
                    true => 1,
                    false => self
                        .widths
                        .hidden_size_power_of_matmul_flops(&inputs, &parameters),
                };
                flops *= hidden.powi(power);
            }
            let sizes = shapes.iter().map(|shape| count_elements(shape) as f64);
            let all: f64 = sizes.clone().sum();
            let tensors = sizes.zip(&grown).zip(&shapes);
            let new: f64 = tensors
                .map(|((size, growth), _)| {
                    let growth = if attends && growth.is_some() {
                        Some(by.token_growth() * hidden)
                    } else {
                        *growth
                    };
                    size * growth.unwrap_or(1.0)
                })
                .sum();
            if all > 0.0 {
                bytes *= new / all;
            }
        }
        let call = self.fixed_call_time_of_kernel(view.name);
        let fixed = call.fixed.min(old.ns as f64);
        // A kernel with FLOPs is limited by its bytes if it moves them at no less than half of the highest rate. An
        // example is a multiplication of few rows by weights. All other kernels with FLOPs are limited by their FLOPs.
        let by_bytes = |bytes: f64| match self.bytes_rate > 0.0 {
            true => bytes / self.bytes_rate,
            false => 0.0,
        };
        let moves = products && by_bytes(old.bytes as f64) >= old.ns as f64 / 2.0 && old.ns > 0;
        let weight = |flops: f64, bytes: f64| match (products, moves) {
            (true, true) => (flops / self.flops_rate).max(by_bytes(bytes)),
            (true, false) => flops,
            (false, _) => bytes,
        };
        let before = weight(old.flops as f64, old.bytes as f64);
        let ratio = match before > 0.0 {
            true => weight(flops, bytes) / before,
            // If the work is unknown, assume that it grows with the number of tokens and with the hidden size.
            false => by.token_growth() * hidden,
        };
        let ns = old.profiler as f64 + fixed + (old.ns as f64 - fixed) * ratio;
        counts.by_line += u64::from(call.by_line);
        let in_delay = program.has_work_time_in_delay(node);
        let mut new: Vec<(&'static str, NewAttributeValueOrRemoval)> = Vec::new();
        let count = |value: f64| NewAttributeValueOrRemoval::Count(value.round().max(0.0) as u64);
        if old.ns > 0 {
            let name = if in_delay { "delay_ns" } else { "duration_ns" };
            new.push((name, count(ns)));
        }
        if old.flops > 0 {
            new.push(("num_ops", count(flops)));
        }
        if old.bytes > 0 {
            new.push(("tensor_size", count(bytes)));
        }
        if let Some(kernel) = view.kernel
            && let Some(kernel) = self.scaled_kernel_shape(kernel, facts.phase, &inputs, by)
        {
            new.push((
                "kernel_shape",
                NewAttributeValueOrRemoval::Text(kernel.to_string()),
            ));
        }
        let unedited = ValuesReplacedByEdits::parse(facts.unedited);
        let kept = if outputs.is_empty() {
            &inputs
        } else {
            &outputs
        };
        let widens = |shape: &TensorShape| self.widths.hidden_size_power_of_activation(shape) > 0;
        let held = match kept.is_empty() || kept.iter().any(widens) {
            true => hidden,
            false => 1.0,
        };
        for (name, now) in view.memory.nonzero_changes_with_attribute_names() {
            let bytes = unedited.attribute_count_before_edits(name).unwrap_or(now);
            let fixed = self.parameter_bytes_of_allocation(program, node, name, bytes);
            if name.ends_with(".activations") || name.ends_with(".temporary") {
                new.push((
                    name,
                    count(
                        fixed as f64
                            * self
                                .widths
                                .growth_of_layer_parameters(facts.layer, fixed, by.hidden)
                            + (bytes - fixed) as f64 * by.token_growth() * held,
                    ),
                ));
            }
        }
        change_attributes_keeping_unedited(
            program,
            item,
            new,
            by == BatchSequenceHiddenFactors::NONE,
        );
        true
    }

    /// Returns the shape of a kernel after its number of rows, sequences or keys has grown.
    fn scaled_kernel_shape(
        &self,
        kernel: KernelShape,
        phase: TrainingStepPhase,
        inputs: &[TensorShape],
        by: BatchSequenceHiddenFactors,
    ) -> Option<KernelShape> {
        let tokens = by.batch.multiply_factors_if_representable(by.sequence)?;
        let sums = is_matmul_summing_over_samples(kernel, phase, inputs);
        let kernel = match by.hidden == ScaleFactor::ONE {
            true => kernel,
            false => self
                .widths
                .widen_kernel_shape(kernel, by.hidden, [!sums, false, sums]),
        };
        let mut scaled = kernel;
        match &mut scaled {
            KernelShape::Attention {
                batch,
                queries,
                keys,
                ..
            } => {
                *batch = by.batch.scale_value(*batch);
                (*queries, *keys) = (
                    by.sequence.scale_value(*queries),
                    by.sequence.scale_value(*keys),
                );
            }
            KernelShape::Gemm { batch, m, n, k } if *batch > 1 => {
                *batch = by.batch.scale_value(*batch);
                for size in [m, n, k] {
                    if Some(*size) == self.tokens {
                        *size = by.sequence.scale_value(*size);
                    }
                }
            }
            KernelShape::Gemm { k, .. } if sums => *k = tokens.scale_value(*k),
            KernelShape::Gemm { m, .. } => *m = tokens.scale_value(*m),
            KernelShape::Moving(_) => return None,
        }
        Some(scaled)
    }
}
