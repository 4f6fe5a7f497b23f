//! Kernels of attention, fused or unfused, and of the operations before it.
//!
//! Below, there are `a` query heads, `v` key and value heads, `w` columns per head, and `s` tokens:
//!
//! | kernel | forward | bytes forward | backward | bytes backward | kept |
//! |---|---|---|---|---|---|
//! | attention, fused: `a` query heads and `v` heads of keys and values, `w` wide, `s` tokens | `4nsaw` | `d n (2aw + 2vw) + 4na` | `10nsaw`: scores again, then four products | `d n (4aw + 4vw) + 4na` | queries, keys, values, and 4 B per row for the sum of its exponentials: `d n (aw + 2vw) + 4na` |
//! | … unfused: `scores` | `2nsaw` | `d (naw + nvw + nas)` | two products | each as forward | queries and keys |
//! | … `softmax`, with scale and mask | | `2d nas` | | `3d nas` | its result, `d nas` |
//! | … in single precision, if it is several kernels | | `(2d + 32) nas`: cast, scale, mask, softmax, cast | | the same | its result |
//! | … `dropout` | | `(2d + 1) nas` | | `(2d + 1) nas` | mask and result, `(1 + d) nas` |
//! | … with Megatron-LM's kernels: `merge` of heads, `split` of their gradients | | `2d naw` | | `2d naw`; `2d n (aw + 2vw)` | |
//! | … `values` | `2nsaw` | `d (nas + nvw + naw)` | two products | each as forward | values |
//! | … rotary positions, of queries and keys | | `2d n (a + v) w` | | as forward | |
//! | … norms of heads of queries and keys | | `2d n (a + v) w` | | `3d n (a + v) w` | queries and keys before the norms |
//! | … the same, unfused | | as RMSNorm (`model/spec/kernels.rs`) | | the same | the same |
//! | … rotary positions, unfused | | `(2d + 16) n (a + v) w`: cast, product, cast | | as forward | |
//! | … unpadded: `unpad`, `pad.clear`, `pad` | | `2d n (aw + 2vw)`; `d naw`; `2d naw` | | `2d naw`; `d n (aw + 2vw)`; `2d n (aw + 2vw)` | |
//! | … PyTorch repeats heads of keys and values if `v < a` | | `2d n (a + v) w` | | as forward | |
//!
//! With a causal mask, a fused kernel skips the scores above the diagonal, so `(s + 1) / 2`
//! replaces `s` in the table. With context parallelism, a rank has only `m` of the `s` tokens in a
//! sequence, so `m` replaces `s` for queries, but not for keys and values. All ranks have the same
//! number of causal scores.

use super::{KernelCostSizesAndOptions, OperatorKernels, build_kernel, kernel_chain};
use crate::generate::PatternOptionError;
use crate::generate::plan::ElementwiseKernels;
use crate::model::{OperatorAxesAndTensorsSpec, OperatorKind};
use chakram_trace::format::{KernelShape, MemoryBoundKernelClass};

impl KernelCostSizesAndOptions {
    /// Returns the kernels of attention and of the operations before it.
    pub(super) fn attention_kernels(
        &self,
        spec: &OperatorAxesAndTensorsSpec,
        dropout: bool,
        [rotary, qk_norm]: [bool; 2],
    ) -> Result<OperatorKernels, PatternOptionError> {
        let [queries, tokens, heads, kv_heads, width] =
            ['m', 't', 'n', 'g', 'w'].map(|axis| spec.extent_of_axis(axis));
        let causal = spec.products.iter().any(|one| !one.skipped.is_empty());
        let [b, d] = [self.samples, self.number].map(u128::from);
        let [m, s, a, v, w] = [queries, tokens, heads, kv_heads, width].map(u128::from);
        // Values may be narrower than keys, and a token may attend to only some of the other
        // tokens.
        let is_shaped = spec.has_axis('u');
        let u = if is_shaped {
            spec.extent_of_axis('u').into()
        } else {
            w
        };
        // With a causal mask, each token attends to itself and to earlier tokens; otherwise, to all tokens. All shards
        // of a sequence have the same number of token pairs.
        let whole = if causal { m * (s + 1) / 2 } else { m * s };
        let pairs = match is_shaped && causal {
            true => m * s - u128::from(spec.extent_of_axis('d')).min(m * s),
            false => whole,
        };
        let q = [b, a, m, w];
        let kv = [b, v, s, w];
        let (out, values) = ([b, a, m, u], [b, v, s, u]);
        let n = b * m;
        let mut kernels = if self.fused {
            let product = |columns: u128| 2 * b * pairs * a * columns;
            let rows = 4 * n * a;
            let moved = d * (n * a * (w + u) + b * s * v * (w + u)) + rows;
            // The backward kernel reads q, k, v, the output and its gradient, and writes the
            // gradients of q, k and v.
            let back = d * (2 * n * a * (w + u) + 2 * b * s * v * (w + u)) + rows;
            // With context parallelism, a rank has two pieces of the sequence: one at some distance from the start, and
            // one at the same distance from the end. Together, they involve as many query-key pairs as if each query
            // attended to half of all keys.
            let halved = causal && queries < tokens;
            // Measured attention times cover neither windows nor values that are narrower than keys. So look up the
            // mean width and the mean number of keys per query, which give the same FLOPs.
            let is_narrow = pairs < whole;
            let keys = match (halved, is_narrow) {
                (_, true) => u64::try_from(pairs.div_ceil(m.max(1))).unwrap_or(u64::MAX),
                (true, false) => tokens / 2,
                (false, false) => tokens,
            };
            let columns = u64::try_from((w + u).div_ceil(2)).unwrap_or(u64::MAX);
            let shape = |backward| KernelShape::Attention {
                batch: self.samples,
                heads,
                kv_heads,
                queries,
                keys,
                width: columns,
                causal: causal && !halved && !is_narrow,
                backward,
            };
            let forward = product(w) + product(u);
            let forward = build_kernel("", forward, moved, &[&q, &kv, &values], &[&out])?;
            // The backward kernel recomputes the scores, and then computes four matrix products for
            // the gradients of queries, keys, values and attention weights.
            let (inputs, outputs) = ([&q[..], &out, &kv, &values, &out], [&q[..], &kv, &values]);
            let backward = 3 * product(w) + 2 * product(u);
            let backward = build_kernel("", backward, back, &inputs, &outputs)?;
            let mut kernels = OperatorKernels {
                forward: vec![forward.with_kernel_shape(shape(false))],
                backward: vec![backward.with_kernel_shape(shape(true))],
                ..OperatorKernels::default()
            };
            if self.unpads {
                let inputs = n * a * w + b * s * v * (w + u);
                self.add_unpad_and_repad_kernels(&mut kernels, [1, inputs], [n, a * u])?;
            }
            kernels
        } else {
            // The mean width gives the same FLOPs as the two different widths.
            let w = (w + u).div_ceil(2);
            self.unfused_attention_kernels(dropout, [a, v, w], [b, a, m, w], [b, v, s, w])?
        };
        let latent = is_shaped && spec.extent_of_axis('l') > 0;
        let turned = match is_shaped {
            // With latent vectors, all key heads share the rotary columns.
            true => u128::from(spec.extent_of_axis('r')) * (a + if latent { 1 } else { v }),
            false => (a + v) * w,
        };
        self.add_elementwise_kernels_before_attention(&mut kernels, rotary, [n, turned], v < a)?;
        if qk_norm {
            self.add_head_norm_kernels(&mut kernels, [n, (a + v) * w])?;
        }
        Ok(kernels)
    }

    /// Returns the kernel that merges attention's results for one part of the keys with those for earlier parts. In the
    /// forward pass, these are the output and the sums of exponentials. In the backward pass, they are the gradients of
    /// queries, keys and values.
    pub fn build_kernel_merging_attention_parts(
        &self,
        work: &OperatorKind,
        backward: bool,
    ) -> Result<OperatorKernels, PatternOptionError> {
        let spec = work.to_axes_and_tensors();
        let [b, d] = [self.samples, self.number].map(u128::from);
        let [queries, keys] = ["mnw", "tgw"].map(|axes| spec.tensor_element_count(axes));
        let wide = spec.has_axis('u');
        let [output, values] = match wide {
            true => ["mnu", "tgu"].map(|axes| spec.tensor_element_count(axes)),
            false => [queries, keys],
        };
        // The kernel reads both summands and writes the sum.
        let moved = match backward {
            true => 3 * d * b * (queries + keys + values),
            false => 3 * b * (d * output + 4 * spec.tensor_element_count("nm")),
        };
        let x = [
            b * spec.tensor_element_count("m"),
            spec.tensor_element_count("n"),
            spec.tensor_element_count("w"),
        ];
        let kernel = build_kernel(".merge", 0, moved, &[&x, &x], &[&x])?;
        let kernel = vec![kernel.with_memory_bound_class(MemoryBoundKernelClass::ElementWise)];
        let mut kernels = OperatorKernels::default();
        match backward {
            true => kernels.backward = kernel,
            false => kernels.forward = kernel,
        }
        Ok(kernels)
    }

    /// Adds the gathers of tokens before the kernel in `kernels`, and the scatter of its results after it. A scatter
    /// follows a kernel that clears its result. `inputs` is the size of queries, keys and values together, and
    /// `results` that of the kernel's results.
    fn add_unpad_and_repad_kernels(
        &self,
        kernels: &mut OperatorKernels,
        inputs: [u128; 2],
        results: [u128; 2],
    ) -> Result<(), PatternOptionError> {
        let d = u128::from(self.number);
        let (lookup, element) = (
            MemoryBoundKernelClass::Embedding,
            MemoryBoundKernelClass::ElementWise,
        );
        let gather = (".unpad", lookup, 2 * d);
        let scatter = [(".pad.clear", element, d), (".pad", lookup, 2 * d)];
        kernels
            .forward
            .splice(..0, kernel_chain(inputs, &[gather])?);
        kernels.forward.extend(kernel_chain(results, &scatter)?);
        kernels
            .backward
            .splice(..0, kernel_chain(results, &[gather])?);
        kernels.backward.extend(kernel_chain(inputs, &scatter)?);
        Ok(())
    }

    /// Adds the norms of query and key heads before all other forward kernels, and the norms'
    /// gradients after all other backward kernels. `x` is the size of the tensor with all query and
    /// key heads.
    fn add_head_norm_kernels(
        &self,
        kernels: &mut OperatorKernels,
        x: [u128; 2],
    ) -> Result<(), PatternOptionError> {
        let d = u128::from(self.number);
        let (copy, element) = (
            MemoryBoundKernelClass::Copy,
            MemoryBoundKernelClass::ElementWise,
        );
        let (norm, softmax) = (
            MemoryBoundKernelClass::Normalization,
            MemoryBoundKernelClass::Softmax,
        );
        let (forward, backward) = if self.elementwise == ElementwiseKernels::Eager {
            (
                kernel_chain(
                    x,
                    &[
                        (".norm.single", copy, d + 4),
                        (".norm.square", element, 8),
                        (".norm.mean", softmax, 4),
                        (".norm.product", copy, 8),
                        (".norm.half", copy, 4 + d),
                        (".norm.gain", copy, 2 * d),
                    ],
                )?,
                kernel_chain(
                    x,
                    &[
                        (".norm.gain.dinput", copy, 2 * d),
                        (".norm.gain.dgain", softmax, 2 * d),
                        (".norm.single", copy, d + 4),
                        (".norm.product.dinput", copy, 8),
                        (".norm.product.dscale", softmax, 8),
                        (".norm.square", element, 12),
                        (".norm.sum", element, 12),
                        (".norm.half", copy, 4 + d),
                    ],
                )?,
            )
        } else {
            let one = |each| kernel_chain(x, &[(".norm", norm, each)]);
            (one(2 * d)?, one(3 * d)?)
        };
        kernels.forward.splice(..0, forward);
        kernels.backward.extend(backward);
        Ok(())
    }

    /// Adds the element-wise kernels before attention: on queries and keys (a tensor of size `x`), and on key and value
    /// heads. Also adds their backward kernels.
    fn add_elementwise_kernels_before_attention(
        &self,
        kernels: &mut OperatorKernels,
        rotary: bool,
        x: [u128; 2],
        shares: bool,
    ) -> Result<(), PatternOptionError> {
        let d = u128::from(self.number);
        let copy = MemoryBoundKernelClass::Copy;
        let one_by_one = [
            (".rotary.single", copy, d + 4),
            (".rotary.turn", copy, 8),
            (".rotary.half", copy, 4 + d),
        ];
        let in_one = [(".rotary", MemoryBoundKernelClass::ElementWise, 2 * d)];
        let mut before = match (rotary, self.elementwise) {
            (false, _) => Vec::new(),
            (true, ElementwiseKernels::Eager) => kernel_chain(x, &one_by_one)?,
            (true, _) => kernel_chain(x, &in_one)?,
        };
        if shares && self.elementwise.is_eager_or_compiled_pytorch() {
            before.extend(kernel_chain(x, &[(".repeat", copy, 2 * d)])?);
        }
        kernels.backward.extend(before.iter().rev().cloned());
        kernels.forward.splice(..0, before);
        Ok(())
    }
}
