//! Kernels of one operator: FLOPs, bytes, and what they keep for the backward pass.
//!
//! `n` are the rows of all samples of a micro-batch, of which a member of a tensor group may have a shard; `d` bytes
//! of a number, `g` of a weight's gradient. FLOPs are those of matrix products, two for a multiplication and an
//! addition; elementwise work counts none, as in papers that state FLOPs of models. Every operand is read once and
//! every result written once.
//!
//! | operator | forward | bytes forward | backward | bytes backward | kept |
//! |---|---|---|---|---|---|
//! | linear, `n x k` by `k x m` (`cost/linear.rs`) | `2nkm` | `d (nk + km + nm)` | `dgrad`: `2nkm`; `wgrad`: `2nkm` | as forward; `d (nk + nm) + g km`, and `g km` more where micro-batches are summed up | its input, `d nk`, or as it was cast |
//! | other products: convolutions, and pairs of vectors (`cost/products.rs`) | two for each multiplication | input, weights, output | the same twice | the same, `g` for the weights' gradient | its input |
//! | products of experts | of all experts' rows together, each expert's weights once; or as many kernels as experts, of its rows and weights each | | | | |
//! | expert dispatch (`cost/router.rs`) | | | | | |
//! | attention (`cost/attention.rs`) | | | | | |
//! | without products (`model/spec/kernels.rs`) | | as the operator's entry says | | the same | |
//!
//! Kept bytes are those that Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
//! 2022, count in section 4.1: `s b h (34 + 5 a s / h)` bytes for a block of GPT-3's kind in 16 bits.

use super::super::GenerateError;
use super::program::OperandBytes;
use crate::generate::plan::{ElementwiseKernels, LossKernel, ScalingRecipe, SoftmaxKernel};
use crate::model::{KernelSpec, OperatorKind, OperatorSpec};
use chakram_trace::format::Dtype;

mod attention;
mod kernel;
mod linear;
mod moving;
mod products;
mod router;
mod unfused;

pub(super) use kernel::{LoweredKernel, OperatorKernels};
use kernel::{bytes, chain, gemm, kernel};
pub(super) use linear::pair_bytes;

/// Sizes that all kernels share.
#[derive(Clone, Copy, Debug)]
pub(super) struct CostParameters {
    /// Samples of a micro-batch.
    pub samples: u64,
    /// Bytes of a number.
    pub number: u64,
    /// Bytes of a weight's gradient.
    pub gradient: u64,
    /// True if gradients are accumulated over micro-batches.
    pub sums: bool,
    /// True for fused attention.
    pub fused: bool,
    /// Softmax of unfused attention.
    pub softmax: SoftmaxKernel,
    /// Cross entropy of logits.
    pub loss: LossKernel,
    /// True if models that have dropout apply it.
    pub dropout: bool,
    /// Number format of the operands of linear layers, where it is another.
    pub linear: Option<Dtype>,
    /// Scaling of numbers of 8 bits.
    pub scaling: ScalingRecipe,
    /// Kernels beside products.
    pub elementwise: ElementwiseKernels,
    /// True if each expert's product is a kernel of its own.
    pub one_by_one: bool,
    /// Number format of tokens that are sent to experts, if they are cast for it.
    pub sent: Option<Dtype>,
}

impl CostParameters {
    /// The kernels of `work`, which is one member's shard of an operator.
    pub fn kernels(&self, work: OperatorKind) -> Result<OperatorKernels, GenerateError> {
        let work = if self.dropout {
            work
        } else {
            work.without_dropout()
        };
        let spec = work.spec();
        let mut kernels = self.of(&spec)?;
        let [kept, scores] = spec.kept_bytes(self.number, self.fused);
        let saved = |one: u64| bytes(u128::from(self.samples) * u128::from(one));
        // Kept apart, since selective recomputation drops only these.
        kernels.scores = saved(scores)?;
        kernels.keeps = saved(kept)? - kernels.scores;
        if let (true, Some(dtype), true) = (spec.is_linear(), self.linear, self.quantizes()) {
            // A tensor that is kept was cast.
            kernels.keeps = kernels.keeps / (2 * self.number) * pair_bytes(dtype);
        }
        self.set_operands(&work, spec.looks_up(), &mut kernels);
        Ok(kernels)
    }

    /// Sets the operands of an operator at its first kernel forwards, at the one that finds the gradient of its input, and
    /// at the one of its weights. A look-up reads rows, and adds to them, once.
    fn set_operands(&self, work: &OperatorKind, looks_up: bool, kernels: &mut OperatorKernels) {
        let each = self.samples.saturating_mul(self.number);
        let [input, output] =
            [work.input_elements(), work.output_elements()].map(|all| all.saturating_mul(each));
        let weights = work.parameters().saturating_mul(self.number);
        let found = work.parameters().saturating_mul(self.gradient);
        let both = input.saturating_add(output);
        let forward = if looks_up {
            OperandBytes {
                input: 0,
                weights: weights.min(output),
                output,
            }
        } else {
            OperandBytes {
                input,
                weights,
                output,
            }
        };
        // The gradient of the output comes in; without a kernel of its own the weights' gradient needs the input too.
        let apart = kernels.weights.is_some();
        let backward = if looks_up {
            OperandBytes {
                input: output,
                weights: 0,
                output: found.min(output),
            }
        } else {
            OperandBytes {
                input: if apart { output } else { both },
                weights,
                output: input,
            }
        };
        let gradient = OperandBytes {
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

    fn of(&self, spec: &OperatorSpec) -> Result<OperatorKernels, GenerateError> {
        match spec.kernels {
            KernelSpec::Products if spec.is_linear() => {
                let [rows, inputs, outputs] = ['m', 'k', 'n'].map(|axis| spec.extent(axis).into());
                let bias = spec.weights.iter().any(|one| !one.axes.contains('k'));
                let experts = spec.expert_weights().max(1).into();
                let sizes = [self.rows(rows), inputs, outputs];
                match self.one_by_one && experts > 1 {
                    true => self.linear_of_each(sizes, experts, bias),
                    false => self.linear(sizes, experts, bias),
                }
            }
            KernelSpec::Products => self.products(spec),
            KernelSpec::Router {
                sigmoid,
                biased,
                grouped,
            } => self.router(spec, [sigmoid, biased, grouped]),
            KernelSpec::LatentUp => self.latent_up(spec),
            KernelSpec::Attention {
                rotary,
                dropout,
                qk_norm,
            } => self.attention(spec, dropout, [rotary, qk_norm]),
            KernelSpec::Moving { fused, one_by_one } => {
                let fuses = if spec.reduces_columns() {
                    self.loss == LossKernel::Fused
                } else {
                    self.elementwise != ElementwiseKernels::Eager
                };
                let kernels = one_by_one.filter(|_| !fuses).unwrap_or(fused);
                self.moving(spec, &kernels)
            }
        }
    }

    /// Rows of all samples.
    fn rows(&self, of_sample: u128) -> u128 {
        u128::from(self.samples).saturating_mul(of_sample)
    }

    /// Sizes of the tensor over `axes` of all samples, whose rows are one axis.
    fn sizes(&self, spec: &OperatorSpec, axes: &str) -> Vec<u128> {
        let is_row = |axis: &char| matches!(axis, 'm' | 'c' | 'l');
        let rows: String = axes.chars().filter(is_row).collect();
        let others = axes.chars().filter(|axis| !is_row(axis));
        let others = others.map(|axis| spec.extent(axis).into());
        [self.rows(spec.volume(&rows))]
            .into_iter()
            .chain(others)
            .collect()
    }
}
