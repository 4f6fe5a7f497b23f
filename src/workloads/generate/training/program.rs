//! Program of a layer in a pass for one member of its tensor group: nodes without ids, instantiated for each pass.

use crate::generate::plan::ParallelGroupKind;
use chakram_trace::format::{
    CollectiveKind, Dtype, KernelShape, MemoryChanges, TensorClass, TrainingPhase,
};

/// Bytes of an operator's operands on one core, as the kernel that they stand at has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OperandBytes {
    pub input: u64,
    pub weights: u64,
    pub output: u64,
}

/// Operation of a program's node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ProgramTask {
    /// A kernel.
    Kernel {
        flops: u64,
        bytes: u64,
        shape: Option<KernelShape>,
        /// Number format that it computes in, if that is not the plan's.
        dtype: Option<Dtype>,
        /// Operands of the operator that it stands for in memory traffic, if it does.
        operands: Option<OperandBytes>,
    },
    /// A collective of the tensor group or of a part of it, with its `comm_size`.
    Collective {
        kind: CollectiveKind,
        bytes: u64,
        family: ParallelGroupKind,
    },
    /// A message to or from the tensor group's member `peer`; `slot` distinguishes it from other messages of these
    /// two for the same layer.
    Message {
        receive: bool,
        peer: u32,
        bytes: u64,
        slot: u32,
    },
}

/// Dependency of a program's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProgramDependency {
    /// All that the program waits for.
    Entry,
    /// The node with this number in the program.
    Node(u32),
}

/// A node of a program.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProgramNode {
    /// Behind the layer's name: `fwd/attention.qkv`.
    pub name: String,
    pub phase: TrainingPhase,
    pub task: ProgramTask,
    /// Number of the lane of its kernels beside that of the chain, which is 0.
    pub branch: u32,
    pub after: Vec<ProgramDependency>,
    /// True for one that finds gradients of weights, and for what only those need.
    pub of_weights: bool,
    /// Bytes of gradients of outputs that it needs, which stay for it if it is in a pass of its own.
    pub holds: u64,
    pub memory: MemoryChanges,
    pub inputs: String,
    pub outputs: String,
}

/// Nodes of a layer in one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LayerProgram {
    pub items: Vec<ProgramNode>,
    /// Dependencies of the next layer.
    pub exit: Vec<ProgramDependency>,
    /// Backwards, the gradients that each operator produces, last operator to first.
    pub found: Vec<ProducedGradients>,
    /// Changes of memory that no node was left to make.
    pub rest: MemoryChanges,
}

/// Gradients that an operator finds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProducedGradients {
    /// The nodes that do.
    pub nodes: Vec<u32>,
    /// Nodes of the program up to its last one.
    pub until: u32,
    /// Numbers of weights, in the order in which their gradients are produced.
    pub weights: [u64; 2],
    /// True if they are those of experts that other ranks do not have.
    pub of_experts: bool,
}

impl LayerProgram {
    /// The program in two: without the nodes for gradients of weights, and these. What nodes of the first needed of the second they
    /// need of what was in front of it; those of the second run one after another.
    pub fn in_two(&self) -> [Self; 2] {
        let [mut inputs, mut weights] = [Self::default(), Self::default()];
        // Of each node, the number in its own program, and what stands for it in the first.
        let mut numbers = Vec::with_capacity(self.items.len());
        let mut stands: Vec<Vec<ProgramDependency>> = Vec::with_capacity(self.items.len());
        let mut last_kernel = None;
        for item in &self.items {
            let mut own = item.clone();
            let in_first = |after: &ProgramDependency| match after {
                ProgramDependency::Entry => vec![ProgramDependency::Entry],
                ProgramDependency::Node(node) => stands[*node as usize].clone(),
            };
            let mut first: Vec<_> = item.after.iter().flat_map(in_first).collect();
            first.sort_unstable();
            first.dedup();
            if !item.of_weights {
                own.after = first;
                let number = inputs.items.len() as u32;
                inputs.items.push(own);
                numbers.push(number);
                stands.push(vec![ProgramDependency::Node(number)]);
                continue;
            }
            let in_second = |after: &ProgramDependency| match after {
                ProgramDependency::Node(node) if self.items[*node as usize].of_weights => {
                    ProgramDependency::Node(numbers[*node as usize])
                }
                _ => ProgramDependency::Entry,
            };
            own.after = item.after.iter().map(in_second).collect();
            let number = weights.items.len() as u32;
            if let ProgramTask::Kernel { .. } = own.task {
                own.after
                    .extend(last_kernel.replace(ProgramDependency::Node(number)));
            }
            own.after.sort_unstable();
            own.after.dedup();
            // Gradients of outputs stay from the pass before.
            let held = match inputs.items.last_mut() {
                Some(last) => &mut last.memory,
                None => &mut inputs.rest,
            };
            add(&mut held.allocates, TensorClass::Activations, item.holds);
            add(&mut own.memory.frees, TensorClass::Activations, item.holds);
            weights.items.push(own);
            numbers.push(number);
            stands.push(first);
        }
        let in_first = |after: &ProgramDependency| match after {
            ProgramDependency::Entry => vec![ProgramDependency::Entry],
            ProgramDependency::Node(node) => stands[*node as usize].clone(),
        };
        inputs.exit = self.exit.iter().flat_map(in_first).collect();
        inputs.exit.sort_unstable();
        inputs.exit.dedup();
        merge(&mut inputs.rest, &self.rest);
        weights.exit = match weights.items.len() as u32 {
            0 => vec![ProgramDependency::Entry],
            count => {
                let ends = (0..count).map(ProgramDependency::Node);
                let needed = |end: &ProgramDependency| {
                    weights.items.iter().any(|item| item.after.contains(end))
                };
                ends.filter(|end| !needed(end)).collect()
            }
        };
        let of_second = |node: &&u32| self.items[**node as usize].of_weights;
        weights.found = self
            .found
            .iter()
            .map(|found| ProducedGradients {
                nodes: found
                    .nodes
                    .iter()
                    .filter(of_second)
                    .map(|node| numbers[*node as usize])
                    .collect(),
                until: self.items[..found.until as usize]
                    .iter()
                    .filter(|item| item.of_weights)
                    .count() as u32,
                ..*found
            })
            .collect();
        [inputs, weights]
    }
}

/// Adds `bytes` of a class. Layers without nodes add up over passes, so there is no end to sums but the largest number.
pub(super) fn add(sums: &mut [u64; TensorClass::COUNT], class: TensorClass, bytes: u64) {
    let sum = &mut sums[class as usize];
    *sum = sum.saturating_add(bytes);
}

/// Adds `more` to `changes`.
pub(super) fn merge(changes: &mut MemoryChanges, more: &MemoryChanges) {
    for (class, _) in TensorClass::ALL {
        add(
            &mut changes.allocates,
            class,
            more.allocates[class as usize],
        );
        add(&mut changes.frees, class, more.frees[class as usize]);
    }
}

/// Puts a program together, node by node.
#[derive(Debug)]
pub(super) struct ProgramBuilder {
    program: LayerProgram,
    /// Nodes that produce gradients of the current operator.
    finders: Vec<u32>,
    /// Dependencies of the next node of the chain.
    pub front: Vec<ProgramDependency>,
    /// The branch of the nodes to come.
    pub branch: u32,
    /// True if the nodes to come are for gradients of weights alone.
    pub of_weights: bool,
}

impl ProgramBuilder {
    pub fn new() -> Self {
        Self {
            program: LayerProgram::default(),
            finders: Vec::new(),
            front: vec![ProgramDependency::Entry],
            branch: 0,
            of_weights: false,
        }
    }

    /// Adds a node that waits for `after`, and returns its number.
    pub fn push_parallel(
        &mut self,
        name: String,
        phase: TrainingPhase,
        task: ProgramTask,
        after: Vec<ProgramDependency>,
        shapes: [&str; 2],
    ) -> u32 {
        let memory = std::mem::take(&mut self.program.rest);
        self.program.items.push(ProgramNode {
            name,
            phase,
            task,
            branch: self.branch,
            after,
            of_weights: self.of_weights,
            holds: 0,
            memory,
            inputs: shapes[0].to_owned(),
            outputs: shapes[1].to_owned(),
        });
        self.program.items.len() as u32 - 1
    }

    /// Adds the next node of the chain, and returns its number.
    pub fn push_chained(
        &mut self,
        name: String,
        phase: TrainingPhase,
        task: ProgramTask,
        shapes: [&str; 2],
    ) -> u32 {
        let after = std::mem::take(&mut self.front);
        let item = self.push_parallel(name, phase, task, after, shapes);
        self.front.push(ProgramDependency::Node(item));
        item
    }

    /// Adds the kernels behind `item`, the one that finds the gradient of an operator's weights; they find gradients
    /// too, and the chain waits for them unless they run `beside` it.
    pub fn push_behind<'k>(
        &mut self,
        mut item: u32,
        kernels: impl IntoIterator<Item = (String, ProgramTask, [&'k str; 2])>,
        beside: bool,
    ) {
        self.gradient(item);
        for (name, task, shapes) in kernels {
            let after = vec![ProgramDependency::Node(item)];
            item = self.push_parallel(name, TrainingPhase::Backward, task, after, shapes);
            self.gradient(item);
        }
        if !beside {
            self.front = vec![ProgramDependency::Node(item)];
        }
    }

    /// Records that `item` needs `bytes` of gradients of outputs.
    pub fn hold(&mut self, item: u32, bytes: u64) {
        self.program.items[item as usize].holds = bytes;
    }

    /// Records that `item` produces a gradient of weights.
    pub fn gradient(&mut self, item: u32) {
        self.finders.push(item);
    }

    /// Records that the gradients of an operator with these weights are complete.
    pub fn found(&mut self, weights: [u64; 2], of_experts: bool) {
        self.program.found.push(ProducedGradients {
            nodes: std::mem::take(&mut self.finders),
            until: self.program.items.len() as u32,
            weights,
            of_experts,
        });
    }

    /// Makes the next node allocate `bytes`.
    pub fn allocate(&mut self, class: TensorClass, bytes: u64) {
        add(&mut self.program.rest.allocates, class, bytes);
    }

    /// Makes the last node free `bytes`, or the next one if there is none yet.
    pub fn free(&mut self, class: TensorClass, bytes: u64) {
        let memory = match self.program.items.last_mut() {
            Some(last) => &mut last.memory,
            None => &mut self.program.rest,
        };
        add(&mut memory.frees, class, bytes);
    }

    pub fn finish(mut self) -> LayerProgram {
        self.program.exit = self.front;
        // Allocations after the last node move into it.
        if let Some(last) = self.program.items.last_mut() {
            let rest = std::mem::take(&mut self.program.rest);
            merge(&mut last.memory, &rest);
        }
        self.program
    }
}
