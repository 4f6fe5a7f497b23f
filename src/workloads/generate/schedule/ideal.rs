//! Time of a schedule by formula, where messages take no time.

use super::PipelineSchedule;
use chakram_base::units::Span;

impl PipelineSchedule {
    /// PALM's Eq. 1: (m - 1) max(F + B) + sum(F + B) over the stages, without the update of the weights.
    /// `stages` has F + B of each: one micro-batch through one chunk, forward and back, or only forward where
    /// there is no way back. With v chunks, v m takes the place of m.
    ///
    /// With equal stages it is exact, and for inference always. With unequal ones GPipe takes (m - 1) (max F + max B)
    /// plus sum(F + B), never less than Eq. 1; 1F1B can take more or less than it, since a fast stage makes use of the
    /// warm-up, but neither less than v m (F + B) of any stage nor less than the sum.
    ///
    /// Layer-wise, with fewer micro-batches than stages, the first stage waits at each of the v - 1 changes of the
    /// layer for the first micro-batch: sum(F + B) - m max(F + B) more each time, forward and back together.
    pub fn ideal(&self, stages: &[Span], micro_batches: u32) -> Span {
        let slowest = stages.iter().copied().max().unwrap_or(Span::ZERO);
        let through: Span = stages.iter().copied().sum();
        let passes = u64::from(micro_batches) * u64::from(self.chunks());
        slowest.times(passes.saturating_sub(1))
            + through
            + self.waits(slowest, through, micro_batches)
    }

    /// Pipeline bubble of equal stages, as a fraction of their computation: (S - 1) / (v m) (SC'21, section 2.2.2),
    /// and layer-wise with fewer micro-batches than stages (v - 1) (S - m) / (v m) more. Not a fraction of the
    /// makespan, which is 1 + this times as long as the computation.
    pub fn bubble(&self, stages: u32, micro_batches: u32) -> f64 {
        // With passes that last 1, the ideal time is a number of passes.
        let all = Span(u64::from(stages));
        let waits = self.waits(Span(1), all, micro_batches);
        let idle = all.0.saturating_sub(1) + waits.0;
        idle as f64 / (f64::from(self.chunks()) * f64::from(micro_batches))
    }

    fn waits(&self, slowest: Span, through: Span, micro_batches: u32) -> Span {
        match *self {
            Self::LayerWise { layers } => {
                let busy = slowest.times(micro_batches.into());
                let wait = Span(through.0.saturating_sub(busy.0));
                wait.times(u64::from(layers.saturating_sub(1)))
            }
            _ => Span::ZERO,
        }
    }
}
