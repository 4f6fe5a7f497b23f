//! Gantt charts: intervals, in a row for each place.

use super::ValueFormat;
use super::rows::RowChart;

/// Something that runs.
#[derive(Clone, Debug)]
pub struct GanttSpan {
    /// Its beginning.
    pub from: u64,
    /// Its end.
    pub to: u64,
    /// Number of its series.
    pub series: usize,
    /// Text that explains it.
    pub title: String,
}

/// A row.
#[derive(Clone, Debug)]
pub struct GanttRow {
    /// Name of the row.
    pub label: String,
    /// What runs there.
    pub spans: Vec<GanttSpan>,
}

/// Draws rows against an axis from 0 to `end`.
pub fn chart(name: &str, rows: &[GanttRow], end: u64, format: ValueFormat<'_>) -> String {
    let mut chart = RowChart::new(rows.len(), end, format);
    for (i, row) in rows.iter().enumerate() {
        chart.label(i, &row.label);
        for span in &row.spans {
            let at = chart.frame(i, span.from, span.to);
            let class = format!("c{}", span.series);
            chart.svg.rect(at, &class, &span.title, &[]);
        }
    }
    chart.svg.finish(name)
}
