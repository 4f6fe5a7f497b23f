//! Runs a scenario at several rates, and finds the highest sustainable rate.

use super::error::ServeError;
use super::observe::NoRequestObserver;
use super::platform::Platform;
use super::report::ServeReport;
use super::report::compare::{ArrivalRateResult, ArrivalRateSweepResults, ServeCapacity};
use super::scenario::Scenario;
use super::{RequestServeTimeLimitOption, serve_requests};
use chakram_base::setting::SettingKey;
use chakram_base::units::format_percent;

/// Number of bisection steps. Ten steps narrow a range whose ends differ by a factor of two to a thousandth of its
/// width.
const STEPS: u32 = 10;
/// Maximum number of times that the rate is doubled or halved to find a range.
const DOUBLINGS: u32 = 40;
/// Below this load, requests wait so rarely that halving the rate about halves the number of those that wait.
const LOW_LOAD: f64 = 0.3;

/// What a run at one rate showed.
struct TriedRateOutcome {
    /// True if enough requests met their limits, and the processors can serve the offered load.
    is_enough: bool,
    /// Fraction of the requests that met their limits.
    attained: f64,
    /// Offered load, or the cores' utilization if the load is unknown.
    load: f64,
}

impl TriedRateOutcome {
    /// Returns true if lower rates do not help, because this run had half the rate of `before`, and requests rarely
    /// waited for others in either. If waiting were the reason for late requests, about half as many would be late.
    fn shows_lower_rate_does_not_help(&self, before: &Self, attain: f64) -> bool {
        before.load < LOW_LOAD && self.attained - before.attained <= 0.1 * (attain - self.attained)
    }
}

fn serve_at_rate(
    scenario: &Scenario,
    platform: Option<&Platform>,
    options: RequestServeTimeLimitOption,
    rate: f64,
) -> Result<ServeReport, ServeError> {
    let Some(changed) = scenario.with_rate(rate) else {
        return Err(ServeError::Unfit(format!(
            "scenario {:?}: the arrivals have no rate to change; found {}, expected poisson or periodic arrivals\n  \
             try: arrivals = \"poisson\" with a `rate`",
            scenario.name,
            super::report::describe::describe_arrival_stream(&scenario.stream)
        )));
    };
    serve_requests(&changed, platform, options, &mut NoRequestObserver)
}

/// Runs `scenario` at each of `rates`, in requests per second.
///
/// # Errors
///
/// Returns the errors of [`serve_requests`]. Also fails if the scenario's arrivals have no rate.
pub fn sweep_rates(
    scenario: &Scenario,
    platform: Option<&Platform>,
    options: RequestServeTimeLimitOption,
    rates: &[f64],
) -> Result<ArrivalRateSweepResults, ServeError> {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    let points = rates.into_iter().map(|rate_per_s| {
        let report = serve_at_rate(scenario, platform, options, rate_per_s)?;
        Ok(ArrivalRateResult { rate_per_s, report })
    });
    Ok(ArrivalRateSweepResults {
        points: points.collect::<Result<_, ServeError>>()?,
        capacity: None,
    })
}

/// Finds, by bisection, the highest rate at which at least the fraction `attain` of all requests meets its limits. The
/// result includes all rates that were tried.
///
/// # Errors
///
/// Returns the errors of [`sweep_rates`]. Also fails if requests have no limit, if even the lowest rate tried is too
/// high, if requests are too slow even when they rarely wait, or if even the highest rate is sustainable.
pub fn find_capacity(
    scenario: &Scenario,
    platform: Option<&Platform>,
    options: RequestServeTimeLimitOption,
    attain: f64,
) -> Result<ArrivalRateSweepResults, ServeError> {
    let mut points: Vec<ArrivalRateResult> = Vec::new();
    let mut does = |rate_per_s: f64| -> Result<TriedRateOutcome, ServeError> {
        let report = serve_at_rate(scenario, platform, options, rate_per_s)?;
        let Some(all) = report
            .row_of_all_models()
            .filter(|all| all.attained.is_some())
        else {
            return Err(ServeError::Unfit(format!(
                "scenario {:?}: some requests have no time limit\n  try: {}, or a `deadline` for each model",
                scenario.name,
                SettingKey::Slo
            )));
        };
        // A short run may meet its limits although it is overloaded and a longer run would miss them. So also require
        // that the offered load is below 1.
        let enough = all.attained.is_some_and(|share| share >= attain)
            && report.offered_load.is_none_or(|load| load < 1.0);
        let found = TriedRateOutcome {
            is_enough: enough,
            attained: all.attained.unwrap_or(0.0),
            load: report
                .offered_load
                .unwrap_or_else(|| report.mean_utilisation()),
        };
        points.push(ArrivalRateResult { rate_per_s, report });
        Ok(found)
    };
    let none = |what: &str| {
        ServeError::Unfit(format!(
            "scenario {:?}: {what} rate has {} % of the requests within their limit",
            scenario.name,
            100.0 * attain
        ))
    };
    let begin = scenario.arrivals_per_second().unwrap_or(1.0);
    let (mut low, mut high) = (begin, begin);
    let mut doublings = 0;
    let mut tried = does(begin)?;
    if tried.is_enough {
        loop {
            high *= 2.0;
            doublings += 1;
            if !does(high)?.is_enough {
                break;
            }
            low = high;
            if doublings == DOUBLINGS {
                return Err(none("every"));
            }
        }
    } else {
        loop {
            low /= 2.0;
            doublings += 1;
            let lower = does(low)?;
            if lower.is_enough {
                break;
            }
            if lower.shows_lower_rate_does_not_help(&tried, attain) {
                return Err(ServeError::Unfit(format!(
                    "scenario {:?}: no rate keeps the limits: requests are too slow even when they hardly wait; at {} requests/s \
                     (rho {:.3}), found {} of the requests within their limits, expected {}\n  \
                     try: longer limits, or a smaller share of requests",
                    scenario.name,
                    super::report::text::format_rate(low),
                    lower.load,
                    format_percent(lower.attained),
                    format_percent(attain)
                )));
            }
            (high, tried) = (low, lower);
            if doublings == DOUBLINGS {
                return Err(none("no"));
            }
        }
    }
    for _ in 0..STEPS {
        let middle = (low + high) / 2.0;
        if does(middle)?.is_enough {
            low = middle;
        } else {
            high = middle;
        }
    }
    points.sort_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s));
    Ok(ArrivalRateSweepResults {
        points,
        capacity: Some(ServeCapacity {
            rate_per_s: low,
            too_much_per_s: high,
            attain,
        }),
    })
}
