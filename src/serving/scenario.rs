//! Scenarios: which models are asked for, when, and in which order they are served.
//!
//! A scenario's file has
//!
//! - `name`, and optionally `seed` (1) and `processors` (1): how many of the platform there are;
//! - `[[model]]`, each with a `name`, one source of work (below) and optionally a `class`, a `weight` in the mix (1), a
//!   `priority` from 0, the most urgent (0), a `deadline` after arrival, and the `bytes` of a request;
//! - `[stream]`: `arrivals` is `poisson`, `periodic` (both with a `rate` in requests per second, or a `bandwidth`, of
//!   which each request takes its `bytes`), `bursts` (`burst` requests `every` so often), `closed` (`users` that each
//!   ask again after thinking for `think`, exponentially distributed if `think_exponential`) or `file` (a `file` of
//!   arrivals, `repeat` times one after another, at `speed` times its speed);
//! - `[stop]`: the number of `requests`, and optionally `first`, to stop once the first so many are complete, and a
//!   `duration` after which nothing arrives;
//! - `[measure]`, optionally: `warmup`, the number of requests at the beginning that are not counted (0);
//! - `[policy]`: `kind` is `round-robin`, `first-come`, `shortest-job-first`, `priority` (with `aging`),
//!   `earliest-deadline` or `batching` (with `batch`, the most requests, and `wait`, the longest one waits for others);
//!   `slots`, the requests that a processor serves at once (1; all with round-robin); `preemption`, the cost of putting
//!   a request back at a job border.
//!
//! Work of a model is one of
//!
//! - `preset`, a model's preset or file, with `tokens`, `convolution` (outputs or kernels), `attention` (layer or
//!   heads), `merge`, `tables` and `sparsity`;
//! - `jobs`, each with `tasks`, `length` and `after`, the numbers of earlier jobs (the one before);
//! - `latency`, constant or, with `distribution = "exponential"`, drawn;
//! - `latencies`, a table of measured latencies with a column `latency` and optionally one `batch`: by batch, or drawn;
//! - `steps`, a table of measured step times with columns `tokens`, `batch`, `prefill` and `step`, of requests whose
//!   tokens the file of arrivals states, or `prompt` and `output`;
//! - `measured = true`: what the platform's file has under the model's name;
//! - `trace`, a job as `chakram replay` takes it: a folder of traces, the prefix of files, or the job's file. A request is
//!   a launch of it on the platform's machine.

use super::error::ServeError;
use super::jobs::JobGraph;
use super::tables::LatencyCurve;
use super::trace_job::TraceJob;
use chakram_base::config::{
    ConfigDocument, ConfigError, ConfigField, ConfigTable, did_you_mean, nearest, quoted,
};
use chakram_base::units::{Bandwidth, Span};
use chakram_workloads::model::{ModelError, ModelSource};
use std::path::{Path, PathBuf};

mod build;
mod work;

/// Models, arrivals, the end of a run and the order of service.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Name in reports.
    pub name: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Number of processors.
    pub processors: u32,
    /// Models, at least one.
    pub models: Vec<ServedModel>,
    /// Arrivals.
    pub stream: ArrivalStream,
    /// End of the run.
    pub stop: StopRule,
    /// Number of requests at the beginning that are not counted.
    pub warmup: u64,
    /// Order of service.
    pub policy: PolicyChoice,
}

/// A model that requests ask for.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedModel {
    /// Name in reports, and in files of arrivals.
    pub name: String,
    /// Class in reports, if there are several.
    pub class: Option<String>,
    /// Share of requests, relative to other models.
    pub weight: f64,
    /// Urgency, from 0, the most urgent.
    pub level: u32,
    /// Time from arrival until which a request should be complete.
    pub deadline: Option<Span>,
    /// Bytes of a request.
    pub bytes: Option<u64>,
    /// Name under which platforms know its datapath latency and measurements.
    pub known_as: String,
    /// Share of the tasks that is skipped.
    pub sparsity: f64,
    /// Tokens of the prompt and of the answer where arrivals state none.
    pub tokens: Option<[u32; 2]>,
    /// Computation of a request.
    pub work: ModelWork,
    /// Place in its file.
    pub place: ModelPlace,
}

/// File, line and key of what a platform or policy may refuse of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelPlace {
    /// Of its source of work.
    pub work: String,
    /// Of its deadline, if it has one.
    pub deadline: Option<String>,
}

/// Computation of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelWork {
    /// Jobs of vector products.
    Vectors(JobGraph),
    /// A latency, or the mean of an exponential distribution.
    Latency {
        /// The latency or its mean.
        mean: Span,
        /// True if it is drawn.
        exponential: bool,
    },
    /// Measured latencies by batch.
    ByBatch(LatencyCurve),
    /// Measured latencies of single requests, of which each draws one.
    Drawn(Vec<Span>),
    /// Measured steps: the prompt by its tokens, each further token by the batch.
    Steps {
        /// Time of a prompt by its tokens.
        prefill: LatencyCurve,
        /// Time of a step by its requests.
        step: LatencyCurve,
    },
    /// Whatever the platform has measured.
    Platform,
    /// A job of traces, launched for each request.
    Trace(TraceJob),
}

/// Arrivals of requests.
#[derive(Clone, Debug, PartialEq)]
pub enum ArrivalStream {
    /// Independent of one another.
    Poisson(ArrivalRate),
    /// At equal intervals.
    Periodic(ArrivalRate),
    /// Several at once, at equal intervals.
    Bursts {
        /// Requests that arrive together.
        burst: u32,
        /// Time from one burst to the next.
        every: Span,
    },
    /// Users that ask again when they have an answer.
    Closed {
        /// Number of users.
        users: u32,
        /// Mean time from an answer to the next request.
        think: Span,
        /// True if that time is exponentially distributed.
        exponential: bool,
    },
    /// As a file says.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Number of times that it is played.
        repeat: u32,
        /// Factor by which it is played faster.
        speed: f64,
    },
}

/// Rate of arrivals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArrivalRate {
    /// Requests per second.
    Requests(f64),
    /// A bandwidth that requests fill with their bytes.
    Bytes(Bandwidth),
}

/// End of a run: after all requests, or earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopRule {
    /// Number of requests that arrive.
    pub requests: Option<u64>,
    /// Stops when the first so many requests are complete.
    pub first: Option<u64>,
    /// Instant from which on nothing arrives.
    pub duration: Option<Span>,
}

/// Order of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyChoice {
    /// The policy.
    pub kind: PolicyKind,
    /// Requests that a processor serves at once; `None` for all.
    pub slots: Option<u32>,
    /// Cost of putting a request back at a job border; `None` if that never happens.
    pub preemption: Option<Span>,
}

/// A policy with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Jobs are dealt to cores as soon as they are ready.
    RoundRobin,
    /// First come, first served.
    FirstCome,
    /// The request with the least work left.
    ShortestJob,
    /// The request of the most urgent model.
    Priority {
        /// Waiting for so long counts as one level; `None` for never.
        aging: Option<Span>,
    },
    /// The request whose deadline comes first.
    EarliestDeadline,
    /// Several requests of one model together.
    Batching {
        /// The most requests of a batch.
        batch: u32,
        /// The longest that a request waits for others.
        wait: Span,
    },
}

impl PolicyKind {
    /// Name in files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::FirstCome => "first-come",
            Self::ShortestJob => "shortest-job-first",
            Self::Priority { .. } => "priority",
            Self::EarliestDeadline => "earliest-deadline",
            Self::Batching { .. } => "batching",
        }
    }

    /// The most requests that are served together.
    pub fn most_together(self) -> u32 {
        match self {
            Self::Batching { batch, .. } => batch,
            _ => 1,
        }
    }
}

/// Returns the error about the name of a model, of a preset or on a hub, which no file has.
fn model_instead(name: &str) -> Option<ServeError> {
    if Path::new(name).exists() {
        return None;
    }
    let (closest, is_preset) = match ModelSource::find(name) {
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
    /// Reads and checks the scenario in the file at `path`.
    ///
    /// # Errors
    ///
    /// If it cannot be read, its text is refused, or a model or table that it names is.
    pub fn load(path: &Path) -> Result<Self, ServeError> {
        let file = path.display().to_string();
        let text = chakram_base::config::read(path).map_err(|source| {
            model_instead(&file).unwrap_or_else(|| ServeError::Read {
                file: file.clone(),
                source,
            })
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, &file, folder)
    }

    /// Parses a scenario called `file` in errors; the paths in it are relative to `folder`.
    ///
    /// # Errors
    ///
    /// If the text is refused, or a model or table that it names is.
    pub fn parse(text: &str, file: &str, folder: &Path) -> Result<Self, ServeError> {
        build::scenario(&ConfigDocument::parse(text, file)?, folder)
    }

    /// The same with arrivals at `rate` requests per second; `None` if its arrivals have no rate.
    pub fn at_rate(&self, rate: f64) -> Option<Self> {
        let rate = ArrivalRate::Requests(rate);
        let stream = match self.stream {
            ArrivalStream::Poisson(_) => ArrivalStream::Poisson(rate),
            ArrivalStream::Periodic(_) => ArrivalStream::Periodic(rate),
            _ => return None,
        };
        Some(Self {
            stream,
            ..self.clone()
        })
    }

    /// Arrivals per second in the long run; `None` where completions or a file set them.
    pub fn arrivals_per_second(&self) -> Option<f64> {
        let total: f64 = self.models.iter().map(|model| model.weight).sum();
        match self.stream {
            ArrivalStream::Poisson(rate) | ArrivalStream::Periodic(rate) => Some(match rate {
                ArrivalRate::Requests(rate) => rate,
                ArrivalRate::Bytes(bandwidth) => {
                    let models = self.models.iter();
                    let mean: f64 = models
                        .map(|model| model.weight * model.bytes.unwrap_or(0) as f64)
                        .sum();
                    bandwidth.bytes_per_second() / (mean / total)
                }
            }),
            ArrivalStream::Bursts { burst, every } => Some(f64::from(burst) / every.seconds()),
            ArrivalStream::Closed { .. } | ArrivalStream::File { .. } => None,
        }
    }
}

/// An error about a name that is none of `all`.
fn unknown<'n>(
    field: &ConfigField<'_>,
    name: &str,
    what: &str,
    all: impl Iterator<Item = &'n str> + Clone,
) -> ConfigError {
    let names: Vec<_> = all.clone().collect();
    let hint = did_you_mean(nearest(name, all));
    field.refuse(
        quoted(name),
        format_args!("{what}, one of {}{hint}", names.join(", ")),
    )
}
