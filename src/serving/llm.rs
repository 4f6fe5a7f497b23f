//! Serving of language models. In each step, an engine computes some of its running requests. Engines
//! store keys and values in blocks.
//!
//! ```text
//! scenario ─► LlmScenario ───────┬─► RequestSource ─► LlmRunState ──launches of steps──► the one loop (engine)
//! machine ─► IdenticalLlmEngines ┘                       │  StepScheduler, KvBlockPool: who takes part, by rules
//!            rules, blocks, prices of steps              └─► LlmRunRecorder ─► LlmReport
//! ```

mod attainment;
mod block_pool;
mod decode_run;
mod deployment;
mod feed;
mod incoming;
mod limits;
mod metrics;
mod model_sizes;
mod observe;
pub mod plan_report;
mod planner;
mod report;
mod request_file;
mod rules;
mod scenario;
mod scheduler;
pub mod score;
mod server;
mod source;
mod step_cost;
mod step_load;
mod step_price;
mod step_profile;
mod token_content;
mod token_work;
mod workload;

pub use attainment::LimitAttainmentVerdict;
pub use deployment::{
    EngineModelNpusAndMemory, IdenticalLlmEngines, NpuMemoryBreakdown, TensorDegreeCandidate,
};
pub use limits::LlmTimeLimits;
pub use observe::{BegunEngineStep, CompletedLlmRequest, LlmObserver, NoLlmObserver};
pub use planner::{
    LlmCapacityPlan, TriedEngineConfiguration, find_highest_scenario_rate,
    plan_fewest_engines_within_limits,
};
pub use report::{
    EngineRuleValue, EngineStepSummary, LlmClassResults, LlmReport, LlmRequestShownInDetail,
    LlmThroughput, PrefixCacheHitRateAndUse, RefusedRequestCounts, ReportedTimeLimits,
    RequestTimeMeanAndPercentiles, StepTimePartShare, TokenCountsByInterval, TokenGapSummary, html,
    rows, text,
};
pub use rules::{
    BatchJoinRule, DEFAULT_RULES, EngineRules, KvBlockAllocationTimeRule, RULE_SETS,
    WaitingRequestOrder,
};
pub use scenario::{
    ClientDelays, EngineRoutingRule, FORMATS, LlmModelAndServingOptions, LlmScenario,
    ScenarioRuleTextForReparsing, is_llm_scenario,
};
pub use scheduler::{ComposedEngineStep, PreemptedRequestLoss, RequestTokensInStep};
pub use step_cost::{StepTimeCalculator, StepTimePart};
pub use step_load::{LinearStepTimeCoefficients, StepTimeInputs};
pub use step_price::StepTimeSource;
pub use step_profile::{ProfiledStepTimeModel, StepProfileReadOptions};
pub use token_work::WeightBytesAndActiveWeights;
pub use workload::{LengthDistribution, LlmArrivals, LlmWorkload, RequestClass};

use super::error::ServeError;
use attainment::MetCountsByArrival;
use chakram_hardware::machine::Machine;

/// An engine's saturated request rate is not measured on runs with more requests than this. The measurement repeats the
/// run with all requests arriving at once.
const MOST_REPEATED: u64 = 20_000;
/// Maximum number of requests when the saturated rate is measured.
const MOST_AT_ONCE: u64 = 8192;

/// Checks that the model `name` can be served token by token.
///
/// # Errors
///
/// Fails if no model has this name, or if the model is not a decoder of identical blocks.
pub fn check_llm_model_name_servable(name: &str) -> Result<(), ServeError> {
    model_sizes::LlmModelSizes::load_by_name(name).map(drop)
}

/// Serves the requests of `scenario` on `machine`. No machine is needed if the scenario states step
/// times.
///
/// # Errors
///
/// Fails if the machine is missing or too small for the model, if a file of requests is invalid, or if `observer`
/// fails.
pub fn serve_llm(
    scenario: &LlmScenario,
    machine: Option<&Machine>,
    observer: &mut dyn LlmObserver,
) -> Result<LlmReport, ServeError> {
    let deployment = IdenticalLlmEngines::new(scenario, machine)?;
    let recorder = feed::serve_all_requests(scenario, &deployment, observer)?;
    let few = (1..=MOST_REPEATED).contains(&recorder.completed_in_all);
    let saturated = match few && scenario.workload.mean_rate().is_some() {
        true => saturated_request_rate(scenario, &deployment)?,
        false => None,
    };
    let mut report = LlmReport::build_report(scenario, &deployment, recorder, saturated);
    let ineffective = deployment.list_keys_without_effect(scenario)?;
    report.warnings.extend(ineffective);
    Ok(report)
}

/// Serves the requests of `scenario`, and counts those that meet their limits. `saturated` is the saturated request
/// rate of all engines together, in requests per second. The report divides the arrival rate by it.
fn serve_llm_on_engines(
    scenario: &LlmScenario,
    deployment: &IdenticalLlmEngines,
    saturated: Option<f64>,
) -> Result<(LlmReport, MetCountsByArrival), ServeError> {
    let recorder = feed::serve_all_requests(scenario, deployment, &mut NoLlmObserver)?;
    let met = recorder.met_by_arrival.clone();
    let report = LlmReport::build_report(scenario, deployment, recorder, saturated);
    Ok((report, met))
}

/// Returns the saturated request rate of all engines together, in requests per second. To measure it, an engine is sent
/// about four times as many requests as it can run, all at once. The rate counts completions from when a quarter of the
/// requests are complete until three quarters are. Returns `None` for conversations.
fn saturated_request_rate(
    scenario: &LlmScenario,
    deployment: &IdenticalLlmEngines,
) -> Result<Option<f64>, ServeError> {
    // Later turns arrive only after answers to earlier turns, so they cannot arrive at once.
    if scenario
        .workload
        .classes
        .iter()
        .any(|class| class.turns > 1)
    {
        return Ok(None);
    }
    let mut scenario = scenario.clone();
    let classes = scenario.workload.classes.iter();
    let weights: f64 = classes.clone().map(|class| class.weight).sum();
    let tokens: f64 = classes
        .map(|class| {
            class.weight
                * (f64::from(class.shared_prefix)
                    + class.input.mean_length()
                    + class.output.mean_length() / 2.0)
        })
        .sum();
    let held = f64::from(deployment.blocks) * f64::from(deployment.rules.block_size);
    let together =
        (held / (tokens / weights).max(1.0)).min(f64::from(deployment.rules.max_num_seqs));
    let together = together * f64::from(deployment.ranks);
    let count = (4.0 * together) as u64;
    scenario.workload.arrivals = LlmArrivals::AtOnce;
    scenario.workload.duration = None;
    scenario.workload.count = Some(count.clamp(64, MOST_AT_ONCE));
    scenario.warmup = 0;
    let mut one = deployment.clone();
    one.replicas = 1;
    let recorder = feed::serve_all_requests(&scenario, &one, &mut NoLlmObserver)?;
    let rate = recorder.middle_half_completion_rate();
    Ok(rate.map(|rate| rate * f64::from(deployment.replicas)))
}
