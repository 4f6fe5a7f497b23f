//! Points by two values, on logarithmic axes.

use super::axis::AxisScale;
use super::svg::{Frame, SvgDrawing, TextAnchor};
use super::{FOOT, ValueFormat, WIDTH};

const HEIGHT: f64 = 240.0;
const LEFT: f64 = 80.0;

/// A point; both values are above 0.
#[derive(Clone, Debug)]
pub struct ScatterPoint {
    /// Value on the horizontal axis.
    pub x: f64,
    /// Value on the vertical axis.
    pub y: f64,
    /// Number of its series.
    pub series: usize,
    /// Text that explains it.
    pub title: String,
}

/// Draws points; `names` are those of the axes.
pub fn chart(
    name: &str,
    points: &[ScatterPoint],
    names: (&str, &str),
    formats: (ValueFormat<'_>, ValueFormat<'_>),
) -> String {
    with_line(name, points, ("", &[]), names, formats)
}

/// The same with a line through `way`, called by its name.
pub fn with_line(
    name: &str,
    points: &[ScatterPoint],
    (line, way): (&str, &[(f64, f64)]),
    names: (&str, &str),
    formats: (ValueFormat<'_>, ValueFormat<'_>),
) -> String {
    let range = |value: fn(&ScatterPoint) -> f64| {
        let values = points.iter().map(value);
        let least = values.clone().fold(f64::INFINITY, f64::min);
        (least, values.fold(0.0, f64::max))
    };
    let mut svg = SvgDrawing::new(WIDTH, HEIGHT + FOOT + 16.0);
    let area = Frame {
        x: LEFT,
        y: 26.0,
        width: WIDTH - LEFT - 40.0,
        height: HEIGHT - 26.0,
    };
    let right = AxisScale::logarithmic(range(|point| point.x), (area.x, area.x + area.width));
    let up = AxisScale::logarithmic(range(|point| point.y), (HEIGHT, area.y));
    right.below(&mut svg, area, formats.0);
    up.beside(&mut svg, area, formats.1);
    let middle = area.x + area.width / 2.0;
    svg.text((middle, HEIGHT + 34.0), TextAnchor::Middle, "axis", names.0);
    svg.text((4.0, 10.0), TextAnchor::Start, "axis", names.1);
    if !way.is_empty() {
        let way = way.iter().map(|(x, y)| (right.place(*x), up.place(*y)));
        svg.polyline(&way.collect::<Vec<_>>(), "c6", line);
    }
    for point in points {
        let at = (right.place(point.x), up.place(point.y));
        svg.circle(at, &format!("c{}", point.series), &point.title);
    }
    svg.finish(name)
}
