//! Sections of a page about memory, communication and operators.

use super::format_axis_time;
use super::page::{escape_html, render_figure, render_figure_with_scale, shorten_name as page_cut};
use crate::Report;
use crate::collectives::GroupCollectiveTotals;
use crate::collectives::table::row_indices_shown_as_one_table_row;
use crate::draw::lines::{self, StepChartLine};
use crate::draw::map;
use crate::draw::roofline::{self, RooflinePeakRates};
use crate::draw::scatter::{self, ScatterPoint};
use crate::memory::group_equal_memory_rows;
use crate::npus::format_rank_span;
use crate::operators::table::{combine_operator_families, format_rate};
use crate::summary::format_thousands;
use crate::text::format_share;
use chakram_base::units::{Bytes, Span};
use chakram_trace::graph::NodeKind;

/// Renders the section about memory: memory over time, and peaks.
pub fn render_memory_section(report: &Report) -> String {
    if report.memory.is_empty() {
        return String::new();
    }
    let mut body = String::new();
    if let Some(pictures) = report
        .pictures
        .as_ref()
        .filter(|all| !all.memory.is_empty())
    {
        let runs = group_equal_memory_rows(&report.memory);
        let series = pictures.memory.iter().map(|curve| StepChartLine {
            label: {
                let mut runs = runs.iter();
                let own = runs.find(|(_, run)| run.iter().any(|row| row.rank == curve.rank));
                match own {
                    Some((_, run)) if run.len() > 1 => {
                        let ranks: Vec<_> = run.iter().map(|row| row.rank).collect();
                        format!("ranks {}", format_rank_span(&ranks))
                    }
                    _ => format!("rank {}", curve.rank),
                }
            },
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
        let picture = lines::draw_lines(
            "Memory over time",
            &series,
            (end, limit),
            (&format_axis_time, &bytes),
        );
        let legend: Vec<_> = series
            .iter()
            .enumerate()
            .map(|(i, one)| (lines::colour_of_line(i), &one.label[..]))
            .collect();
        body += &render_figure(
            &picture,
            &legend,
            &format!(
                "Bytes that nodes have allocated and not freed, of one of ranks that are alike, the fullest first; a \
                 dashed line is the capacity.{}",
                if runs.len() > series.len() {
                    format!(
                        " {} of {} classes of ranks are drawn.",
                        series.len(),
                        runs.len()
                    )
                } else {
                    String::new()
                }
            ),
        );
    }
    body
}

/// Maximum number of collectives drawn as points.
const POINTS: usize = 512;

/// Renders the section about collectives: bus bandwidth over buffer size, with one point per table row.
pub fn plot_collective_bus_bandwidth(report: &Report) -> String {
    if report.collectives.is_empty() {
        return String::new();
    }
    let together = row_indices_shown_as_one_table_row(&report.collectives);
    let points = together.iter().take(POINTS).filter_map(|indices| {
        let groups = || indices.iter().map(|&i| &report.collectives[i]);
        let first = groups().next()?;
        let mut sum = GroupCollectiveTotals::default();
        for group in groups() {
            sum.calls += group.tally.calls;
            sum.buffers.sum = sum.buffers.sum.saturating_add(group.tally.buffers.sum);
            sum.transfer += group.tally.transfer;
        }
        let mean = sum.buffers.sum / sum.calls.max(1);
        let bus = sum.bus_bandwidth(first.kind, first.members);
        let bus = bus.filter(|bus| *bus > 0.0)?;
        Some(ScatterPoint {
            x: mean as f64,
            y: bus,
            series: first.kind as usize % 8,
            title: format!(
                "{} of {}: {} a call, {:.1} GB/s",
                first.kind,
                page_cut(first.role.as_ref().unwrap_or(&first.group)),
                Bytes(mean),
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
        let picture =
            scatter::draw_logarithmic_scatter("Collectives", &points, names, (&bytes, &rate));
        let left_out = match together.len().saturating_sub(POINTS) {
            0 => String::new(),
            more => format!(" {} rows more are left out.", format_thousands(more as u64)),
        };
        let caption = format!("One point for each row of the table.{left_out}");
        body += &render_figure(&picture, &legend, &caption);
    }
    body
}

/// Renders the section about bytes sent between ranks.
pub fn render_traffic_section(report: &Report) -> String {
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
    let picture = map::draw_heat_map("Bytes between ranks", &traffic.bytes, &label, &describe);
    let most = traffic.bytes.iter().flatten().copied().max().unwrap_or(0);
    let scale = [0, most / 2, most].map(|bytes| Bytes(bytes).to_string());
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
        render_figure_with_scale(&picture, &scale, &caption)
    )
}

/// Renders a roofline with the kernels and their NPUs' peak rates. There is one point for each table row. A note states
/// how many kernels are missing because their FLOPs or bytes are unknown.
pub fn render_roofline_section(report: &Report) -> String {
    let rooflines = report.pictures.as_ref();
    let rooflines = rooflines.map_or(&[][..], |pictures| &pictures.rooflines);
    let kernels = combine_operator_families(&report.operators).into_iter();
    let kernels: Vec<_> = kernels.filter(|of| of.kind == NodeKind::Compute).collect();
    let whole: Span = kernels.iter().map(|of| of.total).sum();
    let points = kernels.iter().filter_map(|of| {
        let (flops, bytes, rate) = (of.flops?, of.bytes?, of.flops_per_s()?);
        let x = flops as f64 / bytes as f64;
        Some((
            of.total,
            ScatterPoint {
                x,
                y: rate,
                series: 0,
                title: format!(
                    "{}: {}FLOP/s, {}B/s, {x:.1} FLOPs per byte; {} in {} calls, {} of kernels",
                    page_cut(&of.name),
                    format_rate(rate),
                    format_rate(of.bytes_per_s().unwrap_or(0.0)),
                    of.total,
                    of.calls,
                    format_share(of.total, whole)
                ),
            },
        ))
    });
    let points: Vec<_> = points.collect();
    if points.is_empty() {
        return String::new();
    }
    let known: Span = points.iter().map(|(time, _)| *time).sum();
    let mut roofs: Vec<RooflinePeakRates> = Vec::new();
    for of in rooflines {
        for peak in &of.peaks {
            let same = |roof: &&mut RooflinePeakRates| {
                (roof.bytes_per_s, roof.flops_per_s) == (of.memory_bytes_per_s, peak.flops_per_s)
            };
            let name = format!("{} {}", of.class, peak.dtype);
            match roofs.iter_mut().find(same) {
                Some(roof) => roof.name = format!("{name}, {}", roof.name),
                None => roofs.push(RooflinePeakRates {
                    name,
                    bytes_per_s: of.memory_bytes_per_s,
                    flops_per_s: peak.flops_per_s,
                }),
            }
        }
    }
    for roof in &mut roofs {
        roof.name += &format!(
            ": {}FLOP/s, memory {}B/s",
            format_rate(roof.flops_per_s),
            format_rate(roof.bytes_per_s)
        );
    }
    // Draw the longest-running kernels last, so that they are on top.
    let drawn: Vec<_> = points.into_iter().rev().map(|(_, point)| point).collect();
    let rate = |rate: f64| format!("{}FLOP/s", format_rate(rate));
    let intensity = |value: f64| match value < 1.0 {
        true => format!("{value}"),
        false => format_rate(value).replace(".0", "").trim_end().to_owned(),
    };
    let picture = roofline::draw_roofline("Roofline", &drawn, &roofs, (&intensity, &rate));
    let caption = format!(
        "One point for each kernel, folded over layers, micro-batches and ranks; lines are the peaks that the machine states. \
         Kernels with known FLOPs and bytes are {} of the time of kernels.",
        format_share(known, whole)
    );
    format!(
        "<h3>Kernels under the roofline</h3>{}",
        render_figure(&picture, &[], &escape_html(&caption))
    )
}
