//! The report of a serving run, which is rendered as text, JSON, CSV and HTML.

use super::super::statistics::{CountOverTimeSummary, DurationSamples, IntervalEstimate};
use super::deployment::{EngineModelNpusAndMemory, IdenticalLlmEngines};
use super::limits::{LIMITS_OF_CLASSES, LlmTimeLimits};
use super::metrics::{LlmRunRecorder, RequestClassRecorder};
use super::observe::CompletedLlmRequest;
use super::rules::{EngineRules, WaitingRequestOrder};
use super::scenario::LlmScenario;
use super::step_cost::StepTimePart;
use super::step_price::StepTimeSource;
use super::workload::{LlmArrivals, LlmWorkload};
use chakram_base::units::{Span, format_count_with_noun, format_percent, format_thousands};
use serde::{Deserialize, Serialize};

pub mod html;
pub mod rows;
pub mod text;

/// Percentiles that reports contain, in percent.
pub const PERCENTS: [f64; 4] = [50.0, 90.0, 95.0, 99.0];

/// All results of a run of LLM serving.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LlmReport {
    /// Name of the scenario.
    pub scenario: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Description of the arrivals.
    pub arrivals: String,
    /// Descriptions of the request classes.
    pub classes: Vec<String>,
    /// Name of the scheduling rules.
    pub rules: String,
    /// The program, with its version, whose rules these are.
    pub follows: String,
    /// Scheduling rules of the engines, each with its value.
    pub rule_values: Vec<EngineRuleValue>,
    /// Number of engines.
    pub replicas: u32,
    /// Rule by which requests are assigned to engines.
    pub router: String,
    /// NPUs and memory of the engines, if they run on a machine.
    pub place: Option<EngineModelNpusAndMemory>,
    /// Number of KV blocks per engine.
    pub blocks: u32,
    /// Where step times come from.
    pub basis: Vec<String>,
    /// Number of requests at the beginning that are not counted.
    pub warmup: u64,
    /// Limits on the times of requests.
    pub limits: ReportedTimeLimits,
    /// Time from 0 until the last token of the run.
    #[serde(rename = "window_ps")]
    pub window: Span,
    /// Number of requests that were sent, including the warm-up.
    pub arrived: u64,
    /// Number of requests that are complete, including the warm-up.
    pub completed: u64,
    /// Number of requests that no engine can serve, by reason.
    pub refused: RefusedRequestCounts,
    /// One row per class, if there are several classes, then a row for all requests.
    pub rows: Vec<LlmClassResults>,
    /// Gaps between tokens, pooled over requests.
    pub itl: TokenGapSummary,
    /// Tokens and requests per second.
    pub throughput: LlmThroughput,
    /// Statistics of steps.
    pub steps: EngineStepSummary,
    /// Statistics of the cache of prompt prefixes.
    pub cache: PrefixCacheHitRateAndUse,
    /// Number of preemptions of requests.
    pub preemptions: u64,
    /// For each engine, the fraction of the window in which it runs a step.
    pub utilisation: Vec<f64>,
    /// Arrival rate divided by the saturated request rate of all engines; `None` if answers
    /// determine the arrivals.
    pub rho: Option<f64>,
    /// Number of waiting requests over time.
    pub waiting: CountOverTimeSummary,
    /// Number of running requests over time.
    pub running: CountOverTimeSummary,
    /// Number of blocks that requests occupy over time.
    pub held_blocks: CountOverTimeSummary,
    /// Number of tokens that steps compute over time.
    pub tokens_over_time: TokenCountsByInterval,
    /// The request with the longest time to first token, and the request with the longest time to
    /// the last token.
    #[serde(default)]
    pub lives: Vec<LlmRequestShownInDetail>,
    /// Caveats about the results.
    pub warnings: Vec<String>,
}

/// Times of one request that the report shows in detail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LlmRequestShownInDetail {
    /// Why the report shows the request.
    pub why: String,
    /// Index of the request, in order of arrival.
    pub number: u64,
    /// Index of the engine that served the request.
    pub engine: u32,
    /// Number of prompt tokens.
    pub prompt: u32,
    /// Number of answer tokens.
    pub output: u32,
    /// Number of prompt tokens that were cached.
    pub hit: u32,
    /// Number of preemptions of the request.
    pub preemptions: u32,
    /// Times from when the client sends the request until it arrives at its engine, its first step begins, and its
    /// first and last tokens are produced.
    #[serde(rename = "until_ps")]
    pub until: [Span; 4],
    /// Time that a token takes from the engine to the client.
    #[serde(rename = "after_ps")]
    pub after: Span,
}

impl LlmRequestShownInDetail {
    fn from_request(request: &CompletedLlmRequest, why: &str) -> Self {
        let instants = [
            request.queued,
            request.scheduled,
            request.first,
            request.last,
        ];
        Self {
            why: why.to_owned(),
            number: request.number,
            engine: request.engine,
            prompt: request.prompt,
            output: request.output,
            hit: request.hit,
            preemptions: request.put_back,
            until: instants.map(|instant| instant.since(request.arrival)),
            after: request.after,
        }
    }
}

/// A scheduling rule with its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineRuleValue {
    /// Key of the rule in a scenario.
    pub key: String,
    /// Value of the rule, as text.
    pub value: String,
}

/// Limits on times; `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedTimeLimits {
    /// Limit on the time to the first token.
    #[serde(rename = "ttft_ps")]
    pub ttft: Option<Span>,
    /// Limit on the time per token after the first.
    #[serde(rename = "tpot_ps")]
    pub tpot: Option<Span>,
    /// Limit on the time to the last token.
    #[serde(rename = "e2e_ps")]
    pub e2e: Option<Span>,
}

impl From<LlmTimeLimits> for ReportedTimeLimits {
    fn from(limits: LlmTimeLimits) -> Self {
        Self {
            ttft: limits.ttft,
            tpot: limits.tpot,
            e2e: limits.e2e,
        }
    }
}

impl ReportedTimeLimits {
    /// Converts the limits to the type that scenarios use.
    pub fn to_scenario_limits(&self) -> LlmTimeLimits {
        LlmTimeLimits {
            ttft: self.ttft,
            tpot: self.tpot,
            e2e: self.e2e,
        }
    }
}

/// Number of requests that no engine can serve, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRequestCounts {
    /// Number of requests whose prompt leaves no room for an answer within the maximum request
    /// length.
    pub too_long: u64,
    /// Number of requests whose prompt exceeds the maximum size of a step and may not be split.
    pub beyond_budget: u64,
    /// Number of requests that need more blocks of keys and values than an engine has.
    pub beyond_blocks: u64,
}

/// Mean and percentiles of one kind of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestTimeMeanAndPercentiles {
    /// Mean with its confidence interval.
    pub mean: Option<IntervalEstimate>,
    /// 50th, 90th, 95th and 99th percentile.
    pub percentiles: Vec<IntervalEstimate>,
}

impl RequestTimeMeanAndPercentiles {
    fn from_samples(samples: &DurationSamples) -> Self {
        Self {
            mean: samples.mean_estimate(),
            percentiles: PERCENTS
                .iter()
                .filter_map(|percent| samples.percentile_estimate(*percent))
                .collect(),
        }
    }
}

/// Results for the requests of a class, or for all requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LlmClassResults {
    /// Name of the class, or `all`.
    pub name: String,
    /// Number of counted requests that were sent.
    pub arrived: u64,
    /// Number of counted requests that no engine can serve.
    pub refused: u64,
    /// Number of counted requests that are complete. All other fields of the row describe them.
    pub completed: u64,
    /// Number of prompt tokens.
    pub prompt_tokens: u64,
    /// Number of answer tokens.
    pub output_tokens: u64,
    /// Number of prompt tokens that were in the prefix cache.
    pub hit_tokens: u64,
    /// Time to first token.
    pub ttft: RequestTimeMeanAndPercentiles,
    /// Time per token after the first token; one value per request.
    pub tpot: RequestTimeMeanAndPercentiles,
    /// Time from when the client sends the request until the last token.
    pub e2e: RequestTimeMeanAndPercentiles,
    /// Time from when a request enters the queue until its first step.
    pub queue: RequestTimeMeanAndPercentiles,
    /// Number of times that completed requests were preempted.
    pub preemptions: u64,
    /// Limits on the times of the requests.
    #[serde(default)]
    pub limits: ReportedTimeLimits,
    /// Fraction of requests that met all limits, if there are limits. Requests that no engine can
    /// serve count as missing their limits.
    pub attained: Option<f64>,
    /// Fraction of requests that met each limit: time to first token, time per token, and time to the last token.
    pub attained_each: [Option<f64>; 3],
    /// Number of requests per second that met all limits.
    pub goodput_per_s: Option<f64>,
}

/// Statistics of the gaps between tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenGapSummary {
    /// Number of gaps.
    pub count: u64,
    /// Mean gap.
    #[serde(rename = "mean_ps")]
    pub mean: Option<Span>,
    /// 50th, 90th, 95th and 99th percentile.
    #[serde(rename = "percentiles_ps")]
    pub percentiles: Vec<Span>,
    /// The longest gap.
    #[serde(rename = "most_ps")]
    pub most: Span,
    /// True if percentiles are exact; otherwise they are accurate to one part in 256.
    pub is_exact: bool,
}

/// Rates of tokens and requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LlmThroughput {
    /// Prompt tokens per second, from the first arrival to the last token.
    pub prompt_tokens_per_s: f64,
    /// Answer tokens per second, from the first arrival to the last token.
    pub output_tokens_per_s: f64,
    /// Answer tokens per second in the middle of the run: after the first tenth of the arrivals' period, until the last
    /// arrival. `None` if this part is too short.
    pub steady_output_tokens_per_s: Option<f64>,
    /// Requests per second, from the first arrival to the last token.
    pub requests_per_s: f64,
    /// Answer tokens per second, per NPU.
    pub output_tokens_per_s_per_npu: Option<f64>,
    /// Dollars per million answer tokens.
    pub dollars_per_million_output_tokens: Option<f64>,
}

/// Statistics of the steps of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineStepSummary {
    /// Number of steps.
    pub count: u64,
    /// Mean step time.
    #[serde(rename = "mean_ps")]
    pub mean: Span,
    /// Time of the longest step.
    #[serde(rename = "most_ps")]
    pub most: Span,
    /// Mean number of tokens per step.
    pub mean_tokens: f64,
    /// Mean number of requests per step.
    pub mean_requests: f64,
    /// For each part of a step, its fraction of the total step time; empty if steps have no parts.
    pub parts: Vec<StepTimePartShare>,
}

/// One part of the step time, summed over all steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepTimePartShare {
    /// Name of the part.
    pub part: String,
    /// Fraction of the total step time that this part takes.
    pub share: f64,
}

/// Statistics of the prefix cache and of its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PrefixCacheHitRateAndUse {
    /// Cached prompt tokens divided by all prompt tokens; `None` if there is no cache.
    pub hit_rate: Option<f64>,
    /// Number of tokens that were computed again after preemptions.
    pub recomputed_tokens: u64,
    /// Largest fraction of blocks that requests occupy at any time.
    pub peak_use: f64,
    /// Fraction of blocks that requests occupy, averaged over time.
    pub mean_use: f64,
}

/// Counts in intervals of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenCountsByInterval {
    /// Length of each interval.
    pub interval_ps: Span,
    /// Count for each interval.
    pub counts: Vec<u64>,
}

impl LlmReport {
    /// Creates the report of a run. `saturated` is the saturated request rate of all engines, in
    /// requests per second, if known.
    pub(super) fn build_report(
        scenario: &LlmScenario,
        deployment: &IdenticalLlmEngines,
        recorder: LlmRunRecorder,
        saturated: Option<f64>,
    ) -> Self {
        let window = Span(recorder.end.0);
        let first = recorder.first_arrival.unwrap_or_default();
        let busy = recorder.end.0.saturating_sub(first.0);
        let per_second = |count: u64| match busy {
            0 => 0.0,
            ps => count as f64 / Span(ps).as_seconds(),
        };
        let limits = scenario.limits_of_all_classes_together();
        let names = scenario
            .workload
            .classes
            .iter()
            .map(|class| class.name.as_str());
        let names: Vec<&str> = names.chain(["all"]).collect();
        let several = names.len() > 2;
        let each = scenario.workload.classes.iter();
        let each = each
            .map(|class| scenario.limits_of_class(class))
            .chain([limits]);
        let recorded = recorder.rows.iter().zip(&names).zip(each);
        let mut rows: Vec<LlmClassResults> = recorded
            .map(|((of, name), limits)| summarize_request_class(of, name, limits, busy))
            .collect();
        if !several {
            rows.drain(..rows.len() - 1);
        }
        let all = &recorder.rows[recorder.rows.len() - 1];
        let offered = scenario.workload.mean_rate().or_else(|| {
            // A request file states no rate, so use the run's actual arrival rate.
            let open = matches!(scenario.workload.arrivals, LlmArrivals::File { .. });
            let span = Span(recorder.last_arrival.0.saturating_sub(first.0)).as_seconds();
            let gaps = recorder.arrived_in_all.saturating_sub(1);
            (open && span > 0.0).then(|| gaps as f64 / span)
        });
        let npus = deployment.total_npus();
        let output_rate = per_second(recorder.output_in_all);
        let price = deployment
            .place
            .as_ref()
            .and_then(|place| place.price_per_npu_hour);
        let prompt_tokens = all.prompt_tokens;
        let steady_from = Span(recorder.last_arrival.0.saturating_sub(first.0)).scale_by(0.1);
        let pools = u64::from(deployment.replicas) * u64::from(deployment.ranks);
        let blocks = u64::from(deployment.blocks) * pools;
        let held = recorder.blocks.clone().summarize_level_until(recorder.end);
        let steps = recorder.steps;
        let mut report = Self {
            scenario: scenario.name.clone(),
            seed: scenario.seed,
            arrivals: scenario.workload.describe_arrivals(),
            classes: describe_request_classes(&scenario.workload),
            rules: deployment.rules.name.clone(),
            follows: deployment.rules.follows.clone(),
            rule_values: list_engine_rule_values(&deployment.rules),
            replicas: deployment.replicas,
            router: scenario.router.stable_name().to_owned(),
            place: deployment.place.clone(),
            blocks: deployment.blocks,
            basis: deployment.price.describe_basis(),
            warmup: scenario.warmup,
            limits: limits.into(),
            window,
            arrived: recorder.arrived_in_all,
            completed: recorder.completed_in_all,
            refused: RefusedRequestCounts {
                too_long: recorder.refused[0],
                beyond_budget: recorder.refused[1],
                beyond_blocks: recorder.refused[2],
            },
            itl: TokenGapSummary {
                count: recorder.gaps.count,
                mean: recorder.gaps.mean_token_gap(),
                percentiles: recorder.gaps.percentiles(&PERCENTS),
                most: recorder.gaps.most,
                is_exact: recorder.gaps.is_exact(),
            },
            throughput: LlmThroughput {
                prompt_tokens_per_s: per_second(prompt_tokens),
                output_tokens_per_s: output_rate,
                steady_output_tokens_per_s: recorder
                    .made
                    .count_rate_between(first + steady_from, recorder.last_arrival),
                requests_per_s: per_second(recorder.completed_in_all),
                output_tokens_per_s_per_npu: npus.map(|npus| output_rate / f64::from(npus)),
                dollars_per_million_output_tokens: npus
                    .zip(price)
                    .filter(|_| output_rate > 0.0)
                    .map(|(npus, price)| f64::from(npus) * price / 3600.0 / output_rate * 1e6),
            },
            steps: EngineStepSummary {
                count: steps,
                mean: Span((recorder.step_ps / u128::from(steps.max(1))) as u64),
                most: recorder.longest_step,
                mean_tokens: recorder.step_tokens as f64 / steps.max(1) as f64,
                mean_requests: recorder.step_requests as f64 / steps.max(1) as f64,
                parts: step_time_part_shares(&recorder, &deployment.price),
            },
            cache: PrefixCacheHitRateAndUse {
                hit_rate: deployment
                    .rules
                    .prefix_caching
                    .then(|| all.hit_tokens as f64 / prompt_tokens.max(1) as f64),
                recomputed_tokens: recorder.lost_tokens.saturating_sub(recorder.hits[1]),
                peak_use: held.most as f64 / blocks.max(1) as f64,
                mean_use: held.mean / blocks.max(1) as f64,
            },
            preemptions: recorder.put_back,
            utilisation: recorder
                .busy_ps
                .iter()
                .map(|busy| *busy as f64 / window.0.max(1) as f64)
                .collect(),
            rho: offered.zip(saturated).map(|(offered, most)| offered / most),
            waiting: recorder.waiting.clone().summarize_level_until(recorder.end),
            running: recorder.running.clone().summarize_level_until(recorder.end),
            held_blocks: held,
            tokens_over_time: TokenCountsByInterval {
                interval_ps: recorder.computed.interval_width(),
                counts: recorder.computed.counts.clone(),
            },
            rows,
            lives: recorder
                .slowest
                .iter()
                .zip(["longest to the first token", "longest to the last token"])
                .filter_map(|(request, why)| {
                    Some(LlmRequestShownInDetail::from_request(
                        request.as_ref()?,
                        why,
                    ))
                })
                .collect(),
            warnings: Vec::new(),
        };
        report.warnings = list_report_warnings(&report, &recorder, deployment.rules.policy);
        let short = warn_of_fewer_requests_than_asked(&scenario.workload, report.arrived);
        report.warnings.extend(short);
        report
            .warnings
            .extend(idle_users_warning(&scenario.workload));
        report
    }

    /// Describes the limits on all requests: `their limits` if classes have different limits.
    pub fn describe_limits_on_all_requests(&self) -> String {
        match self.rows.iter().all(|row| row.limits == self.limits) {
            true => self.limits.to_scenario_limits().describe_limits(),
            false => LIMITS_OF_CLASSES.to_owned(),
        }
    }

    /// Returns the row of all requests.
    pub fn row_of_all_classes(&self) -> Option<&LlmClassResults> {
        self.rows.last()
    }
}

fn summarize_request_class(
    of: &RequestClassRecorder,
    name: &str,
    limits: LlmTimeLimits,
    busy: u64,
) -> LlmClassResults {
    let completed = of.e2e.sample_count();
    let answered = completed + of.refused;
    let share = |count: u64| (answered > 0).then(|| count as f64 / answered as f64);
    let each = [limits.ttft, limits.tpot, limits.e2e];
    let attained_each = [0, 1, 2].map(|at| each[at].and_then(|_| share(of.met_each[at])));
    LlmClassResults {
        name: name.to_owned(),
        limits: limits.into(),
        arrived: of.arrived,
        refused: of.refused,
        completed,
        prompt_tokens: of.prompt_tokens,
        output_tokens: of.output_tokens,
        hit_tokens: of.hit_tokens,
        ttft: RequestTimeMeanAndPercentiles::from_samples(&of.ttft),
        tpot: RequestTimeMeanAndPercentiles::from_samples(&of.tpot),
        e2e: RequestTimeMeanAndPercentiles::from_samples(&of.e2e),
        queue: RequestTimeMeanAndPercentiles::from_samples(&of.queue),
        preemptions: of.put_back,
        attained: limits.has_any_limit().then(|| share(of.met)).flatten(),
        attained_each,
        goodput_per_s: (limits.has_any_limit() && busy > 0)
            .then(|| of.met as f64 / Span(busy).as_seconds()),
    }
}

fn list_engine_rule_values(rules: &EngineRules) -> Vec<EngineRuleValue> {
    let stated = rules.list_rule_values().into_iter();
    stated
        .map(|(key, value)| EngineRuleValue {
            key: key.to_owned(),
            value,
        })
        .collect()
}

pub(super) fn describe_request_classes(workload: &LlmWorkload) -> Vec<String> {
    if matches!(workload.arrivals, LlmArrivals::File { .. }) {
        return vec!["prompts and answers as in the file".to_owned()];
    }
    let each = workload.classes.iter().map(|class| {
        let mut text = format!(
            "{}: {} tokens in, {} out",
            class.name, class.input, class.output
        );
        if class.shared_prefix > 0 {
            text += &format!(
                ", behind one of {} prefixes of {} tokens",
                class.prefixes, class.shared_prefix
            );
        }
        if class.turns > 1 {
            text += &format!(
                ", conversations of {} turns, {} apart",
                class.turns, class.think
            );
        }
        if class.priority != 0 {
            text += &format!(", priority {}", class.priority);
        }
        if class.limits.has_any_limit() {
            text += &format!(", within {}", class.limits.describe_limits());
        }
        text
    });
    each.collect()
}

fn step_time_part_shares(
    recorder: &LlmRunRecorder,
    price: &StepTimeSource,
) -> Vec<StepTimePartShare> {
    if !matches!(price, StepTimeSource::Model(_)) {
        return Vec::new();
    }
    let all = recorder.step_ps.max(1) as f64;
    let parts = StepTimePart::NAMES
        .iter()
        .filter(|(part, _)| *part != StepTimePart::Padding);
    parts
        .map(|(part, name)| StepTimePartShare {
            part: (*name).to_owned(),
            share: recorder.parts_ps[*part as usize] as f64 / all,
        })
        .collect()
}

/// Fraction of the saturated rate above which the report warns that a run is near its limit.
const NEAR: f64 = 0.9;

/// Returns a warning if the file of requests has fewer requests than asked for. `arrived` is the number of requests
/// that were sent.
fn warn_of_fewer_requests_than_asked(workload: &LlmWorkload, arrived: u64) -> Option<String> {
    let LlmArrivals::File { path, .. } = &workload.arrivals else {
        return None;
    };
    // With a duration, the run may end before the file does.
    let asked = workload.count.filter(|_| workload.duration.is_none())?;
    (arrived < asked).then(|| {
        format!(
            "{} has only {}, fewer than the {} asked for",
            path.display(),
            format_count_with_noun(arrived, "request"),
            format_thousands(asked)
        )
    })
}

/// Returns a warning if the run has fewer requests than users.
fn idle_users_warning(workload: &LlmWorkload) -> Option<String> {
    let LlmArrivals::Users { users, .. } = workload.arrivals else {
        return None;
    };
    let count = workload.count?;
    let idle = u64::from(users)
        .checked_sub(count)
        .filter(|idle| *idle > 0)?;
    Some(format!(
        "{} of the {} users never send a request, because the run has only {}",
        format_thousands(idle),
        format_thousands(users.into()),
        format_count_with_noun(count, "request")
    ))
}

fn list_report_warnings(
    report: &LlmReport,
    recorder: &LlmRunRecorder,
    policy: WaitingRequestOrder,
) -> Vec<String> {
    let mut all = Vec::new();
    match (policy, recorder.priorities) {
        (WaitingRequestOrder::FirstCome, Some(priorities)) if priorities != [0; 2] => all.push(
            "priorities have no effect: the policy is fcfs; try policy = \"priority\"".to_owned(),
        ),
        (WaitingRequestOrder::Priority, Some([least, most])) if least == most => all.push(format!(
            "the policy priority has no effect: all requests have priority {least}"
        )),
        _ => {}
    }
    match report.rho {
        Some(rho) if rho >= 1.0 => all.push(format!(
            "rho is {rho:.2}: the load exceeds the capacity of the engines, so times to first token grow with the \
             length of the run; judge the system by tokens per second"
        )),
        Some(rho) if rho >= NEAR => all.push(format!(
            "rho is {rho:.2}: near saturation an error of 2 % in the time of steps can double times to first token"
        )),
        _ => {}
    }
    let mean = |(sum, count): (u128, u64)| sum as f64 / count.max(1) as f64;
    let [early, _, late] = recorder.thirds;
    if report.rho.is_none_or(|rho| rho < 1.0)
        && early.1 >= 30
        && late.1 >= 30
        && mean(late) > 2.0 * mean(early)
        && mean(late) > 1e12
    {
        all.push(format!(
            "times to first token grow: the mean is {} over the first third of requests and {} over the last third",
            Span(mean(early) as u64),
            Span(mean(late) as u64)
        ));
    }
    let refused = report.refused;
    let reasons = [
        (
            refused.too_long,
            "a prompt as long as max_model_len or longer",
        ),
        (
            refused.beyond_budget,
            "a prompt longer than max_num_batched_tokens without chunked prefill",
        ),
        (
            refused.beyond_blocks,
            "more keys and values than an engine has blocks",
        ),
    ];
    for (count, why) in reasons.iter().filter(|(count, _)| *count > 0) {
        all.push(format!(
            "{} requests were answered with an error: {why}",
            format_thousands(*count)
        ));
    }
    if recorder.empty_answers > 0 {
        all.push(format!(
            "{} requests failed in the trace (answers of 0 tokens): each is served with an answer of 1 token",
            format_thousands(recorder.empty_answers)
        ));
    }
    if report.preemptions > 0 {
        all.push(format!(
            "requests were preempted {} times for lack of blocks, and {} tokens were computed again",
            format_thousands(report.preemptions),
            format_thousands(report.cache.recomputed_tokens)
        ));
    }
    if report.basis.iter().any(|line| line.contains("lower bound")) {
        all.push(
            "the machine has no curves for some kernels: their times are lower bounds".to_owned(),
        );
    }
    if let Some(place) = &report.place {
        let memory = place.memory;
        if memory.is_stated && u64::from(memory.blocks) * memory.kv_of_token > memory.left {
            all.push(format!(
                "{} blocks do not fit in the memory of the machine",
                format_thousands(memory.blocks.into())
            ));
        }
    }
    if let Some(attained) = report.row_of_all_classes().and_then(|all| all.attained) {
        let limits = report.describe_limits_on_all_requests();
        if attained < 0.9 {
            all.push(format!(
                "{} of requests are within {limits}",
                format_percent(attained)
            ));
        }
    }
    all
}
