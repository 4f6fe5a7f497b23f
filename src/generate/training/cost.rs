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
//! | convolution of `p` outputs per channel, `c` to `m` channels in `q` groups, filter `r` | `2 p m r c / q` | input, weights, output | the same twice | the same, `g` for the weights' gradient | its input |
//! | attention, fused: `a` query heads and `v` heads of keys and values, `w` wide, `s` tokens | `4nsaw` | `d n (2aw + 2vw) + 4na` | `10nsaw`: scores again, then four products | `d n (4aw + 4vw) + 4na` | queries, keys, values, and 4 B a row for the sum of its exponentials: `d n (aw + 2vw) + 4na` |
//! | … unfused: `scores` | `2nsaw` | `d (naw + nvw + nas)` | two products | each as forward | queries and keys |
//! | … `softmax`, with scale and mask | | `2d nas` | | `3d nas` | its result, `d nas` |
//! | … in single precision, where it is not one kernel | | `(2d + 32) nas`: cast, scale, mask, softmax, cast | | the same | its result |
//! | … `dropout` | | `(2d + 1) nas` | | `(2d + 1) nas` | mask and result, `(1 + d) nas` |
//! | … with Megatron-LM's kernels: `merge` of heads, `split` of their gradients | | `2d naw` | | `2d naw`; `2d n (aw + 2vw)` | |
//! | … `values` | `2nsaw` | `d (nas + nvw + naw)` | two products | each as forward | values |
//! | … rotary positions, of queries and keys | | `2d n (a + v) w` | | as forward | |
//! | … operation by operation | | `(2d + 16) n (a + v) w`: cast, product, cast | | as forward | |
//! | … PyTorch repeats heads of keys and values, where `v < a` | | `2d n (a + v) w` | | as forward | |
//! | RMSNorm, operation by operation | | `(4d + 28) nw`: cast, square, mean, product, cast, gain | | `(6d + 48) nw` | its input |
//! | norm, `w` wide | | `2d nw` | | `3d nw` | its input |
//! | activation, `w` wide | | `2d nw`; a gate `3d nw` | | `3d nw`; a gate `5d nw` | its input |
//! | … a gate, operation by operation | | `2d nw`; `3d nw` | | `3d nw` three times | its input |
//! | residual | | `3d nw` | | `3d nw`: two gradients are added | |
//! | … with dropout | | `(3d + 1) nw` | | `(5d + 1) nw` | the mask, `nw` |
//! | embedding | | `2d nw` | | `d nw + 2g nw` | |
//! | loss over `m` classes | | `(d + 36) nm` | | `(d + 12) nm` | probabilities in single precision, `4nm` |
//! | … fused, which reads logits twice and leaves gradients in their place | | `3d nm` | | `2d nm`: scaled | the same, though it needs no more than the gradients |
//! | pool | | input and output | | the same | its input |
//! | embedding bag, `l` rows per sample | | `d (l + 1) w` | | `d w + 2g l w` | |
//! | interaction of `v` vectors, `w` wide | `v (v - 1) w` | input and output | the same twice | each as forward | its input |
//!
//! Kept bytes are those that Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
//! 2022, count in section 4.1: `s b h (34 + 5 a s / h)` bytes for a block of GPT-3's kind in 16 bits. With a causal
//! mask a fused kernel leaves out the scores behind the diagonal: `(s + 1) / 2` in place of `s` above. The loss goes
//! over its logits as Megatron-LM's vocabulary-parallel cross entropy does: to single precision (`d + 4`), maximum
//! (4), difference (8), exponential (8), sum (4), quotient (8); and back: product (8), to the format of logits (`4 +
//! d`).

use super::super::GenerateError;
use super::residency::OperandBytes;
use crate::generate::plan::{ElementwiseKernels, LossKernel, ScalingRecipe, SoftmaxKernel};
use crate::model::OperatorKind;
use crate::trace::{Dtype, KernelShape, MovingKernel};

mod kernel;
mod linear;
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
}

impl CostParameters {
    /// RMSNorm operation by operation, in single precision between two casts, as PyTorch's composite function runs it.
    /// Casts and products with a number for each row or column go by the rate of copies, sums of rows by that of a softmax.
    fn rms_norm(&self, x: [u128; 2]) -> Result<OperatorKernels, GenerateError> {
        use MovingKernel::{Copy, ElementWise, Softmax};
        let d = u128::from(self.number);
        let forward = [
            (".single", Copy, d + 4),
            (".square", ElementWise, 8),
            (".mean", Softmax, 4),
            (".product", Copy, 8),
            (".half", Copy, 4 + d),
            (".gain", Copy, 2 * d),
        ];
        let backward = [
            (".gain.dinput", Copy, 2 * d),
            (".gain.dgain", Softmax, 2 * d),
            (".single", Copy, d + 4),
            (".product.dinput", Copy, 8),
            (".product.dscale", Softmax, 8),
            (".square", ElementWise, 12),
            (".sum", ElementWise, 12),
            (".half", Copy, 4 + d),
        ];
        let (forward, backward) = (chain(x, &forward)?, chain(x, &backward)?);
        Ok(OperatorKernels {
            forward,
            backward,
            ..OperatorKernels::default()
        })
    }

    /// Adds what is done to queries and keys, `x` elements together, and to heads of keys and values before attention, and
    /// the same on the way back.
    fn before_attention(
        &self,
        kernels: &mut OperatorKernels,
        rotary: bool,
        x: [u128; 2],
        shares: bool,
    ) -> Result<(), GenerateError> {
        let d = u128::from(self.number);
        let copy = MovingKernel::Copy;
        let one_by_one = [
            (".rotary.single", copy, d + 4),
            (".rotary.turn", copy, 8),
            (".rotary.half", copy, 4 + d),
        ];
        let in_one = [(".rotary", MovingKernel::ElementWise, 2 * d)];
        let mut before = match (rotary, self.elementwise) {
            (false, _) => Vec::new(),
            (true, ElementwiseKernels::Eager) => chain(x, &one_by_one)?,
            (true, _) => chain(x, &in_one)?,
        };
        if shares && self.elementwise.is_pytorch() {
            before.extend(chain(x, &[(".repeat", copy, 2 * d)])?);
        }
        kernels.backward.extend(before.iter().rev().cloned());
        kernels.forward.splice(..0, before);
        Ok(())
    }

    /// The kernels of `work`, which is one member's shard of an operator.
    pub fn kernels(&self, mut work: OperatorKind) -> Result<OperatorKernels, GenerateError> {
        if let OperatorKind::Attention { dropout, .. } | OperatorKind::Residual { dropout, .. } =
            &mut work
        {
            *dropout &= self.dropout;
        }
        let mut kernels = self.of(&work)?;
        let spec = work.spec();
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

    fn of(&self, work: &OperatorKind) -> Result<OperatorKernels, GenerateError> {
        let [b, d, g] = [self.samples, self.number, self.gradient].map(u128::from);
        let sums = g * if self.sums { 2 } else { 1 };
        let wide = |rows: u64| b * u128::from(rows);
        Ok(match *work {
            OperatorKind::Linear {
                rows,
                inputs,
                outputs,
                bias,
                ..
            } => self.linear([wide(rows), inputs.into(), outputs.into()], bias)?,
            OperatorKind::Convolution {
                inputs,
                outputs,
                size,
                kernel: filter,
                groups,
                ..
            } => {
                let [height, width] = size.map(u128::from);
                let (c, m) = (u128::from(inputs), u128::from(outputs));
                let [r, s] = filter.map(u128::from);
                let pixels = u128::from(work.output_elements()) / m.max(1);
                let out = b * m * pixels;
                let input = b * c * height * width;
                let weights = m * r * s * c / u128::from(groups).max(1);
                let flops = 2 * b * pixels * weights;
                let moved = d * (input + weights + out);
                let wgrad = d * (input + out) + sums * weights;
                let x = [b, c, height, width];
                let w = [m, c / u128::from(groups).max(1), r, s];
                let y = [b, m, pixels];
                OperatorKernels {
                    forward: vec![kernel("", flops, moved, &[&x, &w], &[&y])?],
                    backward: vec![kernel(".dgrad", flops, moved, &[&y, &w], &[&x])?],
                    weights: Some(kernel(".wgrad", flops, wgrad, &[&x, &y], &[&w])?),
                    ..OperatorKernels::default()
                }
            }
            OperatorKind::Attention {
                tokens,
                heads,
                kv_heads,
                width,
                causal,
                dropout,
                rotary,
            } => {
                let [s, a, v, w] = [tokens, heads, kv_heads, width].map(u128::from);
                let q = [b, a, s, w];
                let kv = [b, v, s, w];
                let n = b * s;
                let mut kernels = if self.fused {
                    // Each token with itself and those before it, or with all.
                    let pairs = if causal { s * (s + 1) / 2 } else { s * s };
                    let product = 2 * b * pairs * a * w;
                    let rows = 4 * n * a;
                    let moved = d * n * (2 * a * w + 2 * v * w) + rows;
                    // Reads q, k, v, the output and its gradient; writes the gradients of q, k and v.
                    let back = d * n * (4 * a * w + 4 * v * w) + rows;
                    let shape = |backward| KernelShape::Attention {
                        batch: self.samples,
                        heads,
                        kv_heads,
                        queries: tokens,
                        keys: tokens,
                        width,
                        causal,
                        backward,
                    };
                    OperatorKernels {
                        forward: vec![
                            kernel("", 2 * product, moved, &[&q, &kv, &kv], &[&q])?
                                .of(shape(false)),
                        ],
                        backward: vec![
                            kernel(
                                "",
                                // Recomputed scores and four products of the backward pass.
                                5 * product,
                                back,
                                &[&q, &q, &kv, &kv, &q],
                                &[&q, &kv, &kv],
                            )?
                            .of(shape(true)),
                        ],
                        ..OperatorKernels::default()
                    }
                } else {
                    self.unfused(dropout, n, s, [a, v, w], q, kv)?
                };
                self.before_attention(&mut kernels, rotary, [n, (a + v) * w], v < a)?;
                kernels
            }
            OperatorKind::Norm { rows, width, bias } => {
                let x = [wide(rows), width.into()];
                if self.elementwise == ElementwiseKernels::Eager && !bias {
                    return self.rms_norm(x);
                }
                self.moving(MovingKernel::Normalization, x, 2 * d, 3 * d)?
            }
            OperatorKind::Activation {
                rows, width, gated, ..
            } => {
                let x = [wide(rows), width.into()];
                if gated && self.elementwise == ElementwiseKernels::Eager {
                    let class = MovingKernel::ElementWise;
                    let forward = [(".function", class, 2 * d), (".gate", class, 3 * d)];
                    let backward = [".gate.dgate", ".gate.dvalue", ".function"]
                        .map(|name| (name, class, 3 * d));
                    return Ok(OperatorKernels {
                        forward: chain(x, &forward)?,
                        backward: chain(x, &backward)?,
                        ..OperatorKernels::default()
                    });
                }
                if gated {
                    self.moving(MovingKernel::ElementWise, x, 3 * d, 5 * d)?
                } else {
                    self.moving(MovingKernel::ElementWise, x, 2 * d, 3 * d)?
                }
            }
            OperatorKind::Residual {
                rows,
                width,
                dropout,
            } => {
                let x = [wide(rows), width.into()];
                if dropout {
                    self.moving(MovingKernel::ElementWise, x, 3 * d + 1, 5 * d + 1)?
                } else {
                    self.moving(MovingKernel::ElementWise, x, 3 * d, 3 * d)?
                }
            }
            OperatorKind::Loss { rows, classes } => {
                let x = [wide(rows), classes.into()];
                let [forward, backward] = match self.loss {
                    LossKernel::Composite => [d + 36, d + 12],
                    LossKernel::Fused => [3 * d, 2 * d],
                };
                let mut kernels = self.moving(MovingKernel::CrossEntropy, x, forward, backward)?;
                let all = kernels.forward.iter_mut().chain(&mut kernels.backward);
                all.for_each(|kernel| kernel.moves = false);
                kernels
            }
            OperatorKind::Embedding { width, tokens, .. } => {
                let x = [wide(tokens), width.into()];
                let mut kernels = self.moving(MovingKernel::Embedding, x, 2 * d, d + 2 * g)?;
                let all = kernels.forward.iter_mut().chain(&mut kernels.backward);
                all.for_each(|kernel| kernel.moves = false);
                kernels
            }
            OperatorKind::EmbeddingBag { width, lookups, .. } => {
                let (w, l) = (u128::from(width), u128::from(lookups));
                let [rows, sum] = [[b * l, w], [b, w]];
                let read = d * b * w * (l + 1);
                let back = b * w * (d + 2 * g * l);
                let mut kernels = OperatorKernels {
                    forward: vec![
                        kernel("", 0, read, &[&rows], &[&sum])?.moving(MovingKernel::Embedding),
                    ],
                    backward: vec![
                        kernel("", 0, back, &[&sum], &[&rows])?.moving(MovingKernel::Embedding),
                    ],
                    ..OperatorKernels::default()
                };
                let all = kernels.forward.iter_mut().chain(&mut kernels.backward);
                all.for_each(|kernel| kernel.moves = false);
                kernels
            }
            OperatorKind::Pool { .. } => {
                let (x, y) = Self::ends(work, b);
                let moved = d * (x + y);
                OperatorKernels {
                    forward: vec![
                        kernel("", 0, moved, &[&[x]], &[&[y]])?.moving(MovingKernel::ElementWise),
                    ],
                    backward: vec![
                        kernel("", 0, moved, &[&[y]], &[&[x]])?.moving(MovingKernel::ElementWise),
                    ],
                    ..OperatorKernels::default()
                }
            }
            OperatorKind::Interaction { vectors, width } => {
                let (v, w) = (u128::from(vectors), u128::from(width));
                let flops = b * v * v.saturating_sub(1) * w;
                let (x, y) = Self::ends(work, b);
                let moved = d * (x + y);
                let (x, y) = ([b, v, w], [b, y / b]);
                OperatorKernels {
                    forward: vec![kernel("", flops, moved, &[&x], &[&y])?],
                    backward: vec![kernel("", 2 * flops, 2 * moved, &[&y, &x], &[&x])?],
                    ..OperatorKernels::default()
                }
            }
        })
    }

    /// Elements that come in and go out, of all samples.
    fn ends(work: &OperatorKind, samples: u128) -> (u128, u128) {
        let x = samples * u128::from(work.input_elements());
        (x, samples * u128::from(work.output_elements()))
    }

    /// Kernels that move `forward` and `backward` bytes for each element of `x`.
    fn moving(
        &self,
        class: MovingKernel,
        x: [u128; 2],
        forward: u128,
        backward: u128,
    ) -> Result<OperatorKernels, GenerateError> {
        let elements = x[0] * x[1];
        Ok(OperatorKernels {
            forward: vec![kernel("", 0, forward * elements, &[&x], &[&x])?.moving(class)],
            backward: vec![kernel("", 0, backward * elements, &[&x], &[&x])?.moving(class)],
            ..OperatorKernels::default()
        })
    }
}
