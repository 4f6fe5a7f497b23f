//! The fullest memories, for people.

use super::MemoryRow;
use crate::report::summary::Report;
use crate::report::text::{Style, WIDTH, clip, more, span_of};
use crate::trace::TensorClass;
use crate::units::Bytes;
use std::fmt::Write as _;

/// Rows; JSON and CSV have all.
const ROWS: usize = 8;

/// Writes the table of memory, if anything is known of it.
pub fn table(out: &mut String, report: &Report, style: Style) -> std::fmt::Result {
    if report.memory.is_empty() {
        return Ok(());
    }
    let h = style.heading;
    write!(
        out,
        "\n{h}{:<14}{:>10}{:>10}{:>9}",
        "MEMORY", "peak", "capacity", "share"
    )?;
    for (class, name) in TensorClass::ALL {
        write!(out, "{name:>0$}", class_width(class))?;
    }
    writeln!(out, "{h:#}")?;
    // Neighbours that are alike share a line.
    let alike = |a: &MemoryRow, b: &MemoryRow| {
        (a.peak, a.capacity, a.classes) == (b.peak, b.capacity, b.classes)
    };
    let mut runs: Vec<_> = report.memory.chunk_by(alike).collect();
    runs.sort_by(|a, b| b[0].by_share(&a[0]));
    for run in runs.iter().take(ROWS) {
        let row = &run[0];
        let ranks: Vec<_> = run.iter().map(|row| row.rank).collect();
        let share = format!("{:.1} %", row.percent());
        let style = match row.fits() {
            true => Style::default().warning,
            false => style.warning,
        };
        write!(
            out,
            "{style}  {:<12}{:>10}{:>10}{share:>9}",
            span_of(&ranks),
            row.peak,
            row.capacity
        )?;
        for ((class, _), bytes) in TensorClass::ALL.into_iter().zip(row.classes) {
            write!(out, "{:>1$}", Bytes(bytes), class_width(class))?;
        }
        writeln!(out, "{style:#}")?;
        let moment = row.moment();
        let of = if run.len() > 1 {
            format!("rank {} ", row.rank)
        } else {
            String::new()
        };
        writeln!(out, "    {}", clip(&format!("{of}{moment}"), WIDTH - 4))?;
    }
    more(out, runs.len(), ROWS, "memory")?;
    writeln!(
        out,
        "  peak: the most that nodes had allocated and not freed; the classes are those of that moment"
    )
}

fn class_width(class: TensorClass) -> usize {
    match class {
        TensorClass::Activations => 13,
        _ => 11,
    }
}
