//! Parallel coordinates: one vertical axis per property, one line per item.

use super::svg::{SvgDrawing, TextAnchor};
use super::{FOOT, WIDTH};

const HEIGHT: f64 = 300.0;
const TOP: f64 = 30.0;
const SIDE: f64 = 70.0;

/// The axis of a property.
#[derive(Clone, Debug)]
pub struct ParallelCoordinateAxis {
    /// Name of the property.
    pub name: String,
    /// Labelled values from bottom to top, each with a position from 0 to 1 and a label.
    pub values: Vec<(f64, String)>,
}

/// The line of an item.
#[derive(Clone, Debug)]
pub struct ParallelCoordinateLine {
    /// Position of the item's value on each axis, from 0 (bottom) to 1 (top).
    pub places: Vec<f64>,
    /// Index of the line's series.
    pub series: usize,
    /// Tooltip text.
    pub title: String,
}

/// Draws the lines over the axes. Later lines cover earlier ones.
pub fn draw_parallel_coordinates(
    name: &str,
    axes: &[ParallelCoordinateAxis],
    lines: &[ParallelCoordinateLine],
) -> String {
    let mut svg = SvgDrawing::new(WIDTH, HEIGHT + FOOT);
    let gap = (WIDTH - 2.0 * SIDE) / (axes.len().max(2) - 1) as f64;
    let x = |axis: usize| SIDE + gap * axis as f64;
    let y = |place: f64| HEIGHT - (HEIGHT - TOP) * place.clamp(0.0, 1.0);
    for line in lines {
        let points = line.places.iter().enumerate();
        let points: Vec<_> = points.map(|(axis, place)| (x(axis), y(*place))).collect();
        svg.add_polyline(&points, &format!("c{}", line.series), &line.title);
    }
    for (i, axis) in axes.iter().enumerate() {
        svg.add_line((x(i), TOP), (x(i), HEIGHT), "grid");
        // Adjacent axis names are at different heights, so that long names do not overlap.
        let height = if i % 2 == 0 { TOP - 18.0 } else { TOP - 6.0 };
        svg.add_text((x(i), height), TextAnchor::Middle, "axis", &axis.name);
        // Skip a label that would be illegible because it is too near to the previous one.
        let mut free = f64::INFINITY;
        for (place, value) in &axis.values {
            if y(*place) > free {
                continue;
            }
            free = y(*place) - 14.0;
            svg.add_text(
                (x(i) + 4.0, y(*place) + 4.0),
                TextAnchor::Start,
                "label",
                value,
            );
        }
    }
    svg.into_element(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_from_axis_to_axis() {
        let axis = |name: &str| ParallelCoordinateAxis {
            name: name.to_owned(),
            values: vec![(0.0, "1".to_owned()), (1.0, "2".to_owned())],
        };
        let line = ParallelCoordinateLine {
            places: vec![0.0, 1.0],
            series: 3,
            title: "row <1>".to_owned(),
        };
        let svg = draw_parallel_coordinates("p", &[axis("a"), axis("b")], &[line]);
        // The line goes from the bottom of the first axis to the top of the last.
        assert!(
            svg.contains("class=\"line c3\" points=\"70.0,300.0 890.0,30.0 \""),
            "{svg}"
        );
        assert!(svg.contains("row &lt;1&gt;"));
    }
}
