//! Computes how long a request takes on an idle processor, by simulating its jobs once on idle cores.

use super::cores::CoreFreeTimes;
use super::error::ServeError;
use super::jobs::GraphOfVectorProductJobs;
use super::program;
use chakram_base::ids::Npu;
use chakram_base::units::{Span, Time};
use chakram_engine::{
    CompiledReplay, ProcessorJobStartAndEnd, ProcessorKernelJob, SelfSchedulingProcessorModel,
    SingleLaunchFeed, run_launches,
};
use chakram_hardware::machine::Machine;
use chakram_trace::workload::Workload;

/// The jobs of a request that has a processor to itself.
#[derive(Debug)]
pub struct LoneRequestJobs {
    /// The program that simulates the jobs; `None` if the jobs form a chain. In a chain, each job finds all cores idle,
    /// so the times add up.
    program: Option<(Workload, Machine)>,
    count: u32,
}

impl LoneRequestJobs {
    /// Creates the program for the jobs in `graph`, which belong to `model`.
    ///
    /// # Errors
    ///
    /// Fails if there are too many jobs.
    pub fn new(graph: &GraphOfVectorProductJobs, model: &str) -> Result<Self, ServeError> {
        let count = graph.jobs().len() as u32;
        let program = match graph.is_chain() {
            true => None,
            false => {
                let after = |job| graph.dependencies_of(job).to_vec();
                let workload = program::create_node_per_job_program(model, count, &after)?;
                Some((workload, Machine::placeholder_machine("processors")))
            }
        };
        Ok(Self { program, count })
    }

    /// Returns true if the jobs form a chain, whose times add up.
    pub fn has_sequential_jobs(&self) -> bool {
        self.program.is_none()
    }

    /// Returns how long one request takes on `cores` cores. `size` returns how many tasks a job has, and how long each
    /// task takes.
    ///
    /// # Errors
    ///
    /// Fails if the time exceeds the range of simulated times.
    pub fn unloaded_time(
        &self,
        cores: u64,
        size: impl Fn(u32) -> (u64, Span),
    ) -> Result<Span, ServeError> {
        let Some((workload, machine)) = &self.program else {
            let times = (0..self.count).map(|job| {
                let (tasks, each) = size(job);
                each.times(tasks.div_ceil(cores))
            });
            return Ok(times.sum());
        };
        let program = CompiledReplay::new(workload, machine, &program::untimed_replay_options())
            .map_err(|refusal| ServeError::Replay(refusal.into()))?;
        let mut processor = CoresServingOneRequest {
            cores: CoreFreeTimes::new(cores),
            size,
        };
        let programs = [program];
        let run = run_launches(
            &programs,
            &mut [&mut SingleLaunchFeed::of_program(0)],
            Some(&mut processor),
            &mut (),
        );
        Ok(run?.makespan)
    }
}

/// Cores that serve only one request.
struct CoresServingOneRequest<F> {
    cores: CoreFreeTimes,
    size: F,
}

impl<F: Fn(u32) -> (u64, Span)> SelfSchedulingProcessorModel for CoresServingOneRequest<F> {
    fn serves_program(&self, _npu: Npu, _program: u32) -> bool {
        true
    }

    fn submit_job(
        &mut self,
        now: Time,
        job: &ProcessorKernelJob,
        started: &mut Vec<ProcessorJobStartAndEnd>,
    ) {
        let (tasks, each) = (self.size)(job.node.0);
        let times = self.cores.assign_tasks(now, tasks, each);
        started.push(ProcessorJobStartAndEnd {
            token: job.token,
            start: times.start,
            end: times.end,
        });
    }

    fn on_job_ended(
        &mut self,
        _now: Time,
        _job: &ProcessorKernelJob,
        _started: &mut Vec<ProcessorJobStartAndEnd>,
    ) {
    }
}
