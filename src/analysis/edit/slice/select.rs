//! Selects the nodes that the user requests.

use super::checked_trace::ReplayableTrace;
use crate::edit::{for_each_attribute, name_matches_pattern};
use chakram_base::units::Span;
use chakram_trace::format::{Op, TraceError, escape_and_shorten_name, origin};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// Rule for selecting nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnnotationStepOrIdSelector {
    /// Nodes covered by the annotations with this name; `*` in the name matches any text.
    Annotation(String),
    /// Nodes of the step with this number, which the profiler assigned.
    Step(u64),
    /// Nodes with ids in this range.
    Ids(RangeInclusive<u64>),
}

/// Marks a node without an owner.
const NONE: u32 = u32::MAX;

/// Returns one entry per node, sorted by index: true if the node is requested.
pub(super) fn select_target_nodes(
    trace: &ReplayableTrace<'_>,
    cut: &AnnotationStepOrIdSelector,
) -> Result<Vec<bool>, TraceError> {
    let raw = &trace.raw;
    let asked: Vec<bool> = match cut {
        AnnotationStepOrIdSelector::Ids(ids) => {
            let nodes = raw.nodes.iter();
            nodes.map(|item| ids.contains(&item.view.id)).collect()
        }
        AnnotationStepOrIdSelector::Annotation(pattern) => select_annotated_nodes(trace, pattern)?,
        AnnotationStepOrIdSelector::Step(step) => select_step(trace, *step)?,
    };
    if !asked.contains(&true) {
        let ids = raw.nodes.first().zip(raw.nodes.last());
        let (found, hint) = match (cut, ids) {
            (_, None) => ("the trace has no nodes".to_owned(), String::new()),
            (AnnotationStepOrIdSelector::Ids(_), Some((first, last))) => (
                "no node has an id in this range".to_owned(),
                format!("ids from {} to {}", first.view.id, last.view.id),
            ),
            (AnnotationStepOrIdSelector::Step(step), _) => {
                (format!("the trace has no step {step}"), list_steps(trace)?)
            }
            (AnnotationStepOrIdSelector::Annotation(pattern), _) => (
                format!("no node is called `{}`", escape_and_shorten_name(pattern)),
                list_step_or_node_names(trace),
            ),
        };
        let place = chakram_trace::format::TraceErrorLocation::default();
        return Err(TraceError::invalid_at(place, found, hint));
    }
    Ok(asked)
}

/// Lists names for error messages: step names or, if there are none, the names of the first nodes.
fn list_step_or_node_names(trace: &ReplayableTrace<'_>) -> String {
    const SHOWN: usize = 6;
    let of = |test: fn(&str) -> bool| {
        let names = trace.raw.nodes.iter().map(|item| item.view.name);
        let names: BTreeSet<&str> = names.filter(|name| test(name)).collect();
        let names = names
            .iter()
            .take(SHOWN)
            .map(|name| escape_and_shorten_name(name));
        names.collect::<Vec<_>>().join(", ")
    };
    let steps = of(|name| name.starts_with("ProfilerStep#"));
    if steps.is_empty() {
        of(|name| !name.is_empty())
    } else {
        steps
    }
}

/// Returns each node's owner (the node to which it belongs), and a flag that is true if the owners come from
/// attributes.
fn find_owner_of_each_node(trace: &ReplayableTrace<'_>) -> Result<(Vec<u32>, bool), TraceError> {
    let raw = &trace.raw;
    let mut owner = vec![NONE; raw.nodes.len()];
    let mut said = false;
    for i in raw.range_of_all_node_indices() {
        for_each_attribute(raw.nodes[i as usize].record, |attr| {
            if matches!(attr.name, b"parent" | b"launch") && attr.is_set() {
                said = true;
                let found = attr.as_count().ok().and_then(|id| raw.find_node(id));
                owner[i as usize] = found.unwrap_or(NONE);
            }
            Ok(())
        })?;
    }
    // Traces without `parent` and `launch` attributes express calls as control dependencies.
    if !said {
        for i in raw.range_of_all_node_indices() {
            let device = !matches!(raw.nodes[i as usize].view.op, Op::Host | Op::NoOp);
            let first = |control: bool| {
                let mut deps = trace.raw.dependencies_of(i).iter();
                deps.find(|dep| dep.control == control)?.target()
            };
            let found = first(true).or_else(|| first(false).filter(|_| device));
            owner[i as usize] = found.unwrap_or(NONE);
        }
    }
    Ok((owner, said))
}

/// Returns one entry per node, sorted by index: true if the node is part of the step. The step comes from node
/// attributes or, if there are none, from the step's annotation.
fn select_step(trace: &ReplayableTrace<'_>, step: u64) -> Result<Vec<bool>, TraceError> {
    let stated = stated_step_of_each_node(trace)?;
    if stated.iter().all(Option::is_none) {
        return select_annotated_nodes(trace, &format!("ProfilerStep#{step}"));
    }
    let (owner, _) = find_owner_of_each_node(trace)?;
    // For each step, the first node whose attribute names the step; that node's index serves as the step's label.
    let mut first = BTreeMap::new();
    let label = (0..).zip(&stated).map(|(i, own)| {
        let own = (*own)?;
        Some(*first.entry(own).or_insert(i))
    });
    let mut label: Vec<Option<u32>> = label.collect();
    inherit_labels_from_nearest_owner(&owner, &mut label);
    let wanted = first.get(&step).copied();
    let asked = label.iter().map(|of| of.is_some() && *of == wanted);
    Ok(asked.collect())
}

/// Returns the step that each node's attribute names, if it has one.
fn stated_step_of_each_node(trace: &ReplayableTrace<'_>) -> Result<Vec<Option<u64>>, TraceError> {
    let mut stated = vec![None; trace.raw.nodes.len()];
    for (item, stated) in trace.raw.nodes.iter().zip(&mut stated) {
        for_each_attribute(item.record, |attr| {
            if attr.name == origin::STEP.as_bytes() {
                *stated = attr.as_count().ok().or(*stated);
            }
            Ok(())
        })?;
    }
    Ok(stated)
}

/// Lists the steps of the trace for error messages.
fn list_steps(trace: &ReplayableTrace<'_>) -> Result<String, TraceError> {
    const SHOWN: usize = 12;
    let mut numbers: BTreeSet<u64> = stated_step_of_each_node(trace)?
        .into_iter()
        .flatten()
        .collect();
    if numbers.is_empty() {
        let names = trace.raw.nodes.iter().map(|item| item.view.name);
        numbers.extend(names.filter_map(origin::parse_step_from_profiler_range_name));
    }
    let shown = numbers.iter().take(SHOWN).map(u64::to_string);
    let shown = shown.collect::<Vec<_>>().join(", ");
    Ok(match numbers.len() {
        0 => "no node is of a profiled step; take the whole trace".to_owned(),
        count if count > SHOWN => format!("one of the {count} steps: {shown}, …"),
        _ => format!("one of the steps {shown}"),
    })
}

/// Returns one entry per node, sorted by index: true if an annotation that matches `pattern` covers
/// the node.
fn select_annotated_nodes(
    trace: &ReplayableTrace<'_>,
    pattern: &str,
) -> Result<Vec<bool>, TraceError> {
    let nodes = &trace.raw.nodes;
    let mut label: Vec<Option<u32>> = vec![None; nodes.len()];
    for i in trace.raw.range_of_all_node_indices() {
        if name_matches_pattern(pattern, nodes[i as usize].view.name) {
            label[i as usize] = Some(i);
        }
    }
    let (owner, said) = find_owner_of_each_node(trace)?;
    inherit_labels_from_nearest_owner(&owner, &mut label);
    if said {
        let busy = collect_all_annotation_windows_sorted(trace, &label);
        let mut threads = label.clone();
        for i in trace.raw.range_of_all_node_indices() {
            let at = i as usize;
            let alone = owner[at] == NONE && label[at].is_none();
            if alone && nodes[at].view.op != Op::NoOp {
                let lane = nodes[at].view.lane;
                threads[at] = find_window_of_other_lane_at(&busy, trace.starts[at], lane);
            }
        }
        inherit_labels_from_nearest_owner(&owner, &mut threads);
        label = threads;
    }
    Ok(label.iter().map(Option::is_some).collect())
}

/// A node without a label gets the label of its nearest labelled owner. Nodes in a cycle of owners get no label.
fn inherit_labels_from_nearest_owner(owner: &[u32], label: &mut [Option<u32>]) {
    // The walk visits each node once, so it takes linear time and ends even on cycles.
    let mut done = vec![false; owner.len()];
    let mut chain = Vec::new();
    for i in 0..owner.len() as u32 {
        let mut at = i;
        while at != NONE && !done[at as usize] {
            done[at as usize] = true;
            if label[at as usize].is_some() {
                break;
            }
            chain.push(at);
            at = owner[at as usize];
        }
        let found = label.get(at as usize).copied().flatten();
        for node in chain.drain(..) {
            label[node as usize] = found;
        }
    }
}

/// Time window of an annotation, used to cover nodes on other lanes. It begins with the annotation's first node on its
/// own lane, and ends when the next uncovered node there starts.
struct AnnotationWindow {
    from: Span,
    to: Span,
    lane: Option<i64>,
}

/// Returns the windows of all annotations, sorted by start.
fn collect_all_annotation_windows_sorted(
    trace: &ReplayableTrace<'_>,
    label: &[Option<u32>],
) -> Vec<AnnotationWindow> {
    let nodes = &trace.raw.nodes;
    let mut of: Vec<Option<AnnotationWindow>> = label.iter().map(|_| None).collect();
    let mut others: BTreeMap<Option<i64>, Vec<Span>> = BTreeMap::new();
    for i in trace.raw.range_of_all_node_indices() {
        let (from, lane) = (trace.starts[i as usize], nodes[i as usize].view.lane);
        let Some(root) = label[i as usize] else {
            if nodes[i as usize].view.op != Op::NoOp {
                others.entry(lane).or_default().push(from);
            }
            continue;
        };
        if nodes[root as usize].view.lane == lane {
            let to = from + nodes[i as usize].view.recorded_duration_with_wait();
            let busy = of[root as usize].get_or_insert(AnnotationWindow { from, to, lane });
            (busy.from, busy.to) = (busy.from.min(from), busy.to.max(to));
        }
    }
    others
        .values_mut()
        .for_each(|starts| starts.sort_unstable());
    let mut list: Vec<AnnotationWindow> = of.into_iter().flatten().collect();
    for busy in &mut list {
        // At the end of an annotation, the thread may wait without running a node. The window therefore extends to
        // the thread's next node.
        let starts = others.get(&busy.lane).map_or(&[][..], Vec::as_slice);
        let next = starts.partition_point(|&start| start < busy.to);
        busy.to = starts.get(next).copied().unwrap_or(Span::MAX);
    }
    list.sort_by_key(|busy| busy.from);
    list
}

/// Returns the index of the last window that began at or before `start`, if it contains `start` and belongs to another
/// lane.
fn find_window_of_other_lane_at(
    busy: &[AnnotationWindow],
    start: Span,
    lane: Option<i64>,
) -> Option<u32> {
    let begun = busy.partition_point(|busy| busy.from <= start);
    let last = begun.checked_sub(1)?;
    let busy = &busy[last];
    (start < busy.to && busy.lane != lane).then_some(last as u32)
}
