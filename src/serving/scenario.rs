//! Parses scenarios: the models for which requests arrive, the arrivals, and the order of service.
//!
//! A scenario file has these keys (defaults in parentheses):
//!
//! - `name`, and optionally `seed` (1) and `processors` (1), the number of the platform's
//!   processors;
//! - `[[model]]`, each with a `name` and one source of work (see below). Optional keys are `class`, `weight` (1;
//!   the relative frequency of the model's requests), `priority` (0, the most urgent), `deadline` after arrival,
//!   and `bytes` per request;
//! - `[stream]`: `arrivals` is `poisson` or `periodic` (both with a `rate` in requests per second, or with a
//!   `bandwidth` that the requests' `bytes` fill), `bursts` (`burst` requests at intervals of `every`), `closed`
//!   or `file`. With `closed`, each of `users` users waits for the answer, thinks for `think` (exponentially
//!   distributed if `think_exponential`), and then sends the next request. A `file` of arrivals is replayed
//!   `repeat` times in succession, at `speed` times the recorded speed;
//! - `[stop]`: `requests` is the maximum number of requests; `first` ends the run when this many of the first requests
//!   are complete; no request arrives after `duration`;
//! - `[measure]`, optionally: `warmup`, the number of initial requests that are not counted (0);
//! - `[policy]`: `kind` is `round-robin`, `first-come`, `shortest-job-first`, `priority` (with `aging`),
//!   `earliest-deadline` or `batching`. Batching has the keys `batch`, the maximum number of requests in a batch,
//!   and `wait`, the maximum time that a request waits for others. The policy also has `slots`, the number of
//!   requests that a processor serves at once (1; unlimited with round-robin). `preemption` is the cost of
//!   preempting a request between two of its jobs.
//!
//! A model states its work as one of
//!
//! - `preset`, a model's preset or file, with `tokens`, `convolution` (outputs or kernels), `attention` (layer or
//!   heads), `merge`, `tables` and `sparsity`;
//! - `jobs`, each with `tasks`, `length` and `after`, the indices of the jobs on which the job
//!   depends (default: the previous job);
//! - `latency`, which is constant or, with `distribution = "exponential"`, random;
//! - `latencies`, a table of measured latencies with a column `latency` and optionally a column
//!   `batch`. Latencies are looked up by batch size, or drawn at random;
//! - `steps`, a table of measured step times with the columns `tokens`, `batch`, `prefill` and `step`. The token
//!   counts of requests come from the arrival file, or from `prompt` and `output`;
//! - `measured = true`: the work is the latencies that the platform file gives for the model's name;
//! - `trace`, a job in any form that `chakram replay` accepts: a folder of traces, a prefix of file names, or a
//!   job file. Each request launches the job on the platform's machine.

use super::error::ServeError;
use super::jobs::GraphOfVectorProductJobs;
use super::tables::InterpolatedDurationCurve;
use super::trace_job::RequestJobFromTraces;
use chakram_base::config::{
    ConfigDocument, ConfigError, ConfigField, ConfigTable, did_you_mean, find_most_similar_name,
    quote_and_truncate_for_message,
};
use chakram_base::units::{Bandwidth, Span};
use chakram_workloads::model::{ModelError, PresetOrModelFileText};
use std::path::{Path, PathBuf};

mod build;
mod work;

/// A scenario: models, arrivals, end of the run, and order of service.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Name that reports show.
    pub name: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Number of processors, which all have the platform's properties.
    pub processors: u32,
    /// Models, at least one.
    pub models: Vec<RequestedModel>,
    /// Arrivals of requests over time.
    pub stream: ArrivalPattern,
    /// Condition that ends the run.
    pub stop: RunStopRule,
    /// Number of initial requests that reports do not count.
    pub warmup: u64,
    /// Order in which requests are served, with its parameters.
    pub policy: ServiceOrderAndSlots,
}

/// A model for which requests arrive.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedModel {
    /// Name in reports and arrival files.
    pub name: String,
    /// Name of the model's class in reports, if any.
    pub class: Option<String>,
    /// Relative frequency of requests for this model.
    pub weight: f64,
    /// Priority level; 0 is the most urgent.
    pub level: u32,
    /// Maximum time from a request's arrival to its completion; `None` for no deadline.
    pub deadline: Option<Span>,
    /// Payload of a request, in bytes; required if a bandwidth determines the arrivals.
    pub bytes: Option<u64>,
    /// Name under which platforms list the model's datapath latency and measurements.
    pub known_as: String,
    /// Fraction of the tasks that requests skip.
    pub sparsity: f64,
    /// Numbers of prompt and answer tokens for arrivals that state none.
    pub tokens: Option<[u32; 2]>,
    /// Work that each request for the model causes.
    pub work: RequestWork,
    /// Where the scenario file states the model's values, for error messages.
    pub place: ModelWorkAndDeadlineLocations,
}

/// File, line and key of each value that a platform or policy may reject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelWorkAndDeadlineLocations {
    /// File, line and key that define the model's work.
    pub work: String,
    /// File, line and key of the deadline, if the model has one.
    pub deadline: Option<String>,
}

/// Work that each request for a model causes.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestWork {
    /// The work is a graph of vector-product jobs.
    Vectors(GraphOfVectorProductJobs),
    /// The latency is constant, or exponentially distributed.
    Latency {
        /// The constant latency, or the mean latency.
        mean: Span,
        /// True if the latency is drawn at random.
        exponential: bool,
    },
    /// Measured latencies, by batch size.
    ByBatch(InterpolatedDurationCurve),
    /// Measured latencies of individual requests; each request draws one of them at random.
    Drawn(Vec<Span>),
    /// Measured steps. A prompt's time depends on its tokens; each further token's time depends on the batch size.
    Steps {
        /// Time of a prompt, by its number of tokens.
        prefill: InterpolatedDurationCurve,
        /// Time of a step, by the number of requests in the step.
        step: InterpolatedDurationCurve,
    },
    /// The platform's file contains measured latencies for the model.
    Platform,
    /// A job read from traces, which every request launches.
    Trace(RequestJobFromTraces),
}

/// Arrivals of requests over time.
#[derive(Clone, Debug, PartialEq)]
pub enum ArrivalPattern {
    /// Requests arrive independently of one another, at a mean rate.
    Poisson(ArrivalRateInRequestsOrBytes),
    /// Requests arrive at equal intervals.
    Periodic(ArrivalRateInRequestsOrBytes),
    /// Several requests arrive together as a burst; bursts arrive at equal intervals.
    Bursts {
        /// Number of requests that arrive at the same time.
        burst: u32,
        /// Time from one burst to the next.
        every: Span,
    },
    /// Users send a request, wait for the answer, and then send the next request.
    Closed {
        /// Number of users, each with at most one request in the system.
        users: u32,
        /// Mean time from an answer to the next request.
        think: Span,
        /// True if the time in `think` is exponentially distributed.
        exponential: bool,
    },
    /// Arrivals are read from a file.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Number of times that the file is replayed in succession.
        repeat: u32,
        /// Factor by which the file's arrivals are sped up.
        speed: f64,
    },
}

/// Rate of arrivals, in requests or in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArrivalRateInRequestsOrBytes {
    /// Requests per second.
    Requests(f64),
    /// Bandwidth that the requests' bytes fill in the long run.
    Bytes(Bandwidth),
}

/// What ends a run: either all requests complete, or a limit is reached first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStopRule {
    /// Maximum number of requests that arrive.
    pub requests: Option<u64>,
    /// The run ends when this many of the first requests are complete.
    pub first: Option<u64>,
    /// Time after which no request arrives.
    pub duration: Option<Span>,
}

/// The order in which requests are served, and how many slots each processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceOrderAndSlots {
    /// Order in which queued requests are served.
    pub kind: ServicePolicyWithParameters,
    /// Number of requests that a processor serves at once; `None` for no limit.
    pub slots: Option<u32>,
    /// Cost of preempting a request between two of its jobs; `None` if requests are not preempted.
    pub preemption: Option<Span>,
}

/// A policy with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServicePolicyWithParameters {
    /// Assigns jobs to cores in turn, as soon as the jobs are ready.
    RoundRobin,
    /// First come, first served.
    FirstCome,
    /// Serves the request with the least remaining work first.
    ShortestJob,
    /// Serves a request of the most urgent model first.
    Priority {
        /// How long a request must wait to become one priority level more urgent; `None` if waiting has no effect.
        aging: Option<Span>,
    },
    /// Serves the request with the earliest deadline first.
    EarliestDeadline,
    /// Serves batches of requests of one model.
    Batching {
        /// Maximum number of requests in a batch.
        batch: u32,
        /// Maximum time that a request waits for its batch to fill.
        wait: Span,
    },
}

impl ServicePolicyWithParameters {
    /// Returns the policy's name in files and reports.
    pub fn stable_name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::FirstCome => "first-come",
            Self::ShortestJob => "shortest-job-first",
            Self::Priority { .. } => "priority",
            Self::EarliestDeadline => "earliest-deadline",
            Self::Batching { .. } => "batching",
        }
    }

    /// Returns the maximum number of requests served together.
    pub fn max_served_together(self) -> u32 {
        match self {
            Self::Batching { batch, .. } => batch,
            _ => 1,
        }
    }
}

/// Returns an error if `name` is a model preset or a model on a hub, unless a file with this name
/// exists.
fn model_instead_of_scenario_error(name: &str) -> Option<ServeError> {
    if Path::new(name).exists() {
        return None;
    }
    let (closest, is_preset) = match PresetOrModelFileText::find_source(name) {
        Ok(preset) => (Some(preset.file), true),
        Err(ModelError::OnHub { closest, .. }) => (closest.map(str::to_owned), false),
        Err(_) => return None,
    };
    let name = name.chars().take(80).collect();
    Some(ServeError::ModelForScenario {
        name,
        closest,
        is_preset,
    })
}

impl Scenario {
    /// Loads and checks the scenario in the file at `path`.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, if the scenario is invalid, or if it names an invalid model or
    /// table.
    pub fn load_file(path: &Path) -> Result<Self, ServeError> {
        let file = path.display().to_string();
        let text = chakram_base::config::read_file_or_standard_input(path).map_err(|source| {
            model_instead_of_scenario_error(&file).unwrap_or_else(|| ServeError::Read {
                file: file.clone(),
                source,
            })
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, &file, folder)
    }

    /// Parses a scenario. Error messages call the file `file`, and paths in `text` are relative to
    /// `folder`.
    ///
    /// # Errors
    ///
    /// Fails if the scenario is invalid, or if it names an invalid model or table.
    pub fn parse(text: &str, file: &str, folder: &Path) -> Result<Self, ServeError> {
        build::build_scenario(&ConfigDocument::parse(text, file)?, folder)
    }

    /// Returns a copy of this scenario with `rate` requests per second; `None` if its arrivals have no rate.
    pub fn with_rate(&self, rate: f64) -> Option<Self> {
        let rate = ArrivalRateInRequestsOrBytes::Requests(rate);
        let stream = match self.stream {
            ArrivalPattern::Poisson(_) => ArrivalPattern::Poisson(rate),
            ArrivalPattern::Periodic(_) => ArrivalPattern::Periodic(rate),
            _ => return None,
        };
        Some(Self {
            stream,
            ..self.clone()
        })
    }

    /// Returns the long-run mean number of arrivals per second; `None` if completions or a file determine the arrivals.
    pub fn arrivals_per_second(&self) -> Option<f64> {
        let total: f64 = self.models.iter().map(|model| model.weight).sum();
        match self.stream {
            ArrivalPattern::Poisson(rate) | ArrivalPattern::Periodic(rate) => Some(match rate {
                ArrivalRateInRequestsOrBytes::Requests(rate) => rate,
                ArrivalRateInRequestsOrBytes::Bytes(bandwidth) => {
                    let models = self.models.iter();
                    let mean: f64 = models
                        .map(|model| model.weight * model.bytes.unwrap_or(0) as f64)
                        .sum();
                    bandwidth.bytes_per_second() / (mean / total)
                }
            }),
            ArrivalPattern::Bursts { burst, every } => Some(f64::from(burst) / every.as_seconds()),
            ArrivalPattern::Closed { .. } | ArrivalPattern::File { .. } => None,
        }
    }
}

/// Builds the error for a name that is not one of `all`.
fn unknown_name_error<'n>(
    field: &ConfigField<'_>,
    name: &str,
    what: &str,
    all: impl Iterator<Item = &'n str> + Clone,
) -> ConfigError {
    let names: Vec<_> = all.clone().collect();
    let hint = did_you_mean(find_most_similar_name(name, all));
    field.invalid_value_error(
        quote_and_truncate_for_message(name),
        format_args!("{what}, one of {}{hint}", names.join(", ")),
    )
}
