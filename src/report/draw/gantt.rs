//! Gantt charts: rows of intervals.

use super::AxisValueFormatFn;
use super::rows::RowChart;
use super::svg::{DrawingRect, SvgDrawing};
use std::collections::BTreeMap;
use std::fmt::Write;

/// An interval, drawn as a rectangle in a row.
#[derive(Clone, Debug)]
pub struct GanttSpan {
    /// Start of the interval, in units of the axis.
    pub from: u64,
    /// End of the interval, in units of the axis.
    pub to: u64,
    /// Index of the interval's series.
    pub series: usize,
    /// Tooltip text.
    pub title: String,
}

/// A row of a Gantt chart.
#[derive(Clone, Debug)]
pub struct GanttRow {
    /// Name of the row.
    pub label: String,
    /// Intervals of the row.
    pub spans: Vec<GanttSpan>,
}

/// Draws `rows` over an axis from 0 to `end`. `name` is the drawing's accessible name.
pub fn draw_gantt(
    name: &str,
    rows: &[GanttRow],
    end: u64,
    format: AxisValueFormatFn<'_>,
) -> String {
    let mut chart = RowChart::new(rows.len(), end, format);
    for (i, row) in rows.iter().enumerate() {
        chart.draw_label(i, &row.label);
        let mut compact = NarrowGanttSpans::default();
        for span in &row.spans {
            let at = chart.rect_between_values(i, span.from, span.to);
            compact.draw_or_store_span(&mut chart.svg, at, span);
        }
        compact.draw_stored_spans(&mut chart.svg);
    }
    chart.svg.into_element(name)
}

/// Minimum width, in drawing units, of a span with its own tooltip.
const TITLED: f64 = 4.0;

/// Spans of a row that are too narrow to point at with a mouse. They are combined into one mark per series, without a
/// tooltip, because a page may contain many thousands of spans.
#[derive(Debug, Default)]
pub(super) struct NarrowGanttSpans(BTreeMap<usize, String>);

impl NarrowGanttSpans {
    /// Draws a wide span immediately; stores a narrow span until [`Self::draw_stored_spans`].
    pub fn draw_or_store_span(&mut self, svg: &mut SvgDrawing, at: DrawingRect, span: &GanttSpan) {
        if at.width >= TITLED {
            svg.add_rect(at, &format!("c{}", span.series), &span.title, &[]);
            return;
        }
        let marks = self.0.entry(span.series).or_default();
        let DrawingRect {
            x,
            y,
            width,
            height,
        } = at;
        write!(marks, "M{x:.1} {y}h{width:.1}v{height}h-{width:.1}z")
            .expect("a string grows as needed");
    }

    /// Draws the narrow spans, one mark per series.
    pub fn draw_stored_spans(self, svg: &mut SvgDrawing) {
        for (series, marks) in self.0 {
            svg.add_path(&marks, &format!("c{series}"));
        }
    }
}
