//! Formats plans as text and CSV.

use super::planner::{LlmCapacityPlan, TriedEngineConfiguration};
use super::report::text::format_rate;
use chakram_base::units::{Span, format_count_with_noun, format_percent, format_thousands};
use chakram_report::csv::CsvRows;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::{TextStyleWidthAndDetail, write_paragraph};
use std::fmt::{Result, Write};

/// Renders `plan`.
pub fn render_plan(plan: &LlmCapacityPlan, style: TextStyleWidthAndDetail) -> String {
    let mut out = String::new();
    append_plan_text(&mut out, plan, style).expect("a string grows as needed");
    out
}

fn append_plan_text(
    out: &mut String,
    plan: &LlmCapacityPlan,
    style: TextStyleWidthAndDetail,
) -> Result {
    let plain = anstyle::Style::new();
    let asked = plan.rows.first().map_or(0.0, |row| row.rate_per_s);
    let head = format!(
        "{} on {}: {} requests/s, {}",
        plan.model,
        plan.machine,
        format_rate(asked),
        plan.requests.join("; ")
    );
    writeln!(out, "{}", style.clip_line(&head, 0))?;
    let text = format!(
        "{} of requests within {}",
        format_percent(plan.attain),
        plan.limits
    );
    write_paragraph(out, &text, "  limits    ", 12, plain)?;
    let answer = match plan.chosen.map(|at| &plan.rows[at]) {
        Some(row) => {
            let engines = match row.replicas {
                1 => "one engine".to_owned(),
                many => format!("{many} engines"),
            };
            let highest = plan
                .highest_rate
                .as_ref()
                .filter(|highest| highest.rate_per_s > row.rate_per_s);
            let highest = highest.map_or(String::new(), |highest| {
                format!(
                    "; they keep the limits up to {} requests/s",
                    format_rate(highest.rate_per_s)
                )
            });
            format!(
                "{}: {engines} of {}{highest}",
                format_count_with_noun(row.npus.into(), "NPU"),
                row.tensor
            )
        }
        None => "none of the tried numbers of NPUs keeps the limits".to_owned(),
    };
    write_paragraph(out, &answer, "  answer    ", 12, style.heading)?;
    if let Some(text) = describe_missing_npus(plan) {
        write_paragraph(out, &text, "  machine   ", 12, style.warning)?;
    }
    let table = TextTable::new([
        left_aligned_column("NPUS AN ENGINE", 14),
        right_aligned_column("engines", 8),
        right_aligned_column("NPUs", 6),
        right_aligned_column("within", 8),
        right_aligned_column("", 7),
        right_aligned_column("rho", 6),
        right_aligned_column("TTFT p99", 11),
        right_aligned_column("TPOT p99", 11),
        right_aligned_column("tok/s/NPU", 10),
    ]);
    table.write_heading(out, style)?;
    for row in &plan.rows {
        let span = |span: Option<Span>| span.map_or("-".to_owned(), |span| span.to_string());
        let each = row.output_tokens_per_s_per_npu;
        table.write_row(
            out,
            &[
                &row.tensor,
                &row.replicas,
                &format!(
                    "{}{}",
                    row.npus,
                    if row.exceeds_machine() { "*" } else { "" }
                ),
                &format_percent(row.attained),
                &row.verdict.name_of_verdict(),
                &row.rho.map_or("-".to_owned(), |rho| format!("{rho:.2}")),
                &span(row.ttft_p99),
                &span(row.tpot_p99),
                &each.map_or("-".to_owned(), format_rate),
            ],
        )?;
    }
    let text = "One row per number of NPUs per engine: the fewest engines that keep the limits, or the last \
                number tried. \"met\" means that the 95 % interval of the share is above the required share; \
                requests that wait together count as fewer.";
    write_paragraph(out, text, "  ", 2, plain)
}

/// Says that the chosen row, or else the first such row, has more NPUs than the machine, and which machine has enough.
/// Returns `None` if the machine has enough NPUs for all rows.
fn describe_missing_npus(plan: &LlmCapacityPlan) -> Option<String> {
    let chosen = plan.chosen.map(|at| &plan.rows[at]);
    let row = chosen
        .into_iter()
        .chain(&plan.rows)
        .find(|row| row.exceeds_machine())?;
    let larger = row.larger_machine.as_ref();
    let larger = larger.map_or(String::new(), |name| format!(", such as {name}"));
    Some(format!(
        "{} has {} (rows with * need more): {} need a larger machine{larger}",
        plan.machine,
        format_count_with_noun(row.machine_npus?.into(), "NPU"),
        format_count_with_noun(row.npus.into(), "NPU"),
    ))
}

/// Formats the configuration with the highest rate as one line.
pub fn format_highest_rate(row: &TriedEngineConfiguration, attain: f64, limits: &str) -> String {
    format!(
        "CAPACITY  {} requests/s with {} within {}; {} of {} were\n",
        format_rate(row.rate_per_s),
        format_percent(attain),
        limits,
        format_percent(row.attained),
        format_thousands(row.requests)
    )
}

/// Formats the configuration with the highest rate as CSV.
pub fn render_highest_rate_configuration_csv(row: &TriedEngineConfiguration) -> String {
    let mut rows = CsvRows::new(COLUMNS);
    rows.add_row_of_cells(row_cells(row));
    rows.into_text()
}

const COLUMNS: &str = "tensor,replicas,npus,machine_npus,larger_machine,rate_per_s,requests,attained,verdict,rho,ttft_p99_ps,tpot_p99_ps,output_tokens_per_s_per_npu,dollars_per_million_output_tokens";

/// Formats the plan as CSV, with one row for each number of NPUs per engine.
pub fn render_plan_csv(plan: &LlmCapacityPlan) -> String {
    let mut rows = CsvRows::new(COLUMNS);
    for row in &plan.rows {
        rows.add_row_of_cells(row_cells(row));
    }
    rows.into_text()
}

fn row_cells(row: &TriedEngineConfiguration) -> Vec<String> {
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    let span = |value: Option<Span>| value.map_or(String::new(), |span| span.0.to_string());
    vec![
        row.tensor.to_string(),
        row.replicas.to_string(),
        row.npus.to_string(),
        row.machine_npus
            .map_or(String::new(), |npus| npus.to_string()),
        row.larger_machine.clone().unwrap_or_default(),
        row.rate_per_s.to_string(),
        row.requests.to_string(),
        row.attained.to_string(),
        row.verdict.name_of_verdict().to_owned(),
        number(row.rho),
        span(row.ttft_p99),
        span(row.tpot_p99),
        number(row.output_tokens_per_s_per_npu),
        number(row.dollars_per_million_output_tokens),
    ]
}
