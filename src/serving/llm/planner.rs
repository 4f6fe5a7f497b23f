//! Finds how many NPUs serve a request rate within time limits, and the highest rate that engines serve within them.

use super::super::error::ServeError;
use super::attainment::{LimitAttainmentVerdict, MetCountsByArrival};
use super::deployment::IdenticalLlmEngines;
use super::limits::LlmTimeLimits;
use super::report::LlmReport;
use super::scenario::{LlmScenario, MOST_REPLICAS};
use super::workload::LlmWorkload;
use super::{saturated_request_rate, serve_llm_on_engines};
use chakram_base::units::Span;
use chakram_hardware::machine::{Machine, scale_machine_name_to_ranks};
use serde::{Deserialize, Serialize};

/// Result of one engine configuration that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TriedEngineConfiguration {
    /// Number of NPUs per rank of an engine.
    pub tensor: u32,
    /// Number of engines.
    pub replicas: u32,
    /// Total number of NPUs in all engines.
    pub npus: u32,
    /// Number of NPUs in the machine; `None` without a machine.
    pub machine_npus: Option<u32>,
    /// Name of a machine with enough NPUs, if the machine has fewer than `npus` and is available in other sizes.
    pub larger_machine: Option<String>,
    /// Arrival rate, in requests per second.
    pub rate_per_s: f64,
    /// Number of requests that were completed or rejected.
    pub requests: u64,
    /// Fraction of the requests that met all limits.
    pub attained: f64,
    /// Verdict on whether `attained` is sufficient.
    pub verdict: LimitAttainmentVerdict,
    /// Arrival rate divided by the rate at saturation, or `None` if unknown.
    pub rho: Option<f64>,
    /// 99th percentile of the time to first token.
    #[serde(rename = "ttft_p99_ps")]
    pub ttft_p99: Option<Span>,
    /// 99th percentile of the time per token after the first.
    #[serde(rename = "tpot_p99_ps")]
    pub tpot_p99: Option<Span>,
    /// Answer tokens per second, per NPU.
    pub output_tokens_per_s_per_npu: Option<f64>,
    /// Dollars per million answer tokens.
    pub dollars_per_million_output_tokens: Option<f64>,
}

impl TriedEngineConfiguration {
    /// Returns true if the engines have more NPUs than the machine.
    pub fn exceeds_machine(&self) -> bool {
        self.machine_npus.is_some_and(|npus| self.npus > npus)
    }
}

/// All configurations that were tried, and the one that meets the limits with the fewest NPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LlmCapacityPlan {
    /// Name of the model.
    pub model: String,
    /// Name of the machine.
    pub machine: String,
    /// Description of the requests.
    pub requests: Vec<String>,
    /// Description of the limits.
    pub limits: String,
    /// Fraction of the requests that must meet the limits.
    pub attain: f64,
    /// For each number of NPUs per engine, the row that meets the limits with the fewest engines. If no row meets them,
    /// the row with the most engines.
    pub rows: Vec<TriedEngineConfiguration>,
    /// Index of the row with the fewest NPUs among those that meet the limits. In a tie, the index of the one with the
    /// highest fraction.
    pub chosen: Option<usize>,
    /// The chosen configuration at the highest rate that meets the limits, if any rate does.
    pub highest_rate: Option<TriedEngineConfiguration>,
}

/// Maximum number of NPUs that a plan may use.
const MOST_NPUS: u32 = 4096;
/// Maximum number of times that an undecided run is repeated with twice as many requests.
const LONGER: u32 = 3;

/// Arrivals must continue for at least this many times the time that the queue needs to reach its usual length.
const LEAST_RUN: f64 = 30.0;
/// Maximum number of requests that [`LEAST_RUN`] demands.
const MOST_DEMANDED: u64 = 100_000;

/// Plans the engines for a scenario with limits.
struct CapacityPlanner<'a> {
    scenario: &'a LlmScenario,
    attain: f64,
}

impl CapacityPlanner<'_> {
    /// Returns the saturated request rate of one engine, in requests per second; `None` if requests
    /// belong to conversations.
    fn saturated_rate_per_engine(
        &self,
        of: &IdenticalLlmEngines,
    ) -> Result<Option<f64>, ServeError> {
        let rate = saturated_request_rate(self.scenario, of)?;
        Ok(rate.map(|rate| rate / f64::from(of.replicas)))
    }

    /// Serves `scenario` on the engines of `deployment`, and doubles the number of requests until the verdict is clear.
    /// `each` is the saturated request rate of one engine, in requests per second.
    fn serve_until_verdict(
        &self,
        scenario: &LlmScenario,
        deployment: &IdenticalLlmEngines,
        each: Option<f64>,
    ) -> Result<TriedEngineConfiguration, ServeError> {
        let mut scenario = scenario.clone();
        let mut doubled = 0;
        loop {
            let saturated = each.map(|each| each * f64::from(deployment.replicas));
            let (report, met) = serve_llm_on_engines(&scenario, deployment, saturated)?;
            let row = self.row_of(&scenario, deployment, &report, &met);
            let count = scenario.workload.count;
            let least = least_request_count_for_queue_to_settle(&scenario, &report);
            match (row.verdict, count) {
                // In a run that is too short, waiting times have not yet reached their full length.
                (LimitAttainmentVerdict::Met | LimitAttainmentVerdict::Open, Some(count))
                    if count < least =>
                {
                    scenario.workload.count = Some(least);
                }
                (LimitAttainmentVerdict::Open, Some(count)) if doubled < LONGER => {
                    doubled += 1;
                    scenario.workload.count = Some(count * 2);
                }
                _ => return Ok(row),
            }
        }
    }

    fn row_of(
        &self,
        scenario: &LlmScenario,
        deployment: &IdenticalLlmEngines,
        report: &LlmReport,
        met: &MetCountsByArrival,
    ) -> TriedEngineConfiguration {
        let all = report.row_of_all_classes();
        let requests = all.map_or(0, |all| all.completed + all.refused);
        let attained = all.and_then(|all| all.attained).unwrap_or(0.0);
        let p99 = |times: &super::report::RequestTimeMeanAndPercentiles| {
            times.percentiles.last().map(|one| one.value)
        };
        let tensor = deployment.place.as_ref().map_or(1, |place| place.tensor);
        let mut verdict = LimitAttainmentVerdict::judge_met_fraction(met, self.attain);
        // An overloaded run misses its limits if it lasts long enough.
        if report.rho.is_some_and(|rho| rho >= 1.0) {
            verdict = LimitAttainmentVerdict::Missed;
        }
        let npus = tensor * deployment.ranks * deployment.replicas;
        let place = deployment.place.as_ref();
        TriedEngineConfiguration {
            tensor,
            replicas: deployment.replicas,
            npus,
            machine_npus: place.map(|place| place.npus),
            larger_machine: place
                .filter(|place| place.npus < npus)
                .and_then(|place| scale_machine_name_to_ranks(&place.machine, npus)),
            rate_per_s: scenario.workload.mean_rate().unwrap_or(0.0),
            requests,
            attained,
            verdict,
            rho: report.rho,
            ttft_p99: all.and_then(|all| p99(&all.ttft)),
            tpot_p99: all.and_then(|all| p99(&all.tpot)),
            output_tokens_per_s_per_npu: report.throughput.output_tokens_per_s_per_npu,
            dollars_per_million_output_tokens: report.throughput.dollars_per_million_output_tokens,
        }
    }

    /// Returns the row that meets the limits with the fewest engines of `tensor` NPUs each. If there is none, returns
    /// the row with the most engines that were tried.
    fn find_fewest_engines(
        &self,
        of: &IdenticalLlmEngines,
        each: Option<f64>,
    ) -> Result<TriedEngineConfiguration, ServeError> {
        let tensor = of.place.as_ref().map_or(1, |place| place.tensor);
        let most = (MOST_NPUS / tensor).clamp(1, MOST_REPLICAS);
        let at = |replicas: u32| {
            let mut deployment = of.clone();
            deployment.replicas = replicas;
            self.serve_until_verdict(self.scenario, &deployment, each)
        };
        let (mut low, mut high) = (0, 1);
        let mut best = at(high)?;
        let mut before: Option<f64> = None;
        while best.verdict != LimitAttainmentVerdict::Met {
            // If requests rarely wait for others but are still too slow, more engines do not help.
            let is_alone = best.rho.is_some_and(|rho| rho < 0.3)
                && before.is_some_and(|before| best.attained <= before + 0.001);
            if high >= most || is_alone {
                return Ok(best);
            }
            before = Some(best.attained);
            low = high;
            high = (high * 2).min(most);
            best = at(high)?;
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let row = at(middle)?;
            match row.verdict {
                LimitAttainmentVerdict::Met => (high, best) = (middle, row),
                _ => low = middle,
            }
        }
        Ok(best)
    }

    /// Returns the highest rate at which engines meet the limits, to within 2 %. Returns `None` if no rate does.
    fn find_highest_rate(
        &self,
        of: &IdenticalLlmEngines,
        each: Option<f64>,
        from: f64,
    ) -> Result<Option<TriedEngineConfiguration>, ServeError> {
        let at = |rate: f64| -> Result<TriedEngineConfiguration, ServeError> {
            let mut scenario = self.scenario.clone();
            let changed = scenario.workload.with_rate(rate);
            scenario.workload = changed.ok_or_else(|| no_rate_error(&self.scenario.workload))?;
            self.serve_until_verdict(&scenario, of, each)
        };
        let (mut low, mut high): (Option<TriedEngineConfiguration>, Option<f64>) = (None, None);
        let mut rate = from;
        for _ in 0..40 {
            let row = at(rate)?;
            match row.verdict {
                LimitAttainmentVerdict::Met => low = Some(row),
                _ => high = Some(rate),
            }
            rate = match (&low, high) {
                (Some(low), Some(high)) if high / low.rate_per_s < 1.02 => break,
                (Some(low), Some(high)) => (low.rate_per_s * high).sqrt(),
                (Some(low), None) => low.rate_per_s * 2.0,
                (None, Some(high)) => high / 2.0,
                (None, None) => break,
            };
            if rate < from * 1e-4 {
                break;
            }
        }
        Ok(low)
    }
}

/// Returns the number of requests that arrive within [`LEAST_RUN`] times the time that the queue needs to reach its
/// usual length. This time is the mean time of a request from arrival to last token, plus the relaxation time of a
/// queue, `1 / (mu (1 - sqrt(rho))^2)`, at the saturated rate `mu` and the load `rho` (M/M/1; Cohen, "The Single Server
/// Queue", section II.2.1). The closer the load is to 1, the longer the queue grows before it is at its usual length.
fn least_request_count_for_queue_to_settle(scenario: &LlmScenario, report: &LlmReport) -> u64 {
    let all = report.row_of_all_classes();
    let mean = all.and_then(|all| all.e2e.mean.as_ref());
    let in_system = mean.map_or(0.0, |mean| mean.value.as_seconds());
    let rate = scenario.workload.mean_rate().unwrap_or(0.0);
    let rho = report.rho.filter(|rho| *rho > 0.0 && *rho < 1.0);
    let relaxation = rho.map_or(0.0, |rho| rho / rate / (1.0 - rho.sqrt()).powi(2));
    ((LEAST_RUN * (in_system + relaxation) * rate) as u64).min(MOST_DEMANDED)
}

fn no_rate_error(workload: &LlmWorkload) -> ServeError {
    let arrivals = LlmWorkload {
        count: None,
        duration: None,
        ..workload.clone()
    };
    ServeError::Unfit(format!(
        "the arrivals have no rate to change; found {}, expected poisson or constant arrivals\n  try: arrivals = \"poisson\" \
         with a `rate`",
        arrivals.describe_arrivals()
    ))
}

/// Plans engines that serve `scenario` within its limits. For each possible number of NPUs per engine, finds the
/// smallest number of engines. All of them have NPUs of the class that `machine` has. At least the fraction `attain` of
/// the requests must meet the limits.
///
/// # Errors
///
/// Fails if the scenario has no model, no rate or no limits, or if the model does not fit.
pub fn plan_fewest_engines_within_limits(
    scenario: &LlmScenario,
    machine: &Machine,
    attain: f64,
) -> Result<LlmCapacityPlan, ServeError> {
    check_scenario_has_limits_and_rate(scenario)?;
    let planner = CapacityPlanner { scenario, attain };
    let first =
        IdenticalLlmEngines::new(&scenario_with_one_engine(scenario, None), machine.into())?;
    let Some(place) = &first.place else {
        return Err(ServeError::Unfit(
            "a plan needs a model and a machine".to_owned(),
        ));
    };
    let stated = scenario.model.as_ref().and_then(|model| model.tensor);
    let choices = place.choices.iter().filter(|choice| choice.fits);
    let choices = choices.filter(|choice| stated.is_none_or(|stated| stated == choice.npus));
    let (mut rows, mut engines) = (Vec::new(), Vec::new());
    for choice in choices {
        let deployment = IdenticalLlmEngines::new(
            &scenario_with_one_engine(scenario, Some(choice.npus)),
            Some(machine),
        )?;
        let each = planner.saturated_rate_per_engine(&deployment)?;
        rows.push(planner.find_fewest_engines(&deployment, each)?);
        engines.push((deployment, each));
    }
    let met = rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.verdict == LimitAttainmentVerdict::Met);
    let chosen =
        met.min_by(|(_, a), (_, b)| a.npus.cmp(&b.npus).then(b.attained.total_cmp(&a.attained)));
    let chosen = chosen.map(|(at, _)| at);
    let highest_rate = match chosen {
        None => None,
        Some(at) => {
            let (mut deployment, each) = engines.swap_remove(at);
            deployment.replicas = rows[at].replicas;
            planner.find_highest_rate(&deployment, each, rows[at].rate_per_s)?
        }
    };
    Ok(LlmCapacityPlan {
        model: place.model.clone(),
        machine: place.machine.clone(),
        requests: super::report::describe_request_classes(&scenario.workload),
        limits: scenario.describe_limits_on_all_requests(),
        attain,
        rows,
        chosen,
        highest_rate,
    })
}

/// Finds the highest rate at which at least the fraction `attain` of the scenario's requests meets the limits. Returns
/// `None` if there is no such rate.
///
/// # Errors
///
/// Returns the errors of [`plan_fewest_engines_within_limits`].
pub fn find_highest_scenario_rate(
    scenario: &LlmScenario,
    machine: Option<&Machine>,
    attain: f64,
) -> Result<Option<TriedEngineConfiguration>, ServeError> {
    check_scenario_has_limits_and_rate(scenario)?;
    let deployment = IdenticalLlmEngines::new(scenario, machine)?;
    let planner = CapacityPlanner { scenario, attain };
    let each = planner.saturated_rate_per_engine(&deployment)?;
    let from = scenario.workload.mean_rate().unwrap_or(1.0);
    planner.find_highest_rate(&deployment, each, from)
}

fn check_scenario_has_limits_and_rate(scenario: &LlmScenario) -> Result<(), ServeError> {
    if scenario.limits_of_all_classes_together() == LlmTimeLimits::default() {
        return Err(ServeError::Unfit(
            "the requests have no limits, so every rate keeps them\n  try: limits such as ttft=500ms,tpot=30ms".to_owned(),
        ));
    }
    match scenario.workload.mean_rate() {
        Some(_) => Ok(()),
        None => Err(no_rate_error(&scenario.workload)),
    }
}

/// Returns the scenario, changed to one engine with `tensor` NPUs.
fn scenario_with_one_engine(scenario: &LlmScenario, tensor: Option<u32>) -> LlmScenario {
    let mut one = scenario.clone();
    one.replicas = 1;
    if let (Some(model), Some(tensor)) = (&mut one.model, tensor) {
        model.tensor = Some(tensor);
    }
    one
}
