//! `--extrapolate`: simulates a step with fewer micro-batches, and extrapolates the result to all of them.

use chakram_engine::{CompiledReplay, ReplayError, ReplayOptions};
use chakram_hardware::machine::Machine;
use chakram_report::extrapolation::FewerMicroBatchMakespans;
use chakram_workloads::generate::{
    CheckedWorkloadPattern, ModelAndParallelismPlan, ParallelismPlan, PatternOptionError,
};
use std::error::Error;

/// A training step of which only some micro-batches are simulated.
pub struct StepWithFewerMicroBatches {
    whole: ModelAndParallelismPlan,
    simulated: u32,
    micro_batches: u32,
    turn: u32,
}

/// Number of replays to compare: one with all simulated micro-batches, one with a turn fewer, and one with two turns
/// fewer. A turn is the smallest number of micro-batches after which the schedule repeats.
const TURNS: u32 = 3;

impl StepWithFewerMicroBatches {
    /// Shortens the step of `whole` to `simulated` micro-batches. Fails if `simulated` micro-batches do not fill the
    /// pipeline, or are not a whole number of turns.
    pub fn new(whole: ModelAndParallelismPlan, simulated: u32) -> Result<Self, String> {
        let plan = &whole.plan;
        let Some((turn, fill)) = plan.schedule.repeat_period_and_minimum(plan.pipeline) else {
            return Err(format!(
                "--extrapolate {simulated}: expected no such option with orders of passes from a file, because their repetition is unknown"
            ));
        };
        let at_once = u64::from(plan.data).saturating_mul(plan.micro_batch);
        let micro_batches = (plan.batch / at_once.max(1)).min(u32::MAX.into());
        // Even the shortest replay must fill the pipeline.
        let least = u64::from(TURNS - 1) * u64::from(turn) + u64::from(fill.max(turn));
        let is_sound = (least..micro_batches).contains(&simulated.into())
            && simulated.is_multiple_of(turn)
            && plan.steps == 1;
        if !is_sound {
            let of_turns = if turn > 1 {
                format!(", a multiple of {turn},")
            } else {
                String::new()
            };
            return Err(format!(
                "--extrapolate {simulated}: expected a number{of_turns} from {least} to less than the \
                 {micro_batches} micro-batches of a step, of a plan with one step\n  try: leave it out, and all are simulated"
            ));
        }
        Ok(Self {
            simulated,
            micro_batches: micro_batches as u32,
            turn,
            whole,
        })
    }

    /// Fails if the peak memory of the simulated micro-batches says nothing about that of the step.
    pub fn check_peak_memory_matches_whole_step(&self) -> Result<(), String> {
        match self.whole.plan.schedule.keeps_all_activations() {
            false => Ok(()),
            true => Err(format!(
                "--fit require: with --extrapolate {}, memory is that of {} of {} micro-batches, and the schedule keeps the \
                 activations of all\n  try: --dry-run, or leave --extrapolate out",
                self.simulated, self.simulated, self.micro_batches
            )),
        }
    }

    /// Returns the job with `less` turns fewer than the simulated micro-batches make up.
    pub fn job_with_fewer_turns(
        &self,
        less: u32,
    ) -> Result<CheckedWorkloadPattern, PatternOptionError> {
        let mut pattern = self.whole.clone();
        let plan: &mut ParallelismPlan = &mut pattern.plan;
        let kept = u64::from(self.simulated - less * self.turn);
        plan.batch = kept * u64::from(plan.data) * plan.micro_batch;
        CheckedWorkloadPattern::new(pattern)
    }

    /// Replays the step twice: once with one turn fewer, and once with two turns fewer.
    pub fn replay_shortened_step_twice(
        &self,
        machine: &Machine,
        options: &ReplayOptions,
    ) -> Result<FewerMicroBatchMakespans, Box<dyn Error>> {
        let makespan = |less| -> Result<_, Box<dyn Error>> {
            let job = self.job_with_fewer_turns(less)?;
            let workload = job.build_workload()?;
            let compiled = CompiledReplay::new(&workload, machine, options);
            let compiled = compiled.map_err(ReplayError::from)?;
            Ok(compiled.run(())?.0.makespan)
        };
        Ok(FewerMicroBatchMakespans {
            makespans: [makespan(2)?, makespan(1)?],
            turn: self.turn,
            simulated: self.simulated,
            micro_batches: self.micro_batches,
            samples: self.whole.plan.batch,
            keeps_all_activations: self.whole.plan.schedule.keeps_all_activations(),
        })
    }
}
