//! Sensitivities: how much earlier a run would end if one class of durations (such as one kind of kernel) were shorter.
//! Each row also contains the lowest factor down to which the makespan changes in proportion.
//!
//! The run is recorded once. From the recording, [`RetimableRun`] computes T(x), the end of the run with all durations
//! of one class multiplied by x. The left derivative T'(1) is the time that the class takes on the critical path. T
//! changes at exactly this rate as long as it is linear. Intersecting tangents (Newton's method on a convex function)
//! finds the end of the linear range. T assumes that the order of nodes on lanes stays the same. Replays with changed
//! durations therefore check the derivative and the range, if there is time to run them.

use super::critical_path::{RetimableRun, RunEndWithSlope, RunRecorder};
use super::csv::{CsvCell, CsvColumn};
use super::section::{
    ReportTableSubject, ReportTableWithNotes, ReportTextDetailsOrPage, SectionCellWithValue,
    SectionNote,
};
use super::table::{left_aligned_column, right_aligned_column};
use super::{Report, summary::format_thousands};
use chakram_base::ids::NodeIndex;
use chakram_base::units::Span;
use chakram_engine::{
    CollectiveDurationChange, CompiledReplay, DurationAdjustment, HostDurationSource, InstanceId,
    KernelDurationChange, ReplayError, ReplayOptions,
};
use chakram_hardware::machine::Machine;
use chakram_trace::format::replace_micro_batch_number_by_star;
use chakram_trace::graph::{Graph, NodeKind};
use chakram_trace::workload::Workload;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Maximum number of kernel classes.
const KERNEL_CLASSES: usize = 16;
/// Maximum number of factors, between 1 and the end of the range, at which replays check the slope.
const STEPS: u32 = 32;
/// Number of bisections between the last factor on the slope and the first factor off the slope.
const HALVINGS: u32 = 4;
/// Maximum number of rows in a text report.
const ROWS: usize = 12;
/// Factor used in the column that users see: 10 % less time.
pub const TENTH_LESS: f64 = 0.9;

/// How the makespan changes when one class of durations becomes shorter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MakespanSensitivityRow {
    /// Name of the class of durations, or key of the machine file.
    pub what: String,
    /// The setting that changes these durations. It is either an option key, to which the user appends a factor, or a
    /// machine key. Empty if no setting changes these durations.
    pub setting: String,
    /// Change of the makespan, in picoseconds, per unit of the factor that multiplies these durations.
    pub slope_ps: i64,
    /// Lowest factor at which the makespan still follows this slope.
    pub holds_to: f64,
    /// Makespan if these durations are a tenth shorter.
    #[serde(rename = "tenth_less_ps")]
    pub tenth_less: Span,
    /// Makespan if these durations are zero: the best that speeding up this class alone can achieve.
    #[serde(rename = "none_ps")]
    pub none: Span,
    /// True if replays with changed durations gave these numbers; otherwise they are computed from the recorded run.
    pub replayed: bool,
}

/// The speedups that shorten a run most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct MakespanSensitivityReport {
    /// Number of segments in the critical path. Slopes are exact to within one picosecond per segment.
    pub path_nodes: u64,
    /// Classes of durations, sorted by how much the makespan gains if they are a tenth shorter, largest gain first.
    pub rows: Vec<MakespanSensitivityRow>,
    /// Sentences about the limits of the results, such as that the run is too large.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Columns of the CSV table of sensitivities.
pub(super) const CSV: &[CsvColumn<Report, MakespanSensitivityRow>] = &[
    ("what", |_, row| row.what.as_str().into()),
    ("setting", |_, row| row.setting.as_str().into()),
    ("slope_ps", |_, row| {
        CsvCell::Decimal(row.slope_ps as f64, 0)
    }),
    ("holds_to", |_, row| CsvCell::Decimal(row.holds_to, 6)),
    ("tenth_less_ps", |_, row| row.tenth_less.into()),
    ("none_ps", |_, row| row.none.into()),
    ("by", |_, row| {
        if row.replayed { "replay" } else { "graph" }.into()
    }),
];

struct DurationClass {
    what: String,
    setting: String,
    nodes: Vec<bool>,
    of_host: bool,
    change: DurationScalingOption,
}

/// The option that changes the durations of a class in a replay.
enum DurationScalingOption {
    Kernels(String),
    Collectives(String),
    Host,
    Nothing,
}

/// What a replay's sensitivities are computed from.
#[derive(Clone, Copy)]
pub struct SensitivityReplayInputs<'a> {
    /// Workload of the replay.
    pub workload: &'a Workload,
    /// Machine of the replay.
    pub machine: &'a Machine,
    /// Options of the replay.
    pub options: &'a ReplayOptions,
}

impl SensitivityReplayInputs<'_> {
    /// Replays with the options changed by `change`, and returns the makespan.
    fn replay_makespan_with_changed_options(
        &self,
        change: impl FnOnce(&mut ReplayOptions),
    ) -> Result<Span, ReplayError> {
        let mut options = self.options.clone();
        change(&mut options);
        let prepared = CompiledReplay::new(self.workload, self.machine, &options)?;
        let (outcome, ()) = prepared.run(())?;
        Ok(outcome.makespan)
    }

    /// Replays on another machine, and returns the makespan.
    pub fn replay_makespan_on(&self, machine: &Machine) -> Result<Span, ReplayError> {
        let other = SensitivityReplayInputs {
            workload: self.workload,
            machine,
            options: self.options,
        };
        other.replay_makespan_with_changed_options(|_| {})
    }

    /// Computes how sensitive the run is to each class of durations. If `replays` is true, replays confirm the results.
    ///
    /// # Errors
    ///
    /// Fails if a replay fails. If the run is too large to record, the result has no rows and a note says so.
    pub fn find_sensitivities(
        &self,
        replays: bool,
    ) -> Result<MakespanSensitivityReport, ReplayError> {
        let prepared = CompiledReplay::new(self.workload, self.machine, self.options)?;
        let Some(recorder) = RunRecorder::new(&prepared) else {
            return Ok(MakespanSensitivityReport {
                path_nodes: 0,
                rows: Vec::new(),
                notes: vec!["the run has too many nodes for a replay of its graph".to_owned()],
            });
        };
        let (outcome, recorder) = prepared.run(recorder)?;
        let path_nodes = recorder.path_segment_count();
        let scaled = RetimableRun::new(&recorder);
        let mut notes = Vec::new();
        let mut rows = Vec::new();
        let plain = scaled.compute_scaled_end(1.0, &vec![false; recorder.node_count()], false);
        if plain.end != outcome.makespan {
            notes.push(format!(
                "replayed from its graph, the run ends at {} instead of {}, because it waits for something \
                 outside the graph; rows that no replay confirms are approximate",
                plain.end, outcome.makespan
            ));
        }
        for class in group_duration_classes(&prepared, self.options) {
            let Some(row) = self.build_duration_class_row(
                &scaled,
                &class,
                outcome.makespan,
                path_nodes,
                replays,
            )?
            else {
                continue;
            };
            rows.push(row);
        }
        let mut report = MakespanSensitivityReport {
            path_nodes,
            rows,
            notes,
        };
        report.sort_by_gain();
        Ok(report)
    }

    /// Returns the row of a class; `None` if shorter durations of this class would not shorten the makespan.
    fn build_duration_class_row(
        &self,
        scaled: &RetimableRun<'_>,
        class: &DurationClass,
        makespan: Span,
        path_nodes: u64,
        replays: bool,
    ) -> Result<Option<MakespanSensitivityRow>, ReplayError> {
        let at = |factor: f64| scaled.compute_scaled_end(factor, &class.nodes, class.of_host);
        let (now, none) = (at(1.0), at(0.0));
        if now.slope == 0 && none.end == now.end {
            return Ok(None);
        }
        let line = |factor: f64| now.end.0 as f64 - now.slope as f64 * (1.0 - factor);
        let is_on_line =
            |factor: f64, end: Span| (end.0 as f64 - line(factor)).abs() <= path_nodes as f64;
        let mut row = MakespanSensitivityRow {
            what: class.what.clone(),
            setting: class.setting.clone(),
            slope_ps: now.slope,
            holds_to: find_lowest_factor_on_slope(now, none, path_nodes, at),
            tenth_less: at(TENTH_LESS).end,
            none: none.end,
            replayed: false,
        };
        if !replays {
            return Ok(Some(row));
        }
        let replay = |factor: f64| -> Option<Result<Span, ReplayError>> {
            let time = DurationAdjustment::Factor(factor);
            Some(match &class.change {
                DurationScalingOption::Kernels(glob) => {
                    self.replay_makespan_with_changed_options(|options| {
                        options
                            .changes
                            .kernels
                            .push(KernelDurationChange::of_pattern(glob, time));
                    })
                }
                DurationScalingOption::Collectives(kind) => self
                    .replay_makespan_with_changed_options(|options| {
                        options
                            .changes
                            .collectives
                            .push(CollectiveDurationChange::of_kind_or_name(kind, time));
                    }),
                DurationScalingOption::Host => {
                    self.replay_makespan_with_changed_options(|options| {
                        options.host = HostDurationSource::Scaled(factor)
                    })
                }
                DurationScalingOption::Nothing => return None,
            })
        };
        // A replay with factor 1 must reproduce the run; otherwise replays cannot confirm the row. A replay with
        // changed collectives may not reproduce it, because these take a fixed time without contention.
        let Some(same) = replay(1.0) else {
            return Ok(Some(row));
        };
        if same.ok() != Some(makespan) {
            return Ok(Some(row));
        }
        let replay = |factor: f64| replay(factor).expect("it can be changed");
        (row.tenth_less, row.none) = (replay(TENTH_LESS)?, replay(0.0)?);
        row.replayed = true;
        // Test factors one after another, because the order of nodes on lanes may change, and change back, at any
        // factor.
        let (bound, mut good) = (row.holds_to, 1.0);
        let mut bad = None;
        for step in 1..=STEPS {
            let factor = 1.0 - (1.0 - bound) * f64::from(step) / f64::from(STEPS);
            if !is_on_line(factor, replay(factor)?) {
                bad = Some(factor);
                break;
            }
            good = factor;
        }
        if let Some(mut bad) = bad {
            for _ in 0..HALVINGS {
                let middle = (bad + good) / 2.0;
                match is_on_line(middle, replay(middle)?) {
                    true => good = middle,
                    false => bad = middle,
                }
            }
        }
        row.holds_to = good;
        Ok(Some(row))
    }
}

impl MakespanSensitivityReport {
    /// Sorts rows by the makespan at a tenth less time, so that the largest gain comes first.
    pub fn sort_by_gain(&mut self) {
        self.rows
            .sort_by_key(|row| (row.tenth_less, Reverse(row.slope_ps), row.none));
    }
}

/// Returns the lowest factor at which the makespan still follows the slope at factor 1. `now` is the run's end at
/// factor 1, and `none` is the end at factor 0. `at` computes the end at other factors.
fn find_lowest_factor_on_slope(
    now: RunEndWithSlope,
    none: RunEndWithSlope,
    path_nodes: u64,
    at: impl Fn(f64) -> RunEndWithSlope,
) -> f64 {
    let line = |factor: f64| now.end.0 as f64 - now.slope as f64 * (1.0 - factor);
    let (mut factor, mut found) = (0.0, none);
    for _ in 0..64 {
        if found.end.0 as f64 - line(factor) <= path_nodes as f64 {
            return factor;
        }
        // The next factor is where the tangent at this factor intersects the tangent at factor 1.
        let slopes = (now.slope - found.slope) as f64;
        if slopes <= 0.0 {
            return 1.0;
        }
        let next = (factor + (found.end.0 as f64 - line(factor)) / slopes).min(1.0);
        if next <= factor {
            return next;
        }
        (factor, found) = (next, at(next));
    }
    1.0
}

/// Returns `name` with each number replaced by `*`.
fn replace_numbers_in_name_by_stars(name: &str) -> String {
    let name = replace_micro_batch_number_by_star(name);
    let mut out = String::with_capacity(name.len());
    for one in name.chars() {
        match one.is_ascii_digit() {
            true if out.ends_with('*') => {}
            true => out.push('*'),
            false => out.push(one),
        }
    }
    out
}

/// Returns the name pattern of the kernel's class. The class depends on the kernel's shape or, if that is unknown, on
/// the family of its name.
fn kernel_class_or_name_pattern(graph: &Graph, node: NodeIndex) -> String {
    match graph.kernel(node) {
        Some(shape) => format!("class:{}", shape.class_name()),
        None => replace_numbers_in_name_by_stars(graph.name(node)),
    }
}

fn group_duration_classes(
    prepared: &CompiledReplay<'_>,
    options: &ReplayOptions,
) -> Vec<DurationClass> {
    let workload = prepared.workload_with_added_launches();
    let all: usize = workload.node_count() as usize;
    let mut kernels: BTreeMap<String, (u128, Vec<bool>)> = BTreeMap::new();
    let mut collectives: BTreeMap<String, Vec<bool>> = BTreeMap::new();
    let [mut all_kernels, mut host, mut memory, mut messages] = [(); 4].map(|()| vec![false; all]);
    let (mut has_host, mut number) = (false, 0);
    for (i, instance) in (0..).zip(workload.instances()) {
        let graph = workload.graph_of(instance);
        has_host |= graph.has_delays();
        let patterns: BTreeMap<(u32, _), String> = BTreeMap::new();
        let mut patterns = patterns;
        for node in graph.nodes() {
            match graph.kind(node) {
                NodeKind::Compute => {
                    let key = (graph.name_index(node), graph.kernel(node));
                    let pattern = patterns
                        .entry(key)
                        .or_insert_with(|| kernel_class_or_name_pattern(graph, node));
                    if !kernels.contains_key(pattern) {
                        kernels.insert(pattern.clone(), (0, vec![false; all]));
                    }
                    let (time, nodes) = kernels.get_mut(pattern).expect("it is there now");
                    *time +=
                        u128::from(prepared.duration_of_independent_node(InstanceId(i), node).0);
                    nodes[number] = true;
                    all_kernels[number] = true;
                }
                NodeKind::Host => {
                    host[number] = true;
                    has_host = true;
                }
                NodeKind::LocalMemory | NodeKind::RemoteMemory => memory[number] = true,
                NodeKind::Send | NodeKind::Receive => messages[number] = true,
                NodeKind::Collective => {
                    let kind = graph.collective_of(node).kind.to_string();
                    let nodes = collectives.entry(kind).or_insert_with(|| vec![false; all]);
                    nodes[number] = true;
                }
                _ => {}
            }
            number += 1;
        }
    }
    let of = |what: String, setting: String, nodes, change| DurationClass {
        what,
        setting,
        nodes,
        of_host: false,
        change,
    };
    let mut kernels: Vec<_> = kernels.into_iter().collect();
    kernels.sort_by_key(|(_, (time, _))| Reverse(*time));
    let several = kernels.len() > 1;
    let mut found = Vec::new();
    for (pattern, (_, nodes)) in kernels.into_iter().take(KERNEL_CLASSES) {
        let setting = format!("kernel = {pattern}");
        found.push(of(
            format!("kernels {pattern}"),
            setting,
            nodes,
            DurationScalingOption::Kernels(pattern),
        ));
    }
    if several {
        let change = DurationScalingOption::Kernels("*".to_owned());
        found.push(of(
            "all kernels".to_owned(),
            "kernel = *".to_owned(),
            all_kernels,
            change,
        ));
    }
    for (kind, nodes) in collectives {
        let setting = format!("collective = {kind}");
        found.push(of(
            format!("collectives {kind}"),
            setting,
            nodes,
            DurationScalingOption::Collectives(kind),
        ));
    }
    let nothing = || DurationScalingOption::Nothing;
    found.push(of(
        "messages".to_owned(),
        String::new(),
        messages,
        nothing(),
    ));
    found.push(of(
        "loads and stores".to_owned(),
        String::new(),
        memory,
        nothing(),
    ));
    if has_host {
        let change = match options.host {
            HostDurationSource::Recorded => DurationScalingOption::Host,
            HostDurationSource::Scaled(_) => DurationScalingOption::Nothing,
        };
        let class = of("host".to_owned(), "host = scaled".to_owned(), host, change);
        found.push(DurationClass {
            of_host: true,
            ..class
        });
    }
    found.retain(|class| class.of_host || class.nodes.contains(&true));
    found
}

/// Returns the table of the speedups that would shorten the makespan most.
pub(crate) fn build_sensitivity_sections(
    report: &Report,
    medium: ReportTextDetailsOrPage,
) -> Vec<ReportTableWithNotes> {
    let Some(found) = &report.sensitivities else {
        return Vec::new();
    };
    let mut section = ReportTableWithNotes::create_table_with_aligned_columns(
        ReportTableSubject::Sensitivities,
        [
            left_aligned_column("WHAT WOULD HELP MOST", 40),
            right_aligned_column("10 % less", 12),
            right_aligned_column("gains", 9),
            right_aligned_column("at most", 9),
            right_aligned_column("per 1 %", 12),
            right_aligned_column("straight to", 11),
            left_aligned_column("by", 6),
        ],
    );
    let makespan = report.outcome.makespan;
    let gain = |end: Span| 100.0 * (1.0 - end.0 as f64 / makespan.0.max(1) as f64);
    let shown = medium.rows_shown_or_all_in_details(ROWS);
    for (i, row) in found.rows.iter().take(shown).enumerate() {
        let at = |field: &str| format!("/sensitivities/rows/{i}/{field}");
        section.push_row(vec![
            SectionCellWithValue::create_cell_with_input_name(&*row.what),
            SectionCellWithValue::from(row.tenth_less).with_json_pointer(at("tenth_less_ps")),
            format!("{:.2} %", gain(row.tenth_less)).into(),
            format!("{:.1} %", gain(row.none)).into(),
            SectionCellWithValue::from(Span(row.slope_ps.unsigned_abs() / 100)),
            format!("{:.3}x", row.holds_to).into(),
            if row.replayed { "replay" } else { "graph" }.into(),
        ]);
    }
    section.leave_out(found.rows.len(), shown, "sensitivities");
    section.push_note(SectionNote::from_text_that_report_wraps(format!(
        "10 % less: the makespan if these take a tenth less time, and what that gains; at most: if they took none; per 1 %: \
         along the critical path of {} nodes, which holds down to the factor of the next column; by replays with these times, or \
         by the graph of this one",
        format_thousands(found.path_nodes)
    )));
    for note in &found.notes {
        section.push_note(SectionNote::from_text_that_report_wraps(note.clone()));
    }
    vec![section]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_become_stars() {
        assert_eq!(
            replace_numbers_in_name_by_stars("step0/layer12/fwd/qkv"),
            "step*/layer*/fwd/qkv"
        );
        assert_eq!(replace_numbers_in_name_by_stars("gemm_128x64"), "gemm_*x*");
    }

    /// T(x) = max(10 + 10 x, 14 + 4 x, 15) is 20 at x = 1, and linear from there down to x = 2/3. Below x = 2/3, 14 + 4
    /// x is larger than 10 + 10 x.
    #[test]
    fn slopes_hold_until_another_path_is_longer() {
        let at = |x: f64| {
            let lines = [(10_000.0, 10_000.0), (14_000.0, 4_000.0), (15_000.0, 0.0)];
            let ends = lines.map(|(a, b)| (a + b * x, b));
            let most = ends.iter().map(|(end, _)| *end).fold(0.0, f64::max);
            let slope = ends.iter().filter(|(end, _)| *end == most).map(|(_, b)| *b);
            RunEndWithSlope {
                end: Span(most.round() as u64),
                slope: slope.fold(f64::MAX, f64::min) as i64,
            }
        };
        let to = find_lowest_factor_on_slope(at(1.0), at(0.0), 0, at);
        assert!((to - 2.0 / 3.0).abs() < 1e-3, "{to}");
    }
}
