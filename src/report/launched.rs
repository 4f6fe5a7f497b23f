//! Reports of replays with several launches: repeated steps, or jobs that share a machine.
//!
//! Each program has its own report and its own observers. They receive only events of its ranks. A rank runs one launch
//! of its program at a time, so observers may store state per node. Feeds such as
//! [`RepeatedLaunchFeed`](chakram_engine::RepeatedLaunchFeed) ensure this.

use super::memory::MemoryPeakObserver;
use super::replay::{
    FinishedReplay, ReportObservers, collect_results_and_build_report, create_report_observers,
};
use super::section::{
    ReportTableSubject, ReportTableWithNotes, ReportTextDetailsOrPage, SectionCellWithValue,
    SectionNote,
};
use super::summary::format_thousands;
use super::table::{left_aligned_column, right_aligned_column};
use super::{CoRunningJobReport, Report};
use super::{CollectiveRecord, Observer};
use chakram_base::ids::NodeIndex;
use chakram_base::setting::SettingKey;
use chakram_base::units::{Span, Time};
use chakram_engine::{
    CommunicationDurationSource, CompiledReplay, CompletedReplayTotals, LaunchFeed, ReplayError,
    run_launches,
};
use chakram_engine::{InstanceId, ReplayGroupId};
use chakram_hardware::network::BytesOverOneLink;
use chakram_trace::graph::NodeKind;

/// Replays `programs` with the additional observer `extra`, and returns one report per program. `feeds[i]` launches
/// `programs[i]`.
///
/// # Errors
///
/// Fails if [`run_launches`] fails, or if most kernels of a program would take no time.
pub fn replay_launched_programs(
    programs: &[CompiledReplay<'_>],
    feeds: &mut [Box<dyn LaunchFeed>],
    extra: &mut dyn Observer,
) -> Result<Vec<Report>, ReplayError> {
    for program in programs {
        program.check_most_kernels_have_durations()?;
    }
    let mut watched = ProgramEventForwarder::new(programs, extra);
    let mut all: Vec<&mut dyn LaunchFeed> = feeds.iter_mut().map(|feed| &mut **feed as _).collect();
    let whole = run_launches(programs, &mut all, None, &mut watched)?;
    let reports = watched.programs.into_iter().zip(programs).zip(feeds);
    let reports = reports.map(|((watched, program), feed)| {
        let tally = watched.tally;
        let outcome = CompletedReplayTotals {
            makespan: tally.end.since(Time::ZERO),
            nodes: tally.nodes,
            messages: tally.messages,
            closed: tally.closed,
            unfolded: tally.unfolded,
            stepwise: tally.stepwise,
            recorded: tally.recorded,
            failures: whole.failures.clone(),
        };
        let network = program.network_kind().to_string();
        let launches = feed.step_starts_and_ends().to_vec();
        let finished = FinishedReplay {
            prepared: program,
            outcome,
            launches,
            network,
        };
        collect_results_and_build_report(finished, watched.observers).0
    });
    Ok(reports.collect())
}

/// Attaches all reports but the first to the first, as its neighbours, under the names in `names`. Returns the first
/// report; `None` if there are no reports.
pub fn attach_neighbour_reports(reports: Vec<Report>, names: &[String]) -> Option<Report> {
    let mut reports = reports.into_iter();
    let mut first = reports.next()?;
    let others = names.iter().zip(reports);
    let others = others.map(|(name, report)| CoRunningJobReport {
        job: name.clone(),
        report,
    });
    first.beside = others.collect();
    let ends = first.beside.iter().map(|of| of.report.outcome.makespan);
    if let (Some(links), Some(last)) = (&mut first.links, ends.max()) {
        links.until = last.max(first.outcome.makespan);
    }
    Some(first)
}

/// Maximum number of launches in a text report.
const SHOWN: usize = 6;

/// Returns a table of the launches, if there are several: start, end, duration, and time since the previous launch
/// ended.
pub(super) fn build_launch_starts_and_ends_table(
    report: &Report,
    medium: ReportTextDetailsOrPage,
) -> Vec<ReportTableWithNotes> {
    let launches = &report.launches;
    if launches.len() < 2 {
        return Vec::new();
    }
    let mut section = ReportTableWithNotes::new(
        ReportTableSubject::Launches,
        [
            left_aligned_column("LAUNCHES", 10),
            right_aligned_column("began", 14),
            right_aligned_column("ended", 14),
            right_aligned_column("took", 14),
            right_aligned_column("after the one before", 24),
        ],
    );
    let shown = medium.rows_shown_or_all_in_details(SHOWN);
    let mut before = Span::ZERO;
    for (number, launch) in launches.iter().enumerate() {
        let after = Span(launch.end.0.saturating_sub(before.0));
        before = launch.end;
        // Always show the last launch, because it is nearest to a steady state.
        if number + 1 >= shown && number + 1 < launches.len() {
            continue;
        }
        let after = match number {
            0 => SectionCellWithValue::default(),
            _ => after.into(),
        };
        section.push_row(vec![
            SectionCellWithValue::number_cell(number, number),
            launch.begin.into(),
            launch.end.into(),
            (launch.end - launch.begin).into(),
            after,
        ]);
    }
    if launches.len() > shown {
        let left_out = format_thousands((launches.len() - shown) as u64);
        let format = SettingKey::Format;
        section.left_out = Some(format!("… {left_out} before the last: {format} json"));
    }
    let (first, last) = (launches[0].end, launches[launches.len() - 1].end);
    let further = launches.len() as u64 - 1;
    let mean = Span((last - first).0 / further);
    section.push_note(SectionNote::from_one_line_sentence(format!(
        "one every {mean} after the first, in the mean"
    )));
    vec![section]
}

/// Counts for the launches of one program.
#[derive(Clone, Copy, Debug, Default)]
struct TotalsOverProgramLaunches {
    /// Time at which the last node of any launch completes.
    end: Time,
    nodes: u64,
    messages: u64,
    closed: u64,
    unfolded: u64,
    stepwise: u64,
    recorded: u64,
}

struct ProgramWithObservers<'a> {
    prepared: &'a CompiledReplay<'a>,
    observers: ReportObservers<'a, ()>,
    tally: TotalsOverProgramLaunches,
}

/// Forwards each event to the observers of its program.
struct ProgramEventForwarder<'a, 'e> {
    programs: Vec<ProgramWithObservers<'a>>,
    /// For each instance of any program: the index of its program, and its own index within that program. `groups`
    /// holds the same pairs of indices for groups.
    instances: Vec<(u32, InstanceId)>,
    groups: Vec<(u32, ReplayGroupId)>,
    extra: &'e mut dyn Observer,
}

impl<'a, 'e> ProgramEventForwarder<'a, 'e> {
    fn new(programs: &'a [CompiledReplay<'a>], extra: &'e mut dyn Observer) -> Self {
        let (mut instances, mut groups) = (Vec::new(), Vec::new());
        for (number, program) in (0..).zip(programs) {
            let own = program.workload_with_added_launches().instances().len() as u32;
            instances.extend((0..own).map(|instance| (number, InstanceId(instance))));
            let own = program.group_views().count() as u32;
            groups.extend((0..own).map(|group| (number, ReplayGroupId(group))));
        }
        let watched = programs.iter().map(|prepared| ProgramWithObservers {
            prepared,
            observers: create_report_observers(
                prepared,
                MemoryPeakObserver::for_first_launch(prepared),
                (),
            ),
            tally: TotalsOverProgramLaunches::default(),
        });
        Self {
            programs: watched.collect(),
            instances,
            groups,
            extra,
        }
    }

    fn program_of_instance(
        &mut self,
        instance: InstanceId,
    ) -> (&mut ProgramWithObservers<'a>, InstanceId) {
        let (program, instance) = self.instances[instance.index()];
        (&mut self.programs[program as usize], instance)
    }
}

impl Observer for ProgramEventForwarder<'_, '_> {
    /// Link loads are sums over all programs, so only the first program's report gets them.
    fn on_link_loads_measured(&mut self, loads: &[BytesOverOneLink]) {
        self.extra.on_link_loads_measured(loads);
        if let Some(program) = self.programs.first_mut() {
            program.observers.on_link_loads_measured(loads);
        }
    }

    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        self.extra.on_issued(now, instance, node, kind);
        let (program, own) = self.program_of_instance(instance);
        program.observers.on_issued(now, own, node, kind);
    }

    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        self.extra.on_completed(now, instance, node, kind);
        let (program, own) = self.program_of_instance(instance);
        program.observers.on_completed(now, own, node, kind);
        program.tally.end = now;
        program.tally.nodes += 1;
        let alone = |kind| {
            kind == NodeKind::Receive
                && program
                    .prepared
                    .match_number_of_message(own, node)
                    .is_none()
        };
        // A sender without a trace has no send node, so its message is counted at the receive.
        if program.prepared.comm_duration_source() == CommunicationDurationSource::Model
            && (kind == NodeKind::Send || alone(kind))
        {
            program.tally.messages += 1;
        }
    }

    fn on_transfer_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        self.extra.on_transfer_began(now, instance, node);
        let (program, own) = self.program_of_instance(instance);
        program.observers.on_transfer_began(now, own, node);
    }

    fn on_delay_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        let (program, own) = self.program_of_instance(instance);
        program.observers.on_delay_began(now, own, node);
    }

    fn on_lane_wait(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        self.extra.on_lane_wait(now, instance, node);
    }

    fn on_member_wait(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        self.extra.on_member_wait(now, instance, node);
        let (program, own) = self.program_of_instance(instance);
        program.observers.on_member_wait(now, own, node);
    }

    fn on_ready(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        let (program, own) = self.program_of_instance(instance);
        program.observers.on_ready(now, own, node);
    }

    fn on_collective_ended(&mut self, record: &CollectiveRecord) {
        self.extra.on_collective_ended(record);
        let (program, group) = self.groups[record.group.index()];
        let program = &mut self.programs[program as usize];
        let record = CollectiveRecord { group, ..*record };
        program.observers.on_collective_ended(&record);
        let tally = &mut program.tally;
        tally.messages += record.messages;
        if program.prepared.comm_duration_source() != CommunicationDurationSource::Model {
            tally.recorded += 1;
        } else if record.stepwise {
            tally.stepwise += 1;
            tally.unfolded += u64::from(record.materialized);
        } else {
            tally.closed += 1;
        }
    }
}
