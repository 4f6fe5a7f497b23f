//! The report for people.

use super::collectives::table;
use super::npus::{self, NpuRow};
use super::summary::{counted, percent_more, thousands};
use super::table::{TextTable, left, right};
use super::text::{TextStyle, paragraph, share};
use super::{
    Report, TimeCategory, critical_path, launched, links, memory, memory_accesses, modules,
    operators, steps, throughput, tiles,
};
use chakram_base::setting::SettingKey;
use chakram_base::units::{Span, percent_change};
use std::fmt::Write as _;

/// The most lines of a report without details, where few warnings have to be said.
const LINES: usize = 58;

/// Renders `report` of a replay described by `title` and `basis`.
pub fn render(report: &Report, title: &str, basis: &str, style: TextStyle) -> String {
    let mut out = String::new();
    write_all(&mut out, report, title, basis, style).expect("a string grows as needed");
    out
}

fn write_all(
    out: &mut String,
    report: &Report,
    title: &str,
    basis: &str,
    style: TextStyle,
) -> std::fmt::Result {
    let outcome = &report.outcome;
    let h = style.heading;
    let present = report.rows.len();
    let head = format!(
        "{title}: {present} of {}, {}, all completed, on {} ({})",
        counted(report.ranks.into(), "rank"),
        counted(outcome.nodes, "node"),
        report.machine.name,
        counted(report.machine.npus.into(), "NPU")
    );
    writeln!(out, "{}", style.clip_line(&head, 0))?;
    if let Some(whole) = &report.extrapolation {
        // Readers look for the step, of which the replay is only a part.
        writeln!(out, "{h}STEP      {}{h:#}", whole.line())?;
    }
    let bound = report.bound_text();
    writeln!(
        out,
        "{h}MAKESPAN  {}{h:#}   {basis}{bound}",
        outcome.makespan
    )?;
    if let Some((captured, slowest)) = report.last_captured() {
        let more = match percent_more(outcome.makespan, captured) {
            Some(percent) => format!("; replay {}", percent_change(percent)),
            None => String::new(),
        };
        writeln!(out, "captured  {captured} (slowest rank {slowest}){more}")?;
    }
    if let Some(interval) = &report.interval {
        let text = interval.text(outcome.makespan);
        paragraph(out, &text, "PREDICTED ", 10, anstyle::Style::new())?;
    }
    if let Some((heading, text)) = report.host_bound() {
        let lead = format!("{heading}  ");
        paragraph(out, &text, &lead, 10, style.warning)?;
    }
    for line in report.profiler_lines() {
        writeln!(out, "{line}")?;
    }
    if let Some(on) = &report.captured_on {
        paragraph(out, &on.line(), "captured  on ", 10, anstyle::Style::new())?;
    }
    if let Some(line) = report.unknown_line() {
        paragraph(out, &line, "unknown   ", 10, style.warning)?;
    }
    if outcome.recorded > 0 {
        let recorded = counted(outcome.recorded, "collective");
        let how = report.communication.lasts_as;
        writeln!(out, "          {recorded}, as {how}")?;
    }
    let collectives = outcome.closed + outcome.stepwise;
    if collectives + outcome.messages > 0 {
        writeln!(
            out,
            "          {} ({} analytical, {} simulated), {}",
            counted(collectives, "collective"),
            thousands(outcome.closed),
            thousands(outcome.stepwise),
            counted(outcome.messages, "message")
        )?;
    }
    if let Some(aggregation) = &report.aggregation {
        writeln!(out, "          {}", aggregation.line())?;
    }
    for line in throughput::lines(report) {
        writeln!(out, "          {line}")?;
    }
    if let Some(energy) = &report.kernel_energy {
        writeln!(out, "          {}", energy.line())?;
    }
    if !report.fits() {
        let w = style.warning;
        let large = thousands(report.too_large() as u64);
        writeln!(
            out,
            "{w}OUT OF MEMORY  {large} of {} more than the NPU's capacity{w:#}",
            match present {
                1 => "1 rank needs".to_owned(),
                n => format!("{} ranks need", thousands(n as u64)),
            }
        )?;
    }
    report.settings.write(out, style)?;
    parts(out, report, style)?;
    let tables = [
        launched::table,
        steps::table,
        npus::table,
        npus::finishes,
        memory::table,
        table::collectives,
        links::table,
        table::exposed,
        tiles::table,
        memory_accesses::table,
        modules::table,
        operators::table::table,
    ];
    let mut sections = Vec::new();
    for table in tables {
        let mut section = String::new();
        table(&mut section, report, style)?;
        sections.push(section);
    }
    let mut end = String::new();
    critical_path::table(&mut end, report, style)?;
    if !report.warnings.is_empty() {
        writeln!(end, "\n{h}WARNINGS{h:#}")?;
        for warning in &report.warnings {
            wrapped(&mut end, warning, style.warning)?;
        }
    }
    if !style.details {
        let taken = out.lines().count() + end.lines().count();
        shorten(&mut sections, LINES.saturating_sub(taken));
    }
    sections.iter().for_each(|section| out.push_str(section));
    out.push_str(&end);
    Ok(())
}

/// Shortens the longest of `sections` until all have `lines` together, but keeps four of each, and says so.
fn shorten(sections: &mut [String], lines: usize) {
    let counts: Vec<_> = sections
        .iter()
        .map(|section| section.lines().count())
        .collect();
    let fits = |most: &usize| counts.iter().map(|count| count.min(most)).sum::<usize>() <= lines;
    let longest = counts.iter().copied().max().unwrap_or(0);
    let most = (4..=longest).rev().find(fits).unwrap_or(4);
    for (section, count) in sections.iter_mut().zip(counts) {
        if count > most {
            let mut short: String = section.split_inclusive('\n').take(most - 1).collect();
            let left = count - (most - 1);
            writeln!(short, "  … {left} more lines: {}", SettingKey::Details)
                .expect("a string grows as needed");
            *section = short;
        }
    }
}

fn parts(out: &mut String, report: &Report, style: TextStyle) -> std::fmt::Result {
    let makespan = report.outcome.makespan;
    let table = TextTable::new([
        left("TIME BREAKDOWN", 24),
        right("mean of NPUs", 14),
        right("share", 9),
        left("min", 24).after(3),
        left("max", 0),
    ]);
    table.heading(out, style)?;
    for (part, name) in &TimeCategory::ALL {
        let mean = report.mean_parts[*part as usize];
        let Some((min, max)) = report.extremes(*part) else {
            continue;
        };
        let time = |row: &NpuRow| row.time.parts[*part as usize];
        if time(max) == Span::ZERO {
            continue;
        }
        let bound = |row| format!("{} (rank {})", time(row), row.rank);
        let (min, max) = if time(min) == time(max) {
            ("equal on all NPUs".to_owned(), String::new())
        } else {
            (bound(min), bound(max))
        };
        table.row(out, &[name, &mean, &share(mean, makespan), &min, &max])?;
    }
    table.row(out, &[&"makespan", &makespan, &"100.0 %"])?;
    let under_way = report.mean_communicating;
    if under_way > Span::ZERO {
        let hidden = share(report.overlapped(), under_way);
        writeln!(
            out,
            "  communication active for {under_way} (mean), {hidden} of it overlapped with compute"
        )?;
        let meant = [
            (TimeCategory::Communication, TimeCategory::EXPOSED),
            (TimeCategory::Bubble, TimeCategory::BUBBLE),
        ];
        let shown = meant
            .iter()
            .filter(|(part, _)| report.mean_parts[*part as usize] > Span::ZERO);
        let shown: Vec<_> = shown.map(|(_, words)| *words).collect();
        if !shown.is_empty() {
            writeln!(out, "  {}", shown.join("; "))?;
        }
    }
    Ok(())
}

/// A warning, indented and broken at spaces.
fn wrapped(out: &mut String, text: &str, style: anstyle::Style) -> std::fmt::Result {
    paragraph(out, text, "  ! ", 4, style)
}
