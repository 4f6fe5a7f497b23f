//! Reads a kernel's work, time, tensors and kind from its node, as they were before all edits.

use super::super::program::{EditableRankProgram, TrainingStepPhase};
use super::super::shapes::{TensorShape, parse_shapes};
use super::super::unedited::ValuesReplacedByEdits;
use chakram_base::kernel_shape::KernelShape;
use chakram_trace::format::Op;

/// A kernel's work and time as they were before all edits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UneditedKernelWorkAndTime {
    pub flops: u64,
    pub bytes: u64,
    /// Recorded time minus the profiler's overhead, in nanoseconds.
    pub ns: u64,
    pub profiler: u64,
}

/// Returns true if a matrix multiplication sums over samples, as a weight gradient does. Its inputs have equal numbers
/// of rows.
pub(super) fn is_matmul_summing_over_samples(
    kernel: KernelShape,
    phase: TrainingStepPhase,
    inputs: &[TensorShape],
) -> bool {
    let KernelShape::Gemm { m, n, k, .. } = kernel else {
        return false;
    };
    phase == TrainingStepPhase::Backward
        && matches!(inputs, [one, other, ..] if one[0] == k && other[0] == k && (m, n) != (k, k))
}

/// Returns the shapes of a kernel's tensors. If the kernel has no shapes, they come from the operator that launched it.
pub(super) fn tensor_shapes_of_kernel(
    program: &EditableRankProgram<'_>,
    node: u32,
) -> (Vec<TensorShape>, Vec<TensorShape>) {
    let mut callers = program.node_and_its_callers(node);
    let stated = callers.find(|&caller| {
        let facts = &program.facts[caller as usize];
        !parse_shapes(facts.inputs).is_empty() || !parse_shapes(facts.outputs).is_empty()
    });
    let Some(stated) = stated
        .filter(|&stated| stated == node || matches!(program.view_of_node(stated).op, Op::Host))
    else {
        return (Vec::new(), Vec::new());
    };
    let facts = &program.facts[stated as usize];
    (parse_shapes(facts.inputs), parse_shapes(facts.outputs))
}

/// Returns true if a kernel multiplies queries, keys and values, or works on their products.
pub(super) fn is_attention(program: &EditableRankProgram<'_>, node: u32) -> bool {
    match program.view_of_node(node).kernel {
        Some(KernelShape::Attention { .. }) => return true,
        // A multiplication without a batch multiplies by a weight, also in a module called attention.
        Some(KernelShape::Gemm { batch: 1, .. }) => return false,
        _ => {}
    }
    let mut names = program
        .node_and_its_callers(node)
        .take(3)
        .map(|caller| program.view_of_node(caller).name);
    names.any(|name| name.contains("attention") || name.contains("flash_attn"))
}

/// Returns the work and time that a kernel had before all edits.
pub(super) fn unedited_work_of_kernel(
    program: &EditableRankProgram<'_>,
    node: u32,
) -> UneditedKernelWorkAndTime {
    let view = program.view_of_node(node);
    let unedited = ValuesReplacedByEdits::parse(program.facts[node as usize].unedited);
    let Op::Compute { flops, bytes, .. } = view.op else {
        return UneditedKernelWorkAndTime::default();
    };
    let ns = match program.has_work_time_in_delay(node) {
        true => unedited
            .attribute_count_before_edits("delay_ns")
            .unwrap_or(view.delay.0 / 1000),
        false => unedited
            .attribute_count_before_edits("duration_ns")
            .unwrap_or(view.recorded.0 / 1000),
    };
    let profiler = view.profiler.0 / 1000;
    let profiler = match program.has_work_time_in_delay(node) {
        true => profiler,
        // The delay includes the profiler's overhead, so subtract the overhead from the delay first, and only the
        // remainder from the duration.
        false => profiler.saturating_sub(view.delay.0 / 1000),
    }
    .min(ns);
    UneditedKernelWorkAndTime {
        flops: unedited
            .attribute_count_before_edits("num_ops")
            .unwrap_or(flops),
        bytes: unedited
            .attribute_count_before_edits("tensor_size")
            .unwrap_or(bytes),
        ns: ns - profiler,
        profiler,
    }
}
