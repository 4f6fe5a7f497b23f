//! The interval of a prediction, and how much of the predicted time each method estimated.
//!
//! Estimates within a class share constants, so they have a common error. Errors of different classes are independent
//! of each other. Let `p` be a class's fraction of the time, and `u` the relative error of the class. All times of a
//! step share a further error of 5.5 %, because the software's release is unknown: releases of one stack differ by 5 to
//! 7 % on the same plan (NVIDIA/dgxc-benchmarking, Megatron-Bridge):
//!
//! ```text
//! s^2 = sum of (p u)^2 + (J sum of g(n) / makespan)^2 + 0.055^2
//! 90 % interval: prediction x exp(-1.645 s) to prediction x exp(1.645 s)
//! ```
//!
//! Kernels that measured curves time form one class per curve. There are curves for matrix multiplications, for
//! attention, for kernels that move bytes, and for kernels measured by name. A curve of matrix multiplications that was
//! carried over from other makers' NPUs forms a class of its own.
//!
//! The error of a matrix-multiplication curve is the error for a single shape. A step has a dozen shapes, whose errors
//! are partly independent. The measured tables of A100 and H100 (ai-dynamo/aiconfigurator) include shapes of
//! transformer blocks with 1,024 to 12,288 columns, 1 to 8 members of a tensor group and 1,024 to 16,384 tokens. For
//! these, the error of the sum over a block's products has 0.40 to 0.66 of the standard deviation of a single product's
//! error; the mean is 0.55.
//!
//! Some collectives were measured on [links that differ from the
//! machine's](chakram_hardware::collective::MeasurementSetupLinkProperties). Their relative error is `hypot(0.10, 0.30
//! (1 - q))`. The similarity q is the ratio of the smaller to the larger bandwidth, times the ratio of the smaller to
//! the larger latency. For equal links, the result is the error of measured collectives (0.10). If the links have
//! nothing in common, it is slightly larger than for other transfers (0.30). Collectives with measured times and
//! collectives with derived times form one class. Its error is the mean of their errors, weighted by time.
//!
//! Hosts reach a collective of `n` members at different times. The machine file states the standard deviation `J` of
//! these times. The last host is later than the mean by `J g(n)`, where `g(n)` is the expected maximum of `n` standard
//! normal variables (0.56 for 2, 1.42 for 8). `g(n)` is summed over the collectives of each NPU, and averaged over
//! NPUs.
//!
//! If an NPU has no curves and nothing was recorded, all kernels are timed by roofline. If, in addition, no measured
//! efficiency lowers the peak rates, `p 0.37` is added to the upper end's exponent. The reason is that, at the peak
//! rates, predictions for the steps in public tables of TPU v5p, v6e and v7x are on average 31 % too short; `ln(1 /
//! 0.69) = 0.37`. At two thirds of the peak rates, the predictions for these steps are off by 8 %.
//!
//! Kernels recorded on another NPU and scaled to this one have the roofline's error. If they keep their recorded times,
//! as with an NPU of another maker, the error is 29 %. This figure comes from three models that were captured on both
//! H100 and MI300X. The logarithms of the ratios of total kernel times are 0.34, -0.28 and 0.24, with a root mean
//! square of 0.29. The two captures also differ in their hosts: the logarithms of the ratios of host times are -0.14,
//! 0.19 and -0.12, with a root mean square of 0.15. Recorded host work has this error unless it was recorded on NPUs of
//! the machine's class. The error in a machine's `[host]` table is that of launches that the machine's host makes, so
//! it does not apply to recorded host work.
//!
//! Jobs on several nodes also have stragglers, which can only make steps longer. A study of 3,079 training jobs on 128
//! GPUs or more compares jobs with and without stragglers (Lin et al., "Understanding Stragglers in Large Model
//! Training Using What-if Analysis", OSDI 2025). With stragglers, a tenth of the jobs take at least `1 / (1 - 0.213)`
//! times as long, and a hundredth take at least `1 / (1 - 0.45)` times as long. In 39.3 % of the slow jobs, unequal
//! stages are the main cause; replays already include them. In 21.4 %, unequal sequences are the main cause; they do
//! not occur if all samples are equal. In the other 39.3 %, neither is the main cause. Assume that the logarithm of the
//! slowdown has an exponential tail that passes through the study's two points. One job in twenty then exceeds
//!
//! `ln(1 / 0.787) + (ln(1 / 0.55) - ln(1 / 0.787)) / ln 10 x ln(0.393 x 0.1 / 0.05) = 0.20`. The steps that users and
//! vendors publish have fewer stragglers than these production jobs. With
//!
//! ```text
//! upper end: prediction x exp(sqrt((1.645 s)^2 + 0.05^2))
//! ```
//!
//! intervals contain 90 % of 255 published steps on several nodes of machines whose kernels were measured. These come
//! from four groups of tables: LLM Foundry, dgxc-benchmarking, vTrain on many nodes, and small tables together. If one
//! group is left out, the other groups give 0.03, 0.12, 0.03 and 0.07.
//!
//! The kernels between the experts' products (routing, copies, orders, biases, casts of single experts) vary between
//! releases of a framework. Their list comes from no measured step of a model with experts. If the list comes from
//! another generation than the measured stack, predictions are too short. For 97 public steps of dense models (LLM
//! Foundry, whose attention is older than the modelled one), a tenth of the predictions are more than 35.4 % too short;
//! `ln(1 / 0.646) = 0.44`. If curves time the kernels of a model with experts, the upper end therefore has one more
//! part:
//!
//! ```text
//! upper end: prediction x exp(sqrt((1.645 s)^2 + stragglers^2 + 0.44^2))
//! ```
//!
//! If the machine has a [correction](chakram_hardware::machine::PassKernelTimeCorrection) that applies, `s` is the
//! error that remains after it. The prediction then already includes stragglers, because the correction comes from
//! measured steps that had stragglers.
//!
//! The time of each class is taken from the critical path or, if no path was computed, from the mean over NPUs. Waiting
//! and idle time follow from the other times, so they have no error of their own.

use super::NpuTimeCategory;
use super::text::format_share;
use super::{CollectiveRow, Report};
use chakram_base::units::Span;
use chakram_engine::{CommunicationDurationSource, CompiledReplay};
use chakram_hardware::compute::CorrelatedErrorClass;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Relative error (standard deviation) of kernel times that the roofline predicts with one efficiency.
const ROOFLINE: f64 = 0.23;
/// Logarithm of kernels' mean slowdown compared with a roofline at the peak rates.
const BELOW_PEAKS: f64 = 0.37;
/// Relative error of measured collectives.
const MEASURED_COLLECTIVE: f64 = 0.10;
/// Relative error of other transfers.
const NETWORK: f64 = 0.30;
/// Relative error of loads and stores.
const MEMORY: f64 = 0.20;
/// Relative error of recorded times.
const RECORDED: f64 = 0.04;
/// Relative error of kernels that keep times from another maker's NPU.
const ANOTHER_MAKER: f64 = 0.29;
/// Relative error of host work that was recorded on another host.
const ANOTHER_HOST: f64 = 0.15;
/// Relative error common to all times of a step.
const COMMON: f64 = 0.055;
/// Error of a step's matrix multiplications, as a fraction of the error for a single shape.
const PRODUCTS_OF_STEP: f64 = 0.55;
/// Logarithm of the slowdown by stragglers that one in twenty steps on several nodes exceeds.
const STRAGGLERS: f64 = 0.05;
/// With a kernel list of another generation, a tenth of the predictions are shorter than the measured time by more than
/// this (logarithm of the ratio).
const UNLISTED_KERNELS: f64 = 0.44;
/// Half the width, in standard deviations, of the interval that holds 90 % of a normal distribution.
const SIDE: f64 = 1.645;

/// The interval that contains the measured time in nine of ten cases. Also states the time by estimation method, either
/// on the critical path or as a mean over NPUs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct PredictionIntervalAndTimeByMethod {
    /// Lower end of the 90 % interval.
    #[serde(rename = "low_ps")]
    pub low: Span,
    /// Upper end of the 90 % interval.
    #[serde(rename = "high_ps")]
    pub high: Span,
    /// Time of kernels that measured curves time.
    #[serde(rename = "kernels_by_curves_ps")]
    pub curves: Span,
    /// Time of kernels that the roofline times.
    #[serde(rename = "kernels_by_roofline_ps")]
    pub roofline: Span,
    /// Time of kernels and communication with recorded times.
    #[serde(rename = "recorded_ps")]
    pub recorded: Span,
    /// Time of kernels that keep times recorded on another maker's NPU.
    #[serde(
        rename = "kernels_of_another_maker_ps",
        default,
        skip_serializing_if = "is_zero_span"
    )]
    pub kept: Span,
    /// Time of collectives with measured times.
    #[serde(rename = "measured_collectives_ps")]
    pub measured: Span,
    /// Time of other communication, which the network model times.
    #[serde(rename = "network_ps")]
    pub network: Span,
    /// Time of host work.
    #[serde(rename = "host_ps")]
    pub host: Span,
    /// Time of loads and stores.
    #[serde(rename = "memory_ps")]
    pub memory: Span,
    /// Waiting and idle time, which follow from the other times.
    #[serde(rename = "follows_ps")]
    pub follows: Span,
    /// True if kernels timed by roofline run at the machine's stated peak rates, because no efficiency was measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_peaks: bool,
    /// True if the upper end allows for unmodelled kernels of experts, because their list comes from no measured step
    /// of a model with experts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlisted_kernels: bool,
    /// True if the parts are means over NPUs, because the job is too large for a critical path.
    #[serde(
        rename = "parts_are_means_over_npus",
        default,
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub of_mean: bool,
}

/// Time on the critical path that one method estimated.
#[derive(Clone, Copy, Debug)]
pub(super) struct OneEstimationMethodPathTime {
    pub time: Span,
    /// Key of the part in JSON.
    pub key: &'static str,
    /// Name of the method, as shown to users.
    pub name: &'static str,
}

fn is_zero_span(span: &Span) -> bool {
    *span == Span::ZERO
}

/// Returns the time-weighted mean of the relative errors of the report's collectives with measured times.
fn mean_error_of_measured_collectives(report: &Report) -> f64 {
    let rows = || report.collectives.iter().filter(|row| row.measured);
    let time = |row: &CollectiveRow| row.charged.transferring.0 as f64;
    let error = |row: &CollectiveRow| {
        let links = row.derived_from.as_ref();
        let nearness = links.map_or(1.0, |links| links.link_similarity());
        libm::hypot(MEASURED_COLLECTIVE, NETWORK * (1.0 - nearness))
    };
    let sum: f64 = rows().map(time).sum();
    if sum == 0.0 || rows().all(|row| row.derived_from.is_none()) {
        return MEASURED_COLLECTIVE;
    }
    rows().map(|row| time(row) / sum * error(row)).sum()
}

impl PredictionIntervalAndTimeByMethod {
    /// Returns the interval of `report`, a replay of `prepared`. The errors are known in three cases: kernels are timed
    /// by curves; kernels were recorded on another NPU; or all kernels are timed by roofline, on a machine that is not
    /// a wafer of tiles. Otherwise, the result is `None`.
    pub(super) fn of_report(report: &Report, prepared: &CompiledReplay<'_>) -> Option<Self> {
        let basis = prepared.duration_source_counts();
        let by_roofline = basis.roofline_time > 0
            && basis.recorded_time == 0
            && prepared.machine().topology().tile_grid().is_none();
        if basis.by_curves == 0 && !by_roofline && !basis.carried {
            return None;
        }
        let at_peaks = basis.by_curves == 0 && basis.at_peaks;
        let parts = match &report.critical_path {
            Some(path) => path.parts,
            None => report.mean_parts,
        };
        let part = |category: NpuTimeCategory| parts[category as usize];
        let compute = part(NpuTimeCategory::Compute);
        let kernels = basis.curve_time + basis.roofline_time + basis.recorded_time;
        let of_kernels = |time: u128| scale_span(compute, time as f64, kernels as f64);
        // Kernels that were recorded on NPUs with the machine's rates keep their times.
        let scaled = match basis.recording_class_known && !basis.carried && basis.estimated == 0 {
            true => 0,
            false => basis.roofline_time,
        };
        let (curves, roofline) = (of_kernels(basis.curve_time), of_kernels(scaled));
        let transferring = |measured: bool| -> f64 {
            let rows = report
                .collectives
                .iter()
                .filter(|row| row.measured == measured);
            rows.map(|row| row.charged.transferring.0 as f64).sum()
        };
        let measured = transferring(true);
        let others = transferring(false) + report.messages_charged.transferring.0 as f64;
        let communication = part(NpuTimeCategory::Communication);
        let measured = scale_span(communication, measured, measured + others);
        let as_recorded = compute - curves - roofline.min(compute - curves);
        let kept = of_kernels(basis.kept_time).min(as_recorded);
        let as_recorded = as_recorded - kept;
        let (network, recorded) = match prepared.comm_duration_source() {
            CommunicationDurationSource::Model => (communication - measured, as_recorded),
            _ => (Span::ZERO, as_recorded + communication - measured),
        };
        let (host, memory) = (part(NpuTimeCategory::Host), part(NpuTimeCategory::Memory));
        let known = [
            curves, roofline, recorded, kept, measured, network, host, memory,
        ];
        let classes = [
            (roofline, ROOFLINE),
            (recorded, RECORDED),
            (kept, ANOTHER_MAKER),
            (measured, mean_error_of_measured_collectives(report)),
            (network, NETWORK),
            (host, host_work_error(report, prepared)),
            (memory, MEMORY),
        ];
        let known: Span = known.into_iter().sum();
        let part = |span: Span| span.0 as f64 / known.0.max(1) as f64;
        let makespan = report.outcome.makespan;
        let of_classes = classes.iter().map(|&(span, error)| part(span) * error);
        let mut of_curves = basis
            .curve_deviations
            .map(|deviation| part(curves) * deviation as f64 / basis.curve_time.max(1) as f64);
        of_curves[CorrelatedErrorClass::Gemm as usize] *= PRODUCTS_OF_STEP;
        let late = seconds_of_last_host_behind_mean_host(report, prepared) / makespan.as_seconds();
        let errors = of_classes.chain(of_curves).chain([late, COMMON]);
        let amounts = prepared.workload_with_added_launches().work_amounts();
        let has_experts = amounts.is_some_and(|amounts| amounts.experts);
        let unlisted_kernels = has_experts
            && basis.by_curves > 0
            && prepared.error_remaining_after_correction().is_none();
        let (deviation, stragglers) = match prepared.error_remaining_after_correction() {
            Some(left) => (left, 0.0),
            None => (
                errors.map(|error| error * error).sum::<f64>().sqrt(),
                if has_more_ranks_than_first_dimension(report, prepared) {
                    STRAGGLERS
                } else {
                    0.0
                },
            ),
        };
        let longer = match unlisted_kernels {
            true => libm::hypot(stragglers, UNLISTED_KERNELS),
            false => stragglers,
        };
        let side = SIDE * deviation;
        let below_peaks = if at_peaks {
            part(roofline) * BELOW_PEAKS
        } else {
            0.0
        };
        let end =
            |side: f64| Span::from_seconds_saturating(makespan.as_seconds() * libm::exp(side));
        Some(Self {
            low: end(-side),
            high: end(libm::hypot(side, longer) + below_peaks),
            curves,
            roofline,
            recorded,
            kept,
            measured,
            network,
            host,
            memory,
            follows: Span(makespan.0.saturating_sub(known.0)),
            at_peaks,
            unlisted_kernels,
            of_mean: report.critical_path.is_none(),
        })
    }

    /// Returns the time on the critical path for each estimation method, with its key and name.
    pub(super) fn list_path_times_by_estimation_method(&self) -> [OneEstimationMethodPathTime; 9] {
        [
            (self.curves, "kernels_by_curves_ps", "kernels by curves"),
            (
                self.roofline,
                "kernels_by_roofline_ps",
                "kernels by roofline",
            ),
            (self.recorded, "recorded_ps", "as recorded"),
            (
                self.kept,
                "kernels_of_another_maker_ps",
                "kernels as on another maker's NPU",
            ),
            (
                self.measured,
                "measured_collectives_ps",
                "measured collectives",
            ),
            (self.network, "network_ps", "transfers by the network"),
            (self.host, "host_ps", "host"),
            (self.memory, "memory_ps", "memory"),
            (self.follows, "follows_ps", "waiting and idle"),
        ]
        .map(|(time, key, name)| OneEstimationMethodPathTime { time, key, name })
    }

    /// Formats the interval and each method's share. Leaves out shares that round to zero.
    pub(super) fn format_interval_and_method_shares(&self, makespan: Span) -> String {
        let shown =
            |part: &OneEstimationMethodPathTime| part.time.0 as f64 >= 0.0005 * makespan.0 as f64;
        let parts = self
            .list_path_times_by_estimation_method()
            .into_iter()
            .filter(shown);
        let parts =
            parts.map(|part| format!("{} {}", part.name, format_share(part.time, makespan)));
        let parts: Vec<_> = parts.collect();
        let peaks = match self.at_peaks {
            true => "; kernels run at the machine's stated peaks, which no measurement confirms",
            false => "",
        };
        let unlisted = match self.unlisted_kernels {
            true => "; no measured step confirms the list of experts' kernels",
            false => "",
        };
        format!(
            "{makespan} (90 %: {} to {}); {}: {}{peaks}{unlisted}",
            self.low,
            self.high,
            if self.of_mean {
                "the mean NPU"
            } else {
                "the critical path"
            },
            parts.join(", ")
        )
    }
}

/// Returns the relative error of host work. Launches that the machine's host makes have the error that the machine
/// states. Other host work is as recorded, on this machine's host or on another one.
fn host_work_error(report: &Report, prepared: &CompiledReplay<'_>) -> f64 {
    if prepared.has_machine_host_launches() {
        return prepared.machine().host().map_or(0.0, |host| host.error);
    }
    let basis = prepared.duration_source_counts();
    let classes = || report.rows.iter().map(|row| &*row.class);
    let captured_here = match basis.recording_class_known {
        true => !basis.carried,
        false => (report.captured_on.as_ref()).is_some_and(|on| on.devices_are_classes(classes())),
    };
    match captured_here {
        true => RECORDED,
        false => ANOTHER_HOST,
    }
}

/// Returns true if the job has more ranks than the network's first dimension (a node or a rack).
fn has_more_ranks_than_first_dimension(report: &Report, prepared: &CompiledReplay<'_>) -> bool {
    let topology = prepared.machine().topology();
    let node = topology.dimensions().first().map_or(0, |first| first.size);
    topology.tile_grid().is_none() && report.ranks > node
}

/// Returns how much later a group's last host is than the mean host, in seconds. This lateness is summed over the
/// collectives of each NPU, and averaged over NPUs. Returns zero if no host launches collectives.
fn seconds_of_last_host_behind_mean_host(report: &Report, prepared: &CompiledReplay<'_>) -> f64 {
    let host = prepared
        .machine()
        .host()
        .filter(|_| prepared.has_machine_host_launches());
    let Some(host) = host.filter(|host| host.jitter > Span::ZERO) else {
        return 0.0;
    };
    // Many groups have the same size, so compute the integral only once per size.
    let mut calls: BTreeMap<u32, u64> = BTreeMap::new();
    for row in &report.collectives {
        *calls.entry(row.members).or_default() += row.tally.calls * u64::from(row.present);
    }
    let calls = calls.into_iter();
    let sum: f64 = calls
        .map(|(members, calls)| calls as f64 * expected_maximum_of_normals(members))
        .sum();
    host.jitter.as_seconds() * sum / report.rows.len().max(1) as f64
}

/// Returns the expected maximum of `n` standard normal variables. It is the integral over `x > 0` of `1 - F(x)^n -
/// F(-x)^n`, where `F` is the normal distribution function. The integral is computed by Simpson's rule.
fn expected_maximum_of_normals(n: u32) -> f64 {
    const STEPS: u32 = 256;
    const END: f64 = 8.0;
    let below = |x: f64| 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
    let n = f64::from(n.max(1));
    let value = |step: u32| {
        let x = END / f64::from(STEPS) * f64::from(step);
        1.0 - libm::pow(below(x), n) - libm::pow(below(-x), n)
    };
    let weighted = |step: u32| match step {
        0 | STEPS => value(step),
        step if step % 2 == 1 => 4.0 * value(step),
        step => 2.0 * value(step),
    };
    (0..=STEPS).map(weighted).sum::<f64>() * END / f64::from(STEPS) / 3.0
}

/// Returns `span` times `part / all`, rounded down.
fn scale_span(span: Span, part: f64, all: f64) -> Span {
    if all > 0.0 {
        Span((span.0 as f64 * (part / all)) as u64).min(span)
    } else {
        Span::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_maxima_match_tables_of_order_statistics() {
        // The expected maximum is 1 / sqrt(pi) for two variables and 1.5 / sqrt(pi) for three. Values for more
        // variables are from tables of order statistics.
        let root = std::f64::consts::PI.sqrt();
        let known = [
            (1, 0.0),
            (2, 1.0 / root),
            (3, 1.5 / root),
            (4, 1.029_375_4),
            (8, 1.423_600_3),
            (100, 2.507_593_6),
        ];
        for (members, expected) in known {
            let found = expected_maximum_of_normals(members);
            assert!((found - expected).abs() < 1e-6, "{members}: {found}");
        }
    }
}
