//! Runs a scenario at several rates, and finds the highest sustainable rate.

use super::error::ServeError;
use super::observe::NoRequestObserver;
use super::platform::Platform;
use super::report::ServeReport;
use super::report::compare::{RatePoint, RateSweep, ServeCapacity};
use super::scenario::Scenario;
use super::{RequestServeTimeLimitOption, serve_requests};
use chakram_base::setting::SettingKey;

/// Number of bisection steps. Ten steps narrow a range whose ends differ by a factor of two to a thousandth of its
/// width.
const STEPS: u32 = 10;
/// Maximum number of times that the rate is doubled or halved to find a range.
const DOUBLINGS: u32 = 40;

fn serve_at_rate(
    scenario: &Scenario,
    platform: Option<&Platform>,
    options: RequestServeTimeLimitOption,
    rate: f64,
) -> Result<ServeReport, ServeError> {
    let Some(changed) = scenario.with_rate(rate) else {
        return Err(ServeError::Unfit(format!(
            "scenario {:?}: the arrivals have no rate to change; found {}, expected poisson or periodic arrivals",
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
) -> Result<RateSweep, ServeError> {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    let points = rates.into_iter().map(|rate_per_s| {
        let report = serve_at_rate(scenario, platform, options, rate_per_s)?;
        Ok(RatePoint { rate_per_s, report })
    });
    Ok(RateSweep {
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
/// high, or if even the highest one is sustainable.
pub fn find_capacity(
    scenario: &Scenario,
    platform: Option<&Platform>,
    options: RequestServeTimeLimitOption,
    attain: f64,
) -> Result<RateSweep, ServeError> {
    let mut points: Vec<RatePoint> = Vec::new();
    let mut does = |rate_per_s: f64| -> Result<bool, ServeError> {
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
        points.push(RatePoint { rate_per_s, report });
        Ok(enough)
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
    if does(begin)? {
        loop {
            high *= 2.0;
            doublings += 1;
            if !does(high)? {
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
            if does(low)? {
                break;
            }
            high = low;
            if doublings == DOUBLINGS {
                return Err(none("no"));
            }
        }
    }
    for _ in 0..STEPS {
        let middle = (low + high) / 2.0;
        if does(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    points.sort_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s));
    Ok(RateSweep {
        points,
        capacity: Some(ServeCapacity {
            rate_per_s: low,
            too_much_per_s: high,
            attain,
        }),
    })
}
