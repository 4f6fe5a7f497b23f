//! Peak rates of the NPUs, for the picture of kernels.

use super::{NpuClassPeakRates, NumberFormatPeakRate};
use chakram_engine::CompiledReplay;
use chakram_trace::format::Dtype;
use chakram_trace::graph::NodeKind;
use std::collections::BTreeSet;

/// Returns the peak rates of the NPU classes that `prepared` uses, in class order. Only the number formats that the
/// job's kernels use are included.
pub(super) fn collect_npu_class_peak_rates(
    prepared: &CompiledReplay<'_>,
) -> Vec<NpuClassPeakRates> {
    let (workload, machine) = (prepared.workload_with_added_launches(), prepared.machine());
    let mut used = [false; Dtype::COUNT];
    for graph in workload.distinct_graphs() {
        let kernels = graph
            .nodes()
            .filter(|&node| graph.kind(node) == NodeKind::Compute);
        let formats = kernels.filter_map(|node| graph.dtype(node));
        formats.for_each(|dtype| used[dtype as usize] = true);
    }
    let ranks = workload.instances().iter();
    let classes: BTreeSet<_> = ranks
        .map(|instance| machine.class_of_npu(prepared.npu_of_rank(instance.rank)))
        .collect();
    let rooflines = classes.into_iter().filter_map(|class| {
        let class = &machine.npu_classes()[class];
        let formats = Dtype::ALL.iter().filter(|(dtype, _)| used[*dtype as usize]);
        let peaks = formats.filter_map(|(dtype, name)| {
            Some(NumberFormatPeakRate {
                dtype: (*name).to_owned(),
                flops_per_s: class.peaks.peak_rate_if_supported(*dtype)?.per_second(),
            })
        });
        Some(NpuClassPeakRates {
            class: class.name.clone(),
            memory_bytes_per_s: class.memory_bandwidth()?.bytes_per_second(),
            peaks: peaks.collect(),
        })
    });
    rooflines.collect()
}
