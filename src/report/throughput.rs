//! Rates of a replay: samples and tokens per second, and utilization of the NPUs' peak compute rate.
//!
//! *Model FLOPs utilization* divides the FLOPs that the model needs, without recomputation, by the FLOPs that the NPUs
//! could execute at their peak during the makespan (Chowdhery et al. 2022, PaLM, appendix B). *Hardware FLOPs
//! utilization* counts the FLOPs that the kernels execute, including recomputation (Korthikanti et al. 2022, section
//! 6). For both, the tool that wrote the job decides which attention FLOPs count. The peak of a kernel is the NPU's
//! dense peak rate for the kernel's number format. For mixed formats, hardware FLOPs utilization is the time that the
//! kernels would take at their peaks, divided by the makespan. Model FLOPs utilization is then this value times the
//! ratio of model to executed FLOPs.

use super::Report;
use super::extrapolation::WholeStepExtrapolation;
use super::text::format_few_digits;
use chakram_base::ids::GraphId;
use chakram_base::units::{Span, format_percent};
use chakram_engine::CompiledReplay;
use chakram_trace::format::Dtype;
use chakram_trace::format::work_amounts::CountedAttentionPairs;
use chakram_trace::graph::{Graph, NodeKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Rates of a job, computed from the makespan of its replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Throughput {
    /// Number of samples that the job processes.
    pub samples: u64,
    /// Samples per second, summed over all ranks.
    pub samples_per_s: f64,
    /// Number of tokens that the job processes, if its samples are sequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Tokens per second, summed over all ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_s: Option<f64>,
    /// Tokens per second divided by the number of ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_s_per_npu: Option<f64>,
    /// FLOPs that the model needs for the samples, without recomputation.
    pub model_flops: f64,
    /// Pairs of tokens that count in the attention FLOPs, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<CountedAttentionPairs>,
    /// FLOPs executed by the kernels of all ranks with a trace.
    pub flops: f64,
    /// Model FLOPs utilization, from 0 to 1. Known only if all ranks have a trace and the peak rates for all FLOPs are
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Hardware FLOPs utilization, from 0 to 1. Known only if the peak rates for all FLOPs are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hfu: Option<f64>,
}

/// Explanation of model FLOPs utilization, as shown to users.
pub(super) const MFU: &str = "model FLOPs over peak";
pub(super) const HFU: &str = "FLOPs carried out over peak";

/// FLOPs of a graph's kernels by number format. The last entry is for unknown formats.
type KernelFlopsByNumberFormat = [u128; Dtype::COUNT + 1];

fn graph_flops_by_format(graph: &Graph) -> KernelFlopsByNumberFormat {
    let mut flops = [0; Dtype::COUNT + 1];
    for node in graph
        .nodes()
        .filter(|&node| graph.kind(node) == NodeKind::Compute)
    {
        let format = graph
            .dtype(node)
            .map_or(Dtype::COUNT, |dtype| dtype as usize);
        flops[format] += u128::from(graph.flops(node));
    }
    flops
}

/// Returns the rates of a replay with this makespan; `None` if the job's number of samples is unknown.
pub(super) fn compute_throughput(
    prepared: &CompiledReplay<'_>,
    makespan: Span,
) -> Option<Throughput> {
    let (workload, machine) = (prepared.workload_with_added_launches(), prepared.machine());
    let amounts = workload.work_amounts()?;
    let seconds = makespan.as_seconds();
    let mut graphs: BTreeMap<GraphId, KernelFlopsByNumberFormat> = BTreeMap::new();
    let (mut flops, mut at_peak) = (0_u128, Some(0.0));
    for instance in workload.instances() {
        let of = graphs.entry(instance.graph);
        let of = of.or_insert_with(|| graph_flops_by_format(workload.graph_of(instance)));
        let peaks =
            &machine.npu_classes()[machine.class_of_npu(prepared.npu_of_rank(instance.rank))].peaks;
        for (format, count) in of.iter().enumerate().filter(|(_, count)| **count > 0) {
            flops += count;
            let peak = Dtype::ALL
                .get(format)
                .and_then(|(dtype, _)| peaks.peak_rate_if_supported(*dtype));
            let lasts = peak.map(|peak| *count as f64 / peak.per_second());
            at_peak = at_peak.zip(lasts).map(|(sum, lasts)| sum + lasts);
        }
    }
    if seconds <= 0.0 {
        return None;
    }
    let present = workload.instances().len();
    let hfu = at_peak.filter(|_| flops > 0);
    let hfu = hfu.map(|at_peak| at_peak / (present as f64 * seconds));
    let model_flops = amounts.model_flops as f64;
    let whole = present == workload.rank_count_including_untraced() as usize;
    let per_second = |count: u64| count as f64 / seconds;
    let tokens_per_s = amounts.tokens.map(per_second);
    Some(Throughput {
        samples: amounts.samples,
        samples_per_s: per_second(amounts.samples),
        tokens: amounts.tokens,
        tokens_per_s,
        tokens_per_s_per_npu: tokens_per_s
            .map(|rate| rate / f64::from(workload.rank_count_including_untraced())),
        model_flops,
        attention: amounts.attention,
        flops: flops as f64,
        mfu: hfu
            .filter(|_| whole)
            .map(|hfu| hfu * model_flops / flops as f64),
        hfu,
    })
}

impl Throughput {
    /// Returns the rates of the whole step, if `self` has the rates of its simulated micro-batches. Every micro-batch
    /// has the same samples, tokens and FLOPs.
    pub(super) fn scale_micro_batches_to_step(self, step: &WholeStepExtrapolation) -> Self {
        let [all, simulated] = [step.micro_batches, step.simulated.max(1)];
        let count = |part: u64| {
            let whole = u128::from(part) * u128::from(all) / u128::from(simulated);
            u64::try_from(whole).unwrap_or(u64::MAX)
        };
        let parts = f64::from(all) / f64::from(simulated);
        let speed = step.samples_per_s / self.samples_per_s;
        let faster = |rate: Option<f64>| rate.map(|rate| rate * speed);
        Self {
            samples: count(self.samples),
            samples_per_s: step.samples_per_s,
            tokens: self.tokens.map(count),
            tokens_per_s: faster(self.tokens_per_s),
            tokens_per_s_per_npu: faster(self.tokens_per_s_per_npu),
            model_flops: self.model_flops * parts,
            attention: self.attention,
            flops: self.flops * parts,
            mfu: faster(self.mfu),
            hfu: faster(self.hfu),
        }
    }

    /// Returns the reasons to doubt the utilizations.
    pub(super) fn describe_doubtful_utilization(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        // Allow a tolerance, because f64 sums may differ in their last digits.
        let above = |part: f64, whole: f64| part > whole * (1.0 + 1e-9);
        if let Some(hfu) = self.hfu.filter(|hfu| above(*hfu, 1.0)) {
            warnings.push(format!(
                "kernels carry out {} of the FLOPs that the peaks of the NPUs allow in the makespan: recorded or measured \
                 durations are shorter than FLOPs over the peak, or kernels have more FLOPs, another number format or \
                 a machine with lower peaks than when they were measured",
                format_percent(hfu)
            ));
        }
        if let Some(mfu) = self.mfu.filter(|_| above(self.model_flops, self.flops)) {
            warnings.push(format!(
                "MFU ({}) is above HFU: the job states {:.4e} model FLOPs and its kernels carry out {:.4e}; nodes were \
                 removed or lack FLOPs, or the job counts attention over the whole square of tokens and its kernels do not",
                format_percent(mfu),
                self.model_flops,
                self.flops
            ));
        }
        warnings
    }
}

/// Returns a line such as `123,456 tokens/s (1,929 per NPU), 60.3 samples/s, MFU 41.2 %, HFU 52.9 %`. Also
/// returns an explanation of MFU and HFU.
pub(super) fn describe_throughput(report: &Report) -> Vec<String> {
    let Some(rates) = report.throughput else {
        return Vec::new();
    };
    let tokens = rates.tokens_per_s.zip(rates.tokens_per_s_per_npu);
    let tokens = tokens.map(|(all, one)| {
        format!(
            "{} tokens/s ({} per NPU)",
            format_few_digits(all),
            format_few_digits(one)
        )
    });
    let samples = format!("{} samples/s", format_few_digits(rates.samples_per_s));
    let utilizations = [("MFU", rates.mfu, MFU), ("HFU", rates.hfu, HFU)];
    let known = utilizations
        .iter()
        .filter_map(|(name, part, meant)| Some((name, (*part)?, meant)));
    let known: Vec<_> = known.collect();
    let shares = known
        .iter()
        .map(|(name, part, _)| format!("{name} {}", format_percent(*part)));
    let parts: Vec<String> = tokens.into_iter().chain([samples]).chain(shares).collect();
    let mut lines = vec![parts.join(", ")];
    if !known.is_empty() {
        let meant: Vec<_> = known
            .iter()
            .map(|(name, _, meant)| format!("{name}: {meant}"))
            .collect();
        let counted = rates
            .attention
            .map(|counted| format!(" ({} attention)", counted.stable_name()));
        lines.push(meant.join("; ") + &counted.unwrap_or_default());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::Throughput;

    /// Two jobs cause warnings. In one, kernels execute 3 FLOPs while the peaks allow only 2. In the other, the
    /// model needs 4 FLOPs while its kernels execute 3. A difference in the last digit causes no warning.
    #[test]
    fn utilization_above_peak_or_model_above_executed_flops_is_a_warning() {
        let rates = |hfu: f64, model_flops: f64| Throughput {
            model_flops,
            flops: 3.0,
            mfu: Some(hfu * model_flops / 3.0),
            hfu: Some(hfu),
            ..Throughput::default()
        };
        assert!(
            rates(1.0 + f64::EPSILON, 3.0)
                .describe_doubtful_utilization()
                .is_empty()
        );
        let [above] = &rates(1.5, 3.0).describe_doubtful_utilization()[..] else {
            panic!("one warning")
        };
        assert!(above.contains("150.0 %"), "{above}");
        let [more] = &rates(0.6, 4.0).describe_doubtful_utilization()[..] else {
            panic!("one warning")
        };
        assert!(more.contains("MFU (80.0 %) is above HFU"), "{more}");
    }
}
