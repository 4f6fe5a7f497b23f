//! Gantt charts: intervals, in a row for each place.

use super::ValueFormat;
use super::rows::RowChart;

/// Something that runs.
#[derive(Clone, Debug)]
pub struct GanttSpan {
    pub from: u64,
    pub to: u64,
    /// Number of its series.
    pub series: usize,
    pub title: String,
}

/// A row.
#[derive(Clone, Debug)]
pub struct GanttRow {
    pub label: String,
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
