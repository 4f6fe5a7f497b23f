//! Training of a transformer on a wafer, with exactly the rules of PALM's public code. Its results can be compared with
//! PALM's published numbers. `generate MODEL` uses chakram's own rules instead.
//!
//! The rules come from Tables VI and VII of Fang et al., "PALM: A Efficient Performance Simulator for Tiled
//! Accelerators with Large-scale Model Training". If these tables have no rule, the rule comes from the public code. In
//! the table, b is the number of samples per micro-batch, s is the number of tokens per sample, h is the hidden size, H
//! = 4h, a is the number of heads, D is the number of replicas, and T is the size of a tensor group. Values have 2
//! bytes, and each of the 20 stages has 16 cores.
//!
//! | quantity | rule |
//! |---|---|
//! | input, output of a layer on a core | i = o = 2 bsh / D bytes |
//! | kept intermediates | r = 2 (3 bsh / D + (2 bsH + 4 bsh) / DT + 2.5 bs²a / DT) bytes |
//! | weights with master copy, w | 6 (h / T) (4h + 2H) bytes |
//! | kernel of a layer | 2 (4 bsh² + 2 bshH + 2 bs²h) / DT FLOPs forward, three times that backward, because it recomputes |
//! | memory traffic forward | f p (o + r + i + w + r), with p = ⌈i / SRAM⌉ and the "error correction factor" f = 0.005 |
//! | memory traffic backward | f^p (r + i + i + w + 2r), with a power where forward has a product: almost nothing |
//! | a layer | kernel, then one all-reduce of i bytes over the tensor group, with traffic in parallel to both; it ends for all 16 cores when the last of them has ended |
//! | a boundary | the last core of a stage sends i bytes to the first core of the next; the first core then sends them to the last |
//! | update | all-reduce of 2 (4h² + 2hH / T) bytes over replicas, in parallel to traffic of 28 / 6 w |
//! | micro-batches | 1F1B; b is a 20th of the batch, rounded down, over all replicas together |
//!
//! PALM divides byte counts in units of 2^20 by rates in units of 10^6 bytes per ms, so this pattern multiplies byte
//! counts by 10^6 / 2^20. All reads and writes of a core in a layer are combined into one memory access. Cores follow a
//! serpentine path within a die, and dies follow a serpentine path within a column. The model has no head and no
//! embedding.

use super::{
    MOST_WORK, PatternOptionError, TraceEmitter, TraceGenerator, check_at_least, check_limit,
    refused_option_value_error,
};
use chakram_base::units::Span;
use chakram_trace::format::groups::DeclaredGroups;
use chakram_trace::format::work_amounts::{CountedAttentionPairs, JobSamplesAndModelFlops};
use chakram_trace::format::{CollectiveKind, Dtype, GroupName, MemoryLocation, Op, TraceError};

/// Number of dies on the wafer, along x and y.
const DIES: [u32; 2] = [5, 4];
/// Number of cores on a die, along x and y.
const CORES: [u32; 2] = [4, 4];
/// Number of cores per stage, which equals the number of cores per die.
const STAGE: u32 = CORES[0] * CORES[1];
/// Number of stages: each stage runs on one die.
const STAGES: u32 = DIES[0] * DIES[1];
/// PALM's correction factor for memory traffic on the wafer.
const FACTOR: f64 = 0.005;
/// SRAM per core, in bytes.
const SRAM: u128 = 3 << 20;
/// Factor for byte counts: PALM divides counts in units of 2^20 bytes by rates in units of 10^6 bytes per ms.
const COUNTED: f64 = 1e6 / 1_048_576.0;

/// Lane of a core's kernels.
const KERNELS: i64 = 0;
const MEMORY: i64 = 1;
const SUMS: i64 = 2;
const BARRIERS: i64 = 3;
/// First lane for messages, and for the nodes that keep messages in order. Each direction has eight lanes; successive
/// micro-batches use successive lanes.
const PASSES: i64 = 4;

/// A model and its degrees of parallelism on the published wafer.
#[derive(Clone, Debug, PartialEq)]
pub struct PalmPattern {
    /// Number of layers, a multiple of the 20 stages.
    pub layers: u32,
    /// Hidden size, in values per token.
    pub hidden: u32,
    /// Number of attention heads.
    pub heads: u32,
    /// Number of tokens per sample.
    pub sequence: u32,
    /// Number of samples that a step processes.
    pub batch: u32,
    /// Number of samples per micro-batch, summed over all replicas.
    pub micro_batch: u32,
    /// Number of members in a tensor group; a divisor of 16. The stage's other cores are replicas.
    pub tensor: u32,
}

impl PalmPattern {
    /// Returns the model of Table VII with 76 billion parameters.
    pub fn new() -> Self {
        Self {
            layers: 60,
            hidden: 10240,
            heads: 80,
            sequence: 2048,
            batch: 1792,
            micro_batch: 89,
            tensor: 8,
        }
    }

    pub(super) fn prepare_generator(self) -> Result<PalmGenerator, PatternOptionError> {
        for (option, value) in [
            ("layers", self.layers),
            ("hidden", self.hidden),
            ("heads", self.heads),
            ("sequence", self.sequence),
            ("batch", self.batch),
            ("micro_batch", self.micro_batch),
            ("tensor", self.tensor),
        ] {
            check_at_least(option, value, 1)?;
        }
        if !self.layers.is_multiple_of(STAGES) {
            let expected = format!("a multiple of the {STAGES} stages");
            return Err(refused_option_value_error("layers", self.layers, expected));
        }
        if !STAGE.is_multiple_of(self.tensor) {
            let expected = format!("a divisor of the {STAGE} cores of a stage");
            return Err(refused_option_value_error("tensor", self.tensor, expected));
        }
        let [b, s, h, a] =
            [self.micro_batch, self.sequence, self.hidden, self.heads].map(u128::from);
        let (d, t) = (u128::from(STAGE / self.tensor), u128::from(self.tensor));
        let bsh = check_size_product_below_limit([b, s, h])?;
        let all = d * t;
        let wide = 4 * h;
        let macs = (4 * bsh * h + 2 * bsh * wide + 2 * bsh * s) / all;
        let input = 2 * bsh / d;
        let kept = 6 * bsh / d + (4 * b * s * wide + 8 * bsh) / all + 5 * b * s * s * a / all;
        let weights = 6 * h / t * (4 * h + 2 * wide);
        let parts = input.div_ceil(SRAM);
        let power = i32::try_from(parts).unwrap_or(i32::MAX);
        let counted = |bytes: f64| -> Result<u64, PatternOptionError> {
            let bytes = (bytes * COUNTED).round() as u128;
            check_limit("bytes of an access", bytes, MOST_WORK, "a smaller model")
        };
        let traffic = |bytes: u128| bytes as f64;
        let flops = check_limit("FLOPs of a kernel", 6 * macs, MOST_WORK, "a smaller model")? / 3;
        Ok(PalmGenerator {
            passes: self.batch.div_ceil(self.micro_batch),
            flops: [flops, 3 * flops],
            access: [
                counted(FACTOR * parts as f64 * traffic(2 * input + 2 * kept + weights))?,
                counted(FACTOR.powi(power) * traffic(2 * input + 3 * kept + weights))?,
            ],
            update: counted(traffic(weights / 6 * 28))?,
            activations: counted(traffic(input))?,
            gradients: counted(traffic(2 * (4 * h * h + 2 * h * wide / t)))?,
            model_flops: 6 * macs * all * u128::from(self.layers),
            options: self,
        })
    }
}

impl Default for PalmPattern {
    fn default() -> Self {
        Self::new()
    }
}

/// Limits a product of sizes to 2^48, so that later products cannot overflow.
fn check_size_product_below_limit(factors: [u128; 3]) -> Result<u128, PatternOptionError> {
    let product = factors.iter().product();
    check_limit(
        "numbers of a layer's input",
        product,
        1 << 48,
        "fewer samples",
    )
    .map(u128::from)
}

/// Generator of PALM's training step, with checked options.
#[derive(Debug)]
pub(super) struct PalmGenerator {
    options: PalmPattern,
    /// Number of micro-batches per step.
    passes: u32,
    /// FLOPs of one layer's kernel in the forward pass and in the backward pass.
    flops: [u64; 2],
    access: [u64; 2],
    /// Number of bytes that the update of one layer reads and writes.
    update: u64,
    /// Number of bytes that a core sends from one layer to the next.
    activations: u64,
    /// Number of gradient bytes per layer that are summed over replicas.
    gradients: u64,
    /// Model FLOPs per micro-batch, forward and backward together.
    model_flops: u128,
}

/// A core: its stage and its index in the stage.
#[derive(Clone, Copy)]
struct PalmCoreStageAndIndex {
    stage: u32,
    place: u32,
}

impl PalmCoreStageAndIndex {
    fn of_rank(rank: u32) -> Self {
        Self {
            stage: rank / STAGE,
            place: rank % STAGE,
        }
    }

    fn is_first_core_of_stage(self) -> bool {
        self.place == 0
    }

    fn is_last_core_of_stage(self) -> bool {
        self.place == STAGE - 1
    }
}

/// A pass of one micro-batch through a stage, forward or backward.
#[derive(Clone, Copy)]
struct StagePass {
    backward: bool,
    micro_batch: u32,
}

impl PalmGenerator {
    /// Returns the stage's passes in 1F1B order. A stage has one micro-batch in flight, plus one per later stage.
    fn pass_order(&self, stage: u32) -> Vec<StagePass> {
        let ahead = (STAGES - stage).min(self.passes);
        let forward = |micro_batch| StagePass {
            backward: false,
            micro_batch,
        };
        let mut all: Vec<StagePass> = (0..ahead).map(forward).collect();
        for micro_batch in 0..self.passes {
            all.push(StagePass {
                backward: true,
                micro_batch,
            });
            let next = ahead + micro_batch;
            all.extend((next < self.passes).then(|| forward(next)));
        }
        all
    }

    /// Returns the stages before and after `stage` in the pass's direction. A stage is `None` if it would be beyond the
    /// end of the pipeline.
    fn stages_before_and_after_in_pass(stage: u32, backward: bool) -> [Option<u32>; 2] {
        let below = stage.checked_sub(1);
        let above = Some(stage + 1).filter(|&above| above < STAGES);
        if backward {
            [above, below]
        } else {
            [below, above]
        }
    }

    /// Returns the numbers of a core's groups: its stage, its pair of cores that forwards activations, its tensor
    /// group, and its replicas.
    fn group_numbers_of_core(&self, core: PalmCoreStageAndIndex) -> [u32; 4] {
        let tensor = self.options.tensor;
        let replicas = STAGE / tensor;
        let first = 1 + 2 * STAGES;
        [
            1 + core.stage,
            1 + STAGES + core.stage,
            first + core.stage * replicas + core.place / tensor,
            first + STAGES * replicas + core.stage * tensor + core.place % tensor,
        ]
    }

    fn emit_collective(
        (kind, bytes): (CollectiveKind, u64),
        group: Option<u32>,
        lane: i64,
        data: &[u64],
        out: &mut TraceEmitter<'_>,
    ) -> Result<u64, TraceError> {
        let op = Op::Collective {
            kind,
            bytes,
            group: group.map_or(GroupName::World, |number| GroupName::Number(number.into())),
            root: None,
            dimensions: None,
            host: false,
        };
        out.emit_node(op, Some(lane), Span::ZERO, data)
    }

    fn emit_barrier(
        group: Option<u32>,
        lane: i64,
        data: &[u64],
        out: &mut TraceEmitter<'_>,
    ) -> Result<u64, TraceError> {
        Self::emit_collective((CollectiveKind::Barrier, 0), group, lane, data, out)
    }

    /// Emits one side (send or receive) of a message that belongs to `pass`, between `core` and the core `peer`.
    fn emit_send_or_receive(
        &self,
        core: PalmCoreStageAndIndex,
        (receive, peer): (bool, PalmCoreStageAndIndex),
        pass: StagePass,
        data: &[u64],
        out: &mut TraceEmitter<'_>,
    ) -> Result<u64, TraceError> {
        let op = Op::Message {
            receive,
            peer: peer.stage * STAGE + peer.place,
            tag: (2 * pass.micro_batch + u32::from(pass.backward)) as i32,
            bytes: self.activations,
            own: Some(core.stage * STAGE + core.place),
            host: false,
        };
        let lane = (!receive).then_some(Self::lane_of_micro_batch_messages(pass));
        out.emit_node(op, lane, Span::ZERO, data)
    }

    /// Returns the lane of a micro-batch's messages, one of eight per direction. With eight lanes, a message that waits
    /// for links does not delay those of the next few micro-batches.
    fn lane_of_micro_batch_messages(pass: StagePass) -> i64 {
        PASSES + i64::from(2 * (pass.micro_batch % 8) + u32::from(pass.backward))
    }

    /// Emits a kernel and an all-reduce, a memory access that runs in parallel with both, and a barrier over all cores
    /// of the stage. They belong to one layer's pass or update.
    fn emit_kernel_allreduce_access_barrier(
        &self,
        core: PalmCoreStageAndIndex,
        before: Option<u64>,
        sums: (Option<u64>, u64),
        access: u64,
        out: &mut TraceEmitter<'_>,
    ) -> Result<u64, TraceError> {
        let [stage, _, tensor, replicas] = self.group_numbers_of_core(core);
        let mut ends = Vec::new();
        let (flops, bytes) = sums;
        let computed = match flops {
            Some(flops) => {
                let op = Op::Compute {
                    flops,
                    bytes: 0,
                    dtype: Some(Dtype::Fp16),
                };
                Some(out.emit_node(op, Some(KERNELS), Span::ZERO, before.as_slice())?)
            }
            None => before,
        };
        let (group, members) = if flops.is_some() {
            (tensor, self.options.tensor)
        } else {
            (replicas, STAGE / self.options.tensor)
        };
        if members > 1 {
            let what = (CollectiveKind::AllReduce, bytes);
            ends.push(Self::emit_collective(
                what,
                Some(group),
                SUMS,
                computed.as_slice(),
                out,
            )?);
        } else {
            ends.extend(computed);
        }
        if access > 0 {
            let op = Op::Memory {
                store: true,
                place: MemoryLocation::Remote,
                bytes: access,
                in_switch: false,
            };
            ends.push(out.emit_node(op, Some(MEMORY), Span::ZERO, before.as_slice())?);
        }
        Self::emit_barrier(Some(stage), BARRIERS, &ends, out)
    }

    /// Emits a pass through the core's stage, and returns its last node on this core. It starts after node `before`.
    fn emit_pass(
        &self,
        core: PalmCoreStageAndIndex,
        pass: StagePass,
        mut before: Option<u64>,
        out: &mut TraceEmitter<'_>,
    ) -> Result<Option<u64>, TraceError> {
        let (first, last) = (core.is_first_core_of_stage(), core.is_last_core_of_stage());
        let [stage, pair, _, _] = self.group_numbers_of_core(core);
        let name = |out: &mut TraceEmitter<'_>, what: &str| {
            let (m, way) = (pass.micro_batch, if pass.backward { "bwd" } else { "fwd" });
            out.set_name(format_args!("mb{m}/{way}/{what}"));
        };
        let other = |stage, place| PalmCoreStageAndIndex { stage, place };
        let [from, to] = Self::stages_before_and_after_in_pass(core.stage, pass.backward);
        if let Some(from) = from {
            let mut arrived: Vec<u64> = before.into_iter().collect();
            name(out, "receive");
            if first {
                let sender = (true, other(from, STAGE - 1));
                arrived.push(self.emit_send_or_receive(core, sender, pass, &[], out)?);
            } else if last {
                let sender = (true, other(from, 0));
                arrived.push(self.emit_send_or_receive(core, sender, pass, &[], out)?);
            }
            name(out, "begin");
            before = Some(Self::emit_barrier(Some(stage), BARRIERS, &arrived, out)?);
        }
        let way = usize::from(pass.backward);
        for layer in 0..self.options.layers / STAGES {
            name(out, &format!("layer{layer}"));
            let sums = (Some(self.flops[way]), self.activations);
            before = Some(self.emit_kernel_allreduce_access_barrier(
                core,
                before,
                sums,
                self.access[way],
                out,
            )?);
        }
        if let Some(to) = to {
            let lane = Self::lane_of_micro_batch_messages(pass);
            let after = before.as_slice().to_vec();
            if last {
                name(out, "send");
                let sent =
                    self.emit_send_or_receive(core, (false, other(to, 0)), pass, &after, out)?;
                name(out, "sent");
                Self::emit_barrier(Some(pair), lane, &[sent], out)?;
            } else if first {
                name(out, "sent");
                let sent = Self::emit_barrier(Some(pair), lane, &after, out)?;
                name(out, "send");
                self.emit_send_or_receive(core, (false, other(to, STAGE - 1)), pass, &[sent], out)?;
            }
        }
        Ok(before)
    }
}

impl TraceGenerator for PalmGenerator {
    fn rank_count(&self) -> u32 {
        STAGES * STAGE
    }

    fn declared_groups(&self) -> DeclaredGroups {
        let mut groups = DeclaredGroups::new();
        for rank in 0..self.rank_count() {
            let core = PalmCoreStageAndIndex::of_rank(rank);
            let [stage, pair, tensor, replicas] = self.group_numbers_of_core(core);
            let passes_on = core.is_first_core_of_stage() || core.is_last_core_of_stage();
            for number in [
                Some(stage),
                passes_on.then_some(pair),
                Some(tensor),
                Some(replicas),
            ] {
                let members = number.map(|number| groups.entry(number.to_string()).or_default());
                members
                    .into_iter()
                    .for_each(|members: &mut Vec<u32>| members.push(rank));
            }
        }
        groups
    }

    fn work_amounts(&self) -> Option<JobSamplesAndModelFlops> {
        let samples = u64::from(self.passes) * u64::from(self.options.micro_batch);
        Some(JobSamplesAndModelFlops {
            steps: 1,
            samples,
            tokens: Some(samples * u64::from(self.options.sequence)),
            model_flops: self.model_flops * u128::from(self.passes),
            attention: Some(CountedAttentionPairs::Full),
            experts: false,
        })
    }

    fn shape_class_of_rank(&self, rank: u32) -> u32 {
        rank
    }

    /// Cores follow a serpentine path over the rows of a die, and dies follow a serpentine path
    /// over the columns of the wafer.
    fn core_of(&self, rank: u32) -> Option<[u32; 2]> {
        let core = PalmCoreStageAndIndex::of_rank(rank);
        let column = core.stage / DIES[1];
        let turned = column % 2 == 1;
        let along = |place: u32, size: u32, back: bool| if back { size - 1 - place } else { place };
        let row = along(core.stage % DIES[1], DIES[1], turned);
        let y = along(core.place / CORES[0], CORES[1], turned);
        // Rows of cores alternate in direction over the whole wafer, so the path enters every column of dies at a row
        // with the same direction.
        let back = (core.place / CORES[0]) % 2 == 1;
        // The lowest row of the wafer always runs forward.
        let lowest = row == DIES[1] - 1 && y == CORES[1] - 1;
        let x = along(core.place % CORES[0], CORES[0], back && !lowest);
        Some([column * CORES[0] + x, row * CORES[1] + y])
    }

    fn node_count_of_rank(&self, rank: u32) -> u64 {
        let core = PalmCoreStageAndIndex::of_rank(rank);
        let passes_on = u64::from(core.is_first_core_of_stage() || core.is_last_core_of_stage());
        let replicas = STAGE / self.options.tensor;
        let nodes = |access: u64, sums: bool, kernel: bool| {
            1 + u64::from(access > 0) + u64::from(sums) + u64::from(kernel)
        };
        let layers = u64::from(self.options.layers / STAGES);
        let mut all = 1 + layers * nodes(self.update, replicas > 1, false);
        for backward in [false, true] {
            let way = usize::from(backward);
            let [from, to] = Self::stages_before_and_after_in_pass(core.stage, backward);
            let layer = nodes(self.access[way], self.options.tensor > 1, true);
            let pass = layers * layer
                + from.map_or(0, |_| 1 + passes_on)
                + to.map_or(0, |_| 2 * passes_on);
            all += u64::from(self.passes) * pass;
        }
        all
    }

    fn emit_nodes(&self, rank: u32, out: &mut TraceEmitter<'_>) -> Result<(), TraceError> {
        let core = PalmCoreStageAndIndex::of_rank(rank);
        let mut before = None;
        for pass in self.pass_order(core.stage) {
            before = self.emit_pass(core, pass, before, out)?;
        }
        out.set_name(format_args!("update/begin"));
        before = Some(Self::emit_barrier(None, BARRIERS, before.as_slice(), out)?);
        for layer in 0..self.options.layers / STAGES {
            out.set_name(format_args!("update/layer{layer}"));
            before = Some(self.emit_kernel_allreduce_access_barrier(
                core,
                before,
                (None, self.gradients),
                self.update,
                out,
            )?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
