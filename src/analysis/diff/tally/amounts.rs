//! Sums times and sizes of all nodes in two traces, grouped by a property.

use crate::diff::AmountChange;
use crate::diff::fields::{bytes_moved_by_op, group_name, type_name};
use crate::diff::matching::{MANY, run_both_in_parallel_if_much};
use crate::diff::node_labels::type_number_of_op;
use chakram_trace::format::{Op, append_name_family};
use chakram_trace::graph::raw_trace::CompactRawNodeView;
use chakram_trace::graph::{DistinctKeyInterner, RawTrace};
use serde::Serialize;
use std::collections::BTreeMap;

/// Property by which nodes are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeGroupingProperty {
    /// Type of the node.
    Type,
    /// The node's name, without step and layer numbers.
    Operator,
    /// Group of a collective.
    Group,
}

/// Sums over nodes of two traces: times in picoseconds, and sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ComparedNodeTotals {
    /// Number of nodes.
    pub nodes: AmountChange,
    /// Recorded durations, in picoseconds.
    #[serde(rename = "duration_ps")]
    pub duration: AmountChange,
    /// Host time before nodes (launch overhead), in picoseconds.
    #[serde(rename = "delay_ps")]
    pub delay: AmountChange,
    /// Recorded time waiting for peers, in picoseconds.
    #[serde(rename = "wait_ps")]
    pub wait: AmountChange,
    /// Bytes that nodes move in memory or communicate.
    pub bytes: AmountChange,
    /// Floating-point operations.
    pub flops: AmountChange,
}

impl ComparedNodeTotals {
    fn iter_amounts_mut(&mut self) -> [&mut AmountChange; 6] {
        [
            &mut self.nodes,
            &mut self.duration,
            &mut self.delay,
            &mut self.wait,
            &mut self.bytes,
            &mut self.flops,
        ]
    }

    fn add_node(&mut self, view: &CompactRawNodeView<'_>, second: bool) {
        let flops = match view.op {
            Op::Compute { flops, .. } => flops,
            _ => 0,
        };
        let bytes = bytes_moved_by_op(&view.op).unwrap_or(0);
        let amounts = [1, view.recorded.0, view.delay.0, view.wait.0, bytes, flops];
        for (shift, amount) in self.iter_amounts_mut().into_iter().zip(amounts) {
            let sum = if second {
                &mut shift.after
            } else {
                &mut shift.before
            };
            *sum += u128::from(amount);
        }
    }

    /// Adds the sums of other nodes.
    pub fn add_totals(&mut self, other: &Self) {
        let mut other = *other;
        for (sum, more) in self
            .iter_amounts_mut()
            .into_iter()
            .zip(other.iter_amounts_mut())
        {
            sum.before += more.before;
            sum.after += more.after;
        }
    }

    /// Returns the sum of durations, delays and waiting.
    pub fn sum_duration_delay_and_wait(&self) -> AmountChange {
        let all = [self.duration, self.delay, self.wait];
        AmountChange {
            before: all.iter().map(|shift| shift.before).sum(),
            after: all.iter().map(|shift| shift.after).sum(),
        }
    }
}

/// Sums over all nodes, and sums by value of each property.
pub(super) type OverallAndGroupedTotals = (
    ComparedNodeTotals,
    BTreeMap<(NodeGroupingProperty, String), ComparedNodeTotals>,
);

/// Sums the times and sizes of two traces. Traces with many nodes are processed in parallel.
pub(super) fn sum_amounts_of_both_traces(traces: [&RawTrace<'_>; 2]) -> OverallAndGroupedTotals {
    let [a, b] = traces;
    let many = a.nodes.len().min(b.nodes.len()) >= MANY;
    let [(mut total, mut by), second] = run_both_in_parallel_if_much(
        many,
        || sum_trace_amounts_overall_and_by_group(a, false),
        || sum_trace_amounts_overall_and_by_group(b, true),
    );
    total.add_totals(&second.0);
    for (key, amounts) in second.1 {
        by.entry(key).or_default().add_totals(&amounts);
    }
    (total, by)
}

/// Marks a node without a group.
const NONE: u32 = u32::MAX;

fn sum_trace_amounts_overall_and_by_group(
    trace: &RawTrace<'_>,
    second: bool,
) -> OverallAndGroupedTotals {
    let mut operators: DistinctKeyInterner<String> = DistinctKeyInterner::default();
    let mut groups: DistinctKeyInterner<String> = DistinctKeyInterner::default();
    let mut types: BTreeMap<u8, String> = BTreeMap::new();
    let mut rows: DistinctKeyInterner<(u8, u32, u32)> = DistinctKeyInterner::default();
    let mut sums: Vec<ComparedNodeTotals> = Vec::new();
    let mut name = String::new();
    for item in &trace.nodes {
        let view = &item.view;
        name.clear();
        append_name_family(view.name, &mut name);
        let operator = match operators.find_index_if_key_is_known(name.as_str()) {
            Some(known) => known,
            None => operators.intern_key(name.clone()),
        };
        let group = match view.op {
            Op::Collective { group, .. } => groups.intern_key(group_name(group)),
            _ => NONE,
        };
        let kind = type_number_of_op(&view.op);
        let row = rows.intern_key((kind, operator, group)) as usize;
        if row == sums.len() {
            sums.push(ComparedNodeTotals::default());
            types.entry(kind).or_insert_with(|| type_name(&view.op));
        }
        sums[row].add_node(view, second);
    }
    let (operators, groups) = (operators.into_keys(), groups.into_keys());
    let mut total = ComparedNodeTotals::default();
    let mut by: BTreeMap<(NodeGroupingProperty, String), ComparedNodeTotals> = BTreeMap::new();
    for ((kind, operator, group), amounts) in rows.into_keys().into_iter().zip(sums) {
        total.add_totals(&amounts);
        let mut keys = vec![
            (NodeGroupingProperty::Type, types[&kind].clone()),
            (
                NodeGroupingProperty::Operator,
                operators[operator as usize].clone(),
            ),
        ];
        if group != NONE {
            keys.push((NodeGroupingProperty::Group, groups[group as usize].clone()));
        }
        for key in keys {
            by.entry(key).or_default().add_totals(&amounts);
        }
    }
    (total, by)
}
