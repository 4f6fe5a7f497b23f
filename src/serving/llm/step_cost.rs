//! Computes the time of a step on an engine's NPUs, part by part, from a model's sizes and a
//! machine's kernel times.
//!
//! A step has `T` tokens (including the padding of CUDA graphs), and an engine has `n` NPUs. On
//! each NPU, the parts are:
//!
//! - `products`: the matrix products of each block, computed for all `T` tokens together. Experts
//!   count only if they receive tokens. If all experts are equally likely, the expected number of
//!   these experts is `E (1 - (1 - k / E)^T)`.
//! - `prefill`: for each request with several tokens in the step, attention over these tokens and
//!   all earlier tokens. Linear attention processes the tokens in chunks.
//! - `decode`: for each request with one token in the step, attention over all tokens of the
//!   request. For such requests, linear attention reads and writes states.
//! - `elementwise`: the norms with residual sums, the rotation of queries and keys, the writes of
//!   keys and values, and the activation.
//! - `collectives`: two all-reduces of `2 T hidden` bytes per block, and one all-reduce after the
//!   embedding.
//! - `head`: for requests that produce a token, the logits and the sampling.
//! - `gaps`: the time between kernels within a CUDA graph.
//! - `host-step` and `host-request`: the host's work between steps.

use super::super::error::ServeError;
use super::model_sizes::{
    BlockAttentionSizes, BlockDelta, BlockMatrixProduct, EqualModelBlocks, LlmModelSizes,
    TokenMixing,
};
use super::rules::AllReduceKernels;
use super::step_load::StepLoad;
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::config::ConfigDocument;
use chakram_base::dtype::Dtype;
use chakram_base::ids::Npu;
use chakram_base::kernel_shape::{KernelShape, MemoryBoundKernel};
use chakram_base::units::{Span, format_percent, format_thousands};
use chakram_hardware::compute::{ComputeModel, KernelProfile, KernelTiming};
use chakram_hardware::machine::{Machine, NpuClass};
use std::collections::BTreeMap;

/// A part of a step's time, which a scenario may leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum StepCostPart {
    /// Matrix products of the blocks.
    Products,
    /// Attention of requests with several tokens in the step.
    Prefill,
    /// Attention of requests with one token in the step.
    Decode,
    /// Kernels that only move bytes.
    Elementwise,
    /// All-reduces of the tensor group.
    Collectives,
    /// Logits and sampling.
    Head,
    /// Gaps between kernels.
    Gaps,
    /// The host's time per step.
    HostStep,
    /// The host's time per request in the step.
    HostRequest,
    /// Padding tokens that CUDA graphs add. The times of the padding tokens are included in the
    /// other parts.
    Padding,
}

impl StepCostPart {
    /// All parts of a step's time, each with its name in files and reports.
    pub const NAMES: &[(Self, &str)] = &[
        (Self::Products, "products"),
        (Self::Prefill, "prefill"),
        (Self::Decode, "decode"),
        (Self::Elementwise, "elementwise"),
        (Self::Collectives, "collectives"),
        (Self::Head, "head"),
        (Self::Gaps, "gaps"),
        (Self::HostStep, "host-step"),
        (Self::HostRequest, "host-request"),
        (Self::Padding, "padding"),
    ];
    /// Number of parts.
    pub const COUNT: usize = 10;

    /// Returns the part's name in files and reports.
    pub fn part_name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

/// Times by part, in the order of [`StepCostPart`].
pub type PartTimes = [Span; StepCostPart::COUNT];

/// Time between kernels in a CUDA graph. Captures with a full queue show 1.0 to 1.4 us between
/// kernels (`gap` in machine presets), and the host does not delay kernels of a graph.
const GRAPH_GAP: Span = Span::from_ns(1000);
/// Time per step in which the device waits for the host. vLLM 0.15's scheduler, input preparation
/// and output handling take 126 us (documentation of inference-sim's trained model on H100).
const HOST_STEP: Span = Span::from_us(126);
/// Host time per request in a step; the value has the same source as [`HOST_STEP`].
const HOST_REQUEST: Span = Span::from_us(4);
/// Fraction of the memory bandwidth that attention with one query reaches on NPUs without a
/// measured curve. The value comes from H100's measured curve.
const DECODE_MEMORY: f64 = 0.93;
/// Constants for decoding with latent vectors: the start time of a kernel, and the fractions of the
/// memory bandwidth and of the peak rate that kernels reach. The constants are derived from
/// measurements of SGLang 0.5.10 on H100, with one to 128 heads and batches above 200 MB
/// (aiconfigurator, Apache-2.0). Up to 32 heads, the median is 0.84 of the memory bandwidth. With
/// 128 heads, where computation limits the time, the median is 0.56 of the peak rate.
const LATENT_START: Span = Span::from_us(12);
const LATENT_MEMORY: f64 = 0.85;
const LATENT_PEAK: f64 = 0.6;
/// Number of tokens in a chunk of linear attention (flash-linear-attention, which vLLM and SGLang
/// use).
const DELTA_CHUNK: u64 = 64;
/// Fraction of the peak rate that matrix products reach if their four-bit weights must be converted
/// first; the value is an assumption.
const WEIGHT_ONLY_PEAK: f64 = 0.7;
/// NPUs on which TensorRT-LLM's all-reduces are assumed to be as fast as on H100, where they were measured. The links
/// of these NPUs are at least as fast as H100's, and up to 256 KiB the time is mostly latency.
const AS_H100: &[&str] = &["h200", "b200", "b300", "gb200", "gb300"];
/// NPUs with the same links as B200. The machines with these NPUs also use B200's curves.
const AS_B200: &[&str] = &["b300", "gb200", "gb300"];
/// Largest step, in tokens, that vLLM pads to the size of a captured CUDA graph. Graph sizes above
/// 4 are multiples of `GRAPH_STEP`.
const LARGEST_GRAPH: u64 = 512;
const GRAPH_STEP: u64 = 8;

/// A kernel of a block that only moves bytes, with the number of elements that it reads and writes
/// per token.
#[derive(Clone, Copy, Debug)]
struct MemoryBoundWork {
    kernel: MemoryBoundKernel,
    elements: u64,
}

/// The NPUs of an engine, and how they divide the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineShape {
    /// Number of NPUs that divide each block.
    pub npus: u32,
    /// Number of attention ranks that run in lockstep, each with `npus` NPUs; all ranks share the
    /// experts.
    pub ranks: u32,
    /// True if each NPU has whole experts, false if each NPU has a part of every expert.
    pub has_whole_experts: bool,
    /// The kernels that all-reduces use.
    pub all_reduce: AllReduceKernels,
}

/// Number formats of a served model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepFormats {
    /// Format of the weights outside experts.
    pub weights: Dtype,
    /// Format of the experts' weights.
    pub experts: Dtype,
    /// Format of keys and values.
    pub kv: Dtype,
}

/// Computes the time of a model's steps on the NPUs of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct StepCost {
    sizes: LlmModelSizes,
    class: NpuClass,
    npus: u32,
    /// Number of attention ranks that run in lockstep; the NPUs of all ranks share the experts.
    ranks: u32,
    has_whole_experts: bool,
    formats: StepFormats,
    left_out: Vec<StepCostPart>,
    /// Measured times of all-reduces.
    all_reduce: AllReduceTimes,
}

/// All-reduce times for an engine's NPUs, as points (bytes, seconds).
#[derive(Clone, Debug, PartialEq)]
struct AllReduceTimes {
    kernels: AllReduceKernels,
    /// Times of the engine's own all-reduce kernel, if they were measured.
    own: Vec<(f64, f64)>,
    machine: Option<Box<Machine>>,
    npus: u32,
}

impl AllReduceTimes {
    /// Returns the seconds that `npus` NPUs take to exchange tokens with `bytes` bytes in total.
    /// After the exchange, each NPU has the tokens of all NPUs or, for `ReduceScatter`, the sums
    /// for its own tokens.
    fn token_exchange_seconds(&self, kind: CollectiveKind, bytes: u64, npus: u32) -> f64 {
        let Some(machine) = self.machine.as_deref() else {
            return 0.0;
        };
        let measured = machine.measured_collective(kind, bytes, npus);
        let ring = || measured_or_ring_seconds(machine, bytes, npus) / 2.0;
        measured.map_or_else(ring, Span::as_seconds)
    }

    fn seconds_for(&self, bytes: u64) -> f64 {
        let own = interpolate(&self.own, bytes as f64);
        if let Some(own) = own {
            return own;
        }
        let of = |machine: &Machine| measured_or_ring_seconds(machine, bytes, self.npus);
        self.machine.as_deref().map_or(0.0, of)
    }
}

/// Interpolates linearly between points; returns the first value for smaller `x`. Returns `None`
/// for `x` above the last point, and if there are no points.
fn interpolate(points: &[(f64, f64)], x: f64) -> Option<f64> {
    let above = points.partition_point(|(at, _)| *at < x);
    let next = points.get(above)?;
    Some(match above.checked_sub(1) {
        None => next.1,
        Some(before) => {
            let before = points[before];
            before.1 + (next.1 - before.1) * (x - before.0) / (next.0 - before.0)
        }
    })
}

/// Returns the seconds of an all-reduce. If the machine has no measurement, assumes a ring along
/// the machine's first dimension.
fn measured_or_ring_seconds(machine: &Machine, bytes: u64, npus: u32) -> f64 {
    if let Some(span) = machine.measured_collective(CollectiveKind::AllReduce, bytes, npus) {
        return span.as_seconds();
    }
    let dimension = &machine.topology().dimensions()[0];
    let steps = 2.0 * f64::from(npus - 1);
    // A message between two NPUs passes through a switch, so it crosses two links.
    let latency = 2.0 * dimension.latency.as_seconds();
    let part = bytes as f64 / f64::from(npus) / dimension.bandwidth.bytes_per_second();
    steps * (latency + part)
}

/// Returns the times of the engine's own all-reduces with `kernels`, for `npus` NPUs of the class `npu`. TensorRT-LLM's
/// kernels were measured on H100 only. NPUs of the same or a later generation use these times if vLLM's kernels were
/// measured on these NPUs.
fn load_engine_all_reduce_times(
    kernels: AllReduceKernels,
    npu: &str,
    npus: u32,
) -> Result<Vec<(f64, f64)>, ServeError> {
    let npu = match kernels {
        AllReduceKernels::TensorrtLlm if AS_H100.contains(&npu) => "h100",
        AllReduceKernels::Vllm if AS_B200.contains(&npu) => "b200",
        _ => npu,
    };
    let text = include_str!("engine_all_reduce.toml");
    let document = ConfigDocument::parse(text, "engine_all_reduce.toml")?;
    let root = document.root_table(&["curve"])?;
    for curve in root
        .require_field("curve", "curves")?
        .read_tables(&["npu", "kernels", "members", "points"])?
    {
        let of = curve.read_or_default("kernels", AllReduceKernels::Vllm, |field| {
            field.read_choice(AllReduceKernels::NAMES)
        })?;
        let is = of == kernels && curve.require_field("npu", "a name")?.read_line()? == npu;
        if !is || curve.read_count("members", 64)? != npus {
            continue;
        }
        let mut points = Vec::new();
        for point in curve
            .require_field("points", "points")?
            .read_items("points")?
        {
            let [bytes, micros] = point.read_array("numbers", "bytes and microseconds")?;
            points.push((
                bytes.read_positive(1e12)?,
                micros.read_positive(1e9)? * 1e-6,
            ));
        }
        return Ok(points);
    }
    Ok(Vec::new())
}

impl StepCost {
    /// Creates the costs for a model on the NPUs of `machine`; `shape` describes how these NPUs
    /// divide the work.
    ///
    /// # Errors
    ///
    /// Fails if the machine has NPUs of different classes, or if it does not state their rates.
    pub fn new(
        sizes: LlmModelSizes,
        machine: &Machine,
        shape: EngineShape,
        formats: StepFormats,
        left_out: &[StepCostPart],
    ) -> Result<Self, ServeError> {
        let EngineShape {
            npus,
            ranks,
            has_whole_experts,
            all_reduce,
        } = shape;
        let class = machine.classes()[machine.class_of_npu(Npu(0))].clone();
        let cost = Self {
            all_reduce: AllReduceTimes {
                own: match npus {
                    1 => Vec::new(),
                    _ => load_engine_all_reduce_times(all_reduce, &class.name, npus)?,
                },
                kernels: all_reduce,
                machine: (npus * ranks > 1).then(|| Box::new(machine.clone())),
                npus,
            },
            sizes,
            class,
            npus,
            ranks,
            has_whole_experts,
            formats,
            left_out: left_out.to_vec(),
        };
        let kind = &cost.sizes.kinds[0];
        let [k, n] = kind.product_sizes_per_npu(&kind.products[0], npus);
        for weights in [formats.weights, formats.experts] {
            let computes_in = cost.compute_format(weights);
            if let KernelTiming::NoPeak(_) | KernelTiming::Unknown =
                cost.price_kernel(gemm_kernel_profile([1, 1, n, k], computes_in))
            {
                return Err(ServeError::Unfit(format!(
                    "machine {}: NPUs of class {} have no peak rate for {}, the number format of the served \
                     model\n  try: another format of weights, or a machine that states one",
                    machine.name(),
                    cost.class.name,
                    name_of(weights)
                )));
            }
        }
        Ok(cost)
    }

    fn price_kernel(&self, kernel: KernelProfile<'_>) -> KernelTiming {
        let memory = self.class.memory_bandwidth();
        ComputeModel::Curves.price_kernel(&kernel, &self.class.peaks, memory, &self.class.curves)
    }

    fn kernel_seconds(&self, kernel: KernelProfile<'_>) -> f64 {
        self.price_kernel(kernel).duration().as_seconds() * self.class.slowdown
    }

    /// Returns the format in which products with weights in `weights` are computed. The format is the weights' own
    /// format, except that products with four-bit weights use BF16 on NPUs that do not compute in four bits.
    fn compute_format(&self, weights: Dtype) -> Dtype {
        match weights {
            Dtype::Fp4 if self.class.peaks.get(Dtype::Fp4).is_none() => Dtype::Bf16,
            weights => weights,
        }
    }

    /// Returns true if the times of four-bit products come from the FP8 curve.
    fn prices_fp4_by_fp8(&self) -> bool {
        let known = |format: Dtype| self.class.curves.gemm[format as usize].is_some();
        known(Dtype::Fp4) && known(Dtype::Fp8)
    }

    /// Returns the seconds of a product of activations with weights in the format `weights`.
    fn weight_product_seconds(&self, [batch, m, n, k]: [u64; 4], weights: Dtype) -> f64 {
        let format = self.compute_format(weights);
        if format == Dtype::Fp4 && self.prices_fp4_by_fp8() {
            // The measured FP4 curve includes the kernel that quantizes the activations, but engines fuse this kernel
            // into the kernel before it. Without quantization, a product reads 9/16 of the bytes of an FP8 product and
            // computes at twice the rate.
            let columns = (n * 9).div_ceil(16);
            return self.kernel_seconds(gemm_kernel_profile([batch, m, columns, k], Dtype::Fp8));
        }
        if format == weights {
            return self.kernel_seconds(gemm_kernel_profile([batch, m, n, k], format));
        }
        // The kernel reads 0.5625 bytes per weight instead of 2, and does the same multiplications.
        let narrow = self.kernel_seconds(gemm_kernel_profile(
            [batch, m, (n * 9).div_ceil(32), k],
            format,
        ));
        let flops = 2.0 * batch as f64 * m as f64 * n as f64 * k as f64;
        let peak = self.class.peaks.get(format);
        peak.map_or(narrow, |peak| {
            narrow.max(flops / (WEIGHT_ONLY_PEAK * peak.per_second()) * self.class.slowdown)
        })
    }

    fn is_left_out(&self, part: StepCostPart) -> bool {
        self.left_out.contains(&part)
    }

    /// Returns the number of tokens in a step after padding to the size of a captured graph.
    pub fn padded_token_count(&self, tokens: u64) -> u64 {
        if self.is_left_out(StepCostPart::Padding) || tokens > LARGEST_GRAPH {
            return tokens;
        }
        match tokens {
            0..=2 => tokens,
            3..=4 => 4,
            more => more.next_multiple_of(GRAPH_STEP),
        }
    }

    /// Returns the number of expert products on an NPU, and for each product its rows, its columns,
    /// and the size of the dimension that it sums over. A step has `tokens` tokens, and at most
    /// `padded` tokens per rank.
    fn expert_product_sizes(
        &self,
        kind: &EqualModelBlocks,
        product: &BlockMatrixProduct,
        [experts, chosen]: [u64; 2],
        [tokens, padded]: [u64; 2],
    ) -> [u64; 4] {
        let touched = expected_active_experts(experts, chosen, tokens);
        let gathered = padded * u64::from(self.ranks);
        let rows = (gathered * chosen).div_ceil(touched);
        if !self.has_whole_experts {
            let [k, n] = kind.product_sizes_per_npu(product, self.npus);
            return [touched, rows, n, k];
        }
        // Divide the active experts among the NPUs, because each NPU has whole experts.
        let own = touched.div_ceil(u64::from(self.npus * self.ranks));
        [own, rows, product.outputs, product.inputs]
    }

    /// Returns, by part, the seconds of all work whose amount depends only on the number of tokens.
    /// `tokens` is the number of tokens on this rank, and `all` is the number on all ranks.
    fn token_work_seconds_by_part(&self, tokens: u64, all: u64) -> [f64; StepCostPart::COUNT] {
        let mut parts = [0.0; StepCostPart::COUNT];
        let padded = self.padded_token_count(tokens);
        let embedding =
            self.memory_bound_seconds(MemoryBoundKernel::Embedding, 4 * self.sizes.hidden * padded);
        parts[StepCostPart::Elementwise as usize] = embedding;
        for kind in &self.sizes.kinds {
            let count = kind.count as f64;
            let products = kind.products.iter().map(|product| {
                let [k, n] = kind.product_sizes_per_npu(product, self.npus);
                match product.experts {
                    None => self.weight_product_seconds([1, padded, n, k], self.formats.weights),
                    Some(experts) => {
                        let sizes =
                            self.expert_product_sizes(kind, product, experts, [all, padded]);
                        self.weight_product_seconds(sizes, self.formats.experts)
                    }
                }
            });
            let router = kind.experts.map_or(0.0, |[experts, _]| {
                self.kernel_seconds(gemm_kernel_profile(
                    [1, padded, experts, self.sizes.hidden],
                    Dtype::Bf16,
                ))
            });
            parts[StepCostPart::Products as usize] += count * (products.sum::<f64>() + router);
            let moving = self.memory_bound_work_of_block(kind);
            let each = moving.iter().map(|work| {
                let bytes = 2 * work.elements * padded;
                self.memory_bound_seconds(work.kernel, bytes)
            });
            parts[StepCostPart::Elementwise as usize] += count * each.sum::<f64>();
            // Add no gaps after products: products were measured one after another, so their times
            // include gaps.
            let kernels = moving.len() as u64 + 1 + if self.npus > 1 { 2 } else { 0 };
            parts[StepCostPart::Gaps as usize] += count * kernels as f64 * GRAPH_GAP.as_seconds();
        }
        let bytes = 2 * padded * self.sizes.hidden;
        let exchanging = self
            .sizes
            .kinds
            .iter()
            .filter(|kind| kind.experts.is_some());
        let exchanging = match self.ranks {
            1 => 0,
            _ => exchanging.map(|kind| kind.count).sum(),
        };
        if self.npus > 1 {
            let each = self.all_reduce.seconds_for(bytes);
            // If ranks exchange tokens, the exchange also adds up the NPUs' results, so a block has
            // only one all-reduce.
            let reduces = 2 * self.sizes.layers - exchanging + 1;
            parts[StepCostPart::Collectives as usize] = reduces as f64 * each;
        }
        if exchanging > 0 {
            let (gathered, npus) = (bytes * u64::from(self.ranks), self.npus * self.ranks);
            let there =
                self.all_reduce
                    .token_exchange_seconds(CollectiveKind::AllGather, gathered, npus);
            let back = self.all_reduce.token_exchange_seconds(
                CollectiveKind::ReduceScatter,
                gathered,
                npus,
            );
            parts[StepCostPart::Collectives as usize] += exchanging as f64 * (there + back);
        }
        parts
    }

    /// Returns the seconds of a kernel that moves bytes, without the gap after it.
    fn memory_bound_seconds(&self, kernel: MemoryBoundKernel, bytes: u64) -> f64 {
        let profile = KernelProfile {
            bytes,
            dtype: Some(Dtype::Bf16),
            shape: Some(KernelShape::Moving(kernel)),
            ..KernelProfile::default()
        };
        let gap = self
            .class
            .curves
            .moving
            .as_ref()
            .map_or(0.0, |curve| curve.gap);
        (self.kernel_seconds(profile) - gap).max(0.0)
    }

    fn memory_bound_work_of_block(&self, kind: &EqualModelBlocks) -> Vec<MemoryBoundWork> {
        let sizes = &self.sizes;
        let parts = u64::from(self.npus);
        let mut work = vec![MemoryBoundWork {
            kernel: MemoryBoundKernel::ElementWise,
            elements: (kind.widest + kind.widest / 2) / parts,
        }];
        if !self.fuses_norms() {
            // A block has two norms. Each norm includes the residual sum before it, so it has two
            // reads and two writes.
            work.extend(
                [MemoryBoundWork {
                    kernel: MemoryBoundKernel::Normalization,
                    elements: 4 * sizes.hidden,
                }; 2],
            );
        }
        match &kind.mixing {
            TokenMixing::Attention(attention) => self.add_attention_work(attention, &mut work),
            TokenMixing::Delta(delta) => {
                let [_, values] = delta.own_heads(self.npus);
                // This work is the convolution, and the norm and gate of the results.
                work.push(MemoryBoundWork {
                    kernel: MemoryBoundKernel::ElementWise,
                    elements: 2 * delta.convolved_columns(self.npus),
                });
                work.push(MemoryBoundWork {
                    kernel: MemoryBoundKernel::Normalization,
                    elements: 3 * values * delta.value_width,
                });
            }
        }
        if let Some([experts, chosen]) = kind.experts {
            // The router chooses experts, and a later kernel adds up the experts' results.
            work.push(MemoryBoundWork {
                kernel: MemoryBoundKernel::Softmax,
                elements: 3 * experts,
            });
            work.push(MemoryBoundWork {
                kernel: MemoryBoundKernel::ElementWise,
                elements: (chosen + 1) * sizes.hidden,
            });
        }
        work
    }

    /// Returns true if the all-reduces before norms also compute the norms.
    fn fuses_norms(&self) -> bool {
        self.npus > 1
            && self.all_reduce.kernels == AllReduceKernels::TensorrtLlm
            && !self.all_reduce.own.is_empty()
    }

    /// Adds the kernels that move bytes before and after a block's attention.
    fn add_attention_work(&self, attention: &BlockAttentionSizes, work: &mut Vec<MemoryBoundWork>) {
        let heads = attention.heads / u64::from(self.npus);
        let turned = match attention.latent {
            Some([_, turned]) => (heads + 1) * turned,
            None => (heads + attention.kv_heads_per_npu(self.npus)) * attention.width,
        };
        work.push(MemoryBoundWork {
            kernel: MemoryBoundKernel::ElementWise,
            elements: 2 * turned,
        });
        work.push(MemoryBoundWork {
            kernel: MemoryBoundKernel::Copy,
            elements: 2 * attention.kept_elements(self.npus),
        });
        if attention.qk_norm {
            work.push(MemoryBoundWork {
                kernel: MemoryBoundKernel::Normalization,
                elements: 2 * turned,
            });
        }
        if attention.is_gated {
            work.push(MemoryBoundWork {
                kernel: MemoryBoundKernel::ElementWise,
                elements: 3 * heads * attention.width,
            });
        }
    }

    /// Returns the seconds of linear attention in a block, for requests with one token each. Each
    /// request reads and writes its states.
    fn delta_decode(&self, of: &BlockDelta, requests: u64) -> f64 {
        let [keys, values] = of.own_heads(self.npus);
        let vectors = 2 * keys * of.key_width + 2 * values * of.value_width;
        let bytes = requests * (2 * of.state_of_request(self.npus) + 2 * vectors);
        self.memory_bound_seconds(MemoryBoundKernel::ElementWise, bytes)
    }

    /// Returns the seconds of linear attention in a block for prompts. The time is the larger of
    /// compute time and memory time (roofline). Compute covers the products inside chunks and with
    /// states; memory covers the vectors and states that kernels pass to one another.
    fn delta_prefill(&self, of: &BlockDelta, chunks: &[(u32, u32)]) -> f64 {
        let tokens: u64 = chunks.iter().map(|(tokens, _)| u64::from(*tokens)).sum();
        let [keys, values] = of.own_heads(self.npus);
        let (k, v) = (of.key_width, of.value_width);
        let inside = DELTA_CHUNK * (3 * k + 2 * v);
        let with_states = 3 * k * v;
        // Each key, corrected key and corrected value of a chunk is written once and read once.
        // States in BF16 are stored once per chunk.
        let vectors = 2 * keys * k + values * (2 * k + 4 * v);
        let states = values * k * v / DELTA_CHUNK;
        self.kernel_seconds(KernelProfile {
            flops: 2 * tokens * values * (inside + with_states),
            bytes: 2 * 2 * tokens * (vectors + states),
            dtype: Some(Dtype::Bf16),
            ..KernelProfile::default()
        })
    }

    /// Returns the seconds of one block's attention, for `batch` sequences. Each sequence has
    /// `queries` tokens in this step, and `keys` tokens at the end of the step.
    fn attention_seconds(
        &self,
        of: &BlockAttentionSizes,
        batch: u64,
        queries: u64,
        keys: u64,
    ) -> f64 {
        let parts = u64::from(self.npus);
        let heads = of.heads / parts;
        if let (Some(latent), 1) = (of.latent, queries) {
            return self.latent_decode_seconds(heads, latent, batch, keys);
        }
        let kv_heads = match of.latent {
            // Each head computes its keys and values from the latent vectors.
            Some(_) => heads,
            None => of.kv_heads_per_npu(self.npus),
        };
        let width = of.width;
        // With a window, the first query reads `window` tokens, the last of which is its own, and
        // each later query reads one new token.
        let keys = match of.window {
            Some(window) => keys.min(window + queries - 1),
            None => keys,
        };
        // FP8 keys have half as many bytes as BF16 keys, so look up half as many keys in the BF16
        // curve.
        let keys = match (queries, self.formats.kv) {
            (1, Dtype::Fp8) => keys.div_ceil(2),
            _ => keys,
        };
        if let Some(seconds) = self.unmeasured_decode_seconds(of, batch, queries, keys) {
            return seconds;
        }
        // Each query reads one more key than the previous query, until it reads the whole window.
        let mut pairs = queries * keys - queries * (queries - 1) / 2;
        if let Some(window) = of.window {
            pairs = pairs.min(queries * window);
        }
        self.kernel_seconds(KernelProfile {
            flops: 4 * batch * heads * width * pairs,
            bytes: 2 * batch * width * (2 * heads * queries + 2 * kv_heads * keys),
            dtype: Some(Dtype::Bf16),
            shape: Some(KernelShape::Attention {
                batch,
                heads,
                kv_heads,
                queries,
                keys,
                width,
                causal: true,
                backward: false,
            }),
            ..KernelProfile::default()
        })
    }

    /// Returns the seconds of attention with latent vectors, for one query per sequence. All heads
    /// read the same latent vectors.
    fn latent_decode_seconds(
        &self,
        heads: u64,
        [latent, turned]: [u64; 2],
        batch: u64,
        keys: u64,
    ) -> f64 {
        let pairs = (batch * keys) as f64;
        let bytes = pairs * (latent + turned) as f64 * self.formats.kv.element_bytes();
        let flops = pairs * (2 * heads * (2 * latent + turned)) as f64;
        let memory = self.class.memory_bandwidth().map_or(0.0, |memory| {
            bytes / (LATENT_MEMORY * memory.bytes_per_second())
        });
        let peak = self.class.peaks.get(Dtype::Bf16);
        let products = peak.map_or(0.0, |peak| flops / (LATENT_PEAK * peak.per_second()));
        (LATENT_START.as_seconds() + memory.max(products)) * self.class.slowdown
    }

    /// Returns the seconds of attention with one query per sequence, on NPUs without a measured
    /// curve for one query. The kernel reads keys and values at [`DECODE_MEMORY`] of the memory's
    /// bandwidth. Returns `None` if the NPU has a curve for one query, or if it has no attention
    /// curve at all.
    fn unmeasured_decode_seconds(
        &self,
        of: &BlockAttentionSizes,
        batch: u64,
        queries: u64,
        keys: u64,
    ) -> Option<f64> {
        let curve = self.class.curves.attention[Dtype::Bf16 as usize].as_ref()?;
        if queries > 1 || curve.decode.is_some() {
            return None;
        }
        let kv_heads = of.kv_heads_per_npu(self.npus);
        let bytes = (4 * batch * kv_heads * keys * of.width) as f64;
        let memory = self.class.memory_bandwidth()?.bytes_per_second();
        Some((curve.start + bytes / (DECODE_MEMORY * memory)) * self.class.slowdown)
    }

    fn prefill_seconds(&self, of: &BlockAttentionSizes, chunks: &[(u32, u32)]) -> f64 {
        // A single attention kernel handles all chunks, so count the start only once.
        let dtype = Dtype::Bf16 as usize;
        let start = self.class.curves.attention[dtype]
            .as_ref()
            .map_or(0.0, |curve| curve.start);
        let each = chunks.iter().map(|&(tokens, past)| {
            let (tokens, past) = (u64::from(tokens), u64::from(past));
            self.attention_seconds(of, 1, tokens.max(2), past + tokens) - start
        });
        let all: f64 = each.map(|seconds| seconds.max(0.0)).sum();
        if chunks.is_empty() { 0.0 } else { start + all }
    }

    fn output_head_seconds(&self, rows: u64) -> f64 {
        if rows == 0 {
            return 0.0;
        }
        let vocabulary = self.sizes.vocabulary.div_ceil(u64::from(self.npus));
        let product = self.kernel_seconds(gemm_kernel_profile(
            [1, rows, vocabulary, self.sizes.hidden],
            Dtype::Bf16,
        ));
        let gather = match self.npus {
            1 => 0.0,
            npus => {
                // Each NPU of the tensor group has a part of the vocabulary.
                let bytes = 2 * rows * self.sizes.vocabulary;
                let machine = self.all_reduce.machine.as_deref();
                let span = machine.and_then(|machine| {
                    machine.measured_collective(CollectiveKind::AllGather, bytes, npus)
                });
                let ring = || {
                    machine.map_or(0.0, |machine| {
                        measured_or_ring_seconds(machine, bytes, npus) / 2.0
                    })
                };
                span.map_or_else(ring, Span::as_seconds)
            }
        };
        // The sampling kernel converts logits to single precision and then to probabilities, and
        // samples a token; it makes three passes over the logits.
        let chosen = self.memory_bound_seconds(
            MemoryBoundKernel::Softmax,
            3 * 4 * rows * self.sizes.vocabulary,
        );
        product + gather + chosen
    }

    /// Returns the time of a step by part; `memo` caches the times that depend only on the number
    /// of tokens.
    pub fn step_time_by_part(&self, load: &StepLoad, memo: &mut StepCostCache) -> PartTimes {
        let key = (load.wave_tokens, load.all_tokens);
        let mut parts = *memo.of_tokens.entry(key).or_insert_with(|| {
            let mut seconds = self.token_work_seconds_by_part(load.wave_tokens, load.all_tokens);
            seconds[StepCostPart::HostStep as usize] = HOST_STEP.as_seconds();
            seconds.map(Span::from_seconds)
        });
        let [mut prefill, mut decode] = [0.0; 2];
        for kind in &self.sizes.kinds {
            let count = kind.count as f64;
            let of = match &kind.mixing {
                TokenMixing::Attention(of) => of,
                TokenMixing::Delta(of) => {
                    if !load.chunks.is_empty() {
                        prefill += count * self.delta_prefill(of, &load.chunks);
                    }
                    if load.decodes > 0 {
                        decode += count * self.delta_decode(of, load.decodes);
                    }
                    continue;
                }
            };
            if !load.chunks.is_empty() {
                prefill += count * self.prefill_seconds(of, &load.chunks);
            }
            if load.decodes > 0 {
                let keys = load.decode_context.div_ceil(load.decodes);
                let keys = of.keys_read_per_token(keys);
                decode += count * self.attention_seconds(of, load.decodes, 1, keys);
            }
        }
        parts[StepCostPart::Prefill as usize] = Span::from_seconds(prefill);
        parts[StepCostPart::Decode as usize] = Span::from_seconds(decode);
        let head = memo.of_rows.entry(load.sampled);
        parts[StepCostPart::Head as usize] =
            *head.or_insert_with(|| Span::from_seconds(self.output_head_seconds(load.sampled)));
        let requests = HOST_REQUEST.as_seconds() * load.requests as f64;
        parts[StepCostPart::HostRequest as usize] = Span::from_seconds(requests);
        for part in &self.left_out {
            parts[*part as usize] = Span::ZERO;
        }
        parts
    }

    /// Describes the source of the times for products with weights in the format `weights`.
    fn describe_products(&self, weights: Dtype) -> Vec<String> {
        let computes_in = self.compute_format(weights);
        let mut all = Vec::new();
        if computes_in != weights {
            all.push(format!(
                "weights in {} are read as such, and products computed in {}, at most at {} of its peak rate (an assumption)",
                name_of(weights),
                name_of(computes_in),
                format_percent(WEIGHT_ONLY_PEAK)
            ));
        }
        let known = self.class.curves.gemm[computes_in as usize].is_some();
        all.push(format!(
            "products in {}: {}",
            name_of(computes_in),
            match known {
                true if computes_in == Dtype::Fp4 && self.prices_fp4_by_fp8() => {
                    "curve of FP8 with 9/16 of its columns, because the curve of FP4 contains the quantization of activations"
                }
                true => "fitted curve of the machine",
                false => "roofline at the peak rates, a lower bound",
            }
        ));
        all
    }

    /// Describes the sources of all times.
    pub fn describe_basis(&self) -> Vec<String> {
        let curves = &self.class.curves;
        let mut all = Vec::new();
        let StepFormats {
            weights, experts, ..
        } = self.formats;
        let mut formats = vec![weights];
        if experts != weights && self.sizes.has_experts() {
            formats.push(experts);
        }
        for weights in formats {
            all.extend(self.describe_products(weights));
        }
        let known = curves.attention[Dtype::Bf16 as usize].is_some();
        all.push(format!(
            "attention: {}",
            if known {
                "fitted curves of the machine"
            } else {
                "roofline at the peak rates, a lower bound"
            }
        ));
        if self.sizes.kinds.iter().any(|kind| kind.delta().is_some()) {
            all.push(format!(
                "linear attention: states of {} bytes a request on each NPU; prompts in chunks of {DELTA_CHUNK} tokens at the                  roofline, a lower bound; prefixes are not cached",
                format_thousands(self.sizes.state_bytes(self.npus))
            ));
        }
        let of = self
            .sizes
            .kinds
            .iter()
            .filter_map(EqualModelBlocks::attention);
        if of.clone().any(|attention| attention.latent.is_some()) {
            all.push(format!(
                "attention of one token over latent vectors: {} of the memory's bandwidth or {} of the peak rate, as on H100",
                format_percent(LATENT_MEMORY),
                format_percent(LATENT_PEAK)
            ));
        }
        if of.clone().any(|attention| attention.window.is_some()) {
            all.push(
                "windows: steps read only the window; blocks keep all tokens, as in vLLM without its hybrid manager"
                    .to_owned(),
            );
        }
        let curve = curves.attention[Dtype::Bf16 as usize].as_ref();
        if curve.is_some_and(|curve| curve.decode.is_none()) {
            all.push(format!(
                "attention of one token: {} of the memory's bandwidth, as on H100; it was not measured on this machine",
                format_percent(DECODE_MEMORY)
            ));
        }
        if self.ranks > 1 {
            all.push(format!(
                "{} ranks in lockstep: each step lasts as long as the slowest rank; they gather all tokens for the experts and \
                 scatter the sums",
                self.ranks
            ));
        }
        if self.npus > 1 {
            let own = !self.all_reduce.own.is_empty();
            all.push(format!(
                "all-reduces among {}: {}",
                self.npus,
                match own {
                    true if self.fuses_norms() => {
                        "TensorRT-LLM's kernels with the norm after them, as measured on H100 up to 4 MiB, the machine's collectives above 4 MiB"
                    }
                    true => "vLLM's own kernels as measured up to 4 MiB, the machine's collectives above 4 MiB",
                    false => "the machine's collectives",
                }
            ));
        }
        all.push(format!(
            "host: {HOST_STEP} a step and {HOST_REQUEST} a request (inference-sim's fit to vLLM 0.15 on H100); gaps of {GRAPH_GAP}"
        ));
        all
    }

    /// Returns the parts that are left out.
    pub fn left_out(&self) -> &[StepCostPart] {
        &self.left_out
    }

    /// Returns the model's sizes.
    pub fn model_sizes(&self) -> &LlmModelSizes {
        &self.sizes
    }
}

/// Cached times that depend only on the number of tokens.
#[derive(Clone, Debug, Default)]
pub struct StepCostCache {
    /// Key: the largest number of tokens on any rank, and the number of tokens on all ranks.
    of_tokens: BTreeMap<(u64, u64), PartTimes>,
    of_rows: BTreeMap<u64, Span>,
}

/// Returns the name of a format in files.
pub(super) fn name_of(format: Dtype) -> &'static str {
    Dtype::ALL[format as usize].1
}

/// Returns the expected number of experts that receive at least one of `tokens` tokens. Each token
/// goes to `chosen` of `experts` equally likely experts.
pub(super) fn expected_active_experts(experts: u64, chosen: u64, tokens: u64) -> u64 {
    let all = experts as f64;
    let (mut none, mut each, mut left) = (1.0, 1.0 - chosen as f64 / all, tokens);
    // Compute the power by repeated squaring.
    while left > 0 {
        if left % 2 == 1 {
            none *= each;
        }
        each *= each;
        left /= 2;
    }
    ((all * (1.0 - none)).round() as u64).clamp(1, experts)
}

fn gemm_kernel_profile([batch, m, n, k]: [u64; 4], format: Dtype) -> KernelProfile<'static> {
    let bytes =
        format.element_bytes() * (batch * (m * k + n * k)) as f64 + 2.0 * (batch * m * n) as f64;
    KernelProfile {
        flops: 2 * batch * m * n * k,
        bytes: bytes as u64,
        dtype: Some(format),
        shape: Some(KernelShape::Gemm { batch, m, n, k }),
        ..KernelProfile::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_workloads::model::ModelSource;

    fn cost(model: &str, machine: &str, npus: u32, left_out: &[StepCostPart]) -> StepCost {
        let definition = ModelSource::find_source(model)
            .unwrap()
            .parse_definition(None)
            .unwrap();
        let sizes = LlmModelSizes::from_definition(&definition).unwrap();
        let machine = Machine::load_by_name(machine).unwrap();
        let [weights, experts, kv] = [Dtype::Bf16; 3];
        let formats = StepFormats {
            weights,
            experts,
            kv,
        };
        let shape = EngineShape {
            npus,
            ranks: 1,
            has_whole_experts: false,
            all_reduce: AllReduceKernels::Vllm,
        };
        StepCost::new(sizes, &machine, shape, formats, left_out).unwrap()
    }

    fn decode(requests: u64, context: u64) -> StepLoad {
        StepLoad {
            tokens: requests,
            requests,
            sampled: requests,
            decodes: requests,
            decode_context: requests * context,
            longest_context: context,
            chunks: Vec::new(),
            context: requests * context,
            wave_tokens: requests,
            all_tokens: requests,
        }
    }

    fn total(cost: &StepCost, load: &StepLoad) -> f64 {
        let parts = cost.step_time_by_part(load, &mut StepCostCache::default());
        parts.iter().map(|span| span.as_seconds()).sum()
    }

    /// With 256 experts and 8 per token, the formula E (1 - (1 - k / E)^B) yields 57 active experts
    /// for 8 tokens, 163 for 32 tokens, and 222 for 64 tokens.
    #[test]
    fn experts_are_touched_as_by_chance() {
        let touched = [8, 32, 64].map(|tokens| expected_active_experts(256, 8, tokens));
        assert_eq!(touched, [57, 163, 222]);
        assert_eq!(expected_active_experts(8, 2, 0), 1);
        assert_eq!(expected_active_experts(8, 2, 1), 2);
    }

    #[test]
    fn decode_steps_are_above_the_roofline_and_not_far() {
        // The model's weights, without the embedding table, take 15.0 GB. The keys and values of 32
        // requests of 1,024 tokens, with 131,072 bytes per token, take 4.3 GB. Reading both at 3.35
        // TB/s takes 5.77 ms.
        let step = total(&cost("llama3-8b", "dgx-h100", 1, &[]), &decode(32, 1024));
        let bound = (15.01e9 + 4.29e9) / 3.35e12;
        assert!(step > bound && step < 1.8 * bound, "{step} and {bound}");
    }

    /// Qwen3-Next has 36 blocks with linear attention, which read and write states of 32 x 128 x
    /// 128 x 4 bytes, and 12 blocks with keys and values.
    #[test]
    fn states_are_read_and_written_whatever_the_context() {
        let cost = cost("qwen3-next-80b-a3b", "dgx-h100", 4, &[]);
        let delta = *cost.sizes.kinds[0].delta().unwrap();
        let counts: Vec<u64> = cost.sizes.kinds.iter().map(|kind| kind.count).collect();
        assert_eq!(counts, [36, 12]);
        let bytes = 128.0 * 2.0 * (32 * 128 * 128 * 4 / 4) as f64;
        let seconds = cost.delta_decode(&delta, 128);
        let bound = bytes / 3.35e12;
        assert!(
            seconds > bound && seconds < 2.0 * bound,
            "{seconds} and {bound}"
        );
        let part = |context| {
            let parts =
                cost.step_time_by_part(&decode(128, context), &mut StepCostCache::default());
            parts[StepCostPart::Decode as usize].as_seconds()
        };
        let full = *cost.sizes.kinds[1].attention().unwrap();
        let [short, long] = [1000, 8000].map(|keys| cost.attention_seconds(&full, 128, 1, keys));
        let grown = part(8000) - part(1000);
        assert!((grown - 12.0 * (long - short)).abs() < 1e-9);
        // Each of the 8,192 tokens in a step requires 2 x 8 x (64 x 5 x 128 + 3 x 128 x 128) FLOPs.
        // The NPU computes at most 989 TFLOP/s.
        let flops = 8192.0 * 2.0 * 8.0 * (64.0 * 5.0 * 128.0 + 3.0 * 128.0 * 128.0);
        assert!(cost.delta_prefill(&delta, &[(8192, 0)]) >= flops / 989.5e12);
        let alone = cost.delta_prefill(&delta, &[(100, 900)]);
        assert_eq!(alone, cost.delta_prefill(&delta, &[(100, 0)]));
    }

    #[test]
    fn parts_that_are_left_out_take_no_time() {
        let load = StepLoad {
            chunks: vec![(512, 0), (100, 2000)],
            tokens: 612 + 8,
            wave_tokens: 612 + 8,
            all_tokens: 612 + 8,
            requests: 10,
            ..decode(8, 700)
        };
        let all = cost("llama3-70b", "dgx-h100", 4, &[])
            .step_time_by_part(&load, &mut StepCostCache::default());
        for (part, name) in StepCostPart::NAMES {
            let is_padding = *part == StepCostPart::Padding;
            assert_eq!(all[*part as usize] == Span::ZERO, is_padding, "{name}");
            let without = cost("llama3-70b", "dgx-h100", 4, &[*part]);
            let parts = without.step_time_by_part(&load, &mut StepCostCache::default());
            assert_eq!(parts[*part as usize], Span::ZERO, "{name}");
            for (other, _) in StepCostPart::NAMES
                .iter()
                .filter(|(other, _)| other != part)
            {
                assert_eq!(parts[*other as usize], all[*other as usize], "{name}");
            }
        }
        let padded = [1, 2, 3, 5, 9, 511, 513]
            .map(|tokens| cost("llama3-8b", "dgx-h100", 1, &[]).padded_token_count(tokens));
        assert_eq!(padded, [1, 2, 4, 8, 16, 512, 513]);
    }

    /// B200's FP4 curve, which includes the quantization of activations, starts at 7.1 us; its FP8 curve
    /// starts at 1.9 us.
    #[test]
    fn products_in_four_bits_read_fewer_bytes_of_the_same_kernel() {
        let blackwell = cost("llama3-70b", "dgx-b200", 1, &[]);
        let seconds =
            |format, rows| blackwell.weight_product_seconds([1, rows, 8192, 8192], format);
        let gain = seconds(Dtype::Fp8, 16) / seconds(Dtype::Fp4, 16);
        assert!((1.4..1.78).contains(&gain), "{gain}");
        let start = seconds(Dtype::Fp4, 1) - 8192.0 * 8192.0 * 9.0 / 16.0 / 8e12;
        assert!(start < 7.1e-6, "{start}");
        // H100 does not compute in four bits, so it reads weights in four bits but computes products
        // in BF16.
        let hopper = cost("llama3-70b", "dgx-h100", 1, &[]);
        let hopper = |format, rows| hopper.weight_product_seconds([1, rows, 8192, 8192], format);
        assert!(hopper(Dtype::Fp4, 16) < hopper(Dtype::Fp8, 16));
        assert!(hopper(Dtype::Fp4, 8192) > hopper(Dtype::Bf16, 8192));
    }

    /// Each of eight NPUs with whole experts has an eighth of the experts, with all their columns. NPUs without whole
    /// experts have an eighth of the columns of every expert.
    #[test]
    fn whole_experts_are_fewer_and_wider() {
        let mut cost = cost("qwen3-235b-a22b", "dgx-h100", 8, &[]);
        let kind = cost.sizes.kinds[0].clone();
        let up = *kind
            .products
            .iter()
            .find(|product| product.experts.is_some())
            .unwrap();
        let sizes = |cost: &StepCost| cost.expert_product_sizes(&kind, &up, [128, 8], [4096, 4096]);
        assert_eq!(sizes(&cost), [128, 256, 2 * 1536 / 8, 4096]);
        cost.has_whole_experts = true;
        assert_eq!(sizes(&cost), [16, 256, 2 * 1536, 4096]);
    }

    /// On four H100 NPUs, TensorRT-LLM's kernels take 4.3 us for 128 KiB, including the norms.
    #[test]
    fn norms_are_part_of_fused_all_reduces() {
        let definition = ModelSource::find_source("llama3-70b")
            .unwrap()
            .parse_definition(None)
            .unwrap();
        let machine = Machine::load_by_name("dgx-h100").unwrap();
        let [weights, experts, kv] = [Dtype::Bf16; 3];
        let cost = |npus, all_reduce| {
            let formats = StepFormats {
                weights,
                experts,
                kv,
            };
            let shape = EngineShape {
                npus,
                ranks: 1,
                has_whole_experts: false,
                all_reduce,
            };
            let sizes = LlmModelSizes::from_definition(&definition).unwrap();
            StepCost::new(sizes, &machine, shape, formats, &[]).unwrap()
        };
        let [own, fused] =
            [AllReduceKernels::Vllm, AllReduceKernels::TensorrtLlm].map(|kernels| cost(4, kernels));
        assert!((fused.all_reduce.seconds_for(131_072) - 4.3e-6).abs() < 1e-9);
        let kernels = |cost: &StepCost| cost.memory_bound_work_of_block(&cost.sizes.kinds[0]).len();
        assert_eq!(kernels(&own) - kernels(&fused), 2);
        // A single NPU needs no all-reduce, so its norms are separate kernels.
        let alone = cost(1, AllReduceKernels::TensorrtLlm);
        assert_eq!(kernels(&alone), kernels(&own));
    }

    #[test]
    fn own_all_reduces_are_taken_where_they_were_measured() {
        let prices = cost("llama3-70b", "dgx-h100", 8, &[]).all_reduce;
        // The table has 7.9 us for 128 KiB, and 15.0 us for 1 MiB.
        assert!((prices.seconds_for(131_072) - 7.9e-6).abs() < 1e-9);
        assert!((prices.seconds_for(1 << 20) - 15.0e-6).abs() < 1e-9);
        // The table ends below 32 MiB, so the machine's NCCL curve is used: 199.8 us at 33,554,432
        // bytes.
        assert!((prices.seconds_for(33_554_432) - 199.8e-6).abs() < 1e-9);
    }
}
