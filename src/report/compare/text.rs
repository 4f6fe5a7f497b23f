//! Renders the comparison as text of at most 100 columns.

use super::csv::status_word;
use super::explanation::{IndentedLine, explain_makespan_change, format_change_as_percent};
use super::{ComparedMachineResult, MachineComparison, MakespanExplanation};
use crate::NpuTimeCategory;
use crate::Report;
use crate::cost;
use crate::memory::find_rank_with_highest_filled_share;
use crate::summary::format_thousands;
use crate::table::{TextTable, left_aligned_column, right_aligned_column};
use crate::text::{TextStyleWidthAndDetail, WIDTH, format_share, write_paragraph};
use chakram_base::units::{Span, format_given_percent_change};
use chakram_hardware::machine::Machine;
use chakram_trace::format::{Dtype, escape_and_shorten_name};
use std::collections::BTreeMap;
use std::fmt::{Display, Result, Write as _};

/// Width of the column of row names.
const NAMES: usize = 24;
const CELL: usize = 19;
const ABREAST: usize = (WIDTH - NAMES) / CELL;

/// Renders `comparison`. `basis` describes how durations were determined; `notes` are additional sentences.
pub fn render_text(
    comparison: &MachineComparison<'_>,
    basis: &str,
    notes: &[String],
    style: TextStyleWidthAndDetail,
) -> String {
    let mut out = String::new();
    write_comparison(&mut out, comparison, basis, notes, style).expect("a string grows as needed");
    out
}

fn write_comparison(
    out: &mut String,
    comparison: &MachineComparison<'_>,
    basis: &str,
    notes: &[String],
    style: TextStyleWidthAndDetail,
) -> Result {
    let head = format!("{}: {}", comparison.title, format_scope(comparison));
    writeln!(out, "{}", style.clip_line(&head, 0))?;
    writeln!(out, "{basis}")?;
    if let Some(line) = format_captured_end_and_slowest_rank(comparison) {
        writeln!(out, "{line}")?;
    }
    for note in notes {
        write_paragraph(out, note, "  ! ", 4, style.warning)?;
    }
    write_machines(out, comparison, style)?;
    write_table(out, comparison, style)?;
    write_failures(out, comparison, style)?;
    write_reasons(out, comparison, style)?;
    write_warnings(out, comparison, style)
}

/// Formats the scope of the comparison, as in `8 of 8 ranks, 1,024 nodes, on 2 machines`.
pub(super) fn format_scope(comparison: &MachineComparison<'_>) -> String {
    let workload = comparison.workload;
    let instances = workload.instances();
    let nodes = instances.iter().map(|i| workload.graph_of(i).len() as u64);
    format!(
        "{} of {} ranks, {} nodes, on {} machines",
        instances.len(),
        workload.rank_count_including_untraced(),
        format_thousands(nodes.sum()),
        comparison.columns.len()
    )
}

/// Returns a sentence with the end time of the captured run, if the traces record this time.
pub(super) fn format_captured_end_and_slowest_rank(
    comparison: &MachineComparison<'_>,
) -> Option<String> {
    let (_, report) = comparison.reference_machine()?;
    let (captured, slowest) = report.last_captured_end_and_rank()?;
    Some(format!("captured {captured} (slowest rank {slowest})"))
}

fn write_machines(
    out: &mut String,
    comparison: &MachineComparison<'_>,
    style: TextStyleWidthAndDetail,
) -> Result {
    let h = style.heading;
    writeln!(out, "\n{h}MACHINES{h:#}")?;
    let width = comparison.columns.iter().map(|c| c.name.chars().count());
    let width = width.max().unwrap_or(0);
    let width = if style.details {
        width
    } else {
        width.min(CELL)
    };
    for (name, text) in machine_lines(comparison) {
        let name = format!("  {:<width$}  ", style.clip_to_width(name, width));
        write_paragraph(out, &text, &name, width + 4, anstyle::Style::new())?;
    }
    Ok(())
}

/// Returns each machine's name and description.
pub(super) fn machine_lines<'c>(
    comparison: &'c MachineComparison<'_>,
) -> impl Iterator<Item = (&'c str, String)> {
    let dtypes = comparison.kernel_formats();
    let remote = comparison.uses_remote_memory();
    comparison.columns.iter().map(move |column| {
        let mut text = describe_machine_hardware(column.machine, &dtypes);
        let report = column.result.as_ref().ok();
        if let Some(model) = report.and_then(Report::contention_network_model) {
            text += &format!("; network model {model}");
        }
        if let Some(memory) = column.machine.unnamed_remote_memory().filter(|_| remote) {
            text += &format!("; remote memory {memory}");
        }
        for named in column.machine.named_memories().iter().filter(|_| remote) {
            text += &format!(
                "; remote memory {} {}",
                escape_and_shorten_name(&named.name),
                named.memory
            );
        }
        (&*column.name, text)
    })
}

/// Describes a machine, as in `8 NPUs: switch 8 @ 300 GB/s; memory 2 TB/s; bf16 312 TFLOP/s`.
fn describe_machine_hardware(machine: &Machine, dtypes: &[Dtype]) -> String {
    let topology = machine.topology();
    let dimensions = topology.dimensions().iter().filter(|d| d.size > 1);
    let network: Vec<_> = dimensions
        .map(|dimension| {
            let gb = dimension.bandwidth.bytes_per_second() / 1e9;
            format!("{} {} @ {gb} GB/s", dimension.name, dimension.size)
        })
        .collect();
    let mut text = format!("{} NPUs", format_thousands(topology.npu_count().into()));
    if !network.is_empty() {
        text += &format!(": {}", network.join(", "));
    }
    let classes = machine.npu_classes();
    for class in classes {
        let name = match classes.len() {
            1 => String::new(),
            _ => format!("{}: ", class.name),
        };
        let Some(memory) = class.memory_bandwidth() else {
            text += &format!("; {name}NPU not described");
            continue;
        };
        let memory = memory.bytes_per_second() / 1e12;
        text += &format!("; {name}memory {memory} TB/s");
        let peaks = dtypes.iter().map(|&dtype| {
            let (_, name) = Dtype::ALL[dtype as usize];
            match class.peaks.peak_rate_if_supported(dtype) {
                Some(rate) => format!("{name} {} TFLOP/s", rate.per_second() / 1e12),
                None => format!("no {name}"),
            }
        });
        for peak in peaks {
            text += &format!(", {peak}");
        }
    }
    text
}

/// Writes the table. Machines that do not fit side by side go into further tables below.
fn write_table(
    out: &mut String,
    comparison: &MachineComparison<'_>,
    style: TextStyleWidthAndDetail,
) -> Result {
    let rows = build_rows_with_cell_per_machine(comparison);
    if rows.is_empty() {
        return Ok(());
    }
    for (i, columns) in comparison.columns.chunks(ABREAST).enumerate() {
        let names = columns
            .iter()
            .map(|column| style.clip_to_width(&column.name, CELL - 1));
        let names: Vec<String> = names.collect();
        let mut headings = vec![left_aligned_column("MEAN OF NPUs", NAMES)];
        headings.extend(names.iter().map(|name| right_aligned_column(name, CELL)));
        let mut table = TextTable::new(headings).with_indent(0);
        for (name, cells) in &rows {
            let cells = cells.iter().skip(i * ABREAST).take(ABREAST);
            let mut row: Vec<&dyn Display> = vec![name];
            row.extend(cells.map(|cell| cell as &dyn Display));
            table.add_row(&row);
        }
        write!(out, "\n{}", table.to_text(style))?;
        for words in explain_exposed_communication_and_bubble(comparison) {
            writeln!(out, "  {words}")?;
        }
    }
    Ok(())
}

/// Returns the sentences that explain exposed communication and the bubble. A sentence is included only if some machine
/// has such time.
pub(super) fn explain_exposed_communication_and_bubble(
    comparison: &MachineComparison<'_>,
) -> Vec<&'static str> {
    let meanings = [
        (NpuTimeCategory::Communication, NpuTimeCategory::EXPOSED),
        (NpuTimeCategory::Bubble, NpuTimeCategory::BUBBLE),
    ];
    let has = |part: NpuTimeCategory| {
        let mut reports = comparison.replayed_columns();
        reports.any(|(_, report)| report.mean_parts[part as usize] > Span::ZERO)
    };
    let meanings = meanings.into_iter().filter(|(part, _)| has(*part));
    meanings.map(|(_, words)| words).collect()
}

/// Returns the rows of the table. Each has a name, and one cell per machine. A name that begins with spaces marks a
/// part of the row above it. A cell is empty if its machine has no report.
pub(super) fn build_rows_with_cell_per_machine(
    comparison: &MachineComparison<'_>,
) -> Vec<(&'static str, Vec<String>)> {
    let mut rows: Vec<(&'static str, Vec<String>)> = Vec::new();
    if comparison.reference_machine().is_none() {
        return rows;
    }
    let mut put = |name: &'static str, cell: &dyn Fn(&ComparedMachineResult<'_>) -> String| {
        rows.push((name, comparison.columns.iter().map(cell).collect()));
    };
    put("makespan", &|column| match &column.result {
        Ok(report) => report.outcome.makespan.to_string(),
        Err(_) => status_word(column).to_owned(),
    });
    let mut row = |name: &'static str, cell: &dyn Fn(&Report) -> Option<String>| {
        let of = |column: &ComparedMachineResult<'_>| cell(column.result.as_ref().ok()?);
        put(name, &|column| of(column).unwrap_or_else(|| "-".to_owned()))
    };
    let some = |report: &dyn Fn(&Report) -> Span| {
        let mut reports = comparison.replayed_columns();
        reports.any(|(_, r)| report(r) > Span::ZERO)
    };
    let change = |report: &Report| comparison.compare_makespan_with(report);
    row("  speedup", &|report| {
        let speed = change(report).speedup()?;
        Some(format!("{speed:.2}x"))
    });
    // The first column shows the baseline. Its full name is printed above the table, because it may be too long for a
    // row.
    row("  vs. first machine", &|report| {
        format_change_as_percent(&change(report))
    });
    if comparison
        .replayed_columns()
        .any(|(_, r)| r.captured.is_some())
    {
        row("  vs. capture", &|report| {
            report
                .captured_difference_percent()
                .map(format_given_percent_change)
        });
    }
    let with_share = |report: &Report, time: Span| {
        let share = format_share(time, report.outcome.makespan);
        Some(format!("{time} {share:>7}"))
    };
    for (part, name) in &NpuTimeCategory::ALL {
        let time = |report: &Report| report.mean_parts[*part as usize];
        if !some(&time) {
            continue;
        }
        row(name, &|report| with_share(report, time(report)));
        if *part == NpuTimeCategory::Communication
            && some(&Report::mean_exposed_waiting_without_bubble)
        {
            row("  waiting for ranks", &|report| {
                with_share(report, report.mean_exposed_waiting_without_bubble())
            });
            row("  transfer", &|report| {
                with_share(report, report.exposed_transferring())
            });
        }
    }
    for (name, figure) in cost::ROWS {
        let mut reports = comparison.replayed_columns();
        if reports.any(|(_, report)| figure(report).is_some()) {
            row(name, &figure);
        }
    }
    if comparison.has_memory_rows() {
        row("peak memory", &|report| {
            let row = find_rank_with_highest_filled_share(&report.memory)?;
            let share = row.format_peak_percent();
            Some(format!("{} {share:>7}", row.peak))
        });
    }
    let under_way = |report: &Report| report.mean_communicating;
    if some(&under_way) {
        row("communication", &|report| {
            Some(under_way(report).to_string())
        });
        row("  overlapped", &|report| {
            let under_way = under_way(report);
            Some(format_share(
                report.mean_hidden_communication_time(),
                under_way,
            ))
        });
    }
    rows
}

fn write_failures(
    out: &mut String,
    comparison: &MachineComparison<'_>,
    style: TextStyleWidthAndDetail,
) -> Result {
    let h = style.heading;
    let failed = failure_lines(comparison);
    if failed.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{h}NOT COMPLETED{h:#}")?;
    let mut failed = failed.iter();
    failed.try_for_each(|text| write_paragraph(out, text, "  ! ", 4, style.warning))
}

/// Returns a sentence for each machine without a report.
pub(super) fn failure_lines(comparison: &MachineComparison<'_>) -> Vec<String> {
    let failed = comparison.columns.iter().filter_map(|column| {
        let message = column.result.as_ref().err()?.to_string();
        let first = message.lines().next().unwrap_or_default();
        Some(format!("{}: {}: {first}", column.name, status_word(column)))
    });
    failed.collect()
}

fn write_reasons(
    out: &mut String,
    comparison: &MachineComparison<'_>,
    style: TextStyleWidthAndDetail,
) -> Result {
    let h = style.heading;
    let reasons = explain_differences_from_first_machine(comparison);
    if reasons.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{h}WHY{h:#}  {WHY}")?;
    for (indent, line) in reasons {
        let style = if indent == 0 {
            h
        } else {
            anstyle::Style::new()
        };
        let lead = "  ".repeat(indent);
        write_paragraph(out, &line, &lead, 2 * indent + 4, style)?;
    }
    Ok(())
}

/// Sentence stating that the changes in the parts sum to the change in the makespan.
pub(super) const WHY: &str = "means of NPUs: the changes of the parts sum to that of the makespan";

/// For each machine, returns lines that explain its difference from the first machine.
pub(super) fn explain_differences_from_first_machine(
    comparison: &MachineComparison<'_>,
) -> Vec<IndentedLine> {
    let Some((first, reference)) = comparison.reference_machine() else {
        return Vec::new();
    };
    let others = comparison.replayed_columns().skip(1);
    let lines = others.flat_map(|(column, report)| {
        let why = MakespanExplanation::new(reference, report);
        explain_makespan_change(&why, (&first.name, &column.name), || {
            comparison.explain_why_no_time_changed(column, report, first.machine)
        })
    });
    lines.collect()
}

fn write_warnings(
    out: &mut String,
    comparison: &MachineComparison<'_>,
    style: TextStyleWidthAndDetail,
) -> Result {
    let warnings = warning_lines(comparison);
    if warnings.is_empty() {
        return Ok(());
    }
    let h = style.heading;
    writeln!(out, "\n{h}WARNINGS{h:#}")?;
    let mut warnings = warnings.iter();
    warnings.try_for_each(|text| write_paragraph(out, text, "  ! ", 4, style.warning))
}

/// Returns each distinct warning once. A warning that applies only to some machines names them.
pub(super) fn warning_lines(comparison: &MachineComparison<'_>) -> Vec<String> {
    let mut known: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (column, report) in comparison.replayed_columns() {
        let settings = report.settings.to_sentences();
        for warning in report.warnings.iter().cloned().chain(settings) {
            known.entry(warning).or_default().push(&column.name);
        }
    }
    let all = comparison.replayed_columns().count();
    let lines = known.into_iter().map(|(warning, names)| {
        if names.len() == all {
            warning
        } else {
            format!("{}: {warning}", names.join(", "))
        }
    });
    lines.collect()
}
