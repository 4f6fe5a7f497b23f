//! Compares the memory that a plan needs with the capacities of the NPUs, and suggests changes.

use chakram_base::ids::Npu;
use chakram_base::units::Bytes;
use chakram_hardware::machine::Machine;
use chakram_trace::format::TensorClass;
use chakram_workloads::generate::ParallelismPlan;
use chakram_workloads::generate::plan::{
    RankMemoryCapacity, RankPeakOwnAndRemoteBytes, RecomputePolicy, ZeroStage,
};
use chakram_workloads::generate::schedule::PipelineSchedule;
use chakram_workloads::generate::training::{PerRankStageTotals, PlanSummary};

/// Memory that stages need, compared with the capacity of the NPUs on which they run.
pub struct AllStagesMemoryFit {
    /// Capacity of an NPU of each stage, in bytes; `None` if it is unknown. If the NPUs of a stage differ, the smallest
    /// capacity counts.
    pub capacities: Vec<Option<u64>>,
    /// Stages that exceed their capacity, each with a description.
    pub too_large: Vec<(usize, String)>,
    /// Index of the stage that needs the largest fraction of its capacity.
    pub fullest: Option<usize>,
    /// Advice on a plan that would fit.
    pub hint: String,
}

impl AllStagesMemoryFit {
    /// Compares the memory that stages need with `capacity`. If `capacity` is `None`, uses the capacities of the
    /// stages' NPUs instead.
    pub fn new(
        summary: &PlanSummary,
        plan: &ParallelismPlan,
        capacity: Option<u64>,
        on: Option<(&Machine, &[Npu])>,
    ) -> Self {
        // If the NPUs of a stage differ, the smallest capacity is the limit.
        let of_npus = |stage: usize| {
            let (machine, npus) = on?;
            let ranks = summary.pipelines.iter().map(|ranks| ranks[stage]);
            let classes = ranks.map(|rank| machine.class_of_npu(npus[rank as usize]));
            let bytes =
                classes.map(|class| Some(machine.npu_memory_capacity_with_port_share(class)?.0));
            bytes.collect::<Option<Vec<_>>>()?.into_iter().min()
        };
        let stages = summary.stages.iter().enumerate();
        let own: Vec<Option<u64>> = stages
            .clone()
            .map(|(i, _)| capacity.or_else(|| of_npus(i)))
            .collect();
        let memory = |own| RankMemoryCapacity::new(own, plan);
        let known = stages.clone().zip(&own);
        let capacities: Vec<_> = known
            .map(|((_, stage), own)| {
                own.map(|own| memory(own).capacity_with_remote_share_if_streaming(stage.streams))
            })
            .collect();
        let peaks = stages.clone().zip(&own).map(|((i, stage), own)| {
            // Remote memory stores those bytes of a stage that exceed the stage's own capacity, so a stage with more
            // memory of its own needs less remote memory.
            let peak = RankPeakOwnAndRemoteBytes::new(
                stage.peak.saturating_sub(own.unwrap_or(u64::MAX)),
                stage.streams,
            );
            let peak = peak.with_added_remote_state_bytes(stage.remote);
            (peak, plan.rank_count_of_stage(i as u32))
        });
        let fits = memory(0).can_fit_peaks(peaks);
        let known = stages.clone().zip(own.iter().zip(&capacities));
        let too_large = known.filter_map(|((i, stage), (own, capacity))| {
            let is_beyond = own.is_some_and(|own| stage.peak > own);
            ((is_beyond || stage.remote > 0) && !fits)
                .then(|| (i, format_stage_memory(i, stage, capacity.unwrap_or(0))))
        });
        // Compare the ratios peak / capacity exactly: multiply each peak by the other stage's capacity instead of
        // dividing.
        let share =
            |(i, _): &(usize, &PerRankStageTotals)| capacities[*i].map(|bytes| bytes.max(1));
        let fullest = stages.clone().filter(|stage| share(stage).is_some());
        let fullest = fullest.rev().max_by(|a, b| {
            let [x, y] = [a, b].map(|stage| u128::from(share(stage).unwrap_or(1)));
            (u128::from(a.1.peak) * y).cmp(&(u128::from(b.1.peak) * x))
        });
        Self {
            too_large: too_large.collect(),
            fullest: fullest.map(|(i, _)| i),
            hint: suggest_savings(plan),
            capacities,
        }
    }

    /// Returns true if the capacity of at least one stage is known.
    pub fn is_any_capacity_known(&self) -> bool {
        self.capacities.iter().any(Option::is_some)
    }

    /// Describes, in one line, the stages whose memory does not fit. Returns `None` if all stages fit.
    pub fn describe_excess(&self) -> Option<String> {
        let fullest = self.fullest?;
        let (_, text) = self.too_large.iter().find(|(stage, _)| *stage == fullest)?;
        let others = match self.too_large.len() - 1 {
            0 => String::new(),
            1 => "; 1 more stage needs too much".to_owned(),
            n => format!("; {n} more stages need too much"),
        };
        Some(format!("out of memory: {text}{others}"))
    }
}

/// Formats the memory that a stage needs, by tensor class: ``stage 0 needs 93.1 GB of 80.0 GB: activations 60.1 GB,
/// weights 20.0 GB``.
fn format_stage_memory(index: usize, stage: &PerRankStageTotals, capacity: u64) -> String {
    let mut parts: Vec<_> = TensorClass::ALL.iter().zip(stage.memory).collect();
    parts.retain(|(_, bytes)| *bytes > 0);
    parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let parts = parts.iter();
    let parts = parts.map(|((_, name), bytes)| format!("{name} {}", Bytes(*bytes)));
    let remote = match stage.remote {
        0 => String::new(),
        bytes => format!("; and {} of a rank in remote memory", Bytes(bytes)),
    };
    format!(
        "stage {index} needs {} of {}: {}{remote}",
        Bytes(stage.peak),
        Bytes(capacity),
        parts.collect::<Vec<_>>().join(", ")
    )
}

/// Suggests changes to a plan that save memory.
fn suggest_savings(plan: &ParallelismPlan) -> String {
    let mut try_: Vec<String> = Vec::new();
    if plan.has_training()
        && matches!(
            plan.recompute,
            RecomputePolicy::None | RecomputePolicy::Selective | RecomputePolicy::Operators
        )
    {
        try_.push("--recompute full".to_owned());
    }
    if plan.schedule == PipelineSchedule::GPipe && plan.pipeline > 1 {
        try_.push("--schedule 1f1b".to_owned());
    }
    if plan.micro_batch > 1 {
        try_.push("a smaller --micro-batch".to_owned());
    }
    if plan.weight_replicas_per_stage() > 1 && plan.zero < ZeroStage::Parameters {
        let next = if plan.has_training() {
            plan.zero as u8 + 1
        } else {
            3
        };
        try_.push(format!("--zero {next}"));
    }
    if plan.tensor > 1 && !plan.sequence_parallel {
        try_.push("--sequence-parallel".to_owned());
    }
    try_.push("more --tensor or --pipeline".to_owned());
    try_.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn savings_suggest_only_options_the_plan_lacks() {
        let mut plan = ParallelismPlan::new();
        assert_eq!(
            suggest_savings(&plan),
            "--recompute full, more --tensor or --pipeline"
        );
        plan.data = 2;
        plan.tensor = 2;
        plan.zero = ZeroStage::Optimizer;
        plan.recompute = RecomputePolicy::Full;
        plan.micro_batch = 4;
        let expected =
            "a smaller --micro-batch, --zero 2, --sequence-parallel, more --tensor or --pipeline";
        assert_eq!(suggest_savings(&plan), expected);
        plan.schedule = PipelineSchedule::Inference;
        assert!(suggest_savings(&plan).contains("--zero 3"));
    }
}
