//! Table of operators for text and CSV.

use super::OperatorTime;
use crate::Report;
use crate::csv::CsvColumn;
use crate::section::{
    ReportTableSubject, ReportTableWithNotes, ReportTextDetailsOrPage, SectionCellWithValue,
};
use crate::summary::node_kind_label;
use crate::table::{left_aligned_column, right_aligned_column};
use chakram_base::units::Span;
use chakram_trace::format::append_name_family;
use chakram_trace::graph::{DistinctKeyInterner, NodeKind, StringArenaInterner};

/// Maximum number of rows in a text report; JSON and CSV contain all rows.
const ROWS: usize = 10;

/// Maximum number of rows for devices and for hosts, if the job has both. They keep the whole report below 60 lines.
const ROWS_APART: [usize; 2] = [5, 3];

/// Columns of the CSV table of operators.
pub const CSV: &[CsvColumn<Report, OperatorTime>] = &[
    ("name", |_, row| row.name.as_str().into()),
    ("kind", |_, row| node_kind_label(row.kind).into()),
    ("calls", |_, row| row.calls.into()),
    ("total_ps", |_, row| row.total.into()),
    ("flops", |_, row| row.flops.into()),
    ("bytes", |_, row| row.bytes.into()),
];

/// Returns the tables of the operators that take the longest time. Host operators have their own table.
pub fn build_operator_sections(
    report: &Report,
    medium: ReportTextDetailsOrPage,
) -> Vec<ReportTableWithNotes> {
    let families = combine_operator_families(&report.operators);
    let whole: Span = families.iter().map(|o| o.total).sum();
    let is_host = |operator: &OperatorTime| operator.kind == NodeKind::Host;
    let (host, device): (Vec<_>, Vec<_>) = families.into_iter().partition(is_host);
    if host.is_empty() || device.is_empty() {
        let all = [host, device].concat();
        return vec![build_slowest_operators_section(
            "SLOWEST OPERATORS",
            (&all, ROWS),
            whole,
            medium,
        )];
    }
    // If the kernels ran on a CPU, there was no device, so the headings must not mention devices and hosts.
    let [devices, hosts] = match report.response.kernels_on_cpu {
        true => ["SLOWEST KERNELS AND CALLS", "SLOWEST BETWEEN THEM"],
        false => ["SLOWEST ON DEVICES", "SLOWEST ON HOSTS"],
    };
    vec![
        build_slowest_operators_section(devices, (&device, ROWS_APART[0]), whole, medium),
        build_slowest_operators_section(hosts, (&host, ROWS_APART[1]), whole, medium),
    ]
}

/// Returns the table of the `families` with the longest time. Shares are relative to `whole`, the time of all
/// operators.
fn build_slowest_operators_section(
    title: &'static str,
    (families, rows): (&[OperatorTime], usize),
    whole: Span,
    medium: ReportTextDetailsOrPage,
) -> ReportTableWithNotes {
    let mut columns = vec![
        left_aligned_column(title, 46),
        left_aligned_column("kind", 14),
        right_aligned_column("calls", 8),
        right_aligned_column("total", 12),
        right_aligned_column("mean", 12),
        right_aligned_column("share", 8),
    ];
    let rates = |operator: &OperatorTime| {
        let rate = |rate: Option<f64>, unit: &str| match rate {
            Some(rate) => {
                SectionCellWithValue::number_cell(rate, format!("{}{unit}", format_rate(rate)))
            }
            None => "-".into(),
        };
        [
            rate(operator.flops_per_s(), "FLOP/s"),
            rate(operator.bytes_per_s(), "B/s"),
        ]
    };
    // Only pages and detailed texts show rates, because these columns do not fit on a line of the short text.
    let with_rates = medium == ReportTextDetailsOrPage::Page
        && families.iter().any(|of| of.flops.or(of.bytes).is_some());
    if with_rates {
        columns.extend([
            right_aligned_column("achieved FLOP/s", 0),
            right_aligned_column("bandwidth", 0),
        ]);
    }
    let mut section = ReportTableWithNotes::create_table_with_aligned_columns(
        ReportTableSubject::Operators,
        columns,
    );
    let shown = medium.max_rows_shown(rows);
    for operator in families.iter().take(shown) {
        let name = match operator.name.as_str() {
            "" => "(no name)",
            name => name,
        };
        let mut cells = vec![
            SectionCellWithValue::create_cell_with_input_name(name),
            node_kind_label(operator.kind).into(),
            SectionCellWithValue::count_cell(operator.calls),
            operator.total.into(),
            Span(operator.total.0 / operator.calls.max(1)).into(),
            SectionCellWithValue::percent_cell(operator.total, whole),
        ];
        if with_rates {
            cells.extend(rates(operator));
        }
        section.push_row(cells);
    }
    section.leave_out(families.len(), shown, "operators");
    section
}

/// Formats a rate with a unit prefix, as in `312.5 T`.
pub(crate) fn format_rate(rate: f64) -> String {
    let prefixes = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let prefix = prefixes.iter().find(|(size, _)| rate >= *size);
    let (size, prefix) = prefix.unwrap_or(&(1.0, ""));
    format!("{:.1} {prefix}", rate / size)
}

/// Combines operators whose names differ only in step or layer numbers, as in `step*/layer*/norm`. The result is sorted
/// by time, longest first, then by name and kind.
pub fn combine_operator_families(operators: &[OperatorTime]) -> Vec<OperatorTime> {
    let mut names = StringArenaInterner::default();
    // Assigns a number to each pair of family and kind.
    let mut places = DistinctKeyInterner::default();
    let mut families: Vec<OperatorTime> = Vec::new();
    let mut name = String::new();
    for operator in operators {
        name.clear();
        append_name_family(&operator.name, &mut name);
        // If the name table is full (more than 4 GiB of names), all further families are combined.
        let number = names.intern_name(&name).unwrap_or(u32::MAX);
        let place = places.intern_key((number, operator.kind as u8)) as usize;
        if place == families.len() {
            families.push(OperatorTime {
                name: name.clone(),
                kind: operator.kind,
                calls: 0,
                total: Span::ZERO,
                flops: Some(0),
                bytes: Some(0),
            });
        }
        families[place].add_calls_time_and_work_of_row(operator);
    }
    families.sort_by(|a, b| {
        let by_time = b.total.cmp(&a.total);
        by_time.then_with(|| (&a.name, a.kind as u8).cmp(&(&b.name, b.kind as u8)))
    });
    families
}
