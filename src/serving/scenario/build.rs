//! Builds a [`Scenario`] from the tables of a scenario file.

use super::*;

const ROOT: &[&str] = &[
    "name",
    "seed",
    "processors",
    "model",
    "stream",
    "stop",
    "measure",
    "policy",
];
const STREAM: &[&str] = &[
    "arrivals",
    "rate",
    "bandwidth",
    "burst",
    "every",
    "users",
    "think",
    "think_exponential",
    "file",
    "repeat",
    "speed",
];
const POLICY: &[&str] = &["kind", "slots", "aging", "preemption", "batch", "wait"];

/// Example duration for error messages.
const DURATION: &str = "10 ms";
/// Maximum number of requests in a run.
const MOST_REQUESTS: u64 = 1_000_000_000_000;

/// An arrival process by name, before its parameters are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ArrivalPatternName {
    Poisson,
    Periodic,
    Bursts,
    Closed,
    File,
}

/// A policy by name, before its parameters are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServicePolicyName {
    RoundRobin,
    FirstCome,
    ShortestJob,
    Priority,
    EarliestDeadline,
    Batching,
}

/// Builds and checks the scenario that `document` describes.
pub(super) fn build_scenario(
    document: &ConfigDocument<'_>,
    folder: &Path,
) -> Result<Scenario, ServeError> {
    let root = document.root_table_with_allowed_keys(ROOT)?;
    let name = root
        .require_field("name", "the scenario's name")?
        .read_one_line_text()?
        .to_owned();
    let seed = root.read_or_default("seed", 1, |field| {
        field.read_integer_between(0, u64::MAX >> 1)
    })?;
    let processors = root.read_or_default("processors", 1, |field| field.read_count(1 << 20))?;
    let policy = parse_policy(&root)?;
    let stream = parse_arrival_stream(&root, folder)?;
    let entries = root
        .require_field("model", "models, each under [[model]]")?
        .read_tables(work::KEYS)?;
    if entries.is_empty() {
        return Err(root
            .missing_entry_error("model", "at least one model")
            .into());
    }
    let mut models: Vec<RequestedModel> = Vec::new();
    for entry in &entries {
        let model = work::parse_model(entry, folder)?;
        if models.iter().any(|other| other.name == model.name) {
            let field = entry.require_field("name", "a name")?;
            return Err(field
                .invalid_value_error(
                    quote_and_truncate_for_message(&model.name),
                    "a different name for each model",
                )
                .into());
        }
        let by_bytes = matches!(
            stream,
            ArrivalPattern::Poisson(ArrivalRateInRequestsOrBytes::Bytes(_))
                | ArrivalPattern::Periodic(ArrivalRateInRequestsOrBytes::Bytes(_))
        );
        if by_bytes && model.bytes.is_none() {
            return Err(entry
                .missing_entry_error(
                    "bytes",
                    "the bytes of a request, because the stream has a bandwidth",
                )
                .into());
        }
        if policy.kind == ServicePolicyWithParameters::EarliestDeadline && model.deadline.is_none()
        {
            return Err(entry
                .missing_entry_error(
                    "deadline",
                    "a time such as \"10 ms\", because policy.kind is earliest-deadline",
                )
                .into());
        }
        let from_file = matches!(stream, ArrivalPattern::File { .. });
        if matches!(model.work, RequestWork::Steps { .. }) && model.tokens.is_none() && !from_file {
            return Err(entry
                .missing_entry_error(
                    "prompt",
                    "the tokens of a prompt, because no file of arrivals states them",
                )
                .into());
        }
        models.push(model);
    }
    if models.iter().all(|model| model.weight == 0.0) {
        return Err(entries[0]
            .invalid_table_error("no model with a weight above 0", "one at least")
            .into());
    }
    let stop = parse_stop_rule(&root, &stream)?;
    let warmup = root.read_or_default("measure", 0, |field| {
        let most = stop.requests.map_or(MOST_REQUESTS, |n| n.saturating_sub(1));
        let table = field.read_table(Some(&["warmup"]))?;
        table.read_or_default("warmup", 0, |field| field.read_integer_between(0, most))
    })?;
    Ok(Scenario {
        name,
        seed,
        processors,
        models,
        stream,
        stop,
        warmup,
        policy,
    })
}

/// Rejects keys in `table` that belong only to variants other than the chosen one.
fn reject_keys_of_other_variants(
    table: &ConfigTable<'_>,
    all: &[&str],
    used: &[&str],
    chosen: &str,
) -> Result<(), ConfigError> {
    for key in all.iter().filter(|key| !used.contains(key)) {
        if let Some(field) = table.get(key) {
            let expected = format!("one of {}", used.join(", "));
            return Err(field
                .invalid_value_error(format_args!("a key that {chosen} does not use"), expected));
        }
    }
    Ok(())
}

/// Parses a duration above zero.
fn parse_positive_duration(table: &ConfigTable<'_>, key: &str) -> Result<Span, ConfigError> {
    let span: Span = table.read_quantity(key, DURATION)?;
    if span == Span::ZERO {
        return Err(table
            .require_field(key, DURATION)?
            .invalid_value_error("a time of 0", "more than zero"));
    }
    Ok(span)
}

fn parse_arrival_stream(
    root: &ConfigTable<'_>,
    folder: &Path,
) -> Result<ArrivalPattern, ConfigError> {
    let table = root
        .require_field("stream", "a table of arrivals")?
        .read_table(Some(STREAM))?;
    let all = [
        (ArrivalPatternName::Poisson, "poisson"),
        (ArrivalPatternName::Periodic, "periodic"),
        (ArrivalPatternName::Bursts, "bursts"),
        (ArrivalPatternName::Closed, "closed"),
        (ArrivalPatternName::File, "file"),
    ];
    let chosen = table.read_choice("arrivals", &all)?;
    let only =
        |used: &[&str], chosen: &str| reject_keys_of_other_variants(&table, STREAM, used, chosen);
    let rate = || -> Result<ArrivalRateInRequestsOrBytes, ConfigError> {
        match (table.get("rate"), table.get("bandwidth")) {
            (Some(_), Some(field)) => {
                Err(field.invalid_value_error("a rate and a bandwidth", "one of them"))
            }
            (Some(field), None) => Ok(ArrivalRateInRequestsOrBytes::Requests(
                field.read_positive(1e12)?,
            )),
            (None, Some(field)) => Ok(ArrivalRateInRequestsOrBytes::Bytes(
                field.read_quantity("10 Gbit/s")?,
            )),
            (None, None) => {
                Err(table.missing_entry_error("rate", "a number of requests per second"))
            }
        }
    };
    match chosen {
        ArrivalPatternName::Poisson => {
            only(&["arrivals", "rate", "bandwidth"], "poisson")?;
            Ok(ArrivalPattern::Poisson(rate()?))
        }
        ArrivalPatternName::Periodic => {
            only(&["arrivals", "rate", "bandwidth"], "periodic")?;
            Ok(ArrivalPattern::Periodic(rate()?))
        }
        ArrivalPatternName::Bursts => {
            only(&["arrivals", "burst", "every"], "bursts")?;
            Ok(ArrivalPattern::Bursts {
                burst: table
                    .require_field("burst", "a number of requests")?
                    .read_count(1 << 30)?,
                every: parse_positive_duration(&table, "every")?,
            })
        }
        ArrivalPatternName::Closed => {
            only(
                &["arrivals", "users", "think", "think_exponential"],
                "closed",
            )?;
            Ok(ArrivalPattern::Closed {
                users: table
                    .require_field("users", "a number of users")?
                    .read_count(1 << 24)?,
                think: table
                    .read_or_default("think", Span::ZERO, |field| field.read_quantity(DURATION))?,
                exponential: table
                    .read_or_default("think_exponential", false, |field| field.read_flag())?,
            })
        }
        ArrivalPatternName::File => {
            only(&["arrivals", "file", "repeat", "speed"], "file")?;
            let path = folder.join(
                table
                    .require_field("file", "a path")?
                    .read_one_line_text()?,
            );
            Ok(ArrivalPattern::File {
                path,
                repeat: table.read_or_default("repeat", 1, |field| field.read_count(1 << 20))?,
                speed: table.read_or_default("speed", 1.0, |field| field.read_positive(1e9))?,
            })
        }
    }
}

fn parse_stop_rule(
    root: &ConfigTable<'_>,
    stream: &ArrivalPattern,
) -> Result<RunStopRule, ConfigError> {
    let endless = !matches!(stream, ArrivalPattern::File { .. });
    let Some(field) = root.get("stop") else {
        if endless {
            return Err(
                root.missing_entry_error("stop", "a table with a number of requests or a duration")
            );
        }
        return Ok(RunStopRule::default());
    };
    let table = field.read_table(Some(&["requests", "first", "duration"]))?;
    let count =
        |key| table.read_optional(key, |field| field.read_integer_between(1, MOST_REQUESTS));
    let stop = RunStopRule {
        requests: count("requests")?,
        first: count("first")?,
        duration: table
            .read_optional("duration", |_| parse_positive_duration(&table, "duration"))?,
    };
    if endless && stop.requests.is_none() && stop.duration.is_none() {
        return Err(table.missing_entry_error("requests", "a number of requests, or a duration"));
    }
    if let (Some(first), Some(requests)) = (stop.first, stop.requests)
        && first > requests
    {
        let expected = format!("at most {requests}, the number of requests");
        return Err(table
            .require_field("first", "a number")?
            .invalid_value_error(first, expected));
    }
    Ok(stop)
}

fn parse_policy(root: &ConfigTable<'_>) -> Result<ServiceOrderAndSlots, ConfigError> {
    let Some(field) = root.get("policy") else {
        return Ok(ServiceOrderAndSlots {
            kind: ServicePolicyWithParameters::RoundRobin,
            slots: None,
            preemption: None,
        });
    };
    let table = field.read_table(Some(POLICY))?;
    let all = [
        (ServicePolicyName::RoundRobin, "round-robin"),
        (ServicePolicyName::FirstCome, "first-come"),
        (ServicePolicyName::ShortestJob, "shortest-job-first"),
        (ServicePolicyName::Priority, "priority"),
        (ServicePolicyName::EarliestDeadline, "earliest-deadline"),
        (ServicePolicyName::Batching, "batching"),
    ];
    let chosen = table.read_choice("kind", &all)?;
    let kind = match chosen {
        ServicePolicyName::RoundRobin => {
            reject_keys_of_other_variants(&table, POLICY, &["kind"], "round-robin")?;
            ServicePolicyWithParameters::RoundRobin
        }
        ServicePolicyName::FirstCome => {
            reject_keys_of_other_variants(&table, POLICY, &["kind", "slots"], "first-come")?;
            ServicePolicyWithParameters::FirstCome
        }
        ServicePolicyName::ShortestJob => {
            let used = ["kind", "slots", "preemption"];
            reject_keys_of_other_variants(&table, POLICY, &used, "shortest-job-first")?;
            ServicePolicyWithParameters::ShortestJob
        }
        ServicePolicyName::Priority => {
            let used = ["kind", "slots", "aging", "preemption"];
            reject_keys_of_other_variants(&table, POLICY, &used, "priority")?;
            ServicePolicyWithParameters::Priority {
                aging: table
                    .read_optional("aging", |_| parse_positive_duration(&table, "aging"))?,
            }
        }
        ServicePolicyName::EarliestDeadline => {
            let used = ["kind", "slots", "preemption"];
            reject_keys_of_other_variants(&table, POLICY, &used, "earliest-deadline")?;
            ServicePolicyWithParameters::EarliestDeadline
        }
        ServicePolicyName::Batching => {
            reject_keys_of_other_variants(
                &table,
                POLICY,
                &["kind", "slots", "batch", "wait"],
                "batching",
            )?;
            ServicePolicyWithParameters::Batching {
                batch: table
                    .require_field("batch", "the most requests of a batch")?
                    .read_count(1 << 16)?,
                wait: table
                    .read_or_default("wait", Span::ZERO, |field| field.read_quantity(DURATION))?,
            }
        }
    };
    let slots = match (kind, table.get("slots")) {
        (ServicePolicyWithParameters::RoundRobin, _) => None,
        (_, Some(field)) => Some(field.read_count(1 << 20)?),
        (_, None) => Some(1),
    };
    let preemption: Option<Span> =
        table.read_optional("preemption", |field| field.read_quantity(DURATION))?;
    if let (Some(_), Some(2..)) = (preemption, slots) {
        return Err(table
            .require_field("preemption", DURATION)?
            .invalid_value_error(
                "several slots of a processor",
                "one, where requests are put back",
            ));
    }
    Ok(ServiceOrderAndSlots {
        kind,
        slots,
        preemption,
    })
}
