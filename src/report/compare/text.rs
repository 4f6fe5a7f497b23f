//! The comparison for people: at most 100 columns.

use super::csv::status;
use super::explanation::{explain, percent};
use super::{MachineColumn, MachineComparison, MakespanExplanation};
use crate::Report;
use crate::TimeCategory;
use crate::cost;
use crate::memory::fullest;
use crate::summary::thousands;
use crate::table::{TextTable, left, right};
use crate::text::{TextStyle, WIDTH, paragraph, share};
use chakram_base::units::{Span, percent_change};
use chakram_hardware::machine::Machine;
use chakram_trace::format::{Dtype, escape};
use std::collections::BTreeMap;
use std::fmt::{Display, Result, Write as _};

/// Columns of the table for the names of its rows, and for each machine; as many machines as fit.
const NAMES: usize = 24;
const CELL: usize = 19;
const ABREAST: usize = (WIDTH - NAMES) / CELL;

/// Renders `comparison`, of which `basis` says on what durations rest, and `notes` what else is to be
/// known.
pub fn render(
    comparison: &MachineComparison<'_>,
    basis: &str,
    notes: &[String],
    style: TextStyle,
) -> String {
    let mut out = String::new();
    write_all(&mut out, comparison, basis, notes, style).expect("a string grows as needed");
    out
}

fn write_all(
    out: &mut String,
    comparison: &MachineComparison<'_>,
    basis: &str,
    notes: &[String],
    style: TextStyle,
) -> Result {
    let workload = comparison.workload;
    let instances = workload.instances();
    let nodes = instances.iter().map(|i| workload.graph(i).len() as u64);
    let head = format!(
        "{}: {} of {} ranks, {} nodes, on {} machines",
        comparison.title,
        instances.len(),
        workload.ranks(),
        thousands(nodes.sum()),
        comparison.columns.len()
    );
    writeln!(out, "{}", style.clip_line(&head, 0))?;
    writeln!(out, "{basis}")?;
    if let Some((_, report)) = comparison.reference()
        && let Some((captured, slowest)) = report.last_captured()
    {
        writeln!(out, "captured {captured} (slowest rank {slowest})")?;
    }
    for note in notes {
        paragraph(out, note, "  ! ", 4, style.warning)?;
    }
    machines(out, comparison, style)?;
    for columns in comparison.columns.chunks(ABREAST) {
        table(out, comparison, columns, style)?;
    }
    failures(out, comparison, style)?;
    reasons(out, comparison, style)?;
    warnings(out, comparison, style)
}

/// Writes the parts of the machines.
fn machines(out: &mut String, comparison: &MachineComparison<'_>, style: TextStyle) -> Result {
    let h = style.heading;
    writeln!(out, "\n{h}MACHINES{h:#}")?;
    let dtypes = comparison.dtypes();
    let remote = comparison.reaches_out();
    let width = comparison.columns.iter().map(|c| c.name.chars().count());
    let width = width.max().unwrap_or(0);
    let width = if style.details {
        width
    } else {
        width.min(CELL)
    };
    for column in &comparison.columns {
        let name = format!("  {:<width$}  ", style.clip(&column.name, width));
        let mut text = made_of(column.machine, &dtypes);
        let report = column.result.as_ref().ok();
        if let Some(model) = report.and_then(Report::shared_network) {
            text += &format!("; network model {model}");
        }
        if let Some(memory) = column.machine.remote().filter(|_| remote) {
            text += &format!("; remote memory {memory}");
        }
        for named in column.machine.named_memories().iter().filter(|_| remote) {
            text += &format!("; remote memory {} {}", escape(&named.name), named.memory);
        }
        paragraph(out, &text, &name, width + 4, anstyle::Style::new())?;
    }
    Ok(())
}

/// `8 NPUs: switch 8 @ 300 GB/s; memory 2 TB/s; bf16 312 TFLOP/s`.
fn made_of(machine: &Machine, dtypes: &[Dtype]) -> String {
    let topology = machine.topology();
    let dimensions = topology.dimensions().iter().filter(|d| d.size > 1);
    let network: Vec<_> = dimensions
        .map(|dimension| {
            let gb = dimension.bandwidth.bytes_per_second() / 1e9;
            format!("{} {} @ {gb} GB/s", dimension.name, dimension.size)
        })
        .collect();
    let mut text = format!("{} NPUs", thousands(topology.npus().into()));
    if !network.is_empty() {
        text += &format!(": {}", network.join(", "));
    }
    let classes = machine.classes();
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
            match class.peaks.get(dtype) {
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

fn table(
    out: &mut String,
    comparison: &MachineComparison<'_>,
    columns: &[MachineColumn<'_>],
    style: TextStyle,
) -> Result {
    if comparison.reference().is_none() {
        return Ok(());
    }
    let names = columns
        .iter()
        .map(|column| style.clip(&column.name, CELL - 1));
    let names: Vec<String> = names.collect();
    let mut headings = vec![left("MEAN OF NPUs", NAMES)];
    headings.extend(names.iter().map(|name| right(name, CELL)));
    let mut table = TextTable::new(headings).indented(0);
    let mut put = |name: &str, cell: &dyn Fn(&MachineColumn<'_>) -> String| {
        let found: Vec<_> = columns.iter().map(cell).collect();
        let mut cells: Vec<&dyn Display> = vec![&name];
        cells.extend(found.iter().map(|cell| cell as &dyn Display));
        table.add(&cells);
    };
    put("makespan", &|column| match &column.result {
        Ok(report) => report.outcome.makespan.to_string(),
        Err(_) => status(column).to_owned(),
    });
    let mut row = |name: &str, cell: &dyn Fn(&Report) -> Option<String>| {
        let of = |column: &MachineColumn<'_>| cell(column.result.as_ref().ok()?);
        put(name, &|column| of(column).unwrap_or_else(|| "-".to_owned()))
    };
    let some = |report: &dyn Fn(&Report) -> Span| {
        let mut reports = comparison.reports();
        reports.any(|(_, r)| report(r) > Span::ZERO)
    };
    let change = |report: &Report| comparison.against(report);
    row("  speedup", &|report| {
        let speed = change(report).speed()?;
        Some(format!("{speed:.2}x"))
    });
    // The baseline is the first column, whose whole name stands above; it may be too long for a row.
    row("  vs. first machine", &|report| percent(&change(report)));
    if comparison.reports().any(|(_, r)| r.captured.is_some()) {
        row("  vs. capture", &|report| {
            report.difference().map(percent_change)
        });
    }
    let with_share = |report: &Report, time: Span| {
        let share = share(time, report.outcome.makespan);
        Some(format!("{time} {share:>7}"))
    };
    for (part, name) in &TimeCategory::ALL {
        let time = |report: &Report| report.mean_parts[*part as usize];
        if !some(&time) {
            continue;
        }
        row(name, &|report| with_share(report, time(report)));
        if *part == TimeCategory::Communication && some(&Report::waiting_for_ranks) {
            row("  waiting for ranks", &|report| {
                with_share(report, report.waiting_for_ranks())
            });
            row("  transfer", &|report| {
                with_share(report, report.exposed_transferring())
            });
        }
    }
    for (name, figure) in cost::rows(comparison.reports().map(|(_, report)| report)) {
        if comparison
            .reports()
            .any(|(_, report)| figure(report).is_some())
        {
            row(&name, &figure);
        }
    }
    if comparison.remembers() {
        row("peak memory", &|report| {
            let row = fullest(&report.memory)?;
            let share = row.percent_text();
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
            Some(share(report.overlapped(), under_way))
        });
    }
    write!(out, "\n{}", table.text(style))?;
    for (part, words) in [
        (TimeCategory::Communication, TimeCategory::EXPOSED),
        (TimeCategory::Bubble, TimeCategory::BUBBLE),
    ] {
        if some(&|report: &Report| report.mean_parts[part as usize]) {
            writeln!(out, "  {words}")?;
        }
    }
    Ok(())
}

fn failures(out: &mut String, comparison: &MachineComparison<'_>, style: TextStyle) -> Result {
    let h = style.heading;
    let failed = comparison.columns.iter();
    let failed: Vec<_> = failed
        .filter_map(|column| Some((column, column.result.as_ref().err()?)))
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{h}NOT COMPLETED{h:#}")?;
    for (column, error) in failed {
        let message = error.to_string();
        let first = message.lines().next().unwrap_or_default();
        let text = format!("{}: {}: {first}", column.name, status(column));
        paragraph(out, &text, "  ! ", 4, style.warning)?;
    }
    Ok(())
}

fn reasons(out: &mut String, comparison: &MachineComparison<'_>, style: TextStyle) -> Result {
    let h = style.heading;
    let Some((first, reference)) = comparison.reference() else {
        return Ok(());
    };
    let others: Vec<_> = comparison.reports().skip(1).collect();
    if others.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{h}WHY{h:#}  means of NPUs: the changes of the parts sum to that of the makespan"
    )?;
    for (column, report) in others {
        let why = MakespanExplanation::new(reference, report);
        for (indent, line) in explain(&why, (&first.name, &column.name), || {
            comparison.explain_nothing_moved(column, report, first.machine)
        }) {
            let style = if indent == 0 {
                h
            } else {
                anstyle::Style::new()
            };
            let lead = "  ".repeat(indent);
            paragraph(out, &line, &lead, 2 * indent + 4, style)?;
        }
    }
    Ok(())
}

/// Warnings, each once, with the machines that they are about unless that is all.
fn warnings(out: &mut String, comparison: &MachineComparison<'_>, style: TextStyle) -> Result {
    let mut known: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (column, report) in comparison.reports() {
        let settings = report.settings.sentences();
        for warning in report.warnings.iter().cloned().chain(settings) {
            known.entry(warning).or_default().push(&column.name);
        }
    }
    if known.is_empty() {
        return Ok(());
    }
    let h = style.heading;
    writeln!(out, "\n{h}WARNINGS{h:#}")?;
    let all = comparison.reports().count();
    for (warning, names) in known {
        let text = if names.len() == all {
            warning
        } else {
            format!("{}: {warning}", names.join(", "))
        };
        paragraph(out, &text, "  ! ", 4, style.warning)?;
    }
    Ok(())
}
