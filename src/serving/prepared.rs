//! Prepares a scenario for a platform. This computes the offered load and the jobs' times, and checks that the platform
//! can serve the models.

use super::error::ServeError;
use super::jobs::GraphOfVectorProductJobs;
use super::platform::Platform;
use super::random::{RandomPurpose, RandomStream};
use super::request::RequestInServingSystem;
use super::scenario::{RequestWork, RequestedModel, Scenario, ServicePolicyWithParameters};
use super::tables::InterpolatedDurationCurve;
use super::traced::TracedJobLatencyAndInterval;
use super::unloaded::LoneRequestJobs;
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use std::borrow::Cow;

/// A scenario with the times of its models.
#[derive(Debug)]
pub struct ScenarioWithModelTimes<'s> {
    pub scenario: &'s Scenario,
    pub platform: Option<&'s Platform>,
    /// Number of cores per processor; 1 if the platform does not state it.
    pub cores: u64,
    pub models: Vec<ModelWithJobTimes<'s>>,
    /// Limit on the serve times of all models.
    pub slo: Option<Span>,
}

/// A model with the times of its jobs on the platform.
#[derive(Debug)]
pub struct ModelWithJobTimes<'s> {
    pub served: &'s RequestedModel,
    pub datapath: Span,
    /// Duration of one task of each vector job.
    each: Vec<Span>,
    /// The model's vector jobs, used to compute their time on idle cores; `None` for other models.
    unloaded: Option<LoneRequestJobs>,
    /// Measured latency of a single request; zero if the model has none.
    one: Span,
    largest: Span,
    /// Measured latencies by batch size, from the scenario or the platform.
    by_batch: Option<Cow<'s, InterpolatedDurationCurve>>,
    /// The job, read from traces, that each request launches.
    traced: Option<TracedJobLatencyAndInterval<'s>>,
}

/// Numbers of prompt and answer tokens for requests that state none.
const NO_TOKENS: [u32; 2] = [1, 1];

impl<'s> ScenarioWithModelTimes<'s> {
    /// Computes the times of `scenario`'s models on `platform`. No platform is needed if all models have
    /// latencies.
    ///
    /// # Errors
    ///
    /// Fails if the platform lacks a value that a model needs.
    pub fn new(scenario: &'s Scenario, platform: Option<&'s Platform>) -> Result<Self, ServeError> {
        let cores = platform.and_then(|platform| platform.cores);
        let models = scenario.models.iter();
        let models: Result<Vec<_>, ServeError> = models
            .map(|served| ModelWithJobTimes::new(scenario, served, platform))
            .collect();
        Ok(Self {
            scenario,
            platform,
            cores: cores.map_or(1, |cores| cores.cores.into()),
            models: models?,
            slo: None,
        })
    }

    /// Returns the offered load: the fraction of the processors' time that requests occupy in the long run. `None` for
    /// closed-loop arrivals, and if the arrival file states each request's work. If arrivals come from a file,
    /// `measured` is the number of arrivals per second in it.
    pub fn offered_load_fraction_of_processors(&self, measured: Option<f64>) -> Option<f64> {
        let scenario = self.scenario;
        if self
            .models
            .iter()
            .any(ModelWithJobTimes::takes_work_from_arrivals)
        {
            return None;
        }
        let rate = scenario.arrivals_per_second().or(measured)?;
        let total: f64 = scenario.models.iter().map(|model| model.weight).sum();
        let mean: f64 = self
            .models
            .iter()
            .map(|model| {
                model.served.weight / total * self.processor_seconds_per_request_of_model(model)
            })
            .sum();
        Some(rate * mean / f64::from(scenario.processors))
    }

    /// Returns how many seconds a request occupies a processor. Batches, if the policy forms them, are assumed to be
    /// full. The result is the larger of two times: the time for which the request's work occupies all cores, and its
    /// unloaded time divided by the number of slots. With one slot, this is the unloaded time. With unlimited slots, it
    /// is the time for which the work occupies all cores.
    pub fn processor_seconds_per_request_of_model(&self, model: &ModelWithJobTimes<'_>) -> f64 {
        let together = self.scenario.policy.kind.max_served_together();
        let work = model.mean_all_core_seconds(self, together);
        let held = match self.scenario.policy.slots {
            Some(slots) if model.traced.is_none() => {
                model.mean_unloaded_time(together).as_seconds() / f64::from(slots)
            }
            _ => 0.0,
        };
        work.max(held) / f64::from(together)
    }
}

/// Builds the error for a model that the platform or policy does not support.
fn unservable_model_error(
    model: &RequestedModel,
    why: impl std::fmt::Display,
    hint: &str,
) -> ServeError {
    unservable_error_with_hint(model, format_args!("{why}\n  try: {hint}"))
}

/// Like [`unservable_model_error`], but `why` includes a hint.
fn unservable_error_with_hint(model: &RequestedModel, why: impl std::fmt::Display) -> ServeError {
    ServeError::Unfit(format!(
        "{}: model {:?}: {why}",
        model.place.work, model.name
    ))
}

/// Rejects policies that do not support traces. Also rejects other models on a processor with traces.
fn reject_policy_unfit_for_traces(
    scenario: &Scenario,
    model: &RequestedModel,
    is_trace: bool,
) -> Result<(), ServeError> {
    let policy = &scenario.policy;
    let refuse = |why: &str, hint: &str| Err(unservable_model_error(model, why, hint));
    if is_trace && policy.kind.max_served_together() > 1 {
        return refuse(
            "batching needs the time of a batch, but the model's trace is of one request",
            "another policy, or `latencies` with a column `batch`",
        );
    }
    if is_trace && policy.preemption.is_some() {
        return refuse(
            "a launch of the model's trace cannot be preempted, because it has no job borders",
            "a policy without `preemption`",
        );
    }
    let traces = scenario.models.iter();
    let mut traces = traces.filter(|model| matches!(model.work, RequestWork::Trace(_)));
    if !is_trace && policy.slots != Some(1) && traces.next().is_some() {
        return refuse(
            "a processor that also serves traces cannot share cores and lanes among both",
            "a policy that serves one request at a time, such as first-come",
        );
    }
    Ok(())
}

impl<'s> ModelWithJobTimes<'s> {
    fn new(
        scenario: &'s Scenario,
        served: &'s RequestedModel,
        platform: Option<&'s Platform>,
    ) -> Result<Self, ServeError> {
        let refuse = |why: String, hint: &str| unservable_model_error(served, why, hint);
        let (mut each, mut by_batch, mut datapath) = (Vec::<Span>::new(), None, None);
        let mut traced = None;
        let (mut unloaded, mut one, mut largest) = (None, Span::ZERO, Span::ZERO);
        let layers = match &served.work {
            RequestWork::Vectors(graph) => {
                let Some(platform) = platform else {
                    let why = "the model's vector products need a platform".to_owned();
                    return Err(refuse(
                        why,
                        &format!(
                            "{} with a name of `chakram platform list`",
                            SettingKey::Machine
                        ),
                    ));
                };
                let Some(clock) = platform.cores else {
                    let why = format!("platform {:?} states no cores", platform.name);
                    return Err(refuse(
                        why,
                        "`measured = true`, or a platform with cores and a clock",
                    ));
                };
                let jobs = graph.jobs().iter();
                each.extend(jobs.map(|job| clock.clock.time_for_cycles(job.length)));
                let jobs = LoneRequestJobs::new(graph, &served.name)?;
                let time = |together: u32| {
                    jobs.unloaded_time(clock.cores.into(), |job| {
                        let tasks = graph.jobs()[job as usize].tasks;
                        // Round the number of skipped tasks down, because a request skips only whole tasks. Some
                        // requests skip one more task.
                        let kept = tasks - (tasks as f64 * served.sparsity) as u64;
                        (kept.saturating_mul(together.into()), each[job as usize])
                    })
                };
                one = time(1)?;
                largest = match scenario.policy.kind.max_served_together() {
                    1 => one,
                    together => time(together)?,
                };
                unloaded = Some(jobs);
                graph.layer_count()
            }
            RequestWork::ByBatch(curve) => {
                by_batch = Some(Cow::Borrowed(curve));
                1
            }
            RequestWork::Platform => {
                let Some(platform) = platform else {
                    let why = "measured latencies need a platform".to_owned();
                    return Err(refuse(
                        why,
                        &format!(
                            "{} FILE.toml, as `chakram platform import` writes it",
                            SettingKey::Machine
                        ),
                    ));
                };
                let rows = platform.measured_latencies_with_least_concurrency(&served.known_as);
                let points = rows.iter().map(|row| (f64::from(row.batch), row.compute));
                by_batch = InterpolatedDurationCurve::from_averaged_measurements(points.collect())
                    .map(Cow::Owned);
                datapath = rows.first().map(|row| row.datapath);
                if by_batch.is_none() {
                    let known = platform.names_of_measured_models();
                    let why = format!(
                        "platform {:?} has no measurement of the model",
                        platform.name
                    );
                    let hint = if known.is_empty() {
                        "a platform with measurements: `chakram platform import`".to_owned()
                    } else {
                        format!("one of {}", known.join(", "))
                    };
                    return Err(refuse(why, &hint));
                }
                1
            }
            RequestWork::Trace(trace) => {
                let machine = platform.and_then(|platform| platform.machine.as_deref());
                let Some(machine) = machine else {
                    let why = match platform {
                        None => "the model's trace needs a machine".to_owned(),
                        Some(platform) => format!("platform {:?} has no machine", platform.name),
                    };
                    return Err(refuse(
                        why,
                        &format!(
                            "{} with a name of `chakram machine list`, or `machine` in the platform's file",
                            SettingKey::Machine
                        ),
                    ));
                };
                let model = TracedJobLatencyAndInterval::new(trace, machine, scenario);
                traced = Some(model.map_err(|why| unservable_error_with_hint(served, why))?);
                1
            }
            _ => 1,
        };
        reject_policy_unfit_for_traces(scenario, served, traced.is_some())?;
        if let ServicePolicyWithParameters::Batching { batch, .. } = scenario.policy.kind {
            match (&served.work, &by_batch) {
                (_, Some(curve)) if f64::from(batch) > curve.largest_position() => {
                    let why = format!(
                        "batches of {batch} were not measured; the largest are of {}",
                        curve.largest_position()
                    );
                    return Err(refuse(why, "smaller batches, or a table with larger ones"));
                }
                (RequestWork::Latency { .. } | RequestWork::Drawn(_), _) => {
                    let why =
                        "batching needs the time of a batch, but only times of single requests are given"
                            .to_owned();
                    return Err(refuse(why, "`latencies` with a column `batch`"));
                }
                _ => {}
            }
        }
        Ok(Self {
            served,
            datapath: match (datapath, platform) {
                (Some(datapath), _) => datapath,
                (None, Some(platform)) => platform.datapath_latency(&served.known_as, layers),
                (None, None) => Span::ZERO,
            },
            each,
            unloaded,
            one,
            largest,
            by_batch,
            traced,
        })
    }

    /// Returns true if each arrival in the file states its request's work.
    pub fn takes_work_from_arrivals(&self) -> bool {
        matches!(self.served.work, RequestWork::Steps { .. }) && self.served.tokens.is_none()
    }

    /// Returns true if requests have random durations.
    pub fn has_random_durations(&self) -> bool {
        match self.served.work {
            RequestWork::Latency { exponential, .. } => exponential,
            _ => matches!(self.served.work, RequestWork::Drawn(_)),
        }
    }

    /// Returns the job, read from traces, that each request for the model launches; `None` for
    /// other models.
    pub fn traced_job(&self) -> Option<&TracedJobLatencyAndInterval<'s>> {
        self.traced.as_ref()
    }

    /// Returns the model's jobs of vector products; `None` for other models.
    pub fn vector_product_job_graph(&self) -> Option<&'s GraphOfVectorProductJobs> {
        match &self.served.work {
            RequestWork::Vectors(graph) => Some(graph),
            _ => None,
        }
    }

    /// Returns the number of jobs per request.
    pub fn jobs_per_request(&self) -> u32 {
        match &self.served.work {
            RequestWork::Vectors(graph) => graph.jobs().len() as u32,
            RequestWork::Steps { .. } => 2,
            _ => 1,
        }
    }

    /// Returns the durations of the jobs of a batch of requests. The jobs must not be vector
    /// products.
    pub(super) fn draw_job_durations(
        &self,
        of: &ScenarioWithModelTimes<'_>,
        requests: &[RequestInServingSystem],
    ) -> [Span; 2] {
        let seed = of.scenario.seed;
        let first = requests.first().map_or(0, |request| request.number);
        let random = || RandomStream::of_item(seed, RandomPurpose::Service, first);
        let single = |span| [span, Span::ZERO];
        match &self.served.work {
            RequestWork::Vectors(_) => single(Span::ZERO),
            RequestWork::Latency {
                mean,
                exponential: true,
            } => single(Span::from_seconds_saturating(
                random().next_exponential(mean.as_seconds()),
            )),
            RequestWork::Latency { mean, .. } => single(*mean),
            RequestWork::Drawn(all) => {
                let at = (random().next_unit() * all.len() as f64) as usize;
                single(all[at.min(all.len() - 1)])
            }
            RequestWork::Steps { prefill, step } => {
                let prompts: f64 = requests.iter().map(|one| f64::from(one.tokens[0])).sum();
                let answers = requests.iter().map(|one| one.tokens[1]);
                let more = answers.max().unwrap_or(0).saturating_sub(1);
                let each = step.duration_at(requests.len() as f64);
                [prefill.duration_at(prompts), each.times(more.into())]
            }
            RequestWork::ByBatch(_) | RequestWork::Platform => match &self.by_batch {
                Some(curve) => single(curve.duration_at(requests.len() as f64)),
                None => single(Span::ZERO),
            },
            RequestWork::Trace(_) => single(self.unloaded_trace_latency()),
        }
    }

    /// Returns how many tasks a job has and how long each task takes, for a batch of the requests with the given
    /// numbers.
    pub fn job_task_count_and_task_duration(
        &self,
        of: &ScenarioWithModelTimes<'_>,
        job: u32,
        numbers: impl Iterator<Item = u64>,
        lengths: &[Span; 2],
    ) -> (u64, Span) {
        let Some(graph) = self.vector_product_job_graph() else {
            return (of.cores, lengths[job as usize & 1]);
        };
        let tasks = graph.jobs()[job as usize].tasks;
        let kept = numbers.map(|number| self.unskipped_task_count(of, job, number, tasks));
        let all = kept.fold(0, u64::saturating_add);
        (all, self.each[job as usize])
    }

    /// Returns how many of a job's tasks remain after sparsity skips some. The number of skipped tasks is rounded at
    /// random, so that their mean fraction equals the scenario's sparsity exactly.
    fn unskipped_task_count(
        &self,
        of: &ScenarioWithModelTimes<'_>,
        job: u32,
        number: u64,
        tasks: u64,
    ) -> u64 {
        let sparsity = self.served.sparsity;
        if sparsity == 0.0 {
            return tasks;
        }
        let skipped = tasks as f64 * sparsity;
        let item = number << 24 ^ u64::from(job);
        let mut random = RandomStream::of_item(of.scenario.seed, RandomPurpose::Sparsity, item);
        let more = random.next_unit() < skipped.fract();
        tasks.saturating_sub(skipped as u64 + u64::from(more))
    }

    /// Returns how long a batch of requests takes on an unloaded processor, without datapath latency. Its jobs run on
    /// idle cores; jobs that have `ended` are not included.
    pub(super) fn unloaded_batch_time(
        &self,
        of: &ScenarioWithModelTimes<'_>,
        requests: &[RequestInServingSystem],
        ended: &[bool],
    ) -> Span {
        let lengths = self.draw_job_durations(of, requests);
        let Some(jobs) = &self.unloaded else {
            return lengths[0] + lengths[1];
        };
        if requests.len() == 1 && self.served.sparsity == 0.0 && ended.is_empty() {
            return self.one;
        }
        let numbers = || requests.iter().map(|request| request.number);
        let size = |job| match ended.get(job as usize) {
            Some(true) => (0, Span::ZERO),
            _ => self.job_task_count_and_task_duration(of, job, numbers(), &lengths),
        };
        // No overflow is possible, because `new` already computed the time of all jobs for the largest batch.
        jobs.unloaded_time(of.cores, size).unwrap_or(Span::MAX)
    }

    /// Returns true if a request takes the sum of its jobs' times.
    pub fn has_sequential_jobs(&self) -> bool {
        self.unloaded
            .as_ref()
            .is_none_or(LoneRequestJobs::has_sequential_jobs)
    }

    /// Returns the mean time that a request, or a batch of `together` requests, takes on an unloaded processor. The
    /// number of tasks that sparsity skips is rounded down.
    pub fn mean_unloaded_time(&self, together: u32) -> Span {
        match &self.served.work {
            RequestWork::Vectors(_) if together == 1 => self.one,
            RequestWork::Vectors(_) => self.largest,
            RequestWork::Latency { mean, .. } => *mean,
            RequestWork::Drawn(all) => {
                let sum: u128 = all.iter().map(|span| u128::from(span.0)).sum();
                Span((sum / all.len().max(1) as u128) as u64)
            }
            RequestWork::Steps { prefill, step } => {
                let [prompt, answer] = self.served.tokens.unwrap_or(NO_TOKENS);
                let more = answer.saturating_sub(1);
                let each = step.duration_at(together.into());
                prefill.duration_at(f64::from(prompt) * f64::from(together))
                    + each.times(more.into())
            }
            RequestWork::ByBatch(_) | RequestWork::Platform => {
                let curve = self.by_batch.as_ref();
                curve.map_or(Span::ZERO, |curve| curve.duration_at(together.into()))
            }
            RequestWork::Trace(_) => self.unloaded_trace_latency(),
        }
    }

    /// Returns how many seconds on average `together` requests occupy all cores.
    fn mean_all_core_seconds(&self, of: &ScenarioWithModelTimes<'_>, together: u32) -> f64 {
        if let Some(trace) = &self.traced {
            return trace.interval.as_seconds();
        }
        match self.vector_product_job_graph() {
            Some(graph) => {
                let jobs = graph.jobs().iter().zip(&self.each);
                let work = |(job, each): (&super::jobs::EqualVectorProductTasks, &Span)| {
                    job.tasks as f64 * each.as_seconds() * (1.0 - self.served.sparsity)
                };
                jobs.map(work).sum::<f64>() * f64::from(together) / of.cores as f64
            }
            None => self.mean_unloaded_time(together).as_seconds(),
        }
    }

    /// Returns how long one run of the model's trace takes on an unloaded machine.
    fn unloaded_trace_latency(&self) -> Span {
        self.traced
            .as_ref()
            .map_or(Span::ZERO, |trace| trace.latency)
    }

    /// Returns the number of multiplications per request; `None` if unknown.
    pub fn multiplication_count(&self) -> Option<u64> {
        self.vector_product_job_graph()
            .map(GraphOfVectorProductJobs::multiplication_count)
    }
}
