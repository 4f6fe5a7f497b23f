//! Totals of a plan, computed without a replay.

use super::{
    GRADIENT_LANE, ModelAndParallelismPlan, PARAMETER_LANE, TrainingGenerator, frozen_weights,
    local_experts,
};
use crate::generate::plan::{
    ParallelGroupKind, TensorDataStageCoordinates, operation_accesses_remote_memory,
};
use crate::generate::{PatternOptionError, TraceEmitter, TraceGenerator};
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::work_amounts::{CountedAttentionPairs, JobSamplesAndModelFlops};
use chakram_trace::format::write::Sink;
use chakram_trace::format::{
    CollectiveKind, GroupName, Op, TensorClass, TraceError, TrainingPhase,
};
use std::collections::BTreeMap;

/// Totals of a plan: parameters, FLOPs, memory, groups, and communication.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanSummary {
    /// Number of ranks that the plan uses.
    pub ranks: u32,
    /// Number of micro-batches per replica and step.
    pub micro_batches: u32,
    /// Number of parameters in the model, without adapters and independent of the plan.
    pub parameters: u64,
    /// Number of parameters with gradients: all parameters, the unfrozen ones, or the adapters'.
    pub trained_parameters: u64,
    /// Model FLOPs per step, without recomputation.
    pub model_flops: u128,
    /// Kind of attention token pairs in both FLOP counts; `None` without attention.
    pub attention: Option<CountedAttentionPairs>,
    /// FLOPs that all ranks together execute per step.
    pub flops: u128,
    /// The recomputation policy in the generated traces; chakram's choice replaces `as-needed`.
    pub recompute: super::RecomputePolicy,
    /// Modules of blocks that are recomputed by themselves.
    pub recompute_modules: super::RecomputedModules,
    /// Idle time of a stage divided by its computing time, if all passes take the same time and
    /// messages take no time. `None` if the schedule has no formula.
    pub bubble: Option<f64>,
    /// Process groups of the job, by kind.
    pub groups: Vec<ParallelGroupsOfOneKind>,
    /// For every member of a tensor group in every replica, the ranks that its activations pass through, one per stage.
    pub pipelines: Vec<Vec<u32>>,
    /// Totals of one rank on each stage.
    pub stages: Vec<PerRankStageTotals>,
}

/// The process groups of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct ParallelGroupsOfOneKind {
    /// Name of the kind, such as `tensor`.
    pub family: &'static str,
    /// The members of each group.
    pub all: Vec<Vec<u32>>,
}

/// Totals of one rank on a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct PerRankStageTotals {
    /// Names of the first and the last layer of each chunk.
    pub layers: Vec<[String; 2]>,
    /// Number of parameters on a rank, including adapters and copies of tied weights.
    pub parameters: u64,
    /// Number of parameters on a rank that have gradients.
    pub trained_parameters: u64,
    /// Number of nodes in a rank's trace.
    pub nodes: u64,
    /// FLOPs that a rank executes in all steps.
    pub flops: u128,
    /// Maximum number of bytes in use at once in the NPU's memory, if nodes run in id order.
    pub peak: u64,
    /// Bytes of a rank's state that the plan keeps in remote memory.
    pub remote: u64,
    /// True if the rank accesses remote memory. With a residency rule, remote memory stores what does not fit into the
    /// NPU's own memory.
    pub streams: bool,
    /// Bytes in use at the peak, by tensor class.
    pub memory: [u64; TensorClass::COUNT],
    /// Maximum number of passes whose activations are stored at once, and the bytes of one such pass. Their product is
    /// the memory that the schedule needs for activations.
    pub stored: (u64, u64),
    /// Collectives and messages in all steps.
    pub communication: Vec<CommunicationKindTotals>,
}

/// Collectives that share an operation, group kind and phase, or messages that share a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct CommunicationKindTotals {
    /// Name of the operation: a collective such as `all-reduce`, or `send`.
    pub kind: String,
    /// Kind of the groups, or `stages` for messages between pipeline stages.
    pub family: &'static str,
    /// Phase of the step, such as the forward pass; `None` if nodes have no phase.
    pub phase: Option<TrainingPhase>,
    /// Number of calls in all steps.
    pub calls: u64,
    /// Bytes of all calls; each call of a collective counts its whole buffer.
    pub bytes: u128,
}

impl ModelAndParallelismPlan {
    /// Computes the totals of the plan.
    ///
    /// # Errors
    ///
    /// Fails if the plan cannot distribute the model.
    pub fn summarize_plan(self) -> Result<PlanSummary, PatternOptionError> {
        Ok(self.prepare_generator()?.summarize_plan())
    }
}

type CommunicationTally = BTreeMap<(Option<TrainingPhase>, &'static str, String), (u64, u128)>;

/// A sink that adds up a rank's FLOPs, memory changes and communication.
struct RankTallySink<'p> {
    plan: &'p TrainingGenerator,
    place: TensorDataStageCoordinates,
    nodes: u64,
    streams: bool,
    remote: u64,
    flops: u128,
    used: [u64; TensorClass::COUNT],
    peak: u64,
    at_peak: [u64; TensorClass::COUNT],
    communication: CommunicationTally,
}

impl RankTallySink<'_> {
    /// Returns the kind of a group. The group of all ranks has a kind only if some kind of group in the plan includes
    /// all ranks.
    fn group_kind(
        &self,
        group: GroupName<'_>,
        kind: CollectiveKind,
        phase: Option<TrainingPhase>,
        lane: Option<i64>,
    ) -> Option<ParallelGroupKind> {
        let placement = &self.plan.placement;
        let named = |family| placement.group_name(family, self.place) == group;
        let whole = |family| placement.member_count(family) == placement.rank_count();
        // If several kinds include all ranks, guess from the collective and its phase.
        let likely = match phase {
            _ if kind == CollectiveKind::AllToAll && self.plan.plan.expert > 1 => {
                [ParallelGroupKind::Expert, ParallelGroupKind::Tensor]
            }
            Some(TrainingPhase::Synchronize) => {
                let own = match lane {
                    Some(GRADIENT_LANE | PARAMETER_LANE)
                        if placement.is_group_kind_used(ParallelGroupKind::ExpertData) =>
                    {
                        ParallelGroupKind::ExpertData
                    }
                    _ => ParallelGroupKind::Tensor,
                };
                [ParallelGroupKind::Data, own]
            }
            _ if self.plan.plan.context > 1 => {
                [ParallelGroupKind::Context, ParallelGroupKind::Tensor]
            }
            _ => [ParallelGroupKind::Tensor, ParallelGroupKind::Data],
        };
        let others = placement
            .iter_group_kinds()
            .filter(|one| !likely.contains(one));
        let mut all = likely.into_iter().chain(others);
        all.find(|&family| named(family) && (group != GroupName::World || whole(family)))
    }
}

impl Sink for RankTallySink<'_> {
    fn receive_node(&mut self, node: &NodeView<'_>, _: &[u64]) -> Result<(), TraceError> {
        self.nodes += 1;
        let phase = node.labels.phase;
        let (kind, family, bytes) = match node.op {
            Op::Collective {
                kind, bytes, group, ..
            } => {
                let family = self.group_kind(group, kind, phase, node.lane);
                let members = match (group, family) {
                    (GroupName::World, _) | (_, None) => self.plan.placement.rank_count(),
                    (_, Some(family)) => self.plan.placement.group_size_at(family, self.place),
                };
                // `comm_size` may be the size of one member's shard, but the totals count whole buffers.
                let bytes = kind.buffer_bytes(bytes, members).unwrap_or(bytes);
                let word = family.map_or("all ranks", |one| self.plan.placement.kind_name(one));
                (kind.to_string(), word, bytes)
            }
            Op::Message {
                receive: false,
                peer,
                bytes,
                ..
            } => {
                let peer = self.plan.placement.coordinates_of_rank(peer);
                let family = if peer.stage != self.place.stage {
                    "stages"
                } else if peer.data != self.place.data {
                    ParallelGroupKind::Context.kind_name()
                } else {
                    ParallelGroupKind::Tensor.kind_name()
                };
                ("send".to_owned(), family, bytes)
            }
            Op::Compute { flops, .. } => {
                self.flops += u128::from(flops);
                (String::new(), "", 0)
            }
            _ => (String::new(), "", 0),
        };
        if !kind.is_empty() {
            let sum = self.communication.entry((phase, family, kind)).or_default();
            sum.0 += 1;
            sum.1 += u128::from(bytes);
        }
        self.streams |= operation_accesses_remote_memory(&node.op);
        self.remote = self.remote.saturating_add(node.memory.remote);
        for (used, more) in self.used.iter_mut().zip(node.memory.allocates) {
            *used = used.saturating_add(more);
        }
        let total = self
            .used
            .iter()
            .fold(0, |sum: u64, one| sum.saturating_add(*one));
        // Compare strictly, so that the first of several equal peaks is reported.
        if total > self.peak {
            self.peak = total;
            self.at_peak = self.used;
        }
        for (used, less) in self.used.iter_mut().zip(node.memory.frees) {
            *used = used.saturating_sub(less);
        }
        Ok(())
    }
}

impl TrainingGenerator {
    /// Returns the samples, tokens and model FLOPs of all steps.
    pub(super) fn samples_tokens_and_model_flops(&self) -> JobSamplesAndModelFlops {
        let plan = &self.plan;
        let samples = plan.batch.saturating_mul(plan.steps.into());
        let tokens = (self.model.sequence > 1).then_some(self.model.sequence);
        JobSamplesAndModelFlops {
            steps: plan.steps.into(),
            samples,
            tokens: tokens.map(|tokens| samples.saturating_mul(tokens)),
            model_flops: self.model_flops().saturating_mul(samples.into()),
            attention: self.counted_attention_kind(),
            experts: local_experts::has_expert_layers(&self.model),
        }
    }

    pub(super) fn summarize_plan(&self) -> PlanSummary {
        let plan = &self.plan;
        let stages: Vec<PerRankStageTotals> = (0..plan.pipeline)
            .map(|stage| self.sum_stage_rank_totals(stage))
            .collect();
        let ranks = |stage| {
            u128::from(plan.tensor_degree_of_stage(stage))
                * u128::from(plan.weight_replicas_per_stage())
        };
        PlanSummary {
            ranks: self.rank_count(),
            micro_batches: self.micro_batches,
            parameters: self.model.parameter_count(),
            trained_parameters: frozen_weights::count_trained_weights(&self.model),
            model_flops: self.samples_tokens_and_model_flops().model_flops,
            attention: self.counted_attention_kind(),
            flops: (0..)
                .zip(&stages)
                .map(|(i, stage)| stage.flops * ranks(i))
                .sum(),
            recompute: plan.recompute,
            recompute_modules: plan.recompute_modules,
            bubble: plan.schedule.bubble_to_compute_ratio(
                plan.pipeline,
                self.micro_batches,
                plan.split_backward,
            ),
            groups: self.groups_by_kind(),
            pipelines: self.ranks_by_pipeline(),
            stages,
        }
    }

    fn sum_stage_rank_totals(&self, stage: u32) -> PerRankStageTotals {
        let place = TensorDataStageCoordinates {
            tensor: 0,
            data: 0,
            stage,
        };
        let mut tally = RankTallySink {
            plan: self,
            place,
            nodes: 0,
            streams: false,
            remote: 0,
            flops: 0,
            used: [0; TensorClass::COUNT],
            peak: 0,
            at_peak: [0; TensorClass::COUNT],
            communication: BTreeMap::new(),
        };
        let walked = self.emit_nodes(
            self.placement.rank_at(place),
            &mut TraceEmitter::new(&mut tally),
        );
        walked.expect("a tally takes every node");
        let parts = (0..self.chunk_count()).map(|chunk| self.part_of_chunk(stage, chunk));
        let name = |layer: usize| self.model.layers[layer].name.clone();
        let kept: u64 = self
            .stage_layers(stage)
            .map(|layer| self.lowered_layer(layer).keeps)
            .sum();
        let schedule = &self.plan.schedule;
        let stored = schedule.max_passes_with_stored_activations(
            stage,
            self.plan.pipeline,
            self.micro_batches,
        );
        PerRankStageTotals {
            layers: parts
                .map(|part| self.layers_of_part(part))
                .filter(|layers| !layers.is_empty())
                .map(|layers| [name(layers.start), name(layers.end - 1)])
                .collect(),
            parameters: self.all_and_trained_weights_of_stage(stage).all,
            trained_parameters: self.all_and_trained_weights_of_stage(stage).trained,
            nodes: tally.nodes,
            flops: tally.flops,
            peak: tally.peak,
            remote: tally.remote,
            streams: tally.streams,
            memory: tally.at_peak,
            stored: (stored, kept / u64::from(self.chunk_count())),
            communication: tally
                .communication
                .into_iter()
                .map(
                    |((phase, family, kind), (calls, bytes))| CommunicationKindTotals {
                        kind,
                        family,
                        phase,
                        calls,
                        bytes,
                    },
                )
                .collect(),
        }
    }
}
