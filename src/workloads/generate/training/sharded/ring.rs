//! Ring attention: keys and values pass around a ring of ranks ([`context_shards`](super::super::context_shards)).

use super::super::context_shards::ring_step_attention;
use super::super::cost::{KernelCostSizesAndOptions, LoweredKernel, OperatorKernels};
use super::super::layer::{node_name_with_phase_and_suffix, program_task_and_shapes_of_kernel};
use super::super::program::{
    LayerProgramBuilder, ProgramNodeOperation, ProgramPredecessorsOrNodeDependency,
};
use super::member::push_kernels;
use super::{MemberOperator, MemberProgramWriter, ShardedLayerLowerer};
use crate::generate::PatternOptionError;
use crate::generate::plan::ContextExchange;
use crate::model::{ModelLayer, OperatorAxesAndTensorsSpec, OperatorKind};
use chakram_trace::format::{TensorClass, TrainingPhase};

/// Kernels of one ring step, which uses the keys and values of another rank.
#[derive(Clone, Debug)]
pub(super) struct RingAttentionStepKernels {
    /// Number of steps, one per rank.
    steps: u32,
    block: OperatorKernels,
    /// Kernels that merge a step's result into the results of earlier steps, for the forward and the backward pass.
    merges: [OperatorKernels; 2],
}

/// A message already sent to the next rank of a ring, while the message from the previous rank has not arrived yet.
struct PendingRingMessage {
    /// Index of the message in the layer.
    slot: u32,
    /// End of the chain when the message was sent.
    ready: Vec<ProgramPredecessorsOrNodeDependency>,
    /// The part that the names of the send and the receive share.
    name: String,
}

impl ShardedLayerLowerer {
    /// Returns the kernels for attention to other ranks' keys; `None` without a ring. `work` is the attention to the
    /// rank's own keys.
    pub(super) fn ring_attention_kernels(
        &self,
        layer: &ModelLayer,
        spec: &OperatorAxesAndTensorsSpec,
        work: &OperatorKind,
        sizes: &KernelCostSizesAndOptions,
    ) -> Result<Option<RingAttentionStepKernels>, PatternOptionError> {
        if self.context.context != Some(ContextExchange::Ring) || !spec.is_attention() {
            return Ok(None);
        }
        let block = ring_step_attention(work);
        let mut kernels = [
            sizes.kernels_of_operator(block.clone())?,
            sizes.build_kernel_merging_attention_parts(&block, false)?,
        ];
        let mut backward = sizes.build_kernel_merging_attention_parts(&block, true)?;
        for kernels in kernels.iter_mut().chain([&mut backward]) {
            self.context.leave_out(layer, spec, false, kernels);
        }
        let [block, forward] = kernels;
        Ok(Some(RingAttentionStepKernels {
            steps: self.context.context_ranks,
            block,
            merges: [forward, backward],
        }))
    }
}

impl MemberProgramWriter<'_> {
    /// Emits attention to the rank's own keys, and then to other ranks' keys as they arrive.
    pub(super) fn emit_forward_ring_attention(
        &mut self,
        one: &MemberOperator<'_>,
        ring: &RingAttentionStepKernels,
        phase: TrainingPhase,
        to: &mut LayerProgramBuilder,
    ) {
        let operator = &one.step.operator.name;
        let keys = self.ring_message_bytes(one);
        let (before, own) = split_off_run_once_kernels(&one.kernels.forward, false);
        push_kernels(before, phase, operator, to);
        // Allocate memory for the keys of the current step and for the keys that arrive for the next step.
        let held = keys.saturating_mul(2);
        to.allocate_bytes_at_next_node(TensorClass::Temporary, held);
        let mut next: Option<u32> = None;
        for step in 0..ring.steps {
            let arrived = next.take();
            let sent = (step + 1 < ring.steps && keys > 0).then(|| {
                let have =
                    arrived.map_or_else(|| to.front.clone(), |one| vec![dependency_on_node(one)]);
                self.send_to_next_ring_rank(
                    one,
                    format!(".step{}", step + 1),
                    keys,
                    have,
                    phase,
                    to,
                )
            });
            to.front.extend(arrived.map(dependency_on_node));
            if step == 0 {
                push_kernels(own, phase, operator, to);
            } else {
                push_ring_step_kernels(&ring.block.forward, step, phase, operator, to);
                push_ring_step_kernels(&ring.merges[0].forward, step, phase, operator, to);
            }
            next =
                sent.map(|sent| self.receive_from_previous_ring_rank(one, sent, keys, phase, to));
        }
        to.free_bytes_at_last_node(TensorClass::Temporary, held);
    }

    /// Emits the gradients of attention to other ranks' keys as they arrive, and then to the rank's own keys. Returns
    /// the remaining kernels, for the gradients of the kernels before attention.
    pub(super) fn emit_backward_ring_attention<'k>(
        &mut self,
        one: &'k MemberOperator<'_>,
        ring: &RingAttentionStepKernels,
        to: &mut LayerProgramBuilder,
    ) -> &'k [LoweredKernel] {
        let (phase, operator) = (TrainingPhase::Backward, &one.step.operator.name);
        let keys = self.ring_message_bytes(one);
        let (after, own) = split_off_run_once_kernels(&one.kernels.backward, true);
        // Allocate memory for the keys and their gradients, for both the current and the next step.
        let held = keys.saturating_mul(4);
        to.allocate_bytes_at_next_node(TensorClass::Temporary, held);
        let (mut next, mut sums): (Option<u32>, Option<PendingRingMessage>) = (None, None);
        for step in 1..=ring.steps {
            let arrived = next.take();
            let sent = (step < ring.steps && keys > 0).then(|| {
                let have =
                    arrived.map_or_else(|| to.front.clone(), |one| vec![dependency_on_node(one)]);
                self.send_to_next_ring_rank(one, format!(".step{step}"), keys, have, phase, to)
            });
            to.front.extend(arrived.map(dependency_on_node));
            match step == ring.steps {
                true => push_kernels(own, phase, operator, to),
                false => push_ring_step_kernels(&ring.block.backward, step, phase, operator, to),
            }
            next =
                sent.map(|sent| self.receive_from_previous_ring_rank(one, sent, keys, phase, to));
            if step > 1 {
                let sums = sums.take();
                let sums = sums
                    .map(|sent| self.receive_from_previous_ring_rank(one, sent, keys, phase, to));
                to.front.extend(sums.map(dependency_on_node));
                push_ring_step_kernels(&ring.merges[1].backward, step - 1, phase, operator, to);
            }
            if step < ring.steps && keys > 0 {
                let name = format!(".step{step}.gradients");
                sums =
                    Some(self.send_to_next_ring_rank(one, name, keys, to.front.clone(), phase, to));
            }
        }
        to.free_bytes_at_last_node(TensorClass::Temporary, held);
        after
    }

    /// Sends `bytes` to the next rank once the nodes in `have` are done.
    fn send_to_next_ring_rank(
        &mut self,
        one: &MemberOperator<'_>,
        name: String,
        bytes: u64,
        have: Vec<ProgramPredecessorsOrNodeDependency>,
        phase: TrainingPhase,
        to: &mut LayerProgramBuilder,
    ) -> PendingRingMessage {
        let slot = self.ring_slot;
        self.ring_slot += 1;
        let task = ProgramNodeOperation::RingMessage {
            receive: false,
            bytes,
            slot,
        };
        let operator = &one.step.operator.name;
        let sent = PendingRingMessage {
            slot,
            ready: to.front.clone(),
            name,
        };
        let name = node_name_with_phase_and_suffix(phase, operator, &format!("{}.send", sent.name));
        to.push_parallel_node(name, phase, task, have, ["", ""]);
        sent
    }

    /// Receives `bytes` bytes from the previous rank, the same number that `sent` sends to the next rank. The receive
    /// starts only after the chain has reached the point of the send, because earlier steps used the memory. Returns
    /// the receive node.
    ///
    /// Callers add the receive after the kernels that run in parallel with it; otherwise, a host that waits for
    /// receives would launch these only after the bytes have arrived.
    fn receive_from_previous_ring_rank(
        &mut self,
        one: &MemberOperator<'_>,
        sent: PendingRingMessage,
        bytes: u64,
        phase: TrainingPhase,
        to: &mut LayerProgramBuilder,
    ) -> u32 {
        let task = ProgramNodeOperation::RingMessage {
            receive: true,
            bytes,
            slot: sent.slot,
        };
        let suffix = format!("{}.receive", sent.name);
        let name = node_name_with_phase_and_suffix(phase, &one.step.operator.name, &suffix);
        to.push_parallel_node(name, phase, task, sent.ready, ["", ""])
    }

    /// Bytes of one rank's keys and values; 0 if the plan omits this exchange.
    fn ring_message_bytes(&self, one: &MemberOperator<'_>) -> u64 {
        match self.context_exchange(one) {
            Some(ContextExchange::Ring) => one.context_bytes[1],
            _ => 0,
        }
    }
}

fn dependency_on_node(index: u32) -> ProgramPredecessorsOrNodeDependency {
    ProgramPredecessorsOrNodeDependency::Node(index)
}

/// Splits attention's kernels into two lists: kernels that only change queries and keys, which a rank runs once, and
/// the kernels of attention itself. The first list runs first in the forward pass, and last in the backward pass.
fn split_off_run_once_kernels(
    kernels: &[LoweredKernel],
    backward: bool,
) -> (&[LoweredKernel], &[LoweredKernel]) {
    let is_once = |kernel: &LoweredKernel| {
        kernel.suffix.starts_with(".norm") || kernel.suffix.starts_with(".rotary")
    };
    match backward {
        true => {
            let at = kernels.iter().position(is_once).unwrap_or(kernels.len());
            (&kernels[at..], &kernels[..at])
        }
        false => {
            let at = kernels.iter().rposition(is_once).map_or(0, |last| last + 1);
            kernels.split_at(at)
        }
    }
}

/// Adds the kernels of one step to the chain.
fn push_ring_step_kernels(
    kernels: &[LoweredKernel],
    step: u32,
    phase: TrainingPhase,
    operator: &str,
    to: &mut LayerProgramBuilder,
) {
    for kernel in kernels {
        let (task, shapes) = program_task_and_shapes_of_kernel(kernel);
        let suffix = format!("{}.step{step}", kernel.suffix);
        to.push_chained_node(
            node_name_with_phase_and_suffix(phase, operator, &suffix),
            phase,
            task,
            shapes,
        );
    }
}
