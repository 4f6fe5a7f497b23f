//! Compares a scenario on several platforms, or at several rates.

use super::text::{
    format_or_dash, format_rate, max_name_width_that_fits, name_column_width, row_name,
};
use super::{RequestGroupKind, RequestGroupResultsRow, ServeReport};
use chakram_base::units::format_percent;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::{TextStyleWidthAndDetail, write_paragraph};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Results of a scenario at several rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ArrivalRateSweepResults {
    /// Results at each rate, in ascending order.
    pub points: Vec<ArrivalRateResult>,
    /// Highest rate at which enough requests meet their limit; `None` if the capacity was not
    /// computed.
    pub capacity: Option<ServeCapacity>,
}

/// Results at one rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ArrivalRateResult {
    /// Arrivals per second.
    pub rate_per_s: f64,
    /// Results of the run at this rate.
    pub report: ServeReport,
}

/// The processors' capacity, bracketed by two tried rates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ServeCapacity {
    /// Highest tried rate at which enough requests met their limit.
    pub rate_per_s: f64,
    /// Lowest tried rate at which too few requests met the limit.
    pub too_much_per_s: f64,
    /// Fraction of the requests that must meet their limit.
    pub attain: f64,
}

impl ArrivalRateSweepResults {
    /// Returns the name of the platform; `processors` if there is no platform.
    pub fn platform_name(&self) -> &str {
        let first = self.points.first();
        let platform = first.and_then(|point| point.report.platform.as_ref());
        platform.map_or("processors", |platform| &platform.name)
    }
}

/// Renders the reports of one scenario on several platforms, side by side.
pub fn render_platforms_side_by_side(
    reports: &[ServeReport],
    style: TextStyleWidthAndDetail,
) -> String {
    let mut out = String::new();
    let Some(first) = reports.first() else {
        return out;
    };
    let put = "a string grows as needed";
    writeln!(
        out,
        "{}, seed {}: {}",
        first.scenario, first.seed, first.arrivals
    )
    .expect(put);
    let names: Vec<String> = reports
        .iter()
        .map(|report| {
            let platform = report.platform.as_ref();
            style.clip_to_width(platform.map_or("-", |platform| &platform.name), 13)
        })
        .collect();
    let width = name_column_width(&first.rows, style, 18);
    let columns = |heading: &'static str| {
        let mut columns = vec![left_aligned_column(heading, width + 2)];
        columns.extend(
            names
                .iter()
                .map(|name| right_aligned_column(name, name.chars().count().max(13) + 2)),
        );
        TextTable::new(columns)
    };
    let mut row = |table: &TextTable<'_>, label: &str, cells: Vec<String>| {
        let mut all: Vec<&dyn std::fmt::Display> = vec![&label];
        all.extend(cells.iter().map(|cell| cell as &dyn std::fmt::Display));
        out += &table.render_line(&all, anstyle::Style::new());
    };
    let heads = names.clone();
    let blank = TextTable::new([left_aligned_column("", 0)]).with_indent(0);
    row(&blank, "", Vec::new());
    row(&columns("").with_indent(0), "MEAN SERVE TIME", heads);
    for (i, of) in first.rows.iter().enumerate() {
        let cells = reports.iter().map(|report| {
            let mean = report.rows.get(i).and_then(|row| row.mean);
            format_or_dash(mean.map(|mean| mean.value))
        });
        row(
            &columns(""),
            &style.clip_to_width(&row_name(of), max_name_width_that_fits(style)),
            cells.collect(),
        );
    }
    let limited = |row: &RequestGroupResultsRow| row.attained.is_some();
    if reports.iter().any(|report| report.rows.iter().any(limited)) {
        let heading = match first.slo {
            Some(slo) => format!("WITHIN {slo}"),
            None => "BY DEADLINE".to_owned(),
        };
        row(&blank, "", Vec::new());
        row(&columns("").with_indent(0), &heading, names.clone());
        for (i, of) in first.rows.iter().enumerate() {
            let rows: Vec<_> = reports.iter().map(|report| report.rows.get(i)).collect();
            if rows.iter().flatten().any(|row| limited(row)) {
                let attained = |row: &Option<&RequestGroupResultsRow>| {
                    format_or_dash(row.and_then(|row| row.attained).map(format_percent))
                };
                let cells = rows.iter().map(attained).collect();
                row(
                    &columns(""),
                    &style.clip_to_width(&row_name(of), max_name_width_that_fits(style)),
                    cells,
                );
            }
        }
        let goodput = |report: &ServeReport| {
            format_or_dash(
                report
                    .row_of_all_models()
                    .and_then(|all| all.goodput_per_s)
                    .map(format_rate),
            )
        };
        row(
            &columns(""),
            "goodput /s",
            reports.iter().map(goodput).collect(),
        );
    }
    type ReportLine = (&'static str, fn(&ServeReport) -> String);
    let lines: [ReportLine; 4] = [
        ("p99 of all", |report| {
            let last = report
                .row_of_all_models()
                .and_then(|all| all.percentiles.last());
            format_or_dash(last.map(|one| one.value))
        }),
        ("cores busy", |report| {
            format_percent(report.mean_utilisation())
        }),
        ("rho", |report| {
            format_or_dash(report.offered_load.map(|load| format!("{load:.3}")))
        }),
        ("last completion", |report| report.window.to_string()),
    ];
    row(&blank, "", Vec::new());
    for (label, of) in lines {
        row(&columns(""), label, reports.iter().map(of).collect());
    }
    for report in reports {
        for warning in &report.warnings {
            let platform = report
                .platform
                .as_ref()
                .map_or("", |platform| &platform.name);
            let text = format!("{platform}: {warning}");
            write_paragraph(&mut out, &text, "  ! ", 4, style.warning).expect(put);
        }
    }
    out
}

/// Renders the reports of one scenario at several rates.
pub fn render_rate_sweep(
    sweep: &ArrivalRateSweepResults,
    style: TextStyleWidthAndDetail,
) -> String {
    let mut out = String::new();
    let put = "a string grows as needed";
    if let Some(first) = sweep.points.first() {
        let on = first.report.platform.as_ref();
        let on = on.map_or(String::new(), |platform| format!(" on {}", platform.name));
        let head = format!("{}{on}, {}", first.report.scenario, first.report.policy);
        writeln!(out, "{head}").expect(put);
    }
    let table = TextTable::new([
        left_aligned_column("ARRIVALS /s", 14),
        right_aligned_column("rho", 8),
        right_aligned_column("busy", 9),
        right_aligned_column("done /s", 11),
        right_aligned_column("mean", 12),
        right_aligned_column("± 95 %", 12),
        right_aligned_column("p50", 11),
        right_aligned_column("p99", 12),
        right_aligned_column("attained", 10),
    ]);
    out += &table.render_empty_line_and_headings(style);
    for point in &sweep.points {
        let report = &point.report;
        let Some(all) = report.row_of_all_models() else {
            continue;
        };
        let at = |i: usize| format_or_dash(all.percentiles.get(i).map(|one| one.value));
        let load = report.offered_load;
        let cells: [String; 9] = [
            format_rate(point.rate_per_s),
            format_or_dash(load.map(|load| format!("{load:.3}"))),
            format_percent(report.mean_utilisation()),
            format_rate(all.throughput_per_s),
            format_or_dash(all.mean.map(|mean| mean.value)),
            format_or_dash(all.mean.and_then(|mean| mean.plus_minus)),
            at(0),
            at(3),
            format_or_dash(all.attained.map(format_percent)),
        ];
        let cells = cells.each_ref().map(|cell| cell as &dyn std::fmt::Display);
        let over = load.is_some_and(|load| load >= 1.0);
        let style = if over {
            style.warning
        } else {
            anstyle::Style::new()
        };
        out += &table.render_line(&cells, style);
    }
    if let Some(capacity) = &sweep.capacity {
        writeln!(
            out,
            "\nCAPACITY  {} requests/s with {} within their limit; at {} fewer are",
            format_rate(capacity.rate_per_s),
            format_percent(capacity.attain),
            format_rate(capacity.too_much_per_s)
        )
        .expect(put);
    }
    let over = sweep
        .points
        .iter()
        .filter(|p| p.report.offered_load.is_some_and(|load| load >= 1.0));
    if over.count() > 0 {
        let text = "where rho is 1 or more, times grow with the length of the run and do not characterize the system";
        write_paragraph(&mut out, text, "  ! ", 4, style.warning).expect(put);
    }
    out
}

/// Returns true if a row describes a model.
pub(super) fn is_model_row(kind: RequestGroupKind) -> bool {
    kind == RequestGroupKind::Model
}
