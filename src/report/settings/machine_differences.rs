//! Finds the differences between two machines, and the reasons why a run does not depend on them.

use super::run_facts::CompiledReplayWithReport;
use chakram_base::dtype::Dtype;
use chakram_hardware::machine::{Machine, NpuClass};
use chakram_hardware::memory::LocalMemory;
use chakram_hardware::topology::TopologyDimension;
use chakram_trace::graph::NodeKind;

/// A difference between two machines. Numbers are indices of dimensions or of NPU classes.
#[derive(Clone, Debug, PartialEq)]
pub enum DifferenceBetweenTwoMachines {
    /// The shapes or sizes of dimensions differ.
    Shape,
    /// The bandwidths of these dimensions differ.
    Bandwidth(Vec<usize>),
    /// The latencies of these dimensions differ.
    Latency(Vec<usize>),
    /// Devices forward data differently: cut-through or store-and-forward.
    Switching,
    /// The list of individual links in the machine file differs.
    Links,
    /// The part of a dimension that is available to jobs differs.
    RankDomain,
    /// The network model differs.
    NetworkModel,
    /// The rule for when sends complete differs.
    SendCompletionRule,
    /// The algorithms along these dimensions differ.
    Algorithms(Vec<usize>),
    /// The number of chunks per collective differs.
    Chunks,
    /// The measured times of collectives along these dimensions differ.
    MeasuredCollectives(Vec<usize>),
    /// An NPU class has different peak rates for these number formats. An empty list means that the systolic arrays
    /// differ.
    Peaks(usize, Vec<Dtype>),
    /// The measured kernels of an NPU class differ.
    KernelTimeCurves(usize),
    /// The memory bandwidth of an NPU class differs.
    MemoryBandwidth(usize),
    /// The memory latency of an NPU class differs.
    MemoryLatency(usize),
    /// The memory capacity of an NPU class differs.
    MemoryCapacity(usize),
    /// The lanes of an NPU class differ.
    Lanes(usize),
    /// The host lanes of an NPU class differ.
    HostLanes(usize),
    /// The slowdown factor of an NPU class differs.
    Slowdown(usize),
    /// The number of NPU classes, or the assignment of NPUs to classes, differs.
    Classes,
    /// The unnamed memory outside the NPUs differs.
    RemoteMemory,
    /// The memory outside the NPUs with this name differs.
    NamedMemory(String),
    /// The host's properties differ.
    Host,
    /// The corrections from measured steps differ.
    Corrections,
}

/// Returns the differences between two machines, in the order in which machine files list them. If there are none, both
/// machines predict equal times for every run.
pub fn machine_differences(one: &Machine, other: &Machine) -> Vec<DifferenceBetweenTwoMachines> {
    use DifferenceBetweenTwoMachines as Difference;
    let mut found = Vec::new();
    let [a, b] = [one.topology(), other.topology()];
    let [inner, outer] = [a.dimensions(), b.dimensions()];
    let shape = |of: &TopologyDimension| (of.shape, of.size);
    if inner.iter().map(shape).ne(outer.iter().map(shape)) {
        found.push(Difference::Shape);
    } else {
        let mut note = |kind: fn(Vec<usize>) -> Difference, differs: &dyn Fn(usize) -> bool| {
            let all: Vec<usize> = (0..inner.len()).filter(|&d| differs(d)).collect();
            if !all.is_empty() {
                found.push(kind(all));
            }
        };
        note(Difference::Bandwidth, &|d| {
            inner[d].bandwidth != outer[d].bandwidth
        });
        note(Difference::Latency, &|d| {
            inner[d].latency != outer[d].latency
        });
        note(Difference::Algorithms, &|d| {
            one.collective_algorithms()[d] != other.collective_algorithms()[d]
        });
        note(Difference::MeasuredCollectives, &|d| {
            one.collective_curves().get(d) != other.collective_curves().get(d)
                || one.collective_protocols().get(d) != other.collective_protocols().get(d)
                || one.across_nodes().get(d) != other.across_nodes().get(d)
        });
        if a.switching_mode() != b.switching_mode() {
            found.push(Difference::Switching);
        }
        if a.explicit_links() != b.explicit_links() || a.tile_grid() != b.tile_grid() {
            found.push(Difference::Links);
        }
    }
    let [mine, theirs] = [one.network_settings(), other.network_settings()];
    let pairs = one.npu_classes().iter().zip(other.npu_classes());
    for (class, (a, b)) in pairs.enumerate() {
        found.extend(list_class_differences(class, a, b));
    }
    let runs = |machine: &Machine| machine.npu_ranges_of_one_class().collect::<Vec<_>>();
    let classes = one.npu_classes().len() != other.npu_classes().len()
        || (a.npu_count() == b.npu_count() && runs(one) != runs(other));
    let rest = [
        (
            one.dimension_with_npu_limit() != other.dimension_with_npu_limit(),
            Difference::RankDomain,
        ),
        (mine.model != theirs.model, Difference::NetworkModel),
        (
            mine.send_completion != theirs.send_completion,
            Difference::SendCompletionRule,
        ),
        (
            one.chunking_settings() != other.chunking_settings(),
            Difference::Chunks,
        ),
        (classes, Difference::Classes),
        (
            one.unnamed_remote_memory() != other.unnamed_remote_memory(),
            Difference::RemoteMemory,
        ),
        (one.host() != other.host(), Difference::Host),
        (
            one.kernel_time_corrections() != other.kernel_time_corrections(),
            Difference::Corrections,
        ),
    ];
    found.extend(
        rest.into_iter()
            .filter_map(|(differs, what)| differs.then_some(what)),
    );
    let [mine, theirs] = [one, other].map(Machine::named_memories);
    let named = mine.iter().chain(theirs).map(|memory| &memory.name);
    for name in named {
        let find = |machine: &Machine| {
            let index = machine.index_of_named_memory(name)?;
            Some(machine.named_memories()[index].clone())
        };
        let difference = Difference::NamedMemory(name.clone());
        if find(one) != find(other) && !found.contains(&difference) {
            found.push(difference);
        }
    }
    found
}

fn list_class_differences(
    class: usize,
    a: &NpuClass,
    b: &NpuClass,
) -> Vec<DifferenceBetweenTwoMachines> {
    use DifferenceBetweenTwoMachines as Difference;
    let [mine, theirs] = [a.memory, b.memory];
    let differs = |of: fn(LocalMemory) -> Option<u64>| mine.map(of) != theirs.map(of);
    let formats = Dtype::ALL.map(|(dtype, _)| dtype).into_iter();
    let formats = formats.filter(|&dtype| {
        a.peaks.peak_rate_if_supported(dtype) != b.peaks.peak_rate_if_supported(dtype)
    });
    [
        (
            a.peaks != b.peaks,
            Difference::Peaks(class, formats.collect()),
        ),
        (a.curves != b.curves, Difference::KernelTimeCurves(class)),
        (
            a.memory_bandwidth() != b.memory_bandwidth(),
            Difference::MemoryBandwidth(class),
        ),
        (
            differs(|memory| Some(memory.latency?.0)),
            Difference::MemoryLatency(class),
        ),
        (
            differs(|memory| Some(memory.capacity?.0)),
            Difference::MemoryCapacity(class),
        ),
        (a.lanes != b.lanes, Difference::Lanes(class)),
        (a.host_lanes != b.host_lanes, Difference::HostLanes(class)),
        (a.slowdown != b.slowdown, Difference::Slowdown(class)),
    ]
    .into_iter()
    .filter_map(|(differs, what)| differs.then_some(what))
    .collect()
}

impl DifferenceBetweenTwoMachines {
    /// Returns the difference's name, as shown to users.
    fn subject_name(&self) -> String {
        match self {
            Self::Shape => "shape of the network",
            Self::Bandwidth(_) => "bandwidth of links",
            Self::Latency(_) => "latency of links",
            Self::Switching => "switching",
            Self::Links => "links one by one",
            Self::RankDomain => "NPUs that take ranks",
            Self::NetworkModel => "network model",
            Self::SendCompletionRule => "end of sends",
            Self::Algorithms(_) => "algorithms of collectives",
            Self::Chunks => "chunks of collectives",
            Self::MeasuredCollectives(_) => "measured collectives",
            Self::Peaks(..) => "peak rates",
            Self::KernelTimeCurves(_) => "curves of kernels",
            Self::MemoryBandwidth(_) => "bandwidth of memory",
            Self::MemoryLatency(_) => "latency of memory",
            Self::MemoryCapacity(_) => "capacity of memory",
            Self::Lanes(_) => "lanes",
            Self::HostLanes(_) => "lanes of hosts",
            Self::Slowdown(_) => "slowdown of NPUs",
            Self::Classes => "classes of NPUs",
            Self::RemoteMemory => "remote memory",
            Self::NamedMemory(name) => return format!("memory `{name}`"),
            Self::Host => "host",
            Self::Corrections => "corrections",
        }
        .to_owned()
    }

    /// Returns the index of the NPU class that differs; `None` if there is no such class, or more than one.
    fn affected_class(&self) -> Option<usize> {
        match self {
            Self::Peaks(class, _)
            | Self::KernelTimeCurves(class)
            | Self::MemoryBandwidth(class)
            | Self::MemoryLatency(class)
            | Self::MemoryCapacity(class)
            | Self::Lanes(class)
            | Self::HostLanes(class)
            | Self::Slowdown(class) => Some(*class),
            _ => None,
        }
    }

    /// Returns why the run does not depend on the difference. The difference must be known to change nothing, because
    /// the last remaining reason is returned without a check.
    fn explain_no_effect(&self, run: &CompiledReplayWithReport<'_>) -> String {
        let machine = run.prepared.machine();
        if let Some(class) = self
            .affected_class()
            .filter(|&class| !run.uses_npu_class(class))
        {
            let name = machine
                .npu_classes()
                .get(class)
                .map_or("", |class| &*class.name);
            return format!("no rank is on an NPU of class `{name}`");
        }
        let as_long = |what: &str| format!("{what} take as long either way");
        match self {
            Self::Shape => "ranks are on NPUs that the change does not move".to_owned(),
            Self::RankDomain => "ranks are on the same NPUs either way".to_owned(),
            Self::Classes => "the NPUs of ranks are the same either way".to_owned(),
            Self::Bandwidth(of) | Self::Latency(of) => (run.reason_without_network_traffic())
                .unwrap_or_else(|| {
                    explain_dimensions_without_effect(
                        run,
                        of,
                        "collective or message",
                        |d| d.messages,
                        as_long,
                    )
                }),
            Self::Switching | Self::Links | Self::NetworkModel => run
                .reason_without_network_traffic()
                .unwrap_or_else(|| as_long("transfers")),
            Self::SendCompletionRule => match run.has_messages() {
                false => "the job has no message between ranks".to_owned(),
                true => (run.reason_without_network_traffic())
                    .unwrap_or_else(|| "no rank waits for the end of a send".to_owned()),
            },
            Self::Algorithms(of) => (run.reason_collectives_are_constant()).unwrap_or_else(|| {
                explain_dimensions_without_effect(run, of, "collective", |_| 0, as_long)
            }),
            Self::Chunks => run.reason_collectives_are_constant().unwrap_or_else(|| {
                let simulated = run.report.collectives.iter().any(|row| !row.measured);
                match simulated {
                    false => "measured curves time all collectives".to_owned(),
                    true => as_long("collectives"),
                }
            }),
            Self::MeasuredCollectives(of) => {
                run.reason_collectives_are_constant().unwrap_or_else(|| {
                    match of
                        .iter()
                        .any(|&d| run.count_communication_crossing_dimension(d).by_curves > 0)
                    {
                        false => "algorithms time all collectives".to_owned(),
                        true => "no collective is of the kind, members and bytes".to_owned(),
                    }
                })
            }
            Self::Peaks(_, formats) => run.reason_kernels_ignore_npu_rates().unwrap_or_else(|| {
                let used = formats
                    .iter()
                    .any(|&dtype| run.has_kernel_in_number_format(dtype));
                match (used, &formats[..]) {
                    (false, [one]) => format!("no kernel computes in `{one}`"),
                    (false, [_, ..]) => "no kernel computes in these formats".to_owned(),
                    _ => "no kernel waits for the peak rate".to_owned(),
                }
            }),
            Self::KernelTimeCurves(_) => run
                .reason_no_kernel_uses_curves()
                .unwrap_or_else(|| "no kernel is of the class, format and shape".to_owned()),
            Self::Slowdown(_) => match run.report.kernels.kernel_count() {
                0 => "the job has no kernel".to_owned(),
                _ => as_long("kernels"),
            },
            Self::MemoryBandwidth(_) => match run.has_nodes(NodeKind::LocalMemory) {
                false => (run.reason_kernels_ignore_npu_rates())
                    .unwrap_or_else(|| "no kernel waits for memory".to_owned()),
                true => as_long("loads and stores"),
            },
            Self::MemoryLatency(_) => match run.has_nodes(NodeKind::LocalMemory) {
                false => "no node loads or stores in the NPU's own memory".to_owned(),
                true => as_long("loads and stores"),
            },
            Self::MemoryCapacity(_) => match run.report.memory.is_empty() {
                true => "no node states its allocations".to_owned(),
                false => "the memory of all ranks fits either way".to_owned(),
            },
            Self::Lanes(_) | Self::HostLanes(_) => match run.max_lane_count() {
                0 => "no node occupies a lane".to_owned(),
                1 => "each rank uses 1 lane".to_owned(),
                lanes => format!("ranks use {lanes} lanes at most"),
            },
            Self::RemoteMemory => match run.has_nodes(NodeKind::RemoteMemory) {
                false => "no node loads or stores in remote memory".to_owned(),
                true => as_long("loads and stores in remote memory"),
            },
            Self::NamedMemory(name) => {
                let label = format!("remote {name}");
                let mut rows = run.report.memory_accesses.iter();
                match rows.any(|row| row.memory == label) {
                    false => format!("no node loads or stores in memory `{name}`"),
                    true => as_long("loads and stores in it"),
                }
            }
            Self::Host => match (
                run.prepared.has_machine_host_launches(),
                run.has_nodes(NodeKind::Host),
            ) {
                (true, _) => "the host's launches are hidden by the work of the NPUs".to_owned(),
                (false, true) => "host work lasts as the traces say".to_owned(),
                (false, false) => "launches take no time in this run".to_owned(),
            },
            Self::Corrections => run.reason_no_kernel_uses_curves().unwrap_or_else(|| {
                "no correction is for the most frequent products of this job".to_owned()
            }),
        }
    }
}

/// Returns why the bandwidth, latency or algorithms of the dimensions `of` do not affect the run. If communication of
/// `kind` crosses these dimensions, the reason says where its times come from.
fn explain_dimensions_without_effect(
    run: &CompiledReplayWithReport<'_>,
    of: &[usize],
    kind: &str,
    messages: fn(&super::run_facts::DimensionCollectiveAndMessageCounts) -> u64,
    as_long: impl Fn(&str) -> String,
) -> String {
    let uses: Vec<_> = of
        .iter()
        .map(|&d| run.count_communication_crossing_dimension(d))
        .collect();
    let names: Vec<String> = of.iter().map(|&d| run.dimension_name(d)).collect();
    let names = names.join(", ");
    let any = |count: fn(&super::run_facts::DimensionCollectiveAndMessageCounts) -> u64| {
        uses.iter().any(|d| count(d) > 0)
    };
    if any(|d| d.by_algorithms) || any(messages) {
        return as_long(&format!("transfers across {names}"));
    }
    match any(|d| d.by_curves) {
        true => format!("measured curves time the collectives across {names}"),
        false => format!("no {kind} crosses {names}"),
    }
}

/// Groups the differences by why they do not affect the run. Both machines must predict equal times for the run.
fn group_differences_by_reason(
    differs: &[DifferenceBetweenTwoMachines],
    run: &CompiledReplayWithReport<'_>,
) -> Vec<(String, Vec<String>)> {
    let mut parts: Vec<(String, Vec<String>)> = Vec::new();
    for difference in differs {
        let (subject, reason) = (difference.subject_name(), difference.explain_no_effect(run));
        match parts.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, subjects)) if subjects.contains(&subject) => {}
            Some((_, subjects)) => subjects.push(subject),
            None => parts.push((reason, vec![subject])),
        }
    }
    parts
}

/// Lists the differences, each with its reasons, as in `peak rates, lanes (no kernel waits for them); host
/// (…)`.
fn join_with_reasons(parts: &[(String, Vec<String>)]) -> String {
    let texts = parts.iter();
    let texts = texts.map(|(reason, subjects)| format!("{} ({reason})", subjects.join(", ")));
    texts.collect::<Vec<_>>().join("; ")
}

/// Returns a sentence with the reasons why the run does not depend on the differences. Both machines must predict equal
/// times for the run.
pub fn explain_no_effect_of_differences(
    differs: &[DifferenceBetweenTwoMachines],
    run: &CompiledReplayWithReport<'_>,
) -> String {
    match &group_differences_by_reason(differs, run)[..] {
        [] => "the machines do not differ in anything that takes time".to_owned(),
        [(reason, _)] => reason.clone(),
        parts => join_with_reasons(parts),
    }
}

/// Returns the differences in a comparison, with the reasons why no time changed.
pub(crate) fn explain_why_differences_changed_nothing(
    differs: &[DifferenceBetweenTwoMachines],
    run: &CompiledReplayWithReport<'_>,
) -> String {
    match &group_differences_by_reason(differs, run)[..] {
        [] => "nothing changed: the machines do not differ in anything that takes time".to_owned(),
        parts => format!(
            "nothing changed: no time of this job depends on the differences between the machines: {}",
            join_with_reasons(parts)
        ),
    }
}
