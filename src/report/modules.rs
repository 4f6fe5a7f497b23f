//! Time by module path, for nodes of a captured program that ran inside calls of `nn.Module`.
//!
//! A kernel belongs to the module that launched it. A row's times include all submodules; its *own* times cover only
//! nodes outside the submodules. The own times of all modules, plus the times outside modules, sum exactly to the times
//! of the operators.

use super::csv::CsvColumn;
use super::issue_times::InProgressNodeIssueTimes;
use super::section::{
    ReportTableSubject, ReportTableWithNotes, ReportTextDetailsOrPage, SectionCellWithValue,
};
use super::table::{left_aligned_column, right_aligned_column};
use super::{CollectiveRecord, Observer, Report};
use chakram_base::ids::NodeIndex;
use chakram_base::units::{Span, Time};
use chakram_engine::{CompiledReplay, InstanceId};
use chakram_trace::graph::{DistinctKeyInterner, Graph, NodeKind};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A module, identified by its path. The module's times are sums over all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ModuleTimesRow {
    /// Path from the outermost module, such as `Net_0/Linear_1`. Nodes outside all modules have an
    /// empty path.
    pub path: String,
    /// Number of calls to the module during which at least one node ran.
    pub calls: u64,
    /// Time of kernels, copies and communication launched in the module; overlapping nodes each count in full.
    #[serde(rename = "device_ps")]
    pub device: Span,
    /// The part of `device` spent in nodes outside the submodules.
    #[serde(rename = "own_device_ps")]
    pub own_device: Span,
    /// Time of host nodes in the module, plus the Python time (delays) before nodes on host threads.
    #[serde(rename = "host_ps")]
    pub host: Span,
    /// The part of `host` spent in nodes outside the submodules.
    #[serde(rename = "own_host_ps")]
    pub own_host: Span,
}

/// Columns of the CSV table of modules.
pub const CSV: &[CsvColumn<Report, ModuleTimesRow>] = &[
    ("module", |_, row| row.path.as_str().into()),
    ("calls", |_, row| row.calls.into()),
    ("device_ps", |_, row| row.device.into()),
    ("own_device_ps", |_, row| row.own_device.into()),
    ("host_ps", |_, row| row.host.into()),
    ("own_host_ps", |_, row| row.own_host.into()),
];

/// Maximum number of rows in a text report; JSON and CSV contain all rows.
const ROWS: usize = 10;

/// Modules that share a table row, because their paths have the same class names.
#[derive(Clone, Debug, Default)]
struct SameClassModuleTotals {
    /// Index of the last of these modules in the report.
    last: usize,
    modules: u64,
    calls: u64,
    device: Span,
    own: Span,
    host: Span,
}

/// Returns the path, with each module's number replaced by `*`.
fn replace_module_numbers_by_star(path: &str) -> String {
    let parts = path.split('/').map(|part| {
        let stem = part.trim_end_matches(|c: char| c.is_ascii_digit());
        match stem.len() < part.len() && stem.ends_with('_') {
            true => format!("{stem}*"),
            false => part.to_owned(),
        }
    });
    parts.collect::<Vec<_>>().join("/")
}

/// Returns the table of modules with the most device time. Empty if there are no modules. Modules whose paths have the
/// same class names share a row.
pub(super) fn build_module_sections(
    report: &Report,
    medium: ReportTextDetailsOrPage,
) -> Vec<ReportTableWithNotes> {
    if report.modules.is_empty() {
        return Vec::new();
    }
    let mut families: BTreeMap<String, SameClassModuleTotals> = BTreeMap::new();
    let (mut device, mut outside) = (Span::ZERO, None);
    for (i, row) in report.modules.iter().enumerate() {
        device += row.own_device;
        if row.path.is_empty() {
            outside = Some((i, row));
            continue;
        }
        let family = families
            .entry(replace_module_numbers_by_star(&row.path))
            .or_default();
        family.last = i;
        family.modules += 1;
        family.calls = family.calls.saturating_add(row.calls);
        family.device += row.device;
        family.own += row.own_device;
        family.host += row.host;
    }
    let mut families: Vec<_> = families.into_iter().collect();
    families.sort_by_key(|(_, family)| Reverse((family.device, family.host)));
    let mut section = ReportTableWithNotes::create_table_with_aligned_columns(
        ReportTableSubject::Modules,
        [
            left_aligned_column("MODULES", 40),
            right_aligned_column("modules", 8),
            right_aligned_column("calls", 8),
            right_aligned_column("on devices", 13),
            right_aligned_column("its own", 13),
            right_aligned_column("share", 8),
            right_aligned_column("on hosts", 13),
        ],
    );
    let shown = medium.rows_shown_or_all_in_details(ROWS);
    for (path, row) in families.iter().take(shown) {
        // Only a row of a single module gets a JSON pointer, because the report has no sums over several modules.
        let at = |field| (row.modules == 1).then(|| format!("/modules/{}/{field}", row.last));
        section.push_row(vec![
            SectionCellWithValue::create_cell_with_input_name(path),
            SectionCellWithValue::count_cell(row.modules),
            SectionCellWithValue::count_cell(row.calls).with_optional_json_pointer(at("calls")),
            SectionCellWithValue::from(row.device).with_optional_json_pointer(at("device_ps")),
            SectionCellWithValue::from(row.own).with_optional_json_pointer(at("own_device_ps")),
            SectionCellWithValue::percent_cell(row.device, device),
            SectionCellWithValue::from(row.host).with_optional_json_pointer(at("host_ps")),
        ]);
    }
    if let Some((i, row)) = outside {
        let at = |field: &str| format!("/modules/{i}/{field}");
        section.push_row(vec![
            "(under no module)".into(),
            SectionCellWithValue::default(),
            SectionCellWithValue::default(),
            SectionCellWithValue::from(row.device).with_json_pointer(at("device_ps")),
            SectionCellWithValue::from(row.own_device).with_json_pointer(at("own_device_ps")),
            SectionCellWithValue::percent_cell(row.device, device),
            SectionCellWithValue::from(row.host).with_json_pointer(at("host_ps")),
        ]);
    }
    section.leave_out(families.len(), shown, "modules");
    vec![section]
}

/// Times of the nodes in a module, excluding its submodules. `delays` is the sum of the delays' ends minus the sum of
/// their starts. Both sums wrap on overflow, but their difference remains exact.
#[derive(Clone, Copy, Debug, Default)]
struct ModuleOwnTimes {
    calls: u64,
    device: Span,
    host: Span,
    delays: u64,
}

/// Maximum depth of a path. Deeper modules count as part of their ancestor at this depth. The limit bounds the total
/// length of paths.
const LEVELS: u32 = 100;

/// Row index for nodes outside all modules.
const OUTSIDE: u32 = 0;

/// Sums the time of nodes by module; does nothing if no graph has modules.
#[derive(Debug)]
pub struct ModuleTimeObserver<'a>(Option<Box<ModuleTimeAccumulator<'a>>>);

#[derive(Debug)]
struct ModuleTimeAccumulator<'a> {
    started: InProgressNodeIssueTimes<'a>,
    /// Graph index of each instance.
    graphs: Vec<u32>,
    /// For each graph, the row index of each Python call.
    row_of: Vec<Vec<u32>>,
    /// For each row, the index of its parent row, and the module's name. Row 0 is for nodes outside all modules.
    rows: DistinctKeyInterner<(u32, &'a str)>,
    sums: Vec<ModuleOwnTimes>,
}

impl<'a> ModuleTimeObserver<'a> {
    /// Creates an observer of all instances of `prepared`.
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Self {
        let workload = prepared.workload_with_added_launches();
        let mut rows = DistinctKeyInterner::default();
        rows.intern_key((OUTSIDE, ""));
        let row_of = workload.distinct_graphs().iter();
        let row_of: Vec<_> = row_of
            .map(|graph| module_row_of_each_python_call(graph, &mut rows))
            .collect();
        if rows.keys().len() == 1 {
            return Self(None);
        }
        let graphs: Vec<u32> = workload.instances().iter().map(|i| i.graph.0).collect();
        let mut sums = vec![ModuleOwnTimes::default(); rows.keys().len()];
        for (number, graph) in (0..).zip(workload.distinct_graphs()) {
            let ranks = graphs.iter().filter(|&&graph| graph == number).count() as u64;
            let rows = &row_of[number as usize];
            for call in list_python_calls_with_nodes(graph) {
                let row = |call: u32| rows[call as usize];
                let around = graph.stacks().calls[call as usize].caller;
                if row(call) != around.map_or(OUTSIDE, row) {
                    sums[row(call) as usize].calls += ranks;
                }
            }
        }
        Self(Some(Box::new(ModuleTimeAccumulator {
            started: InProgressNodeIssueTimes::new(prepared),
            graphs,
            row_of,
            rows,
            sums,
        })))
    }

    /// Returns the rows in path order: a module precedes its submodules, which are sorted by first call. The row for
    /// nodes outside all modules is last. Empty if there are no modules.
    pub fn into_rows(self) -> Vec<ModuleTimesRow> {
        self.0.map_or_else(Vec::new, |times| times.into_rows())
    }
}

/// Returns the Python calls of `graph` during which at least one node ran.
fn list_python_calls_with_nodes(graph: &Graph) -> impl Iterator<Item = u32> {
    let stacks = graph.stacks();
    let mut is_used = vec![false; stacks.calls.len()];
    for stack in graph
        .nodes()
        .filter_map(|node| graph.enclosing_python_call(node))
    {
        for call in stacks.enclosing_calls(stack) {
            if std::mem::replace(&mut is_used[call as usize], true) {
                break;
            }
        }
    }
    let used = (0_u32..).zip(is_used).filter(|(_, used)| *used);
    used.map(|(call, _)| call)
}

impl ModuleTimeAccumulator<'_> {
    /// Returns true if the delay before a node is time spent in a host thread.
    #[inline]
    fn counts_delay_as_host_thread_time(&self, instance: InstanceId, node: NodeIndex) -> bool {
        let graph = self.started.graph_of(instance);
        graph.kind(node) == NodeKind::Host || graph.were_kernels_captured_on_cpu()
    }

    #[inline]
    fn times_of_module_around_node_mut(
        &mut self,
        instance: InstanceId,
        node: NodeIndex,
    ) -> &mut ModuleOwnTimes {
        let graph = self.started.graph_of(instance);
        let rows = &self.row_of[self.graphs[instance.index()] as usize];
        let row = graph
            .enclosing_python_call(node)
            .map_or(OUTSIDE, |call| rows[call as usize]);
        &mut self.sums[row as usize]
    }

    fn into_rows(self) -> Vec<ModuleTimesRow> {
        let keys = self.rows.into_keys();
        let own = |sum: &ModuleOwnTimes| (sum.device, sum.host + Span(sum.delays));
        // Add each row to its parent. Parents have lower indices than their children, so a reverse pass sees children
        // first.
        let mut whole: Vec<(Span, Span)> = self.sums.iter().map(own).collect();
        let mut under: Vec<Vec<u32>> = vec![Vec::new(); keys.len()];
        for row in (1..keys.len()).rev() {
            let around = keys[row].0;
            under[around as usize].push(row as u32);
            if around != OUTSIDE {
                let (device, host) = whole[row];
                whole[around as usize].0 += device;
                whole[around as usize].1 += host;
            }
        }
        let row = |row: u32, path: String| {
            let sum = &self.sums[row as usize];
            let (own_device, own_host) = own(sum);
            let (device, host) = whole[row as usize];
            ModuleTimesRow {
                path,
                calls: sum.calls,
                device,
                own_device,
                host,
                own_host,
            }
        };
        let mut rows = Vec::with_capacity(keys.len());
        let outermost = under[OUTSIDE as usize].iter();
        let outermost = outermost.map(|&row| (row, keys[row as usize].1.to_owned()));
        let mut open: Vec<(u32, String)> = outermost.collect();
        while let Some((at, path)) = open.pop() {
            let inside = under[at as usize].iter();
            open.extend(inside.map(|&row| (row, format!("{path}/{}", keys[row as usize].1))));
            // No node ran in a module whose row has no calls, so omit the row.
            if self.sums[at as usize].calls > 0 {
                rows.push(row(at, path));
            }
        }
        rows.push(row(OUTSIDE, String::new()));
        rows
    }
}

/// Returns the row index for each Python call: that of the call's own module, or else of the innermost module around
/// the call.
fn module_row_of_each_python_call<'a>(
    graph: &'a Graph,
    rows: &mut DistinctKeyInterner<(u32, &'a str)>,
) -> Vec<u32> {
    let stacks = graph.stacks();
    let mut row_of: Vec<u32> = Vec::with_capacity(stacks.calls.len());
    let mut levels: Vec<u32> = Vec::with_capacity(stacks.calls.len());
    for (number, call) in (0..).zip(&stacks.calls) {
        let around = call.caller.map(|caller| caller as usize);
        let (row, level) = around.map_or((OUTSIDE, 0), |call| (row_of[call], levels[call]));
        let module = stacks
            .module_invoked_by_call(number)
            .filter(|_| level < LEVELS);
        row_of.push(module.map_or(row, |module| rows.intern_key((row, module))));
        levels.push(level + u32::from(module.is_some()));
    }
    row_of
}

impl Observer for ModuleTimeObserver<'_> {
    #[inline]
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        if let Some(times) = &mut self.0 {
            times.started.store_issue_time(now, instance, node, kind);
        }
    }

    #[inline]
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        if let Some(times) = &mut self.0
            && kind != NodeKind::Nothing
        {
            let span = now.since(times.started.get(instance, node, kind));
            let sum = times.times_of_module_around_node_mut(instance, node);
            match kind {
                NodeKind::Host => sum.host += span,
                _ => sum.device += span,
            }
        }
    }

    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}

    #[inline]
    fn on_delay_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        if let Some(times) = &mut self.0
            && times.counts_delay_as_host_thread_time(instance, node)
        {
            let sum = times.times_of_module_around_node_mut(instance, node);
            sum.delays = sum.delays.wrapping_sub(now.0);
        }
    }

    #[inline]
    fn on_ready(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        if let Some(times) = &mut self.0
            && times.counts_delay_as_host_thread_time(instance, node)
        {
            let sum = times.times_of_module_around_node_mut(instance, node);
            sum.delays = sum.delays.wrapping_add(now.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::replace_module_numbers_by_star;

    #[test]
    fn numbered_modules_of_one_class_form_one_family() {
        assert_eq!(
            replace_module_numbers_by_star("Net_0/Linear_12"),
            "Net_*/Linear_*"
        );
        assert_eq!(replace_module_numbers_by_star("Conv2d_3"), "Conv2d_*");
        for other in ["Conv2d", "Layer12", ""] {
            assert_eq!(replace_module_numbers_by_star(other), other);
        }
    }
}
