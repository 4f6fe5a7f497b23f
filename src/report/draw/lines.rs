//! Step charts: lines of values over time. Each value is constant until the next value.

use super::axis::LinearOrLogAxisScale;
use super::svg::{DrawingRect, SvgDrawing};
use super::{AxisValueFormatFn, FOOT, WIDTH};

const HEIGHT: f64 = 240.0;
const LEFT: f64 = 80.0;

/// A line of a step chart.
#[derive(Clone, Debug)]
pub struct StepChartLine {
    /// Name of the line.
    pub label: String,
    /// Times in ascending order, each with the value that applies from then on.
    pub points: Vec<(u64, u64)>,
}

/// Colour series of the lines. Grey is left out, because it means idle time.
const COLOURS: [usize; 7] = [0, 1, 2, 3, 6, 7, 5];

/// Returns the colour series of a line, for legends.
pub fn colour_of_line(line: usize) -> usize {
    COLOURS[line % COLOURS.len()]
}

/// Draws lines up to time `end`. If a value exceeds a third of `limit`, also draws a dashed line at `limit`.
pub fn draw_lines(
    name: &str,
    series: &[StepChartLine],
    (end, limit): (u64, Option<u64>),
    formats: (AxisValueFormatFn<'_>, AxisValueFormatFn<'_>),
) -> String {
    let values = series.iter().flat_map(|one| one.points.iter());
    let most = values.map(|(_, value)| *value).max().unwrap_or(0);
    let limit = limit.filter(|limit| most > limit / 3);
    let most = most.max(limit.unwrap_or(0)) as f64 * 1.05;
    let mut svg = SvgDrawing::new(WIDTH, HEIGHT + FOOT);
    let area = DrawingRect {
        x: LEFT,
        y: 8.0,
        width: WIDTH - LEFT - 40.0,
        height: HEIGHT - 8.0,
    };
    let time = LinearOrLogAxisScale::linear_scale(end as f64, (area.x, area.x + area.width));
    let height = LinearOrLogAxisScale::linear_scale(most, (HEIGHT, area.y));
    time.draw_ticks_below(&mut svg, area, formats.0);
    height.draw_grid_lines_with_labels_left(&mut svg, area, formats.1);
    if let Some(limit) = limit {
        let y = height.position_of_value(limit as f64);
        svg.add_line((area.x, y), (area.x + area.width, y), "limit");
    }
    for (i, one) in series.iter().enumerate() {
        let mut corners = Vec::with_capacity(2 * one.points.len() + 1);
        let mut last = None;
        for &(at, value) in &one.points {
            let (x, y) = (
                time.position_of_value(at as f64),
                height.position_of_value(value as f64),
            );
            corners.extend(last.map(|before| (x, before)));
            corners.push((x, y));
            last = Some(y);
        }
        corners.extend(last.map(|y| (time.position_of_value(end as f64), y)));
        svg.add_polyline(&corners, &format!("c{}", colour_of_line(i)), &one.label);
    }
    svg.into_element(name)
}
