//! The table of operators, for people and for spreadsheets.

use super::OperatorTime;
use crate::Report;
use crate::csv::CsvColumn;
use crate::section::{Cell, Medium, Section, SectionId};
use crate::summary::kind_label;
use crate::table::{left, right};
use chakram_base::units::Span;
use chakram_trace::format::family;
use chakram_trace::graph::{Interner, NameTable, NodeKind};

/// Rows for people; JSON and CSV have all.
const ROWS: usize = 10;

/// Rows of devices, and of hosts, where there are both: the whole report has fewer than 60 lines.
const ROWS_APART: [usize; 2] = [5, 3];

/// The columns of the table.
pub const CSV: &[CsvColumn<Report, OperatorTime>] = &[
    ("name", |_, row| row.name.as_str().into()),
    ("kind", |_, row| kind_label(row.kind).into()),
    ("calls", |_, row| row.calls.into()),
    ("total_ps", |_, row| row.total.into()),
];

/// The tables of the slowest, those of the host apart.
pub fn sections(report: &Report, medium: Medium) -> Vec<Section> {
    let families = families(&report.operators);
    let whole: Span = families.iter().map(|o| o.total).sum();
    let is_host = |operator: &OperatorTime| operator.kind == NodeKind::Host;
    let (host, device): (Vec<_>, Vec<_>) = families.into_iter().partition(is_host);
    if host.is_empty() || device.is_empty() {
        let all = [host, device].concat();
        return vec![part("SLOWEST OPERATORS", (&all, ROWS), whole, medium)];
    }
    // Where a CPU ran the kernels, there was no device, and all was on hosts.
    let [devices, hosts] = match report.response.kernels_on_cpu {
        true => ["SLOWEST KERNELS AND CALLS", "SLOWEST BETWEEN THEM"],
        false => ["SLOWEST ON DEVICES", "SLOWEST ON HOSTS"],
    };
    vec![
        part(devices, (&device, ROWS_APART[0]), whole, medium),
        part(hosts, (&host, ROWS_APART[1]), whole, medium),
    ]
}

/// The slowest of `families`, with shares of the time of all operators, which is `whole`.
fn part(
    title: &'static str,
    (families, rows): (&[OperatorTime], usize),
    whole: Span,
    medium: Medium,
) -> Section {
    let mut section = Section::aligned(
        SectionId::Operators,
        [
            left(title, 46),
            left("kind", 14),
            right("calls", 8),
            right("total", 12),
            right("mean", 12),
            right("share", 8),
        ],
    );
    let shown = medium.rows(rows);
    for operator in families.iter().take(shown) {
        let name = match operator.name.as_str() {
            "" => "(no name)",
            name => name,
        };
        section.row(vec![
            Cell::name(name),
            kind_label(operator.kind).into(),
            Cell::count(operator.calls),
            operator.total.into(),
            Span(operator.total.0 / operator.calls.max(1)).into(),
            Cell::share(operator.total, whole),
        ]);
    }
    section.leave_out(families.len(), shown, "operators");
    section
}

/// Operators whose names differ only in numbers of steps or layers, together: `step*/layer*/norm`. Longest first; of equal
/// time by name and kind.
pub fn families(operators: &[OperatorTime]) -> Vec<OperatorTime> {
    let mut names = NameTable::default();
    // Of each family and kind.
    let mut places = Interner::default();
    let mut families: Vec<OperatorTime> = Vec::new();
    let mut name = String::new();
    for operator in operators {
        name.clear();
        family(&operator.name, &mut name);
        // A report does not have 4 GiB of names; if one had, its last families would be one.
        let number = names.intern(&name).unwrap_or(u32::MAX);
        let place = places.intern((number, operator.kind as u8)) as usize;
        if place == families.len() {
            families.push(OperatorTime {
                name: name.clone(),
                kind: operator.kind,
                calls: 0,
                total: Span::ZERO,
            });
        }
        let sum = &mut families[place];
        sum.calls = sum.calls.saturating_add(operator.calls);
        sum.total += operator.total;
    }
    families.sort_by(|a, b| {
        let by_time = b.total.cmp(&a.total);
        by_time.then_with(|| (&a.name, a.kind as u8).cmp(&(&b.name, b.kind as u8)))
    });
    families
}
