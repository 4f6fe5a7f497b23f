//! Renders a report as text of at most 100 columns.

use super::{LlmClassResults, LlmReport, RequestTimeMeanAndPercentiles};
use chakram_base::units::{Span, format_percent, format_thousands};
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::{TextStyleWidthAndDetail, write_paragraph};
use std::fmt::{Result, Write};

/// Renders `report`.
pub fn render_text(report: &LlmReport, style: TextStyleWidthAndDetail) -> String {
    let mut out = String::new();
    write_report(&mut out, report, style).expect("a string grows as needed");
    out
}

/// Formats a rate with three significant digits.
pub(in super::super) fn format_rate(per_second: f64) -> String {
    match per_second {
        rate if rate >= 1000.0 => format_thousands(rate.round() as u64),
        rate if rate >= 100.0 => format!("{rate:.0}"),
        rate if rate >= 10.0 => format!("{rate:.1}"),
        rate => format!("{rate:.2}"),
    }
}

/// Formats bytes in GB.
pub(in super::super) fn format_gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

fn write_report(out: &mut String, report: &LlmReport, style: TextStyleWidthAndDetail) -> Result {
    let plain = anstyle::Style::new();
    let line = |out: &mut String, key: &str, text: &str| {
        let lead = format!("  {key:<10}");
        write_paragraph(out, text, &lead, 12, plain)
    };
    let pools = report.utilisation.len() as u64;
    let ranks = pools / u64::from(report.replicas.max(1));
    let mut engines = match report.replicas {
        1 => "one engine".to_owned(),
        many => format!("{many} engines"),
    };
    if ranks > 1 {
        engines += &format!(" of {ranks} ranks in lockstep");
    }
    if let Some(place) = &report.place {
        let plural = if place.tensor == 1 { "" } else { "s" };
        let each = if ranks > 1 { " each" } else { "" };
        engines += &format!(" of {} NPU{plural}{each}", place.tensor);
    }
    if pools > 1 {
        engines += &format!(", router {}", report.router);
    }
    let head = match &report.place {
        Some(place) => format!(
            "{} on {}: {engines}, seed {}",
            place.model, place.machine, report.seed
        ),
        None => format!("{}: {engines}, seed {}", report.scenario, report.seed),
    };
    writeln!(out, "{}", style.clip_line(&head, 0))?;
    line(out, "arrivals", &report.arrivals)?;
    for class in &report.classes {
        let class = class.strip_prefix("requests: ").unwrap_or(class);
        line(out, "requests", class)?;
    }
    line(out, "rules", &describe_engine_rules(report))?;
    if let Some(place) = &report.place {
        let memory = &place.memory;
        let text = format!(
            "of {} an engine may take {} of each NPU: weights {} ({}), activations {}, context and graphs {}; {} are left for \
             keys and values of {} bytes a token ({}){}",
            format_gigabytes(memory.memory),
            format_gigabytes(memory.usable),
            format_gigabytes(memory.weights),
            match &place.expert_weights {
                None => place.weights.clone(),
                Some(experts) => format!("{}, experts {experts}", place.weights),
            },
            format_gigabytes(memory.activations),
            format_gigabytes(memory.context),
            format_gigabytes(memory.left),
            format_thousands(memory.kv_of_token),
            place.kv,
            match memory.state_of_request {
                0 => String::new(),
                bytes => format!(" and states of {} bytes a request", format_thousands(bytes)),
            },
        );
        line(out, "memory", &text)?;
        let text = format!(
            "{}{}",
            describe_kv_blocks(report),
            if memory.is_stated {
                ", as the scenario states"
            } else {
                ""
            }
        );
        line(out, "blocks", &text)?;
        line(out, "tensor", &describe_npus_per_engine_and_choices(report))?;
    } else {
        line(out, "blocks", &describe_kv_blocks(report))?;
    }
    for basis in &report.basis {
        line(out, "steps", basis)?;
    }
    let ends = format!(
        "{} sent, {} complete; from 0 to {}{}",
        format_thousands(report.arrived),
        format_thousands(report.completed),
        report.window,
        match report.warmup {
            0 => String::new(),
            count => format!("; the first {} are not counted", format_thousands(count)),
        }
    );
    line(out, "run", &ends)?;
    if let Some(rho) = report.rho {
        let text = format!(
            "rho {rho:.3}: requests arrive at {} of the rate at which the engines complete them when many wait",
            format_percent(rho)
        );
        line(out, "load", &text)?;
    }
    if let Some(all) = report.row_of_all_classes()
        && let Some(attained) = all.attained
    {
        let stated = report.describe_limits_on_all_requests();
        let text = format!(
            "{} of the requests are within {stated}",
            format_percent(attained)
        );
        line(out, "limits", &text)?;
    }
    for warning in &report.warnings {
        write_paragraph(out, warning, "  ! ", 4, style.warning)?;
    }
    write_request_times_table(out, report, style)?;
    write_throughput_table(out, report, style)?;
    write_step_table(out, report, style)
}

fn describe_engine_rules(report: &LlmReport) -> String {
    let value = |key: &str| {
        let found = report.rule_values.iter().find(|rule| rule.key == key);
        found.map_or("", |rule| rule.value.as_str())
    };
    let mut text = format!(
        "{} ({}): {} tokens and {} requests a step",
        report.rules,
        report.follows.split(':').next().unwrap_or_default(),
        value("max_num_batched_tokens"),
        value("max_num_seqs"),
    );
    for (key, word) in [
        ("chunked_prefill", "chunked prefill"),
        ("prefix_caching", "prefix caching"),
    ] {
        text += &format!(
            ", {word} {}",
            if value(key) == "true" { "on" } else { "off" }
        );
    }
    text
}

fn describe_kv_blocks(report: &LlmReport) -> String {
    let size = report
        .rule_values
        .iter()
        .find(|rule| rule.key == "block_size");
    let size: u64 = size.and_then(|rule| rule.value.parse().ok()).unwrap_or(1);
    format!(
        "{} of {size} tokens an engine: {} tokens of keys and values",
        format_thousands(report.blocks.into()),
        format_thousands(u64::from(report.blocks) * size)
    )
}

/// Describes the engine's number of NPUs, and which other numbers are possible.
fn describe_npus_per_engine_and_choices(report: &LlmReport) -> String {
    let Some(place) = &report.place else {
        return String::new();
    };
    let others = place
        .choices
        .iter()
        .filter(|choice| choice.npus != place.tensor);
    let others = others.map(|choice| match (choice.fits, choice.kv_tokens) {
        (true, tokens) => format!(
            "{} would hold {} tokens",
            choice.npus,
            format_thousands(tokens)
        ),
        (false, 0) => format!("{} does not hold the weights", choice.npus),
        (false, tokens) => format!(
            "{} leaves {} tokens, fewer than a request has",
            choice.npus,
            format_thousands(tokens)
        ),
    });
    let others: Vec<String> = others.collect();
    let why = match place.is_stated {
        true => "as stated",
        false => "the fewest that fit",
    };
    let used = place.tensor * place.data_parallel * report.replicas;
    let idle = place.npus.saturating_sub(used);
    let idle = match idle {
        0 => String::new(),
        idle => format!("; {idle} of {} NPUs of the machine are idle", place.npus),
    };
    let plural = if place.tensor == 1 { "" } else { "s" };
    let others = match others.is_empty() {
        true => String::new(),
        false => format!("; {}", others.join(", ")),
    };
    format!(
        "{} NPU{plural} an engine, {why}{others}{idle}",
        place.tensor
    )
}

fn write_request_times_table(
    out: &mut String,
    report: &LlmReport,
    style: TextStyleWidthAndDetail,
) -> Result {
    let table = TextTable::new([
        left_aligned_column("TIME", 24),
        right_aligned_column("mean", 12),
        right_aligned_column("p50", 12),
        right_aligned_column("p90", 12),
        right_aligned_column("p95", 12),
        right_aligned_column("p99", 12),
    ]);
    table.write_heading(out, style)?;
    let several = report.rows.len() > 1;
    for row in &report.rows {
        let kinds: [(&str, &RequestTimeMeanAndPercentiles); 4] = [
            ("TTFT", &row.ttft),
            ("TPOT", &row.tpot),
            ("E2E", &row.e2e),
            ("queue", &row.queue),
        ];
        for (kind, times) in kinds {
            let name = if several {
                format!("{} {kind}", row.name)
            } else {
                kind.to_owned()
            };
            let mean = times
                .mean
                .map_or("-".to_owned(), |mean| mean.value.to_string());
            let at = |at: usize| {
                let found = times.percentiles.get(at);
                found.map_or("-".to_owned(), |one| one.value.to_string())
            };
            table.write_row(
                out,
                &[
                    &style.clip_name(&name),
                    &mean,
                    &at(0),
                    &at(1),
                    &at(2),
                    &at(3),
                ],
            )?;
        }
    }
    let gaps = &report.itl;
    let at = |at: usize| {
        gaps.percentiles
            .get(at)
            .map_or("-".to_owned(), Span::to_string)
    };
    let mean = gaps.mean.map_or("-".to_owned(), |mean| mean.to_string());
    table.write_row(out, &[&"ITL", &mean, &at(0), &at(1), &at(2), &at(3)])?;
    let text = "TTFT from sending to the first token, TPOT (last - first) / (tokens - 1) by request, ITL gaps between tokens of all \
                requests together, E2E from sending to the last token, queue until the first step; percentiles at place (n - 1) q";
    write_paragraph(out, text, "  ", 2, anstyle::Style::new())
}

fn write_throughput_table(
    out: &mut String,
    report: &LlmReport,
    style: TextStyleWidthAndDetail,
) -> Result {
    let table = TextTable::new([
        left_aligned_column("THROUGHPUT", 52),
        right_aligned_column("", 20),
    ]);
    table.write_heading(out, style)?;
    let speed = &report.throughput;
    let mut row = |name: &str, value: String| table.write_row(out, &[&name, &value]);
    row("output tokens/s", format_rate(speed.output_tokens_per_s))?;
    if let Some(steady) = speed.steady_output_tokens_per_s {
        row("output tokens/s between ramps", format_rate(steady))?;
    }
    if let Some(each) = speed.output_tokens_per_s_per_npu {
        row("output tokens/s and NPU", format_rate(each))?;
    }
    row("prompt tokens/s", format_rate(speed.prompt_tokens_per_s))?;
    row("requests/s", format_rate(speed.requests_per_s))?;
    if let Some(dollars) = speed.dollars_per_million_output_tokens {
        row("dollars a million output tokens", format!("{dollars:.3}"))?;
    }
    for of in &report.rows {
        write_limit_attainment(&mut row, report, of)?;
    }
    if let Some(rate) = report.cache.hit_rate {
        row(
            "prompt tokens found in the prefix cache",
            format_percent(rate),
        )?;
    }
    row("blocks in use, mean", format_percent(report.cache.mean_use))?;
    row("blocks in use, peak", format_percent(report.cache.peak_use))?;
    row("preemptions", format_thousands(report.preemptions))?;
    row(
        "running requests, mean",
        format!("{:.1}", report.running.mean),
    )?;
    row(
        "waiting requests, mean",
        format!("{:.1}", report.waiting.mean),
    )?;
    let busy = report.utilisation.iter().sum::<f64>() / report.utilisation.len().max(1) as f64;
    row("time in which engines are busy", format_percent(busy))
}

fn write_limit_attainment(
    row: &mut impl FnMut(&str, String) -> Result,
    report: &LlmReport,
    of: &LlmClassResults,
) -> Result {
    let (Some(attained), Some(goodput)) = (of.attained, of.goodput_per_s) else {
        return Ok(());
    };
    let name = match report.rows.len() {
        1 => String::new(),
        _ => format!("{}: ", of.name),
    };
    let is_all = report
        .row_of_all_classes()
        .is_some_and(|all| std::ptr::eq(all, of));
    let stated = match is_all {
        true => report.describe_limits_on_all_requests(),
        false => of.limits.to_scenario_limits().describe_limits(),
    };
    row(&format!("{name}within {stated}"), format_percent(attained))?;
    let each = [("TTFT", 0), ("TPOT", 1), ("E2E", 2)];
    let shares: Vec<_> = each
        .iter()
        .filter_map(|(kind, at)| of.attained_each[*at].map(|share| (kind, share)))
        .collect();
    if shares.len() > 1 {
        for (kind, share) in shares {
            row(
                &format!("{name}within the {kind} limit"),
                format_percent(share),
            )?;
        }
    }
    row(
        &format!("{name}goodput, requests/s within all limits"),
        format_rate(goodput),
    )
}

fn write_step_table(
    out: &mut String,
    report: &LlmReport,
    style: TextStyleWidthAndDetail,
) -> Result {
    let steps = &report.steps;
    let table = TextTable::new([
        left_aligned_column("STEPS", 52),
        right_aligned_column("", 20),
    ]);
    table.write_heading(out, style)?;
    let mut row = |name: &str, value: String| table.write_row(out, &[&name, &value]);
    row("steps", format_thousands(steps.count))?;
    row("time of a step, mean", steps.mean.to_string())?;
    row("time of a step, longest", steps.most.to_string())?;
    row(
        "tokens of a step, mean",
        format!("{:.1}", steps.mean_tokens),
    )?;
    row(
        "requests of a step, mean",
        format!("{:.1}", steps.mean_requests),
    )?;
    for part in steps.parts.iter().filter(|part| part.share > 0.0) {
        row(
            &format!("share of the time: {}", part.part),
            format_percent(part.share),
        )?;
    }
    Ok(())
}
