//! Computes the time of a step on an engine's NPUs, part by part, from a model's sizes and a machine's kernel times.
//!
//! A step has `T` tokens (including the padding of CUDA graphs), and an engine has `n` NPUs. On
//! each NPU, the parts are:
//!
//! - `products`: the matrix products of each block, computed for all `T` tokens together. Experts count only if they
//!   receive tokens. If all experts are equally likely, their expected number is `E (1 - (1 - k / E)^T)`.
//! - `prefill`: for each request with several tokens in the step, attention over these tokens and
//!   all earlier tokens. Linear attention processes the tokens in chunks.
//! - `decode`: for each request with one token in the step, attention over all tokens of the request. Linear attention
//!   reads and writes their states.
//! - `elementwise`: the norms with residual sums, the rotation of queries and keys, the writes of
//!   keys and values, and the activation.
//! - `collectives`: two all-reduces of `2 T hidden` bytes per block, and one all-reduce after the
//!   embedding.
//! - `head`: for requests that produce a token, the logits and the sampling.
//! - `gaps`: the time between kernels within a CUDA graph.
//! - `launches`: how much longer the host takes to launch the kernels outside captured graphs than the kernels take to
//!   run.
//! - `host-step` and `host-request`: the host's work between steps.

mod all_reduce;
mod attention;
mod basis;
mod expert_kernels;
mod ineffective_keys;
mod launches;
mod moved_bytes;
mod products;

use super::super::error::ServeError;
use super::model_sizes::{LlmModelSizes, TokenMixingOperator};
use super::rules::{
    AllReduceKernelLibrary, ExpertKernelLibrary, GraphCaptureRule, InputQuantizingKernels,
};
use super::step_load::StepTimeInputs;
use all_reduce::AllReduceTimes;
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::dtype::Dtype;
use chakram_base::ids::Npu;
use chakram_base::kernel_shape::MemoryBoundKernelClass;
use chakram_base::units::Span;
use chakram_hardware::compute::{KernelDurationSource, KernelDurationWithBasis, KernelTraceFacts};
use chakram_hardware::machine::{Machine, NpuClass};
use expert_kernels::ExpertKernelTimingConstants;
use launches::host_time_per_kernel_launch;
use products::gemm_kernel_facts_from_sizes;
use std::collections::BTreeMap;

pub(super) use products::expected_active_experts;

/// A part of a step's time, which a scenario may leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum StepTimePart {
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
    /// Launches of kernels outside captured graphs, insofar as they take longer than the kernels.
    Launches,
    /// The host's time per step.
    HostStep,
    /// The host's time per request in the step.
    HostRequest,
    /// Padding tokens that CUDA graphs add. Their times are included in the other parts.
    Padding,
}

impl StepTimePart {
    /// All parts of a step's time, each with its name in files and reports.
    pub const NAMES: &[(Self, &str)] = &[
        (Self::Products, "products"),
        (Self::Prefill, "prefill"),
        (Self::Decode, "decode"),
        (Self::Elementwise, "elementwise"),
        (Self::Collectives, "collectives"),
        (Self::Head, "head"),
        (Self::Gaps, "gaps"),
        (Self::Launches, "launches"),
        (Self::HostStep, "host-step"),
        (Self::HostRequest, "host-request"),
        (Self::Padding, "padding"),
    ];
    /// Number of parts.
    pub const COUNT: usize = 11;

    /// Returns the part's name in files and reports.
    pub fn part_name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

/// Times by part, in the order of [`StepTimePart`].
pub type StepTimesByPart = [Span; StepTimePart::COUNT];

/// Time between kernels in a CUDA graph. Captures with a full queue show 1.0 to 1.4 us (`gap` in machine presets); the
/// host does not delay the kernels of a graph.
const GRAPH_GAP: Span = Span::from_ns(1000);
/// Time per step in which the device waits for the host. vLLM 0.15's scheduler, input preparation
/// and output handling take 126 us (documentation of inference-sim's trained model on H100).
const HOST_STEP: Span = Span::from_us(126);
/// Host time per request in a step, from the same source as [`HOST_STEP`].
const HOST_REQUEST: Span = Span::from_us(4);
/// Sizes of captured graphs above 4 tokens are multiples of this size.
const GRAPH_STEP: u64 = 8;

/// The NPUs of an engine, and how they divide the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineParallelismAndKernels {
    /// Number of NPUs that divide each block.
    pub npus: u32,
    /// Number of attention ranks that run in lockstep, each with `npus` NPUs; all ranks share the
    /// experts.
    pub ranks: u32,
    /// True if each NPU has whole experts, false if each NPU has a part of every expert.
    pub has_whole_experts: bool,
    /// Kernels used for all-reduces.
    pub all_reduce: AllReduceKernelLibrary,
    /// The kernels that compute experts.
    pub expert_kernels: ExpertKernelLibrary,
    /// The kernels that quantize the inputs of products.
    pub quantization: InputQuantizingKernels,
    /// True if no time passes between the kernels of a captured graph.
    pub dependent_launch: bool,
    /// The steps that are launched as captured graphs.
    pub graphs: GraphCaptureRule,
    /// Largest number of tokens in a captured graph.
    pub graph_tokens: u32,
}

/// Number formats of a served model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedModelNumberFormats {
    /// Format of the weights outside experts.
    pub weights: Dtype,
    /// Format of the experts' weights.
    pub experts: Dtype,
    /// Format of keys and values.
    pub kv: Dtype,
    /// True if FP8 weights have one scale per block; a kernel before each product then quantizes its inputs in groups.
    pub has_block_scales: bool,
}

/// Computes the time of a model's steps on the NPUs of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimeCalculator {
    sizes: LlmModelSizes,
    class: NpuClass,
    npus: u32,
    /// Number of attention ranks that run in lockstep; the NPUs of all ranks share the experts.
    ranks: u32,
    has_whole_experts: bool,
    graphs: GraphCaptureRule,
    graph_tokens: u64,
    formats: ServedModelNumberFormats,
    left_out: Vec<StepTimePart>,
    /// Measured times of all-reduces.
    all_reduce: AllReduceTimes,
    /// Measured times of the engine's own kernels for experts, if there are any.
    expert_kernels: Option<ExpertKernelTimingConstants>,
    quantization: InputQuantizingKernels,
    /// Time between the kernels of a graph.
    gap: Span,
    /// Host time to launch a kernel outside a graph, if known.
    launch: Option<Span>,
}

impl StepTimeCalculator {
    /// Creates the costs for a model on the NPUs of `machine`; `shape` describes how these NPUs
    /// divide the work.
    ///
    /// # Errors
    ///
    /// Fails if the machine has NPUs of different classes, or if it does not state their rates.
    pub fn new(
        sizes: LlmModelSizes,
        machine: &Machine,
        shape: EngineParallelismAndKernels,
        formats: ServedModelNumberFormats,
        left_out: &[StepTimePart],
    ) -> Result<Self, ServeError> {
        let EngineParallelismAndKernels {
            npus,
            ranks,
            has_whole_experts,
            all_reduce,
            expert_kernels,
            quantization,
            dependent_launch,
            graphs,
            graph_tokens,
        } = shape;
        let class = machine.npu_classes()[machine.class_of_npu(Npu(0))].clone();
        let cost = Self {
            all_reduce: AllReduceTimes::load(all_reduce, machine, &class.name, npus, ranks)?,
            expert_kernels: ExpertKernelTimingConstants::load(
                expert_kernels,
                &class.name,
                formats.experts,
            )?,
            quantization,
            launch: host_time_per_kernel_launch(machine, &class),
            gap: if dependent_launch {
                Span::ZERO
            } else {
                GRAPH_GAP
            },
            sizes,
            class,
            npus,
            ranks,
            has_whole_experts,
            graphs,
            graph_tokens: graph_tokens.into(),
            formats,
            left_out: left_out.to_vec(),
        };
        let kind = &cost.sizes.kinds[0];
        let [k, n] = kind.product_inputs_and_outputs_per_npu(&kind.products[0], npus);
        for weights in [formats.weights, formats.experts] {
            let computes_in = cost.compute_format_for_weights(weights);
            if let KernelDurationWithBasis::NoPeak(_) | KernelDurationWithBasis::Unknown =
                cost.price_kernel(gemm_kernel_facts_from_sizes([1, 1, n, k], computes_in))
            {
                return Err(ServeError::Unfit(format!(
                    "machine {}: NPUs of class {} have no peak rate for {}, the number format of the served \
                     model\n  try: another format of weights, or a machine that states one",
                    machine.name(),
                    cost.class.name,
                    name_of_format(weights)
                )));
            }
        }
        Ok(cost)
    }

    fn price_kernel(&self, kernel: KernelTraceFacts<'_>) -> KernelDurationWithBasis {
        let memory = self.class.memory_bandwidth();
        KernelDurationSource::Curves.price_kernel(
            &kernel,
            &self.class.peaks,
            memory,
            &self.class.curves,
        )
    }

    fn kernel_seconds(&self, kernel: KernelTraceFacts<'_>) -> f64 {
        self.price_kernel(kernel).duration().as_seconds() * self.class.slowdown
    }

    fn is_left_out(&self, part: StepTimePart) -> bool {
        self.left_out.contains(&part)
    }

    /// Returns the number of tokens in a step after padding to the size of a captured graph.
    pub fn padded_token_count(&self, tokens: u64) -> u64 {
        if self.is_left_out(StepTimePart::Padding) || tokens > self.graph_tokens {
            return tokens;
        }
        match tokens {
            0..=2 => tokens,
            3..=4 => 4,
            more => more.next_multiple_of(GRAPH_STEP),
        }
    }

    /// Returns the seconds of all work that depends only on the number of tokens, by part. `tokens` is the number on
    /// this rank, and `all` the number on all ranks.
    fn token_work_seconds_by_part(&self, tokens: u64, all: u64) -> [f64; StepTimePart::COUNT] {
        let mut parts = [0.0; StepTimePart::COUNT];
        let padded = self.padded_token_count(tokens);
        let embedding = self.memory_bound_seconds(
            MemoryBoundKernelClass::Embedding,
            4 * self.sizes.hidden * padded,
        );
        parts[StepTimePart::Elementwise as usize] = embedding;
        for kind in &self.sizes.kinds {
            let count = kind.count as f64;
            let products = kind.products.iter().map(|product| {
                let [k, n] = kind.product_inputs_and_outputs_per_npu(product, self.npus);
                match product.experts {
                    None => self.dense_product_seconds(
                        [padded, n, k],
                        self.has_separate_quantization_kernel(kind, product),
                    ),
                    Some(experts) => {
                        let sizes =
                            self.expert_product_sizes(kind, product, experts, [all, padded]);
                        self.expert_product_seconds(sizes)
                    }
                }
            });
            let router = kind.experts.map_or(0.0, |[experts, _]| {
                self.kernel_seconds(gemm_kernel_facts_from_sizes(
                    [1, padded, experts, self.sizes.hidden],
                    Dtype::Bf16,
                ))
            });
            parts[StepTimePart::Products as usize] += count * (products.sum::<f64>() + router);
            let moving = self.memory_bound_kernels_of_block(kind);
            let each = moving.iter().map(|work| {
                let bytes = 2 * work.elements * padded;
                self.memory_bound_seconds(work.kernel, bytes)
            });
            parts[StepTimePart::Elementwise as usize] += count * each.sum::<f64>();
            // No gaps are added after products, because products were measured one after another, gaps included.
            let kernels = moving.len() as u64 + 1 + if self.npus > 1 { 2 } else { 0 };
            parts[StepTimePart::Gaps as usize] += count * kernels as f64 * self.gap.as_seconds();
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
            let each = self.all_reduce.all_reduce_seconds(bytes);
            // An exchange of tokens between ranks also sums the NPUs' results, so a block needs only one all-reduce.
            let reduces = 2 * self.sizes.layers - exchanging + 1;
            parts[StepTimePart::Collectives as usize] = reduces as f64 * each;
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
            parts[StepTimePart::Collectives as usize] += exchanging as f64 * (there + back);
        }
        parts
    }

    fn output_head_seconds(&self, rows: u64) -> f64 {
        if rows == 0 {
            return 0.0;
        }
        let vocabulary = self.sizes.vocabulary.div_ceil(u64::from(self.npus));
        let product = self.kernel_seconds(gemm_kernel_facts_from_sizes(
            [1, rows, vocabulary, self.sizes.hidden],
            Dtype::Bf16,
        ));
        let gather = match self.npus {
            1 => 0.0,
            npus => {
                // Each NPU of the tensor group has a part of the vocabulary.
                let bytes = 2 * rows * self.sizes.vocabulary;
                let all_reduce = &self.all_reduce;
                all_reduce.token_exchange_seconds(CollectiveKind::AllGather, bytes, npus)
            }
        };
        // The sampling kernel converts logits to single precision and then to probabilities, and samples a token, in
        // three passes over the logits.
        let chosen = self.memory_bound_seconds(
            MemoryBoundKernelClass::Softmax,
            3 * 4 * rows * self.sizes.vocabulary,
        );
        product + gather + chosen
    }

    /// Returns the time of a step by part; `memo` caches the times that depend only on the number
    /// of tokens.
    pub fn step_time_by_part(
        &self,
        load: &StepTimeInputs,
        memo: &mut StepPartTimeCache,
    ) -> StepTimesByPart {
        let key = (load.wave_tokens, load.all_tokens);
        let mut parts = *memo.of_tokens.entry(key).or_insert_with(|| {
            let mut seconds = self.token_work_seconds_by_part(load.wave_tokens, load.all_tokens);
            seconds[StepTimePart::HostStep as usize] = HOST_STEP.as_seconds();
            seconds.map(Span::from_seconds_saturating)
        });
        let [mut prefill, mut decode] = [0.0; 2];
        for kind in &self.sizes.kinds {
            let count = kind.count as f64;
            let of = match &kind.mixing {
                TokenMixingOperator::Attention(of) => of,
                TokenMixingOperator::Delta(of) => {
                    if !load.chunks.is_empty() {
                        prefill += count * self.delta_attention_prefill_seconds(of, &load.chunks);
                    }
                    if load.decodes > 0 {
                        decode += count * self.delta_attention_decode_seconds(of, load.decodes);
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
                decode += count * self.attention_seconds_of_one_block(of, load.decodes, 1, keys);
            }
        }
        parts[StepTimePart::Prefill as usize] = Span::from_seconds_saturating(prefill);
        parts[StepTimePart::Decode as usize] = Span::from_seconds_saturating(decode);
        let head = memo.of_rows.entry(load.sampled);
        parts[StepTimePart::Head as usize] = *head.or_insert_with(|| {
            Span::from_seconds_saturating(self.output_head_seconds(load.sampled))
        });
        let prompts_and_size = (!load.chunks.is_empty(), self.fits_graphs(load));
        let launching = *memo.of_launches.entry(prompts_and_size).or_insert_with(|| {
            let launch = self.launch.unwrap_or_default();
            launch.times(self.launch_count_of_step(load))
        });
        let on_device: Span = parts[..StepTimePart::Launches as usize]
            .iter()
            .copied()
            .sum();
        parts[StepTimePart::Launches as usize] = Span(launching.0.saturating_sub(on_device.0));
        let requests = HOST_REQUEST.as_seconds() * load.requests as f64;
        parts[StepTimePart::HostRequest as usize] = Span::from_seconds_saturating(requests);
        for part in &self.left_out {
            parts[*part as usize] = Span::ZERO;
        }
        parts
    }

    /// Returns the parts that are left out.
    pub fn left_out(&self) -> &[StepTimePart] {
        &self.left_out
    }

    /// Returns the model's sizes.
    pub fn model_sizes(&self) -> &LlmModelSizes {
        &self.sizes
    }
}

/// Cached times that depend only on numbers of tokens or on the kind of step.
#[derive(Clone, Debug, Default)]
pub struct StepPartTimeCache {
    /// Key: the largest number of tokens on any rank, and the number of tokens on all ranks.
    of_tokens: BTreeMap<(u64, u64), StepTimesByPart>,
    of_rows: BTreeMap<u64, Span>,
    /// The host's time to launch a step. Key: whether the step has prompts, and whether its tokens fit captured graphs.
    of_launches: BTreeMap<(bool, bool), Span>,
}

/// Returns the name of a format in files.
pub(super) fn name_of_format(format: Dtype) -> &'static str {
    Dtype::ALL[format as usize].1
}

#[cfg(test)]
mod tests;
