//! Formulas for the time of a schedule in which messages take no time.

use super::PipelineSchedule;
use chakram_base::units::Span;

/// Durations of the passes of one micro-batch, summed over all chunks of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassDurations {
    /// Duration of a forward pass.
    pub forward: Span,
    /// Duration of a pass that computes input gradients.
    pub input: Span,
    /// Duration of a pass that computes weight gradients.
    pub weight: Span,
    /// Duration of a pair: a forward pass that overlaps a whole backward pass, including weight
    /// gradients.
    pub pair: Span,
}

impl PipelineSchedule {
    /// Returns the step time without the weight update, as given by PALM's Eq. 1: (m - 1) max(F + B) + sum(F + B). The
    /// maximum and the sum are over stages, and m is the number of micro-batches. `stages` states F + B of each stage,
    /// for one micro-batch and one chunk. Without backward passes, B is 0. With v chunks, v m replaces m.
    ///
    /// The formula is exact for equal stages and for inference. With unequal stages, GPipe takes (m - 1) (max F + max
    /// B) + sum(F + B), which is never less. In 1F1B, fast stages run ahead during the warm-up, so it can be slower or
    /// faster than Eq. 1. Its time is at least v m (F + B) for every stage, and at least sum(F + B).
    ///
    /// In layer-wise schedules with fewer micro-batches than stages, the first stage waits for the
    /// first micro-batch before each of the v - 1 later layers. Each wait adds
    /// sum(F + B) - m max(F + B), summed over both directions.
    pub fn ideal_step_time(&self, stages: &[Span], micro_batches: u32) -> Span {
        let slowest = stages.iter().copied().max().unwrap_or(Span::ZERO);
        let through: Span = stages.iter().copied().sum();
        let passes = u64::from(micro_batches) * u64::from(self.chunk_count());
        slowest.times(passes.saturating_sub(1))
            + through
            + self.layer_wise_waiting_time(slowest, through, micro_batches)
    }

    /// Returns the bubble time of a pipeline with equal stages, divided by the computing time of a stage: (S - 1) / (v
    /// m) (SC'21, section 2.2.2). In layer-wise schedules with fewer micro-batches than stages, it is larger by (v - 1)
    /// (S - m) / (v m). This is not a fraction of the makespan, which is the computing time times (1 + the result).
    ///
    /// If weight gradients are separate or passes overlap, the formula assumes that forward passes, input gradients and
    /// weight gradients take equal times. It also assumes that two overlapping passes take the sum of their times. Idle
    /// time ([`PipelineSchedule::stage_idle_time`]) is then a multiple of a third of a micro-batch's time on a stage.
    /// Returns `None` for orders from a file.
    pub fn bubble_to_compute_ratio(
        &self,
        stages: u32,
        micro_batches: u32,
        split: bool,
    ) -> Option<f64> {
        if split || self.splits_backward() {
            let thirds = PassDurations {
                forward: Span(1),
                input: Span(1),
                weight: Span(1),
                pair: Span(3),
            };
            let idle = self.stage_idle_time(stages, split, thirds)?.0;
            return Some(idle as f64 / (3.0 * f64::from(micro_batches)));
        }
        // If each pass takes one unit of time, each time equals a number of passes.
        let all = Span(u64::from(stages));
        let waits = self.layer_wise_waiting_time(Span(1), all, micro_batches);
        let idle = all.0.saturating_sub(1) + waits.0;
        Some(idle as f64 / (f64::from(self.chunk_count()) * f64::from(micro_batches)))
    }

    /// Returns a stage's idle time per step if all S stages have v chunks and the durations `times`, and if there are
    /// enough micro-batches to fill the pipeline:
    ///
    /// | schedule | idle |
    /// |---|---|
    /// | GPipe, 1F1B | (S - 1) (F + B + W), and with `split` (S - 1) (F + B) |
    /// | interleaved, also in pairs | (S - 1) (F + B + W) / v |
    /// | ZB-H1 | (S - 1) (F + B - W) |
    /// | ZB-V | 0 if F = B = W, except for the time until the last stage starts |
    /// | DualPipe | (S / 2 - 1) (FB + B - 2 W) |
    /// | DualPipeV | (S - 1) (FB + B - 2 W) / 2 |
    ///
    /// The formulas are from Qi et al., 2024, and DeepSeek-AI, 2024. In the latter paper, B means the sum of B and W as
    /// used here. Returns `None` for schedules without a formula.
    pub fn stage_idle_time(&self, stages: u32, split: bool, times: PassDurations) -> Option<Span> {
        let PassDurations {
            forward,
            input,
            weight,
            pair,
        } = times;
        let whole = forward + input + weight;
        let others = u64::from(stages.saturating_sub(1));
        let less = |all: Span, less: Span| Span(all.0.saturating_sub(less.0));
        match self {
            Self::GPipe | Self::OneForwardOneBackward if split => {
                Some((forward + input).times(others))
            }
            Self::GPipe | Self::OneForwardOneBackward => Some(whole.times(others)),
            // If a pair takes as long as its two passes, pairing does not change the waiting time.
            Self::Interleaved { chunks } | Self::InterleavedPairs { chunks } if !split => {
                Some(Span(whole.times(others).0 / u64::from(*chunks)))
            }
            Self::ZeroBubbleH1 => Some(less(forward + input, weight).times(others)),
            Self::ZeroBubbleV if forward == input && input == weight => Some(Span::ZERO),
            Self::DualPipe | Self::DualPipeV => {
                let pairs = less(pair + input, weight.times(2));
                Some(match self {
                    Self::DualPipe => pairs.times(u64::from(stages / 2).saturating_sub(1)),
                    _ => Span(pairs.times(others).0 / 2),
                })
            }
            _ => None,
        }
    }

    fn layer_wise_waiting_time(&self, slowest: Span, through: Span, micro_batches: u32) -> Span {
        match self {
            Self::LayerWise { layers } => {
                let busy = slowest.times(micro_batches.into());
                let wait = Span(through.0.saturating_sub(busy.0));
                wait.times(u64::from(layers.saturating_sub(1)))
            }
            _ => Span::ZERO,
        }
    }
}
