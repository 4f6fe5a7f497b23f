//! The fullest memories, for people.

use super::{MemoryRow, pool_memory, port_memory};
use crate::Report;
use crate::csv::CsvColumn;
use crate::npus::span_of;
use crate::table::{TextTable, left, right};
use crate::text::{TextStyle, more};
use chakram_base::units::Bytes;
use chakram_trace::format::TensorClass;
use std::fmt::{Display, Write as _};

/// Rows; JSON and CSV have all.
const ROWS: usize = 8;

/// The columns of the table.
pub const CSV: &[CsvColumn<Report, MemoryRow>] = &[
    ("rank", |_, row| row.rank.0.into()),
    ("npu", |_, row| row.npu.0.into()),
    ("capacity_bytes", |_, row| {
        row.capacity.map(|bytes| bytes.0).into()
    }),
    ("peak_bytes", |_, row| row.peak.0.into()),
    ("weights_bytes", |_, row| row.classes[0].into()),
    ("gradients_bytes", |_, row| row.classes[1].into()),
    ("optimizer_bytes", |_, row| row.classes[2].into()),
    ("activations_bytes", |_, row| row.classes[3].into()),
    ("temporary_bytes", |_, row| row.classes[4].into()),
    ("peak_ps", |_, row| row.at.0.into()),
    ("node", |_, row| {
        row.node.as_ref().map(|node| node.id).into()
    }),
    ("name", |_, row| {
        row.node.as_ref().map(|node| node.name.as_str()).into()
    }),
    ("unfreed_bytes", |_, row| sum(&row.left).into()),
    ("overfreed_bytes", |_, row| {
        let missing = row.missing.as_ref();
        missing.map_or(0, |missing| sum(&missing.classes)).into()
    }),
];

fn sum(classes: &[u64]) -> u64 {
    classes
        .iter()
        .fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// Writes the table of memory, if anything is known of it.
pub fn table(out: &mut String, report: &Report, style: TextStyle) -> std::fmt::Result {
    if report.memory.is_empty() {
        return Ok(());
    }
    let mut columns = vec![
        left("PEAK MEMORY", 14),
        right("peak", 10),
        right("capacity", 10),
        right("share", 9),
    ];
    let classes = TensorClass::ALL.iter();
    columns.extend(classes.map(|(class, name)| right(name, class_width(*class))));
    let table = TextTable::new(columns);
    table.heading(out, style)?;
    // Neighbours that are alike share a line.
    let alike = |a: &MemoryRow, b: &MemoryRow| {
        (a.peak, a.capacity, a.classes) == (b.peak, b.capacity, b.classes)
    };
    let mut runs: Vec<_> = report.memory.chunk_by(alike).collect();
    runs.sort_by(|a, b| b[0].by_share(&a[0]));
    for run in runs.iter().take(ROWS) {
        let row = &run[0];
        let ranks: Vec<_> = run.iter().map(|row| row.rank).collect();
        let (ranks, share) = (span_of(&ranks), row.percent_text());
        let mark = if row.fits != Some(false) {
            TextStyle::default().warning
        } else {
            style.warning
        };
        let classes = row.classes.map(Bytes);
        let unknown = "unknown";
        let capacity: &dyn Display = row.capacity.as_ref().map_or(&unknown, |bytes| bytes);
        let mut cells: Vec<&dyn Display> = vec![&ranks, &row.peak, capacity, &share];
        cells.extend(classes.iter().map(|bytes| bytes as &dyn Display));
        table.styled_row(out, &cells, mark)?;
        let moment = row.moment();
        let of = if run.len() > 1 {
            format!("rank {} ", row.rank)
        } else {
            String::new()
        };
        writeln!(out, "    {}", style.clip_line(&format!("{of}{moment}"), 4))?;
    }
    more(out, runs.len(), ROWS, "memory")?;
    writeln!(
        out,
        "  peak: maximum of what nodes have allocated and not freed; tensor classes at that moment"
    )?;
    port_memory::line(out, report, style)?;
    pool_memory::line(out, report, style)
}

fn class_width(class: TensorClass) -> usize {
    match class {
        TensorClass::Activations => 13,
        _ => 11,
    }
}
