//! Sections of a page about memory, communication and operators.

use super::axis_time;
use super::page::figure;
use crate::Report;
use crate::draw::lines::{self, LineSeries};
use crate::draw::map;
use crate::draw::scatter::{self, ScatterPoint};
use chakram_base::units::Bytes;

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
    body
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
    body
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
    format!(
        "<div id=\"traffic\"><h3>Communication matrix</h3>{}</div>",
        figure(&picture, &[], &caption)
    )
}
