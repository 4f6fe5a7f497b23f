//! A layer as one member of a tensor group runs it, forwards and backwards.
//!
//! Where an operator cut by outputs begins a region and one cut by inputs ends it (Shoeybi et al., 2019):
//!
//! | | forward | backward |
//! |---|---|---|
//! | into the region | | all-reduce of the input's gradient |
//! | out of it | all-reduce of the output | |
//! | with sequence parallelism, into it | all-gather of the input | all-gather of the input again, reduce-scatter of its gradient |
//! | … out of it | reduce-scatter of the output | all-gather of the output's gradient |
//!
//! (Korthikanti et al., 2022, section 4.2.2.) The sum of the input's gradient is formed beside the product that
//! finds the gradient of the weights, and the input is gathered again beside the one before.

use super::super::GenerateError;
use super::buckets;
use super::cost::{Kernel, Kernels, Sizes};
use super::program::{Builder, Program, Task};
use super::shard::shard;
use crate::generate::plan::{Effect, Recompute, Without};
use crate::model::{Cut, Layer, Operator, Role, Work};
use crate::trace::{CollectiveKind, Phase, TensorClass};

/// What all layers of a plan share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    pub sizes: Sizes,
    /// Members of a tensor group.
    pub tensor: u64,
    pub sequence: bool,
    pub recompute: Recompute,
    pub without: Without,
    /// Whether sums are formed beside products.
    pub overlap: bool,
    pub trains: bool,
}

/// A layer's programs and weights.
#[derive(Clone, Debug)]
pub(super) struct Lowered {
    pub forward: Program,
    pub backward: Program,
    /// Weights that a member has.
    pub parameters: u64,
    /// Of those, weights whose gradients a member finds for its tokens only.
    pub partial: u64,
    /// Bytes kept from the forward to the backward pass.
    pub keeps: u64,
}

/// An operator as a member has it.
struct Part<'l> {
    operator: &'l Operator,
    kernels: Kernels,
    /// Weights in the order in which their gradients are found.
    found: [u64; 2],
    /// Bytes of all inputs and outputs of a tensor group.
    input: u64,
    output: u64,
    /// Whether it begins a region that is cut.
    enters: bool,
    /// Whether the gradient of its input is asked for.
    wanted: bool,
}

impl Context {
    /// Lowers `layer`; nobody asks for the gradient of the `first` one's input.
    pub fn lower(&self, layer: &Layer, first: bool) -> Result<Lowered, GenerateError> {
        let mut parts = Vec::new();
        let (mut parameters, mut partial) = (0, 0);
        let mut before = None;
        for (i, operator) in layer.operators.iter().enumerate() {
            let work = shard(operator, self.tensor, self.sequence);
            parameters += work.parameters();
            if operator.cut == Cut::Whole && self.sequence {
                partial += work.parameters();
            }
            let found = buckets::found(&work);
            let mut kernels = self.sizes.kernels(work)?;
            let enters = operator.cut == Cut::Outputs && before != Some(Cut::Outputs);
            if operator.cut == Cut::Outputs {
                // Operators side by side keep one input for all, and each member its part of it.
                kernels.keeps = match (enters, self.sequence) {
                    (false, _) => 0,
                    (true, true) => kernels.keeps / self.tensor,
                    (true, false) => kernels.keeps,
                };
            }
            before = Some(operator.cut);
            if self.leaves_out(layer, &operator.work) {
                kernels.forward.clear();
                kernels.backward.clear();
                kernels.weights = None;
            }
            if self.without.has(Effect::MemoryBound) {
                kernels.forward.retain(|kernel| !kernel.moves);
                kernels.backward.retain(|kernel| !kernel.moves);
            }
            let bytes = self.sizes.samples.saturating_mul(self.sizes.number);
            parts.push(Part {
                operator,
                kernels,
                found,
                input: operator.work.input_elements().saturating_mul(bytes),
                output: operator.work.output_elements().saturating_mul(bytes),
                enters,
                wanted: !(first && i == 0),
            });
        }
        let full = layer.role == Role::Block && self.recompute == Recompute::Full;
        let kept_input = parts.first().map_or(0, |part| part.input) / self.shares();
        let mut forward = Builder::new();
        if self.trains && full {
            forward.allocate(TensorClass::Activations, kept_input);
        }
        for part in &parts {
            self.forward(part, Phase::Forward, self.trains && !full, &mut forward);
        }
        let mut backward = Builder::new();
        if self.trains {
            if full {
                for part in &parts {
                    self.forward(part, Phase::Recompute, true, &mut backward);
                }
            }
            self.backward(&parts, &mut backward);
            if full {
                backward.free(TensorClass::Activations, kept_input);
            }
        }
        let all = parts.iter().map(|part| self.kept(part)).sum();
        Ok(Lowered {
            forward: forward.finish(),
            backward: backward.finish(),
            parameters,
            partial,
            keeps: match (self.trains, full) {
                (false, _) => 0,
                (true, true) => kept_input,
                (true, false) => all,
            },
        })
    }

    /// Members among whom tokens are shared.
    fn shares(&self) -> u64 {
        if self.sequence { self.tensor } else { 1 }
    }

    fn leaves_out(&self, layer: &Layer, work: &Work) -> bool {
        let loss = matches!(work, Work::Loss { .. });
        let logits = layer.role == Role::Output && matches!(work, Work::Linear { .. });
        (loss && !self.trains) || (loss || logits) && self.without.has(Effect::Logits)
    }

    /// Bytes that a part keeps, unless its layer is run again as a whole.
    fn kept(&self, part: &Part<'_>) -> u64 {
        match self.recompute {
            Recompute::Selective => part.kernels.keeps,
            _ => part.kernels.keeps + part.kernels.scores,
        }
    }

    fn collective(
        &self,
        part: &Part<'_>,
        what: &str,
        phase: Phase,
        kind: CollectiveKind,
        bytes: u64,
    ) -> Option<(String, Task)> {
        let silent = self.tensor == 1 || self.without.has(Effect::TensorCommunication);
        // Where the kernel is left out, so is what it needs.
        let idle = part.kernels.forward.is_empty();
        let bytes = match kind {
            CollectiveKind::AllGather => bytes.div_ceil(self.tensor),
            _ => bytes,
        };
        let name = name(phase, &part.operator.name, &format!(".{what}"));
        (!silent && !idle && bytes > 0).then_some((name, Task::Collective { kind, bytes }))
    }

    fn forward(&self, part: &Part<'_>, phase: Phase, keeps: bool, to: &mut Builder) {
        if part.enters && self.sequence {
            let kind = CollectiveKind::AllGather;
            let gather = self.collective(part, "all-gather", phase, kind, part.input);
            if let Some((name, task)) = gather {
                to.next(name, phase, task, ["", ""]);
            }
        }
        if keeps {
            to.allocate(TensorClass::Activations, self.kept(part));
        }
        self.kernels(part, phase, to);
        match (&part.operator.work, part.operator.cut) {
            (_, Cut::Inputs) => self.leave(part, phase, to),
            (Work::Loss { rows, .. }, Cut::Between) => {
                // Maximum, sum of exponentials, and the right class's logit: one number per row each.
                let bytes = 4 * rows * self.sizes.samples;
                for what in ["maximum", "sum", "logit"] {
                    let kind = CollectiveKind::AllReduce;
                    if let Some((name, task)) = self.collective(part, what, phase, kind, bytes) {
                        to.next(name, phase, task, ["", ""]);
                    }
                }
            }
            _ => {}
        }
    }

    /// Sums outputs over members.
    fn leave(&self, part: &Part<'_>, phase: Phase, to: &mut Builder) {
        let (what, kind) = match self.sequence {
            true => ("reduce-scatter", CollectiveKind::ReduceScatter),
            false => ("all-reduce", CollectiveKind::AllReduce),
        };
        if let Some((name, task)) = self.collective(part, what, phase, kind, part.output) {
            to.next(name, phase, task, ["", ""]);
        }
    }

    fn kernels(&self, part: &Part<'_>, phase: Phase, to: &mut Builder) {
        for kernel in &part.kernels.forward {
            let (name, task, shapes) = stamp(part, phase, kernel);
            to.next(name, phase, task, shapes);
        }
    }

    fn backward(&self, parts: &[Part<'_>], to: &mut Builder) {
        let phase = Phase::Backward;
        // The node that gathers the input of a region again.
        let mut gathered = None;
        for (i, part) in parts.iter().enumerate().rev() {
            if part.operator.cut == Cut::Inputs && self.sequence {
                let kind = CollectiveKind::AllGather;
                let gather = self.collective(part, "all-gather", phase, kind, part.output);
                if let Some((name, task)) = gather {
                    to.next(name, phase, task, ["", ""]);
                }
            }
            let begins = part.operator.cut == Cut::Outputs
                && parts
                    .get(i + 1)
                    .is_none_or(|next| next.operator.cut != Cut::Outputs);
            let entry = to.front.clone();
            if begins && self.sequence {
                let kind = CollectiveKind::AllGather;
                let again = self.collective(part, "all-gather", phase, kind, part.input);
                gathered = again.map(|(name, task)| match self.overlap {
                    true => to.beside(name, phase, task, entry.clone(), ["", ""]),
                    false => to.next(name, phase, task, ["", ""]),
                });
            }
            let again = self.recompute == Recompute::Selective && part.kernels.scores > 0;
            if again {
                to.allocate(TensorClass::Activations, part.kernels.scores);
                self.kernels(part, Phase::Recompute, to);
            }
            let own = part.kernels.weights.is_some();
            for kernel in part.kernels.backward.iter().filter(|_| part.wanted || !own) {
                let (name, task, shapes) = stamp(part, phase, kernel);
                let item = to.next(name, phase, task, shapes);
                if !own && part.operator.work.parameters() > 0 {
                    to.gradient(item);
                }
            }
            let reduction = match (part.enters && part.wanted, self.sequence) {
                (false, _) => None,
                (true, true) => {
                    let kind = CollectiveKind::ReduceScatter;
                    self.collective(part, "reduce-scatter", phase, kind, part.input)
                }
                (true, false) => {
                    let kind = CollectiveKind::AllReduce;
                    self.collective(part, "all-reduce", phase, kind, part.input)
                }
            };
            let beside = self.overlap && reduction.is_some();
            let mut sum = reduction;
            if let Some((name, task)) = sum.take_if(|_| beside) {
                to.next(name, phase, task, ["", ""]);
            }
            if let Some(kernel) = &part.kernels.weights {
                let (name, task, shapes) = stamp(part, phase, kernel);
                let mut after = if beside { entry } else { to.front.clone() };
                after.extend(gathered.map(super::program::After::Item));
                let item = to.beside(name, phase, task, after, shapes);
                if !beside {
                    to.front = vec![super::program::After::Item(item)];
                }
                to.gradient(item);
            }
            to.free(
                TensorClass::Activations,
                part.kernels.keeps + part.kernels.scores,
            );
            if let Some((name, task)) = sum {
                to.next(name, phase, task, ["", ""]);
            }
            to.found(part.found);
            if part.enters {
                gathered = None;
            }
        }
    }
}

fn name(phase: Phase, operator: &str, suffix: &str) -> String {
    let phase = match phase {
        Phase::Forward => "fwd",
        Phase::Recompute => "again",
        _ => "bwd",
    };
    format!("{phase}/{operator}{suffix}")
}

fn stamp<'k>(part: &Part<'_>, phase: Phase, kernel: &'k Kernel) -> (String, Task, [&'k str; 2]) {
    let task = Task::Kernel {
        flops: kernel.flops,
        bytes: kernel.bytes,
    };
    let name = name(phase, &part.operator.name, kernel.suffix);
    (name, task, [&kernel.inputs, &kernel.outputs])
}
