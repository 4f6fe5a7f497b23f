//! Table of the ranks with the fullest memory.

use super::{NpuMemoryUseRow, pool_memory, port_memory};
use crate::Report;
use crate::csv::CsvColumn;
use crate::npus::format_rank_span;
use crate::section::{
    ReportTableSubject, ReportTableWithNotes, ReportTextDetailsOrPage, SectionCellWithValue,
    SectionNote, SectionTableRow, group_adjacent_rows,
};
use crate::table::{left_aligned_column, right_aligned_column};
use chakram_base::units::Bytes;
use chakram_trace::format::TensorClass;

/// Maximum number of rows in a text report; JSON and CSV contain all rows.
const ROWS: usize = 8;

/// Columns of the memory table in CSV.
pub const CSV: &[CsvColumn<Report, NpuMemoryUseRow>] = &[
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
    ("unfreed_bytes", |_, row| saturating_sum(&row.left).into()),
    ("overfreed_bytes", |_, row| {
        let missing = row.missing.as_ref();
        missing
            .map_or(0, |missing| saturating_sum(&missing.classes))
            .into()
    }),
    ("offloaded_bytes", |_, row| {
        row.offloaded.map_or(0, |bytes| bytes.0).into()
    }),
];

fn saturating_sum(classes: &[u64]) -> u64 {
    classes
        .iter()
        .fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// Returns the memory table, fullest memory first. Empty if no trace records allocations.
pub fn build_memory_sections(
    report: &Report,
    medium: ReportTextDetailsOrPage,
) -> Vec<ReportTableWithNotes> {
    if report.memory.is_empty() {
        return Vec::new();
    }
    let mut columns = vec![
        left_aligned_column("PEAK MEMORY", 14),
        right_aligned_column("peak", 10),
        right_aligned_column("capacity", 10),
        right_aligned_column("share", 9),
    ];
    let classes = TensorClass::ALL.iter();
    columns.extend(
        classes.map(|(class, name)| right_aligned_column(name, column_width_of_class(*class))),
    );
    let mut section = ReportTableWithNotes::new(ReportTableSubject::Memory, columns);
    let runs = group_equal_memory_rows(&report.memory);
    let shown = medium.max_rows_shown(ROWS);
    for (i, run) in runs.iter().take(shown) {
        let row = &run[0];
        let at = |field: &str| format!("/memory/npus/{i}/{field}");
        let ranks: Vec<_> = run.iter().map(|row| row.rank).collect();
        let share = row.format_peak_percent();
        let capacity = row
            .capacity
            .map_or(SectionCellWithValue::from("unknown"), |capacity| {
                SectionCellWithValue::from(capacity).with_json_pointer(at("capacity_bytes"))
            });
        let mut cells = vec![
            format_rank_span(&ranks).into(),
            SectionCellWithValue::from(row.peak).with_json_pointer(at("peak_bytes")),
            capacity,
            match row.peak_percent() {
                Some(percent) => SectionCellWithValue::number_cell(percent, share),
                None => share.into(),
            },
        ];
        let classes = TensorClass::ALL.iter().zip(row.classes);
        cells.extend(classes.map(|((_, key), bytes)| {
            SectionCellWithValue::from(Bytes(bytes))
                .with_json_pointer(at(&format!("peak_bytes_by_class/{key}")))
        }));
        let of = match run.len() {
            1 => String::new(),
            _ => format!("rank {} ", row.rank),
        };
        section.push_row(SectionTableRow {
            cells,
            note: Some(SectionNote::from_text_cut_to_one_line(format!(
                "{of}{}",
                row.describe_peak_moment()
            ))),
            alarm: (row.fits == Some(false)).then(|| row.describe_peak_and_capacity()),
        });
    }
    section.leave_out(runs.len(), shown, "memory");
    section.push_note(SectionNote::from_one_line_sentence(
        "peak: maximum of what nodes have allocated and not freed; tensor classes at that moment",
    ));
    section
        .notes
        .extend(port_memory::describe_port_memory(report));
    section
        .notes
        .extend(pool_memory::describe_pool_memory(report));
    vec![section]
}

/// Groups adjacent identical rows. Returns each group's first index and its rows, fullest memory first.
pub(crate) fn group_equal_memory_rows(
    rows: &[NpuMemoryUseRow],
) -> Vec<(usize, &[NpuMemoryUseRow])> {
    let alike = |a: &NpuMemoryUseRow, b: &NpuMemoryUseRow| {
        (a.peak, a.capacity, a.classes, a.offloaded) == (b.peak, b.capacity, b.classes, b.offloaded)
    };
    let mut runs = group_adjacent_rows(rows, alike);
    runs.sort_by(|(_, a), (_, b)| b[0].compare_filled_share(&a[0]));
    runs
}

fn column_width_of_class(class: TensorClass) -> usize {
    match class {
        TensorClass::Activations => 13,
        _ => 11,
    }
}
