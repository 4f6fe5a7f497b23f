//! Descriptions of all operators as data ([`OperatorAxesAndTensorsSpec`]).

use super::{
    DividingDegreeOrReason, ImageWindowStrideAndPadding, OperatorAxesAndTensorsSpec,
    OperatorInputSource, OperatorKernelSpec, OperatorShardAxis, OperatorTokenExchangeSide,
    TensorAxis, TensorContraction, TensorKeptForBackward, WeightsOfOneGradientTensor,
    WhichAttentionKernelsSaveTensor, saturate_to_u64, window_position_count,
};
use crate::model::{ActivationFunction, DeltaAttentionSizes, OperatorKind};

/// Number of bytes per element of a mask. The next constant is the number of bytes of a
/// single-precision value.
const MASK: u64 = 1;
const FULL: u64 = 4;

impl OperatorAxesAndTensorsSpec {
    fn new(
        name: &'static str,
        axes: Vec<TensorAxis>,
        inputs: &[&'static str],
        outputs: &[&'static str],
        rows: &'static str,
    ) -> Self {
        Self {
            name,
            axes,
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
            weights: Vec::new(),
            products: Vec::new(),
            kept: Vec::new(),
            rows,
            windows: None,
            role: OperatorInputSource::Next,
            kernels: OperatorKernelSpec::Products,
            exchange: None,
        }
    }

    fn with_weights(mut self, axes: &'static str) -> Self {
        let tied = false;
        self.weights.push(WeightsOfOneGradientTensor { axes, tied });
        self
    }

    fn with_product(mut self, result: &'static str, over: &'static str) -> Self {
        self.products.push(TensorContraction {
            result,
            over,
            skipped: "",
            multiplies: true,
        });
        self
    }

    fn with_kept_tensor(
        mut self,
        axes: &'static str,
        bytes: Option<u64>,
        with: WhichAttentionKernelsSaveTensor,
    ) -> Self {
        self.kept.push(TensorKeptForBackward { axes, bytes, with });
        self
    }

    /// Adds norms of queries and keys to attention.
    fn with_query_and_key_norms(self) -> Self {
        let spec = self.with_weights("w").with_weights("w");
        ["mnw", "mgw"].into_iter().fold(spec, |spec, axes| {
            spec.with_kept_tensor(axes, None, WhichAttentionKernelsSaveTensor::Any)
        })
    }

    /// Keeps the tensors that the backward pass of attention needs: the inputs, the softmax's output and, with dropout,
    /// the mask and the masked output.
    fn with_attention_tensors_kept(self, dropout: bool) -> Self {
        let spec = self
            .with_inputs_kept()
            .with_kept_tensor("nm", Some(FULL), WhichAttentionKernelsSaveTensor::Fused)
            .with_kept_tensor("nmt", None, WhichAttentionKernelsSaveTensor::Unfused);
        if !dropout {
            return spec;
        }
        spec.with_kept_tensor("nmt", Some(MASK), WhichAttentionKernelsSaveTensor::Unfused)
            .with_kept_tensor("nmt", None, WhichAttentionKernelsSaveTensor::Unfused)
    }

    fn with_inputs_kept(self) -> Self {
        let inputs = self.inputs.clone();
        let keep = |spec: Self, axes| {
            spec.with_kept_tensor(axes, None, WhichAttentionKernelsSaveTensor::Any)
        };
        inputs.into_iter().fold(self, keep)
    }

    fn with_input_source(self, role: OperatorInputSource) -> Self {
        Self { role, ..self }
    }

    fn with_expert_exchange(self, exchange: OperatorTokenExchangeSide) -> Self {
        let exchange = Some(exchange);
        Self { exchange, ..self }
    }

    fn with_kernels(self, kernels: OperatorKernelSpec) -> Self {
        Self { kernels, ..self }
    }
}

fn create_divisible_axis(
    letter: char,
    extent: u64,
    axis: OperatorShardAxis,
    what: &'static str,
) -> TensorAxis {
    let cut = DividingDegreeOrReason::By(axis, what);
    TensorAxis {
        letter,
        extent,
        cut,
    }
}

fn create_whole_axis(
    letter: char,
    extent: u64,
    axis: OperatorShardAxis,
    why: &'static str,
) -> TensorAxis {
    let cut = DividingDegreeOrReason::Whole(axis, why);
    TensorAxis {
        letter,
        extent,
        cut,
    }
}

fn create_undividable_axis(letter: char, extent: u64) -> TensorAxis {
    let cut = DividingDegreeOrReason::Never;
    TensorAxis {
        letter,
        extent,
        cut,
    }
}

/// Number of tokens per chunk in linear attention (`chunk_gated_delta_rule` in flash-linear-attention). A chunk passes
/// only the state to the next chunk.
pub const DELTA_CHUNK: u64 = 64;

/// Number of unordered pairs among `n` elements.
fn unordered_distinct_pair_count(n: u64) -> u64 {
    saturate_to_u64(u128::from(n) * u128::from(n.saturating_sub(1)) / 2)
}

/// Number of token pairs that a causal mask removes, if `queries` of the `tokens` tokens have
/// queries.
fn causally_masked_pair_count(tokens: u64, queries: u64) -> u64 {
    saturate_to_u64(
        u128::from(unordered_distinct_pair_count(tokens)) * u128::from(queries)
            / u128::from(tokens.max(1)),
    )
}

impl OperatorKind {
    /// Returns the operator's description: axes, tensors, matrix products and kernels.
    pub fn to_axes_and_tensors(&self) -> OperatorAxesAndTensorsSpec {
        use OperatorShardAxis::{K, M, N};
        match *self {
            Self::Linear {
                rows,
                inputs,
                outputs,
                bias,
                tied,
            } => {
                let axes = vec![
                    create_divisible_axis('m', rows, M, "rows"),
                    create_divisible_axis('n', outputs, N, "outputs"),
                    create_divisible_axis('k', inputs, K, "inputs"),
                ];
                let mut spec =
                    OperatorAxesAndTensorsSpec::new("linear", axes, &["mk"], &["mn"], "m");
                // The bias gradient comes first, because the matrix must be transposed before its gradient can be
                // accumulated.
                if bias {
                    spec = spec.with_weights("n");
                }
                spec.weights
                    .push(WeightsOfOneGradientTensor { axes: "kn", tied });
                spec.with_product("mn", "k").with_inputs_kept()
            }
            Self::Attention {
                tokens,
                queries,
                heads,
                kv_heads,
                width,
                causal,
                dropout,
                rotary,
                qk_norm,
            } => {
                let axes = vec![
                    create_whole_axis(
                        'm',
                        queries,
                        M,
                        "a query needs the keys and values of every token",
                    ),
                    create_undividable_axis('t', tokens),
                    // Each part must consist of whole KV heads, because members do not copy KV heads.
                    create_divisible_axis('n', heads, N, "heads"),
                    create_divisible_axis('g', kv_heads, N, "heads of keys and values"),
                    create_whole_axis('w', width, K, "a head cannot be split; `n` shards by heads"),
                    create_undividable_axis('d', causally_masked_pair_count(tokens, queries)),
                ];
                let inputs = ["mnw", "mgw", "mgw"];
                let mut spec =
                    OperatorAxesAndTensorsSpec::new("attention", axes, &inputs, &["mnw"], "m")
                        .with_kernels(OperatorKernelSpec::Attention {
                            rotary,
                            dropout,
                            qk_norm,
                        })
                        .with_product("nmt", "w")
                        .with_product("nmw", "t");
                if causal {
                    // A kernel for causal attention skips products of tokens with later tokens, which are s (s - 1) / 2
                    // of s s pairs. All shards of a sequence skip the same number of pairs.
                    spec.products.iter_mut().for_each(|one| one.skipped = "ndw");
                }
                if qk_norm {
                    spec = spec.with_query_and_key_norms();
                }
                spec.with_attention_tensors_kept(dropout)
            }
            Self::ShapedAttention {
                tokens,
                queries,
                heads,
                kv_heads,
                width,
                value_width,
                turned,
                latent,
                span,
                sinks,
                causal,
                dropout,
                qk_norm,
            } => {
                let met = match causal {
                    true => span.causal_pairs(tokens),
                    false => u128::from(tokens) * u128::from(tokens),
                };
                // All shards of a sequence have the same number of pairs.
                let met = met * u128::from(queries) / u128::from(tokens.max(1));
                let all = u128::from(tokens) * u128::from(queries);
                let axes = vec![
                    create_whole_axis(
                        'm',
                        queries,
                        M,
                        "a query needs the keys and values of the tokens before it",
                    ),
                    create_undividable_axis('t', tokens),
                    create_divisible_axis('n', heads, N, "heads"),
                    create_divisible_axis('g', kv_heads, N, "heads of keys and values"),
                    create_whole_axis('w', width, K, "a head cannot be split; `n` shards by heads"),
                    create_undividable_axis('u', value_width),
                    create_undividable_axis('r', turned),
                    create_undividable_axis('l', latent),
                    create_undividable_axis('d', saturate_to_u64(all - met.min(all))),
                ];
                let inputs = ["mnw", "mgw", "mgu"];
                let mut spec = OperatorAxesAndTensorsSpec::new(
                    "shaped_attention",
                    axes,
                    &inputs,
                    &["mnu"],
                    "m",
                )
                .with_kernels(OperatorKernelSpec::Attention {
                    rotary: turned > 0,
                    dropout,
                    qk_norm,
                })
                .with_product("nmt", "w")
                .with_product("nmu", "t");
                if causal {
                    spec.products[0].skipped = "ndw";
                    spec.products[1].skipped = "ndu";
                }
                if qk_norm {
                    spec = spec.with_query_and_key_norms();
                }
                if sinks {
                    spec = spec.with_weights("n");
                }
                spec.with_attention_tensors_kept(dropout)
            }
            Self::LinearAttention {
                tokens,
                sizes:
                    DeltaAttentionSizes {
                        key_heads,
                        value_heads,
                        key_width,
                        value_width,
                        taps,
                        ..
                    },
            } => {
                let axes = vec![
                    create_whole_axis(
                        'm',
                        tokens,
                        M,
                        "a token needs the state that the tokens before it leave",
                    ),
                    create_undividable_axis('s', tokens.min(DELTA_CHUNK)),
                    create_divisible_axis('n', value_heads, N, "heads of values"),
                    create_divisible_axis('q', key_heads, N, "heads of keys"),
                    create_whole_axis(
                        'w',
                        key_width,
                        K,
                        "a head cannot be split; `n` shards by heads",
                    ),
                    create_undividable_axis('u', value_width),
                    create_undividable_axis('r', taps),
                ];
                // The inputs are queries, keys, values, the gate, and two values per token and
                // head: decay and rate.
                let inputs = ["mqw", "mqw", "mnu", "mnu", "mn", "mn"];
                OperatorAxesAndTensorsSpec::new("linear_attention", axes, &inputs, &["mnu"], "m")
                    .with_weights("qwr")
                    .with_weights("qwr")
                    .with_weights("nur")
                    .with_weights("n")
                    .with_weights("n")
                    .with_weights("u")
                    .with_product("mqw", "r")
                    .with_product("mqw", "r")
                    .with_product("mnu", "r")
                    // Products within a chunk: keys with keys, queries with keys, and one product
                    // each for corrected keys, corrected values and results.
                    .with_product("mns", "w")
                    .with_product("mns", "w")
                    .with_product("mnw", "s")
                    .with_product("mnu", "s")
                    .with_product("mnu", "s")
                    // Products with the state from before the chunk: keys with the state, queries
                    // with the state, and the update of the state.
                    .with_product("mnu", "w")
                    .with_product("mnu", "w")
                    .with_product("mnw", "u")
                    .with_inputs_kept()
                    .with_kept_tensor("mns", None, WhichAttentionKernelsSaveTensor::Any)
            }
            Self::LatentUp {
                rows,
                query_rank,
                kv_rank,
                heads,
                query_width,
                kv_width,
            } => {
                let why = "a latent vector cannot be split";
                let axes = vec![
                    create_divisible_axis('m', rows, M, "rows"),
                    create_divisible_axis('n', heads, N, "heads"),
                    create_whole_axis('k', query_rank, K, why),
                    create_whole_axis('c', kv_rank, K, why),
                    create_undividable_axis('i', query_width),
                    create_undividable_axis('j', kv_width),
                ];
                OperatorAxesAndTensorsSpec::new(
                    "latent_up",
                    axes,
                    &["mk", "mc"],
                    &["mni", "mnj"],
                    "m",
                )
                .with_weights("kni")
                .with_weights("cnj")
                .with_product("mni", "k")
                .with_product("mnj", "c")
                .with_inputs_kept()
                .with_kernels(OperatorKernelSpec::LatentUp)
            }
            Self::ExpertDispatch {
                tokens,
                width,
                experts,
                chosen,
                form,
            } => {
                let axes = vec![
                    create_divisible_axis('m', tokens, M, "tokens"),
                    create_divisible_axis(
                        'c',
                        tokens.saturating_mul(chosen),
                        M,
                        "copies of tokens",
                    ),
                    create_whole_axis('n', width, N, "a token's scores need all its columns"),
                    create_undividable_axis('e', experts),
                    // A leading `e` among the letters of a weight tensor marks experts' weights.
                    create_undividable_axis('z', 1),
                ];
                let mut spec = OperatorAxesAndTensorsSpec::new(
                    "expert_dispatch",
                    axes,
                    &["mn"],
                    &["cn"],
                    "mc",
                );
                for bias in [form.bias, form.correction] {
                    if bias {
                        spec = spec.with_weights("ze");
                    }
                }
                spec.with_weights("ne")
                    .with_product("me", "n")
                    .with_inputs_kept()
                    .with_kept_tensor("me", Some(FULL), WhichAttentionKernelsSaveTensor::Any)
                    .with_kernels(OperatorKernelSpec::Router {
                        sigmoid: form.sigmoid,
                        biased: form.bias || form.correction,
                        grouped: form.groups > 1,
                    })
                    .with_expert_exchange(OperatorTokenExchangeSide::Dispatch)
            }
            Self::ExpertLinear {
                rows,
                experts,
                inputs,
                outputs,
                bias,
            } => {
                let axes = vec![
                    create_divisible_axis('m', rows, M, "copies of tokens"),
                    create_divisible_axis('n', outputs, N, "outputs"),
                    create_divisible_axis('k', inputs, K, "inputs"),
                    create_undividable_axis('e', experts),
                ];
                let spec =
                    OperatorAxesAndTensorsSpec::new("expert_linear", axes, &["mk"], &["mn"], "m");
                let spec = if bias { spec.with_weights("en") } else { spec };
                spec.with_weights("ekn")
                    .with_product("mn", "k")
                    .with_inputs_kept()
            }
            Self::ExpertCombine {
                tokens,
                width,
                chosen,
            } => {
                let axes = vec![
                    create_divisible_axis('m', tokens, M, "tokens"),
                    create_divisible_axis(
                        'c',
                        tokens.saturating_mul(chosen),
                        M,
                        "copies of tokens",
                    ),
                    create_divisible_axis('n', width, N, "columns"),
                ];
                // The gradient of a copy's score is the product of the copy and the weighted sum's gradient, so the
                // backward pass needs the copies.
                OperatorAxesAndTensorsSpec::new("expert_combine", axes, &["cn"], &["mn"], "mc")
                    .with_inputs_kept()
                    .with_kernels(OperatorKernelSpec::EXPERT_COMBINE)
                    .with_expert_exchange(OperatorTokenExchangeSide::Combine)
            }
            Self::Norm { rows, width, bias } => {
                let axes = vec![
                    create_divisible_axis('m', rows, M, "rows"),
                    create_whole_axis(
                        'n',
                        width,
                        N,
                        "a row cannot be split, because it is scaled as a whole",
                    ),
                ];
                let spec = OperatorAxesAndTensorsSpec::new("norm", axes, &["mn"], &["mn"], "m")
                    .with_inputs_kept();
                let spec = spec.with_weights("n");
                if bias {
                    spec.with_weights("n")
                        .with_kernels(OperatorKernelSpec::NORM)
                } else {
                    spec.with_kernels(OperatorKernelSpec::RMS_NORM)
                }
            }
            Self::Activation {
                function,
                rows,
                width,
                gated,
            } => {
                let (inputs, kernels) = if gated {
                    (&["mn", "mn"][..], OperatorKernelSpec::GATE)
                } else {
                    (&["mn"][..], OperatorKernelSpec::ACTIVATION)
                };
                let spec = OperatorAxesAndTensorsSpec::new(
                    "activation",
                    create_element_axes(rows, width),
                    inputs,
                    &["mn"],
                    "m",
                )
                .with_kernels(kernels);
                match function {
                    // Save nothing more: the next operator saves this output as its input, and the output shows which
                    // inputs are positive.
                    ActivationFunction::Relu if !gated => spec,
                    _ => spec.with_inputs_kept(),
                }
            }
            Self::Residual {
                rows,
                width,
                dropout,
            } => {
                let spec = OperatorAxesAndTensorsSpec::new(
                    "residual",
                    create_element_axes(rows, width),
                    &["mn"],
                    &["mn"],
                    "m",
                );
                let spec = spec.with_input_source(OperatorInputSource::Join);
                if dropout {
                    spec.with_kept_tensor("mn", Some(MASK), WhichAttentionKernelsSaveTensor::Any)
                        .with_kernels(OperatorKernelSpec::DROPPED_RESIDUAL)
                } else {
                    spec.with_kernels(OperatorKernelSpec::RESIDUAL)
                }
            }
            Self::Embedding {
                vocabulary,
                width,
                tokens,
            } => {
                let axes = vec![
                    create_divisible_axis('m', tokens, M, "tokens"),
                    create_divisible_axis('n', width, N, "columns"),
                    create_divisible_axis('k', vocabulary, K, "rows of the table"),
                ];
                let spec = OperatorAxesAndTensorsSpec::new("embedding", axes, &["m"], &["mn"], "m");
                let spec = spec.with_kernels(OperatorKernelSpec::EMBEDDING);
                spec.with_weights("kn")
                    .with_input_source(OperatorInputSource::Table)
            }
            Self::Loss { rows, classes } => {
                let axes = vec![
                    create_divisible_axis('m', rows, M, "rows"),
                    create_whole_axis(
                        'n',
                        classes,
                        N,
                        "a row's probabilities add up over all classes",
                    ),
                ];
                // Logits are always saved in single precision.
                OperatorAxesAndTensorsSpec::new("loss", axes, &["mn"], &["m"], "m")
                    .with_kept_tensor("mn", Some(FULL), WhichAttentionKernelsSaveTensor::Any)
                    .with_kernels(OperatorKernelSpec::LOSS)
            }
            Self::Convolution {
                inputs,
                outputs,
                size,
                kernel,
                stride,
                padding,
                groups,
                bias,
            } => {
                let group = "the channels of a grouped convolution cannot be split";
                let (channels, [weights, over]) = if groups <= 1 {
                    let channels = [
                        create_divisible_axis('n', outputs, N, "output channels"),
                        create_divisible_axis('k', inputs, K, "input channels"),
                    ];
                    (channels, ["nkrs", "krs"])
                } else {
                    (
                        [
                            create_whole_axis('n', outputs, N, group),
                            create_whole_axis('k', inputs, K, group),
                        ],
                        ["ncrs", "crs"],
                    )
                };
                let mut spec = create_image_sliding_window_operator(
                    "convolution",
                    channels,
                    size,
                    kernel,
                    stride,
                    padding,
                    ["kij", "nhw"],
                );
                spec.axes
                    .push(create_undividable_axis('c', inputs / groups.max(1)));
                spec = spec.with_product("nhw", over).with_weights(weights);
                if bias { spec.with_weights("n") } else { spec }
            }
            Self::Pool {
                channels,
                size,
                kernel,
                stride,
                padding,
            } => {
                let channels = [create_divisible_axis('n', channels, N, "channels")];
                let spec = create_image_sliding_window_operator(
                    "pool",
                    channels,
                    size,
                    kernel,
                    stride,
                    padding,
                    ["nij", "nhw"],
                );
                let mut spec = spec
                    .with_product("nhw", "rs")
                    .with_kernels(OperatorKernelSpec::POOL);
                spec.products[0].multiplies = false;
                spec
            }
            Self::EmbeddingBag {
                rows,
                width,
                lookups,
            } => {
                let axes = vec![
                    create_divisible_axis('n', width, N, "columns"),
                    create_divisible_axis('k', rows, K, "rows of the table"),
                    create_undividable_axis('l', lookups),
                ];
                let spec =
                    OperatorAxesAndTensorsSpec::new("embedding_bag", axes, &["l"], &["n"], "");
                let spec = spec.with_kernels(OperatorKernelSpec::EMBEDDING_BAG);
                spec.with_weights("kn")
                    .with_input_source(OperatorInputSource::Beside)
            }
            Self::Interaction { vectors, width } => {
                let axes = vec![
                    create_whole_axis(
                        'v',
                        vectors,
                        N,
                        "every vector is combined with every other vector",
                    ),
                    create_undividable_axis('u', width),
                    create_undividable_axis('p', unordered_distinct_pair_count(vectors)),
                ];
                let spec =
                    OperatorAxesAndTensorsSpec::new("interaction", axes, &["vu"], &["p", "u"], "");
                let spec = spec.with_product("p", "u").with_inputs_kept();
                spec.with_input_source(OperatorInputSource::Collect)
            }
        }
    }

    /// Returns the operator without its dropout.
    pub fn without_dropout(mut self) -> Self {
        if let Self::Attention { dropout, .. }
        | Self::ShapedAttention { dropout, .. }
        | Self::Residual { dropout, .. } = &mut self
        {
            *dropout = false;
        }
        self
    }

    /// Returns mutable references to the sizes that degrees divide, each with the axis that it belongs to. For an
    /// image, they include the number of input rows.
    pub fn divisible_sizes_mut(&mut self) -> Vec<(OperatorShardAxis, &mut u64)> {
        use OperatorShardAxis::{K, M, N};
        match self {
            Self::Linear {
                rows,
                inputs,
                outputs,
                ..
            }
            | Self::ExpertLinear {
                rows,
                inputs,
                outputs,
                ..
            } => vec![(M, rows), (N, outputs), (K, inputs)],
            Self::ExpertDispatch { tokens, .. } => vec![(M, tokens)],
            Self::ExpertCombine { tokens, width, .. } => vec![(M, tokens), (N, width)],
            Self::Attention {
                heads, kv_heads, ..
            }
            | Self::ShapedAttention {
                heads, kv_heads, ..
            } => vec![(N, heads), (N, kv_heads)],
            Self::LinearAttention { sizes, .. } => {
                vec![(N, &mut sizes.value_heads), (N, &mut sizes.key_heads)]
            }
            Self::LatentUp { rows, heads, .. } => vec![(M, rows), (N, heads)],
            Self::Norm { rows, width, .. }
            | Self::Activation { rows, width, .. }
            | Self::Residual { rows, width, .. }
            | Self::Loss {
                rows,
                classes: width,
            } => vec![(M, rows), (N, width)],
            Self::Embedding {
                vocabulary,
                width,
                tokens,
            } => {
                vec![(M, tokens), (N, width), (K, vocabulary)]
            }
            Self::Convolution {
                inputs,
                outputs,
                size,
                ..
            } => {
                vec![(M, &mut size[0]), (N, outputs), (K, inputs)]
            }
            Self::Pool { channels, size, .. } => vec![(M, &mut size[0]), (N, channels)],
            Self::EmbeddingBag { rows, width, .. } => vec![(N, width), (K, rows)],
            Self::Interaction { .. } => Vec::new(),
        }
    }
}

/// Returns the axes of an operator that computes each element independently.
fn create_element_axes(rows: u64, width: u64) -> Vec<TensorAxis> {
    vec![
        create_divisible_axis('m', rows, OperatorShardAxis::M, "rows"),
        create_divisible_axis('n', width, OperatorShardAxis::N, "columns"),
    ]
}

/// Creates an operator with sliding windows over an image. It saves its input for the backward pass.
fn create_image_sliding_window_operator<const N: usize>(
    name: &'static str,
    channels: [TensorAxis; N],
    size: [u64; 2],
    kernel: [u64; 2],
    stride: u64,
    padding: u64,
    [input, output]: [&'static str; 2],
) -> OperatorAxesAndTensorsSpec {
    let count = |side: usize| window_position_count(size[side], kernel[side], stride, padding);
    let mut axes = channels.to_vec();
    axes.extend([
        create_divisible_axis('h', count(0), OperatorShardAxis::M, "rows of the output"),
        create_divisible_axis('i', size[0], OperatorShardAxis::M, "rows of the input"),
        create_undividable_axis('w', count(1)),
        create_undividable_axis('j', size[1]),
        create_undividable_axis('r', kernel[0]),
        create_undividable_axis('s', kernel[1]),
    ]);
    let mut spec =
        OperatorAxesAndTensorsSpec::new(name, axes, &[input], &[output], "hw").with_inputs_kept();
    let kernel = kernel[0];
    spec.windows = Some(ImageWindowStrideAndPadding {
        kernel,
        stride,
        padding,
    });
    spec
}
