//! Renders a report as text of at most 100 columns.

use super::{RequestGroupKind, RequestGroupResultsRow, ServeReport, WideTimeSum};
use chakram_base::setting::SettingKey;
use chakram_base::units::{Span, format_percent, format_thousands};
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::{TextStyleWidthAndDetail, WIDTH, write_paragraph};
use std::fmt::{Display, Result, Write};

/// Renders `report`.
pub fn render_text(report: &ServeReport, style: TextStyleWidthAndDetail) -> String {
    let mut out = String::new();
    write_report(&mut out, report, style).expect("a string grows as needed");
    out
}

pub(in super::super) fn format_rate(per_second: f64) -> String {
    match per_second {
        rate if rate >= 1e6 => format!("{rate:.3e}"),
        rate if rate >= 1000.0 => format_thousands(rate.round() as u64),
        rate => format!("{rate:.3}"),
    }
}

/// Formats a value; `None` becomes a dash.
pub(super) fn format_or_dash(value: Option<impl Display>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

fn write_report(out: &mut String, report: &ServeReport, style: TextStyleWidthAndDetail) -> Result {
    let h = style.heading;
    let on = match &report.platform {
        Some(platform) => {
            let cores = match (platform.cores, platform.clock_hz) {
                (Some(cores), Some(hertz)) => {
                    format!(
                        " ({} cores at {} GHz)",
                        format_thousands(cores.into()),
                        hertz / 1e9
                    )
                }
                _ => String::new(),
            };
            let npus = match platform.npus {
                Some(npus) => format!(" ({} NPUs)", format_thousands(npus.into())),
                None => String::new(),
            };
            format!(" on {}{cores}{npus}", platform.name)
        }
        None => String::new(),
    };
    let several = match report.processors {
        1 => String::new(),
        count => format!(", {} processors", format_thousands(count.into())),
    };
    let head = format!("{}{on}{several}, seed {}", report.scenario, report.seed);
    writeln!(out, "{}", style.clip_line(&head, 0))?;
    let plain = anstyle::Style::new();
    write_paragraph(out, &report.arrivals, "  arrivals  ", 12, plain)?;
    write_paragraph(out, &report.policy, "  policy    ", 12, plain)?;
    let warmup = match report.warmup {
        0 => "no warm-up".to_owned(),
        count => format!(
            "a warm-up of {} requests is not counted",
            format_thousands(count)
        ),
    };
    let ends = format!(
        "{}; {} arrived, {} complete; {warmup}; window 0 to {}",
        report.stop,
        format_thousands(report.arrived),
        format_thousands(report.completed),
        report.window
    );
    write_paragraph(out, &ends, "  ends      ", 12, plain)?;
    let load = match report.offered_load {
        Some(load) => format!("rho {load:.3} (work that arrives over what can be done)"),
        None => "rho is not known: users wait for answers, or arrivals state the work of each"
            .to_owned(),
    };
    let what = match &report.platform {
        Some(platform) if platform.cores.is_none() => "processors",
        _ => "cores",
    };
    let load = format!(
        "{load}; {what} busy for {} of the window",
        format_percent(report.mean_utilisation())
    );
    write_paragraph(out, &load, "  load      ", 12, plain)?;
    for warning in &report.warnings {
        write_paragraph(out, warning, "  ! ", 4, style.warning)?;
    }
    write_serve_time_table(out, report, style)?;
    write_serve_time_parts(out, report, style)?;
    write_queued_and_active_counts(out, report, style)?;
    if report.processors > 1 {
        let table = TextTable::new([
            left_aligned_column("PROCESSOR", 14),
            right_aligned_column("busy", 10),
        ]);
        table.write_heading(out, style)?;
        for (number, busy) in report.utilisation.iter().enumerate().take(8) {
            table.write_row(out, &[&number, &format_percent(*busy)])?;
        }
        if report.utilisation.len() > 8 {
            writeln!(
                out,
                "  … {} more in {} json",
                report.utilisation.len() - 8,
                SettingKey::Format
            )?;
        }
    }
    writeln!(
        out,
        "\n{h}CHECKED{h:#}  Little's law, conservation of work, and that parts sum to serve times"
    )
}

pub(super) fn row_name(row: &RequestGroupResultsRow) -> String {
    match row.kind {
        RequestGroupKind::Class => format!("class {}", row.name),
        _ => row.name.clone(),
    }
}

/// Returns the maximum width of names at which the widest table still fits.
pub(super) fn max_name_width_that_fits(style: TextStyleWidthAndDetail) -> usize {
    16 + style.width.saturating_sub(WIDTH)
}

/// Returns the width of the column that shows the names of `rows`, at least `least`.
pub(super) fn name_column_width(
    rows: &[RequestGroupResultsRow],
    style: TextStyleWidthAndDetail,
    least: usize,
) -> usize {
    let widths = rows.iter().map(|row| {
        style
            .clip_to_width(&row_name(row), max_name_width_that_fits(style))
            .chars()
            .count()
    });
    widths.max().unwrap_or(0).max(least)
}

fn write_serve_time_table(
    out: &mut String,
    report: &ServeReport,
    style: TextStyleWidthAndDetail,
) -> Result {
    let names = name_column_width(&report.rows, style, 16);
    let limits = report.rows.iter().any(|row| row.attained.is_some());
    let table = TextTable::new([
        left_aligned_column("SERVE TIME", names + 2),
        right_aligned_column("requests", 10),
        right_aligned_column("/s", 10),
        right_aligned_column("mean", 12),
        right_aligned_column("± 95 %", 12),
        right_aligned_column("p50", 12),
        right_aligned_column("p90", 12),
        right_aligned_column("p99", 12),
    ]);
    table.write_heading(out, style)?;
    for row in &report.rows {
        let at = |i: usize| format_or_dash(row.percentiles.get(i).map(|one| one.value));
        table.write_row(
            out,
            &[
                &style.clip_to_width(&row_name(row), max_name_width_that_fits(style)),
                &format_thousands(row.completed),
                &format_rate(row.throughput_per_s),
                &format_or_dash(row.mean.map(|mean| mean.value)),
                &format_or_dash(row.mean.and_then(|mean| mean.plus_minus)),
                &at(0),
                &at(1),
                &at(3),
            ],
        )?;
    }
    let table = TextTable::new([
        left_aligned_column("PERCENTILES", names + 2),
        right_aligned_column("alone", 12),
        right_aligned_column("p50 ±", 12),
        right_aligned_column("p90 ±", 12),
        right_aligned_column("p95", 12),
        right_aligned_column("p95 ±", 12),
        right_aligned_column("p99 ±", 12),
    ]);
    table.write_heading(out, style)?;
    for row in &report.rows {
        let half = |i: usize| format_or_dash(row.percentiles.get(i).and_then(|one| one.plus_minus));
        let p95 = format_or_dash(row.percentiles.get(2).map(|one| one.value));
        table.write_row(
            out,
            &[
                &style.clip_to_width(&row_name(row), max_name_width_that_fits(style)),
                &format_or_dash(row.alone),
                &half(0),
                &half(1),
                &p95,
                &half(2),
                &half(3),
            ],
        )?;
    }
    writeln!(
        out,
        "  alone: with nothing else to serve; p50: half take no longer; ±: half width of a 95 % interval"
    )?;
    if limits {
        let limit = match report.slo {
            Some(slo) => format!("WITHIN {slo}"),
            None => "BY DEADLINE".to_owned(),
        };
        let table = TextTable::new([
            left_aligned_column(&limit, names.max(20) + 2),
            right_aligned_column("share", 10),
            right_aligned_column("goodput /s", 14),
        ]);
        table.write_heading(out, style)?;
        for row in &report.rows {
            if let (Some(share), Some(goodput)) = (row.attained, row.goodput_per_s) {
                table.write_row(
                    out,
                    &[
                        &style.clip_to_width(&row_name(row), max_name_width_that_fits(style)),
                        &format_percent(share),
                        &format_rate(goodput),
                    ],
                )?;
            }
        }
        writeln!(out, "  goodput: requests per second that are in time")?;
    }
    Ok(())
}

fn write_serve_time_parts(
    out: &mut String,
    report: &ServeReport,
    style: TextStyleWidthAndDetail,
) -> Result {
    let names = name_column_width(&report.rows, style, 16);
    let table = TextTable::new([
        left_aligned_column("WHERE TIME WENT", names + 2),
        right_aligned_column("datapath", 14),
        right_aligned_column("queue", 14),
        right_aligned_column("compute", 14),
        right_aligned_column("preempted", 14),
        right_aligned_column("serve, mean", 16),
    ]);
    table.write_heading(out, style)?;
    for row in &report.rows {
        let mean = |part: WideTimeSum| -> Span { row.mean_part_time(part) };
        let parts = &row.parts;
        table.write_row(
            out,
            &[
                &style.clip_to_width(&row_name(row), max_name_width_that_fits(style)),
                &mean(parts.datapath_ps),
                &mean(parts.queue_ps),
                &mean(parts.compute_ps),
                &mean(parts.preempted_ps),
                &mean(parts.serve_ps),
            ],
        )?;
    }
    if report.preemptions > 0 {
        writeln!(
            out,
            "  {} preemptions",
            format_thousands(report.preemptions)
        )?;
    }
    Ok(())
}

fn write_queued_and_active_counts(
    out: &mut String,
    report: &ServeReport,
    style: TextStyleWidthAndDetail,
) -> Result {
    let table = TextTable::new([
        left_aligned_column("REQUESTS", 18),
        right_aligned_column("mean", 14),
        right_aligned_column("most", 12),
        right_aligned_column("at the end", 14),
    ]);
    table.write_heading(out, style)?;
    for (name, level) in [("queued", &report.queue), ("in the system", &report.active)] {
        let last = level.means.last().copied().unwrap_or(0.0);
        table.write_row(
            out,
            &[
                &name,
                &format!("{:.3}", level.mean),
                &format_thousands(level.most),
                &format!("{last:.3}"),
            ],
        )?;
    }
    Ok(())
}
