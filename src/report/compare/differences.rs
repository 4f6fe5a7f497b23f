//! Settings in which two machines differ, in words.

use chakram_hardware::machine::{Machine, NpuClass};

/// Names what differs between two machines, in the order of machine files; nothing for machines that predict alike.
pub(super) fn differences(one: &Machine, other: &Machine) -> Vec<String> {
    let mut found = Vec::new();
    let mut note = |differs: bool, what: &str| {
        if differs {
            found.push(what.to_owned());
        }
    };
    let [a, b] = [one.topology(), other.topology()];
    let sizes = |machine: &Machine| -> Vec<_> {
        let dimensions = machine.topology().dimensions().iter();
        dimensions.map(|of| (of.shape, of.size)).collect()
    };
    let same_shape = sizes(one) == sizes(other);
    note(!same_shape, "shape of the network");
    let pairs = || a.dimensions().iter().zip(b.dimensions());
    if same_shape {
        note(
            pairs().any(|(a, b)| a.bandwidth != b.bandwidth),
            "bandwidth of links",
        );
        note(
            pairs().any(|(a, b)| a.latency != b.latency),
            "latency of links",
        );
        note(a.switching() != b.switching(), "switching");
        note(
            a.graph() != b.graph() || a.tiles() != b.tiles(),
            "links one by one",
        );
    }
    let settings = one.network_settings();
    let settings = settings.differences(other.network_settings());
    settings.for_each(|what| note(true, what));
    note(
        one.algorithms() != other.algorithms() || one.pipeline() != other.pipeline(),
        "algorithms of collectives",
    );
    note(
        one.collective_curves() != other.collective_curves()
            || one.collective_protocols() != other.collective_protocols(),
        "measured collectives",
    );
    let mut differ = |of: fn(&NpuClass, &NpuClass) -> bool, what: &str| {
        let classes = one.classes().iter().zip(other.classes());
        note(classes.into_iter().any(|(one, other)| of(one, other)), what);
    };
    differ(|a, b| a.peaks != b.peaks, "peak rates");
    differ(|a, b| a.curves != b.curves, "curves of kernels");
    differ(|a, b| a.memory != b.memory, "memory of NPUs");
    differ(
        |a, b| (a.lanes, a.host_lanes) != (b.lanes, b.host_lanes),
        "lanes",
    );
    differ(|a, b| a.slowdown != b.slowdown, "slowdown of NPUs");
    note(
        one.classes().len() != other.classes().len(),
        "classes of NPUs",
    );
    note(
        one.remote() != other.remote() || one.named_memories() != other.named_memories(),
        "remote memory",
    );
    note(one.host() != other.host(), "host");
    note(one.corrections() != other.corrections(), "corrections");
    found
}

/// Why no part of the time differs between two machines.
pub(super) fn reason(one: &Machine, other: &Machine) -> String {
    let found = differences(one, other);
    if found.is_empty() {
        return "nothing moved: the machines differ in nothing that takes time".to_owned();
    }
    format!(
        "nothing moved: no time of this job rests on what differs between the machines: {}",
        found.join(", ")
    )
}
