//! Sections of a page about memory, communication and operators.

use super::page::{figure, number, section, table, text};
use super::sections::{LONGEST, ROWS};
use super::{axis_time, span};
use crate::Report;
use crate::draw::lines::{self, LineSeries};
use crate::draw::map;
use crate::draw::scatter::{self, ScatterPoint};
use crate::summary::{kind_label, thousands};
use chakram_base::units::Bytes;
use std::cmp::Reverse;

/// Memory over time, and peaks.
pub fn memory(report: &Report) -> String {
    if report.memory.is_empty() {
        return String::new();
    }
    let mut body = String::new();
    if let Some(pictures) = report
        .pictures
        .as_ref()
        .filter(|all| !all.memory.is_empty())
    {
        let series = pictures.memory.iter().map(|curve| LineSeries {
            label: format!("rank {}", curve.rank),
            points: curve
                .points
                .iter()
                .map(|(at, bytes)| (at.0, bytes.0))
                .collect(),
        });
        let series: Vec<_> = series.collect();
        let limit = pictures
            .memory
            .iter()
            .filter_map(|curve| Some(curve.capacity?.0))
            .min();
        let bytes = |bytes: f64| Bytes(bytes as u64).to_string();
        let end = report.outcome.makespan.0;
        let picture = lines::chart(
            "Memory over time",
            &series,
            (end, limit),
            (&axis_time, &bytes),
        );
        let legend: Vec<_> = series
            .iter()
            .enumerate()
            .map(|(i, one)| (i % 8, &one.label[..]))
            .collect();
        body += &figure(
            &picture,
            &legend,
            "Bytes that nodes have allocated and not freed; of ranks that are alike the first.",
        );
    }
    let rows = report.memory.iter().take(ROWS).zip(0..).map(|(row, i)| {
        let at = |field: &str| format!("/memory/npus/{i}/{field}");
        let bytes = |field: &str, bytes: Bytes| number(&at(field), bytes.0, &bytes.to_string());
        let fits = match row.fits {
            Some(true) => "fits",
            Some(false) => "does not fit",
            None => "",
        };
        vec![
            format!("rank {}", row.rank),
            bytes("peak_bytes", row.peak),
            row.capacity.map_or("unknown".to_owned(), |capacity| {
                bytes("capacity_bytes", capacity)
            }),
            row.percent_text(),
            fits.to_owned(),
        ]
    });
    body += &table(
        &["memory", "peak", "capacity", "share", ""],
        &rows.collect::<Vec<_>>(),
    );
    section("Memory", "memory", &body)
}

/// Collectives by group and kind: size against bus bandwidth, and the table.
pub fn collectives(report: &Report) -> String {
    if report.collectives.is_empty() {
        return String::new();
    }
    let points = report.collectives.iter().filter_map(|row| {
        let mean = row.tally.buffers.sum / row.tally.calls.max(1);
        let bus = row.bus.filter(|bus| *bus > 0.0)?;
        let size = Bytes(mean);
        Some(ScatterPoint {
            x: mean as f64,
            y: bus,
            series: row.kind as usize % 8,
            title: format!(
                "{} of {}: {size} a call, {:.1} GB/s",
                row.kind,
                row.group,
                bus / 1e9
            ),
        })
    });
    let points: Vec<_> = points.filter(|point| point.x > 0.0).collect();
    let mut body = String::new();
    if !points.is_empty() {
        let kinds = report
            .collectives
            .iter()
            .map(|row| (row.kind as usize % 8, row.kind));
        let mut kinds: Vec<_> = kinds
            .map(|(series, kind)| (series, kind.to_string()))
            .collect();
        kinds.sort();
        kinds.dedup();
        let legend: Vec<_> = kinds
            .iter()
            .map(|(series, name)| (*series, &name[..]))
            .collect();
        let bytes = |bytes: f64| Bytes(bytes as u64).to_string();
        let rate = |rate: f64| format!("{}/s", Bytes(rate as u64));
        let names = ("mean buffer of a call", "bus bandwidth");
        let picture = scatter::chart("Collectives", &points, names, (&bytes, &rate));
        body += &figure(&picture, &legend, "One point for each kind and group.");
    }
    let rows = report
        .collectives
        .iter()
        .take(ROWS)
        .zip(0..)
        .map(|(row, i)| {
            let at = |field: &str| format!("/collectives/{i}/{field}");
            let sum = row.tally.buffers.sum;
            vec![
                text(&format!("{}, {}: {}", row.kind, row.group, row.algorithm)),
                number(&at("calls"), row.tally.calls, &thousands(row.tally.calls)),
                number(&at("buffer_bytes/sum"), sum, &Bytes(sum).to_string()),
                span(&at("transfer_ps"), row.tally.transfer),
                span(&at("waited_ps_sum_over_members"), row.tally.waited),
            ]
        });
    let heads = [
        "collectives",
        "calls",
        "bytes, all calls",
        "transfer",
        "wait, all members",
    ];
    body += &table(&heads, &rows.collect::<Vec<_>>());
    section("Collectives", "collectives", &body)
}

/// Bytes between ranks.
pub fn traffic(report: &Report) -> String {
    let traffic = report.pictures.as_ref().map(|pictures| &pictures.traffic);
    let Some(traffic) = traffic.filter(|all| all.bytes.iter().flatten().any(|&bytes| bytes > 0))
    else {
        return String::new();
    };
    let label = |cell: usize| {
        let first = cell as u32 * traffic.ranks_per_cell;
        first.to_string()
    };
    let describe = |from: usize, to: usize| {
        let bytes = Bytes(traffic.bytes[from][to]);
        format!("rank {} to rank {}: {bytes}", label(from), label(to))
    };
    let picture = map::chart("Bytes between ranks", &traffic.bytes, &label, &describe);
    let cells = match traffic.ranks_per_cell {
        1 => String::new(),
        several => format!(" A cell stands for {several} ranks."),
    };
    let caption = format!(
        "Senders are rows, receivers columns. What messages carry, and of all-reduces, all-gathers, reduce-scatters \
         and all-to-alls the least that members must exchange, spread evenly.{cells}"
    );
    section(
        "Communication matrix",
        "traffic",
        &figure(&picture, &[], &caption),
    )
}

/// Operators that take longest.
pub fn operators(report: &Report) -> String {
    let rows = report
        .operators
        .iter()
        .take(LONGEST)
        .zip(0..)
        .map(|(row, i)| {
            let at = |field: &str| format!("/operators/{i}/{field}");
            vec![
                text(&row.name),
                kind_label(row.kind).to_owned(),
                number(&at("calls"), row.calls, &thousands(row.calls)),
                span(&at("total_ps"), row.total),
            ]
        });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let table = table(&["slowest operators", "kind", "calls", "total"], &rows);
    section("Operators", "operators", &table)
}

/// Profiled steps, if there are several.
pub fn steps(report: &Report) -> String {
    if report.steps.len() < 2 {
        return String::new();
    }
    let rows = report.steps.iter().take(ROWS).zip(0..).map(|(row, i)| {
        let at = |field: &str| format!("/steps/{i}/{field}");
        vec![
            number(&at("step"), row.step, &row.step.to_string()),
            span(&at("start_ps"), row.start),
            span(&at("time_ps"), row.time),
            span(&at("compute_ps"), row.compute),
            span(&at("exposed_communication_ps"), row.exposed),
            span(&at("communication_ps"), row.communication),
            span(&at("host_ps"), row.host),
            span(&at("idle_ps"), row.idle),
        ]
    });
    let heads = [
        "step",
        "start",
        "time",
        "compute",
        "exposed communication",
        "communication",
        "host",
        "idle",
    ];
    let table = table(&heads, &rows.collect::<Vec<_>>());
    section("Profiled steps", "steps", &table)
}

/// Modules with most time on devices.
pub fn modules(report: &Report) -> String {
    if report.modules.is_empty() {
        return String::new();
    }
    let mut longest: Vec<_> = report.modules.iter().zip(0..).collect();
    // Stable, so that a module stays before those under it that take as long.
    longest.sort_by_key(|(row, _)| Reverse((row.device, row.host)));
    let rows = longest.iter().take(ROWS).map(|(row, i)| {
        let at = |field: &str| format!("/modules/{i}/{field}");
        let name = match row.path.as_str() {
            "" => "(under no module)",
            path => path,
        };
        vec![
            text(name),
            number(&at("calls"), row.calls, &thousands(row.calls)),
            span(&at("device_ps"), row.device),
            span(&at("own_device_ps"), row.own_device),
            span(&at("host_ps"), row.host),
        ]
    });
    let heads = ["module", "calls", "on devices", "its own", "on hosts"];
    let table = table(&heads, &rows.collect::<Vec<_>>());
    section("Modules", "modules", &table)
}
