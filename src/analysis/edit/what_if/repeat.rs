//! Edits that repeat parts of a program: gradient accumulation, and more micro-batches of a pipeline.

use super::MatchedAndChangedItemCounts;
use super::gradients::{StepGradientReductions, median_delays_after_nodes_and_by_name};
use super::grammar::{PipelinePassOrder, ScaleFactor};
use super::kernels::{BatchSequenceHiddenFactors, KernelWorkAndTimeScaler};
use super::program::{
    EditableRankProgram, HostFlagAndLane, ItemDependency, NewAttributeValueOrRemoval,
    TrainingStepPhase, pass_begun_by_mark,
};
use chakram_trace::format::{Op, TraceError};
use std::collections::{BTreeMap, BTreeSet};

/// Repeats the forward and backward passes `times` times before each optimizer step. Only the last backward pass
/// reduces gradients. Starting with the second backward pass, each parameter's gradient is added to the sum so far,
/// which takes one addition per parameter. An addition is assumed to take as long as copying the gradient into its
/// bucket.
pub(super) fn repeat_passes_before_optimizer(
    program: &mut EditableRankProgram<'_>,
    times: u32,
) -> Result<MatchedAndChangedItemCounts, TraceError> {
    let mut counts = MatchedAndChangedItemCounts::default();
    for step in 0..program.steps {
        let found = StepGradientReductions::find_reductions(program, step);
        // Sharded gradients are reduced in every pass, other gradients only once.
        let each = found.has_reductions_in_each_pass(program);
        let ends = if each {
            found.collectives.clone()
        } else {
            Vec::new()
        };
        let reductions = if each {
            StepGradientReductions::default()
        } else {
            found
        };
        let of_step = |item: u32| program.facts_of_item(item).step == Some(step);
        let phase = |item: u32| program.facts_of_item(item).phase;
        let Some(last) = program.order.iter().rposition(|&item| {
            of_step(item)
                && (phase(item) == TrainingStepPhase::Backward
                    || is_called_by_gradient_accumulation(program, item)
                    || ends.contains(&item)
                    || matches!(program.view_of_item(item).op, Op::Message { .. })
                        && phase(item) != TrainingStepPhase::Outside)
        }) else {
            continue;
        };
        let body: Vec<u32> = program.order[..=last]
            .iter()
            .copied()
            .filter(|&item| {
                let zeroes = program
                    .node_and_its_callers(program.items[item as usize].node)
                    .any(|caller| program.view_of_node(caller).name.starts_with("Optimizer."));
                of_step(item) && phase(item) != TrainingStepPhase::Outside && !zeroes
            })
            .collect();
        let Some(&first) = body.first() else { continue };
        counts.matched += 1;
        if times == 1 {
            continue;
        }
        counts.changed += 1;
        super::check_memory_for_copies(body.len(), u64::from(times))?;
        let launchers = reductions.launches.iter().flatten().copied().collect();
        let (_, calm) = median_delays_after_nodes_and_by_name(program, &launchers);
        let mut before = Vec::new();
        let mut passes: Vec<Vec<u32>> = Vec::new();
        for pass in 0..times - 1 {
            let adds = |item: &u32| pass > 0 && reductions.fills.contains(item);
            let kept = body.iter().copied();
            let kept: Vec<u32> = kept
                .filter(|item| !reductions.is_part_of_reduction(*item) || adds(item))
                .collect();
            let copies = program.clone_items_with_inner_dependencies(&kept, &|on| {
                reductions.is_part_of_reduction(on)
            });
            for (&item, &copy) in kept.iter().zip(&copies) {
                if adds(&item) && program.view_of_item(item).name.starts_with("aten::") {
                    program.items[copy as usize].name = Some("aten::add_".to_owned());
                }
                let deps = &program.items[item as usize].deps;
                let follows = deps
                    .iter()
                    .any(|dep| dep.in_turn && launchers.contains(&dep.on));
                if let (true, Some(&ns)) = (follows, calm.get(program.view_of_item(item).name)) {
                    program.items[copy as usize]
                        .changes
                        .insert("delay_ns", NewAttributeValueOrRemoval::Count(ns));
                }
            }
            before.extend(&copies);
            passes.push(copies);
        }
        passes.push(body.clone());
        let starts = program
            .order
            .iter()
            .copied()
            .take_while(|&item| item != first);
        let starts = starts.filter(|&item| program.view_of_item(item).op == Op::NoOp);
        let starts: BTreeSet<u32> = starts.collect();
        for pair in passes.windows(2) {
            rewire_pass_to_follow_previous_pass(program, &pair[0], &pair[1], &starts);
        }
        // The last pass both adds the gradient and copies the sum into the bucket.
        let fills: Vec<u32> = body
            .iter()
            .copied()
            .filter(|item| reductions.fills.contains(item))
            .collect();
        let sums = program.clone_items_with_inner_dependencies(&fills, &|_| false);
        for &copy in &sums {
            if program.view_of_item(copy).name.starts_with("aten::") {
                program.items[copy as usize].name = Some("aten::add_".to_owned());
            }
        }
        if each {
            counts
                .notes
                .insert("shards of gradients are reduced in each pass".to_owned());
        }
        if fills.is_empty() {
            counts
                .notes
                .insert("adding gradients takes no time: no node copies gradients".to_owned());
        }
        let of: BTreeMap<u32, u32> = fills.iter().copied().zip(sums.iter().copied()).collect();
        counts.added += (before.len() + sums.len()) as u64;
        let mut order = Vec::with_capacity(program.order.len() + before.len() + sums.len());
        for item in std::mem::take(&mut program.order) {
            if item == first {
                order.append(&mut before);
            }
            order.extend(of.get(&item));
            order.push(item);
        }
        program.order = order;
    }
    if counts.matched == 0 {
        return Err(super::refuse_edit(
            "no step has a forward and a backward pass",
            "edit a captured or generated training step",
        ));
    }
    Ok(counts)
}

/// Makes a pass start after `before`, the last kernel of the previous pass. A dependency on a node in `starts` (marks
/// before the step) is moved to that kernel. If the pass's first node has no dependencies, it gets a dependency on that
/// kernel too.
fn rewire_pass_to_follow_previous_pass(
    program: &mut EditableRankProgram<'_>,
    before: &[u32],
    pass: &[u32],
    starts: &BTreeSet<u32>,
) {
    let is_kernel = |&item: &u32| matches!(program.view_of_item(item).op, Op::Compute { .. });
    let Some(end) = before.iter().copied().rfind(is_kernel) else {
        return;
    };
    for (place, &item) in pass.iter().enumerate() {
        let mut deps = std::mem::take(&mut program.items[item as usize].deps);
        for dep in &mut deps {
            if !dep.in_turn && starts.contains(&dep.on) {
                dep.on = end;
            }
        }
        if place == 0 && deps.is_empty() {
            deps.push(ItemDependency {
                on: end,
                control: false,
                in_turn: false,
            });
        }
        program.items[item as usize].deps = deps;
    }
}

fn is_called_by_gradient_accumulation(program: &EditableRankProgram<'_>, item: u32) -> bool {
    let node = program.items[item as usize].node;
    program
        .node_and_its_callers(node)
        .any(|caller| program.view_of_node(caller).name.contains("AccumulateGrad"))
}

/// A pass of a micro-batch: the micro-batch's number, and a flag that is true for the backward pass.
type MicroBatchPass = (u32, bool);

/// Returns the passes of all micro-batches in a step with their nodes, in program order.
fn list_passes(program: &EditableRankProgram<'_>, step: u32) -> Vec<(MicroBatchPass, Vec<u32>)> {
    let mut found: Vec<(MicroBatchPass, Vec<u32>)> = Vec::new();
    let mut last_named = None;
    let each =
        StepGradientReductions::find_reductions(program, step).has_reductions_in_each_pass(program);
    for &item in &program.order {
        let facts = program.facts_of_item(item);
        if facts.step != Some(step) || facts.phase == TrainingStepPhase::Outside {
            continue;
        }
        let labelled = facts.micro_batch.and_then(|number| match facts.phase {
            TrainingStepPhase::Forward => Some((number, false)),
            TrainingStepPhase::Backward => Some((number, true)),
            // In generated jobs, a parameter gather belongs to the pass that needs it; reductions also belong to a pass
            // if each pass reduces its own gradients.
            TrainingStepPhase::Parameters => {
                let name = program.view_of_item(item).name;
                let backward = name.contains("/bwd/") || each && name.contains("/gradients/");
                (backward || name.contains("/fwd/")).then_some((number, backward))
            }
            _ => None,
        });
        let begins = pass_begun_by_mark(program.view_of_item(item).name);
        if let Some(pass) = begins {
            last_named = Some(pass);
        }
        let node = program.items[item as usize].node;
        let inside = program
            .node_and_its_callers(node)
            .find_map(|c| pass_begun_by_mark(program.view_of_node(c).name));
        // On the last stage, work after a forward pass (the loss) belongs to that pass. After the last backward pass,
        // the optimizer's work and work on parameters belong to no pass.
        let follows = match facts.phase {
            TrainingStepPhase::Optimizer | TrainingStepPhase::Parameters => None,
            _ => last_named,
        };
        let Some(pass) = labelled.or(inside).or(follows) else {
            continue;
        };
        match found.last_mut() {
            Some((known, items)) if *known == pass => items.push(item),
            _ => found.push((pass, vec![item])),
        }
    }
    found
}

/// Divides each micro-batch of a pipeline into `times` smaller micro-batches. The passes stay in GPipe or 1F1B order.
pub(super) fn divide_micro_batches_into_smaller(
    program: &mut EditableRankProgram<'_>,
    times: u32,
    place: StageCountToPipelineEnd,
    scaler: &KernelWorkAndTimeScaler,
) -> Result<MatchedAndChangedItemCounts, TraceError> {
    let mut counts = MatchedAndChangedItemCounts::default();
    for step in 0..program.steps {
        let passes = list_passes(program, step);
        let numbers: BTreeSet<u32> = passes.iter().map(|(pass, _)| pass.0).collect();
        if numbers.len() < 2 {
            continue;
        }
        let micro_batches = numbers.len() as u32;
        counts.matched += u64::from(micro_batches);
        if times == 1 {
            continue;
        }
        let sequence: Vec<MicroBatchPass> = passes.iter().map(|(pass, _)| *pass).collect();
        let Some(warm_up) = warm_up_of_pass_order(&sequence, micro_batches) else {
            return Err(super::refuse_edit(
                format!(
                    "the {micro_batches} micro-batches are neither in GPipe nor in 1F1B order, so the \
                     order of more micro-batches is unknown"
                ),
                "edit the micro-batches of a schedule with one stage per rank",
            ));
        };
        let copied = passes.iter().map(|(_, items)| items.len()).sum();
        super::check_memory_for_copies(copied, u64::from(times))?;
        counts.changed += u64::from(micro_batches) * u64::from(times - 1);
        let all: BTreeSet<u32> = passes
            .iter()
            .flat_map(|(_, items)| items.iter().copied())
            .collect();
        let part = BatchSequenceHiddenFactors {
            batch: ScaleFactor::new(1, times.into()).unwrap_or(ScaleFactor::ONE),
            ..BatchSequenceHiddenFactors::NONE
        };
        scaler.scale_selected_nodes(program, part, &|item| all.contains(&item));
        // Copy both passes of a micro-batch together. The copied backward pass then depends on the copied forward
        // pass.
        let items: Vec<u32> = all.iter().copied().collect();
        let mut parts: Vec<BTreeMap<u32, u32>> = Vec::new();
        for _ in 1..times {
            let copies = program.clone_items_with_inner_dependencies(&items, &|_| false);
            counts.added += copies.len() as u64;
            parts.push(items.iter().copied().zip(copies).collect());
        }
        // The last part consists of the original nodes, because gradient reductions depend on them.
        parts.push(items.iter().map(|&item| (item, item)).collect());
        let of_pass: BTreeMap<MicroBatchPass, &Vec<u32>> =
            passes.iter().map(|(pass, items)| (*pass, items)).collect();
        let more = micro_batches * times;
        let warm_up = match (warm_up == micro_batches, place.alternates) {
            (true, false) => more,
            (true, true) => place.stages.min(more),
            (false, _) => warm_up.min(more),
        };
        let first = *numbers.first().unwrap_or(&0);
        let order = order_passes_from_warm_up_count(more, warm_up)
            .into_iter()
            .map(|(number, backward)| {
                let pass = (first + number / times, backward);
                (pass, (number % times) as usize)
            });
        let ends = find_pass_ends(program, &passes);
        let ordered = reorder_pass_items_and_dependencies(program, &of_pass, &ends, &parts, order);
        replace_items_in_order(program, &all, ordered);
    }
    if counts.matched == 0 {
        return Err(super::refuse_edit(
            "no step has several micro-batches",
            "edit a step of a pipeline that was captured with micro-batch marks, or generated",
        ));
    }
    counts
        .notes
        .insert("kernels of a micro-batch as for a smaller batch".to_owned());
    Ok(counts)
}

/// Examines the first step that has several micro-batches. Returns the number of micro-batches, and the number of
/// forward passes before the first backward pass. Returns `Some(None)` if the pass order is neither GPipe nor 1F1B.
/// Returns `None` if no step has several micro-batches.
pub(super) fn micro_batches_and_warm_up(
    program: &EditableRankProgram<'_>,
) -> Option<Option<(u32, u32)>> {
    (0..program.steps).find_map(|step| {
        let sequence: Vec<MicroBatchPass> = list_passes(program, step)
            .iter()
            .map(|(pass, _)| *pass)
            .collect();
        let numbers: BTreeSet<u32> = sequence.iter().map(|pass| pass.0).collect();
        let count = numbers.len() as u32;
        let warm_up = warm_up_of_pass_order(&sequence, count).map(|warm_up| (count, warm_up));
        (count > 1).then_some(warm_up)
    })
}

/// For each rank of a pipeline: the corresponding rank of the next stage, and the pass order.
#[derive(Debug, Default)]
pub(super) struct NextStageRanksAndPassOrder {
    /// For each rank, the rank of the next stage that receives its messages in forward passes.
    next: BTreeMap<u32, u32>,
    /// Ranks that certainly run their passes in 1F1B order. (On some ranks, 1F1B and GPipe have the
    /// same order.)
    alternate: BTreeSet<u32>,
}

/// A rank's position in its pipeline.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageCountToPipelineEnd {
    /// Number of stages from the rank's own stage to the last stage, inclusive.
    pub stages: u32,
    /// True if one of these stages certainly runs its passes in 1F1B order.
    pub alternates: bool,
}

impl NextStageRanksAndPassOrder {
    /// Adds a rank: stores its pass order, and the rank that receives its messages in forward passes.
    pub fn learn_rank(&mut self, rank: u32, program: &EditableRankProgram<'_>) {
        if let Some(Some((micro_batches, warm_up))) = micro_batches_and_warm_up(program)
            && warm_up < micro_batches
        {
            self.alternate.insert(rank);
        }
        let next = program.raw.range_of_all_node_indices().find_map(|i| {
            match program.view_of_node(i).op {
                Op::Message {
                    receive: false,
                    peer,
                    ..
                } if program.facts[i as usize].phase == TrainingStepPhase::Forward => Some(peer),
                _ => None,
            }
        });
        if let Some(next) = next {
            self.next.insert(rank, next);
        }
    }

    /// Returns a rank's position in its pipeline.
    pub fn stage_count_to_pipeline_end(&self, rank: u32) -> StageCountToPipelineEnd {
        let mut place = StageCountToPipelineEnd {
            stages: 1,
            alternates: self.alternate.contains(&rank),
        };
        let mut at = rank;
        while let Some(&next) = self.next.get(&at)
            && place.stages <= self.next.len() as u32
        {
            at = next;
            place.stages += 1;
            place.alternates |= self.alternate.contains(&next);
        }
        place
    }
}

/// Changes the order in which a step runs its micro-batches' passes. `stages` is the number of stages from the rank's
/// own stage to the last stage, inclusive.
pub(super) fn reorder_micro_batch_passes_of_rank(
    program: &mut EditableRankProgram<'_>,
    order: PipelinePassOrder,
    stages: u32,
) -> Result<MatchedAndChangedItemCounts, TraceError> {
    let mut counts = MatchedAndChangedItemCounts::default();
    for step in 0..program.steps {
        let passes = list_passes(program, step);
        let numbers: BTreeSet<u32> = passes.iter().map(|(pass, _)| pass.0).collect();
        let trains = passes.iter().any(|(pass, _)| pass.1);
        if numbers.len() < 2 || !trains {
            continue;
        }
        let micro_batches = numbers.len() as u32;
        let sequence: Vec<MicroBatchPass> = passes.iter().map(|(pass, _)| *pass).collect();
        if warm_up_of_pass_order(&sequence, micro_batches).is_none() {
            return Err(super::refuse_edit(
                format!("the {micro_batches} micro-batches are neither in GPipe nor in 1F1B order"),
                "edit a schedule with one stage per rank",
            ));
        }
        let warm_up = match order {
            PipelinePassOrder::GPipe => micro_batches,
            PipelinePassOrder::OneForwardOneBackward => stages.min(micro_batches),
        };
        let first = *numbers.first().unwrap_or(&0);
        let new: Vec<MicroBatchPass> = order_passes_from_warm_up_count(micro_batches, warm_up)
            .into_iter()
            .map(|(number, backward)| (first + number, backward))
            .collect();
        counts.matched += sequence.len() as u64;
        counts.changed += sequence
            .iter()
            .zip(&new)
            .filter(|(old, new)| old != new)
            .count() as u64;
        if sequence == new {
            continue;
        }
        let all: BTreeSet<u32> = passes
            .iter()
            .flat_map(|(_, items)| items.iter().copied())
            .collect();
        let of_pass: BTreeMap<MicroBatchPass, &Vec<u32>> =
            passes.iter().map(|(pass, items)| (*pass, items)).collect();
        let parts = [all.iter().map(|&item| (item, item)).collect()];
        let ends = find_pass_ends(program, &passes);
        let ordered = reorder_pass_items_and_dependencies(
            program,
            &of_pass,
            &ends,
            &parts,
            new.into_iter().map(|pass| (pass, 0)),
        );
        replace_items_in_order(program, &all, ordered);
    }
    if counts.matched == 0 {
        return Err(super::refuse_edit(
            "no step has several micro-batches with forward and backward passes",
            "edit a training step of a pipeline that was captured with micro-batch marks, or generated",
        ));
    }
    Ok(counts)
}

/// The end of each pass except the last: the node on which the start of the next pass depends.
#[derive(Debug, Default)]
struct PassEndNodes {
    /// The end of each pass.
    ends: BTreeMap<MicroBatchPass, u32>,
    /// The end of each pass's predecessor.
    before: BTreeMap<MicroBatchPass, u32>,
}

fn find_pass_ends(
    program: &EditableRankProgram<'_>,
    passes: &[(MicroBatchPass, Vec<u32>)],
) -> PassEndNodes {
    let mut found = PassEndNodes::default();
    for pair in passes.windows(2) {
        let [(pass, items), (next, of_next)] = pair else {
            continue;
        };
        let items: BTreeSet<u32> = items.iter().copied().collect();
        let end = of_next.iter().find_map(|&item| {
            let deps = program.items[item as usize].deps.iter();
            deps.map(|dep| dep.on).filter(|on| items.contains(on)).max()
        });
        if let Some(end) = end {
            found.ends.insert(*pass, end);
            found.before.insert(*next, end);
        }
    }
    found
}

/// Reorders the nodes of all passes, updates their dependencies, and returns the nodes. A dependency on the same
/// micro-batch's forward pass remains. All other dependencies between passes only express order, so they follow the new
/// order. A dependency on the end of the previous pass moves to the end of the pass that now comes before it, possibly
/// on another lane. Any other dependency moves to the last node that the old target's thread runs before the pass.
fn reorder_pass_items_and_dependencies(
    program: &mut EditableRankProgram<'_>,
    of_pass: &BTreeMap<MicroBatchPass, &Vec<u32>>,
    ends: &PassEndNodes,
    parts: &[BTreeMap<u32, u32>],
    order: impl Iterator<Item = (MicroBatchPass, usize)>,
) -> Vec<u32> {
    let mut pass_of: BTreeMap<u32, MicroBatchPass> = BTreeMap::new();
    for (pass, items) in of_pass {
        for part in parts {
            pass_of.extend(items.iter().map(|item| (part[item], *pass)));
        }
    }
    let mut last: BTreeMap<HostFlagAndLane, u32> = BTreeMap::new();
    let mut ordered = Vec::new();
    let mut front: Option<u32> = None;
    for ((number, backward), part) in order {
        let pass = (number, backward);
        let items = of_pass
            .get(&pass)
            .into_iter()
            .flat_map(|items| items.iter());
        let items: Vec<u32> = items.map(|item| parts[part][item]).collect();
        // True if `on` is the end of the previous pass, or a copy of that end in a part of a divided micro-batch.
        let was_front = |on: u32| {
            let before = ends.before.get(&pass);
            before.is_some_and(|before| parts.iter().any(|part| part.get(before) == Some(&on)))
        };
        for &item in &items {
            let thread = program.host_flag_and_lane_of_node(program.items[item as usize].node);
            let mut follows = None;
            let mut deps = std::mem::take(&mut program.items[item as usize].deps);
            deps.retain_mut(|dep| {
                let of = pass_of.get(&dep.on).copied();
                let own = of.is_none_or(|of| of == pass || of == (number, false));
                if let Some(front) = front.filter(|_| was_front(dep.on)) {
                    // Nodes on one thread run in order anyway, so a dependency is needed only if the end is on another
                    // thread.
                    let in_turn = dep.in_turn
                        && program.host_flag_and_lane_of_node(program.items[front as usize].node)
                            == thread;
                    let on_front = ItemDependency {
                        on: front,
                        in_turn,
                        ..*dep
                    };
                    match dep.in_turn || own {
                        true => follows = Some(on_front).filter(|_| !in_turn),
                        false => *dep = on_front,
                    }
                    return true;
                }
                if dep.in_turn || own {
                    return true;
                }
                let thread =
                    program.host_flag_and_lane_of_node(program.items[dep.on as usize].node);
                match last.get(&thread) {
                    Some(&on) => dep.on = on,
                    None => return false,
                }
                true
            });
            if let Some(dep) = follows.filter(|dep| deps.iter().all(|one| one.on != dep.on)) {
                deps.push(dep);
            }
            program.items[item as usize].deps = deps;
        }
        for &item in &items {
            last.insert(
                program.host_flag_and_lane_of_node(program.items[item as usize].node),
                item,
            );
        }
        front = ends.ends.get(&pass).map(|end| parts[part][end]);
        ordered.extend(items);
    }
    ordered
}

/// Removes the nodes `old` from the program order, and inserts `ordered` at the position of the first removed node. A
/// node between two nodes of `old`, such as a gradient reduction, still follows the same node as before.
fn replace_items_in_order(
    program: &mut EditableRankProgram<'_>,
    old: &BTreeSet<u32>,
    ordered: Vec<u32>,
) {
    let mut order = Vec::with_capacity(program.order.len() + ordered.len());
    let mut behind: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let last = program.order.iter().rposition(|item| old.contains(item));
    let (mut place, mut front) = (None, None);
    for (at, item) in std::mem::take(&mut program.order).into_iter().enumerate() {
        if old.contains(&item) {
            place = place.or(Some(order.len()));
            front = Some(item);
        } else if let Some(front) = front.filter(|_| Some(at) < last) {
            behind.entry(front).or_default().push(item);
        } else {
            order.push(item);
        }
    }
    let mut all = Vec::with_capacity(ordered.len());
    for item in ordered {
        all.push(item);
        all.extend(behind.remove(&item).unwrap_or_default());
    }
    let place = place.unwrap_or(order.len());
    order.splice(place..place, all);
    program.order = order;
}

/// Returns the order in which the passes of `micro_batches` micro-batches run: `warm_up` forward passes, then
/// alternating backward and forward passes, then the remaining backward passes.
fn order_passes_from_warm_up_count(micro_batches: u32, warm_up: u32) -> Vec<MicroBatchPass> {
    let mut passes: Vec<MicroBatchPass> = (0..warm_up).map(|number| (number, false)).collect();
    for number in 0..micro_batches {
        passes.push((number, true));
        if warm_up + number < micro_batches {
            passes.push((warm_up + number, false));
        }
    }
    passes
}

/// Returns the number of forward passes before the first backward pass; `None` if [`order_passes_from_warm_up_count`]
/// cannot return this order.
fn warm_up_of_pass_order(sequence: &[MicroBatchPass], micro_batches: u32) -> Option<u32> {
    let warm_up = sequence.iter().take_while(|pass| !pass.1).count() as u32;
    let first = sequence.iter().map(|pass| pass.0).min()?;
    let numbered = sequence
        .iter()
        .map(|&(number, backward)| (number - first, backward));
    let forward_only = warm_up as usize == sequence.len();
    let expected = order_passes_from_warm_up_count(micro_batches, warm_up);
    (forward_only || numbered.eq(expected.iter().copied())).then_some(warm_up)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_of_1f1b_alternate_after_the_warm_up() {
        let (f, b) = (|n| (n, false), |n| (n, true));
        assert_eq!(
            order_passes_from_warm_up_count(3, 2),
            [f(0), f(1), b(0), f(2), b(1), b(2)]
        );
        assert_eq!(
            order_passes_from_warm_up_count(2, 2),
            [f(0), f(1), b(0), b(1)]
        );
        assert_eq!(
            warm_up_of_pass_order(&order_passes_from_warm_up_count(4, 2), 4),
            Some(2)
        );
        assert_eq!(warm_up_of_pass_order(&[f(0), b(0), b(1), f(1)], 2), None);
    }
}
