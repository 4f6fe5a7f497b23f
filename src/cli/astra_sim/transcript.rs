//! Prints ASTRA-sim's own lines, for scripts that parse ASTRA-sim's output and log.
//!
//! A line is `[time] [logger] [level] text`, the default format of the logging library that ASTRA-sim uses. Standard
//! output receives the lines of level `info` and above. These lines report the rings of NPU 0 and, when an NPU
//! finishes, the NPU's end time and statistics. `log.log` in the log folder receives the same lines. With
//! `trace-enabled`, the log also receives a line whenever a node is issued or completes. Times are UTC;
//! `SOURCE_DATE_EPOCH` replaces the current time.
//!
//! If a rank has host nodes, memory nodes, or nodes without work, only the first line of its statistics is printed.

use super::render::{self, RankStatistics};
use chakram_astra_sim::{AstraAlgorithm, AstraInputs, NodeTypesById};
use chakram_base::ids::NodeIndex;
use chakram_base::units::{Span, Time};
use chakram_engine::InstanceId;
use chakram_report::{CollectiveRecord, Observer};
use chakram_trace::graph::NodeKind;
use chakram_trace::workload::Workload;
use std::fmt::Write as _;

/// An event for which ASTRA-sim prints a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrintedTranscriptEvent {
    Issued(InstanceId, NodeIndex, Time),
    Completed(InstanceId, NodeIndex, Time),
    Finished(InstanceId),
}

/// Records the order in which ranks finish and, if nodes are traced, when nodes are issued and complete.
#[derive(Debug)]
pub struct RankAndNodeEventRecorder<'a> {
    workload: &'a Workload,
    traces: bool,
    /// For each instance, the number of nodes that have not completed.
    left: Vec<usize>,
    events: Vec<PrintedTranscriptEvent>,
}

impl<'a> RankAndNodeEventRecorder<'a> {
    /// Creates a recorder of `workload`. If `traces` is true, the recorder also records when each node is issued and
    /// when it completes.
    pub fn new(workload: &'a Workload, traces: bool) -> Self {
        let nodes = workload
            .instances()
            .iter()
            .map(|i| workload.graph_of(i).len());
        Self {
            workload,
            traces,
            left: nodes.collect(),
            events: Vec::new(),
        }
    }

    /// Returns true if ASTRA-sim's log has lines about a node; it has none if the node completes immediately.
    fn has_log_lines_about_node(
        &self,
        instance: InstanceId,
        node: NodeIndex,
        kind: NodeKind,
    ) -> bool {
        let graph = self
            .workload
            .graph_of(&self.workload.instances()[instance.index()]);
        let skipped = kind == NodeKind::Compute && graph.recorded_duration(node) == Span::ZERO;
        self.traces && kind != NodeKind::Nothing && !skipped
    }

    /// Returns the recorded events in the order in which they occurred. As in ASTRA-sim, ranks without nodes finish
    /// first, in rank order.
    fn list_events(&self) -> Vec<PrintedTranscriptEvent> {
        let mut events = self.events.clone();
        let empty = (0..self.left.len()).filter(|&i| {
            let instance = &self.workload.instances()[i];
            self.workload.graph_of(instance).is_empty()
        });
        for instance in empty {
            let instance = InstanceId(instance as u32);
            let later = |event: &PrintedTranscriptEvent| match *event {
                PrintedTranscriptEvent::Issued(other, _, at) => other > instance || at > Time::ZERO,
                PrintedTranscriptEvent::Completed(..) => true,
                PrintedTranscriptEvent::Finished(other) => {
                    let other_one = &self.workload.instances()[other.index()];
                    other > instance || !self.workload.graph_of(other_one).is_empty()
                }
            };
            let place = events.iter().position(later);
            events.insert(
                place.unwrap_or(events.len()),
                PrintedTranscriptEvent::Finished(instance),
            );
        }
        events
    }
}

impl Observer for RankAndNodeEventRecorder<'_> {
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        if self.has_log_lines_about_node(instance, node, kind) {
            self.events
                .push(PrintedTranscriptEvent::Issued(instance, node, now));
        }
    }

    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        if self.has_log_lines_about_node(instance, node, kind) {
            self.events
                .push(PrintedTranscriptEvent::Completed(instance, node, now));
        }
        let left = &mut self.left[instance.index()];
        *left -= 1;
        if *left == 0 {
            self.events.push(PrintedTranscriptEvent::Finished(instance));
        }
    }

    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
}

/// Detects whether a replay that uses formulas for collectives keeps ASTRA-sim's order of lines. Lines about members of
/// the same collective always keep their order. All lines keep their order if no other node completes during a
/// collective. Otherwise, a step of the collective could coincide with another event. NPUs with events at the same
/// instant take turns, in the order in which their first events of that instant were scheduled.
#[derive(Debug, Default)]
pub struct FormulaTimingLineOrderCheck {
    /// Time at which the last node that is not a collective completed.
    other: Option<Time>,
    /// When the last collective ended, and whether a formula gave this end.
    last: Option<(Time, bool)>,
    is_lost: bool,
}

impl FormulaTimingLineOrderCheck {
    /// Returns true if ASTRA-sim's order of lines was kept.
    pub fn is_kept(&self) -> bool {
        !self.is_lost
    }
}

impl Observer for FormulaTimingLineOrderCheck {
    fn on_issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}

    fn on_completed(&mut self, now: Time, _: InstanceId, _: NodeIndex, kind: NodeKind) {
        if kind != NodeKind::Collective {
            self.other = Some(now);
            self.is_lost |= self.last == Some((now, true));
        }
    }

    fn on_collective_ended(&mut self, record: &CollectiveRecord) {
        let closed = !record.stepwise;
        let (start, end) = (record.last_start, record.end);
        let beside = |(other, other_closed): (Time, bool)| {
            (closed || other_closed) && (other > start || other == end)
        };
        self.is_lost |= self.last.is_some_and(beside);
        self.is_lost |= closed && self.other.is_some_and(|other| other > start);
        let both = self.last.is_some_and(|last| last == (end, true));
        self.last = Some((end, closed || both));
    }
}

/// Lines for standard output, and lines for the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PrintedAndLoggedLines {
    pub printed: String,
    pub logged: String,
    clock: String,
}

impl PrintedAndLoggedLines {
    /// Appends a line of level `info` or above to both outputs.
    fn append_line(&mut self, logger: &str, level: &str, text: &str) {
        let line = format!("[{}] [{logger}] [{level}] {text}\n", self.clock);
        self.printed += &line;
        self.logged += &line;
    }

    fn append_info(&mut self, logger: &str, text: &str) {
        self.append_line(logger, "info", text);
    }

    fn append_debug(&mut self, logger: &str, text: std::fmt::Arguments<'_>) {
        let clock = &self.clock;
        let written = writeln!(self.logged, "[{clock}] [{logger}] [debug] {text}");
        written.expect("a string grows as needed");
    }
}

/// Renders all lines of a run. `rows` are the instances that finished; `types` are the node types if nodes are traced;
/// `clock` is the timestamp.
pub fn render_lines(
    transcript: &RankAndNodeEventRecorder<'_>,
    inputs: &AstraInputs,
    rows: &[(usize, RankStatistics)],
    types: &[NodeTypesById],
    clock: String,
) -> PrintedAndLoggedLines {
    let mut to = PrintedAndLoggedLines {
        clock,
        ..PrintedAndLoggedLines::default()
    };
    for (size, offset) in ring_sizes_and_neighbour_distances(inputs) {
        // ASTRA-sim prints the lines about rings of NPU 0 first.
        to.append_info(
            "system::topology::RingTopology",
            &format!(
                "ring of node 0, id: 0 dimension: local total nodes in ring: {size} index in ring: 0 offset: \
                 {offset} total nodes in ring: {size}"
            ),
        );
    }
    let workload = transcript.workload;
    for event in transcript.list_events() {
        let (what, instance, node, at) = match event {
            PrintedTranscriptEvent::Finished(instance) => {
                let row = rows.iter().find(|(of, _)| *of == instance.index());
                if let Some((_, row)) = row {
                    append_rank_end_and_statistics(&mut to, row);
                }
                continue;
            }
            PrintedTranscriptEvent::Issued(instance, node, at) => ("issue", instance, node, at),
            PrintedTranscriptEvent::Completed(instance, node, at) => {
                ("callback", instance, node, at)
            }
        };
        let of = &workload.instances()[instance.index()];
        let graph = workload.graph_of(of);
        let id = graph.id(node);
        let kind = types
            .get(instance.index())
            .map_or(0, |types| types.type_of_node(id));
        to.append_debug(
            "workload",
            format_args!(
                "{what},sys->id={}, tick={}, node->id={id}, node->name={}, node->type={kind}",
                of.rank,
                at.0 / 1000,
                graph.name(node).replace(char::is_control, " "),
            ),
        );
    }
    let done = |i: &usize| rows.iter().any(|(of, _)| of == i);
    for i in (0..workload.instances().len()).filter(|i| !done(i)) {
        let rank = workload.instances()[i].rank;
        let text = format!("Hardware Resource sys.id={rank} has unreleased nodes");
        to.append_line("workload::HardwareResource", "critical", &text);
    }
    to.append_info("system", "Exiting");
    to
}

/// Renders the end and the statistics of an NPU. As in ASTRA-sim, some statistics have only their first line.
fn append_rank_end_and_statistics(to: &mut PrintedAndLoggedLines, row: &RankStatistics) {
    let rank = row.rank;
    to.append_info("workload", &render::render_rank_end(row));
    let statistics = "statistics";
    to.append_info(
        statistics,
        &format!("sys[{rank}]. Post statistics processing start."),
    );
    if row.makes_astra_sim_throw_when_printed() {
        return;
    }
    to.append_info(
        statistics,
        &format!("sys[{rank}]. Post statistics processing end."),
    );
    for line in render::render_rank_statistics(&row.with_astra_sim_overlap(), false).lines() {
        to.append_info(statistics, line);
    }
}

/// Returns the size of each ring of NPU 0 and the distance between neighbours on it, in the order in which ASTRA-sim
/// creates the rings. All-reduce, reduce-scatter, all-gather and all-to-all each have one ring per dimension in their
/// list of algorithms, except for dimensions with a double binary tree. A list entry for all dimensions gives a single
/// ring of all NPUs, and is always the last entry.
fn ring_sizes_and_neighbour_distances(inputs: &AstraInputs) -> Vec<(u64, u64)> {
    let lists = &inputs.system.implementations;
    let all = u64::from(inputs.network.npu_count());
    let mut rings = Vec::new();
    for list in [
        &lists.all_reduce,
        &lists.reduce_scatter,
        &lists.all_gather,
        &lists.all_to_all,
    ] {
        let mut offset = 1;
        for (entry, dimension) in list.iter().zip(&inputs.network.dimensions) {
            if entry.one {
                rings.push((all, 1));
                break;
            }
            let size = u64::from(dimension.npus);
            if entry.algorithm != AstraAlgorithm::DoubleBinaryTree {
                rings.push((size, offset));
            }
            offset *= size;
        }
    }
    rings
}

/// Returns the timestamp that begins each line (`2026-03-26 09:41:07.123`): the current time, or `SOURCE_DATE_EPOCH` if
/// it is set.
#[allow(clippy::disallowed_types, reason = "only what is printed bears it")]
pub fn format_current_timestamp() -> String {
    let fixed = std::env::var("SOURCE_DATE_EPOCH").ok();
    let fixed = fixed.and_then(|text| text.parse::<u64>().ok()?.checked_mul(1000));
    let present = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_millis() as u64)
    };
    format_date_and_time_from_ms(fixed.unwrap_or_else(present))
}

/// Formats a time in ms since 1970 as a date of the Gregorian calendar. Years are counted from March, so that a leap
/// day is the last day of its year. Every fourth year has a leap day, except centuries that are not multiples of 400.
fn format_date_and_time_from_ms(ms: u64) -> String {
    let (seconds, ms) = (ms / 1000, ms % 1000);
    let (days, seconds) = (seconds / 86_400, seconds % 86_400);
    // Count days from 1 March of the year 0, in eras of 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{ms:03}")
}

#[cfg(test)]
mod tests {
    use super::format_date_and_time_from_ms;

    #[test]
    fn days_are_those_of_the_calendar() {
        // The expected values are from `date -u -d @S`.
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00.000"),
            (951_782_400, "2000-02-29 00:00:00.000"),
            (951_868_800, "2000-03-01 00:00:00.000"),
            (1_774_518_067, "2026-03-26 09:41:07.000"),
            (4_107_542_399, "2100-02-28 23:59:59.000"),
            (4_107_542_400, "2100-03-01 00:00:00.000"),
        ] {
            assert_eq!(format_date_and_time_from_ms(seconds * 1000), expected);
        }
        assert_eq!(
            format_date_and_time_from_ms(1_234),
            "1970-01-01 00:00:01.234"
        );
    }
}
