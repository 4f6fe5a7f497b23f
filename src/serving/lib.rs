//! Inference serving: requests arrive over time, wait, and are served in an order that a policy chooses. Reports say
//! how long they take.
//!
//! In LIGHTSPEED's model (Williams, 2023), a request is a chain or graph of jobs, and each job is a set of vector
//! products. A processor has cores with a common clock, and a datapath latency. Models may also be tables of
//! measured latencies, or traces that are replayed.
//!
//! ```text
//! scenario.toml ─► Scenario ─┐                          ┌─► ServerBatchFeed ──launches──► the one loop (engine)
//! platform ──────► Platform ─┴─► ScenarioWithModelTimes ┤        │ ServeRunState: arrivals, policy, what is in flight
//!                                                       └─► ServerJobTimeProcessorModel ◄──jobs────┘        │
//!                                                           closed forms         ServeRunRecorder ─► ServeReport
//! ```

mod arrivals;
mod capacity;
mod cores;
mod error;
mod feed;
mod import;
mod jobs;
pub mod llm;
mod observe;
mod platform;
mod policy;
mod prepared;
mod presets;
mod program;
mod random;
mod recorder;
mod report;
mod request;
mod scenario;
mod server;
mod statistics;
mod tables;
mod timeline;
mod trace_job;
mod traced;
mod unloaded;

pub use capacity::{find_capacity, sweep_rates};
pub use error::ServeError;
pub use import::{
    MeasurementGroupMeanTimes, MeasurementImportDefaults, format_platform_file,
    read_measurement_group_means,
};
pub use jobs::{
    ConcurrentOperatorsRule, ConvolutionDivisionIntoVectorProducts, EqualVectorProductTasks,
    GraphOfVectorProductJobs, OperatorToJobLoweringRules,
};
pub use observe::{CompletedRequest, NoRequestObserver, RequestObserver, ServedJob};
pub use platform::{CoreCountAndClock, MeasuredModelMeanLatencies, Platform, read_platform_text};
pub use presets::{PRESETS, PlatformPreset};
pub use report::compare::{ArrivalRateResult, ArrivalRateSweepResults, ServeCapacity};
pub use report::{
    PlatformFacts, RequestGroupKind, RequestGroupResultsRow, ServeReport, SummedServeTimeParts,
    WideTimeSum, compare, html, rows, text,
};
pub use scenario::{
    ArrivalPattern, ArrivalRateInRequestsOrBytes, ModelWorkAndDeadlineLocations, RequestWork,
    RequestedModel, RunStopRule, Scenario, ServiceOrderAndSlots, ServicePolicyWithParameters,
};
pub use statistics::{CountOverTimeSummary, IntervalEstimate};
pub use tables::InterpolatedDurationCurve;
pub use timeline::RequestTimelineWriter;
pub use trace_job::RequestJobFromTraces;

use chakram_base::units::Span;
use prepared::ScenarioWithModelTimes;

/// Options of a run that are not part of a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestServeTimeLimitOption {
    /// Limit on each request's serve time (from arrival to completion), for goodput and capacity. It replaces the
    /// models' deadlines.
    pub slo: Option<Span>,
}

impl RequestServeTimeLimitOption {
    /// Creates options with a limit on serve times.
    pub fn from_serve_time_limit(slo: Option<Span>) -> Self {
        Self { slo }
    }
}

/// Serves the requests of `scenario` on `platform`. No platform is needed if all models have latencies.
///
/// # Errors
///
/// Fails if the platform lacks a value that a model needs, if an arrival file is invalid, or if `observer` fails.
pub fn serve_requests(
    scenario: &Scenario,
    platform: Option<&Platform>,
    options: RequestServeTimeLimitOption,
    observer: &mut dyn RequestObserver,
) -> Result<ServeReport, ServeError> {
    let mut prepared = ScenarioWithModelTimes::new(scenario, platform)?;
    prepared.slo = options.slo;
    let recorder = feed::serve_all_requests(&prepared, observer)?;
    Ok(ServeReport::build_report(recorder))
}
