//! The report of a scenario's run. All output formats (text, JSON, CSV and HTML) are rendered from it.

use super::platform::Platform;
use super::recorder::{RequestGroupStatistics, ServeRunRecorder};
use super::statistics::{CountOverTimeSummary, IntervalEstimate, PERCENTS};
use chakram_base::units::Span;
use serde::{Deserialize, Serialize};

pub mod compare;
pub(super) mod describe;
pub mod html;
pub mod rows;
pub mod text;

/// All results of a serving run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ServeReport {
    /// Name of the scenario.
    pub scenario: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// The platform; `None` if no model needs one.
    pub platform: Option<PlatformFacts>,
    /// Number of processors.
    pub processors: u32,
    /// Description of the arrivals.
    pub arrivals: String,
    /// Description of the policy, including its parameters.
    pub policy: String,
    /// Description of the condition that ends the run.
    pub stop: String,
    /// Number of initial requests excluded from the statistics.
    pub warmup: u64,
    /// Limit on serve times for the goodput; `None` if the models' deadlines apply.
    #[serde(rename = "slo_ps")]
    pub slo: Option<Span>,
    /// Window for utilisation and levels: from 0 until the last completion.
    #[serde(rename = "window_ps")]
    pub window: Span,
    /// Number of requests that arrived, including the warm-up.
    pub arrived: u64,
    /// Number of completed requests, including the warm-up.
    pub completed: u64,
    /// Offered load (rho): the fraction of the processors' time that requests occupy in the long run. Absent for
    /// closed-loop arrivals, and if the arrival file states each request's work.
    pub offered_load: Option<f64>,
    /// How often a request was preempted between two of its jobs.
    pub preemptions: u64,
    /// One row per model, then one row per class, then a row for all requests.
    pub rows: Vec<RequestGroupResultsRow>,
    /// For each processor, the fraction of the window in which its cores are busy. While a
    /// processor serves a trace, all its cores count as busy.
    pub utilisation: Vec<f64>,
    /// Number of requests in the queue over time.
    pub queue: CountOverTimeSummary,
    /// Number of requests in the system over time.
    pub active: CountOverTimeSummary,
    /// Time in the system, summed over all completed requests, in picoseconds. It has been checked against Little's
    /// law: it equals the number of requests in the system, summed over time.
    pub time_in_system_ps: WideTimeSum,
    /// Caveats about the results, such as overload or a run that is too short.
    pub warnings: Vec<String>,
}

/// Facts about a platform, for reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlatformFacts {
    /// Name of the platform.
    pub name: String,
    /// Publication or measurement that is the source of the platform's numbers.
    pub source: String,
    /// Number of cores per processor; `None` if the platform does not state it.
    pub cores: Option<u32>,
    /// Number of multiplications per second on one core.
    pub clock_hz: Option<f64>,
    /// Name of the machine on which traces are replayed.
    pub machine: Option<String>,
    /// Number of NPUs in the machine.
    pub npus: Option<u32>,
}

/// Results for the requests of a model, of a class, or of the whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RequestGroupResultsRow {
    /// Name of the model or class; `all` for all requests.
    pub name: String,
    /// Kind of the row.
    pub kind: RequestGroupKind,
    /// Number of counted requests that arrived.
    pub arrived: u64,
    /// Number of counted requests that are complete. All later fields describe these requests.
    pub completed: u64,
    /// Number of completed requests per second, from the first counted arrival to the end of the
    /// window.
    pub throughput_per_s: f64,
    /// Mean serve time, from arrival to completion.
    pub mean: Option<IntervalEstimate>,
    /// 50th, 90th, 95th and 99th percentile of the serve time.
    pub percentiles: Vec<IntervalEstimate>,
    /// Serve time of one request on an unloaded processor; only for models.
    #[serde(rename = "alone_ps")]
    pub alone: Option<Span>,
    /// Datapath latency of each request; only for models.
    #[serde(rename = "datapath_ps")]
    pub datapath: Option<Span>,
    /// Number of multiplications per request; only for models that consist of vector products.
    pub multiplications: Option<u64>,
    /// Parts of the serve time, summed over requests.
    pub parts: SummedServeTimeParts,
    /// Maximum number of requests that were served together.
    pub largest_batch: u32,
    /// Fraction of the requests that were completed within their limit; `None` if the requests have
    /// no limit.
    pub attained: Option<f64>,
    /// Number of requests per second that are completed within their limit.
    pub goodput_per_s: Option<f64>,
}

/// Kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RequestGroupKind {
    /// A model.
    Model,
    /// A class of models.
    Class,
    /// All requests of the run.
    All,
}

/// Parts of the serve times, in picoseconds, summed over requests. The parts add up to the sum of
/// the serve times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SummedServeTimeParts {
    /// Datapath latency.
    pub datapath_ps: WideTimeSum,
    /// Time in the queue: the remainder of the serve time.
    pub queue_ps: WideTimeSum,
    /// Time in which at least one job of the request ran.
    pub compute_ps: WideTimeSum,
    /// Total time from each preemption until the request continued.
    pub preempted_ps: WideTimeSum,
    /// Sum of the other parts, which equals the sum of the serve times.
    pub serve_ps: WideTimeSum,
}

impl SummedServeTimeParts {
    /// Returns the four parts without their sum: datapath, queue, compute, preempted.
    pub fn parts_without_sum(&self) -> [WideTimeSum; 4] {
        [
            self.datapath_ps,
            self.queue_ps,
            self.compute_ps,
            self.preempted_ps,
        ]
    }
}

/// A sum of times in picoseconds, which may exceed 64 bits. In JSON, it is a string of digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WideTimeSum(pub u128);

impl Serialize for WideTimeSum {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for WideTimeSum {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for WideTimeSum {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "WideTimeSum".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}

impl RequestGroupResultsRow {
    /// Returns the mean of `part` per completed request.
    pub fn mean_part_time(&self, part: WideTimeSum) -> Span {
        let count = u128::from(self.completed.max(1));
        Span(((part.0 + count / 2) / count) as u64)
    }
}

impl ServeReport {
    /// Returns the row of all requests.
    pub fn row_of_all_models(&self) -> Option<&RequestGroupResultsRow> {
        self.rows.last()
    }

    /// Returns the row of a model.
    pub fn row_of_model(&self, name: &str) -> Option<&RequestGroupResultsRow> {
        let mut models = self
            .rows
            .iter()
            .filter(|row| row.kind == RequestGroupKind::Model);
        models.find(|row| row.name == name)
    }

    /// Returns the mean utilisation of all processors.
    pub fn mean_utilisation(&self) -> f64 {
        let count = self.utilisation.len().max(1) as f64;
        self.utilisation.iter().sum::<f64>() / count
    }

    /// Creates the report of a run.
    pub fn build_report(recorder: ServeRunRecorder<'_>) -> Self {
        let prepared = recorder.prepared;
        let scenario = prepared.scenario;
        let measured = recorder.arrivals.and_then(|(first, last)| {
            let gaps = recorder.arrived_in_all.saturating_sub(1);
            let span = last.since(first).as_seconds();
            (gaps > 0 && span > 0.0).then(|| gaps as f64 / span)
        });
        let closed = matches!(
            scenario.stream,
            super::scenario::ArrivalPattern::Closed { .. }
        );
        let offered_load =
            prepared.offered_load_fraction_of_processors(measured.filter(|_| !closed));
        let window = Span(recorder.end.0);
        let core_time = u128::from(window.0) * u128::from(prepared.cores);
        let busy = recorder.busy_ps.iter();
        let utilisation: Vec<f64> = busy
            .map(|busy| *busy as f64 / core_time.max(1) as f64)
            .collect();
        let counted = recorder.counted_from.map_or(Span::ZERO, |from| {
            Span(recorder.end.0.saturating_sub(from.0))
        });
        let rows = build_serve_report_rows(&recorder, counted);
        let mut report = Self {
            scenario: scenario.name.clone(),
            seed: scenario.seed,
            platform: prepared.platform.map(PlatformFacts::from_platform),
            processors: scenario.processors,
            arrivals: describe::describe_arrival_stream(&scenario.stream),
            policy: describe::describe_service_order(scenario),
            stop: describe::describe_stop_rule(&scenario.stop),
            warmup: scenario.warmup,
            slo: recorder.slo,
            window,
            arrived: recorder.arrived_in_all,
            completed: recorder.completed,
            offered_load,
            preemptions: recorder.preemptions,
            rows,
            utilisation,
            queue: recorder.queue.summarize_level_until(recorder.end),
            active: recorder.active.summarize_level_until(recorder.end),
            time_in_system_ps: WideTimeSum(recorder.little_ps),
            warnings: Vec::new(),
        };
        report.warnings = describe::report_warnings(&report, prepared);
        report
    }
}

impl PlatformFacts {
    fn from_platform(platform: &Platform) -> Self {
        let machine = platform.machine.as_deref();
        Self {
            name: platform.name.clone(),
            source: platform.source.clone(),
            cores: platform.cores.map(|cores| cores.cores),
            clock_hz: platform.cores.map(|cores| cores.clock.as_hertz()),
            machine: machine.map(|machine| machine.name().to_owned()),
            npus: machine.map(|machine| machine.topology().npu_count()),
        }
    }
}

fn build_serve_report_rows(
    recorder: &ServeRunRecorder<'_>,
    counted: Span,
) -> Vec<RequestGroupResultsRow> {
    let prepared = recorder.prepared;
    let scenario = prepared.scenario;
    let per_second = |count: u64| match counted {
        Span::ZERO => 0.0,
        span => count as f64 / span.as_seconds(),
    };
    let row = |name: &str, kind, recorded: &RequestGroupStatistics, limited: bool| {
        let completed = recorded.serve.sample_count();
        let [datapath, queue, compute, preempted] = recorded.parts_ps.map(WideTimeSum);
        let percents = PERCENTS.iter();
        RequestGroupResultsRow {
            name: name.to_owned(),
            kind,
            arrived: recorded.arrived,
            completed,
            throughput_per_s: per_second(completed),
            mean: recorded.serve.mean_estimate(),
            percentiles: percents
                .filter_map(|percent| recorded.serve.percentile_estimate(*percent))
                .collect(),
            alone: None,
            datapath: None,
            multiplications: None,
            parts: SummedServeTimeParts {
                datapath_ps: datapath,
                queue_ps: queue,
                compute_ps: compute,
                preempted_ps: preempted,
                serve_ps: WideTimeSum(recorded.serve.sum_ps()),
            },
            largest_batch: recorded.together,
            attained: (limited && completed > 0).then(|| recorded.met as f64 / completed as f64),
            goodput_per_s: limited.then(|| per_second(recorded.met)),
        }
    };
    let limited =
        |model: &super::scenario::RequestedModel| recorder.slo.or(model.deadline).is_some();
    let mut rows = Vec::with_capacity(recorder.rows.len());
    for (model, recorded) in prepared.models.iter().zip(&recorder.rows) {
        let served = model.served;
        rows.push(RequestGroupResultsRow {
            alone: (!model.takes_work_from_arrivals())
                .then(|| model.datapath + model.mean_unloaded_time(1)),
            datapath: Some(model.datapath),
            multiplications: model.multiplication_count(),
            ..row(
                &served.name,
                RequestGroupKind::Model,
                recorded,
                limited(served),
            )
        });
    }
    let classes = recorder.rows.iter().skip(prepared.models.len());
    for (class, recorded) in recorder.classes.iter().zip(classes) {
        let of_class =
            |model: &&super::scenario::RequestedModel| model.class.as_deref() == Some(class);
        let limited = scenario.models.iter().filter(of_class).all(limited);
        rows.push(row(class, RequestGroupKind::Class, recorded, limited));
    }
    if let Some(all) = recorder.rows.last() {
        let limited = scenario.models.iter().all(limited);
        rows.push(row("all", RequestGroupKind::All, all, limited));
    }
    rows
}
