//! Connects requests to the event loop: a feed launches batches, and processors compute how long
//! their jobs take.
//!
//! Each model becomes a program with one rank and one node per job. A batch in flight is a launch of this program,
//! tagged with the batch's index in the server. The loop handles dependencies and time, and the server computes job
//! durations. Feed and processors can share the server, because the loop calls only one of them at a time. For a model
//! that is a trace, the program is the trace's job. Its kernels run on lanes, and the loop notifies the server only
//! when the launch ends.

use super::error::ServeError;
use super::observe::RequestObserver;
use super::prepared::{ModelWithJobTimes, ScenarioWithModelTimes};
use super::program;
use super::recorder::ServeRunRecorder;
use super::server::{JobTimeRangeWithEventToken, ServeRunState};
use super::traced;
use chakram_base::ids::Npu;
use chakram_base::units::Time;
use chakram_engine::{
    CompiledReplay, FeedLaunchAndRankStartRequests, LaunchFeed, LaunchRequest,
    ProcessorJobStartAndEnd, ProcessorKernelJob, ProgramLaunchRecord, SelfSchedulingProcessorModel,
    run_launches,
};
use chakram_hardware::machine::Machine;
use chakram_trace::workload::Workload;
use std::cell::RefCell;

/// Order of the models' programs in the event loop. Traces come first, because the loop takes its collective settings
/// from the first program.
struct ModelToProgramIndexMaps {
    /// For each program, the index of its model.
    models: Vec<usize>,
    /// For each model, the index of its program.
    programs: Vec<u32>,
    /// Number of programs that are traces. They come first.
    traces: u32,
}

impl ModelToProgramIndexMaps {
    fn from_prepared_models(models: &[ModelWithJobTimes<'_>]) -> Self {
        let mut order: Vec<usize> = (0..models.len()).collect();
        order.sort_by_key(|&model| models[model].traced_job().is_none());
        let mut programs = vec![0; models.len()];
        for (program, &model) in (0..).zip(&order) {
            programs[model] = program;
        }
        let traces = models.iter().filter(|model| model.traced_job().is_some());
        Self {
            traces: traces.count() as u32,
            models: order,
            programs,
        }
    }

    /// Returns true if `program` is a trace (its kernels run on lanes).
    fn is_program_of_trace(&self, program: u32) -> bool {
        program < self.traces
    }
}

/// Implements a feed that launches the server's batches.
struct ServerBatchFeed<'f, 's> {
    server: &'f RefCell<ServeRunState<'s>>,
    order: &'f ModelToProgramIndexMaps,
}

impl ServerBatchFeed<'_, '_> {
    fn launch_batches(&self, queue: &mut FeedLaunchAndRankStartRequests) {
        for begun in self.server.borrow_mut().take_launches() {
            queue.begin_launch(LaunchRequest {
                program: self.order.programs[begun.model as usize],
                npu: begun.npu,
                tag: begun.flight.into(),
                ..LaunchRequest::default()
            });
        }
    }
}

impl LaunchFeed for ServerBatchFeed<'_, '_> {
    fn next_wake_time(&self) -> Option<Time> {
        self.server.borrow().next_non_job_event_time()
    }

    fn on_wake(&mut self, now: Time, queue: &mut FeedLaunchAndRankStartRequests) {
        self.server.borrow_mut().run_due_events(now);
        self.launch_batches(queue);
    }

    fn on_launch_ended(
        &mut self,
        now: Time,
        ended: &ProgramLaunchRecord,
        queue: &mut FeedLaunchAndRankStartRequests,
    ) {
        if self.order.is_program_of_trace(ended.program) {
            let mut server = self.server.borrow_mut();
            server.on_trace_launch_ended(now, ended.tag as u32);
        }
        self.launch_batches(queue);
    }
}

/// Implements a processor model that takes job times from the server.
struct ServerJobTimeProcessorModel<'f, 's> {
    server: &'f RefCell<ServeRunState<'s>>,
    order: &'f ModelToProgramIndexMaps,
    /// Jobs whose times the current call computed; reused to keep the allocation.
    answered: Vec<JobTimeRangeWithEventToken>,
}

impl ServerJobTimeProcessorModel<'_, '_> {
    fn append_started_job_times(&mut self, started: &mut Vec<ProcessorJobStartAndEnd>) {
        let times = self.answered.drain(..).map(|job| ProcessorJobStartAndEnd {
            token: job.token,
            start: job.times.start,
            end: job.times.end,
        });
        started.extend(times);
    }
}

impl SelfSchedulingProcessorModel for ServerJobTimeProcessorModel<'_, '_> {
    fn serves_program(&self, _npu: Npu, program: u32) -> bool {
        !self.order.is_program_of_trace(program)
    }

    fn submit_job(
        &mut self,
        now: Time,
        job: &ProcessorKernelJob,
        started: &mut Vec<ProcessorJobStartAndEnd>,
    ) {
        let mut server = self.server.borrow_mut();
        server.time_or_hold_back_ready_job(
            now,
            job.tag as u32,
            job.node.0,
            job.token,
            &mut self.answered,
        );
        drop(server);
        self.append_started_job_times(started);
    }

    fn on_job_ended(
        &mut self,
        now: Time,
        job: &ProcessorKernelJob,
        started: &mut Vec<ProcessorJobStartAndEnd>,
    ) {
        let mut server = self.server.borrow_mut();
        server.end_job(now, job.tag as u32, job.node.0, &mut self.answered);
        drop(server);
        self.append_started_job_times(started);
    }
}

/// Serves all requests.
pub(super) fn serve_all_requests<'s>(
    prepared: &'s ScenarioWithModelTimes<'s>,
    observer: &'s mut dyn RequestObserver,
) -> Result<ServeRunRecorder<'s>, ServeError> {
    let traces = || {
        prepared
            .models
            .iter()
            .filter_map(ModelWithJobTimes::traced_job)
    };
    let stand_in;
    let machine = match traces().next() {
        Some(trace) => trace.machine,
        None => {
            stand_in = Machine::placeholder_machine("processors");
            &stand_in
        }
    };
    let order = ModelToProgramIndexMaps::from_prepared_models(&prepared.models);
    let models = || order.models.iter().map(|&model| &prepared.models[model]);
    let jobs = models().map(|model| match model.traced_job() {
        Some(_) => Ok(None),
        None => create_model_program(model).map(Some),
    });
    let jobs = jobs.collect::<Result<Vec<Option<Workload>>, ServeError>>()?;
    let bare = program::untimed_replay_options();
    let programs = models().zip(&jobs).map(|(model, job)| {
        let compiled = match (model.traced_job(), job) {
            (Some(trace), _) => CompiledReplay::new(
                trace.job.workload(),
                machine,
                &traced::default_replay_options_for_traces(),
            ),
            (None, Some(job)) => CompiledReplay::new(job, machine, &bare),
            (None, None) => unreachable!("what is no trace has jobs"),
        };
        compiled.map_err(|refusal| ServeError::Replay(refusal.into()))
    });
    let programs: Vec<CompiledReplay<'_>> = programs.collect::<Result<_, _>>()?;
    let server = RefCell::new(ServeRunState::new(prepared, observer)?);
    let mut feed = ServerBatchFeed {
        server: &server,
        order: &order,
    };
    let mut processors = ServerJobTimeProcessorModel {
        server: &server,
        order: &order,
        answered: Vec::new(),
    };
    run_launches(&programs, &mut [&mut feed], Some(&mut processors), &mut ())?;
    server.into_inner().close_and_check_run_records()
}

fn create_model_program(model: &ModelWithJobTimes<'_>) -> Result<Workload, ServeError> {
    let after = |job: u32| match model.vector_product_job_graph() {
        Some(vectors) => vectors.dependencies_of(job).to_vec(),
        None => job.checked_sub(1).into_iter().collect(),
    };
    program::create_node_per_job_program(&model.served.name, model.jobs_per_request(), &after)
}
