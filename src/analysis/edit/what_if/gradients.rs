//! Gradient reductions as in DistributedDataParallel: parameter hooks, buckets, and the nodes that wait for buckets.
//!
//! Gradients become ready in the order in which the parameters' hooks run. A bucket collects gradients until its size
//! reaches the limit, and is then reduced. The last bucket contains the remaining gradients.

use super::MatchedAndChangedItemCounts;
use super::program::{
    EditableRankProgram, ItemDependency, NewAttributeValueOrRemoval, NodeOrNodeCopy,
    TrainingStepPhase,
};
use super::shapes::{count_elements, parse_shapes};
use chakram_base::statistics::median;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::wire::FrameCursor;
use chakram_trace::format::write::{NodeFieldsBeyondView, TraceWriter};
use chakram_trace::format::{CollectiveKind, GroupName, Op, TraceError};
use std::collections::{BTreeMap, BTreeSet};

/// Name of the hook that runs when a parameter's gradient has been computed.
const HOOK: &str = "torch::autograd::AccumulateGrad";

/// The nodes of one step that reduce gradients.
#[derive(Debug, Default)]
pub(super) struct StepGradientReductions {
    /// Collectives that reduce gradients, in program order.
    pub collectives: Vec<u32>,
    /// For each collective: the host operator that launches it, and all nodes inside this operator.
    pub launches: Vec<Vec<u32>>,
    /// Nodes that copy gradients into their buckets.
    pub fills: BTreeSet<u32>,
    /// Parameters, in the order in which their gradients become ready. For each parameter: the outermost node of its
    /// hook, and its number of elements.
    pub hooks: Vec<(u32, u64)>,
    /// For each gradient, the number of bytes per element, if the capture records the element type.
    pub element_sizes: Vec<Option<u64>>,
    /// Nodes that compute gradients, each with the index of its hook. Used only if no host node launches the
    /// reductions.
    pub producers: Vec<(u32, usize)>,
}

impl StepGradientReductions {
    /// Finds the reductions of gradients in one step.
    pub fn find_reductions(program: &EditableRankProgram<'_>, step: u32) -> Self {
        let mut this = Self::default();
        let of_step = |&item: &u32| program.facts_of_item(item).step == Some(step);
        let items: Vec<u32> = program.order.iter().copied().filter(of_step).collect();
        for &item in &items {
            if is_gradient_reduction(program, item) {
                this.collectives.push(item);
            }
        }
        let operators = this
            .collectives
            .iter()
            .map(|&item| program.items[item as usize].caller);
        let operators: Vec<Option<u32>> = operators.collect();
        this.launches = vec![Vec::new(); operators.len()];
        // A hook may consist of nested nodes; the outermost node identifies the hook.
        for &item in &items {
            if program.facts_of_item(item).phase != TrainingStepPhase::Parameters {
                continue;
            }
            let mut at = Some(item);
            let (mut launch, mut fills, mut around) = (None, false, None);
            for _ in 0..64 {
                let Some(caller) = at else { break };
                launch = launch.or(operators.iter().position(|&op| op == Some(caller)));
                let name = program.view_of_item(caller).name;
                fills |= name.starts_with("torch::distributed::reducer")
                    || name.starts_with("FSDP::post_backward_reduce");
                if name.contains("AccumulateGrad") {
                    around = Some(caller);
                }
                at = program.items[caller as usize].caller;
            }
            match launch {
                Some(index) if !is_gradient_reduction(program, item) => {
                    this.launches[index].push(item)
                }
                _ if fills => {
                    this.fills.insert(item);
                }
                _ => {}
            }
            if program.view_of_item(item).name == HOOK {
                let shapes = parse_shapes(program.facts_of_item(item).inputs);
                let first = shapes.first();
                this.element_sizes.push(element_bytes_of_first_tensor(
                    program.facts_of_item(item).types,
                ));
                this.hooks
                    .extend(first.map(|shape| (around.unwrap_or(item), count_elements(shape))));
            }
        }
        this
    }

    /// Keeps only reductions of buckets, and removes all others, such as those that reduce to shards.
    pub fn keep_bucket_reductions(mut self, program: &EditableRankProgram<'_>) -> Self {
        let mut kept = self
            .collectives
            .iter()
            .map(|&item| is_bucket_reduction(program, item));
        let launches = std::mem::take(&mut self.launches);
        self.launches = launches
            .into_iter()
            .filter(|_| kept.next().unwrap_or(false))
            .collect();
        self.collectives
            .retain(|&item| is_bucket_reduction(program, item));
        self
    }

    /// Returns true if a node reduces gradients, or prepares or launches such a reduction.
    pub fn is_part_of_reduction(&self, item: u32) -> bool {
        self.collectives.contains(&item)
            || self.fills.contains(&item)
            || self.launches.iter().any(|items| items.contains(&item))
    }

    /// Returns true if every backward pass reduces its gradients, as in jobs with sharded gradients or parameters. In
    /// other jobs, only the last backward pass before the optimizer does.
    pub fn has_reductions_in_each_pass(&self, program: &EditableRankProgram<'_>) -> bool {
        let shards = |&item: &u32| {
            matches!(
                program.view_of_item(item).op,
                Op::Collective {
                    kind: CollectiveKind::ReduceScatter,
                    ..
                }
            )
        };
        let Some(&first) = self.collectives.iter().find(|item| shards(item)) else {
            return false;
        };
        reduces_gradients_to_shards(program, first) || has_parameter_gathers_in_passes(program)
    }

    /// Sums the elements of all parameters that have a captured hook.
    pub fn sum_parameter_elements_of_hooks(&self) -> u64 {
        self.hooks.iter().map(|hook| hook.1).sum()
    }

    /// Sums the bytes of all reductions.
    pub fn sum_bytes(&self, program: &EditableRankProgram<'_>) -> u64 {
        let bytes = self.collectives.iter();
        bytes
            .map(|&item| collective_bytes_after_edits(program, item))
            .sum()
    }

    /// Returns the gradients' bytes per element; `None` if the reductions do not contain every gradient exactly once.
    fn element_bytes(&self, program: &EditableRankProgram<'_>) -> Option<u64> {
        let (all, bytes) = (
            self.sum_parameter_elements_of_hooks(),
            self.sum_bytes(program),
        );
        (all > 0 && bytes.is_multiple_of(all)).then(|| bytes / all)
    }

    /// Returns the bucket limit that explains the captured buckets, in bytes: the size of the smallest bucket, not
    /// counting the last.
    pub fn bucket_limit_from_smallest_bucket(
        &self,
        program: &EditableRankProgram<'_>,
    ) -> Option<u64> {
        let full = self.collectives.split_last()?.1.iter();
        full.map(|&item| collective_bytes_after_edits(program, item))
            .min()
    }
}

/// Returns true if a reduction leaves each rank with only its shard of the gradients. In generated jobs, such a
/// reduction frees temporary memory as large as the full gradients.
pub(super) fn reduces_gradients_to_shards(
    program: &EditableRankProgram<'_>,
    reduction: u32,
) -> bool {
    let mut memory = program
        .view_of_item(reduction)
        .memory
        .nonzero_changes_with_attribute_names();
    let bytes = collective_bytes_after_edits(program, reduction);
    memory.any(|(name, freed)| name == "frees.temporary" && freed == bytes && bytes > 0)
}

/// Returns true if forward and backward passes gather sharded parameters.
pub(super) fn has_parameter_gathers_in_passes(program: &EditableRankProgram<'_>) -> bool {
    program.order.iter().any(|&item| {
        let facts = program.facts_of_item(item);
        let gathers = matches!(
            program.view_of_item(item).op,
            Op::Collective {
                kind: CollectiveKind::AllGather,
                ..
            }
        );
        let node = program.items[item as usize].node;
        gathers
            && facts.phase == TrainingStepPhase::Parameters
            && (facts.micro_batch.is_some()
                || program.node_and_its_callers(node).any(|caller| {
                    program
                        .view_of_node(caller)
                        .name
                        .starts_with("FSDP::all_gather")
                }))
    })
}

/// Returns the bytes per element of the first tensor in `types`, a list of tensor types.
fn element_bytes_of_first_tensor(types: &str) -> Option<u64> {
    let first = &types[types.find("Tensor(")? + 7..];
    let name = &first[..first.find(')')?];
    match name.trim_start_matches("c10::") {
        "double" | "long" => Some(8),
        "float" | "int" => Some(4),
        "BFloat16" | "Half" => Some(2),
        _ => None,
    }
}

pub(super) fn is_gradient_reduction(program: &EditableRankProgram<'_>, item: u32) -> bool {
    let reduces = matches!(
        program.view_of_item(item).op,
        Op::Collective {
            kind: CollectiveKind::AllReduce | CollectiveKind::ReduceScatter,
            ..
        }
    );
    reduces && program.facts_of_item(item).phase == TrainingStepPhase::Parameters
}

/// Returns true if a node reduces a bucket of gradients. In captures, every all-reduce of gradients reduces a bucket.
/// In generated jobs, the reduction must belong to a layer. Other reductions, such as the sum for an embedding that two
/// stages share, do not reduce buckets.
pub(super) fn is_bucket_reduction(program: &EditableRankProgram<'_>, item: u32) -> bool {
    if program.has_layers {
        return is_gradient_reduction(program, item) && program.facts_of_item(item).layer.is_some();
    }
    let sums = matches!(
        program.view_of_item(item).op,
        Op::Collective {
            kind: CollectiveKind::AllReduce,
            ..
        }
    );
    sums && is_gradient_reduction(program, item)
}

pub(super) fn collective_bytes_after_edits(program: &EditableRankProgram<'_>, item: u32) -> u64 {
    match program.items[item as usize].changes.get("comm_size") {
        Some(NewAttributeValueOrRemoval::Count(bytes)) => *bytes,
        _ => match program.view_of_item(item).op {
            Op::Collective { bytes, .. } => bytes,
            _ => 0,
        },
    }
}

/// Recorded times of all the job's collectives, by kind, in picoseconds per KiB.
#[derive(Clone, Debug, Default)]
pub(super) struct CollectiveTimesPerKib(BTreeMap<CollectiveKind, Vec<u64>>);

impl CollectiveTimesPerKib {
    /// Adds the collectives in the trace of one rank.
    pub fn learn_rates(&mut self, program: &EditableRankProgram<'_>) {
        for i in program.raw.range_of_all_node_indices() {
            let view = program.view_of_node(i);
            if let Op::Collective { kind, bytes, .. } = view.op
                && bytes > 0
                && view.recorded.0 > 0
            {
                let rate = u128::from(view.recorded.0) * 1024 / u128::from(bytes);
                self.0
                    .entry(kind)
                    .or_default()
                    .push(u64::try_from(rate).unwrap_or(u64::MAX));
            }
        }
    }

    /// Predicts the time of a collective of `bytes`, in nanoseconds. Uses the first quartile of the recorded times per
    /// byte, because slower collectives include time spent waiting for busy hosts. Returns 0 if no time was recorded
    /// for this kind.
    pub fn predict_transfer_ns(&self, kind: CollectiveKind, bytes: u64) -> u64 {
        let Some(rates) = self.0.get(&kind) else {
            return 0;
        };
        let mut rates = rates.clone();
        rates.sort_unstable();
        let rate = rates[rates.len() / 4];
        let ps = u128::from(rate) * u128::from(bytes) / 1024;
        u64::try_from(ps / 1000).unwrap_or(u64::MAX)
    }
}

/// Returns median delays in nanoseconds. The first result is the median over all nodes that directly follow a node in
/// `after` on the same thread. The second result contains the median for each name, over all other nodes with this
/// name.
pub(super) fn median_delays_after_nodes_and_by_name(
    program: &EditableRankProgram<'_>,
    after: &BTreeSet<u32>,
) -> (Option<u64>, BTreeMap<String, u64>) {
    let (mut behind, mut others) = (Vec::new(), BTreeMap::<String, Vec<u64>>::new());
    for item in &program.items {
        let view = program.view_of_node(item.node);
        let ns = view.delay.0 / 1000;
        let follows = item
            .deps
            .iter()
            .any(|dep| dep.in_turn && after.contains(&dep.on));
        match follows {
            true => behind.push(ns),
            false => others.entry(view.name.to_owned()).or_default().push(ns),
        }
    }
    let medians = others
        .into_iter()
        .filter_map(|(name, mut all)| Some((name, median(&mut all)?)));
    let medians = medians.collect();
    (median(&mut behind), medians)
}

/// Divides the gradients of every step into new buckets of `limit` bytes.
///
/// # Errors
///
/// Fails if the job has no parameter hooks, or if the captured buckets do not contain every gradient exactly once.
pub(super) fn regroup_gradients(
    program: &mut EditableRankProgram<'_>,
    limit: u64,
    rates: &CollectiveTimesPerKib,
    bytes_per_element: Option<u64>,
) -> Result<MatchedAndChangedItemCounts, TraceError> {
    let mut counts = MatchedAndChangedItemCounts::default();
    for step in 0..program.steps {
        counts.add_counts(&regroup_gradients_of_step(
            program,
            step,
            limit,
            rates,
            bytes_per_element,
        )?);
    }
    Ok(counts)
}

/// Divides the gradients of one step into new buckets. `bytes_per_element` is used if the reductions no longer show how
/// large a gradient's elements are.
pub(super) fn regroup_gradients_of_step(
    program: &mut EditableRankProgram<'_>,
    step: u32,
    limit: u64,
    rates: &CollectiveTimesPerKib,
    bytes_per_element: Option<u64>,
) -> Result<MatchedAndChangedItemCounts, TraceError> {
    let found =
        StepGradientReductions::find_reductions(program, step).keep_bucket_reductions(program);
    regroup_found_gradients(program, found, limit, rates, bytes_per_element)
}

/// Divides the gradients that `found` reduces into new buckets.
pub(super) fn regroup_found_gradients(
    program: &mut EditableRankProgram<'_>,
    found: StepGradientReductions,
    limit: u64,
    rates: &CollectiveTimesPerKib,
    bytes_per_element: Option<u64>,
) -> Result<MatchedAndChangedItemCounts, TraceError> {
    let mut counts = MatchedAndChangedItemCounts::default();
    if found.collectives.is_empty() && found.hooks.is_empty() {
        return Ok(counts);
    }
    let each = bytes_per_element.or_else(|| found.element_bytes(program));
    let (Some(each), Some(&template)) = (each, found.collectives.first()) else {
        return Err(super::refuse_edit(
            "the buckets of gradients are unknown: the job does not reduce the gradients of the parameters \
             whose hooks are captured",
            "edit a job of DistributedDataParallel that was captured with shapes",
        ));
    };
    counts.matched += found.collectives.len() as u64;
    // The new buckets. For each bucket: the indices of its first and last hook, and its bytes.
    let mut buckets: Vec<(usize, usize, u64)> = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for (i, &(_, elements)) in found.hooks.iter().enumerate() {
        bytes += elements * each;
        if bytes >= limit || i + 1 == found.hooks.len() {
            buckets.push((from, i, bytes));
            (from, bytes) = (i + 1, 0);
        }
    }
    let old = found
        .collectives
        .iter()
        .map(|&item| collective_bytes_after_edits(program, item));
    if buckets.iter().map(|bucket| bucket.2).eq(old) {
        return Ok(counts);
    }
    counts.changed += buckets.len() as u64;
    counts.added += buckets.len() as u64;
    counts.removed += found.collectives.len() as u64;
    if !rates.0.is_empty() {
        let basis = "transfers of buckets by the bytes of the fastest quarter that was recorded";
        counts.notes.insert(basis.to_owned());
    }
    replace_bucket_reductions(program, &found, &buckets, template, rates);
    Ok(counts)
}

/// Removes the nodes that gather parameters for the backward pass, and those that copy data into and out of the
/// gathered buffers. The backward pass then uses the parameters that the forward pass gathered.
pub(super) fn keep_parameters_gathered(
    program: &mut EditableRankProgram<'_>,
) -> MatchedAndChangedItemCounts {
    let mut counts = MatchedAndChangedItemCounts::default();
    let mut gone = BTreeSet::new();
    let places = program.item_positions();
    let mut backward: BTreeMap<Option<u32>, u32> = BTreeMap::new();
    for &item in &program.order {
        let facts = program.facts_of_item(item);
        if facts.phase == TrainingStepPhase::Backward {
            backward.entry(facts.step).or_insert(places[item as usize]);
        }
    }
    for &item in &program.order {
        let gathers = matches!(
            program.view_of_item(item).op,
            Op::Collective {
                kind: CollectiveKind::AllGather,
                ..
            }
        );
        let facts = program.facts_of_item(item);
        counts.matched += u64::from(gathers && facts.phase == TrainingStepPhase::Parameters);
        let from = backward.get(&facts.step);
        let node = program.items[item as usize].node;
        let of_gather = program.node_and_its_callers(node).any(|caller| {
            program
                .view_of_node(caller)
                .name
                .starts_with("FSDP::all_gather")
        });
        if of_gather && from.is_some_and(|&from| places[item as usize] > from) {
            counts.changed += u64::from(gathers);
            gone.insert(item);
        }
    }
    counts.removed += gone.len() as u64;
    if counts.changed == 0 {
        // Report no match, because either the job never frees parameters or the capture does not show what its gathers
        // are for.
        counts.matched = 0;
    }
    program.remove_items_and_bridge_dependencies(&|item| gone.contains(&item));
    counts
}

/// Moves all gradient reductions to the end of the backward pass, so that they do not overlap with it.
pub(super) fn move_reductions_to_end(
    program: &mut EditableRankProgram<'_>,
) -> MatchedAndChangedItemCounts {
    let mut counts = MatchedAndChangedItemCounts::default();
    for step in 0..program.steps {
        let found = StepGradientReductions::find_reductions(program, step);
        let of_step = |item: u32| program.facts_of_item(item).step == Some(step);
        let last = program.order.iter().rposition(|&item| {
            let facts = program.facts_of_item(item);
            of_step(item)
                && (facts.phase == TrainingStepPhase::Backward
                    || found.hooks.last().is_some_and(|hook| hook.0 == item))
        });
        let Some(&last) = last.and_then(|last| program.order.get(last)) else {
            continue;
        };
        let places = program.item_positions();
        let early: Vec<u32> = (found.collectives.iter().copied())
            .filter(|&item| places[item as usize] < places[last as usize])
            .collect();
        counts.matched += found.collectives.len() as u64;
        counts.changed += early.len() as u64;
        for &item in &early {
            program.items[item as usize].deps.push(ItemDependency {
                on: last,
                control: false,
                in_turn: false,
            });
        }
        let mut order = Vec::with_capacity(program.order.len());
        for item in std::mem::take(&mut program.order) {
            if early.contains(&item) {
                continue;
            }
            order.push(item);
            if item == last {
                order.extend(&early);
            }
        }
        program.order = order;
    }
    counts
}

/// Inserts all-reduces of buckets of `limit` bytes. Returns the number of inserted all-reduces.
pub(super) fn insert_bucket_all_reduces(
    program: &mut EditableRankProgram<'_>,
    found: &StepGradientReductions,
    limit: u64,
    step: u32,
    group: &str,
) -> Result<u64, TraceError> {
    let mut behind: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut all = Vec::new();
    let mut bytes = 0;
    for (i, &(hook, elements)) in found.hooks.iter().enumerate() {
        let each = found
            .element_sizes
            .get(i)
            .copied()
            .flatten()
            .ok_or_else(|| {
                super::refuse_edit(
                    "the number format of the job's gradients is not captured",
                    "capture the job with shapes and types of arguments",
                )
            })?;
        bytes += elements * each;
        if bytes >= limit || i + 1 == found.hooks.len() {
            let made = program.add_item_from_record_after(hook, encode_all_reduce(bytes, group));
            behind.entry(hook).or_default().push(made);
            all.push(made);
            bytes = 0;
        }
    }
    let mut waits = program.order.iter().copied();
    let wait = waits.find(|&item| {
        let facts = program.facts_of_item(item);
        facts.step == Some(step) && facts.phase == TrainingStepPhase::Optimizer
    });
    if let Some(wait) = wait {
        let deps = all.iter().map(|&on| ItemDependency {
            on,
            control: false,
            in_turn: false,
        });
        program.items[wait as usize].deps.extend(deps);
    }
    let mut order = Vec::with_capacity(program.order.len() + all.len());
    for item in std::mem::take(&mut program.order) {
        order.push(item);
        order.extend(behind.remove(&item).unwrap_or_default());
    }
    program.order = order;
    Ok(all.len() as u64)
}

/// Encodes the record of an all-reduce in `group`. Its id and dependencies are set later.
fn encode_all_reduce(bytes: u64, group: &str) -> Vec<u8> {
    let kind = CollectiveKind::AllReduce;
    let view = NodeView {
        lane: Some(1000),
        ..NodeView::new(
            1,
            "all_reduce of gradients (inserted)",
            Op::Collective {
                kind,
                bytes,
                group: GroupName::Text(group),
                root: None,
                dimensions: None,
                host: false,
            },
        )
    };
    encode_node(&view)
}

fn encode_node(view: &NodeView<'_>) -> Vec<u8> {
    let written = TraceWriter::new(Vec::new()).and_then(|mut writer| {
        let node = writer.write_node(view, &[], &NodeFieldsBeyondView::default());
        node.map_err(std::io::Error::other)?;
        Ok(writer.into_unflushed_sink())
    });
    let file = written.unwrap_or_default();
    let mut frames = FrameCursor::new(&file);
    let mut last = Vec::new();
    while let Ok(Some(record)) = frames.next_record() {
        last = record.bytes.to_vec();
    }
    last
}

fn replace_bucket_reductions(
    program: &mut EditableRankProgram<'_>,
    found: &StepGradientReductions,
    buckets: &[(usize, usize, u64)],
    template: u32,
    rates: &CollectiveTimesPerKib,
) {
    let gone: BTreeSet<u32> = found
        .collectives
        .iter()
        .chain(found.launches.iter().flatten())
        .copied()
        .collect();
    let launchers: BTreeSet<u32> = found.launches.iter().flatten().copied().collect();
    let (behind, calm) = median_delays_after_nodes_and_by_name(program, &launchers);
    // For each old bucket, the first node that depends on its reduction.
    let mut waits: Vec<Option<u32>> = vec![None; found.collectives.len()];
    for &item in &program.order {
        if gone.contains(&item) {
            continue;
        }
        for dep in &program.items[item as usize].deps {
            if let Some(bucket) = found.collectives.iter().position(|&c| c == dep.on) {
                waits[bucket] = waits[bucket].or(Some(item));
            }
        }
    }
    let ends = last_hooks_of_buckets(program, found);
    let launch = found.launches.first().cloned().unwrap_or_default();
    let first_fronts: BTreeSet<u32> = launchers.clone();
    let mut insert: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut of_waits: Vec<(u32, u32)> = Vec::new();
    for &(from, last, bytes) in buckets {
        let mut parts = launch.clone();
        parts.push(template);
        let copies = program.clone_items_with_inner_dependencies(&parts, &|_| false);
        let collective = copies[copies.len() - 1];
        let kind = match program.view_of_item(template).op {
            Op::Collective { kind, .. } => kind,
            _ => CollectiveKind::AllReduce,
        };
        let old = collective_bytes_after_edits(program, template);
        let memory: Vec<_> = program
            .view_of_item(template)
            .memory
            .nonzero_changes_with_attribute_names()
            .collect();
        let changes = &mut program.items[collective as usize].changes;
        changes.insert("comm_size", NewAttributeValueOrRemoval::Count(bytes));
        for (name, freed) in memory {
            // The reduction frees whole gradients and leaves shards, so the number of freed bytes is the bucket's new
            // size.
            if name == "frees.temporary" && freed == old {
                changes.insert(name, NewAttributeValueOrRemoval::Count(bytes));
            }
        }
        if !launch.is_empty() {
            // Captured calls also record their input and output bytes.
            changes.insert("in_bytes", NewAttributeValueOrRemoval::Count(bytes));
            changes.insert("out_bytes", NewAttributeValueOrRemoval::Count(bytes));
        }
        let ns = rates.predict_transfer_ns(kind, bytes);
        if ns > 0 {
            changes.insert("duration_ns", NewAttributeValueOrRemoval::Count(ns));
            changes.insert("wait_ns", NewAttributeValueOrRemoval::Removed);
            changes.insert("eager", NewAttributeValueOrRemoval::Removed);
        }
        // The new collective depends only on its launch, whatever the copied collective depends on.
        let own = &mut program.items[collective as usize].deps;
        own.retain(|dep| copies.contains(&dep.on));
        let at = found.hooks[last].0;
        if let Some(launch) = copies.iter().rev().nth(1)
            && own.is_empty()
        {
            own.push(ItemDependency {
                on: *launch,
                control: false,
                in_turn: false,
            });
        }
        if launch.is_empty() {
            let of_bucket = found
                .producers
                .iter()
                .filter(|(_, hook)| (from..=last).contains(hook));
            program.items[collective as usize].deps = of_bucket
                .map(|&(on, _)| ItemDependency {
                    on,
                    control: false,
                    in_turn: false,
                })
                .collect();
            let layer = program.items[at as usize].changes.get("layer").cloned();
            let layer = layer.or(program
                .facts_of_item(at)
                .layer
                .map(|layer| NewAttributeValueOrRemoval::Count(layer.into())));
            let hook = program.items[at as usize].name.clone();
            let hook = hook.unwrap_or_else(|| program.view_of_item(at).name.to_owned());
            // In generated jobs, a reduction has the name of the layer that computes its last gradient.
            let own = program.view_of_item(template).name;
            if let (Some((layer, _)), Some(at)) =
                (hook.rsplit_once("/bwd"), own.find("/gradients/"))
            {
                program.items[collective as usize].name = Some(format!("{layer}{}", &own[at..]));
            }
            if let Some(layer) = layer {
                program.items[collective as usize]
                    .changes
                    .insert("layer", layer);
            }
        }
        for &copy in &copies {
            let outside = (!launch.is_empty()).then_some(at);
            let item: &mut NodeOrNodeCopy = &mut program.items[copy as usize];
            if item.caller.is_some_and(|caller| !copies.contains(&caller)) {
                item.caller = outside.or(item.caller);
            }
        }
        if let Some(behind) = behind {
            set_delay(program, at, behind);
        }
        insert.entry(at).or_default().extend(copies);
        let bucket = ends
            .iter()
            .position(|&end| from <= end)
            .unwrap_or(ends.len().saturating_sub(1));
        if let Some(wait) = waits.get(bucket).copied().flatten() {
            of_waits.push((wait, collective));
        }
    }
    for (wait, collective) in of_waits {
        program.items[wait as usize].deps.push(ItemDependency {
            on: collective,
            control: false,
            in_turn: false,
        });
    }
    let mut order = Vec::with_capacity(program.order.len());
    let mut follows = false;
    for item in std::mem::take(&mut program.order) {
        // The host launches the reduction from inside the hook. The hook's own node is its last node, so insert the
        // launch before that.
        let mut after = Vec::new();
        if let Some(copies) = insert.remove(&item) {
            match launch.is_empty() {
                true => after = copies,
                false => {
                    order.extend(copies);
                    follows = true;
                }
            }
        }
        if gone.contains(&item) {
            continue;
        }
        let front = program.items[item as usize]
            .deps
            .iter()
            .find(|dep| dep.in_turn);
        if front.is_some_and(|dep| first_fronts.contains(&dep.on)) && !follows {
            let name = program.view_of_item(item).name.to_owned();
            if let Some(&ns) = calm.get(&name) {
                set_delay(program, item, ns);
            }
        }
        follows = false;
        order.push(item);
        order.extend(after);
        let deps = &mut program.items[item as usize].deps;
        deps.retain(|dep| !gone.contains(&dep.on) || dep.in_turn && launchers.contains(&dep.on));
    }
    program.order = order;
}

/// For each old bucket, returns the index of its last hook.
fn last_hooks_of_buckets(
    program: &EditableRankProgram<'_>,
    found: &StepGradientReductions,
) -> Vec<usize> {
    let places = program.item_positions();
    let last = |item: u32| places[item as usize];
    let ends = found.collectives.iter().map(|&collective| {
        let behind = found
            .hooks
            .iter()
            .position(|hook| last(hook.0) > last(collective));
        behind.unwrap_or(found.hooks.len().saturating_sub(1))
    });
    ends.collect()
}

/// Sets a node's delay in nanoseconds; if the delay is 0, removes the attribute.
fn set_delay(program: &mut EditableRankProgram<'_>, item: u32, ns: u64) {
    let value = match ns {
        0 => NewAttributeValueOrRemoval::Removed,
        ns => NewAttributeValueOrRemoval::Count(ns),
    };
    program.items[item as usize]
        .changes
        .insert("delay_ns", value);
}
