//! Scatter charts: points with two values each, and optionally lines.

use super::axis::LinearOrLogAxisScale;
use super::svg::{DrawingRect, SvgDrawing, TextAnchor};
use super::{AxisValueFormatFn, FOOT, WIDTH};

const HEIGHT: f64 = 260.0;
const LEFT: f64 = 80.0;
/// Height of the space above a chart for the name of the vertical axis.
const HEAD: f64 = 26.0;
/// Height of a line of text.
const LINE: f64 = 13.0;

/// A point of a scatter chart. On a logarithmic axis, the value must be positive.
#[derive(Clone, Debug)]
pub struct ScatterPoint {
    /// Value on the horizontal axis.
    pub x: f64,
    /// Value on the vertical axis.
    pub y: f64,
    /// Index of the point's series.
    pub series: usize,
    /// Tooltip text.
    pub title: String,
}

/// A line that connects points by straight segments.
#[derive(Clone, Debug, Default)]
pub struct ScatterPolyline {
    /// Name of the line.
    pub name: String,
    /// Index of the line's series.
    pub series: usize,
    /// Points of the line: horizontal and vertical value.
    pub way: Vec<(f64, f64)>,
}

/// How an axis is scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogarithmicOrAutomaticScale {
    /// Logarithmic scale, base ten.
    #[default]
    Logarithmic,
    /// The scale that [`LinearOrLogAxisScale::fitting_scale`] selects for the values.
    Fitting,
}

/// A scatter chart to draw.
#[derive(Debug, Default)]
pub struct ScatterChart<'a> {
    /// Accessible name of the chart.
    pub name: &'a str,
    /// Names of the horizontal and the vertical axis.
    pub axes: (&'a str, &'a str),
    /// Scales of the horizontal and the vertical axis.
    pub scales: (LogarithmicOrAutomaticScale, LogarithmicOrAutomaticScale),
    /// Points of the chart.
    pub points: &'a [ScatterPoint],
    /// Lines, which are drawn below the points.
    pub lines: &'a [ScatterPolyline],
    /// A value on the vertical axis that a dashed line marks, and the line's name.
    pub limit: Option<(f64, String)>,
    /// Labels next to points: horizontal and vertical value, and text.
    pub names: &'a [(f64, f64, String)],
}

impl ScatterChart<'_> {
    /// Draws the chart; `formats` format the values of the horizontal and the vertical axis.
    pub fn draw_chart(&self, formats: (AxisValueFormatFn<'_>, AxisValueFormatFn<'_>)) -> String {
        let points = self.points.iter().map(|point| (point.x, point.y));
        let ways = self.lines.iter().flat_map(|line| line.way.iter().copied());
        let values: Vec<(f64, f64)> = points.chain(ways).collect();
        let limit = self.limit.as_ref().map(|(value, _)| *value);
        let right = value_range(values.iter().map(|(x, _)| *x));
        let up = value_range(values.iter().map(|(_, y)| *y).chain(limit));
        let scale = |kind, values, places| match kind {
            LogarithmicOrAutomaticScale::Logarithmic => {
                LinearOrLogAxisScale::logarithmic_scale(values, places)
            }
            LogarithmicOrAutomaticScale::Fitting => {
                LinearOrLogAxisScale::fitting_scale(values, places)
            }
        };
        let area = chart_area(LEFT, HEIGHT);
        let right = scale(self.scales.0, right, (area.x, area.x + area.width));
        let up = scale(self.scales.1, up, (HEIGHT, area.y));
        let mut svg = start_chart_with_axes(area, (right, up), self.axes, formats);
        if let Some((limit, name)) = &self.limit {
            let y = up.position_of_value(*limit);
            svg.add_line((area.x, y), (area.x + area.width, y), "limit");
            let at = (area.x + area.width, y - 4.0);
            svg.add_text(at, TextAnchor::End, "label", name);
        }
        for line in self.lines {
            let way = line
                .way
                .iter()
                .map(|(x, y)| (right.position_of_value(*x), up.position_of_value(*y)));
            let way: Vec<_> = way.collect();
            svg.add_polyline(&way, &format!("c{}", line.series), &line.name);
        }
        for point in self.points {
            let at = (
                right.position_of_value(point.x),
                up.position_of_value(point.y),
            );
            svg.add_small_circle_with_tooltip(at, &format!("c{}", point.series), &point.title);
        }
        let mut names: Vec<_> = (self.names.iter())
            .map(|(x, y, name)| (right.position_of_value(*x), up.position_of_value(*y), name))
            .collect();
        names.sort_by(|a, b| a.1.total_cmp(&b.1));
        // Move a label down if it would overlap the label above.
        let mut free = 0.0_f64;
        for (x, y, name) in names {
            let y = (y - 8.0).max(free);
            free = y + LINE;
            let (x, anchor) = match x > area.x + 0.6 * area.width {
                true => (x - 9.0, TextAnchor::End),
                false => (x + 9.0, TextAnchor::Start),
            };
            svg.add_text((x, y), anchor, "label", name);
        }
        svg.into_element(self.name)
    }
}

/// Returns the area from `left` to the right edge and down to `foot`, with space above and below for axis names.
pub(super) fn chart_area(left: f64, foot: f64) -> DrawingRect {
    DrawingRect {
        x: left,
        y: HEAD,
        width: WIDTH - left - 40.0,
        height: foot - HEAD,
    }
}

/// Starts a drawing with axes around `area`, and writes the axes' names.
pub(super) fn start_chart_with_axes(
    area: DrawingRect,
    (right, up): (LinearOrLogAxisScale, LinearOrLogAxisScale),
    names: (&str, &str),
    formats: (AxisValueFormatFn<'_>, AxisValueFormatFn<'_>),
) -> SvgDrawing {
    let foot = area.y + area.height;
    let mut svg = SvgDrawing::new(WIDTH, foot + FOOT + 16.0);
    right.draw_ticks_below(&mut svg, area, formats.0);
    up.draw_grid_lines_with_labels_left(&mut svg, area, formats.1);
    let middle = area.x + area.width / 2.0;
    svg.add_text((middle, foot + 34.0), TextAnchor::Middle, "axis", names.0);
    svg.add_text((4.0, 10.0), TextAnchor::Start, "axis", names.1);
    svg
}

/// Returns the minimum and maximum of `values`, or 1 and 10 if there are no values.
pub(super) fn value_range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let ends = values.fold(None, |ends: Option<(f64, f64)>, value| {
        let (least, most) = ends.unwrap_or((value, value));
        Some((least.min(value), most.max(value)))
    });
    ends.unwrap_or((1.0, 10.0))
}

/// Draws points on two logarithmic axes; `names` are the names of the horizontal and the vertical axis.
pub fn draw_logarithmic_scatter(
    name: &str,
    points: &[ScatterPoint],
    names: (&str, &str),
    formats: (AxisValueFormatFn<'_>, AxisValueFormatFn<'_>),
) -> String {
    let chart = ScatterChart {
        name,
        axes: names,
        points,
        ..ScatterChart::default()
    };
    chart.draw_chart(formats)
}
