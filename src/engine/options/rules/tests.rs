//! Tests every rule on workloads of each type and on machines with and without the required property.

use super::*;
use chakram_base::ids::Rank;
use chakram_base::units::Time;
use chakram_hardware::compute::{RecordingNpuClass, parse_kernel_duration_model};
use chakram_hardware::network::NetworkModelKind;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::write::Sink;
use chakram_trace::format::{Dtype, Op};
use chakram_trace::graph::{EnforcedDependencyKinds, GraphBuilder};
use chakram_trace::workload::{MissingRankPolicy, WorkloadBuilder};

const KERNEL: Op<'static> = Op::Compute {
    flops: 1_000_000,
    bytes: 0,
    dtype: Some(Dtype::Bf16),
};

/// Returns a workload of one node with a recorded duration of `us` microseconds.
fn build_one_node_workload(op: Op<'_>, us: u64) -> Workload {
    let mut builder = WorkloadBuilder::default();
    let mut graph = GraphBuilder::new(0, EnforcedDependencyKinds::Both, 10);
    let node = NodeView {
        lane: Some(7),
        recorded: Span(us * 1_000_000),
        ..NodeView::new(1, "node", op)
    };
    graph.receive_node(&node, &[]).unwrap();
    let (graph, binding) = graph.finish_graph().unwrap();
    let graph = builder.add_or_reuse_equal_graph(graph);
    builder
        .add_rank(Rank(0), graph, binding, Time::ZERO)
        .unwrap();
    builder
        .finish_workload(None, MissingRankPolicy::Refuse)
        .unwrap()
}

/// Returns the error for default options that `change` has modified.
fn find_options_error(
    machine: &str,
    workload: &Workload,
    change: impl FnOnce(&mut ReplayOptions),
) -> String {
    let machine = Machine::load_by_name(machine).unwrap();
    let checked =
        ReplayOptions::default_with_changes(change).check_options_have_effect(&machine, workload);
    checked.map_or_else(|refusal| refusal.to_string(), |()| String::new())
}

#[test]
fn options_of_compute_need_kernels_that_they_price() {
    let recorded = build_one_node_workload(KERNEL, 5);
    let open = build_one_node_workload(KERNEL, 0);
    let host = build_one_node_workload(Op::Host, 5);
    let half = RooflinePeakFraction::new(0.5).unwrap();
    for (model, work, expected) in [
        (
            "recorded",
            &recorded,
            "but with `compute = recorded` all kernels",
        ),
        ("recorded", &open, ""),
        (
            "recorded",
            &host,
            "all kernels of this job have recorded times",
        ),
        (
            "scaled:0.5",
            &recorded,
            "but with `compute = scaled:0.5` all kernels",
        ),
        ("scaled:0.5", &open, ""),
        ("roofline", &recorded, ""),
        ("roofline", &open, ""),
    ] {
        for machine in ["mi300x", "dgx-h100"] {
            let found = find_options_error(machine, work, |options| {
                options.compute = parse_kernel_duration_model(model).unwrap();
                options.set_roofline_efficiency(half).unwrap();
            });
            assert!(found.contains(expected), "{model}: {found}");
            assert_eq!(found.is_empty(), expected.is_empty(), "{model}: {found}");
        }
    }
    for model in ["curves", "loopnest:gemmini-16"] {
        let model = parse_kernel_duration_model(model).unwrap();
        let mut options = ReplayOptions::default_with_changes(|options| options.compute = model);
        let refusal = options.set_roofline_efficiency(half).unwrap_err();
        assert_eq!(
            refusal,
            UnusableOptionReason::NotByRoofline(Box::new(model))
        );
        assert_eq!(refusal.rejected_key(), SettingKey::Efficiency);
        assert_eq!(options.compute, model);
    }
    let elsewhere = |options: &mut ReplayOptions| {
        let machine = Machine::load_by_name("dgx-h100").unwrap();
        let class = &machine.npu_classes()[0];
        let class = RecordingNpuClass::new(&class.peaks, class.memory_bandwidth().unwrap());
        options.compute = KernelDurationSource::RecordedOn(class);
    };
    assert_eq!(find_options_error("mi300x", &recorded, elsewhere), "");
    let found = find_options_error("mi300x", &open, elsewhere);
    assert!(
        found.starts_with("`recorded_on` names the machine"),
        "{found}"
    );
}

#[test]
fn a_factor_on_the_host_needs_work_of_the_host() {
    let half = |options: &mut ReplayOptions| options.host = HostDurationSource::Scaled(0.5);
    assert_eq!(
        find_options_error("mi300x", &build_one_node_workload(Op::Host, 5), half),
        ""
    );
    for work in [
        build_one_node_workload(KERNEL, 5),
        build_one_node_workload(KERNEL, 0),
        build_one_node_workload(Op::Host, 0),
    ] {
        let found = find_options_error("mi300x", &work, half);
        assert!(found.starts_with("`host` sets the time"), "{found}");
        assert_eq!(find_options_error("mi300x", &work, |_| {}), "");
    }
}

#[test]
fn curves_and_launches_need_a_machine_that_has_them() {
    let work = build_one_node_workload(KERNEL, 0);
    type Change = fn(&mut ReplayOptions);
    let changes: [(Change, &str); 4] = [
        (
            |options| options.compute = KernelDurationSource::Curves,
            "`compute = curves`: machine `mi300x` has no curves of measured kernels\n  try: `compute = roofline`",
        ),
        (
            |options| options.collectives = Some(CollectiveCurvesOrAlgorithms::Curves),
            "`collectives = curves`: machine `mi300x` has no measured collectives\n  try: `collectives = algorithms`",
        ),
        (
            |options| options.launch = HostLaunchMode::Eager,
            "`launch`: machine `mi300x` does not state the cost of launches\n  try: a [host] table in its file",
        ),
        (
            |options| options.launch = HostLaunchMode::Graph,
            "`launch`: machine `mi300x` does not state the cost of launches\n  try: a [host] table in its file",
        ),
    ];
    for (change, expected) in changes {
        assert_eq!(find_options_error("mi300x", &work, change), expected);
        assert_eq!(find_options_error("dgx-h100", &work, change), "");
    }
    let without: [Change; 3] = [
        |options| options.collectives = Some(CollectiveCurvesOrAlgorithms::Algorithms),
        |options| options.launch = HostLaunchMode::None,
        |options| options.compute = KernelDurationSource::RecordedOnly,
    ];
    for change in without {
        assert_eq!(find_options_error("mi300x", &work, change), "");
    }
}

#[test]
fn options_of_networks_need_simulated_communication() {
    type Change = fn(&mut ReplayOptions);
    let changes: [(Change, SettingKey); 4] = [
        (
            |options| options.network = Some(NetworkModelKind::Links),
            SettingKey::Network,
        ),
        (|options| options.aggregate = true, SettingKey::Aggregate),
        (|options| options.stepwise = true, SettingKey::Stepwise),
        (|options| options.links = true, SettingKey::Links),
    ];
    for (change, key) in changes {
        for comm in [
            CommunicationDurationSource::Captured,
            CommunicationDurationSource::Recorded,
        ] {
            let mut options = ReplayOptions::default_with_changes(change);
            assert_eq!(options.check_options_do_not_conflict(), Ok(()));
            options.comm = comm;
            let refusal = options.check_options_do_not_conflict().unwrap_err();
            assert_eq!(refusal, UnusableOptionReason::NotSimulated(key, comm));
            assert!(refusal.to_string().contains(&format!(" as {comm}\n")));
        }
    }
}
