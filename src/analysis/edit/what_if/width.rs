//! Finds the tensor sizes that grow with a model's hidden size (the widths), and the power of the hidden size with
//! which each tensor grows.
//!
//! The sizes of weights in matrix multiplications are widths. The exception is the size of the vocabulary, which occurs
//! only in the embedding and the loss. The sizes of an activation tensor are the numbers of samples and tokens,
//! followed by a width. The width is either one size or two (the number of heads and the width of a head). The work of
//! multiplications with weights grows with the square of the hidden size, and all other work in proportion to it.
//! Attention gets more heads of the same width if their number is then an integer. Otherwise, the heads become wider.

use super::gradients;
use super::grammar::{HiddenSizeChange, ScaleFactor};
use super::program::{EditableRankProgram, TrainingStepPhase};
use super::shapes::{
    TensorShape, count_elements, parse_argument_shapes, parse_shapes, sort_sizes_without_ones,
};
use super::unedited::parse_attribute_count_before_edits;
use chakram_base::kernel_shape::{KernelShape, MemoryBoundKernelClass};
use chakram_trace::format::{Op, TraceError};
use std::collections::{BTreeMap, BTreeSet};

/// Sizes of a model that change with its hidden size.
#[derive(Debug, Default)]
pub(super) struct ModelWidths {
    /// Sizes of weights that are proportional to the hidden size.
    widths: BTreeSet<u64>,
    hidden: Option<u64>,
    /// Size of the whole vocabulary, and of a rank's shard of it.
    vocabulary: BTreeSet<u64>,
    heads: BTreeSet<u64>,
    kv_heads: BTreeSet<u64>,
    head_widths: BTreeSet<u64>,
    /// Sizes that count samples or tokens: number of samples, number of tokens per sequence, and row counts of matrix
    /// multiplications.
    leading: BTreeSet<u64>,
    /// Numbers of weight elements: per layer of a generated job, and the total under the key `None`. The first number
    /// counts elements of weights with one width, the second those of weights with two widths.
    weights: BTreeMap<Option<u32>, [u64; 2]>,
    /// Bytes of all weights and of all gradients, as a generated job states them.
    stated: [u64; 2],
    /// Bytes per weight element, derived from the number format that matrix multiplications use.
    element: u64,
}

impl ModelWidths {
    /// Derives the widths from a program's matrix multiplications; `samples` contains the number of samples and the
    /// number of tokens, where these are known.
    pub fn learn_widths(program: &EditableRankProgram<'_>, samples: [Option<u64>; 2]) -> Self {
        let mut this = Self {
            leading: samples.into_iter().flatten().collect(),
            ..Self::default()
        };
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        let mut normalized: BTreeMap<u64, u64> = BTreeMap::new();
        for i in program.raw.range_of_all_node_indices() {
            let (view, facts) = (program.view_of_node(i), &program.facts[i as usize]);
            let shapes = parse_shapes(facts.inputs);
            for (name, now) in view.memory.nonzero_changes_with_attribute_names() {
                let bytes = parse_attribute_count_before_edits(facts.unedited, name).unwrap_or(now);
                match name {
                    "allocates.weights" => this.stated[0] += bytes,
                    "allocates.gradients" => this.stated[1] += bytes,
                    _ => {}
                }
            }
            match view.kernel {
                Some(KernelShape::Attention {
                    heads,
                    kv_heads,
                    width,
                    ..
                }) => {
                    this.heads.insert(heads);
                    this.kv_heads.insert(kv_heads);
                    this.head_widths.insert(width);
                }
                Some(KernelShape::Gemm { batch: 1, m, n, k })
                    if facts.phase == TrainingStepPhase::Forward =>
                {
                    this.leading.insert(m);
                    if let Op::Compute {
                        dtype: Some(dtype), ..
                    } = view.op
                    {
                        this.element = this.element.max(dtype.element_bytes() as u64);
                    }
                    for size in [n, k] {
                        *seen.entry(size).or_default() += 1;
                    }
                }
                _ => {}
            }
            let is_loss = matches!(
                view.kernel,
                Some(KernelShape::Moving(MemoryBoundKernelClass::CrossEntropy))
            ) || ["_log_softmax", "nll_loss", "cross_entropy"]
                .iter()
                .any(|part| view.name.contains(part));
            if is_loss {
                let last = shapes.iter().filter(|shape| shape.len() > 1);
                this.vocabulary
                    .extend(last.filter_map(|shape| shape.last()));
            }
            if view.name == "aten::embedding"
                && let Some([rows, _]) = parse_argument_shapes(facts.inputs).first().map(|s| &s[..])
            {
                this.vocabulary.insert(*rows);
            }
            let normalizes = matches!(
                view.kernel,
                Some(KernelShape::Moving(MemoryBoundKernelClass::Normalization))
            ) || view.name.contains("norm");
            if normalizes && let Some(&size) = shapes.first().and_then(|shape| shape.last()) {
                *normalized.entry(size).or_default() += 1;
            }
        }
        let most = seen.values().max().copied().unwrap_or(0);
        // If no loss shows the vocabulary size, assume that it is a size that occurs in only a few multiplications.
        let rare = |size: &u64| this.vocabulary.is_empty() && seen[size] * 8 <= most && *size > 1;
        let rare: Vec<u64> = seen.keys().copied().filter(rare).collect();
        this.vocabulary.extend(rare);
        this.vocabulary
            .retain(|size| seen.get(size).is_none_or(|&count| count * 2 <= most));
        this.widths = seen
            .into_keys()
            .filter(|size| !this.vocabulary.contains(size))
            .collect();
        let hidden = normalized
            .into_iter()
            .filter(|(size, _)| this.widths.contains(size));
        this.hidden = hidden.max_by_key(|&(_, count)| count).map(|(size, _)| size);
        this.count_weight_elements(program);
        this
    }

    /// Counts the elements of the weights that one forward pass multiplies.
    fn count_weight_elements(&mut self, program: &EditableRankProgram<'_>) {
        let mut first: Option<(Option<u32>, Option<u32>)> = None;
        for i in program.raw.range_of_all_node_indices() {
            let (view, facts) = (program.view_of_node(i), &program.facts[i as usize]);
            let Some(KernelShape::Gemm { batch: 1, n, k, .. }) = view.kernel else {
                continue;
            };
            let pass = (facts.step, facts.micro_batch);
            if facts.phase != TrainingStepPhase::Forward || *first.get_or_insert(pass) != pass {
                continue;
            }
            let sides = [n, k]
                .iter()
                .filter(|size| self.widths.contains(size))
                .count();
            for of in BTreeSet::from([None, facts.layer]) {
                if sides > 0 {
                    let weights = self.weights.entry(of).or_default();
                    weights[sides - 1] += n.saturating_mul(k);
                }
            }
        }
    }

    /// Converts a change of the hidden size to a factor.
    pub fn hidden_size_change_to_factor(
        &self,
        change: HiddenSizeChange,
    ) -> Result<ScaleFactor, TraceError> {
        let unknown = || {
            super::refuse_edit(
                "the widths of the layers are unknown: no matrix multiplication with weights in the forward pass has a recorded shape",
                "edit a job that was captured with shapes, or generated",
            )
        };
        if self.widths.is_empty() {
            return Err(unknown());
        }
        match change {
            HiddenSizeChange::Times(factor) => Ok(factor),
            HiddenSizeChange::To(size) => {
                let hidden = self.hidden.ok_or_else(unknown)?;
                ScaleFactor::new(size, hidden).ok_or_else(|| {
                    super::refuse_edit(
                        format!(
                            "the hidden size is {hidden}, and {size} is not a simple multiple of it"
                        ),
                        "a factor such as hidden=1.5x",
                    )
                })
            }
        }
    }

    /// Fails if a width would no longer be a whole number. `by` is the factor of all edits together.
    pub fn check_whole_widths(&self, by: ScaleFactor) -> Result<(), TraceError> {
        let is_whole = |size: &&u64| (**size * by.over).is_multiple_of(by.under);
        let mut broken = self.widths.iter().find(|size| !is_whole(size));
        // Attention has more heads if their number stays whole, and wider heads otherwise.
        let mut heads = self.heads.iter().chain(&self.kv_heads);
        if !heads.all(|count| is_whole(&count)) {
            broken = broken.or_else(|| self.head_widths.iter().find(|size| !is_whole(size)));
        }
        match broken {
            None => Ok(()),
            Some(size) => Err(super::refuse_edit(
                format!(
                    "a width of {size} would become {}, which is no whole number",
                    *size as f64 * by.to_f64()
                ),
                "a factor for which all widths stay whole, such as hidden=2x",
            )),
        }
    }

    /// Returns the power of the hidden size with which a weight's number of elements grows: 0, 1 or 2.
    pub fn hidden_size_power_of_weight(&self, shape: &[u64]) -> i32 {
        let sizes = shape.iter().filter(|size| self.widths.contains(size));
        sizes.count().min(2) as i32
    }

    /// Returns the power of the hidden size with which an activation tensor's number of elements grows: 0 or 1.
    pub fn hidden_size_power_of_activation(&self, shape: &[u64]) -> i32 {
        let mut rest: TensorShape = shape.to_vec();
        if rest.iter().any(|size| self.vocabulary.contains(size)) {
            return 0;
        }
        // Remove the numbers of samples and tokens: first the leading size, then known sizes one by one.
        if rest.len() > 1 {
            rest.remove(0);
        }
        loop {
            let size = count_elements(&rest);
            if self.widths.contains(&size) || self.heads.contains(&size) {
                return i32::from(size > 1);
            }
            match rest.iter().position(|size| self.leading.contains(size)) {
                Some(at) => {
                    rest.remove(at);
                }
                None => return 0,
            }
        }
    }

    /// Returns the power of the hidden size with which the FLOPs of a matrix multiplication grow. If one input is a
    /// weight, this is the power with which the weight's size grows. Otherwise, both inputs determine the power.
    pub fn hidden_size_power_of_matmul_flops(
        &self,
        inputs: &[TensorShape],
        are_parameters: &[bool],
    ) -> i32 {
        let matrices = inputs.iter().filter(|shape| shape.len() > 1);
        let mut tensors = inputs.iter().zip(are_parameters);
        let weight = tensors.find(|(shape, is_parameter)| shape.len() > 1 && **is_parameter);
        if let Some((weight, _)) = weight {
            return self.hidden_size_power_of_weight(weight);
        }
        let flat = matrices.clone().take(2).all(|shape| shape.len() == 2);
        let powers = matrices
            .take(2)
            .map(|shape| self.hidden_size_power_of_activation(shape));
        if flat {
            powers.sum()
        } else {
            powers.max().unwrap_or(1)
        }
    }

    /// Returns the shape of a kernel for a hidden size that is `by` times as large. `samples` has one entry per size of
    /// a multiplication; the entry is true if the size is a number of samples.
    pub fn widen_kernel_shape(
        &self,
        kernel: KernelShape,
        by: ScaleFactor,
        samples: [bool; 3],
    ) -> KernelShape {
        let mut wider = kernel;
        match &mut wider {
            KernelShape::Gemm { batch: 1, m, n, k } => {
                for (size, is_sample) in [m, n, k].into_iter().zip(samples) {
                    if self.widths.contains(size) && !is_sample {
                        *size = by.scale_value(*size);
                    }
                }
            }
            KernelShape::Attention {
                heads,
                kv_heads,
                width,
                ..
            } => {
                let is_whole = |count: u64| (count * by.over).is_multiple_of(by.under);
                if is_whole(*heads) && is_whole(*kv_heads) {
                    (*heads, *kv_heads) = (by.scale_value(*heads), by.scale_value(*kv_heads));
                } else {
                    *width = by.scale_value(*width);
                }
            }
            KernelShape::Gemm { .. } | KernelShape::Moving(_) => {}
        }
        wider
    }

    /// Returns the factor by which the parameters of `layers` grow in a generated job. If `gradients` is true, returns
    /// the factor for these parameters' gradients. An empty set of layers means all layers. `bytes` is the size that
    /// these parameters have on a rank. Parameters that no multiplication uses (biases and norms) grow in proportion to
    /// the hidden size.
    pub fn growth_of_weights(
        &self,
        layers: &BTreeSet<u32>,
        bytes: Option<u64>,
        gradients: bool,
        by: ScaleFactor,
    ) -> f64 {
        let mut weights = [0_u64; 2];
        match layers.is_empty() {
            true => weights = self.weights.get(&None).copied().unwrap_or_default(),
            false => {
                let found = layers
                    .iter()
                    .filter_map(|&layer| self.weights.get(&Some(layer)));
                for of in found {
                    weights[0] += of[0];
                    weights[1] += of[1];
                }
            }
        }
        let [held, reduced] = self.stated.map(|bytes| bytes as f64);
        let wider = if gradients && held > 0.0 {
            (reduced / held).max(1.0)
        } else {
            1.0
        };
        let all = (weights[0] + weights[1]) as f64;
        let known = bytes.filter(|_| self.element > 0);
        let elements = known.map_or(all, |bytes| bytes as f64 / (self.element as f64 * wider));
        let rest = (elements - all).max(0.0);
        let r = by.to_f64();
        match all + rest > 0.0 {
            true => ((weights[0] as f64 + rest) * r + weights[1] as f64 * r * r) / (all + rest),
            false => r,
        }
    }

    /// Returns the factor by which one layer's parameters grow; `bytes` is the size of these parameters.
    pub fn growth_of_layer_parameters(
        &self,
        layer: Option<u32>,
        bytes: u64,
        by: ScaleFactor,
    ) -> f64 {
        let layers = layer.into_iter().collect();
        self.growth_of_weights(&layers, Some(bytes), false, by)
    }

    /// Returns the factor by which all parameters of a rank grow.
    pub fn growth_of_all_parameters(&self, by: ScaleFactor) -> f64 {
        let stated = Some(self.stated[0]).filter(|&bytes| bytes > 0);
        self.growth_of_weights(&BTreeSet::new(), stated, false, by)
    }
}

/// If `item` reduces gradients or gathers parameters in a generated job, returns the layers to which these belong.
pub(super) fn layers_of_gradient_or_parameter_transfer(
    program: &EditableRankProgram<'_>,
    item: u32,
) -> BTreeSet<u32> {
    let own = program.facts_of_item(item).layer;
    if program.has_layers && own.is_none() {
        return BTreeSet::new();
    }
    if !gradients::is_gradient_reduction(program, item) {
        return own.into_iter().collect();
    }
    let mut layers = BTreeSet::new();
    for dep in &program.items[item as usize].deps {
        let facts = program.facts_of_item(dep.on);
        if let (TrainingStepPhase::Backward, Op::Compute { .. }) =
            (facts.phase, program.view_of_item(dep.on).op)
        {
            layers.extend(facts.layer);
        }
    }
    if layers.is_empty() {
        layers.extend(own);
    }
    layers
}

/// Returns true if `parameters` contains the normal form of this shape.
pub(super) fn contains_normal_form_of_shape(
    parameters: &BTreeSet<TensorShape>,
    shape: &[u64],
) -> bool {
    parameters.contains(&sort_sizes_without_ones(shape))
}
