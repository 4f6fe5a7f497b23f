//! Requests on the event loop: a feed that launches batches, and processors that answer their jobs.
//!
//! A model is a program of one rank, a node for each job; a batch in flight is a launch of it, whose tag is its place in
//! the server. The loop knows dependencies and instants; which job takes how long is the server's. Feed and processors
//! are two sides of one state, of which the loop calls one at a time. Of a model that is a trace the program is its job,
//! whose kernels take lanes: the server is told of the end of the launch alone.

use super::error::ServeError;
use super::observe::RequestObserver;
use super::prepared::{PreparedModel, PreparedScenario};
use super::recorder::ServeRecorder;
use super::server::{AnsweredJob, Server};
use super::traced;
use chakram_base::ids::{Npu, Rank};
use chakram_base::units::{Span, Time};
use chakram_engine::{
    CollectiveTiming, CompiledReplay, Feed, JobTimes, Launch, LaunchMode, LaunchQueue,
    LaunchRecord, ProcessorJob, ProcessorModel, ReplayOptions, run_launches,
};
use chakram_hardware::machine::Machine;
use chakram_trace::format::{NodeView, Op, Sink};
use chakram_trace::graph::{DependencyPolicy, GraphBuilder};
use chakram_trace::workload::{MissingRankPolicy, Workload, WorkloadBuilder};
use std::cell::RefCell;

/// Programs of models: those of traces are the first, since the loop asks its first program how collectives are priced.
struct ProgramOrder {
    /// Models by program.
    models: Vec<usize>,
    /// Programs by model.
    programs: Vec<u32>,
    /// Number of traces.
    traces: u32,
}

impl ProgramOrder {
    fn of(models: &[PreparedModel<'_>]) -> Self {
        let mut order: Vec<usize> = (0..models.len()).collect();
        order.sort_by_key(|&model| models[model].trace().is_none());
        let mut programs = vec![0; models.len()];
        for (program, &model) in (0..).zip(&order) {
            programs[model] = program;
        }
        let traces = models.iter().filter(|model| model.trace().is_some());
        Self {
            traces: traces.count() as u32,
            models: order,
            programs,
        }
    }

    /// Whether a program is a trace, whose kernels take lanes.
    fn is_trace(&self, program: u32) -> bool {
        program < self.traces
    }
}

/// The side of the server that launches.
struct RequestFeed<'f, 's> {
    server: &'f RefCell<Server<'s>>,
    order: &'f ProgramOrder,
}

impl RequestFeed<'_, '_> {
    fn launch(&self, queue: &mut LaunchQueue) {
        for begun in self.server.borrow_mut().begin() {
            queue.launch(Launch {
                program: self.order.programs[begun.model as usize],
                npu: begun.npu,
                tag: begun.flight.into(),
                ..Launch::default()
            });
        }
    }
}

impl Feed for RequestFeed<'_, '_> {
    fn wake_at(&self) -> Option<Time> {
        self.server.borrow().due()
    }

    fn woken(&mut self, now: Time, queue: &mut LaunchQueue) {
        self.server.borrow_mut().wake(now);
        self.launch(queue);
    }

    fn launch_ended(&mut self, now: Time, ended: &LaunchRecord, queue: &mut LaunchQueue) {
        if self.order.is_trace(ended.program) {
            let mut server = self.server.borrow_mut();
            server.launch_ended(now, ended.tag as u32);
        }
        self.launch(queue);
    }
}

/// The side of the server that answers jobs.
struct CoreProcessors<'f, 's> {
    server: &'f RefCell<Server<'s>>,
    order: &'f ProgramOrder,
    /// Jobs that were answered in a call; kept for its allocation.
    answered: Vec<AnsweredJob>,
}

impl CoreProcessors<'_, '_> {
    fn told(&mut self, started: &mut Vec<JobTimes>) {
        let times = self.answered.drain(..).map(|job| JobTimes {
            token: job.token,
            start: job.times.start,
            end: job.times.end,
        });
        started.extend(times);
    }
}

impl ProcessorModel for CoreProcessors<'_, '_> {
    fn serves(&self, _npu: Npu, program: u32) -> bool {
        !self.order.is_trace(program)
    }

    fn submit(&mut self, now: Time, job: &ProcessorJob, started: &mut Vec<JobTimes>) {
        let mut server = self.server.borrow_mut();
        server.submit(
            now,
            job.tag as u32,
            job.node.0,
            job.token,
            &mut self.answered,
        );
        drop(server);
        self.told(started);
    }

    fn ended(&mut self, now: Time, job: &ProcessorJob, started: &mut Vec<JobTimes>) {
        let mut server = self.server.borrow_mut();
        server.end(now, job.tag as u32, job.node.0, &mut self.answered);
        drop(server);
        self.told(started);
    }
}

/// Serves all requests.
pub(super) fn run<'s>(
    prepared: &'s PreparedScenario<'s>,
    observer: &'s mut dyn RequestObserver,
) -> Result<ServeRecorder<'s>, ServeError> {
    let traces = || prepared.models.iter().filter_map(PreparedModel::trace);
    let stand_in;
    let machine = match traces().next() {
        Some(trace) => trace.machine,
        None => {
            stand_in = Machine::of_answered_jobs("processors");
            &stand_in
        }
    };
    let order = ProgramOrder::of(&prepared.models);
    let models = || order.models.iter().map(|&model| &prepared.models[model]);
    let jobs = models().map(|model| match model.trace() {
        Some(_) => Ok(None),
        None => program(model).map(Some),
    });
    let jobs = jobs.collect::<Result<Vec<Option<Workload>>, ServeError>>()?;
    // The server answers the jobs of these, so nothing of the machine may come between.
    let bare = ReplayOptions::with(|options| {
        options.launch = LaunchMode::None;
        options.collectives = Some(CollectiveTiming::Algorithms);
    });
    let programs = models().zip(&jobs).map(|(model, job)| {
        let compiled = match (model.trace(), job) {
            (Some(trace), _) => {
                CompiledReplay::new(trace.job.workload(), machine, &traced::options())
            }
            (None, Some(job)) => CompiledReplay::new(job, machine, &bare),
            (None, None) => unreachable!("what is no trace has jobs"),
        };
        compiled.map_err(|refusal| ServeError::Replay(refusal.into()))
    });
    let programs: Vec<CompiledReplay<'_>> = programs.collect::<Result<_, _>>()?;
    let server = RefCell::new(Server::new(prepared, observer)?);
    let mut feed = RequestFeed {
        server: &server,
        order: &order,
    };
    let mut processors = CoreProcessors {
        server: &server,
        order: &order,
        answered: Vec::new(),
    };
    run_launches(&programs, &mut [&mut feed], Some(&mut processors), &mut ())?;
    server.into_inner().finish()
}

/// The program of a model: a node for each job, in their order.
fn program(model: &PreparedModel<'_>) -> Result<Workload, ServeError> {
    let unfit = |error: &dyn std::fmt::Display| {
        ServeError::Unfit(format!("model {:?}: {error}", model.served.name))
    };
    let jobs = model.job_count();
    let mut graph = GraphBuilder::new(0, DependencyPolicy::Data, jobs.into());
    let op = || Op::Compute {
        flops: 0,
        bytes: 0,
        dtype: None,
    };
    for job in 0..jobs {
        let mut node = NodeView::new(u64::from(job) + 1, "job", op());
        // Kernels without a duration have no price; the server answers another.
        node.recorded = Span::from_us(1);
        node.micros = 1;
        let after: Vec<u64> = match model.vectors() {
            Some(vectors) => vectors
                .after(job)
                .iter()
                .map(|&j| u64::from(j) + 1)
                .collect(),
            None => (0..job)
                .last()
                .map(|j| u64::from(j) + 1)
                .into_iter()
                .collect(),
        };
        graph.node(&node, &after).map_err(|error| unfit(&error))?;
    }
    let (graph, binding) = graph.finish().map_err(|error| unfit(&error))?;
    let mut workload = WorkloadBuilder::default();
    let graph = workload.graph(graph);
    workload
        .rank(Rank(0), graph, binding, Time::ZERO)
        .map_err(|error| unfit(&error))?;
    workload
        .finish(None, MissingRankPolicy::Refuse)
        .map_err(|error| unfit(&error))
}
