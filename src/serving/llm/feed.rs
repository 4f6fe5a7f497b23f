//! Runs engines on the event loop. Each step runs a program with a single job, which lasts as long as the step.

use super::super::error::ServeError;
use super::super::program;
use super::deployment::IdenticalLlmEngines;
use super::metrics::LlmRunRecorder;
use super::observe::LlmObserver;
use super::scenario::LlmScenario;
use super::server::LlmRunState;
use chakram_base::ids::Npu;
use chakram_base::units::Time;
use chakram_engine::{
    CompiledReplay, FeedLaunchAndRankStartRequests, LaunchFeed, LaunchRequest,
    ProcessorJobStartAndEnd, ProcessorKernelJob, ProgramLaunchRecord, SelfSchedulingProcessorModel,
    run_launches,
};
use chakram_hardware::machine::Machine;
use std::cell::RefCell;

/// Implements a feed that launches the server's steps.
struct ServerStepLaunchFeed<'f, 's>(&'f RefCell<LlmRunState<'s>>);

impl LaunchFeed for ServerStepLaunchFeed<'_, '_> {
    fn next_wake_time(&self) -> Option<Time> {
        self.0.borrow().next_due_time_besides_step_ends()
    }

    fn on_wake(&mut self, now: Time, queue: &mut FeedLaunchAndRankStartRequests) {
        self.0
            .borrow_mut()
            .handle_due_events_and_begin_steps(now, |engine| {
                queue.begin_launch(LaunchRequest {
                    tag: engine.into(),
                    ..LaunchRequest::default()
                });
            });
    }

    fn on_launch_ended(
        &mut self,
        now: Time,
        ended: &ProgramLaunchRecord,
        _queue: &mut FeedLaunchAndRankStartRequests,
    ) {
        self.0
            .borrow_mut()
            .end_step_on_all_ranks(now, ended.tag as u32);
    }
}

/// Implements a processor model that takes step times from the server.
struct ServerStepTimeProcessorModel<'f, 's>(&'f RefCell<LlmRunState<'s>>);

impl SelfSchedulingProcessorModel for ServerStepTimeProcessorModel<'_, '_> {
    fn serves_program(&self, _npu: Npu, _program: u32) -> bool {
        true
    }

    fn submit_job(
        &mut self,
        now: Time,
        job: &ProcessorKernelJob,
        started: &mut Vec<ProcessorJobStartAndEnd>,
    ) {
        let end = self.0.borrow().step_end_time(job.tag as u32);
        started.push(ProcessorJobStartAndEnd {
            token: job.token,
            start: now,
            end,
        });
    }
}

/// Serves all requests.
pub(super) fn serve_all_requests<'s>(
    scenario: &'s LlmScenario,
    deployment: &'s IdenticalLlmEngines,
    observer: &'s mut dyn LlmObserver,
) -> Result<LlmRunRecorder, ServeError> {
    let machine = Machine::placeholder_machine("engines");
    let step = program::create_node_per_job_program("step", 1, &|_| Vec::new())?;
    let options = program::untimed_replay_options();
    let compiled = CompiledReplay::new(&step, &machine, &options)
        .map_err(|refusal| ServeError::Replay(refusal.into()))?;
    let server = RefCell::new(LlmRunState::new(scenario, deployment, observer)?);
    let mut feed = ServerStepLaunchFeed(&server);
    let mut times = ServerStepTimeProcessorModel(&server);
    run_launches(&[compiled], &mut [&mut feed], Some(&mut times), &mut ())?;
    server.into_inner().finish_run_into_recorder()
}
