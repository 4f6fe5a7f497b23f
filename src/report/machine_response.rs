//! The fraction of a job's time that changes with the machine.
//!
//! The mean time per NPU is divided into three parts, which sum exactly to the makespan. The first part *responds* to a
//! change of machine: compute timed by roofline or curves, exposed transfers over the machine's network, memory, and
//! kernel launches by the machine's host. The second part is *fixed*: recorded compute, recorded host time, and exposed
//! transfers with recorded times. The remaining time (waiting for other ranks, and idle time) *follows* from these two
//! parts. If some kernels are modelled and others recorded, compute is divided in the ratio of their total durations.

use super::NpuTimeCategory;
use super::Report;
use super::summary::mean_span_from_sum;
use super::text::format_share;
use chakram_base::units::Span;
use chakram_engine::{CommunicationDurationSource, CompiledReplay};
use serde::{Deserialize, Serialize};

/// NPU time, divided by how it depends on the machine (means over NPUs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct NpuTimeByMachineDependence {
    /// True if the kernels of the captured job ran on a CPU.
    pub kernels_on_cpu: bool,
    /// Compute timed by roofline or curves, exposed transfers over the network, memory, and launches by the machine's
    /// host.
    #[serde(rename = "responds_ps")]
    pub responds: Span,
    /// Part of `responds`: kernel launches by the machine's host.
    #[serde(rename = "launches_ps", default)]
    pub launches: Span,
    /// Recorded compute, recorded host time, and exposed transfers with recorded times.
    #[serde(rename = "fixed_ps")]
    pub fixed: Span,
    /// Part of `fixed`: recorded compute.
    #[serde(rename = "fixed_compute_ps")]
    pub fixed_compute: Span,
    /// Exposed waiting for other ranks, and idle time.
    #[serde(rename = "follows_ps")]
    pub follows: Span,
}

/// Mean compute time per NPU, by where the kernels' durations come from: recorded, or modelled by roofline or curves.
struct ComputeTimeByDurationSource {
    recorded: Span,
    roofline: Span,
}

impl ComputeTimeByDurationSource {
    fn split_compute_time(compute: Span, prepared: &CompiledReplay<'_>) -> Self {
        let basis = prepared.duration_source_counts();
        let modelled = basis.roofline_time + basis.curve_time;
        let all = basis.recorded_time + modelled;
        // Round down, so that no part exceeds the whole.
        let share = modelled as f64 / all.max(1) as f64;
        let roofline = Span((compute.0 as f64 * share) as u64).min(compute);
        Self {
            recorded: compute - roofline,
            roofline,
        }
    }
}

impl NpuTimeByMachineDependence {
    /// Returns how the time of `report`, a replay of `prepared`, depends on the machine. The report must already
    /// contain its mean parts.
    pub(super) fn of_report(report: &Report, prepared: &CompiledReplay<'_>) -> Self {
        let part = |part: NpuTimeCategory| report.mean_parts[part as usize];
        let compute = ComputeTimeByDurationSource::split_compute_time(
            part(NpuTimeCategory::Compute),
            prepared,
        );
        let transfers = report.exposed_transferring();
        // Communication with an unknown operation keeps its recorded time on every machine.
        let unknown = mean_span_from_sum(
            report.unknown_charged.exposed_transferring,
            report.rows.len(),
        );
        let unknown = unknown.min(transfers);
        let (by_network, as_recorded) = match prepared.comm_duration_source() {
            CommunicationDurationSource::Model => (transfers - unknown, unknown),
            _ => (Span::ZERO, transfers),
        };
        let host = part(NpuTimeCategory::Host);
        let (launches, host) = if prepared.has_machine_host_launches() {
            (host, Span::ZERO)
        } else {
            (Span::ZERO, host)
        };
        let responds = compute.roofline + by_network + part(NpuTimeCategory::Memory) + launches;
        let fixed = compute.recorded + as_recorded + host;
        let makespan = report.outcome.makespan;
        // Means are rounded separately, so their sum may exceed the makespan by a few picoseconds.
        let responds = responds.min(makespan);
        let fixed = fixed.min(makespan - responds);
        let instances = prepared.workload_with_added_launches().instances().iter();
        Self {
            kernels_on_cpu: instances
                .map(|instance| prepared.workload_with_added_launches().graph_of(instance))
                .any(|graph| graph.were_kernels_captured_on_cpu()),
            responds,
            launches: launches.min(responds),
            fixed,
            fixed_compute: compute.recorded.min(fixed),
            follows: makespan - responds - fixed,
        }
    }
}

impl Report {
    /// Returns a heading, and a description of how much of the job's time depends on the machine. Returns `None` unless
    /// the kernels ran on a CPU or host time is most of the time.
    pub fn describe_machine_dependence(&self) -> Option<(&'static str, String)> {
        let makespan = self.outcome.makespan;
        let part = |part: NpuTimeCategory| self.mean_parts[part as usize];
        let host = part(NpuTimeCategory::Host);
        let response = &self.response;
        let mostly_host = host.0 > makespan.0 / 2;
        let (heading, subject) = match (response.kernels_on_cpu, mostly_host) {
            (false, false) => return None,
            (true, false) => ("CPU CAPTURE", "the kernels ran on a CPU"),
            (true, true) => (
                "CPU CAPTURE",
                "the kernels ran on a CPU, and most of the time is host time",
            ),
            (false, true) => ("HOST-BOUND", "most of the time is host time"),
        };
        let memory = part(NpuTimeCategory::Memory);
        let without = |whole: Span, part: Span| Span(whole.0.saturating_sub(part.0));
        let by_roofline = without(part(NpuTimeCategory::Compute), response.fixed_compute);
        let launches = response.launches;
        let transfers = without(response.responds, by_roofline + memory + launches);
        let kernels = match self.kernels.by_curves {
            0 => "kernels by roofline",
            _ => "kernels by curves",
        };
        let responds = [
            (kernels, by_roofline),
            ("launches", launches),
            ("transfers", transfers),
            ("memory", memory),
        ];
        let host = without(host, launches);
        let transfers = without(response.fixed, host + response.fixed_compute);
        let fixed = [
            ("host", host),
            ("kernels as recorded", response.fixed_compute),
            ("transfers as recorded", transfers),
        ];
        let (responds, fixed) = (
            format_parts_with_shares(responds, makespan),
            format_parts_with_shares(fixed, makespan),
        );
        let text = format!(
            "{subject}: {} of the time is the same on every machine{fixed}, {} depends on the machine{responds}, \
             {} is waiting and idle time, which follows from both",
            format_share(response.fixed, makespan),
            format_share(response.responds, makespan),
            format_share(response.follows, makespan),
        );
        Some((heading, text))
    }
}

/// Lists the parts of `whole`, as in ` (host 27.5 %, memory 1.0 %)`. Omits parts that round to zero.
fn format_parts_with_shares<const N: usize>(parts: [(&str, Span); N], whole: Span) -> String {
    let shown = |part: Span| part.0 as f64 >= 0.0005 * whole.0 as f64;
    let parts: Vec<_> = parts
        .into_iter()
        .filter(|&(_, part)| shown(part))
        .map(|(name, part)| format!("{name} {}", format_share(part, whole)))
        .collect();
    if parts.is_empty() {
        String::new()
    } else {
        format!(" ({})", parts.join(", "))
    }
}
