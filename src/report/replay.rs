//! Runs replays with the observers of a report, and fills the report.

use super::Observer;
use super::Report;
use super::aggregation::EventLoopCountObserver;
use super::breakdown::{
    BreakdownObserver, MessageAndCollectiveTimeTotals, NpuTime, WaitingAndTransferTime,
};
use super::captured_on::CaptureDevicesHostsAndSoftware;
use super::collectives::{CollectiveObserver, GroupCollectiveTotals};
use super::collectives::{CollectiveRow, LongestAwaitedRank, MeasuredAndMachineLinks};
use super::critical_path::RunRecorder;
use super::edits::{EditWithEffectCounts, JobAndMachineEditReport};
use super::interval::PredictionIntervalAndTimeByMethod;
use super::kernel_energy::TotalEnergyOfLoopNestTimedKernels;
use super::links::LinkReport;
use super::machine_response::NpuTimeByMachineDependence;
use super::memory::{MemoryPeakObserver, NpuMemoryUseRow, pool_memory, port_memory};
use super::memory_accesses::OneMemoryAccessesRow;
use super::modules::ModuleTimeObserver;
use super::node_table::{NodeTable, NodeTableRowLimit};
use super::npus::NpuRow;
use super::operators::{OperatorTime, OperatorTimeObserver};
use super::profiler::ProfilerAndItsCost;
use super::relay::run_with_observer_relay;
use super::settings::GivenSettingTestResults;
use super::stack::SoftwareStackDecisionReport;
use super::steps::ProfiledStepObserver;
use super::summary::{
    CommunicationTimingMethods, GroupExposedCommunicationRow, KernelCountsByDurationMethod,
    MESSAGES, MachineNameAndSize, ReportSchema, UNKNOWN_COMMUNICATION, percent_more,
};
use super::throughput;
use super::tiles::TileNetworkBusyTimesObserver;
use super::two_threads::run_on_second_thread_if_many_nodes;
use super::unknown;
use super::warnings::collect_warnings;
use chakram_base::bounds;
use chakram_base::ids::Rank;
use chakram_base::interrupt::{self, StopOrMemoryInterruption};
use chakram_base::units::{Bytes, Span, format_thousands};
use chakram_engine::{
    CommunicationDurationSource, CompiledReplay, CompletedReplayTotals, FoldedReplay,
    PlacedWorkloadGroup, ReplayError, RequiredCollectiveBackendTraits, TrainingStepStartAndEnd,
};
use chakram_hardware::network::NetworkBackend;
use chakram_trace::format::CollectiveKind;
use chakram_trace::graph::Graph;
use chakram_trace::workload::format_shortened_list;
use std::cmp::Reverse;

/// Replays `prepared` with the additional observer `extra`; returns the report and this observer.
pub fn replay_to_report<O: Observer>(
    prepared: &CompiledReplay<'_>,
    mut extra: O,
) -> Result<(Report, O), ReplayError> {
    let (report, _) = replay_with_erased_observer(prepared, &mut extra, false)?;
    Ok((report, extra))
}

/// Replays like [`replay_to_report`], and also returns a table with one row per node.
///
/// # Errors
///
/// Returns the errors of [`replay_to_report`]; also fails if the replay has more than [`NodeTableRowLimit::MOST`]
/// nodes.
pub fn replay_to_report_with_nodes<O: Observer>(
    prepared: &CompiledReplay<'_>,
    mut extra: O,
) -> Result<(Report, NodeTable, O), ReplayError> {
    NodeTableRowLimit::check_row_count(prepared.workload_with_added_launches().node_count())?;
    let (report, table) = replay_with_erased_observer(prepared, &mut extra, true)?;
    let table = table.expect("a run of so many nodes is recorded");
    Ok((report, table, extra))
}

/// Checks that the memory for `nodes` nodes is available, before another thread allocates it.
fn check_memory_for_node_times(nodes: u64) -> Result<(), StopOrMemoryInterruption> {
    // Bytes that the critical path needs per node: times, causes, order and partner.
    const BYTES_OF_NODE: u64 = 36;
    interrupt::fail_if_stopped_or_out_of_memory()?;
    if nodes > NodeTableRowLimit::MOST {
        return Ok(());
    }
    let what = format_args!("the times of {} nodes", format_thousands(nodes));
    Ok(bounds::check_items_fit_memory(
        what,
        nodes,
        BYTES_OF_NODE,
        "a smaller job",
    )?)
}

/// Runs the replay; `wants_nodes` requests the node table. The additional observer's type is erased, so that the event
/// loop with a report is compiled only once.
#[inline(never)]
fn replay_with_erased_observer(
    prepared: &CompiledReplay<'_>,
    extra: &mut dyn Observer,
    wants_nodes: bool,
) -> Result<(Report, Option<NodeTable>), ReplayError> {
    prepared.check_most_kernels_have_durations()?;
    prepared.check_requested_tile_groups_form()?;
    // Fold only replays with too many nodes for a critical path, because the path needs every rank.
    if prepared.workload_with_added_launches().node_count() > NodeTableRowLimit::MOST
        && extra.is_nobody()
        && let Some(report) = replay_folded(prepared)?
    {
        return Ok((report, None));
    }
    check_memory_for_node_times(prepared.workload_with_added_launches().node_count())?;
    let others: Option<&mut dyn Observer> = if extra.is_nobody() {
        None
    } else {
        Some(&mut *extra)
    };
    // The relay creates the observers, so that the event loop is compiled for the relay alone.
    let watch = || {
        let memory = MemoryPeakObserver::new(prepared);
        (
            RunRecorder::new(prepared),
            create_report_observers(prepared, memory, ()),
        )
    };
    let nodes = prepared.workload_with_added_launches().node_count();
    let (outcome, (recorder, observers)) = run_with_observer_relay(nodes, watch, others, |relay| {
        prepared.run_specialized_for_observer(relay)
    });
    let outcome = outcome?;
    let network = prepared.network_kind().to_string();
    let makespan = outcome.makespan;
    let finished = FinishedReplay {
        prepared,
        outcome,
        launches: Vec::new(),
        network,
    };
    let ((mut report, _), (path, table)) = run_on_second_thread_if_many_nodes(
        nodes as usize,
        || collect_results_and_build_report(finished, observers),
        || {
            let path = recorder.as_ref();
            let path = path.map(|recorder| recorder.find_critical_path(makespan));
            let table = recorder.filter(|_| wants_nodes);
            (path, table.map(|recorder| recorder.node_table()))
        },
    );
    if let Some((summary, path_in_folder)) = path {
        report.critical_path = Some(summary);
        report.interval = PredictionIntervalAndTimeByMethod::of_report(&report, prepared);
        // The profiler's cost has an interval too, so compute it after the prediction interval.
        report.add_replay_and_token_costs(prepared.machine().price_per_npu_hour(), None);
        extra.critical_path(&path_in_folder);
    }
    Ok((report, table))
}

/// Groups ranks that do the same work at the same time, and replays only one rank of each group. Returns the whole
/// job's report without a critical path. Returns `None` if too few ranks do the same work.
///
/// # Errors
///
/// Returns the errors of [`replay_to_report`].
pub fn replay_folded(prepared: &CompiledReplay<'_>) -> Result<Option<Report>, ReplayError> {
    let is_captured =
        |graph: &Graph| !graph.step_numbers().is_empty() || !graph.stacks().calls.is_empty();
    if prepared
        .workload_with_added_launches()
        .distinct_graphs()
        .iter()
        .any(is_captured)
    {
        return Ok(None);
    }
    let report = prepared
        .fold_and_replay_with_retries(|folded| replay_folded_representatives(prepared, folded))?;
    Ok(report.flatten())
}

/// Replays the representatives of a folded job. Returns `None` if messages cannot be attributed to all ranks.
fn replay_folded_representatives(
    prepared: &CompiledReplay<'_>,
    folded: &FoldedReplay<'_>,
) -> Result<Option<Report>, ReplayError> {
    let part = &folded.part;
    let watch = || {
        let memory = MemoryPeakObserver::new(part);
        let breakdown = BreakdownObserver::for_part_of_folded_job(part);
        let operators = OperatorTimeObserver::of_folded_part(folded);
        combine_report_observers(part, (breakdown, operators), memory, ())
    };
    let nodes = part.workload_with_added_launches().node_count();
    let (outcome, observers) = run_with_observer_relay(nodes, watch, None, |relay| {
        part.run_specialized_for_observer(relay)
    });
    let outcome = outcome?;
    let (_, (collectives, _)) = &observers;
    // Return no report if some messages cannot be attributed to the omitted ranks. These are messages of tiles, and of
    // collectives whose analytical answer was withdrawn.
    let attributed = part.count_sends() + collectives.sum_simulated_messages();
    if outcome.unfolded + outcome.recorded > 0 || outcome.messages != attributed {
        return Ok(None);
    }
    let makespan = outcome.makespan;
    let results =
        ObservedResults::extend_folded_results_to_whole_job(observers, makespan, prepared, folded);
    let (calls, simulated) = results.collectives.count_all_and_simulated_calls();
    let finished = FinishedReplay {
        prepared,
        outcome: CompletedReplayTotals {
            nodes: prepared.workload_with_added_launches().node_count(),
            messages: prepared.count_sends() + results.collectives.sum_simulated_messages(),
            closed: calls - simulated,
            stepwise: simulated,
            ..outcome
        },
        launches: Vec::new(),
        network: prepared.network_kind().to_string(),
    };
    Ok(Some(build_report_from_results(finished, results)))
}

/// Replays like [`replay_to_report`], with the given network and collective models.
pub fn replay_with_network_and_collective_models<
    O: Observer,
    N: NetworkBackend,
    M: RequiredCollectiveBackendTraits,
>(
    prepared: &CompiledReplay<'_>,
    extra: O,
    network: N,
    backend: &mut M,
) -> Result<(Report, O), ReplayError> {
    let mut observers = create_report_observers(prepared, MemoryPeakObserver::new(prepared), extra);
    let watched: &mut dyn Observer = &mut observers;
    let outcome = prepared.run_with_network_and_backend(watched, network, backend)?;
    let finished = FinishedReplay {
        prepared,
        outcome,
        launches: Vec::new(),
        network: N::NAME.to_owned(),
    };
    Ok(collect_results_and_build_report(finished, observers))
}

/// The observers of a report, and one additional observer.
pub(super) type ReportObservers<'a, O> = (
    BreakdownObserver<'a>,
    (
        CollectiveObserver,
        (
            OperatorTimeObserver<'a>,
            (
                MemoryPeakObserver<'a>,
                (
                    TileNetworkBusyTimesObserver,
                    (
                        EventLoopCountObserver,
                        (ProfiledStepObserver<'a>, (ModuleTimeObserver<'a>, O)),
                    ),
                ),
            ),
        ),
    ),
);

pub(super) fn create_report_observers<'a, O: Observer>(
    prepared: &'a CompiledReplay<'a>,
    memory: MemoryPeakObserver<'a>,
    extra: O,
) -> ReportObservers<'a, O> {
    let breakdown = BreakdownObserver::new(prepared);
    combine_report_observers(
        prepared,
        (breakdown, OperatorTimeObserver::new(prepared)),
        memory,
        extra,
    )
}

fn combine_report_observers<'a, O: Observer>(
    prepared: &'a CompiledReplay<'a>,
    (breakdown, operators): (BreakdownObserver<'a>, OperatorTimeObserver<'a>),
    memory: MemoryPeakObserver<'a>,
    extra: O,
) -> ReportObservers<'a, O> {
    let collectives = CollectiveObserver::new(prepared.group_views().count());
    let program = (
        ProfiledStepObserver::new(prepared),
        (ModuleTimeObserver::new(prepared), extra),
    );
    let ended = (
        TileNetworkBusyTimesObserver::default(),
        (EventLoopCountObserver::default(), program),
    );
    let others = (operators, (memory, ended));
    (breakdown, (collectives, others))
}

pub(super) struct FinishedReplay<'a> {
    pub prepared: &'a CompiledReplay<'a>,
    pub outcome: CompletedReplayTotals,
    /// Start and end of each launch. Empty if the job was launched only once and had the machine to itself.
    pub launches: Vec<TrainingStepStartAndEnd>,
    pub network: String,
}

/// The results of a report's observers.
struct ObservedResults<'a> {
    npu_times: Vec<NpuTime>,
    charged: MessageAndCollectiveTimeTotals,
    collectives: CollectiveObserver,
    operators: Vec<OperatorTime>,
    memory_accesses: Vec<OneMemoryAccessesRow>,
    memory: Vec<NpuMemoryUseRow>,
    tiles: TileNetworkBusyTimesObserver,
    counts: EventLoopCountObserver,
    steps: ProfiledStepObserver<'a>,
    modules: ModuleTimeObserver<'a>,
}

impl<'a> ObservedResults<'a> {
    /// Collects the results of observers that received the whole job's events.
    fn collect<O>(observers: ReportObservers<'a, O>, makespan: Span) -> (Self, O) {
        let (breakdown, (collectives, (operators, (memory, (tiles, (counts, program)))))) =
            observers;
        let (steps, (modules, extra)) = program;
        let (operators, memory_accesses) = operators.into_operators_and_memory_rows();
        let (npu_times, charged) = breakdown.into_npu_times_and_totals(makespan);
        let memory = memory.into_rows();
        let results = Self {
            npu_times,
            charged,
            collectives,
            operators,
            memory_accesses,
            memory,
            tiles,
            counts,
            steps,
            modules,
        };
        (results, extra)
    }

    /// Collects the results of observers that received only events of a folded job's simulated part. Extends them to
    /// the whole job.
    fn extend_folded_results_to_whole_job<O>(
        observers: ReportObservers<'a, O>,
        makespan: Span,
        whole: &CompiledReplay<'_>,
        folded: &FoldedReplay<'_>,
    ) -> Self {
        let (breakdown, (collectives, (operators, (memory, (tiles, (counts, program)))))) =
            observers;
        let (steps, (modules, _)) = program;
        let (operators, memory_accesses) = operators.into_operators_and_memory_rows();
        let (npu_times, charged) =
            breakdown.into_npu_times_and_totals_of_whole_job(makespan, whole, folded);
        Self {
            npu_times,
            charged,
            collectives: collectives.extend_tallies_from_folded_to_whole_job(whole, folded),
            operators,
            memory_accesses,
            memory: memory.into_rows_of_whole_job(whole, folded),
            tiles,
            counts,
            steps,
            modules,
        }
    }
}

/// Returns the report of a completed replay.
pub(super) fn collect_results_and_build_report<O>(
    finished: FinishedReplay<'_>,
    observers: ReportObservers<'_, O>,
) -> (Report, O) {
    let (results, extra) = ObservedResults::collect(observers, finished.outcome.makespan);
    (build_report_from_results(finished, results), extra)
}

/// Creates the report of a completed replay from the results of its observers.
fn build_report_from_results(finished: FinishedReplay<'_>, results: ObservedResults<'_>) -> Report {
    let FinishedReplay {
        prepared,
        outcome,
        launches,
        network,
    } = finished;
    let times = launches.len().max(1) as u64;
    let ObservedResults {
        npu_times,
        charged,
        collectives,
        operators,
        memory_accesses,
        memory,
        tiles,
        counts,
        steps,
        modules,
    } = results;
    let (workload, machine) = (prepared.workload_with_added_launches(), prepared.machine());
    let basis = prepared.duration_source_counts();
    let mut present = workload.instances().iter().map(|i| i.rank).peekable();
    let absent = (0..workload.rank_count_including_untraced())
        .map(Rank)
        .filter(|rank| present.next_if_eq(rank).is_none())
        .collect();
    let kernels = KernelCountsByDurationMethod {
        priced: basis.priced,
        by_curves: basis.by_curves,
        estimated: basis.estimated,
        kept_recorded: basis.fell_back + basis.kept,
        unknown: basis.unknown,
    };
    let mut report = Report {
        schema: ReportSchema::default(),
        provenance: None,
        machine: MachineNameAndSize::from_machine(machine),
        ranks: workload.rank_count_including_untraced(),
        absent,
        captured: None,
        captured_on: CaptureDevicesHostsAndSoftware::from_workload(workload),
        unknown: Vec::new(),
        lower_bound: false,
        kernel_energy: TotalEnergyOfLoopNestTimedKernels::from_basis(&basis, &kernels),
        kernels,
        response: NpuTimeByMachineDependence::default(),
        profiler: ProfilerAndItsCost::profiler_of_workload(workload),
        interval: None,
        network: (prepared.comm_duration_source() == CommunicationDurationSource::Model)
            .then_some(network),
        communication: CommunicationTimingMethods {
            lasts_as: prepared.comm_duration_source(),
            as_recorded: basis.as_recorded,
            unknown: basis.unrecorded,
        },
        mean_parts: Default::default(),
        mean_communicating: Span::ZERO,
        mean_remote_memory: Span::ZERO,
        rows: build_npu_rows(prepared, npu_times, times > 1),
        collectives: build_collective_rows(prepared, &collectives, &charged.collectives),
        messages_charged: charged.messages,
        unknown_charged: charged.unknown,
        exposed: build_exposed_rows(prepared, &charged),
        operators,
        // If a job is launched several times, each profiled step runs several times too, so omit the rows of steps.
        steps: if launches.is_empty() {
            steps.into_rows()
        } else {
            Vec::new()
        },
        modules: modules.into_rows(),
        memory_accesses,
        warnings: Vec::new(),
        settings: GivenSettingTestResults::default(),
        memory_ports: port_memory::list_port_memories(prepared, &memory),
        memory_pools: pool_memory::list_pool_memories(prepared, &memory),
        memory,
        tiles: tiles.summarize_tile_link_and_port_use(prepared),
        aggregation: counts.summarize_rank_aggregation(prepared),
        sensitivities: None,
        stack: (basis.by_curves > 0)
            .then(|| SoftwareStackDecisionReport::from_measured_kernels_of_machine(machine))
            .flatten(),
        edits: {
            let rows: Vec<_> = prepared
                .duration_change_effects()
                .iter()
                .map(EditWithEffectCounts::of_duration_change)
                .chain(
                    outcome
                        .failures
                        .iter()
                        .map(EditWithEffectCounts::from_failure_outcome),
                )
                .collect();
            (!rows.is_empty()).then_some(JobAndMachineEditReport {
                completed: None,
                unedited: None,
                rows,
            })
        },
        extrapolation: None,
        throughput: throughput::compute_throughput(prepared, Span(outcome.makespan.0 / times)),
        cost: None,
        run: None,
        critical_path: None,
        pictures: None,
        links: collectives
            .loads
            .as_ref()
            .map(|loads| LinkReport::new(loads, machine)),
        launches,
        beside: Vec::new(),
        outcome,
    };
    report.mean_parts = std::array::from_fn(|part| report.mean_over_npus(|time| time.parts[part]));
    report.mean_communicating = report.mean_over_npus(|time| time.communicating);
    report.mean_remote_memory = report.mean_over_npus(|time| time.remote_memory);
    report.add_replay_and_token_costs(machine.price_per_npu_hour(), None);
    let captured = report.rows.iter().map(|row| row.captured);
    let captured: Option<u128> = captured
        .map(|span| span.map(|span| u128::from(span.0)))
        .sum();
    let instances = workload.instances().iter();
    let dropped = instances.map(|instance| workload.graph_of(instance).dropped_kernels());
    let dropped = dropped.fold(0, u64::saturating_add);
    report.unknown = unknown::list_unknown_facts(&basis, dropped, captured);
    report.lower_bound = report.is_lower_bound();
    if let Some(on) = &mut report.captured_on
        && basis.priced > 0
        && basis.recorded_time > 0
        && basis.fell_back == 0
        && !basis.carried
        && !workload
            .distinct_graphs()
            .iter()
            .any(Graph::were_kernels_captured_on_cpu)
    {
        let rows = report.rows.iter();
        on.mark_kernels_kept_from_other_device(rows.map(|row| &*row.class));
    }
    report.captured = report
        .last_captured_end_and_rank()
        .map(|(captured, _)| captured);
    report.response = NpuTimeByMachineDependence::of_report(&report, prepared);
    report.interval = PredictionIntervalAndTimeByMethod::of_report(&report, prepared);
    report.warnings = collect_warnings(&report, prepared);
    report
}

/// Returns one row per NPU, in the order of instances.
fn build_npu_rows(
    prepared: &CompiledReplay<'_>,
    times: Vec<NpuTime>,
    repeated: bool,
) -> Vec<NpuRow> {
    let (workload, machine) = (prepared.workload_with_added_launches(), prepared.machine());
    let rows = workload.instances().iter().zip(times);
    let rows = rows.map(|(instance, time)| {
        let npu = prepared.npu_of_rank(instance.rank);
        // A capture holds one launch, so its times are compared only with a replay of one launch.
        let captured = workload.graph_of(instance).captured_end();
        let captured = captured.filter(|_| !repeated);
        NpuRow {
            rank: instance.rank,
            npu,
            class: machine.npu_classes()[machine.class_of_npu(npu)]
                .name
                .clone(),
            time,
            captured,
            difference: captured.and_then(|captured| percent_more(time.finish, captured)),
        }
    });
    rows.collect()
}

/// Returns the rows of collectives, sorted by group and kind; `charged` is indexed by group, then by kind.
fn build_collective_rows(
    prepared: &CompiledReplay<'_>,
    collectives: &CollectiveObserver,
    charged: &[WaitingAndTransferTime],
) -> Vec<CollectiveRow> {
    let groups: Vec<PlacedWorkloadGroup<'_>> = prepared.group_views().collect();
    let rows = collectives.nonzero_tallies().map(|(index, kind, tally)| {
        let group = &groups[index.index()];
        let members = group.members.len() as u32;
        let latest = collectives.most_awaited_rank(index, kind);
        CollectiveRow {
            group: group_label(prepared, group),
            group_index: index.0,
            members,
            present: group.present,
            kind,
            algorithm: algorithm_labels_of_smallest_and_largest(prepared, kind, group, &tally),
            measured: prepared.has_measured_collective_times(kind, group),
            derived_from: derived_from(prepared, kind, group),
            tally,
            latest: latest.map(|(rank, waited)| LongestAwaitedRank { rank, waited }),
            bus: tally.bus_bandwidth(kind, members),
            charged: charged[index.index() * CollectiveKind::ALL.len() + kind as usize],
            role: role_of_group(prepared, group),
        }
    });
    rows.collect()
}

/// Returns the exposed communication by group, longest time first.
fn build_exposed_rows(
    prepared: &CompiledReplay<'_>,
    charged: &MessageAndCollectiveTimeTotals,
) -> Vec<GroupExposedCommunicationRow> {
    let by_group = prepared
        .group_views()
        .zip(charged.collectives.chunks(CollectiveKind::ALL.len()))
        .map(|(group, kinds)| GroupExposedCommunicationRow {
            what: group_label(prepared, &group),
            members: group.members.len() as u32,
            exposed: kinds
                .iter()
                .map(WaitingAndTransferTime::exposed_time_without_bubble)
                .sum(),
            role: role_of_group(prepared, &group),
        });
    let of_no_group = [
        (MESSAGES, charged.messages),
        (UNKNOWN_COMMUNICATION, charged.unknown),
    ];
    let of_no_group = of_no_group.map(|(what, charged)| GroupExposedCommunicationRow {
        what: what.to_owned(),
        members: 0,
        exposed: charged.exposed_time_without_bubble(),
        role: None,
    });
    let rows = by_group.chain(of_no_group);
    let mut rows: Vec<_> = rows.filter(|row| row.exposed > Span::ZERO).collect();
    rows.sort_by_key(|row| Reverse(row.exposed));
    rows
}

fn role_of_group(prepared: &CompiledReplay<'_>, group: &PlacedWorkloadGroup<'_>) -> Option<String> {
    prepared.workload_with_added_launches().groups()[group.id.index()]
        .role
        .clone()
}

/// Formats a group's name and members, as in `all 8 ranks` or `tp (0, 1, 2, 3)`.
pub(super) fn group_label(
    prepared: &CompiledReplay<'_>,
    group: &PlacedWorkloadGroup<'_>,
) -> String {
    let name = &prepared.workload_with_added_launches().groups()[group.id.index()].name;
    let members = || format_shortened_list(group.members.iter().map(|m| m.0));
    match (name, group.dimensions) {
        (None, None) => format!("all {} ranks", group.members.len()),
        (Some(name), None) => format!("{name} ({})", members()),
        (None, Some(_)) => format!("ranks {}", members()),
        (Some(name), Some(_)) => format!("{name}: {}", members()),
    }
}

/// Names the algorithm used in each dimension that the group spans, for a buffer of `bytes`. If the times come from the
/// traces, returns `as recorded` or `as captured`.
pub(super) fn algorithm_label(
    prepared: &CompiledReplay<'_>,
    kind: CollectiveKind,
    group: &PlacedWorkloadGroup<'_>,
    bytes: u64,
) -> String {
    match prepared.comm_duration_source() {
        CommunicationDurationSource::Model => {
            prepared.describe_algorithms_of_collective(kind, group, bytes)
        }
        other => format!("as {other}"),
    }
}

/// Returns the links on which a group's collectives of `kind` were measured; `None` if they equal the machine's links.
fn derived_from(
    prepared: &CompiledReplay<'_>,
    kind: CollectiveKind,
    group: &PlacedWorkloadGroup<'_>,
) -> Option<MeasuredAndMachineLinks> {
    let (dimension, measured) = prepared.differing_links_of_measured_collectives(kind, group)?;
    let dimension = &prepared.machine().topology().dimensions()[dimension];
    Some(MeasuredAndMachineLinks {
        dimension: dimension.name.clone(),
        bandwidth: measured.bandwidth.bytes_per_second(),
        latency: measured.latency,
        machine_bandwidth: dimension.bandwidth.bytes_per_second(),
        machine_latency: dimension.latency,
    })
}

/// Returns the algorithm labels (see [`algorithm_label`]) for the smallest and the largest of several collectives, or
/// one label if both are the same. An algorithm's time is a constant plus a part proportional to the buffer size. An
/// algorithm that is fastest for both the smallest and the largest buffer is therefore fastest for all sizes in
/// between.
fn algorithm_labels_of_smallest_and_largest(
    prepared: &CompiledReplay<'_>,
    kind: CollectiveKind,
    group: &PlacedWorkloadGroup<'_>,
    tally: &GroupCollectiveTotals,
) -> String {
    let label = |bytes| algorithm_label(prepared, kind, group, bytes);
    let (small, large) = (label(tally.buffers.smallest), label(tally.buffers.largest));
    if small == large {
        small
    } else {
        format!(
            "{small} at {}; {large} at {}",
            Bytes(tally.buffers.smallest),
            Bytes(tally.buffers.largest)
        )
    }
}
