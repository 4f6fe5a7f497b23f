//! The program of a layer in a pass, for one member of its tensor group: a list of nodes without
//! ids. Each pass of a micro-batch through the layer emits the nodes of this program, with new ids.

use crate::generate::plan::ParallelGroupKind;
use chakram_trace::format::{
    CollectiveKind, Dtype, KernelShape, NodeMemoryChanges, TensorClass, TrainingPhase,
};

/// Bytes of an operator's operands on one core. Only one of its kernels loads and stores them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OperatorOperandBytes {
    pub input: u64,
    pub weights: u64,
    pub output: u64,
}

/// Operation of a node: a kernel, a collective, or a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ProgramNodeOperation {
    /// A kernel of an operator.
    Kernel {
        flops: u64,
        bytes: u64,
        shape: Option<KernelShape>,
        /// Number format in which the kernel computes, if it differs from the plan's format.
        dtype: Option<Dtype>,
        /// The operator's operands, if this kernel counts their loads and stores.
        operands: Option<OperatorOperandBytes>,
    },
    /// A collective of the tensor group or of a part of it; its bytes follow the definition of `comm_size`.
    Collective {
        kind: CollectiveKind,
        bytes: u64,
        family: ParallelGroupKind,
    },
    /// A message to or from member `peer` of the tensor group. `slot` distinguishes the messages
    /// that the same two members exchange within a layer.
    Message {
        receive: bool,
        peer: u32,
        bytes: u64,
        slot: u32,
    },
    /// A message to the next rank of a context group, or from the previous rank; `slot` distinguishes the messages
    /// within a layer.
    RingMessage {
        receive: bool,
        bytes: u64,
        slot: u32,
    },
}

/// A dependency of a program's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProgramPredecessorsOrNodeDependency {
    /// The nodes on which the whole program depends.
    Entry,
    /// The node with this index in the program.
    Node(u32),
}

/// A node of a program, which has no id yet.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProgramNode {
    /// Name without the layer's prefix, such as `fwd/attention.qkv`.
    pub name: String,
    pub phase: TrainingPhase,
    pub task: ProgramNodeOperation,
    /// Index of the kernel's lane; 0 is the chain's lane.
    pub branch: u32,
    pub after: Vec<ProgramPredecessorsOrNodeDependency>,
    /// True for nodes that compute weight gradients, or whose results only such nodes use.
    pub of_weights: bool,
    /// Bytes of output gradients that the node reads. If the node runs in a separate pass, these gradients stay
    /// allocated until then.
    pub holds: u64,
    pub memory: NodeMemoryChanges,
    pub inputs: String,
    pub outputs: String,
}

/// Nodes of a layer in one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LayerProgram {
    pub items: Vec<ProgramNode>,
    /// Nodes on which the next layer depends.
    pub exit: Vec<ProgramPredecessorsOrNodeDependency>,
    /// In a backward program, the weight gradients that each operator computes, in order from the
    /// last operator to the first.
    pub found: Vec<OperatorWeightGradients>,
    /// Memory changes after the last node. For a program without nodes, all its memory changes.
    pub rest: NodeMemoryChanges,
}

/// Weight gradients that one operator computes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OperatorWeightGradients {
    /// The nodes that compute these gradients.
    pub nodes: Vec<u32>,
    /// Number of program nodes up to the last one that computes these gradients.
    pub until: u32,
    /// Number of weights in each gradient, in the order in which the gradients are computed.
    pub weights: [u64; 2],
    /// True if the weights belong to experts that some other ranks lack.
    pub of_experts: bool,
}

impl LayerProgram {
    /// Splits the program in two: the second has the nodes for weight gradients, and the first has all others. If a
    /// node of the first program depends on a node of the second, it depends on that node's dependencies instead. In
    /// the second program, each kernel waits for the previous one.
    pub fn split_off_weight_gradient_nodes(&self) -> [Self; 2] {
        let [mut inputs, mut weights] = [Self::default(), Self::default()];
        // `numbers` gives each node's index in its new program. `stands` lists, for each node, the nodes that replace
        // it as a dependency in the first program.
        let mut numbers = Vec::with_capacity(self.items.len());
        let mut stands: Vec<Vec<ProgramPredecessorsOrNodeDependency>> =
            Vec::with_capacity(self.items.len());
        let mut last_kernel = None;
        for item in &self.items {
            let mut own = item.clone();
            let in_first = |after: &ProgramPredecessorsOrNodeDependency| match after {
                ProgramPredecessorsOrNodeDependency::Entry => {
                    vec![ProgramPredecessorsOrNodeDependency::Entry]
                }
                ProgramPredecessorsOrNodeDependency::Node(node) => stands[*node as usize].clone(),
            };
            let mut first: Vec<_> = item.after.iter().flat_map(in_first).collect();
            first.sort_unstable();
            first.dedup();
            if !item.of_weights {
                own.after = first;
                let number = inputs.items.len() as u32;
                inputs.items.push(own);
                numbers.push(number);
                stands.push(vec![ProgramPredecessorsOrNodeDependency::Node(number)]);
                continue;
            }
            let in_second = |after: &ProgramPredecessorsOrNodeDependency| match after {
                ProgramPredecessorsOrNodeDependency::Node(node)
                    if self.items[*node as usize].of_weights =>
                {
                    ProgramPredecessorsOrNodeDependency::Node(numbers[*node as usize])
                }
                _ => ProgramPredecessorsOrNodeDependency::Entry,
            };
            own.after = item.after.iter().map(in_second).collect();
            let number = weights.items.len() as u32;
            if let ProgramNodeOperation::Kernel { .. } = own.task {
                own.after
                    .extend(last_kernel.replace(ProgramPredecessorsOrNodeDependency::Node(number)));
            }
            own.after.sort_unstable();
            own.after.dedup();
            // The second program still reads `item`'s output gradients, so the first program frees none of them.
            let held = match inputs.items.last_mut() {
                Some(last) => &mut last.memory,
                None => &mut inputs.rest,
            };
            add_tensor_class_bytes(&mut held.allocates, TensorClass::Activations, item.holds);
            add_tensor_class_bytes(&mut own.memory.frees, TensorClass::Activations, item.holds);
            weights.items.push(own);
            numbers.push(number);
            stands.push(first);
        }
        let in_first = |after: &ProgramPredecessorsOrNodeDependency| match after {
            ProgramPredecessorsOrNodeDependency::Entry => {
                vec![ProgramPredecessorsOrNodeDependency::Entry]
            }
            ProgramPredecessorsOrNodeDependency::Node(node) => stands[*node as usize].clone(),
        };
        inputs.exit = self.exit.iter().flat_map(in_first).collect();
        inputs.exit.sort_unstable();
        inputs.exit.dedup();
        merge_memory_changes(&mut inputs.rest, &self.rest);
        weights.exit = match weights.items.len() as u32 {
            0 => vec![ProgramPredecessorsOrNodeDependency::Entry],
            count => {
                let ends = (0..count).map(ProgramPredecessorsOrNodeDependency::Node);
                let needed = |end: &ProgramPredecessorsOrNodeDependency| {
                    weights.items.iter().any(|item| item.after.contains(end))
                };
                ends.filter(|end| !needed(end)).collect()
            }
        };
        let of_second = |node: &&u32| self.items[**node as usize].of_weights;
        weights.found = self
            .found
            .iter()
            .map(|found| OperatorWeightGradients {
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

/// Adds `bytes` of the class `class` to `sums`. The sum saturates, because layers without nodes keep adding bytes in
/// every pass, without limit.
pub(super) fn add_tensor_class_bytes(
    sums: &mut [u64; TensorClass::COUNT],
    class: TensorClass,
    bytes: u64,
) {
    let sum = &mut sums[class as usize];
    *sum = sum.saturating_add(bytes);
}

pub(super) fn merge_memory_changes(changes: &mut NodeMemoryChanges, more: &NodeMemoryChanges) {
    for (class, _) in TensorClass::ALL {
        add_tensor_class_bytes(
            &mut changes.allocates,
            class,
            more.allocates[class as usize],
        );
        add_tensor_class_bytes(&mut changes.frees, class, more.frees[class as usize]);
    }
}

/// Builds a program node by node.
#[derive(Debug)]
pub(super) struct LayerProgramBuilder {
    program: LayerProgram,
    /// Nodes that compute the current operator's weight gradients.
    finders: Vec<u32>,
    /// Last nodes of the chain; the next node of the chain depends on them.
    pub front: Vec<ProgramPredecessorsOrNodeDependency>,
    /// Branch to which new nodes are added.
    pub branch: u32,
    /// True while new nodes serve only weight gradients.
    pub of_weights: bool,
}

impl LayerProgramBuilder {
    pub fn new() -> Self {
        Self {
            program: LayerProgram::default(),
            finders: Vec::new(),
            front: vec![ProgramPredecessorsOrNodeDependency::Entry],
            branch: 0,
            of_weights: false,
        }
    }

    /// Adds a node that depends on `after`, without extending the chain, and returns its index.
    pub fn push_parallel_node(
        &mut self,
        name: String,
        phase: TrainingPhase,
        task: ProgramNodeOperation,
        after: Vec<ProgramPredecessorsOrNodeDependency>,
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

    /// Adds a node to the end of the chain, and returns its index.
    pub fn push_chained_node(
        &mut self,
        name: String,
        phase: TrainingPhase,
        task: ProgramNodeOperation,
        shapes: [&str; 2],
    ) -> u32 {
        let after = std::mem::take(&mut self.front);
        let item = self.push_parallel_node(name, phase, task, after, shapes);
        self.front
            .push(ProgramPredecessorsOrNodeDependency::Node(item));
        item
    }

    /// Adds kernels that run after `item` and contribute to its weight gradient. `item` is the node that computes an
    /// operator's weight gradient. The chain waits for them unless `beside` is true.
    pub fn push_after_weight_gradient<'k>(
        &mut self,
        mut item: u32,
        kernels: impl IntoIterator<Item = (String, ProgramNodeOperation, [&'k str; 2])>,
        beside: bool,
    ) {
        self.mark_weight_gradient(item);
        for (name, task, shapes) in kernels {
            let after = vec![ProgramPredecessorsOrNodeDependency::Node(item)];
            item = self.push_parallel_node(name, TrainingPhase::Backward, task, after, shapes);
            self.mark_weight_gradient(item);
        }
        if !beside {
            self.front = vec![ProgramPredecessorsOrNodeDependency::Node(item)];
        }
    }

    /// Records that `item` reads `bytes` of output gradients.
    pub fn record_output_gradient_bytes_item_reads(&mut self, item: u32, bytes: u64) {
        self.program.items[item as usize].holds = bytes;
    }

    /// Records that `item` computes a weight gradient of the current operator.
    pub fn mark_weight_gradient(&mut self, item: u32) {
        self.finders.push(item);
    }

    /// Records that the current operator's gradients are complete; `weights` are the numbers of
    /// weights in its gradients.
    pub fn record_operator_gradients_complete(&mut self, weights: [u64; 2], of_experts: bool) {
        self.program.found.push(OperatorWeightGradients {
            nodes: std::mem::take(&mut self.finders),
            until: self.program.items.len() as u32,
            weights,
            of_experts,
        });
    }

    /// Records that the next node allocates `bytes` of class `class`.
    pub fn allocate_bytes_at_next_node(&mut self, class: TensorClass, bytes: u64) {
        add_tensor_class_bytes(&mut self.program.rest.allocates, class, bytes);
    }

    /// Records that the last node frees `bytes`; if the program is still empty, the next node frees
    /// them instead.
    pub fn free_bytes_at_last_node(&mut self, class: TensorClass, bytes: u64) {
        let memory = match self.program.items.last_mut() {
            Some(last) => &mut last.memory,
            None => &mut self.program.rest,
        };
        add_tensor_class_bytes(&mut memory.frees, class, bytes);
    }

    pub fn finish_program(mut self) -> LayerProgram {
        self.program.exit = self.front;
        // No further node will be added, so attach the pending memory changes to the last node.
        if let Some(last) = self.program.items.last_mut() {
            let rest = std::mem::take(&mut self.program.rest);
            merge_memory_changes(&mut last.memory, &rest);
        }
        self.program
    }
}
