//! How the host launches kernels outside captured graphs.

use super::super::model_sizes::{ModelBlockKindWithCount, TokenMixingOperator};
use super::super::rules::GraphCaptureRule;
use super::super::step_load::StepTimeInputs;
use super::StepTimeCalculator;
use chakram_base::units::Span;
use chakram_hardware::machine::{Machine, NpuClass};

/// Time of an engine's launch on hosts of A100 and V100 as a fraction of the machine's launch time. The latter is 117
/// us in dgx-a100, fitted to Megatron-DeepSpeed; vLLM's eager all-reduces take 44 us there. On hosts of H100, H200 and
/// B200, they take the 20 us of these machines, from 256 B to 1 MB (ai-dynamo/aiconfigurator, Apache-2.0), so the host
/// limits them.
const ENGINE_FRACTION_OF_FITTED_LAUNCH: f64 = 44.0 / 117.0;
/// Number of attention kernels between two graphs: one writes keys and values, one computes attention.
const LAUNCHES_BETWEEN_GRAPHS: u64 = 2;
/// Number of kernels of linear attention for prompts (`chunk_gated_delta_rule` of
/// flash-linear-attention): two norms, sums of gates, products of keys, their inverses, corrected
/// keys and values, states, and outputs.
const DELTA_KERNELS: u64 = 8;

impl StepTimeCalculator {
    /// Returns the number of kernels and graphs that the host launches one by one in a step; 0 if the step is a
    /// captured graph. It depends only on whether the step has prompts, and on [`Self::fits_graphs`].
    pub(super) fn launch_count_of_step(&self, load: &StepTimeInputs) -> u64 {
        let has_prompts = !load.chunks.is_empty();
        let is_small = self.fits_graphs(load);
        let is_in_pieces = match self.graphs {
            GraphCaptureRule::All => return 0,
            GraphCaptureRule::Pieces | GraphCaptureRule::Decodes if is_small && !has_prompts => {
                return 0;
            }
            GraphCaptureRule::Pieces => is_small,
            GraphCaptureRule::Decodes | GraphCaptureRule::Never => false,
        };
        let launches_of_block = |kind: &ModelBlockKindWithCount| {
            let mixing = match kind.mixing {
                TokenMixingOperator::Delta(_) if has_prompts => DELTA_KERNELS,
                _ => 1,
            };
            if is_in_pieces {
                // The rest of the block is a single graph.
                return 1 + LAUNCHES_BETWEEN_GRAPHS + (mixing - 1);
            }
            let collectives = if self.npus * self.ranks > 1 { 2 } else { 0 };
            let products = kind.products.len() + usize::from(kind.experts.is_some());
            let moving = self.memory_bound_kernels_of_block(kind).len();
            (products + moving) as u64 + mixing + collectives
        };
        let kinds = self.sizes.kinds.iter();
        kinds.map(|kind| kind.count * launches_of_block(kind)).sum()
    }

    /// Returns true if the captured graphs are large enough for the tokens of a step.
    pub(super) fn fits_graphs(&self, load: &StepTimeInputs) -> bool {
        load.wave_tokens <= self.graph_tokens
    }

    /// Describes the launches; `None` if all steps are captured graphs.
    pub(super) fn describe_launches(&self) -> Option<String> {
        let steps = match self.graphs {
            GraphCaptureRule::All => return None,
            GraphCaptureRule::Pieces => format!(
                "steps of more than {} tokens, and in attention of steps with prompts",
                self.graph_tokens
            ),
            GraphCaptureRule::Decodes => format!(
                "steps with prompts or with more than {} requests",
                self.graph_tokens
            ),
            GraphCaptureRule::Never => "all steps".to_owned(),
        };
        Some(match self.launch {
            Some(launch) => format!(
                "launches: {launch} a kernel in {steps}, at the same time as the kernels (eager all-reduces on such hosts)"
            ),
            None => format!(
                "launches: no time in {steps}, because the machine's launch times are unknown ([host])"
            ),
        })
    }
}

/// Returns the time that a host of `machine` takes to launch a kernel outside a graph; `None` if it is unknown.
pub(super) fn host_time_per_kernel_launch(machine: &Machine, class: &NpuClass) -> Option<Span> {
    let launch = machine.host()?.launch;
    Some(match class.name.as_str() {
        "a100" | "v100" => launch.scale_by(ENGINE_FRACTION_OF_FITTED_LAUNCH),
        _ => launch,
    })
}
