//! A program is a rank's trace as an ordered list of items. Edits repeat, remove or change parts of it.
//!
//! An item is a node or a copy of a node. The list is in program order. Some dependencies only express that an item
//! follows the previous item of its thread or stream. After an edit, they are moved to the item that now precedes this
//! one. All other dependencies remain on the same item.

use super::kept_records::{KEPT, OriginalRecordsToRestore};
use chakram_base::units::Span;
use chakram_trace::format::attr::AttrView;
use chakram_trace::format::encoder::ProtobufMessageBuilder;
use chakram_trace::format::rewrite::{AttributeSetOrRemoval, RecordEdit};
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::wire::{FrameCursor, RawRecord, WireCursor, WireValue};
use chakram_trace::format::write::{AttributeValue, put_attribute};
use chakram_trace::format::{Op, TraceError, TrainingPhase, origin, work_amounts};
use chakram_trace::graph::raw_trace::{KeptNodeContentSelector, RawTrace};
use std::collections::BTreeMap;

/// The phase of the step to which a node belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrainingStepPhase {
    /// Work outside the training iteration, such as barriers between steps, and work whose purpose is unknown.
    Outside,
    /// The forward pass, which includes loading its input.
    Forward,
    /// The backward pass.
    Backward,
    /// Work on parameters and gradients: gathers, reductions, and copies into buckets.
    Parameters,
    /// The work of the optimizer.
    Optimizer,
}

impl TrainingStepPhase {
    /// Returns the name of the phase in the text form of edits.
    pub fn name_of_phase(self) -> &'static str {
        match self {
            Self::Outside => "outside",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Parameters => "parameters",
            Self::Optimizer => "optimizer",
        }
    }

    /// Returns the phase with this name; `None` unless the name is forward, backward or optimizer.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Forward, Self::Backward, Self::Optimizer];
        all.into_iter().find(|phase| phase.name_of_phase() == name)
    }
}

/// Makes [`RawTrace`] store the complete view of each node.
#[derive(Debug, Default)]
pub(super) struct KeepWholeNodeViewsMarker;

impl<'a> KeptNodeContentSelector<'a> for KeepWholeNodeViewsMarker {
    type Kept = NodeView<'a>;

    fn select_node_data_to_keep(&mut self, view: &NodeView<'a>) -> NodeView<'a> {
        *view
    }

    fn node_id(view: &NodeView<'a>) -> u64 {
        view.id
    }
}

/// New value for a record's attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NewAttributeValueOrRemoval {
    Count(u64),
    Text(String),
    Removed,
}

/// Facts about a node that its view lacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeFactsOutsideView<'a> {
    pub phase: TrainingStepPhase,
    /// Index of the step in program order, counted from 0; `None` for a node outside all steps.
    pub step: Option<u32>,
    /// The node that encloses or launched this node.
    pub caller: Option<u32>,
    pub inputs: &'a str,
    /// Types of the inputs, as text in the record.
    pub types: &'a str,
    pub outputs: &'a str,
    pub micro_batch: Option<u32>,
    pub layer: Option<u32>,
    /// Autograd's sequence number. An operator and the function that computes its gradient have the same number.
    pub sequence: Option<u64>,
    /// Values that earlier edits replaced, as text.
    pub unedited: Option<&'a str>,
}

/// A dependency of an item on another item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ItemDependency {
    pub on: u32,
    pub control: bool,
    /// True if the dependency only expresses the order of items in one thread. After an edit, such a dependency is
    /// moved to the item that now precedes this item on its thread.
    pub in_turn: bool,
}

/// A node, or a copy of a node.
#[derive(Clone, Debug)]
pub(super) struct NodeOrNodeCopy {
    pub node: u32,
    /// The item that encloses or launched this item.
    pub caller: Option<u32>,
    pub deps: Vec<ItemDependency>,
    pub changes: BTreeMap<&'static str, NewAttributeValueOrRemoval>,
    pub name: Option<String>,
    /// Record of an inserted item, which replaces the record of `node`.
    pub made: Option<Vec<u8>>,
}

/// Node attribute that stores the values that edits replaced.
pub(super) const UNEDITED: &str = "unedited";
/// Attribute of the metadata record that lists all edits that were applied to the trace.
const EDITS: &str = "edits";
/// Metadata attributes that describe only the captured job, each with the name that it gets in an edited job's trace.
const HIDDEN: [(&str, &str); 2] = [
    ("captured_ns", "unedited_captured_ns"),
    (work_amounts::ATTRIBUTE, "unedited_work_amounts"),
];

pub(super) struct EditableRankProgram<'a> {
    contents: &'a [u8],
    pub raw: RawTrace<'a, KeepWholeNodeViewsMarker>,
    pub facts: Vec<NodeFactsOutsideView<'a>>,
    /// Nodes, followed by copies and inserted items. The first items are the nodes, in index order.
    pub items: Vec<NodeOrNodeCopy>,
    /// Indices of the program's items, in program order.
    pub order: Vec<u32>,
    /// Earlier edits, in text form.
    pub earlier: Option<String>,
    /// Earlier edits and this edit, in text form.
    pub scaled: Option<String>,
    /// Records that earlier edits replaced, in text form.
    kept: Option<String>,
    /// Records that this edit replaced, in text form.
    pub keeps: Option<String>,
    /// Number of steps.
    pub steps: u32,
    /// True if nodes state their layers, as in generated jobs.
    pub has_layers: bool,
}

/// The thread or stream of a node: a flag that is true for the host, and the lane.
pub(super) type HostFlagAndLane = (bool, Option<i64>);

impl<'a> EditableRankProgram<'a> {
    /// Parses a trace. Fails if a replay would reject the trace.
    pub fn read_program(contents: &'a [u8]) -> Result<Self, TraceError> {
        let mut raw: RawTrace<'a, KeepWholeNodeViewsMarker> =
            RawTrace::read_trace_keeping_selected_data(contents);
        if !raw.faults.is_empty() {
            return Err(raw.faults.swap_remove(0).error);
        }
        let count = raw.nodes.len();
        let mut facts = Vec::with_capacity(count);
        for at in 0..count {
            let mut fact = read_node_facts_outside_view(raw.nodes[at].record)?;
            // This edit is combined with earlier edits, and applied to the kernel's unedited shape.
            let kernel = fact.unedited.and_then(|text| {
                let mut parts = text.split(';');
                parts.find_map(|part| part.strip_prefix("kernel_shape=")?.parse().ok())
            });
            let node = &mut raw.nodes[at];
            node.view.kernel = kernel.or(node.view.kernel);
            let node = &raw.nodes[at];
            fact.caller = node.view.origin.caller.and_then(|id| raw.find_node(id));
            facts.push(fact);
        }
        let mut this = Self {
            contents,
            facts,
            items: Vec::with_capacity(count),
            order: raw.range_of_all_node_indices().collect(),
            earlier: None,
            scaled: None,
            kept: None,
            keeps: None,
            steps: 0,
            has_layers: false,
            raw,
        };
        if let Some(first) = FrameCursor::new(contents).next_record()? {
            this.earlier = read_metadata_text_attribute(first, EDITS)?;
            this.scaled = this.earlier.clone();
            this.kept = read_metadata_text_attribute(first, KEPT)?;
        }
        let mut last: BTreeMap<HostFlagAndLane, u32> = BTreeMap::new();
        for i in this.raw.range_of_all_node_indices() {
            let thread = this.host_flag_and_lane_of_node(i);
            let front = last.get(&thread).copied();
            let deps = this.raw.dependencies_of(i).iter().filter_map(|dep| {
                let on = dep.target()?;
                Some(ItemDependency {
                    on,
                    control: dep.control,
                    in_turn: Some(on) == front,
                })
            });
            let deps = deps.collect();
            this.items.push(NodeOrNodeCopy {
                node: i,
                caller: this.facts[i as usize].caller,
                deps,
                changes: BTreeMap::new(),
                name: None,
                made: None,
            });
            if this.raw.nodes[i as usize].view.op != Op::NoOp {
                last.insert(thread, i);
            }
        }
        this.has_layers = this.facts.iter().any(|facts| facts.layer.is_some());
        this.assign_nodes_to_profiler_steps();
        this.find_phases();
        Ok(this)
    }

    pub fn view_of_node(&self, node: u32) -> &NodeView<'a> {
        &self.raw.nodes[node as usize].view
    }

    /// Returns the view of an item's node; for a copy, this is the view of the copied node.
    pub fn view_of_item(&self, item: u32) -> &NodeView<'a> {
        self.view_of_node(self.items[item as usize].node)
    }

    pub fn facts_of_item(&self, item: u32) -> &NodeFactsOutsideView<'a> {
        &self.facts[self.items[item as usize].node as usize]
    }

    /// Returns true if the host's CPU ran the kernels.
    pub fn kernels_ran_on_cpu(&self) -> bool {
        self.raw.metadata.kernels_on_cpu
    }

    pub fn host_flag_and_lane_of_node(&self, node: u32) -> HostFlagAndLane {
        let view = self.view_of_node(node);
        let on_host = match view.op {
            Op::Host => true,
            Op::Compute { .. } => self.kernels_ran_on_cpu(),
            _ => false,
        };
        (on_host, view.lane)
    }

    /// Iterates over the node itself, then its callers, innermost first.
    pub fn node_and_its_callers(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let mut left = self.facts.len();
        std::iter::successors(Some(node), move |&node| {
            // The limit ends the loop if the file's callers form a cycle.
            left = left.checked_sub(1)?;
            self.facts[node as usize].caller
        })
        .take(256)
    }

    /// Numbers the steps. The profiler's marks delimit steps. Without marks, the whole trace is one
    /// step.
    fn assign_nodes_to_profiler_steps(&mut self) {
        let mut numbers: BTreeMap<u64, u32> = BTreeMap::new();
        for node in &self.raw.nodes {
            if let Some(step) = node.view.origin.step {
                let next = numbers.len() as u32;
                numbers.entry(step).or_insert(next);
            }
        }
        if numbers.is_empty() {
            self.steps = 1;
            self.facts.iter_mut().for_each(|fact| fact.step = Some(0));
            return;
        }
        self.steps = numbers.len() as u32;
        let of_callers: Vec<_> = self
            .raw
            .range_of_all_node_indices()
            .map(|i| {
                let mut steps = self
                    .node_and_its_callers(i)
                    .map(|node| self.view_of_node(node).origin.step);
                steps.find_map(|step| step).map(|step| numbers[&step])
            })
            .collect();
        // On threads without marks, such as the thread of the backward pass, a node belongs to the step of the previous
        // node in program order.
        let mut current = None;
        for (fact, step) in self.facts.iter_mut().zip(of_callers) {
            current = step.or(current);
            fact.step = current;
        }
    }

    fn find_phases(&mut self) {
        let own: Vec<_> = self
            .raw
            .range_of_all_node_indices()
            .map(|i| phase_stated_by_node(self.view_of_node(i)))
            .collect();
        let named: Vec<Option<TrainingStepPhase>> = self
            .raw
            .range_of_all_node_indices()
            .map(|i| {
                self.node_and_its_callers(i)
                    .find_map(|node| own[node as usize])
            })
            .collect();
        // The training iteration is the range that encloses the optimizer or, if there is no optimizer, the backward
        // pass.
        let mut scopes: BTreeMap<Option<u32>, Option<u32>> = BTreeMap::new();
        for phase in [TrainingStepPhase::Backward, TrainingStepPhase::Optimizer] {
            for i in self.raw.range_of_all_node_indices() {
                if own[i as usize] == Some(phase) && self.view_of_node(i).labels.phase.is_none() {
                    let fact = &self.facts[i as usize];
                    let outer = fact.caller.filter(|&c| named[c as usize] != Some(phase));
                    if fact.caller.is_none() || outer.is_some() {
                        scopes.insert(fact.step, outer);
                    }
                }
            }
        }
        let mut bounds: BTreeMap<Option<u32>, [Option<u32>; 3]> = BTreeMap::new();
        for i in self.raw.range_of_all_node_indices() {
            let found = bounds.entry(self.facts[i as usize].step).or_default();
            match named[i as usize] {
                Some(TrainingStepPhase::Backward) => {
                    found[0] = found[0].or(Some(i));
                    found[1] = Some(i);
                }
                // Only an optimizer after a backward pass counts, because a capture may begin with the end of an
                // earlier iteration.
                Some(TrainingStepPhase::Optimizer) if found[1].is_some() => {
                    found[2] = found[2].or(Some(i))
                }
                _ => {}
            }
        }
        let later_passes = self.flag_forward_nodes_of_later_micro_batches(&named);
        let phases: Vec<_> = self
            .raw
            .range_of_all_node_indices()
            .map(|i| {
                let fact = &self.facts[i as usize];
                if let Some(phase) = named[i as usize] {
                    return phase;
                }
                if self.view_of_node(i).op == Op::NoOp {
                    return TrainingStepPhase::Outside;
                }
                let scope = scopes.get(&fact.step).copied().flatten();
                let inside = scope
                    .is_none_or(|scope| self.node_and_its_callers(i).skip(1).any(|c| c == scope));
                if fact.step.is_none() || !inside {
                    return TrainingStepPhase::Outside;
                }
                match bounds.get(&fact.step).copied().unwrap_or_default() {
                    [_, _, Some(optimizer)] if i > optimizer => TrainingStepPhase::Optimizer,
                    [_, Some(last), _] if i > last => TrainingStepPhase::Parameters,
                    [Some(first), ..] if i > first && !later_passes[i as usize] => {
                        TrainingStepPhase::Backward
                    }
                    _ => TrainingStepPhase::Forward,
                }
            })
            .collect();
        for (fact, phase) in self.facts.iter_mut().zip(phases) {
            fact.phase = phase;
        }
    }

    /// Returns one entry per node: true if the node belongs to the forward pass of a later micro-batch. Such a pass
    /// runs after the first backward pass, between functions that compute gradients, and contains an operator whose
    /// gradient is computed later.
    fn flag_forward_nodes_of_later_micro_batches(
        &self,
        named: &[Option<TrainingStepPhase>],
    ) -> Vec<bool> {
        let mut found_at: BTreeMap<u64, u32> = BTreeMap::new();
        for i in self.raw.range_of_all_node_indices() {
            if let (Some(TrainingStepPhase::Backward), Some(number)) =
                (named[i as usize], self.facts[i as usize].sequence)
            {
                found_at.insert(number, i);
            }
        }
        let mut forward = vec![false; named.len()];
        let (mut between, mut is_forward): (Vec<u32>, bool) = (Vec::new(), false);
        for i in self.raw.range_of_all_node_indices() {
            match named[i as usize] {
                Some(TrainingStepPhase::Backward) => {
                    for at in between.drain(..).filter(|_| is_forward) {
                        forward[at as usize] = true;
                    }
                    is_forward = false;
                }
                None => {
                    between.push(i);
                    let number = self.facts[i as usize].sequence;
                    let later = number.and_then(|number| found_at.get(&number));
                    is_forward |= later.is_some_and(|&later| later > i);
                }
                Some(_) => {}
            }
        }
        forward
    }

    /// Moves each transfer of `step` that an item launches to directly after this item.
    pub fn move_transfers_after_launches(&mut self, step: u32) {
        let mut behind: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let order = std::mem::take(&mut self.order);
        let mut kept = Vec::with_capacity(order.len());
        for item in order {
            let transfers = matches!(
                self.view_of_item(item).op,
                Op::Collective { .. } | Op::Message { .. }
            );
            match self.items[item as usize].caller {
                Some(launch) if transfers && self.facts_of_item(item).step == Some(step) => {
                    behind.entry(launch).or_default().push(item);
                }
                _ => kept.push(item),
            }
        }
        for item in kept {
            self.order.push(item);
            self.order.extend(behind.remove(&item).unwrap_or_default());
        }
        self.order.extend(behind.into_values().flatten());
    }

    /// Returns the position of each item in program order; `u32::MAX` for an item that is not in the program.
    pub fn item_positions(&self) -> Vec<u32> {
        let mut places = vec![u32::MAX; self.items.len()];
        for (place, &item) in (0..).zip(&self.order) {
            places[item as usize] = place;
        }
        places
    }

    /// Copies `items`, and returns the copies in the same order. Dependencies and callers among `items` become
    /// dependencies and callers among the copies. Copies do not depend on the items that `left_out` selects. The caller
    /// must insert the copies into the program order.
    pub fn clone_items_with_inner_dependencies(
        &mut self,
        items: &[u32],
        left_out: &dyn Fn(u32) -> bool,
    ) -> Vec<u32> {
        let first = self.items.len() as u32;
        let of: BTreeMap<u32, u32> = items.iter().copied().zip(first..).collect();
        for &item in items {
            let mut copy = self.items[item as usize].clone();
            copy.deps.retain(|dep| dep.in_turn || !left_out(dep.on));
            for dep in &mut copy.deps {
                dep.on = of.get(&dep.on).copied().unwrap_or(dep.on);
            }
            copy.caller = copy
                .caller
                .map(|caller| of.get(&caller).copied().unwrap_or(caller));
            self.items.push(copy);
        }
        (first..first + items.len() as u32).collect()
    }

    /// Creates an item from a record, and returns its index. The item depends on `after`, and belongs to the step of
    /// `after`. The caller must insert the item into the program order.
    pub fn add_item_from_record_after(&mut self, after: u32, record: Vec<u8>) -> u32 {
        let item = self.items.len() as u32;
        self.items.push(NodeOrNodeCopy {
            node: self.items[after as usize].node,
            caller: None,
            deps: vec![ItemDependency {
                on: after,
                control: false,
                in_turn: false,
            }],
            changes: BTreeMap::new(),
            name: None,
            made: Some(record),
        });
        item
    }

    /// Removes the items that `gone` selects. Items that depended on a removed item then depend on that item's
    /// dependencies.
    pub fn remove_items_and_bridge_dependencies(&mut self, gone: &dyn Fn(u32) -> bool) {
        let mut behind: BTreeMap<u32, Vec<ItemDependency>> = BTreeMap::new();
        let order = std::mem::take(&mut self.order);
        for item in order {
            let mut deps = Vec::new();
            for dep in std::mem::take(&mut self.items[item as usize].deps) {
                match behind.get(&dep.on) {
                    Some(led) if !dep.in_turn => {
                        let led = led.iter().filter(|to| !to.in_turn);
                        deps.extend(led.map(|to| ItemDependency {
                            control: to.control || dep.control,
                            ..*to
                        }));
                    }
                    _ => deps.push(dep),
                }
            }
            let mut known = Vec::new();
            deps.retain(|dep| {
                let new = !known.contains(&(dep.on, dep.in_turn));
                known.push((dep.on, dep.in_turn));
                new
            });
            if gone(item) {
                behind.insert(item, deps);
            } else {
                self.items[item as usize].deps = deps;
                self.order.push(item);
            }
        }
    }

    /// Encodes the program as a trace. If nothing changed, the result is the original bytes.
    pub fn encode_as_trace(&self) -> Result<Vec<u8>, TraceError> {
        let count = self.raw.nodes.len() as u32;
        let moved = !self.order.iter().copied().eq(0..count);
        let mut ids = vec![0; self.items.len()];
        let first = self.raw.nodes.first().map_or(1, |node| node.view.id);
        for (place, &item) in (0..).zip(&self.order) {
            ids[item as usize] = match moved {
                true => first + place,
                false => self.view_of_item(item).id,
            };
        }
        let mut out = Vec::with_capacity(self.contents.len());
        let mut message = ProtobufMessageBuilder::default();
        if let Some(record) = FrameCursor::new(self.contents).next_record()? {
            self.write_metadata_hiding_stale_attributes(record, &mut message)?;
            message.append_frame_to(&mut out);
        }
        let mut order = self.order.clone();
        if !moved {
            order.sort_by_key(|&item| self.raw.nodes[item as usize].record.number);
        }
        let fronts = self.previous_items_on_threads();
        let (mut control, mut data) = (Vec::new(), Vec::new());
        for item in order {
            let (at, own) = (item as usize, &self.items[item as usize]);
            let mut record = self.raw.nodes[own.node as usize].record;
            if let Some(made) = &own.made {
                record.bytes = made;
            }
            control.clear();
            data.clear();
            let mut known = Vec::new();
            for dep in &own.deps {
                let on = match dep.in_turn {
                    true => fronts[at],
                    // After a move, the target of a dependency may come after the item; drop such a dependency.
                    false => Some(dep.on).filter(|&on| {
                        let id = ids[on as usize];
                        id > 0 && (!moved || id < ids[at])
                    }),
                };
                let Some(on) = on else { continue };
                if !known.contains(&on) {
                    known.push(on);
                    let list = if dep.control { &mut control } else { &mut data };
                    list.push(ids[on as usize]);
                }
            }
            // Write dependencies in ascending order, as converters and generators do.
            control.sort_unstable();
            data.sort_unstable();
            let same = !moved && own.deps == self.dependencies_in_original_trace(own.node);
            let mut caller = BTreeMap::new();
            if moved && let Some(around) = own.caller {
                let name = match self.is_launched(own.node)? {
                    true => origin::LAUNCH,
                    false => origin::PARENT,
                };
                caller.insert(
                    name,
                    NewAttributeValueOrRemoval::Count(ids[around as usize]),
                );
            }
            let attributes = own.changes.iter().chain(&caller).map(|(name, value)| {
                let edit = match value {
                    NewAttributeValueOrRemoval::Count(count) => {
                        AttributeSetOrRemoval::Count(*count)
                    }
                    NewAttributeValueOrRemoval::Text(text) => AttributeSetOrRemoval::Text(text),
                    NewAttributeValueOrRemoval::Removed => AttributeSetOrRemoval::Remove,
                };
                (*name, edit)
            });
            let attributes: Vec<_> = attributes.collect();
            let edit = RecordEdit {
                id: moved.then_some(ids[at]),
                name: own.name.as_deref(),
                control: (!same).then_some(&control[..]),
                data: (!same).then_some(&data[..]),
                attributes: &attributes,
                ..RecordEdit::default()
            };
            edit.append_edited_record(record, &mut message, &mut out)?;
        }
        let kept = self
            .kept
            .as_deref()
            .filter(|_| self.do_edits_cancel_each_other());
        match kept.and_then(OriginalRecordsToRestore::parse) {
            Some(kept) => kept.put_back(out),
            None => Ok(out),
        }
    }

    /// Returns true if earlier edits and this edit cancel each other.
    fn do_edits_cancel_each_other(&self) -> bool {
        self.scaled.is_none() && self.earlier.is_some()
    }

    fn has_no_changed_items(&self) -> bool {
        self.items.iter().all(|item| item.changes.is_empty())
    }

    fn is_launched(&self, node: u32) -> Result<bool, TraceError> {
        let mut launched = false;
        super::super::for_each_attribute(self.raw.nodes[node as usize].record, |attr| {
            launched |= attr.name == origin::LAUNCH.as_bytes();
            Ok(())
        })?;
        Ok(launched)
    }

    fn dependencies_in_original_trace(&self, node: u32) -> Vec<ItemDependency> {
        let own = &self.items[node as usize].deps;
        let deps = self.raw.dependencies_of(node).iter().filter_map(|dep| {
            let on = dep.target()?;
            let in_turn = own.iter().any(|own| own.on == on && own.in_turn);
            Some(ItemDependency {
                on,
                control: dep.control,
                in_turn,
            })
        });
        deps.collect()
    }

    /// For each item, returns the previous item on its thread.
    fn previous_items_on_threads(&self) -> Vec<Option<u32>> {
        let mut fronts = vec![None; self.items.len()];
        let mut last: BTreeMap<HostFlagAndLane, u32> = BTreeMap::new();
        for &item in &self.order {
            let node = self.items[item as usize].node;
            if self.items[item as usize].made.is_some() {
                continue;
            }
            let thread = self.host_flag_and_lane_of_node(node);
            fronts[item as usize] = last.get(&thread).copied();
            if self.view_of_node(node).op != Op::NoOp {
                last.insert(thread, item);
            }
        }
        fronts
    }

    /// Writes the metadata record. The captured duration and the amounts of work do not describe an edited job, so
    /// their attributes are renamed in place. If all edits cancel each other, the original names are restored.
    fn write_metadata_hiding_stale_attributes(
        &self,
        record: RawRecord<'_>,
        out: &mut ProtobufMessageBuilder,
    ) -> Result<(), TraceError> {
        let moved = !self
            .order
            .iter()
            .copied()
            .eq(0..self.raw.nodes.len() as u32);
        let hide = moved || !self.has_no_changed_items() || self.scaled.is_some();
        let show = self.do_edits_cancel_each_other();
        let mut fields = WireCursor::new(record.bytes, record.offset);
        while !fields.is_empty() {
            let start = fields.file_offset() - record.offset;
            let (number, raw) = fields.read_field()?;
            let whole = &record.bytes[start..fields.file_offset() - record.offset];
            let (2, WireValue::Bytes(message, at)) = (number, raw) else {
                out.append_raw(whole);
                continue;
            };
            let name = AttrView::scan_attribute(message, at)?.name;
            let pair = HIDDEN.iter().find(|(shown, hidden)| {
                !show && hide && name == shown.as_bytes() || show && name == hidden.as_bytes()
            });
            match pair {
                _ if name == EDITS.as_bytes() => {}
                _ if name == KEPT.as_bytes() && (show || self.keeps.is_some()) => {}
                None => out.append_raw(whole),
                Some((shown, hidden)) => {
                    let renamed = if show { shown } else { hidden };
                    out.append_bytes(2, with_name(message, at, renamed)?.as_bytes());
                }
            }
        }
        for (name, text) in [(EDITS, &self.scaled), (KEPT, &self.keeps)] {
            if let Some(text) = text {
                out.append_nested(2, |put| {
                    put_attribute(put, name, AttributeValue::Text(text))
                });
            }
        }
        Ok(())
    }

    /// Returns true if the time of the node's work is in its delay instead of its duration. This is the case for a
    /// kernel that the host's CPU ran without a recorded duration, because the kernel's time is part of its caller's
    /// wait.
    pub fn has_work_time_in_delay(&self, node: u32) -> bool {
        let view = self.view_of_node(node);
        self.kernels_ran_on_cpu() && view.recorded == Span::ZERO
    }
}

/// Returns the phase that a node's own name or label indicates.
fn phase_stated_by_node(view: &NodeView<'_>) -> Option<TrainingStepPhase> {
    if let Some(phase) = view.labels.phase {
        return Some(match phase {
            TrainingPhase::Forward => TrainingStepPhase::Forward,
            TrainingPhase::Backward | TrainingPhase::Recompute => TrainingStepPhase::Backward,
            TrainingPhase::Synchronize => TrainingStepPhase::Parameters,
            TrainingPhase::Optimizer => TrainingStepPhase::Optimizer,
        });
    }
    let name = view.name;
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if starts(&["Optimizer.step"]) {
        Some(TrainingStepPhase::Optimizer)
    } else if name.contains("AccumulateGrad")
        || starts(&[
            "Optimizer.zero_grad",
            "torch::distributed::reducer",
            "torch.distributed.ddp.reducer",
            "FSDP::",
        ])
    {
        Some(TrainingStepPhase::Parameters)
    } else if starts(&["autograd::engine::evaluate_function"]) {
        Some(TrainingStepPhase::Backward)
    } else if let Some((_, backward)) = pass_begun_by_mark(name) {
        Some(if backward {
            TrainingStepPhase::Backward
        } else {
            TrainingStepPhase::Forward
        })
    } else {
        None
    }
}

/// Returns the pass that begins at a node whose name is a mark of `torch.distributed.pipelining`: the micro-batch, and
/// a flag that is true for a backward pass.
pub(super) fn pass_begun_by_mark(name: &str) -> Option<(u32, bool)> {
    let number = |rest: &str| rest.parse().ok();
    match (
        name.strip_prefix("Forward "),
        name.strip_prefix("Backward "),
    ) {
        (Some(rest), _) => Some((number(rest)?, false)),
        (_, Some(rest)) => Some((number(rest)?, true)),
        _ => None,
    }
}

/// Reads the facts in a record that its view lacks.
fn read_node_facts_outside_view(
    record: RawRecord<'_>,
) -> Result<NodeFactsOutsideView<'_>, TraceError> {
    let mut facts = NodeFactsOutsideView {
        phase: TrainingStepPhase::Outside,
        step: None,
        caller: None,
        inputs: "",
        types: "",
        outputs: "",
        micro_batch: None,
        layer: None,
        sequence: None,
        unedited: None,
    };
    let mut fields = WireCursor::new(record.bytes, record.offset);
    while !fields.is_empty() {
        let (number, raw) = fields.read_field()?;
        if let (8 | 9, WireValue::Bytes(io, at)) = (number, raw) {
            let mut inner = WireCursor::new(io, at);
            while !inner.is_empty() {
                let (part, WireValue::Bytes(text, _)) = inner.read_field()? else {
                    continue;
                };
                let text = std::str::from_utf8(text).unwrap_or_default();
                match (number, part) {
                    (8, 2) => facts.inputs = text,
                    (8, 3) => facts.types = text,
                    (9, 2) => facts.outputs = text,
                    _ => {}
                }
            }
        }
    }
    super::super::for_each_attribute(record, |attr| {
        let number = || attr.as_count().ok().and_then(|n| u32::try_from(n).ok());
        match attr.name {
            b"micro_batch" => facts.micro_batch = number(),
            b"layer" => facts.layer = number(),
            b"seq_id" => facts.sequence = attr.as_count().ok(),
            b"unedited" => facts.unedited = attr.as_str().ok().flatten(),
            _ => {}
        }
        Ok(())
    })?;
    Ok(facts)
}

/// Returns the string in an attribute of the metadata record.
fn read_metadata_text_attribute(
    record: RawRecord<'_>,
    name: &str,
) -> Result<Option<String>, TraceError> {
    let mut found = None;
    let mut fields = WireCursor::new(record.bytes, record.offset);
    while !fields.is_empty() {
        if let (2, WireValue::Bytes(message, at)) = fields.read_field()? {
            let attr = AttrView::scan_attribute(message, at)?;
            if attr.name == name.as_bytes() {
                found = attr.as_str()?.map(str::to_owned);
            }
        }
    }
    Ok(found)
}

/// Returns the attribute's message with its name changed to `name`.
fn with_name(message: &[u8], at: usize, name: &str) -> Result<ProtobufMessageBuilder, TraceError> {
    let mut out = ProtobufMessageBuilder::default();
    let mut fields = WireCursor::new(message, at);
    while !fields.is_empty() {
        let start = fields.file_offset() - at;
        match fields.read_field()? {
            (1, _) => out.append_bytes(1, name.as_bytes()),
            _ => out.append_raw(&message[start..fields.file_offset() - at]),
        }
    }
    Ok(out)
}
