//! Rows of rectangles with labels over one common axis, used by bar and Gantt charts.

use super::axis::LinearOrLogAxisScale;
use super::svg::{DrawingRect, SvgDrawing, TextAnchor};
use super::{AxisValueFormatFn, FOOT, LABELS, ROW, WIDTH};
use crate::text::cut_middle;

/// A chart of rows, while it is being drawn.
pub(super) struct RowChart {
    pub svg: SvgDrawing,
    scale: LinearOrLogAxisScale,
}

impl RowChart {
    /// Starts a chart with `rows` rows, and draws the axis from 0 to `most`.
    pub fn new(rows: usize, most: u64, format: AxisValueFormatFn<'_>) -> Self {
        let height = ROW * rows as f64;
        let mut svg = SvgDrawing::new(WIDTH, height + FOOT);
        let area = DrawingRect {
            x: LABELS,
            y: 0.0,
            width: WIDTH - LABELS - 40.0,
            height,
        };
        let scale = LinearOrLogAxisScale::linear_scale(most as f64, (area.x, area.x + area.width));
        scale.draw_ticks_below(&mut svg, area, format);
        Self { svg, scale }
    }

    /// Draws the label of row number `row`.
    pub fn draw_label(&mut self, row: usize, label: &str) {
        let y = ROW * row as f64 + 14.0;
        // A letter is about 7 drawing units wide.
        let shown = cut_middle(label, (LABELS / 7.0) as usize);
        self.svg
            .add_text((LABELS - 8.0, y), TextAnchor::End, "label", &shown);
    }

    /// Returns the rectangle that spans the values `from` to `to` in row number `row`.
    pub fn rect_between_values(&self, row: usize, from: u64, to: u64) -> DrawingRect {
        let (x, end) = (
            self.scale.position_of_value(from as f64),
            self.scale.position_of_value(to as f64),
        );
        DrawingRect {
            x,
            y: ROW * row as f64 + 2.0,
            width: end - x,
            height: ROW - 4.0,
        }
    }
}
