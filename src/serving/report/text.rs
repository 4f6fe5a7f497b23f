//! Renders a report as text of at most 100 columns.

use super::{ServeReport, ServeRow, ServeRowKind, TimeSum};
use chakram_base::setting::SettingKey;
use chakram_base::units::{Span, percent, thousands};
use chakram_report::table::{TextTable, left, right};
use chakram_report::text::{TextStyle, WIDTH, paragraph};
use std::fmt::{Display, Result, Write};

/// Renders `report`.
pub fn render(report: &ServeReport, style: TextStyle) -> String {
    let mut out = String::new();
    write_all(&mut out, report, style).expect("a string grows as needed");
    out
}

/// Formats a number per second.
pub(super) fn format_rate(per_second: f64) -> String {
    match per_second {
        rate if rate >= 1e6 => format!("{rate:.3e}"),
        rate if rate >= 1000.0 => thousands(rate.round() as u64),
        rate => format!("{rate:.3}"),
    }
}

/// Formats a value; `None` becomes a dash.
pub(super) fn or_dash(value: Option<impl Display>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

fn write_all(out: &mut String, report: &ServeReport, style: TextStyle) -> Result {
    let h = style.heading;
    let on = match &report.platform {
        Some(platform) => {
            let cores = match (platform.cores, platform.clock_hz) {
                (Some(cores), Some(hertz)) => {
                    format!(
                        " ({} cores at {} GHz)",
                        thousands(cores.into()),
                        hertz / 1e9
                    )
                }
                _ => String::new(),
            };
            let npus = match platform.npus {
                Some(npus) => format!(" ({} NPUs)", thousands(npus.into())),
                None => String::new(),
            };
            format!(" on {}{cores}{npus}", platform.name)
        }
        None => String::new(),
    };
    let several = match report.processors {
        1 => String::new(),
        count => format!(", {} processors", thousands(count.into())),
    };
    let head = format!("{}{on}{several}, seed {}", report.scenario, report.seed);
    writeln!(out, "{}", style.clip_line(&head, 0))?;
    let plain = anstyle::Style::new();
    paragraph(out, &report.arrivals, "  arrivals  ", 12, plain)?;
    paragraph(out, &report.policy, "  policy    ", 12, plain)?;
    let warmup = match report.warmup {
        0 => "no warm-up".to_owned(),
        count => format!("a warm-up of {} requests is not counted", thousands(count)),
    };
    let ends = format!(
        "{}; {} arrived, {} complete; {warmup}; window 0 to {}",
        report.stop,
        thousands(report.arrived),
        thousands(report.completed),
        report.window
    );
    paragraph(out, &ends, "  ends      ", 12, plain)?;
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
        percent(report.mean_utilisation())
    );
    paragraph(out, &load, "  load      ", 12, plain)?;
    for warning in &report.warnings {
        paragraph(out, warning, "  ! ", 4, style.warning)?;
    }
    write_times(out, report, style)?;
    write_parts(out, report, style)?;
    write_levels(out, report, style)?;
    if report.processors > 1 {
        let table = TextTable::new([left("PROCESSOR", 14), right("busy", 10)]);
        table.heading(out, style)?;
        for (number, busy) in report.utilisation.iter().enumerate().take(8) {
            table.row(out, &[&number, &percent(*busy)])?;
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

/// Returns the name of a row.
pub(super) fn row_name(row: &ServeRow) -> String {
    match row.kind {
        ServeRowKind::Class => format!("class {}", row.name),
        _ => row.name.clone(),
    }
}

/// Returns the maximum width of a name, so that the widest table fits.
pub(super) fn longest_name(style: TextStyle) -> usize {
    16 + style.width.saturating_sub(WIDTH)
}

/// Returns the width of the column with the names of `rows`, which is at least `least`.
pub(super) fn name_width(rows: &[ServeRow], style: TextStyle, least: usize) -> usize {
    let widths = rows.iter().map(|row| {
        style
            .clip(&row_name(row), longest_name(style))
            .chars()
            .count()
    });
    widths.max().unwrap_or(0).max(least)
}

fn write_times(out: &mut String, report: &ServeReport, style: TextStyle) -> Result {
    let names = name_width(&report.rows, style, 16);
    let limits = report.rows.iter().any(|row| row.attained.is_some());
    let table = TextTable::new([
        left("SERVE TIME", names + 2),
        right("requests", 10),
        right("/s", 10),
        right("mean", 12),
        right("± 95 %", 12),
        right("p50", 12),
        right("p90", 12),
        right("p99", 12),
    ]);
    table.heading(out, style)?;
    for row in &report.rows {
        let at = |i: usize| or_dash(row.percentiles.get(i).map(|one| one.value));
        table.row(
            out,
            &[
                &style.clip(&row_name(row), longest_name(style)),
                &thousands(row.completed),
                &format_rate(row.throughput_per_s),
                &or_dash(row.mean.map(|mean| mean.value)),
                &or_dash(row.mean.and_then(|mean| mean.plus_minus)),
                &at(0),
                &at(1),
                &at(3),
            ],
        )?;
    }
    let table = TextTable::new([
        left("PERCENTILES", names + 2),
        right("alone", 12),
        right("p50 ±", 12),
        right("p90 ±", 12),
        right("p95", 12),
        right("p95 ±", 12),
        right("p99 ±", 12),
    ]);
    table.heading(out, style)?;
    for row in &report.rows {
        let half = |i: usize| or_dash(row.percentiles.get(i).and_then(|one| one.plus_minus));
        let p95 = or_dash(row.percentiles.get(2).map(|one| one.value));
        table.row(
            out,
            &[
                &style.clip(&row_name(row), longest_name(style)),
                &or_dash(row.alone),
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
            left(&limit, names.max(20) + 2),
            right("share", 10),
            right("goodput /s", 14),
        ]);
        table.heading(out, style)?;
        for row in &report.rows {
            if let (Some(share), Some(goodput)) = (row.attained, row.goodput_per_s) {
                table.row(
                    out,
                    &[
                        &style.clip(&row_name(row), longest_name(style)),
                        &percent(share),
                        &format_rate(goodput),
                    ],
                )?;
            }
        }
        writeln!(out, "  goodput: requests per second that are in time")?;
    }
    Ok(())
}

fn write_parts(out: &mut String, report: &ServeReport, style: TextStyle) -> Result {
    let names = name_width(&report.rows, style, 16);
    let table = TextTable::new([
        left("WHERE TIME WENT", names + 2),
        right("datapath", 14),
        right("queue", 14),
        right("compute", 14),
        right("preempted", 14),
        right("serve, mean", 16),
    ]);
    table.heading(out, style)?;
    for row in &report.rows {
        let mean = |part: TimeSum| -> Span { row.mean_part(part) };
        let parts = &row.parts;
        table.row(
            out,
            &[
                &style.clip(&row_name(row), longest_name(style)),
                &mean(parts.datapath_ps),
                &mean(parts.queue_ps),
                &mean(parts.compute_ps),
                &mean(parts.preempted_ps),
                &mean(parts.serve_ps),
            ],
        )?;
    }
    if report.preemptions > 0 {
        writeln!(out, "  {} preemptions", thousands(report.preemptions))?;
    }
    Ok(())
}

fn write_levels(out: &mut String, report: &ServeReport, style: TextStyle) -> Result {
    let table = TextTable::new([
        left("REQUESTS", 18),
        right("mean", 14),
        right("most", 12),
        right("at the end", 14),
    ]);
    table.heading(out, style)?;
    for (name, level) in [("queued", &report.queue), ("in the system", &report.active)] {
        let last = level.means.last().copied().unwrap_or(0.0);
        table.row(
            out,
            &[
                &name,
                &format!("{:.3}", level.mean),
                &thousands(level.most),
                &format!("{last:.3}"),
            ],
        )?;
    }
    Ok(())
}
