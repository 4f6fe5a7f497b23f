//! Layers: parts of a step that are repeated as often in the forward as in the backward pass.
//!
//! A part is found by its structure: a sequence of operators, with the shapes that they work on, that follows on itself. The
//! longest such sequence of the forward pass says how many layers there are; the backward pass has to have as many, and the
//! optimizer may. More layers are copies of the last one, behind it in the forward pass and in front of it in the backward
//! pass; fewer are without the last. Reductions of gradients are put into buckets anew.
//!
//! Work on parameters that is not repeated so, a fused optimizer or the copies out of buckets, takes its time in proportion to
//! the parameters.

use super::EditCounts;
use super::gradients::{self, Reductions, TransferRates};
use super::grammar::LayerChange;
use super::program::{Phase, Program, Value, pass_of_mark};
use super::shapes::{elements, parse_shapes};
use chakram_base::kernel_shape::KernelShape;
use chakram_trace::format::{CollectiveKind, Op, TensorClass, TraceError};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Most distances between equal nodes that are tried as the length of a layer.
const MAX_PERIODS: usize = 64;

/// A part that is repeated: where it begins, its length and the number of its repetitions, in a list of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Repetition {
    start: usize,
    period: usize,
    times: usize,
}

impl Repetition {
    fn covered(&self) -> usize {
        self.period * self.times
    }
}

/// Returns the repetition that covers most of `signatures`, of those with `times` repetitions if that is known; the shortest
/// period of several.
fn longest_repetition(signatures: &[u64], times: Option<usize>) -> Option<Repetition> {
    let mut best: Option<Repetition> = None;
    for period in periods(signatures) {
        let mut run = 0;
        for at in period..=signatures.len() {
            if at < signatures.len() && signatures[at] == signatures[at - period] {
                run += 1;
                continue;
            }
            let found = Repetition {
                start: at - run - period,
                period,
                times: run / period + 1,
            };
            run = 0;
            let fits = found.times >= 2 && times.is_none_or(|times| times == found.times);
            let more = best.is_none_or(|best| found.covered() > best.covered());
            if fits && more {
                best = Some(found);
            }
        }
    }
    best
}

/// Returns distances at which equal signatures follow one another, shortest first: the most frequent of them.
fn periods(signatures: &[u64]) -> Vec<usize> {
    let mut last: BTreeMap<u64, usize> = BTreeMap::new();
    let mut distances: BTreeMap<usize, usize> = BTreeMap::new();
    for (at, &signature) in signatures.iter().enumerate() {
        if let Some(before) = last.insert(signature, at) {
            *distances.entry(at - before).or_default() += 1;
        }
    }
    let mut all: Vec<(usize, usize)> = distances.into_iter().collect();
    // What a distance explains is its frequency times itself, of long ones that are rare as of short ones that are not.
    all.sort_by_key(|&(distance, count)| {
        (std::cmp::Reverse(distance.saturating_mul(count)), distance)
    });
    let mut periods: Vec<usize> = all
        .into_iter()
        .take(MAX_PERIODS)
        .map(|(distance, _)| distance)
        .collect();
    periods.sort_unstable();
    periods
}

/// Items of a pass, with their signatures; transfers and what only launches reductions follow their launch.
#[derive(Default)]
struct PassItems {
    items: Vec<u32>,
    signatures: Vec<u64>,
}

impl PassItems {
    fn push(&mut self, program: &Program<'_>, item: u32) {
        let (view, facts) = (program.view_of(item), program.facts_of(item));
        let mut hasher = DefaultHasher::new();
        // Names of modules and layers have their numbers.
        for part in view
            .name
            .split(|c: char| c.is_ascii_digit())
            .filter(|part| !part.is_empty())
        {
            part.hash(&mut hasher);
        }
        facts.inputs.hash(&mut hasher);
        facts.outputs.hash(&mut hasher);
        self.items.push(item);
        self.signatures.push(hasher.finish());
    }

    fn part(&self, repetition: Repetition, index: usize) -> &[u32] {
        let from = repetition.start + index * repetition.period;
        &self.items[from..from + repetition.period]
    }
}

/// Passes of a step, in order: each forward or backward pass of a micro-batch by itself, and the optimizer.
struct StepPasses {
    forward: Vec<PassItems>,
    backward: Vec<PassItems>,
    optimizer: PassItems,
}

impl StepPasses {
    fn find(program: &Program<'_>, step: u32, reductions: &Reductions) -> Self {
        let launches: BTreeSet<u32> = reductions.launches.iter().flatten().copied().collect();
        let mut this = Self {
            forward: Vec::new(),
            backward: Vec::new(),
            optimizer: PassItems::default(),
        };
        let of_step = |&&item: &&u32| program.facts_of(item).step == Some(step);
        let last = program.order.iter().rev().filter(of_step).find(|&&item| {
            let phase = program.facts_of(item).phase;
            phase == Phase::Backward || phase == Phase::Parameters && is_hook(program, item)
        });
        let mut current: Option<(bool, Option<u32>)> = None;
        let mut ended = false;
        for &item in program.order.iter().filter(of_step) {
            let facts = program.facts_of(item);
            let transfers = matches!(
                program.view_of(item).op,
                Op::Collective { .. } | Op::Message { .. } | Op::NoOp
            );
            if !launches.contains(&item) && !transfers {
                let mark = program
                    .callers(program.items[item as usize].node)
                    .find_map(|caller| {
                        pass_of_mark(program.view(caller).name).map(|(number, _)| number)
                    });
                let micro_batch = facts.micro_batch.or(mark);
                let pass = match facts.phase {
                    Phase::Forward => Some((false, micro_batch)),
                    Phase::Backward => Some((true, micro_batch)),
                    // Gathers and hooks are of the pass that they are in.
                    Phase::Parameters if !ended => Some(current.unwrap_or((false, micro_batch))),
                    _ => None,
                };
                if facts.phase == Phase::Optimizer {
                    this.optimizer.push(program, item);
                } else if let Some((backward, number)) = pass {
                    let passes = if backward {
                        &mut this.backward
                    } else {
                        &mut this.forward
                    };
                    let goes_on = current.is_some_and(|(was, before)| {
                        was == backward && (number.is_none() || before == number)
                    });
                    if !goes_on || passes.is_empty() {
                        passes.push(PassItems::default());
                    }
                    current = Some((backward, number));
                    if let Some(pass) = passes.last_mut() {
                        pass.push(program, item);
                    }
                }
            }
            ended |= Some(&item) == last;
        }
        this
    }
}

fn is_hook(program: &Program<'_>, item: u32) -> bool {
    let node = program.items[item as usize].node;
    program
        .callers(node)
        .any(|caller| program.view(caller).name.contains("AccumulateGrad"))
}

/// Returns the layers of a forward pass: the longest repetition, or, where that is of whole passes over the same layers, as of
/// tokens that are decoded one by one, the one inside.
fn layers_of(pass: &PassItems) -> Option<Repetition> {
    let outer = longest_repetition(&pass.signatures, None)?;
    let one = &pass.signatures[outer.start..outer.start + outer.period];
    match longest_repetition(one, None) {
        Some(inner) if inner.covered() * 10 >= outer.period * 7 => Some(Repetition {
            start: outer.start + inner.start,
            ..inner
        }),
        _ => Some(outer),
    }
}

/// Changes the number of layers, and returns by how many with the counts.
pub(super) fn change(
    program: &mut Program<'_>,
    change: LayerChange,
    rates: &TransferRates,
) -> Result<(EditCounts, i64), TraceError> {
    let mut counts = EditCounts::default();
    let mut delta = 0;
    for step in 0..program.steps {
        delta = change_step(program, step, change, rates, &mut counts)?.unwrap_or(delta);
    }
    if counts.matched == 0 {
        return Err(super::refused(
            "nothing is repeated as often in the forward as in the backward pass, so its layers are unknown",
            "edit a job whose layers are alike",
        ));
    }
    Ok((counts, delta))
}

fn change_step(
    program: &mut Program<'_>,
    step: u32,
    change: LayerChange,
    rates: &TransferRates,
    counts: &mut EditCounts,
) -> Result<Option<i64>, TraceError> {
    let all = Reductions::find(program, step);
    let is_apart = |&item: &u32| {
        !gradients::is_bucket(program, item) && program.items[item as usize].caller.is_none()
    };
    if all.collectives.iter().any(is_apart) {
        return Err(super::refused(
            "its reductions of shards of gradients belong to no layer, so what more layers would reduce is unknown",
            "generate it with the number of layers that you want",
        ));
    }
    let reductions = all.of_buckets(program);
    let passes = StepPasses::find(program, step, &reductions);
    let found = passes.forward.iter().filter_map(layers_of);
    let Some(layers) = found.max_by_key(|found| found.covered()) else {
        return Ok(None);
    };
    let forward: Vec<(usize, Repetition)> = runs(&passes.forward, layers.period, layers.times);
    // The last or the first layer of a backward pass may differ, as nothing is fetched ahead of it.
    let fewer = Some(layers.times - 1).filter(|&times| times > 1);
    let mut backward = Vec::new();
    let mut unlike = Vec::new();
    for (index, pass) in passes.backward.iter().enumerate() {
        let exact = [Some(layers.times), fewer]
            .into_iter()
            .flatten()
            .find_map(|times| {
                let found = longest_repetition(&pass.signatures, Some(times))?;
                (found.covered() * 5 >= pass.items.len() * 2).then_some(found)
            });
        match exact {
            Some(found) => backward.push((index, found)),
            None => unlike.push(index),
        }
    }
    let trains = !passes.backward.is_empty();
    let blocks = match unlike.is_empty() {
        true => Vec::new(),
        false => blocks_by_links(program, &passes, &forward, &unlike).ok_or_else(|| {
            super::refused(
                format!(
                    "its forward pass repeats {} nodes {} times, and its backward pass repeats no part as often",
                    layers.period, layers.times
                ),
                "edit a job whose layers are alike",
            )
        })?,
    };
    let old = layers.times as i64;
    let new = match change {
        LayerChange::By(by) => old.saturating_add(by),
        LayerChange::Times(factor) if (old as u64 * factor.over).is_multiple_of(factor.under) => {
            factor.of(old as u64) as i64
        }
        LayerChange::Times(factor) => {
            return Err(super::refused(
                format!("its {old} layers times {factor} are no whole number"),
                "another factor, or a number of layers such as layers=+2",
            ));
        }
    };
    if !(1..=100_000).contains(&new) {
        return Err(super::refused(
            format!("it would have {new} layers"),
            "1 to 100000 layers",
        ));
    }
    counts.matched += layers.times as u64 * forward.len() as u64;
    counts.changed += new.abs_diff(old) * forward.len() as u64;
    let by = new - old;
    if by == 0 {
        return Ok(Some(0));
    }
    if -by >= old - 1
        && backward
            .first()
            .is_some_and(|(_, found)| (found.times as i64) < old)
    {
        return Err(super::refused(
            "its layers differ in the backward pass, so that they cannot be that few",
            "keep two layers",
        ));
    }
    let labels = LayerLabels::of(program, &passes.forward, &forward);
    let weights = stated_weights(program, &passes, &backward);
    let buckets = Buckets::of(program, step, &reductions, labels.as_ref())?;
    if !blocks.is_empty() {
        // Transfers start late on some ranks, so that their places differ; ranks issue them in one order.
        program.issue_in_order(step);
    }
    let mut edit = SequenceEdit::default();
    for (pass, found) in &forward {
        edit.change(program, &passes.forward[*pass], *found, by, false, counts);
    }
    for (pass, found) in &backward {
        edit.change(program, &passes.backward[*pass], *found, by, true, counts);
    }
    for block in &blocks {
        edit.change_block(program, block, by, counts)?;
    }
    if !blocks.is_empty() {
        counts.notes.insert(
            "layers of the backward pass by the operators whose gradients they find".to_owned(),
        );
    }
    let optimizer = longest_repetition(&passes.optimizer.signatures, Some(layers.times));
    let optimizer = optimizer.filter(|found| found.covered() * 4 > passes.optimizer.items.len());
    if let Some(found) = optimizer {
        edit.change(program, &passes.optimizer, found, by, false, counts);
    }
    edit.apply(program);
    if let Some(labels) = labels {
        labels.relabel(program, step, by, &edit.copies);
    }
    buckets.regroup(program, step, rates, counts)?;
    let by_weights = weights.map(|(all, layer)| {
        let all = all as f64;
        ((all + layer as f64 * by as f64) / all, Some(u32::MAX))
    });
    if let (Some((ratio, _)), 0) = (buckets.growth(program, step).or(by_weights), step) {
        grow_resident(program, ratio);
    }
    match buckets.growth(program, step).or(by_weights) {
        Some((ratio, from)) => {
            stretch_parameters(program, step, ratio, from, optimizer.is_none(), counts);
        }
        None if optimizer.is_none() && trains && !passes.optimizer.items.is_empty() => {
            counts.notes.insert(
                "the optimizer's time is as captured: the parameters of a layer are unknown"
                    .to_owned(),
            );
        }
        None => {}
    }
    Ok(Some(by))
}

/// Layers of backward passes that are not alike node by node, such as those ahead of which parameters are fetched: of each
/// pass, the items of each layer in the order in which they run.
type LayerBlocks = Vec<Vec<u32>>;

/// Finds the layers of backward passes by the numbers that autograd gives to operators and to the functions that find their
/// gradients. `None` if a pass shows not all layers.
fn blocks_by_links(
    program: &Program<'_>,
    passes: &StepPasses,
    forward: &[(usize, Repetition)],
    of: &[usize],
) -> Option<Vec<LayerBlocks>> {
    let mut layer_of: BTreeMap<u64, usize> = BTreeMap::new();
    for (pass, found) in forward {
        for index in 0..found.times {
            for &item in passes.forward[*pass].part(*found, index) {
                if let Some(number) = program.facts_of(item).sequence {
                    layer_of.entry(number).or_insert(index);
                }
            }
        }
    }
    let times = forward.first()?.1.times;
    let mut blocks = Vec::new();
    for pass in of.iter().map(|&index| &passes.backward[index]) {
        // Each item is of the function around it, or of what ran before.
        let functions = pass.items.iter().filter_map(|&item| {
            let number = program.facts_of(item).sequence?;
            let layer = layer_of.get(&number)?;
            program
                .view_of(item)
                .name
                .ends_with("Backward0")
                .then_some((item, *layer))
        });
        let mut of_function: BTreeMap<u32, usize> = BTreeMap::new();
        for (item, layer) in functions {
            for caller in program.callers(program.items[item as usize].node) {
                if program
                    .view(caller)
                    .name
                    .starts_with("autograd::engine::evaluate_function")
                {
                    of_function.insert(caller, layer);
                }
            }
            of_function.insert(item, layer);
        }
        let mut layers = vec![Vec::new(); times];
        let mut current = None;
        for &item in &pass.items {
            let mut callers = program.callers(program.items[item as usize].node);
            let own = callers.find_map(|caller| of_function.get(&caller).copied());
            // The functions of what is in front of the layers, an embedding, have none.
            let other = own.is_none() && program.facts_of(item).phase == Phase::Backward;
            let seen_all = current == Some(0) && other;
            current = if seen_all { None } else { own.or(current) };
            if let Some(layer) = current {
                layers[layer].push(item);
            }
        }
        layers.reverse();
        if times < 2 || layers.iter().any(Vec::is_empty) {
            return None;
        }
        blocks.push(layers);
    }
    Some(blocks)
}

/// Returns the bytes of weights that a generated job says it holds, and those of a layer by the gradients of its products.
fn stated_weights(
    program: &Program<'_>,
    passes: &StepPasses,
    backward: &[(usize, Repetition)],
) -> Option<(u64, u64)> {
    let weights = TensorClass::Weights as usize;
    let all: u64 = program
        .raw
        .nodes
        .iter()
        .map(|node| node.view.memory.allocates[weights])
        .sum();
    let (pass, found) = backward.first()?;
    let part = passes.backward[*pass].part(*found, 0);
    let mut layer = 0;
    for &item in part {
        let view = program.view_of(item);
        let shapes = [
            program.facts_of(item).inputs,
            program.facts_of(item).outputs,
        ]
        .map(parse_shapes);
        if let (
            Some(KernelShape::Gemm { k, .. }),
            Op::Compute {
                dtype: Some(dtype), ..
            },
        ) = (view.kernel, view.op)
            && let ([one, other, ..], [result, ..]) = (&shapes[0][..], &shapes[1][..])
            && one[0] == k
            && other[0] == k
        {
            layer += elements(result).saturating_mul(dtype.element_bytes() as u64);
        }
    }
    (all > 0 && layer > 0).then_some((all, layer))
}

/// Grows what a generated job holds of weights, gradients and states.
fn grow_resident(program: &mut Program<'_>, ratio: f64) {
    for item in program.order.clone() {
        let view = *program.view_of(item);
        if view.op != Op::NoOp {
            continue;
        }
        for (name, bytes) in view.memory.named() {
            let bytes = (bytes as f64 * ratio).round() as u64;
            program.items[item as usize]
                .changes
                .insert(name, Value::Count(bytes));
        }
    }
}

/// Returns all repetitions of this period and number in passes, with the indices of these.
fn runs(passes: &[PassItems], period: usize, times: usize) -> Vec<(usize, Repetition)> {
    let mut found = Vec::new();
    for (index, pass) in passes.iter().enumerate() {
        let signatures = &pass.signatures;
        let mut run = 0;
        for at in period..=signatures.len() {
            if at < signatures.len() && signatures[at] == signatures[at - period] {
                run += 1;
                continue;
            }
            if run / period + 1 == times {
                let start = at - run - period;
                found.push((
                    index,
                    Repetition {
                        start,
                        period,
                        times,
                    },
                ));
            }
            run = 0;
        }
    }
    found
}

/// Labels of layers in a generated job: the first and the last of those that are repeated.
struct LayerLabels {
    first: u32,
    last: u32,
}

impl LayerLabels {
    fn of(
        program: &Program<'_>,
        passes: &[PassItems],
        found: &[(usize, Repetition)],
    ) -> Option<Self> {
        let (pass, found) = found.first()?;
        let label = |index| {
            let part = passes[*pass].part(*found, index);
            part.first().and_then(|&item| program.facts_of(item).layer)
        };
        Some(Self {
            first: label(0)?,
            last: label(found.times - 1)?,
        })
    }

    /// Numbers the layers of a step anew, of which those behind the last one follow.
    fn relabel(
        &self,
        program: &mut Program<'_>,
        step: u32,
        by: i64,
        copies: &BTreeMap<u32, (u32, bool)>,
    ) {
        for item in program.order.clone() {
            let facts = program.facts_of(item);
            let Some(layer) = facts.layer.filter(|_| facts.step == Some(step)) else {
                continue;
            };
            // Deeper layers run first in a backward pass, where copies follow the second.
            let second = self
                .last
                .saturating_sub(u32::from(self.last > self.first && by > 0));
            let from = if facts.phase == Phase::Forward {
                self.last + 1
            } else {
                second
            };
            let new = match copies.get(&item) {
                Some((number, false)) => i64::from(layer + number),
                Some((number, true)) => i64::from(layer) + by - i64::from(*number),
                None if layer >= from => i64::from(layer) + by,
                None => continue,
            };
            let new = new.max(0) as u64;
            let name = renamed(program.view_of(item).name, new as i64 - i64::from(layer));
            program.items[item as usize].name = name;
            program.items[item as usize]
                .changes
                .insert("layer", Value::Count(new));
        }
    }
}

/// Returns a name of a generated job, `mb0/layer11/fwd/norm1`, with the number of another layer.
fn renamed(name: &str, by: i64) -> Option<String> {
    let (before, after) = name.split_once("/layer")?;
    let end = after.find('/')?;
    let number: i64 = after[..end].parse().ok()?;
    Some(format!("{before}/layer{}{}", number + by, &after[end..]))
}

/// Returns the layer that an item says, as edited.
fn layer_of(program: &Program<'_>, item: u32) -> Option<u32> {
    match program.items[item as usize].changes.get("layer") {
        Some(Value::Count(layer)) => u32::try_from(*layer).ok(),
        _ => program.facts_of(item).layer,
    }
}

/// How the reductions of a step were bucketed.
enum Buckets {
    /// There are none. The elements of the parameters, if hooks say them.
    None { elements: u64 },
    /// Of hooks of parameters: the limit, the bytes of an element, and the elements.
    Hooks {
        limit: u64,
        each: u64,
        elements: u64,
    },
    /// Of layers of a generated job: the limit, the bytes of a repeated layer, those of others by their label before the
    /// edit, and the bytes of all.
    Layers {
        limit: u64,
        bytes: u64,
        others: BTreeMap<u32, u64>,
        labels: (u32, u32),
        producers: BTreeSet<u32>,
        all: u64,
    },
}

impl Buckets {
    fn of(
        program: &Program<'_>,
        step: u32,
        reductions: &Reductions,
        labels: Option<&LayerLabels>,
    ) -> Result<Self, TraceError> {
        let elements: u64 = reductions.hooks.iter().map(|hook| hook.1).sum();
        if reductions.collectives.is_empty() {
            return Ok(Self::None { elements });
        }
        let limit = reductions.limit(program).unwrap_or(u64::MAX);
        let sizes = reductions
            .collectives
            .iter()
            .map(|&item| gradients::bytes_of(program, item));
        let all: u64 = sizes.sum();
        if elements > 0 && all.is_multiple_of(elements) {
            let each = all / elements;
            return Ok(Self::Hooks {
                limit,
                each,
                elements,
            });
        }
        let unknown = || {
            super::refused(
                "its reductions of gradients are not those of parameters whose hooks are captured, so what more layers would \
                 reduce is unknown",
                "edit a job without reductions, or one of DistributedDataParallel that was captured with shapes",
            )
        };
        let labels = labels.filter(|_| {
            reductions.collectives.iter().all(|&item| {
                matches!(
                    program.view_of(item).op,
                    Op::Collective {
                        kind: CollectiveKind::AllReduce,
                        ..
                    }
                )
            })
        });
        let labels = labels.ok_or_else(unknown)?;
        let mut producers = BTreeSet::new();
        let mut of_layers = Vec::new();
        for &item in &reductions.collectives {
            let mut layers = BTreeSet::new();
            for dep in &program.items[item as usize].deps {
                if let Some(layer) = program.facts_of(dep.on).layer {
                    layers.insert(layer);
                    producers.insert(program.items[dep.on as usize].node);
                }
            }
            of_layers.push((gradients::bytes_of(program, item), layers));
        }
        let repeated = |layer: &u32| (labels.first..=labels.last).contains(layer);
        let uniform = of_layers.iter().find(|(bytes, layers)| {
            let count = layers.len() as u64;
            count > 0 && layers.iter().all(repeated) && bytes.is_multiple_of(count)
        });
        let (whole, layers) = uniform.ok_or_else(unknown)?;
        let bytes = whole / layers.len() as u64;
        let mut others = BTreeMap::new();
        for (whole, layers) in &of_layers {
            let own = layers.iter().filter(|layer| repeated(layer)).count() as u64 * bytes;
            let rest = whole.checked_sub(own).ok_or_else(unknown)?;
            match layers.iter().find(|layer| !repeated(layer)) {
                Some(layer) => *others.entry(*layer).or_default() += rest,
                None if rest > 0 => return Err(unknown()),
                None => {}
            }
        }
        let _ = step;
        Ok(Self::Layers {
            limit,
            bytes,
            others,
            labels: (labels.first, labels.last),
            producers,
            all,
        })
    }

    /// Puts the gradients of the edited step into buckets.
    fn regroup(
        &self,
        program: &mut Program<'_>,
        step: u32,
        rates: &TransferRates,
        counts: &mut EditCounts,
    ) -> Result<(), TraceError> {
        let found = match self {
            Self::None { .. } => return Ok(()),
            Self::Hooks { limit, each, .. } => {
                gradients::regroup_step(program, step, *limit, rates, Some(*each))?
            }
            Self::Layers {
                limit,
                bytes,
                others,
                labels,
                producers,
                ..
            } => {
                let mut found = Reductions::find(program, step).of_buckets(program);
                let Some(&first) = found.collectives.first() else {
                    return Ok(());
                };
                let last = program.facts_of(*found.collectives.last().unwrap_or(&first));
                let micro_batch = last.micro_batch;
                // The hook of a layer is the last of its nodes in the pass whose gradients are reduced.
                let mut ends: Vec<(u32, u32)> = Vec::new();
                for &item in &program.order {
                    let facts = program.facts_of(item);
                    let of_pass = facts.step == Some(step) && facts.micro_batch == micro_batch;
                    let Some(layer) = layer_of(program, item).filter(|_| of_pass) else {
                        continue;
                    };
                    if facts.phase != Phase::Backward {
                        continue;
                    }
                    if producers.contains(&program.items[item as usize].node) {
                        found.producers.push((
                            item,
                            ends.len() - usize::from(ends.last().is_some_and(|end| end.0 == layer)),
                        ));
                    }
                    match ends.last_mut() {
                        Some(end) if end.0 == layer => end.1 = item,
                        _ => ends.push((layer, item)),
                    }
                }
                let layers = ends
                    .iter()
                    .map(|&(layer, _)| layer)
                    .filter(|&l| l >= labels.0);
                let most = layers.max().unwrap_or(labels.1);
                let above = others.keys().filter(|&&layer| layer > labels.1).max();
                let by = i64::from(most) - i64::from(*above.unwrap_or(&labels.1));
                for &(layer, item) in &ends {
                    let size = if i64::from(layer) > i64::from(labels.1) + by {
                        let old = (i64::from(layer) - by) as u32;
                        others.get(&old).copied().unwrap_or(0)
                    } else if layer < labels.0 {
                        others.get(&layer).copied().unwrap_or(0)
                    } else {
                        *bytes
                    };
                    found.hooks.push((item, size));
                }
                gradients::regroup_found(program, found, *limit, rates, Some(1))?
            }
        };
        counts.notes.extend(found.notes);
        Ok(())
    }

    /// Returns by how much the parameters of a step have grown, and the last hook, if there is one.
    fn growth(&self, program: &Program<'_>, step: u32) -> Option<(f64, Option<u32>)> {
        let now = Reductions::find(program, step).of_buckets(program);
        let hook = now.hooks.last().map(|hook| hook.0);
        let elements: u64 = now.hooks.iter().map(|hook| hook.1).sum();
        let bytes = now
            .collectives
            .iter()
            .map(|&item| gradients::bytes_of(program, item));
        let bytes: u64 = bytes.sum();
        match self {
            Self::None { elements: 0 } => None,
            Self::None { elements: old } | Self::Hooks { elements: old, .. } => {
                Some((elements as f64 / *old as f64, hook))
            }
            Self::Layers { all, .. } => Some((bytes as f64 / *all as f64, Some(u32::MAX))),
        }
    }
}

/// Copies and removals, which are carried out together.
#[derive(Default)]
struct SequenceEdit {
    gone: BTreeSet<u32>,
    /// Items to put behind one.
    behind: BTreeMap<u32, Vec<u32>>,
    /// Of each copy its number, from 1, and whether it is of a backward pass.
    copies: BTreeMap<u32, (u32, bool)>,
    /// What takes the place of an item for those that wait for it, of items that are not in the list of copies that it is of.
    instead: BTreeMap<u32, u32>,
    /// Items that keep waiting for those that they named.
    keep: BTreeSet<u32>,
    /// Callers in place of those that are gone.
    callers: BTreeMap<u32, u32>,
}

impl SequenceEdit {
    /// Notes copies or removals of a repeated part. Layers are added behind the last one, which in a backward pass is the
    /// second that runs, and removed where they would have been added.
    fn change(
        &mut self,
        program: &mut Program<'_>,
        pass: &PassItems,
        found: Repetition,
        by: i64,
        backward: bool,
        counts: &mut EditCounts,
    ) {
        let part = |program: &Program<'_>, index| whole_part(program, pass.part(found, index));
        if by < 0 {
            let count = (by.unsigned_abs() as usize).min(found.times - 1);
            let from = if backward { 1 } else { found.times - count };
            let kept = part(program, from - 1);
            let next = (from + count < found.times).then(|| part(program, from + count));
            for index in from..from + count {
                let removed = part(program, index);
                if let Some(next) = next.iter().find(|next| next.len() == removed.len()) {
                    self.callers
                        .extend(removed.iter().copied().zip(next.iter().copied()));
                }
                counts.removed += removed.len() as u64;
                if removed.len() == kept.len() {
                    self.instead
                        .extend(removed.iter().copied().zip(kept.iter().copied()));
                }
                self.gone.extend(removed);
            }
            return;
        }
        let at = if backward {
            1.min(found.times - 1)
        } else {
            found.times - 1
        };
        let template = part(program, at);
        let before = at.checked_sub(1).map(|before| part(program, before));
        // A caller is the last of its calls, so that it may be at the beginning of the next layer.
        let next = (at + 1 < found.times).then(|| part(program, at + 1));
        let places: BTreeMap<u32, usize> = next.iter().flatten().copied().zip(0..).collect();
        let mut last = template.clone();
        let mut all = Vec::new();
        for number in 1..=by as u32 {
            let copies = program.copy(&template, &|_| false);
            // What a layer takes from the one before, a copy takes from the layer that it follows.
            let before = before.iter().filter(|before| before.len() == last.len());
            let of_last: BTreeMap<u32, u32> = before
                .flat_map(|before| before.iter().copied().zip(last.iter().copied()))
                .collect();
            for &copy in &copies {
                for dep in &mut program.items[copy as usize].deps {
                    dep.on = of_last.get(&dep.on).copied().unwrap_or(dep.on);
                }
            }
            for &item in &last {
                let around = &mut program.items[item as usize].caller;
                let place = around.and_then(|around| places.get(&around));
                if let Some(&place) = place.filter(|_| copies.len() == places.len()) {
                    *around = Some(copies[place]);
                }
            }
            counts.added += copies.len() as u64;
            self.copies
                .extend(copies.iter().map(|&copy| (copy, (number, backward))));
            all.extend(copies.iter().copied());
            last = copies;
        }
        self.keep.extend(template.iter().chain(&all));
        self.instead.extend(template.iter().copied().zip(last));
        if let Some(&end) = template.last() {
            self.behind.entry(end).or_default().extend(all);
        }
    }

    /// Notes copies or removals of layers that are not alike: a middle one is copied, behind itself, or the middle ones are
    /// removed.
    fn change_block(
        &mut self,
        program: &mut Program<'_>,
        layers: &[Vec<u32>],
        by: i64,
        counts: &mut EditCounts,
    ) -> Result<(), TraceError> {
        let middle = layers.len() / 2;
        if by < 0 {
            let count = by.unsigned_abs() as usize;
            let from = middle.saturating_sub(count / 2).max(1);
            if from + count >= layers.len() {
                return Err(super::refused(
                    "its first and its last layer differ from others, so that they cannot be removed",
                    "keep two layers",
                ));
            }
            for layer in &layers[from..from + count] {
                let part = whole_part(program, layer);
                counts.removed += part.len() as u64;
                self.gone.extend(part);
            }
            return Ok(());
        }
        let template = whole_part(program, &layers[middle]);
        let mut all = Vec::new();
        for number in 1..=by as u32 {
            let copies = program.copy(&template, &|_| false);
            counts.added += copies.len() as u64;
            self.copies
                .extend(copies.iter().map(|&copy| (copy, (number, true))));
            all.extend(copies);
        }
        if let Some(&end) = template.last() {
            self.behind.entry(end).or_default().extend(all);
        }
        Ok(())
    }

    fn apply(&mut self, program: &mut Program<'_>) {
        for item in program.order.clone() {
            if self.keep.contains(&item) {
                continue;
            }
            let own = program.facts_of(item).phase;
            let mut deps = std::mem::take(&mut program.items[item as usize].deps);
            for dep in &mut deps {
                if let Some(&instead) = self.instead.get(&dep.on).filter(|_| !dep.in_turn) {
                    // A backward pass takes from its own layer.
                    let of = program.facts_of(dep.on).phase;
                    if self.gone.contains(&dep.on) || of == own || of != Phase::Forward {
                        dep.on = instead;
                    }
                }
            }
            program.items[item as usize].deps = deps;
        }
        let gone = std::mem::take(&mut self.gone);
        for item in program.order.clone() {
            let around = &mut program.items[item as usize].caller;
            *around = around.map(|around| self.callers.get(&around).copied().unwrap_or(around));
        }
        if !gone.is_empty() {
            program.remove(&|item| gone.contains(&item));
        }
        let mut order = Vec::with_capacity(program.order.len());
        for item in std::mem::take(&mut program.order) {
            order.push(item);
            order.extend(self.behind.remove(&item).unwrap_or_default());
        }
        program.order = order;
    }
}

/// Returns the items of a part with the transfers that they launch, or that no host launches between them, in the order of the
/// program.
fn whole_part(program: &Program<'_>, part: &[u32]) -> Vec<u32> {
    let of: BTreeSet<u32> = part.iter().copied().collect();
    let place = |wanted: Option<&u32>| program.order.iter().position(|item| Some(item) == wanted);
    let (Some(first), Some(last)) = (place(part.first()), place(part.last())) else {
        return Vec::new();
    };
    let all = program.order.iter().enumerate().filter(|&(at, &item)| {
        let caller = program.items[item as usize].caller;
        let inside = match caller {
            Some(caller) => of.contains(&caller),
            None => (first..=last).contains(&at),
        };
        let transfers = matches!(
            program.view_of(item).op,
            Op::Collective { .. } | Op::Message { .. }
        );
        of.contains(&item) || transfers && inside && !gradients::is_bucket(program, item)
    });
    all.map(|(_, &item)| item).collect()
}

/// Gives work on parameters behind the backward pass its time in proportion to the parameters.
fn stretch_parameters(
    program: &mut Program<'_>,
    step: u32,
    ratio: f64,
    last_hook: Option<u32>,
    optimizer: bool,
    counts: &mut EditCounts,
) {
    let places = program.places();
    let from = last_hook.map_or(0, |hook| {
        places.get(hook as usize).copied().unwrap_or(u32::MAX)
    });
    let mut stretched = 0;
    for item in program.order.clone() {
        let facts = *program.facts_of(item);
        let finalizes = facts.phase == Phase::Parameters && places[item as usize] > from;
        let steps = optimizer && facts.phase == Phase::Optimizer;
        if facts.step != Some(step) || !(finalizes || steps) {
            continue;
        }
        let view = *program.view_of(item);
        if !matches!(view.op, Op::Compute { .. } | Op::Host) {
            continue;
        }
        for (name, span) in [
            ("duration_ns", view.recorded),
            ("delay_ns", view.delay),
            ("profiler_ns", view.profiler),
        ] {
            if span.0 > 0 {
                let ns = (span.0 as f64 / 1000.0 * ratio).round() as u64;
                program.items[item as usize]
                    .changes
                    .insert(name, Value::Count(ns));
            }
        }
        if let Op::Compute { flops, bytes, .. } = view.op {
            for (name, count) in [("num_ops", flops), ("tensor_size", bytes)] {
                if count > 0 {
                    let count = (count as f64 * ratio).round() as u64;
                    program.items[item as usize]
                        .changes
                        .insert(name, Value::Count(count));
                }
            }
        }
        stretched += 1;
    }
    if stretched > 0 {
        counts
            .notes
            .insert("work on parameters that is not repeated as they grow".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// x a b c a b c a b c y: three times three, from the second on.
    #[test]
    fn the_longest_repetition_is_found_with_its_shortest_period() {
        let found = longest_repetition(&[9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 8], None);
        let expected = Repetition {
            start: 1,
            period: 3,
            times: 3,
        };
        assert_eq!(found, Some(expected));
        // a a b a a b: a pair of pairs covers less than two threes.
        let found = longest_repetition(&[1, 1, 2, 1, 1, 2], None);
        assert_eq!(
            found,
            Some(Repetition {
                start: 0,
                period: 3,
                times: 2
            })
        );
        assert_eq!(longest_repetition(&[1, 2, 3], None), None);
        let twice = longest_repetition(&[1, 2, 1, 2, 5, 7, 7, 7], Some(3));
        assert_eq!(
            twice,
            Some(Repetition {
                start: 5,
                period: 1,
                times: 3
            })
        );
    }
}
