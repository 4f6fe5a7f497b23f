//! Warnings of a report: reasons why its numbers may be misleading.

use super::summary::format_thousands;
use super::throughput::Throughput;
use super::{Report, straddling};
use chakram_base::units::Span;
use chakram_engine::CompiledReplay;
use chakram_trace::graph::GraphRepairCounts;

/// Sums the repairs of all ranks' traces by type of repair.
fn sum_repairs(prepared: &CompiledReplay<'_>) -> GraphRepairCounts {
    let workload = prepared.workload_with_added_launches();
    let mut repairs = GraphRepairCounts::default();
    for instance in workload.instances() {
        let of = workload.graph_of(instance).repair_counts();
        repairs.dangling_control += of.dangling_control;
        repairs.self_control += of.self_control;
        repairs.cyclic_control += of.cyclic_control;
        repairs.duplicates += of.duplicates;
        repairs.host_communication += of.host_communication;
    }
    repairs
}

/// Returns the warnings about `report`, a replay of `prepared`.
pub(super) fn collect_warnings(report: &Report, prepared: &CompiledReplay<'_>) -> Vec<String> {
    let mut warnings = Vec::from_iter(report.describe_ranks_out_of_memory());
    let mut say = |count: u64, text: &str| {
        if count > 0 {
            warnings.push(text.replace("{}", &format_thousands(count)));
        }
    };
    let (repairs, basis) = (sum_repairs(prepared), prepared.duration_source_counts());
    say(
        report.absent.len() as u64,
        "{} ranks have no trace: each arrives at collectives with the last rank that has one, \
         and sends when its receiver is ready",
    );
    say(
        basis.unknown,
        "{} kernels take no time: the trace has neither a duration nor what the compute model \
         needs",
    );
    say(
        basis.fell_back,
        "{} kernels keep their recorded duration: the roofline lacks their FLOPs or bytes, or a \
         peak for their number format",
    );
    if basis.by_curves == 0 {
        say(
            basis.without_curve,
            "{} kernels take roofline times at the peak rates, because no curve of the machine applies to them: the \
             traces do not state the kernels' shapes, or the NPU has no curve for them",
        );
    }
    say(
        basis.kept,
        "{} kernels keep their recorded duration: they were recorded on an NPU of another maker, whose libraries are \
         different programs. Of three models captured on H100 and MI300X, kernels took 0.76 to 1.40 times as long on \
         the latter and host work 0.87 to 1.21 times; the interval covers that",
    );
    say(
        basis.unrecorded,
        "{} communication nodes take no time: the trace has no duration for them",
    );
    say(
        basis.sharing,
        "{} lanes of the traces share a lane with another, because the machine has fewer (`lanes`, \
         `host_lanes`): nodes wait there that did not wait in the trace",
    );
    say(
        repairs.cyclic_control,
        "{} control dependencies are left out: together with the data dependencies they close a \
         cycle (converters before 2024 left stale ids in them)",
    );
    say(
        repairs.dangling_control,
        "{} control dependencies on nodes that do not exist were dropped",
    );
    say(
        repairs.self_control,
        "{} control dependencies of nodes on themselves were dropped",
    );
    let sums = report
        .collectives
        .iter()
        .flat_map(|row| [row.tally.waited, row.tally.transfer])
        .chain(report.exposed.iter().map(|row| row.exposed))
        .chain(report.operators.iter().map(|operator| operator.total));
    say(
        sums.filter(|&sum| sum == Span::MAX).count() as u64,
        "{} sums over calls and ranks are longer than 213 days, which is all that picoseconds in \
         64 bits hold; they, their means and shares are too small",
    );
    say(
        repairs.duplicates,
        "{} dependencies were named twice and merged",
    );
    say(
        repairs.host_communication,
        "{} communication nodes are marked as host work; they carry sizes, so they are replayed \
         as communication",
    );
    let machine = prepared.machine();
    if let Some(of) = machine
        .relative_of()
        .filter(|_| report.kernels.by_curves > 0)
    {
        warnings.push(format!(
            "no kernel was measured on machine `{}`: its curves come from {of} and are scaled by its rates; the interval covers this",
            machine.name()
        ));
    }
    warnings.extend(straddling::warn_of_slower_straddling_groups(
        &report.collectives,
        prepared,
    ));
    warnings.extend(report.explain_why_peaks_may_be_higher());
    warnings.extend(
        report
            .throughput
            .iter()
            .flat_map(Throughput::describe_doubtful_utilization),
    );
    for row in &report.collectives {
        let text = row
            .derived_from
            .as_ref()
            .map(|links| links.describe_differences());
        warnings.extend(text.filter(|text| !warnings.contains(text)));
    }
    warnings
}
