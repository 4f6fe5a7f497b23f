//! Gantt charts: intervals, in a row for each place.

use super::axis::AxisScale;
use super::svg::{Frame, SvgDrawing, TextAnchor};
use super::{FOOT, LABELS, ROW, ValueFormat, WIDTH};

/// Something that runs.
#[derive(Clone, Debug)]
pub(crate) struct GanttSpan {
    pub from: u64,
    pub to: u64,
    /// Number of its series.
    pub series: usize,
    pub title: String,
}

/// A row.
#[derive(Clone, Debug)]
pub(crate) struct GanttRow {
    pub label: String,
    pub spans: Vec<GanttSpan>,
}

/// Draws rows against an axis from 0 to `end`.
pub(crate) fn chart(name: &str, rows: &[GanttRow], end: u64, format: ValueFormat<'_>) -> String {
    let height = ROW * rows.len() as f64;
    let mut svg = SvgDrawing::new(WIDTH, height + FOOT);
    let area = Frame {
        x: LABELS,
        y: 0.0,
        width: WIDTH - LABELS - 40.0,
        height,
    };
    let scale = AxisScale::linear(end as f64, (area.x, area.x + area.width));
    scale.below(&mut svg, area, format);
    for (i, row) in rows.iter().enumerate() {
        let y = ROW * i as f64;
        svg.text(
            (LABELS - 8.0, y + 14.0),
            TextAnchor::End,
            "label",
            &row.label,
        );
        for span in &row.spans {
            let x = scale.place(span.from as f64);
            let at = Frame {
                x,
                y: y + 2.0,
                width: scale.place(span.to as f64) - x,
                height: ROW - 4.0,
            };
            svg.rect(at, &format!("c{}", span.series), &span.title, &[]);
        }
    }
    svg.finish(name)
}
