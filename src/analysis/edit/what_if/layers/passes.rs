//! Divides a step into passes, each with its operators.

use super::super::gradients::StepGradientReductions;
use super::super::program::{EditableRankProgram, TrainingStepPhase, pass_begun_by_mark};
use super::repetition::{NodeRepetitionPeriodAndCount, longest_repetition};
use chakram_trace::format::Op;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The nodes of a pass. Each node has a signature of its structure. Transfers are excluded, and so are nodes that only
/// launch reductions.
#[derive(Default)]
pub(super) struct PassNodesWithSignatures {
    pub items: Vec<u32>,
    pub signatures: Vec<u64>,
}

impl PassNodesWithSignatures {
    fn push(&mut self, program: &EditableRankProgram<'_>, item: u32) {
        let (view, facts) = (program.view_of_item(item), program.facts_of_item(item));
        let mut hasher = DefaultHasher::new();
        // Signatures ignore digits, because names contain numbers of modules and layers.
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

    pub fn items_of_repetition(
        &self,
        repetition: NodeRepetitionPeriodAndCount,
        index: usize,
    ) -> &[u32] {
        let from = repetition.start + index * repetition.period;
        &self.items[from..from + repetition.period]
    }
}

/// A step's passes in order: the forward and backward passes of all micro-batches, then the optimizer.
pub(super) struct StepPasses {
    pub forward: Vec<PassNodesWithSignatures>,
    pub backward: Vec<PassNodesWithSignatures>,
    pub optimizer: PassNodesWithSignatures,
}

impl StepPasses {
    pub fn find_passes(
        program: &EditableRankProgram<'_>,
        step: u32,
        reductions: &StepGradientReductions,
    ) -> Self {
        let launches: BTreeSet<u32> = reductions.launches.iter().flatten().copied().collect();
        let mut this = Self {
            forward: Vec::new(),
            backward: Vec::new(),
            optimizer: PassNodesWithSignatures::default(),
        };
        let of_step = |&&item: &&u32| program.facts_of_item(item).step == Some(step);
        let last = program.order.iter().rev().filter(of_step).find(|&&item| {
            let phase = program.facts_of_item(item).phase;
            phase == TrainingStepPhase::Backward
                || phase == TrainingStepPhase::Parameters && is_gradient_hook(program, item)
        });
        let mut current: Option<(bool, Option<u32>)> = None;
        let mut ended = false;
        for &item in program.order.iter().filter(of_step) {
            let facts = program.facts_of_item(item);
            let transfers = matches!(
                program.view_of_item(item).op,
                Op::Collective { .. } | Op::Message { .. } | Op::NoOp
            );
            if !launches.contains(&item) && !transfers {
                let mark = program
                    .node_and_its_callers(program.items[item as usize].node)
                    .find_map(|caller| {
                        pass_begun_by_mark(program.view_of_node(caller).name)
                            .map(|(number, _)| number)
                    });
                let micro_batch = facts.micro_batch.or(mark);
                let pass = match facts.phase {
                    TrainingStepPhase::Forward => Some((false, micro_batch)),
                    TrainingStepPhase::Backward => Some((true, micro_batch)),
                    // A gather or hook belongs to the pass that it runs in.
                    TrainingStepPhase::Parameters if !ended => {
                        Some(current.unwrap_or((false, micro_batch)))
                    }
                    _ => None,
                };
                if facts.phase == TrainingStepPhase::Optimizer {
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
                        passes.push(PassNodesWithSignatures::default());
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

fn is_gradient_hook(program: &EditableRankProgram<'_>, item: u32) -> bool {
    let node = program.items[item as usize].node;
    program
        .node_and_its_callers(node)
        .any(|caller| program.view_of_node(caller).name.contains("AccumulateGrad"))
}

/// The nodes of each layer in a backward pass, with layers in execution order. They may differ in individual nodes, for
/// example if only some layers gather their parameters ahead.
type BackwardPassNodesByLayer = Vec<Vec<u32>>;

/// Returns a forward pass's layers, which are the longest repetition. If the repeated part contains a whole pass over
/// the layers (as when tokens are decoded one by one), returns the repetition inside it.
pub(super) fn find_layers_as_longest_repetition(
    pass: &PassNodesWithSignatures,
) -> Option<NodeRepetitionPeriodAndCount> {
    let outer = longest_repetition(&pass.signatures, None)?;
    let one = &pass.signatures[outer.start..outer.start + outer.period];
    match longest_repetition(one, None) {
        Some(inner) if inner.covered_count() * 10 >= outer.period * 7 => {
            Some(NodeRepetitionPeriodAndCount {
                start: outer.start + inner.start,
                ..inner
            })
        }
        _ => Some(outer),
    }
}

/// Returns all repetitions in `passes` with this length and count, each with the index of its pass.
pub(super) fn find_repetitions_of_period_and_count(
    passes: &[PassNodesWithSignatures],
    period: usize,
    times: usize,
) -> Vec<(usize, NodeRepetitionPeriodAndCount)> {
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
                    NodeRepetitionPeriodAndCount {
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

impl StepPasses {
    /// Finds the layers of backward passes from autograd's sequence numbers. An operator and the function that
    /// computes its gradient have the same number. Returns `None` if a pass does not show all layers.
    pub fn find_backward_layers_by_autograd_sequence(
        &self,
        program: &EditableRankProgram<'_>,
        forward: &[(usize, NodeRepetitionPeriodAndCount)],
        of: &[usize],
    ) -> Option<Vec<BackwardPassNodesByLayer>> {
        let mut layer_of: BTreeMap<u64, usize> = BTreeMap::new();
        for (pass, found) in forward {
            for index in 0..found.times {
                for &item in self.forward[*pass].items_of_repetition(*found, index) {
                    if let Some(number) = program.facts_of_item(item).sequence {
                        layer_of.entry(number).or_insert(index);
                    }
                }
            }
        }
        let times = forward.first()?.1.times;
        let mut blocks = Vec::new();
        for pass in of.iter().map(|&index| &self.backward[index]) {
            // A node belongs to the layer of the autograd function that encloses it or, if there is none, to the
            // previous node's layer.
            let functions = pass.items.iter().filter_map(|&item| {
                let number = program.facts_of_item(item).sequence?;
                let layer = layer_of.get(&number)?;
                program
                    .view_of_item(item)
                    .name
                    .ends_with("Backward0")
                    .then_some((item, *layer))
            });
            let mut of_function: BTreeMap<u32, usize> = BTreeMap::new();
            for (item, layer) in functions {
                for caller in program.node_and_its_callers(program.items[item as usize].node) {
                    if program
                        .view_of_node(caller)
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
                let mut callers = program.node_and_its_callers(program.items[item as usize].node);
                let own = callers.find_map(|caller| of_function.get(&caller).copied());
                // Gradient functions of operators before the first layer, such as an embedding, belong to no layer.
                let other = own.is_none()
                    && program.facts_of_item(item).phase == TrainingStepPhase::Backward;
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
}
