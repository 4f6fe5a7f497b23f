//! Data-parallel training of a transformer: every rank has a full copy of the model and processes
//! its own tokens.
//!
//! # Work
//!
//! A layer has six kernels. Below, `t` is the number of tokens per rank, `s` is the sequence
//! length, `h` is the hidden size, and `d` is the number of bytes per value. A product of an
//! `a x b` matrix and a `b x c` matrix takes `2abc` FLOPs (`abc` multiplications and the same
//! number of additions). The product moves each of its `ab + bc + ac` values once.
//!
//! | kernel | forward FLOPs | forward bytes | operation |
//! |---|---|---|---|
//! | `qkv` | `2 t h 3h = 6th²` | `d (4th + 3h²)` | `t x h` by `h x 3h`: queries, keys, values |
//! | `attention` | `4tsh` | `d 4th` | two products per sequence, `s x h` by `h x s` and `s x s` by `s x h`, which is `4s²h`, for `t/s` sequences; fused, so that scores stay on chip: reads `3th`, writes `th` |
//! | `projection` | `2 t h h = 2th²` | `d (2th + h²)` | `t x h` by `h x h` |
//! | `norm` | `6th` | `d 4th` | adds the residual (1), sums (1), subtracts the mean (1), squares and sums (2), scales (1); reads and writes both streams; its gain is part of the next weights |
//! | `mlp1` | `2 t h 4h = 8th²` | `d (5th + 4h²)` | `t x h` by `h x 4h`; the activation is fused |
//! | `mlp2` | `2 t 4h h = 8th²` | `d (5th + 4h²)` | `t x 4h` by `4h x h` |
//!
//! A backward kernel does twice the work of its forward kernel, because the gradients of the input and of the weights
//! each need a product of the forward size. A layer's parameters are the matrices above: `p = 3h² + h² + 4h² + 4h²
//! = 12h²`. A layer's gradient all-reduce therefore has `12h²d` bytes. The optimizer is Adam, with two moments and a
//! master copy of the weights in single precision. One Adam update takes `12p` FLOPs (3 for the first moment, 4 for the
//! second, 2 for the root and its epsilon, 3 for the update). It moves `p (2d + 24)` bytes: it reads the gradient,
//! writes the weight, and reads and writes three values of 4 bytes.
//!
//! # Order
//!
//! A step first runs the forward kernels from the first layer to the last, and then the backward kernels from the last
//! layer to the first. Kernels run one at a time. When a layer's backward pass ends, its all-reduce starts on a
//! separate lane. It therefore overlaps the backward pass of the layers below. The layer's optimizer waits for it. In
//! the next step, the layer's forward pass waits for the optimizer. A step with `L` layers has `6L + 6L + L + L = 14L`
//! nodes: first the forward kernels, then the backward kernels with the all-reduces between them, and finally the
//! optimizers from the top layer down.

use super::{
    MOST_NODES, MOST_WORK, PatternOptionError, TraceEmitter, TraceGenerator, check_at_least,
    check_limit, check_rank_count, refused_option_value_error,
};
use chakram_base::units::{Bandwidth, FlopRate, Span, UnroundedBufferShare};
use chakram_trace::format::{CollectiveKind, Dtype, GroupName, Op, TraceError};

/// Lane of all kernels, which run one after another.
pub const COMPUTE_LANE: i64 = 0;
/// The lane of gradient all-reduces.
pub const COMMUNICATION_LANE: i64 = 1;
/// Number of nodes per layer and step.
pub const NODES_PER_LAYER: u32 = 14;

/// The forward kernels of a layer, in order.
const KERNELS: [&str; 6] = ["qkv", "attention", "projection", "norm", "mlp1", "mlp2"];
const K: u64 = KERNELS.len() as u64;

/// Training steps that are the same on every rank. The module's documentation derives all numbers of the pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct DataParallelTrainingJobParameters {
    /// Number of ranks, each with a replica.
    pub ranks: u32,
    /// Number of transformer layers.
    pub layers: u32,
    /// Hidden size, in values per token.
    pub hidden: u32,
    /// Number of tokens per rank and step, which must be a multiple of `sequence`.
    pub tokens: u32,
    /// Sequence length; each token attends only to tokens of its own sequence.
    pub sequence: u32,
    /// Number format of weights, activations and gradients. Optimizer nodes also state this format, although they
    /// compute in single precision. The reason is that memory bandwidth limits them, and that some NPUs have no
    /// published peak rate in single precision.
    pub dtype: Dtype,
    /// Number of training steps.
    pub steps: u32,
    /// Peak rate of the reference NPU. The recorded durations are for this NPU.
    pub reference_flops: FlopRate,
    /// Memory bandwidth of the reference NPU. A kernel's recorded duration is the larger of its compute and memory
    /// times, rounded to nanoseconds, but at least 1 ns.
    pub reference_bandwidth: Bandwidth,
}

impl DataParallelTrainingJobParameters {
    /// Returns a plan for one step of a 32-layer model with hidden size 4,096 in bf16, and one
    /// sequence of 4,096 tokens. The recorded durations are for an A100 with 80 GB (312 TFLOP/s
    /// dense, 2.039 TB/s).
    pub fn new(ranks: u32) -> Self {
        Self {
            ranks,
            layers: 32,
            hidden: 4096,
            tokens: 4096,
            sequence: 4096,
            dtype: Dtype::Bf16,
            steps: 1,
            reference_flops: FlopRate::new(312e12).expect("positive"),
            reference_bandwidth: Bandwidth::new(2.039e12).expect("positive"),
        }
    }

    /// Returns the defaults, but with as few steps as give at least `nodes` nodes per rank. If one step with 32 layers
    /// already has more nodes, the result has one step with fewer layers (at least one).
    pub fn defaults_with_at_least_nodes(ranks: u32, nodes: u32) -> Self {
        let layers = (nodes / NODES_PER_LAYER).clamp(1, 32);
        Self {
            layers,
            steps: nodes.div_ceil(layers * NODES_PER_LAYER).max(1),
            ..Self::new(ranks)
        }
    }

    pub(super) fn prepare_generator(self) -> Result<DataParallelGenerator, PatternOptionError> {
        check_rank_count(self.ranks, 1)?;
        for (option, value) in [
            ("layers", self.layers),
            ("hidden", self.hidden),
            ("steps", self.steps),
            ("sequence", self.sequence),
            ("tokens", self.tokens),
        ] {
            check_at_least(option, value, 1)?;
        }
        if !self.tokens.is_multiple_of(self.sequence) {
            let expected = format!("a multiple of the sequence, {}", self.sequence);
            return Err(refused_option_value_error("tokens", self.tokens, expected));
        }
        let nodes = [self.layers, self.steps, NODES_PER_LAYER]
            .map(u128::from)
            .iter()
            .product();
        let nodes = check_limit(
            "nodes of a rank",
            nodes,
            MOST_NODES,
            "fewer steps or layers",
        )?;
        let [t, s, h] = [self.tokens, self.sequence, self.hidden].map(u128::from);
        let (th, hh) = (t * h, h * h);
        // FLOPs of each kernel in `KERNELS`, and the number of values that it reads or writes.
        let forward = [
            (6 * t * hh, 4 * th + 3 * hh),
            (4 * th * s, 4 * th),
            (2 * t * hh, 2 * th + hh),
            (6 * th, 4 * th),
            (8 * t * hh, 5 * th + 4 * hh),
            (8 * t * hh, 5 * th + 4 * hh),
        ];
        let parameters = 12 * hh;
        let adam = self.bytes_of_values(2 * parameters) + 24 * parameters;
        let gradient = self.bytes_of_values(parameters);
        let mut kernels = [[KernelCost::default(); 2]; KERNELS.len()];
        for (costs, (flops, numbers)) in kernels.iter_mut().zip(forward) {
            let bytes = self.bytes_of_values(numbers);
            *costs = [
                self.kernel_cost_with_reference_duration(flops, bytes)?,
                self.kernel_cost_with_reference_duration(2 * flops, 2 * bytes)?,
            ];
        }
        Ok(DataParallelGenerator {
            nodes,
            kernels,
            optimizer: self.kernel_cost_with_reference_duration(12 * parameters, adam)?,
            gradient: check_limit("bytes of a gradient", gradient, MOST_WORK, SMALLER)?,
            options: self,
        })
    }

    /// Returns how many bytes `numbers` values take in the model's format.
    fn bytes_of_values(&self, numbers: u128) -> u128 {
        let bits = match self.dtype {
            Dtype::Fp64 => 64,
            Dtype::Fp32 | Dtype::Tf32 => 32,
            Dtype::Fp16 | Dtype::Bf16 => 16,
            Dtype::Fp8 | Dtype::Int8 => 8,
            Dtype::Fp4 => 4,
        };
        (numbers * bits).div_ceil(8)
    }

    fn kernel_cost_with_reference_duration(
        &self,
        flops: u128,
        bytes: u128,
    ) -> Result<KernelCost, PatternOptionError> {
        let flops = check_limit("FLOPs of a kernel", flops, MOST_WORK, SMALLER)?;
        let bytes = check_limit("bytes of a kernel", bytes, MOST_WORK, SMALLER)?;
        let computing = self.reference_flops.time_for_flops(flops);
        let moving = self
            .reference_bandwidth
            .serialization_time(UnroundedBufferShare::from_bytes(bytes));
        let longer = computing.max(moving);
        if longer == Span::MAX {
            let found = longer.0.into();
            let hint = "a faster reference";
            check_limit("picoseconds of a kernel", found, u64::MAX - 1, hint)?;
        }
        // Files store nanoseconds, so the recorded duration is rounded to whole nanoseconds, but never to zero.
        let ns = longer.0 / 1000 + u64::from(longer.0 % 1000 >= 500);
        Ok(KernelCost {
            flops,
            bytes,
            recorded: Span::from_ns(ns.max(1)),
        })
    }
}

const SMALLER: &str = "a smaller hidden size or fewer tokens";

/// A kernel's FLOPs, bytes and recorded duration.
#[derive(Clone, Copy, Debug, Default)]
struct KernelCost {
    flops: u64,
    bytes: u64,
    recorded: Span,
}

/// Generator of training steps, with checked options.
#[derive(Debug)]
pub(super) struct DataParallelGenerator {
    options: DataParallelTrainingJobParameters,
    nodes: u64,
    /// Costs of each kernel in the forward pass and in the backward pass.
    kernels: [[KernelCost; 2]; KERNELS.len()],
    optimizer: KernelCost,
    gradient: u64,
}

impl DataParallelGenerator {
    fn emit_kernel(
        &self,
        cost: KernelCost,
        data: &[u64],
        out: &mut TraceEmitter<'_>,
    ) -> Result<u64, TraceError> {
        let op = Op::Compute {
            flops: cost.flops,
            bytes: cost.bytes,
            dtype: Some(self.options.dtype),
        };
        out.emit_node(op, Some(COMPUTE_LANE), cost.recorded, data)
    }

    fn emit_all_reduce(&self, after: u64, out: &mut TraceEmitter<'_>) -> Result<u64, TraceError> {
        let op = Op::Collective {
            kind: CollectiveKind::AllReduce,
            bytes: self.gradient,
            group: GroupName::World,
            root: None,
            dimensions: None,
            host: false,
        };
        out.emit_node(op, Some(COMMUNICATION_LANE), Span::ZERO, &[after])
    }
}

impl TraceGenerator for DataParallelGenerator {
    fn suggest_smaller(&self) -> &'static str {
        "fewer steps or layers"
    }

    fn rank_count(&self) -> u32 {
        self.options.ranks
    }

    fn shape_class_of_rank(&self, _: u32) -> u32 {
        0
    }

    fn node_count_of_rank(&self, _: u32) -> u64 {
        self.nodes
    }

    fn emit_nodes(&self, _: u32, out: &mut TraceEmitter<'_>) -> Result<(), TraceError> {
        let layers = u64::from(self.options.layers);
        for step in 0..self.options.steps {
            // Ids are consecutive within a step, so the ids of earlier nodes can be computed
            // instead of stored.
            let first = out.last + 1;
            for layer in 0..layers {
                for (k, (kernel, [cost, _])) in KERNELS.iter().zip(self.kernels).enumerate() {
                    out.set_name(format_args!("step{step}/layer{layer}/fwd/{kernel}"));
                    // The optimizers of the previous step, if any, come just before `first`, with layer
                    // 0 last.
                    let data = [out.last, (first - 1).saturating_sub(layer)];
                    let data = match (k, layer, step) {
                        (0, 0, 0) => &[],
                        (0, 0, _) => &data[1..],
                        (0, _, 1..) => &data[..],
                        _ => &data[..1],
                    };
                    self.emit_kernel(cost, data, out)?;
                }
            }
            let mut before = out.last;
            for layer in (0..layers).rev() {
                for (kernel, [_, cost]) in KERNELS.iter().zip(self.kernels).rev() {
                    out.set_name(format_args!("step{step}/layer{layer}/bwd/{kernel}"));
                    before = self.emit_kernel(cost, &[before], out)?;
                }
                out.set_name(format_args!("step{step}/layer{layer}/all-reduce"));
                self.emit_all_reduce(before, out)?;
            }
            for (above, layer) in (0..layers).rev().enumerate() {
                out.set_name(format_args!("step{step}/layer{layer}/optimizer"));
                // In the backward pass, each layer has K kernels and one all-reduce, from the top layer down.
                let reduced = first + layers * K + (above as u64 + 1) * (K + 1) - 1;
                self.emit_kernel(self.optimizer, &[reduced], out)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{EmittedNode, check_and_record_every_rank, rejection_message};
    use super::super::{CheckedWorkloadPattern, WorkloadPattern};
    use super::*;

    fn build_tiny_pattern() -> DataParallelTrainingJobParameters {
        DataParallelTrainingJobParameters {
            layers: 2,
            hidden: 10,
            tokens: 6,
            sequence: 3,
            steps: 2,
            ..DataParallelTrainingJobParameters::new(2)
        }
    }

    fn find_node_id_by_name(nodes: &[EmittedNode], name: &str) -> u64 {
        nodes.iter().position(|node| node.name == name).unwrap() as u64 + 1
    }

    fn find_dependency_ids_of_named_node<'a>(nodes: &'a [EmittedNode], name: &str) -> &'a [u64] {
        &nodes[find_node_id_by_name(nodes, name) as usize - 1].data
    }

    #[test]
    fn layer_kernels_have_flops_and_bytes_of_their_shapes() {
        // The sizes are t = 6, s = 3, h = 10 and d = 2 B, so th = 60 and h² = 100:
        //
        // | kernel | FLOPs | bytes |
        // |---|---|---|
        // | qkv | 6 x 6 x 100 = 3,600 | 2 x (4 x 60 + 3 x 100) = 1,080 |
        // | attention | 4 x 6 x 3 x 10 = 720 | 2 x 4 x 60 = 480 |
        // | projection | 2 x 6 x 100 = 1,200 | 2 x (2 x 60 + 100) = 440 |
        // | norm | 6 x 60 = 360 | 2 x 4 x 60 = 480 |
        // | mlp1 and mlp2 | 8 x 6 x 100 = 4,800 | 2 x (5 x 60 + 4 x 100) = 1,400 |
        let expected = [
            (3600, 1080),
            (720, 480),
            (1200, 440),
            (360, 480),
            (4800, 1400),
            (4800, 1400),
        ];
        let prepared = build_tiny_pattern().prepare_generator().unwrap();
        for ([forward, backward], (flops, bytes)) in prepared.kernels.iter().zip(expected) {
            assert_eq!((forward.flops, forward.bytes), (flops, bytes));
            assert_eq!((backward.flops, backward.bytes), (2 * flops, 2 * bytes));
        }
        // The 12 x 100 parameters have 2,400 B of gradients. Their update takes 14,400 FLOPs and moves 1,200 x (4 + 24)
        // = 33,600 B.
        let optimizer = (prepared.optimizer.flops, prepared.optimizer.bytes);
        assert_eq!((prepared.gradient, optimizer), (2400, (14_400, 33_600)));
        // Two 4-bit values share a byte: 12 x 100 / 2 = 600 B.
        let mut options = build_tiny_pattern();
        options.dtype = Dtype::Fp4;
        assert_eq!(options.prepare_generator().unwrap().gradient, 600);
    }

    #[test]
    fn recorded_durations_are_those_of_the_slower_of_compute_and_memory() {
        let prepared = DataParallelTrainingJobParameters::new(1)
            .prepare_generator()
            .unwrap();
        // Compute limits mlp1: 8 x 4096^3 FLOPs / 312e12 FLOP/s = 1,762,037.9 ns.
        assert_eq!(prepared.kernels[4][0].recorded, Span::from_ns(1_762_038));
        // Memory limits norm: 2 x 4 x 4096^2 B / 2.039e12 B/s = 65,825.3 ns.
        assert_eq!(prepared.kernels[3][0].recorded, Span::from_ns(65_825));
        // The tiny model needs 0.24 ns to move 480 B. The trace records 1 ns instead, because 0 would mean an unknown
        // duration.
        let prepared = build_tiny_pattern().prepare_generator().unwrap();
        assert_eq!(prepared.kernels[3][0].recorded, Span::from_ns(1));
    }

    #[test]
    fn layers_wait_for_what_they_need() {
        let ranks =
            check_and_record_every_rank(WorkloadPattern::DataParallel(build_tiny_pattern()));
        let nodes = &ranks[1];
        // 2 steps x 2 layers x 14 nodes = 56 nodes.
        assert_eq!(nodes.len(), 56);
        let id = |name: &str| find_node_id_by_name(nodes, name);
        let waits = |name, ids: &[u64]| {
            assert_eq!(
                find_dependency_ids_of_named_node(nodes, name),
                ids,
                "{name}"
            )
        };
        waits("step0/layer0/fwd/qkv", &[]);
        waits("step0/layer1/fwd/qkv", &[id("step0/layer0/fwd/mlp2")]);
        waits(
            "step0/layer1/fwd/norm",
            &[id("step0/layer1/fwd/projection")],
        );
        waits("step0/layer1/bwd/mlp2", &[id("step0/layer1/fwd/mlp2")]);
        // The all-reduce overlaps the backward pass of the layer below.
        waits("step0/layer0/bwd/mlp2", &[id("step0/layer1/bwd/qkv")]);
        for step in 0..2 {
            for layer in 0..2 {
                let name = |what| format!("step{step}/layer{layer}/{what}");
                let reduce = name("all-reduce");
                assert_eq!(
                    find_dependency_ids_of_named_node(nodes, &reduce),
                    [id(&name("bwd/qkv"))]
                );
                assert_eq!(
                    find_dependency_ids_of_named_node(nodes, &name("optimizer")),
                    [id(&reduce)]
                );
                assert_eq!(
                    nodes[id(&reduce) as usize - 1].lane,
                    Some(COMMUNICATION_LANE)
                );
            }
        }
        waits("step1/layer0/fwd/qkv", &[id("step0/layer0/optimizer")]);
        let both = [id("step1/layer0/fwd/mlp2"), id("step0/layer1/optimizer")];
        waits("step1/layer1/fwd/qkv", &both);
    }

    #[test]
    fn a_minimum_node_count_is_reached_with_whole_training_steps() {
        // A step with 32 layers has 448 nodes, so 23 steps have 10,304 nodes, but 22 steps have only 9,856. For 100
        // nodes, the result has 7 layers. Such a step has 98 nodes, so two steps are needed. For 0 nodes, the result
        // has one layer and one step.
        for (nodes, expected) in [(10_000, 10_304), (448, 448), (100, 196), (14, 14), (0, 14)] {
            let job = CheckedWorkloadPattern::new(WorkloadPattern::DataParallel(
                DataParallelTrainingJobParameters::defaults_with_at_least_nodes(8, nodes),
            ));
            assert_eq!(job.unwrap().node_count(7), expected);
        }
    }

    #[test]
    fn options_that_make_no_sense_say_why() {
        let why = |change: &dyn Fn(&mut DataParallelTrainingJobParameters)| {
            let mut options = build_tiny_pattern();
            change(&mut options);
            rejection_message(WorkloadPattern::DataParallel(options))
        };
        let text = why(&|o| o.tokens = 7);
        assert_eq!(
            text,
            "`tokens` is 7; expected a multiple of the sequence, 3"
        );
        assert!(why(&|o| o.layers = 0).contains("`layers` is 0; expected 1 or more"));
        assert!(why(&|o| o.steps = u32::MAX).contains("fewer steps or layers"));
        assert!(why(&|o| o.hidden = u32::MAX).contains("a smaller hidden size"));
        // Moving 28 x 1,200 B at 1e-9 B/s takes 3.4e13 s, far beyond 2^64 ps.
        let slow = Bandwidth::new(1e-9).unwrap();
        assert!(why(&|o| o.reference_bandwidth = slow).contains("a faster reference"));
    }
}
