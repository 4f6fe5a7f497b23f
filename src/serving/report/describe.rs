//! Describes a run: its arrivals, its policy, what ends it, and caveats about its results.

use super::ServeReport;
use crate::prepared::ScenarioWithModelTimes;
use crate::scenario::{
    ArrivalPattern, ArrivalRateInRequestsOrBytes, RequestWork, RunStopRule, Scenario,
    ServicePolicyWithParameters,
};
use chakram_base::units::format_thousands;

/// Describes arrivals.
pub fn describe_arrival_stream(arrivals: &ArrivalPattern) -> String {
    let rate = |rate: &ArrivalRateInRequestsOrBytes| match rate {
        ArrivalRateInRequestsOrBytes::Requests(rate) => format!("{rate} requests/s"),
        ArrivalRateInRequestsOrBytes::Bytes(bandwidth) => {
            format!("{} Gbit/s", bandwidth.bytes_per_second() * 8.0 / 1e9)
        }
    };
    match arrivals {
        ArrivalPattern::Poisson(mean) => format!("Poisson arrivals, {}", rate(mean)),
        ArrivalPattern::Periodic(equal) => format!("periodic arrivals, {}", rate(equal)),
        ArrivalPattern::Bursts { burst, every } => {
            format!(
                "bursts of {} every {every}",
                format_thousands((*burst).into())
            )
        }
        ArrivalPattern::Closed {
            users,
            think,
            exponential,
        } => {
            let mean = if *exponential { " on average" } else { "" };
            format!(
                "{} users that think for {think}{mean}",
                format_thousands((*users).into())
            )
        }
        ArrivalPattern::File {
            path,
            repeat,
            speed,
        } => {
            let times = if *repeat > 1 {
                format!(", {repeat} times")
            } else {
                String::new()
            };
            let faster = if *speed == 1.0 {
                String::new()
            } else {
                format!(", at {speed} times its speed")
            };
            format!("arrivals of {}{times}{faster}", path.display())
        }
    }
}

/// Describes the order in which requests are served.
pub(super) fn describe_service_order(scenario: &Scenario) -> String {
    let policy = &scenario.policy;
    let mut text = policy.kind.stable_name().to_owned();
    match policy.kind {
        ServicePolicyWithParameters::Batching { batch, wait } => {
            text += &format!(
                ", up to {batch} requests of a model, none waits longer than {wait} for others"
            );
        }
        ServicePolicyWithParameters::Priority { aging: Some(aging) } => {
            let levels = scenario.models.iter().map(|model| model.level);
            let most = levels.max().unwrap_or(0);
            text += &format!(
                ", {aging} of waiting count as a level: no request that comes {} after another overtakes it",
                aging.times(most.into())
            );
        }
        ServicePolicyWithParameters::Priority { aging: None } => {
            text += ", without aging: low levels may starve"
        }
        _ => {}
    }
    if let Some(slots @ 2..) = policy.slots {
        text += &format!("; {slots} at once on a processor");
    }
    if let Some(cost) = policy.preemption {
        text += &format!("; preempted at job borders, which costs {cost}");
    }
    text
}

/// Describes what ends a run.
pub(super) fn describe_stop_rule(stop: &RunStopRule) -> String {
    let mut parts = Vec::new();
    if let Some(requests) = stop.requests {
        parts.push(format!("after {} requests", format_thousands(requests)));
    }
    if let Some(duration) = stop.duration {
        parts.push(format!("no arrivals from {duration} on"));
    }
    if let Some(first) = stop.first {
        parts.push(format!(
            "when the first {} are complete",
            format_thousands(first)
        ));
    }
    if parts.is_empty() {
        "at the end of the arrivals".to_owned()
    } else {
        parts.join(", ")
    }
}

/// Returns caveats about the results of a run.
pub(super) fn report_warnings(
    report: &ServeReport,
    prepared: &ScenarioWithModelTimes<'_>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(load) = report.offered_load.filter(|load| *load >= 1.0) {
        warnings.push(format!(
            "rho is {load:.3}: the load exceeds the capacity, so times grow with the length of the run and do not characterize the system"
        ));
    } else if report
        .row_of_all_models()
        .and_then(|all| all.mean)
        .is_some_and(|mean| mean.plus_minus.is_none())
    {
        warnings.push(
            "the run is too short for confidence intervals: batches of requests are correlated, or too few".to_owned(),
        );
    }
    if let Some(stopped) = prepared
        .scenario
        .stop
        .first
        .filter(|_| report.completed < report.arrived)
    {
        let left = report.arrived - report.completed;
        warnings.push(format!(
            "the run ended when the first {} requests were complete; {} other requests in the system are not counted, which favours requests that finish early",
            format_thousands(stopped),
            format_thousands(left)
        ));
    }
    for model in &prepared.models {
        let served = model.served;
        if matches!(served.work, RequestWork::Steps { .. }) {
            warnings.push(format!(
                "model {:?}: continuous batching is not simulated: requests of a batch end with the longest answer, no request joins between steps, and keys and values take no memory",
                served.name
            ));
        }
        let alone = model.datapath + model.mean_unloaded_time(1);
        let limit = report.slo.or(served.deadline);
        if let Some(limit) =
            limit.filter(|limit| *limit < alone && !model.takes_work_from_arrivals())
        {
            let mean = if model.has_random_durations() {
                ", on average,"
            } else {
                ""
            };
            warnings.push(format!(
                "model {:?}: a request without load takes {alone}{mean} and should be complete within {limit}",
                served.name
            ));
        }
    }
    warnings
}
