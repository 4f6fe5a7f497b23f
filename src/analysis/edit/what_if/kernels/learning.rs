//! Learns from a program which tensors are parameters, how large batches and sequences are, and how long calls of kernels
//! take.

use super::super::program::{EditableRankProgram, TrainingStepPhase};
use super::super::shapes::{
    TensorShape, parse_argument_shapes, parse_shapes, sort_sizes_without_ones,
};
use super::super::width::ModelWidths;
use super::KernelWorkAndTimeScaler;
use super::call_time::{FixedKernelCallTime, fit_intercept};
use super::gradients::map_kernels_to_whole_gradient_bytes;
use super::work::unedited_work_of_kernel;
use chakram_base::kernel_shape::KernelShape;
use chakram_base::statistics::median;
use chakram_trace::format::Op;
use std::collections::{BTreeMap, BTreeSet};

/// PyTorch operators that take parameters as arguments, and the indices of these arguments.
const PARAMETERS: &[(&str, &[usize])] = &[
    ("aten::linear", &[1, 2]),
    ("aten::embedding", &[0]),
    ("aten::layer_norm", &[2, 3]),
    ("aten::rms_norm", &[2]),
    ("aten::group_norm", &[2, 3]),
    ("aten::convolution", &[1, 2]),
    ("aten::conv1d", &[1, 2]),
    ("aten::conv2d", &[1, 2]),
    ("aten::conv3d", &[1, 2]),
    ("aten::batch_norm", &[1, 2, 3, 4]),
];

impl KernelWorkAndTimeScaler {
    /// Collects the shapes of parameters and the times of kernels in a program.
    pub fn new(program: &EditableRankProgram<'_>) -> Self {
        let mut this = Self {
            parameters: BTreeSet::new(),
            batch: None,
            tokens: None,
            widths: ModelWidths::default(),
            calls: BTreeMap::new(),
            gathered: BTreeMap::new(),
            whole_gradients: map_kernels_to_whole_gradient_bytes(program),
            shortest: 0.0,
            flops_rate: 0.0,
            bytes_rate: 0.0,
        };
        let mut leading: BTreeMap<u64, u64> = BTreeMap::new();
        for i in program.raw.range_of_all_node_indices() {
            let (view, facts) = (program.view_of_node(i), &program.facts[i as usize]);
            if let (TrainingStepPhase::Parameters, Some(layer), Op::Collective { .. }) =
                (facts.phase, facts.layer, view.op)
            {
                let temporary = view.memory.nonzero_changes_with_attribute_names();
                let mut temporary = temporary.filter(|(name, _)| name.ends_with(".temporary"));
                let bytes = temporary.next().map(|(_, bytes)| bytes);
                if let Some(bytes) = bytes {
                    this.gathered.entry(layer).or_insert(bytes);
                }
            }
            let known = PARAMETERS.iter().find(|(name, _)| *name == view.name);
            if let Some((_, places)) = known {
                let shapes = parse_argument_shapes(facts.inputs);
                let found = places.iter().filter_map(|&place| shapes.get(place));
                this.parameters
                    .extend(found.map(|shape| sort_sizes_without_ones(shape)));
            }
            if view.name == "aten::embedding"
                && let Some([batch, tokens]) =
                    parse_argument_shapes(facts.inputs).get(1).map(|s| &s[..])
            {
                this.batch = this.batch.or(Some(*batch));
                this.tokens = this.tokens.or(Some(*tokens));
            }
            match facts.phase {
                TrainingStepPhase::Parameters | TrainingStepPhase::Optimizer => {
                    let shapes = parse_shapes(facts.inputs);
                    let found = shapes.iter().map(|shape| sort_sizes_without_ones(shape));
                    this.parameters.extend(found);
                }
                TrainingStepPhase::Forward => {
                    for shape in parse_shapes(facts.inputs).iter().filter(|s| s.len() > 2) {
                        *leading.entry(shape[0]).or_default() += 1;
                    }
                }
                _ => {}
            }
            if let Some(KernelShape::Gemm { .. }) = view.kernel
                && facts.phase == TrainingStepPhase::Forward
                && let Some(weight) = parse_shapes(facts.inputs).get(1)
            {
                this.parameters.insert(sort_sizes_without_ones(weight));
            }
            if let Some(KernelShape::Attention { batch, queries, .. }) = view.kernel {
                this.batch = this.batch.or(Some(batch));
                this.tokens = this.tokens.or(Some(queries));
            }
        }
        this.parameters.remove(&TensorShape::new());
        let most = leading.into_iter().max_by_key(|&(_, count)| count);
        this.batch = this.batch.or(most.map(|(size, _)| size));
        this.learn_fixed_kernel_call_times(program);
        this.widths = ModelWidths::learn_widths(program, [this.batch, this.tokens]);
        this
    }

    fn learn_fixed_kernel_call_times(&mut self, program: &EditableRankProgram<'_>) {
        let mut by_name: BTreeMap<&str, BTreeMap<u64, Vec<u64>>> = BTreeMap::new();
        let mut shortest = u64::MAX;
        for i in program.raw.range_of_all_node_indices() {
            let view = program.view_of_node(i);
            if !matches!(view.op, Op::Compute { .. }) {
                continue;
            }
            let work = unedited_work_of_kernel(program, i);
            if work.ns == 0 {
                continue;
            }
            shortest = shortest.min(work.ns);
            let ns = work.ns as f64;
            self.flops_rate = self.flops_rate.max(work.flops as f64 / ns);
            self.bytes_rate = self.bytes_rate.max(work.bytes as f64 / ns);
            let amount = if work.flops > 0 {
                work.flops
            } else {
                work.bytes
            };
            let works = by_name.entry(view.name).or_default();
            works.entry(amount).or_default().push(work.ns);
        }
        self.shortest = if shortest == u64::MAX {
            0.0
        } else {
            shortest as f64
        };
        for (name, works) in by_name {
            let points: Vec<(f64, f64)> = works
                .into_iter()
                .filter(|(amount, _)| *amount > 0)
                .map(|(amount, mut times)| {
                    (amount as f64, median(&mut times).unwrap_or_default() as f64)
                })
                .collect();
            if let Some(fixed) = fit_intercept(&points) {
                let call = FixedKernelCallTime {
                    fixed,
                    by_line: true,
                };
                self.calls.insert(name.to_owned(), call);
            }
        }
    }
}
