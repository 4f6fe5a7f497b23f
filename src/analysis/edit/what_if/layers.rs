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
use super::program::{Phase, Program, Value};
use super::shapes::{elements, parse_shapes};
use chakram_trace::format::{Op, TraceError};
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
    all.sort_by_key(|&(distance, count)| (std::cmp::Reverse(distance.saturating_mul(count)), distance));
    let mut periods: Vec<usize> = all.into_iter().take(MAX_PERIODS).map(|(distance, _)| distance).collect();
    periods.sort_unstable();
    periods
}

/// Items of a pass of a step, with their signatures; transfers and what only launches reductions follow their launch.
struct PassItems {
    items: Vec<u32>,
    signatures: Vec<u64>,
}

impl PassItems {
    fn of(program: &Program<'_>, step: u32, reductions: &Reductions, holds: &dyn Fn(u32) -> bool) -> Self {
        let launches: BTreeSet<u32> = reductions.launches.iter().flatten().copied().collect();
        let mut this = Self { items: Vec::new(), signatures: Vec::new() };
        for &item in &program.order {
            let facts = program.facts_of(item);
            if facts.step != Some(step) || !holds(item) || launches.contains(&item) {
                continue;
            }
            let view = program.view_of(item);
            if matches!(view.op, Op::Collective { .. } | Op::Message { .. } | Op::NoOp) {
                continue;
            }
            let mut hasher = DefaultHasher::new();
            // Names of modules and layers have their numbers.
            let digits = |c: char| if c.is_ascii_digit() { '#' } else { c };
            view.name.chars().map(digits).collect::<String>().hash(&mut hasher);
            facts.inputs.hash(&mut hasher);
            facts.outputs.hash(&mut hasher);
            this.items.push(item);
            this.signatures.push(hasher.finish());
        }
        this
    }

    fn part(&self, repetition: Repetition, index: usize) -> &[u32] {
        let from = repetition.start + index * repetition.period;
        &self.items[from..from + repetition.period]
    }
}

/// Changes the number of layers.
pub(super) fn change(
    program: &mut Program<'_>,
    change: LayerChange,
    rates: &TransferRates,
) -> Result<EditCounts, TraceError> {
    let mut counts = EditCounts::default();
    for step in 0..program.steps {
        change_step(program, step, change, rates, &mut counts)?;
    }
    if counts.matched == 0 {
        return Err(super::refused(
            "nothing is repeated as often in the forward as in the backward pass, so its layers are unknown",
            "edit a job whose layers are alike",
        ));
    }
    Ok(counts)
}

fn change_step(
    program: &mut Program<'_>,
    step: u32,
    change: LayerChange,
    rates: &TransferRates,
    counts: &mut EditCounts,
) -> Result<(), TraceError> {
    let reductions = Reductions::find(program, step);
    let phase = |item: u32| program.facts_of(item).phase;
    let in_order = |wanted: Phase| {
        let first = program.order.iter().position(|&item| {
            program.facts_of(item).step == Some(step) && phase(item) == wanted
        });
        first.unwrap_or(usize::MAX)
    };
    let places = program.places();
    let (backward_from, optimizer_from) = (in_order(Phase::Backward), in_order(Phase::Optimizer));
    let place = |item: u32| places[item as usize] as usize;
    let forward = PassItems::of(program, step, &reductions, &|item| {
        phase(item) == Phase::Forward
            || phase(item) == Phase::Parameters && place(item) < backward_from
    });
    let backward = PassItems::of(program, step, &reductions, &|item| {
        phase(item) == Phase::Backward
            || phase(item) == Phase::Parameters && place(item) >= backward_from && place(item) < optimizer_from
    });
    let optimizer = PassItems::of(program, step, &reductions, &|item| phase(item) == Phase::Optimizer);
    let Some(layers) = longest_repetition(&forward.signatures, None) else {
        return Ok(());
    };
    let trains = !backward.items.is_empty();
    let back = longest_repetition(&backward.signatures, Some(layers.times));
    if trains && back.is_none_or(|back| back.covered() * 2 < backward.items.len()) {
        return Err(super::refused(
            format!(
                "its forward pass repeats {} nodes {} times, and its backward pass repeats no such part as often",
                layers.period, layers.times
            ),
            "edit a job whose layers are alike",
        ));
    }
    let old = layers.times as i64;
    let new = match change {
        LayerChange::By(by) => old.saturating_add(by),
        LayerChange::Times(factor) => factor.of(layers.times as u64) as i64,
    };
    if let LayerChange::Times(factor) = change
        && !(old as u64 * factor.over).is_multiple_of(factor.under)
    {
        return Err(super::refused(
            format!("its {old} layers times {factor} are no whole number"),
            "another factor, or a number of layers such as layers=+2",
        ));
    }
    if !(1..=100_000).contains(&new) {
        return Err(super::refused(format!("it would have {new} layers"), "1 to 100000 layers"));
    }
    counts.matched += layers.times as u64;
    counts.changed += new.abs_diff(old);
    if new == old {
        return Ok(());
    }
    let before: u64 = reductions.hooks.iter().map(|hook| hook.1).sum();
    let limit = reductions.limit(program);
    let each = match (before, reductions.collectives.is_empty()) {
        (1.., false) => {
            let bytes = reductions.collectives.iter().map(|&item| gradients::bytes_of(program, item));
            let bytes: u64 = bytes.sum();
            bytes.is_multiple_of(before).then_some(bytes / before)
        }
        _ => None,
    };
    let mut edit = SequenceEdit::default();
    edit.change(program, &forward, layers, new, false, counts);
    if let Some(back) = back.filter(|_| trains) {
        edit.change(program, &backward, back, new, true, counts);
    }
    let repeated = longest_repetition(&optimizer.signatures, Some(layers.times));
    let repeated = repeated.filter(|found| found.covered() * 4 > optimizer.items.len());
    if let Some(found) = repeated {
        edit.change(program, &optimizer, found, new, false, counts);
    }
    edit.apply(program);
    if !reductions.collectives.is_empty() {
        match (each, limit.or(Some(u64::MAX))) {
            (Some(each), Some(limit)) => {
                let found = gradients::regroup_step(program, step, limit, rates, Some(each))?;
                counts.notes.extend(found.notes);
            }
            _ => scale_reductions(program, step, layers.times as u64, new as u64, counts)?,
        }
    }
    let after: u64 = Reductions::find(program, step).hooks.iter().map(|hook| hook.1).sum();
    let ratio = match before {
        0 => None,
        before => Some(after as f64 / before as f64),
    };
    if let Some(ratio) = ratio {
        let last_hook = Reductions::find(program, step).hooks.last().map(|hook| hook.0);
        stretch_parameters(program, step, ratio, last_hook, repeated.is_none(), counts);
    } else if repeated.is_none() && trains && !optimizer.items.is_empty() {
        counts.notes.insert(
            "the optimizer's time is as captured: the parameters of a layer are unknown".to_owned(),
        );
    }
    Ok(())
}

/// Copies and removals, which are carried out together.
#[derive(Default)]
struct SequenceEdit {
    gone: BTreeSet<u32>,
    /// Items to put in front of one, and behind one.
    in_front: BTreeMap<u32, Vec<u32>>,
    behind: BTreeMap<u32, Vec<u32>>,
}

impl SequenceEdit {
    /// Notes copies or removals of a repeated part, of which `new` are to be there. The last layer is the first of a backward
    /// pass.
    fn change(
        &mut self,
        program: &mut Program<'_>,
        pass: &PassItems,
        found: Repetition,
        new: i64,
        backward: bool,
        counts: &mut EditCounts,
    ) {
        let old = found.times as i64;
        let index = |layer: i64| if backward { old - 1 - layer } else { layer } as usize;
        if new < old {
            for layer in new..old {
                let part = whole_part(program, pass.part(found, index(layer)));
                counts.removed += part.len() as u64;
                self.gone.extend(part);
            }
            return;
        }
        let part = whole_part(program, pass.part(found, index(old - 1)));
        let (first, last) = (part[0], part[part.len() - 1]);
        let mut all = Vec::new();
        for _ in old..new {
            all.extend(program.copy(&part, &|_| false));
        }
        counts.added += all.len() as u64;
        match backward {
            true => self.in_front.entry(first).or_default().extend(all),
            false => self.behind.entry(last).or_default().extend(all),
        }
    }

    fn apply(mut self, program: &mut Program<'_>) {
        let gone = std::mem::take(&mut self.gone);
        if !gone.is_empty() {
            program.remove(&|item| gone.contains(&item));
        }
        let mut order = Vec::with_capacity(program.order.len());
        for item in std::mem::take(&mut program.order) {
            order.extend(self.in_front.remove(&item).unwrap_or_default());
            order.push(item);
            order.extend(self.behind.remove(&item).unwrap_or_default());
        }
        program.order = order;
    }
}

/// Returns the items of a part with the transfers that they launch, in the order of the program.
fn whole_part(program: &Program<'_>, part: &[u32]) -> Vec<u32> {
    let of: BTreeSet<u32> = part.iter().copied().collect();
    let reduces = |item: u32| gradients::is_reduction(program, item);
    let all = program.order.iter().copied().filter(|&item| {
        let launched = program.items[item as usize].caller.is_some_and(|caller| of.contains(&caller));
        let transfers = matches!(program.view_of(item).op, Op::Collective { .. } | Op::Message { .. });
        of.contains(&item) || transfers && launched && !reduces(item)
    });
    all.collect()
}

/// Has reductions that no hook of a parameter explains carry gradients in proportion to the layers.
fn scale_reductions(
    program: &mut Program<'_>,
    step: u32,
    old: u64,
    new: u64,
    counts: &mut EditCounts,
) -> Result<(), TraceError> {
    let _ = (program, step, old, new, counts);
    Err(super::refused(
        "its reductions of gradients are not those of parameters whose hooks are captured, so what more layers would reduce is \
         unknown",
        "edit a job without reductions, or one of DistributedDataParallel that was captured with shapes",
    ))
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
    let from = last_hook.map_or(0, |hook| places[hook as usize]);
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
                program.items[item as usize].changes.insert(name, Value::Count(ns));
            }
        }
        if let Op::Compute { flops, bytes, .. } = view.op {
            for (name, count) in [("num_ops", flops), ("tensor_size", bytes)] {
                if count > 0 {
                    let count = (count as f64 * ratio).round() as u64;
                    program.items[item as usize].changes.insert(name, Value::Count(count));
                }
            }
        }
        stretched += 1;
    }
    if stretched > 0 {
        counts.notes.insert("work on parameters that is not repeated as they grow".to_owned());
    }
    let _ = (elements, parse_shapes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// x a b c a b c a b c y: three times three, from the second on.
    #[test]
    fn the_longest_repetition_is_found_with_its_shortest_period() {
        let found = longest_repetition(&[9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 8], None);
        let expected = Repetition { start: 1, period: 3, times: 3 };
        assert_eq!(found, Some(expected));
        // a a b a a b: a pair of pairs covers less than two threes.
        let found = longest_repetition(&[1, 1, 2, 1, 1, 2], None);
        assert_eq!(found, Some(Repetition { start: 0, period: 3, times: 2 }));
        assert_eq!(longest_repetition(&[1, 2, 3], None), None);
        let twice = longest_repetition(&[1, 2, 1, 2, 5, 7, 7, 7], Some(3));
        assert_eq!(twice, Some(Repetition { start: 5, period: 1, times: 3 }));
    }
}
