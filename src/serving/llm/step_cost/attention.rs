//! Computes how many seconds a block's attention takes: for prompts in chunks, for answers token by token, with latent
//! vectors, and for linear attention.

use super::super::model_sizes::ModelBlockAttentionSizes;
use super::StepTimeCalculator;
use chakram_base::dtype::Dtype;
use chakram_base::kernel_shape::{KernelShape, MemoryBoundKernelClass};
use chakram_base::units::Span;
use chakram_hardware::compute::KernelTraceFacts;
use chakram_workloads::model::{DELTA_CHUNK, DeltaAttentionSizes};

/// Fraction of the memory bandwidth that attention with one query reaches on NPUs without a measured curve. It comes
/// from H100's measured curve.
pub(super) const DECODE_MEMORY: f64 = 0.93;
/// How attention to FP8 keys compares with attention to BF16 keys: the ratios of their start times, and of the
/// fractions of the memory bandwidth that they reach. The ratios come from 6,770 pairs of shapes with heads of 128
/// columns on H100 (vLLM's FlashAttention-3; aiconfigurator, Apache-2.0): 13.4 us and 0.79 instead of 11.6 us and 0.93,
/// with an error of 8 %.
const FP8_DECODE_START: f64 = 1.155;
const FP8_DECODE_MEMORY: f64 = 0.85;
/// Constants for decoding with latent vectors: a kernel's start time, and the fractions of the memory bandwidth and of
/// the peak rate that it reaches. They are derived from measurements of SGLang 0.5.10 on H100, with one to 128 heads
/// and batches above 200 MB (aiconfigurator, Apache-2.0). Up to 32 heads, the median is 0.84 of the memory bandwidth.
/// With 128 heads, where computation is the limit, the median is 0.56 of the peak rate.
pub(super) const LATENT_START: Span = Span::from_us(12);
pub(super) const LATENT_MEMORY: f64 = 0.85;
pub(super) const LATENT_PEAK: f64 = 0.6;

impl StepTimeCalculator {
    /// Returns how many seconds linear attention takes in a block, for requests with one token each. Each request reads
    /// and writes its states.
    pub(super) fn delta_attention_decode_seconds(
        &self,
        of: &DeltaAttentionSizes,
        requests: u64,
    ) -> f64 {
        let [keys, values] = of.key_and_value_heads_per_npu(self.npus);
        let vectors = 2 * keys * of.key_width + 2 * values * of.value_width;
        let bytes = requests * (2 * of.state_bytes_per_npu(self.npus) + 2 * vectors);
        self.memory_bound_seconds(MemoryBoundKernelClass::ElementWise, bytes)
    }

    /// Returns how many seconds linear attention takes in a block, for prompts. The time is the larger of compute time
    /// and memory time (roofline). Compute covers the products inside chunks and with states; memory covers the vectors
    /// and states that one kernel passes to another.
    pub(super) fn delta_attention_prefill_seconds(
        &self,
        of: &DeltaAttentionSizes,
        chunks: &[(u32, u32)],
    ) -> f64 {
        let tokens: u64 = chunks.iter().map(|(tokens, _)| u64::from(*tokens)).sum();
        let [keys, values] = of.key_and_value_heads_per_npu(self.npus);
        let (k, v) = (of.key_width, of.value_width);
        let inside = DELTA_CHUNK * (3 * k + 2 * v);
        let with_states = 3 * k * v;
        // Each key, corrected key and corrected value of a chunk is written once and read once. States in BF16 are
        // stored once per chunk.
        let vectors = 2 * keys * k + values * (2 * k + 4 * v);
        let states = values * k * v / DELTA_CHUNK;
        self.kernel_seconds(KernelTraceFacts {
            flops: 2 * tokens * values * (inside + with_states),
            bytes: 2 * 2 * tokens * (vectors + states),
            dtype: Some(Dtype::Bf16),
            ..KernelTraceFacts::default()
        })
    }

    /// Returns how many seconds one block's attention takes for `batch` sequences. Each sequence has `queries` tokens
    /// in this step, and `keys` tokens at the end of the step.
    pub(super) fn attention_seconds_of_one_block(
        &self,
        of: &ModelBlockAttentionSizes,
        batch: u64,
        queries: u64,
        keys: u64,
    ) -> f64 {
        let parts = u64::from(self.npus);
        let heads = of.heads / parts;
        if let (Some(latent), 1) = (of.latent, queries) {
            return self.latent_attention_decode_seconds(heads, latent, batch, keys);
        }
        let kv_heads = match of.latent {
            // Each head computes its keys and values from the latent vectors.
            Some(_) => heads,
            None => of.kv_heads_per_npu(self.npus),
        };
        let width = of.width;
        // With a window, the first query reads `window` tokens, including its own, and each later query adds one new
        // token.
        let keys = match of.window {
            Some(window) => keys.min(window + queries - 1),
            None => keys,
        };
        if let (1, Dtype::Fp8) = (queries, self.formats.kv)
            && let Some(seconds) =
                self.fp8_decode_attention_seconds([batch, heads, kv_heads], [keys, width])
        {
            return seconds;
        }
        // Where FP8 keys were not measured, look up half as many keys, which have the same bytes, in the BF16 curve.
        let keys = match (queries, self.formats.kv) {
            (1, Dtype::Fp8) => keys.div_ceil(2),
            _ => keys,
        };
        if let Some(seconds) = self.unmeasured_decode_attention_seconds(of, batch, queries, keys) {
            return seconds;
        }
        // Each query reads one more key than the previous one, until it reads the whole window.
        let mut pairs = queries * keys - queries * (queries - 1) / 2;
        if let Some(window) = of.window {
            pairs = pairs.min(queries * window);
        }
        self.kernel_seconds(KernelTraceFacts {
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
            ..KernelTraceFacts::default()
        })
    }

    /// Returns how many seconds attention to FP8 keys and values takes, with one query per sequence. Because the kernel
    /// converts values, it starts more slowly and reaches less of the memory bandwidth than with BF16 keys. Returns
    /// `None` on NPUs without a measured curve.
    fn fp8_decode_attention_seconds(
        &self,
        [batch, heads, kv_heads]: [u64; 3],
        [keys, width]: [u64; 2],
    ) -> Option<f64> {
        let curve = self.class.curves.attention[Dtype::Bf16 as usize].as_ref()?;
        let decode = curve.decode.as_ref()?;
        let memory = self.class.memory_bandwidth()?.bytes_per_second();
        let bytes = (batch * width * (4 * heads + 2 * kv_heads * keys)) as f64;
        let heads = decode.head * (batch * kv_heads) as f64 / decode.multiprocessors;
        let moved = bytes / (decode.memory * FP8_DECODE_MEMORY * memory);
        Some((decode.start * FP8_DECODE_START + moved + heads) * self.class.slowdown)
    }

    /// Returns how many seconds attention with latent vectors takes, with one query per sequence. All heads read the
    /// same latent vectors.
    pub(super) fn latent_attention_decode_seconds(
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
        let peak = self.class.peaks.peak_rate_if_supported(Dtype::Bf16);
        let products = peak.map_or(0.0, |peak| flops / (LATENT_PEAK * peak.per_second()));
        (LATENT_START.as_seconds() + memory.max(products)) * self.class.slowdown
    }

    /// Returns how many seconds attention takes with one query per sequence, on NPUs that have no measured curve for
    /// one query. The kernel reads keys and values at the fraction [`DECODE_MEMORY`] of the memory bandwidth. Returns
    /// `None` if the NPU has a curve for one query, or no attention curve at all.
    pub(super) fn unmeasured_decode_attention_seconds(
        &self,
        of: &ModelBlockAttentionSizes,
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

    pub(super) fn prefill_seconds(
        &self,
        of: &ModelBlockAttentionSizes,
        chunks: &[(u32, u32)],
    ) -> f64 {
        // A single attention kernel handles all chunks, so count its start only once.
        let dtype = Dtype::Bf16 as usize;
        let start = self.class.curves.attention[dtype]
            .as_ref()
            .map_or(0.0, |curve| curve.start);
        let each = chunks.iter().map(|&(tokens, past)| {
            let (tokens, past) = (u64::from(tokens), u64::from(past));
            self.attention_seconds_of_one_block(of, 1, tokens.max(2), past + tokens) - start
        });
        let all: f64 = each.map(|seconds| seconds.max(0.0)).sum();
        if chunks.is_empty() { 0.0 } else { start + all }
    }
}
