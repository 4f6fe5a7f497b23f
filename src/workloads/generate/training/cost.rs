//! Kernel costs of operators: FLOPs, bytes, and the tensors that are saved for the backward pass.
//!
//! `n` is the number of rows in all samples of a micro-batch, or one member's share of these rows. `d` is the number of
//! bytes per value, and `g` is the number of bytes per weight gradient. Only matrix products count as FLOPs, two per
//! multiply-add. Elementwise work does not count, because papers usually omit it from a model's FLOPs. A kernel reads
//! each operand once, and writes each result once.
//!
//! | operator | forward | bytes forward | backward | bytes backward | kept |
//! |---|---|---|---|---|---|
//! | linear, `n x k` by `k x m` (`cost/linear.rs`) | `2nkm` | `d (nk + km + nm)` | `dgrad`: `2nkm`; `wgrad`: `2nkm` | as forward; `d (nk + nm) + g km`, and `g km` more if micro-batches are summed | its input, `d nk`, or the cast input |
//! | other products: convolutions, and pairs of vectors (`cost/products.rs`) | two per multiplication | input, weights, output | the same twice | the same, `g` for the weights' gradient | its input |
//! | products of experts | over all experts' rows together, with each expert's weights once; or one kernel per expert, over its rows and weights | | | | |
//! | expert dispatch (`cost/router.rs`) | | | | | |
//! | attention (`cost/attention.rs`) | | | | | |
//! | without products (`model/spec/kernels.rs`) | | from the operator's entry | | the same | |
//!
//! Saved bytes follow Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
//! Models", 2022, section 4.1: for a block like GPT-3's in 16 bits, `s b h (34 + 5 a s / h)` bytes.

use super::super::PatternOptionError;
use super::program::OperatorOperandBytes;
use crate::generate::plan::{ElementwiseKernels, LossKernel, ScalingRecipe, SoftmaxKernel};
use crate::model::{
    ActivationFunction, OperatorAxesAndTensorsSpec, OperatorKernelSpec, OperatorKind,
    TrainedOperatorWeights,
};
use chakram_trace::format::Dtype;

mod adapter;
mod attention;
mod expert_copies;
mod kernel;
mod linear;
mod moving;
mod products;
mod router;
mod unfused;

pub(super) use kernel::{LoweredKernel, OperatorKernels};
use kernel::{build_kernel, build_saturated_gemm_shape, check_kernel_byte_limit, kernel_chain};
pub(super) use linear::bytes_of_two_numbers;

/// Sizes and options that affect the costs of all kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelCostSizesAndOptions {
    /// Number of samples per micro-batch.
    pub samples: u64,
    /// Bytes per value in the plan's number format.
    pub number: u64,
    /// Number of bytes per weight gradient.
    pub gradient: u64,
    /// True if gradients are accumulated over several micro-batches.
    pub sums: bool,
    /// True for one fused kernel of attention, false for several kernels.
    pub fused: bool,
    /// True if kernels gather the tokens of sequences for the fused kernel, and scatter its results.
    pub unpads: bool,
    /// Implementation of the softmax in unfused attention.
    pub softmax: SoftmaxKernel,
    /// Implementation of the cross-entropy loss.
    pub loss: LossKernel,
    /// True if models with dropout apply it.
    pub dropout: bool,
    /// Number format of linear layers' operands, if it differs from the plan's format.
    pub linear: Option<Dtype>,
    /// Method for choosing the scales of 8-bit matrix products.
    pub scaling: ScalingRecipe,
    /// Implementation of all kernels except matrix products.
    pub elementwise: ElementwiseKernels,
    /// True if each expert has its own matrix-product kernels.
    pub one_by_one: bool,
    /// True if separate kernels add the experts' biases.
    pub adds_expert_biases: bool,
    /// True if the host waits for the number of tokens that routers send to each expert.
    pub counts_on_host: bool,
    /// Number format of tokens that are sent to experts; `None` if tokens keep their format.
    pub sent: Option<Dtype>,
    /// Says which of the operator's weights training changes.
    pub training: TrainedOperatorWeights,
}

impl KernelCostSizesAndOptions {
    /// Returns the kernels of `work`, which is one member's part of an operator.
    pub fn kernels_of_operator(
        &self,
        work: OperatorKind,
    ) -> Result<OperatorKernels, PatternOptionError> {
        let work = if self.dropout {
            work
        } else {
            work.without_dropout()
        };
        let spec = work.to_axes_and_tensors();
        let mut kernels = self.kernels_from_axes_and_tensors(&spec)?;
        let [kept, scores] = spec.kept_bytes(self.number, self.fused);
        let saved = |one: u64| check_kernel_byte_limit(u128::from(self.samples) * u128::from(one));
        // Count scores separately, because selective recomputation omits only them from the saved bytes.
        kernels.scores = saved(scores)?;
        kernels.keeps = saved(kept)? - kernels.scores;
        if let (true, Some(dtype), true) = (
            spec.is_matrix_product_without_windows(),
            self.linear,
            self.casts_operands(),
        ) {
            // The backward pass uses the cast tensor, so that tensor is saved instead of the original.
            kernels.keeps = kernels.keeps / (2 * self.number) * bytes_of_two_numbers(dtype);
        }
        if let OperatorKind::Activation {
            function: ActivationFunction::ClampedSilu,
            rows,
            width,
            gated: true,
        } = work
            && self.one_by_one
        {
            self.add_gate_input_clamp_kernels(
                [self.rows_per_micro_batch(rows.into()), width.into()],
                &mut kernels,
            )?;
        }
        if self.training != TrainedOperatorWeights::All && kernels.weights.take().is_some() {
            kernels.after_weights.clear();
            // The gradient of a matrix product's input depends only on the weights, so nothing else
            // is saved for it. A router, however, also saves its scores.
            if !matches!(spec.kernels, OperatorKernelSpec::Router { .. }) {
                kernels.keeps = 0;
            }
        }
        self.set_operand_bytes(&work, spec.looks_up_table_rows(), &mut kernels);
        Ok(kernels)
    }

    /// Attaches an operator's operands to three kernels: the first forward kernel, the
    /// input-gradient kernel, and the weight-gradient kernel. A look-up reads each row once, and
    /// its backward pass adds to the gradient of each row once.
    fn set_operand_bytes(
        &self,
        work: &OperatorKind,
        looks_up: bool,
        kernels: &mut OperatorKernels,
    ) {
        let each = self.samples.saturating_mul(self.number);
        let [input, output] =
            [work.input_elements(), work.output_elements()].map(|all| all.saturating_mul(each));
        let weights = work.parameter_count().saturating_mul(self.number);
        let found = work.parameter_count().saturating_mul(self.gradient);
        let both = input.saturating_add(output);
        let forward = if looks_up {
            OperatorOperandBytes {
                input: 0,
                weights: weights.min(output),
                output,
            }
        } else {
            OperatorOperandBytes {
                input,
                weights,
                output,
            }
        };
        // The output's gradient is an operand of the backward kernel. Without a separate kernel for the weight
        // gradient, it also reads the forward input.
        let apart = kernels.weights.is_some();
        let backward = if looks_up {
            OperatorOperandBytes {
                input: output,
                weights: 0,
                output: found.min(output),
            }
        } else {
            OperatorOperandBytes {
                input: if apart { output } else { both },
                weights,
                output: input,
            }
        };
        let gradient = OperatorOperandBytes {
            input: both,
            weights: 0,
            output: found,
        };
        let set = |kernel: Option<&mut LoweredKernel>, operands| {
            if let Some(kernel) = kernel {
                kernel.operands = Some(operands);
            }
        };
        set(kernels.forward.first_mut(), forward);
        set(kernels.backward.first_mut(), backward);
        set(kernels.weights.as_mut(), gradient);
    }

    fn kernels_from_axes_and_tensors(
        &self,
        spec: &OperatorAxesAndTensorsSpec,
    ) -> Result<OperatorKernels, PatternOptionError> {
        match spec.kernels {
            OperatorKernelSpec::Products if spec.is_matrix_product_without_windows() => {
                let [rows, inputs, outputs] =
                    ['m', 'k', 'n'].map(|axis| spec.extent_of_axis(axis).into());
                let bias = spec.weights.iter().any(|one| !one.axes.contains('k'));
                let experts = spec.expert_weights().max(1).into();
                let sizes = [self.rows_per_micro_batch(rows), inputs, outputs];
                match self.one_by_one && experts > 1 {
                    true => self.per_expert_linear_kernels(sizes, experts, bias),
                    false => self.linear_kernels(sizes, experts, bias),
                }
            }
            OperatorKernelSpec::Products => self.matrix_product_kernels(spec),
            OperatorKernelSpec::Router {
                sigmoid,
                biased,
                grouped,
            } => self.router_kernels(spec, [sigmoid, biased, grouped]),
            OperatorKernelSpec::LatentUp => self.latent_up(spec),
            OperatorKernelSpec::Attention {
                rotary,
                dropout,
                qk_norm,
            } => self.attention_kernels(spec, dropout, [rotary, qk_norm]),
            OperatorKernelSpec::Moving { fused, one_by_one } => {
                let fuses = if spec.reduces_rows_to_numbers() {
                    self.loss == LossKernel::Fused
                } else {
                    self.elementwise != ElementwiseKernels::Eager
                };
                let kernels = one_by_one.filter(|_| !fuses).unwrap_or(fused);
                self.kernels_without_products(spec, &kernels)
            }
        }
    }

    /// Returns the number of rows per micro-batch, with `of_sample` rows per sample.
    fn rows_per_micro_batch(&self, of_sample: u128) -> u128 {
        u128::from(self.samples).saturating_mul(of_sample)
    }

    /// Returns the sizes of the tensor with the axes `axes`, including all samples. All row axes
    /// are merged into one axis.
    fn tensor_axis_sizes(&self, spec: &OperatorAxesAndTensorsSpec, axes: &str) -> Vec<u128> {
        let is_row = |axis: &char| matches!(axis, 'm' | 'c' | 'l');
        let rows: String = axes.chars().filter(is_row).collect();
        let others = axes.chars().filter(|axis| !is_row(axis));
        let others = others.map(|axis| spec.extent_of_axis(axis).into());
        [self.rows_per_micro_batch(spec.tensor_element_count(&rows))]
            .into_iter()
            .chain(others)
            .collect()
    }
}
